"""The errors for packets that no conforming server sends. A decoder imports this module with the first such packet.

The functions return the error; `decoder` is at the start of the packet.
"""

from flashmqtt.compat import TYPE_CHECKING, const
from flashmqtt.errors import MalformedPacket

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251

_ACK_BYTES = const(8)  # the room that one acknowledgement may need
_UNSPECIFIED_ERROR = const(0x80)


def acknowledge(decoder: "Any", output: "Any") -> bool:
    """Refuse the PUBLISH that can't be decoded, so that the broker does not send it again.

    Return False if it is another packet, or has no packet id, or there is no room. Set the decoder's span of the topic: empty if
    it is not a retained PUBLISH.
    """
    try:
        decoder.next()
        head = 0  # the error was not the decoder's
    except MalformedPacket:
        head = decoder.buffer[decoder.at]
    decoder.topic_end = decoder.topic_start
    buf = decoder.buffer
    at = decoder.at
    if head >> 4 != 3 or decoder.more or decoder.stop - at < 5:
        return False
    n = shift = 0
    while shift < 28:
        at += 1
        n |= (buf[at] & 127) << shift
        shift += 7
        if buf[at] < 128:
            break
    end = min(at + 1 + n, decoder.stop)
    at += 3
    if at > end or buf[at - 3] > 127:  # a length of five bytes
        return False
    n = at + (buf[at - 2] << 8 | buf[at - 1])
    if n <= end and head & 1:
        decoder.topic_start = at
        decoder.topic_end = n
    packet_id = buf[n] << 8 | buf[n + 1] if n + 2 <= end else 0
    qos = head >> 1 & 3
    if not 0 < qos < 3 or not packet_id or output.room() < _ACK_BYTES:
        return False
    output.put_ack(3 + qos, packet_id, _UNSPECIFIED_ERROR)
    return True


def beyond(decoder: "Any", at: int, after: int) -> "MalformedPacket":
    """Return the error for a field that ends at `at`, outside the buffer; `after`: where the packet ends."""
    if at > after:
        return wrong_size(decoder, at, after)
    return MalformedPacket("%d bytes, the buffer has %d" % (after - decoder.at, len(decoder.buffer)), 0x95)


def wrong_size(decoder: "Any", at: int, after: int) -> "MalformedPacket":
    """Return the error for a packet that ends at `after`, although its fields end at `at`."""
    start = decoder.at
    return MalformedPacket("packet type %d: %d bytes, not %d" % (decoder.buffer[start] >> 4, after - start, at - start))


def wrong_length(decoder: "Any", n: int, shift: int) -> "MalformedPacket":
    """Return the error for a length field with too many bytes (§2.2.3); shift: of the last byte, in bits."""
    kind = decoder.buffer[decoder.at] >> 4
    return MalformedPacket("packet type %d: length %d in %d bytes" % (kind, n, shift // 7 + 1))


def wrong_topic(decoder: "Any", start: int, end: int) -> "MalformedPacket":
    """Return the error for an invalid topic; it has the first 32 bytes."""
    return MalformedPacket("topic %r: UTF-8 without +, #, NUL" % bytes(decoder.buffer[start:end][:32]))


def wrong_id() -> "MalformedPacket":
    """Return the error for the packet id 0."""
    return MalformedPacket("packet_id 0")


def wrong_flags(packet_type: int, flags: int) -> "MalformedPacket":
    """Return the error for invalid flags in the first byte (§2.2.2)."""
    return MalformedPacket("flags %d of packet type %d" % (flags, packet_type))


def wrong_code(packet_type: int, code: int) -> "MalformedPacket":
    """Return the error for an invalid code in a CONNACK or SUBACK."""
    return MalformedPacket("code 0x%02x in packet type %d" % (code, packet_type))


def wrong_present(flags: int) -> "MalformedPacket":
    """Return the error for the byte of Session Present in a CONNACK."""
    return MalformedPacket("flags of CONNACK 0x%02x" % flags)
