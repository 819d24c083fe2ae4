"""Makes the golden images beside this file: `python host_tests/journal/make_images.py`. Four sectors of 1 KB each.

They are data, not built by the tests: an image that a later version of the code reads otherwise, or no more, is a break of the
format. What each must give stands in test_journal_images.py.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "firmware"), str(ROOT)]

from flashmqtt.fast import put_crc32  # noqa: E402
from flashmqtt.flash.ram import RamRegion  # noqa: E402
from flashmqtt.journal.journal import Journal  # noqa: E402
from tools.journal import layout  # noqa: E402


def example() -> RamRegion:
    """Return FORMAT.md's worked example: two messages, the first acknowledged, the second marked; one inbound."""
    region = RamRegion(4, 1024)
    journal = Journal(region, 4)
    journal.append(b"first", 5)
    journal.append(b"second", 6)
    first, second = journal.take(), journal.take()
    journal.release(first)
    journal.mark(second, 1)
    journal.hold(b"inbound", 7)
    return region


def full() -> RamRegion:
    """Return a journal that is full, after the ring has turned."""
    region = RamRegion(4, 1024)
    journal = Journal(region, 4)
    for i in range(30):
        journal.append(b"%d" % i * 20, len(b"%d" % i * 20))
        if i < 25:
            journal.release(journal.take())
    journal.begin(600)
    for i in range(6):
        journal.extend(bytes([i]) * 100, 100)
    journal.commit()
    return region


def closed() -> RamRegion:
    """Return the example, ended cleanly."""
    region = example()
    journal = Journal(region, 4)
    journal.close()
    return region


def torn() -> RamRegion:
    """Return the example, the power gone while a third message was being written."""
    region = example()
    whole = bytes(region.cells)
    journal = Journal(RamRegion(4, 1024, 1, region.cells), 4)  # leaves sector 0
    end = journal._end
    journal.append(b"third", 5)
    at = journal._head * 1024 + end
    region.cells[at + 9 : at + 20] = b"\xff" * 11  # only its first bytes got there
    assert bytes(region.cells) != whole
    return region


def worn() -> RamRegion:
    """Return the example in a region of which two sectors were found bad."""
    region = example()
    header = memoryview(region.cells)[: layout.HEADER]
    header[layout.H_BAD] = 2
    put_crc32(header, 0, layout.H_CRC, layout.H_CRC, 0)
    return region


def other_version() -> RamRegion:
    """Return a journal of version 0, which there never was."""
    region = example()
    region.cells[layout.H_VERSION] = 0
    region.cells[layout.H_VERSION + 1] = 0xFF
    return region


def foreign() -> RamRegion:
    """Return a region that holds somebody's text."""
    region = RamRegion(4, 1024)
    text = b"This is not a journal. Somebody wants to keep it.\n" * 40
    region.cells[: len(text)] = text
    return region


def damaged() -> RamRegion:
    """Return the example with a bit gone in its first message, which no power cut can do."""
    region = example()
    at = region.cells.index(b"first")
    region.cells[at] ^= 0x04
    return region


IMAGES = {
    "example": example,
    "full": full,
    "closed": closed,
    "torn": torn,
    "worn": worn,
    "other_version": other_version,
    "foreign": foreign,
    "damaged": damaged,
}

if __name__ == "__main__":
    for name, make in IMAGES.items():
        (Path(__file__).parent / "images" / f"{name}.bin").write_bytes(bytes(make().cells))
