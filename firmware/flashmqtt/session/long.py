"""Received messages that are longer than the input buffer (3.1.1 and 5, section 3.3).

Loaded with the first such message. A program that takes pieces is handed each as it comes, and the last one is acknowledged when
it is taken; at QoS 2 the pieces are held in the store, as a short message is, and handed over from there at PUBREL. For any other
program the message is passed over: read through, acknowledged, counted and reported. To end the connection instead would help
nobody: levels 3 and 4 can't announce a limit, so the broker would send it again with every connection, and what is
behind it would never come. It knows the session, in whose name it answers; of sockets and handlers it knows nothing.
"""

from flashmqtt.codec.encode import put_length, put_publish_head
from flashmqtt.compat import TYPE_CHECKING, const
from flashmqtt.errors import StoreCorrupt, StoreFull, StoreWorn
from flashmqtt.fast import copy, equal

from .inbound import properties_end, topic_start

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251

# Packet types, a level, and events: `codec/packets.py`, `connection.py`.
_PUBREC = const(5)
_LEVEL_5 = const(5)
_NOTHING = const(0)
_MESSAGE = const(3)
_OVERSIZE = const(15)

# What becomes of the message that comes in now.
_NONE = const(0)  # there is none
_PIECES = const(1)  # handed over as it comes
_PASS = const(2)  # passed over
_HOLD = const(3)  # held
_SAME = const(4)  # held already: compared, and answered again
_LEAVE = const(5)  # read through and not answered: it has to come again

_HEAD = const(0x34)  # PUBLISH of QoS 2
_LAYOUT_5 = const(8)  # see `inbound.py`
_ORPHAN = const(1)
_PIECE = const(64)


class Long:
    """What a session does with long messages.

    topic           of the message that was passed over last
    key             of the held message that is being handed over in pieces, 0: none
    """

    def __init__(self, session: "Any") -> None:
        self._session = session
        self._way = _NONE
        self.topic = ""
        self.key = 0
        self._answer = 0  # what acknowledges it
        self._topic_start = self._topic_end = self._payload = 0  # where its parts are
        self._at = self._n = 0  # where in the payload the piece begins, and how long it is
        self._compared = 0  # where the payload begins of the held message that the one which comes in is compared with
        self._buf = bytearray(0)

    def receive(self, packet: "Any", now_ms: int) -> "Any":
        """Take in a chunk of a PUBLISH; return what is to be reported."""
        session = self._session
        way = self._way
        if way == _NONE:
            if packet.headless or not session.chunks:
                way = _PASS
            else:
                way = _PIECES if packet.qos < 2 else self._begin(packet, now_ms)
        if way == _PIECES:
            if (
                session.unsynced
            ):  # what was handed over before must not come again, whatever happens in this one's handler
                session.sync()
            session.show(packet)
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
            session.inbound.held_one()
        session.output.put_ack(_PUBREC, packet.packet_id)
        return _NOTHING

    def disconnected(self) -> None:
        """The network connection is gone: what came in part comes again, from its begin.

        What was handed over in part goes on where it stopped: it is ours. Its PUBREL comes again, and finds nothing.
        """
        if self._way == _HOLD:
            self._session.store.hold_abandon()
        self._way = _NONE
        if self.key:
            self._answer = _ORPHAN
            self._session.urgent = True

    # --- passed over ---

    def _passed(self, packet: "Any") -> "Any":
        """The last byte of a message has been passed over: acknowledge it, or else it comes again, and report it."""
        session = self._session
        qos = packet.qos
        if qos == 2 and not (session.inbound and session.inbound.is_leaving()):
            session.output.put_ack(_PUBREC, packet.packet_id)  # its PUBREL finds nothing, and is answered, too
        session.show(packet)
        if qos == 1:
            session.taken()  # in its turn
        session.handed = 0
        self.topic = session.message.topic
        session.handle = packet.payload_total
        session.oversize += 1
        return _OVERSIZE

    # --- from PUBLISH to PUBREL ---

    def _begin(self, packet: "Any", now_ms: int) -> "Any":
        """The first chunk of a message of QoS 2 is here: return what becomes of it."""
        session = self._session
        store = session.store
        inbound = session.load_inbound()
        key = packet.packet_id
        head = self._put_head(packet)
        n = head + packet.payload_total
        held = store.held_length(key)
        if held:
            try:
                return _SAME if self._is_head_of(key, held, packet) else self._leave(key, n, now_ms)
            except StoreCorrupt:
                inbound.give_up(key)
        if n > store.longest_hold():
            return _PASS
        if inbound.is_leaving() or not store.can_hold(n):
            return self._leave(0, n, now_ms)
        try:
            store.hold_begin(key, n)
            store.hold_extend(session.scratch, 0, head)
        except (StoreFull, StoreWorn):
            store.hold_abandon()
            return self._leave(0, n, now_ms)
        return _HOLD

    def _put_head(self, packet: "Any") -> int:
        """Write a PUBLISH's head into the scratch, as it is held; return its length."""
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
        """Return whether the message held under this key has the topic and the length of the one that comes in."""
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
        if at + 4 > n and n < length:  # its head is longer than the buffer of today
            self._buf = bytearray(at + 4 * _PIECE)
            return self._read_head(key, length)
        return start, end, at

    def _extend(self, packet: "Any", now_ms: int) -> "Any":
        """Hold the chunk; where the store has no room left for it, the message has to come again."""
        store = self._session.store
        try:
            store.hold_extend(packet.buffer, packet.payload_start, packet.payload_end - packet.payload_start)
        except (StoreFull, StoreWorn):
            store.hold_abandon()
            return self._leave(0, packet.payload_total, now_ms)
        return _HOLD

    def _compare(self, packet: "Any", now_ms: int) -> "Any":
        """Compare the chunk with the message held; where they differ, that one's flow has ended, and this one must come again."""
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
        """Leave the message unanswered; key: of another one that is held, whose PUBREL will never come, 0: of none."""
        self._session.inbound.leave(n, now_ms, key)
        return _LEAVE

    # --- handing over ---

    def hand_over(self, key: int, answer: "Any") -> "Any":
        """Let the message be the first piece of a held one."""
        store = self._session.store
        self.key = key
        self._answer = answer
        self._at = 0
        self._topic_start, self._topic_end, self._payload = self._read_head(key, store.held_length(key))
        return self.next_piece()

    def next_piece(self) -> "Any":
        """Let the message be the next piece; the last one is answered.

        Raises:
            StoreCorrupt: it can't be read any more.
        """
        session = self._session
        store = session.store
        key = self.key
        total = store.held_length(key) - self._payload
        buf = self._buf
        self._n = n = min(len(buf) - self._payload, total - self._at)
        message = session.message
        store.read_held(key, 0, buf, 0, self._payload)  # another message may have been compared meanwhile
        store.read_held(key, self._payload + self._at, buf, self._payload, n)
        last = self._at + n == total
        session.handed_id = key
        session.handed = self._answer if last else _ORPHAN
        message.buffer = message.topic_buffer = buf
        message.topic_start = self._topic_start
        message.topic_end = self._topic_end
        message.properties_start = message.properties_end = self._payload
        if buf[0] & _LAYOUT_5:
            message.properties_start = self._topic_end + 2
            while buf[message.properties_start] & 0x80:
                message.properties_start += 1
            message.properties_start += 1
        message.payload_start = self._payload
        message.payload_end = self._payload + n
        message.offset = self._at
        message.total = total
        message.more = not last
        message.qos = 2
        message.retain = bool(buf[0] & 1)
        message.dup = False
        return _MESSAGE

    def taken(self) -> bool:
        """The application has taken the piece; return whether it was the last one, and the message is to be discarded."""
        self._at += self._n
        self._session.urgent = True  # the next piece, or what was to come behind the last one
        if self._session.message.more:
            return False
        self.key = 0
        return True

    def owed(self) -> bool:
        """Return whether the broker awaits the acknowledgement."""
        return self._answer != _ORPHAN

    def pause(self) -> None:
        """The message has to wait; it is handed over from its first piece on, then."""
        self.key = 0

    def give_up(self) -> "Any":
        """The rest of the message can't be read."""
        self.key = 0
        return self._answer
