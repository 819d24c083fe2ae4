"""Mounting: what a journal was when the power went. FORMAT.md, "Recovery".

The idea: read every header once, then the head sector once, then the window; decide from that one reading only, since cells
that a power cut caught may read otherwise the next time. After an unclean end the head is left for good: it is sealed, what is
believed of its last record (all others are firm) is written anew into the next sector, and nothing acts on it before that is
confirmed. If the power goes meanwhile, the next recovery finds the same sealed head and erases the same next sector: no number
of cuts can leave two sectors that both claim to be the head.

What it does not know: how messages are used afterwards (`journal`). It is needed once a boot, and does not stay in memory.
"""

from struct import unpack_from

from flashmqtt.compat import const
from flashmqtt.errors import FlashFailed, StoreCorrupt, StoreForeign, StoreVersion, StoreWorn
from flashmqtt.fast import copy, crc32_matches, is_blank

from .log import ENTRY_FIELDS, HEADER_FIELDS, MAGIC, get_u16, get_u32, put_u32

# The format's numbers, as tools/journal/layout.py has them (a test compares): private constants cost nothing on a board.
_VERSION = const(1)
_SEQ_LIMIT = const(0x3FFFFFFF)
_PAGE = const(256)
_H_CRC = const(60)
_HEADER = const(64)
_NO_SECTOR = const(0xFFFF)
_RECORD = const(12)
_TYPE = const(0x0F)
_FIRST = const(0x40)
_LAST = const(0x80)
_QUEUED = const(1)
_HELD = const(2)
_MOVED = const(3)
_MARK = const(4)
_DONE = const(5)
_TABLE = const(6)
_OPEN = const(7)
_CLOSE = const(8)
_MOUNT = const(9)
_ENTRY = const(12)
_E_EXPLICIT = const(1)
_E_HELD = const(2)
_E_DONE = const(4)
_ENTRIES_MAX = const(15)
_SEAL = const(32)
_FREE = const(0)
_CHAINED = const(1)
_RETIRED = const(2)
_OPENED = const(1)
_AGAIN = const(2)
_EXPLICIT = const(4)
_HOLD = const(8)

_WORD = const(4)  # of a seal
_SEAL_BITS = const(0x2A5A3C96)
_CLOSE_SIZE = const(_RECORD + 8)
_OPEN_SIZE = const(_RECORD + 4)


class Recovery:
    """One mount of one journal."""

    def __init__(self, journal):
        self.j = journal
        self.region = journal.region
        # What each sector's header states as its sequence (0: blank) and its opening's end, whether it is whole or not.
        self._claims = [0] * self.region.sectors
        self._openings = [0] * self.region.sectors
        self._other_version = -1
        self._places: "tuple[int, ...]" = ()  # low's, and the sectors that the header names
        self._stopped = _HEADER  # where reading the head stopped
        self._sealed = False
        self._ahead = _NO_SECTOR  # what a clean end says of the sector erased in advance
        self._ahead_erases = 0
        self._begin_replay()

    def _begin_replay(self):
        """Know nothing of the head."""
        self._low = 0
        self._explicit = {}  # sequence: (sector, offset, held)
        self._marks = {}
        self._done = set()
        self._last = self._end = _HEADER  # where the last record stands, and where it ends
        self._piece = self._first = 0  # sequence of a message in pieces; where a held or moved one begins
        self._confirmed = self._clean = False

    def run(self):
        """Mount."""
        prevs = self._read_headers()
        head = self._newest()
        if head is None:
            self._begin_anew()
            return
        self._check_newer(head)
        self._chain(head, prevs)
        self._place()
        self._go_on()

    # --- the headers ---

    def _read_headers(self):
        """Read each header once; return each sector's predecessor."""
        j = self.j
        header = bytearray(_HEADER)
        prevs = [_NO_SECTOR] * self.region.sectors
        for sector in range(self.region.sectors):
            self.region.read(sector * j._sector_bytes, header)
            j._seqs[sector] = 0
            if is_blank(header, 0, _HEADER):
                continue
            fields = unpack_from(HEADER_FIELDS, header)
            magic, version, complement, _, shift, seq = fields[:6]
            self._claims[sector] = seq
            self._openings[sector] = fields[18]
            if magic != MAGIC:
                continue
            if version != _VERSION:
                if version ^ complement == 0xFF:
                    self._other_version = version
            elif crc32_matches(header, 0, _H_CRC, _H_CRC, 0):
                if fields[20] != self.region.sectors or shift != j._sector_shift:
                    raise StoreForeign("a journal of %d sectors" % fields[20])
                j._seqs[sector] = seq
                prevs[sector] = fields[16]
        return prevs

    def _newest(self):
        """Return the newest sector whose opening counts, replayed; None if there is none."""
        j = self.j
        passed = []
        while True:
            head = -1
            for sector in range(self.region.sectors):
                if j._seqs[sector] and (head < 0 or j._seqs[sector] > j._seqs[head]) and sector not in passed:
                    head = sector
            if head < 0:
                return None
            j._ring_seq = j._seqs[head]
            if self._replay(head):
                return head
            passed.append(head)

    def _check_newer(self, head):
        """Refuse the journal if a sector newer than the head was in use: its header or its first record is damaged.

        A cut leaves one record behind an opening that does not count, so two are no cut's work. A torn program leaves more bits
        set than it should, and so does a torn erase: what a torn header says of its opening's end is never too low, and a
        sequence that is not the true one fits no record.
        """
        j = self.j
        newest = j._seqs[head]
        for sector in range(self.region.sectors):
            seq = j._seqs[sector]
            if 0 < seq <= newest or not self._claims[sector]:
                continue
            for seed in self._claims[sector], newest + 1:
                if newest < seed <= _SEQ_LIMIT:
                    j._seqs[sector] = seed
                    if self._whole(sector, _HEADER, j._sector_bytes, self._openings[sector]) > 1:
                        j._damaged(sector)
            j._seqs[sector] = seq

    def _whole(self, sector, offset, end, opening_end):
        """Return how many whole records stand between two places and can't be of an opening."""
        j = self.j
        n = 0
        while offset < end:
            if j._look(sector, offset) and (offset >= opening_end or j._delta != 255 or j._kind & _TYPE >= _OPEN):
                n += 1
            offset += 4 if offset % _PAGE or not is_blank(j._page, 0, _PAGE) else _PAGE
        return n

    # --- the head ---

    def _replay(self, head):
        """Read the sector; return whether its opening counts."""
        j = self.j
        j._load(head, 0)
        page = j._page
        if not j._is_header():
            return False
        self._begin_replay()
        fields = unpack_from(HEADER_FIELDS, page)
        j.next_seq, self._low, j.stored, j.dropped, j._backlog, j.boot, j._erases = fields[6:13]
        self._places = fields[13:20]
        opening_end = self._places[5]
        j.sectors_usable = self.region.sectors - fields[21]
        j._pinned = bytearray(_PAGE)
        j._pinned_number = -1
        offset = _HEADER
        while offset < j._sector_bytes - _SEAL:
            if not j._look(head, offset):
                at = offset % _PAGE
                if at == 0 or (at <= _PAGE - _RECORD and not is_blank(j._page, at, at + _RECORD)):
                    break
                offset += _PAGE - at
                continue
            kind = j._kind & _TYPE
            if offset >= opening_end:
                self._confirmed = True
                self._last = offset
                copy(j._pinned, 0, j._page, 0, _PAGE)  # the only reading of what may be firm or not
                j._pinned_number = j._page_number
            size = j._size
            self._apply(head, offset, kind, offset >= opening_end)
            offset += size
            self._end = offset
            if j._kind == _CLOSE | _FIRST and not self._goes_on_behind(head, offset):
                offset = max(offset, j._fit(offset, _OPEN_SIZE))  # where a torn record may stand
                break
        self._stopped = offset
        self._sealed = self._seals(head) > 0
        return self._end >= opening_end and (self._confirmed or self._sealed)

    def _goes_on_behind(self, head, offset):
        """Return whether a mount went on behind a clean end, whose second record may read as it likes."""
        j = self.j
        self._ahead = get_u16(j._page, j._body)
        self._ahead_erases = get_u32(j._page, j._body + 4)
        self._clean = j._look(head, offset - _CLOSE_SIZE) and j._kind == _CLOSE | _LAST
        offset = j._fit(offset, _OPEN_SIZE)
        if offset < 0:
            self._clean = False
            return False
        if j._look(head, offset):
            self._clean = False
            return True
        self._clean = self._clean and is_blank(j._page, offset % _PAGE, offset % _PAGE + _RECORD)
        return False

    def _apply(self, sector, offset, kind, counts):
        """Take over what the record just read says. In an opening only the table counts: the header knows the rest."""
        j = self.j
        seq = j._seq
        page = j._page
        body = j._body
        if kind == _TABLE:
            for at in range(body, body + j._length, _ENTRY):
                self._entry(at)
            return
        if not counts:
            return
        for at in range(body - 4 * j._rides, body, 4):
            self._finish(get_u32(page, at))
        if j._delta != 255:
            self._low = max(self._low, seq - j._delta)
        if kind <= _HELD:
            j.next_seq = max(j.next_seq, seq + 1)
        if kind == _QUEUED:
            if j._kind & _FIRST or not self._piece:  # or it began in the sector before
                self._piece = seq
            if j._kind & _LAST and self._piece == seq:
                j.stored += 1
                j._backlog += 1
        elif kind <= _MOVED:
            if j._kind & _FIRST:
                self._first = offset
            if j._kind & _LAST and self._first:  # else it began in the sector before, and the table knows it
                self._explicit[seq] = sector, self._first, kind == _HELD
                self._first = 0
        elif kind == _MARK:
            self._marks[seq] = page[body]
        elif kind == _DONE:
            self._low = max(self._low, seq)
            j.dropped = get_u32(page, body)
            for at in range(body + 4, body + j._length, 4):
                self._finish(get_u32(page, at))
        elif kind == _MOUNT:
            j.boot = get_u32(page, body)

    def _entry(self, at):
        """Take over an entry of a table."""
        seq, sector, offset, mark, flags = unpack_from(ENTRY_FIELDS, self.j._page, at)
        if flags & _E_DONE:
            self._done.add(seq)
            return
        if flags & _E_EXPLICIT:
            self._explicit[seq] = sector, offset, flags & _E_HELD
        if mark:
            self._marks[seq] = mark

    def _finish(self, seq):
        """A message was named as finished, maybe not for the first time."""
        explicit = seq >> 31
        seq &= _SEQ_LIMIT
        known = self._explicit.pop(seq, None)
        if not known[2] if known else not explicit:
            self._done.add(seq)
        self._marks.pop(seq, None)

    # --- what is alive, and where ---

    def _chain(self, head, prevs):
        """Follow the sectors back to the tail that the head names."""
        j = self.j
        j._ring_seq = max(j._seqs)
        j._head = sector = head
        _, _, j._tail, j._prev, j._prev_end, _, j._prev_seq = self._places
        j._use[head] = _CHAINED
        while sector != j._tail:
            before = prevs[sector]
            if before >= self.region.sectors or not 0 < j._seqs[before] < j._seqs[sector]:
                j._damaged(sector)
            j._use[before] = _CHAINED
            j._after[before] = sector
            sector = before
        j._chain = j._count(j._tail)
        # Behind the place where the records end stands a torn one at most, and nothing whole.
        page_end = (self._stopped // _PAGE + 1) * _PAGE
        whole = self._whole(head, self._stopped + 4, min(page_end, j._sector_bytes), 0) > 0
        for offset in range(page_end, j._sector_bytes, _PAGE):
            j._load(head, offset)
            whole = whole or not is_blank(j._page, 0, _PAGE if offset < j._sector_bytes - _PAGE else _PAGE - _SEAL)
        if whole:
            j._damaged(head)

    def _place(self):
        """Find the window, and fill the slots."""
        j = self.j
        j._end = self._end
        j.next_seq = max(j.next_seq, self._low)  # a message that was begun, and of which nothing was written
        j._cursor_sector, j._cursor_offset = self._places[:2]
        wanted = {seq for seq in self._marks if seq >= self._low and seq not in self._explicit}
        places = {}
        cursor = None
        j._queued = 1  # so that the cursor looks for messages
        while True:
            before = j._cursor_sector, j._cursor_offset
            found = j._next()
            seq = j._found_seq
            if found and seq < self._low:
                j._backlog -= 1
                continue
            if cursor is None:
                cursor = before
            if not found or not wanted:
                break
            if seq in wanted:
                wanted.remove(seq)
                places[seq] = (j._found_sector, j._found_offset, j._found_length)
        if wanted:
            raise StoreCorrupt("message %d is marked, and missing" % min(wanted))
        j._cursor_sector, j._cursor_offset = cursor
        j._cursor_seq = self._low
        for seq in self._done:
            if seq >= self._low:
                if j._early_n == len(j._early):
                    j._damaged(j._head)
                j._early[j._early_n] = seq
                j._early_n += 1
        j._queued = j._backlog - j._early_n - len(places)
        if len(self._explicit) + len(places) > j.slots:
            j._make_slots(len(self._explicit) + len(places))
        slot = 0
        for seq in sorted(list(self._explicit) + list(places)):
            mark = self._marks.get(seq, 0)
            if seq in places:
                sector, offset, length = places[seq]
                state = _OPENED
            else:
                sector, offset, held = self._explicit[seq]
                length = j._total(sector, offset, seq)
                if length < 0:
                    continue  # an inbound message whose last piece never came
                state = _EXPLICIT | (_HOLD | _OPENED if held else _OPENED if mark else _AGAIN)
                if state & _AGAIN:
                    j._again += 1
                if not held and seq >= self._low:
                    j._queued -= 1  # its first place is still before the cursor
            j._fill_slot(slot, state, seq, sector, offset, length)
            j._slot_mark[slot] = mark
            slot += 1
        j._boot_seq = j.next_seq
        j._said_dropped = j.dropped
        j.fresh = j.next_seq == 1

    # --- going on ---

    def _go_on(self):
        """Write the first record of this boot."""
        j = self.j
        j.boot += 1
        if not (self._clean and not self._sealed and self._mount()):
            try:
                self._leave()
            except StoreWorn:
                j.worn = True
                return  # what is stored can still be read; recovery's one reading stays
        j._pinned = None
        j._pinned_number = j._page_number = -1

    def _mount(self):
        """Go on behind a clean end."""
        j = self.j
        try:
            self._put(_MOUNT)
        except FlashFailed:  # something is there that did not read so before
            return False
        if self._ahead != _NO_SECTOR and self._ahead == j._behind(j._head):
            j._ahead = self._ahead
            j._ahead_erases = self._ahead_erases
        return True

    def _put(self, kind):
        """Write the first record of a boot."""
        j = self.j
        offset = j._fit(j._end, _OPEN_SIZE)
        put_u32(j._small, 0, j.boot)
        j._stage(j._head, offset, kind, 255, j._low(), j._small, 0, 4)
        j._program(j._head)
        j._end = offset + _OPEN_SIZE

    def _leave(self):
        """Leave the head for the next sector."""
        j = self.j
        self._seal(j._head)
        carry_from = self._last if self._confirmed else self._end
        j._settle()
        j._erased()  # now, as it may find a bad sector, and then there is one less
        room = j.sectors_usable - j._count(j._oldest())
        limit = half = j._sector_bytes // 2
        if room <= 2:
            # All that leaves a page for the record that confirms, and as many as a table takes that the first page can't hold.
            pages = (j._put_table(-1, 0) + _ENTRIES_MAX - 1) // _ENTRIES_MAX
            limit = j._sector_bytes - (pages + 1 if pages > 1 else 1) * _PAGE
            if room == 2:  # there is another way, and the next recovery would have to do all of it again
                limit = max(half, min(limit, j._sector_bytes - 5 * _PAGE))
        replace = j._carry(-1, _HEADER) <= limit
        if not replace and room < 2:
            raise StoreWorn("no sector to go on in")
        while True:
            j._open(_HEADER if replace else carry_from, replace)
            try:
                self._put(_OPEN)
                j._confirm()
                return
            except FlashFailed:
                j._unopen()

    def _seals(self, sector):
        """Return how many seals a sector has, and have its last page loaded."""
        j = self.j
        j._load(sector, j._sector_bytes - 1)
        n = 0
        for at in range(_PAGE - _SEAL, _PAGE, _WORD):
            if get_u32(j._page, at) == j._seqs[sector] ^ _SEAL_BITS:
                n += 1
        return n

    def _seal(self, sector):
        """Make sure that every later recovery knows that this sector was left."""
        j = self.j
        for at in range(_PAGE - _SEAL, _PAGE, _WORD):
            j._page_number = -1
            if self._seals(sector) > 1:
                return
            if is_blank(j._page, at, at + _WORD):
                place = j._sector_bytes - _PAGE + at
                put_u32(j._out, j._claim(sector, place, _WORD), j._seqs[sector] ^ _SEAL_BITS)
                try:
                    j._program(sector)
                    return
                except FlashFailed:
                    pass

    # --- an empty region ---

    def _begin_anew(self):
        """Make the first sector of a region that holds nothing.

        A first sector whose making was cut short is recognised, and left aside: the next one is taken.
        """
        j = self.j
        if self._other_version >= 0:
            raise StoreVersion("version %d" % self._other_version)
        first = -1
        for sector in range(self.region.sectors):
            for offset in range(0, j._sector_bytes, _PAGE):
                j._load(sector, offset)
                if is_blank(j._page, 0, _PAGE):
                    continue
                if offset == j._sector_bytes - _PAGE and is_blank(j._page, 0, _PAGE - _SEAL) and j._use[sector]:
                    continue
                if offset or first >= 0 or not self._is_torn_beginning():
                    raise StoreForeign("sector %d, offset %d: not a journal, and not blank" % (sector, offset))
                j._use[sector] = _RETIRED
            if first < 0 and j._use[sector] == _FREE:
                first = sector
        if first < 0:
            raise StoreForeign("no blank sector")
        self._begin(first)

    def _is_torn_beginning(self):
        """Return whether the page could be what is left of our own first header."""
        page = self.j._page
        magic = get_u32(MAGIC, 0)
        return is_blank(page, _HEADER + _OPEN_SIZE, _PAGE) and get_u32(page, 0) & magic == magic

    def _begin(self, first):
        """Open the first sector of a journal."""
        j = self.j
        j._ring_seq = max(first, *j._seqs)
        j._ahead = first
        j.boot = 1
        j.fresh = True
        j._open(_HEADER, False)
        self._put(_OPEN)
        j._confirm()
        for sector in range(first):
            j._use[sector] = _FREE
        j._settle()

    def wipe(self):
        """Erase a region, whatever it holds, and begin anew. A sector that will not erase is left alone."""
        j = self.j
        for sector in range(self.region.sectors - 1, -1, -1):
            try:
                self.region.erase(sector)
            except FlashFailed:
                j._retire(sector)
        try:
            self._read_headers()
        except StoreForeign:
            pass
        first = j._behind(_NO_SECTOR)
        if first < 0:
            raise StoreWorn("no sector takes an erase")
        self._begin(first)
