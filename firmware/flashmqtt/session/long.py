"""Received messages that are longer than the input buffer (3.1.1 and 5, section 3.3).

Loaded with the first such message. With `chunks`, a message is handed over in pieces as they arrive, and acknowledged when the
last piece is taken. At QoS 2 the pieces are held in the store, like a short message, and handed over after PUBREL. Without
`chunks` the message is skipped: its bytes are discarded, and it is acknowledged, counted and reported. Closing the connection
instead would not help: levels 3 and 4 can't announce a limit, so the broker would send the message again with every connection,
and it would block all later ones. This module knows the session and sends its acknowledgements; it knows no sockets and no
handlers.
"""

from flashmqtt.codec.encode import put_length, put_publish_head
from flashmqtt.compat import TYPE_CHECKING, const, ticks_diff
from flashmqtt.errors import StoreCorrupt, StoreFull, StoreWorn
from flashmqtt.fast import copy, equal

from .inbound import properties_end, show, topic_start
from .message import show as show_packet

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251

# Packet types, a level, and events: `codec/packets.py`, `connection.py`.
_PUBREC = const(5)
_LEVEL_5 = const(5)
_NOTHING = const(0)
_MESSAGE = const(3)
_OVERSIZE = const(15)

# How the incoming message is handled.
_NONE = const(0)  # there is none
_PIECES = const(1)  # handed over as it arrives
_PASS = const(2)  # skipped
_HOLD = const(3)  # held
_SAME = const(4)  # a duplicate of a held one: compared, and acknowledged again
_LEAVE = const(5)  # discarded and not acknowledged: the broker has to send it again

_HEAD = const(0x34)  # PUBLISH of QoS 2
_LAYOUT_5 = const(8)  # see `inbound.py`
_ORPHAN = const(1)
_PIECE = const(64)


class Long:
    """The long messages of a session.

    topic           of the message that was skipped last
    key             of the held message that is being handed over in pieces, 0: none
    answer          the packet type of its acknowledgement
    """

    def __init__(self, session: "Any") -> None:
        self._session = session
        for name in ("longest_hold", "hold_begin", "hold_extend", "hold_abandon"):  # as in `Inbound`
            getattr(session.store, name)
        session.load_message()
        self._way = _NONE
        self.topic = ""
        self.key = 0
        self.answer = 0
        self._payload = 0  # the offset of its payload
        self._at = self._n = 0  # the piece's offset in the payload, and its length
        self._compared = 0  # _SAME: the payload's offset in the held message
        self._buf = bytearray(0)

    def receive(self, packet: "Any", now_ms: int) -> "Any":
        """Process a chunk of a PUBLISH; return the event to report."""
        try:
            return self._receive(packet, now_ms)
        except BaseException:
            # No memory, the store failed, or Ctrl-C: without this chunk the message is not complete.
            self._way = _LEAVE if packet.more else _NONE
            session = self._session
            if session.inbound:
                session.inbound.leave(1, now_ms, 0)
                session.store.hold_abandon()
            raise

    def keep_open(self, connection: "Any", now_ms: int) -> None:
        """Keep the connection open while nothing is read because the program is busy with a piece."""
        half = connection.keep_alive_ms >> 1
        if half and ticks_diff(now_ms, connection.output.sent_ms) >= half:
            connection.ping()
        connection.received_ms = connection._scanned_ms = now_ms
        connection._pinged = False

    def _receive(self, packet: "Any", now_ms: int) -> "Any":
        session = self._session
        way = self._way
        if way == _NONE:
            if packet.headless or not session.chunks:
                way = _PASS
            else:
                way = _PIECES if packet.qos < 2 else self._begin(packet, now_ms)
        if way == _PIECES:
            # The last message must not be handed over again if this one's handler resets the board.
            if session.unsynced:
                session.sync()
            show_packet(session, packet)
        elif way == _HOLD:
            way = self._extend(packet, now_ms)
        elif way == _SAME:
            way = self._compare(packet, now_ms)
        more = packet.more
        self._way = way if more else _NONE
        if way == _PIECES:
            return _MESSAGE
        if more or way == _LEAVE:
            return _NOTHING
        if way == _PASS:
            return self._passed(packet)
        if way == _HOLD:
            session.inbound.held += 1
            session.inbound.progress = True
        session.output.put_ack(_PUBREC, packet.packet_id)
        return _NOTHING

    def is_streaming(self) -> bool:
        """Return whether a message is handed over in pieces as they arrive: no other message may come between them."""
        return self._way == _PIECES

    def disconnected(self) -> None:
        """The network connection is gone: a partly received message comes again from its beginning.

        A partly handed-over message is in the store, and continues where it stopped. When its PUBREL comes again, the message is
        not held any more, and PUBCOMP is the answer.
        """
        if self._way == _HOLD:
            self._session.store.hold_abandon()
        self._way = _NONE
        if self.key:
            self.answer = _ORPHAN
            self._session.urgent = True

    # --- skipped messages ---

    def _passed(self, packet: "Any") -> "Any":
        """A message was skipped up to its last byte: acknowledge it, so that it does not come again, and report it."""
        session = self._session
        qos = packet.qos
        if qos == 2:
            if session.inbound and session.inbound.left:
                return _NOTHING  # it comes again, after those that were left before it
            session.output.put_ack(_PUBREC, packet.packet_id)  # its PUBREL will be answered as for an unknown id
        show_packet(session, packet)
        if qos == 1:
            session.acknowledge()  # this keeps the order of PUBACKs
        session.handed = 0
        self.topic = session.message.topic
        session.handle = packet.payload_total
        session.oversize += 1
        return _OVERSIZE

    # --- from PUBLISH to PUBREL ---

    def _begin(self, packet: "Any", now_ms: int) -> "Any":
        """Return how to handle the QoS 2 message whose first chunk this is."""
        session = self._session
        store = session.store
        inbound = session.load_inbound()
        key = packet.packet_id
        head = self._put_head(packet)
        n = head + packet.payload_total
        held = store.held_length(key)
        if held:
            try:
                if key in inbound.lost_keys or not self._is_head_of(key, held, packet):
                    return self._leave(key, n, now_ms)
                return _SAME
            except StoreCorrupt:
                inbound.discard(key, 1)
        if n > store.longest_hold():
            return _PASS
        if inbound.left or not store.can_hold(n):
            return self._leave(0, n, now_ms)
        try:
            store.hold_begin(key, n)
            store.hold_extend(session.scratch, 0, head)
        except (StoreFull, StoreWorn):
            store.hold_abandon()
            return self._leave(0, n, now_ms)
        return _HOLD

    def _put_head(self, packet: "Any") -> int:
        """Write a PUBLISH's head into the scratch, in the stored layout; return its length."""
        session = self._session
        scratch = session.scratch
        total = packet.payload_total
        if session.level == _LEVEL_5:
            block = bytes(packet.buffer[packet.properties_start : packet.properties_end])
            if len(scratch) < len(packet.topic) + len(block) + 16:
                scratch = session.scratch = bytearray(len(packet.topic) + len(block) + 16)
            n = put_publish_head(
                scratch, 0, packet.topic, total, 2, packet.retain, False, packet.packet_id, _LEVEL_5, block
            )
            scratch[0] = (_HEAD | _LAYOUT_5) | (1 if packet.retain else 0)
            return n
        start = packet.topic_start - 2
        n = packet.topic_end + 2 - start  # with the packet id
        if len(scratch) < n + 5:
            scratch = session.scratch = bytearray(n + 5)
        scratch[0] = _HEAD | (1 if packet.retain else 0)
        at = put_length(scratch, 1, n + total)
        copy(scratch, at, packet.buffer, start, n)
        return at + n

    def _is_head_of(self, key: int, length: int, packet: "Any") -> "Any":
        """Return whether the message held under this key has the topic and the length of the incoming one."""
        start, end, self._compared = self._read_head(key, length)
        topic = packet.topic
        n = len(topic)
        return (
            length - self._compared == packet.payload_total
            and end - start == n
            and equal(self._buf, start, topic, 0, n)
        )

    def _read_head(self, key: int, length: int) -> "Any":
        """Read the head of a held message; return where in it the topic begins and ends, and where the payload begins."""
        store = self._session.store
        if not self._buf:
            self._buf = bytearray(max(len(self._session.scratch), _PIECE))
        n = min(length, len(self._buf))
        buf = self._buf
        store.read_held(key, 0, buf, 0, n)
        start = topic_start(buf)
        end = start + (buf[start - 2] << 8 | buf[start - 1])
        at = end + 2
        if buf[0] & _LAYOUT_5 and at + 4 <= n:
            at = properties_end(buf, at)
        if at + 4 > n and n < length:  # its head is longer than the buffer
            self._buf = bytearray(at + 4 * _PIECE)
            return self._read_head(key, length)
        return start, end, at

    def _extend(self, packet: "Any", now_ms: int) -> "Any":
        """Hold the chunk; if the store has no room left, leave the message unacknowledged."""
        store = self._session.store
        try:
            store.hold_extend(packet.buffer, packet.payload_start, packet.payload_end - packet.payload_start)
        except (StoreFull, StoreWorn):
            store.hold_abandon()
            return self._leave(0, packet.payload_total, now_ms)
        return _HOLD

    def _compare(self, packet: "Any", now_ms: int) -> "Any":
        """Compare the chunk with the held message. If they differ, the held one's flow is over; the new one must come again."""
        key = packet.packet_id
        at = packet.payload_start
        held_at = self._compared + packet.payload_offset
        try:
            while at < packet.payload_end:
                n = min(packet.payload_end - at, _PIECE)
                self._session.store.read_held(key, held_at, self._buf, 0, n)
                if not equal(self._buf, 0, packet.buffer, at, n):
                    return self._leave(key, packet.payload_total, now_ms)
                at += n
                held_at += n
        except StoreCorrupt:
            return self._leave(key, packet.payload_total, now_ms)
        return _SAME

    def _leave(self, key: int, n: int, now_ms: int) -> "Any":
        """Leave the message unacknowledged; key: a held message whose PUBREL will never come, 0: none."""
        self._session.inbound.leave_behind(n, now_ms, key)
        return _LEAVE

    # --- handing over ---

    def hand_over(self, key: int, answer: "Any") -> "Any":
        """Set `message` to the first piece of a held message."""
        self.answer = answer
        self._at = 0
        self._payload = self._read_head(key, self._session.store.held_length(key))[2]
        self.key = key  # not before: MemoryError
        return self.next_piece()

    def next_piece(self) -> "Any":
        """Set `message` to the next piece; the last piece is acknowledged.

        Raises:
            StoreCorrupt: it can't be read any more.
        """
        session = self._session
        store = session.store
        key = self.key
        total = store.held_length(key) - self._payload
        buf = self._buf
        self._n = n = min(len(buf) - self._payload, total - self._at)
        message = session.load_message()
        store.read_held(key, 0, buf, 0, self._payload)  # again: a comparison may have used the buffer meanwhile
        store.read_held(key, self._payload + self._at, buf, self._payload, n)
        session.handed_id = key
        show(message, buf, self._payload + n)
        message.offset = self._at
        message.total = total
        message.more = self._at + n < total
        session.handed = _ORPHAN if message.more else self.answer
        return _MESSAGE

    def finish_piece(self) -> bool:
        """Advance: the application has taken the piece. Return whether it was the last one: then discard the message."""
        self._at += self._n
        self._session.urgent = True  # for the next piece, or the packet after the last one
        if self._session.message.more:
            return False
        self.key = 0
        return True

    def pause(self) -> None:
        """The message has to wait, and is later handed over from its first piece on; or it can't be read."""
        self.key = 0
