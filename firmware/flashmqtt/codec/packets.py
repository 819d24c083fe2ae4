"""The control packet types (§2.2.1) and the protocol levels (§3.1.2.2), and the error of a refused CONNECT."""

from flashmqtt.errors import ConnectRefused

CONNECT = 1
CONNACK = 2
PUBLISH = 3
PUBACK = 4
PUBREC = 5
PUBREL = 6
PUBCOMP = 7
SUBSCRIBE = 8
SUBACK = 9
UNSUBSCRIBE = 10
UNSUBACK = 11
PINGREQ = 12
PINGRESP = 13
DISCONNECT = 14
AUTH = 15  # level 5 only

LEVEL_5 = 5  # the protocol levels are 3 (MQTT 3.1), 4 (3.1.1) and 5 (5.0)

SUBSCRIPTION_REFUSED = 0x80  # a SUBACK's result codes from here on are refusals, at every level


def connect_error(code: int, level: int) -> "ConnectRefused":
    """Return the ConnectRefused to raise for a CONNACK whose code is not 0."""
    if level == LEVEL_5 and code >= 0x80:  # a server without level 5 answers with the older code 1
        from .reasons import name

        meaning = name(code).lower().replace("_", " ")
    elif 0 < code < 6:
        meaning = (
            "unacceptable protocol version",
            "client id rejected",
            "server unavailable",
            "bad user name or password",
            "not authorized",
        )[code - 1]
    else:
        meaning = "unknown code"
    return ConnectRefused(code, level, meaning)
