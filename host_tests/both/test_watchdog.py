"""Long operations feed the watchdog in time, also after any power cut. The simulated chip takes the data sheet's maximum times.

The TLS handshake is tested in `host_tests/client/test_tls.py`, because it needs a broker.
"""

import sys

import pytest

from app import clock
from chips import replugged
from fake_board import load_board
from flashmqtt import link
from flashmqtt.backoff import Backoff
from flashmqtt.client import Client
from flashmqtt.flash.block import BlockRegion
from flashmqtt.journal.journal import Journal
from tools.flashsim.nor import NorFlash, PowerCut

ON_MICROPYTHON = sys.implementation.name == "micropython"
BITES_MS = 8388  # the longest timeout of a Pico's watchdog
READ_MS = 1  # upper bound to read and process a page; measured on the chip: 0.3
SECTOR = 4096

if ON_MICROPYTHON:
    import gc

    import vfs

    from flashmqtt.flash.pinned import open_or_pin


class Watchdog:
    """Records the longest time between two feeds, by the clock of a simulated chip."""

    def __init__(self, flash):
        self.flash = flash
        self.feeds = self.longest_ms = 0
        self._fed_ms = self._now()

    def _now(self):
        return self.flash.worst_ms + self.flash.reads * READ_MS

    def __call__(self):
        now = self._now()
        self.longest_ms = max(self.longest_ms, now - self._fed_ms)
        self._fed_ms = now
        self.feeds += 1


def _mount(flash, expected_ms):
    """Mount, and assert that the watchdog is fed in time; return the journal."""
    dog = Watchdog(flash)
    journal = Journal(BlockRegion(flash), feed=dog)
    dog()
    assert dog.longest_ms < expected_ms, dog.longest_ms
    assert dog.feeds > 2
    return journal


def _use(journal, n, at=0):
    """Store n messages of several lengths; between them finish messages, and hold and discard others."""
    body = bytearray(700)
    for i in range(at, at + n):
        journal.append(body, 20 + i * 37 % 600)
        if i % 3:
            journal.finish(journal.low)
        if i % 7 == 0 and not journal.held_length(1 + i % 5):
            journal.hold(1 + i % 5, body, 100)
        elif i % 7 == 3:
            journal.discard(1 + (i - 3) % 5)
            journal.sync()


# The tests with the largest chips come first: later MicroPython's heap has no free block of that size.


class Board:
    """A chip with stock firmware's file system on it."""

    def __init__(self, sectors):
        try:
            vfs.umount("/watched")
        except (OSError, PowerCut):
            pass
        gc.collect()
        self.flash = NorFlash(sectors * SECTOR)
        vfs.VfsLfs2.mkfs(self.flash, progsize=256)
        self.mount()

    def mount(self):
        try:
            vfs.umount("/watched")
        except (OSError, PowerCut):
            pass
        gc.collect()
        vfs.mount(vfs.VfsLfs2(self.flash, progsize=256), "/watched")

    def replug(self):
        self.flash.dead = True
        try:
            vfs.umount("/watched")
        except (OSError, PowerCut):
            pass
        gc.collect()
        self.flash = replugged(self.flash)
        self.mount()

    def open(self, count):
        """Open or pin the region as a board's `journal_region` does; the mount of the file system is not measured."""
        dog = Watchdog(self.flash)
        region = open_or_pin(self.flash, "/journal", count, "/watched", 256, feed=dog)
        dog()
        assert dog.longest_ms < BITES_MS // 2, dog.longest_ms
        return region, dog


@pytest.mark.req("B4")
def test_first_pinning_and_next_start_feed_the_watchdog():
    if not ON_MICROPYTHON:
        pytest.skip("only MicroPython has VfsLfs2")
    board = Board(22)
    region, dog = board.open(13)
    assert dog.feeds > 13
    board.replug()
    region, dog = board.open(13)
    assert dog.feeds > 13
    dog = Watchdog(board.flash)
    Journal(region, feed=dog)
    dog()
    assert dog.longest_ms < BITES_MS // 2


@pytest.mark.req("B4")
def test_pinning_feeds_the_watchdog_after_any_power_cut():
    if not ON_MICROPYTHON:
        pytest.skip("only MicroPython has VfsLfs2")
    count = 6
    board = Board(20)
    before = board.flash.operations
    board.open(count)
    end = board.flash.operations - before
    for i in range(1, end + 1):
        board = region = None
        board = Board(20)
        board.flash.arm(board.flash.operations + i, "prefix", i * 7)
        try:
            board.open(count)
        except PowerCut:
            pass
        board.replug()
        region = board.open(count)[0]
        assert region.sectors == count


@pytest.mark.req("B4")
def test_mount_of_the_largest_blank_region_feeds_the_watchdog():
    _mount(NorFlash((12 if ON_MICROPYTHON else 400) * SECTOR), 500)


@pytest.mark.req("B4")
@pytest.mark.parametrize("model", ["prefix", "bits"])
def test_mount_feeds_the_watchdog_after_any_power_cut(model):
    flash = NorFlash(10 * SECTOR)
    _use(_mount(flash, 2000), 60)
    start = flash.snapshot()
    operations = flash.operations
    _use(Journal(BlockRegion(flash)), 40, 60)
    end = flash.operations - operations
    flash.restore(start)
    for i in range(1, end, 1 if ON_MICROPYTHON else 2):
        flash.restore(start)
        flash.arm(flash.operations + i, model, i)
        with pytest.raises(PowerCut):
            _use(Journal(BlockRegion(flash)), 40, 60)
        flash.power_up()
        _mount(flash, 2000)


@pytest.mark.req("B4")
def test_mounted_journal_no_longer_feeds_the_watchdog():
    flash = NorFlash(8 * SECTOR)
    region = BlockRegion(flash)
    dog = Watchdog(flash)
    journal = Journal(region, feed=dog)
    feeds = dog.feeds
    journal.append(b"message", 7)
    assert journal.region is region and dog.feeds == feeds


# --- name lookup ---


class _Resolver:
    """A fake of the module `socket`: its name lookup takes some ticks of a timer, and then fails."""

    AF_INET, SOCK_STREAM, SOCK_DGRAM = 2, 1, 2

    def __init__(self, machine, ticks):
        self.machine = machine
        self.ticks = ticks

    def getaddrinfo(self, *_arguments):
        for _ in range(self.ticks):
            self.machine.simulated.tick()
        raise OSError(-6)


def _look_up(host, ticks, machine):
    """Attempt a connection; return how often the watchdog was fed during it."""
    client = Client(host, client_id="a", backoff=Backoff(base_ms=100000))
    feeds = []
    client.link.feed = lambda: feeds.append(1)
    original = link.socket
    link.socket = _Resolver(machine, ticks)
    try:
        client.start()
        for _ in range(3):
            client.poll(0)
    finally:
        link.socket = original
    assert isinstance(client.link.error, OSError)
    return len(feeds)


def _ask_time(host, ticks, machine):
    """Ask a time server; return how often the watchdog was fed during it."""
    feeds = []
    network_time = clock.NetworkTime(clock.Uptime(), host, feed=lambda: feeds.append(1))
    original = clock.socket
    clock.socket = _Resolver(machine, ticks)
    try:
        assert not network_time.turn() and network_time.asked == 1 and not network_time.waiting
    finally:
        clock.socket = original
    return len(feeds)


@pytest.mark.parametrize("look_up", [_look_up, _ask_time])
@pytest.mark.req("B4")
def test_timer_feeds_watchdog_during_name_lookup_for_limited_time(look_up):
    board = load_board("rp2")
    sys.modules["machine"] = machine = board.machine
    try:
        assert look_up("broker.local", 28, machine) == 29  # 14 s: two name servers that do not answer
        assert machine.simulated.timers == []
        assert look_up("broker.local", 1000, machine) == 41  # the lookup hangs: the watchdog must reset the board
        assert machine.simulated.timers == []
        assert look_up("192.0.2.1", 28, machine) == 0  # an address needs no lookup
    finally:
        del sys.modules["machine"]
        sys.modules.pop("flashmqtt.guard", None)


@pytest.mark.parametrize("look_up", [_look_up, _ask_time])
@pytest.mark.req("B4")
def test_name_lookup_without_timer_feeds_the_watchdog_once(look_up):
    board = load_board("rp2")
    machine = board.machine
    machine.simulated.registers["chip"] = "other"

    class Bare:
        def Timer(self, _number):  # noqa: N802
            raise ValueError("no such timer")

    sys.modules["machine"] = Bare()
    try:
        assert look_up("broker.local", 28, machine) == 1
    finally:
        del sys.modules["machine"]
        sys.modules.pop("flashmqtt.guard", None)
