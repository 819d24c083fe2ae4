"""Show a journal's bytes as tables: totals, sectors with their wear, records with their states.

There are two readings. This module parses sectors and records itself, by FORMAT.md and without the journal's code, so that it
can show a damaged image, too. The real journal, mounted on a copy in memory, says which messages are waiting, held or finished.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from zlib import crc32

from flashmqtt.errors import FlashMqttError
from flashmqtt.flash.ram import RamRegion
from flashmqtt.journal.journal import Journal
from tools.command import table
from tools.journal import layout

KINDS = {
    layout.MESSAGE: "message",
    layout.HELD: "held",
    layout.STATE: "state",
    layout.RELEASED: "released",
    layout.NOTE: "note",
}
STATES = {0: "state", layout.MOUNT: "mount", layout.CLOSE: "clean end"}
SECTOR_HEADINGS = "sector state sequence behind boot erases low first floor held records damaged torn used"
RECORD_HEADINGS = "sector offset kind sequence piece state bytes content"
WIDTH = 60  # characters of a record's content
UNNOTED = "Some of the waiting messages may be delivered: the next write puts the last acknowledgements into flash."
DONE = ("finished", "released", "void", "old")  # states of records that are no longer needed


@dataclass
class Record:
    """One valid record."""

    sector: int
    offset: int
    kind: int
    key: int
    seq: int
    body: bytes
    state: str = ""  # of a MESSAGE or HELD record

    @property
    def type(self) -> int:
        """The type, without the flags."""
        return self.kind & layout.TYPE

    @property
    def carried(self) -> bool:
        """Whether it was copied into its sector before the sector's header was written."""
        return self.type in (layout.MESSAGE, layout.HELD, layout.LIST) and self.kind & layout.CARRIED > 0

    @property
    def name(self) -> str:
        """The name that the tables show."""
        if self.type == layout.STATE:
            return STATES.get(self.kind & ~layout.TYPE, "state")
        if self.carried:
            return "carried"
        return KINDS.get(self.type, f"type {self.type}")

    @property
    def holds_body(self) -> bool:
        """Whether it is a MESSAGE or HELD record."""
        return self.type in (layout.MESSAGE, layout.HELD)

    @property
    def piece(self) -> int:
        """The number of its piece, from 0."""
        return self.key if self.type == layout.MESSAGE else self.seq

    @property
    def identity(self) -> str:
        """The sequence of a message, or the key of a held message."""
        if self.type == layout.MESSAGE:
            return f"{self.seq:,}"
        return f"key {self.key}" if self.type == layout.HELD else ""

    @property
    def piece_name(self) -> str:
        """The piece's number if the message has several; the last with a dot."""
        last = self.kind & layout.LAST
        if not self.holds_body or (last and not self.piece):
            return ""
        return f"{self.piece + 1}{'.' if last else ''}"


@dataclass
class Sector:
    """One sector: its header's fields, if it has a valid one, and its valid records."""

    number: int
    state: str  # "blank", "foreign", "torn", "version N"; a journal's: "head", "in use", "old", "unconfirmed"
    seq: int = 0
    fields: dict[str, int] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    held: int = 0  # held messages that are listed in its header
    note: bytes = b""
    damaged: int = 0  # invalid records before a valid one
    torn: int = 0  # 1: there is an invalid record behind the last valid one
    used: int = 0  # bytes up to the end of the last record
    limit: int = 0  # the end of the valid records, by the next sector's header


HEADER_FIELDS = {  # name -> bytes
    **dict.fromkeys(("low", "first", "floor", "boot", "erases", "prev_seq"), 4),
    **dict.fromkeys(("tail", "prev", "prev_end"), 2),
}


def _number(content: bytes, at: int, n: int) -> int:
    return int.from_bytes(content[at : at + n], "little")


def read_sector(number: int, content: bytes) -> Sector:
    """Parse one sector."""
    if content == b"\xff" * len(content):
        return Sector(number, "blank")
    if content[:4] != layout.MAGIC:
        return Sector(number, "torn" if content[: layout.HEADER] == b"\xff" * layout.HEADER else "foreign")
    version = content[layout.H_VERSION]
    if version != layout.VERSION:
        whole = version ^ content[layout.H_VERSION + 1] == 0xFF
        return Sector(number, f"version {version}" if whole else "torn")
    listed = content[layout.H_HELD] & ~layout.H_CONTINUED & 0xFF
    end = layout.HEADER + 4 * listed
    if listed > layout.HELD_MAX or crc32(content[: end - 4]) != _number(content, end - 4, 4):
        return Sector(number, "torn")
    sector = Sector(number, "old", _number(content, layout.H_SEQ, 4))
    for name, n in HEADER_FIELDS.items():
        sector.fields[name] = _number(content, getattr(layout, f"H_{name.upper()}"), n)
    sector.fields["continued"] = content[layout.H_HELD] & layout.H_CONTINUED and 1
    sector.note = content[layout.H_NOTE : layout.H_NOTE + layout.NOTE_SIZE]
    sector.held, sector.used, sector.limit = listed, end, len(content)
    _read_records(sector, content, end)
    confirming = [record for record in sector.records if not record.carried]
    carried = len(sector.records) - len(confirming)
    opened = len(confirming) == 1 and confirming[0].kind == layout.STATE
    if not confirming or (opened and confirming[0].key > carried):
        sector.state = "unconfirmed"
    return sector


def _read_records(sector: Sector, content: bytes, offset: int) -> None:
    """Parse the records. An invalid record is skipped by its length byte if that is plausible, else to the next page."""
    invalid = 0
    while offset < len(content):
        page_end = offset - offset % layout.PAGE + layout.PAGE
        head = content[offset : offset + layout.RECORD]
        if offset + layout.RECORD > page_end or head == b"\xff" * layout.RECORD:
            offset = page_end
            continue
        end = offset + layout.RECORD + head[layout.R_LENGTH]
        fits = head[layout.R_LENGTH] <= layout.BODY_MAX and end <= page_end
        if fits and crc32(content[offset + layout.R_LENGTH : end], sector.seq) == _number(head, 0, 4):
            sector.damaged, invalid = sector.damaged + invalid, 0
            sector.records.append(_record(sector.number, offset, content[offset:end]))
            sector.used = end + 3 & -4
        else:
            invalid += 1
        offset = end + 3 & -4 if fits else page_end
    sector.torn = min(invalid, 1)


def _record(number: int, offset: int, content: bytes) -> Record:
    kind, key, seq = content[layout.R_KIND], _number(content, layout.R_KEY, 2), _number(content, layout.R_SEQ, 4)
    return Record(number, offset, kind, key, seq, content[layout.RECORD :])


def follow_chain(sectors: Sequence[Sector]) -> list[Sector]:
    """Set the states of the sectors in use, from the newest back to the tail; return these sectors, the tail first."""
    journal = [sector for sector in sectors if sector.fields and sector.state != "unconfirmed"]
    if not journal:
        return []
    head = at = max(journal, key=lambda sector: sector.seq)
    at.state, chain = "head", [at]
    while at.number != head.fields["tail"] and at.fields["prev"] != layout.NONE:
        behind, end, seq = at.fields["prev"], at.fields["prev_end"], at.fields["prev_seq"]
        found = next((s for s in sectors if s.fields and (s.number, s.seq) == (behind, seq)), None)
        if found is None:  # its header is damaged: take the next lower sequence
            end = head.limit
            found = max((s for s in journal if s.seq < seq), key=lambda s: s.seq, default=None)
        if found is None or found.seq >= at.seq or behind == head.fields["tail"] != found.number:
            break
        at = found
        at.state, at.limit = "in use", end
        chain.append(at)
    return chain[::-1]


def set_states(chain: Sequence[Sector], journal: Journal) -> None:
    """Set the state of each MESSAGE and HELD record, by a journal that is mounted on a copy."""
    begun: dict[tuple[int, int], list[Record]] = {}
    held: dict[int, list[Record]] = {}
    for sector in chain:
        for record in sector.records:
            if not record.holds_body:
                continue
            record.state = "void"
            if record.offset >= sector.limit:
                continue
            name = (record.type, record.seq if record.type == layout.MESSAGE else record.key)
            if record.piece == 0:
                for older in begun.get(name, []):
                    older.state = "void"
                begun[name] = []
            pieces = begun.setdefault(name, [])
            pieces.append(record)
            complete = record.kind & layout.LAST
            if complete and record.type == layout.HELD:
                for older in held.pop(record.key, []):
                    older.state = "released"
                held[record.key] = pieces
            for one in pieces:
                one.state = "begun" if not complete else _state(record, journal)


def _state(record: Record, journal: Journal) -> str:
    if record.type == layout.HELD:
        return "held" if record.key in journal.held() else "released"
    seq = record.seq
    if seq >= journal.low + layout.WINDOW:
        return "waiting" if journal.floor <= seq < journal.next_seq else "finished"
    if seq >= journal.next_seq or journal.is_finished(seq):
        return "finished"
    return ("waiting" if journal.length(seq) else "no body") + (", marked" if journal.is_marked(seq) else "")


def report(content: bytes, sector_bytes: int, *, everything: bool = False) -> tuple[str, bool]:
    """Return the tables, and whether there is a journal that mounts."""
    sectors = [
        read_sector(number, content[at : at + sector_bytes])
        for number, at in enumerate(range(0, len(content), sector_bytes))
    ]
    chain = follow_chain(sectors)
    parts = []
    journal = None
    try:
        journal = Journal(RamRegion(len(sectors), sector_bytes, 256, bytearray(content)))
    except FlashMqttError as error:
        parts.append(f"The journal does not mount: {type(error).__name__}: {error}")
    if not chain:
        parts.insert(0, "No sector has a journal.")
        journal = None
    if journal is not None:
        set_states(chain, journal)
        wear = [sector.fields["erases"] for sector in sectors if sector.fields]
        sums = {"boots": journal.boot - 1, "next sequence": journal.next_seq, "low": journal.low}
        sums |= {"waiting": journal.waiting, "held": len(journal.held())}
        sums |= {"dropped": journal.dropped, "damaged": journal.damaged}
        sums |= {"erases of a sector, least": min(wear), "erases of a sector, most": max(wear)}
        rows: list[tuple[str, object]] = [("journal", ""), *sums.items()]
        notes = [chain[-1].note, *(record.body for record in chain[-1].records if record.type == layout.NOTE)]
        if notes[-1].strip(b"\xff"):
            rows.append(("note", notes[-1].hex(" ")))
        parts.append("\n".join(table(rows, "<>")))
    parts.append(_sectors(sectors, sector_bytes))
    parts.append(_records(sectors, journal is not None, everything))
    if journal is not None and journal.low < journal.next_seq:
        parts.append(UNNOTED)
    return "\n\n".join(part for part in parts if part), journal is not None


def _sectors(sectors: Sequence[Sector], sector_bytes: int) -> str:
    headings = SECTOR_HEADINGS.split()
    rows: list[list[int | str]] = [[*headings]]
    for sector in sectors:
        fields = sector.fields
        row: list[int | str] = [sector.number, sector.state, *[""] * (len(headings) - 2)]
        if fields:
            prev = "" if fields["prev"] == layout.NONE else f"{fields['prev']} to {fields['prev_end']}"
            first = f"{fields['first']:,}" + ("+" if fields["continued"] else "")
            row[2:9] = sector.seq, prev, fields["boot"], fields["erases"], fields["low"], first, fields["floor"]
            row[9:13] = sector.held or "", len(sector.records), sector.damaged or "", sector.torn or ""
            row[13] = f"{100 * sector.used // sector_bytes} %"
        rows.append(row)
    return "\n".join(table(rows, "><" + ">" * (len(headings) - 2)))


def _records(sectors: Sequence[Sector], mounted: bool, everything: bool) -> str:
    rows, hidden = [RECORD_HEADINGS.split()], 0
    for sector in sorted((s for s in sectors if s.fields), key=lambda s: s.seq):
        for record in sector.records:
            state = (record.state or "old") if record.holds_body and mounted else ""
            if not everything and (state in DONE or not record.holds_body):
                hidden += 1
                continue
            text = _text(record.body) if record.holds_body else record.body.hex(" ")
            state = state if mounted or not record.holds_body else "?"
            row = record.sector, record.offset, record.name, record.identity, record.piece_name, state, len(record.body)
            rows.append([*map(str, row), text[:WIDTH]])
    note = (
        f"{hidden} more: finished messages and own records of the journal (shown by --all; make dump ALL=1)"
        if hidden
        else ""
    )
    if len(rows) == 1:
        return f"No message is waiting or held. {note}".strip() if mounted else note
    return "\n".join([*table(rows, ">><>><><"), *([note] if note else [])])


def _text(body: bytes) -> str:
    return "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in body)
