"""A mount after an unclean end carries the head's messages into the new sector. FORMAT.md, "Carrying outgoing messages"."""

import sys

import pytest

from failing import FailingRegion
from flashmqtt.errors import FlashFailed, StoreError, StoreFull
from flashmqtt.flash.ram import RamRegion
from flashmqtt.journal.journal import DROP_NEWEST, DROP_OLDEST, REFUSE, Journal
from stored import held_messages

LENGTH = 100
RECORD = 24 + LENGTH


class Cut(BaseException):
    """The power was cut."""


class CutRegion(RamRegion):
    """The power is cut in operation number `left`, of which `done` of 4 parts are done; a program's first bytes come first."""

    left = 0
    done = 0
    operations = 0

    def _cut(self):
        self.operations += 1
        self.left -= 1
        return self.left == 0

    def program(self, offset, buf, again=False):
        """Program buf, or a part of it."""
        if self._cut():
            n = len(buf) * self.done // 4
            part = bytearray(buf)
            for i in range(n, len(part)):
                part[i] = 0xFF
            if n:
                super().program(offset, part, again)
            raise Cut
        super().program(offset, buf, again)

    def erase(self, sector):
        """Erase a sector, or a part of it."""
        if self._cut():
            start = sector * self.sector_bytes
            for i in range(start, start + self.sector_bytes * self.done // 4):
                self.cells[i] = 0xFF
            raise Cut
        super().erase(sector)


def copied(region, kind=CutRegion):
    return kind(region.sectors, region.sector_bytes, region.page_bytes, bytearray(region.cells))


def body(number):
    return b"%05d" % number + bytes([number & 0xFF]) * (LENGTH - 5)


def append(journal, n=1):
    for _ in range(n):
        assert journal.append(body(journal.next_seq), LENGTH)


def contents(journal):
    """Return the numbers in all messages (-1 for a lost one), and finish the messages."""
    found = []
    out = bytearray(LENGTH)
    while journal.low < journal.next_seq:
        seq = journal.low
        if journal.length(seq):
            journal.read(seq, 0, out, 0, LENGTH)
            assert bytes(out) == body(seq)
            found.append(seq)
        else:
            found.append(-1)
        journal.finish(seq)
    return found


# --- how many restarts a journal lasts ---


@pytest.mark.req("S5", "S6")
@pytest.mark.parametrize(
    "sectors,each,restarts", [(4, 1, 32), (4, 3, 12), (4, 8, 4), (16, 1, 208), (16, 3, 78), (16, 8, 26), (64, 8, 122)]
)
def test_messages_of_many_unclean_restarts_share_sectors(sectors, each, restarts):
    region = RamRegion(sectors, 4096)
    for boot in range(restarts):
        journal = Journal(region)
        assert (journal.boot, journal.next_seq) == (boot + 1, boot * each + 1)
        append(journal, each)
    journal = Journal(region)
    with pytest.raises(StoreFull):
        append(journal, each)
    stored = journal.next_seq - 1
    assert stored >= restarts * each
    assert contents(Journal(region)) == list(range(1, stored + 1))
    journal = Journal(region)
    contents(journal)
    journal.flush()
    assert contents(Journal(region)) == []


@pytest.mark.req("S5")
def test_restarts_without_new_messages_never_fill_a_journal():
    region = RamRegion(4, 4096)
    append(Journal(region), 3)
    for _ in range(40):
        journal = Journal(region)
    assert journal.append(body(4), LENGTH) == 4
    assert contents(journal) == [1, 2, 3, 4]


@pytest.mark.req("S6")
def test_finished_and_marked_messages_stay_so_when_they_are_carried():
    region = RamRegion(4, 4096)
    journal = Journal(region)
    append(journal, 6)
    journal.finish(1)
    journal.finish(4)
    journal.mark(3)
    journal.flush()
    for _ in range(3):
        journal = Journal(region)
        assert journal.low == 2 and journal.is_finished(4) and not journal.is_finished(5)
        assert journal.is_marked(3) and not journal.is_marked(5)
        append(journal)
    assert journal.waiting == 7
    found = []
    while journal.low < journal.next_seq:
        found.append(journal.low)
        assert journal.length(journal.low) == LENGTH
        journal.finish(journal.low)
    assert found == [2, 3, 5, 6, 7, 8, 9] and journal.damaged == 0


@pytest.mark.req("S6", "R2")
def test_held_messages_in_older_sectors_stay_while_messages_are_carried():
    region = RamRegion(5, 4096)
    journal = Journal(region)
    journal.hold(7, b"inbound", 7)
    append(journal, 2)
    for _ in range(8):
        journal = Journal(region)
        assert held_messages(journal) == [(7, b"inbound")]
        append(journal)
    journal.discard(7)
    journal.sync()
    journal = Journal(region)
    assert journal.held() == [] and contents(journal) == list(range(1, 11))


@pytest.mark.req("S6")
@pytest.mark.parametrize("length", (233, 700, 1500))
def test_messages_in_pieces_are_carried(length):
    region = RamRegion(16, 4096)
    journal = Journal(region)
    append(journal)
    text = bytes(range(200)) * 8
    assert journal.append(text, length) == 2
    append(journal)
    for _ in range(3):
        journal = Journal(region)
        append(journal)
    out = bytearray(length)
    journal.read(2, 0, out, 0, length)
    assert out == text[:length]
    journal.finish(1)
    journal.finish(2)
    assert contents(journal) == [3, 4, 5, 6]


@pytest.mark.req("S2", "S6")
def test_incomplete_message_is_not_carried():
    region = RamRegion(16, 4096)
    journal = Journal(region)
    append(journal)
    journal.begin(600)
    journal.extend(bytes(300), 300)
    for _ in range(3):
        journal = Journal(region)
        assert journal.next_seq == 2
    append(journal)
    assert contents(Journal(region)) == [1, 2]


@pytest.mark.req("S5", "S6")
def test_long_messages_of_many_unclean_restarts_share_sectors():
    region = RamRegion(16, 4096)
    text = bytes(range(200)) * 2
    for boot in range(1, 53):
        assert Journal(region).append(text[boot:], 300) == boot
    with pytest.raises(StoreFull):
        Journal(region).append(text, 300)
    journal = Journal(region)
    out = bytearray(300)
    for seq in range(1, 53):
        journal.read(seq, 0, out, 0, 300)
        assert out == text[seq : seq + 300]
        journal.finish(seq)
    assert journal.low == journal.next_seq


@pytest.mark.req("S6")
def test_message_in_pieces_that_ends_in_the_head_stays_complete():
    """Its first piece is in the sector before, and the head's header names only later messages."""
    region = RamRegion(6, 1024)
    journal = Journal(region)
    append(journal, 4)
    text = bytes(range(200)) * 4
    assert journal.append(text, 600) == 5
    for _ in range(3):
        journal = Journal(region)
    out = bytearray(600)
    journal.read(5, 0, out, 0, 600)
    assert out == text[:600]


# --- power cuts ---


def stores(journal):
    """Append a message; return whether it was stored without a drop."""
    try:
        dropped = journal.dropped
        return journal.append(body(journal.next_seq), LENGTH) > 0 and journal.dropped == dropped
    except StoreFull:
        return False


def prepare(name):
    """Return a region after an unclean end, its policy, and what it has: (messages, held)."""
    policy = {"drop": DROP_OLDEST, "newest": DROP_NEWEST}.get(name, REFUSE)
    region = CutRegion(4 if name != "held" else 5, 1024)
    journal = Journal(region, policy)
    first = 1
    if name == "held":
        journal.hold(7, b"inbound", 7)
        journal = Journal(region, policy)
    if name in ("drop", "newest", "full"):  # the ring is full; the last message is alone in its sector
        while stores(journal):
            pass
        while journal.policy != DROP_OLDEST and not stores(journal):
            journal.finish(journal.low)
        first = max(journal.low, journal.floor)
    else:
        append(journal, 2)
    if name == "finished":
        append(journal)
        journal.finish(1)
        journal.finish(2)
        journal.flush()
        first = 3
    return region, policy, list(range(first, journal.next_seq)), [(7, b"inbound")] if name == "held" else []


@pytest.mark.req("S1", "S2", "S6")
@pytest.mark.parametrize("name", ("few", "finished", "held", "full", "drop", "newest"))
def test_power_cuts_in_a_mount_that_carries_messages_lose_nothing(name):
    """Each operation of the mount is cut, in three ways, and each operation of the next mount after it."""
    region, policy, messages, held = prepare(name)
    sample = sys.implementation.name != "cpython"
    cuts = 0
    for at in range(1, 99):
        for done in (0, 2, 4):
            once = copied(region)
            once.left, once.done = at, done
            try:
                Journal(once, policy)
            except Cut:
                cuts += 1
            for again in range(1, 99):
                if sample and (at + again + done) % 5:
                    continue
                twice = copied(once)
                twice.left, twice.done = again, (done + again) % 5
                try:
                    Journal(twice, policy)
                    ended = True
                except Cut:
                    cuts += 1
                    ended = False
                twice = copied(twice)
                journal = Journal(twice, policy)
                assert journal.next_seq == messages[-1] + 1 and journal.damaged == 0
                assert held_messages(journal) == held
                for key in journal.held():
                    journal.discard(key)
                if journal.append(body(journal.next_seq), LENGTH):
                    messages_now = list(range(max(journal.low, journal.floor), messages[-1] + 2))
                    assert journal.dropped or messages_now[0] == messages[0]
                    assert contents(journal) == messages_now
                if ended:
                    break
        if at > once.operations:
            break
    assert once.operations >= 7  # it carries messages: without them there are 5 operations
    assert cuts > (20 if sample else 150)


# --- failing flash ---


@pytest.mark.req("S6")
def test_failing_program_of_a_mount_that_carries_messages_loses_nothing():
    for at in range(1, 12):
        region = FailingRegion(5, 1024)
        append(Journal(region), 2)
        region.programs_left = at
        journal = Journal(region)
        append(journal)
        assert contents(Journal(copied(region))) == [1, 2, 3], at
        assert contents(journal) == [1, 2, 3], at


class BadErase(RamRegion):
    """The erase of one sector fails."""

    bad = 0

    def erase(self, sector):
        """Erase a sector, or raise FlashFailed."""
        if sector == self.bad:
            raise FlashFailed("erase")
        super().erase(sector)


@pytest.mark.req("S6")
@pytest.mark.parametrize("bad", (1, 2, 3))
def test_failing_erase_of_a_mount_that_carries_messages_loses_nothing(bad):
    region = BadErase(5, 1024)
    append(Journal(region), 1)
    region.bad = bad
    for _ in range(4):
        append(Journal(region))
    assert contents(Journal(region)) == [1, 2, 3, 4, 5]


# --- flipped bits ---


@pytest.mark.req("S6")
@pytest.mark.parametrize("more", (0, 1))
def test_flipped_bit_in_a_carried_message_loses_only_that_message_and_is_counted(more):
    """Without a further write (`more` 0), the sector has the opening and the record after it."""
    region = RamRegion(5, 4096, 256)
    append(Journal(region), 3)
    journal = Journal(region)
    assert journal.append(body(4), LENGTH) == 4 if more else True
    size = region.sector_bytes
    image = bytes(region.cells)
    starts = [
        place - 24 for place in range(size, 2 * size) if image[place : place + 6] in [body(n)[:6] for n in (1, 2, 3)]
    ]
    assert len(starts) == 3
    step = 1 if sys.implementation.name == "cpython" else 7
    for number, start in enumerate(starts, 1):
        for place in range(start, start + RECORD, step):
            flipped = RamRegion(5, 4096, 256, bytearray(image))
            flipped.cells[place] ^= 1 << (place & 7)
            journal = Journal(flipped)
            assert contents(journal) == [-1 if n == number else n for n in range(1, 4 + more)], place - start
            assert journal.damaged == 1
            assert journal.append(body(journal.next_seq), LENGTH) == 4 + more


@pytest.mark.req("S6")
def test_flipped_bit_in_an_opening_that_carried_messages_loses_nothing():
    region = RamRegion(5, 4096, 256)
    append(Journal(region), 3)
    Journal(region)
    image = bytes(region.cells)
    size = region.sector_bytes
    last = [place for place in range(size, 2 * size) if image[place] != 0xFF][-1]
    for place in range(size, last + 1, 1 if sys.implementation.name == "cpython" else 7):
        flipped = RamRegion(5, 4096, 256, bytearray(image))
        flipped.cells[place] ^= 1 << (place & 7)
        try:
            journal = Journal(flipped)
        except StoreError:
            raise AssertionError(place) from None
        found = contents(journal)
        assert [n for n in found if n > 0] == [1, 2, 3] or journal.damaged == found.count(-1) == 1, place
        assert journal.append(body(4), LENGTH) == 4, place


@pytest.mark.req("S6")
def test_damaged_first_piece_of_a_message_begun_again_is_not_replaced_by_the_older_piece():
    region = RamRegion(8, 4096)
    journal = Journal(region)
    journal.begin(400)
    journal.extend(b"A" * 232, 232)
    journal.begin(300)  # again, with the same sequence
    journal.extend(b"B" * 300, 300)
    assert journal.commit() == 1
    region.cells[bytes(region.cells).index(b"B") + 50] ^= 4
    for _ in range(3):
        journal = Journal(region)
        assert (journal.next_seq, journal.length(1)) == (2, 0)
    journal.finish(1)
    assert journal.damaged == 1
