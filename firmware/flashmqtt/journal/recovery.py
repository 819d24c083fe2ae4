"""Mounting: what a journal was when the power went. FORMAT.md, "Recovery".

The idea: read every header once, then the head sector once, then the window; decide from that one reading only, since cells
that a power cut caught may read otherwise the next time. After an unclean end the head is left for good: it is sealed, what is
believed of its last record (all others are firm) is written anew into the next sector, and nothing acts on it before that is
confirmed.
If the power goes meanwhile, the next recovery finds the same sealed head and erases the same next sector: no number of cuts
can leave two sectors that both claim to be the head.

What it does not know: how messages are used afterwards (`journal`).
"""

from flashmqtt.errors import FlashFailed, StoreCorrupt, StoreForeign, StoreVersion, StoreWorn
from flashmqtt.fast import copy, crc32_matches, equal, is_blank

from .layout import (
    CLOSE,
    DONE,
    E_DONE,
    E_EXPLICIT,
    E_FLAGS,
    E_HELD,
    E_MARK,
    E_OFFSET,
    E_SECTOR,
    ENTRY,
    FIRST,
    H_BACKLOG,
    H_BOOT,
    H_CRC,
    H_DROPPED,
    H_ERASES,
    H_LOW,
    H_LOW_OFFSET,
    H_LOW_SECTOR,
    H_NEXT_SEQ,
    H_OPENING_END,
    H_PREV,
    H_PREV_END,
    H_PREV_SEQ,
    H_SECTOR_SHIFT,
    H_SECTORS,
    H_SEQ,
    H_STORED,
    H_TAIL,
    H_VERSION,
    HEADER,
    HELD,
    LAST,
    MAGIC,
    MARK,
    MOUNT,
    MOVED,
    NO_SECTOR,
    OPEN,
    PAGE,
    QUEUED,
    RECORD,
    SEAL,
    TABLE,
    TYPE,
    VERSION,
    get_u16,
    get_u32,
    put_u32,
)
from .ring import CHAINED, FREE, RETIRED
from .slots import AGAIN, EXPLICIT, HOLD
from .slots import OPEN as SLOT_OPEN

_WORD = 4  # of a seal
_SEAL_BITS = 0x2A5A3C96
_CLOSE_SIZE = RECORD + 8
_OPEN_SIZE = RECORD + 4


class Recovery:
    """One mount of one journal."""

    def __init__(self, journal):
        self.j = journal
        self.region = journal.region
        self.header = bytearray(HEADER)
        self.low = 0
        self.explicit = {}  # sequence: [sector, offset, held, mark]
        self.marks = {}
        self.done = set()
        self.last = self.end = self.stopped = (
            HEADER  # where the last record stands, where it ends, where reading stopped
        )
        self.piece = self.moved = 0
        self.ahead = NO_SECTOR
        self.ahead_erases = self.other_version = 0
        self.confirmed = self.sealed = self.clean = False

    def run(self):
        """Mount."""
        prevs = self.read_headers()
        head = self.newest()
        if head is None:
            self.begin_anew()
            return
        self.chain(head, prevs)
        self.place()
        self.go_on()

    # --- the headers ---

    def read_headers(self):
        """Read each header once; return each sector's predecessor."""
        j = self.j
        header = self.header
        prevs = [NO_SECTOR] * self.region.sectors
        self.other_version = 0
        for sector in range(self.region.sectors):
            self.region.read(sector * j._sector_bytes, header)
            j._seqs[sector] = 0
            if not equal(header, 0, MAGIC, 0, 4):
                continue
            version = header[H_VERSION]
            if version != VERSION:
                if version ^ header[H_VERSION + 1] == 0xFF:
                    self.other_version = version
            elif crc32_matches(header, 0, H_CRC, H_CRC, 0):
                if get_u32(header, H_SECTORS) != self.region.sectors or 1 << header[H_SECTOR_SHIFT] != j._sector_bytes:
                    raise StoreForeign("a journal of %d sectors" % get_u32(header, H_SECTORS))
                j._seqs[sector] = get_u32(header, H_SEQ)
                prevs[sector] = get_u16(header, H_PREV)
        return prevs

    def newest(self):
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
            if self.replay(head):
                return head
            passed.append(head)

    # --- the head ---

    def replay(self, head):
        """Read the sector; return whether its opening counts."""
        j = self.j
        j._load(head, 0)
        page = j._page
        if not crc32_matches(page, 0, H_CRC, H_CRC, 0):
            return False
        copy(self.header, 0, page, 0, HEADER)
        header = self.header
        opening_end = get_u16(header, H_OPENING_END)
        j.next_seq = get_u32(header, H_NEXT_SEQ)
        j.stored = get_u32(header, H_STORED)
        j.dropped = get_u32(header, H_DROPPED)
        j._backlog = get_u32(header, H_BACKLOG)
        j.boot = get_u32(header, H_BOOT)
        j._erases = get_u32(header, H_ERASES)
        self.low = get_u32(header, H_LOW)
        self.explicit = {}
        self.marks = {}
        self.done = set()
        self.last = self.end = HEADER
        self.piece = 0
        self.confirmed = self.clean = False
        j._pinned = bytearray(PAGE)
        j._pinned_number = -1
        offset = HEADER
        while offset < j._sector_bytes - SEAL:
            if not j._look(head, offset):
                at = offset % PAGE
                if at == 0 or (at <= PAGE - RECORD and not is_blank(j._page, at, at + RECORD)):
                    break
                offset += PAGE - at
                continue
            kind = j._kind & TYPE
            if offset >= opening_end:
                self.confirmed = True
                self.last = offset
                if kind <= MOVED:  # the only reading of what may be firm or not
                    copy(j._pinned, 0, j._page, 0, PAGE)
                    j._pinned_number = j._page_number
            size = j._size
            self.apply(head, offset, kind, offset >= opening_end)
            offset += size
            self.end = offset
            if kind == CLOSE and not self.goes_on_behind(head, offset):
                break
        self.stopped = offset
        self.sealed = self.seals(head) > 0
        return self.end >= opening_end and (self.confirmed or self.sealed)

    def goes_on_behind(self, head, offset):
        """Return whether a mount went on behind a clean end, whose second record may read as it likes."""
        j = self.j
        self.ahead = get_u16(j._page, j._body)
        self.ahead_erases = get_u32(j._page, j._body + 4)
        self.clean = j._look(head, offset - _CLOSE_SIZE) and j._kind == CLOSE | LAST
        offset = j._fit(offset, _OPEN_SIZE)
        if offset < 0:
            self.clean = False
            return False
        if j._look(head, offset):
            self.clean = False
            return True
        self.clean = self.clean and is_blank(j._page, offset % PAGE, offset % PAGE + RECORD)
        return False

    def apply(self, sector, offset, kind, counts):
        """Take over what the record just read says. In an opening only the table counts: the header knows the rest."""
        j = self.j
        seq = j._seq
        page = j._page
        body = j._body
        if kind == TABLE:
            for at in range(body, body + j._length, ENTRY):
                self.entry(at)
            return
        if not counts:
            return
        for i in range(j._rides):
            self.finish(j._ride(i))
        if kind in (QUEUED, HELD, MARK) and j._delta != 255:
            self.low = max(self.low, seq - j._delta)
        if kind <= HELD:
            j.next_seq = max(j.next_seq, seq + 1)
        if kind == QUEUED:
            if j._kind & FIRST:
                self.piece = seq
            if j._kind & LAST and self.piece == seq:
                j.stored += 1
                j._backlog += 1
        elif kind == HELD:
            if j._kind & FIRST:
                self.explicit[seq] = [sector, offset, E_HELD, 0]
        elif kind == MOVED:
            if j._kind & FIRST:
                self.moved = offset
            if j._kind & LAST:
                mark = self.explicit[seq][3] if seq in self.explicit else self.marks.pop(seq, 0)
                self.explicit[seq] = [sector, self.moved, 0, mark]
        elif kind == MARK:
            if seq in self.explicit:
                self.explicit[seq][3] = page[body]
            else:
                self.marks[seq] = page[body]
        elif kind == DONE:
            self.low = max(self.low, seq)
            j.dropped = get_u32(page, body)
            for at in range(body + 4, body + j._length, 4):
                self.finish(get_u32(page, at))
        elif kind == MOUNT:
            j.boot = get_u32(page, body)

    def entry(self, at):
        """Take over an entry of a table."""
        page = self.j._page
        seq = get_u32(page, at)
        flags = page[at + E_FLAGS]
        if flags & E_DONE:
            self.done.add(seq)
        elif flags & E_EXPLICIT:
            self.explicit[seq] = [
                get_u16(page, at + E_SECTOR),
                get_u16(page, at + E_OFFSET),
                flags & E_HELD,
                page[at + E_MARK],
            ]
        else:
            self.marks[seq] = page[at + E_MARK]

    def finish(self, seq):
        """A message was named as finished."""
        known = self.explicit.pop(seq, None)
        if known is None or not known[2]:
            self.done.add(seq)
        self.marks.pop(seq, None)

    # --- what is alive, and where ---

    def chain(self, head, prevs):
        """Follow the sectors back to the tail that the head names."""
        j = self.j
        header = self.header
        j._ring_seq = max(j._seqs)
        j._head = sector = head
        j._tail = get_u16(header, H_TAIL)
        j._prev = get_u16(header, H_PREV)
        j._prev_end = get_u16(header, H_PREV_END)
        j._prev_seq = get_u32(header, H_PREV_SEQ)
        j._use[head] = CHAINED
        while sector != j._tail:
            before = prevs[sector]
            if before >= self.region.sectors or not 0 < j._seqs[before] < j._seqs[sector]:
                raise StoreCorrupt("sector %d: the one before it, %d, is damaged" % (sector, before))
            j._use[before] = CHAINED
            j._after[before] = sector
            sector = before
        j._chain = j._count(j._tail)
        # Behind the place where the records end, nothing can have been written.
        for offset in range((self.stopped // PAGE + 1) * PAGE, j._sector_bytes, PAGE):
            j._load(head, offset)
            if not is_blank(j._page, 0, PAGE if offset < j._sector_bytes - PAGE else PAGE - SEAL):
                raise StoreCorrupt("sector %d: damaged before offset %d" % (head, offset))

    def place(self):
        """Find the window, and fill the slots."""
        j = self.j
        j._end = self.end
        j._cursor_sector = get_u16(self.header, H_LOW_SECTOR)
        j._cursor_offset = get_u16(self.header, H_LOW_OFFSET)
        wanted = {seq for seq in self.marks if seq >= self.low}
        places = {}
        cursor = None
        j._queued = 1  # so that the cursor looks for messages
        while True:
            before = j._cursor_sector, j._cursor_offset
            found = j._next()
            seq = j._found_seq
            if found and seq < self.low:
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
        j._cursor_seq = self.low
        early = [seq for seq in self.done if seq >= self.low]
        if len(early) > len(j._early):
            raise StoreCorrupt("%d messages done out of turn" % len(early))
        j._early_n = len(early)
        for i in range(len(early)):
            j._early[i] = early[i]
        j._queued = j._backlog - len(early) - len(places)
        if len(self.explicit) + len(places) > j.slots:
            j._make_slots(len(self.explicit) + len(places))
        slot = 0
        for seq in sorted(list(self.explicit) + list(places)):
            mark = 0
            if seq in places:
                sector, offset, length = places[seq]
                state = SLOT_OPEN
                mark = self.marks[seq]
            else:
                sector, offset, held, mark = self.explicit[seq]
                length = j._total(sector, offset, seq)
                if length < 0:
                    continue  # an inbound message whose last piece never came
                state = EXPLICIT | (HOLD | SLOT_OPEN if held else SLOT_OPEN if mark else AGAIN)
                if state & AGAIN:
                    j._again += 1
                if not held and seq >= self.low:
                    j._queued -= 1  # its first place is still before the cursor
            j._fill_slot(slot, state, seq, sector, offset, length)
            j._slot_mark[slot] = mark
            slot += 1
        j._boot_seq = j.next_seq
        j._said_dropped = j.dropped
        j.fresh = j.next_seq == 1

    # --- going on ---

    def go_on(self):
        """Write the first record of this boot."""
        j = self.j
        j.boot += 1
        if not (self.clean and not self.sealed and self.mount()):
            try:
                self.leave()
            except StoreWorn:
                j.worn = True
                return  # what is stored can still be read; recovery's one reading stays
        j._pinned = None
        j._pinned_number = j._page_number = -1

    def mount(self):
        """Go on behind a clean end."""
        j = self.j
        try:
            self.put(MOUNT)
        except FlashFailed:  # something is there that did not read so before
            return False
        if self.ahead != NO_SECTOR and self.ahead == j._behind(j._head):
            j._ahead = self.ahead
            j._ahead_erases = self.ahead_erases
        return True

    def put(self, kind):
        """Write the first record of a boot."""
        j = self.j
        offset = j._fit(j._end, _OPEN_SIZE)
        put_u32(j._small, 0, j.boot)
        j._stage(j._head, offset, kind, 255, j._low(), j._small, 0, 4)
        j._program(j._head)
        j._end = offset + _OPEN_SIZE

    def leave(self):
        """Leave the head for the next sector."""
        j = self.j
        self.seal(j._head)
        carry_from = self.last if self.confirmed else self.end
        j._settle()
        replace = j._carry(-1, HEADER) <= j._sector_bytes // 2
        if not replace and j.sectors_usable - j._count(j._oldest()) - 1 < 1:
            raise StoreWorn("no sector to go on in")
        while True:
            j._open(HEADER if replace else carry_from, replace)
            try:
                self.put(OPEN)
                j._confirm()
                return
            except FlashFailed:
                j._unopen()

    def seals(self, sector):
        """Return how many seals a sector has, and have its last page loaded."""
        j = self.j
        j._load(sector, j._sector_bytes - 1)
        n = 0
        for at in range(PAGE - SEAL, PAGE, _WORD):
            if get_u32(j._page, at) == j._seqs[sector] ^ _SEAL_BITS:
                n += 1
        return n

    def seal(self, sector):
        """Make sure that every later recovery knows that this sector was left."""
        j = self.j
        j._page_number = -1
        while self.seals(sector) < 2:
            at = PAGE - SEAL
            while at < PAGE and not is_blank(j._page, at, at + _WORD):
                at += _WORD
            if at == PAGE:
                return
            place = j._sector_bytes - PAGE + at
            put_u32(j._out, j._claim(sector, place, _WORD), j._seqs[sector] ^ _SEAL_BITS)
            try:
                j._program(sector)
                return
            except FlashFailed:
                j._page_number = -1

    # --- an empty region ---

    def begin_anew(self):
        """Make the first sector of a region that holds nothing.

        A first sector whose making was cut short is recognised, and left aside: the next one is taken.
        """
        j = self.j
        if self.other_version:
            raise StoreVersion("version %d" % self.other_version)
        first = -1
        for sector in range(self.region.sectors):
            for offset in range(0, j._sector_bytes, PAGE):
                j._load(sector, offset)
                if is_blank(j._page, 0, PAGE):
                    continue
                if offset or first >= 0 or not self.is_torn_beginning():
                    raise StoreForeign("sector %d, offset %d: not a journal, and not blank" % (sector, offset))
                j._use[sector] = RETIRED
            if first < 0 and j._use[sector] == FREE:
                first = sector
        if first < 0:
            raise StoreForeign("no blank sector")
        self.begin(first)

    def is_torn_beginning(self):
        """Return whether the page could be what is left of our own first header."""
        page = self.j._page
        if not is_blank(page, HEADER + _OPEN_SIZE, PAGE):
            return False
        return all(page[i] & MAGIC[i] == MAGIC[i] for i in range(4))

    def begin(self, first):
        """Open the first sector of a journal."""
        j = self.j
        j._ring_seq = max(first, *j._seqs)
        j._ahead = first
        j.boot = 1
        j.fresh = True
        j._open(HEADER, False)
        self.put(OPEN)
        j._confirm()
        for sector in range(first):
            j._use[sector] = FREE
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
            self.read_headers()
        except StoreForeign:
            pass
        first = j._behind(NO_SECTOR)
        if first < 0:
            raise StoreWorn("no sector takes an erase")
        self.begin(first)
