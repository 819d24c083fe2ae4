"""Every error that flashmqtt raises, by name.

Four outcomes are kept apart throughout the library: *need more* (never an exception), *the peer is wrong*, *the caller is
wrong*, and *the world failed*. This module knows no other module of the library.
"""


class FlashMqttError(Exception):
    """Root of all errors of this library."""


# --- the peer is wrong -------------------------------------------------------------------------------------------------


class MalformedPacket(FlashMqttError):
    """Bytes arrived that no conforming peer sends; the connection has to end (5: reason code 0x81)."""


class PacketTooLarge(FlashMqttError):
    """A packet is larger than the receiver's buffer, or than the peer's Maximum Packet Size (5: reason code 0x95)."""


class ProtocolViolation(FlashMqttError):
    """A well-formed packet arrived where the protocol does not allow it (5: reason code 0x82)."""


# --- the caller is wrong -----------------------------------------------------------------------------------------------


class UsageError(FlashMqttError):
    """A call's arguments, or its moment, are not allowed."""


class BufferTooSmall(UsageError):
    """The packet does not fit in the buffer that the caller provided."""


class InvalidTopic(UsageError):
    """A topic name or topic filter breaks the rules of section 4.7 (3.1.1 and 5)."""


# --- the world failed: the network ------------------------------------------------------------------------------------


class ConnectionLost(FlashMqttError):
    """The network connection ended, or could not be made."""


class DeadlineExpired(ConnectionLost):
    """A wait reached its deadline: connecting, a handshake, a read, a write, or a keep alive without an answer."""


# --- the world failed: the store --------------------------------------------------------------------------------------


class StoreError(FlashMqttError):
    """Root of the errors of a store and of the flash below it."""


class FlashFailed(StoreError):
    """The flash did not take a program or an erase: the read-back differs, or the device said no."""


class StoreFull(StoreError):
    """No room for another record, and the policy is to refuse."""


class StoreWorn(StoreError):
    """Too few sectors still work to store more; what is stored can still be read and released."""


class StoreForeign(StoreError):
    """The region holds data that is not a journal's; only an explicit format() may overwrite it."""


class StoreVersion(StoreError):
    """The region holds a journal of a version that this code does not read."""


class StoreCorrupt(StoreError):
    """A journal is damaged in its middle, where no power cut can damage it."""
