"""An opening fails, and its sector counts all the same at the next mount: nothing that was written afterwards may be void."""

import pytest

from failing import FailingRegion
from flashmqtt.errors import FlashFailed, StoreFull, StoreWorn
from flashmqtt.journal.journal import Journal
from stored import held_messages, message

NOTE = b"after a fail"


class UnreportedRegion(FailingRegion):
    """The program that fails is complete: only the read-back failed."""

    def program(self, offset, buf, again=False):
        """Program buf, and raise FlashFailed afterwards where FailingRegion raises it before."""
        failing = self.programs_left == 1
        if failing:
            self.programs_left = 0
        super().program(offset, buf, again)
        if failing:
            raise FlashFailed("read-back")


def fill(journal):
    """Append messages of 152 bytes until the journal is full, then a short one; return what was stored, and whether a note was.

    One of them fits on a page. Behind it is room for the short one and the note.
    """
    bodies = []
    try:
        while True:
            bodies.append(b"%07d " % journal.next_seq * 19)
            journal.append(bodies[-1], 152)
    except StoreFull:
        bodies.pop()
    try:
        journal.append(b"short", 5)
        bodies.append(b"short")
    except StoreFull:
        pass
    try:
        journal.write_note(NOTE)
    except StoreWorn:  # the failure was in this opening, and the last sector is kept free
        return bodies, False
    return bodies, True


@pytest.mark.req("S1", "S6")
@pytest.mark.parametrize("kind,sector_bytes,held", ((UnreportedRegion, 1024, 0), (FailingRegion, 4096, 42)))
def test_records_after_an_opening_that_failed_survive_the_next_mount(kind, sector_bytes, held):
    position = 0
    while True:
        position += 1
        region = kind(5, sector_bytes)
        journal = Journal(region)
        for key in range(1, held + 1):
            journal.hold(key, b"held", 4)
        region.programs_left = position
        bodies, noted = fill(journal)
        if region.programs_left > 0:
            break
        journal = Journal(region)
        assert not noted or bytes(journal.note) == NOTE, position
        assert journal.next_seq == len(bodies) + 1, position
        assert len(held_messages(journal)) == held
        for seq, body in enumerate(bodies, 1):
            assert message(journal, seq) == body, position
            journal.finish(seq)
    assert position > 10


@pytest.mark.req("S1", "S6")
def test_read_error_while_held_messages_are_carried_costs_no_sector():
    region = FailingRegion(8, 1024)
    journal = Journal(region)
    journal.hold(1, b"\1" * 500, 500)
    failed = 0
    for seq in range(1, 301):
        region.reads_left = 1 + failed % 3
        try:
            journal.append(bytes(200), 200)
        except FlashFailed:
            failed += 1
            region.reads_left = 0
            journal.append(bytes(200), 200)
        if seq > 6:
            journal.finish(seq - 6)
    region.reads_left = 0
    assert failed > 10 and journal.next_seq == 301
    assert not journal.worn and held_messages(journal) == [(1, b"\1" * 500)]
    assert held_messages(Journal(region)) == [(1, b"\1" * 500)]


@pytest.mark.req("S1", "S6")
def test_read_error_while_a_mount_carries_messages_costs_no_sector():
    region = FailingRegion(4, 1024)
    Journal(region).append(b"message", 7)
    failed = 0
    for position in range(1, 60):
        region.reads_left = position
        try:
            journal = Journal(region)
        except FlashFailed:
            failed += 1
            region.reads_left = 0
            journal = Journal(region)
        region.reads_left = 0
        assert not journal.worn and message(journal, 1) == b"message", position
    assert 10 < failed < 59
