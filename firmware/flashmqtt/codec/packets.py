"""The control packet types (§2.2.1) and the protocol levels (§3.1.2.2), and the named error of a refused CONNECT."""

from flashmqtt import errors

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

LEVEL_3 = 3  # 3.1, `MQIsdp`
LEVEL_4 = 4  # 3.1.1, `MQTT`
LEVEL_5 = 5  # 5.0, `MQTT`

SUBSCRIPTION_REFUSED = 0x80  # a SUBACK's result codes from here on are refusals, at every level


def connect_error(code, level):
    """Return the error to raise for a CONNACK whose code is not 0: always a ConnectRefused, with `code` and `level`."""
    if level == LEVEL_5 and code >= 0x80:  # a server without level 5 answers with the older code 1
        from .reasons import connect_error_class

        refused = connect_error_class(code)
    elif 0 < code < 6:
        refused = (
            errors.UnacceptableProtocolVersion,
            errors.IdentifierRejected,
            errors.ServerUnavailable,
            errors.BadUserNameOrPassword,
            errors.NotAuthorized,
        )[code - 1]
    else:
        refused = errors.ConnectRefused
    return refused(code, level)
