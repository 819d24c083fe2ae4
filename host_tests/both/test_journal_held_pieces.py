"""Held messages written in pieces, mixed with all other journal operations: random histories against a model, with power cuts."""

import sys

import pytest

from flashmqtt.errors import StoreFull, StoreWorn, UsageError
from flashmqtt.flash.block import BlockRegion
from flashmqtt.flash.ram import RamRegion
from flashmqtt.journal.journal import DROP_NEWEST, DROP_OLDEST, REFUSE, Journal
from flashmqtt.session.ram import RamStore
from stored import held_messages
from tools.flashsim.nor import NorFlash, PowerCut, Random

ROUNDS = 12 if sys.implementation.name == "micropython" else 40
BODY = bytearray((i * 37 + (i >> 6)) & 255 for i in range(9000))


def content(salt, n):
    """Return the n bytes of message number `salt`."""
    return BODY[salt % 100 : salt % 100 + n]


class History:
    """A journal, and a model of the messages that it must hold."""

    def __init__(self, sectors, policy, seed):
        self.flash = NorFlash(sectors * 4096, "esp32", seed=seed)
        self.policy = policy
        self.random = Random(seed)
        self.held = {}  # key -> (salt, length) of each complete message
        self.open = None  # the incomplete message: [key, salt, length, bytes written]
        self.doubtful = None  # (key, (salt, length)) of the operation that a power cut may interrupt
        self.refused = 0
        self.held_pieces = 0
        self.journal = None
        self.mount()

    def mount(self):
        self.journal = Journal(BlockRegion(self.flash), self.policy)
        self.open = None

    def step(self):
        what = self.random.below(20)
        journal = self.journal
        if what < 8:
            self.store(20 + self.random.below(500))
        elif what < 12:
            for _ in range(self.random.below(4)):
                if journal.low < journal.next_seq:
                    journal.finish(journal.low)
        elif what < 13:
            self.hold_whole()
        elif what < 15 and self.held:
            key = list(self.held)[self.random.below(len(self.held))]
            self.doubtful = (key, self.held.pop(key))
            journal.discard(key)
            journal.sync()
            self.doubtful = None
        elif what < 16 and self.open and self.random.below(4) == 0:
            journal.hold_abandon()
            self.open = None
        elif self.open:
            self.go_on()
        else:
            self.begin()

    def store(self, n):
        try:
            self.journal.append(content(n, n), n)
        except StoreFull:
            self.refused += 1
            assert self.journal.waiting or self.held or self.open

    def free_key(self):
        key = 1 + self.random.below(6)
        return 0 if key in self.held or (self.open and self.open[0] == key) else key

    def hold_whole(self):
        key = self.free_key()
        n = 20 + self.random.below(600)
        if key and self.journal.can_hold(n):
            self.doubtful = (key, (n, n))
            try:
                self.journal.hold(key, content(n, n), n)
            except StoreFull:
                return
            self.held[key] = (n, n)
            self.doubtful = None

    def begin(self):
        key = self.free_key()
        n = 300 + self.random.below(6500)
        if key and n <= self.journal.longest_hold() and self.journal.can_hold(n):
            try:
                self.journal.hold_begin(key, n)
            except StoreFull:
                return
            self.open = [key, n, n, 0]

    def go_on(self):
        key, salt, length, done = self.open
        n = min(1 + self.random.below(900), length - done)
        last = done + n == length
        if last:
            self.doubtful = (key, (salt, length))
        try:
            self.journal.hold_extend(content(salt, length), done, n)
        except StoreFull:
            self.journal.hold_abandon()
            self.open = self.doubtful = None
            return
        self.open[3] += n
        if last:
            self.open = self.doubtful = None
            self.held[key] = (salt, length)
            self.held_pieces += 1

    def check(self):
        journal = self.journal
        found = set(journal.held())
        assert found == set(self.held), (found, self.held)
        for key in self.held:
            salt, length = self.held[key]
            assert journal.held_length(key) == length
            got = bytearray(length)
            journal.read_held(key, 0, got, 0, length)
            assert got == content(salt, length)
        assert journal.damaged == 0 and self.flash.violations == []

    def cut(self, steps):
        """Cut the power a random number of operations later, and mount again."""
        self.flash.arm(self.flash.operations + 1 + self.random.below(30), "prefix", self.random.below(200))
        try:
            for _ in range(steps):
                self.step()
            self.flash.power_up()
        except PowerCut:
            self.flash.power_up()
            if self.doubtful:
                key, what = self.doubtful
                self.doubtful = None
                self.held.pop(key, None)
                self.mount()
                if self.journal.held_length(key):
                    self.held[key] = what
                return
        self.mount()


CASES = [(sectors, policy) for sectors in (5, 8, 16) for policy in (REFUSE, DROP_OLDEST, DROP_NEWEST)]


@pytest.mark.req("R2", "S2")
@pytest.mark.parametrize("sectors,policy", CASES)
def test_power_cut_keeps_complete_held_messages_and_discards_partial_ones(sectors, policy):
    pieces = 0
    for seed in range(1, ROUNDS + 1):
        history = History(sectors, policy, seed * 31 + sectors)
        for _ in range(6):
            for _ in range(25):
                history.step()
            history.check()
            history.cut(20)
            history.check()
        pieces += history.held_pieces
        # After all held messages are discarded, the journal accepts outgoing messages again.
        for key in list(history.held):
            history.journal.discard(key)
        history.journal.hold_abandon()
        history.journal.sync()
        while history.journal.low < history.journal.next_seq:
            history.journal.finish(history.journal.low)
        for _ in range(40):
            history.journal.append(content(1, 200), 200)
            history.journal.finish(history.journal.low)
    assert pieces > ROUNDS // 2


@pytest.mark.req("R2")
def test_incomplete_message_is_not_held_but_occupies_its_key():
    journal = Journal(BlockRegion(NorFlash(8 * 4096)))
    journal.hold_begin(7, 600)
    for n in (100, 400):  # without and with a piece that is written
        journal.hold_extend(BODY, 0, n)
        assert journal.held() == [] and journal.held_length(7) == 0
        with pytest.raises(UsageError):
            journal.hold(7, BODY, 10)
    journal.hold_begin(7, 10)  # this abandons the first message
    journal.hold_extend(BODY, 5, 10)
    got = bytearray(10)
    journal.read_held(7, 0, got, 0, 10)
    assert journal.held() == [7] and got == BODY[5:15]


@pytest.mark.req("R2")
@pytest.mark.parametrize("kind", ("journal", "ram"))
def test_bytes_that_were_not_announced_are_refused(kind):
    store = RamStore() if kind == "ram" else Journal(RamRegion(8))
    store.append(content(1, 9), 9)

    def refused(start, n):
        with pytest.raises(UsageError):
            store.hold_extend(BODY, start, n)

    refused(0, 1)  # nothing was begun
    store.hold_begin(7, 400)
    refused(0, 401)
    store.hold_extend(BODY, 0, 300)
    for start, n in ((300, 101), (300, -1), (-1, 9), (len(BODY), 1), (len(BODY) - 50, 100)):
        refused(start, n)
    store.hold_extend(BODY, 300, 100)
    assert held_messages(store) == [(7, BODY[:400])]
    refused(400, 1)
    store.hold_begin(8, 400)
    store.hold_extend(BODY, 0, 300)
    store.hold_abandon()
    refused(300, 100)
    assert held_messages(store) == [(7, BODY[:400])]


@pytest.mark.req("S2", "S6")
def test_incomplete_message_that_comes_again_after_a_clean_end_is_not_damaged():
    """A board that goes to sleep while a message arrives gets it again, with the same packet id."""
    region = RamRegion(6)
    journal = Journal(region)
    journal.hold_begin(5, 400)
    journal.hold_extend(content(1, 400), 0, 300)
    for _ in range(15):  # the next sector's header lists the incomplete message
        journal.append(content(2, 232), 232)
    journal.close()
    journal = Journal(region)
    assert journal.held() == [] and journal.damaged == 0
    journal.hold(5, content(1, 400), 400)
    for _ in range(2):
        journal = Journal(region)
        assert held_messages(journal) == [(5, content(1, 400))] and journal.damaged == 0


@pytest.mark.req("S6")
def test_message_in_pieces_beyond_the_held_limit_is_refused():
    """The last place was free at `hold_begin`, and taken when the first piece was written."""
    journal = Journal(RamRegion(8))
    for key in range(1, journal.hold_limit):
        journal.hold(key, content(key, 9), 9)
    journal.hold_begin(300, 400)
    journal.hold(400, content(1, 9), 9)
    with pytest.raises(StoreFull):
        journal.hold_extend(content(2, 400), 0, 400)
    journal.hold_abandon()
    assert len(journal.held()) == journal.hold_limit
    journal.discard(400)
    journal.hold_begin(300, 400)
    journal.hold_extend(content(2, 400), 0, 400)
    assert held_messages(journal)[-1] == (300, content(2, 400))


@pytest.mark.req("R2", "S6")
def test_incomplete_message_is_not_listed_after_its_discard_failed():
    flash = NorFlash(8 * 4096)
    journal = Journal(BlockRegion(flash))
    for key in range(1, 42):
        journal.hold(key, BODY, 2)
    journal.hold_begin(100, 600)
    journal.hold_extend(BODY, 0, 300)
    for key in range(1, 41):  # the next discard has to write these
        journal.discard(key)
    for sector in range(8):
        flash.set_bad(sector)
    with pytest.raises(StoreWorn):
        journal.hold_abandon()
    assert journal.held() == [41] and journal.held_length(100) == 0


@pytest.mark.req("R2", "S5")
@pytest.mark.parametrize("sectors", (5, 6))
def test_announced_room_is_there_although_discards_are_not_written_yet(sectors):
    announced = 0
    for n in range(4, 128, 4):
        journal = Journal(RamRegion(sectors, 1024))
        for key in range(1, 60):
            if journal.can_hold(n):
                journal.hold(key, BODY, n)
                announced += 1
            try:
                journal.append(BODY, 100)
            except StoreFull:
                journal.discard(key)
    assert announced > 200


@pytest.mark.req("R2")
def test_begun_message_takes_a_place_in_a_ram_store():
    store = RamStore(hold_limit=2)
    store.hold_begin(1, 400)
    store.hold(2, BODY, 9)
    assert not store.can_hold(9)
    with pytest.raises(StoreFull):
        store.hold(3, BODY, 9)
    store.hold_extend(BODY, 0, 400)
    assert sorted(store.held()) == [1, 2] and not store.can_hold(9)


@pytest.mark.req("S1")
@pytest.mark.parametrize("sectors", (1, 2))
def test_mount_lists_held_messages_in_the_order_of_their_first_pieces(sectors):
    region = RamRegion(8)
    journal = Journal(region)
    journal.hold_begin(1, 400)
    journal.hold_extend(BODY, 0, 300)
    journal.hold(2, BODY, 9)
    for _ in range(16 * (sectors - 1)):
        journal.append(BODY, 232)
    journal.hold_extend(BODY, 300, 100)
    journal.hold(3, BODY, 9)
    assert journal.held() == [1, 2, 3]
    assert held_messages(Journal(region)) == [(1, BODY[:400]), (2, BODY[:9]), (3, BODY[:9])]


@pytest.mark.req("R4")
def test_message_that_got_no_memory_in_a_ram_store_changes_no_other():
    class Full(list):
        full = True

        def append(self, value):
            if self.full:
                self.full = False
                raise MemoryError
            super().append(value)

    store = RamStore()
    store._keys = Full()
    with pytest.raises(MemoryError):
        store.hold(1, b"one", 3)
    assert store.held() == [] and store.held_length(1) == 0
    store.hold(1, b"one", 3)
    store.hold(2, b"two", 3)
    assert held_messages(store) == [(1, b"one"), (2, b"two")]
