"""Every error that flashmqtt raises, by name.

Four outcomes are kept apart throughout the library: *need more* (never an exception), *the peer is wrong*, *the
caller is wrong*, and *the world failed*. A class says what a program may want to catch, its text which value was wrong. The
errors of what few programs load stand there: `CertificateRefused` in `tls`, `PinsLost` and `PinsRefused` in `flash.pinned`,
`StoreInUse` in `flash.file`. This module knows no other module of the library.
"""


class FlashMqttError(Exception):
    """Root of all errors of this library; `text` says which value was wrong, and what is allowed.

    Attributes:
        reason: what level 5's DISCONNECT tells the broker where this error ends the connection; 0: nothing.
        refusal: whether `connect` raises it at once, because trying again rarely helps.
    """

    reason = 0
    refusal = False

    def __init__(self, text: str = "", reason: int = 0) -> None:
        super().__init__(text)
        if reason:
            self.reason = reason


# --- the peer is wrong -------------------------------------------------------------------------------------------------


class MalformedPacket(FlashMqttError):
    """A packet arrived that no conforming peer sends, or that is longer than the buffer.

    `reason` is 0x81; or 0x82: level 5 calls what it says a Protocol Error (a property twice); 0x94: a topic alias that was not
    allowed; 0x95: too long.
    """

    reason = 0x81


class ProtocolError(FlashMqttError):
    """A well-formed packet arrived where the protocol does not allow it; `reason` is 0x82."""

    reason = 0x82


# --- the caller is wrong -----------------------------------------------------------------------------------------------


class UsageError(FlashMqttError):
    """A call's arguments, or its moment, are not allowed."""


class BufferTooSmall(UsageError):
    """The packet does not fit in the buffer that the caller provided."""


class InvalidTopic(UsageError):
    """A topic name or topic filter breaks the rules of section 4.7 (3.1.1 and 5)."""


# --- the broker refuses ------------------------------------------------------------------------------------------------


class ConnectRefused(FlashMqttError):
    """The broker answered CONNECT with a code other than 0; the text says its `meaning` (3.1.1 §3.2.2.3, 5 §3.2.2.2).

    Attributes:
        code: the CONNACK's; at levels 3 and 4 one of 1 to 5, at level 5 one of 0x80 and above (see `codec.reasons`).
        level: the protocol level of the connection.
    """

    refusal = True

    def __init__(self, code: int, level: int = 4, meaning: str = "refused") -> None:
        super().__init__("%s (level %d, code 0x%02x)" % (meaning, level, code))
        self.code = code
        self.level = level


class Refused(FlashMqttError):
    """The broker refused `what`, a subscription or (5) a message, and the connection goes on; `code` is its reason."""

    def __init__(self, what: str, code: int) -> None:
        super().__init__("%s: code 0x%02x" % (what, code))
        self.code = code


# --- the world failed: the network ------------------------------------------------------------------------------------


CLOSED_BY_PEER = "closed by the peer"  # a ConnectionLost's text where the broker has closed the connection


class ConnectionLost(FlashMqttError):
    """The network connection ended, or could not be made; `code` is the reason code of the broker's DISCONNECT (5), or 0."""

    code = 0


class DeadlineExpired(ConnectionLost):
    """A wait reached its deadline: connecting, a handshake, a read, a write, or a keep alive without an answer."""


# --- the world failed: the store --------------------------------------------------------------------------------------


class StoreError(FlashMqttError):
    """Root of the errors of a store and of the flash below it; itself: every sequence number is used."""


class FlashFailed(StoreError):
    """The flash did not take a program or an erase: the read-back differs, or the device said no."""


class StoreFull(StoreError):
    """No room for another record, and the policy is to refuse."""


class StoreWorn(StoreError):
    """Too few sectors still work to store more; what is stored is still delivered, but twice where the power is cut meanwhile."""


class StoreForeign(StoreError):
    """The region can't be this journal's: other data, another version or size (only format() overwrites it), encrypted flash."""


class StoreCorrupt(StoreError):
    """A journal is damaged in its middle, where no power cut can damage it."""
