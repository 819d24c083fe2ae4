"""All errors that flashmqtt raises.

The library separates four outcomes: *need more* (never an exception), *the peer is wrong*, *the caller is wrong*, and *the world
failed*. A program catches the class; the text names the wrong value. Optional modules define their own errors:
`CertificateRefused` in `tls`, `PinsLost` and `PinsRefused` in `flash.pinned`, `StoreInUse` in `flash.file`. This module knows no
other module of the library.
"""


class FlashMqttError(Exception):
    """Root of all errors of this library; `text` says which value was wrong, and what is allowed.

    Attributes:
        reason: the reason code that level 5's DISCONNECT sends if this error ends the connection; 0: no DISCONNECT is sent.
        refusal: whether `connect` raises it at once, because a new attempt rarely helps.
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

    `reason` is 0x81. At level 5 also 0x82: a Protocol Error, such as a repeated property; 0x94: a topic alias that is not
    allowed; 0x95: too long.
    """

    reason = 0x81


class ProtocolError(FlashMqttError):
    """A well-formed packet arrived where the protocol does not allow it; `reason` is 0x82."""

    reason = 0x82


# --- the caller is wrong -----------------------------------------------------------------------------------------------


class UsageError(FlashMqttError):
    """A call has invalid arguments, or is not allowed at this moment."""


class BufferTooSmall(UsageError):
    """The packet does not fit in the buffer that the caller provided."""


class InvalidTopic(UsageError):
    """A topic name or topic filter breaks the rules of section 4.7 (3.1.1 and 5)."""


# --- the broker refuses ------------------------------------------------------------------------------------------------


class ConnectRefused(FlashMqttError):
    """The broker answered CONNECT with a code other than 0; the text has its `meaning` (3.1.1 §3.2.2.3, 5 §3.2.2.2).

    Attributes:
        code: of the CONNACK: 1 to 5 at levels 3 and 4, 0x80 and above at level 5 (see `codec.reasons`).
        level: the protocol level of the connection.
    """

    refusal = True

    def __init__(self, code: int, level: int = 4, meaning: str = "refused") -> None:
        super().__init__("%s (level %d, code 0x%02x)" % (meaning, level, code))
        self.code = code
        self.level = level


class Refused(FlashMqttError):
    """The broker refused `what`: a subscription or, at level 5, a message. The connection stays. `code` is the reason code."""

    def __init__(self, what: str, code: int) -> None:
        super().__init__("%s: code 0x%02x" % (what, code))
        self.code = code


# --- the world failed: the network ------------------------------------------------------------------------------------


CLOSED_BY_PEER = "closed by the peer"  # the text of ConnectionLost if the broker has closed the connection


class ConnectionLost(FlashMqttError):
    """The network connection ended, or could not be made; `code` is the reason code of the broker's DISCONNECT (5), or 0."""

    code = 0


class DeadlineExpired(ConnectionLost):
    """A wait reached its deadline: connecting, a handshake, a read, a write, or a keep alive without an answer."""


# --- the world failed: the store --------------------------------------------------------------------------------------


class StoreError(FlashMqttError):
    """Root of the errors of a store and of its flash. Raised itself when all sequence numbers are used."""


class FlashFailed(StoreError):
    """A read, program or erase operation failed: the read-back differs, or the device reported an error."""


class StoreFull(StoreError):
    """No room for another record, and the policy is to refuse."""


class StoreWorn(StoreError):
    """Too few sectors work to store more, or Ctrl-C interrupted a write. Stored messages are still delivered.

    After a power cut they may be sent twice.
    """


class StoreForeign(StoreError):
    """The region has no such journal: other data, another version or size, or encrypted flash. Only format() overwrites it."""


class StoreCorrupt(StoreError):
    """A journal is damaged in its middle, which no power cut can cause."""
