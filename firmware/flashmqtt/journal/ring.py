"""Sectors, and what is alive in them: the chain, the window, the slots, and how the next sector is opened.

FORMAT.md, "Sector" and "What is alive". The log is a chain of sectors from tail to head. The next head is always the first sector
behind the head, in ring order, that is not on the chain: wear stays level, and a recovery knows the one place where an
interrupted opening may lie. What makes a crash safe is the order of the programs when a sector is opened:

    what is carried over from the head    pages 1...
    the table, then the header            page 0: now the opening is complete
    the first record                      confirms it; only now does anybody act on it, only now may older sectors be erased

A header that nothing confirms counts for nothing, so it does not matter how its cells read.

Two kinds of message are told apart. A message in the *window* needs no bookkeeping on flash: everything below `low` is done,
and `low` rides along with every record. A message with a place of its own (held from the start, or moved out of the way) is
alive until its sequence is named as finished, and is listed in the table of each new sector. So RAM is bounded by slots and
window, never by the number of messages stored.

What it does not know: when to write, and what a store is asked for (`journal`).
"""

from array import array
from struct import pack_into

from flashmqtt.compat import const
from flashmqtt.errors import FlashFailed, StoreWorn, UsageError
from flashmqtt.fast import crc32_matches, put_crc32

from .log import ENTRY_FIELDS, HEADER_FIELDS, MAGIC, Log, get_u16, get_u32

# The format's numbers, as tools/journal/layout.py has them (a test compares): private constants cost nothing on a board.
_VERSION = const(1)
_PAGE = const(256)
_H_ERASES = const(36)
_H_PREV = const(46)
_H_PREV_END = const(48)
_H_PREV_SEQ = const(52)
_H_CRC = const(60)
_HEADER = const(64)
_NO_SECTOR = const(0xFFFF)
_RECORD = const(12)
_TYPE = const(0x0F)
_QUEUED = const(1)
_MOVED = const(3)
_TABLE = const(6)
_ENTRY = const(12)
_E_DONE = const(4)
_ENTRIES_MAX = const(15)
_FREE = const(0)
_CHAINED = const(1)
_RETIRED = const(2)
_EXPLICIT = const(4)
_WINDOW = const(32)
_ANY = const(0xFF)  # states of a slot: all but free


class Ring(Log):
    """The chain of sectors, the slots' arrays, the window, and the opening of the next sector."""

    def __init__(self, region, slots):
        super().__init__(region)
        n = region.sectors
        self._use = bytearray(n)
        self._after = array("H", [_NO_SECTOR] * n)  # the next sector on the chain
        self.sectors_usable = n  # less those that were bad at any time
        self._bad = 0  # found in this boot
        self.worn = self._spoiled = False  # spoiled: the head's next place took no program, leave it
        self._tail = self._head = self._prev = _NO_SECTOR  # prev: what the head's header says of the sector before
        self._end = self._opening_end = _HEADER  # where the head's records end, and what it was opened with
        self._chain = 0  # sectors from tail to head
        self._prev_end = self._prev_seq = 0
        self._ring_seq = 0  # the highest sequence that any sector got
        self._ahead = -1  # a sector erased in advance, in this boot or before a clean end
        self._ahead_erases = self._erases = 0  # of that sector, and of the head
        # An opening that no record has confirmed yet:
        self._left = -1  # the head that it leaves; -1: there is none
        self._left_end = self._new_tail = self._new_prev_end = self._new_prev_seq = self._new_cursor = 0
        self._new_prev = _NO_SECTOR
        self._replaced = False
        self._limit_sector = -1  # the sector whose end was read last
        self._limit_offset = 0
        self._table = bytearray(_ENTRY * _ENTRIES_MAX)
        self._entries = 0  # in `_table`
        # What is alive.
        self.next_seq = self._cursor_seq = 1  # the cursor: all before this place is taken
        self._cursor_sector = _NO_SECTOR
        self._cursor_offset = _HEADER
        self.stored = self.dropped = self.boot = 0
        # A table names every slot, and what is done out of turn: room for it beside half a sector of messages, and a record.
        most = max(_ENTRIES_MAX, (region.sector_bytes // (2 * _PAGE) - 2) * _ENTRIES_MAX)
        if slots >= most:
            raise UsageError("%d slots: %d at most" % (slots, most - 1))
        self._span = min(_WINDOW, most - slots)  # messages that may be taken and not done, out of turn
        self._make_slots(slots)
        self._window = array("i", [0] * _WINDOW)  # taken, in order; negative: done. The first one is not done
        self._window_first = self._window_n = 0
        self._early = array("i", [0] * (_WINDOW + slots))  # done before their turn to be taken came
        self._early_n = 0
        self._backlog = 0  # messages on flash from low on
        self._queued = 0  # of these, not yet taken
        self._again = 0  # slots in the state _AGAIN
        self._chunk = 0  # sequence of the message that is being stored in pieces
        self._pending_n = 0  # finished sequences that are to be named

    def _make_slots(self, slots):
        self.slots = slots
        self._slot_state = bytearray(slots)
        self._slot_mark = bytearray(slots)
        self._slot_seq = array("i", [0] * slots)
        self._slot_length = array("i", [0] * slots)
        self._slot_sector = array("H", [0] * slots)
        self._slot_offset = array("H", [0] * slots)
        self._new_offset = array("H", [0] * slots)  # in a sector that is being opened

    def _slot_of(self, seq):
        """Return the slot of a sequence, or -1."""
        for slot in range(self.slots):
            if self._slot_state[slot] and self._slot_seq[slot] == seq:
                return slot
        return -1

    def _free_slot(self):
        """Return a slot that is free, or -1."""
        return self._slot_state.find(b"\0")

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
        return self._window[self._window_first] if self._window_n else self._cursor_seq

    def _enter(self, seq, done):
        """A message leaves the queue for the window."""
        if done and not self._window_n:
            self._backlog -= 1
            return
        self._window[(self._window_first + self._window_n) % _WINDOW] = -seq if done else seq
        self._window_n += 1

    def _leave(self, seq):
        """A message is done; return whether low has passed it."""
        window = self._window
        for i in range(self._window_n):
            at = (self._window_first + i) % _WINDOW
            if window[at] == seq:
                window[at] = -seq
                break
        while self._window_n and window[self._window_first] < 0:
            self._window_first = (self._window_first + 1) % _WINDOW
            self._window_n -= 1
            self._backlog -= 1
        return seq < self._low()

    def _forget_early(self, seq):
        """Return whether this message was done before its turn; not any more then."""
        early = self._early
        for i in range(self._early_n):
            if early[i] == seq:
                self._early_n -= 1
                early[i] = early[self._early_n]
                return True
        return False

    # --- where what is alive lies ---

    def _settle(self):
        """Move the cursor over places where nothing waits."""
        n = self._window_n
        if not self._queued and not self._chunk and self._backlog - n == self._early_n:
            self._backlog = n
            self._early_n = 0
            self._cursor_seq = self.next_seq
            self._cursor_sector = self._head
            self._cursor_offset = self._end
        while self._cursor_sector != self._head and self._cursor_offset >= self._limit(self._cursor_sector):
            self._cursor_sector = self._after[self._cursor_sector]
            self._cursor_offset = _HEADER

    def _eldest(self, states, sector):
        """Return the slot of the oldest message in one of these states, in a sector (-1: in any); -1: there is none."""
        eldest = -1
        for slot in range(self.slots):
            if (
                self._slot_state[slot] & states
                and (sector < 0 or self._slot_sector[slot] == sector)
                and (eldest < 0 or self._slot_seq[slot] < self._slot_seq[eldest])
            ):
                eldest = slot
        return eldest

    def _oldest(self):
        """Return the oldest sector that holds something alive."""
        sector = self._tail
        while sector != self._head and sector != self._cursor_sector and self._eldest(_ANY, sector) < 0:
            sector = self._after[sector]
        return sector

    def _carry(self, target, carry_from):
        """Copy what is live in the head, from an offset on, to the pages behind the target's first; return where it ends.

        target -1: only measure.
        """
        head = self._head
        to = _HEADER
        offset = carry_from
        for slot in range(self.slots):
            self._new_offset[slot] = 0
        self._new_cursor = 0
        while True:
            here = self._find(head, offset, self._end)
            if here < 0:
                break
            offset = here + self._size
            kind = self._kind & _TYPE
            slot = self._slot_of(self._seq)
            if kind == _QUEUED:
                if self._seq < self._low():
                    continue
            elif kind > _MOVED or slot < 0 or not self._slot_state[slot] & _EXPLICIT:
                continue
            size = (_RECORD + self._length + 3) & -4  # the rides stay behind
            at = self._fit(max(to, _PAGE), size)
            if at < 0:
                return self._sector_bytes  # only when measured
            to = at + size
            if target < 0:
                continue
            if slot >= 0 and self._slot_sector[slot] == head and self._slot_offset[slot] == here:
                self._new_offset[slot] = at
            if not self._new_cursor and kind == _QUEUED and here >= self._cursor_offset:
                self._new_cursor = at  # counts if the cursor is in the head, and the head is replaced
            self._stage(target, at, self._kind, 255, self._seq, self._page, self._body, self._length)
        if target >= 0:
            self._program(target)
        return to

    # --- the next sector ---

    def _behind(self, sector):
        """Return the first sector behind one, in ring order, that is neither in use nor retired; -1: none."""
        n = self.region.sectors
        for _ in range(n):
            sector = sector + 1 if sector + 1 < n else 0
            if self._use[sector] == _FREE:
                return sector
        return -1

    @property
    def wear(self) -> int:
        """How often the newest sector has been erased; the ring keeps the others within one of it."""
        return self._erases

    def _erased(self):
        """Return the next sector, erased.

        Raises:
            StoreWorn: no sector is left that takes an erase.
        """
        while True:
            sector = self._behind(self._head)
            if sector < 0:
                self.worn = True
                raise StoreWorn("no sector left")
            if sector == self._ahead:
                return sector
            # The count stands in the old header. Where that is gone, all are about as old as the head.
            self._load(sector, 0)
            self._ahead_erases = self._erases
            if self._is_header():
                self._ahead_erases = get_u32(self._page, _H_ERASES) + 1
            self._page_number = -1
            try:
                self.region.erase(sector)
                self._ahead = sector
            except FlashFailed:
                self._retire(sector)

    def _is_header(self):
        """Return whether the page read last begins with a whole header."""
        return crc32_matches(self._page, 0, _H_CRC, _H_CRC, 0)

    def _retire(self, sector):
        """Use a sector no more in this boot. The next one tries it again, and finds out by itself."""
        self._use[sector] = _RETIRED
        self._bad += 1
        self.sectors_usable = min(self.sectors_usable, self.region.sectors - self._bad)
        self._ahead = -1

    def _open(self, carry_from, replace):
        """Open the next sector. What is live in the head from carry_from on goes with it.

        replace: everything live goes, so the head itself leaves the chain.
        """
        while True:
            target = self._erased()
            self._ring_seq += 1
            self._seqs[target] = self._ring_seq
            try:
                self._put_opening(target, self._carry(target, carry_from), carry_from, replace)
                break
            except FlashFailed:
                self._retire(target)
                # There is one sector less than was reckoned with, so the chain had better not grow.
                if self._chain and self._carry(-1, _HEADER) <= self._sector_bytes // 2:
                    carry_from = _HEADER
                    replace = True
        self._ahead = -1
        self._left = self._head
        self._left_end = self._end
        self._replaced = replace
        self._head = target
        self._end = self._opening_end
        self._erases, self._ahead_erases = self._ahead_erases, self._erases
        self._spoiled = False
        self._pending_n = 0  # the opening says it all

    def _put_opening(self, target, end, carry_from, replace):
        """Program the table and, last, the header."""
        entries = self._put_table(-1, 0)
        if entries > _ENTRIES_MAX:  # rare: a bigger table stands behind what was carried
            end = self._put_table(target, max(end, _PAGE))
            self._program(target)
        self._claim(target, 0, _HEADER)
        if 0 < entries <= _ENTRIES_MAX:
            end = max(end, self._put_table(target, _HEADER))
        head = self._head
        oldest = self._oldest()
        prev = _NO_SECTOR
        prev_end = prev_seq = 0
        if replace:
            prev, prev_end, prev_seq = self._prev, self._prev_end, self._prev_seq
            if oldest == head:
                oldest = target
                prev = _NO_SECTOR
        elif self._cursor_sector == head and self._cursor_offset >= self._end and not any(self._slot_state):
            oldest = target  # nothing at all is alive
        else:
            prev, prev_end, prev_seq = head, carry_from, self._seqs[head]
        # Where low lies.
        low_sector = self._cursor_sector
        low_offset = self._cursor_offset
        if self._window_n:
            slot = self._slot_of(self._low())
            low_sector = target if self._new_offset[slot] else self._slot_sector[slot]
            low_offset = self._new_offset[slot] or self._slot_offset[slot]
        elif low_sector == head and (replace or oldest == target):
            low_sector = target
            low_offset = self._new_cursor or end
        out = self._out
        pack_into(
            HEADER_FIELDS,
            out,
            0,
            MAGIC,
            _VERSION,
            _VERSION ^ 0xFF,
            0,
            self._sector_shift,
            self._ring_seq,
            self.next_seq,
            self._low(),
            self.stored,
            self.dropped,
            self._backlog,
            self.boot,
            self._ahead_erases,
            low_sector,
            low_offset,
            oldest,
            prev,
            prev_end,
            end,
            prev_seq,
            self.region.sectors,
            self.region.sectors - self.sectors_usable,
        )
        put_crc32(out, 0, _H_CRC, _H_CRC, 0)
        self._program(target)
        self._opening_end = end
        self._new_tail = oldest
        self._new_prev = prev
        self._new_prev_end = prev_end
        self._new_prev_seq = prev_seq

    def _put_table(self, target, offset):
        """Stage the table, and return where it ends; target -1: return how many entries it needs."""
        self._entries = 0
        for slot in range(self.slots):
            flags = self._slot_state[slot] >> 2  # as _E_EXPLICIT and _E_HELD
            if flags or self._slot_mark[slot]:
                place = self._new_offset[slot]
                sector = target if place else self._slot_sector[slot]
                place = place or self._slot_offset[slot]
                offset = self._put_entry(
                    target, offset, self._slot_seq[slot], sector, place, self._slot_mark[slot], flags
                )
        for i in range(self._window_n):
            seq = self._window[(self._window_first + i) % _WINDOW]
            if seq < 0:
                offset = self._put_entry(target, offset, -seq, 0, 0, 0, _E_DONE)
        for i in range(self._early_n):
            offset = self._put_entry(target, offset, self._early[i], 0, 0, 0, _E_DONE)
        return self._entries if target < 0 else self._stage_table(target, offset)

    def _put_entry(self, target, offset, seq, sector, place, mark, flags):
        if target >= 0:
            if self._entries == _ENTRIES_MAX:
                offset = self._stage_table(target, offset)
            pack_into(ENTRY_FIELDS, self._table, self._entries * _ENTRY, seq, sector, place, mark, flags)
        self._entries += 1
        return offset

    def _stage_table(self, target, offset):
        n = self._entries * _ENTRY
        self._entries = 0
        if not n:
            return offset
        return self._stage(target, self._fit(offset, _RECORD + n), _TABLE, 255, 0, self._table, 0, n)

    def _confirm(self):
        """A record stands in the new sector: from now on the opening counts, and what is older than its tail is free."""
        old = self._left
        new = self._head
        self._left = self._limit_sector = -1
        self._prev = self._new_prev
        self._prev_end = self._new_prev_end
        self._prev_seq = self._new_prev_seq
        # What was carried lies in the new sector from now on.
        if (self._replaced or self._prev == _NO_SECTOR) and self._cursor_sector == old:
            self._cursor_sector = new
            self._cursor_offset = self._new_cursor or self._opening_end
        for slot in range(self.slots):
            if self._new_offset[slot]:
                self._slot_sector[slot] = new
                self._slot_offset[slot] = self._new_offset[slot]
                self._new_offset[slot] = 0
        if self._replaced:
            self._use[old] = _FREE
        if self._prev != _NO_SECTOR:
            self._after[self._prev] = new
        self._after[new] = _NO_SECTOR
        while self._tail != self._new_tail and self._tail != _NO_SECTOR:
            self._use[self._tail] = _FREE
            self._tail = _NO_SECTOR if self._tail == old else self._after[self._tail]
        self._use[new] = _CHAINED
        self._tail = self._new_tail
        self._chain = self._count(self._tail)

    def _count(self, first):
        """Return how many sectors the chain has from one of them to the head."""
        n = 1
        while first != self._head:
            first = self._after[first]
            n += 1
        return n

    def _unopen(self):
        """The new sector did not take its first record: forget it."""
        self._retire(self._head)
        self._head = self._left
        self._end = self._left_end
        self._left = -1
        self._spoiled = True

    def _limit(self, sector):
        """Return where a sector's records end: the next one's header says it."""
        if sector == self._head:
            return self._end
        if sector == self._left:
            return self._left_end
        if sector != self._limit_sector:
            after = self._after[sector]
            self._load(after, 0)
            page = self._page
            if (
                not self._is_header()
                or get_u16(page, _H_PREV) != sector
                or get_u32(page, _H_PREV_SEQ) != self._seqs[sector]
            ):
                self._damaged(after)
            self._limit_offset = get_u16(page, _H_PREV_END)
            self._limit_sector = sector
        return self._limit_offset
