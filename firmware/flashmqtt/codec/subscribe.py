"""SUBSCRIBE and UNSUBSCRIBE, written into the caller's buffer (3.1.1 and 5, sections 3.8 and 3.10).

A separate file, because a board that only publishes needs neither these packets nor the rules for topic filters. `pos`, `level`,
`properties` and the outcomes are those of `encode`, whose functions it uses.
"""

from flashmqtt.compat import TYPE_CHECKING
from flashmqtt.errors import UsageError

from .encode import _property_bytes, _put_binary, _put_id, _put_properties, _put_start, outside
from .topics import check_filter, is_shared

if TYPE_CHECKING:
    from collections.abc import Sequence


def put_subscribe(
    buf: "bytearray | memoryview",
    pos: int,
    packet_id: int,
    filters: "Sequence[tuple[bytes | bytearray | memoryview, int]]",
    level: int = 4,
    dup: bool = False,
    properties: "bytes | bytearray | memoryview | None" = None,
) -> int:
    """Put a SUBSCRIBE (§3.8) with its `packet_id`; `dup` is only for a repetition at level 3.

    Args:
        filters: (filter, options) pairs; options is the QoS, at level 5 with its other bits (§3.8.3.1).
    """
    n = 0
    for filter_, options in filters:
        check_filter(filter_)
        # [MQTT-3-8.3-4]; 5: QoS 3, Retain Handling 3, bits 7-6 [MQTT-3.8.3-5], No Local if shared [MQTT-3.8.3-4]
        if (
            not isinstance(options, int)
            or options & 3 == 3
            or not 0 <= options <= (0x2E if level == 5 else 2)
            or (options & 4 and is_shared(filter_))
        ):
            raise UsageError("qos %r for %r: 0 to 2" % (options, bytes(filter_)))
        n += len(filter_) + 3
    pos = _put_filters(buf, pos, 0x82, packet_id, n, level, dup, properties)
    for filter_, options in filters:
        pos = _put_binary(buf, pos, filter_)
        buf[pos] = options
        pos += 1
    return pos


def put_unsubscribe(
    buf: "bytearray | memoryview",
    pos: int,
    packet_id: int,
    filters: "Sequence[bytes | bytearray | memoryview]",
    level: int = 4,
    dup: bool = False,
    properties: "bytes | bytearray | memoryview | None" = None,
) -> int:
    """Put an UNSUBSCRIBE (§3.10) of filters, with its `packet_id`; `dup` is only for a repetition at `level` 3."""
    n = 0
    for filter_ in filters:
        check_filter(filter_)
        n += len(filter_) + 2
    pos = _put_filters(buf, pos, 0xA2, packet_id, n, level, dup, properties)
    for filter_ in filters:
        pos = _put_binary(buf, pos, filter_)
    return pos


def _put_filters(
    buf: "bytearray | memoryview",
    pos: int,
    head: int,
    packet_id: int,
    n: int,
    level: int,
    dup: bool,
    properties: "bytes | bytearray | memoryview | None",
) -> int:
    if not n or not 0 < packet_id < 65536:  # [MQTT-3.8.3-3] [MQTT-3.10.3-2]; 5: [MQTT-3.8.3-2]; [MQTT-2.3.1-1]
        raise outside("packet_id", packet_id, 1, 65535) if n else UsageError("no filter")
    pos = _put_start(buf, pos, head | dup << 3, n + 2 + _property_bytes(level, properties))
    pos = _put_id(buf, pos, packet_id)
    return _put_properties(buf, pos, properties) if level == 5 else pos
