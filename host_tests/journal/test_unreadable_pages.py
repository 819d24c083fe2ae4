"""Each page of a journal becomes unreadable, at each moment of its use: only what is on that page is lost, and it is counted.

The same for each sector that takes no more erase or program, where nothing is lost.
"""

from collections import Counter

import pytest

from flashmqtt.errors import FlashFailed, StoreCorrupt
from flashmqtt.flash.ram import RamRegion
from flashmqtt.journal.journal import Journal
from host_tests.both.failing import UnreadableRegion
from host_tests.both.stored import held_messages

SECTORS, SECTOR, PAGE = 10, 1024, 256
USE = "aahpfnaqmcaafhdiarfqaadpfffhaancqdafffimaahprffdddaaiqfffcaahffddarf"


class BadRegion(RamRegion):
    """A sector that fails: each erase, or each program, before or after half of it, or only its read-back."""

    bad = -1
    kind = ""

    def erase(self, sector):
        if sector == self.bad and self.kind == "erase":
            raise FlashFailed("erase")
        super().erase(sector)

    def program(self, offset, buf, again=False):
        if offset // SECTOR != self.bad or self.kind == "erase":
            return super().program(offset, buf, again)
        done = {"nothing": 0, "half": len(buf) // 2, "read-back": len(buf)}[self.kind]
        super().program(offset, bytes(buf[:done]) + b"\xff" * (len(buf) - done), True)
        raise FlashFailed("program")


class Use:
    """A journal in use, and what is stored in it."""

    def __init__(self, region):
        self.region = region
        self.messages = {}  # by sequence; those that are finished are removed
        self.held = {}
        self.number = 0
        self.lost = Counter()
        self.journal = Journal(region)

    def body(self, length):
        self.number += 1
        return (b"%05d " % self.number * 100)[:length]

    def step(self, operation):
        journal = self.journal
        if operation in "aA":
            body = self.body(200 if operation == "A" else (20, 60, 100, 200)[self.number % 4])
            self.messages[journal.append(body, len(body))] = body
        elif operation == "p":
            body = self.body(500)
            journal.begin(500)
            for at in range(0, 500, 100):
                journal.extend(body[at : at + 100], 100)
            self.messages[journal.commit()] = body
        elif operation == "f" and journal.low < journal.next_seq:
            self.messages.pop(journal.low, None)
            journal.finish(journal.low)
        elif operation == "m" and journal.low < journal.next_seq:
            journal.mark(journal.low)
            journal.sync()
        elif operation == "h":
            body = self.body(60)
            journal.hold(self.number, body, 60)
            self.held[self.number] = body
        elif operation == "q":
            body = self.body(400)
            journal.hold_begin(self.number, 400)
            for at in range(0, 400, 100):
                journal.hold_extend(body, at, 100)
            self.held[self.number] = body
        elif operation == "d" and journal.held():
            key = journal.held()[0]
            journal.discard(key)
            journal.sync()
            self.held.pop(key, None)
        elif operation == "n":
            journal.write_note(b"twelve bytes")
        elif operation == "i":
            journal.idle()
        elif operation == "c":
            journal.close()
        if operation in "cr":
            self.mount()

    def mount(self):
        """Mount, and compare what is there with what was stored."""
        journal, cells = self.journal, bytes(self.region.cells)
        damaged = journal.damaged
        finished = {seq for seq in self.messages if seq < journal.low or journal.is_finished(seq)}
        self.journal = journal = Journal(self.region)
        for seq, body in list(self.messages.items()):
            if seq >= journal.next_seq:
                self.miss(cells, seq, "newest", body)
            elif seq not in finished and self.read(seq) != body:
                assert journal.length(seq) == 0 and seq >= journal.low and not journal.is_finished(seq)
                self.miss(cells, seq, "message", body)
        readable = dict(held_messages(journal))
        for key, body in list(self.held.items()):
            if readable.get(key) != body:
                assert key not in readable
                del self.held[key]
                self.lost["held" if journal.damaged > damaged else "held, not counted"] += 1
                assert self.is_unreadable(cells, body)

    def read(self, seq):
        body = bytearray(self.journal.length(seq))
        try:
            self.journal.read(seq, 0, body, 0, len(body))
        except StoreCorrupt:
            return b""
        return bytes(body)

    def miss(self, cells, seq, what, body):
        del self.messages[seq]
        self.lost[what] += 1
        assert self.is_unreadable(cells, body)

    def is_unreadable(self, cells, body):
        """Return whether a part of a message was on the page, or in its sector if the page has the header."""
        page = getattr(self.region, "page", -1)
        part = cells[page : page + (PAGE if page % SECTOR else SECTOR)] if page >= 0 else b""
        return any(body[at : at + 12] in part for at in range(len(body) - 11))


def go_on(use):
    """Store and finish messages until about each sector was erased twice; four of 200 bytes fill one. Mount."""
    for _ in range(2 * 3 * SECTORS):
        use.step("A")
        while use.journal.next_seq - use.journal.low > 4:
            use.step("f")
    assert not use.journal.worn
    use.mount()
    return use.lost


@pytest.mark.req("S1", "S6")
@pytest.mark.parametrize("verifies", (False, True))
def test_page_that_cannot_be_read_costs_only_what_is_on_it(verifies):
    lost = Counter()
    for page in range(0, SECTORS * SECTOR, PAGE):
        for moment in range(page // PAGE % 7, len(USE), 7):
            region = UnreadableRegion(SECTORS, SECTOR)
            region.verifies = verifies
            use = Use(region)
            try:
                for n, operation in enumerate(USE):
                    if n == moment:
                        region.page = page
                    use.step(operation)
                lost += go_on(use)
            except FlashFailed:
                lost["only sector"] += 1
                assert page == 0 and len(use.messages) < 9
    assert lost["message"] > 50 and lost["held"] > 20
    # As after any damage to the newest record, or to the only header (FORMAT.md, "Damage").
    assert lost["newest"] + lost["held, not counted"] + lost["only sector"] < 9


@pytest.mark.req("S1", "S6")
@pytest.mark.parametrize("kind", ("erase", "nothing", "half", "read-back"))
def test_sector_that_fails_costs_nothing(kind):
    for sector in range(SECTORS):
        for moment in range(sector % 5, len(USE), 5):
            region = BadRegion(SECTORS, SECTOR)
            region.kind = kind
            use = Use(region)
            for n, operation in enumerate(USE):
                if n == moment:
                    region.bad = sector
                use.step(operation)
            assert not go_on(use) and use.journal.damaged == 0
