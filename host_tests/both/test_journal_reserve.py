"""One old message neither fills the journal nor lets it turn in a few sectors (S1, S4, S5; FORMAT.md, room that is kept back).

The session keeps a small record held for the store's lifetime, so that every real journal has such a message.
"""

import pytest

from flashmqtt.errors import StoreFull
from flashmqtt.flash.block import BlockRegion
from flashmqtt.flash.ram import RamRegion
from flashmqtt.journal.journal import Journal
from tools.flashsim.failing import FailingRegion
from tools.flashsim.nor import NorFlash, Random

SLOTS = 32
BODY = bytes(148)


def open_messages(journal):
    return [slot for slot in range(SLOTS) if journal.is_open(slot) and not journal.is_held(slot)]


def live(journal, rng, burst):
    """Store a message; finish some of those that are in flight, mostly the oldest; let up to `burst` gather."""
    journal.append(BODY, len(BODY))
    slot = journal.take()
    if slot >= 0 and rng.below(2):
        journal.mark(slot, 1)
    while True:
        waiting = open_messages(journal)
        if not waiting or (len(waiting) < burst and rng.below(10) < 6):
            break
        slot = min(waiting, key=journal.seq_of) if rng.below(10) < 8 else waiting[rng.below(len(waiting))]
        journal.release(slot)
    if rng.below(5) == 0:
        journal.idle()


@pytest.mark.req("S1", "S5")
@pytest.mark.parametrize("seed", list(range(24)))
def test_a_held_message_and_any_number_of_cuts_never_fill_the_journal(seed):
    rng = Random(seed)
    region = RamRegion(16 if seed % 2 else 8, page_bytes=256)
    journal = Journal(region, slots=SLOTS)
    journal.hold(b"\0\0", 2)
    burst = (2, 8, 20, 26)[rng.below(4)]
    per_cut = (200, 100, 30, 10)[rng.below(4)]
    for stored in range(1, 401):
        try:
            live(journal, rng, burst)
        except StoreFull as full:
            pytest.fail("full after %d messages: %s" % (stored, full))
        if rng.below(per_cut) == 0:
            journal = Journal(region, slots=SLOTS)  # the power was cut: nothing was closed
            assert journal.stored == stored
            while journal.waiting and journal.take() >= 0:
                pass
    assert [journal.length_of(slot) for slot in range(SLOTS) if journal.is_held(slot)] == [2]


@pytest.mark.req("S4")
def test_a_held_message_does_not_keep_wear_from_being_level():
    flash = NorFlash(8 * 4096)
    journal = Journal(BlockRegion(flash), slots=8)
    journal.hold(b"\0\0", 2)
    flash.reset_counters()
    for _ in range(1500):
        journal.append(BODY, 100)
        journal.release(journal.take())
    assert flash.violations == []
    assert min(flash.erase_counts) >= 5
    assert max(flash.erase_counts) - min(flash.erase_counts) <= 1


@pytest.mark.req("Q2", "S1")
def test_a_mark_that_makes_an_old_message_move_is_durable():
    """The mark opens the next sector, and for that what keeps the oldest one moves, with a record of its own in between."""
    region = RamRegion(5, page_bytes=256)
    journal = Journal(region, slots=4)
    journal.append(BODY, 5)
    stuck = journal.take()
    moves = 0
    for _ in range(150):
        journal.append(bytes(200), 200)
        slot = journal.take()
        lay = journal._slot_sector[stuck]
        journal.mark(slot, 7)
        moves += journal._slot_sector[stuck] != lay
        again = Journal(RamRegion(5, page_bytes=256, cells=bytearray(region.cells)), slots=4)
        assert [again.mark_of(s) for s in range(4) if again.seq_of(s) == journal.seq_of(slot)] == [7]
        journal.release(slot)
    assert moves


@pytest.mark.req("Q6")
def test_what_moves_out_of_a_full_window_does_not_overtake_a_release_that_is_lost():
    region = RamRegion(8, page_bytes=256)
    journal = Journal(region, slots=4)
    for _ in range(40):
        journal.append(BODY, 10)
    first, second = journal.take(), journal.take()
    for _ in range(30):
        journal.release(journal.take())
    journal.flush()
    journal.release(first)
    journal.release(journal.take())  # the window is full again, and the second message in its way
    assert journal.seq_of(journal.take()) == 34 and journal._slot_offset[second] > 1000
    journal = Journal(region, slots=4)  # the power was cut
    seqs = []
    while journal.waiting:
        slot = journal.take()
        seqs.append(journal.seq_of(slot))
        journal.release(slot)
    assert seqs == sorted(seqs) and seqs[-1] == 40


@pytest.mark.req("S1", "S6")
@pytest.mark.parametrize("program", list(range(117, 124)))
def test_a_program_that_fails_while_old_messages_move_loses_nothing(program):
    """Around its 120th program, this journal of 7 sectors moves two messages out of the way of the ring."""
    region = FailingRegion(7, page_bytes=256)
    region.programs_left = program
    journal = Journal(region, slots=8)
    for _ in range(2):
        journal.append(BODY, 1)
        journal.take()
    lay = journal._slot_sector[0]
    moves = 0
    for n in range(130):
        journal.append(bytes(200), 200)
        slot = journal.take()
        assert journal.seq_of(slot) == n + 3
        journal.release(slot)
        moves += journal._slot_sector[0] != lay
        lay = journal._slot_sector[0]
    assert moves and [journal.seq_of(slot) for slot in range(8) if journal.is_open(slot)] == [1, 2]
    journal.flush()
    journal = Journal(region, slots=8)
    assert [journal.seq_of(journal.take()) for _ in range(journal.waiting)] == [1, 2]
