"""Topic aliases of level 5 (§3.3.2.3.4) in both directions. They are valid for one network connection only [MQTT-3.3.2-7].

So a stored packet, which may be sent on another connection, has its topic; aliases are used for QoS 0 only.
"""

from flashmqtt.compat import TYPE_CHECKING
from flashmqtt.errors import MalformedPacket

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251


class InboundAliases:
    """The aliases that a server has set; `maximum` is the Topic Alias Maximum in CONNECT."""

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self._topics: "dict[Any, Any]" = {}

    def note(self, alias: int, topic: "bytes | bytearray | memoryview") -> None:
        """Check a received alias; `topic` is the topic of the same packet, which sets the alias, or empty."""
        if not 0 < alias <= self.maximum:  # [MQTT-3.3.2-9] [MQTT-3.3.2-10]
            raise MalformedPacket("topic alias %d: 1 to %d" % (alias, self.maximum), 0x94)
        if topic:
            if self._topics.get(alias) != topic:
                self._topics[alias] = topic
        elif alias not in self._topics:
            raise MalformedPacket("topic alias %d was never set" % alias, 0x82)

    def topic(self, alias: int) -> "Any":
        """Return the topic name of an alias."""
        return self._topics[alias]


class OutboundAliases:
    """The aliases that this client sets, for the first topics sent; `maximum` comes from CONNACK [MQTT-3.3.2-9]."""

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self._aliases: "dict[Any, Any]" = {}
        self._block = bytearray(b"\x23\x00\x00")

    def alias(self, topic: "bytes | bytearray | memoryview") -> int:
        """Return the topic's alias; 0: none. A negative one is new: send it with the topic, then call `note`."""
        alias = self._aliases.get(bytes(topic), 0)
        if not alias and len(self._aliases) < self.maximum:
            return -1 - len(self._aliases)
        return alias

    def note(self, topic: "bytes | bytearray | memoryview") -> None:
        """Record that the new alias of this topic was sent."""
        self._aliases[bytes(topic)] = len(self._aliases) + 1

    def properties(self, alias: int) -> "Any":
        """Return a property block with this alias, valid until the next call."""
        self._block[1] = alias >> 8
        self._block[2] = alias & 255
        return self._block
