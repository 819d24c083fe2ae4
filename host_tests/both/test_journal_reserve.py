"""Reserved room, which prevents that power cuts fill the journal; and moved held messages (S1, S4, S5; FORMAT.md, Room)."""

import pytest

from failing import FailingRegion
from flashmqtt.errors import StoreCorrupt, StoreFull
from flashmqtt.flash.block import BlockRegion
from flashmqtt.flash.ram import RamRegion
from flashmqtt.journal.journal import DROP_NEWEST, DROP_OLDEST, REFUSE, Journal
from stored import held_messages
from tools.flashsim.nor import NorFlash, Random

BODY = bytes(148)


def unfinished(journal):
    return [seq for seq in range(journal.low, min(journal.next_seq, journal.low + 32)) if not journal.is_finished(seq)]


def live(journal, rng, burst):
    """Store a message, then finish some unfinished messages, mostly the oldest; fewer than `burst` stay unfinished."""
    seq = journal.append(BODY, len(BODY))
    if rng.below(2) and seq < journal.low + 32:
        journal.mark(seq)
        journal.sync()
    while True:
        waiting = unfinished(journal)
        if not waiting or (len(waiting) < burst and rng.below(10) < 6):
            break
        journal.finish(waiting[0] if rng.below(10) < 8 else waiting[rng.below(len(waiting))])
    if rng.below(5) == 0:
        journal.idle()


@pytest.mark.req("S1", "S5")
@pytest.mark.parametrize("seed", list(range(24)))
def test_held_message_and_power_cuts_never_fill_the_journal(seed):
    rng = Random(seed)
    region = RamRegion(16 if seed % 2 else 9, page_bytes=256)
    journal = Journal(region)
    journal.hold(7, b"\0\0", 2)
    burst = (2, 8, 20, 26)[rng.below(4)]
    per_cut = (200, 100, 50, 30)[rng.below(4)]
    for stored in range(1, 401):
        try:
            live(journal, rng, burst)
        except StoreFull as full:
            pytest.fail("full after %d messages: %s" % (stored, full))
        if rng.below(per_cut) == 0:
            journal = Journal(region)  # a power cut: the journal was not closed
            assert journal.next_seq == stored + 1
            for seq in unfinished(journal)[burst:]:
                journal.finish(seq)
    assert journal.held() == [7] and journal.held_length(7) == 2


@pytest.mark.req("S4")
def test_wear_stays_level_beside_a_held_message():
    flash = NorFlash(8 * 4096)
    journal = Journal(BlockRegion(flash))
    journal.hold(7, b"\0\0", 2)
    flash.reset_counters()
    for _ in range(1500):
        journal.finish(journal.append(BODY, 100))
    assert flash.violations == []
    counts = sorted(flash.erase_counts)  # the sector of the held message need not be erased
    assert counts[1] >= 5 and counts[-1] - counts[1] <= 1


@pytest.mark.req("S2", "S5")
def test_messages_in_pieces_that_power_cuts_end_use_no_room():
    """Each cut leaves pieces in two sectors; the message begins again behind them."""
    region = RamRegion(8, 1024)
    journal = Journal(region)
    for _ in range(20):
        assert journal.begin(1500)
        journal.extend(bytes(1400), 1400)
        journal = Journal(region)
    assert journal.append(bytes(1500), 1500) == 1 and journal.waiting == 1


@pytest.mark.req("S2", "S5")
@pytest.mark.parametrize("sectors", (4, 5, 6))
def test_repeated_power_cuts_use_no_room(sectors):
    """Each mount opens a sector; if it has no messages, the next mount replaces it."""
    region = RamRegion(sectors, 1024, 256)
    journal = Journal(region)
    stored = 0
    try:
        while stored < 100:
            stored = journal.append(BODY, 148)
    except StoreFull:
        pass
    assert stored >= 3
    for boot in range(2, 40):
        journal = Journal(region)
        assert journal.boot == boot and journal.low == 1 and journal.next_seq == stored + 1 and not journal.worn
        journal.mark(1)
        journal.unmark(1)
        journal.sync()
    for _ in range(stored):
        journal.finish(journal.low)
    journal.flush()
    assert Journal(region).append(BODY, 148) == stored + 1


@pytest.mark.req("S1", "S5")
@pytest.mark.parametrize("window", (1, 8, 32))
def test_window_of_messages_in_flight_is_never_copied(window):
    """Version 1 copied every message of a full window of long messages, and then refused messages that had room."""
    flash = NorFlash(16 * 4096)
    journal = Journal(BlockRegion(flash))
    for n in range(1200):
        if n == 400:
            flash.reset_counters()
        journal.append(bytes(200), 200)
        if journal.next_seq - journal.low > window:
            journal.finish(journal.low)
    assert flash.programs <= 1.1 * 800 and flash.violations == []


@pytest.mark.req("S1", "S4")
def test_moved_held_messages_keep_their_content():
    region = RamRegion(8, 1024, 256)
    journal = Journal(region, policy=DROP_OLDEST)
    bodies = {}
    for n in range(400):
        if n % 25 == 3:
            key = n + 1
            bodies[key] = bytes([key & 255]) * (20 + n)
            journal.hold(key, bodies[key], len(bodies[key]))
        if len(bodies) > 3:
            key = journal.held()[n % 3]
            journal.discard(key)
            journal.sync()
            del bodies[key]
        journal.append(bytes(200), 200)
        if n % 3:
            journal.finish(journal.low)
        if n % 40 == 39:
            journal = Journal(region, policy=DROP_OLDEST)
        assert sorted(journal.held()) == sorted(bodies)
    assert dict(held_messages(journal)) == bodies


@pytest.mark.req("S1", "S6")
@pytest.mark.parametrize("program", list(range(40, 75)))
def test_failed_program_while_moving_held_messages_loses_nothing(program):
    region = FailingRegion(7, 1024, 256)
    journal = Journal(region)
    for key in (1, 2, 3):
        journal.hold(key, bytes([key]) * 150 * key, 150 * key)
    region.programs_left = program
    for n in range(1, 91):
        assert journal.append(bytes(200), 200) == n
        journal.finish(n)
    journal.flush()
    for mounted in (journal, Journal(region)):
        assert mounted.low == mounted.next_seq == 91
        assert sorted(held_messages(mounted)) == [(key, bytes([key]) * 150 * key) for key in (1, 2, 3)]


@pytest.mark.req("S2", "S6")
@pytest.mark.parametrize("length", [100, 300])
def test_damaged_held_message_is_counted_and_others_stay_intact(length):
    region = RamRegion(8, 1024, 256)
    journal = Journal(region)
    journal.hold(1, b"\1" * 300, 300)
    journal.hold(2, b"\2" * length, length)
    second_piece = bytes(region.cells).index(b"\1" * 60, 200 + bytes(region.cells).index(b"\1" * 60))
    region.cells[second_piece + 10] ^= 1
    for _ in range(30):
        if journal.append(bytes(200), 200) > journal.low + 5:
            journal.finish(journal.low)
    out = bytearray(300)
    with pytest.raises(StoreCorrupt):
        journal.read_held(1, 0, out, 0, 300)
    journal = Journal(region)
    assert journal.held() == [2] and journal.damaged == 1
    journal.read_held(2, 0, out, 0, length)
    assert out[:length] == b"\2" * length


@pytest.mark.req("S5")
@pytest.mark.parametrize("sectors", [5, 6, 7, 8])
def test_begun_message_has_room_beside_held_messages_that_stay(sectors):
    for finished in range(24):
        for pieces in range(2, 3 * sectors):
            region = RamRegion(sectors, 1024, 256)
            journal = Journal(region)
            journal.hold(1, bytes(600), 600)  # too long to move
            for _ in range(finished):
                journal.finish(journal.append(bytes(100), 100))
            n = 232 * pieces
            try:
                journal.begin(n)
            except StoreFull:
                continue
            journal.extend(bytes(n), n)
            assert journal.length(journal.commit()) == n and journal.held_length(1) == 600


def fill_with_held_messages(sectors, sector_bytes, length, rng):
    """Return a journal that drops the oldest, in which held messages lie among ordinary ones, and that has just dropped some."""
    journal = Journal(RamRegion(sectors, sector_bytes, 256), DROP_OLDEST)
    for key in range(1, 2 + rng.below(16)):
        try:
            journal.hold(key, bytes(length), length)
            if key > 1 and not rng.below(8):
                journal.discard(key - 1)
            for _ in range(rng.below(3)):
                journal.append(bytes(200), 200)
        except StoreFull:
            break
    for _ in range(400):
        try:
            journal.append(bytes(200), 200)
        except StoreFull:
            break
        if journal.dropped:
            break
    return journal


@pytest.mark.req("S5")
@pytest.mark.parametrize("sectors", [5, 6, 7, 8, 10, 12, 16])
def test_begun_message_is_stored_or_refused_before_anything_is_dropped(sectors):
    rng = Random(sectors)
    stored = refused = 0
    for length in (50, 200, 500, 700):
        for sector_bytes in (1024, 2048):
            for n in (233, 600, 1000, 2000):
                journal = fill_with_held_messages(sectors, sector_bytes, length, rng)
                dropped = journal.dropped
                held = journal.held()
                try:
                    journal.begin(n)
                except StoreFull:
                    assert journal.dropped == dropped
                    refused += 1
                    continue
                for start in range(0, n, 100):
                    part = min(100, n - start)
                    journal.extend(bytes(part), part)
                seq = journal.commit()
                while journal.low < seq:
                    journal.finish(journal.low)
                assert journal.length(seq) == n and journal.held() == held
                stored += 1
    assert stored and refused


@pytest.mark.req("S5")
def test_short_held_messages_in_many_sectors_leave_room_for_a_long_message():
    journal = Journal(RamRegion(16, 4096, 256), DROP_OLDEST)
    for key in range(1, 12):
        journal.hold(key, b"\0\0", 2)
        for _ in range(15):
            journal.append(bytes(200), 200)
    while not journal.dropped:
        journal.append(bytes(200), 200)
    journal.append(bytes(9000), 9000)
    assert len(journal.held()) == 11


@pytest.mark.req("S5")
@pytest.mark.parametrize("policy", (REFUSE, DROP_NEWEST))
def test_begun_message_whose_room_notes_took_is_refused_or_dropped(policy):
    region = RamRegion(5, 1024, 256)
    journal = Journal(region, policy)
    for _ in range(8):
        journal.append(BODY, 148)
    assert journal.begin(300)
    for n in range(40):
        journal.write_note(b"note %7d" % n)
    if policy == REFUSE:
        with pytest.raises(StoreFull):
            journal.extend(bytes(300), 300)
    else:
        journal.extend(bytes(300), 300)
        assert journal.commit() == 0
    journal.flush()
    journal = Journal(region, policy)
    assert (journal.stored, journal.waiting, journal.dropped) == (8, 8, int(policy == DROP_NEWEST))
