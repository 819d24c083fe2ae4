"""The session over a small journal that is nearly always full, with each drop policy and windows of 1, 8 and 32.

QoS 2 arrives at most once and in order; only received messages are reported as delivered; each loss is counted or reported.
`python -m host_tests.session.test_session_full FIRST LAST` tries many more seeds.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    ROOT = Path(__file__).resolve().parents[2]
    sys.path[:0] = [
        str(ROOT),
        str(ROOT / "firmware"),
        str(ROOT / "host_tests" / "both"),
        str(ROOT / "host_tests" / "session"),
    ]

import pytest

from chips import replugged
from flashmqtt.connection import DELIVERED, IN_DOUBT, OPEN
from flashmqtt.errors import ConnectionLost, StoreFull
from flashmqtt.flash.block import BlockRegion
from flashmqtt.journal.journal import DROP_NEWEST, DROP_OLDEST, REFUSE, Journal
from host_tests.session.test_session_journal import Torn
from lossy import _number, firsts, missing
from tools.flashsim.nor import PowerCut


class Full(Torn):
    """A Torn simulation whose application publishes more than its journal accepts."""

    def __init__(self, seed: int, policy: int, cuts: bool, busy: int, sectors: int, **options):
        self.policy = policy
        self.with_cuts = cuts
        self.busy = busy  # percentage of steps that publish
        self.handles = {}  # handle -> (qos, payload) since the last start
        self.names = {}  # handle -> (qos, payload) since the first start
        self.called_delivered = set()
        self.in_doubt = set()
        self.lost = self.counted = 0
        self.store = None
        super().__init__(seed, sectors=sectors, **options)
        self.open_store = Full.mount

    def mount(self):
        """Mount with the policy; repeat this if the power is cut during the mount."""
        while True:
            try:
                return Journal(BlockRegion(self.flash), self.policy)
            except PowerCut:
                self.flash = replugged(self.flash)

    def boot(self):
        self.open_store = Full.mount
        if self.store:
            self.lost += self.store.dropped + self.store.damaged - self.counted
        self.handles = {}
        super().boot()
        self.counted = self.store.dropped + self.store.damaged
        process = self.connection.process

        def noted(now_ms):
            event = process(now_ms)
            if event == DELIVERED:
                self.called_delivered.add(self.names.get(self.session.handle))
            elif event == IN_DOUBT:
                self.in_doubt.add(self.session.handle)
            return event

        self.connection.process = noted

    def publish(self):
        self.count += 1
        qos = 1 + (self.random.below(4) > 0)
        payload = b"%d." % self.count + b"." * self.random.below(90)
        if self.random.below(30) == 0:
            payload += b"." * 300  # longer than the buffers
        self.maybe.append((qos, payload))
        try:
            handle = self.session.publish(b"t", payload, qos)
        except StoreFull:
            handle = 0
        self.maybe.remove((qos, payload))
        if handle:
            self.published.append((qos, payload))
            self.handles[handle] = self.names[handle] = (qos, payload)
        self.check()
        self.may_lose(lambda: self.connection.pump(self.now))

    def check(self):
        for handle, one in self.handles.items():
            assert one in self.broker.received or not self.session.delivered(handle), (
                "reported as delivered, but not received",
                handle,
                one,
            )

    def may_lose(self, action):
        """Call `action`, which may raise ConnectionLost because a partly sent message was dropped."""
        try:
            action()
        except ConnectionLost:
            self.drop()

    def step(self):
        self.now += self.random.below(5)
        choice = self.random.below(100)
        if choice < self.busy:
            self.publish()
        elif choice < self.busy + 5:
            self.inbound()
        elif choice < self.busy + 5 + (95 - self.busy) * 4 // 10:
            self.may_lose(self.move_up)
        elif choice < 92:
            self.may_lose(self.move_down)
        elif choice < 96:
            self.connect()
        elif choice < 98:
            self.drop()
        elif self.with_cuts:
            self.cut()

    def settle(self):
        for turn in range(50000):
            self.now += 1
            self.connect()
            if turn % 20 == 0:
                self.now += 600
                self.check_time()
            self.may_lose(self.move_up)
            self.may_lose(self.move_down)
            self.may_lose(self.process)
            broker = self.broker
            busy = self.up or broker.output or broker.flying or broker.queue or self.connection.output.end
            if not busy and not self.session.store.waiting and self.connection.state == OPEN:
                return
        raise AssertionError("messages are not delivered in time: pending %d" % self.session.store.waiting)

    def verdict(self):
        self.check()
        assert not self.called_delivered - set(self.broker.received) - {None}
        gone = 0
        for qos in (1, 2):
            got = [payload for q, payload in self.broker.received if q == qos]
            assert qos == 1 or len(set(got)) == len(got), ("twice", missing([], got))
            got = firsts(got)
            wanted = sorted((one[1] for one in self.published + self.maybe if one[0] == qos), key=_number)
            assert got == [payload for payload in wanted if payload in set(got)], ("order", missing(wanted, got))
            gone += sum(q == qos and payload not in set(got) for q, payload in self.published)
        self.lost += self.store.dropped + self.store.damaged - self.counted
        assert gone <= self.lost + len(self.in_doubt), ("lost", gone, "reported", self.lost, len(self.in_doubt))
        self.published = self.broker.received = self.maybe = []  # World then checks only messages to the client
        super().verdict()


def case(seed: int) -> Full:
    world = Full(
        seed,
        (DROP_OLDEST, DROP_OLDEST, DROP_NEWEST, REFUSE)[seed % 4],
        seed % 3 > 0,
        (20, 50, 75)[seed // 7 % 3],
        (4, 5, 6, 8)[seed // 5 % 4],
        level=(4, 5, 3)[seed // 4 % 3],
        window=(1, 8, 32)[seed // 2 % 3],
        broker_window=1 + seed % 6,
    )
    world.run(500)
    return world


@pytest.mark.req("Q1", "Q2", "Q4", "R5", "S1", "S2")
def test_full_journal_counts_or_reports_every_lost_message():
    worlds = [case(seed) for seed in range(60)]
    assert sum(world.store.dropped > 0 for world in worlds) > 20
    assert sum(len(world.in_doubt) for world in worlds) > 20


if __name__ == "__main__":
    for number in range(int(sys.argv[1]), int(sys.argv[2])):
        try:
            case(number)
        except Exception as error:
            print(number, type(error).__name__, str(error)[:300])
