"""The session: what is in flight, both ways, across any number of network connections (3.1.1 and 5, sections 4.1 to 4.4).

It knows no socket, no clock and no handshake; `connection.py` feeds it decoded packets and the time, and takes bytes from `out`.
It lasts as long as its store does, and longer than any connection [MQTT-4.1.0-1] [MQTT-4.1.0-2];
5: [MQTT-4.1.0-1] [MQTT-3.1.2-23].
What it promises rests on the order of three things: a message is in the store before `publish` returns; `settle` makes the store
durable before any byte of `out` leaves; and an acknowledgement is put into `out` only after what it acknowledges is stored.
The flows themselves are data: see `flows.py`.

A record in the store is a whole PUBLISH packet, so that a resend copies bytes and sets DUP. One more record, held for the store's
lifetime, is the session's own note (its first byte is 0, which no packet's is): it says that the broker's side of this session
began with this store, and its mark keeps a small number for the client (the backoff's step). Without the note, a broker that
claims to know the session holds ids of an earlier life and is told to forget them first.
"""

from flashmqtt.codec.encode import put_ack, put_length, put_publish, put_publish_head
from flashmqtt.codec.quick import put_message
from flashmqtt.compat import TYPE_CHECKING, const, ticks_diff
from flashmqtt.errors import BufferTooSmall, InboundWindowFull, ProtocolViolation, StoreFull, StoreWorn, UsageError
from flashmqtt.fast import copy

from .flows import TRANSITIONS
from .message import Message

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251

# Packet types, a level and a code: `codec/packets.py`.
_PUBLISH = const(3)
_PUBACK = const(4)
_PUBREC = const(5)
_PUBREL = const(6)
_PUBCOMP = const(7)
_SUBACK = const(9)
_LEVEL_5 = const(5)

# States and actions: `flows.py`.
_NONE = const(0)
_AWAIT_PUBREC = const(2)
_AWAIT_PUBCOMP = const(3)
_HELD = const(4)
_IGNORE = const(0)
_DONE = const(2)
_REMEMBER = const(3)
_PUT_PUBREL = const(4)
_HOLD = const(5)
_PUT_PUBREC = const(6)
_HAND_OVER = const(7)
_PUT_PUBCOMP = const(8)
_COLUMNS = const(5)

# What a call reports to the caller; connection.py passes them on.
_NOTHING = const(0)
_MESSAGE = const(3)  # session.message is to be taken; say `taken()` when it is
_DELIVERED = const(4)  # session.handle was acknowledged for good
_IN_DOUBT = const(6)  # session.handle was past PUBREC when the broker lost the session; the policy was applied
_REFUSED = const(7)  # 5: session.handle was refused with session.code, and is done with

# A slot's flags, above its state.
_STATE = const(0x0F)
_SENT = const(0x10)  # a PUBLISH of it may have left: the next one has DUP
_DUE = const(0x20)  # to be sent (again) on this connection
_LOST = const(0x40)  # the broker lost the session: in doubt, or held without a PUBREL to come

# Marks of a record.
_PUBREC_SEEN = const(1)
_ANEW = const(2)  # was past PUBREC when the broker lost the session: published anew

_ACK_BYTES = const(8)  # room that one acknowledgement may need


class Session:
    """The state of one client id at one broker, over one store.

    Args:
        store: a journal, or a RamStore.
        level: 3, 4 or 5.
        window: how many messages may be in flight to the broker. The store's other slots hold inbound QoS 2 messages.
        out_bytes: size of the output buffer. A longer message goes out in pieces.
        packet_bytes: the longest PUBLISH that is encoded at one go, and the longest inbound QoS 2 message.
        retry_ms: resend on a live connection after this time: level 3's rule (default 20 s), off at level 4, refused at 5 (Q5).
        republish: what becomes of a message past PUBREC when the broker lost the session: True to publish it anew (it may then
            arrive twice), False to drop it (it may then be lost). Reported as IN_DOUBT either way.
        remember: keep the note. A receiver that publishes nothing (the collector) needs none.
    """

    def __init__(
        self, store, level=4, window=8, out_bytes=1024, packet_bytes=1024, retry_ms=None, republish=True, remember=True
    ):
        if level == _LEVEL_5 and retry_ms:
            raise UsageError("level 5 resends on a new connection only [MQTT-4.4.0-1]")
        if window >= store.slots:
            raise UsageError("a window of %d needs a store of more slots than %d" % (window, store.slots))
        self.store = store
        self.level = level
        self.window = window
        self.quota = window  # what the broker allows of it (5: Receive Maximum)
        self.five: "Any" = None  # what level 5 adds
        self.retry_ms = (20000 if level == 3 else 0) if retry_ms is None else retry_ms
        self.republish = republish
        self.remember = remember
        # How many inbound QoS 2 messages can be held: in the slots that neither the window nor the note needs.
        self.hold_limit = store.slots - window - (1 if remember else 0)
        self.out = bytearray(out_bytes)
        self.out_end = 0
        self.message = Message()
        self.chunks = False  # whether a message longer than the decoder's buffer comes in pieces
        self.handle = 0
        self.code = 0
        self.online = False
        self.acknowledged = False  # has the broker acknowledged a message of ours on this connection?
        self.subscriptions = []
        self.requests: "Any" = None  # makes them: `subscriptions.Requests`, for whoever subscribes
        self.request_id = 0  # of the SUBSCRIBE or UNSUBSCRIBE in flight, 0: none
        self.wants_request = False
        self.left_out = False  # an inbound QoS 2 message was not answered: no slot was free to hold it
        self.scratch = bytearray(packet_bytes)
        self._handed = bytearray()  # the buffer for held messages, made when the first one is handed over
        self.sending = {}  # packet id -> slot
        self.holding = {}
        # A dict that never holds more than its first table does allocates nothing.
        for i in range(store.slots + 1):
            self.sending[i] = self.holding[i] = 0
        for i in range(store.slots + 1):
            self.sending.pop(i)
            self.holding.pop(i)
        self._states = bytearray(store.slots)
        self._sent_ms = [0] * store.slots
        self._due = 0  # how many slots are flagged _DUE
        self._dues = []  # which: see `_oldest`
        self.ready = True  # `pump` may have something to put
        self.lost = 0  # how many slots are flagged _LOST
        self._losts = []
        self._stalled = -1  # a slot that was taken but whose packet id is still in flight for another message
        self.partial = -1  # the slot whose PUBLISH is in the output in part
        self._partial_at = 0
        self.untaken = -1  # the packet type that `taken` has to put, 0: nothing to put, -1: nothing to take
        self._untaken_id = 0
        self.promised = False  # what the output says has to be durable before it leaves
        self._flush_due = False  # a release has to be durable, too
        # The topic of the last QoS 0 message on this connection, where the same object is the same valid bytes.
        self._topic: "Any" = None
        self._most = out_bytes - 7  # of topic and payload in the output
        self._last_taken = 0
        self._gap_from = self._gap_to = 0  # numbers that the store skipped: dropped by its policy
        self._note = -1
        self._begun = False
        self._adopt()
        self._begun = self._note >= 0

    # --- what a mount brings back ---

    def _adopt(self):
        """Take over what the store kept: the note, the messages past PUBREC, the inbound ones that wait for PUBREL."""
        store = self.store
        level = self.level
        for slot in range(store.slots):
            if store.is_open(slot):
                store.read(slot, 0, self.scratch, 0, 2)
                if not self.scratch[0]:
                    self._note = slot
                    level = self.scratch[1]
                elif store.is_held(slot):
                    self._show_held(slot)
                    self.holding[self._untaken_id] = slot
                    self._states[slot] = _HELD
                else:
                    self.sending[_id_of(store.seq_of(slot))] = slot
                    if store.mark_of(slot) == _PUBREC_SEEN:
                        self._states[slot] = _AWAIT_PUBCOMP | _SENT
                    else:
                        self._states[slot] = self.scratch[0] >> 1 & 3 | _SENT
        if (level == _LEVEL_5) != (self.level == _LEVEL_5):
            # Level 5's PUBLISH has another layout. What is stored has to go out as it was stored.
            if self.pending():
                raise UsageError("messages of level %d are stored" % level)
            old = self._note
            self._note = -1
            self.settle_down()
            store.release(old)

    def is_settled(self):
        """Return whether the broker's side of the session is known to have begun with this store."""
        return self._begun or not self.remember

    def settle_down(self):
        """Write the note: the broker knows nothing of an earlier life any more."""
        self._begun = True
        if self._note < 0 and self.remember:
            self.scratch[0] = 0
            self.scratch[1] = self.level
            try:
                self._note = self.store.hold(self.scratch, 2)
            except (StoreFull, StoreWorn):
                pass  # a board that was offline until its store was full has to deliver first: the next connection tries again

    def kept_step(self):
        """Return a number from 0 to 254 that survives power cuts: the step that the backoff had reached."""
        mark = self.store.mark_of(self._note) if self._note >= 0 else 0
        return mark - 1 if mark else 0

    def keep_step(self, value):
        """Let `kept_step` return this number from now on."""
        if self._note >= 0 and value != self.kept_step():
            self._mark(self._note, value + 1)

    def _mark(self, slot, value):
        """Mark a record durably. A worn store takes no mark; what it holds goes out all the same, twice if the power is cut."""
        try:
            self.store.mark(slot, value)
        except StoreWorn:
            pass

    def fit(self, packet_bytes):
        """Be able to hold a received packet of this size."""
        if len(self.scratch) < packet_bytes:
            self.scratch = bytearray(packet_bytes)

    # --- the application's side ---

    def publish(self, topic, payload, qos, retain=False, properties=None):
        """Store a QoS 1 or 2 message; return its handle, which `delivered` takes. 0: the store's policy dropped it.

        When this returns, the message is in the store [S1]; `pump` sends it when its turn comes.
        """
        store = self.store
        packet_id = (store.next_seq - 1) % 65535 + 1  # never 0, and the same after a power cut [MQTT-2.3.1-1]
        # Unused [MQTT-2.3.1-2]: `pump` waits for one that is still in flight. 5: [MQTT-4.3.2-1] [MQTT-4.3.3-1]
        n = len(payload)
        # QoS and DUP 0: 5: [MQTT-4.3.2-2] [MQTT-4.3.3-2]
        if n + len(topic) + 16 < len(self.scratch) and not properties:
            n = put_publish(self.scratch, 0, topic, payload, qos, retain, False, packet_id, self.level)
            self.ready = True
            return store.append(self.scratch, n)
        head = put_publish_head(self.scratch, 0, topic, n, qos, retain, False, packet_id, self.level, properties)
        store.begin(head + n)
        store.extend(self.scratch, head)
        store.extend(payload, n)
        self.ready = True
        return store.commit()

    def put_again(self, topic, payload, retain):
        """Do what `put_unstored` does where it has done so before: with the topic of the last time, and so on this connection.

        Return False where that is not so, or there is no room. A quarter of the instructions: nothing has to be checked.
        """
        if topic is not self._topic or self.partial >= 0:
            return False
        n = len(payload)
        length = len(topic)
        at = self.out_end
        if at + n + length > self._most:
            return False
        self.out_end = put_message(self.out, at, 0x31 if retain else 0x30, n + length + 2, topic, length, 0, payload, n)
        return True

    def put_unstored(self, topic, payload, retain=False, properties=None):
        """Put a QoS 0 message straight into the output [MQTT-4.3.1-1]; return False where it has no room (now, or ever)."""
        if self.partial >= 0:
            return False
        if self.five:
            return self.five.put_unstored(self, topic, payload, retain, properties)
        try:
            self.out_end = put_publish(self.out, self.out_end, topic, payload, 0, retain, False, 0, self.level)
        except BufferTooSmall:
            return False
        self._topic = topic if isinstance(topic, bytes) else None
        return True

    def put_unstored_head(self, topic, n, retain=False, properties=None):
        """Put the head of a QoS 0 message whose payload of n bytes follows by `put_piece`; return False: not now."""
        if self.partial >= 0 or self.out_end:
            return False
        self.out_end = put_publish_head(self.out, 0, topic, n, 0, retain, False, 0, self.level, properties)
        return True

    def put_piece(self, payload, at):
        """Put as much of the payload, from `at`, as there is room for; return where the rest begins."""
        n = min(len(self.out) - self.out_end, len(payload) - at)
        copy(self.out, self.out_end, payload, at, n)
        self.out_end += n
        return at + n

    def delivered(self, handle):
        """Return whether the broker has acknowledged this message for good.

        After a reboot that is only known for handles below the first message taken, or once nothing waits.
        """
        if self._gap_from <= handle <= self._gap_to or (handle > self._last_taken and self.store.waiting):
            return False
        store = self.store
        slot = self.sending.get(_id_of(handle), -1)
        if slot < 0 or store.seq_of(slot) != handle:
            slot = self._stalled
        return (slot < 0 or store.seq_of(slot) != handle) and 0 < handle < store.next_seq

    def is_waiting(self):
        """Return whether any answer of the broker is awaited."""
        return bool(self.sending or self.request_id)

    def pending(self):
        """Return how many outgoing messages are stored and not acknowledged."""
        return self.store.waiting + len(self.sending) + (self._stalled >= 0)

    def subscribe(self, filter_, options, handler=None, properties=None):
        """Ask for a subscription, now or as soon as there is a connection; return its entry, whose state tells.

        Raises:
            InvalidTopic, InvalidPacket, BufferTooSmall: no SUBSCRIBE can ask for it.
        """
        if self.requests is None:
            from .subscriptions import Requests

            self.requests = Requests(self)
        return self.requests.want(filter_, options, handler, properties)

    def unsubscribe(self, filter_):
        """Ask for the end of a subscription; return its entry (or None), which is gone once the broker agreed."""
        return self.requests.unwant(filter_) if self.requests else None

    # --- a connection begins and ends ---

    def connected(self, present, restore):
        """The broker accepted the connection: does it still know the session [MQTT-3.1.2-4]? restore: subscribe again.

        Where it does not, the flows of the old session are over, and what they carried begins anew (5: [MQTT-3.2.2-5]).
        """
        self.online = self.ready = True
        self.out_end = self.lost = 0
        if self.requests:
            self.requests.connected(restore)
        states = self._states
        self._due = 0
        self._dues.clear()
        self._losts.clear()
        for slot in self.sending.values():
            state = states[slot] & (_STATE | _SENT | _LOST)
            if not present and state & _STATE == _AWAIT_PUBCOMP:
                state |= _LOST
                if self.republish:
                    self._mark(slot, _ANEW)  # at once: the next CONNACK would say that the session is there
            if state & _LOST:
                self.lost += 1
            else:
                # Sent again in the order of publishing [MQTT-4.6.0-1]; to a broker that forgot us it is a first delivery.
                state = (state if present else state & _STATE) | _DUE
                self._due += 1
            states[slot] = state
        for slot in self.holding.values():
            if not present:
                states[slot] |= _LOST
            if states[slot] & _LOST:
                self.lost += 1

    def disconnected(self):
        """The network connection is gone: what was in the output is gone, what was not taken is not acknowledged."""
        self.online = self.acknowledged = self.left_out = False
        self.out_end = self.request_id = 0
        self.partial = self.untaken = -1
        self._topic = None
        if self._flush_due:
            self.settle()  # or else what was handed over could come a second time after a power cut, however much later

    def recover(self):
        """Report one message after another that the lost session left behind; NOTHING when there is none."""
        if not self.lost:
            return _NOTHING
        slot = self._oldest(_LOST, self._losts)
        if self._states[slot] & _STATE == _HELD:
            # The broker will never send its PUBREL; ours is the only copy, and it was not handed over yet.
            self._show_held(slot)
            self.untaken = 0
            return _MESSAGE
        self.handle = self.store.seq_of(slot)
        if self._states[slot] == _LOST:  # 5: it was never sent
            self._forget(self.sending, _id_of(self.handle))
            return _REFUSED
        self.lost -= 1
        if self.republish:
            self._states[slot] = _AWAIT_PUBREC | _DUE
            self._due += 1
        else:
            self._states[slot] = _NONE
            self._forget(self.sending, _id_of(self.handle))
        return _IN_DOUBT

    # --- out ---

    def has_room(self):
        """Return whether an acknowledgement fits into the output now: not inside a message that is there in part."""
        return self.partial < 0 and len(self.out) - self.out_end >= _ACK_BYTES

    def settle(self):
        """Make durable what the bytes in the output promise: nothing leaves before this [MQTT-4.3.2-1] [MQTT-4.3.3-1].

        An acknowledgement of ours may say that a message is stored, a PUBREL that its PUBREC was seen, a PUBCOMP that the
        held message is released: were that forgotten, a new message with its id would be taken for a repetition.
        """
        self.store.sync()  # where the store fails, what is to be durable stays so: the next attempt to write comes here again
        if self._flush_due:
            try:
                self.store.flush()
            except StoreWorn:
                pass  # see `_mark`
        self._flush_due = self.promised = False

    def pump(self, now_ms):
        """Put into the output what may go out: requests, resends in order, then new messages as far as the window allows.

        Only new messages wait for the window [MQTT-3.3.4-8] [MQTT-4.9.0-2] [MQTT-4.9.0-3]. Nothing expires here, neither what
        was sent [MQTT-4.3.3-7] nor what is held [MQTT-4.3.3-13]: that is the broker's to do.
        """
        if not self.online or self.lost or (self.partial >= 0 and not self._continue(now_ms)):
            return
        if self.wants_request and not self.request_id:
            self.requests.put(now_ms)
        store = self.store
        sending = self.sending
        while self._due:
            if len(sending) - self._due >= self.quota or not self._put(self._oldest(_DUE, self._dues), now_ms):
                return
        while len(sending) < self.quota:
            slot = self._stalled
            if slot < 0:
                slot = store.take()
                if slot < 0:
                    self.ready = False
                    return
            seq = store.seq_of(slot)
            packet_id = (seq - 1) % 65535 + 1
            if packet_id in sending or packet_id == self.request_id:
                self.ready = False
                self._stalled = slot  # 65 535 messages ago, and still in flight: wait for it
                return
            self._stalled = -1
            if seq - self._last_taken > 1 and self._last_taken:
                self._gap_from = self._last_taken + 1
                self._gap_to = seq - 1
            self._last_taken = seq
            sending[packet_id] = slot
            self._states[slot] = (_DUE | _SENT) if store.old(slot) else _DUE
            self._due += 1
            if not self._put(slot, now_ms):
                self._dues.clear()
                return
        self.ready = False  # until an answer comes

    def _put(self, slot, now_ms):
        """Put a slot's next packet; return False where it has to wait for room."""
        state = self._states[slot]
        out = self.out
        at = self.out_end
        room = len(out) - at
        if state & _STATE == _AWAIT_PUBCOMP:
            if room < _ACK_BYTES:
                return False
            self.promised = True
            # After PUBREC never PUBLISH again [MQTT-4.3.3-1]; only 3.1 sets DUP on a PUBREL.
            packet_id = _id_of(self.store.seq_of(slot))
            self.out_end = put_ack(out, at, _PUBREL, packet_id, self.level, 0, None, self.level == 3)
        else:
            n = self.store.length_of(slot)
            if n > room:
                if at:
                    return (
                        False  # whole packets share a write; one that is longer than the output goes alone, in pieces
                    )
                n = room
                self.partial = slot
                self._partial_at = n
            self.store.read(slot, 0, out, at, n)
            self.promised = True
            if self.five:
                code = self.five.objection(out[at], self.store.length_of(slot))
                if code:
                    return self._object(slot, code)
            if not state & _STATE:
                state |= out[at] >> 1 & 3  # QoS 1 awaits PUBACK, QoS 2 awaits PUBREC
            if state & _SENT:
                out[at] |= 8  # DUP: it may have been sent before [MQTT-3.3.1-1] [MQTT-2.3.1-3]
            self.out_end = at + n
        self._states[slot] = state & _STATE | _SENT
        self._sent_ms[slot] = now_ms
        self._due -= 1
        return True

    def _object(self, slot, code):
        """Do not send what the server said it would refuse: `recover` reports it."""
        self.partial = -1
        self._due -= 1
        self.lost += 1
        self._states[slot] = _LOST
        self.code = code
        return False

    def _continue(self, now_ms):
        """Put the next piece of a long message; return whether it is whole now."""
        slot = self.partial
        self._sent_ms[slot] = now_ms  # the answer can't come before the last piece has left
        n = self.store.length_of(slot) - self._partial_at
        room = len(self.out) - self.out_end
        if n > room:
            n = room
        else:
            self.partial = -1
        self.store.read(slot, self._partial_at, self.out, self.out_end, n)
        self._partial_at += n
        self.out_end += n
        return self.partial < 0

    def _oldest(self, flag, order):
        """Return the slot with this flag whose record is the oldest; there is one.

        All slots are looked at once, into `order`, the newest first: of 65,536 slots (a collector's) many may have the flag.
        """
        states = self._states
        while True:
            if not order:
                order.extend([slot for slot in range(len(states)) if states[slot] & flag])
                order.sort(key=self.store.seq_of, reverse=True)
            if states[order[-1]] & flag:
                return order[-1]
            order.pop()

    # --- in ---

    def receive(self, packet, now_ms):
        """Take in one decoded PUBLISH of QoS 2, acknowledgement, SUBACK or UNSUBACK; return what is to be reported.

        (`show` is for the other PUBLISH packets.)

        Raises:
            ProtocolViolation: an acknowledgement that does not belong to the flow its id is in.
        """
        kind = packet.packet_type
        if kind >= _SUBACK:
            # Another id: the answer to a request that was repeated (3.1).
            return self.requests.answered(packet) if packet.packet_id == self.request_id else _NOTHING
        packet_id = packet.packet_id
        ids = self.holding if kind == _PUBLISH or kind == _PUBREL else self.sending
        slot = ids.get(packet_id, -1)
        state = self._states[slot] & _STATE if slot >= 0 else _NONE
        action = TRANSITIONS[state * _COLUMNS + kind - _PUBLISH]
        if action == _DONE or action == _REMEMBER:
            self.acknowledged = True
            self.handle = self.store.seq_of(slot)
            # A PUBREC that refuses ends the flow, too (5, section 4.3.3).
            if action == _DONE or (self.level == _LEVEL_5 and packet.code >= 0x80):
                self._forget(ids, packet_id)
                return self._verdict(packet)
            self._mark(slot, _PUBREC_SEEN)
            self._due -= self._states[slot] >> 5 & 1
            self._states[slot] = _AWAIT_PUBCOMP | _SENT
            self._sent_ms[slot] = now_ms
            self._acknowledge(_PUBREL, packet_id)
        elif action == _PUT_PUBREL:
            if slot >= 0 and self._states[slot] & _DUE:  # this one is the PUBREL that was due
                self._states[slot] &= ~_DUE
                self._due -= 1
                self._sent_ms[slot] = now_ms
            self._acknowledge(_PUBREL, packet_id, state)
        elif action == _HOLD:
            self._hold(packet)
        elif action == _PUT_PUBREC:
            self._acknowledge(_PUBREC, packet_id)
        elif action == _HAND_OVER:
            self._show_held(slot)
            self.untaken = _PUBCOMP
            return _MESSAGE
        elif action == _PUT_PUBCOMP:
            self._acknowledge(_PUBCOMP, packet_id, state)
        elif action != _IGNORE:
            raise ProtocolViolation("packet type %d in state %d" % (kind, state), packet_id)
        return _NOTHING

    def taken(self):
        """The application has taken the message: acknowledge it [MQTT-4.3.2-2] [MQTT-4.3.3-2] [MQTT-4.5.0-2].

        5: [MQTT-4.3.2-4] [MQTT-3.3.4-1]
        """
        kind = self.untaken
        if kind > _PUBACK or not kind:
            self._forget(self.holding, self._untaken_id)
            self._flush_due = True
        self.untaken = -1
        if kind > 0:
            self._acknowledge(kind, self._untaken_id)
        if self.left_out and not self.holding:
            raise InboundWindowFull(self.store.slots)

    def took(self, kind):
        """The application has taken the message, but its connection is gone; `kind` is what `untaken` was meanwhile.

        A message of QoS 2 must not come again: it is forgotten now, and its PUBREL, when it is repeated, finds an unknown id.
        """
        if kind > _PUBACK or not kind:
            self.untaken = 0
            self.taken()
            self.settle()

    def _verdict(self, packet):
        """Return what the end of a flow is to be reported as; a refusal is an end, too. 5: [MQTT-4.4.0-2]

        Not so a PUBCOMP: its one code, 0x92, says that an earlier one was lost, and the message passed on (5, section 3.7.2.1).
        """
        if self.level == _LEVEL_5:
            self.code = packet.code
            if self.code >= 0x80 and packet.packet_type != _PUBCOMP:
                return _REFUSED
        return _DELIVERED

    def _forget(self, ids, packet_id):
        """Release a slot: its flow is over."""
        self.ready = True
        slot = ids.pop(packet_id)
        self._due -= self._states[slot] >> 5 & 1
        self.lost -= self._states[slot] >> 6 & 1
        self._states[slot] = _NONE
        self.store.release(slot)

    def _acknowledge(self, kind, packet_id, state=_HELD):
        """Put an acknowledgement behind those before it [MQTT-4.6.0-2] [MQTT-4.6.0-3] [MQTT-4.6.0-4].

        It has the id of its PUBLISH [MQTT-2.3.1-6]; 5: [MQTT-2.2.1-5].
        """
        self.promised = True
        # 5: "packet identifier not found", where it is not
        code = 0x92 if state == _NONE and self.level == _LEVEL_5 else 0
        self.out_end = put_ack(self.out, self.out_end, kind, packet_id, self.level, code)

    def show(self, packet):
        """Let the message be what lies in the decoder's buffer; `taken` will acknowledge it.

        Below QoS 2 nothing is concluded from an id or from DUP [MQTT-3.3.1-3]; 5: [MQTT-4.3.2-5].
        """
        message = self.message
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
            self.five.resolve(packet, message)
        self._untaken_id = packet.packet_id
        self.untaken = _PUBACK if packet.qos else -1
        if self.chunks:
            message.offset = packet.payload_offset
            message.total = packet.payload_total
            message.more = packet.more
            if packet.more:
                self.untaken = -1  # the last chunk's acknowledgement is the message's

    def _hold(self, packet):
        """Store an inbound QoS 2 message, whole and not handed over, and only then answer it [MQTT-4.3.3-2]."""
        store = self.store
        # One that is left out leaves out all later ones, so that their order holds; the next connection brings them again.
        if self.left_out or len(self.holding) >= self.hold_limit:
            self.left_out = True
            if self.five or not self.holding:  # 5: more than the Receive Maximum that we told [MQTT-3.3.4-9]
                raise InboundWindowFull(store.slots)
            return  # not answered
        if packet.topic_alias:
            self.fit(2 * len(packet.buffer))  # with its topic it may be longer than what came
        scratch = self.scratch
        if packet.topic_alias:
            n = self.five.put_held(scratch, packet)
        else:
            start = packet.topic_start - 2
            n = packet.payload_end - start
            scratch[0] = _PUBLISH << 4 | 2 << 1 | (1 if packet.retain else 0)
            at = put_length(scratch, 1, n)
            copy(scratch, at, packet.buffer, start, n)
            n += at
        try:
            slot = store.hold(scratch, n)
        except (StoreFull, StoreWorn):
            self.left_out = True  # until the store has room: see `connection.check`
            return
        self.holding[packet.packet_id] = slot
        self._states[slot] = _HELD
        self._acknowledge(_PUBREC, packet.packet_id)

    def _show_held(self, slot):
        """Let the message be a held one, read into a buffer of its own: handlers may publish meanwhile."""
        length = self.store.length_of(slot)
        if len(self._handed) < length:
            self._handed = bytearray(max(length, len(self.scratch)))
        buf = self._handed
        self.store.read(slot, 0, buf, 0, length)
        at = 1
        while buf[at] & 0x80:
            at += 1
        at += 3
        message = self.message
        message.buffer = message.topic_buffer = buf
        message.topic_start = at
        message.topic_end = at = at + (buf[at - 2] << 8 | buf[at - 1])
        self._untaken_id = buf[at] << 8 | buf[at + 1]
        at += 2
        if self.level == _LEVEL_5:
            n = shift = 0
            while True:
                n |= (buf[at] & 0x7F) << shift
                shift += 7
                at += 1
                if not buf[at - 1] & 0x80:
                    break
            message.properties_start = at
            message.properties_end = at = at + n
        message.payload_start = at
        message.payload_end = length
        message.offset = 0
        message.total = length - at
        message.more = False
        message.qos = 2
        message.retain = bool(buf[0] & 1)
        message.dup = False

    # --- time ---

    def overdue_ms(self, now_ms):
        """Return how long the oldest unanswered packet has waited for its answer, and mark what is to be retried (Q5)."""
        oldest = 0
        for slot in range(len(self._states) if self.sending else 0):
            state = self._states[slot] & (_STATE | _DUE)
            if _NONE < state < _HELD:  # sent, and not due to be sent again
                age = ticks_diff(now_ms, self._sent_ms[slot])
                if self.retry_ms and age >= self.retry_ms:
                    self._states[slot] |= _DUE
                    self._due += 1
                    self._dues.clear()
                    self.ready = True
                elif age > oldest:
                    oldest = age
        if self.request_id:
            oldest = max(oldest, self.requests.overdue_ms(now_ms))
        return oldest


def _id_of(seq):
    return (seq - 1) % 65535 + 1
