"""A received message: one object, reused for each message, so that receiving allocates nothing.

Its content is valid until the next message. `topic` and `payload` are copies, `topic_view` and `view` are not.
"""

from flashmqtt.compat import TYPE_CHECKING, const

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251

_PUBACK = const(4)


class Message:
    """A message in a buffer: its topic, its payload, and at level 5 its properties.

    topic           the topic name, copied to a str
    payload         the payload, copied to bytes
    topic_view      the topic's bytes, not copied
    view            the payload's bytes, not copied
    properties      level 5's properties as a dict, empty at the other levels
    qos retain dup  of its PUBLISH

    With `Client(chunks=True)`, `payload` may be a part of the published payload:

    offset          where this part begins
    total           the length of the whole payload
    more            whether further parts follow, each as a separate message

    Offset 0 begins a new message, or begins the same one again: below QoS 2 after a lost connection, at QoS 2 only after a
    reboot. At QoS 2 a lost connection changes nothing, and a part whose handler failed is handed over again.

    A part goes to the handler that claims it when it is handed over. So a handler that is set between two parts of a message
    gets only the remaining parts.
    """

    if TYPE_CHECKING:
        topic: str
        payload: bytes
        topic_view: memoryview
        view: memoryview
        properties: "dict[int, Any]"

    failures = 0

    def __init__(self) -> None:
        self.buffer = self.topic_buffer = bytearray()  # two buffers if the topic came as an alias (5)
        self.topic_start = self.topic_end = 0
        self.payload_start = self.payload_end = 0
        self.properties_start = self.properties_end = 0
        self.qos = self.offset = self.total = 0
        self.more = False
        self.retain = False
        self.dup = False

    def __getattr__(self, name: str) -> "Any":
        """Return a computed attribute. (A property in the class would make every attribute store five times as slow.)"""
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


def show(session: "Any", packet: "Any") -> None:
    """Set the session's message to the PUBLISH in the decoder's buffer; the session's `acknowledge` acknowledges it.

    Below QoS 2 the packet id and DUP do not identify a duplicate [MQTT-3.3.1-3]; 5: [MQTT-4.3.2-5].
    """
    message = session.message
    message.buffer = message.topic_buffer = packet.buffer
    message.topic_start = packet.topic_start
    message.topic_end = packet.topic_end
    message.payload_start = packet.payload_start
    message.payload_end = packet.payload_end
    message.properties_start = packet.properties_start
    message.properties_end = packet.properties_end
    message.qos = packet.qos
    message.retain = packet.retain
    message.dup = packet.dup
    if packet.topic_alias:
        session.five.resolve(packet, message)
    packet.moved = chunks = session.chunks  # last: Ctrl-C may end this half-way
    session.handed_id = packet.packet_id
    session.handed = _PUBACK if packet.qos else 0
    if chunks:
        message.offset = packet.payload_offset
        message.total = packet.payload_total
        message.more = packet.more
        if packet.more:
            session.handed = 0  # only the last chunk is acknowledged
