"""Reason codes of level 5 (§2.4): their names, and the packets that may carry them.

Only level 5 imports this module, and only for a code other than 0.
"""

from flashmqtt.errors import MalformedPacket

SUCCESS = 0x00
GRANTED_QOS_1 = 0x01
GRANTED_QOS_2 = 0x02
DISCONNECT_WITH_WILL = 0x04
NO_MATCHING_SUBSCRIBERS = 0x10
NO_SUBSCRIPTION_EXISTED = 0x11
CONTINUE_AUTHENTICATION = 0x18
RE_AUTHENTICATE = 0x19
UNSPECIFIED_ERROR = 0x80
MALFORMED_PACKET = 0x81
PROTOCOL_ERROR = 0x82
IMPLEMENTATION_SPECIFIC_ERROR = 0x83
UNSUPPORTED_PROTOCOL_VERSION = 0x84
CLIENT_IDENTIFIER_NOT_VALID = 0x85
BAD_USER_NAME_OR_PASSWORD = 0x86
NOT_AUTHORIZED = 0x87
SERVER_UNAVAILABLE = 0x88
SERVER_BUSY = 0x89
BANNED = 0x8A
SERVER_SHUTTING_DOWN = 0x8B
BAD_AUTHENTICATION_METHOD = 0x8C
KEEP_ALIVE_TIMEOUT = 0x8D
SESSION_TAKEN_OVER = 0x8E
TOPIC_FILTER_INVALID = 0x8F
TOPIC_NAME_INVALID = 0x90
PACKET_IDENTIFIER_IN_USE = 0x91
PACKET_IDENTIFIER_NOT_FOUND = 0x92
RECEIVE_MAXIMUM_EXCEEDED = 0x93
TOPIC_ALIAS_INVALID = 0x94
PACKET_TOO_LARGE = 0x95
MESSAGE_RATE_TOO_HIGH = 0x96
QUOTA_EXCEEDED = 0x97
ADMINISTRATIVE_ACTION = 0x98
PAYLOAD_FORMAT_INVALID = 0x99
RETAIN_NOT_SUPPORTED = 0x9A
QOS_NOT_SUPPORTED = 0x9B
USE_ANOTHER_SERVER = 0x9C
SERVER_MOVED = 0x9D
SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
CONNECTION_RATE_EXCEEDED = 0x9F
MAXIMUM_CONNECT_TIME = 0xA0
SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1
WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2

_PUBACK = b"\x00\x10\x80\x83\x87\x90\x91\x97\x99"
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


def check_code(packet_type: int, code: int) -> int:
    """Return the code, or raise MalformedPacket if a packet of this `packet_type` must not have it."""
    if code in _ALLOWED[packet_type]:
        return code
    raise MalformedPacket("reason code 0x%02x in packet type %d" % (code, packet_type))


def name(code: int) -> str:
    """Return a code's name above, for a message to a person."""
    for key, value in globals().items():
        if key[0] != "_" and value == code:
            return key
    return hex(code)
