"""The 27 properties of level 5 (§2.2.2.2), to and from bytes, each allowed only where the standard allows it.

A property block is handled without its length field, which `encode` and `decode` put and read. `check` validates a received block
without allocating; `unpack` makes a dict of a checked block; `pack` makes a block of such a dict.

Only level 5 imports this module. A four-byte value of 2^30 or more is a heap object on a 32-bit board. `unpack` and `pack` may
allocate, at connect time and for the application; `check` and `find` do not.
"""

from flashmqtt.compat import TYPE_CHECKING
from flashmqtt.errors import MalformedPacket, UsageError

from .utf8 import text_kind

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251

PAYLOAD_FORMAT_INDICATOR = 0x01
MESSAGE_EXPIRY_INTERVAL = 0x02
CONTENT_TYPE = 0x03
RESPONSE_TOPIC = 0x08
CORRELATION_DATA = 0x09
SUBSCRIPTION_IDENTIFIER = 0x0B
SESSION_EXPIRY_INTERVAL = 0x11
ASSIGNED_CLIENT_IDENTIFIER = 0x12
SERVER_KEEP_ALIVE = 0x13
AUTHENTICATION_METHOD = 0x15
AUTHENTICATION_DATA = 0x16
REQUEST_PROBLEM_INFORMATION = 0x17
WILL_DELAY_INTERVAL = 0x18
REQUEST_RESPONSE_INFORMATION = 0x19
RESPONSE_INFORMATION = 0x1A
SERVER_REFERENCE = 0x1C
REASON_STRING = 0x1F
RECEIVE_MAXIMUM = 0x21
TOPIC_ALIAS_MAXIMUM = 0x22
TOPIC_ALIAS = 0x23
MAXIMUM_QOS = 0x24
RETAIN_AVAILABLE = 0x25
USER_PROPERTY = 0x26
MAXIMUM_PACKET_SIZE = 0x27
WILDCARD_SUBSCRIPTION_AVAILABLE = 0x28
SUBSCRIPTION_IDENTIFIERS_AVAILABLE = 0x29
SHARED_SUBSCRIPTION_AVAILABLE = 0x2A

WILL = 0  # stands for a packet type where a will's properties are meant

# A property's type is the number of bytes where that is fixed, or:
_VARINT = 5
_BINARY = 6
_TEXT = 7
_PAIR = 8
_NOT_ZERO = 16

# By id, three bytes: its type (0: no such property), and a bit per packet type that may carry it (bit 0: a will).
_TABLE = (
    b"\x00\x00\x00\x01\x00\x09\x04\x00\x09\x07\x00\x09\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"  # 00: 01 02 03
    b"\x07\x00\x09\x06\x00\x09\x00\x00\x00\x15\x01\x08\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"  # 08: 08 09 0B
    b"\x00\x00\x00\x04\x40\x06\x07\x00\x04\x02\x00\x04\x00\x00\x00\x07\x80\x06\x06\x80\x06\x01\x00\x02"  # 10: 11 12 13 15 16 17
    b"\x04\x00\x01\x01\x00\x02\x07\x00\x04\x00\x00\x00\x07\x40\x04\x00\x00\x00\x00\x00\x00\x07\xca\xf4"  # 18: 18 19 1A 1C 1F
    b"\x00\x00\x00\x12\x00\x06\x02\x00\x06\x12\x00\x08\x01\x00\x04\x01\x00\x04\x08\xcf\xff\x14\x00\x06"  # 20: 21-27
    b"\x01\x00\x04\x01\x00\x04\x01\x00\x04"  # 28: 28 29 2A
)


def check(packet_type: int, buf: "bytes | bytearray | memoryview", at: int, end: int) -> int:
    """Check the block buf[at:end] of a packet of this `packet_type`; return its topic alias, 0 if none.

    Raises:
        MalformedPacket: an unknown property, one that this packet must not have, a value that runs past the end, or text that is
            not UTF-8; with reason 0x82: a repeated property, or a value that the standard excludes.
    """
    alias = low = high = 0  # low, high: the properties seen, as bits; in two halves to stay small integers
    while at < end:
        identifier = buf[at]
        at += 1
        row = identifier * 3
        # All defined identifiers have one byte: a longer Variable Byte Integer is unknown.
        kind = _TABLE[row] if row < len(_TABLE) else 0
        if not (kind and (_TABLE[row + 1] << 8 | _TABLE[row + 2]) >> packet_type & 1):
            raise MalformedPacket("property 0x%02x in packet type %d" % (identifier, packet_type))
        if identifier < 0x18:
            bit = 1 << identifier
            if low & bit and (identifier != 0x0B or packet_type != 3):  # a PUBLISH may match several subscriptions
                raise _twice(identifier)
            low |= bit
        elif identifier != 0x26:
            bit = 1 << (identifier - 0x18)
            if high & bit:
                raise _twice(identifier)
            high |= bit
        start = at
        at = _after(kind & 15, buf, at, end)
        if kind & _NOT_ZERO:
            i = start
            while not buf[i]:
                i += 1
                if i == at:  # a topic alias: [MQTT-3.3.2-8]
                    raise MalformedPacket("property 0x%02x is 0" % identifier, 0x82)
        if kind == 1:
            if buf[start] > 1:
                raise MalformedPacket("property 0x%02x: %d, not 0 or 1" % (identifier, buf[start]), 0x82)
        elif identifier == 0x23:
            alias = buf[start] << 8 | buf[start + 1]
        elif identifier == 8 and text_kind(buf, start + 2, at):  # [MQTT-3.3.2-14]
            raise MalformedPacket("wildcard in the response topic", 0x82)
    if low >> 0x15 & 3 == 2:  # §3.1.2.11.10
        raise MalformedPacket("authentication data without method", 0x82)
    return alias


def _twice(identifier: int) -> "MalformedPacket":
    return MalformedPacket("property 0x%02x twice" % identifier, 0x82)


def _after(kind: int, buf: "bytes | bytearray | memoryview", at: int, end: int) -> int:
    """Check a value of this kind at `at`; return the position after it."""
    if kind < _VARINT:
        at += kind
    elif kind == _VARINT:
        n = 4
        while at < end and buf[at] > 127:
            n -= 1
            if not n:
                raise MalformedPacket("integer of five bytes")
            at += 1
        if n < 4 and at < end and not buf[at]:  # [MQTT-1.5.5-1]
            raise MalformedPacket("integer with a byte too many")
        at += 1
    else:
        while True:
            start = at + 2
            if start > end:
                raise MalformedPacket("end of properties")
            at = start + (buf[at] << 8) + buf[at + 1]
            if at > end:
                raise MalformedPacket("end of properties")
            # [MQTT-1.5.4-1] [MQTT-1.5.4-2] [MQTT-3.3.2-13] [MQTT-3.3.2-19], both strings of a pair [MQTT-1.5.7-1]
            if kind != _BINARY and text_kind(buf, start, at) < 0:
                raise MalformedPacket("not UTF-8")
            if kind != _PAIR:
                return at
            kind = _TEXT
    if at > end:
        raise MalformedPacket("end of properties")
    return at


def find(buf: "bytes | bytearray | memoryview", at: int, end: int, identifier: int) -> "Any":
    """Return the position of the first value with this identifier in a checked block buf[at:end], or -1."""
    while at < end:
        found = buf[at] == identifier
        if found:
            return at + 1
        at = _after(_TABLE[buf[at] * 3] & 15, buf, at + 1, end)
    return -1


def unpack(buf: "bytes | bytearray | memoryview", at: int, end: int) -> "dict[int, Any]":
    """Return a checked block buf[at:end] as a dict from identifier to value: int, str, or bytes.

    User Property is a list of (name, value), and Subscription Identifier a list of int, because both may occur several times.
    """
    properties: "dict[Any, Any]" = {}
    while at < end:
        identifier = buf[at]
        kind = _TABLE[identifier * 3] & 15
        start = at + 1
        at = _after(kind, buf, start, end)
        if kind <= _VARINT:
            number = 0
            if kind == _VARINT:
                for i in range(at - 1, start - 1, -1):
                    number = number << 7 | (buf[i] & 127)
                properties.setdefault(identifier, []).append(number)
            else:
                for i in range(start, at):
                    number = number << 8 | buf[i]
                properties[identifier] = number
        elif kind == _PAIR:
            middle = _after(_TEXT, buf, start, end)
            pair = (_text(buf, start, middle), _text(buf, middle, at))
            properties.setdefault(identifier, []).append(pair)
        else:
            properties[identifier] = _text(buf, start, at) if kind == _TEXT else bytes(buf[start + 2 : at])
    return properties


def _text(buf: "bytes | bytearray | memoryview", at: int, end: int) -> str:
    return str(bytes(buf[at + 2 : end]), "utf-8")


def pack(packet_type: int, properties: "dict[int, Any] | list[tuple[int, Any]]") -> bytes:
    """Return the block for a dict like that of `unpack`, checked for this `packet_type` (WILL for a will).

    A list of (identifier, value) is accepted, too, and keeps its order; MicroPython's dict does not. User Property may also be
    a dict from name to value, as mqtt_as has it.

    Raises:
        UsageError: that packet does not have the property, or the property does not have the value.
    """
    block = bytearray()
    try:
        for identifier, value in properties.items() if isinstance(properties, dict) else properties:
            if identifier == USER_PROPERTY and isinstance(value, dict):
                value = list(value.items())
            many = identifier in (SUBSCRIPTION_IDENTIFIER, USER_PROPERTY) and isinstance(value, list)
            for one in value if many else (value,):
                _pack(block, identifier, one)
    except (TypeError, ValueError):
        raise UsageError("properties: a dict or a list of pairs, not %r" % (properties,))
    try:
        check(packet_type, block, 0, len(block))
    except MalformedPacket as error:
        raise UsageError(error.args[0])
    return bytes(block)


def _pack(block: bytearray, identifier: int, one: "Any") -> None:
    """Append a property to a block."""
    kind = _TABLE[identifier * 3] & 15 if isinstance(identifier, int) and 0 < identifier < 0x2B else 0
    if not kind:
        raise UsageError("no property %r" % (identifier,))
    block.append(identifier)
    try:
        if kind < _VARINT:
            if 0 <= one < 1 << 8 * kind:
                block.extend(one.to_bytes(kind, "big"))
                return
        elif kind == _VARINT:
            if 0 <= one < 1 << 28:
                while one > 127:
                    block.append(one & 127 | 128)
                    one >>= 7
                block.append(one)
                return
        elif kind == _PAIR:
            name, value = one
            _append(block, name)
            _append(block, value)
            return
        else:
            _append(block, one)
            return
    except (TypeError, AttributeError, ValueError):
        pass
    raise UsageError("property 0x%02x can't be %r" % (identifier, one))


def _append(block: bytearray, value: "Any") -> None:
    if isinstance(value, str):
        value = value.encode()
    elif not isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError
    n = len(value)
    if n > 65535:
        raise UsageError("%d bytes: 65535 at most" % n)
    block.append(n >> 8)
    block.append(n & 255)
    block.extend(value)
