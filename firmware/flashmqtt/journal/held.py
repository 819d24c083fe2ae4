"""Held messages of a journal: inbound ones, stored until they are handed over. FORMAT.md, "Record", type 2.

A sector's header lists their places for recovery. If only held messages prevent the reuse of the oldest sector, they are carried
into the next sector that is opened. It is loaded with the first held message, and knows no MQTT: a key is a number.
"""

from array import array
from struct import pack_into

from flashmqtt.compat import TYPE_CHECKING, const
from flashmqtt.errors import StoreCorrupt, StoreFull, UsageError
from flashmqtt.fast import copy

from .room import has_room, refuse_worn

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251

_PAGE = const(256)
_HEADER = const(76)
_RECORD = const(24)
_BODY_MAX = const(232)
_HELD = const(2)
_RELEASED = const(4)
_CARRIED = const(0x40)
_LAST = const(0x80)
_FOR_HELD = const(2)
_FOR_STATE = const(1)
_LIST = const(6)
_IN_HEADER = const(40)
_IN_LIST = const(58)


class Held:
    """The places of the held messages, oldest first."""

    def __init__(self, journal: "Any") -> None:
        self._journal = journal
        self.count = 0
        self.unwritten = 0  # how many discards are not on flash yet
        self.carried = 0  # where in a new sector the carried messages end; 0: there are none
        self.in_head = False  # does the head have a held message?
        most = journal.hold_limit
        self._keys = array("H", [0] * most)
        self._places = array("i", [0] * most)
        self._lengths = array("i", [0] * most)
        self._released = bytearray(2 * _IN_HEADER)
        self._buffer = bytearray(0)  # for messages carried into a new sector
        self._moved = array("i", self._places)  # the places as a new sector's header states them; valid when it is open
        self.rotating = False  # is a sector being opened for held messages only?
        # A message that comes in pieces: its key (0: none), its length, how much is to come, and the next piece.
        self._begun = self._begun_length = self._begun_left = 0
        self._begun_piece = bytearray(0)
        self._begun_fill = 0

    def _end_of(self, length: int, at: int) -> "Any":
        """Return where a message would end that begins at an offset, or on the next page."""
        while length > 0:
            at = self._journal._put(-1, at, 0, 0, 0, b"", 0, min(length, _BODY_MAX))
            length -= _BODY_MAX
        return at

    def _find(self, key: int) -> "Any":
        for i in range(self.count):
            if self._keys[i] == key:
                return i
        return -1

    def keys(self) -> "Any":
        """Return the keys of the complete messages."""
        keys = list(self._keys[: self.count])
        if self._begun in keys:
            keys.remove(self._begun)
        return keys

    def held_length(self, key: int) -> "Any":
        """Return a message's length, 0 if it is not held."""
        i = self._find(key)
        return self._lengths[i] if i >= 0 and key != self._begun else 0

    def longest_hold(self) -> int:
        """Return the longest length of a held message: a quarter of the sectors, to leave room for others."""
        journal = self._journal
        return int(journal.region.sectors >> 2) * (journal._sector_bytes // _PAGE - 1) * _BODY_MAX

    def can_hold(self, length: int) -> bool:
        """Return whether there is room now to hold a message of this length."""
        journal = self._journal
        return not journal.worn and self.count < journal.hold_limit and self._has_room(length, False)

    def _has_room(self, length: int, leave: bool) -> "Any":
        """Return whether there is room for a message. If it must begin in a new sector, and `leave` is set, leave the head."""
        journal = self._journal
        size = journal._sector_bytes
        spoiled = journal._spoiled
        end = self._end_of(length, self._end_of(2 * self.unwritten, journal._end))  # after unwritten discards
        # A sector's held messages must fit into a new one, after header and lists.
        if end > size - (4 * _PAGE if size >= 4096 else _PAGE // 2):
            journal._spoiled = True
        room = has_room(journal, length, _FOR_HELD, leave)
        if not (leave and room):
            journal._spoiled = spoiled
        return room

    def hold(self, key: int, buf: "bytes | bytearray | memoryview", length: int) -> None:
        """Store a message in pieces; it is held when the last piece is written."""
        if not 0 < length <= len(buf):
            raise UsageError("%d bytes of %d" % (length, len(buf)))
        self._prepare(key, length)
        try:
            for done in range(0, length, _BODY_MAX):
                self._write(key, done, buf, done, min(length - done, _BODY_MAX), length)
        except BaseException:  # an incomplete message is not held, not even after Ctrl-C
            self.remove(key)
            raise

    def _prepare(self, key: int, length: int) -> None:
        """Check that a message can be written."""
        if not 0 < key < 65536 or key == self._begun or self._find(key) >= 0:
            raise UsageError("key %d: held, or not from 1 to 65535" % key)
        journal = self._journal
        if self.count == journal.hold_limit:
            raise StoreFull("%d messages are held" % self.count)
        if journal._busy:
            from .faults import refuse_write

            refuse_write(journal)
        if journal.worn:
            refuse_worn(journal)
        if self.unwritten:  # the record of an earlier discard of this key must come before the new message
            self.write_released()
        if not self._has_room(length, True):
            raise StoreFull("no room for %d bytes to hold" % length)

    # --- in pieces ---

    def hold_begin(self, key: int, length: int) -> None:
        """Begin a message that comes in pieces; it is held when the last piece is written."""
        self.hold_abandon()
        self._prepare(key, length)
        self._begun_piece = bytearray(_BODY_MAX)
        self._begun = key
        self._begun_length = self._begun_left = length
        self._begun_fill = 0

    def hold_extend(self, buf: "bytes | bytearray | memoryview", start: int, n: int) -> None:
        """Add buf[start:start+n]; every 232 bytes are written as a record, and so is the rest."""
        left = self._begun_left
        if start < 0 or not 0 <= n <= min(left, len(buf) - start):
            raise UsageError("%d bytes of %d" % (n, left))
        piece = self._begun_piece
        length = self._begun_length
        while n:
            fill = self._begun_fill
            part = min(n, _BODY_MAX - fill)
            copy(piece, fill, buf, start, part)
            start += part
            n -= part
            self._begun_fill = fill = fill + part
            self._begun_left = left = left - part
            if fill == _BODY_MAX or not left:
                self._write(self._begun, length - left - fill, piece, 0, fill, length)
                self._begun_fill = 0
                if not left:
                    self._begun = 0

    def hold_abandon(self) -> None:
        """Discard an incomplete message."""
        if self._begun:
            self.discard(self._begun)
        self._begun = self._begun_left = 0

    def _write(self, key: int, done: int, buf: "Any", start: int, n: int, length: int) -> None:
        """Write a piece. After the first one the message is listed, so that its sector stays on the chain."""
        journal = self._journal
        if not done and self.count == journal.hold_limit:  # the last place was taken after `hold_begin`
            raise StoreFull("%d messages are held" % self.count)
        last = done + n >= length
        kind = _HELD | _LAST if last else _HELD
        place = journal._write(kind, key, done // _BODY_MAX, buf, start, n, _FOR_HELD)
        self.in_head = True
        if not done:
            self.add(key, place, length)
        if last:
            journal.fresh = False

    def add(self, key: int, place: int, length: int) -> None:
        """List a message; it replaces an older one with the same key."""
        i = self._find(key)
        new = i < 0
        if new:
            i = self.count
        self._keys[i] = key
        self._places[i] = place
        self._lengths[i] = length
        self.count += new

    def remove(self, key: int) -> bool:
        """Remove a message from the list; return whether it was there. Ctrl-C leaves the list complete."""
        i = self._find(key)
        if i < 0:
            return False
        keys = self._keys
        places = self._places
        lengths = self._lengths
        for j in range(i + 1, self.count):
            keys[i], keys[j] = keys[j], keys[i]
            places[i], places[j] = places[j], places[i]
            lengths[i], lengths[j] = lengths[j], lengths[i]
            i = j
        self.count -= 1
        return True

    def discard(self, key: int) -> None:
        """Discard a message; `write_released` makes that durable."""
        if self.unwritten == _IN_HEADER:
            self.write_released()
        if self.remove(key):
            self._released[2 * self.unwritten] = key & 255
            self._released[2 * self.unwritten + 1] = key >> 8
            self.unwritten += 1

    def write_released(self) -> None:
        """Make discards durable."""
        journal = self._journal
        journal._write(_RELEASED, 0, journal.next_seq, self._released, 0, 2 * self.unwritten, _FOR_STATE)
        self.unwritten = 0

    def read_held(self, key: int, offset: int, buf: "bytearray | memoryview", at: int, n: int) -> None:
        """Copy bytes of a message."""
        i = self._find(key)
        if i | offset | n | at < 0 or offset + n > self._lengths[i] or at + n > len(buf):
            raise UsageError("read_held: not of this message")
        journal = self._journal
        if not journal._copy_pieces(_HELD, key, self._places[i], offset, buf, at, n):
            raise StoreCorrupt("the message held for %d can't be read" % key)

    def lies_in(self, sector: int) -> bool:
        """Return whether a held message begins in a sector."""
        size = self._journal._sector_bytes
        for i in range(self.count):
            if self._places[i] // size == sector:
                return True
        return False

    def needs(self, sector: int, carry: bool) -> bool:
        """Return whether held messages prevent the reuse of a sector; otherwise, add its messages to `carried`."""
        if not self.lies_in(sector):
            return False
        end = self.carried_end(sector, self.carried) if carry or self.rotating else 0
        if not end or not self.fits(end, self.rotating):
            return True
        self.carried = end
        return False

    def carried_end(self, sector: int, at: int) -> "Any":
        """Return where a sector's messages would end in a new sector; at: where they begin, 0: after the header."""
        at = at or _HEADER + 4 * min(self.count, _IN_HEADER)
        for i in range(self.count):
            if self._places[i] // self._journal._sector_bytes == sector:
                if self._keys[i] == self._begun:
                    return self._journal._sector_bytes  # incomplete: it can't be copied yet
                at = self._end_of(self._lengths[i], at)
        return at

    def sectors(self, packed: bool) -> int:
        """Return how many sectors of the chain the held messages need if no other messages are left.

        packed: count them as carrying puts them together; otherwise as they are now, which carrying never makes more.
        """
        if not self.count:
            return 0
        journal = self._journal
        needed = 0
        stuck = False  # messages can't be carried, so the sectors after them stay on the chain, too
        at = journal._sector_bytes
        sector = journal._tail
        while True:
            if stuck:
                needed += 1
            elif self.lies_in(sector):
                at = self.carried_end(sector, at)
                if not packed or not self.fits(at, False):
                    needed += 1
                    at = self.carried_end(sector, 0)
                    stuck = not self.fits(at, True)
            if sector == journal._head:
                return needed
            sector = journal._after[sector]

    def list_bytes(self) -> int:
        """Return the most bytes of the lists that don't fit into a header."""
        return (self.count - _IN_HEADER + _IN_LIST - 1) // _IN_LIST * _PAGE

    def fits(self, at: int, rotating: bool) -> bool:
        """Return whether the rest of an opening fits behind carried messages that end at an offset: lists and two records."""
        size = self._journal._sector_bytes
        if at + self.list_bytes() + (2 * _RECORD if rotating else _PAGE + _RECORD) > size:
            return False
        for first in range(_IN_HEADER, self.count, _IN_LIST):
            at = self._end_of(4 * min(self.count - first, _IN_LIST), at)
        # A list can leave less than the two records need, so that they begin on the next page.
        for n in (0, 0 if rotating else _BODY_MAX):
            at = self._journal._put(-1, at, 0, 0, 0, b"", 0, n)
        return at <= size

    def put_opening(self, target: "Any") -> int:
        """Write the held messages' part of a new sector, after the place of its header; return where it ends.

        Copy the messages of the sectors that leave the chain, and list the places for which the header has no room.
        """
        journal = self._journal
        for i in range(self.count):
            self._moved[i] = self._places[i]
        at = _HEADER + 4 * min(self.count, _IN_HEADER)
        sector = journal._tail
        while self.carried and sector != journal._new_tail:
            for i in range(self.count):
                if self._places[i] // journal._sector_bytes == sector:
                    at = self._copy(i, target, at)
            sector = journal._after[sector]
        for first in range(_IN_HEADER, self.count, _IN_LIST):
            n = min(self.count - first, _IN_LIST)
            body = bytearray(4 * n)
            for i in range(n):
                self._put_place(body, 4 * i, first + i)
            at = journal._put(target, at, _LIST | _CARRIED, 0, 0, body, 0, 4 * n)
        return at

    def _copy(self, i: int, target: "Any", at: int) -> int:
        """Copy a message to a sector; return where it ends. A message that can't be read is not copied."""
        journal = self._journal
        n = self._lengths[i]
        if len(self._buffer) < n:
            self._buffer = bytearray(n)
        first = 0  # the header's place, if it can't be read: the next mount finds no message there, and counts it as damaged
        try:
            self.read_held(self._keys[i], 0, self._buffer, 0, n)
        except StoreCorrupt:
            n = 0
        for done in range(0, n, _BODY_MAX):
            part = min(n - done, _BODY_MAX)
            kind = _HELD | _CARRIED if done + part < n else _HELD | _CARRIED | _LAST
            at = journal._put(target, at, kind, self._keys[i], done // _BODY_MAX, self._buffer, done, part)
            if not done:
                first = at - (_RECORD + 3 + part & -4)
        self._moved[i] = target * journal._sector_bytes + first
        return at

    def opened(self) -> None:
        """Note that the new sector is the head."""
        self.unwritten = 0
        self.in_head = self.carried > 0
        self._places, self._moved = self._moved, self._places

    def put_places(self, out: "Any") -> int:
        """Write the places for a header; return how many."""
        n = min(self.count, _IN_HEADER)
        for i in range(n):
            self._put_place(out, 72 + 4 * i, i)
        return n

    def _put_place(self, buf: "Any", at: int, i: int) -> None:
        size = self._journal._sector_bytes
        pack_into("<2H", buf, at, self._moved[i] // size, self._moved[i] % size // 4)
