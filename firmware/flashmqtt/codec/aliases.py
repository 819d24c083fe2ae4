"""Topic aliases of level 5 (§3.3.2.3.4), both ways. They live as long as one network connection, never longer [MQTT-3.3.2-7].

So a packet that is stored and sent again on another connection must carry its topic; an alias is for what is sent once.
"""

from flashmqtt.compat import TYPE_CHECKING
from flashmqtt.errors import MalformedPacket

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251


class InboundAliases:
    """The aliases that a server has set; `maximum` is what CONNECT allowed it (Topic Alias Maximum)."""

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self._topics: "dict[Any, Any]" = {}

    def note(self, alias: int, topic: "bytes | bytearray | memoryview") -> None:
        """Take note of a received alias: `topic` is what stood beside it, empty where the alias stands for one set before."""
        if not 0 < alias <= self.maximum:  # [MQTT-3.3.2-9] [MQTT-3.3.2-10]
            raise MalformedPacket("topic alias %d: 1 to %d" % (alias, self.maximum), 0x94)
        if topic:
            if self._topics.get(alias) != topic:
                self._topics[alias] = topic
        elif alias not in self._topics:
            raise MalformedPacket("topic alias %d was never set" % alias, 0x82)

    def topic(self, alias: int) -> "Any":
        """Return the topic name that a noted alias stands for."""
        return self._topics[alias]


class OutboundAliases:
    """The aliases that we set; `maximum` is what CONNACK allowed us [MQTT-3.3.2-9]: the first topics sent get one each."""

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self._aliases: "dict[Any, Any]" = {}
        self._block = bytearray(b"\x23\x00\x00")

    def alias(self, topic: "bytes | bytearray | memoryview") -> int:
        """Return the topic's alias, known to the server if positive; 0: none.

        If negative, it is a new one: send it beside the topic, and `note` that it was.
        """
        alias = self._aliases.get(bytes(topic), 0)
        if not alias and len(self._aliases) < self.maximum:
            return -1 - len(self._aliases)
        return alias

    def note(self, topic: "bytes | bytearray | memoryview") -> None:
        """Take note that the new alias of this topic is on its way."""
        self._aliases[bytes(topic)] = len(self._aliases) + 1

    def properties(self, alias: int) -> "Any":
        """Return a property block with this alias, valid until the next call."""
        self._block[1] = alias >> 8
        self._block[2] = alias & 255
        return self._block
