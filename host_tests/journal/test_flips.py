"""A single flipped bit, without a power cut: lost messages are counted, all others are there, and none has wrong content.

These tests flip a sample; `python -m host_tests.journal.flips` flips every bit and prints the counts that FORMAT.md has.
"""

import pytest

from host_tests.journal.flips import MADE, SECTOR, content, flip
from host_tests.journal.reader import read

STEP = 43  # no divisor of anything in the format


@pytest.mark.req("S6")
@pytest.mark.parametrize("name", MADE)
def test_flipped_bit_can_hide_only_the_newest_record(name):
    made = MADE[name]()
    bits = range(0, 8 * len(made.cells), STEP)
    counts, broken = flip(made, bits)
    assert not broken, "%d: %s" % (len(broken), broken[:5])
    assert sum(counts.values()) == len(bits)
    begin, end = made.last
    assert counts["newest"] <= (0 if name == "clean end" else 8 * (end - begin) // STEP + 1)
    assert counts["harmless"] > len(bits) // 2
    assert counts["confined"] > 20


@pytest.mark.req("S6")
@pytest.mark.parametrize("name", MADE)
def test_reader_and_library_agree_on_flipped_images(name):
    made = MADE[name]()
    for at in range(0, 8 * len(made.cells), 2 * STEP + 1):
        cells = bytearray(made.cells)
        cells[at // 8] ^= 1 << at % 8
        found = content(bytes(cells))
        state = read(cells, SECTOR)
        where = "sector %d byte %d bit %d" % (at // 8 // SECTOR, at // 8 % SECTOR, at % 8)
        assert (state.low, state.next_seq, state.note) == (found.low, found.next_seq, found.note), where
        assert {seq: body for seq, body in state.messages.items() if body} == found.messages, where
        assert set(state.lost) == found.lost and dict(state.held) == found.held, where
        assert state.boot + 1 == found.boot and state.marked - state.finished == found.marked, where
