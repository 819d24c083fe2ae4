"""Power cuts during operations of the journal lose nothing that was durable. `make powercut` runs all of them."""

import sys

import pytest

from flashmqtt.errors import StoreCorrupt, StoreError
from flashmqtt.flash.block import BlockRegion
from flashmqtt.flash.ram import RamRegion
from flashmqtt.journal.journal import Journal
from tools.flashsim.nor import NorFlash, PowerCut
from tools.proof.powercut.cuts import BREAKS, Script, run_script, variants_of

NAMES = (
    "first",
    "qos1",
    "turned",
    "turn",
    "qos2",
    "full",
    "stuck",
    "holds",
    "pieces",
    "drops",
    "newest",
    "in-flight",
    "duty",
    "unclean",
)
# They have 85 operations or more, many of them alike: every third is torn, so that each way still comes in turn. Together
# these scripts find the same mutations of `host_tests/journal/mutations.py` as with all operations.
LONG = ("turned", "full", "stuck", "holds", "drops", "in-flight", "unclean")


def run_sample(name, samples):
    """Cut a few operations of a script once with each model, in little memory, for MicroPython. Return (cuts, broken)."""
    n = len(Script(name, only=1 << 20).steps)
    cuts = 0
    broken = []
    for i in range(samples):
        at = (2 * i + 1) * n // (2 * samples)
        script = Script(name, only=at)
        step = script.steps[at]
        for fault, variant in variants_of(step[0], 1):
            cuts += 1
            try:
                script.verify(script.cut(step, fault, variant), False)
            except BREAKS as error:
                broken.append(("%s/%d/%s/%d" % (name, at, fault, variant), repr(error)))
    return cuts, broken


@pytest.mark.req("S1", "S2", "S4")
@pytest.mark.parametrize("name", NAMES)
def test_power_cut_loses_nothing_promised(name):
    if sys.implementation.name == "cpython":
        # Each operation is torn in one way, the ways in turn; `make powercut` tears each operation in every way.
        cuts, broken = run_script(name, 0, 100, 0, share=(0, 3 if name in LONG else 1))
    else:  # MicroPython runs the same code ten times slower, in 192 KB: only a sample
        cuts, broken = run_sample(name, 2)
    assert broken == []
    assert cuts


def number_of(journal, seq):
    """Return the number in a message, or -1 if its body is lost."""
    if not journal.length(seq):
        return -1
    out = bytearray(3)
    journal.read(seq, 0, out, 0, 3)
    return int(bytes(out))


def numbers(journal):
    """Return the numbers in all messages (-1 for a lost body), and finish the messages."""
    found = []
    while journal.low < journal.next_seq:
        found.append(number_of(journal, journal.low))
        journal.finish(journal.low)
    return found


def stored(n, sectors=8):
    region = RamRegion(sectors, 4096, 256)
    journal = Journal(region)
    for i in range(1, n + 1):
        journal.append(b"%03d" % i + bytes(100), 103)
    return region, journal


def flip(region, text, offset):
    """Flip a bit of the byte at this offset from the text's place in a region."""
    for at in range(len(region.cells) - 3):
        if region.cells[at] == text[0] and region.cells[at : at + len(text)] == text:
            region.cells[at + offset] ^= 1
            return
    raise ValueError(text)


@pytest.mark.req("S6")
@pytest.mark.parametrize("offset", (-24, -21, -20, -19, -16, -4, -1, 0, 50))
def test_flipped_bit_loses_only_its_message_and_is_counted(offset):
    """Message 6 of 60 is damaged. Version 1 raised StoreCorrupt at every mount, so messages 7 to 60 were never read."""
    region, _ = stored(60)
    flip(region, b"006" + bytes(50), offset)
    for _ in range(2):
        journal = Journal(region)
        assert journal.append(b"061", 3)
        journal = Journal(region)
        found = numbers(journal)
        assert [n for n in found if n > 0][:59] == [n for n in range(1, 61) if n != 6]
        assert journal.damaged == 1
        assert found.index(-1) == 5


@pytest.mark.req("S6")
@pytest.mark.parametrize("offset", (-24, -20, -19, -16, 0, 50))
def test_flipped_bit_in_a_sectors_first_record_loses_only_that_record(offset):
    """Version 1 ignored a sector because of one damaged record, and silently lost its messages."""
    region, journal = stored(10)
    first = 11
    head = journal._head
    while journal._head == head:
        first = journal.append(b"%03d" % journal.next_seq + bytes(100), 103)
    last = journal.append(b"%03d" % journal.next_seq + bytes(100), 103)
    flip(region, b"%03d" % first + bytes(50), offset)
    journal = Journal(region)
    assert numbers(journal) == [-1 if n == first else n for n in range(1, last + 1)]
    assert journal.damaged == 1


@pytest.mark.req("S6")
def test_message_stored_after_a_damaged_one_is_read():
    region, journal = stored(3)
    journal.finish(1)
    journal.flush()
    flip(region, b"003" + bytes(50), 0)
    journal = Journal(region)
    assert journal.length(3) == 0 and journal.append(b"004", 3) == 4
    assert numbers(journal) == [2, -1, 4]


@pytest.mark.req("S6")
@pytest.mark.parametrize("change", ("finish", "mark"))
def test_sequence_of_a_damaged_finished_or_marked_message_is_not_used_again(change):
    """The next message got its sequence, was taken for finished (or marked), and was never sent."""
    region, journal = stored(3)
    getattr(journal, change)(3)
    journal.hold(7, b"inbound", 7)  # states that message 3 is finished or marked, but not the next sequence
    flip(region, b"003" + bytes(50), 0)
    journal = Journal(region)
    assert journal.append(b"004", 3) == 4
    assert not journal.is_finished(4) and not journal.is_marked(4)
    assert journal.is_finished(3) == (change == "finish") and journal.is_marked(3) == (change == "mark")
    assert journal.waiting == (3 if change == "finish" else 4)


@pytest.mark.req("S6")
def test_damage_at_the_windows_end_loses_no_message_at_its_start():
    region, _ = stored(40)
    flip(region, b"032" + bytes(50), 0)
    journal = Journal(region)
    assert journal.length(32) == 0 and journal.length(1) == 103
    assert numbers(journal) == [-1 if n == 32 else n for n in range(1, 41)]


@pytest.mark.req("S6", "R2")
def test_held_message_with_a_destroyed_middle_sector_is_counted_as_damaged():
    region = RamRegion(16, 1024, 256)
    journal = Journal(region)
    journal.append(b"001", 3)
    journal.hold(7, bytes(2500), 2500)
    middle = journal._head - 1
    for at in range(76):
        region.cells[middle * 1024 + at] = 0
    journal = Journal(region)
    assert journal.held() == [] and journal.damaged == 1 and numbers(journal) == [1]


@pytest.mark.req("S6")
def test_flipped_bit_anywhere_is_harmless_counted_or_raises():
    """In every fifth byte of a small journal, except its newest record: only the damaged part is lost, and it is reported.

    The records are 128 bytes long, so each byte of a record is flipped in some of them. `journal/flips.py` flips bits of richer
    journals, and `make powercut` all of them.
    """
    whole = RamRegion(6, 1024, 256)
    journal = Journal(whole)
    for n in range(1, 13):
        journal.append(b"%03d" % n + bytes(100), 103)
    for n in range(3):
        journal.finish(n + 1)
    journal.close()
    image = bytes(whole.cells)
    for at in range(0, len(image), 5 if sys.implementation.name == "cpython" else 29):
        region = RamRegion(6, 1024, 256, bytearray(image))
        region.cells[at] ^= 1 << (at * 5 & 7)
        try:
            journal = Journal(region)
        except StoreError:
            assert image[at] != 0xFF
            continue
        found = numbers(journal)
        there = [n for n in found if n > 0 and n > 3]
        assert there == sorted(set(there))
        assert len(there) + journal.damaged >= 9, at


@pytest.mark.req("S6")
@pytest.mark.parametrize("released", (11, 31))
def test_messages_finished_out_of_order_are_durable_with_the_next_write(released):
    """In version 1, 8 of 11 finished messages came back, even after another write."""
    region, journal = stored(40)
    gone = list(range(2, 2 + released))
    for seq in reversed(gone):
        journal.finish(seq)
    journal.append(b"041", 3)
    journal = Journal(region)
    assert numbers(journal) == [n for n in range(1, 42) if n not in gone]


@pytest.mark.req("S6")
@pytest.mark.parametrize("in_turn", (True, False))
def test_finished_messages_are_durable_after_a_flush(in_turn):
    region, journal = stored(32)
    for seq in range(1, 32) if in_turn else range(31, 0, -1):
        journal.finish(seq)
    journal.flush()
    assert numbers(Journal(region)) == [32]


@pytest.mark.req("S2", "S6")
@pytest.mark.parametrize("seed", list(range(12)))
def test_first_mount_succeeds_after_repeated_power_cuts(seed):
    """After four power cuts every mount of version 1 raised StoreForeign."""
    flash = NorFlash(4 * 4096, "rp2" if seed % 2 else "esp32", seed=seed)
    region = BlockRegion(flash)
    cuts = 0
    for turn in range(12):
        flash.arm(
            flash.operations + 1 + (turn + seed) % 3,
            ("bits", "prefix", "weak", "nothing")[(turn + seed) % 4],
            seed * 7 + turn,
        )
        try:
            Journal(region)
        except PowerCut:
            cuts += 1
        flash.power_up()
    journal = Journal(region)
    assert journal.append(b"001", 3) == 1 and journal.fresh is False and cuts >= 4
    assert numbers(Journal(region)) == [1] and flash.violations == []


@pytest.mark.req("S6")
def test_swapped_or_doubled_sectors_never_raise_usage_error():
    """Version 1 raised UsageError because of the journal's own reads."""
    region, journal = stored(140)
    for n in range(1, 6):
        journal.finish(n)
    journal.flush()
    image = bytes(region.cells)
    for one in range(8):
        for two in range(8):
            for doubled in (False, True):
                if one == two:
                    continue
                cells = bytearray(image)
                cells[one * 4096 : one * 4096 + 4096] = image[two * 4096 : two * 4096 + 4096]
                if not doubled:
                    cells[two * 4096 : two * 4096 + 4096] = image[one * 4096 : one * 4096 + 4096]
                try:
                    journal = Journal(RamRegion(8, 4096, 256, cells))
                    found = numbers(journal)
                except StoreCorrupt:
                    continue
                there = [n for n in found if n > 0]
                assert there == sorted(set(there)), (one, two, doubled)
