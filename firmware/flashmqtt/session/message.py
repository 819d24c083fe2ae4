"""A received message: one object, filled anew for each message, so that receiving allocates nothing.

What it shows is valid until the next message; take `topic` and `payload` (copies), or read `buffer` between the marks.
"""


class Message:
    """Where a message lies in a buffer: its topic, its payload, and at level 5 its properties."""

    def __init__(self):
        self.buffer = self.topic_buffer = bytearray()  # not the same for a topic that came as an alias (5)
        self.topic_start = self.topic_end = 0
        self.payload_start = self.payload_end = 0
        self.properties_start = self.properties_end = 0
        self.qos = 0
        self.retain = False
        self.dup = False

    @property
    def topic(self):
        """The topic name, as a str of its own."""
        return str(self.topic_view, "utf-8")

    @property
    def payload(self):
        """The payload, as bytes of its own."""
        return bytes(self.view)

    @property
    def properties(self):
        """The message's properties as a dict (5); empty at the levels that have none."""
        if self.properties_start == self.properties_end:
            return {}
        from flashmqtt.codec.properties import unpack

        return unpack(self.buffer, self.properties_start, self.properties_end)

    @property
    def topic_view(self):
        """The topic's bytes, not copied."""
        return memoryview(self.topic_buffer)[self.topic_start : self.topic_end]

    @property
    def view(self):
        """The payload's bytes, not copied."""
        return memoryview(self.buffer)[self.payload_start : self.payload_end]
