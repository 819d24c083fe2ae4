"""Decode PUBLISH packets that a session has validated: what the log stores (MQTT §3.3)."""

from __future__ import annotations

from collections.abc import Iterator

QOS_BITS, DUP_BIT, RETAIN_BIT = 0x06, 0x08, 0x01


def decoded(data: bytes, at: int, end: int, level: int) -> Iterator[tuple[int, bytes, bytes, bytes | None, bytes]]:
    """Yield of each packet in `data[at:end]` its first byte, topic, packet id (b"" at QoS 0), properties and payload.

    The properties are None below level 5.
    """
    properties = None
    while at < end:
        head, length = data[at], data[at + 1]
        at += 2
        if length > 127:
            length, at = decode_varint(data, at - 1)
        stop = at + length
        body = at + 2 + (data[at] << 8 | data[at + 1])
        topic, packet_id = data[at + 2 : body], b""
        if head & QOS_BITS:
            packet_id = data[body : body + 2]
            body += 2
        if level == 5:
            length, at = decode_varint(data, body)
            body = at + length
            properties = data[at:body]
        yield head, topic, packet_id, properties, data[body:stop]
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
