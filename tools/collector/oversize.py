"""A decoder for messages longer than the collector's buffer: a description takes the payload's place.

The boards' decoder needs a whole packet in its buffer. This decoder reads a longer PUBLISH in pieces, counts and hashes its
payload, and then returns a PUBLISH with the same topic, packet id, flags and properties, and this payload:

    {"oversize": {"bytes": 2000000, "sha256": "..."}}

The flows of QoS 1 and 2 treat the description like any other payload: it is stored, acknowledged, and recognised when the broker
resends the message. The boards' decoder refuses any other long packet.

This module knows no session, and of the landing only how packets are decoded.
"""

import hashlib
import json
from collections.abc import Callable

from flashmqtt.codec.decode import Decoder
from flashmqtt.codec.encode import put_length
from flashmqtt.codec.packets import PUBLISH
from flashmqtt.errors import MalformedPacket
from tools.landing.publish import LONGEST_LENGTH_BYTES, read_varint

MOST_PROPERTIES = 4096  # bytes; the description omits longer properties


def encode_varint(number: int) -> bytes:
    """Return a number as MQTT's variable byte integer."""
    encoded = bytearray(LONGEST_LENGTH_BYTES)
    return bytes(encoded[: put_length(encoded, 0, number)])


class _LongPublish:
    """A long PUBLISH whose head was decoded and whose payload is still arriving."""

    def __init__(self, first: int, head: bytes, properties: int | None, left: int) -> None:
        self.first = first
        self.head = head  # length and topic, packet id
        self._properties_length = properties  # None below level 5
        self._properties_left = properties or 0
        self._properties = bytearray()
        self.left = left
        self.payload_bytes = left - (properties or 0)
        self._digest = hashlib.sha256()

    def add(self, data: memoryview) -> None:
        """Count and hash the next bytes; keep those of the properties."""
        self.left -= len(data)
        if self._properties_left:
            part = data[: self._properties_left]
            if (self._properties_length or 0) <= MOST_PROPERTIES:
                self._properties += part
            self._properties_left -= len(part)
            data = data[len(part) :]
        self._digest.update(data)

    def description(self) -> bytes:
        """Return the PUBLISH packet with the description as its payload."""
        what = {"oversize": {"bytes": self.payload_bytes, "sha256": self._digest.hexdigest()}}
        body = self.head
        if self._properties_length is not None:
            body += encode_varint(len(self._properties)) + self._properties
        body += json.dumps(what).encode()
        return bytes((self.first,)) + encode_varint(len(body)) + body


class OversizeDecoder(Decoder):
    """The boards' decoder, extended for a PUBLISH of any length.

    Attributes:
        dropped: the packet that `next` returned last describes a longer one that has to be dropped.
        on_oversize: called with the topic and the payload's length when a long message is complete.
    """

    def __init__(self, size: int, level: int, drop: bool = False) -> None:
        self._long: _LongPublish | None = None
        self._drop = drop
        self.dropped = False
        self.on_oversize: Callable[[str, int], None] | None = None
        super().__init__(size, level)

    def reset(self) -> None:
        """Discard the state of the last network connection."""
        super().reset()
        self._long = None
        self.dropped = False

    def room(self) -> memoryview:
        """Return the free part of the buffer; during a long message at most half the buffer, so that its description fits."""
        room: memoryview = super().room()
        return room if self._long is None else room[: len(self.buffer) // 2]

    def next(self) -> int:
        """Return the type of the next packet, with its fields set, or 0: more bytes are needed.

        Raises:
            MalformedPacket: as the boards' decoder; but never reason 0x95, packet too large, for a PUBLISH.
        """
        self.dropped = False
        at, buffer = self.at, self.buffer
        if self._long is not None or (
            self.stop - at > 3 and buffer[at] >> 4 == PUBLISH and buffer[at + 1] & buffer[at + 2] & 128
        ):
            return self._next_long()
        return super().next()

    def look(self) -> None:
        """Called after received bytes were moved in the buffer; `RunDecoder` overrides it."""

    def _next_long(self) -> int:
        """Do what `next` does, for a packet that may be longer than the buffer."""
        if self._long is None and not self._begin():
            kind: int = super().next()
            return kind
        message = self._long
        if message is None:  # its head is incomplete
            return 0
        part = min(message.left, self.stop - self.at)
        with memoryview(self.buffer)[self.at : self.at + part] as data:
            message.add(data)
        self.at += part
        if message.left:
            return 0
        self._long = None
        self._insert(message.description())
        kind = super().next()
        if self.on_oversize is not None:
            self.on_oversize(bytes(self.buffer[self.topic_start : self.topic_end]).decode(), message.payload_bytes)
        self.dropped = self._drop
        return kind

    def _begin(self) -> bool:
        """Start reading a long PUBLISH; return False if the boards' decoder has to decode the packet."""
        at, end, buffer = self.at, self.stop, self.buffer
        first = buffer[at]
        length, body = read_varint(buffer, at + 1, end)
        if body - at + length <= len(buffer) or first & 6 == 6 or first & 14 == 8:
            return False
        if self.level == 5 and not buffer[body - 1]:  # the length is not in its shortest form: malformed
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
        self._long = _LongPublish(first, bytes(buffer[body:head_end]), properties, body + length - payload)
        self.at = payload
        return True

    def _insert(self, packet: bytes) -> None:
        """Insert a packet before the received bytes."""
        rest = bytes(self.buffer[self.at : self.stop])
        size = len(packet)
        self.buffer[:size] = packet
        self.buffer[size : size + len(rest)] = rest
        self.at, self.stop, self._need = 0, size + len(rest), 0
        self.look()
