"""Inbound QoS 2: a message is held in the store from its PUBLISH to its PUBREL, and handed over once (3.1.1, 5: section 4.3.3).

Loaded with the first such message, or if the store holds one. It knows the session and its store, and sends the session's
acknowledgements. It does not know what handlers do with a message.

A held message is stored as a whole PUBLISH packet under its packet id. Bit 3 of the first byte, DUP in a packet, means here that
the layout is level 5's: the session may have another level when the message is handed over.

If the store has no room for a message, that message and all later ones are left unacknowledged, which keeps their order. Once
the store has room, the client reconnects, and the broker sends them again.
"""

from flashmqtt.codec.encode import put_length
from flashmqtt.compat import TYPE_CHECKING, const, ticks_diff
from flashmqtt.errors import StoreCorrupt, StoreFull, StoreWorn
from flashmqtt.fast import copy, equal

from .flows import RECEIVER

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251

# Packet types and a level: `codec/packets.py`. An event: `connection.py`.
_PUBREC = const(5)
_PUBREL = const(6)
_PUBCOMP = const(7)
_LEVEL_5 = const(5)
_NOTHING = const(0)
_MESSAGE = const(3)

# Actions and columns: `flows.py`.
_HOLD = const(5)
_PUT_PUBREC = const(6)
_PUT_PUBCOMP = const(8)
_HAND_OVER_FIRST = const(9)
_COLUMNS = const(3)
_PUBLISH_COLUMN = const(0)
_REPEATED_COLUMN = const(1)
_PUBREL_COLUMN = const(2)

_HEAD = const(0x34)  # PUBLISH of QoS 2
_LAYOUT_5 = const(8)
_ORPHAN = const(1)  # `session.handed` of a message that needs no acknowledgement
_PIECE = const(64)
_HEAD_BYTES = const(7)  # the fixed header and the length of the topic, at most
_LENGTH_BYTES = const(4)  # the length of the properties, at most
_RECONNECT_AFTER_MS = const(10000)  # the longest wait for held messages to be handed over before a reconnect


class Inbound:
    """The held messages of a session."""

    def __init__(self, session: "Any") -> None:
        self._session = session
        self._store = session.store
        # A journal loads and binds these when they are first read, which needs memory: now, not when a message is half-way.
        for name in ("can_hold", "hold", "held_length", "read_held", "discard"):
            getattr(session.store, name)
        self._handed = bytearray()  # the buffer for held messages, made when the first one is handed over
        self._piece = bytearray(_PIECE)
        self.held = len(session.store.held())  # their number
        self._orphans: "list[Any]" = []  # keys of the messages whose PUBREL will never come
        self.lost_keys: "list[Any]" = []  # keys from before the broker lost the session: it uses these packet ids anew
        self._resumed: "list[Any]" = []  # (key, acknowledgement) of long messages that have waited
        self.again = False  # the packet in the decoder must be processed once more
        self.left = 0  # bytes of the first message left unacknowledged on this connection, 0: none
        self._left_ms: "Any" = 0  # since when; None: longer than the wait before a reconnect
        self._left_key = 0  # its key, if an older message with the same packet id still waits
        self.progress = True  # a message was held since the last reconnect
        self._awaited: "list[Any]" = []  # packet ids of this connection with PUBREC sent and no PUBREL yet
        self._unheard: "list[Any]" = []  # ids held since an earlier connection, without a packet on this one
        self._awaited_ms = 0  # since when the first of these waits for a packet
        self._unheard_ms: "Any" = None  # the same; None: set it at the next check
        self._pinged = False  # a PINGREQ was sent because these are overdue

    def receive(self, packet: "Any", now_ms: int) -> "Any":
        """Process a PUBLISH of QoS 2 or a PUBREL; return the event to report."""
        packet.moved = True  # a held message may replace the one that was shown last
        try:
            return self._receive(packet, now_ms)
        except BaseException:
            # No memory, the store failed, or Ctrl-C: the broker does not send the packet again on this connection.
            self.again = self._session.urgent = True
            raise

    def _receive(self, packet: "Any", now_ms: int) -> "Any":
        session = self._session
        key = packet.packet_id
        length = self._store.held_length(key)
        column = _PUBREL_COLUMN
        waiting = session.waiting and session.waiting.held(key)
        self._note_heard(key, now_ms)
        if packet.packet_type == _PUBREL:
            if waiting:
                waiting.owed = True  # PUBCOMP follows when it is taken
                return _NOTHING
        else:
            n = self._put_record(packet)
            column = _PUBLISH_COLUMN
            try:
                if length and key not in self.lost_keys and self._is_held(key, length, n):
                    column = _REPEATED_COLUMN
            # Store the packet instead; without DUP, it is another message and the held one is lost.
            except StoreCorrupt:
                self.discard(key, 0 if packet.dup else 1)
                length = 0
        action = RECEIVER[(_COLUMNS if length else 0) + column] & 15
        if action == _HOLD:
            self._hold(key, n, now_ms)
        elif action == _PUT_PUBREC:
            self._acknowledge(_PUBREC, key, 0)
        elif action == _PUT_PUBCOMP:
            # 5: "packet identifier not found"
            self._acknowledge(_PUBCOMP, key, 0x92)
        elif action == _HAND_OVER_FIRST and waiting:
            self.leave(n, now_ms, key)
        elif action == _HAND_OVER_FIRST:
            if not self._hand_over(key, _ORPHAN):
                return self._receive(packet, now_ms)
            self.again = session.urgent = True
            return _MESSAGE
        else:
            return self._hand_over(key, _PUBCOMP)
        return _NOTHING

    def _acknowledge(self, kind: int, key: int, code: int) -> None:
        if kind == _PUBREC:
            self._awaited.append(key)
        self._session.output.put_ack(kind, key, code)

    def _note_heard(self, key: int, now_ms: int) -> None:
        """The broker sent a packet of this flow."""
        awaited = self._awaited
        if not awaited or awaited[0] == key:
            self._awaited_ms = now_ms
        if key in awaited:
            awaited.remove(key)
        if self._unheard and key in self._unheard:
            self._unheard.remove(key)
            self._unheard_ms = now_ms
            self._pinged = False

    # --- from PUBLISH to PUBREL ---

    def _put_record(self, packet: "Any") -> int:
        """Write a received PUBLISH into the scratch, in the stored layout; return its length."""
        session = self._session
        scratch = session.scratch
        need = len(packet.buffer)
        if packet.topic_alias:  # with its topic in place of the alias it may be longer than the packet
            need *= 2
        if len(scratch) < need:
            scratch = session.scratch = bytearray(need)
        if packet.topic_alias:
            n = session.five.put_held(scratch, packet)
        else:
            start = packet.topic_start - 2
            n = packet.payload_end - start
            scratch[0] = _HEAD | (1 if packet.retain else 0)
            at = put_length(scratch, 1, n)
            copy(scratch, at, packet.buffer, start, n)
            n += at
        if session.level == _LEVEL_5:
            scratch[0] |= _LAYOUT_5
        return n

    def _is_held(self, key: int, length: int, n: int) -> "Any":
        """Return whether the held message has the topic and payload of the record in the scratch.

        Properties are not compared: a server counts the Message Expiry Interval down and sets topic aliases (5, section 3.3.2.3).
        The held message may have the layout of another level.
        """
        store = self._store
        scratch = self._session.scratch
        piece = self._piece
        store.read_held(key, 0, piece, 0, min(length, _HEAD_BYTES))
        start = topic_start(piece)
        other = topic_start(scratch)
        size = 2 + (piece[start - 2] << 8 | piece[start - 1])
        end = start + size  # after the topic and the packet id
        other_end = other + 2 + (scratch[other - 2] << 8 | scratch[other - 1])
        if piece[0] & _LAYOUT_5:
            store.read_held(key, end, piece, 0, min(length - end, _LENGTH_BYTES))
            end += properties_end(piece, 0)
        if scratch[0] & _LAYOUT_5:
            other_end = properties_end(scratch, other_end)
        return (
            length - end == n - other_end
            and self._same(key, start - 2, other - 2, size)  # the topic with its length
            and self._same(key, end, other_end, n - other_end)
        )

    def _same(self, key: int, at: int, other: "Any", n: int) -> bool:
        """Return whether n bytes of the held message are equal to those of the scratch from `other` on."""
        piece = self._piece
        scratch = self._session.scratch
        while n:
            part = min(n, _PIECE)
            self._store.read_held(key, at, piece, 0, part)
            if not equal(piece, 0, scratch, other, part):
                return False
            at += part
            other += part
            n -= part
        return True

    def _hold(self, key: int, n: int, now_ms: int) -> None:
        """Store a message; after that, put PUBREC [MQTT-4.3.3-2]. It is handed over later."""
        store = self._store
        if not self.left and store.can_hold(n):
            try:
                store.hold(key, self._session.scratch, n)
            except (StoreFull, StoreWorn):
                pass
            else:
                self.held += 1
                self.progress = True
                self._acknowledge(_PUBREC, key, 0)
                return
        self.leave(n, now_ms, 0)

    def wants_restart(self, now_ms: int) -> bool:
        """Return whether to reconnect, so that the broker sends unacknowledged messages again."""
        left = self.left
        if not left:
            return False
        if self._left_ms is not None and ticks_diff(now_ms, self._left_ms) >= _RECONNECT_AFTER_MS:
            self._left_ms = None  # before the clock wraps: there may be no room for days
        if not self._store.can_hold(left):
            return False
        waiting = self._session.waiting
        if self._left_key and waiting and waiting.held(self._left_key):
            return False
        if (self.held or not self.progress) and self._left_ms is not None:
            return False
        self.progress = False
        return True

    # --- handing over ---

    def lost(self) -> None:
        """The broker lost the session: hand over all held messages, one after the other."""
        self._orphans = self._store.held()
        self.lost_keys = self._store.held()
        self._session.urgent = True

    def next(self, packet: "Any", now_ms: int) -> "Any":
        """Hand over the next held message that needs no PUBREL; after that, process the packet in the decoder again."""
        packet.moved = True
        session = self._session
        long = session.long
        if self.again or self._resumed or self._orphans or (long and long.key):
            session.urgent = True  # until nothing is left: all this precedes the next packet
        if long and long.is_streaming():
            return _NOTHING
        if long and long.key:
            try:
                return long.next_piece()
            except StoreCorrupt:
                self._give_up(long.key, long.answer)
        while self._resumed:
            key, answer = self._resumed[0]
            found = self._store.held_length(key) and self._hand_over(key, answer)
            self._resumed.pop(0)  # not before: MemoryError
            if found:
                return _MESSAGE
            session.waiting.end_pieces(key)
        orphans = self._orphans
        waiting = session.waiting
        while orphans:
            if waiting and waiting.held(orphans[0]):
                pass
            elif self._store.held_length(orphans[0]) and self._hand_over(orphans[0], _ORPHAN):
                return _MESSAGE
            orphans.pop(0)
        if self.again:
            self.again = False
            return self.receive(packet, now_ms)
        return _NOTHING

    def _hand_over(self, key: int, answer: "Any") -> "Any":
        """Set `message` to a held one, read into a separate buffer, as handlers may publish meanwhile.

        A message that can't be read is counted as damaged and discarded, and its flow ends.
        """
        session = self._session
        store = self._store
        if session.unsynced:  # the last message must not be handed over again if this one's handler resets the board
            session.sync()
        length = store.held_length(key)
        try:
            if session.chunks and length > len(session.scratch):
                return session.load_long().hand_over(key, answer)
            if len(self._handed) < length:
                self._handed = bytearray(max(length, len(session.scratch)))
            buf = self._handed
            store.read_held(key, 0, buf, 0, length)
        except StoreCorrupt:
            return self._give_up(key, answer)
        show(session.load_message(), buf, length)
        session.handed_id = key
        session.handed = answer
        return _MESSAGE

    def _give_up(self, key: int, answer: "Any") -> "Any":
        """End the flow of a message that can't be read any more, and count it as damaged."""
        if self._session.long:
            self._session.long.pause()
        self.discard(key, 1)
        if answer != _ORPHAN:
            self._acknowledge(answer, key, 0)
        return _NOTHING

    def load(self, message: "Any") -> bool:
        """Read a held message that waited into its own buffer; return False if it can't be read any more, or was discarded."""
        length = self._store.held_length(message.packet_id)
        if not length:
            return False
        buf = bytearray(length)
        try:
            self._store.read_held(message.packet_id, 0, buf, 0, length)
        except StoreCorrupt:
            self._store.damaged += 1
            return False
        show(message, buf, length)
        return True

    def discard_handed(self) -> None:
        """Discard the message, which the application has taken, so that it is not handed over again."""
        if self._session.long and self._session.long.key and not self._session.long.finish_piece():
            return
        self.discard_taken(self._session.handed_id, True)

    def resume(self, key: int, owed: "Any") -> None:
        """Let a long message that has waited be handed over from its first piece on."""
        self._resumed.append((key, _PUBCOMP if owed else _ORPHAN))
        self._session.urgent = True

    def discard_taken(self, key: int, owed: bool) -> None:
        """The application has taken a message that waited: discard it, durably; if owed, the acknowledgement will do that."""
        if self._store.held_length(key):
            self.discard(key, 0)
            if not owed:
                self._session.sync()

    def discard(self, key: int, damaged: "Any") -> None:
        """Discard a held message; count it if it is damaged."""
        store = self._store
        if damaged:
            store.damaged += 1
        store.discard(key)
        if key in self.lost_keys:
            self.lost_keys.remove(key)
        self.held -= 1
        session = self._session
        session.unsynced = True
        if session.waiting:
            session.waiting.end_pieces(key)

    def leave(self, n: int, now_ms: int, key: int) -> None:
        """Leave a message of n bytes unacknowledged, so that it comes again; key: an older one with its packet id, or 0."""
        if not self.left:  # 5: only if the server exceeds our Receive Maximum [MQTT-3.3.4-9]
            self.left = n
            self._left_ms = now_ms
            self._left_key = key

    def leave_behind(self, n: int, now_ms: int, key: int) -> None:
        """Do the same; key: a held message whose PUBREL will never come, or 0."""
        self.leave(n, now_ms, key)
        if key:
            self._orphans.append(key)
            self._session.urgent = True

    # --- connections ---

    def connected(self) -> None:
        """The broker accepted a connection: expect a packet for every held message."""
        waiting = self._session.waiting
        self._unheard = [key for key in self._store.held() if not (waiting and waiting.held(key))]
        self._unheard_ms = None
        self._pinged = False

    def disconnected(self) -> None:
        """The network connection is gone: the broker sends unacknowledged messages again on the next one."""
        self.again = False
        self.left = self._left_key = 0
        self._resumed = [(key, _ORPHAN) for key, _ in self._resumed]
        self._awaited.clear()
        self._unheard.clear()

    def overdue_ms(self, now_ms: int, connection: "Any") -> "Any":
        """Return how long the broker owes the next packet of a flow, or the PINGRESP that `pong` needs."""
        overdue = 0
        if self._unheard_ms is None:
            self._unheard_ms = now_ms
        elif self._unheard and self._session.response_ms:
            overdue = ticks_diff(now_ms, self._unheard_ms) - self._session.response_ms
            if overdue >= 0 and not self._pinged:
                self._pinged = connection.ping()
        return max(overdue, ticks_diff(now_ms, self._awaited_ms)) if self._awaited else overdue

    def pong(self) -> None:
        """A PINGRESP has arrived: the broker works, and was asked after the response time.

        If it does not continue a flow on a new connection either, it has lost that flow: its message is handed over. On a
        connection that has failed silently, this would be too early: the flow continues on the next one.
        """
        if self._pinged:
            self._orphans += self._unheard
            self._unheard = []
            self._pinged = False
            self._session.urgent = True


def show(message: "Any", buf: "bytearray | memoryview", length: int) -> None:
    """Set a message to the held PUBLISH of this length in buf."""
    at = topic_start(buf)
    message.qos = 2
    message.buffer = message.topic_buffer = buf
    message.topic_start = at
    at += buf[at - 2] << 8 | buf[at - 1]
    message.topic_end = at
    at += 2  # the packet id
    message.properties_start = at
    if buf[0] & _LAYOUT_5:
        end = properties_end(buf, at)
        while buf[at] & 0x80:
            at += 1
        message.properties_start = at + 1
        at = end
    message.properties_end = message.payload_start = at
    message.payload_end = length
    message.offset = 0
    message.total = length - at
    message.more = False
    message.retain = bool(buf[0] & 1)
    message.dup = False


def topic_start(buf: "bytearray | memoryview") -> int:
    """Return where the topic of the PUBLISH in buf begins."""
    at = 1
    while buf[at] & 0x80:
        at += 1
    return at + 3


def properties_end(buf: "bytearray | memoryview", at: int) -> int:
    """Return the end of the properties whose length field is at `at`."""
    n = shift = 0
    while buf[at] & 0x80:
        n |= (buf[at] & 0x7F) << shift
        shift += 7
        at += 1
    return at + 1 + (n | buf[at] << shift)
