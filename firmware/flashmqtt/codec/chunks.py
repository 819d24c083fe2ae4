"""A PUBLISH longer than the decoder's buffer: its head stays in the buffer, its payload is read in chunks after the head.

These functions work on a Decoder, which imports this module with the first such packet and keeps a reference. The chunks do not
depend on how the bytes arrive: the first is the rest of a full buffer, the next ones fill the buffer after the head, the last is
shorter. If the head is at least as long as the buffer (a long topic, level 5's properties), only the packet id and the part
of the topic that fits in half the buffer are kept, and the chunks are empty: `headless`. Only a view per read is allocated.
"""

from flashmqtt.compat import TYPE_CHECKING, const
from flashmqtt.errors import MalformedPacket
from flashmqtt.fast import copy

from .utf8 import text_kind

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251

_LONG = const(16)  # decode.LONG
_TOO_LONG = const(0x95)


def begin(decoder: "Any", body: int, after: int) -> "Any":
    """Read the head of a PUBLISH of `after` bytes whose first bytes fill the buffer; body: where its length field ends."""
    buf = decoder.buffer
    end = len(buf)
    head = buf[0]
    start = body + 2
    if start > end:
        raise decoder._malformed.beyond(decoder, start, after)
    topic_end = start + (buf[body] << 8) + buf[body + 1]
    body = topic_end + 2 if head & 6 else topic_end
    if body > after:
        raise decoder._malformed.beyond(decoder, body, after)
    decoder.packet_id = 0
    if head & 6 and topic_end < end:
        decoder.packet_id = buf[topic_end] << 8
        if topic_end + 1 < end:
            decoder.packet_id |= buf[topic_end + 1]
            if not decoder.packet_id:  # [MQTT-2.3.1-1]; 5: [MQTT-2.2.1-3]
                raise decoder._malformed.wrong_id()
    decoder.packet_type = 3
    decoder.topic_start = start
    decoder.topic_end = topic_end
    if decoder._topic_length >= 0:
        decoder._topic_length = -1
        del decoder.topic
    decoder.headless = body >= end
    if not decoder.headless:
        _check_topic(decoder, buf, start, topic_end)
        if decoder.level == 5:
            try:
                body = decoder._level5.read_topic(decoder, buf, body, end, after)
                decoder.headless = body == end
            except MalformedPacket as error:
                if error.reason != _TOO_LONG:
                    raise
                decoder.headless = True
        elif start == topic_end:  # [MQTT-4.7.3-1]
            raise decoder._malformed.wrong_topic(decoder, start, topic_end)
    if decoder.headless:
        if decoder._stream != _LONG:
            raise decoder._malformed.beyond(decoder, after, after)
        _cut(decoder, buf, start, topic_end, body, after)
    else:
        decoder._head_end = body
        decoder.payload_total = after - body
        decoder._place(body, end)
    decoder.qos = head >> 1 & 3
    decoder.dup = head & 8 > 0
    decoder.retain = head & 1 > 0
    decoder.payload_offset = 0
    # Last: if there is no memory for one of the attributes, the next call begins anew.
    decoder.at = end
    decoder.streamed = decoder.more = True
    return decoder._stream


def _check_topic(decoder: "Any", buf: "bytearray | memoryview", start: int, end: int) -> None:
    # UTF-8 [MQTT-3.3.2-1], no U+0000 [MQTT-1.5.3-2], no wildcards [MQTT-3.3.2-2]
    if text_kind(buf, start, end):
        raise decoder._malformed.wrong_topic(decoder, start, end)


def _cut(decoder: "Any", buf: "bytearray | memoryview", start: int, topic_end: int, body: int, after: int) -> None:
    """Keep the part of a too long head that fits in half the buffer."""
    end = len(buf)
    keep = end >> 1
    if topic_end > keep:
        while keep > start and buf[keep] & 0xC0 == 0x80:  # do not cut a character
            keep -= 1
        decoder.topic_end = keep
    _check_topic(decoder, buf, start, decoder.topic_end)
    decoder._id_at = topic_end - end  # relative to the next bytes
    decoder.topic_alias = 0
    decoder.properties_start = decoder.properties_end = 0
    decoder._head_end = keep if keep > start else start
    decoder._left = after - end
    decoder.payload_total = after - body
    decoder._place(end, end)


def go_on(decoder: "Any") -> "Any":
    """Read the next chunk of a PUBLISH: as much as fits after its head, or its last bytes; return 0 if incomplete."""
    if decoder.headless:
        left = decoder._left
    else:
        offset = decoder.payload_offset + decoder.payload_end - decoder.payload_start
        left = decoder.payload_total - offset
    n = min(len(decoder.buffer) - decoder._head_end, left)
    at = decoder.at
    if decoder.stop - at < n:
        return 0
    decoder.at = at + n
    if decoder.headless:
        _pass(decoder, at, n)
    else:
        decoder._place(at, at + n)
        decoder.payload_offset = offset
    if n == left:
        decoder.more = False
        if decoder.qos and not decoder.packet_id:
            raise decoder._malformed.wrong_id()
    return decoder._stream


def _pass(decoder: "Any", at: int, n: int) -> None:
    """Skip n bytes; the packet id may be among them."""
    buf = decoder.buffer
    decoder._left -= n
    where = decoder._id_at
    if decoder.qos:
        if 0 <= where < n:
            decoder.packet_id |= buf[at + where] << 8
        if 0 <= where + 1 < n:
            decoder.packet_id |= buf[at + where + 1]
    decoder._id_at = where - n


def room(decoder: "Any") -> "Any":
    """Do what `Decoder.room` does, and keep the head."""
    at = decoder._head_end
    left = decoder.stop - decoder.at
    if left and at != decoder.at:
        copy(decoder.buffer, at, decoder.buffer, decoder.at, left)
    decoder.at = at
    decoder.stop = at + left
    return decoder._whole[at + left :]


def end(decoder: "Any") -> None:
    """End the chunks of this PUBLISH."""
    decoder.streamed = decoder.headless = False
    del decoder.payload_offset, decoder.payload_total
