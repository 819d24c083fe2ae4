"""Sectors: which hold the log, in what order, which comes next. FORMAT.md, "Sector" and "Leaving a sector".

The log is a chain of sectors from tail to head. The next head is always the first sector behind the head, in ring order, that is
not on the chain: wear stays level, and a recovery knows the one place where an interrupted opening may lie. What makes a crash
safe is the order of the programs when a sector is opened:

    what is carried over from the head    pages 1...
    the table, then the header            page 0: now the opening is complete
    the first record                      confirms it; only now does anybody act on it, only now may older sectors be erased

A header that nothing confirms counts for nothing, so it does not matter how its cells read.

What it does not know: what a record means beyond "is it live", which the journal above answers.
"""

from array import array

from flashmqtt.compat import TYPE_CHECKING, const
from flashmqtt.errors import FlashFailed, StoreCorrupt, StoreWorn
from flashmqtt.fast import copy, crc32_matches, put_crc32

from .fields import MAGIC, get_u16, get_u32, put_u16, put_u32
from .log import Log

# The format's numbers, as layout.py has them (a test compares): private constants cost nothing on a board.
_VERSION = const(1)
_PAGE = const(256)
_H_VERSION = const(4)
_H_FLAGS = const(6)
_H_SECTOR_SHIFT = const(7)
_H_SEQ = const(8)
_H_NEXT_SEQ = const(12)
_H_LOW = const(16)
_H_STORED = const(20)
_H_DROPPED = const(24)
_H_BACKLOG = const(28)
_H_BOOT = const(32)
_H_ERASES = const(36)
_H_TAIL = const(44)
_H_PREV = const(46)
_H_PREV_END = const(48)
_H_OPENING_END = const(50)
_H_PREV_SEQ = const(52)
_H_SECTORS = const(56)
_H_BAD = const(58)
_H_CRC = const(60)
_HEADER = const(64)
_NO_SECTOR = const(0xFFFF)
_ENTRY = const(12)
_ENTRIES_MAX = const(15)
_FREE = const(0)
_CHAINED = const(1)
_RETIRED = const(2)


if TYPE_CHECKING:
    from collections.abc import Callable


class Ring(Log):
    """The chain of sectors, and the opening of the next one."""

    # What `slots` has, and an opening says.
    next_seq: int
    stored: int
    dropped: int
    boot: int
    _backlog: int
    _pending_n: int
    _low: "Callable[[], int]"
    _oldest: "Callable[[], int]"
    _is_head_dead: "Callable[[], bool]"
    _exceptions: "Callable[[], int]"
    _carry: "Callable[[int, int], int]"
    _put_table: "Callable[[int, int], int]"
    _put_low_place: "Callable[..., None]"
    _take_places: "Callable[[int], None]"

    def __init__(self, region):
        super().__init__(region)
        self._use = bytearray(region.sectors)
        self._after = array("H", [_NO_SECTOR] * region.sectors)  # the next sector on the chain
        self.sectors_usable = region.sectors  # less those that were bad at any time
        self._bad = 0  # found in this boot
        self.worn = False
        self._tail = self._head = _NO_SECTOR
        self._end = _HEADER  # where the head's records end
        self._chain = 0  # sectors from tail to head
        self._prev = _NO_SECTOR  # what the head's header says of the sector before
        self._prev_end = self._prev_seq = 0
        self._ring_seq = 0  # the highest sequence that any sector got
        self._spoiled = False  # the head's next place took no program: leave it
        self._ahead = -1  # a sector erased in advance, in this boot or before a clean end
        self._ahead_erases = 0
        self._erases = 0  # of the head
        # An opening that no record has confirmed yet:
        self._left = -1  # the head that it leaves; -1: there is none
        self._old_head = _NO_SECTOR
        self._left_end = 0
        self._new_tail = 0
        self._new_prev = _NO_SECTOR
        self._new_prev_end = self._new_prev_seq = 0
        self._replaced = False
        self._opening_end = _HEADER
        self._limit_sector = -1
        self._limit_offset = 0
        self._table = bytearray(_ENTRY * _ENTRIES_MAX)
        self._entries = 0  # in `_table`

    # --- the next sector ---

    def _behind(self, sector):
        """Return the first sector behind one, in ring order, that is neither in use nor retired; -1: none."""
        n = self.region.sectors
        at = sector if sector != _NO_SECTOR else n - 1
        for _ in range(n):
            at = at + 1 if at + 1 < n else 0
            if self._use[at] == _FREE:
                return at
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
                raise StoreWorn("no sector left that works")
            if sector == self._ahead:
                return sector
            # The count stands in the old header. Where that is gone, all are about as old as the head.
            self._load(sector, 0)
            self._ahead_erases = self._erases
            if crc32_matches(self._page, 0, _H_CRC, _H_CRC, 0):
                self._ahead_erases = get_u32(self._page, _H_ERASES) + 1
            self._page_number = -1
            try:
                self.region.erase(sector)
                self._ahead = sector
            except FlashFailed:
                self._retire(sector)

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
        old = self._head
        while True:
            target = self._erased()
            self._ring_seq += 1
            self._seqs[target] = self._ring_seq
            try:
                self._put_opening(target, self._carry(target, carry_from), carry_from, replace)
                break
            except FlashFailed:
                self._retire(target)
        self._ahead = -1
        self._left = self._old_head = old
        self._left_end = self._end
        self._replaced = replace
        self._head = target
        self._end = self._opening_end
        self._erases, self._ahead_erases = self._ahead_erases, self._erases
        self._spoiled = False
        self._pending_n = 0  # the opening says it all

    def _put_opening(self, target, end, carry_from, replace):
        """Program the table and, last, the header."""
        entries = self._exceptions()
        if entries > _ENTRIES_MAX:  # rare: a bigger table stands behind what was carried
            end = self._put_table(target, max(end, _PAGE))
            self._program(target)
        self._claim(target, 0, _HEADER)
        if 0 < entries <= _ENTRIES_MAX:
            end = max(end, self._put_table(target, _HEADER))
        oldest = self._oldest()
        prev, prev_end, prev_seq = _NO_SECTOR, 0, 0
        if replace:
            prev, prev_end, prev_seq = self._prev, self._prev_end, self._prev_seq
            if oldest == self._head:
                oldest = target
        elif self._is_head_dead():
            oldest = target
        else:
            prev, prev_end, prev_seq = self._head, carry_from, self._seqs[self._head]
        if oldest == target:
            prev = _NO_SECTOR
        out = self._out
        copy(out, 0, MAGIC, 0, 4)
        out[_H_VERSION] = _VERSION
        out[_H_VERSION + 1] = _VERSION ^ 0xFF
        out[_H_FLAGS] = 0
        out[_H_SECTOR_SHIFT] = shift(self._sector_bytes)
        put_u32(out, _H_SEQ, self._ring_seq)
        put_u32(out, _H_ERASES, self._ahead_erases)
        put_u16(out, _H_TAIL, oldest)
        put_u16(out, _H_PREV, prev)
        put_u16(out, _H_PREV_END, prev_end)
        put_u32(out, _H_PREV_SEQ, prev_seq)
        put_u16(out, _H_OPENING_END, end)
        put_u16(out, _H_SECTORS, self.region.sectors)
        put_u16(out, _H_BAD, self.region.sectors - self.sectors_usable)
        put_u32(out, _H_NEXT_SEQ, self.next_seq)
        put_u32(out, _H_LOW, self._low())
        put_u32(out, _H_STORED, self.stored)
        put_u32(out, _H_DROPPED, self.dropped)
        put_u32(out, _H_BACKLOG, self._backlog)
        put_u32(out, _H_BOOT, self.boot)
        self._put_low_place(out, target, replace or oldest == target)
        put_crc32(out, 0, _H_CRC, _H_CRC, 0)
        self._program(target)
        self._opening_end = end
        self._new_tail = oldest
        self._new_prev, self._new_prev_end, self._new_prev_seq = prev, prev_end, prev_seq

    def _confirm(self):
        """A record stands in the new sector: from now on the opening counts, and what is older than its tail is free."""
        old = self._left
        new = self._head
        self._left = -1
        self._prev, self._prev_end, self._prev_seq = self._new_prev, self._new_prev_end, self._new_prev_seq
        self._take_places(new)
        self._limit_sector = -1
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
        bad = self._head
        self._head = self._left
        self._end = self._left_end
        self._left = -1
        self._retire(bad)
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
                not crc32_matches(page, 0, _H_CRC, _H_CRC, 0)
                or get_u16(page, _H_PREV) != sector
                or get_u32(page, _H_PREV_SEQ) != self._seqs[sector]
            ):
                raise StoreCorrupt("sector %d: its header is damaged" % after)
            self._limit_offset = get_u16(page, _H_PREV_END)
            self._limit_sector = sector
        return self._limit_offset


def shift(n):
    """Return log2 of a power of two."""
    bits = 0
    while n > 1:
        n >>= 1
        bits += 1
    return bits
