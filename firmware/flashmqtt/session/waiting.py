"""Messages that can't be handed over now: no handler claims them yet, or their handler is busy (3.1.1 and 5, section 4.6).

Loaded with the first such message. A QoS 0 or 1 message waits as a copy in RAM, within limits. A QoS 2 message is in the store;
only its place in the order is kept here. No message is acknowledged before it was taken. Later messages may pass it, but two
orders are kept. Messages for the same handler are handed over in the order of arrival. PUBACKs are sent in the order of their
PUBLISH packets [MQTT-4.6.0-2]; so the PUBACK of a message that is done may have to wait for an earlier message.

If there is no room, a QoS 0 message is dropped and counted. A QoS 1 message is left unacknowledged, and so are later ones that
would have to wait behind it; once there is room the client reconnects, and the broker sends them again.

A waiting message outlives its network connection. The broker sends it again with DUP and the same packet id, because it was not
acknowledged; this duplicate is recognized and not handed over.

The queue knows which subscriptions claim a message. A message that no subscription claims is unclaimed: the client hands it over
in its own way. The queue calls no handler.
"""

from binascii import crc32

from flashmqtt.compat import TYPE_CHECKING, const, ticks_add, ticks_diff
from flashmqtt.fast import copy, equal

from .message import Message

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251

_PUBACK = const(4)
_PUBCOMP = const(7)
_ORPHAN = const(1)  # `session.handed` of a message that needs no acknowledgement
_ACK_BYTES = const(8)
# Without progress, the client reconnects this long after a message was left unacknowledged.
_RECONNECT_AFTER_MS = const(10000)
_RETRY_MS = const(1000)  # delay before a failed handler is called again, doubled every time
_DOUBLINGS = const(6)
_PAUSES = const(50)  # after so many pauses without progress, reading is not slowed down any more

# States of a waiting message.
WAITING = const(0)
BUSY = const(1)  # a handler or the program has it
LEFT = const(2)  # left unacknowledged: only its topic is kept
DONE = const(3)  # taken; its acknowledgement is owed, or its connection is gone
IN_PIECES = const(4)  # a long QoS 2 message is handed over in pieces now; later messages for its handlers wait

# Arguments of `next`.
CLAIMED = const(1)
UNCLAIMED = const(2)


class Waiting(Message):
    """A waiting message, later handed over as it is; `failures` counts the failed calls of its handler."""

    # Values of the class until an object has its own: this saves 8 bytes of heap for each.
    more = False
    offset = topic_start = 0
    due_ms = 0  # when it may be handed over again after a failure; 0: now
    finished = ()  # subscriptions whose handlers have finished with it, if another handler failed
    takers: "Any" = None  # subscriptions whose handlers claim it, None: unknown
    reported = False  # reported as unclaimed
    touched = False  # the program has read one of its attributes
    repeated = False  # handed over twice, because the program may have lost it the first time

    def __init__(self, message: "Any", packet_id: int, owed: "Any", now_ms: int, whole: "Any") -> None:
        self.kind = self.qos = message.qos  # kind: the QoS by which it is acknowledged; 0 for a piece of a message
        self.retain = message.retain
        self.dup = message.dup
        self.in_pieces = message.more or message.offset > 0  # a long message, held in the store
        self.topic_length = message.topic_end - message.topic_start
        self.total = self.length = message.payload_end - message.payload_start
        self.packet_id = packet_id
        self.owed = owed  # QoS 2: the broker waits for PUBCOMP on this connection; QoS 1: see `WaitingQueue.owing`
        self.state = WAITING if whole or self.qos == 2 else LEFT
        self.since_ms = now_ms
        n = self.topic_length
        start = message.properties_start
        properties = message.properties_end - start if whole else 0
        size = self.length if whole else 0
        # If not `whole`, only the topic is kept.
        self.buffer = self.topic_buffer = buf = bytearray(n + properties + size)
        copy(buf, 0, message.topic_buffer, message.topic_start, n)
        self.topic_end = self.properties_start = n
        if properties:
            copy(buf, n, message.buffer, start, properties)
        n += properties
        self.properties_end = self.payload_start = n
        if size:
            copy(buf, n, message.buffer, message.payload_start, size)
        self.payload_end = n + size

    def __getattr__(self, name: str) -> "Any":
        """Return a computed attribute, and note that the program has read one."""
        self.touched = True
        return Message.__getattr__(self, name)


class Receipt:
    """The record of a QoS 1 message that is done: enough to recognize a duplicate and to send PUBACK in order."""

    def __init__(self, message: "Any", packet_id: int) -> None:
        self.kind = 1
        self.state = DONE
        self.packet_id = packet_id
        self.topic_length = message.topic_end - message.topic_start
        self.length = message.payload_end - message.payload_start
        self.crc = _crc(message)


class WaitingQueue:
    """The messages of a session that wait, oldest first.

    Args:
        session: whose messages they are.
        limit: how many of QoS 0 and 1 may wait at once.
        limit_bytes: their bytes together; a longer message waits alone.
        attempts: how often a message's handler may fail before the message is discarded.
        clean: the broker keeps no session: an unacknowledged message would never come again.
    """

    def __init__(self, session: "Any", limit: int, limit_bytes: int, attempts: int, clean: bool) -> None:
        self._session = session
        self.limit = limit
        self.limit_bytes = limit_bytes
        self.attempts = attempts
        self.clean = clean
        self.entries: "list[Any]" = []
        self.bytes = 0  # of the copies
        self.owing: "list[Any]" = []  # QoS 1 messages that are owed a PUBACK, in the order of this connection's PUBLISH packets
        self.takes_unclaimed = False  # there is a taker for messages that no subscription claims
        self.missed = self.unclaimed = self.failed = 0
        self._look = True  # after a change, a message may have become ready
        self._looked_ms = 0
        self._left = False  # a message was left unacknowledged on this connection
        self._left_ms = 0
        self.overflow = False  # some of these have no entry: all later QoS 1 messages are left, too
        self.skipping = False  # the first piece of a message was not handed over: skip the others
        self._pauses = 0  # since a message was taken
        self._failures: "dict[Any, int]" = {}  # packet id of a message in pieces: how often a handler failed with it
        self._progress = True  # a message was taken since the last reconnect for others, or the wait for it is over
        self._pieces = 0  # how many were queued: the number of the newest is its `packet_id`
        self._new = False  # on this connection a new message has come: all that the broker sends again came before it

    # --- who claims what ---

    def changed(self) -> None:
        """Handlers or subscriptions have changed: look again who claims each message."""
        self._look = True
        for entry in self.entries:
            if entry.state != DONE:
                entry.takers = None

    def claims(self, message: "Any") -> "Any":
        """Return the subscriptions whose handlers claim a message."""
        found = []
        for subscription in self._session.subscriptions:
            if subscription.takes(message):
                found.append(subscription)
        return found

    def _takers(self, entry: "Any") -> "Any":
        takers = entry.takers
        if takers is None:
            takers = entry.takers = self.claims(entry)
        return takers

    def must_wait(self, message: "Any") -> "Any":
        """Return whether a message that has just arrived must wait behind others."""
        if self.skipping or (message.qos == 1 and (self.overflow or (self.owing and self._count() >= 2 * self.limit))):
            return True
        try:
            return self.entries and self._is_behind(self.claims(message), self._begun(), False)
        except MemoryError:
            return True

    def blocks(self, piece: "Any") -> bool:
        """Return whether a piece is behind a message for which reading must not stop: see `_is_behind`."""
        return (self.overflow and self._session.message.qos == 1) or self._is_behind(self._takers(piece), piece, True)

    def _is_behind(self, takers: "Any", end: "Any", needs_reading: bool) -> bool:
        """Return whether a message for one of these takers waits before the entry `end`, or anywhere if there is no `end`.

        needs_reading: only a message counts that the connection's next packets bring, or whose handler failed: it waits for
            seconds until the next attempt.
        """
        for entry in self.entries:
            if entry is end:
                break
            if (
                entry.state != DONE
                and (not needs_reading or entry.state == LEFT or entry.in_pieces or entry.failures)
                and _common(takers, self._takers(entry))
            ):
                return True
        return False

    def due(self, now_ms: int, takes_unclaimed: "Any") -> bool:
        """Return whether it is time to look for ready messages; takes_unclaimed: there is a taker for unclaimed ones."""
        if self._look or takes_unclaimed != self.takes_unclaimed or ticks_diff(now_ms, self._looked_ms) >= 100:
            self._look = False
            self.takes_unclaimed = takes_unclaimed
            self._looked_ms = now_ms
            return True
        return False

    def next(self, now_ms: int, kinds: "Any") -> "Any":
        """Return the first message that can be handed over now, or None. kinds: CLAIMED, UNCLAIMED or both."""
        blocked: "list[Any]" = []
        unclaimed_blocked = False
        for entry in self.entries:
            if entry.state == DONE:
                continue
            if entry.due_ms and ticks_diff(now_ms, entry.due_ms) >= 0:
                entry.due_ms = 0  # before the clock wraps: the message may stay unclaimed for days
            takers = self._takers(entry)
            stopped = _common(takers, blocked) if takers else unclaimed_blocked
            if (
                not stopped
                and entry.state == WAITING
                and kinds & (CLAIMED if takers else UNCLAIMED)
                and not entry.due_ms
            ):
                return entry
            if takers:
                blocked += takers
            elif entry.state != BUSY or kinds & CLAIMED:  # several tasks may iterate at once, each with its own message
                unclaimed_blocked = True
        return None

    def expired(self, now_ms: int, after_ms: int) -> "Any":
        """Return a message that is unclaimed for after_ms and was not reported yet, or None."""
        if not self.takes_unclaimed:
            for entry in self.entries:
                if (
                    (entry.state == WAITING or entry.state == LEFT)
                    and not entry.reported
                    and ticks_diff(now_ms, entry.since_ms) >= after_ms
                    and not self._takers(entry)
                ):
                    return entry
        return None

    def wants_pause(self) -> bool:
        """Return whether to pause reading for a program with tasks: half of the room is used, and it takes messages."""
        if 2 * self.bytes <= self.limit_bytes and 2 * self._count() <= self.limit:
            return False
        self._pauses += 1
        return self._pauses <= _PAUSES

    # --- in ---

    def add(self, now_ms: int) -> "Any":
        """Queue the session's current message; return its entry, or None if it was dropped or left unacknowledged."""
        session = self._session
        message = session.message
        handed = session.handed
        owed = handed > _ORPHAN
        session.handed = 0
        qos = message.qos
        # It is in the store, and is handed over later from its first piece on.
        if qos == 2:
            if session.long and session.long.key:  # its first piece may be the whole message
                session.long.pause()
                owed = session.long.answer > _ORPHAN
            entry = self._begun()
            if entry:
                entry.owed = owed
                self.put_back(entry)
                return entry
        else:
            self.skipping = message.more
            if message.more:
                return None  # decided with its last piece
        entry = None
        self._look = True
        given_up = message.offset and self._failures.get(session.handed_id, 0) >= (self.attempts if qos else 1)
        try:
            # A message in pieces can't wait here. And none may wait behind one that comes again only after a reconnect.
            whole = qos < 2 and not message.offset and not (qos and self._left) and self._fits(message)
            left = qos and not (self.clean or given_up or self.overflow) and self._count() < 2 * self.limit
            if whole or left or qos == 2:
                entry = Waiting(message, session.handed_id, owed, now_ms, whole)
                self._append(entry, owed)
        except MemoryError:
            entry = None
        if not entry or entry.state == LEFT:
            if not qos or (qos == 1 and (self.clean or given_up)):
                if given_up:
                    self.failed += 1
                else:
                    self.missed += 1
                self._failures.pop(session.handed_id, 0)
                session.handed = handed
                session.acknowledge()
                return None
            if not self._left:
                self._left = True
                self._left_ms = now_ms
            if not entry:
                self.overflow = True
                return None
        if qos < 2:
            self.bytes += len(entry.buffer)
        return None if entry.state == LEFT else entry

    def add_taken(self, now_ms: int) -> None:
        """Queue the session's current message, which the handlers have taken: it could not be acknowledged."""
        entry = self._session.handed and self.add(now_ms)
        if entry:
            entry.finished = tuple(self.claims(entry)) or (None,)

    def add_piece(self, now_ms: int) -> "Any":
        """Queue a piece of a long message for a program with tasks; return it. The caller acknowledges the message."""
        message = self._session.message
        for entry in self.entries:  # the program still has it from the last connection
            if (
                not entry.kind
                and entry.qos == message.qos == 2
                and entry.packet_id == self._pieces
                and entry.offset == message.offset
            ):
                return entry
        self._pieces += 1
        entry = Waiting(message, self._pieces, False, now_ms, True)
        entry.kind = 0
        entry.in_pieces = False
        entry.more = message.more
        entry.offset = message.offset
        entry.total = message.total
        self.bytes += len(entry.buffer)
        self._look = True
        begun = self._begun()
        self.entries.insert(self.entries.index(begun) if begun else len(self.entries), entry)
        return entry

    def withdraw(self, piece: "Any") -> None:
        """Remove a piece that was not taken."""
        if piece in self.entries:
            self.entries.remove(piece)
            self.bytes -= len(piece.buffer)

    def _append(self, entry: "Any", owed: "Any") -> None:
        self.entries.append(entry)
        if owed and entry.kind == 1:
            try:
                self.owing.append(entry)
            except MemoryError:
                self.entries.pop()
                raise

    def _fits(self, message: "Any") -> bool:
        n = message.topic_end - message.topic_start + message.payload_end - message.payload_start
        n += message.properties_end - message.properties_start
        return not self.bytes or (self._count() < self.limit and self.bytes + n <= self.limit_bytes)

    def _count(self) -> int:
        """Return how many QoS 0 and 1 messages are queued."""
        n = 0
        for entry in self.entries:
            if entry.kind < 2:
                n += 1
        return n

    def defers(self) -> bool:
        """Queue the PUBACK of the message just taken behind earlier ones; return whether there are any."""
        session = self._session
        message = session.message
        if message.offset:
            self._failures.pop(session.handed_id, 0)
        if not self.owing:
            return False
        self._append(Receipt(message, session.handed_id), True)
        return True

    def is_duplicate(self) -> bool:
        """Return whether the received message is a duplicate of one that waits, or is done and not acknowledged yet.

        A duplicate has DUP and the same packet id, which no other message may have before the acknowledgement. Some brokers
        (RabbitMQ) assign new packet ids when they send again, so the content, or its CRC, is compared, too.
        """
        session = self._session
        message = session.message
        if not message.dup or message.more or message.offset:
            if message.qos and not message.dup and not self.overflow:
                self._new = True
            return False
        try:
            for entry in self.entries:
                if (
                    entry.kind == 1
                    and entry.packet_id == session.handed_id
                    and entry.topic_length == message.topic_end - message.topic_start
                    and entry.length == message.payload_end - message.payload_start
                    and entry.state != LEFT
                    and (entry.crc == _crc(message) if entry.state == DONE else _same(entry, message))
                ):
                    if not self.overflow and entry not in self.owing:
                        self.owing.append(entry)
                    session.handed = 0
                    self.flush()
                    return True
        except MemoryError:
            pass  # it is handed over once more
        return False

    def held(self, key: int) -> "Any":
        """Return the QoS 2 message that waits with this packet id, or None."""
        for entry in self.entries:
            if entry.kind == 2 and entry.packet_id == key and entry.state < DONE:
                return entry
        return None

    def _in_pieces(self, key: int) -> "Any":
        """Return the long QoS 2 message with this packet id that is handed over in pieces now, or None."""
        for entry in self.entries:
            if entry.state == IN_PIECES and entry.packet_id == key:
                return entry
        return None

    def _begun(self) -> "Any":
        """Return the entry of the session's current message if that is a piece of a message that has waited, or None."""
        return self._in_pieces(self._session.handed_id) if self._session.message.qos == 2 else None

    def end_pieces(self, key: int) -> None:
        """Remove the long message with this packet id: it was handed over, or can't be read any more."""
        entry = self._in_pieces(key)
        if entry:
            self.entries.remove(entry)
            self._look = True

    # --- out ---

    def begin(self, entry: "Any") -> bool:
        """Prepare a message to be handed over; return False if it can't be read any more or is handed over in pieces."""
        # The last message must not be handed over again if this one's handler resets the board.
        if self._session.unsynced:
            self._session.sync()
        if entry.in_pieces:
            entry.state = IN_PIECES
            self._session.inbound.resume(entry.packet_id, entry.owed)
            return False
        if entry.kind == 2 and not self._session.load_inbound().load(entry):
            self.finish(entry)
            return False
        # Setting an attribute for the first time may need memory: not after the message counts as busy, or its handler has run.
        entry.touched = False
        entry.finished = entry.finished
        entry.state = BUSY
        return True

    def put_back(self, entry: "Any", due_ms: int = 0) -> None:
        """Let a message that was handed over wait again; due_ms: when it may be handed over, 0: now."""
        entry.state = WAITING
        entry.due_ms = due_ms
        if entry.touched:  # (a store may need memory for a new attribute)
            entry.touched = False
        self._look = True

    def refuse(self, entry: "Any", now_ms: int, counts: "Any", finished: int = 0) -> "Any":
        """A handler failed: let the message wait for the next attempt, or discard it after `attempts` failures.

        Return the message, or None if it could not wait.

        Args:
            entry: the message, if it has waited; None: the message that has just arrived.
            now_ms: the time.
            counts: False if the handler was only interrupted.
            finished: if the message has just arrived: how many handlers have finished with it.
        """
        if not entry:
            message = self._session.message
            if counts and message.qos < 2 and (message.more or message.offset):
                packet_id = self._session.handed_id
                failures = self._failures.get(packet_id, 0) if message.dup else 0  # no DUP: another message
                if len(self._failures) >= self.limit:
                    self._failures.clear()  # the broker sends messages again with other packet ids
                self._failures[packet_id] = failures + 1
            entry = self.add(now_ms)
            if not entry:
                return None
            entry.finished = tuple(self.claims(entry)[:finished])
        if counts:
            entry.failures += 1
            if entry.failures >= self.attempts or not entry.kind:
                if entry.kind == entry.qos:
                    self.failed += 1
                self.finish(entry)
                return entry
        self.put_back(entry, ticks_add(now_ms, _RETRY_MS << min(max(entry.failures - 1, 0), _DOUBLINGS)))
        return entry

    def finish(self, entry: "Any") -> None:
        """A message was taken, or is discarded: acknowledge it, at QoS 1 in order."""
        self._progress = self._look = True
        self._pauses = 0
        if entry not in self.entries:
            return  # the program disconnected meanwhile
        if entry.state == BUSY:
            entry.state = WAITING  # not busy for ever if the store fails, or no memory is left for the receipt
        if entry.kind == 2:
            self._session.load_inbound().discard_taken(entry.packet_id, entry.owed)
        else:
            if entry.kind:
                receipt = Receipt(entry, entry.packet_id)
                self.entries[self.entries.index(entry)] = receipt
                if entry in self.owing:
                    self.owing[self.owing.index(entry)] = receipt
            elif entry.qos == 2 and not entry.failures and entry.packet_id == self._pieces:
                # A piece of a held message, which no other has replaced: now, as the program may disconnect next.
                self._session.handed = self._session.handed or self._session.long.key > 0
                self._session.acknowledge()
            self.bytes -= len(entry.buffer)
        entry.state = DONE
        if self._left and not self.overflow:
            self._left = False
            for other in self.entries:
                if other.state == LEFT:
                    self._left = True
        self.flush()

    def flush(self) -> None:
        """Put the acknowledgements that are due, PUBACKs in order, as far as there is room; forget what is done."""
        entries = self.entries
        owing = self.owing
        while owing and owing[0].state == DONE:
            if not self._put(_PUBACK, owing[0].packet_id):
                return
            entries.remove(owing.pop(0))
        i = 0
        while i < len(entries):
            entry = entries[i]
            if entry.state != DONE or entry.kind == 1:
                i += 1
            elif entry.kind and entry.owed and not self._put(_PUBCOMP, entry.packet_id):
                return
            else:
                entries.pop(i)

    def _put(self, kind: int, packet_id: int) -> bool:
        """Put an acknowledgement if there is room."""
        session = self._session
        output = session.output
        if output.limit - output.end < _ACK_BYTES:
            session.urgent = True
            return False
        output.put_ack(kind, packet_id)
        return True

    # --- connections ---

    def disconnected(self) -> None:
        """The network connection is gone: no acknowledgement is owed; unacknowledged messages come again."""
        kept = []
        for entry in self.entries:
            if entry.state == LEFT:
                self.bytes -= len(entry.buffer)
            elif entry.state != DONE or entry in self.owing or not self._new:  # else the broker will not send it again
                entry.owed = False
                kept.append(entry)
        self.entries = kept
        self.owing = []
        self._left = self.overflow = self.skipping = self._new = False
        self._look = True  # those behind a message that was left
        self.flush()

    def connected(self, lost: "Any") -> None:
        """The broker accepted a connection; lost: it lost the session, and sends no message again."""
        if lost:
            self.entries = [entry for entry in self.entries if entry.state != DONE]
            for entry in self.entries:
                if entry.kind == 1:
                    entry.packet_id = 0  # the broker uses its id anew: no later message is its duplicate

    def clear(self) -> None:
        """The program disconnects: remove the waiting messages, which the broker or the store still has.

        A message is kept if one of its handlers has finished: that handler must not run again. So is a repeated one: the program
        may have it, although it was put back.
        """
        kept = []
        for entry in self.entries:
            if entry.state == BUSY or entry.state == DONE or entry.finished or entry.repeated:
                kept.append(entry)
            elif entry.kind < 2:
                self.bytes -= len(entry.buffer)
        self.entries = kept
        self.owing = []

    def wants_restart(self, now_ms: int) -> bool:
        """Return whether to reconnect, so that the broker sends unacknowledged messages again."""
        if not self._left:
            return False
        if ticks_diff(now_ms, self._left_ms) >= _RECONNECT_AFTER_MS:
            self._progress = True  # before the clock wraps
        waiting = copied = 0
        claimed = self.overflow
        for entry in self.entries:
            if entry.state == LEFT:
                claimed = claimed or self.takes_unclaimed or len(self._takers(entry)) > 0
            elif entry.kind < 2 and entry.state != DONE:
                waiting += 1
                copied += len(entry.buffer)
        if not claimed or 2 * waiting > self.limit or 2 * copied > self.limit_bytes:
            return False
        if not self._progress:
            return False
        self._progress = False
        return True


def _common(some: "Any", others: "Any") -> bool:
    """Return whether two messages have a common taker; all unclaimed messages have the same one."""
    if not some or not others:
        return not some and not others
    for one in some:
        if one in others:
            return True
    return False


def _crc(message: "Any") -> "Any":
    topic = memoryview(message.topic_buffer)[message.topic_start : message.topic_end]
    return crc32(memoryview(message.buffer)[message.payload_start : message.payload_end], crc32(topic))


def _same(entry: "Any", message: "Any") -> "Any":
    """Return whether a waiting message has this topic and payload."""
    return equal(entry.buffer, 0, message.topic_buffer, message.topic_start, entry.topic_length) and equal(
        entry.buffer, entry.payload_start, message.buffer, message.payload_start, entry.length
    )
