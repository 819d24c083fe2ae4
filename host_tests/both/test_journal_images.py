"""Golden images: what a journal once wrote is read for ever, and what is not a journal is refused by name, and not touched."""

import pytest

from flashmqtt.errors import StoreCorrupt, StoreForeign, StoreVersion, StoreWorn
from flashmqtt.flash.ram import RamRegion
from flashmqtt.journal.journal import Journal
from paths import HOST_TESTS


def image(name):
    with open(HOST_TESTS + "journal/images/" + name + ".bin", "rb") as file:
        return RamRegion(4, 1024, 1, bytearray(file.read()))


def content(journal, slot):
    buf = bytearray(journal.length_of(slot))
    journal.read(slot, 0, buf, 0, len(buf))
    return bytes(buf)


def opened(journal):
    return [
        (content(journal, slot), journal.mark_of(slot), journal.is_held(slot))
        for slot in range(journal.slots)
        if journal.is_open(slot)
    ]


@pytest.mark.req("S1", "S2")
@pytest.mark.parametrize("name", ("example", "torn", "closed"))
def test_the_example_is_read(name):
    journal = Journal(image(name), 4)
    assert journal.stored == 2 and journal.waiting == 0 and journal.dropped == 0
    assert opened(journal) == [(b"second", 1, False), (b"inbound", 0, True)]
    assert journal.boot == {"example": 2, "torn": 3, "closed": 3}[name]
    assert journal.append(b"third", 5) == journal.next_seq - 1
    assert content(journal, journal.take()) == b"third"


@pytest.mark.req("S1", "S2")
def test_a_full_journal_with_a_message_in_pieces_is_read():
    journal = Journal(image("full"), 4)
    assert journal.stored == 31 and journal.waiting == 6
    for i in range(25, 30):
        slot = journal.take()
        assert content(journal, slot) == b"%d" % i * 20
        journal.release(slot)
    assert content(journal, journal.take()) == b"".join(bytes([i]) * 100 for i in range(6))


@pytest.mark.req("S6")
def test_a_worn_journal_stores_no_more_and_is_still_read():
    journal = Journal(image("worn"), 4)
    assert opened(journal) == [(b"second", 1, False), (b"inbound", 0, True)]
    with pytest.raises(StoreWorn):
        for _ in range(50):
            journal.append(bytes(100), 100)
    assert opened(journal)[0] == (b"second", 1, False)
    journal.release(0)


@pytest.mark.req("S6")
@pytest.mark.parametrize(
    "name, error", (("foreign", StoreForeign), ("other_version", StoreVersion), ("damaged", StoreCorrupt))
)
def test_what_can_not_be_trusted_is_refused_and_not_touched(name, error):
    region = image(name)
    before = bytes(region.cells)
    with pytest.raises(error):
        Journal(region, 4)
    assert bytes(region.cells) == before


@pytest.mark.req("S6")
def test_a_damaged_header_of_the_newest_sector_hides_nothing():
    region = image("example")
    journal = Journal(region, 4)  # leaves sector 0, as nothing was closed
    journal.append(b"third", 5)
    whole = bytes(region.cells)
    for offset in range(0, 64, 7):
        region.cells[:] = whole
        region.cells[journal._head * 1024 + offset] ^= 0x10
        with pytest.raises(StoreCorrupt):
            Journal(region, 4)


@pytest.mark.req("S6")
def test_only_format_changes_a_foreign_region():
    region = image("foreign")
    journal = Journal.format(region, 4)
    assert journal.fresh and journal.boot == 1
    journal.append(b"mine", 4)
    journal = Journal(region, 4)
    assert journal.waiting == 1 and journal.stored == 1
