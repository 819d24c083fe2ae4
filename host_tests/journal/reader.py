"""A second reader of a journal's bytes, written from FORMAT.md alone.

    read(image, sector_bytes) -> State, or raises Refused

It has to know nothing of the library, and to be plain rather than fast: it reads every sector of the chain whole, where a board
reads the head and looks for bodies later. What it returns is the state before a mount: the boot is the last one, and nothing is
repaired. A text in brackets names the chapter of FORMAT.md that a line obeys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from zlib import crc32

MAGIC = b"fmqj"
VERSION = 2
PAGE = 256
HEADER = 76
RECORD = 24
BODY_MAX = 232
HELD_MAX = 40
NOWHERE = 0xFFFF
WINDOW = 32
MESSAGE, HELD, STATE, RELEASED, NOTE, LIST = 1, 2, 3, 4, 5, 6
MOUNTED, CARRIED, LAST = 0x40, 0x40, 0x80
FIRST_MOUNT = HEADER + RECORD
LISTED = 10_000  # messages, of up to 2^30 that an image can name


class Refused(Exception):
    """There is no state to return; the text is the name of the error that a mount must raise."""


@dataclass
class State:
    """A journal's content, as its bytes encode it."""

    low: int = 1
    finished: set[int] = field(default_factory=set)
    marked: set[int] = field(default_factory=set)
    next_seq: int = 1
    floor: int = 1
    dropped: int = 0
    damaged: int = 0  # as recorded; lost messages that are still pending have None in `messages`
    boot: int = 0
    note: bytes = b"\xff" * 12
    held: list[tuple[int, bytes]] = field(default_factory=list)
    messages: dict[int, bytes | None] = field(default_factory=dict)
    clean: bool = False
    head: int = -1  # -1: blank, or a first mount that was interrupted
    chain: list[int] = field(default_factory=list)  # from the tail to the head
    hurt: bool = False  # the reader met a damaged record or header

    @property
    def lost(self) -> list[int]:
        """The pending messages whose body is lost."""
        return [sequence for sequence, body in self.messages.items() if body is None]


def _number(content: bytes, at: int, n: int = 4) -> int:
    return int.from_bytes(content[at : at + n], "little")


def _bitmap(value: int, low: int) -> set[int]:
    """The sequences of the window whose bits are set [Conventions]."""
    return {sequence for sequence in range(low, low + WINDOW) if value >> sequence % WINDOW & 1}


@dataclass
class Header:
    """A header whose CRC holds."""

    sector: int
    sequence: int
    low: int
    finished: int
    marked: int
    first: int
    continued: int
    floor: int
    dropped: int
    damaged: int
    boot: int
    tail: int
    previous: int
    previous_end: int
    previous_sequence: int
    note: bytes
    held: list[tuple[int, int]]  # sector, offset of the first piece
    end: int


def read_header(number: int, content: bytes, sectors: int) -> Header | None:
    """Return a sector's header, or None where there is none that holds.

    Raises:
        Refused: it is of another region.
    """
    n = content[7] & 0x3F
    end = HEADER + 4 * n
    if content[:4] != MAGIC or content[4] != VERSION or content[5] != VERSION ^ 0xFF or n > HELD_MAX:
        return None
    if crc32(content[: end - 4]) != _number(content, end - 4):
        return None
    held = [(_number(content, at, 2), 4 * _number(content, at + 2, 2)) for at in range(72, 72 + 4 * n, 4)]
    continued = content[7] >> 7
    u32 = [_number(content, at) for at in range(8, 48, 4)]
    sequence, low, finished, marked, first, floor, dropped, damaged, boot, _erases = u32
    u16 = [_number(content, at, 2) for at in (50, 52, 54)]
    if sequence >= (1 << 30) - 1 or first >= 1 << 30:
        return None  # [Damage, Refusals]
    if 1 << content[6] != len(content) or _number(content, 48, 2) != sectors:
        raise Refused("StoreForeign")
    return Header(
        *(number, sequence, low, finished, marked, first, continued, floor, dropped, damaged, boot),
        *(*u16, _number(content, 56), content[60:72], held, end),
    )


@dataclass
class Record:
    """A record whose CRC holds, or with `whole` False the place of one that was damaged, read as far as it can be."""

    sector: int
    offset: int
    kind: int
    key: int
    sequence: int
    low: int
    finished: int
    marked: int
    body: bytes
    whole: bool = True

    @property
    def type(self) -> int:
        """What it is, without the flags."""
        return self.kind & 0x0F

    @property
    def carried(self) -> bool:
        """Whether an opening wrote it before its header was there."""
        return self.type != STATE and self.kind & CARRIED > 0

    @property
    def mounts(self) -> bool:
        """Whether a mount continued here after a clean end."""
        return self.whole and self.type == STATE and self.kind & MOUNTED > 0


def _record_at(number: int, content: bytes, at: int, seed: int) -> tuple[Record, int]:
    """Return the record at a place with a page's room for its fixed part, and where the next one stands [Damage]."""
    length = content[at + 4]
    end = at + RECORD + length
    page_end = at - at % PAGE + PAGE
    fits = length <= BODY_MAX and end <= page_end
    whole = fits and crc32(content[at + 4 : end], seed) == _number(content, at)
    u32 = [_number(content, place) for place in range(at + 8, at + 24, 4)]
    record = Record(
        *(number, at, content[at + 5], _number(content, at + 6, 2), *u32), content[at + RECORD : end], whole=whole
    )
    if whole:
        return record, end + 3 & -4
    for bit in (0, 0x80, 0x40, 0x20, 0x10, 8, 4, 2, 1):  # the length byte itself may be what was damaged
        behind = at + RECORD + (length ^ bit) + 3 & -4
        if behind + RECORD <= page_end and _record_at(number, content, behind, seed)[0].whole:
            return record, behind
    return record, page_end


def read_records(
    number: int, content: bytes, seed: int, start: int, limit: int, *, ended: bool = False
) -> list[Record]:
    """Return the records below `limit` in order; those that were damaged stand there as not whole [Damage].

    ended: the next header says that records end at `limit`.
    """
    found: list[Record] = []
    at = start
    whole = 0  # how many of `found` go up to the last that is whole
    while at < limit:
        page_end = at - at % PAGE + PAGE
        if at + RECORD > page_end:
            at = page_end
            continue
        if (
            sum(byte != 0xFF for byte in content[at + 4 : at + 8]) <= 1
        ):  # nothing was ever written here; one bit may have flipped
            at = page_end
            continue
        record, at = _record_at(number, content, at, seed)
        found.append(record)
        if record.whole:
            whole = len(found)
    return found if ended else found[:whole]


@dataclass
class Gap:
    """Stands between two sectors of the chain for one whose header was damaged."""


def _first_mount(number: int, sectors: int, sector_bytes: int) -> bytes:
    """The bytes of a first mount in this sector [First mount]."""
    shift = sector_bytes.bit_length() - 1
    head = MAGIC + bytes([VERSION, VERSION ^ 0xFF, shift, 0])
    for value in (1, 1, 0, 0, 1, 1, 0, 0, 1, 0):  # sequence, low, bitmaps, first, floor, dropped, damaged, boot, erases
        head += value.to_bytes(4, "little")
    for value in (sectors, number, NOWHERE, 0):
        head += value.to_bytes(2, "little")
    head += bytes(4) + b"\xff" * 12
    head += crc32(head).to_bytes(4, "little")
    rest = bytes([0, STATE, 0, 0]) + 2 * (1).to_bytes(4, "little") + bytes(8)
    return head + crc32(rest, 1).to_bytes(4, "little") + rest


def _begins_anew(contents: list[bytes]) -> bool:
    """Whether the region is blank, or an interrupted first mount [First mount]."""
    for number, content in enumerate(contents):
        if content == b"\xff" * len(content):
            continue
        if content[FIRST_MOUNT:] != b"\xff" * (len(content) - FIRST_MOUNT):
            return False
        wanted = _first_mount(number, len(contents), len(content))
        if any(have & want != want for have, want in zip(content, wanted, strict=False)):
            return False
    return True


def _refusal(contents: list[bytes]) -> str:
    """The name of the error where nothing counts [Damage, Refusals]."""
    ours = [content for content in contents if content[:4] == MAGIC]
    if any(content[4] != VERSION and content[4] ^ content[5] == 0xFF for content in ours):
        return "StoreForeign"
    return "StoreCorrupt" if ours else "StoreForeign"


class _Reading:
    """One image, read from its headers on."""

    def __init__(self, image: bytes, sector_bytes: int) -> None:
        image = bytes(image)
        self.contents = [image[at : at + sector_bytes] for at in range(0, len(image), sector_bytes)]
        self.size = sector_bytes
        found = (read_header(number, content, len(self.contents)) for number, content in enumerate(self.contents))
        self.headers: list[Header] = []
        for header in found:
            if header:
                self.headers.append(header)
            if header and header.previous == NOWHERE and header.tail != header.sector:
                raise Refused("StoreCorrupt")  # sectors were moved [Damage, Refusals]
        for left, right in zip(self.headers, self.headers[1:], strict=False):
            neighbours = right.sector == left.sector + 1
            if neighbours and 1 < right.previous_sequence == left.sequence and right.previous != left.sector:
                raise Refused("StoreCorrupt")
        self.state = State()

    def records(self, header: Header, limit: int, start: int = 0, *, ended: bool = False) -> list[Record]:
        content = self.contents[header.sector]
        return read_records(header.sector, content, header.sequence, start or header.end, limit, ended=ended)

    def counts(self, header: Header) -> bool:
        """Whether the records make a sector count [Commit rule]."""
        whole = [record for record in self.records(header, self.size) if record.whole]
        confirming = [record for record in whole if not record.carried]
        if len(confirming) == 1 and confirming[0].kind == STATE:
            return sum(record.carried for record in whole) >= confirming[0].key
        return bool(confirming)

    def head(self) -> Header | None:
        """The counting sector with the highest sequence [Commit rule]."""
        first = {header.sequence: header for header in reversed(self.headers) if self.counts(header)}
        counting = [first[sequence] for sequence in sorted(first, reverse=True)]
        head = counting[0] if counting else None
        for older in counting[1:5]:
            if head and head.sequence <= self.void_to(older):
                head = older  # void [Recovery 4]
        return head

    def void_to(self, header: Header) -> int:
        """The highest sequence that a sector's mount records make void [Recovery 4]."""
        return header.sequence + 64 * sum(record.mounts for record in self.records(header, self.size))

    def newest(self, head: Header) -> list[Record]:
        """Records of a sector that is newer than the head, and whose header was damaged, or which does not count [Damage]."""
        best: list[Record] = []
        for number, content in enumerate(self.contents):
            if any(h.sector == number and h.sequence <= head.sequence for h in self.headers):
                continue  # not newer
            for seed in {_number(content, 8), head.sequence + 1, self.void_to(head) + 1}:
                if seed <= head.sequence or seed >= (1 << 30) - 1:
                    continue
                starts = [HEADER + 4 * (content[7] & 0x3F), *range(HEADER, PAGE - RECORD + 1, 4), PAGE]
                for start in starts:
                    if start + RECORD <= PAGE and not _record_at(number, content, start, seed)[0].whole:
                        continue
                    records = read_records(number, content, seed, start, self.size)
                    if sum(record.whole and not record.carried for record in records) > 1:
                        best = records
                        break
        return best

    def chain(self, head: Header) -> Iterator[tuple[Header | Gap, int]]:
        """The sectors from the head to the tail, and where each one's records end [Sectors and chain]."""
        at, limit, torn_apart = head, self.size, False
        while True:
            yield at, limit
            if at.sector == head.tail or at.previous == NOWHERE or (torn_apart and at.first <= head.floor):
                return
            wanted, limit, below = at.previous, min(at.previous_end, self.size), at.previous_sequence
            found = [header for header in self.headers if (header.sector, header.sequence) == (wanted, below)]
            if below >= at.sequence:  # not older
                found, below = [], at.sequence
            if not found:
                yield Gap(), 0
                limit, torn_apart = self.size, True
                found = sorted((h for h in self.headers if h.sequence < below), key=lambda h: (h.sequence, -h.sector))
                if wanted == head.tail or not found:
                    return
            at = found[-1]

    def events(self, chain: list[tuple[Header | Gap, int]], start: int = 0) -> list[Record | Gap]:
        """The records of the sectors of a chain in order, those of the first one from an offset on."""
        events: list[Record | Gap] = []
        for n, (at, limit) in enumerate(chain):
            if isinstance(at, Gap):
                events.append(at)
            else:
                ended = n + 1 < len(chain) and not isinstance(chain[n + 1][0], Gap)
                events += self.records(at, limit, 0 if n else start, ended=ended)
        return events

    def bodies(self, events: list[Record | Gap]) -> tuple[dict[int, bytes], dict[tuple[int, int], tuple[int, bytes]]]:
        """Put pieces together; return messages by sequence, held ones by the place of their first piece.

        What was begun and is not complete where something was damaged is void: its missing piece may be a piece 0 that began
        it anew, and pieces of two messages must not be joined.
        """
        messages: dict[int, bytes] = {}
        top = 0  # the highest sequence that was complete: no later record has a message up to it [Record]
        held: dict[tuple[int, int], tuple[int, bytes]] = {}
        begun: dict[tuple[int, int], tuple[tuple[int, int], list[bytes]]] = {}
        for event in events:
            if isinstance(event, Gap) or not event.whole:
                begun.clear()
                continue
            if event.type == MESSAGE and event.sequence > top:
                name, piece = (0, event.sequence), event.key
            elif event.type == HELD:
                name, piece = (event.key, 0), event.sequence
            else:
                continue
            place = (event.sector, event.offset)
            if piece == 0:
                begun[name] = (place, [])
                if event.type == MESSAGE:
                    messages.pop(event.sequence, None)
            first, pieces = begun.get(name, (place, []))
            if piece != len(pieces):
                begun.pop(name, None)
                continue
            pieces.append(event.body)
            if event.kind & LAST:
                begun.pop(name, None)
                if event.type == MESSAGE:
                    messages[event.sequence] = b"".join(pieces)
                    top = event.sequence
                else:
                    held[first] = (event.key, b"".join(pieces))
        return messages, held

    def read(self) -> State:
        state = self.state
        head = self.head()
        if head is None:
            if _begins_anew(self.contents):
                return state
            raise Refused(_refusal(self.contents))
        chain = list(self.chain(head))[::-1]
        state.chain = [at.sector for at, _ in chain if isinstance(at, Header)]
        events = self.events(chain)
        records = self.records(head, self.size)
        newest = self.newest(head)
        state.hurt = bool(newest) or any(isinstance(event, Gap) or not event.whole for event in events)
        bodies, held_bodies = self.bodies(events)
        state.head = head.sector
        self.replay(head, records, newest)
        state.held = self.held(chain, head, records, newest, held_bodies)
        state.clean = not newest and records[-1].type == STATE and records[-1].kind & LAST > 0
        self.settle(bodies)
        return state

    def replay(self, head: Header, records: list[Record], newest: list[Record]) -> None:
        """The header's state, then each record's in turn [Recovery 3], and those of a newer sector without a header [Damage]."""
        state = self.state
        state.floor, state.boot, state.note = head.floor, head.boot, head.note
        state.dropped, state.damaged = head.dropped, head.damaged
        next_seq = head.first - head.continued
        low, finished, marked = head.low, head.finished, head.marked
        for record in records + newest:
            if not record.whole:
                continue
            low, finished, marked = record.low, record.finished, record.marked
            if record.type == MESSAGE:
                if record.kind & LAST or record.sector != head.sector:
                    next_seq = max(next_seq, record.sequence + record.kind // LAST)
            elif record.type != HELD:
                next_seq = max(next_seq, record.sequence)
            if record.type == NOTE and len(record.body) == 12:
                state.note = record.body
            if record.type == STATE and record.sector == head.sector:
                if len(record.body) == 8:
                    state.dropped, state.damaged = _number(record.body, 0), _number(record.body, 4)
                state.boot += record.mounts
        state.low, state.finished, state.marked = low, _bitmap(finished, low), _bitmap(marked, low)
        state.next_seq = max(next_seq, low, *(sequence + 1 for sequence in state.finished | state.marked))
        # Refusals.
        if (
            state.next_seq >= 1 << 30
            or state.floor > state.next_seq
            or max(state.dropped, state.damaged) >= 1 << 31
            or head.boot > head.sequence
        ):
            raise Refused("StoreCorrupt")
        state.dropped, state.damaged = min(state.dropped, (1 << 30) - 1), min(state.damaged, (1 << 30) - 1)

    def held(
        self,
        chain: list[tuple[Header | Gap, int]],
        head: Header,
        records: list[Record],
        newest: list[Record],
        bodies: dict[tuple[int, int], tuple[int, bytes]],
    ) -> list[tuple[int, bytes]]:
        """Those that the header lists and those that begin in the head, less released and incomplete ones [Recovery 3]."""
        places = list(head.held)
        for record in records:
            if record.whole and record.type == LIST:
                body = record.body
                places += [(_number(body, at, 2), 4 * _number(body, at + 2, 2)) for at in range(0, len(body), 4)]
        held = {}
        for sector, offset in places:
            # A place is read even if damage or a longer record hides it from a reader that comes from before.
            for n, (at, _) in enumerate(chain):
                if (
                    isinstance(at, Header)
                    and at.sector == sector
                    and offset % PAGE + RECORD <= PAGE
                    and offset < self.size
                ):
                    found = self.bodies(self.events(chain[n:], offset))[1].get((sector, offset))
                    if found:
                        held[found[0]] = found[1]
        for record in records + newest:
            place = (record.sector, record.offset)
            if record.whole and record.type == RELEASED:
                for at in range(0, len(record.body), 2):
                    held.pop(_number(record.body, at, 2), None)
            elif place in bodies and not record.carried and record.sector == head.sector:
                held[record.key] = bodies[place][1]
        return list(held.items())

    def settle(self, bodies: dict[int, bytes]) -> None:
        """Separate stored messages from finished, dropped and lost ones."""
        state = self.state

        def is_finished(sequence: int) -> bool:
            return sequence in state.finished or (sequence < state.floor and sequence not in state.marked)

        while state.low < state.next_seq and is_finished(state.low):
            state.low += 1
            if state.low > max(state.marked, default=0):
                state.low = max(state.low, state.floor)
        window = range(state.low, min(state.low + WINDOW, state.next_seq))
        state.finished = {sequence for sequence in window if is_finished(sequence)}
        state.marked = {sequence for sequence in state.marked if sequence >= state.low}
        first = max(state.low, state.floor)
        for sequence in range(first, min(state.next_seq, first + LISTED)):
            if not is_finished(sequence):
                state.messages[sequence] = bodies.get(sequence)


def read(image: bytes, sector_bytes: int) -> State:
    """Return the state that an image encodes.

    Raises:
        Refused: with the name of the error that a mount must raise.
    """
    return _Reading(image, sector_bytes).read()
