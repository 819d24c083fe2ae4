"""The journal as a store: append, take, mark, release, and what survives of it. FORMAT.md has the bytes.

The promise: when `append`, `hold`, `mark` or `commit` returns, what it wrote outlives a power cut at any later moment; a
release is durable with the next write or `flush`. A message costs one page program. Messages come out in the order they went in.

Acknowledgements ride along: every record says up to where everything is done, and names up to three messages that finished out
of turn. Only where nothing is written for long does a record of its own say so.

What it does not know: MQTT. A record is bytes, a mark is a number.
"""

import sys

from flashmqtt import journal
from flashmqtt.compat import const
from flashmqtt.errors import FlashFailed, StoreCorrupt, StoreError, StoreExhausted, StoreFull, StoreWorn, UsageError
from flashmqtt.fast import copy

from .log import put_finished, put_u32
from .ring import Ring

# The format's numbers, as tools/journal/layout.py has them (a test compares): private constants cost nothing on a board.
_PAGE = const(256)
_HEADER = const(64)
_NO_SECTOR = const(0xFFFF)
_RECORD = const(12)
_BODY_MAX = const(244)
_TYPE = const(0x0F)
_FIRST = const(0x40)
_LAST = const(0x80)
_QUEUED = const(1)
_HELD = const(2)
_MOVED = const(3)
_MARK = const(4)
_DONE = const(5)
_CLOSE = const(8)
_SEQ_LIMIT = const(0x3FFFFFFF)
_OPENED = const(1)
_AGAIN = const(2)
_EXPLICIT = const(4)
_HOLD = const(8)
_SEAL = const(32)
_ANY = const(0xFF)  # states of a slot: all but free

REFUSE = 0
DROP_OLDEST = 1
DROP_NEWEST = 2

# A third of the journal's code is needed once a boot: compiled, it is loaded then and does not stay in a board's memory. From
# source it is loaded now and stays, as compiling takes far more memory than that.
_COMPILED = __file__.endswith(".mpy")
if not _COMPILED:
    from . import recovery  # noqa: F401

_NONE = b""
_RIDES = const(3)  # with one record
_PENDING = const(12)  # finished out of turn and not yet on flash
_USABLE_MIN = const(3)
_ENTRIES_MAX = const(15)
_UNSAID = const(32)  # released since low was last said


class Journal(Ring):
    """A store on a region of flash, mounted. A blank region becomes an empty journal; any other content is never overwritten.

    Args:
        region: see `flash.region`; sectors of up to 32 KB, pages of up to 256 bytes.
        slots: how many messages may be open at once, both ways: the session's window and the inbound QoS 2 messages. At most 89
            in sectors of 4 KB; from 59 on, fewer than 32 may be finished before the oldest is.
        policy: when it is full, `REFUSE` (StoreFull), `DROP_OLDEST` or `DROP_NEWEST`; what is dropped is counted.
        wipe: make it empty whatever it holds, as `format` does.

    Attributes:
        next_seq: the sequence number that the next message will get, 1 to 2^30 - 1; they rise for the journal's whole life.
        stored: how many messages were ever appended, exact across power cuts.
        dropped: how many of them the policy dropped.
        boot: how many times it was mounted, 1 for the first.
        fresh: whether nothing was ever appended: the broker can't know of any message.
        worn: whether too few sectors still work to store anything more.

    Raises:
        UsageError, StoreEncrypted: no journal can be on such a region, or not with so many slots.
        StoreForeign, StoreVersion: something else is there, or a journal of another size or version.
        StoreCorrupt: a journal damaged in its middle. StoreWorn: no sector takes an erase.
    """

    def __init__(self, region, slots: int = 16, policy: int = REFUSE, wipe: bool = False) -> None:
        super().__init__(region, slots)
        self.policy = policy
        self.fresh = False
        self.closed = False
        self._boot_seq = 1  # the first sequence of this boot
        self._pending = [0] * _PENDING  # finished sequences to be named; negative: it has a place of its own
        self._unsaid = 0
        self._said_dropped = 0
        self._piece_sector = self._piece_offset = self._piece_seq = self._piece_kind = 0
        self._first = 0  # where the copy of a message begins
        self._found_seq = self._found_sector = self._found_offset = self._found_length = 0
        self._small = bytearray(8)  # the body of a mark, open, close or mount record
        self._done_body = bytearray(4 + 4 * _PENDING)  # of a done record, which may have to go before any of those
        self._chunk_length = self._chunk_done = 0
        from .recovery import Recovery

        recovery = Recovery(self)
        if wipe:
            recovery.wipe()
        else:
            recovery.run()
        if _COMPILED:
            del sys.modules["flashmqtt.journal.recovery"], journal.recovery

    @staticmethod
    def format(region, slots: int = 16, policy: int = REFUSE) -> "Journal":
        """Make a region an empty journal, whatever it holds, and mount it. Cut short, it is to be called again.

        Args:
            region, slots, policy: see the class.
        """
        return Journal(region, slots, policy, True)

    # --- storing ---

    def append(self, buf, length: int) -> int:
        """Store an outgoing message, buf[:length], durably; return its sequence, or 0 if the policy dropped it.

        Raises:
            UsageError: buf is not as long.
            StoreFull: no room, and the policy is to refuse; or dropping the oldest does not help, because what is open does not
                fit into one sector (of 4 KB: 11 messages of 111 to 244 bytes, or 15 shorter ones).
            StoreWorn: too few sectors left that work. StoreExhausted: a thousand million messages were stored.
        """
        self._abandon()
        seq = self._new_seq(buf, length)
        try:
            if length <= _BODY_MAX:
                self._write(_QUEUED | _FIRST | _LAST, seq, buf, 0, length, True)
                self.next_seq = seq + 1
            else:
                self.begin(length)
                self._extend(buf, length, _LAST)
        except StoreFull:
            self._abandon()
            if self.policy != DROP_NEWEST:
                raise
            self.dropped += 1
            return 0
        self._stored()
        return seq

    def begin(self, length: int) -> None:
        """Begin an outgoing message of `length` bytes that comes in pieces; it exists when `commit` returns.

        The next `append` or `begin`, or a power cut, abandons what was not committed.

        Raises:
            StoreFull: it is longer than the whole store. StoreExhausted: as for `append`.
        """
        self._abandon()
        seq = self._new_seq(_NONE, 0)
        # Said before anything is dropped for it.
        if length > (self.sectors_usable - 2) * (self._sector_bytes // _PAGE * _BODY_MAX - _HEADER - _SEAL):
            raise StoreFull("%d bytes are more than it holds" % length)
        self._chunk = seq
        self._chunk_length = length
        self._chunk_done = 0
        self.next_seq = self._chunk + 1

    def extend(self, buf, n: int) -> None:
        """Add the next piece, buf[:n].

        Raises:
            UsageError: nothing was begun, it is longer than was said, or buf is not as long.
            StoreFull, StoreWorn: as for `append`.
        """
        if not self._chunk or not 0 <= n <= min(len(buf), self._chunk_length - self._chunk_done):
            raise UsageError("extend: not begun, or too long")
        self._extend(buf, n, 0)

    def commit(self) -> int:
        """End the message, which is durable now; return its sequence.

        Raises:
            UsageError: not all of it is there.
        """
        seq = self._chunk
        if not seq or self._chunk_done != self._chunk_length:
            raise UsageError("commit: not all of it is there")
        self._write(_QUEUED | _LAST | (0 if self._chunk_length else _FIRST), seq, _NONE, 0, 0, True)
        self._stored()
        return seq

    def hold(self, buf, length: int) -> int:
        """Store an inbound message, buf[:length], durably; return its slot, open until released, across power cuts too.

        Raises:
            UsageError: buf is not as long. StoreFull: no room, or no slot.
        """
        slot = self._free_slot()
        if slot < 0:
            raise StoreFull("no slot")
        seq = self._new_seq(buf, length)
        done = 0
        flags = _HELD | _FIRST
        try:
            while True:
                n = min(length - done, _BODY_MAX)
                if done + n == length:
                    flags |= _LAST
                offset = self._write(flags, seq, buf, done, n, True)
                self.next_seq = seq + 1
                if flags & _FIRST:
                    self._fill_slot(slot, _OPENED | _EXPLICIT | _HOLD, seq, self._head, offset, length)
                if flags & _LAST:
                    return slot
                flags = _HELD
                done += n
        except StoreError:
            if done:  # its first pieces are there, and say nothing without the last
                self._slot_state[slot] = 0
            raise

    def _new_seq(self, buf, length):
        """Return the sequence for a message that is buf[:length]."""
        if not 0 <= length <= len(buf):
            raise UsageError("%d bytes of %d" % (length, len(buf)))
        if self.next_seq >= _SEQ_LIMIT:
            raise StoreExhausted("every sequence number is used")
        return self.next_seq

    def _stored(self):
        self._chunk = 0
        self.stored += 1
        self._backlog += 1
        self._queued += 1
        self.fresh = False

    def _abandon(self):
        """A message in pieces that was not committed does not exist."""
        if self._chunk:
            self._chunk = 0
            self._settle()

    def _extend(self, buf, n, last):
        done = 0
        while done < n:
            part = min(n - done, _BODY_MAX)
            kind = _QUEUED
            if not self._chunk_done:
                kind |= _FIRST
            if last and done + part == n:
                kind |= _LAST
            self._write(kind, self._chunk, buf, done, part, True)
            done += part
            self._chunk_done += part

    # --- taking ---

    @property
    def waiting(self) -> int:
        """How many messages are queued and not taken."""
        return self._queued + self._again

    def take(self) -> int:
        """Open the next queued message; return its slot, or -1 if nothing waits or no slot is free.

        -1 also where so many finished out of turn (32) that the oldest has to move out of their way, and there is no room for it.

        Raises:
            StoreCorrupt: what is stored can't be read.
        """
        if self._again:
            slot = self._eldest(_AGAIN, -1)
            self._slot_state[slot] = _OPENED | _EXPLICIT
            self._again -= 1
            return slot
        if not self._queued:
            return -1
        slot = self._free_slot()
        if slot < 0 or not self._next():
            return -1
        self._fill_slot(slot, _OPENED, self._found_seq, self._found_sector, self._found_offset, self._found_length)
        self._enter(self._found_seq, 0)
        self._queued -= 1
        return slot

    def _next(self):
        """Move the cursor behind the next message that waits; return False if there is none, or no room in the window."""
        while True:
            if self._window_n >= self._span and not self._unblock():
                return False
            sector = self._cursor_sector
            offset = self._find(sector, self._cursor_offset, self._limit(sector))
            if offset < 0:
                if sector == self._head:
                    return False
                self._cursor_sector = self._after[sector]
                self._cursor_offset = _HEADER
                continue
            behind = offset + self._size
            seq = self._seq
            length = -1
            if self._kind & (_TYPE | _FIRST) == _QUEUED | _FIRST:
                length = self._length if self._kind & _LAST else self._total(sector, offset, seq)
            self._cursor_offset = behind  # only now, as what is read may fail, and has to keep its turn
            if length < 0:
                continue
            self._cursor_seq = seq + 1
            slot = self._slot_of(seq)
            if slot >= 0:  # marked before the last mount, and open since; or moved
                self._enter(seq, 1 if self._slot_state[slot] & _EXPLICIT else 0)
            elif self._forget_early(seq):
                self._enter(seq, 1)
            else:
                self._found_seq = seq
                self._found_sector = sector
                self._found_offset = offset
                self._found_length = length
                return True

    def _total(self, sector, offset, seq):
        """Return the length of a message in pieces; -1 if its last piece never came."""
        self._begin_pieces(sector, offset, seq)
        total = 0
        while self._next_piece():
            total += self._length
            if self._kind & _LAST:
                return total
        return -1

    def _begin_pieces(self, sector, offset, seq):
        """Go to the first piece of a message."""
        self._piece_sector = sector
        self._piece_offset = offset
        self._piece_seq = seq
        self._piece_kind = 0

    def _next_piece(self):
        """Read the next piece; False if another message of the queue, or the log's end, comes first."""
        sector = self._piece_sector
        offset = self._piece_offset
        while True:
            offset = self._find(sector, offset, self._limit(sector))
            if offset < 0:
                if sector == self._head:
                    return False
                sector = self._after[sector]
                offset = _HEADER
                continue
            offset += self._size
            kind = self._kind & _TYPE
            self._piece_kind = self._piece_kind or kind
            if kind != self._piece_kind:
                continue
            if self._seq == self._piece_seq:
                self._piece_sector = sector
                self._piece_offset = offset
                return True
            if kind == _QUEUED:
                return False

    def is_open(self, slot: int) -> bool:
        """Return whether the slot is handed out: by `take` or `hold`, and not yet released."""
        return self._slot_state[slot] & _OPENED != 0

    def is_held(self, slot: int) -> bool:
        """Return whether the slot's message is an inbound one."""
        return self._slot_state[slot] & _HOLD != 0

    def seq_of(self, slot: int) -> int:
        """Return the sequence of the slot's message."""
        return self._slot_seq[slot]

    def length_of(self, slot: int) -> int:
        """Return how many bytes the slot's message has."""
        return self._slot_length[slot]

    def mark_of(self, slot: int) -> int:
        """Return the mark of the slot's message, 0 if it has none."""
        return self._slot_mark[slot]

    def old(self, slot: int) -> bool:
        """Return whether the slot's message was stored before this mount, so that it may have been sent before."""
        return self._slot_seq[slot] < self._boot_seq

    def read(self, slot: int, offset: int, buf, at: int, n: int) -> None:
        """Copy n bytes of the slot's message, from an offset on, to buf[at:at+n].

        Raises:
            UsageError: not bytes of that message. StoreCorrupt: a piece of it can't be read.
        """
        if not self._slot_state[slot] or offset < 0 or n < 0 or offset + n > self._slot_length[slot]:
            raise UsageError("read: not of this message")
        self._begin_pieces(self._slot_sector[slot], self._slot_offset[slot], self._slot_seq[slot])
        while n:
            if not self._next_piece():
                raise StoreCorrupt("message %d has lost a piece" % self._slot_seq[slot])
            part = min(self._length - offset, n)
            if part > 0:
                copy(buf, at, self._page, self._body + offset, part)
                at += part
                n -= part
                offset = 0
            else:
                offset -= self._length

    # --- finishing ---

    def mark(self, slot: int, value: int) -> None:
        """Give the slot's message a state byte, `value` 1 to 255, durably: a power cut brings it back open and with its mark."""
        if not self.is_open(slot):
            raise UsageError("mark: not open")
        put_u32(self._small, 0, value)
        self._write(_MARK, self._slot_seq[slot], self._small, 0, 4, False)
        self._slot_mark[slot] = value

    def release(self, slot: int) -> None:
        """The slot's message is done: gone from RAM now, from flash with the next write or `flush`.

        A power cut before that brings it back; `old` then tells that it may have been sent.
        """
        if not self.is_open(slot):
            raise UsageError("release: not open")
        state = self._slot_state[slot]
        seq = self._slot_seq[slot]
        self._slot_state[slot] = 0
        self._slot_mark[slot] = 0
        early = seq >= self._cursor_seq
        if early and not state & _HOLD:  # the cursor will come upon it
            self._early[self._early_n] = seq
            self._early_n += 1
        if state & _EXPLICIT:
            self._pend(-seq)
        elif early or not self._leave(seq):
            self._pend(seq)
        self._unsaid += 1
        if (self._unsaid >= _UNSAID or self._pending_n == _PENDING) and not self.worn and not self.closed:
            try:
                self.flush()
            except StoreWorn:
                pass  # it is resent after the next boot, as all that a worn store can do

    def _pend(self, seq):
        low = self._low()
        n = 0
        for i in range(self._pending_n):  # what low has passed need not be named
            if self._pending[i] < 0 or self._pending[i] >= low:
                self._pending[n] = self._pending[i]
                n += 1
        if n < _PENDING:
            self._pending[n] = seq
            n += 1
        self._pending_n = n

    def sync(self) -> None:
        """Nothing to do: every call here is durable when it returns."""

    def flush(self) -> None:
        """Make the releases, and the count of what was dropped, durable."""
        if not self._unsaid and self.dropped == self._said_dropped:
            return
        self._say()

    def _say(self):
        """Write what is done as a record of its own."""
        n = self._pending_n
        put_u32(self._done_body, 0, self.dropped)
        for i in range(n):
            put_finished(self._done_body, 4 + 4 * i, self._pending[i])
        self._write(_DONE, self._low(), self._done_body, 0, 4 + 4 * n, False)
        self._pending_n = 0
        self._unsaid = 0
        self._said_dropped = self.dropped

    def idle(self) -> None:
        """A good moment for slow work: erase the next sector, if it will be needed soon."""
        if self._ahead < 0 and not self.worn and 2 * self._end > self._sector_bytes:
            try:
                self._erased()
            except StoreWorn:
                pass

    def close(self) -> None:
        """End cleanly, as before a deep sleep: the next mount goes on in the same sector, without an erase."""
        if self.worn or self.closed:
            return
        self.flush()
        if self._spoiled or self._end + 2 * _PAGE > self._sector_bytes:  # both in one sector
            self._advance(False)
        put_u32(self._small, 0, self._ahead & _NO_SECTOR)  # -1 becomes that
        put_u32(self._small, 4, self._ahead_erases)
        self._write(_CLOSE | _FIRST, self._low(), self._small, 0, 8, False)
        self._write(_CLOSE | _LAST, self._low(), self._small, 0, 8, False)
        self.closed = True

    # --- writing ---

    def _write(self, kind, seq, buf, start, n, data):
        """Program one record at the end of the log; return its offset in the head.

        data: it takes room that is kept back when the store is nearly full.
        """
        if self.worn:
            raise StoreWorn("no sector left")
        if self.closed:
            raise UsageError("closed: only the next mount may write")
        delta = 255
        count = 0
        if kind & _TYPE < _DONE:  # a message, or its mark
            delta = self._below(seq)
            count = min(self._pending_n, _RIDES, (_BODY_MAX - n) // 4)
        while True:
            offset = self._room((_RECORD + 4 * count + n + 3) & -4, data)
            count = min(count, self._pending_n)  # none, if that opened a sector
            try:
                end = self._stage(self._head, offset, kind, delta, seq, buf, start, n, self._pending, count)
                self._program(self._head)
                break
            except FlashFailed:
                if self._left >= 0:
                    self._unopen()
                else:
                    self._spoiled = True
        if self._left >= 0:
            self._confirm()
            self._unsaid = 0
        self._end = end
        if count:
            self._pending_n -= count
            for i in range(self._pending_n):
                self._pending[i] = self._pending[i + count]
        if delta != 255 and not self._pending_n:
            self._unsaid = 0
        return offset

    def _below(self, seq):
        """Return how far low is below a message, as its records say it; 255: nothing is said."""
        delta = seq - self._low()
        return delta if 0 <= delta < 255 else 255

    def _room(self, size, data):
        """Return where in the head a record of so many bytes goes; opens the next sector if it has to."""
        if self._left < 0 and (self._spoiled or (data and self.sectors_usable - self._chain < 2)):
            self._advance(data)
        offset = self._fit(self._end, size)
        if offset < 0:
            self._advance(data)
            offset = self._fit(self._end, size)
        return offset

    def _advance(self, data):
        """Open the next sector, making room for it where the policy allows.

        Two sectors stay free behind every one opened for data, one behind any other: so a recovery, and the state of what is
        being sent, always find room.
        """
        while True:
            self._settle()
            self._erased()  # now, as it may find a bad sector, and then there is one less
            usable = self.sectors_usable
            chain = self._count(self._oldest())
            if usable - chain - 1 >= 2:
                self._open(self._end, False)
                return
            # Near the end. First what keeps the oldest sector from reuse: if it stayed where it is, the journal would turn
            # in the last few sectors for ever, and wear them out.
            if self._blocks_dead_sectors() and self._relieve(chain):
                continue
            # Then what is live in the head moves along, so that the chain grows no longer.
            if usable - chain >= (2 if data else 1) and self._carry(-1, _HEADER) <= self._sector_bytes // 2:
                self._open(_HEADER, True)
                return
            if not data:
                if usable - chain - 1 >= 1:
                    self._open(self._end, False)
                    return
                self.worn = True
                raise StoreWorn("no sector left")
            if usable < _USABLE_MIN:
                raise StoreWorn("no sector left")
            if not self._relieve(chain):
                raise StoreFull("%d sectors, %d messages" % (usable, self.waiting))

    def _blocks_dead_sectors(self):
        """Whether nothing but messages with a slot keeps the oldest sector, and nothing at all the one after it."""
        oldest = self._oldest()
        if oldest == self._head or oldest == self._cursor_sector:
            return False
        after = self._after[oldest]
        if after == self._head or after == self._cursor_sector:
            return False
        return self._eldest(_ANY, after) < 0

    def _relieve(self, chain):
        """Empty the oldest sector; return False if nothing can be done.

        A few messages that are taken move to the head. What waits stays, unless the policy is to drop it.
        """
        oldest = self._oldest()
        if oldest == self._head or self._left >= 0:
            return False
        waits = self._cursor_sector == oldest
        if waits and (self.policy != DROP_OLDEST or not self._queued):
            return False
        moved = moves = self._eldest(_ANY, oldest) >= 0
        most = self._most_moved()
        at = self._moved_end(oldest)
        if moves and at > most:
            return False
        # Where it can, the opening replaces the head, so that as many sectors stay free: the next one may be bad, and nothing is
        # free again before a header says what has moved. With one free sector only it has to: one is kept for a recovery.
        half = self._sector_bytes // 2
        tight = self.sectors_usable - chain < 2
        along = at + self._carry(-1, _HEADER) <= most
        if moves and tight and (self.sectors_usable == chain or not along):
            return False
        if moves:
            self._open(_HEADER if along else self._end, along)
            self._say()
            # By age: the power may go between two of them, and what has moved is taken first.
            for _ in range(self.slots):
                slot = self._eldest(_ANY, oldest)
                if slot < 0 or not self._move(slot, False):
                    break
            if tight:  # a header that says what is the oldest sector now
                self._open(_HEADER, True)
                self._say()
        if waits:
            while self._queued and self._cursor_sector == oldest and self._next():
                self._queued -= 1
                self.dropped += 1
                self._enter(self._found_seq, 1)
                self._settle()
                moved = True
        # What has moved leaves little room, and the next opening has to take it along.
        if moves and not tight and at > half:
            self._open(_HEADER, True)
            self._say()
        return moved

    def _most_moved(self):
        """Return where in a new sector the messages may end that move there: half of it has to stay free.

        More may move where all that have a slot fit into one sector: what then is oldest can be dropped, or is dead.
        """
        half = self._sector_bytes // 2
        if self.policy != DROP_OLDEST and not self._blocks_dead_sectors():
            return half
        most = self._sector_bytes - 3 * _PAGE
        if self._moved_end(-1) > most or self._put_table(-1, 0) > _ENTRIES_MAX:
            return half
        return most

    def _moved_end(self, sector):
        """Return where in a new sector the messages of one (-1: of all) that have a slot would end; its end: they don't fit."""
        at = 2 * _PAGE  # behind the opening
        for slot in range(self.slots):
            if self._slot_state[slot] and (sector < 0 or self._slot_sector[slot] == sector):
                at = self._copy(slot, at, False)
                if at < 0:
                    return self._sector_bytes
        return at

    def _unblock(self):
        """The first message of a full window moves out of the way; return False if there is no room for that."""
        if self.worn or self.closed or self._chain + 2 > self.sectors_usable:
            return False
        try:
            return self._move(self._slot_of(self._low()), True)
        except (StoreFull, StoreWorn):
            return False

    def _move(self, slot, data):
        """Copy a message into the head, all of it into one sector; from now on it has a place of its own."""
        while self._spoiled or self._copy(slot, self._end, False) < 0:
            if data:
                if not self._spoiled and self._end < self._sector_bytes // 2:
                    return False  # too long for this
                self._advance(True)
            elif self._spoiled:
                self._open(_HEADER, True)  # what has moved before it goes along
            else:
                return False
            self._say()
        try:
            self._copy(slot, self._end, True)
        except FlashFailed:
            self._spoiled = True
            return self._move(slot, data)
        seq = self._slot_seq[slot]
        self._slot_sector[slot] = self._head
        self._slot_offset[slot] = self._first
        if not self._slot_state[slot] & _EXPLICIT:
            self._slot_state[slot] |= _EXPLICIT
            if seq < self._cursor_seq:
                self._leave(seq)
        return True

    def _copy(self, slot, at, write):
        """Copy a message's pieces to the head from an offset on, or only measure; return where they end, or -1."""
        seq = self._slot_seq[slot]
        kind = _HELD if self._slot_state[slot] & _HOLD else _MOVED
        self._begin_pieces(self._slot_sector[slot], self._slot_offset[slot], seq)
        while self._next_piece():
            size = (_RECORD + self._length + 3) & -4
            at = self._fit(at, size)
            if at < 0:
                break
            flags = self._kind & (_FIRST | _LAST)
            if write:
                if flags & _FIRST:
                    self._first = at
                # Low has to be said: what is moved is taken first after a power cut, and what is older must be done by then.
                delta = self._below(seq)
                self._stage(self._head, at, kind | flags, delta, seq, self._page, self._body, self._length)
                self._program(self._head)
                self._end = at + size
            at += size
            if flags & _LAST:
                return at
        return -1
