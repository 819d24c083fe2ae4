"""The session over the real journal: random simulations with power cuts in the middle of flash operations.

`python -m host_tests.session.test_session_journal FIRST LAST` tries many more seeds.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    ROOT = Path(__file__).resolve().parents[2]
    sys.path[:0] = [str(ROOT), str(ROOT / "firmware"), str(ROOT / "host_tests" / "both")]

import pytest

from chips import replugged
from flashmqtt.connection import DAMAGED
from flashmqtt.errors import StoreFull
from flashmqtt.flash.block import BlockRegion
from flashmqtt.flash.ram import RamRegion
from flashmqtt.journal.journal import DROP_NEWEST, DROP_OLDEST, Journal
from flashmqtt.session.session import Session
from lossy import World
from tools.flashsim.nor import MODELS, NorFlash, PowerCut
from wire import connected, pubcomp, publish, pubrec, pubrel


class Torn(World):
    """A simulation whose store is a journal on simulated NOR flash; most power cuts tear a flash operation."""

    def __init__(self, seed: int, level: int = 4, sectors: int = 8, **options):
        self.flash = NorFlash(sectors * 4096, seed=seed)
        self.full = 0
        super().__init__(seed, Torn.open, level, **options)

    def open(self):
        """Mount; repeat this if the power is cut during the mount."""
        while True:
            try:
                return Journal(BlockRegion(self.flash))
            except PowerCut:
                self.flash = replugged(self.flash)

    def cut(self):
        """Cut the power inside one of the next flash operations, or now."""
        if self.random.below(4):
            self.flash.arm(
                self.flash.operations + 1 + self.random.below(3),
                tuple(MODELS)[self.random.below(len(MODELS))],
                self.random.below(100),
            )
        else:
            self.lose_power()

    def lose_power(self):
        self.flash = replugged(self.flash)
        if not self.random.below(4):  # a second cut during the next start
            self.flash.arm(1 + self.random.below(4), "bits", self.random.below(100))
        super().cut()

    def publish(self):
        try:
            super().publish()
        except StoreFull:
            self.maybe.pop()
            self.full += 1

    def guarded(self, action):
        try:
            action()
        except PowerCut:
            self.lose_power()

    def run(self, steps: int):
        """Simulate `steps` random events, deliver all messages, and check the results."""
        self.settle()
        for _ in range(steps):
            self.guarded(self.step)
            if self.random.below(10) == 0:
                self.guarded(self.store.idle)
        self.flash.power_up() if not self.flash.dead else self.lose_power()
        self.flash._cut_operation = 0
        self.settle()
        self.verdict()


def case(seed: int) -> Torn:
    world = Torn(seed, level=(4, 5, 3)[seed % 3], window=1 + seed % 8, broker_window=1 + seed % 6)
    world.run(500)
    return world


@pytest.mark.req("Q1", "Q2", "Q4", "Q6", "S1", "S2")
def test_power_cuts_inside_flash_operations_lose_no_message():
    worlds = [case(seed) for seed in range(60)]
    assert sum(world.cuts for world in worlds) > 100
    assert all(not world.flash.violations for world in worlds)


def damage(region: RamRegion, octets: bytes) -> None:
    """Damage every copy of these bytes in the region."""
    at = region.cells.index(octets)
    while at >= 0:
        region.cells[at] ^= 0x55
        at = region.cells.find(octets, at)


@pytest.mark.req("S2", "R5")
@pytest.mark.parametrize("qos", [1, 2])
def test_message_damaged_between_connections_is_reported_and_skipped(qos):
    region = RamRegion(8)
    store = Journal(region)
    broker = connected(store)
    handles = [broker.session.publish(b"t", b"number %d" % i, qos) for i in range(3)]
    broker.took()
    broker.drop()
    damage(region, b"number 1")
    again = broker.connect(1)
    assert again == [publish(b"t", b"number %d" % i, qos, handles[i], 1) for i in (0, 2)]
    broker.process()
    assert broker.handled[-1] == (DAMAGED, handles[1]) and store.damaged == 1


@pytest.mark.req("S2", "R5")
@pytest.mark.parametrize("present", [0, 1])
def test_damaged_held_message_is_counted_and_skipped(present):
    region = RamRegion(8)
    store = Journal(region)
    broker = connected(store)
    broker.give(*[publish(b"t", b"number %d" % i, 2, i) for i in (7, 8, 9)])
    assert broker.took() == [pubrec(i) for i in (7, 8, 9)]
    broker.drop()
    damage(region, b"number 8")
    broker.connect(present)
    if present:
        broker.give(pubrel(7), pubrel(8), pubrel(9))
        assert broker.took() == [pubcomp(i) for i in (7, 8, 9)]
    broker.process()
    assert [message[1] for message in broker.messages] == [b"number 7", b"number 9"]
    broker.process()
    assert store.damaged == 1 and not store.held()
    store.flush()
    assert Journal(RamRegion(8, cells=region.cells)).damaged == 1


@pytest.mark.req("S2", "R5")
@pytest.mark.parametrize("policy", [DROP_OLDEST, DROP_NEWEST])
def test_messages_dropped_before_a_mount_are_not_reported_as_delivered(policy):
    region = RamRegion(4, 1024)
    store = Journal(region, policy)
    broker = connected(store)
    broker.drop()
    published = [broker.session.publish(b"t", b"x" * 100, 1) for _ in range(100)]
    assert store.dropped > 0
    store = Journal(RamRegion(4, 1024, cells=region.cells), policy)
    session = Session(store)
    assert not any(session.delivered(handle) for handle in published)


if __name__ == "__main__":
    cuts = 0
    for number in range(int(sys.argv[1]), int(sys.argv[2])):
        try:
            cuts += case(number).cuts
        except Exception as error:
            print(number, type(error).__name__, str(error)[:300])
    print("power cuts:", cuts)
