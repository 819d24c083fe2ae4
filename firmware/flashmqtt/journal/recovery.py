"""Mounting: recovers a journal after a power cut. FORMAT.md, "Recovery", "First mount" and "Damage".

The newest valid sector (a sector that "counts") has the whole state except the messages' bodies. Its header and its last record
are programmed again with the same bytes, so that a marginal cell can't read differently the next time. Then the next sector is
opened or, after a clean end, a mount record is written. Until then, nothing depends on the recovered state. If the newest sector
has few messages, the next one takes them along, so that many power cuts don't fill the ring.

Recovery does not search the bodies; `journal` does that later.
"""

import sys
from array import array
from struct import pack_into, unpack_from

from flashmqtt import journal
from flashmqtt.compat import TYPE_CHECKING, const
from flashmqtt.errors import FlashFailed, StoreCorrupt, StoreForeign, StoreWorn, UsageError
from flashmqtt.fast import copy, is_blank, raw_crc32, raw_fill

from .journal import _COMPILED, DROP_NEWEST, DROP_OLDEST, MAGIC, REFUSE

if TYPE_CHECKING:
    from collections.abc import Callable
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
_CARRIED = const(0x40)
_NONE = const(0xFFFF)
_WINDOW = const(32)
_CHAINED = const(1)
_FOR_STATE = const(1)
_SEQUENCE_LIMIT = const(0x3FFFFFFF)
_RECORD_FIELDS = "<2BHI12s"
_VOIDED = const(64)  # how many sector sequences a mount record makes void


def mount(j: "Any", region: "Any", policy: int, wipe: bool, feed: "Callable[[], object] | None") -> None:
    """Make the attributes of a journal, as on a blank region, and recover it; with `wipe` make it empty first.

    As .mpy, this module is removed from memory afterwards.
    """
    if not hasattr(region, "sectors"):
        raise UsageError("region %r: such as board.journal_region(16)" % (region,))
    if policy not in (REFUSE, DROP_OLDEST, DROP_NEWEST):
        raise UsageError("policy %r: REFUSE, DROP_OLDEST or DROP_NEWEST" % (policy,))
    if not region.reads_blank:
        raise StoreForeign("no journal on encrypted flash")
    n = region.sectors
    size = region.sector_bytes
    if not 1024 <= size <= 0x8000 or size & (size - 1) or _PAGE % region.page_bytes or not 4 <= n < _NONE:
        raise UsageError("a journal needs pages of up to 256 bytes, 4 sectors or more of 1 to 32 KB")
    j.region = region
    j.policy = policy
    j.on_drop = None
    j.fresh = True
    j.worn = False
    j.next_seq = j.low = j.floor = j.boot = 1
    j.dropped = j.damaged = 0
    j.note = bytearray(b"\xff" * 12)
    # low, finished and marked, as in every record; dropped and damaged to be written
    j._state = bytearray(20)
    j._state[0] = 1
    j._unsynced = j._unflushed = False  # are there changes for `sync`, for `flush`?
    j._busy = 0  # 1 during a write, _AFTER_CLOSE after `close`
    j._written_losses = 0  # dropped + damaged as written on flash
    # Sectors.
    j._sector_bytes = size
    j._shift = len(bin(size)) - 3
    j._use = bytearray(n)
    j._seqs = array("i", [0] * n)  # sector sequences: the seeds of the records' CRCs
    j._first = array("i", [1] * n)  # the first message that begins in the sector or later
    j._after = array("H", [_NONE] * n)  # the next sector on the chain
    j._ends = array("H", [0] * n)  # where the sector's records end; the head's: `_end`
    j._prev = _NONE  # the sector before the head on the chain
    j._ring_seq = j.wear = 0
    j._new_tail = 0  # now: the first opening shall not enlarge the table of attributes
    j._chain = j._put_records = 0  # how many sectors; how many records the last opening wrote
    j.hold_limit = 128 if size >= 4096 else 40  # how many held messages an opening can list
    j._reserve = 3 if n > 5 else 2  # free sectors after an outgoing message; the third is for inbound messages
    j._free = n  # sectors that are neither on the chain nor bad
    j._head_top = 0  # the sequence after the last message in the head
    j._spoiled = False  # programming the head failed: use the next sector
    j._ahead = -1  # a sector erased in advance
    # One page to read, one page to write.
    j._page = bytearray(_PAGE)
    j._out = bytearray(b"\xff" * _PAGE)  # FF except for the bytes to program
    j._offset_mask = max(region.page_bytes, 16) - 1  # the unit of programming, minus 1
    j._views = {_PAGE: j._out}  # of `_out`, by length
    # The window: the places of bodies, by `sequence & 31`.
    j._places = array("i", [0] * _WINDOW)
    j._lengths = array("i", j._places)
    j._located = 1  # the bodies of messages below this one were searched
    j._read_seq = 0  # the message that was read last
    j._continued = 0  # 1: pieces of the next message are written
    j._pieces = None  # `pieces.Pieces`, from the first message in pieces on
    j._held = None  # `held.Held`, from the first held message on
    # Set later: `_head`, `_tail`, `_end`; `_page_at`; `_cursor_sector` and `_cursor_at`, where the search for the next body
    # begins; and `_skipped`, the type of damaged bytes that were skipped before a whole record, 0 for none.
    if feed:
        from flashmqtt.flash.fed import FedRegion

        j.region = FedRegion(region, feed)
    Recovery(j).run(j, wipe)
    j.region = region
    if _COMPILED:
        del sys.modules[__name__], journal.recovery


def header_end(page: "bytearray") -> int:
    """Return where the header in a page ends; 0 if it is not whole."""
    end = _HEADER - 4 + 4 * (page[7] & 63)
    return end + 4 if end < _PAGE and raw_crc32(page, 0, end, 0, end, 0) else 0


class Recovery:
    """What one mount finds out about the journal `j`."""

    def __init__(self, j: "Any") -> None:
        self._sectors = n = j.region.sectors
        self._links = bytearray(8 * n)  # from each header: the previous sector's number, end and sequence
        self._shown = [-1] * n  # the sequence in a header, whole or damaged; -1: blank
        # The head's header and last whole record, as read once: a marginal cell may read differently.
        self._header = bytearray(_PAGE)
        self._last = bytearray(_PAGE)
        self._void_to = 0  # the next opening needs a sequence above this
        self._magic = False  # does a sector begin with MAGIC?
        # Held messages as (key, place), oldest first. A key occurs twice where a discard is damaged: the later message is held.
        self._places: "list[Any]" = []
        self._in_head = False  # does the head have a held message?

    if TYPE_CHECKING:
        _opened = False  # does only its opening make the newest sector count?
        # Of the sector that was read last: where its last record and all records end; its mount records; does it end clean?
        _last_at = _end = _mounts = _clean = 0
        _top = 0  # the sequence after the head's messages

    def run(self, j: "Any", wipe: bool) -> None:
        """Mount; with `wipe` make it empty first."""
        if wipe:
            self._wipe(j)
        else:
            self._read_headers(j)
            head = self._newest(j)
            while head >= 0:
                if self._confirm(j, head):
                    self._go_on(j, head)
                    return
                j._seqs[head] = 0  # valid in one reading only
                head = self._newest(j)
            j._ring_seq = 1
            self._check_foreign(j)
        self._begin(j)

    # --- headers ---

    def _read_headers(self, j: "Any") -> None:
        page = j._page
        version = -1
        for sector in range(self._sectors):
            j._load(sector * j._sector_bytes)
            if is_blank(page, 0, _HEADER):
                continue
            magic, own, complement, shift, _, seq = unpack_from("<4s4BI", page)
            first, _, _, _, _, _, sectors, tail, before, _, before_seq = unpack_from("<6I4HI", page, 24)
            self._shown[sector] = seq
            if magic != MAGIC:
                continue
            self._magic = True
            if own ^ complement == 0xFF and own != 2:
                version = own
            elif header_end(page) and max(seq, first) <= _SEQUENCE_LIMIT:
                if sectors != self._sectors or shift != j._shift:
                    raise StoreForeign("a journal of %d sectors of %d bytes" % (sectors, 1 << shift))
                # Nearly always, the sector before is the neighbour.
                if (1 < before_seq == j._seqs[sector - 1] and before != sector - 1) or (
                    before == _NONE and tail != sector
                ):
                    raise StoreCorrupt("sectors were moved")
                j._seqs[sector] = seq
                j._first[sector] = first
                copy(self._links, 8 * sector, page, 52, 8)
        if version >= 0 and not any(j._seqs):
            raise StoreForeign("the journal has version %d, this code reads version 2" % version)

    def _newest(self, j: "Any") -> int:
        """Return the sector that counts with the highest sequence, or -1."""
        head = -1
        below = 0x3FFFFFFF
        asked = 0
        while asked < 5:
            sector = self._highest(j, below)
            if sector < 0:
                break
            below = j._seqs[sector]
            j._ring_seq = max(j._ring_seq, below)
            counts = self._scan(j, sector, 0)
            if not counts:
                j._seqs[sector] = 0  # a cut opening
                below += 1  # two may have one sequence
                continue
            asked += 1
            if self._clean:
                self._void_to = max(self._void_to, below + _VOIDED * (self._mounts + 1))
            if head >= 0:
                if j._seqs[head] > below + _VOIDED * self._mounts:
                    continue
                for other in range(self._sectors):
                    if j._seqs[other] > below:
                        j._seqs[other] = 0  # void: a later mount continued in this sector after its clean end
            head = sector
            self._opened = counts == 1
        return head

    def _highest(self, j: "Any", below: int) -> "Any":
        """Return the sector with the highest sequence below a number that is not on the chain, -1 if there is none."""
        found = -1
        seqs = j._seqs
        for sector in range(self._sectors):
            if 0 < seqs[sector] < below and not j._use[sector] and (found < 0 or seqs[sector] > seqs[found]):
                found = sector
        return found

    def _scan(self, j: "Any", sector: int, at: int) -> int:
        """Read the records of a sector; return how many make it count: those that were written after the header.

        Count its mount records. If `at` is not 0, keep the last record. If only its opening makes the sector count, its erase may
        have been cut, so what it carried may be marginal: if a record is gone, it does not count; otherwise, program them again.
        """
        keep = at
        counts = carried = self._mounts = self._clean = 0
        while j._find(sector, at, j._sector_bytes):
            at = self._end = j._record_end
            self._last_at = j._at
            kind = j._kind
            if keep:
                copy(self._last, 0, j._page, j._at & 255, _RECORD + j._length)
                if self._opened and kind & _CARRIED:
                    self._again(j, sector, j._at, self._last, _RECORD + j._length)
            self._clean = 0
            if kind & _TYPE == _STATE:
                counts += 1
                self._clean = kind & _LAST
                self._mounts += kind >> 6 & 1  # the flag _MOUNT
            elif kind & _CARRIED:
                carried += 1
            else:
                counts += 1
        return 0 if counts == 1 and kind == _STATE and j._key > carried else counts

    # --- the head ---

    def _go_on(self, j: "Any", head: int) -> None:
        page = self._header
        first, j.floor, j.dropped, j.damaged, j.boot, j.wear, _, tail = unpack_from("<6I2H", page, 24)
        j.next_seq = first - (page[7] >> 7)
        copy(j._state, 0, page, 12, 12)
        copy(j.note, 0, page, 60, 12)
        j._head = head
        j._end = self._end
        self._chain(j, head, tail)
        self._take_places(j, page, 72, page[7] & 63)
        clean = self._clean
        beyond = j._seqs[head] + _VOIDED * (self._mounts + 1)
        j.boot += self._mounts
        j._ring_seq = max(j._ring_seq, j._seqs[head] + _VOIDED * self._mounts)
        self._apply(j, head, 0, j._end)
        j._written_losses = j.dropped + j.damaged
        for sector in range(self._sectors):
            # It had a header, whole or damaged, that does not count.
            if self._shown[sector] >= 0 and not (j._use[sector] or j._seqs[sector]):
                from .faults import rescue

                rescue(self, j, head, sector)
        self._list_held(j)
        j.low = unpack_from("<I", j._state)[0]
        j.next_seq = max(j.next_seq, j.low)
        # A message that is finished or marked was stored, even if its record is damaged.
        for seq in range(j.low, j.low + _WINDOW):
            i = 4 + (seq >> 3 & 3)
            if (j._state[i] | j._state[i + 4]) & 1 << (seq & 7):
                j.next_seq = max(j.next_seq, seq + 1)
        # Each mount takes a sector sequence.
        if not j.floor <= j.next_seq <= _SEQUENCE_LIMIT or (j.dropped | j.damaged) >> 31 or j.boot > j._ring_seq:
            raise StoreCorrupt("next message %d, boot %d: too high" % (j.next_seq, j.boot))
        # The totals of this boot stay below 2^31.
        j.dropped = min(j.dropped, _SEQUENCE_LIMIT)
        j.damaged = min(j.damaged, _SEQUENCE_LIMIT)
        j._advance()
        j.fresh = j.next_seq == 1 and not self._places and is_blank(j.note, 0, 12)
        self._place_cursor(j)
        # A mount record that was cut may read as whole later. It must not make a new sector void.
        j._ring_seq = max(j._ring_seq, self._void_to)
        if clean:
            j._ring_seq = max(j._ring_seq, beyond)
            try:
                j._write(_STATE | _MOUNT, 0, j.next_seq, b"", 0, 0, _FOR_STATE)
            except StoreWorn:
                pass  # `worn` is set
            j._ring_seq = max(j._ring_seq, j._seqs[j._head] + _VOIDED)
            j.boot += 1
            return
        j.boot += 1
        # The new sector repeats the recovered state. If the head's messages fit into half of it, the head leaves the chain.
        self._top = top = j.next_seq
        j.next_seq = max(j._first[head], j.low, j.floor)  # what the new header states as `first`
        carries: "Any" = self
        try:
            if self.put_opening(j, -1, 0) > j._sector_bytes >> 1 or (self._in_head and j.held()):
                raise FlashFailed
            j._head_top = 0
        except FlashFailed:
            carries = None
            j.next_seq = top
        try:
            j._end = j._open(_STATE, 0, top, b"", 0, 0, _FOR_STATE, carries) + _RECORD
        except StoreWorn:
            pass  # `worn` is set
        if j.next_seq < top:
            j._head_top = j.next_seq = top

    def put_opening(self, j: "Any", target: int, at: int) -> int:
        """Copy the head's messages, from `next_seq` on, into a sector; return where they end. Only compute that if target is -1.

        Raises:
            FlashFailed: the messages are not all there, with all their pieces; or a program operation failed.
        """
        at = at or _HEADER
        floor = max(j.low, j.floor)
        seq = j.next_seq
        place = piece = 0
        while j._find(j._head, place, j._end):
            place = j._record_end
            if j._kind & _TYPE != _MESSAGE or j._seq < floor:
                continue
            # Damage makes void what is not complete there: the damaged record may have begun the message again.
            if j._seq != seq or j._key != piece or (piece and j._skipped):
                raise FlashFailed
            j._skipped = 0
            at = j._put(target, at, j._kind | _CARRIED, piece, seq, j._page, (j._at & 255) + _RECORD, j._length)
            piece += 1
            if j._kind & _LAST:
                seq += 1
                piece = 0
        if piece or seq != self._top:
            raise FlashFailed
        return at

    def _apply(self, j: "Any", sector: int, at: int, end: int) -> None:
        """Apply the head's records, or those of a newer sector whose header is damaged, except for its messages."""
        page = j._page
        head = sector == j._head
        begun = 0  # the key of the held message that is not complete yet; 0: none
        j._skipped = 0
        while j._find(sector, at, end):
            at = j._record_end
            body = (j._at & 255) + _RECORD
            n = j._length
            key = j._key
            seq = j._seq
            flags = j._kind
            kind = flags & _TYPE
            carried = flags & _MOUNT and kind != _STATE  # it is listed in the header or in a list
            if carried and not head:
                continue
            copy(j._state, 0, page, body - 12, 12)
            if j._skipped:
                if head:
                    j.damaged += not begun and j._skipped == _HELD  # `_list_held` counts a message that had begun
                begun = j._skipped = 0
            if kind == _MESSAGE:
                if head:
                    j._head_top = seq + 1
                if flags & _LAST:
                    seq += 1
                elif head:
                    continue
                j.next_seq = max(j.next_seq, seq)
            elif kind == _HELD:
                if not head:
                    j.damaged += not seq
                    continue
                self._in_head = True
                if carried:
                    continue
                if not seq:
                    self._places.append((key, sector * j._sector_bytes + j._at))
                begun = 0 if flags & _LAST else key
            else:
                j.next_seq = max(j.next_seq, seq)
                if kind == _LIST:
                    self._take_places(j, page, body, n >> 2)
                elif kind == _RELEASED:
                    keys = unpack_from("<%dH" % (n >> 1), page, body)
                    if begun in keys:
                        begun = 0
                    for held in list(self._places):
                        if held[0] in keys:
                            self._places.remove(held)
                elif kind == _NOTE and n == 12:
                    copy(j.note, 0, page, body, 12)
                elif head and kind == _STATE and n == 8:
                    j.dropped, j.damaged = unpack_from("<2I", page, body)

    def _take_places(self, j: "Any", page: "Any", at: int, n: int) -> None:
        """Add the held messages that a header or a list names."""
        parts = iter(unpack_from("<%dH" % (2 * n), page, at))
        for sector in parts:
            at = 4 * next(parts)
            if (
                sector < self._sectors
                and at < j._sector_bytes
                and j._use[sector] == _CHAINED
                and j._look(sector, at)
                and j._kind & _TYPE == _HELD
                and not j._seq
            ):
                self._places.append((j._key, sector * j._sector_bytes + at))
            else:
                j.damaged += 1

    def _confirm(self, j: "Any", head: int) -> bool:
        """Program the header and the last whole record again; return False if the sector does not count in this reading."""
        page = self._header
        j.region.read(head * j._sector_bytes, page)
        n = header_end(page)
        if not n or not self._scan(j, head, n):
            return False
        self._again(j, head, 0, page, n)
        self._again(j, head, self._last_at, self._last, _RECORD + self._last[4])
        return True

    def _again(self, j: "Any", sector: int, at: int, page: "bytearray", n: int) -> None:
        """Program n bytes again."""
        copy(j._out, at & j._offset_mask, page, 0, n)
        try:
            j._program(sector, at, n, True)
        except FlashFailed:
            self._clean = False  # it was read whole, and the next sector will repeat its state

    # --- the chain ---

    def _chain(self, j: "Any", head: int, tail: int) -> None:
        """Link the sectors from the head back to the tail; a damaged header loses only its own sector."""
        sector = head
        while True:
            j._use[sector] = _CHAINED
            j._chain += 1
            if sector == tail:
                break
            before, end, seq = unpack_from("<2HI", self._links, 8 * sector)
            if before >= self._sectors or not 0 < j._seqs[before] == seq < j._seqs[sector]:
                end = j._sector_bytes
                # The tail's own header may be damaged.
                needed = before != tail and j._first[sector] > j.floor
                before = self._highest(j, min(seq, j._seqs[sector])) if needed else -1
                if before < 0:
                    break
            j._after[before] = sector
            j._ends[before] = min(end, j._sector_bytes)
            if sector == head:
                j._prev = before
            sector = before
        j._tail = sector
        j._free -= j._chain

    # --- held messages ---

    def _list_held(self, j: "Any") -> None:
        """List the held messages that are complete."""
        if not self._places:
            return
        from .held import Held

        j._held = held = Held(j)
        held.in_head = self._in_head
        for key, place in self._places:
            length = j._measure(_HELD, key, place)
            if length:
                held.add(key, place, length)
            elif j._skipped and not held.held_length(key):
                j.damaged += 1

    # --- continuing ---

    def _place_cursor(self, j: "Any") -> None:
        """Set the cursor, where the search for bodies begins, to the last sector in which the oldest body may begin."""
        for sector in range(self._sectors):  # a message that was in progress is discarded: its sequence is used again
            j._first[sector] = min(j._first[sector], j.next_seq)
        j._located = max(j.low, j.floor)
        sector = j._tail
        while sector != j._head and j._first[j._after[sector]] <= j._located:
            sector = j._after[sector]
        j._cursor_sector = sector
        j._cursor_at = 0

    # --- an empty region ---

    def _begin(self, j: "Any") -> None:
        """Write the first header and record: always the same bytes, so that this can be repeated."""
        for sector in range(self._sectors):
            if j._use[sector]:
                continue
            j._seqs[sector] = j._ring_seq
            try:
                n = j._stage_header(sector, sector, _NONE, 0)
                j._program(sector, 0, n, True)
                self._stage(j, n & j._offset_mask, sector)
                j._program(sector, n, _RECORD, True)
            except FlashFailed:
                pass
            if j._look(sector, _HEADER) and header_end(j._page):
                j._head = j._tail = j._cursor_sector = sector
                j._end = j._cursor_at = _HEADER + _RECORD
                j._use[sector] = _CHAINED
                j._chain = 1
                j._free -= 1
                return
            j._retire(sector)
        raise StoreWorn("no sector can be written")

    def _stage(self, j: "Any", i: int, sector: int) -> None:
        """Write the first record into the journal's output."""
        pack_into(_RECORD_FIELDS, j._out, i + 4, 0, _STATE, 0, 1, j._state)
        raw_crc32(j._out, j._seqs[sector], 20, i + 4, i, 1)

    def _check_foreign(self, j: "Any") -> None:
        """Raise unless the region is blank, or has only the bytes of an interrupted first mount."""
        for sector in range(self._sectors):
            j._seqs[sector] = 1
            self._stage(j, j._stage_header(sector, sector, _NONE, 0), sector)
            for at in range(0, j._sector_bytes, _PAGE):
                j._load(sector * j._sector_bytes + at)
                if not is_blank(j._page, 0, _PAGE) and any([~j._page[i] & j._out[i] for i in range(_PAGE)]):
                    j.region.read(sector * j._sector_bytes + at, j._page)  # FlashFailed, if it can't be read
                    if self._magic:
                        raise StoreCorrupt("no sector of this journal can be read")
                    raise StoreForeign("sector %d, offset %d: not a journal, and not blank" % (sector, at))
                raw_fill(j._out, _PAGE, 0xFF, 0)

    def _wipe(self, j: "Any") -> None:
        """Erase the region. If a sector can't be erased, the new sequences continue after the sequence in its header."""
        for sector in range(self._sectors - 1, -1, -1):
            try:
                j.region.erase(sector)
            except FlashFailed:
                j._retire(sector)
        try:
            self._read_headers(j)
        except (StoreForeign, StoreCorrupt):
            pass
        j._ring_seq = max(j._seqs) + 1
