"""The journal: messages on flash that survive a power cut at any moment. FORMAT.md describes the bytes.

The idea: storing a message takes one program operation. Every record also says which messages are finished, so finishing a
message needs no write of its own. Outgoing messages have sequence numbers. Only those from `low` to `low` + 31, the window, can
be in flight, so their places are indexed by `sequence & 31`, and `sequence - low >> 5` is 0 only in the window. Only a mount
that opens a sector copies outgoing messages. A sector's header is a checkpoint: recovery reads all headers, and the records of
the five newest sectors.

The guarantee: when `append`, `commit`, `hold`, `write_note` or `sync` returns, its write survives a power cut at any later
moment. `finish` becomes durable with any later write, or with `flush`.

Loaded when first needed: messages of more than one record (`pieces.py`), a full journal (`room.py`), held messages (`held.py`),
wrong calls and damaged bytes (`faults.py`). Recovery (`recovery.py`) is unloaded after the mount.

The journal knows no MQTT: a message is bytes, a mark is a bit, a key is a number.
"""

from struct import pack_into

from flashmqtt.compat import TYPE_CHECKING, const
from flashmqtt.errors import (
    FlashFailed,
    StoreCorrupt,
    StoreFull,
    StoreWorn,
)
from flashmqtt.fast import is_blank, raw_copy, raw_crc32, raw_fill

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable
    from typing import Any  # noqa: TID251

# The format's numbers, as tools/journal/layout.py has them (a test compares): private constants cost nothing on a board.
_PAGE = const(256)
_HEADER = const(76)
_RECORD = const(24)
_BODY_MAX = const(232)
_MESSAGE = const(1)
_STATE = const(3)
_NOTE = const(5)
_TYPE = const(15)
_LAST = const(0x80)
_NONE = const(0xFFFF)
_SEQUENCE_LIMIT = const(0x3FFFFFFF)
_WINDOW = const(32)
_HEADER_FIELDS = "<4s4BI12s6I4HI12s"  # for `struct`: a header's bytes before the list of held messages
_RECORD_FIELDS = "<2BHI12s"  # and a record's bytes between its CRC and its body
_FREE = const(0)
_CHAINED = const(1)
_BAD = const(2)
# Values of `_busy`: no more writes until the next mount.
_AFTER_CLOSE = const(2)
_INTERRUPTED = const(3)
# How many sectors are free after a record of this kind was written; for an outgoing message: `_reserve`.
_FOR_STATE = const(1)

REFUSE = 0
DROP_OLDEST = 1
DROP_NEWEST = 2

MAGIC = b"fmqj"


# Recovery runs once per boot. As .mpy, the module is loaded for the mount and removed from memory after it. From source, it is
# loaded here, because compiling it later would take more memory than keeping it.
_COMPILED = __file__.endswith(".mpy")
if not _COMPILED:
    from . import recovery  # noqa: F401


class Journal:
    """A mounted store on a region of flash. A blank region becomes an empty journal; other data is never overwritten.

    Args:
        region: see `flash.region`; 4 sectors or more of 1 to 32 KB, pages of up to 256 bytes.
        policy: for a full journal: `REFUSE` (StoreFull), `DROP_OLDEST` or `DROP_NEWEST`; dropped messages are counted.
        wipe: erase everything first, as `format` does.
        feed: called before each access to the flash during the mount, which may take seconds: feed the watchdog here.

    Attributes:
        next_seq: the sequence of the next message, 1 to 2^30 - 1. low: the oldest message that is not finished, or next_seq.
        dropped: messages dropped by the policy; the session also counts refused and expired ones here.
        damaged: messages lost to damage of the flash.
        boot: how many times it was mounted, 1 for the first.
        fresh: whether no message was ever stored, so that the broker can't have any.
        worn: whether too few sectors work to store more messages; or Ctrl-C interrupted a write, and it stores again after the
            next mount.
        stored: how many messages were ever stored. waiting: how many of them are not finished.
        wear: how often each sector was erased, as all are used in turn: how often the ring began again with its first sector.
        note: the session's 12 bytes, FF if none were written.
        on_drop: None, or called with (first, end) before the policy drops the messages first to end - 1; it may mark some.

    Raises:
        UsageError: a journal can't be on such a region; or no such policy.
        StoreForeign: encrypted flash, other data, or a journal of another size or version.
        StoreCorrupt: a journal without a readable sector, or whose sectors were moved. StoreWorn: no sector can be erased.
        FlashFailed: a read failed that may succeed the next time; any call raises it. A page that stays unreadable is damaged.
    """

    if TYPE_CHECKING:  # `recovery.mount` makes these attributes and says what they are
        region: "Any"
        on_drop: "Any"
        _pieces: "Any"
        _held: "Any"
        fresh = worn = False
        policy = next_seq = low = floor = dropped = damaged = boot = hold_limit = 0
        note = _state = _use = _page = _out = bytearray()
        _seqs = _first = _after = _ends = _places = _lengths = array("i")
        _views: "dict[int, Any]" = {}
        _unsynced = _unflushed = _spoiled = _keep_head = False
        _busy = _written_losses = _sector_bytes = _shift = _chain = _free = _reserve = _continued = 0
        wear = _head = _head_top = _tail = _prev = _end = _ring_seq = _ahead = _new_tail = 0
        _page_at = _offset_mask = _located = _cursor_sector = _cursor_at = 0
        _sector = _at = _record_end = _length = _kind = _key = _seq = _skipped = 0
        _read_seq = _read_from = _read_place = _read_piece = _put_records = 0

    def __init__(
        self, region: "Any", policy: int = REFUSE, wipe: bool = False, feed: "Callable[[], object] | None" = None
    ) -> None:
        from .recovery import mount

        mount(self, region, policy, wipe, feed)  # this makes and explains the attributes

    @staticmethod
    def format(region: "Any", policy: int = REFUSE) -> "Journal":
        """Erase a region, make an empty journal on it and mount it. After a power cut, call it again."""
        return Journal(region, policy, True)

    def __getattr__(self, name: str) -> "Any":
        """Return a computed attribute, or a method of a part that is loaded when it is needed.

        A property in the class would make every attribute store ten times as slow.
        """
        if name == "stored":
            return self.next_seq - 1
        if name == "waiting":
            end = self.low + _WINDOW
            n = max(self.next_seq - max(end, self.floor), 0)
            for seq in range(self.low, min(end, self.next_seq)):
                n += not self.is_finished(seq)
            return n
        if name in ("begin", "extend", "commit"):
            from .pieces import Pieces

            part = self._pieces = self._pieces or Pieces(self)
        elif "hold" in name or "held" in name or name == "discard":
            from .held import Held

            part = self._held = self._held or Held(self)
        else:
            raise AttributeError(name)
        method = getattr(part, name)
        setattr(self, name, method)  # so the next call takes no detour
        return method

    # --- outgoing messages ---

    def append(self, buf: "bytes | bytearray | memoryview", length: int) -> int:
        """Store buf[:length] durably; return its sequence, or 0 if the policy dropped it.

        Raises:
            UsageError: no bytes, or more than buf has; or a callback called this during another write.
            StoreFull: no room, and the policy is to refuse; or the message is too long for the whole store; or no memory.
            StoreWorn: too few sectors work, or Ctrl-C interrupted an earlier write.
            StoreError: all 2^30 sequence numbers are used.
        """
        if length > _BODY_MAX:
            if not self.begin(length):
                return 0
            self.extend(buf, length)
            return self.commit()
        if not 0 < length <= len(buf) or self.next_seq >= _SEQUENCE_LIMIT:
            from .faults import refuse_length

            refuse_length(self, length, buf)
        if self._pieces and not self._busy:
            self._pieces.abandon()
        seq = self.next_seq
        try:
            place = self._write(_MESSAGE | _LAST, 0, seq, buf, 0, length, self._reserve)
        except StoreFull:
            if self.policy != DROP_NEWEST:
                raise
            self.dropped += 1
            return 0
        if seq == self._located and seq - self.low < _WINDOW:
            self._places[seq & 31] = place
            self._lengths[seq & 31] = length
            self._located = seq + 1
            self._cursor_sector = self._head
            self._cursor_at = self._end
        self.fresh = False
        return seq

    if TYPE_CHECKING:  # `__getattr__` loads these methods of `pieces.Pieces`

        def begin(self, length: int) -> bool:
            """Begin a message of `length` bytes that comes in pieces; it is stored when `commit` returns.

            The next `append` or `begin`, or a power cut, discards an incomplete message. Return False if the policy dropped it.

            Raises:
                UsageError, StoreFull, StoreWorn, StoreError: as for `append`.
            """

        def extend(self, buf: "bytes | bytearray | memoryview", n: int) -> None:
            """Add the next piece, buf[:n].

            Raises:
                UsageError: no message was begun, the piece is longer than the rest of the message, or buf is shorter than n.
                StoreFull: notes or held messages took the room since `begin`; the message is discarded. StoreWorn.
            """

        def commit(self) -> int:
            """End the message, which is durable now; return its sequence, or 0 if the policy dropped it meanwhile.

            Raises:
                UsageError: the message is not complete. StoreFull, StoreWorn: as for `extend`.
            """

    def length(self, seq: int) -> int:
        """Return the length of a message in the window; 0 if its body was dropped or is damaged.

        Raises:
            UsageError: not in the window, low <= seq < min(next_seq, low + 32).
        """
        if seq >= self._located or seq < self.low:
            if seq - self.low >> 5 or seq >= self.next_seq:
                self._outside(seq)
            self._locate(seq)
        return self._lengths[seq & 31]

    def read(self, seq: int, offset: int, buf: "bytearray | memoryview", at: int, n: int) -> None:
        """Copy n bytes of a message, from an offset on, to buf[at:at+n].

        Raises:
            UsageError: the message has no such bytes. StoreCorrupt: it can't be read any more; `length` is 0 from now on.
        """
        if offset | n | at < 0 or offset + n > self.length(seq) or at + n > len(buf):
            from .faults import refuse_read

            refuse_read(self, seq, offset, buf, at, n)
        if not self._copy_pieces(_MESSAGE, seq, self._places[seq & 31], offset, buf, at, n):
            self._read_seq = self._lengths[seq & 31] = 0
            raise StoreCorrupt("message %d can't be read" % seq)

    def _copy_pieces(
        self, kind: int, ident: int, first: int, offset: int, buf: "bytes | bytearray | memoryview", at: int, n: int
    ) -> int:
        """Copy bytes of a message that begins at the place `first`; return 0 if a piece is missing.

        From an offset beyond its end on, nothing is copied; return its length.

        If the last call read the same outgoing message, start at its last piece: at `_read_place` is piece `_read_piece`, which
        begins with byte `_read_from`.
        """
        message = kind == _MESSAGE
        if not message or ident != self._read_seq or offset < self._read_from:
            self._read_seq = 0  # until the others are set: a new attribute may need memory
            self._read_place = first
            self._read_from = self._read_piece = 0
            self._read_seq = message and ident
        size = self._sector_bytes
        sector = self._read_place // size
        place = self._read_place % size
        while n:
            if not self._next(sector, place):
                return 0
            sector = self._sector
            place = self._record_end
            if self._kind & _TYPE != kind or (self._seq < ident if message else self._key != ident):
                continue
            piece = self._key if message else self._seq
            if piece != self._read_piece or (message and self._seq != ident):
                self._skipped |= piece  # 0: it begins again
                return 0
            skip = offset - self._read_from
            if skip < self._length:
                self._read_place = sector * size + self._at
                part = min(self._length - skip, n)
                raw_copy(buf, self._page, part, at, (self._at + _RECORD + skip) & 255)
                at += part
                n -= part
                if not n:
                    break
                offset += part
            self._read_from += self._length
            self._read_piece += 1
            if self._kind & _LAST:
                return self._read_from
        return 1

    def _measure(self, kind: int, ident: int, first: int) -> int:
        """Return the length of a message that begins at a place; 0 if it is not complete, or damage is in it."""
        self._read_seq = self._skipped = 0
        length = self._copy_pieces(kind, ident, first, _SEQUENCE_LIMIT, b"", 0, 1)
        return 0 if self._skipped else length

    def finish(self, seq: int) -> None:
        """Finish a message of the window: it is delivered, or will not be sent. Durable with any later write, or `flush`."""
        if seq - self.low >> 5 or seq >= self.next_seq:
            self._outside(seq)
        state = self._state
        bit = 1 << (seq & 7)
        i = 4 + (seq >> 3 & 3)
        if not self._lengths[seq & 31] and self.floor <= seq < self._located and not (state[i] | state[i + 4]) & bit:
            self.damaged += 1
        state[i] |= bit
        self._unflushed = True
        self._advance()

    def _advance(self) -> None:
        """Advance `low` past all messages that are finished or dropped."""
        state = self._state
        seq = self.low
        end = seq + _WINDOW
        while seq < self.next_seq:
            bit = 1 << (seq & 7)
            i = 4 + (seq >> 3 & 3)
            if not state[i] & bit and (seq >= self.floor or state[i + 4] & bit):
                break
            seq += 1
            if seq == end:  # all messages from here to floor were dropped: there may be a million
                seq = max(seq, self.floor)
            # Ctrl-C raises at a jump or after a call: it can't separate these lines.
            state[i] &= ~bit
            state[i + 4] &= ~bit
            self.low = seq
            pack_into("<I", state, 0, seq)

    def is_finished(self, seq: int) -> bool:
        """Return whether a message in the window, or below it, is done."""
        if seq < self.low:
            return True
        bit = 1 << (seq & 7)
        i = seq >> 3 & 3
        state = self._state
        return state[4 + i] & bit != 0 or (seq < self.floor and not state[8 + i] & bit)

    def mark(self, seq: int) -> None:
        """Mark a message of the window; durable after `sync`, or any other write."""
        if seq - self.low >> 5 or seq >= self.next_seq:
            self._outside(seq)
        self._state[8 + (seq >> 3 & 3)] |= 1 << (seq & 7)
        self._unsynced = True

    def unmark(self, seq: int) -> None:
        """Clear the mark of a message of the window; durable as for `mark`."""
        self.mark(seq)
        self._state[8 + (seq >> 3 & 3)] ^= 1 << (seq & 7)

    def is_marked(self, seq: int) -> bool:
        """Return whether a message of the window is marked."""
        return self._state[8 + (seq >> 3 & 3)] & 1 << (seq & 7) != 0

    def _outside(self, seq: int) -> None:
        from .faults import refuse_outside

        refuse_outside(self, seq)

    # --- held messages: implemented in `held.py` ---

    if TYPE_CHECKING:  # `__getattr__` loads these methods

        def hold(self, key: int, buf: "bytes | bytearray | memoryview", length: int) -> None:
            """Store an inbound message buf[:length] under its key (1 to 65,535), durably; it is kept until `discard`.

            Raises:
                UsageError: as for `append`, or the key is in use. StoreFull: no room, or `hold_limit` are held. StoreWorn.
            """

        def hold_begin(self, key: int, length: int) -> None:
            """Begin an inbound message of `length` bytes under `key` that comes in pieces; it is held when it is complete.

            The next `hold_begin`, or a power cut, discards an incomplete message.

            Raises:
                UsageError, StoreFull, StoreWorn: as for `hold`.
            """

        def hold_extend(self, buf: "bytes | bytearray | memoryview", start: int, n: int) -> None:
            """Add the next piece, buf[start:start+n]; when the message is complete, it is held and durable.

            Raises:
                UsageError: no message was begun, the piece is longer than the rest of the message, or buf has no such bytes.
                StoreFull: outgoing messages took the room meanwhile. StoreWorn.
            """

        def hold_abandon(self) -> None:
            """Discard an incomplete message."""

        def longest_hold(self) -> int:
            """Return the longest length of a held message: a quarter of the sectors, to leave room for others."""

        def can_hold(self, length: int) -> bool:
            """Return whether there is room now to hold a message of this length; this also loads the module that holds it."""

        def held_length(self, key: int) -> int:
            """Return the length of the message held under this key, 0 if there is none."""

        def read_held(self, key: int, offset: int, buf: "bytearray | memoryview", at: int, n: int) -> None:
            """Copy n bytes of the message held under this key, from an offset on, to buf[at:at+n].

            Raises:
                UsageError: the message has no such bytes. StoreCorrupt: it can't be read any more.
            """

        def discard(self, key: int) -> None:
            """Remove the message held under this key; durable after `sync` or `flush`."""

    def held(self) -> "list[int]":
        """Return the keys of the held messages, oldest first."""
        return self._held.keys() if self._held else []

    # --- durability ---

    def write_note(self, note: "bytes | bytearray | memoryview") -> None:
        """Store the session's note, 12 bytes, durably."""
        if len(note) != 12:
            from .faults import refuse_note

            refuse_note()
        raw_copy(self.note, note, 12, 0, 0)
        self._write(_NOTE, 0, self.next_seq, self.note, 0, 12, _FOR_STATE)

    def sync(self) -> None:
        """Make marks and discards durable in one write; if there are none, write nothing."""
        held = self._held
        if held and held.unwritten:
            held.write_released()
        elif self._unsynced:
            self._write_state(0)

    def flush(self) -> None:
        """Do `sync`, and make finished messages and the counts `dropped` and `damaged` durable, too."""
        self.sync()
        if self._unflushed or self.damaged + self.dropped != self._written_losses:
            self._write_state(0)

    def idle(self) -> None:
        """Use an idle moment for slow work: erase the next sector if it will be needed soon."""
        if self._ahead < 0 and not self._busy and not self.worn and 2 * self._end > self._sector_bytes:
            self._busy = 1  # a write would use the same sector
            try:
                self._erase_next()
            except StoreWorn:
                pass
            finally:
                self._busy = 0

    def close(self) -> None:
        """Close the journal, for example before a deep sleep: the next mount continues in the same sector, without an erase."""
        if not self.worn and self._busy != _AFTER_CLOSE:
            try:
                self.flush()
                self._write_state(_LAST)
                self._busy = _AFTER_CLOSE
            except StoreWorn:  # no reason to stay awake: the next mount is as after a power cut
                pass

    def _write_state(self, flags: int) -> None:
        n = 0
        losses = self.damaged + self.dropped
        if losses != self._written_losses:
            pack_into("<2I", self._state, 12, self.dropped, self.damaged)
            n = 8
        self._write(_STATE | flags, 0, self.next_seq, self._state, 12, n, _FOR_STATE)
        self._written_losses = losses

    # --- room ---

    def _chain_from(self, carry: "Any") -> int:
        """Return how many sectors of the chain are still needed; set `_new_tail` and `_keep_head`.

        carry: held messages may be carried into the new sector.
        """
        floor = max(self.low, self.floor)
        tail = self._tail
        chain = self._chain
        held = self._held
        if held:
            held.carried = 0
        while tail != self._head and self._first[self._after[tail]] <= floor:
            if held and held.needs(tail, carry):
                break
            tail = self._after[tail]
            chain -= 1
        self._new_tail = tail
        self._keep_head = self._head_top > floor or (held and held.in_head and held.count)
        return chain if self._keep_head else chain - 1

    # --- reading ---

    def _load(self, at: int) -> None:
        """Load the page at an offset of the region into `_page`."""
        self._page_at = -2  # until the read succeeded: `_open` distinguishes its failure from that of a program
        try:
            self.region.read(at, self._page)
        except FlashFailed:
            from .faults import is_unreadable

            if not is_unreadable(self, at):
                raise
        self._page_at = at

    def _look(self, sector: int, at: int) -> bool:
        """Read the record at an offset of a sector; return False if there is no whole record."""
        i = at & 255
        place = sector * self._sector_bytes + at - i
        if place != self._page_at:
            self._load(place)
        page = self._page
        if i > _PAGE - _RECORD:
            return False
        n = page[i + 4]
        if i + n > _PAGE - _RECORD or not raw_crc32(page, self._seqs[sector], n + 20, i + 4, i, 0):
            return False
        self._sector = sector
        self._at = at
        self._record_end = at + ((_RECORD + 3 + n) & -4)
        self._length = n
        self._kind = page[i + 5]
        self._key = page[i + 6] | page[i + 7] << 8
        self._seq = page[i + 8] | page[i + 9] << 8 | page[i + 10] << 16 | page[i + 11] << 24
        return True

    def _find(self, sector: int, at: int, end: int) -> bool:
        """Read the next whole record of a sector from an offset on; return False if there is none before `end`."""
        if not at:
            self._load(sector * self._sector_bytes)
            at = _HEADER + 4 * (self._page[7] & 63)
        while at < end:
            if self._look(sector, at):
                return True
            i = at & 255
            if i <= _PAGE - _RECORD and not is_blank(self._page, i + 4, i + 8):
                from .faults import skip

                if skip(self, sector, at):
                    return True
            at += _PAGE - i
        return False

    def _next(self, sector: int, at: int) -> bool:
        """Read the next whole record from a place on the chain on; return False at the end of the chain."""
        while True:
            head = sector == self._head
            if self._find(sector, at, self._end if head else self._ends[sector]):
                return True
            if head:
                return False
            sector = self._after[sector]
            at = 0

    def _locate(self, wanted: int) -> None:
        """Find the bodies up to a message of the window."""
        window_end = self.low + _WINDOW
        while self._located <= wanted:
            seq = self._located
            sector = self._cursor_sector
            at = self._cursor_at
            length = 0
            while not length:
                if not self._next(sector, at):
                    found = self.next_seq  # end of the chain: the missing messages are damaged
                    break
                sector = self._sector
                at = self._record_end
                if self._kind & _TYPE == _MESSAGE and self._seq >= seq and not self._key:
                    found = self._seq
                    place = sector * self._sector_bytes + self._at
                    length = self._measure(_MESSAGE, found, place)
            for lost in range(seq, min(found, window_end)):
                self._lengths[lost & 31] = 0
            if length and found < window_end:
                self._places[found & 31] = place
                self._lengths[found & 31] = length
                found += 1
                self._cursor_sector = sector
                self._cursor_at = at
            self._located = min(found, window_end)

    # --- writing ---

    def _write(
        self, kind: int, key: int, seq: int, buf: "bytes | bytearray | memoryview", start: int, n: int, need: int
    ) -> int:
        """Write one record, in the next sector if the head has no room; return its place.

        The usual case is inlined here: on a board, each function call takes a tenth of the time of a flash program.
        """
        if self._busy:
            from .faults import refuse_write

            refuse_write(self)
        self._busy = 1
        try:
            at = self._end
            i = at & 255
            if i + n > _BODY_MAX:
                at += _PAGE - i
            if at + n > self._sector_bytes - _RECORD or self._free < need or self._spoiled:
                at = self._open(kind, key, seq, buf, start, n, need)
            else:
                out = self._out
                i = at & self._offset_mask
                pack_into(_RECORD_FIELDS, out, i + 4, n, kind, key, seq, self._state)
                raw_copy(out, buf, n, i + _RECORD, start)
                raw_crc32(out, self._seqs[self._head], n + 20, i + 4, i, 1)
                try:
                    self._program(self._head, at, _RECORD + n)
                except FlashFailed:
                    self._spoiled = True
                    at = self._open(kind, key, seq, buf, start, n, need)
            next_seq = self.next_seq
            head_top = self._head_top
            if kind & _TYPE == _MESSAGE:
                head_top = seq + 1
                if kind & _LAST:
                    next_seq = head_top
            # Ctrl-C raises at a jump or after a call: it can't separate the next lines.
            self._end = at + (_RECORD + 3 + n & -4)
            self._head_top = head_top
            self.next_seq = next_seq
            self._unsynced = self._unflushed = False
            self._busy = 0
        except Exception:
            self._busy = 0
            raw_fill(self._out, _PAGE, 0xFF, 0)  # without memory to call `_program`, a record is left in it
            raise
        except BaseException:  # Ctrl-C: a record, or a whole sector, may be on flash that is not known here
            self.worn = True
            self._busy = _INTERRUPTED
            raise
        return self._head * self._sector_bytes + at

    def _put(
        self,
        sector: int,
        at: int,
        kind: int,
        key: int,
        seq: int,
        buf: "bytes | bytearray | memoryview",
        start: int,
        n: int,
    ) -> int:
        """Program a record of an opening, at an offset of a sector or on the next page; return where it ends.

        sector: -1: only compute that.

        Raises:
            FlashFailed: the program operation failed.
        """
        if (at & 255) + n > _BODY_MAX:
            at = (at | 255) + 1
        if sector >= 0:
            out = self._out
            i = at & self._offset_mask
            pack_into(_RECORD_FIELDS, out, i + 4, n, kind, key, seq, self._state)
            raw_copy(out, buf, n, i + _RECORD, start)
            raw_crc32(out, self._seqs[sector], n + 20, i + 4, i, 1)
            self._program(sector, at, _RECORD + n)
            self._put_records += 1
        return at + (_RECORD + 3 + n & -4)

    def _program(self, sector: int, at: int, n: int, again: bool = False) -> None:
        """Program n bytes of `_out`, from `at & _offset_mask` on. Afterwards all of `_out` is FF again."""
        self._page_at = -1
        out: "Any" = self._out
        mask = self._offset_mask
        i = at & mask
        try:
            if mask != 255:
                end = (i + n + mask) & ~mask
                out = self._views.get(end)
                if not out:
                    out = self._views[end] = memoryview(self._out)[:end]
            self.region.program(sector * self._sector_bytes + at - i, out, again)
        finally:
            raw_fill(self._out, n, 0xFF, i)

    def _erase_next(self) -> None:
        """Erase the next free sector in ring order, and note it in `_ahead`."""
        n = self.region.sectors
        sector = self._head
        for _ in range(n):
            sector = (sector + 1) % n
            if not self._use[sector] and self._ring_seq < _SEQUENCE_LIMIT - 1:
                self._page_at = -1
                try:
                    self.region.erase(sector)
                    self._ahead = sector
                    return
                except FlashFailed:
                    self._retire(sector)
        self.worn = True
        raise StoreWorn("no sector left")

    def _retire(self, sector: int) -> None:
        """Do not use a sector until the next boot, which tries it again."""
        self._use[sector] = _BAD
        self._seqs[sector] = 0
        self._free -= 1
        self._ahead = -1
        if self._chain + self._free < 4:
            self.worn = True

    def _open(
        self,
        kind: int,
        key: int,
        seq: int,
        buf: "bytes | bytearray | memoryview",
        start: int,
        n: int,
        need: int,
        recovery: "Any" = None,
    ) -> int:
        """Open the next sector with this record as its first one; return the record's offset.

        recovery: the `Recovery` that carries the head's messages into the new sector.
        """
        message = kind & _TYPE == _MESSAGE
        held = self._held
        while True:
            if self._ahead < 0:
                self._erase_next()  # before messages are dropped for it, as it may be bad
            target = self._ahead
            usable = self._chain + self._free
            chain = self._chain_from(message and 2 * self._chain > usable)
            if message and usable - chain <= need:
                chain = self._chain_from(True)
            if usable - chain <= need:
                try:
                    from .room import make_room
                except MemoryError:  # the policy decides, as for any message without room
                    raise StoreFull("no memory to load journal.room")
                make_room(self, need, message)
                continue
            old = self._head
            tail = self._new_tail
            prev = self._prev
            if self._keep_head:
                prev = old
                self._ends[old] = self._end
            elif not chain:
                tail = target
                prev = _NONE
            self._ring_seq += 1
            self._seqs[target] = self._ring_seq
            turn = target <= old
            self._ahead = -1
            # If this opening fails, its sector may count all the same. Then later records in the head would be void.
            self._spoiled = True
            try:
                end = self._put_records = 0
                if held:
                    end = held.put_opening(target)
                if recovery:
                    end = recovery.put_opening(self, target, end)
                at = self._stage_header(target, tail, prev, self.wear + turn)
                self._program(target, 0, at)
                at = max(at, end)
                copies = self._put_records
                if copies:  # say how many they are, before a record that makes the sector count without all of them
                    at = self._put(target, at, _STATE, copies, seq if recovery else self.next_seq, buf, 0, 0)
                end = self._put(target, at, kind, key, seq, buf, start, n)
                break
            except FlashFailed:
                if self._page_at == -2:
                    raise  # a message to be carried can't be read: the new sector is sound
                self._retire(target)
        # The opening is complete: sectors before its tail are free.
        use = self._use
        sector = self._tail
        while sector != tail and sector != old:
            use[sector] = _FREE
            sector = self._after[sector]
        if prev != old:
            use[old] = _FREE
        if prev != _NONE:
            self._after[prev] = target
        use[target] = _CHAINED
        if use[self._cursor_sector] != _CHAINED:
            self._cursor_sector = tail
            self._cursor_at = 0
        self._tail = tail
        self._head = target
        self._chain = chain + 1
        self._free = usable - chain - 1
        self._prev = prev
        self._first[target] = self.next_seq + self._continued
        self.wear += turn
        self._written_losses = self.damaged + self.dropped
        self._head_top = 0
        self._spoiled = False
        self.worn = usable < 4
        if held:
            held.opened()
        return end - (_RECORD + 3 + n & -4)

    def _stage_header(self, sector: int, tail: int, prev: int, wear: int) -> int:
        """Write a sector's header into `_out`; return its length."""
        out = self._out
        held = self._held.put_places(out) if self._held else 0
        chained = prev != _NONE
        pack_into(
            _HEADER_FIELDS,
            out,
            0,
            MAGIC,
            2,
            0xFD,
            self._shift,
            held | self._continued << 7,
            self._seqs[sector],
            self._state,
            self.next_seq + self._continued,
            self.floor,
            self.dropped,
            self.damaged,
            self.boot,
            wear,
            self.region.sectors,
            tail,
            prev,
            self._ends[prev] if chained else 0,
            self._seqs[prev] if chained else 0,
            self.note,
        )
        end = _HEADER + 4 * held
        raw_crc32(out, 0, end - 4, 0, end - 4, 1)
        return end
