"""Mounting: recovers a journal after a power cut. FORMAT.md, "Recovery", "First mount" and "Damage".

The idea: the newest valid sector (a sector that "counts") has the whole state except the messages' bodies. Its header and its
last record are programmed again with the same bytes, so that a marginal cell can't read differently the next time. Then the next
sector is opened or, after a clean end, a mount record is written. Until that record is complete, nothing depends on the recovered
state.

Recovery runs once per boot, and its module does not stay in memory. It does not search the bodies; `journal` does that later.
"""

from struct import unpack_from

from flashmqtt.compat import TYPE_CHECKING, const
from flashmqtt.errors import FlashFailed, StoreCorrupt, StoreForeign, StoreWorn
from flashmqtt.fast import copy, is_blank, raw_crc32, raw_fill

from .journal import MAGIC, PLACE_FIELDS, get_u16, get_u32, stage_record

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251

# The format's numbers: see `journal`.
_PAGE = const(256)
_HEADER = const(76)
_RECORD = const(24)
_MESSAGE = const(1)
_HELD = const(2)
_STATE = const(3)
_RELEASED = const(4)
_NOTE = const(5)
_LIST = const(6)
_TYPE = const(15)
_MOUNT = const(0x40)
_LAST = const(0x80)
_NONE = const(0xFFFF)
_CHAINED = const(1)
_VOIDED = const(64)  # how many sector sequences a mount record makes void


class Recovery:
    """One mount of one journal."""

    def __init__(self, journal: "Any") -> None:
        self.j = journal
        n = journal.region.sectors
        self._sectors = n
        self._prevs = [_NONE] * n  # from the headers, about the previous sector: its number, end, sequence
        self._prev_ends = [0] * n
        self._prev_seqs = [0] * n
        self._continued = bytearray(n)
        self._shown = [-1] * n  # the sequence in a header, whole or damaged; -1: blank
        # The head's header and last whole record as read once: after a power cut, a marginal cell may read differently each time.
        self._header = bytearray(_PAGE)
        self._last = bytearray(_PAGE)
        self._last_at = self._end = 0
        self._mounts = self._ends_clean = 0  # of the sector that was read last
        self._void_to = 0  # the next opening needs a sequence above this
        self._magic = False  # does any sector begin with the magic number?
        # Held messages as (key, place), oldest first. A key occurs twice where a discard is damaged: the later message is held.
        self._places: "list[Any]" = []
        self._in_head = False  # does the head have a held message?

    def run(self, wipe: bool) -> None:
        """Mount; with `wipe` make it empty first."""
        j = self.j
        if wipe:
            self._wipe()
        else:
            self._read_headers()
            head = self._newest()
            while head >= 0:
                if self._confirm(head):
                    self._go_on(head)
                    return
                j._seqs[head] = 0  # valid in one reading and not in the next
                head = self._newest()
            self._check_foreign()
            j._ring_seq = 0
        self._begin()

    # --- headers ---

    def _read_headers(self) -> None:
        j = self.j
        page = j._page
        version = -1
        for sector in range(self._sectors):
            j._load(sector * j._sector_bytes)
            end = _HEADER - 4 + 4 * (page[7] & 63)
            if is_blank(page, 0, _HEADER):
                continue
            self._shown[sector] = get_u32(page, 8)
            if get_u32(page, 0) != get_u32(MAGIC, 0):
                continue
            self._magic = True
            if page[4] ^ page[5] == 0xFF and page[4] != 2:
                version = page[4]
            elif end <= _PAGE - 4 and raw_crc32(page, 0, end, 0, end, 0):
                if get_u16(page, 48) != self._sectors or 1 << page[6] != j._sector_bytes:
                    raise StoreForeign("a journal of %d sectors of %d bytes" % (get_u16(page, 48), 1 << page[6]))
                j._seqs[sector] = get_u32(page, 8)
                j._first[sector] = get_u32(page, 24)
                self._continued[sector] = page[7] >> 7
                self._prevs[sector] = get_u16(page, 52)
                self._prev_ends[sector] = get_u16(page, 54)
                self._prev_seqs[sector] = get_u32(page, 56)
        if version >= 0 and not any(j._seqs):
            raise StoreForeign("the journal on this flash has version %d, this code reads version 2" % version)

    def _newest(self) -> int:
        """Return the sector that counts with the highest sequence, -1 if there is none."""
        j = self.j
        head = -1
        below = 0x3FFFFFFF
        asked = 0
        while asked < 5:
            sector = self._highest(below)
            if sector < 0:
                break
            below = j._seqs[sector]
            j._ring_seq = max(j._ring_seq, below)
            if not self._counts(sector):
                j._seqs[sector] = 0  # an opening that was cut
                continue
            asked += 1
            if self._ends_clean:
                self._void_to = max(self._void_to, below + _VOIDED * (self._mounts + 1))
            if head < 0:
                head = sector
            elif j._seqs[head] <= below + _VOIDED * self._mounts:
                for other in range(self._sectors):
                    if j._seqs[other] > below:
                        j._seqs[other] = 0  # void: a later mount continued in this sector after its clean end
                head = sector
        return head

    def _highest(self, below: int) -> "Any":
        """Return the sector with the highest sequence below a number that is not on the chain, -1 if there is none."""
        found = -1
        seqs = self.j._seqs
        for sector in range(self._sectors):
            if 0 < seqs[sector] < below and not self.j._use[sector] and (found < 0 or seqs[sector] > seqs[found]):
                found = sector
        return found

    def _counts(self, sector: int) -> "Any":
        """Return whether a sector counts: it has a whole record that is written after the header. Count its mount records."""
        j = self.j
        at = 0
        counts = False
        self._mounts = self._ends_clean = 0
        while j._find(sector, at, j._sector_bytes):
            at = j._at + j._size
            state = j._kind & _TYPE == _STATE
            counts = counts or state or not j._kind & _MOUNT
            self._ends_clean = state and j._kind & _LAST
            if state and j._kind & _MOUNT:
                self._mounts += 1
        return counts

    # --- the head ---

    def _go_on(self, head: int) -> None:
        j = self.j
        page = self._header
        first, j.floor, j.dropped, j.damaged, j.boot, j._erases, _, tail = unpack_from(PLACE_FIELDS, page, 24)[:8]
        j.next_seq = first - (page[7] >> 7)
        copy(j._state, 0, page, 12, 12)
        copy(j.note, 0, page, 60, 12)
        places = [
            get_u16(page, at) * j._sector_bytes + 4 * get_u16(page, at + 2)
            for at in range(72, 72 + 4 * (page[7] & 63), 4)
        ]
        j._head = head
        j._prev = self._prevs[head]
        j._prev_end = self._prev_ends[head]
        j._prev_seq = self._prev_seqs[head]
        self._chain(head, tail)
        self._take_places(places)
        boot = j.boot
        clean = self._replay(head)
        j._ring_seq = max(j._ring_seq, j._seqs[head] + _VOIDED * (j.boot - boot))
        self._rescue(head)
        self._list_held()
        j.low = get_u32(j._state, 0)
        j.next_seq = max(j.next_seq, j.low)
        j._advance()
        j.fresh = j.next_seq == 1 and not self._places and is_blank(j.note, 0, 12)
        self._place_cursor()
        if clean and self._mount_behind():
            return
        j.boot += 1
        # A mount record that a power cut interrupted may read as whole later. So the new sector's sequence must be above all
        # sequences that this record would make void.
        j._ring_seq = max(j._ring_seq, self._void_to)
        try:
            j._open_after_cut()
        except StoreWorn:
            j.worn = True

    def _replay(self, head: int) -> "Any":
        """Apply the head's records; return whether the last one is a clean end."""
        j = self.j
        at = 0
        clean = False
        begun: "dict[Any, Any]" = {}  # key: (place, pieces) of held messages
        j._skipped = 0
        while j._find(head, at, self._end):
            at = j._at + j._size
            page = j._page
            body = (j._at & 255) + _RECORD
            kind = j._kind & _TYPE
            copy(j._state, 0, page, body - 12, 12)
            clean = False
            if j._skipped:
                j.damaged += len(begun) or j._skipped == _HELD
                begun = {}
                j._skipped = 0
            if kind == _MESSAGE:
                j._head_top = j._seq + 1
                if j._kind & _LAST:
                    j.next_seq = max(j.next_seq, j._seq + 1)
            elif kind == _HELD:
                self._in_head = True
                if j._kind & _MOUNT:  # carried: it is listed in the header or in a list
                    continue
                if not j._seq:
                    begun[j._key] = head * j._sector_bytes + j._at, 0
                place, piece = begun.get(j._key, (0, -1))
                if piece != j._seq:
                    begun.pop(j._key, None)
                elif j._kind & _LAST:
                    self._places.append((j._key, place))
                else:
                    begun[j._key] = place, piece + 1
            else:
                j.next_seq = max(j.next_seq, j._seq)
                if kind == _STATE:
                    clean = j._kind & _LAST != 0
                    if j._kind & _MOUNT:
                        j.boot += 1
                    if j._length == 8:
                        j.dropped = get_u32(page, body)
                        j.damaged = get_u32(page, body + 4)
                elif kind == _LIST:
                    self._take_places(
                        [
                            get_u16(page, i) * j._sector_bytes + 4 * get_u16(page, i + 2)
                            for i in range(body, body + j._length, 4)
                        ]
                    )
                elif kind == _RELEASED:
                    for i in range(body, body + j._length, 2):
                        self._forget(get_u16(page, i))
                elif kind == _NOTE:
                    copy(j.note, 0, page, body, 12)
        j._end = at
        j._written_losses = j.dropped + j.damaged
        return clean

    def _take_places(self, places: "Any") -> None:
        """Add the held messages that an opening lists."""
        for place in places:
            key = self._key_at(place)
            if key:
                self._places.append((key, place))
            else:
                self.j.damaged += 1

    def _forget(self, key: int) -> None:
        self._places = [held for held in self._places if held[0] != key]

    def _confirm(self, head: int) -> bool:
        """Program the header and the last whole record again, with bytes whose CRC was right, so that they read reliably.

        Return False if the sector does not count in this reading.
        """
        j = self.j
        page = self._header
        j.region.read(head * j._sector_bytes, page)
        end = _HEADER - 4 + 4 * (page[7] & 63)
        if end > _PAGE - 4 or not raw_crc32(page, 0, end, 0, end, 0):
            return False
        counts = False
        self._end = end + 4
        while j._find(head, self._end, j._sector_bytes):
            self._last_at = j._at
            self._end = j._at + j._size
            copy(self._last, 0, j._page, j._at & 255, _RECORD + j._length)
            counts = counts or j._kind & _TYPE == _STATE or not j._kind & _MOUNT
        if not counts:
            return False
        for at in 0, self._last_at:
            i = at & 255
            start = i & j._offset_mask
            page = self._last if at else self._header
            n = _RECORD + page[4] if at else _HEADER + 4 * (page[7] & 63)
            copy(j._out, start, page, 0, n)
            try:
                j._program(head * j._sector_bytes + at - start, start, n, True)
            except FlashFailed:
                pass  # it was read whole, and the next sector will repeat its state
        return True

    # --- the chain ---

    def _chain(self, head: int, tail: int) -> None:
        """Link the sectors from the head back to the tail; a damaged header loses only its own sector."""
        j = self.j
        sector = head
        j._use[head] = _CHAINED
        j._chain = 1
        while sector != tail:
            before = self._prevs[sector]
            linked = before < self._sectors and 0 < j._seqs[before] == self._prev_seqs[sector]
            if not linked:
                before = self._highest(self._prev_seqs[sector]) if j._first[sector] > j.floor else -1
                if before < 0:
                    break
            j._use[before] = _CHAINED
            j._after[before] = sector
            j._ends[before] = self._prev_ends[sector] if linked else j._sector_bytes
            j._chain += 1
            sector = before
        j._tail = sector
        j._free = self._sectors - j._chain

    def _rescue(self, head: int) -> None:
        """Use the records of a sector newer than the head whose header is damaged: they have the last sequences.

        An interrupted opening leaves one record at most, so the sector must have two.
        """
        j = self.j
        size = j._sector_bytes
        for sector in range(self._sectors):
            if j._use[sector] or j._seqs[sector] or self._shown[sector] < 0:
                continue  # no header was ever written there
            for seq in self._shown[sector], j._seqs[head] + 1, j._ring_seq + 1:
                if seq <= j._seqs[head] or seq > 0x3FFFFFFF:
                    continue
                j._seqs[sector] = seq
                start = _HEADER
                # Search the first record: the header's length may be damaged, too.
                while start < _PAGE and not j._look(sector, start):
                    start += 4
                if self._count_records(sector, start) > 1:
                    j._ring_seq = max(j._ring_seq, seq)
                    at = start
                    while j._find(sector, at, size):
                        at = j._at + j._size
                        self._take_rescued()
                    j._seqs[sector] = 0
                    break
                j._seqs[sector] = 0

    def _count_records(self, sector: int, at: int) -> int:
        j = self.j
        n = 0
        while j._find(sector, at, j._sector_bytes):
            at = j._at + j._size
            if j._kind & _TYPE == _STATE or not j._kind & _MOUNT:
                n += 1
        return n

    def _take_rescued(self) -> None:
        """Apply a record, except for its message."""
        j = self.j
        body = (j._at & 255) + _RECORD
        kind = j._kind & _TYPE
        if j._kind & _MOUNT and kind != _STATE:
            return  # carried
        copy(j._state, 0, j._page, body - 12, 12)
        if kind == _MESSAGE:
            j.next_seq = max(j.next_seq, j._seq + (j._kind >> 7))
        elif kind != _HELD:
            j.next_seq = max(j.next_seq, j._seq)
        elif not j._seq:
            j.damaged += 1
        if kind == _RELEASED:
            for i in range(body, body + j._length, 2):
                self._forget(get_u16(j._page, i))
        elif kind == _NOTE:
            copy(j.note, 0, j._page, body, 12)

    # --- held messages ---

    def _key_at(self, place: int) -> "Any":
        """Return the key of the held message that begins at a place, 0 if there is none."""
        j = self.j
        sector = place // j._sector_bytes
        if (
            sector < self._sectors
            and j._use[sector] == _CHAINED
            and j._look(sector, place % j._sector_bytes)
            and j._kind & _TYPE == _HELD
            and not j._seq
        ):
            return j._key
        return 0

    def _list_held(self) -> None:
        """List the held messages that are complete."""
        j = self.j
        if not self._places:
            return
        from .held import Held

        j._held = held = Held(j)
        held.in_head = self._in_head
        for key, place in self._places:
            sector = place // j._sector_bytes
            at = place % j._sector_bytes
            length = piece = 0
            j._skipped = 0
            while j._next(sector, at) and not j._skipped:
                sector = j._sector
                at = j._at + j._size
                if j._kind & _TYPE == _HELD and j._key == key:
                    if j._seq != piece:
                        j._skipped = 1
                        break
                    piece += 1
                    length += j._length
                    if j._kind & _LAST:
                        held.add(key, place, length)
                        break
            if j._skipped and not held.length(key):
                j.damaged += 1

    # --- continuing ---

    def _place_cursor(self) -> None:
        """Set the cursor, where the search for bodies begins, to the last sector in which the oldest body may begin."""
        j = self.j
        for sector in range(self._sectors):
            if self._continued[sector] and j._use[sector] == _CHAINED and self._begins_again(sector):
                j._first[sector] -= 1
        j._located = max(j.low, j.floor)
        for seq in range(j.low, min(j.floor, j.low + 32)):
            j._lengths[seq & 31] = 0
        sector = j._tail
        while sector != j._head and j._first[j._after[sector]] <= j._located:
            sector = j._after[sector]
        j._cursor_sector = sector
        j._cursor_at = 0

    def _begins_again(self, sector: int) -> bool:
        """Return whether the message in progress when a sector was opened was discarded, and its sequence used again later."""
        j = self.j
        seq = j._first[sector] - 1
        at = 0
        while j._next(sector, at):
            sector = j._sector
            at = j._at + j._size
            if j._kind & _TYPE == _MESSAGE and j._seq >= seq:
                if j._seq > seq or (j._kind & _LAST and j._key):
                    return False
                if not j._key:
                    return True
        return seq == j.next_seq

    def _mount_behind(self) -> bool:
        """Write a mount record after a clean end; return False if there is no room, or writing fails."""
        j = self.j
        at = j._end
        if (at & 255) + _RECORD > _PAGE:
            at = (at | 255) + 1
        if at + _RECORD > j._sector_bytes:
            return False
        i = at & 255
        start = i & j._offset_mask
        place = j._head * j._sector_bytes + at - i
        # An interrupted earlier attempt may have programmed some of the same bits.
        stage_record(j._out, start, j._seqs[j._head], _STATE | _MOUNT, 0, j.next_seq, j._state, b"", 0, 0)
        j._load(place)
        for k in range(_RECORD):
            if j._page[i + k] & j._out[start + k] != j._out[start + k]:
                raw_fill(j._out, _RECORD, 0xFF, start)
                return False
        try:
            j._program(place + i - start, start, _RECORD, True)
        except FlashFailed:
            return False
        j._page_at = -1
        if not j._look(j._head, at):
            return False
        j._end = at + _RECORD
        j._ring_seq += _VOIDED
        j.boot += 1
        return True

    # --- an empty region ---

    def _begin(self) -> None:
        """Write the first header and record: always the same bytes, so that an interrupted attempt can be repeated."""
        j = self.j
        seq = j._ring_seq = j._ring_seq + 1
        j.boot = 1
        j.fresh = True
        for sector in range(self._sectors):
            if j._use[sector]:
                continue
            j._seqs[sector] = seq
            try:
                end = j._stage_header(seq, sector, _NONE, 0, 0)
                j._program(sector * j._sector_bytes, 0, end, True)
                j._put(sector, end, _STATE, 0, 1, b"", 0, 0, True)
            except FlashFailed:
                pass
            j._load(sector * j._sector_bytes)
            if raw_crc32(j._page, 0, _HEADER - 4, 0, _HEADER - 4, 0) and j._look(sector, _HEADER):
                j._head = j._tail = j._cursor_sector = sector
                j._end = j._cursor_at = _HEADER + _RECORD
                j._use[sector] = _CHAINED
                j._chain = 1
                j._free -= 1
                j._first[sector] = 1
                j._prev = _NONE
                return
            j._retire(sector)
        raise StoreWorn("no sector takes a program")

    def _check_foreign(self) -> None:
        """Raise unless the region is blank, or has only the bytes of an interrupted first mount."""
        j = self.j
        first = bytearray(_PAGE)
        j.boot = 1
        for sector in range(self._sectors):
            j._seqs[sector] = 1
            n = j._stage_header(1, sector, _NONE, 0, 0)
            stage_record(j._out, n, 1, _STATE, 0, 1, j._state, b"", 0, 0)
            n += _RECORD
            copy(first, 0, j._out, 0, n)
            raw_fill(j._out, n, 0xFF, 0)
            for at in range(0, j._sector_bytes, _PAGE):
                j._load(sector * j._sector_bytes + at)
                page = j._page
                if is_blank(page, n if at == 0 else 0, _PAGE) and (
                    at or all([page[i] & first[i] == first[i] for i in range(n)])
                ):
                    continue
                if self._magic:
                    raise StoreCorrupt("no sector of this journal can be read")
                raise StoreForeign("sector %d, offset %d: not a journal, and not blank" % (sector, at))

    def _wipe(self) -> None:
        """Erase the region. If a sector can't be erased, the new sequences continue after the sequence in its header."""
        j = self.j
        for sector in range(self._sectors - 1, -1, -1):
            try:
                j.region.erase(sector)
            except FlashFailed:
                j._retire(sector)
        j._page_at = -1
        try:
            self._read_headers()
        except StoreForeign:
            pass
        j._ring_seq = max(j._seqs)
        for sector in range(self._sectors):
            j._seqs[sector] = 0
