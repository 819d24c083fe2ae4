"""A message longer than the collector's buffer: taken in as it comes, and landed as what it is.

The boards' decoder needs a whole packet in its buffer. This one reads a longer PUBLISH through, counting and hashing its payload,
and then hands on a PUBLISH with the same head (topic, packet id, flags, properties) and a description in the payload's place:

    {"oversize": {"bytes": 2000000, "sha256": "..."}}

So the flows of QoS 1 and 2 need to know nothing of it: the description is stored, acknowledged and, where the broker repeats the
message, recognised like any other payload. A long packet that is no PUBLISH is left to the boards' decoder, which refuses it.

It knows no session and no landing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable

from flashmqtt.codec.decode import Decoder
from flashmqtt.codec.packets import PUBLISH
from flashmqtt.errors import MalformedPacket

LONGEST_LENGTH_BYTES = 4
MOST_PROPERTIES = 4096  # longer ones are left out of the description


def varint(number: int) -> bytes:
    """Return a number as MQTT's variable byte integer."""
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def read_varint(data: bytes | bytearray, at: int, end: int) -> tuple[int, int]:
    """Return the variable byte integer at a position, and where it ends; (-1, at) where it does not end within `end`."""
    number = shift = 0
    for position in range(at, min(end, at + LONGEST_LENGTH_BYTES)):
        number |= (data[position] & 127) << shift
        if data[position] < 128:
            return number, position + 1
        shift += 7
    return -1, at


class _Passing:
    """A long PUBLISH of which the head has been seen and the rest is still coming."""

    def __init__(self, first: int, head: bytes, properties: int | None, left: int) -> None:
        self.first = first
        self.head = head  # topic with its length, and the packet id
        self._properties_length = properties  # None below level 5
        self._properties_left = properties or 0
        self._properties = bytearray()
        self.left = left
        self.payload_bytes = left - (properties or 0)
        self._digest = hashlib.sha256()

    def take(self, data: memoryview) -> None:
        """Take in what came."""
        self.left -= len(data)
        if self._properties_left:
            part = data[: self._properties_left]
            if (self._properties_length or 0) <= MOST_PROPERTIES:
                self._properties += part
            self._properties_left -= len(part)
            data = data[len(part) :]
        self._digest.update(data)

    def description(self) -> bytes:
        """Return the PUBLISH packet that stands for this one."""
        what = {"oversize": {"bytes": self.payload_bytes, "sha256": self._digest.hexdigest()}}
        body = self.head
        if self._properties_length is not None:
            body += varint(len(self._properties)) + self._properties
        body += json.dumps(what).encode()
        return bytes((self.first,)) + varint(len(body)) + body


class OversizeDecoder(Decoder):
    """The boards' decoder, for which no PUBLISH is too long.

    Attributes:
        dropped: the packet that `next` returned last stands for a longer one, and the policy is to drop it.
        on_oversize: called with the topic and the length of the payload, once a long message has come whole.
    """

    def __init__(self, size: int, level: int, drop: bool = False) -> None:
        self._passing: _Passing | None = None
        self._drop = drop
        self.dropped = False
        self.on_oversize: Callable[[str, int], None] | None = None
        super().__init__(size, level)

    def reset(self) -> None:
        """Forget what a network connection left behind; a new one starts."""
        super().reset()
        self._passing = None
        self.dropped = False

    def room(self) -> memoryview:
        """Return the free part of the buffer; half of it while a long message comes, for its description to fit beside."""
        room: memoryview = super().room()
        return room if self._passing is None else room[: len(self.buffer) // 2]

    def next(self) -> int:
        """Return the type of the next packet, with its fields set, or 0: more bytes are needed.

        Raises:
            MalformedPacket: as the boards' decoder; of reason 0x95 for no PUBLISH.
        """
        self.dropped = False
        at, buffer = self.at, self.buffer
        if self._passing is not None or (
            self.end - at > 3 and buffer[at] >> 4 == PUBLISH and buffer[at + 1] & buffer[at + 2] & 128
        ):
            return self._next_long()
        return super().next()

    def look(self) -> None:
        """The bytes that were received have moved."""

    def _next_long(self) -> int:
        """Do what `next` does, with a packet that may be too long for the buffer."""
        if self._passing is None and not self._begin():
            kind: int = super().next()
            return kind
        passing = self._passing
        if passing is None:  # its head is not here yet
            return 0
        part = min(passing.left, self.end - self.at)
        with memoryview(self.buffer)[self.at : self.at + part] as data:
            passing.take(data)
        self.at += part
        if passing.left:
            return 0
        self._passing = None
        self._put_back(passing.description())
        kind = super().next()
        if self.on_oversize is not None:
            self.on_oversize(bytes(self.buffer[self.topic_start : self.topic_end]).decode(), passing.payload_bytes)
        self.dropped = self._drop
        return kind

    def _begin(self) -> bool:
        """Begin to pass over the packet, if it is a long PUBLISH; return False where it is the boards' decoder's to judge."""
        at, end, buffer = self.at, self.end, self.buffer
        first = buffer[at]
        length, body = read_varint(buffer, at + 1, end)
        if body - at + length <= len(buffer) or first & 6 == 6 or first & 14 == 8:
            return False
        if self.level == 5 and not buffer[body - 1]:  # a length of more bytes than it needs
            return False
        self._need = body - at + length
        head_end = body + 2
        if head_end > end:
            return True
        head_end += (buffer[body] << 8 | buffer[body + 1]) + (2 if first & 6 else 0)
        payload, properties = head_end, None
        if self.level == 5:
            properties, payload = read_varint(buffer, head_end, end)
            if properties < 0 and end - head_end >= LONGEST_LENGTH_BYTES:
                raise MalformedPacket("the length of a PUBLISH's properties is longer than four bytes")
            if properties < 0:
                return True
            if payload + properties > body + length:
                raise MalformedPacket(f"properties of {properties} bytes in a PUBLISH of {length} bytes")
        if head_end > end:
            return True
        self._passing = _Passing(first, bytes(buffer[body:head_end]), properties, body + length - payload)
        self.at = payload
        return True

    def _put_back(self, packet: bytes) -> None:
        """Put a packet before what was received."""
        rest = bytes(self.buffer[self.at : self.end])
        size = len(packet)
        self.buffer[:size] = packet
        self.buffer[size : size + len(rest)] = rest
        self.at, self.end, self._need = 0, size + len(rest), 0
        self.look()
