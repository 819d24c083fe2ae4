"""The QoS 1 messages that landed last, by packet id: whether a message that comes again landed already.

At QoS 1 a broker sends a message again, with DUP and its old packet id, if it did not see the acknowledgement. Such a message
is a copy where one message of its broker session had that packet id lately, and had the same topic and payload. Where several had
the id, the broker gives ids out again at once, and nothing can be told: then the message counts as another one, for a message
that is there twice is better than a lost one.

A log begins with what this module knew when the one before was closed, so a crash loses none of it.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from hashlib import blake2b

MOST = 4096
"""Messages: brokers have far fewer in flight (mosquitto 20, unless told otherwise), and give out 65,535 ids in turn."""
MOST_BYTES = 8 << 20
QOS_BITS, QOS_1 = 0x06, 0x02
ENTRY = struct.Struct("<H8s")


class Recent:
    """What landed last in the session that the broker has for us."""

    def __init__(self) -> None:
        self._inherited: list[tuple[int, bytes]] = []
        self._runs: deque[tuple[int, bytes, int]] = deque()  # level, packets, how many
        self._count = self._bytes = 0

    def land(self, level: int, packets: bytes, count: int) -> None:
        """Note PUBLISH packets that landed."""
        self._runs.append((level, packets, count))
        self._count += count
        self._bytes += len(packets)
        while len(self._runs) > 1 and (self._count - self._runs[0][2] >= MOST or self._bytes > MOST_BYTES):
            _, dropped, of_them = self._runs.popleft()
            self._count -= of_them
            self._bytes -= len(dropped)
            self._inherited.clear()

    def clear(self) -> None:
        """The broker began a new session: packet ids begin anew."""
        self.__init__()  # type: ignore[misc]

    def known(self) -> list[tuple[int, bytes]]:
        """Return packet id and digest of the last messages, oldest first."""
        found = list(self._inherited)
        for level, packets, _ in self._runs:
            found += [(key, digest(topic, payload)) for key, topic, payload in _qos_1(packets, level)]
        return found[-MOST:]

    def index(self) -> dict[int, bytes]:
        """Return the digest of the message of each packet id; of none where several had it."""
        found: dict[int, bytes] = {}
        for key, its_digest in self.known():
            found[key] = b"" if key in found else its_digest
        return found

    def encode(self) -> bytes:
        """Return what the next log begins with."""
        return b"".join(ENTRY.pack(*one) for one in self.known())

    def inherit(self, body: bytes) -> None:
        """Take over what the log before knew."""
        self.clear()
        self._inherited = list(ENTRY.iter_unpack(body))


def digest(topic: bytes, payload: bytes | memoryview) -> bytes:
    """Return 64 bits for a topic and a payload."""
    made = blake2b(len(topic).to_bytes(2) + topic, digest_size=8)
    made.update(payload)
    return made.digest()


def _qos_1(packets: bytes, level: int) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield packet id, topic and payload of the QoS 1 messages among some PUBLISH packets."""
    at = 0
    while at < len(packets):
        head, at = packets[at], at + 1
        length, at = varint(packets, at)
        stop = at + length
        topic_end = at + 2 + (packets[at] << 8 | packets[at + 1])
        if head & QOS_BITS == QOS_1:
            body = topic_end + 2
            if level == 5:
                length, body = varint(packets, body)
                body += length
            yield packets[topic_end] << 8 | packets[topic_end + 1], packets[at + 2 : topic_end], packets[body:stop]
        at = stop


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a Variable Byte Integer of a valid packet, and where it ends (MQTT 5, 1.5.5)."""
    length = shift = 0
    while True:
        byte = data[at]
        at += 1
        length |= (byte & 127) << shift
        if byte < 128:
            return length, at
        shift += 7
