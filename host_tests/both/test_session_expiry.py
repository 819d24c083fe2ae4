"""Message Expiry Interval counts down while a message is stored; an expired message is not sent, and is reported (W12, R5)."""

import pytest

from flashmqtt.codec.properties import MESSAGE_EXPIRY_INTERVAL, USER_PROPERTY, pack
from flashmqtt.connection import EXPIRED
from flashmqtt.session import expiry
from flashmqtt.session.expiry import Expiry
from test_session_level5 import Peer5, ack, publish
from wire import CutStore


class Clock(Expiry):
    """An Expiry whose uptime and clock a test sets."""

    def __init__(self, store, clock=0):
        super().__init__(store)
        self.uptime = 0
        self.clock = clock

    def uptime_s(self):
        return self.uptime

    def clock_s(self):
        return self.clock

    def pass_(self, seconds):
        self.uptime += seconds
        if self.clock:
            self.clock += seconds


def board(store, clock=0):
    broker = Peer5(store)
    broker.clock = broker.connection.five.expiry = Clock(store, clock)
    return broker


def block(seconds, more=False):
    interval = (MESSAGE_EXPIRY_INTERVAL, seconds)
    return pack(3, [(USER_PROPERTY, ("a", "b")), interval] if more else [interval])


def expired(broker):
    broker.process()
    return [handle for event, handle in broker.handled if event == EXPIRED]


@pytest.mark.req("W12")
@pytest.mark.parametrize("qos", [1, 2])
def test_remaining_expiry_interval_is_sent(qos):
    broker = board(CutStore())
    handle = broker.session.publish(b"a", b"x", qos, False, block(100))
    broker.clock.pass_(30)
    assert broker.connect(1) == [publish(b"a", b"x", qos, handle, properties=block(70))]
    broker.drop()
    broker.clock.pass_(30)
    assert broker.connect(1) == [publish(b"a", b"x", qos, handle, dup=1, properties=block(40))]


@pytest.mark.req("W12", "R5")
@pytest.mark.parametrize("qos", [1, 2])
def test_expired_message_is_not_sent_and_is_reported(qos):
    broker = board(CutStore())
    late = broker.session.publish(b"a", b"late", qos, False, block(100))
    good = broker.session.publish(b"a", b"good", qos, False, block(200))
    broker.clock.pass_(100)
    assert broker.connect(1) == [publish(b"a", b"good", qos, good, properties=block(100))]
    assert expired(broker) == [late] and not broker.session.delivered(late)
    assert broker.session.is_done(late) and broker.session.store.dropped == 1
    broker.drop()
    assert not broker.session.store.cut().is_finished(good)


@pytest.mark.req("W12", "Q2")
@pytest.mark.clause("MQTT-4.3.3-7")
def test_expired_message_in_flight_is_retransmitted_only_at_qos_2():
    broker = board(CutStore())
    handles = [broker.session.publish(b"a", b"x", qos, False, block(100)) for qos in (2, 1)]
    assert len(broker.connect(1)) == 2
    broker.drop()
    broker.clock.pass_(101)
    assert broker.connect(1) == [publish(b"a", b"x", 2, handles[0], dup=1, properties=block(1))]
    assert expired(broker) == [handles[1]]


@pytest.mark.req("W12", "S1")
@pytest.mark.parametrize(
    ("before", "after", "left"),
    [
        (5000, 5060, 40),  # the clock was set at both moments
        (5000, 0, 90),  # the clock is not set since the reboot, 10 s ago
        (0, 5060, 90),
        (0, 0, 90),
        (5000, 4000, 90),  # the clock was set back
        (5000, 5200, 0),
    ],
)
def test_expiry_counts_time_across_reboot_if_clock_was_set(before, after, left):
    broker = board(CutStore(), before)
    handle = broker.session.publish(b"a", b"x", 1, False, block(100))
    broker = board(broker.session.store.cut(), after)
    broker.clock.uptime = 10
    sent = broker.connect(1)
    assert sent == ([publish(b"a", b"x", 1, handle, dup=1, properties=block(left))] if left else [])
    assert expired(broker) == ([] if left else [handle])


@pytest.mark.req("W12")
def test_expiry_interval_counts_down_further_in_a_client_that_takes_the_store_over():
    first = Peer5(CutStore())
    handle = first.session.publish(b"a", b"x", 1, False, block(200))
    first.connection.five.expiry._uptime_ms += 100_000
    second = Peer5(first.session.store)
    assert second.connect(1) == [publish(b"a", b"x", 1, handle, dup=1, properties=block(100))]


@pytest.mark.req("W12")
def test_expiry_countdown_changes_nothing_else_in_messages():
    broker = Peer5(CutStore(), out_bytes=128, packet_bytes=128)
    broker.clock = broker.connection.five.expiry = Clock(broker.session.store)
    broker.session.publish(b"t" * 70, b"y" * 500, 1, True, block(100, True))
    broker.session.publish(b"a", b"z", 1, False, pack(3, {USER_PROPERTY: ("c", "d")}))
    broker.clock.pass_(1)
    assert broker.connect(1) == [
        publish(b"t" * 70, b"y" * 500, 1, 2, retain=1, properties=block(99, True)),
        publish(b"a", b"z", 1, 3, properties=pack(3, {USER_PROPERTY: ("c", "d")})),
    ]
    broker.give(ack(0x40, 2), ack(0x40, 3))
    assert broker.session.store.waiting == 0


@pytest.mark.req("W12")
def test_expiry_interval_0_is_sent_as_1_second():
    broker = board(CutStore())
    broker.connect(1)
    broker.session.publish(b"a", b"x", 1, False, block(0))
    assert broker.took() == [publish(b"a", b"x", 1, 2, properties=block(1))]


class Ticking:
    """Replaces `time` and `ticks_ms` of the module: a clock in whole seconds, and ticks that wrap as on a board."""

    def __init__(self, seconds):
        self.seconds = seconds
        self.ms = 0

    def time(self):
        return self.seconds + self.ms // 1000

    def ticks_ms(self):
        return self.ms & ((1 << 30) - 1)


@pytest.mark.parametrize("step_ms", [50, 700, 1500, 9700, 3_000_000, 1_500_000_000, 4_000_000_000])
@pytest.mark.req("W12")
def test_uptime_is_exact_however_often_it_is_asked(step_ms):
    real = expiry.time, expiry.ticks_ms
    expiry.time = ticking = Ticking(700_000_000)
    expiry.ticks_ms = ticking.ticks_ms
    try:
        clocks = Expiry(CutStore())
        for _ in range(200):
            ticking.ms += step_ms
            assert clocks.uptime_s() == ticking.ms // 1000
    finally:
        expiry.time, expiry.ticks_ms = real


@pytest.mark.req("W12")
def test_uptime_continues_when_clock_is_set_or_ticks_wrap():
    clocks = Expiry(CutStore())
    clocks._time -= 30 * 365 * 86400  # as after the clock was set 30 years ahead
    assert clocks.uptime_s() < 10
    clocks._ticks = (clocks._ticks - 5000) & ((1 << 30) - 1)
    clocks._time -= 5
    assert 5 <= clocks.uptime_s() < 15
    clocks._time -= (1 << 30) // 1000  # as after one wrap of the ticks
    assert (1 << 30) // 1000 <= clocks.uptime_s() < (1 << 30) // 1000 + 20
