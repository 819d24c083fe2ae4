"""The output buffer of a connection, and the only code that writes to it (chapter 3 of 3.1.1 and 5).

Packets are put one after the other and sent together. Before any byte is sent, the store is made durable if a packet depends on
it: a PUBACK or PUBREC states that a message is stored, a PUBREL that PUBREC has arrived, a PUBCOMP that the held message is
discarded [MQTT-4.3.2-1] [MQTT-4.3.3-1]. This module knows no socket, no flow and no packets in flight.
"""

from .codec.encode import put_ack
from .codec.quick import put_message
from .compat import TYPE_CHECKING
from .errors import ConnectionLost
from .fast import raw_copy

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251


class Output:
    """Bytes to send. New packets go after `end`; nothing is moved, and the buffer never grows.

    buf             the buffer
    start           where the unsent bytes begin
    end             where they end; both are 0 again when all are sent
    limit           the end of the room for packets. 0: no packet can be put now: the broker has not accepted a connection,
                    DISCONNECT was put, or a part of a packet is in the buffer
    sent_ms         when bytes were sent last

    Args:
        size: of the buffer. A longer message is sent in pieces.
        level: 3, 4 or 5.
        sync: makes the store durable; called before acknowledgements are sent.
    """

    def __init__(self, size: int, level: int, sync: "Any") -> None:
        self.buf = bytearray(size)
        self.limit = 0
        self.level = level
        self.start = self.end = 0
        self.sent_ms = 0
        self._sync = sync
        self.promised = False  # do bytes to send depend on the store?
        # The length of a write that took nothing. Negative: a write may be incomplete, and the next one fails.
        self._offered = 0

    def clear(self) -> None:
        """The connection has ended: discard the buffer. Only CONNECT can be put before `open`."""
        self.start = self.end = self._offered = self.limit = 0
        self.promised = False

    def open(self) -> None:
        """Allow packets: the broker has accepted the connection, or a packet sent in pieces is complete."""
        self.limit = len(self.buf)

    def interrupted(self) -> None:
        """Ctrl-C ended some work: if it may have left a part of a packet here, let the next write fail."""
        if not self.limit:
            self._offered = self.end = -1

    def room(self) -> "Any":
        """Return how many bytes can be put now; 0 or less: none."""
        return self.limit - self.end

    # --- putting packets ---

    def put(self, function: "Any", *arguments: "Any") -> None:
        """Put a packet with one of the codec's functions: function(buf, end, *arguments) returns the new end.

        The caller has checked `room`, except for CONNECT.

        Raises:
            BufferTooSmall: no room for this packet now.
        """
        self.end = function(self.buf, self.end, *arguments)

    def put_ack(self, packet_type: int, packet_id: int, code: int = 0, dup: bool = False) -> None:
        """Put an acknowledgement, in order [MQTT-4.6.0-2] [MQTT-4.6.0-3] [MQTT-4.6.0-4]; it needs 8 bytes of room at most.

        It has the id of its PUBLISH [MQTT-2.3.1-6]; 5: [MQTT-2.2.1-5].
        """
        self.promised = True
        self.end = put_ack(self.buf, self.end, packet_type, packet_id, self.level, code, None, dup)

    def put_copy(self, buf: "Any", n: int) -> bool:
        """Put the packet in buf[:n]; return False if there is no room."""
        end = self.end
        if self.limit - end < n:
            return False
        raw_copy(self.buf, buf, n, end, 0)
        self.end = end + n
        return True

    def put_stored(self, store: "Any", seq: int, offset: int, n: int, dup: bool) -> int:
        """Put n bytes of a stored PUBLISH from offset, for which there is room; return the first byte as stored."""
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
        """Put a QoS 0 message whose topic is known to be valid; return 0 if there is no room. Levels 3 and 4 only."""
        if not self.limit:
            return 0
        # (No new local here: a frame over 11 words is allocated on the heap, which takes 25 us.)
        end = put_message(self.buf, self.end, topic, payload, 0x31 if retain else 0x30)
        if end:
            self.end = end
        return end

    # --- writing them ---

    def write_to(self, sock: "Any", now_ms: int) -> bool:
        """Write the buffer to a socket, once; return whether all of it was sent.

        sock.write(buf, start, n) returns how many bytes it took; None or 0: none. Before it, the store is made durable as far as
        these bytes need it. After a write that took nothing, the next one has the same length: TLS has already encrypted these
        bytes, and treats the next call, whatever its length, as a repetition. If sock.write raised, nobody knows how much was
        written: the next call raises ConnectionLost.
        """
        if self.promised:
            self._sync()
            self.promised = False  # not reached if the store fails: the next write tries again
        start = self.start
        n = self._offered or self.end - start
        if n < 0:
            raise ConnectionLost("Ctrl-C interrupted a write")
        self._offered = -n
        written = sock.write(self.buf, start, n)
        if written:
            self.sent_ms = now_ms
            start += written
            if start == self.end:
                self.start = self.end = self._offered = 0
                return True
            self.start = start
            n = 0
        self._offered = n
        return False
