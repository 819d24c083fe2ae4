"""Every error that flashmqtt raises, by name.

Four outcomes are kept apart throughout the library: *need more* (never an exception), *the peer is wrong*, *the
caller is wrong*, and *the world failed*. This module knows no other module of the library.
"""


class FlashMqttError(Exception):
    """Root of all errors of this library; `reason` is what level 5's DISCONNECT tells the peer, 0: nothing."""

    reason = 0


# --- the peer is wrong -------------------------------------------------------------------------------------------------


class MalformedPacket(FlashMqttError):
    """Bytes arrived that no conforming peer sends; the connection has to end (5: with reason code `reason`)."""

    reason = 0x81


class PacketTooLarge(FlashMqttError):
    """A packet is larger than the receiver's buffer, or than the peer's Maximum Packet Size (5: reason code 0x95)."""

    reason = 0x95


class ProtocolViolation(FlashMqttError):
    """A well-formed packet arrived where the protocol does not allow it (5: reason code 0x82)."""

    reason = 0x82


class ProtocolError(MalformedPacket):
    """A packet's bytes parse, but level 5 calls what they say a Protocol Error: a property twice, a value out of range."""

    reason = 0x82


class TopicAliasInvalid(MalformedPacket):
    """5: a topic alias beyond the maximum that this side allowed."""

    reason = 0x94


# --- the caller is wrong -----------------------------------------------------------------------------------------------


class UsageError(FlashMqttError):
    """A call's arguments, or its moment, are not allowed."""


class BufferTooSmall(UsageError):
    """The packet does not fit in the buffer that the caller provided."""


class InvalidTopic(UsageError):
    """A topic name or topic filter breaks the rules of section 4.7 (3.1.1 and 5)."""


class InvalidPacket(UsageError):
    """The arguments of a packet are such as no level allows in it (packet id 0, QoS 3, DUP at QoS 0, ...)."""


# --- codec: the server refuses a connection (the peer is right, or says so) ------------------------------------------------


class ConnectRefused(FlashMqttError):
    """The server answered CONNECT with a code other than 0; `code` and `level` say which (3.1.1 §3.2.2.3, 5 §3.2.2.2)."""

    def __init__(self, code, level=4):
        super().__init__(code, level)
        self.code = code
        self.level = level


class UnacceptableProtocolVersion(ConnectRefused):
    """The server does not speak this protocol level (3, 4: code 1; 5: 0x84)."""


class IdentifierRejected(ConnectRefused):
    """The server does not allow this client id (3, 4: code 2; 5: 0x85)."""


class ServerUnavailable(ConnectRefused):
    """The server can't serve now (3, 4: code 3; 5: 0x88)."""


class BadUserNameOrPassword(ConnectRefused):
    """User name or password are wrong (3, 4: code 4; 5: 0x86)."""


class NotAuthorized(ConnectRefused):
    """This client may not connect (3, 4: code 5; 5: 0x87)."""


# --- the world failed: the network ------------------------------------------------------------------------------------


class ConnectionLost(FlashMqttError):
    """The network connection ended, or could not be made."""


class DeadlineExpired(ConnectionLost):
    """A wait reached its deadline: connecting, a handshake, a read, a write, or a keep alive without an answer."""


# --- session and connection -------------------------------------------------------------------------------------------


class CertificateRefused(ConnectionLost):
    """TLS: the broker's certificate was not accepted; the text says why, also where it is the board's clock."""


class NotConnected(ConnectionLost):
    """There is no connection at this moment, and what was asked for needs one."""


class InboundWindowFull(ConnectionLost):
    """More QoS 2 messages were in flight to us than the store has slots for; the next connection brings the rest."""

    reason = 0x93


class ServerDisconnected(ConnectionLost):
    """5: the server ended the connection with a DISCONNECT; `code` says why."""

    def __init__(self, code):
        super().__init__("reason code 0x%02x" % code)
        self.code = code


class Refused(FlashMqttError):
    """The broker refused one request and the connection goes on; `code` is its reason, and `what` was refused comes first."""

    def __init__(self, what, code):
        super().__init__(what, "code 0x%02x" % code)
        self.code = code


class SubscriptionRefused(Refused):
    """The broker refused a topic filter."""


class PublishRefused(Refused):
    """5: the broker refused a message; it is released and will not be sent again."""


# --- the world failed: the store --------------------------------------------------------------------------------------


class StoreError(FlashMqttError):
    """Root of the errors of a store and of the flash below it."""


class FlashFailed(StoreError):
    """The flash did not take a program or an erase: the read-back differs, or the device said no."""


class StoreFull(StoreError):
    """No room for another record, and the policy is to refuse."""


class StoreWorn(StoreError):
    """Too few sectors still work to store more; what is stored is still delivered, but twice where the power is cut meanwhile."""


class StoreForeign(StoreError):
    """The region holds data that is not a journal's; only an explicit format() may overwrite it."""


class StoreVersion(StoreError):
    """The region holds a journal of a version that this code does not read."""


class StoreEncrypted(StoreError):
    """The flash is encrypted: a page can't be programmed in several steps there, so it can't hold a journal."""


class StoreCorrupt(StoreError):
    """A journal is damaged in its middle, where no power cut can damage it."""


class PinsRefused(StoreError):
    """Blocks can't be reserved by files here: no littlefs on that device, no room, or somebody else's files in the way."""


class PinsLost(StoreError):
    """The files that reserved the store's blocks are gone, replaced or moved; nothing was written to what is not ours."""


class StoreExhausted(StoreError):
    """Every sequence number is used (a billion messages); only format() begins anew."""
