"""A received message: one object, filled anew for each message, so that receiving allocates nothing.

What it shows is valid until the next message; take `topic` and `payload` (copies), or read `buffer` between the marks.
"""

from flashmqtt.compat import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251


class Message:
    """Where a message lies in a buffer: its topic, its payload, and at level 5 its properties.

    topic           the topic name, as a str of its own
    payload         the payload, as bytes of its own
    topic_view      the topic's bytes, not copied
    view            the payload's bytes, not copied
    properties      level 5's properties as a dict, empty at the other levels
    qos retain dup  of the PUBLISH that brought it

    Where the client takes chunks, `payload` may be a part of what was published (`Client(chunks=True)`):

    offset          where this part begins
    total           how long the whole is
    more            whether further parts follow, each as a message of its own

    A message that begins at offset 0 begins anew: below QoS 2 after a lost connection, at QoS 2 only after a reboot. (There a
    lost connection changes nothing; a part whose handler failed is handed over again.)
    """

    if TYPE_CHECKING:
        topic: str
        payload: bytes
        topic_view: memoryview
        view: memoryview
        properties: "dict[int, Any]"

    def __init__(self) -> None:
        self.buffer = self.topic_buffer = bytearray()  # not the same for a topic that came as an alias (5)
        self.topic_start = self.topic_end = 0
        self.payload_start = self.payload_end = 0
        self.properties_start = self.properties_end = 0
        self.qos = self.offset = self.total = 0
        self.more = False
        self.retain = False
        self.dup = False

    def __getattr__(self, name: str) -> "Any":
        """Make what is asked for. (No properties: with one in its class, every store to an object takes five times as long.)"""
        if name == "topic":
            return str(self.topic_view, "utf-8")
        if name == "payload":
            return bytes(self.view)
        if name == "topic_view":
            return memoryview(self.topic_buffer)[self.topic_start : self.topic_end]
        if name == "view":
            return memoryview(self.buffer)[self.payload_start : self.payload_end]
        if name == "properties":
            if self.properties_start == self.properties_end:
                return {}
            from flashmqtt.codec.properties import unpack

            return unpack(self.buffer, self.properties_start, self.properties_end)
        raise AttributeError(name)
