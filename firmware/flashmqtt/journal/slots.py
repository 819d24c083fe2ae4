"""What is alive: the open slots, and the window of messages taken and not yet done. FORMAT.md, "What is alive".

Two kinds of message are told apart. A message in the *window* needs no bookkeeping on flash: everything below `low` is done,
and `low` rides along with every record. A message with a place of its own (held from the start, or moved out of the way) is
alive until its sequence is named as finished, and is listed in the table of each new sector. So RAM is bounded by slots and
window, never by the number of messages stored.

What it does not know: when to write (`journal`), and how a sector is opened (`ring`).
"""

from array import array

from flashmqtt.compat import const

from .fields import get_u16, put_u16, put_u32
from .ring import Ring

# The format's numbers, as layout.py has them (a test compares): private constants cost nothing on a board.
_PAGE = const(256)
_H_LOW_SECTOR = const(40)
_H_LOW_OFFSET = const(42)
_H_OPENING_END = const(50)
_HEADER = const(64)
_NO_SECTOR = const(0xFFFF)
_RECORD = const(12)
_TYPE = const(0x0F)
_QUEUED = const(1)
_HELD = const(2)
_MOVED = const(3)
_TABLE = const(6)
_ENTRY = const(12)
_E_SECTOR = const(4)
_E_OFFSET = const(6)
_E_MARK = const(8)
_E_FLAGS = const(9)
_E_EXPLICIT = const(1)
_E_HELD = const(2)
_E_DONE = const(4)
_ENTRIES_MAX = const(15)
_AGAIN = const(2)
_EXPLICIT = const(4)
_HOLD = const(8)
_WINDOW = const(32)


class Slots(Ring):
    """The slots' arrays, the window, and what a new sector's opening says of them."""

    def __init__(self, region, slots):
        super().__init__(region)
        self.next_seq = 1
        self.stored = 0
        self.dropped = 0
        self.boot = 0
        self._make_slots(slots)
        self._window_seq = array("i", [0] * _WINDOW)  # taken, in order; the first one is not done
        self._window_done = bytearray(_WINDOW)
        self._window_first = 0
        self._window_n = 0
        self._early = array("i", [0] * (_WINDOW + slots))  # done before their turn to be taken came
        self._early_n = 0
        self._cursor_sector = _NO_SECTOR  # all before this place is taken
        self._cursor_offset = _HEADER
        self._cursor_seq = 1
        self._backlog = 0  # messages on flash from low on
        self._queued = 0  # of these, not yet taken
        self._again = 0  # slots in the state _AGAIN
        self._chunk = 0  # sequence of the message that is being stored in pieces
        self._new_cursor = 0

    def _make_slots(self, slots):
        self.slots = slots
        self._slot_state = bytearray(slots)
        self._slot_seq = array("i", [0] * slots)
        self._slot_sector = array("H", [0] * slots)
        self._slot_offset = array("H", [0] * slots)
        self._slot_length = array("i", [0] * slots)
        self._slot_mark = bytearray(slots)
        self._new_offset = array("H", [0] * slots)  # in a sector that is being opened

    def _slot_of(self, seq):
        """Return the slot of a sequence, or -1."""
        for slot in range(self.slots):
            if self._slot_state[slot] and self._slot_seq[slot] == seq:
                return slot
        return -1

    def _free_slot(self):
        for slot in range(self.slots):
            if not self._slot_state[slot]:
                return slot
        return -1

    def _fill_slot(self, slot, state, seq, sector, offset, length):
        self._slot_state[slot] = state
        self._slot_seq[slot] = seq
        self._slot_sector[slot] = sector
        self._slot_offset[slot] = offset
        self._slot_length[slot] = length
        self._slot_mark[slot] = 0

    # --- the window ---

    def _low(self):
        """Return the sequence below which every queued message is done or has moved."""
        return self._window_seq[self._window_first] if self._window_n else self._cursor_seq

    def _enter(self, seq, done):
        """A message leaves the queue for the window."""
        if done and not self._window_n:
            self._backlog -= 1
            return
        at = (self._window_first + self._window_n) % _WINDOW
        self._window_seq[at] = seq
        self._window_done[at] = done
        self._window_n += 1

    def _leave(self, seq):
        """A message is done; return whether low has passed it."""
        first = self._window_first
        for i in range(self._window_n):
            at = (first + i) % _WINDOW
            if self._window_seq[at] == seq:
                self._window_done[at] = 1
                break
        while self._window_n and self._window_done[self._window_first]:
            self._window_first = (self._window_first + 1) % _WINDOW
            self._window_n -= 1
            self._backlog -= 1
        return seq < self._low()

    def _forget_early(self, seq):
        """Return whether this message was done before its turn; not any more then."""
        for i in range(self._early_n):
            if self._early[i] == seq:
                self._early_n -= 1
                self._early[i] = self._early[self._early_n]
                return True
        return False

    # --- where what is alive lies ---

    def _settle(self):
        """Move the cursor over places where nothing waits."""
        if not self._queued and not self._chunk and self._backlog - self._window_n == self._early_n:
            self._backlog = self._window_n
            self._early_n = 0
            self._cursor_seq = self.next_seq
            self._cursor_sector = self._head
            self._cursor_offset = self._end
        while self._cursor_sector != self._head and self._cursor_offset >= self._limit(self._cursor_sector):
            self._cursor_sector = self._after[self._cursor_sector]
            self._cursor_offset = _HEADER

    def _is_head_dead(self):
        """Return whether nothing at all is alive on flash."""
        if self._cursor_sector != self._head or self._cursor_offset < self._end:
            return False
        for slot in range(self.slots):
            if self._slot_state[slot]:
                return False
        return True

    def _oldest(self):
        """Return the oldest sector that holds something alive."""
        sector = self._tail
        while sector != self._head and sector != self._cursor_sector:
            for slot in range(self.slots):
                if self._slot_state[slot] and self._slot_sector[slot] == sector:
                    return sector
            sector = self._after[sector]
        return sector

    def _is_live(self):
        """Return whether the record just read must not be lost."""
        kind = self._kind & _TYPE
        if kind == _QUEUED:
            return self._seq >= self._low()
        if kind == _HELD or kind == _MOVED:
            slot = self._slot_of(self._seq)
            return slot >= 0 and self._slot_state[slot] & _EXPLICIT != 0
        return False

    def _carry(self, target, carry_from):
        """Copy what is live in the head, from an offset on, to the pages behind the target's first; return where it ends.

        target -1: only measure.
        """
        head = self._head
        limit = self._end
        to = _HEADER
        offset = carry_from
        for slot in range(self.slots):
            self._new_offset[slot] = 0
        self._new_cursor = 0
        while True:
            offset = self._find(head, offset, limit)
            if offset < 0:
                break
            here = offset
            offset += self._size
            if not self._is_live():
                continue
            size = (_RECORD + self._length + 3) & -4  # the rides stay behind
            at = self._fit(max(to, _PAGE), size)
            if at < 0:
                return self._sector_bytes  # only when measured
            to = at + size
            if target < 0:
                continue
            slot = self._slot_of(self._seq)
            if slot >= 0 and self._slot_sector[slot] == head and self._slot_offset[slot] == here:
                self._new_offset[slot] = at
            if not self._new_cursor and self._kind & _TYPE == _QUEUED and here >= self._cursor_offset:
                self._new_cursor = at  # counts if the cursor is in the head, and the head is replaced
            self._stage(target, at, self._kind, 255, self._seq, self._page, self._body, self._length)
        if target >= 0:
            self._program(target)
        return to

    def _take_places(self, new):
        """What was carried lies in the new sector from now on."""
        if (self._replaced or self._prev == _NO_SECTOR) and self._cursor_sector == self._old_head:
            self._cursor_sector = new
            self._cursor_offset = self._new_cursor or self._opening_end
        for slot in range(self.slots):
            if self._new_offset[slot]:
                self._slot_sector[slot] = new
                self._slot_offset[slot] = self._new_offset[slot]
                self._new_offset[slot] = 0

    # --- what an opening says ---

    def _put_low_place(self, out, target, gone):
        """Write where low lies into a header."""
        if self._window_n:
            slot = self._slot_of(self._low())
            offset = self._new_offset[slot]
            sector = target if offset else self._slot_sector[slot]
            offset = offset or self._slot_offset[slot]
        elif gone and self._cursor_sector == self._head:
            sector = target
            offset = self._new_cursor or get_u16(out, _H_OPENING_END)
        else:
            sector = self._cursor_sector
            offset = self._cursor_offset
        put_u16(out, _H_LOW_SECTOR, sector)
        put_u16(out, _H_LOW_OFFSET, offset)

    def _exceptions(self):
        """Return how many entries the table needs."""
        n = self._early_n
        for i in range(self._window_n):
            n += self._window_done[(self._window_first + i) % _WINDOW]
        for slot in range(self.slots):
            if self._slot_state[slot] & _EXPLICIT or self._slot_mark[slot]:
                n += 1
        return n

    def _put_table(self, target, offset):
        """Stage the table; return where it ends."""
        self._entries = 0
        for slot in range(self.slots):
            state = self._slot_state[slot]
            if state & _EXPLICIT or self._slot_mark[slot]:
                place = self._new_offset[slot]
                sector = target if place else self._slot_sector[slot]
                place = place or self._slot_offset[slot]
                flags = (_E_EXPLICIT if state & _EXPLICIT else 0) | (_E_HELD if state & _HOLD else 0)
                offset = self._put_entry(
                    target, offset, self._slot_seq[slot], sector, place, self._slot_mark[slot], flags
                )
        for i in range(self._window_n):
            at = (self._window_first + i) % _WINDOW
            if self._window_done[at]:
                offset = self._put_entry(target, offset, self._window_seq[at], 0, 0, 0, _E_DONE)
        for i in range(self._early_n):
            offset = self._put_entry(target, offset, self._early[i], 0, 0, 0, _E_DONE)
        return self._stage_table(target, offset)

    def _put_entry(self, target, offset, seq, sector, place, mark, flags):
        if self._entries == _ENTRIES_MAX:
            offset = self._stage_table(target, offset)
        table = self._table
        at = self._entries * _ENTRY
        put_u32(table, at, seq)
        put_u16(table, at + _E_SECTOR, sector)
        put_u16(table, at + _E_OFFSET, place)
        table[at + _E_MARK] = mark
        table[at + _E_FLAGS] = flags
        table[at + _E_FLAGS + 1] = table[at + _E_FLAGS + 2] = 0
        self._entries += 1
        return offset

    def _stage_table(self, target, offset):
        n = self._entries * _ENTRY
        self._entries = 0
        if not n:
            return offset
        offset = self._fit(offset, _RECORD + n)
        return self._stage(target, offset, _TABLE, 255, 0, self._table, 0, n)
