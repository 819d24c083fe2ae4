"""A journal's bytes as tables for people: its sums, its sectors and their wear, its records and their states.

Two readings stand side by side. The sectors and records are parsed here, by FORMAT.md and without the journal's own code, so
that a damaged image shows what is left of it. Which messages are alive is asked of the real journal, mounted on a copy in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from zlib import crc32

from flashmqtt.errors import FlashMqttError
from flashmqtt.flash.ram import RamRegion
from flashmqtt.journal.journal import Journal
from tools.journal import layout

KINDS = {
    layout.QUEUED: "message",
    layout.HELD: "inbound",
    layout.MOVED: "moved",
    layout.MARK: "mark",
    layout.DONE: "done",
    layout.TABLE: "table",
    layout.OPEN: "open",
    layout.CLOSE: "close",
    layout.MOUNT: "mount",
}
MESSAGES = (layout.QUEUED, layout.HELD, layout.MOVED)


@dataclass
class Record:
    """One valid record."""

    sector: int
    offset: int
    kind: int
    seq: int
    delta: int
    rides: list[int]
    body: bytes

    @property
    def type(self) -> int:
        """What it is, without the flags."""
        return self.kind & layout.TYPE

    @property
    def piece(self) -> str:
        """Which piece of a longer message it is, or ""."""
        if self.type not in MESSAGES:
            return ""
        return {layout.FIRST | layout.LAST: "", layout.FIRST: "first", layout.LAST: "last", 0: "middle"}[
            self.kind & (layout.FIRST | layout.LAST)
        ]


@dataclass
class Sector:
    """One sector: its header's fields, if it has a valid one, and its valid records."""

    number: int
    state: str  # "blank", "foreign", "torn", "version N"; a journal's: "head", "in use", "old"
    seq: int = 0
    fields: dict[str, int] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    torn: int = 0  # places where something stands that is no record
    used: int = 0  # bytes up to the end of the last record
    seals: int = 0  # recoveries that have left this sector
    limit: int = 0  # where the records end that the next sector's header lets count


HEADER_FIELDS = {
    "next_seq": (layout.H_NEXT_SEQ, 4),
    "low": (layout.H_LOW, 4),
    "stored": (layout.H_STORED, 4),
    "dropped": (layout.H_DROPPED, 4),
    "boot": (layout.H_BOOT, 4),
    "erases": (layout.H_ERASES, 4),
    "tail": (layout.H_TAIL, 2),
    "prev": (layout.H_PREV, 2),
    "prev_end": (layout.H_PREV_END, 2),
    "prev_seq": (layout.H_PREV_SEQ, 4),
}


def _number(content: bytes, at: int, n: int) -> int:
    return int.from_bytes(content[at : at + n], "little")


def read_sector(number: int, content: bytes) -> Sector:
    """Parse one sector."""
    head = content[: layout.HEADER]
    if content == b"\xff" * len(content):
        return Sector(number, "blank")
    if head[:4] != layout.MAGIC:
        return Sector(number, "torn" if head == b"\xff" * len(head) else "foreign")
    version = head[layout.H_VERSION]
    if version != layout.VERSION:
        return Sector(number, f"version {version}" if version ^ head[layout.H_VERSION + 1] == 0xFF else "torn")
    if crc32(head[: layout.H_CRC]) != _number(head, layout.H_CRC, 4):
        return Sector(number, "torn")
    sector = Sector(number, "old", _number(head, layout.H_SEQ, 4))
    sector.fields = {name: _number(head, at, n) for name, (at, n) in HEADER_FIELDS.items()}
    sector.used, sector.limit = layout.HEADER, len(content)
    tail = content[-layout.SEAL :]
    sector.seals = sum(tail[at : at + 4] != b"\xff" * 4 for at in range(0, layout.SEAL, 4))
    offset = layout.HEADER
    while offset < len(content):
        page_end = offset - offset % layout.PAGE + layout.PAGE
        record = _record(number, content, offset, page_end, sector.seq)
        if record is None:
            room = content[offset : min(offset + layout.RECORD, page_end)]
            sector.torn += room != b"\xff" * len(room) and page_end < len(content)
            offset = page_end
            continue
        sector.records.append(record)
        offset += (layout.RECORD + 4 * len(record.rides) + len(record.body) + 3) & -4
        sector.used = offset
    return sector


def follow_chain(sectors: Sequence[Sector]) -> None:
    """Tell the sectors in use, from the newest back to its tail, from those that wait for their erase."""
    journal = [sector for sector in sectors if sector.fields]
    for sector in journal:
        sector.state = "old"
    if not journal:
        return
    at: Sector | None = max(journal, key=lambda sector: sector.seq)
    assert at is not None
    tail = at.fields["tail"]
    at.state = "head"
    while at.number != tail:
        behind, end, seq = at.fields["prev"], at.fields["prev_end"], at.fields["prev_seq"]
        at = next((sector for sector in journal if (sector.number, sector.seq) == (behind, seq)), None)
        if at is None or at.state != "old":
            return
        at.state, at.limit = "in use", end


def _record(number: int, content: bytes, offset: int, page_end: int, seed: int) -> Record | None:
    end = (
        offset + layout.RECORD + content[offset + layout.R_LENGTH]
        if offset + layout.RECORD <= page_end
        else page_end + 1
    )
    if end > page_end or crc32(content[offset + layout.R_LENGTH : end], seed) != _number(content, offset, 4):
        return None
    body = offset + layout.RECORD + 4 * content[offset + layout.R_RIDES]
    return Record(
        number,
        offset,
        content[offset + layout.R_KIND],
        _number(content, offset + layout.R_SEQ, 4),
        content[offset + layout.R_DELTA],
        [_number(content, at, 4) for at in range(offset + layout.RECORD, body, 4)],
        content[body:end],
    )


@dataclass
class Alive:
    """What the real journal says: sequence -> state; and its sums."""

    states: dict[int, str]
    sums: dict[str, int]


def ask_journal(content: bytes, sector_bytes: int) -> Alive:
    """Mount the journal on a copy and ask what is alive.

    Raises:
        FlashMqttError: it does not mount.
    """

    def mounted(slots: int) -> Journal:
        return Journal(RamRegion(len(content) // sector_bytes, sector_bytes, 256, bytearray(content)), slots)

    journal = mounted(mounted(1).slots + 1)  # as many as are open (a mount makes them), and one to take what waits
    sums = {
        "boots": journal.boot - 1,
        "stored": journal.stored,
        "dropped": journal.dropped,
        "next sequence": journal.next_seq,
        "waiting": journal.waiting,
    }
    states = {}
    for slot in range(journal.slots):
        if journal.is_open(slot):
            state = "held" if journal.is_held(slot) else "in flight"
            mark = journal.mark_of(slot)
            states[journal.seq_of(slot)] = f"{state}, mark {mark}" if mark else state
    for slot in _taken(journal):
        states[journal.seq_of(slot)] = "waiting"
        journal.release(slot)
    return Alive(states, sums)


def _taken(journal: Journal) -> Iterator[int]:
    while (slot := journal.take()) >= 0:
        yield slot


def report(content: bytes, sector_bytes: int, *, everything: bool = False, width: int = 60) -> tuple[str, bool]:
    """Return the text, and whether there is a journal that mounts."""
    sectors = [
        read_sector(number, content[at : at + sector_bytes])
        for number, at in enumerate(range(0, len(content), sector_bytes))
    ]
    follow_chain(sectors)
    parts = []
    alive = None
    if not any(sector.fields for sector in sectors):
        parts.append("No sector holds a journal.")
    else:
        try:
            alive = ask_journal(content, sector_bytes)
        except FlashMqttError as error:
            parts.append(f"The journal does not mount: {type(error).__name__}: {error}")
    if alive is not None:
        sums = dict(alive.sums)
        sums["alive"] = len(alive.states)
        wear = [sector.fields["erases"] for sector in sectors if sector.fields]
        sums["erases of a sector, least"] = min(wear)
        sums["erases of a sector, most"] = max(wear)
        parts.append(_table(("journal", ""), [(name, f"{value:,}") for name, value in sums.items()], "<>"))
    parts.append(_sectors(sectors, sector_bytes))
    parts.append(_records(sectors, alive, everything, width))
    return "\n\n".join(part for part in parts if part), alive is not None


def _sectors(sectors: Sequence[Sector], sector_bytes: int) -> str:
    rows = []
    for sector in sectors:
        if not sector.fields:
            rows.append((str(sector.number), sector.state, *[""] * 10))
            continue
        fields = sector.fields
        prev = "" if fields["prev"] == layout.NO_SECTOR else f"{fields['prev']} to {fields['prev_end']}"
        rows.append(
            (
                str(sector.number),
                sector.state,
                f"{sector.seq:,}",
                prev,
                str(fields["boot"]),
                f"{fields['erases']:,}",
                f"{fields['low']:,}",
                f"{fields['next_seq']:,}",
                str(len(sector.records)),
                str(sector.torn or ""),
                str(sector.seals or ""),
                f"{100 * sector.used // sector_bytes} %",
            )
        )
    headings = (
        "sector",
        "state",
        "sequence",
        "behind",
        "boot",
        "erases",
        "low",
        "next",
        "records",
        "torn",
        "seals",
        "used",
    )
    return _table(headings, rows, "><>>>>>>>>>>")


def _records(sectors: Sequence[Sector], alive: Alive | None, everything: bool, width: int) -> str:
    states = alive.states if alive else {}
    rows, hidden = [], 0
    for sector in sorted((s for s in sectors if s.fields), key=lambda s: s.seq):
        for record in sector.records:
            message = record.type in MESSAGES
            state = (states.get(record.seq, "finished") if alive else "?") if message else ""
            if state not in ("", "finished", "?") and (sector.state == "old" or record.offset >= sector.limit):
                state = "copied on"
            if not everything and state in ("", "finished", "copied on"):
                hidden += 1
                continue
            text = _text(record.body) if message else " ".join(f"{byte:02x}" for byte in record.body)
            rides = ("done: " + " ".join(map(str, record.rides)) + "  ") if record.rides else ""
            rows.append(
                (
                    f"{record.sector}",
                    f"{record.offset}",
                    KINDS.get(record.type, f"kind {record.type}"),
                    record.piece,
                    f"{record.seq:,}" if record.seq else "",
                    state,
                    f"{len(record.body)}",
                    (rides + text)[:width],
                )
            )
    note = f"{hidden} more: finished messages and the journal's own (--all shows them)" if hidden else ""
    if not rows:
        return f"No message is alive. {note}".strip() if alive else note
    headings = ("sector", "offset", "kind", "piece", "sequence", "state", "bytes", "content")
    return _table(headings, rows, ">><<><><") + ("\n" + note if note else "")


def _text(body: bytes) -> str:
    return "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in body)


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]], alignment: str) -> str:
    """Lay out columns; alignment has one of < and > a column."""
    every = [headings, *rows]
    widths = [max(len(row[i]) for row in every) for i in range(len(headings))]
    lines = [
        "  ".join(f"{cell:{side}{n}}" for cell, side, n in zip(row, alignment, widths, strict=True)).rstrip()
        for row in every
    ]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])
