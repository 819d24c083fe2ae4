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
from collections.abc import Iterator
from hashlib import blake2b

MOST = 4096
"""Messages. Brokers have far fewer in flight (mosquitto 20 by default) and use all 65,535 packet ids in turn."""
MOST_BYTES = 8 << 20
QOS_BITS, QOS_1 = 0x06, 0x02
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
            found += [(key, digest(topic, payload)) for key, topic, payload in _qos_1(packets, level)]
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


def _qos_1(packets: bytes, level: int) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield packet id, topic and payload of the QoS 1 messages among some PUBLISH packets."""
    at = 0
    while at < len(packets):
        head, at = packets[at], at + 1
        length, at = decode_varint(packets, at)
        stop = at + length
        topic_end = at + 2 + (packets[at] << 8 | packets[at + 1])
        if head & QOS_BITS == QOS_1:
            body = topic_end + 2
            if level == 5:
                length, body = decode_varint(packets, body)
                body += length
            yield packets[topic_end] << 8 | packets[topic_end + 1], packets[at + 2 : topic_end], packets[body:stop]
        at = stop


def decode_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a Variable Byte Integer of a valid packet, and its end (MQTT 5, §1.5.5)."""
    length = shift = 0
    while True:
        byte = data[at]
        at += 1
        length |= (byte & 127) << shift
        if byte < 128:
            return length, at
        shift += 7
