"""Decode PUBLISH packets that a session has validated: what the log stores (MQTT §3.3)."""

from collections.abc import Iterator

QOS_BITS, DUP_BIT, RETAIN_BIT = 0x06, 0x08, 0x01
LONGEST_LENGTH_BYTES = 4


def decoded(data: bytes, at: int, end: int, level: int) -> Iterator[tuple[int, bytes, bytes, bytes | None, bytes]]:
    """Yield first byte, topic, packet id (b"" at QoS 0), properties and payload of each packet in `data[at:end]`.

    The properties are None below level 5.
    """
    properties = None
    while at < end:
        head, length = data[at], data[at + 1]
        at += 2
        if length > 127:
            length, at = read_varint(data, at - 1, end)
        stop = at + length
        body = at + 2 + (data[at] << 8 | data[at + 1])
        topic, packet_id = data[at + 2 : body], b""
        if head & QOS_BITS:
            packet_id = data[body : body + 2]
            body += 2
        if level == 5:
            length, at = read_varint(data, body, end)
            body = at + length
            properties = data[at:body]
        yield head, topic, packet_id, properties, data[body:stop]
        at = stop


def read_varint(data: bytes | bytearray, at: int, end: int) -> tuple[int, int]:
    """Return the variable byte integer at a position, and its end; (-1, at) if it is incomplete or longer than 4 bytes."""
    number = shift = 0
    for position in range(at, min(end, at + LONGEST_LENGTH_BYTES)):
        number |= (data[position] & 127) << shift
        if data[position] < 128:
            return number, position + 1
        shift += 7
    return -1, at
