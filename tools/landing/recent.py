"""The last QoS 1 messages by packet id, to recognise a resent message that landed already.

At QoS 1 a broker that received no acknowledgement resends the message with DUP and the same packet id. The resent message is
a copy if exactly one recent message of the broker's session had that packet id, with the same topic and payload. If several
recent messages had the packet id, the broker reuses ids at once and a copy can't be recognised. The message then counts as a
new one, because a duplicate is better than a loss.

Each log begins with the state at the end of the previous log, so a crash does not lose the state.
"""

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
        self._runs: deque[tuple[int, bytes, int]] = deque()  # level, packets, how many; not yet decoded
        self._count = self._bytes = 0
        self._known: deque[tuple[int, bytes]] = deque()  # of the messages before: packet id and digest, oldest first
        self._by_id: dict[int, list[bytes]] = {}

    def land(self, level: int, packets: bytes, count: int) -> None:
        """Add PUBLISH packets that landed."""
        self._runs.append((level, packets, count))
        self._count += count
        self._bytes += len(packets)
        while len(self._runs) > 1 and (self._count - self._runs[0][2] >= MOST or self._bytes > MOST_BYTES):
            _, dropped, of_them = self._runs.popleft()
            self._count -= of_them
            self._bytes -= len(dropped)
            self._known.clear()
            self._by_id.clear()

    def clear(self) -> None:
        """Forget all messages: the broker began a new session, so earlier packet ids are void."""
        self.__init__()  # type: ignore[misc]

    def has(self, packet_id: int, its_digest: bytes) -> bool:
        """Return whether exactly one recent message had this packet id, and this digest."""
        self._decode()
        return self._by_id.get(packet_id) == [its_digest]

    def encode(self) -> bytes:
        """Return the state, as the body of a RECENT entry."""
        self._decode()
        return b"".join(ENTRY.pack(*one) for one in self._known)

    def inherit(self, body: bytes) -> None:
        """Replace the state by the body of a RECENT entry."""
        self.clear()
        for one in ENTRY.iter_unpack(body):
            self._add(*one)

    def _decode(self) -> None:
        for level, packets, _ in self._runs:
            for head, topic, packet_id, _, payload in decoded(packets, 0, len(packets), level):
                if head & QOS_BITS == QOS_1:
                    self._add(int.from_bytes(packet_id), digest(topic, payload))
        self._runs.clear()
        self._count = self._bytes = 0

    def _add(self, packet_id: int, its_digest: bytes) -> None:
        self._known.append((packet_id, its_digest))
        self._by_id.setdefault(packet_id, []).append(its_digest)
        if len(self._known) > MOST:
            oldest, _ = self._known.popleft()
            del self._by_id[oldest][0]
            if not self._by_id[oldest]:
                del self._by_id[oldest]


def digest(topic: bytes, payload: bytes | memoryview) -> bytes:
    """Return a 64-bit digest of a topic and a payload."""
    made = blake2b(len(topic).to_bytes(2) + topic, digest_size=8)
    made.update(payload)
    return made.digest()
