"""Golden images: journals written by earlier code are readable; a region that is no journal is refused and not changed."""

import pytest

from flashmqtt.errors import StoreForeign
from flashmqtt.flash.ram import RamRegion
from flashmqtt.journal.journal import Journal
from paths import HOST_TESTS
from stored import held_messages, message


def image(name):
    with open(HOST_TESTS + "journal/images/" + name + ".bin", "rb") as file:
        cells = bytearray(file.read())
    return RamRegion(len(cells) // 1024, 1024, 1, cells)


def waiting(journal):
    """Return (sequence, body, marked) of each unfinished message."""
    found = []
    while journal.low < journal.next_seq:
        seq = journal.low
        found.append((seq, message(journal, seq), journal.is_marked(seq)))
        journal.finish(seq)
    return found


@pytest.mark.req("S1", "S2")
@pytest.mark.parametrize("name, boot", (("example", 2), ("closed", 3), ("torn", 3), ("reopened", 4)))
def test_example_images_are_read(name, boot):
    journal = Journal(image(name))
    assert (journal.boot, journal.dropped, journal.damaged) == (boot, 0, 0)
    assert held_messages(journal) == [(7, b"inbound")]
    third = [(3, b"third", False)] if name in ("torn", "reopened") else []
    found = waiting(journal)
    assert found[0] == (2, b"second", True) and found[1:] == third
    seq = journal.append(b"one more", 8)
    assert seq == 3 + len(third) and message(journal, seq) == b"one more"


@pytest.mark.req("S1", "S2", "S5")
def test_full_journal_is_read():
    journal = Journal(image("full"))
    assert journal.low == 36 and journal.is_finished(38) and not journal.is_finished(37)
    found = waiting(journal)
    assert [seq for seq, _, _ in found] == [seq for seq in range(36, journal.next_seq) if seq != 38]
    assert len(found) > 10 and all(content == b"%d " % seq * 15 for seq, content, _ in found)


@pytest.mark.req("S5")
def test_journal_that_dropped_its_oldest_messages_is_read():
    journal = Journal(image("dropped"))
    assert journal.dropped > 5
    found = waiting(journal)
    assert found[0] == (1, b"", True)  # its body is dropped, but its PUBREL is still to be sent
    assert found[1][0] == journal.dropped + 2 and all(content == b"%d " % seq * 15 for seq, content, _ in found[1:])
    assert journal.damaged == 0


@pytest.mark.req("S1", "S2")
@pytest.mark.parametrize("name", ("held", "held_without_count"))
def test_held_messages_and_the_note_are_read(name):
    """Older code wrote `held_without_count`: its opening does not state how many records were carried."""
    journal = Journal(image(name))
    long = bytes(range(250)) * 3
    assert sorted(held_messages(journal)) == [
        (1, b"stays"),
        (2, b"key 2"),
        (4, b"key 4"),
        (500, long),
        (65535, b"key 65535"),
    ]
    assert journal.note == b"twelve bytes" and journal.low == journal.next_seq == 61
    journal.discard(500)
    journal.sync()
    journal = Journal(journal.region)
    assert 500 not in journal.held() and len(journal.held()) == 4


@pytest.mark.req("S1", "S2")
def test_long_message_over_several_sectors_is_read():
    journal = Journal(image("long"))
    long = b"".join(bytes([i]) * 100 for i in range(12))
    assert waiting(journal) == [(1, b"short", False), (2, long, False), (3, b"short again", False)]


@pytest.mark.req("S1", "S2")
@pytest.mark.parametrize("name, boot", (("carried", 4), ("half_erased", 3)))
def test_carried_messages_are_read(name, boot):
    """In `half_erased` the sector that carried them last does not count: one of them lost bits in it."""
    journal = Journal(image(name))
    assert (journal.boot, journal.damaged, journal.low, journal.is_finished(2)) == (boot, 0, 1, True)
    found = [(1, b"one", False), (3, b"three", True), (4, b"four", False)]
    assert [each for each in waiting(journal) if each[0] != 2] == found
    assert journal.append(b"five", 4) == 5


@pytest.mark.req("S2")
def test_interrupted_first_mount_begins_again():
    journal = Journal(image("first_mount"))
    assert journal.fresh and journal.boot == 1 and journal.next_seq == 1
    assert journal.append(b"first", 5) == 1


@pytest.mark.req("S6")
def test_damage_loses_only_the_damaged_message():
    journal = Journal(image("damaged"))
    assert waiting(journal) == [(2, b"", True), (3, b"third", False)] and held_messages(journal) == [(7, b"inbound")]


@pytest.mark.req("S6")
@pytest.mark.parametrize("name, words", (("foreign", "not a journal"), ("version_1", "has version 1")))
def test_foreign_region_is_refused_and_not_changed(name, words):
    region = image(name)
    before = bytes(region.cells)
    with pytest.raises(StoreForeign) as refused:
        Journal(region)
    assert words in str(refused.value)
    assert bytes(region.cells) == before


@pytest.mark.req("S6")
def test_only_format_changes_a_foreign_region():
    region = image("foreign")
    journal = Journal.format(region)
    assert journal.fresh and journal.boot == 1
    journal.append(b"mine", 4)
    journal = Journal(region)
    assert waiting(journal) == [(1, b"mine", False)]
