"""The journal when it is full, when sectors fail and when it is closed; and the arguments that it refuses."""

import sys

import pytest

from chips import EncryptedFlash
from failing import FailingRegion, StuckRegion
from flashmqtt.errors import FlashFailed, StoreCorrupt, StoreError, StoreForeign, StoreFull, StoreWorn, UsageError
from flashmqtt.flash.block import BlockRegion
from flashmqtt.flash.ram import RamRegion
from flashmqtt.journal.journal import DROP_NEWEST, DROP_OLDEST, REFUSE, Journal
from heap import heap_lock, heap_unlock
from stored import held_messages
from tools.flashsim.nor import NorFlash

MESSAGE = bytes(100)
NOTE = b"twelve bytes"
KINDS = ("erase", "program", "both")


def fill(journal, length=100):
    n = 0
    try:
        while journal.append(bytes(length), length):
            n += 1
    except StoreFull:
        pass
    return n


def drain(journal):
    seqs = []
    while journal.low < journal.next_seq:
        seqs.append(journal.low)
        journal.finish(journal.low)
    return seqs


def limit_of(region):
    pages = region.sector_bytes // 256 - 1
    return (region.sectors - (4 if region.sectors > 5 else 3)) * pages * 232


def again(region):
    """Return the region as a power cut at this moment would leave it."""
    return RamRegion(region.sectors, region.sector_bytes, region.page_bytes, bytearray(region.cells))


# --- full ---


@pytest.mark.req("S5", "S6")
def test_full_store_refuses_new_messages_and_keeps_stored_ones():
    region = RamRegion(6)
    journal = Journal(region)
    n = fill(journal)
    assert n >= 2 * 31
    with pytest.raises(StoreFull):
        journal.append(MESSAGE, 100)
    assert journal.dropped == 0
    assert drain(Journal(region)) == list(range(1, n + 1))


@pytest.mark.req("S5")
def test_drop_newest_counts_dropped_messages_across_a_restart():
    region = RamRegion(6)
    journal = Journal(region, policy=DROP_NEWEST)
    n = fill(journal)
    assert [journal.append(MESSAGE, 100) for _ in range(4)] == [0, 0, 0, 0]
    assert not journal.begin(400)
    journal.flush()
    journal = Journal(region, policy=DROP_NEWEST)
    assert journal.dropped == 6 and journal.next_seq == n + 1 and len(drain(journal)) == n


@pytest.mark.req("S5")
def test_long_message_without_room_is_dropped_as_newest_and_counted():
    """Version 1 raised StoreFull for it."""
    region = RamRegion(6)
    journal = Journal(region, policy=DROP_NEWEST)
    fill(journal)
    dropped = journal.dropped
    assert journal.append(bytes(4000), 4000) == 0
    assert not journal.begin(6900) and journal.dropped == dropped + 2
    with pytest.raises(StoreFull, match="7000 bytes; 6960 at most"):  # not even into an empty journal
        journal.begin(7000)


@pytest.mark.req("S5")
def test_drop_oldest_keeps_the_newest_and_marked_messages():
    region = RamRegion(6)
    journal = Journal(region, policy=DROP_OLDEST)
    ranges = []
    journal.on_drop = lambda first, end: ranges.append((first, end))
    for _ in range(3):
        journal.append(MESSAGE, 100)
    journal.mark(2)
    journal.sync()
    for _ in range(200):
        assert journal.append(MESSAGE, 100)
    assert journal.dropped > 60 and ranges[0][0] == 1
    assert all(ranges[i][1] == ranges[i + 1][0] for i in range(len(ranges) - 1))
    assert journal.dropped == ranges[-1][1] - 1 - 1  # all except the marked message
    for mounted in (journal, Journal(region, policy=DROP_OLDEST)):
        assert mounted.low == 2 and mounted.is_marked(2) and mounted.length(2) == 0
        assert mounted.is_finished(3) and not mounted.is_finished(2)
        assert mounted.dropped == journal.dropped
        mounted.finish(2)
        assert mounted.low == ranges[-1][1]
        assert drain(mounted) == list(range(ranges[-1][1], 204))


@pytest.mark.req("S5")
def test_message_marked_during_its_drop_stays_without_its_body():
    region = RamRegion(6)
    journal = Journal(region, policy=DROP_OLDEST)

    def dropping(first, end):
        for seq in (4, 7):
            if first <= seq < end:
                journal.mark(seq)

    journal.on_drop = dropping
    for _ in range(200):
        journal.append(MESSAGE, 100)
    for mounted in (journal, Journal(region, policy=DROP_OLDEST)):
        assert mounted.low == 4 and [seq for seq in range(4, 36) if not mounted.is_finished(seq)][:2] == [4, 7]
        assert mounted.length(4) == mounted.length(7) == 0
        assert mounted.dropped == mounted.floor - 1 - 2
        mounted.finish(7)
        mounted.finish(4)
        assert mounted.low == mounted.floor


@pytest.mark.req("S5")
@pytest.mark.parametrize("length", [90, 150, 240])
def test_oldest_messages_are_dropped_even_with_a_full_window(length):
    """The link is lost with messages in flight, and is down until the store was filled several times."""
    region = RamRegion(8)
    journal = Journal(region, policy=DROP_OLDEST)
    message = bytes(length)
    for _ in range(520):
        assert journal.append(message, length)
    assert journal.dropped == journal.low - 1 > 0
    dropped = journal.dropped
    journal = Journal(region, policy=DROP_OLDEST)
    assert journal.dropped == dropped and drain(journal) == list(range(dropped + 1, 521))


@pytest.mark.req("S5")
@pytest.mark.parametrize("sectors", [4, 5, 6, 9])
def test_drop_oldest_never_refuses_a_message_within_the_limit(sectors):
    """Version 1 dropped all waiting messages, and then still refused the new message."""
    region = RamRegion(sectors, 1024, 256)
    journal = Journal(region, policy=DROP_OLDEST)
    limit = limit_of(region)
    for n in range(60):
        for _ in range(n % 7):
            assert journal.append(bytes(200), 200)
        length = (limit, limit - 1, limit // 2 + 1, 233)[n % 4]
        length = min(length, limit)
        before = journal.dropped
        seq = journal.append(bytes(length), length)
        assert seq and journal.length(seq) == length if seq < journal.low + 32 else True
        assert journal.dropped <= seq - 1
        if n % 5 == 0:
            before = journal.dropped
            journal = Journal(region, policy=DROP_OLDEST)
            assert journal.dropped == before and journal.next_seq == seq + 1
        with pytest.raises(StoreFull):
            journal.append(bytes(limit + 1), limit + 1)
        assert journal.dropped == before or n % 5


@pytest.mark.req("S5")
@pytest.mark.parametrize("sectors", [8, 9, 12])
def test_drop_oldest_refuses_nothing_beside_held_messages(sectors):
    region = RamRegion(sectors, 1024, 256)
    journal = Journal(region, policy=DROP_OLDEST)
    held = []
    for n in range(120):
        if n % 10 == 0:
            journal.hold(n + 1, bytes(20 + n), 20 + n)
            held.append(n + 1)
        if n % 10 == 9 and n > 20:
            journal.discard(held.pop(0))
        assert journal.append(bytes(200), 200) == n + 1
        if n % 17 == 0:
            journal.sync()
            journal = Journal(region, policy=DROP_OLDEST)
    assert list(journal.held()) == held and len(held) == 2
    for key in held:
        assert journal.held_length(key) == 19 + key


@pytest.mark.req("S5")
def test_message_length_limit_is_constant():
    """An empty journal of version 1 accepted such messages only every second time."""
    for sectors in (4, 5, 16):
        region = RamRegion(sectors, 1024, 256)
        journal = Journal(region)
        limit = limit_of(region)
        for n in range(25):
            journal.append(bytes(200), 200)
            drain(journal)
            seq = journal.append(bytes(limit), limit)
            assert journal.length(seq) == limit
            drain(journal)
            if n % 4 == 3:
                journal.flush()
                journal = Journal(region)
            with pytest.raises(StoreFull):
                journal.append(bytes(limit + 1), limit + 1)


@pytest.mark.req("S5")
def test_message_over_the_limit_drops_nothing():
    region = RamRegion(6)
    journal = Journal(region, policy=DROP_OLDEST)
    n = 0
    while not journal.dropped:
        n = journal.append(MESSAGE, 100)
    dropped = journal.dropped
    before = bytes(region.cells)
    for _ in range(3):
        with pytest.raises(StoreFull):
            journal.append(bytes(limit_of(region) + 1), limit_of(region) + 1)
        with pytest.raises(StoreFull):
            journal.begin(100000)
    assert journal.dropped == dropped and bytes(region.cells) == before
    assert drain(journal) == list(range(dropped + 1, n + 1))


@pytest.mark.req("S5")
@pytest.mark.parametrize("policy", (REFUSE, DROP_NEWEST))
def test_message_in_pieces_is_refused_at_the_end_of_the_last_sector_that_is_left(policy):
    """The offset of a sector's end is that of a page's begin, too: 177 bytes seemed to fit into the rest of that page."""
    journal = Journal(RamRegion(6, 1024), policy)
    fill(journal, 232)  # three of them end with a sector
    dropped = journal.dropped
    if policy == REFUSE:
        with pytest.raises(StoreFull):
            journal.begin(177)
    else:
        assert not journal.begin(177) and journal.dropped == dropped + 1


@pytest.mark.req("S5", "S6")
def test_refused_held_message_is_announced_and_leaves_the_head_as_it_is():
    journal = Journal(RamRegion(4, 1024))
    for _ in range(5):
        journal.append(bytes(232), 232)
    journal.append(
        bytes(60), 60
    )  # no other sector is left; what is held must not end in the last 128 bytes of this one
    assert journal.can_hold(10) and not journal.can_hold(40)
    with pytest.raises(StoreFull):
        journal.hold(1, bytes(40), 40)
    with pytest.raises(StoreFull):
        journal.hold_begin(1, 40)
    journal.hold(2, bytes(10), 10)
    assert journal.append(b"in the same sector", 18)


@pytest.mark.req("S5")
def test_dropped_messages_do_not_wait():
    region = RamRegion(6)
    journal = Journal(region, policy=DROP_OLDEST)
    for _ in range(3):
        journal.append(MESSAGE, 100)
    journal.mark(2)
    while journal.dropped < 60:
        journal.append(MESSAGE, 100)
    for each in (journal, Journal(again(region), policy=DROP_OLDEST)):
        assert each.low == 2 and each.dropped > 60 and each.waiting == each.stored - each.dropped
        each.finish(2)
        assert each.waiting == each.next_seq - each.low == each.stored - each.dropped - 1
        each.finish(each.low + 1)
        assert each.waiting == each.stored - each.dropped - 2


@pytest.mark.req("S5")
def test_refused_message_writes_nothing():
    flash = NorFlash(6 * 4096)
    journal = Journal(BlockRegion(flash))
    fill(journal)
    before = flash.operations
    for length in (100, 300, 5000) * 7:
        with pytest.raises(StoreFull):
            journal.append(bytes(length), length)
    assert flash.operations == before


@pytest.mark.req("S5", "Q2")
@pytest.mark.parametrize("policy", [0, 1, 2])
def test_full_store_does_everything_except_append(policy):
    region = RamRegion(6)
    journal = Journal(region, policy=policy)
    n = 0
    while not journal.dropped:
        try:
            n = journal.append(MESSAGE, 100) or n
        except StoreFull:
            break
    journal.hold(77, bytes(200), 200)
    for i in range(40):
        seq = journal.low
        journal.mark(seq)
        journal.sync()
        journal.write_note(b"%012d" % i)
        if i % 3 == 0:
            journal.close()
        journal = Journal(region, policy=policy)
        assert journal.is_marked(seq) and bytes(journal.note) == b"%012d" % i and journal.held() == [77]
        journal.unmark(seq)
        if i % 4 == 0:
            journal.finish(seq)
        journal.flush()
    assert journal.low > 10 and journal.next_seq == n + 1
    drain(journal)
    journal.discard(77)
    journal.flush()
    journal = Journal(region, policy=policy)
    assert journal.low == n + 1 and journal.held() == []
    assert policy or fill(journal, 200) >= 30


@pytest.mark.req("S5", "Q4")
def test_full_store_reserves_a_sector_for_inbound_messages():
    region = RamRegion(6)
    journal = Journal(region)
    fill(journal)
    keys = 0
    try:
        while True:
            journal.hold(keys + 1, bytes(200), 200)
            keys += 1
    except StoreFull:
        pass
    assert keys >= 10
    journal.mark(1)
    journal.sync()
    journal = Journal(region)
    assert journal.held() == list(range(1, keys + 1)) and journal.is_marked(1)


@pytest.mark.req("Q4")
def test_messages_can_be_held_up_to_the_limit():
    region = RamRegion(16)
    journal = Journal(region)
    for key in range(1, journal.hold_limit + 1):
        journal.hold(key, b"%d" % key, len(b"%d" % key))
    with pytest.raises(StoreFull):
        journal.hold(1000, b"x", 1)
    for n in range(500):  # the ring wraps
        journal.finish(journal.append(bytes(200), 200))
        if n % 100 == 50:
            journal = Journal(region)
            drain(journal)
    journal = Journal(region)
    assert journal.held() == list(range(1, journal.hold_limit + 1))
    assert [journal.held_length(key) for key in (1, 40)] == [1, 2]


# --- sectors that fail ---


@pytest.mark.req("S1", "S2", "S6")
@pytest.mark.parametrize(("page_bytes", "stuck"), [(1, 0), (256, 0), (1, 80), (256, 80)])
def test_bit_that_cannot_be_programmed_in_the_first_sector_costs_no_message(page_bytes, stuck):
    region = StuckRegion(6, 4096, page_bytes)
    region.stuck = stuck
    journal = Journal(region)
    assert journal.append(MESSAGE, 100) == 1
    for _ in range(3):
        journal = Journal(region)
        assert journal.low == 1 and journal.next_seq == 2 and journal.length(1) == 100


@pytest.mark.req("S1", "S2", "S6")
def test_first_header_in_two_sectors_does_not_look_like_moved_sectors():
    """Sector 0 failed at the first mount, which was cut in sector 1; later sector 0 worked, and sector 1 did not."""

    class Failing(RamRegion):
        def erase(self, sector):
            if sector == 1:
                raise FlashFailed("erase")
            super().erase(sector)

    first = StuckRegion(6, 1024)
    Journal(first)
    cells = first.cells
    cells[1024 + 76 : 2048] = b"\xff" * (1024 - 76)  # the header's program was complete, the record's did not begin
    cells[:1024] = b"\xff" * 1024
    region = Failing(6, 1024, cells=cells)
    journal = Journal(region)
    for _ in range(10):
        journal.append(MESSAGE, 100)
    assert drain(Journal(region)) == list(range(1, 11))


@pytest.mark.req("S6")
@pytest.mark.parametrize("kind", KINDS)
def test_failing_sector_is_skipped_and_nothing_is_lost(kind):
    flash = NorFlash(10 * 4096)
    region = BlockRegion(flash)
    journal = Journal(region)
    for _ in range(70):
        journal.append(MESSAGE, 100)
    journal.hold(9, b"held", 4)
    flash.set_bad(5, kind)
    flash.set_bad(2, "program")  # the sector in use
    for i in range(400):
        assert journal.append(MESSAGE, 100) == 71 + i
        assert journal.low == i + 1 and journal.length(i + 1) == 100
        journal.finish(i + 1)
        if i % 60 == 30:
            journal.flush()
            journal = Journal(region)
            assert journal.held() == [9] and not journal.worn
    journal.flush()
    assert drain(Journal(region)) == list(range(401, 471))


@pytest.mark.req("S6")
@pytest.mark.parametrize("at, kind", [(at, kind) for at in (0, 1, 33, 34, 64, 65, 97, 98) for kind in KINDS])
def test_sector_that_fails_at_any_time_is_skipped(at, kind):
    flash = NorFlash(7 * 4096)
    region = BlockRegion(flash)
    journal = Journal(region)
    stored = 0
    for i in range(300):
        if i == at:
            flash.set_bad(at % 7, kind)
        stored = journal.append(MESSAGE, 100)
        if i >= 40:
            journal.finish(journal.low)
        if i % 50 == 49:
            journal = Journal(region)
    while journal.low < 261:
        journal.finish(journal.low)
    journal.flush()
    assert not journal.worn and stored == 300
    assert drain(Journal(region)) == list(range(261, 301))


@pytest.mark.req("S6")
@pytest.mark.parametrize("sector, kind", [(sector, kind) for sector in (0, 1, 3) for kind in KINDS])
def test_first_mount_skips_bad_sectors(sector, kind):
    flash = NorFlash(6 * 4096)
    flash.set_bad(sector, kind)
    journal = Journal(BlockRegion(flash))
    assert journal.boot == 1 and journal.append(MESSAGE, 100) == 1
    journal = Journal(BlockRegion(flash))
    assert journal.boot == 2 and drain(journal) == [1]


@pytest.mark.req("S6")
def test_worn_store_raises_on_writes_and_stays_readable():
    flash = NorFlash(6 * 4096)
    region = BlockRegion(flash)
    journal = Journal(region)
    for _ in range(40):
        journal.append(MESSAGE, 100)
    journal.hold(3, b"held", 4)
    for sector in range(6):
        flash.set_bad(sector)
    for _ in range(2):
        with pytest.raises(StoreWorn):
            journal.append(MESSAGE, 100)
    assert journal.worn and journal.held() == [3]
    journal.mark(1)
    for call in (journal.sync, journal.flush):
        with pytest.raises(StoreWorn):
            call()
    with pytest.raises(StoreWorn):
        journal.hold(4, b"x", 1)
    out = bytearray(100)
    journal.read(1, 0, out, 0, 100)
    assert out == MESSAGE and drain(journal) == list(range(1, 41))
    for _ in range(3):
        journal = Journal(region)
        journal.read(32, 0, out, 0, 100)
        assert journal.worn and journal.held_length(3) == 4 and drain(journal) == list(range(1, 41))


# --- close ---


@pytest.mark.req("S4", "B5")
def test_clean_close_costs_no_erase_and_counts_boots():
    flash = NorFlash(8 * 4096)
    region = BlockRegion(flash)
    journal = Journal(region)
    for boot in range(1, 11):
        assert journal.boot == boot
        journal.append(MESSAGE, 100)
        journal.finish(boot)
        journal.close()
        erases = flash.erases
        journal = Journal(region)
        assert flash.erases == erases and journal.low == boot + 1


class Fading(RamRegion):
    """A region with a page whose first byte reads wrong after `reads` reads."""

    def __init__(self, region, page, reads):
        super().__init__(region.sectors, region.sector_bytes, region.page_bytes, region.cells)
        self.page = page
        self.reads = reads

    def read(self, offset, buf):
        super().read(offset, buf)
        if offset == self.page:
            self.reads -= 1
            if self.reads < 0:
                buf[0] ^= 1


@pytest.mark.req("S2", "S6")
@pytest.mark.parametrize("reads", [2, 9])
def test_voided_sector_stays_void_when_an_earlier_header_reads_differently(reads):
    region = RamRegion(6)
    journal = Journal(region)
    for _ in range(40):
        journal.append(MESSAGE, 100)
    journal.close()
    torn = again(region)  # here the clean end reads as torn, so a mount opens sector 2
    end = len(bytes(torn.cells).rstrip(b"\xff"))
    assert torn.sector_bytes < end < 2 * torn.sector_bytes
    torn.cells[end - 8 : end] = b"\xff" * 8
    assert Journal(torn).boot == 2
    journal = Journal(region)  # here it reads correctly, so the journal continues in sector 1
    for _ in range(5):
        journal.append(MESSAGE, 100)
    region.cells[2 * 4096 : 3 * 4096] = torn.cells[2 * 4096 : 3 * 4096]  # now sector 2 reads correctly as well
    assert Journal(Fading(region, 4096, reads)).next_seq == 46


@pytest.mark.req("S2")
def test_closed_journal_writes_nothing_more():
    region = RamRegion(4)
    journal = Journal(region)
    journal.append(MESSAGE, 100)
    journal.close()
    before = bytes(region.cells)
    journal.close()
    journal.idle()
    for call in (
        lambda: journal.append(MESSAGE, 100),
        lambda: journal.hold(1, b"x", 1),
        lambda: journal.write_note(NOTE),
    ):
        with pytest.raises(UsageError, match="closed"):
            call()
    journal.finish(1)
    assert bytes(region.cells) == before
    assert drain(Journal(region)) == [1]


@pytest.mark.req("S2")
def test_nothing_is_written_behind_an_unclean_end_if_the_mount_record_before_it_is_damaged():
    region = RamRegion(4)
    journal = Journal(region)
    journal.append(MESSAGE, 100)
    journal.close()
    end = len(bytes(region.cells).rstrip(b"\xff"))
    Journal(region).append(MESSAGE, 100)
    region.cells[end + 10] ^= 1  # in the mount record
    before = bytes(region.cells[:4096])
    assert drain(Journal(region)) == [1, 2] and bytes(region.cells[:4096]) == before


@pytest.mark.req("S2")
def test_failed_clean_close_loses_nothing():
    region = FailingRegion(5)
    journal = Journal(region)
    journal.append(MESSAGE, 100)
    region.programs_left = 1
    journal.close()
    journal = Journal(region)
    assert journal.boot == 2 and drain(journal) == [1]


@pytest.mark.req("S2", "S6")
def test_close_on_flash_that_has_just_failed_does_not_raise_and_loses_nothing():
    flash = NorFlash(5 * 4096)
    journal = Journal(BlockRegion(flash))
    journal.append(MESSAGE, 100)
    for sector in range(5):
        flash.set_bad(sector)
    journal.close()
    assert journal.worn
    for sector in range(5):
        flash.set_bad(sector, "")
    assert drain(Journal(BlockRegion(flash))) == [1]


@pytest.mark.req("S4")
def test_sector_erased_ahead_is_not_erased_again():
    flash = NorFlash(8 * 4096)
    journal = Journal(BlockRegion(flash))
    for _ in range(20):
        journal.append(MESSAGE, 100)
    erases = flash.erases
    journal.idle()
    assert flash.erases == erases + 1
    for _ in range(20):
        journal.append(MESSAGE, 100)
    assert flash.erases == erases + 1


@pytest.mark.req("S4")
def test_wear_stays_level_over_many_rings():
    flash = NorFlash(6 * 4096)
    journal = Journal(BlockRegion(flash))
    for _ in range(1500):
        journal.finish(journal.append(MESSAGE, 100))
    assert max(flash.erase_counts) - min(flash.erase_counts) <= 1
    assert flash.violations == []


# --- messages in pieces, wrong arguments ---


@pytest.mark.req("S1")
def test_message_in_pieces_exists_only_after_commit():
    region = RamRegion(8)
    journal = Journal(region)
    body = bytearray(9000)
    for i in range(9000):
        body[i] = i % 251
    assert journal.begin(9000)
    for at in range(0, 9000, 700):
        assert Journal(again(region)).next_seq == 1
        journal.extend(body[at : at + 700], len(body[at : at + 700]))
    with pytest.raises(UsageError):
        journal.extend(b"x", 1)
    assert journal.next_seq == 1 and journal.commit() == 1
    with pytest.raises(UsageError):
        journal.commit()
    journal = Journal(region)
    assert journal.length(1) == 9000
    buf = bytearray(300)
    for at in range(0, 9000, 300):
        journal.read(1, at, buf, 0, 300)
        assert buf == body[at : at + 300]


@pytest.mark.req("S1", "S5")
@pytest.mark.parametrize("mounts", [1, 2, 3])
def test_power_cut_frees_the_room_of_an_incomplete_message(mounts):
    region = RamRegion(8, 1024)
    longest = limit_of(region)
    journal = Journal(region)
    journal.begin(longest)
    journal.extend(bytes(longest - 1), longest - 1)
    for _ in range(mounts):
        journal = Journal(region)
    assert journal.begin(longest)
    journal.extend(b"x" * longest, longest)
    assert journal.commit() == 1 and journal.length(1) == Journal(region).length(1) == longest


@pytest.mark.req("S1")
def test_marks_and_holds_may_be_written_between_pieces():
    region = RamRegion(8)
    journal = Journal(region)
    journal.append(MESSAGE, 100)
    journal.begin(3000)
    for i in range(30):
        journal.extend(bytes([i]) * 100, 100)
        journal.mark(1) if i % 2 else journal.unmark(1)
        journal.sync()
        if i % 10 == 0:
            journal.hold(i + 1, b"held", 4)
            journal.write_note(b"%012d" % i)
    journal.commit()
    journal = Journal(region)
    out = bytearray(3000)
    journal.read(2, 0, out, 0, 3000)
    assert out == b"".join([bytes([i]) * 100 for i in range(30)])
    assert journal.held() == [1, 11, 21] and journal.is_marked(1) and bytes(journal.note) == b"%012d" % 20


@pytest.mark.req("S6")
@pytest.mark.parametrize("length", (-3, 11, 300))
def test_length_beyond_the_buffer_raises_usage_error_without_damage(length):
    region = RamRegion(5, page_bytes=256)
    journal = Journal(region)
    with pytest.raises(UsageError):
        journal.append(bytes(10), length)
    with pytest.raises(UsageError):
        journal.hold(1, bytes(10), length)
    for key in (0, -1, 65536):
        with pytest.raises(UsageError):
            journal.hold(key, b"x", 1)
    journal.begin(500)
    with pytest.raises(UsageError):
        journal.extend(bytes(10), length)
    journal.append(bytes(232), 232)
    assert journal.held() == [] and drain(Journal(region)) == [1]


@pytest.mark.req("S6")
@pytest.mark.parametrize("region", [16, None, "journal"])
def test_journal_on_something_that_is_no_region_is_refused(region):
    with pytest.raises(UsageError, match=r"region .*: such as board.journal_region"):
        Journal(region)


@pytest.mark.req("S5")
def test_policy_that_does_not_exist_is_refused():
    region = RamRegion(5)
    for policy in ("drop-oldest", 3, -1, None):
        with pytest.raises(UsageError, match="policy"):
            Journal(region, policy=policy)
    assert Journal(region).boot == 1


@pytest.mark.req("S6")
def test_region_with_too_few_or_too_small_sectors_is_refused():
    for sectors in (1, 2, 3):
        with pytest.raises(UsageError):
            Journal(RamRegion(sectors))
    with pytest.raises(UsageError):
        Journal(RamRegion(8, 512))
    assert fill(Journal(RamRegion(4))) >= 15


@pytest.mark.req("S4")
def test_encrypted_partition_is_refused():
    flash = EncryptedFlash(4 * 4096)
    with pytest.raises(StoreForeign) as refused:
        Journal(BlockRegion(flash))
    assert "encrypted" in str(refused.value)
    with pytest.raises(StoreForeign):
        Journal.format(BlockRegion(flash))
    assert flash.operations == 0


def refused_after_a_move(region, moved):
    """Move a region by some sectors; check that its mount is refused and writes nothing; return the new region."""
    size = region.sector_bytes
    start = (region.sectors + moved) * size
    flash = bytearray(b"\xff" * len(region.cells)) + region.cells + bytearray(b"\xff" * len(region.cells))
    cells = flash[start : start + len(region.cells)]
    before = bytes(cells)
    there = RamRegion(region.sectors, size, cells=cells)
    with pytest.raises(StoreCorrupt):
        Journal(there)
    assert bytes(cells) == before
    return there


@pytest.mark.req("S6")
@pytest.mark.parametrize(
    "messages, moved", ((3, -1), (60, 1), (60, 2), (60, -1), (400, -8), (400, -1), (400, 1), (400, 8))
)
def test_journal_in_a_region_that_was_moved_is_refused(messages, moved):
    """Another partition table may move a partition by some sectors, and keep its size."""
    region = RamRegion(16, 1024)
    journal = Journal(region)
    for seq in range(1, messages + 1):
        journal.append(bytes(200), 200)
        if seq > 20:
            journal.finish(seq - 20)
    refused_after_a_move(region, moved)


@pytest.mark.req("S6")
@pytest.mark.parametrize("policy", (REFUSE, DROP_OLDEST))
def test_move_is_noticed_wherever_the_newest_sector_was(policy):
    """Also if the sector before the newest one is outside the region now."""
    for messages in range(30, 54, 3):
        region = RamRegion(8, 1024)
        journal = Journal(region, policy)
        for seq in range(1, messages + 1):
            journal.append(bytes(200), 200)
            if policy == REFUSE and seq > 6:
                journal.finish(seq - 6)
        for moved in (-4, -3, -2, -1, 1, 2, 3, 4):
            journal = Journal.format(refused_after_a_move(region, moved))
            assert journal.append(MESSAGE, 100) == 1


@pytest.mark.req("W8")
def test_append_after_the_last_sequence_number_raises():
    region = RamRegion(4)
    journal = Journal(region)
    journal.next_seq = journal.low = journal.floor = 0x3FFFFFFD
    journal._state[0:4] = b"\xfd\xff\xff\x3f"
    journal._located = 0x3FFFFFFD
    journal._open(3, 0, 0x3FFFFFFD, b"", 0, 0, 1)
    journal = Journal(region)
    assert journal.next_seq == 0x3FFFFFFD
    assert journal.append(b"x", 1) == 0x3FFFFFFD
    journal = Journal(region)
    assert journal.append(b"y", 1) == 0x3FFFFFFE
    with pytest.raises(StoreError) as refused:
        journal.append(b"z", 1)
    assert "every sequence is used" in str(refused.value)
    with pytest.raises(StoreError):
        journal.begin(1)
    journal.mark(0x3FFFFFFE)
    journal.sync()
    journal = Journal(region)
    assert journal.is_marked(0x3FFFFFFE) and drain(journal) == [0x3FFFFFFD, 0x3FFFFFFE]


@pytest.mark.req("S4")
def test_failing_read_at_mount_raises_flash_failed():
    for reads in range(1, 5):
        region = FailingRegion(4)
        region.reads_left = reads
        with pytest.raises(FlashFailed):
            Journal(region)


@pytest.mark.req("Q6", "S6")
def test_message_after_a_failed_read_keeps_its_order():
    for reads in range(1, 8):
        region = FailingRegion(5)
        journal = Journal(region)
        journal.append(bytes(1000), 1000)
        journal.append(MESSAGE, 100)
        journal = Journal(region)
        region.reads_left = reads
        out = bytearray(1000)
        for _ in range(2):
            try:
                assert journal.length(1) == 1000
                journal.read(1, 0, out, 0, 1000)
                break
            except FlashFailed:
                pass
        region.reads_left = 0
        assert journal.length(1) == 1000 and drain(journal) == [1, 2] and journal.damaged == 0


@pytest.mark.req("S1", "S6")
@pytest.mark.parametrize("page_bytes", (1, 256))
def test_single_failed_program_loses_nothing(page_bytes):
    for program in range(1, 90, 1 if sys.implementation.name == "cpython" else 7):
        region = FailingRegion(7, 1024, page_bytes)
        journal = Journal(region)
        region.programs_left = program
        journal.hold(5, b"held", 4)
        for n in range(1, 41):
            assert journal.append(bytes(200), 200) == n
            if n > 3:
                journal.finish(journal.low)
            if n % 9 == 0:
                journal.mark(journal.low)
                journal.sync()
        journal.flush()
        for mounted in (journal, Journal(region)):
            assert mounted.held() == [5] and mounted.held_length(5) == 4
            assert drain(mounted) == [38, 39, 40]


# --- memory ---


@pytest.mark.req("B2")
def test_steady_state_allocates_nothing():
    journal = Journal(RamRegion(8))
    message = bytearray(100)
    out = bytearray(100)

    def cycle(n):
        for i in range(n):
            seq = journal.append(message, 100)
            journal.length(seq)
            journal.read(seq, 0, out, 0, 100)
            journal.mark(seq)
            journal.sync()
            journal.is_marked(seq)
            journal.unmark(seq)
            key = i % 3 + 1
            journal.hold(key, message, 90)
            journal.held_length(key)
            journal.read_held(key, 0, out, 0, 90)
            journal.discard(key)
            journal.sync()
            journal.finish(seq)
            journal.is_finished(seq)
        journal.flush()
        journal.idle()

    cycle(40)
    heap_lock()
    try:
        cycle(200)
    finally:
        heap_unlock()


@pytest.mark.req("B2")
def test_memory_does_not_grow_with_stored_messages():
    if sys.implementation.name == "cpython":
        pytest.skip("only MicroPython reports its heap")
    import gc

    journal = Journal(RamRegion(16))
    used = []
    for n in (50, 250):  # a second sector, opened for message 32, has added attributes
        for _ in range(n):
            journal.append(MESSAGE, 100)
        for _ in range(3):
            gc.collect()
        used.append(gc.mem_alloc())
    assert journal.next_seq == 301
    assert used[1] - used[0] <= 64  # the list's own growth


@pytest.mark.req("S5")
@pytest.mark.parametrize("sectors,restarts", [(16, 13), (64, 61)])
def test_each_restart_without_close_takes_a_sector_if_its_messages_fill_half_of_it(sectors, restarts):
    region = RamRegion(sectors, 4096)
    for boot in range(1, restarts + 1):
        store = Journal(region, policy=DROP_OLDEST)
        store.append(bytes(2000), 2000)
        assert store.dropped == 0 and store.waiting == boot
    store = Journal(region, policy=DROP_OLDEST)  # the limits that LIMITS.md names
    store.append(bytes(2000), 2000)
    assert store.dropped == 1


@pytest.mark.req("S6", "R2")
@pytest.mark.parametrize("sectors,held,length", ((8, 98, 8), (9, 98, 8)))
def test_opening_that_carries_held_messages_and_a_nearly_full_list_stays_in_its_sector(sectors, held, length):
    region = RamRegion(sectors, 4096)
    journal = Journal(region)
    for number in range(1, 301):
        if number <= held:
            journal.hold(number, b"%04d" % number * 3, length)
        assert journal.append(bytes(232), 232) == number
        journal.finish(number)
    kept = held_messages(Journal(region))
    assert sorted(kept) == [(number, (b"%04d" % number * 3)[:length]) for number in range(1, held + 1)]
