"""Flips each bit of a journal's image, one at a time and without a power cut, and mounts the result.

    python -m host_tests.journal.flips [STEP]       every bit, or every so many; prints how many ended in which class

Each flip is counted in one class, by the content of the mounted journal:

    harmless      everything is as before
    confined      messages were lost; each is counted in `damaged`, everything else is there
    held lost     an inbound message was lost, and counted
    overcounted   nothing was lost, but `damaged` says so (an inbound message that was released already)
    newest        the newest record reads as an interrupted write (FORMAT.md, "What can't be told")
    repeated      an older note, a boot number twice, a released or finished message that comes back, a mark that is lost

Anything else is a broken promise and raises Broken: a wrong payload, a loss that nobody counted, a journal that refuses
to mount or to take another message.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "firmware"), str(ROOT)]

from flashmqtt.errors import StoreError  # noqa: E402
from flashmqtt.flash.ram import RamRegion  # noqa: E402
from flashmqtt.journal.journal import Journal  # noqa: E402

SECTORS, SECTOR = 6, 1024
WINDOW = 32
CLASSES = ("harmless", "confined", "held lost", "overcounted", "newest", "repeated")


class Broken(AssertionError):
    """A flip broke a promise."""


@dataclass
class Content:
    """A journal's content, as its user reads it."""

    low: int
    next_seq: int
    dropped: int
    damaged: int  # after all pending messages were finished
    boot: int
    note: bytes
    marked: frozenset[int]
    messages: dict[int, bytes]  # pending messages, without lost ones
    lost: frozenset[int]
    held: dict[int, bytes]


def content(cells: bytes) -> Content:
    """Mount a copy, read and finish everything; append one more message and check that the next mount finds it."""
    region = RamRegion(SECTORS, SECTOR, 1, bytearray(cells))
    journal = Journal(region)
    low, end = journal.low, journal.next_seq
    window = range(low, min(end, low + WINDOW))
    finished = {seq for seq in window if journal.is_finished(seq)}
    marked = frozenset(seq for seq in window if journal.is_marked(seq)) - finished
    held = {}
    for key in journal.held():
        buf = bytearray(journal.held_length(key))
        journal.read_held(key, 0, buf, 0, len(buf))
        held[key] = bytes(buf)
    messages, lost = {}, set()
    for seq in range(low, end):
        if seq < journal.low or journal.is_finished(seq):
            continue
        buf = bytearray(journal.length(seq))
        if buf:
            journal.read(seq, 0, buf, 0, len(buf))
            messages[seq] = bytes(buf)
        else:
            lost.add(seq)
        journal.finish(seq)
    found = Content(
        low,
        end,
        journal.dropped,
        journal.damaged,
        journal.boot,
        bytes(journal.note),
        marked,
        messages,
        frozenset(lost),
        held,
    )
    seq = journal.append(b"one more", 8)
    journal = Journal(region)
    buf = bytearray(8)
    if seq < end or (journal.low, journal.length(seq)) != (seq, 8):
        raise Broken(f"message {seq} after {end} is not there")
    journal.read(seq, 0, buf, 0, 8)
    if buf != b"one more" or set(journal.held()) != set(held):
        raise Broken("what was there before the next message is not there after it")
    return found


@dataclass
class Made:
    """A journal to flip, and all that was stored in it."""

    cells: bytes
    messages: dict[int, bytes]
    held: dict[int, bytes]
    last: tuple[int, int]  # where its newest record begins and ends
    end: Callable[[], None] | None = None


class Maker:
    """Writes a journal and keeps what it stored."""

    def __init__(self) -> None:
        self.region = RamRegion(SECTORS, SECTOR)
        self.messages: dict[int, bytes] = {}
        self.inbound: dict[int, bytes] = {}
        self.journal = Journal(self.region)

    def append(self, name: str, length: int = 70) -> int:
        body = (name.encode() + b" %d " % self.journal.next_seq).ljust(length, b"x")
        seq = self.journal.append(body, length)
        self.messages[seq] = body
        return seq

    def hold(self, key: int, length: int) -> None:
        self.inbound[key] = (b"held %d " % key).ljust(length, b"y")
        self.journal.hold(key, self.inbound[key], length)

    def remount(self) -> None:
        self.journal = Journal(self.region)

    def made(self, last: Callable[[], object]) -> Made:
        """Do the last write; the bytes that it changes are the newest record."""
        before = bytes(self.region.cells)
        last()
        cells = bytes(self.region.cells)
        changed = [at for at in range(len(cells)) if cells[at] != before[at]]
        return Made(cells, self.messages, self.inbound, (changed[0], changed[-1] + 1))


def running(last: Callable[[Maker], object] = lambda maker: maker.append("newest")) -> Made:
    """A journal in its first boot: the ring has wrapped; messages are pending in several sectors, one of them is long."""
    maker = Maker()
    for i in range(30):
        maker.append("old")
        maker.journal.finish(i + 1)
    maker.hold(11, 40)
    maker.hold(12, 30)
    for _ in range(4):
        maker.append("new")
    maker.append("long", 400)
    maker.hold(13, 250)
    maker.journal.finish(32)
    maker.journal.mark(33)
    maker.journal.discard(12)
    maker.journal.sync()
    maker.append("more")
    maker.journal.write_note(b"twelve bytes")
    maker.append("last but one")
    return maker.made(lambda: last(maker))


def finish_tail(maker: Maker) -> None:
    """Finish the messages in the tail, except those that must be retransmitted."""
    for seq in (31, 33, 34):
        maker.journal.finish(seq)
    maker.journal.mark(36)
    maker.journal.discard(11)
    maker.journal.flush()


def after_a_cut() -> Made:
    """The same journal, mounted again without a clean end."""

    def last(maker: Maker) -> None:
        finish_tail(maker)
        maker.remount()
        maker.append("after the cut")
        maker.append("newest")

    made = running(last)
    return replace(made, last=newest_record(made.cells))


def small() -> Made:
    """A few messages; those of the newest sector are in its first page."""
    maker = Maker()
    for _ in range(3):
        maker.append("first")
    maker.remount()
    maker.append("second", 20)
    maker.hold(15, 20)
    maker.append("last but one", 20)
    return maker.made(lambda: maker.append("newest", 20))


def closed() -> Made:
    """The same journal after a clean end."""

    def last(maker: Maker) -> None:
        finish_tail(maker)
        maker.remount()
        maker.append("after the cut")
        maker.hold(14, 20)
        maker.journal.close()

    made = running(last)
    return replace(made, last=newest_record(made.cells))


def newest_record(cells: bytes) -> tuple[int, int]:
    """Return the place of the newest record, as the dump's parser finds it."""
    from tools.journal.report import follow_chain, read_sector

    sectors = [read_sector(n, cells[n * SECTOR : (n + 1) * SECTOR]) for n in range(SECTORS)]
    record = follow_chain(sectors)[-1].records[-1]
    begin = record.sector * SECTOR + record.offset
    return begin, begin + 24 + len(record.body)


MADE = {"small": small, "running": running, "after a cut": after_a_cut, "clean end": closed}


def judge(made: Made, base: Content, torn: Content, at: int) -> str:
    """Flip bit `at` and return its class.

    Raises:
        Broken: the flip broke a promise.
    """
    cells = bytearray(made.cells)
    cells[at // 8] ^= 1 << at % 8
    try:
        found = content(bytes(cells))
    except StoreError as error:
        raise Broken(f"{type(error).__name__}: {error}") from error
    if found == base:
        return "harmless"
    for seq, body in found.messages.items():
        if made.messages.get(seq) != body:
            raise Broken(f"message {seq} reads {body[:30]!r}")
    for key, body in found.held.items():
        if made.held.get(key) != body:
            raise Broken(f"held message {key} reads {body[:30]!r}")
    if found == torn:
        return "newest"
    gone = [seq for seq in base.messages if seq not in found.messages]
    held_gone = [key for key in base.held if key not in found.held]
    silent = [seq for seq in gone if seq not in found.lost]
    if silent:
        raise Broken(f"messages {silent} are lost and not counted")
    if found.next_seq != base.next_seq or found.dropped != base.dropped:
        raise Broken(f"next sequence {found.next_seq}, dropped {found.dropped}")
    # The body of a marked message is not needed any more: the peer has it.
    counted = found.damaged - base.damaged - len(found.lost - found.marked) - len(held_gone)
    if counted < 0:
        raise Broken(f"damaged {found.damaged}: messages {sorted(found.lost)}, held {held_gone} are lost")
    if gone:
        return "confined"
    if held_gone:
        return "held lost"
    return "overcounted" if counted else "repeated"


def flip(made: Made, bits: Iterable[int]) -> tuple[Counter[str], list[tuple[int, str]]]:
    """Flip these bits, one at a time; return how many ended in which class, and what broke."""
    base = content(made.cells)
    cells = bytearray(made.cells)
    cells[made.last[0] : made.last[1]] = b"\xff" * (made.last[1] - made.last[0])
    torn = content(bytes(cells))
    counts: Counter[str] = Counter()
    broken = []
    for at in bits:
        try:
            counts[judge(made, base, torn, at)] += 1
        except Broken as error:
            broken.append((at, str(error)))
    return counts, broken


def main() -> int:
    """Flip every bit, print a table."""
    step = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    status = 0
    print(f"{'':12}" + "".join(f"{name:>12}" for name in CLASSES) + f"{'broken':>12}")
    for name, make in MADE.items():
        made = make()
        counts, broken = flip(made, range(0, 8 * len(made.cells), step))
        print(f"{name:12}" + "".join(f"{counts[one]:>12,}" for one in CLASSES) + f"{len(broken):>12,}", flush=True)
        for at, what in broken[:200]:
            print(f"  sector {at // 8 // SECTOR} byte {at // 8 % SECTOR} bit {at % 8}: {what}")
        status |= bool(broken)
    return status


if __name__ == "__main__":
    sys.exit(main())
