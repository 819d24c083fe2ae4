"""The journal when it is full, when sectors fail, when it ends cleanly, and what it must not do."""

import sys

import pytest

from flashmqtt.errors import FlashFailed, StoreEncrypted, StoreError, StoreExhausted, StoreFull, StoreWorn, UsageError
from flashmqtt.fast import is_blank
from flashmqtt.flash.block import BlockRegion
from flashmqtt.flash.ram import RamRegion
from flashmqtt.journal.journal import DROP_NEWEST, DROP_OLDEST, Journal
from tools.flashsim.failing import FailingRegion
from tools.flashsim.nor import NorFlash

MESSAGE = bytes(100)


def fill(journal):
    n = 0
    try:
        while journal.append(MESSAGE, 100):
            n += 1
    except StoreFull:
        pass
    return n


def drain(journal):
    seqs = []
    while True:
        slot = journal.take()
        if slot < 0:
            return seqs
        seqs.append(journal.seq_of(slot))
        journal.release(slot)


@pytest.mark.req("S5", "S6")
def test_a_full_store_refuses_and_keeps_everything():
    region = RamRegion(5)
    journal = Journal(region)
    n = fill(journal)
    assert n == 3 * 31
    with pytest.raises(StoreFull):
        journal.append(MESSAGE, 100)
    assert journal.dropped == 0
    assert drain(Journal(region)) == list(range(1, n + 1))


@pytest.mark.req("S5")
def test_a_full_store_that_drops_the_newest_counts_them_across_a_restart():
    region = RamRegion(5)
    journal = Journal(region, policy=DROP_NEWEST)
    n = fill(journal)
    assert [journal.append(MESSAGE, 100) for _ in range(4)] == [0, 0, 0, 0]
    journal.flush()
    journal = Journal(region, policy=DROP_NEWEST)
    assert journal.dropped == 5 and journal.stored == n and len(drain(journal)) == n


@pytest.mark.req("S5")
def test_a_full_store_that_drops_the_oldest_keeps_the_newest_and_what_is_being_sent():
    region = RamRegion(5)
    journal = Journal(region, policy=DROP_OLDEST)
    for _ in range(2):
        journal.take() if journal.append(MESSAGE, 100) else None
    journal.mark(0, 1)
    for _ in range(200):
        assert journal.append(MESSAGE, 100)
    assert journal.dropped > 100
    dropped = journal.dropped
    journal = Journal(region, policy=DROP_OLDEST)
    assert journal.dropped == dropped and journal.stored == 202
    left = drain(journal)
    assert left[0] == 2 and left[1:] == list(range(203 - len(left) + 1, 203))
    assert journal.mark_of(0) == 1 and journal.seq_of(0) == 1
    assert len(left) + 1 + dropped == 202


@pytest.mark.req("S5")
@pytest.mark.parametrize("length", [90, 150, 240])
def test_the_oldest_that_waits_is_dropped_also_behind_a_full_window(length):
    """A link is lost with eight messages in flight, and stays away until the store is full, and full again."""
    region = RamRegion(8)
    journal = Journal(region, policy=DROP_OLDEST)
    message = bytes(length)
    for _ in range(20):
        journal.append(message, length)
    slots = [journal.take() for _ in range(8)]
    for _ in range(500):
        assert journal.append(message, length)
    assert [journal.seq_of(slot) for slot in slots] == list(range(1, 9))
    assert journal.dropped == 520 - 8 - journal.waiting
    journal = Journal(region, policy=DROP_OLDEST)
    left = drain(journal)
    assert left[:8] == list(range(1, 9)) and left[8:] == list(range(521 - len(left) + 8, 521))


@pytest.mark.req("S5")
def test_a_refused_append_costs_no_wear():
    flash = NorFlash(5 * 4096)
    journal = Journal(BlockRegion(flash))
    fill(journal)
    before = flash.operations
    for _ in range(20):
        with pytest.raises(StoreFull):
            journal.append(MESSAGE, 100)
    assert flash.operations - before <= 1


@pytest.mark.req("S5", "Q2")
def test_a_full_store_still_takes_marks_until_it_is_empty():
    region = RamRegion(4)
    journal = Journal(region)
    n = fill(journal)
    for i in range(n):
        slot = journal.take()
        assert journal.seq_of(slot) == i + 1
        journal.mark(slot, 1)
        journal.release(slot)
        if i % 10 == 0:
            journal.flush()
            journal = Journal(region)
    assert journal.waiting == 0 and fill(journal) == n


@pytest.mark.req("S1")
def test_one_message_that_is_never_acknowledged_holds_no_space():
    region = RamRegion(5)
    journal = Journal(region)
    journal.append(b"stuck", 5)
    stuck = journal.take()
    for _ in range(1000):
        journal.append(MESSAGE, 100)
        journal.release(journal.take())
    out = bytearray(5)
    journal.read(stuck, 0, out, 0, 5)
    assert out == b"stuck"
    journal = Journal(region)
    assert drain(journal)[0] == 1


@pytest.mark.req("S6")
@pytest.mark.parametrize("kind", ("erase", "program", "both"))
def test_a_sector_that_fails_is_retired_and_nothing_is_lost(kind):
    flash = NorFlash(8 * 4096)
    region = BlockRegion(flash)
    journal = Journal(region)
    for _ in range(70):
        journal.append(MESSAGE, 100)
    flash.set_bad(5, kind)
    flash.set_bad(journal._head, "program")
    for i in range(400):
        journal.append(MESSAGE, 100)
        slot = journal.take()
        assert journal.seq_of(slot) == i + 1
        journal.release(slot)
    assert journal.sectors_usable <= 7
    journal.flush()
    journal = Journal(region)
    assert drain(journal) == list(range(401, 471))


@pytest.mark.req("S6")
def test_at_the_end_of_its_life_the_store_says_so_and_everything_can_be_read():
    flash = NorFlash(5 * 4096)
    region = BlockRegion(flash)
    journal = Journal(region)
    for _ in range(40):
        journal.append(MESSAGE, 100)
    for sector in range(5):
        flash.set_bad(sector)
    with pytest.raises(StoreWorn):
        journal.append(MESSAGE, 100)
    with pytest.raises(StoreWorn):
        journal.append(MESSAGE, 100)
    assert drain(journal) == list(range(1, 41))
    journal = Journal(region)
    assert journal.worn and drain(journal) == list(range(1, 41))


def full_window(journal):
    """The oldest message is open, and all others that fit into the window are finished: the next one makes it move."""
    for _ in range(40):
        journal.append(MESSAGE, 100)
    journal.take()
    for _ in range(31):
        journal.release(journal.take())


@pytest.mark.req("S6")
def test_at_the_end_of_its_life_nothing_more_is_taken_out_of_a_full_window():
    flash = NorFlash(5 * 4096)
    journal = Journal(BlockRegion(flash))
    full_window(journal)
    for sector in range(5):
        flash.set_bad(sector)
    assert journal.take() == -1 and journal.take() == -1
    journal.release(0)
    assert journal.seq_of(journal.take()) == 33


@pytest.mark.req("S2")
def test_taking_out_of_a_full_window_writes_nothing_behind_a_clean_end():
    region = RamRegion(5)
    journal = Journal(region)
    full_window(journal)
    journal.close()
    before = bytes(region.cells)
    assert journal.take() == -1 and bytes(region.cells) == before


@pytest.mark.req("S2")
def test_half_a_clean_end_is_none():
    """The flash refuses the second of the two records, so it goes to the next sector, alone: it could be weak."""
    region = FailingRegion(5)
    journal = Journal(region)
    journal.append(MESSAGE, 100)
    region.programs_left = 2
    journal.close()
    again = Journal(region)
    assert again._head != journal._head
    assert again.boot == 2 and drain(again) == [1]


@pytest.mark.req("S4", "B5")
def test_a_clean_end_costs_no_erase_and_counts_boots():
    flash = NorFlash(8 * 4096)
    region = BlockRegion(flash)
    journal = Journal(region)
    for boot in range(1, 11):
        assert journal.boot == boot
        journal.append(MESSAGE, 100)
        journal.release(journal.take())
        journal.close()
        erases = flash.erases
        journal = Journal(region)
        assert flash.erases == erases


@pytest.mark.req("S4")
def test_a_clean_end_that_makes_an_old_message_move_claims_no_erased_sector():
    """Where a sector has no room left for a clean end, the next one is opened, and what keeps the oldest one moves."""
    body = bytes(200)
    for n in range(95, 105):
        region = RamRegion(5, page_bytes=256)
        journal = Journal(region)
        journal.append(body, 200)
        journal.take()
        for _ in range(n):
            journal.append(body, 200)
            journal.release(journal.take())
        journal.close()
        ahead = Journal(region)._ahead
        assert ahead < 0 or is_blank(region.cells, ahead * 4096, ahead * 4096 + 4096)


@pytest.mark.req("S2")
def test_nothing_is_written_behind_a_clean_end():
    region = RamRegion(4)
    journal = Journal(region)
    journal.append(MESSAGE, 100)
    journal.close()
    journal.close()
    journal.idle()
    with pytest.raises(UsageError):
        journal.append(MESSAGE, 100)
    journal.release(journal.take())
    assert Journal(region).waiting == 1


@pytest.mark.req("S4")
def test_what_is_erased_ahead_is_not_erased_again_after_a_clean_end():
    flash = NorFlash(8 * 4096)
    region = BlockRegion(flash)
    journal = Journal(region)
    for _ in range(20):
        journal.append(MESSAGE, 100)
    journal.idle()
    assert flash.erases == 1
    journal.close()
    journal = Journal(region)
    for _ in range(20):
        journal.append(MESSAGE, 100)
    assert flash.erases == 1


@pytest.mark.req("S4")
def test_wear_is_level_over_many_rings():
    flash = NorFlash(6 * 4096)
    journal = Journal(BlockRegion(flash))
    for _ in range(1500):
        journal.append(MESSAGE, 100)
        journal.release(journal.take())
    assert max(flash.erase_counts) - min(flash.erase_counts) <= 1
    assert flash.violations == []


@pytest.mark.req("S1")
def test_a_message_in_pieces_exists_from_its_commit():
    region = RamRegion(5)
    journal = Journal(region)
    body = bytearray(9000)
    for i in range(9000):
        body[i] = i % 251
    journal.begin(9000)
    for at in range(0, 9000, 700):
        journal.extend(body[at : at + 700], len(body[at : at + 700]))
    assert Journal(RamRegion(5, 4096, 1, bytearray(region.cells))).waiting == 0
    with pytest.raises(UsageError):
        journal.extend(b"x", 1)
    assert journal.commit() == 1
    journal = Journal(region)
    slot = journal.take()
    assert journal.length_of(slot) == 9000
    buf = bytearray(300)
    for at in range(0, 9000, 300):
        journal.read(slot, at, buf, 0, 300)
        assert buf == body[at : at + 300]


@pytest.mark.req("S5")
def test_a_message_that_is_too_long_for_the_store_leaves_no_trace():
    journal = Journal(RamRegion(4))
    for _ in range(3):
        with pytest.raises(StoreFull):
            journal.append(bytes(20000), 20000)
    assert journal.waiting == 0 and fill(journal) >= 31


@pytest.mark.req("S5")
def test_what_can_never_fit_drops_nothing():
    journal = Journal(RamRegion(4), policy=DROP_OLDEST)
    for _ in range(30):
        journal.append(MESSAGE, 100)
    with pytest.raises(StoreFull):
        journal.append(bytes(7617), 7617)
    assert journal.waiting == 30 and journal.dropped == 0
    journal.append(bytes(7000), 7000)  # two sectors of four, nearly
    assert journal.waiting == 1 and journal.dropped == 30


@pytest.mark.req("S6")
@pytest.mark.parametrize("length", (-3, 11, 300))
def test_more_bytes_than_there_are_is_the_callers_mistake_and_harms_nothing(length):
    region = RamRegion(4, page_bytes=256)
    journal = Journal(region)
    for store in (journal.append, journal.hold):
        with pytest.raises(UsageError):
            store(bytes(10), length)
    journal.begin(500)
    with pytest.raises(UsageError):
        journal.extend(bytes(10), length)
    journal.append(bytes(244), 244)  # on the next page
    assert [slot for slot in range(journal.slots) if journal.is_open(slot)] == []
    assert drain(Journal(region)) == [journal.next_seq - 1]


class Watched(RamRegion):
    """Calls somebody after each program, who may look at what a power cut would leave."""

    watch = None

    def program(self, offset, buf):
        super().program(offset, buf)
        if self.watch:
            self.watch(RamRegion(self.sectors, self.sector_bytes, self.page_bytes, bytearray(self.cells)))


@pytest.mark.req("S2", "S5")
def test_a_cut_while_the_oldest_makes_room_leaves_a_journal_that_goes_on():
    """What is open nearly fills a sector, and moves into the last one but one; a recovery then has to take it further."""
    region = Watched(3, page_bytes=256)
    journal = Journal(region, slots=11, policy=DROP_OLDEST)
    for length in [0] * 10 + [100]:
        journal.append(MESSAGE, length)
        journal.take()
    for slot in range(10):
        journal.release(slot)
    for _ in range(10):
        journal.append(bytes(244), 244)
        journal.take()
    for slot in range(10):
        journal.mark(slot, 1)
    while journal._end < 3600:
        journal.append(MESSAGE, 100)
    journal.close()
    journal = Journal(region, slots=11, policy=DROP_OLDEST)
    journal.take()
    opened = sorted([journal.seq_of(slot) for slot in range(11)])
    cuts = []

    def cut(copy):
        again = Journal(copy, slots=11, policy=DROP_OLDEST)
        assert not again.worn and again.take() >= 0
        cuts.append(sorted([again.seq_of(slot) for slot in range(11)]))

    region.watch = cut
    with pytest.raises(StoreFull):  # too much is open for anything else
        journal.append(MESSAGE, 100)
    assert cuts == [opened] * len(cuts) and len(cuts) > 11


@pytest.mark.req("S1", "S2")
@pytest.mark.parametrize("sector_bytes, slots", ((1024, 8), (2048, 16), (4096, 58), (4096, 80)))
def test_every_slot_and_a_full_window_out_of_turn_find_room_in_a_table(sector_bytes, slots):
    region = RamRegion(12, sector_bytes, 256)
    journal = Journal(region, slots)
    left = [journal.append(b"stuck", 5)]
    for _ in range(slots - 2):
        journal.hold(b"in", 2)
    for n in range(200):
        if n % 40 == 0:
            journal.flush()
            journal = Journal(region, slots)
            assert journal.seq_of(journal.take()) == left[0]
        try:
            left.append(journal.append(bytes(100), 100))
        except StoreFull:
            pass
        slot = journal.take()
        if slot >= 0:
            assert journal.seq_of(slot) == left.pop(1)
            journal.release(slot)
    journal.flush()
    journal = Journal(region, slots)
    assert len([slot for slot in range(slots) if journal.is_held(slot)]) == slots - 2
    assert drain(journal) == left


@pytest.mark.req("S6")
def test_more_slots_than_a_table_has_room_for_are_refused():
    for sector_bytes, most in ((1024, 14), (2048, 29), (4096, 89)):
        Journal(RamRegion(4, sector_bytes), most)
        with pytest.raises(UsageError):
            Journal(RamRegion(4, sector_bytes), most + 1)


@pytest.mark.req("S6")
def test_a_region_of_too_few_sectors_is_refused():
    for sectors in (1, 2):
        with pytest.raises(UsageError):
            Journal(RamRegion(sectors))
    assert fill(Journal(RamRegion(3))) == 31


@pytest.mark.req("W8")
def test_the_last_sequence_number_is_the_end():
    region = RamRegion(4)
    journal = Journal(region)
    journal.next_seq = 0x3FFFFFFD
    journal._settle()
    assert journal.append(b"", 0) == 0x3FFFFFFD
    journal = Journal(region)
    assert journal.append(b"", 0) == 0x3FFFFFFE
    for store in (journal.append, journal.hold):
        with pytest.raises(StoreExhausted):
            store(b"", 0)
    journal.mark(journal.take(), 1)
    journal = Journal(region)
    assert journal.mark_of(0) == 1 and drain(journal) == [0x3FFFFFFE]
    journal.release(0)
    journal.close()
    journal = Journal(region)
    assert journal.waiting == 0 and journal.next_seq == 0x3FFFFFFF


@pytest.mark.req("S4")
def test_an_encrypted_partition_is_refused_by_name():
    flash = NorFlash(4 * 4096, "esp32-encrypted")
    with pytest.raises(StoreEncrypted) as refused:
        Journal(BlockRegion(flash))
    assert isinstance(refused.value, StoreError)
    with pytest.raises(StoreEncrypted):
        Journal.format(BlockRegion(flash))
    assert flash.operations == 0


@pytest.mark.req("B2")
def test_the_steady_state_allocates_nothing():
    if sys.implementation.name == "cpython":
        pytest.skip("MicroPython's heap")
    import micropython

    journal = Journal(RamRegion(6), slots=8)
    message = bytearray(100)
    out = bytearray(100)

    def cycle(n):
        for _ in range(n):
            journal.append(message, 100)
            slot = journal.take()
            journal.read(slot, 0, out, 0, 100)
            journal.mark(slot, 1)
            journal.release(slot)
            journal.release(journal.hold(message, 90))
        journal.flush()
        journal.idle()

    cycle(5)
    micropython.heap_lock()
    try:
        cycle(200)
    finally:
        micropython.heap_unlock()


@pytest.mark.req("S4")
def test_a_failing_region_is_not_mistaken_for_an_empty_one():
    region = FailingRegion(4)
    region.reads_left = 1
    with pytest.raises(FlashFailed):
        Journal(region)


@pytest.mark.req("Q6", "S6")
def test_a_message_whose_reading_failed_once_keeps_its_turn():
    for reads in range(1, 8):
        region = FailingRegion(4)
        journal = Journal(region)
        journal.append(bytes(1000), 1000)
        journal.append(MESSAGE, 100)
        region.reads_left = reads
        try:
            slot = journal.take()
        except FlashFailed:
            slot = journal.take()
        region.reads_left = 0
        assert journal.seq_of(slot) == 1
        journal.release(slot)
        assert drain(journal) == [2] and journal.waiting == 0


@pytest.mark.req("B2")
def test_memory_does_not_grow_with_what_is_stored():
    if sys.implementation.name == "cpython":
        pytest.skip("MicroPython's heap")
    import gc

    journal = Journal(RamRegion(12), slots=8)
    used = []
    for n in (10, 290):
        for _ in range(n):
            journal.append(MESSAGE, 100)
        for _ in range(3):
            gc.collect()
        used.append(gc.mem_alloc())
    assert journal.waiting == 300
    assert used[1] - used[0] <= 64  # the list's own growth
