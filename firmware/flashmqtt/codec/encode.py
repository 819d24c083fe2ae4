"""Encodes a client's packets into the caller's buffer (chapter 3 of 3.1.1 and 5; 3.1's sections 3.1 to 3.14).

Every `put_*` writes one packet at `pos` and returns the position after it. Strings and payloads are bytes-like: lengths count
bytes, so do not give a `str`. Levels 3, 4 and 5 differ by parameters only; `properties` is the encoded property block without its
length (from `properties.pack`), or None if empty.

PUBLISH and the acknowledgements allocate nothing. Outcomes: the next position; BufferTooSmall (then the bytes after `pos` are
undefined, and nothing outside the buffer was written); InvalidTopic; UsageError for other mistakes of the caller. The encoder
knows no session: the layers above choose packet ids and know the peer's limits.
"""

from flashmqtt.compat import TYPE_CHECKING
from flashmqtt.errors import BufferTooSmall, UsageError
from flashmqtt.fast import copy

from .quick import plain_end, put_message
from .utf8 import text_kind

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251


def put_publish(
    buf: "bytearray | memoryview",
    pos: int,
    topic: "bytes | bytearray | memoryview",
    payload: "bytes | bytearray | memoryview",
    qos: int = 0,
    retain: bool = False,
    dup: bool = False,
    packet_id: int = 0,
    level: int = 4,
    properties: "bytes | bytearray | memoryview | None" = None,
    head_only: bool = False,
) -> int:
    """Put a PUBLISH (§3.3).

    Args:
        topic: 1 to 65,535 bytes of UTF-8 without wildcards; empty only at level 5 with a topic alias in `properties`.
        payload: bytes-like, may be empty; with `head_only`, the number of bytes.
        qos, retain, dup: DUP is for a retransmission at QoS 1 or 2.
        packet_id: 1 to 65,535 at QoS 1 and 2; 0 at QoS 0.
        level: 3, 4 or 5.
    """
    topic_length = len(topic)
    # `text_kind` checks text that is not plain ASCII. An empty topic is for level 5 only, with a topic alias (§3.3.2.3.4).
    if (
        (plain_end(topic, 0, topic_length) != topic_length and text_kind(topic, 0, topic_length))
        or topic_length > 65535
        or not (topic_length or (level == 5 and properties))
    ):
        from flashmqtt.arguments import refuse_topic

        refuse_topic(topic, False)
    if isinstance(payload, str):  # its length would count characters
        raise UsageError("bytes, not str")
    if qos:
        if type(qos) is not int or not 0 < qos < 3:  # [MQTT-3.3.1-4]; True may be meant as `retain`
            raise outside("qos", qos, 0, 2)
        if not 0 < packet_id < 65536:  # [MQTT-2.3.1-1]; 5: [MQTT-2.2.1-3]
            raise outside("packet_id", packet_id, 1, 65535)
    elif dup or packet_id:  # [MQTT-3.3.1-2] [MQTT-2.3.1-5]; 5: [MQTT-2.2.1-2]
        raise UsageError("DUP or packet_id at QoS 0")
    head = 0x30 | dup << 3 | qos << 1 | (1 if retain else 0)  # not `retain` itself: a retain of 2 would change the QoS
    if not head_only and level != 5:
        end = put_message(buf, pos, topic, payload, head | packet_id << 8)
        if end:
            return end
    n: int = payload if head_only else len(payload)  # type: ignore[assignment]
    pos = _put_start(
        buf,
        pos,
        head,
        topic_length + n + (4 if qos else 2) + _property_bytes(level, properties),
        n if head_only else 0,
    )
    pos = _put_binary(buf, pos, topic)
    if qos:
        pos = _put_id(buf, pos, packet_id)
    if level == 5:
        pos = _put_properties(buf, pos, properties)
    if head_only:
        return pos
    copy(buf, pos, payload, 0, n)
    return pos + n


def put_publish_head(
    buf: "bytearray | memoryview",
    pos: int,
    topic: "bytes | bytearray | memoryview",
    payload_length: int,
    qos: int = 0,
    retain: bool = False,
    dup: bool = False,
    packet_id: int = 0,
    level: int = 4,
    properties: "bytes | bytearray | memoryview | None" = None,
) -> int:
    """Put a PUBLISH without its payload; the caller sends the `payload_length` bytes after it, for example from a file.

    Args:
        topic, qos, retain, dup, packet_id, level: see `put_publish`.
    """
    # With `head_only`, the argument `payload` is a number of bytes.
    return put_publish(buf, pos, topic, payload_length, qos, retain, dup, packet_id, level, properties, True)  # type: ignore[arg-type]


def put_ack(
    buf: "bytearray | memoryview",
    pos: int,
    packet_type: int,
    packet_id: int,
    level: int = 4,
    code: int = 0,
    properties: "bytes | bytearray | memoryview | None" = None,
    dup: bool = False,
) -> int:
    """Put a PUBACK, PUBREC, PUBREL or PUBCOMP (§3.4 to 3.7), for a `packet_type` of 4, 5, 6 or 7.

    `packet_id` is the PUBLISH's; `code` is level 5's reason code, which is not sent at other levels; `dup` is only for a repeated
    PUBREL of level 3.
    """
    if not 0 < packet_id < 65536:
        raise outside("packet_id", packet_id, 1, 65535)
    # PUBREL's flags are 0010 [MQTT-3.6.1-1], those of the others are 0.
    head = packet_type << 4 | dup << 3 | (2 if packet_type == 6 else 0)
    if level == 5 and (code or properties):
        return put_reason(buf, pos, head, packet_id, code, properties)
    if pos + 4 > len(buf):
        _put_start(buf, pos, head, 2)  # raises BufferTooSmall; the usual case takes no call
    buf[pos] = head
    buf[pos + 1] = 2
    buf[pos + 2] = packet_id >> 8
    buf[pos + 3] = packet_id & 255
    return pos + 4


def put_reason(
    buf: "bytearray | memoryview",
    pos: int,
    head: int,
    packet_id: int,
    code: int,
    properties: "bytes | bytearray | memoryview | None" = None,
) -> int:
    """Put a level 5 packet of a packet id (0: none), a reason code and properties (omitted if empty)."""
    n = 3 if packet_id else 1
    if properties:
        n += _property_bytes(5, properties)
    pos = _put_start(buf, pos, head, n)
    if packet_id:
        pos = _put_id(buf, pos, packet_id)
    buf[pos] = code
    return _put_properties(buf, pos + 1, properties) if properties else pos + 1


def put_connect(
    buf: "bytearray | memoryview",
    pos: int,
    client_id: "Any",
    level: int = 4,
    clean: bool = True,
    keep_alive_s: int = 0,
    user: "Any" = None,
    password: "Any" = None,
    will_topic: "Any" = None,
    will_payload: "Any" = b"",
    will_qos: int = 0,
    will_retain: bool = False,
    properties: "bytes | bytearray | memoryview | None" = None,
    will_properties: "Any" = None,
) -> int:
    """Put a CONNECT (§3.1): the first packet, once [MQTT-3.1.0-1] [MQTT-3.1.0-2].

    Args:
        client_id: UTF-8. Level 3: 1 to 23 bytes. Level 4: empty only with `clean`. Level 5: if empty, the server assigns one.
        clean: Clean Session at levels 3 and 4, Clean Start at level 5.
        keep_alive_s: 0 to 65,535; 0: no keep alive.
        user, password: None for none; levels 3 and 4 allow no password without a user.
        will_topic, will_payload, will_qos, will_retain, will_properties: no will if `will_topic` is None.
    """
    name = b"MQIsdp" if level == 3 else b"MQTT"  # [MQTT-3.1.2-1]
    flags = clean << 1  # bit 0 is reserved and 0 [MQTT-3.1.2-3]
    # UTF-8: the client id [MQTT-3.1.3-4], the will's topic [MQTT-3.1.3-10], the user name [MQTT-3.1.3-11]; 5: [MQTT-3.1.3-4]
    # 5: [MQTT-3.1.3-11] [MQTT-3.1.3-12]
    n = len(name) + 6 + _property_bytes(level, properties) + _check_field(client_id, True)
    if level == 3:
        if not 0 < len(client_id) < 24:  # 3.1, section 3.1: 1 to 23 characters
            raise outside("client_id", len(client_id), 1, 23)
    elif level == 4:
        if not client_id and not clean:  # [MQTT-3.1.3-7]
            raise UsageError("no client_id: give one, or set clean")
    elif level != 5:
        raise outside("level", level, 3, 5)
    if not isinstance(keep_alive_s, int) or not 0 <= keep_alive_s < 65536:
        raise outside("keep_alive_s", keep_alive_s, 0, 65535)
    # Without a will, the will's bits stay 0: [MQTT-3.1.2-11] [MQTT-3.1.2-13] [MQTT-3.1.2-15]; 5: [MQTT-3.1.2-11] [MQTT-3.1.2-13]
    if will_topic is not None:
        if will_qos not in (0, 1, 2):  # [MQTT-3.1.2-14]; 5: [MQTT-3.1.2-12]
            raise outside("will_qos", will_qos, 0, 2)
        flags |= 4 | will_qos << 3 | (32 if will_retain else 0)
        if not will_topic or text_kind(will_topic, 0, len(will_topic)):
            from flashmqtt.arguments import refuse_topic

            refuse_topic(will_topic, False)
        n += (
            _check_field(will_topic, False)
            + _check_field(will_payload, False)
            + _property_bytes(level, will_properties)
        )
    if user is not None:
        flags |= 128
        n += _check_field(user, True)
    if password is not None:
        if user is None and level != 5:  # [MQTT-3.1.2-22]
            raise UsageError("password without user")
        flags |= 64
        n += _check_field(password, False)
    pos = _put_start(buf, pos, 0x10, n)
    pos = _put_binary(buf, pos, name)
    buf[pos] = level
    buf[pos + 1] = flags
    pos = _put_id(buf, pos + 2, keep_alive_s)
    if level == 5:
        pos = _put_properties(buf, pos, properties)
    # The flags determine the payload's fields, in this order [MQTT-3.1.3-1] [MQTT-3.1.3-3] [MQTT-3.1.2-9]: a user name or none
    # [MQTT-3.1.2-18] [MQTT-3.1.2-19], a password or none [MQTT-3.1.2-20] [MQTT-3.1.2-21]; 5: [MQTT-3.1.2-16] [MQTT-3.1.2-17]
    # 5: [MQTT-3.1.2-18] [MQTT-3.1.2-19].
    pos = _put_binary(buf, pos, client_id)
    if will_topic is not None:
        if level == 5:
            pos = _put_properties(buf, pos, will_properties)
        pos = _put_binary(buf, pos, will_topic)
        pos = _put_binary(buf, pos, will_payload)
    if user is not None:
        pos = _put_binary(buf, pos, user)
    if password is not None:
        pos = _put_binary(buf, pos, password)
    return pos


def put_pingreq(buf: "bytearray | memoryview", pos: int) -> int:
    """Put a PINGREQ (§3.12)."""
    return _put_start(buf, pos, 0xC0, 0)


def put_disconnect(
    buf: "bytearray | memoryview",
    pos: int,
    level: int = 4,
    code: int = 0,
    properties: "bytes | bytearray | memoryview | None" = None,
) -> int:
    """Put a DISCONNECT (§3.14) [MQTT-3.14.1-1]. Only level 5 has a code and properties; code 0 alone is omitted."""
    if level == 5 and (code or properties):
        return put_reason(buf, pos, 0xE0, 0, code, properties)
    return _put_start(buf, pos, 0xE0, 0)


def _put_start(buf: "bytearray | memoryview", pos: int, head: int, n: int, elsewhere: "Any" = 0) -> int:
    """Put a fixed header (§2.2), after checking that the whole packet fits, so that later parts need no check.

    Args:
        n: the Remaining Length.
        elsewhere: how many of these bytes are not put into this buffer.
    """
    if n > 268435455:
        raise outside("length", n, 0, 268435455)
    end = pos + n - elsewhere + 2
    left = n >> 7
    while left:
        left >>= 7
        end += 1
    if end > len(buf):
        raise BufferTooSmall("%d bytes, room for %d" % (end - pos, len(buf) - pos))
    buf[pos] = head
    return put_length(buf, pos + 1, n)


def put_length(buf: "bytearray | memoryview", pos: int, n: int) -> int:
    """Put a Variable Byte Integer, such as the Remaining Length (§2.2.3), in as few bytes as possible [MQTT-1.5.5-1]."""
    while n > 127:
        buf[pos] = n & 127 | 128
        n >>= 7
        pos += 1
    buf[pos] = n
    return pos + 1


def outside(name: str, value: "Any", least: int, most: int) -> "UsageError":
    """Return the error for an argument that is out of range, or whose length is."""
    return UsageError("%s %r: %d to %d" % (name, value, least, most))


def _property_bytes(level: int, properties: "bytes | bytearray | memoryview | None") -> int:
    """Return the size of the property block with its length field; 0 below level 5."""
    if level != 5:
        return 0
    n = len(properties or b"")
    size = n + 1
    while n > 127:
        n >>= 7
        size += 1
    return size


def _put_properties(buf: "bytearray | memoryview", pos: int, properties: "Any") -> int:
    """Put a property block with its length field, which is 0 if there are none (5: [MQTT-2.2.2-1])."""
    n = len(properties or b"")
    pos = put_length(buf, pos, n)
    if n:
        copy(buf, pos, properties, 0, n)
    return pos + n


def _put_id(buf: "bytearray | memoryview", pos: int, value: "Any") -> int:
    buf[pos] = value >> 8
    buf[pos + 1] = value & 255
    return pos + 2


def _put_binary(buf: "bytearray | memoryview", pos: int, value: "Any") -> int:
    n = len(value)
    buf[pos] = n >> 8  # not with `_put_id`: level 5 needs this for each message
    buf[pos + 1] = n & 255
    copy(buf, pos + 2, value, 0, n)
    return pos + 2 + n


def _check_field(value: "Any", is_text: bool) -> int:
    """Check a string of text or binary data; return its size with its length field."""
    if isinstance(value, str):
        raise UsageError("bytes, not str")
    n = len(value)
    if n > 65535:
        raise outside("length", n, 0, 65535)
    if is_text and text_kind(value, 0, n) < 0:  # [MQTT-1.5.3-1] [MQTT-1.5.3-2]; 5: [MQTT-1.5.4-1] [MQTT-1.5.4-2]
        raise UsageError("not UTF-8: %r" % bytes(value[:40]))
    return n + 2
