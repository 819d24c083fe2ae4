"""The session: the messages in flight, across any number of network connections (3.1.1 and 5, sections 4.1 to 4.4).

It lasts as long as its store, and longer than any connection [MQTT-4.1.0-1] [MQTT-4.1.0-2];
5: [MQTT-4.1.0-1] [MQTT-3.1.2-23]. It knows no socket, no clock and no handshake: `connection.py` gives it decoded packets and the
time. Other modules handle inbound QoS 2 (`inbound.py`), subscriptions (`subscriptions.py`), messages longer than a buffer
(`pieces.py`) and level 5 (`level5.py`); the session only knows when to load or call them.

A stored message is a whole PUBLISH packet, so that a retransmission copies bytes and sets DUP. Its packet id follows from its
sequence number in the store: (seq - 1) % 65535 + 1. The window is the 32 messages from the oldest unfinished one on. Only
messages in the window may be in flight, so their packet ids are unique, and `seq & 31` is the index of their state. `cursor` is
the next message to send on this connection; a new connection sets it to the oldest unfinished message. A PUBLISH below `dup_to`
may have been sent before in the broker's current session. The flows are transition tables: see `flows.py`.

Three rules of order give the guarantees. A message is in the store before `publish` returns. The output makes the store durable
before an acknowledgement is sent. An acknowledgement is put only after its message is stored or taken.
"""

from struct import pack_into

from flashmqtt.codec.encode import put_publish
from flashmqtt.compat import TYPE_CHECKING, const, ticks_diff
from flashmqtt.errors import BufferTooSmall, ConnectionLost, ProtocolError, StoreCorrupt, StoreWorn
from flashmqtt.output import Output

from .flows import SENDER
from .note import Note

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251

# Packet types, a level and a code: `codec/packets.py`.
_PUBACK = const(4)
_PUBREC = const(5)
_PUBREL = const(6)
_PUBCOMP = const(7)
_LEVEL_5 = const(5)

# States, actions and columns: `flows.py`.
_NONE = const(0)
_AWAIT_PUBACK = const(1)
_AWAIT_PUBREC = const(2)
_NOTHING = const(0)
_DONE = const(2)
_MARK = const(3)
_PUT_PUBREL = const(4)
_REFUSED_COLUMN = const(6)
_PUBREL_COLUMN = const(3)

# What is reported to the caller: `connection.py`.
_DELIVERED = const(4)
_IN_DOUBT = const(6)
_REFUSED = const(7)
_DAMAGED = const(9)

_STATE = const(3)
_DOUBTFUL = const(4)  # added to a state: the broker may have lost the session before a CONNACK that never arrived
_ASIDE = const(8)  # added to a state: not sent any more; finished as soon as its report was handed over

_WINDOW = const(32)  # messages from the oldest unfinished one on that may be in flight
_ACK_BYTES = const(8)  # the room that one acknowledgement may need
_OVERHEAD = const(16)  # more than a PUBLISH has besides its topic and its payload
_BLANK = const(0xFF)
_SUSPICIOUS_MS = const(5000)  # if we end a connection, a message that was unanswered for this long becomes a suspect
_IN_NOTE = const(0x80)  # added to the backoff step in the note: messages past PUBREC are in doubt
_RETRIES = const(4)  # after this many timed retransmissions of the oldest message, reconnect
_REPORTS_A_TURN = const(32)  # reports in a row, before the link serves the socket
_ORPHAN = const(1)  # `handed` of a message that needs no acknowledgement, or whose connection is gone


class Session:
    """The state of one client id at one broker, over one store.

    Args:
        store: a journal, or a RamStore.
        level: 3, 4 or 5.
        window: how many messages may be in flight to the broker, 1 to 32.
        out_bytes: size of the output buffer. A longer message is sent in pieces.
        packet_bytes: the longest PUBLISH that is encoded in one piece.
        retry_ms: retransmit on a live connection after this time. Default: 20 s at level 3, off at 4, not allowed at 5 (Q5).
        republish: what to do with a message past PUBREC when the broker lost the session: True publishes it again (it may arrive
            twice), False drops it (it may be lost). Reported as IN_DOUBT in both cases.
        remember: keep the note. A receiver that publishes nothing (the collector) needs none.
        max_qos: the highest QoS that the broker accepts, 1 or 2: a message of a higher QoS is sent at this one.
        refuse_after: after how many failed trials a message is refused: see `suspect.py`. 0: never.

    Attributes:
        downgraded: how many QoS 2 messages the broker acknowledged with PUBACK: it took them at QoS 1.
        oversize: how many messages longer than the decoder's buffer were skipped.
    """

    # Few sessions set these. In a nearly full table of attributes, MicroPython compares several names for each access.
    downgraded = oversize = 0
    partial_at = partial_length = 0
    long: "Any" = None

    def __init__(
        self,
        store: "Any",
        level: int = 4,
        window: int = 8,
        out_bytes: int = 1024,
        packet_bytes: int = 1024,
        retry_ms: "int | None" = None,
        republish: bool = True,
        remember: bool = True,
        max_qos: int = 2,
        refuse_after: int = 5,
    ) -> None:
        if (
            (level == _LEVEL_5 and retry_ms)  # [MQTT-4.4.0-1]
            or not 0 < window <= _WINDOW
            or (max_qos != 1 and max_qos != 2)
            or not 0 <= refuse_after < _BLANK
        ):
            from flashmqtt.arguments import refuse_session

            refuse_session(window, max_qos, refuse_after)
        self.store = store
        self.level = level
        self.window = self.quota = window  # quota: the window that the broker allows (5: Receive Maximum)
        self.retry_ms = (20000 if level == 3 else 0) if retry_ms is None else retry_ms
        self.republish = republish
        # May the broker's session be from before the last restart? With a store in RAM, the session continues whatever session
        # the broker has, and only the level is noted.
        self._may_be_older = getattr(store, "volatile", False)
        self.note = Note(store, level, remember)
        self.adopted: "Any" = None  # `adopted.Adopted`, if the broker's session may be that old
        self._direct = True  # `publish` may put a message itself
        self.max_qos = self.qos_limit = max_qos  # qos_limit: the QoS that the broker allows (5: Maximum QoS)
        self.refuse_after = refuse_after
        # A store in RAM has nothing to make durable.
        self.output = Output(out_bytes, level, store.sync if self._may_be_older else self.sync)
        # Bound methods: on a board, a method lookup in an object with many attributes takes 20 us, an attribute 2 us.
        self._append: "Any" = getattr(store, "append", None)  # the collector's store has none
        self._finish: "Any" = getattr(store, "finish", None)
        self._put_copy = self.output.put_copy
        self.scratch = bytearray(packet_bytes)
        self.busy = False  # a publish, or a step of the connection, is running
        # Outgoing.
        self.cursor = store.low
        self.dup_to = store.next_seq
        self.flight = 0  # unfinished messages below the cursor
        self.states = bytearray(_WINDOW)
        self.sent_ms = [0] * _WINDOW
        self.partial = 0  # the message that is partly in the output, 0: none
        self.response_ms = 0  # reconnect if an answer takes longer than this, 0: no limit
        self.suspect: "Any" = None  # sends suspected messages one at a time: `suspect.Suspect`
        self._unanswered = 0  # the first unanswered message when the last connection ended
        self._waited_ms = 0  # how long the oldest message had waited for its answer at the last check
        self._error = None  # what ended this connection, None: we did
        self._stuck = self._stuck_ms = 0  # with timed retries: the oldest message, and since when it is the oldest
        self.undelivered: "Any" = None  # messages that were not delivered: `undelivered.Undelivered`
        # Reports.
        self.handle = 0
        self.code = 0
        self.reports: "list[Any]" = []  # event, handle, code, event, ...
        # How many events the link has returned since it last served the socket. If the program causes the next report with each
        # one (on_dropped that publishes), received packets must not wait for ever.
        self.reported = 0
        self.proved = False  # has the broker acknowledged a message on this connection?
        # Incoming.
        self.message: "Any" = None  # the `Message` that was received last
        self.chunks = False  # whether a message longer than the decoder's buffer is handed over in pieces
        # The packet type that acknowledges the handed-over message; 0: no message, or no acknowledgement: if the application has
        # not taken it, it will be handed over again.
        self.handed = 0
        self.handed_id = 0
        self.pending_ack = 0  # the packet type of an acknowledgement that had no room, 0: none
        self.urgent = False  # before the next packet: an acknowledgement, a report or a held message
        self.unsynced = False  # a held message was discarded, and that is not durable yet
        self.inbound: "Any" = None
        self.waiting: "Any" = None  # messages that wait for a handler: a `waiting.WaitingQueue`, made by the client
        self.subscriptions: "list[Any]" = []
        self.requests: "Any" = None  # SUBSCRIBE and UNSUBSCRIBE: `subscriptions.Requests`
        self.request_id = 0  # of the SUBSCRIBE or UNSUBSCRIBE in flight, 0: none
        self.wants_request = False
        self.five: "Any" = None  # the `Level5`
        if store.held():
            self.load_inbound()
        store.on_drop = self._dropping
        # After a reboot it is not known which messages were dropped or damaged, and how far their flows had come.
        lossy = store.dropped + store.damaged > 0
        low = store.low
        if lossy and low > 1:
            self.load_undelivered().note(1, low - 1)
        for seq in range(low, min(store.next_seq, low + _WINDOW)):
            if lossy if store.is_finished(seq) else store.is_marked(seq) and not store.length(seq):
                self.load_undelivered().note(seq, seq)
        if self.note.octets[2] != _BLANK:
            from .suspect import remembered

            remembered(self)

    def load_undelivered(self) -> "Any":
        """Return the record of undelivered messages; load it when it is first needed."""
        if self.undelivered is None:
            from .undelivered import Undelivered

            self.undelivered = Undelivered(self)
        return self.undelivered

    def _dropping(self, first: int, end: int) -> None:
        self.load_undelivered().dropping(first, end)

    def load_inbound(self) -> "Any":
        """Return the handler of inbound QoS 2; load it, and the store's part for held messages, when it is first needed.

        Call it early if possible: on a board, memory for a module may be too fragmented later.
        """
        if self.inbound is None:
            from .inbound import Inbound

            self.inbound = Inbound(self)
        return self.inbound

    def load_message(self) -> "Any":
        """Return the received message's object; load its module, and make it, when it is first needed.

        Raises:
            ConnectionLost: there is no memory. The packet is already consumed, so the broker must send it again.
        """
        if self.message is None:
            try:
                from .message import Message

                self.message = Message()
            except MemoryError:
                raise ConnectionLost("no memory")
        return self.message

    def load_long(self) -> "Any":
        """Return the handler of messages longer than the input buffer; load it with the first one."""
        if self.long is None:
            from .long import Long

            self.long = Long(self)
        return self.long

    def keep_doubt(self, unanswered: bool) -> None:
        """Keep across power cuts whether messages past PUBREC are in doubt.

        All of them are while CONNECT is unanswered: the broker may have lost the session, and the CONNACK that says so may get
        lost. The next CONNACK then says "session present", for the new session, and PUBREL is answered by PUBCOMP although the
        broker has not published the message. (Level 5 has the code 0x92 for that, but mosquitto 2.0 answers with code 0.)
        Without the note, every message past PUBREC would be in doubt after every restart. The note costs a write before such a
        CONNECT, and another one after its CONNACK. If no message is past PUBREC, as usual, there is no write.
        """
        value = self.note.octets[1] & ~_IN_NOTE
        for seq in self._past_pubrec():
            if unanswered or self.states[seq & 31] & _DOUBTFUL:
                value |= _IN_NOTE
        self.note.change(1, (value,))

    def _past_pubrec(self) -> "list[int]":
        """Return the unfinished messages whose PUBREC has arrived."""
        store = self.store
        low = store.low
        window = range(low, min(store.next_seq, low + _WINDOW))
        return [seq for seq in window if store.is_marked(seq) and not store.is_finished(seq)]

    # --- the application's side ---

    def publish(
        self, topic: "Any", payload: "Any", qos: int, retain: bool = False, properties: "Any" = None, now_ms: int = -1
    ) -> "Any":
        """Store a QoS 1 or 2 message; return its handle, which `delivered` takes. 0: the store's policy dropped it.

        When this returns, the message is in the store [S1]; `pump` sends it. Unless now_ms is -1, put it at once.
        """
        if qos == 2 and self.max_qos == 1:
            qos = 1
        if properties or len(topic) + len(payload) > len(self.scratch) - _OVERHEAD:
            from .pieces import publish

            return publish(self, topic, payload, qos, retain, properties)
        # The packet id is never 0, and the same after a power cut [MQTT-2.3.1-1]. It is unused [MQTT-2.3.1-2], as the window is
        # shorter than 65,535. 5: [MQTT-4.3.2-1] [MQTT-4.3.3-1]. QoS, and DUP 0: 5: [MQTT-4.3.2-2] [MQTT-4.3.3-2]
        packet_id = (self.store.next_seq - 1) % 65535 + 1
        n = put_publish(self.scratch, 0, topic, payload, qos, retain, False, packet_id, self.level)
        return self.store_packet(n, now_ms)

    def store_packet(self, n: int, now_ms: int) -> "Any":
        """Store the PUBLISH in scratch[:n], which has the next message's id. Unless now_ms is -1, put it at once."""
        # (No new local here: a frame over 11 words is allocated on the heap, which takes 25 us.)
        seq = self._append(self.scratch, n)
        if (
            seq
            and seq == self.cursor
            and now_ms >= 0
            and self.flight < self.quota
            and seq - self.store.low < _WINDOW
            and self._direct
            and not self.request_id  # a SUBSCRIBE may have the same packet id: let `pump` compare
            and self._put_copy(self.scratch, n)
        ):
            slot = seq & 31
            self.states[slot] = self.scratch[0] >> 1 & 3  # _AWAIT_PUBACK or _AWAIT_PUBREC
            self.sent_ms[slot] = now_ms
            self.flight += 1
            self.cursor = self.dup_to = seq + 1
        return seq

    def put_unstored(self, topic: "Any", payload: "Any", retain: bool = False, properties: "Any" = None) -> "Any":
        """Put a QoS 0 message into the output [MQTT-4.3.1-1]; return False if it does not fit now, or never will."""
        output = self.output
        if output.room() <= 0:
            return False
        if self.five:
            put = self.five.put_unstored(output, topic, payload, retain, properties)
        else:
            try:
                output.put(put_publish, topic, payload, 0, retain, False, 0, self.level)
                put = True
            except BufferTooSmall:
                put = False
        if self.suspect:
            self.suspect.disturb()
        return put

    def delivered(self, handle: "Any") -> bool:
        """Return whether the broker has acknowledged this message with PUBACK or PUBCOMP.

        False for a message that was dropped, refused, damaged or is in doubt. A message that was finished before the last reboot
        counts as delivered, unless the store ever dropped or damaged one, because this may be that one. Of undelivered messages,
        32 ranges are kept; if there are more, the oldest are merged, and delivered messages between them count as undelivered.
        """
        if not self.is_done(handle):
            return False
        return handle > 0 and not (self.undelivered and self.undelivered.has(handle))

    def is_done(self, handle: "Any") -> "Any":
        """Return whether this message is finished, delivered or not."""
        store = self.store
        low = store.low
        return handle < low or (handle < store.next_seq and handle - low < _WINDOW and store.is_finished(handle))

    # --- a connection begins and ends ---

    def lost(self) -> None:
        """The broker lost the session: restart all flows (5: [MQTT-3.2.2-5]), and make that durable.

        A message past PUBREC is in doubt. A held message is handed over now: its PUBREL will never come.
        """
        store = self.store
        for seq in self._past_pubrec():
            if not self.states[seq & 31] & _ASIDE:
                self.load_undelivered().doubt(seq)
        self.dup_to = store.low  # in the broker's new session every PUBLISH is a first delivery: no DUP
        self._may_be_older = False
        self.adopted = None
        if self.inbound:
            self.inbound.lost()
        if self.waiting:
            self.waiting.connected(True)
        if self.reports:
            try:
                store.flush()
            except StoreWorn:
                pass

    def connected(self, restore: "Any", doubtful: bool) -> None:
        """The broker accepted the connection. If it had lost the session [MQTT-3.1.2-4], `lost` was called before.

        Args:
            restore: subscribe again.
            doubtful: an earlier CONNECT was never answered: the broker's session may have begun with that CONNECT.
        """
        if self.requests:
            self.requests.connected(restore)
        if self.inbound:
            self.inbound.connected()
        if self.waiting:
            self.waiting.connected(False)
        # Retransmit in the order of publishing [MQTT-4.6.0-1].
        self.cursor = self.store.low
        self.flight = 0
        states = self.states
        for i in range(_WINDOW):
            states[i] = SENDER[(states[i] & _STATE) << 3] >> 4 | (states[i] & (_DOUBTFUL | _ASIDE))
        if doubtful:
            for seq in self._past_pubrec():
                states[seq & 31] |= _DOUBTFUL
        self.keep_doubt(False)
        if self._may_be_older:
            if self.adopted is None:
                from .adopted import Adopted

                self.adopted = Adopted(self)
            self.adopted.connected(self._error)
        self._direct = self.five is None and self.adopted is None
        self._error = None
        self._stuck = self._waited_ms = 0
        if self.suspect:
            self.suspect.connected()

    def failed(self, error: "Any") -> None:
        """This connection is about to end because of this error. (Not called for a connection that we end ourselves.)"""
        self._error = error
        if self.suspect:
            self.suspect.ended(error)

    def disconnected(self) -> None:
        """The network connection is gone, with all bytes in the output. Messages not taken stay unacknowledged."""
        self.output.clear()  # first, for Ctrl-C: later packets must not follow these
        if self.suspect:
            self.suspect.ended(None)
        elif self.flight > 0 and self.refuse_after and (self._error or self._waited_ms >= _SUSPICIOUS_MS):
            # Suspect the first message in flight if it was the first last time, too. If the program ends the connection (a board
            # that sleeps), the second time may be after a reset.
            low = self.store.low
            if low < self.cursor:
                if low == self._unanswered or not self._error:
                    from .suspect import found

                    found(self, low, low == self._unanswered)
                self._unanswered = low
        self.flight = 0
        self.proved = False
        if self.request_id and self._error:
            self.requests.failed()
        self.request_id = self.partial = self.pending_ack = 0
        # A handler may be running. When it ends, its QoS 2 message is discarded; its QoS 1 message comes again.
        self.handed = _ORPHAN if self.handed and self.handed != _PUBACK else 0
        if self.inbound:
            self.inbound.disconnected()
        if self.long:
            self.long.disconnected()
        if self.waiting:
            self.waiting.disconnected()
        if self.unsynced:
            self.sync()  # else a message could be handed over a second time after a power cut

    # --- out ---

    def sync(self) -> None:
        """Make marks and discards durable before their acknowledgements are sent [MQTT-4.3.2-1] [MQTT-4.3.3-1].

        A worn store makes nothing durable any more. Its messages are still sent; after a power cut, they are sent twice.
        """
        try:
            self.store.sync()
        except StoreWorn:
            pass
        self.unsynced = False

    def pump(self, now_ms: int) -> None:
        """Put requests, and stored messages in order as far as the window allows, into the output.

        Only PUBLISH packets wait for the window [MQTT-3.3.4-8] [MQTT-4.9.0-2] [MQTT-4.9.0-3]. A QoS 2 message that was sent does
        not expire [MQTT-4.3.3-7], nor does a held one [MQTT-4.3.3-13]; for other messages see `expiry.py`.
        """
        if self.partial:
            from .pieces import go_on

            go_on(self, now_ms)
        if not self.output.limit:
            return
        if self.wants_request and not self.request_id:
            self.requests.put(now_ms)
        store = self.store
        seq = self.cursor
        low = store.low
        seq = max(seq, low)  # the store's policy may have dropped messages
        end = store.next_seq
        if end - low > _WINDOW:
            end = low + _WINDOW
        while seq < end and self.flight < self.quota:
            if not store.is_finished(seq) and not self._put(seq, now_ms):
                break
            seq += 1
        self.cursor = seq

    def has_more(self) -> bool:
        """Return whether `pump` has packets to put, if there is room."""
        if self.partial or (self.wants_request and not self.request_id):
            return True
        store = self.store
        cursor = self.cursor
        return cursor != store.next_seq and self.flight < self.quota and cursor - store.low < _WINDOW

    def _put(self, seq: int, now_ms: int) -> bool:
        """Put a message's next packet; return False if it has to wait for room."""
        slot = seq & 31
        if self.states[slot] & _ASIDE:
            return True
        store = self.store
        output = self.output
        room = output.limit - output.end
        packet_id = (seq - 1) % 65535 + 1
        if store.is_marked(seq):
            if room < _ACK_BYTES:
                return False
            # After PUBREC, never send PUBLISH again [MQTT-4.3.3-1]. Only 3.1 sets DUP on a PUBREL.
            output.put_ack(_PUBREL, packet_id, 0, self.level == 3)
            column = _PUBREL_COLUMN
        else:
            n = store.length(seq)
            try:
                if not n:
                    raise StoreCorrupt
                if self.five:
                    n = self.five.outgoing(self, seq, n)
                    if not n:
                        return True
                if self.adopted and not self.adopted.may_go(seq, now_ms):
                    return False
                if packet_id == self.request_id or (n > room and (output.end or room <= 0)):
                    return False
                at = output.end
                if n > room:  # a packet longer than the output is sent alone, in pieces
                    output.limit = 0  # before its first byte, for Ctrl-C
                column = output.put_stored(store, seq, 0, n if n < room else room, seq < self.dup_to) >> 1 & 3
            except StoreCorrupt:  # found by `length`, or by reading
                if room > 0:  # not in the middle of an earlier packet
                    output.open()
                self.load_undelivered().set_aside(_DAMAGED, seq, 0)
                return True
            if self.five:
                self.five.put_interval(output.buf, at, output.end, seq < self.dup_to)
            if column > self.qos_limit:
                column = 1
                output.buf[at] ^= 6  # QoS 2 becomes 1
            if n > room:
                self.partial = seq
                self.partial_at = room
                self.partial_length = n
        state = self.states[slot]
        self.states[slot] = SENDER[(state & _STATE) << 3 | column] >> 4 | (state & _DOUBTFUL)
        self.sent_ms[slot] = now_ms
        self.flight += 1
        if seq >= self.dup_to:
            self.dup_to = seq + 1
        return True

    def report(self) -> "Any":
        """Return the next report's event, and set `handle` and `code`; 0: there is none, or the socket is to be served first."""
        reports = self.reports
        if not reports or self.reported >= _REPORTS_A_TURN:
            return 0
        event = reports.pop(0)
        self.handle = reports.pop(0)
        self.code = reports.pop(0)
        return event

    # --- in ---

    def acknowledged(self, packet: "Any", now_ms: int) -> "Any":
        """Process a PUBACK, PUBREC or PUBCOMP; return the event to report.

        Raises:
            ProtocolError: the packet does not fit the state of the flow with its packet id.
        """
        # Fast path for the most frequent case: an awaited PUBACK, for which the table says _DONE.
        if packet.packet_type == _PUBACK and self.level != _LEVEL_5 and not self.undelivered:
            seq = self.store.low
            seq += (packet.packet_id - seq) % 65535
            states = self.states
            if seq < self.cursor and states[seq & 31] == _AWAIT_PUBACK:
                self.flight -= 1
                self._finish(seq)
                states[seq & 31] = _NONE  # last: if Ctrl-C ends `finish`, the answer becomes overdue
                self.proved = True
                self.handle = seq
                return _DELIVERED
        return self._acknowledged(packet, now_ms)

    def _acknowledged(self, packet: "Any", now_ms: int) -> "Any":
        """Do what `acknowledged` does, by the transition table."""
        if self.adopted and self.adopted.completed(packet):
            return _NOTHING
        store = self.store
        packet_id = packet.packet_id
        low = store.low
        column = packet.packet_type
        seq = low + (packet_id - low) % 65535
        slot = seq & 31
        states = self.states
        if seq < self.cursor:
            state = states[slot]
        elif seq < self.dup_to and seq - low < _WINDOW and not store.is_finished(seq):
            from .undelivered import state_of

            state = state_of(self, seq) | (states[slot] & _DOUBTFUL)
        else:
            state = _NONE
        if column == _PUBREC and packet.code >= 0x80:
            column = _REFUSED_COLUMN
        step = SENDER[(state & _STATE) << 3 | column]
        action = step & 15
        if action == _DONE:
            if seq < self.cursor:
                self.flight -= 1
            self.proved = True
            self.handle = seq
            if self.level == _LEVEL_5 and packet.code >= 0x80 and column != _PUBCOMP:
                self.code = packet.code
                self.five.refused(packet)
                self.load_undelivered().put_aside(_REFUSED, seq)
                return _REFUSED
            store.finish(seq)
            states[slot] = step >> 4  # last, as in `acknowledged`
            if column == _PUBACK and state & _STATE == _AWAIT_PUBREC:
                self.downgraded += 1
            if self.level == _LEVEL_5 or self.undelivered or state > _STATE:
                self.code = packet.code if self.level == _LEVEL_5 else 0
                # If the state is doubtful, PUBCOMP does not prove the delivery, whatever its code: see `keep_doubt`. Otherwise
                # the code 0x92 (packet identifier not found) says that an earlier PUBCOMP was lost: the message is delivered (5,
                # section 3.7.2.1) [MQTT-4.4.0-2].
                if column == _PUBCOMP and state & _DOUBTFUL:
                    self.load_undelivered().note(seq, seq)
                if not self.delivered(seq):
                    return _IN_DOUBT
            return _DELIVERED
        if action == _MARK:
            self.proved = True
            if self.note.octets[1] >= _IN_NOTE:
                self.keep_doubt(False)  # the messages in doubt may be finished, and this one is not in doubt
            store.mark(seq)
            if seq >= self.cursor:
                return _NOTHING  # `pump` will put its PUBREL
            states[slot] = step >> 4
            self.sent_ms[slot] = now_ms
            self.output.put_ack(_PUBREL, packet_id)
        elif action == _PUT_PUBREL:
            if not state & _STATE:  # 5: "packet identifier not found"
                self.output.put_ack(_PUBREL, packet_id, 0x92)
            elif seq < self.cursor:
                self.output.put_ack(_PUBREL, packet_id)
        elif action:
            if self.suspect:
                self.suspect.answered_wrong(seq)
            raise ProtocolError("packet type %d in state %d of packet id %d" % (packet.packet_type, state, packet_id))
        return _NOTHING

    def acknowledge(self) -> None:
        """Acknowledge the message, which the application has taken [MQTT-4.3.2-2] [MQTT-4.3.3-2] [MQTT-4.5.0-2].

        5: [MQTT-4.3.2-4] [MQTT-3.3.4-1]. A QoS 2 message is discarded at once, also without a connection: it must not be handed
        over again.
        """
        kind = self.handed
        # If the store fails, or no memory is left, `handed` is kept and the next step tries again.
        if kind == _PUBACK:
            if self.waiting and self.waiting.defers():
                kind = 0
        elif kind:
            self.inbound.discard_handed()
        self.handed = 0
        if kind <= _ORPHAN:
            if kind and self.unsynced:  # no acknowledgement follows that makes this durable
                self.sync()
            return
        output = self.output
        if output.limit - output.end < _ACK_BYTES:
            self.pending_ack = kind
            self.urgent = True
        elif kind == _PUBACK:  # what `put_ack` does; a call of it takes 30 us
            output.promised = True
            end = output.end  # no jump from here on: there a timer's function may run and publish
            pack_into(">HH", output.buf, end, 0x4002, self.handed_id)
            output.end = end + 4
        else:
            output.put_ack(kind, self.handed_id)

    # --- time ---

    def overdue_ms(self, now_ms: int) -> "Any":
        """Return how long the oldest unanswered packet has waited; retransmit what is due (Q5)."""
        oldest = self.requests.overdue_ms(now_ms) if self.requests else 0
        if self.suspect:
            oldest = max(oldest, self.suspect.tick(now_ms))
        if self.adopted:
            oldest = max(oldest, self.adopted.overdue_ms(now_ms))
        states = self.states
        retry_ms = self.retry_ms
        if self.flight and retry_ms:  # each retry restarts its message's wait; `_stuck_ms` limits the sum
            low = self.store.low
            if low != self._stuck:
                self._stuck = low
                self._stuck_ms = now_ms
            elif ticks_diff(now_ms, self._stuck_ms) >= _RETRIES * retry_ms:
                oldest = max(oldest, ticks_diff(now_ms, self._stuck_ms))
        for seq in range(self.store.low, self.cursor):
            slot = seq & 31
            if states[slot] & _STATE and not self.store.is_finished(seq):
                age = ticks_diff(now_ms, self.sent_ms[slot])
                if retry_ms and age >= retry_ms and seq != self.partial:
                    if self._put(seq, now_ms):
                        self.flight -= 1  # it was in flight before
                elif age > oldest:
                    oldest = age
        self._waited_ms = oldest
        return oldest
