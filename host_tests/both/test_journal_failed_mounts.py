"""A program or an erase fails while a journal is formatted or mounted, and once in a full journal: nothing else may fail."""

import pytest

from failing import FailingRegion
from flashmqtt.errors import FlashFailed, StoreFull
from flashmqtt.journal.journal import Journal
from stored import message


class FailingOnce(FailingRegion):
    """The erase that decrements `erases_left` to 0 fails, too; `complete`: a program that fails has done its work."""

    erases_left = 0
    complete = False
    last = -1  # the offset of the last program

    def program(self, offset, buf, again=False):
        """Program buf, or raise FlashFailed."""
        self.last = offset
        failing = self.complete and self.programs_left == 1
        if failing:
            self.programs_left = 0
        super().program(offset, buf, again)
        if failing:
            raise FlashFailed("read-back")

    def erase(self, sector):
        """Erase a sector, or raise FlashFailed."""
        self.erases_left -= 1
        if self.erases_left == 0:
            raise FlashFailed("erase")
        super().erase(sector)


def check(region, journal, stored=()):
    """Check that the journal works, and that its content is there after the next mount, too."""
    first = journal.next_seq - len(stored)
    wanted = list(stored)
    wanted.append(b"later")
    journal.append(b"later", 5)
    for mounted in (journal, Journal(region)):
        assert [message(mounted, seq) for seq in range(first, mounted.next_seq)] == wanted


def positions(counter, complete=False):
    """Yield a new region and 1, 2, 3 ..., to which the test sets this counter, until it makes no operation fail any more."""
    position = 0
    region = FailingOnce(6)
    while getattr(region, counter) <= 0:
        position += 1
        region = FailingOnce(6)
        region.complete = complete
        yield region, position


@pytest.mark.req("S1", "S6")
@pytest.mark.parametrize("complete", [False, True])
def test_failed_program_in_the_first_mount_costs_one_sector_at_most(complete):
    for region, position in positions("programs_left", complete):
        region.programs_left = position
        journal = Journal(region)
        assert not journal.worn
        check(region, journal)
    assert position > 2


@pytest.mark.req("S1", "S6")
@pytest.mark.parametrize("kind", ["erase", "program"])
def test_failed_operation_in_a_format_costs_one_sector_at_most(kind):
    for region, position in positions(kind + "s_left"):
        before = Journal(region)
        for _ in range(50):
            before.append(bytes(100), 100)
        setattr(region, kind + "s_left", position)
        journal = Journal.format(region)
        assert journal.waiting == 0 and not journal.worn
        check(region, journal)
    assert position > (5 if kind == "erase" else 2)


@pytest.mark.req("S1", "S6")
@pytest.mark.parametrize("complete", [False, True])
def test_failed_program_in_a_mount_loses_no_message(complete):
    for region, position in positions("programs_left", complete):
        before = Journal(region)
        before.append(b"earlier", 7)
        before.append(b"stored", 6)
        before.close()
        region.programs_left = position
        check(region, Journal(region), [b"earlier", b"stored"])
    assert position > 2


@pytest.mark.req("S1", "S5", "S6")
@pytest.mark.parametrize("complete", [False, True])
def test_place_of_a_failed_program_is_left_out_also_if_the_journal_was_full(complete):
    region = FailingOnce(6)
    region.complete = complete
    journal = Journal(region)
    with pytest.raises(StoreFull):
        while True:
            journal.append(bytes(150), 150)
    region.programs_left = 1
    with pytest.raises(StoreFull):  # in the rest of the last sector; there is no other sector
        journal.append(b"short", 5)
    assert region.programs_left <= 0
    failed = region.last
    while journal.waiting > 1:
        journal.finish(journal.low)
    journal.append(b"next", 4)
    assert region.last != failed  # bits there may be programmed by half
    check(region, journal, [b"next"])
