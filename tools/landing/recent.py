"""The last QoS 1 messages by packet id, to recognise a resent message that landed already.

At QoS 1 a broker that received no acknowledgement resends the message with DUP and the same packet id. The resent message is
a copy if exactly one recent message of the broker's session had that packet id, with the same topic and payload. If several
recent messages had the packet id, the broker reuses ids at once and a copy can't be recognised. The message then counts as a
new one, because a duplicate is better than a loss.

Each log begins with the state at the end of the previous log, so a crash does not lose the state.
"""

from __future__ import annotations

import struct
from collections import deque
from hashlib import blake2b

from tools.landing.publish import QOS_BITS, decoded

MOST = 4096
"""Messages. Brokers have far fewer in flight (mosquitto 20 by default) and use all 65,535 packet ids in turn."""
MOST_BYTES = 8 << 20
QOS_1 = 0x02
ENTRY = struct.Struct("<H8s")


class Recent:
    """The last messages that landed in the current session at the broker."""

    def __init__(self) -> None:
        self._inherited: list[tuple[int, bytes]] = []
        self._runs: deque[tuple[int, bytes, int]] = deque()  # level, packets, how many
        self._count = self._bytes = 0

    def land(self, level: int, packets: bytes, count: int) -> None:
        """Add PUBLISH packets that landed."""
        self._runs.append((level, packets, count))
        self._count += count
        self._bytes += len(packets)
        while len(self._runs) > 1 and (self._count - self._runs[0][2] >= MOST or self._bytes > MOST_BYTES):
            _, dropped, of_them = self._runs.popleft()
            self._count -= of_them
            self._bytes -= len(dropped)
            self._inherited.clear()

    def clear(self) -> None:
        """Forget all messages: the broker began a new session, so earlier packet ids are void."""
        self.__init__()  # type: ignore[misc]

    def known(self) -> list[tuple[int, bytes]]:
        """Return packet id and digest of the last messages, oldest first."""
        found = list(self._inherited)
        for level, packets, _ in self._runs:
            for head, topic, packet_id, _, payload in decoded(packets, 0, len(packets), level):
                if head & QOS_BITS == QOS_1:
                    found.append((int.from_bytes(packet_id), digest(topic, payload)))
        return found[-MOST:]

    def index(self) -> dict[int, bytes]:
        """Return the digest of each packet id's message; b"" for an id that several messages had."""
        found: dict[int, bytes] = {}
        for key, its_digest in self.known():
            found[key] = b"" if key in found else its_digest
        return found

    def encode(self) -> bytes:
        """Return the state, as the body of a RECENT entry."""
        return b"".join(ENTRY.pack(*one) for one in self.known())

    def inherit(self, body: bytes) -> None:
        """Replace the state by the body of a RECENT entry."""
        self.clear()
        self._inherited = list(ENTRY.iter_unpack(body))


def digest(topic: bytes, payload: bytes | memoryview) -> bytes:
    """Return a 64-bit digest of a topic and a payload."""
    made = blake2b(len(topic).to_bytes(2) + topic, digest_size=8)
    made.update(payload)
    return made.digest()
