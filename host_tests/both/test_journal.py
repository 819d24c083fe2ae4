"""The journal as a store, on a region in RAM: messages are read back in order, also after a restart."""

import pytest

from flashmqtt.errors import UsageError
from flashmqtt.flash.block import BlockRegion
from flashmqtt.flash.ram import RamRegion
from flashmqtt.journal.journal import Journal
from flashmqtt.session.ram import RamStore
from flashmqtt.session.session import Session
from heap import heap_lock, heap_unlock
from tools.flashsim.nor import NorFlash


def content(journal, seq):
    buf = bytearray(journal.length(seq))
    journal.read(seq, 0, buf, 0, len(buf))
    return bytes(buf)


def held(journal, key):
    buf = bytearray(journal.held_length(key))
    journal.read_held(key, 0, buf, 0, len(buf))
    return bytes(buf)


def everything(journal):
    found = []
    while journal.low < journal.next_seq:
        found.append(content(journal, journal.low))
        journal.finish(journal.low)
    return found


@pytest.mark.req("S1")
def test_stored_messages_come_out_in_order_after_a_restart():
    region = RamRegion(8)
    journal = Journal(region)
    assert journal.fresh and journal.boot == 1 and journal.low == journal.next_seq == 1
    for i in range(100):
        assert journal.next_seq == journal.append(b"message %d" % i, len(b"message %d" % i))
    journal = Journal(region)
    assert not journal.fresh and journal.boot == 2 and journal.next_seq == 101 and journal.low == 1
    assert everything(journal) == [b"message %d" % i for i in range(100)]
    assert journal.low == journal.next_seq == 101


@pytest.mark.req("S1")
def test_synced_mark_survives_a_restart():
    region = RamRegion(8)
    journal = Journal(region)
    for i in range(3):
        journal.append(b"%d" % i, 1)
    journal.mark(2)
    journal.sync()
    journal.mark(3)  # not synced
    journal = Journal(region)
    assert [journal.is_marked(seq) for seq in (1, 2, 3)] == [False, True, False]
    journal.unmark(2)
    journal.append(b"3", 1)  # any write makes the change durable
    journal = Journal(region)
    assert [journal.is_marked(seq) for seq in (1, 2, 3, 4)] == [False] * 4
    assert everything(journal) == [b"0", b"1", b"2", b"3"]


@pytest.mark.req("S1")
def test_new_message_has_no_mark_of_the_message_32_before():
    journal = Journal(RamRegion(8))
    for n in range(1, 100):
        assert journal.append(b"x", 1) == n
        assert not journal.is_marked(n) and not journal.is_finished(n)
        journal.mark(n)
        journal.finish(n)
        assert journal.low == n + 1


@pytest.mark.req("S1", "Q4")
def test_held_message_survives_restarts_until_discarded():
    region = RamRegion(8)
    journal = Journal(region)
    journal.hold(65535, b"inbound", 7)
    journal.hold(1, b"second", 6)
    journal = Journal(region)
    assert journal.held() == [65535, 1] and held(journal, 65535) == b"inbound" and held(journal, 1) == b"second"
    assert journal.held_length(2) == 0 and not journal.fresh
    journal.discard(65535)
    assert journal.held() == [1] and journal.held_length(65535) == 0
    journal.sync()
    journal = Journal(region)
    assert journal.held() == [1] and journal.low == journal.next_seq == 1


@pytest.mark.req("S5", "S6")
def test_unknown_attribute_raises_attribute_error_and_changes_nothing():
    """The journal loads some methods when they are first used: only those, and a part that is loaded stays."""
    journal = Journal(RamRegion(8))
    assert (journal.stored, journal.waiting, journal.wear) == (0, 0, 0)
    journal.hold(3, b"inbound", 7)
    journal.begin(300)
    journal.extend(bytes(232), 232)
    for name in ("threshold", "withheld", "beginning", "pending", "sotred"):
        with pytest.raises(AttributeError):
            getattr(journal, name)
    journal.extend(bytes(68), 68)
    assert journal.commit() == 1 and journal.length(1) == 300
    assert journal.held() == [3] and journal.held_length(3) == 7


@pytest.mark.req("Q4")
def test_discarded_key_can_be_held_again():
    """The record of the discard must not come after the new message in the journal."""
    for sync in (False, True):
        region = RamRegion(8)
        journal = Journal(region)
        journal.hold(5, b"old", 3)
        journal.discard(5)
        journal.hold(5, b"new one", 7)
        if sync:
            journal.sync()
            journal.flush()
        assert held(journal, 5) == b"new one"
        journal = Journal(region)
        assert journal.held() == [5] and held(journal, 5) == b"new one"


@pytest.mark.req("Q4", "S6")
def test_damaged_discard_record_keeps_the_later_message_of_its_key():
    region = RamRegion(8, 4096, 256)
    journal = Journal(region)
    journal.hold(5, b"old", 3)
    journal.hold(6, b"between", 7)
    journal.discard(5)
    before = bytes(region.cells)
    journal.sync()
    record = 0
    while region.cells[record] == before[record]:
        record += 1
    journal.hold(5, b"new one", 7)
    region.cells[record] ^= 1
    journal = Journal(region)
    assert sorted(journal.held()) == [5, 6] and held(journal, 5) == b"new one"


@pytest.mark.req("S1")
def test_sync_and_flush_without_changes_write_nothing():
    region = RamRegion(8)
    journal = Journal(region)
    journal.append(b"x", 1)
    before = bytes(region.cells)
    journal.sync()
    journal.flush()
    journal.idle()
    journal.finish(1)
    journal.sync()  # sync does not write finishes
    assert bytes(region.cells) == before
    journal.flush()
    assert bytes(region.cells) != before
    before = bytes(region.cells)
    journal.flush()
    assert bytes(region.cells) == before
    assert Journal(region).low == 2


@pytest.mark.req("S1")
def test_one_write_makes_all_marks_and_discards_durable():
    flash = NorFlash(8 * 4096)
    region = BlockRegion(flash)
    journal = Journal(region)
    for n in range(20):
        journal.append(b"x", 1)
        if n < 10:
            journal.hold(n + 1, b"held", 4)
    for n in range(1, 11):
        journal.mark(n)
        journal.discard(n)
    programs = flash.programs
    journal.sync()
    assert flash.programs == programs + 1
    journal = Journal(region)
    assert [n for n in range(1, 21) if journal.is_marked(n)] == list(range(1, 11)) and journal.held() == []


@pytest.mark.req("S1")
def test_note_survives_restarts_and_ring_wraps():
    region = RamRegion(4)
    journal = Journal(region)
    assert bytes(journal.note) == b"\xff" * 12
    journal.write_note(b"first note..")
    assert bytes(journal.note) == b"first note.."
    for boot in range(30):  # the ring wraps; only some restarts follow a close
        journal = Journal(region)
        assert bytes(journal.note) == (b"first note.." if boot == 0 else b"note %07d" % (boot - 1))
        everything(journal)  # the last finish may be lost, as nothing was written after it
        journal.write_note(b"note %07d" % boot)
        for _ in range(20):
            journal.finish(journal.append(bytes(200), 200))
        if boot % 3 == 0:
            journal.close()


@pytest.mark.req("S1")
def test_sequence_outside_the_window_raises_usage_error():
    journal = Journal(RamRegion(8))
    for _ in range(40):
        journal.append(b"x", 1)
    for call in (journal.length, journal.finish, journal.mark, journal.unmark):
        for seq in (33, 41) if call == journal.length else (0, 33, 41):
            with pytest.raises(UsageError):
                call(seq)
    journal.finish(1)
    journal.mark(33)
    with pytest.raises(UsageError):
        journal.read(2, 0, bytearray(5), 0, 2)


@pytest.mark.req("S1")
def test_message_is_read_from_any_offset():
    region = RamRegion(8)
    journal = Journal(region)
    bodies = [
        bytes([(n * 7 + i) & 255 for i in range(length)]) for n, length in enumerate((1, 700, 232, 233, 464, 3000))
    ]
    for body in bodies:
        journal.append(body, len(body))
    for mounted in (journal, Journal(region)):
        for order in (range(6), range(5, -1, -1)):
            for n in order:
                body = bodies[n]
                assert mounted.length(n + 1) == len(body)
                for offset in (len(body) - 1, 0, len(body) // 2, len(body) // 3):
                    size = min(100, len(body) - offset)
                    buf = bytearray(120)
                    mounted.read(n + 1, offset, buf, 7, size)
                    assert buf[7 : 7 + size] == body[offset : offset + size] and not any(buf[7 + size :])


@pytest.mark.req("S1")
@pytest.mark.parametrize("remount", (False, True))
def test_uncommitted_message_with_all_pieces_is_not_read_as_the_next(remount):
    """All bytes of the message were given to the journal, but it was not committed."""
    region = RamRegion(8)
    journal = Journal(region)
    journal.begin(300)
    journal.extend(b"a" * 300, 300)
    one = journal.append(b"b" * 100, 100)
    journal.begin(100)
    journal.extend(b"c" * 100, 100)
    journal.begin(400)
    journal.extend(b"d" * 400, 400)
    two = journal.commit()
    assert (one, two, journal.next_seq) == (1, 2, 3)
    if remount:
        journal = Journal(region)
    assert everything(journal) == [b"b" * 100, b"d" * 400]


@pytest.mark.req("S1")
def test_message_abandoned_between_pieces_leaves_no_trace():
    region = RamRegion(8)
    journal = Journal(region)
    for n in range(1, 5):
        journal.begin(700)
        journal.extend(b"a" * 500, 500)
        assert journal.append(b"b" * n, n) == n
    journal.begin(700)
    journal.extend(b"a" * 699, 699)
    journal.flush()
    journal = Journal(region)
    assert journal.next_seq == 5 and everything(journal) == [b"b" * n for n in range(1, 5)] and journal.damaged == 0


@pytest.mark.req("S1")
@pytest.mark.parametrize("in_ram", (False, True))
def test_message_begun_after_an_abandoned_one_has_only_its_own_pieces(in_ram):
    store = RamStore() if in_ram else Journal(RamRegion(8))
    store.begin(700)
    store.extend(b"a" * 500, 500)
    store.begin(300)
    store.extend(b"b" * 300, 300)
    seq = store.commit()
    assert (seq, store.next_seq) == (1, 2) and content(store, seq) == b"b" * 300


@pytest.mark.req("S1", "W8", "R4")
def test_message_in_pieces_without_memory_for_its_commit_leaves_its_sequence_to_the_next():
    region = RamRegion(8)
    store = Journal(region)
    store.begin(240)
    store.extend(b"a" * 240, 240)
    committed = 1
    heap_lock()
    try:
        store.commit()
    except MemoryError:
        committed = 0
    finally:
        heap_unlock()
    assert store.next_seq == committed + 1 and store.append(b"b", 1) == committed + 1
    assert everything(Journal(region)) == ([b"a" * 240, b"b"] if committed else [b"b"])


@pytest.mark.req("R4")
def test_held_message_is_discarded_without_memory():
    store = Journal(RamRegion(8))
    session = Session(store)
    session.load_inbound()
    store.hold(7, b"held", 4)
    heap_lock()
    try:
        store.discard(7)
    finally:
        heap_unlock()
    assert store.held() == []


@pytest.mark.req("S1", "S6")
@pytest.mark.parametrize("committed", (True, False))
def test_message_in_pieces_exists_if_it_is_committed_after_another_call_opened_a_sector(committed):
    region = RamRegion(8, 1024)
    journal = Journal(region)
    journal.begin(300)
    journal.extend(b"first" * 60, 300)
    for _ in range(30):
        journal.write_note(bytes(12))
    if committed:
        assert journal.commit() == 1
    journal = Journal(region)
    assert journal.append(b"second", 6) == journal.next_seq - 1 == committed + 1
    for _ in range(2):
        assert everything(journal) == ([b"first" * 60, b"second"] if committed else [b"second"])
        journal = Journal(region)
