"""A single flipped bit, without a power cut: lost messages are counted, all others are there, and none has wrong content.

These tests flip a sample; `python -m host_tests.journal.flips` flips every bit and prints the counts that FORMAT.md has.
"""

from functools import cache
from struct import pack_into, unpack_from
from zlib import crc32

import pytest

from host_tests.journal import flips
from host_tests.journal.flips import MADE, SECTOR, SECTORS, content, flip
from host_tests.journal.reader import read
from tools.journal import layout

STEP = 43  # no divisor of anything in the format


@pytest.fixture(scope="module", autouse=True)
def mounted_once():
    """Keep what the library found: both tests flip the same bits."""
    found, flips.content = flips.content, cache(flips.content)
    yield
    flips.content = found


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
    for at in range(0, 8 * len(made.cells), STEP):
        if (at // STEP + at // STEP // 8) % 2:  # every other one, and so each bit of a byte
            continue
        cells = bytearray(made.cells)
        cells[at // 8] ^= 1 << at % 8
        found = flips.content(bytes(cells))
        state = read(cells, SECTOR)
        where = "sector %d byte %d bit %d" % (at // 8 // SECTOR, at // 8 % SECTOR, at % 8)
        assert (state.low, state.next_seq, state.note) == (found.low, found.next_seq, found.note), where
        assert {seq: body for seq, body in state.messages.items() if body} == found.messages, where
        assert set(state.lost) == found.lost and dict(state.held) == found.held, where
        assert state.boot + 1 == found.boot and state.marked - state.finished == found.marked, where


@pytest.mark.req("S6")
@pytest.mark.parametrize("name", MADE)
def test_chain_that_would_be_a_circle_ends(name):
    made = MADE[name]()
    sequences = {}
    for sector in range(SECTORS):
        header = bytes(made.cells[sector * SECTOR : (sector + 1) * SECTOR])
        end = layout.HEADER - 4 + 4 * (header[7] & 63)
        if header[:4] == b"fmqj" and crc32(header[:end]) == unpack_from("<I", header, end)[0]:
            sequences[sector] = unpack_from("<I", header, layout.H_SEQ)[0]
    assert len(sequences) >= 2
    for sector in sequences:
        for previous, sequence in sequences.items():
            cells = bytearray(made.cells)
            at = sector * SECTOR
            pack_into("<H", cells, at + layout.H_PREV, previous)
            pack_into("<I", cells, at + layout.H_PREV_SEQ, sequence)
            end = at + layout.HEADER - 4 + 4 * (cells[at + 7] & 63)
            pack_into("<I", cells, end, crc32(cells[at:end]))
            found = content(bytes(cells))
            state = read(cells, SECTOR)
            assert (state.low, state.next_seq) == (found.low, found.next_seq)
            assert {seq: body for seq, body in state.messages.items() if body} == found.messages
