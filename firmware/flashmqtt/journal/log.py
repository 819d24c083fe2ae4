"""Records on pages: find one, read it, write one. FORMAT.md, "Conventions" and "Record".

The idea: no record crosses a page, and every record is one program of its page. So a power cut damages one record and no other,
two 256-byte buffers are all that reading and writing need, and nothing here ever allocates.

What it does not know: which sectors are in use and in what order (`ring`), and what the records mean (`journal`).
"""

from array import array
from struct import pack_into

from flashmqtt.compat import const
from flashmqtt.errors import StoreCorrupt, StoreEncrypted, UsageError
from flashmqtt.fast import copy, crc32_matches, fill, is_blank, put_crc32

# The format's numbers, as tools/journal/layout.py has them (a test compares): private constants cost nothing on a board.
_PAGE = const(256)
_R_LENGTH = const(4)
_R_KIND = const(5)
_R_DELTA = const(6)
_R_RIDES = const(7)
_R_SEQ = const(8)
_RECORD = const(12)
_FIRST = const(0x40)
_CLOSE = const(8)
_SEAL = const(32)

MAGIC = b"fmqj"  # what every sector begins with
HEADER_FIELDS = "<4s4B8I6HI2H"  # for `struct`: a sector's header up to its CRC
ENTRY_FIELDS = "<I2H2B"  # and an entry of a table


def get_u16(buf, at):
    """Return two bytes as a number."""
    return buf[at] | buf[at + 1] << 8


def get_u32(buf, at):
    """Return four bytes as a number."""
    return buf[at] | buf[at + 1] << 8 | buf[at + 2] << 16 | buf[at + 3] << 24


def put_finished(buf, at, seq):
    """Write the sequence of a finished message; the top bit says that it had a place of its own (seq is negative)."""
    put_u32(buf, at, abs(seq))
    if seq < 0:
        buf[at + 3] |= 0x80


def put_u32(buf, at, value):
    """Write a number as four bytes."""
    buf[at] = value & 0xFF
    buf[at + 1] = value >> 8 & 0xFF
    buf[at + 2] = value >> 16 & 0xFF
    buf[at + 3] = value >> 24


class Log:
    """The pages of a region; after `_look` the fields of one record."""

    def __init__(self, region):
        size = region.sector_bytes
        if _PAGE % region.page_bytes or size % _PAGE or not 1024 <= size <= 0x8000 or not 3 <= region.sectors <= 0xFFFE:
            raise UsageError("a journal needs pages of up to 256 bytes, 3 sectors or more of 1 to 32 KB")
        if not region.reads_blank:
            raise StoreEncrypted("no journal on encrypted flash")
        self.region = region
        self._sector_bytes = size
        self._sector_shift = len(bin(size)) - 3
        self._seqs = array("i", [0] * region.sectors)  # each sector's sequence: the seed of its records' CRCs
        self._page = bytearray(_PAGE)  # the page read last
        self._page_number = -1
        self._pinned = None  # recovery's one reading of the page that may read differently the next time
        self._pinned_number = -1
        self._out = bytearray(_PAGE)  # the page being written, FF where nothing is to change
        fill(self._out, 0, _PAGE, 0xFF)
        self._quantum = max(region.page_bytes, 16)
        self._views: "list" = [None] * (_PAGE // self._quantum + 1)  # of `_out`, by length, made once
        self._base = -1  # where in the sector `_out` begins; -1: nothing staged
        self._filled = 0
        self._kind = self._delta = self._rides = self._seq = 0
        self._body = 0  # where in `_page` the body begins, rides apart
        self._length = 0  # of the body
        self._size = 0  # of the record

    # --- reading ---

    def _load(self, sector, offset):
        """Have the page around an offset in `_page`."""
        number = (sector * self._sector_bytes + offset) // _PAGE
        if number == self._page_number:
            return
        self._page_number = -1
        if number == self._pinned_number:
            copy(self._page, 0, self._pinned, 0, _PAGE)
        else:
            self.region.read(number * _PAGE, self._page)
        self._page_number = number

    def _look(self, sector, offset):
        """Read the record at an offset; False if no whole one stands there."""
        at = offset % _PAGE
        if at > _PAGE - _RECORD:
            return False
        self._load(sector, offset)
        page = self._page
        end = at + _RECORD + page[at + _R_LENGTH]
        if end > _PAGE or not crc32_matches(page, at + _R_LENGTH, end, at, self._seqs[sector]):
            return False
        self._kind = page[at + _R_KIND]
        self._delta = page[at + _R_DELTA]
        self._rides = page[at + _R_RIDES]
        self._seq = get_u32(page, at + _R_SEQ)
        self._body = at + _RECORD + 4 * self._rides
        self._length = end - self._body
        self._size = (end - at + 3) & -4
        if self._kind == _CLOSE | _FIRST:  # the second record of a clean end belongs to the first
            self._size += self._fit(offset + self._size, self._size) - offset
        return True

    def _find(self, sector, offset, limit):
        """Return where the next record at or after offset stands, read; -1 if there is none before limit.

        Raises:
            StoreCorrupt: what was whole once is not any more.
        """
        while offset < limit:
            if self._look(sector, offset):
                return offset
            # Only the unused end of a page may be skipped.
            at = offset % _PAGE
            if at == 0 or (at <= _PAGE - _RECORD and not is_blank(self._page, at, at + _RECORD)):
                self._damaged(sector)
            offset += _PAGE - at
        return -1

    def _damaged(self, sector):
        raise StoreCorrupt("sector %d is damaged" % sector)

    # --- writing ---

    def _fit(self, offset, size):
        """Return where a record of so many bytes goes, at offset or on the next page; -1: not in this sector."""
        last = self._sector_bytes - _PAGE
        while True:
            end = _PAGE - _SEAL if offset >= last else _PAGE
            if offset % _PAGE + size <= end:
                return offset
            if offset >= last:
                return -1
            offset += _PAGE - offset % _PAGE

    def _claim(self, sector, offset, size):
        """Return where in `_out` the bytes at an offset are to be put; what waits for another page is programmed first."""
        if self._base >= 0 and self._base // _PAGE != offset // _PAGE:
            self._program(sector)
        if self._base < 0:
            self._base = offset - offset % self._quantum
        self._filled = offset + size - self._base
        return offset - self._base

    def _stage(self, sector, offset, kind, delta, seq, buf, start, n, rides=None, count=0):
        """Put a record into `_out`; return where the next one could follow."""
        length = 4 * count + n
        size = (_RECORD + length + 3) & -4
        at = self._claim(sector, offset, size)
        out = self._out
        pack_into("<4BI", out, at + _R_LENGTH, length, kind, delta, count, seq)
        body = at + _RECORD
        for i in range(count):
            put_finished(out, body, rides[i])
            body += 4
        copy(out, body, buf, start, n)
        put_crc32(out, at + _R_LENGTH, body + n, at, self._seqs[sector])
        return offset + size

    def _program(self, sector):
        """Make durable what is staged.

        Raises:
            FlashFailed: the flash did not take it.
        """
        if self._base < 0:
            return
        quantum = self._quantum
        n = (self._filled + quantum - 1) // quantum
        view = self._views[n]
        if view is None:
            view = self._views[n] = memoryview(self._out)[: n * quantum]
        place = sector * self._sector_bytes + self._base
        self._base = -1
        if place // _PAGE == self._page_number:
            self._page_number = -1
        try:
            self.region.program(place, view)
        finally:
            fill(self._out, 0, n * quantum, 0xFF)
