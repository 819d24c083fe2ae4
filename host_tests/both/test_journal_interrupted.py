"""Ctrl-C (KeyboardInterrupt) or a timer's call during a journal's work, after which the program goes on."""

import pytest

from flashmqtt.errors import StoreWorn, UsageError
from flashmqtt.flash.ram import RamRegion
from flashmqtt.journal.journal import Journal
from flashmqtt.session.session import Session
from stored import held_messages, message
from wire import Peer


class InterruptedRegion(RamRegion):
    """Raises KeyboardInterrupt in operation number `left`: before it, or after it."""

    left = 0
    after = False
    operations = 0

    def _count(self, after):
        if not after:
            self.operations += 1
            self.left -= 1
        if self.left == 0 and after == self.after:
            self.left -= after
            raise KeyboardInterrupt

    def program(self, offset, buf, again=False):
        """Program buf, with an interruption before or after it."""
        self._count(False)
        super().program(offset, buf, again)
        self._count(True)

    def erase(self, sector):
        """Erase a sector, with an interruption before or after it."""
        self._count(False)
        super().erase(sector)
        self._count(True)


def nearly_full_head(region):
    """Return a journal whose head has no room for 200 bytes, and its messages."""
    journal = Journal(region)
    journal.hold(1, b"held", 4)
    bodies = {}
    while journal.next_seq < 10:
        bodies[journal.next_seq] = b"%d " % journal.next_seq * 30
        journal.append(bodies[journal.next_seq], 60)
    return journal, bodies


LONG = b"interrupted" * 40


def store(journal, kind):
    if kind == "append":
        journal.append(LONG, 200)
    elif kind == "pieces":
        journal.append(LONG, 440)
    else:
        journal.hold(2, LONG, 200)


@pytest.mark.req("S1", "S2", "S6")
@pytest.mark.parametrize(
    "kind,after", [(kind, after) for kind in ("append", "pieces", "hold") for after in (False, True)]
)
def test_journal_that_was_interrupted_loses_nothing_and_takes_no_write_until_the_next_mount(kind, after):
    region = InterruptedRegion(6, 1024)
    journal, _ = nearly_full_head(region)
    before = region.operations
    store(journal, kind)
    operations = region.operations - before
    assert operations >= 3  # an erase, a header, a record
    for left in range(1, operations + 1):
        region = InterruptedRegion(6, 1024)
        journal, bodies = nearly_full_head(region)
        region.left = left
        region.after = after
        with pytest.raises(KeyboardInterrupt):
            store(journal, kind)
        assert journal.worn
        with pytest.raises(StoreWorn, match="interrupted"):
            journal.append(b"more", 4)
        with pytest.raises(StoreWorn):
            journal.hold(9, b"more", 4)
        journal.idle()
        journal.mark(1)
        journal.close()
        for seq in bodies:
            assert message(journal, seq) == bodies[seq]
        journal = Journal(region)
        assert held_messages(journal)[0] == (1, b"held") and len(journal.held()) <= 2
        assert {seq: message(journal, seq) for seq in bodies} == bodies
        assert journal.next_seq == 10 or message(journal, 10) == LONG[: 440 if kind == "pieces" else 200]
        seq = journal.append(b"next", 4)
        assert message(Journal(region), seq) == b"next"


@pytest.mark.req("S1")
def test_interrupted_publish_is_followed_by_a_clear_error_and_everything_stored_is_still_sent():
    region = InterruptedRegion(6, 4096)
    broker = Peer(Session(Journal(region)))
    broker.connect()
    assert broker.session.publish(b"t", b"one", 1) == 1
    region.left = 1
    region.after = True
    with pytest.raises(KeyboardInterrupt):
        broker.session.publish(b"t", b"two", 1)
    with pytest.raises(StoreWorn, match="interrupted"):
        broker.session.publish(b"t", b"three", 1)
    broker.connection.pump(broker.now)
    assert len(broker.took()) == 1
    broker.drop()
    broker = Peer(Session(Journal(region)))
    assert [one[-3:] for one in broker.connect(present=1) if one[0] >> 4 == 3] == [b"one", b"two"]


@pytest.mark.req("S1", "S2")
@pytest.mark.parametrize("after", (False, True))
def test_held_message_of_several_records_is_not_listed_if_it_was_interrupted(after):
    for left in (1, 2, 3):
        region = InterruptedRegion(6, 4096)
        journal = Journal(region)
        region.left = left
        region.after = after
        with pytest.raises(KeyboardInterrupt):
            journal.hold(7, LONG + LONG, 600)
        assert journal.held_length(7) == 0 and held_messages(journal) == []
        complete = left == 3 and after
        assert held_messages(Journal(region)) == ([(7, (LONG + LONG)[:600])] if complete else [])


class TimedRegion(RamRegion):
    """Makes a call after the next erase, as a timer does."""

    call = None

    def erase(self, sector):
        """Erase a sector."""
        super().erase(sector)
        call, self.call = self.call, None
        if call:
            call()


@pytest.mark.req("S1", "R4")
def test_message_that_a_timer_appends_while_the_next_sector_is_erased_is_refused_and_no_other_one_is_lost():
    region = TimedRegion(8, 1024)
    journal, bodies = nearly_full_head(region)
    refused = []

    def append():
        try:
            bodies[journal.append(b"a timer's" * 30, 200)] = b"a timer's" * 30
        except UsageError as error:
            refused.append(error)

    region.call = append
    journal.idle()
    assert not region.call and len(refused) == 1
    while journal.next_seq < 30:
        body = b"%d " % journal.next_seq * 30
        bodies[journal.append(body, 60)] = body[:60]
    for one in (journal, Journal(region)):
        for seq, body in bodies.items():
            assert message(one, seq) == body[:60]
