"""Level 5's parts of the packets that `decode` reads: properties, reason codes, topic aliases.

These functions work on a Decoder. It imports this module with the first packet that needs it and keeps a reference, because even
an import of a loaded module allocates.
"""

from flashmqtt.compat import TYPE_CHECKING
from flashmqtt.errors import MalformedPacket

from .properties import check, find

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251

# 0x95 is not in the tables, but mosquitto 2.0 sends it for a message over its `message_size_limit`. A code from 0x80 on says that
# the operation has failed (§2.4), so the message is refused.
_PUBACK = b"\x00\x10\x80\x83\x87\x90\x91\x95\x97\x99"
_PUBREL = b"\x00\x92"

# By packet type, what each may carry (the tables of §3.2.2.2, 3.4.2.1, ..., 3.15.2.1), in either direction.
_ALLOWED = {
    2: b"\x00\x80\x81\x82\x83\x84\x85\x86\x87\x88\x89\x8a\x8c\x90\x95\x97\x99\x9a\x9b\x9c\x9d\x9f",  # [MQTT-3.2.2-8]
    4: _PUBACK,  # [MQTT-3.4.2-1]
    5: _PUBACK,  # [MQTT-3.5.2-1]
    6: _PUBREL,  # [MQTT-3.6.2-1]
    7: _PUBREL,  # [MQTT-3.7.2-1]
    9: b"\x00\x01\x02\x80\x83\x87\x8f\x91\x97\x9e\xa1\xa2",  # [MQTT-3.9.3-2]
    11: b"\x00\x11\x80\x83\x87\x8f\x91",  # [MQTT-3.11.3-2]
    # [MQTT-3.14.2-1]
    14: b"\x00\x04\x80\x81\x82\x83\x87\x89\x8b\x8d\x8e\x8f\x90\x93\x94\x95\x96\x97\x98\x99\x9a\x9b\x9c\x9d\x9e\x9f\xa0\xa1\xa2",
    15: b"\x00\x18\x19",  # [MQTT-3.15.2-1]
}


def checked_code(packet_type: int, code: int) -> int:
    """Return the code, or raise MalformedPacket if a packet of this `packet_type` must not have it."""
    if code in _ALLOWED[packet_type]:
        return code
    error = MalformedPacket("reason code 0x%02x in packet type %d" % (code, packet_type))
    error.packet_type = packet_type  # type: ignore[attr-defined]  # for `session/suspect.py`
    raise error


def read_properties(decoder: "Any", buf: "bytearray | memoryview", at: int, end: int, after: int) -> int:
    """Read the property block (§2.2.2) at buf[at:end]; return the position after it."""
    n = shift = 0
    while True:
        if at >= end:
            raise decoder._malformed.beyond(decoder, at + 1, after)
        byte = buf[at]
        at += 1
        n |= (byte & 127) << shift
        if byte < 128:
            break
        shift += 7
        if shift > 21:
            raise decoder._malformed.wrong_length(decoder, n, shift)
    if shift and not byte:  # [MQTT-1.5.5-1]
        raise decoder._malformed.wrong_length(decoder, n, shift)
    decoder.properties_start = at
    at += n
    decoder.properties_end = at
    if at > end:
        raise decoder._malformed.beyond(decoder, at, after)
    if n:
        decoder.topic_alias = check(decoder.packet_type, buf, at - n, at)
    return at


def read_topic(decoder: "Any", buf: "bytearray | memoryview", at: int, end: int, after: int) -> int:
    """Read a PUBLISH's properties and resolve its topic alias (§3.3.2.3.4); return the position after them."""
    decoder.topic_alias = 0
    at = read_properties(decoder, buf, at, end, after)
    alias = decoder.topic_alias
    named = decoder.topic_end > decoder.topic_start
    if alias:
        if decoder.aliases is None:  # CONNECT allowed no aliases
            raise MalformedPacket("topic alias %d: none was allowed" % alias, 0x94)
        decoder.aliases.note(alias, decoder.topic if named else b"")
        if not named:
            decoder.topic = topic = decoder.aliases.topic(alias)
            decoder._topic_length = len(topic)
    elif not named:  # [MQTT-4.7.3-1] (§3.3.2.1)
        raise MalformedPacket("no topic and no alias", 0x82)
    return at


def read_reason(decoder: "Any", buf: "bytearray | memoryview", at: int, end: int) -> None:
    """Read a reason code and properties up to the packet's end; each may be absent."""
    decoder.code = 0
    decoder.properties_start = decoder.properties_end = end
    if at < end:
        decoder.code = checked_code(decoder.packet_type, buf[at])
        at += 1
        if at < end:
            read_tail(decoder, buf, at, end)


def read_tail(decoder: "Any", buf: "bytearray | memoryview", at: int, end: int) -> None:
    """Read properties that end with the packet."""
    at = read_properties(decoder, buf, at, end, end)
    if at != end:
        raise decoder._malformed.wrong_size(decoder, at, end)


def read_connack(decoder: "Any", buf: "bytearray | memoryview", at: int, end: int) -> None:
    """Check a CONNACK's reason code and read its properties."""
    checked_code(2, decoder.code)
    read_tail(decoder, buf, at, end)


def read_results(decoder: "Any", buf: "bytearray | memoryview", at: int, end: int) -> int:
    """Read a SUBACK's or UNSUBACK's properties, check its reason codes, and return where these start."""
    at = read_properties(decoder, buf, at, end, end)
    if at == end:
        raise MalformedPacket("no reason codes")
    for i in range(at, end):
        checked_code(decoder.packet_type, buf[i])
    return at


def read_disconnect_or_auth(decoder: "Any", buf: "bytearray | memoryview", at: int, end: int) -> None:
    """Read a server's DISCONNECT (§3.14) or AUTH (§3.15)."""
    read_reason(decoder, buf, at, end)
    if decoder.code in (0x04, 0x19):  # for clients only
        raise MalformedPacket("reason code 0x%02x from a server" % decoder.code)
    if decoder.packet_type == 14 and find(buf, decoder.properties_start, decoder.properties_end, 0x11) >= 0:
        raise MalformedPacket("session expiry from a server", 0x82)  # [MQTT-3.14.2-2]
