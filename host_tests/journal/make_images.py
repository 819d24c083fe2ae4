"""Makes the golden images beside this file: `python host_tests/journal/make_images.py`. Six sectors of 1 KB each.

The images are data, not built by the tests: if a later version of the code reads one differently, or not at all, the format is
broken. Their expected content is in test_journal_images.py.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "firmware"), str(ROOT)]

from flashmqtt.flash.ram import RamRegion  # noqa: E402
from flashmqtt.journal.journal import DROP_OLDEST, REFUSE, Journal  # noqa: E402

SECTORS, SECTOR = 6, 1024
IMAGES = Path(__file__).parent / "images"


class Cut(BaseException):
    """The power was cut."""


class CutRegion(RamRegion):
    """A region whose power is cut in its nth program, of which only `done` bytes are written."""

    def __init__(self, cells=None, programs=-1, done=0):
        super().__init__(SECTORS, SECTOR, 1, cells)
        self.left = programs
        self.done = done

    def program(self, offset, buf, again=False):
        self.left -= 1
        if self.left:
            return super().program(offset, buf, again)
        if self.done:
            super().program(offset, bytearray(buf[: self.done]))
        raise Cut


def blank(policy=REFUSE):
    return Journal(CutRegion(), policy)


def mounted(region, policy=REFUSE):
    """Return the journal of a region, as the next start mounts it."""
    return Journal(CutRegion(bytearray(region.cells)), policy)


def append(journal, text):
    return journal.append(text, len(text))


def example():
    """Return FORMAT.md's worked example: two messages, the first acknowledged, the second marked; one inbound."""
    journal = blank()
    append(journal, b"first")
    append(journal, b"second")
    journal.finish(1)
    journal.mark(2)
    journal.hold(7, b"inbound", 7)
    return journal.region


def closed():
    """Return the example, ended cleanly after one more start."""
    journal = mounted(example())
    journal.close()
    return journal.region


def reopened():
    """Return the example after a clean end and another start, which continued in the same sector."""
    journal = mounted(closed())
    append(journal, b"third")
    return journal.region


def torn():
    """Return the example with a third message; the power was cut while a fourth was written."""
    journal = mounted(example())
    append(journal, b"third")
    journal.region.left, journal.region.done = 1, 30
    try:
        append(journal, b"and this was never stored")
    except Cut:
        pass
    return journal.region


def full():
    """Return a journal that refuses the next message, after the ring has wrapped; one message is finished out of order."""
    journal = blank()
    for i in range(1, 41):
        append(journal, b"%d " % i * 15)
        if i > 5:
            journal.finish(i - 5)
    try:
        while True:
            append(journal, b"%d " % journal.next_seq * 15)
    except Exception as error:
        assert type(error).__name__ == "StoreFull", error
    journal.finish(38)
    journal.flush()
    return journal.region


def dropped():
    """Return a journal that dropped its oldest messages, one of which is marked and so still owes its PUBREL."""
    journal = blank(DROP_OLDEST)
    append(journal, b"the first")
    journal.on_drop = lambda first, _end: first == 1 and journal.mark(1)
    while not journal.dropped:
        append(journal, b"%d " % journal.next_seq * 15)
    return journal.region


def held():
    """Return a journal with five inbound messages: one in pieces, one moved along by the ring; a sixth is released."""
    journal = blank()
    journal.hold(1, b"stays", 5)
    for i in range(1, 61):
        append(journal, b"%d" % i * 40)
        if i > 12:
            journal.finish(
                i - 12
            )  # the waiting ones need room, and the tail is kept by the first inbound message alone
    for i in range(49, 61):
        journal.finish(i)
    long = bytes(range(250)) * 3
    journal.hold(500, long, len(long))
    for key in (3, 65535, 2, 4):
        text = b"key %d" % key
        journal.hold(key, text, len(text))
    journal.discard(3)
    journal.sync()
    journal.write_note(b"twelve bytes")
    return journal.region


def long():
    """Return a journal with a message of many pieces over several sectors, and one that was begun and abandoned."""
    journal = blank()
    append(journal, b"short")
    journal.begin(1200)
    for i in range(12):
        journal.extend(bytes([i]) * 100, 100)
    journal.commit()
    journal.begin(300)
    journal.extend(b"never to be seen" * 16, 256)
    append(journal, b"short again")
    return journal.region


def carried():
    """Return a journal that two mounts carried from sector to sector: message 2 is finished, message 3 marked."""
    journal = blank()
    for text in (b"one", b"two", b"three"):
        append(journal, text)
    journal.finish(2)
    journal.mark(3)
    journal.flush()
    journal = mounted(journal.region)
    append(journal, b"four")
    return mounted(journal.region).region


def half_erased():
    """Return the same, but the record after the opening was cut, and then the sector's erase: a carried message lost bits."""
    region = carried()
    start = 2 * SECTOR
    body = region.cells.index(b"three", start)
    region.cells[body : body + 5] = b"\xff" * 5
    opening_end = region.cells.index(b"four", start) + 4 + 24
    region.cells[opening_end : start + SECTOR] = b"\xff" * (start + SECTOR - opening_end)
    return region


def first_mount():
    """Return a region whose first mount was cut inside the header."""
    region = CutRegion(None, 1, 50)
    try:
        Journal(region)
    except Cut:
        pass
    return region


def damaged():
    """Return the reopened example with a flipped bit in its second message, which no power cut can cause."""
    region = reopened()
    region.cells[region.cells.index(b"second")] ^= 0x04
    return region


def foreign():
    """Return a region that holds somebody's text."""
    region = CutRegion()
    text = b"This is not a journal. Somebody wants to keep it.\n" * 40
    region.cells[: len(text)] = text
    return region


MADE = (example, closed, reopened, torn, full, dropped, held, long, carried, half_erased, first_mount, damaged, foreign)

if __name__ == "__main__":
    for make in MADE:
        (IMAGES / f"{make.__name__}.bin").write_bytes(bytes(make().cells))
