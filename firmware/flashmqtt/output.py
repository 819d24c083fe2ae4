"""The output buffer of a connection, and the only code that writes to it (chapter 3 of 3.1.1 and 5).

Packets are put behind each other and leave together. Who writes to the network asks `offer()` how many bytes to write from
`buf[start]`, and tells `taken(n)` how many left. Before any of them leaves, what they promise is durable: an acknowledgement may
say that a message is stored, a PUBREL that its PUBREC was seen, a PUBCOMP that the held message is discarded [MQTT-4.3.2-1]
[MQTT-4.3.3-1]. It knows no socket, no flow and no packet that is under way.
"""

from .codec.encode import put_ack, put_publish
from .codec.quick import put_message
from .compat import TYPE_CHECKING
from .errors import BufferTooSmall
from .fast import raw_copy

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251


class Output:
    """Bytes that are to be sent. All room is what lies behind `end`: nothing moves, nothing grows.

    buf             the buffer
    start           where the bytes begin that have not left
    end             where they end; both are 0 again when all have left
    limit           where room for further packets ends. 0: nothing can be put now, as there is no connection that the broker has
                    accepted, or a packet is here in part
    sent_ms         when bytes left last

    Args:
        size: of the buffer. A longer message goes out in pieces.
        level: 3, 4 or 5.
        sync: called before bytes leave that promise something.
    """

    def __init__(self, size: int, level: int, sync: "Any") -> None:
        self.buf = bytearray(size)
        self.limit = 0
        self.level = level
        self.start = self.end = 0
        self.sent_ms = 0
        self._sync = sync
        self._promised = False
        self._offered = 0

    def clear(self) -> None:
        """The connection has ended, and what was left in the buffer is gone. Only CONNECT can be put before `open`."""
        self.start = self.end = self._offered = self.limit = 0
        self._promised = False

    def open(self) -> None:
        """The broker has accepted the connection, or a packet that was here in part is whole: packets can be put."""
        self.limit = len(self.buf)

    def shut(self) -> None:
        """Take no packets: DISCONNECT is the last one, or a packet is here in part."""
        self.limit = 0

    def room(self) -> "Any":
        """Return how many bytes can be put now; less than 1: none."""
        return self.limit - self.end

    # --- putting packets ---

    def put(self, function: "Any", *arguments: "Any") -> None:
        """Put a packet by one of the codec's functions: function(buf, end, *arguments) returns the new end.

        The caller has seen to it that packets can be put now (`room`), but for CONNECT.

        Raises:
            BufferTooSmall: no room for this one, now.
        """
        self.end = function(self.buf, self.end, *arguments)

    def put_ack(self, packet_type: int, packet_id: int, code: int = 0, dup: bool = False) -> None:
        """Put an acknowledgement behind those before it [MQTT-4.6.0-2] [MQTT-4.6.0-3] [MQTT-4.6.0-4]; 8 bytes of room will do.

        It has the id of its PUBLISH [MQTT-2.3.1-6]; 5: [MQTT-2.2.1-5].
        """
        self._promised = True
        self.end = put_ack(self.buf, self.end, packet_type, packet_id, self.level, code, None, dup)

    def put_puback(self, packet_id: int) -> None:
        """Put a PUBACK: what `put_ack` does, for the most frequent one."""
        self._promised = True
        end = self.end
        buf = self.buf
        buf[end] = 0x40
        buf[end + 1] = 2
        buf[end + 2] = packet_id >> 8
        buf[end + 3] = packet_id & 255
        self.end = end + 4

    def put_copy(self, buf: "Any", n: int) -> None:
        """Put a packet that lies in buf[:n]. The caller has compared n with the room: nothing is checked here."""
        end = self.end
        raw_copy(self.buf, buf, n, end, 0)
        self.end = end + n

    def put_stored(self, store: "Any", seq: int, offset: int, n: int, dup: bool) -> int:
        """Put n bytes of a stored PUBLISH from offset, which have room; return the first byte as it is stored."""
        end = self.end
        buf = self.buf
        store.read(seq, offset, buf, end, n)
        first = buf[end]
        if dup:
            buf[end] = first | 8  # DUP: it may have been sent before [MQTT-3.3.1-1] [MQTT-2.3.1-3]
        self.end = end + n
        return first

    def put_again(
        self, topic: "bytes | bytearray | memoryview", payload: "bytes | bytearray | memoryview", retain: bool
    ) -> int:
        """Put a QoS 0 message whose topic is known to be valid; return 0 where there is no room. Levels 3 and 4 only."""
        if not self.limit:
            return 0
        # (One more name, and the frame had more than 11 words: it would be on the heap, which takes 25 us.)
        end = put_message(self.buf, self.end, topic, payload, 0x31 if retain else 0x30)
        if end:
            self.end = end
        return end

    def put_unstored(
        self, topic: "bytes | bytearray | memoryview", payload: "bytes | bytearray | memoryview", retain: bool
    ) -> bool:
        """Put a QoS 0 message [MQTT-4.3.1-1]; return False where it has no room (now, or ever). Levels 3 and 4 only."""
        try:
            self.end = put_publish(self.buf, self.end, topic, payload, 0, retain, False, 0, self.level)
        except BufferTooSmall:
            return False
        return True

    # --- writing them ---

    def write_to(self, sock: "Any", now_ms: int) -> bool:
        """Write all that is here, once; return whether all of it left. It is what `offer` and `taken` do, in one call."""
        if self._promised:
            self._sync()
            self._promised = False  # where the store fails, the next attempt to write comes here again
        start = self.start
        n = self._offered
        if not n:
            self._offered = n = self.end - start
        done = sock.write(self.buf, start, n)
        if start + n == self.end and done == n:
            self._offered = self.start = self.end = 0
            self.sent_ms = now_ms
            return True
        self.taken(done, now_ms)
        return False

    def offer(self) -> int:
        """Return how many bytes to write, from buf[start]; 0: there are none. What they promise is durable now.

        Until some of them were taken, the answer stays the same: TLS has encrypted a write that it could not finish, and takes
        the repeated call, whatever its length, for these very bytes.
        """
        if self._promised:
            self._sync()
            self._promised = False  # where the store fails, the next attempt to write comes here again
        n = self._offered
        if not n:
            self._offered = n = self.end - self.start
        return n

    def taken(self, n: int, now_ms: int) -> None:
        """Take note that the first n bytes of the offer have left."""
        if n:
            self._offered = 0
            self.sent_ms = now_ms
            self.start = start = self.start + n
            if start == self.end:
                self.start = self.end = 0
