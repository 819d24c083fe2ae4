"""Ctrl-C at each line of a function, and then the program goes on. (MicroPython has no trace that could do the same.)"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator

import pytest

from flashmqtt.client import Client
from flashmqtt.deferred import Deferred
from flashmqtt.session import inbound
from flashmqtt.session.ram import RamStore
from host_tests.both.loopback import poll_until
from host_tests.both.test_client import connected
from host_tests.both.wire import connected as peer
from host_tests.both.wire import id_of, in_flight, puback, publish, pubrel


def lines(function: Callable) -> Iterator[int]:
    """Yield the lines of a function that can be interrupted."""
    first = function.__code__.co_firstlineno
    yield from sorted({line for _, _, line in function.__code__.co_lines() if line and line > first})


def interrupted(function: Callable, at: int, call: Callable, *arguments: object) -> bool:
    """Make a call that is interrupted when `function` comes to this line; return whether it was."""

    def trace(frame, event: str, _):
        if frame.f_code is not function.__code__:
            return trace if event == "call" else None
        if event == "line" and frame.f_lineno == at:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        call(*arguments)
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


@pytest.mark.req("Q1", "R4")
@pytest.mark.parametrize("at", lines(inbound.show))
def test_message_after_an_interrupted_held_one_has_its_own_content(at):
    broker = peer()
    broker.give(publish(b"t", b"two - QoS 2", 2, 2), publish(b"t", b"one", 1, 1))
    broker.took()
    if interrupted(inbound.show, at, broker.give, pubrel(2)):
        broker.session.busy = False  # what the link does
        broker.session.leave_unacknowledged()
        broker.took()
    broker.give(publish(b"t", b"six", 1, 3))
    assert broker.messages[-1][1] == b"six" and broker.took()[-1] == puback(3)


@pytest.mark.req("Q1", "S1")
@pytest.mark.parametrize("packet_id", [2, 3, 4])
@pytest.mark.parametrize("at", lines(RamStore.finish))
def test_interrupted_finish_of_a_message_leaves_nothing_that_can_not_be_sent(at, packet_id):
    broker = in_flight(1, store=RamStore())
    others = [broker.session.publish(b"a", b"%d" % n, 1) for n in range(3)]
    broker.connection.pump(0)
    broker.took()
    interrupted(RamStore.finish, at, broker.give, puback(packet_id))
    for _ in range(2):
        broker.drop()
        broker.connect(present=1)
    assert not broker.session.is_done(others[-1])
    broker.give(*[puback(n) for n in range(2, 6)])
    assert broker.session.pending() == 0


@pytest.mark.req("Q1", "R4")
@pytest.mark.parametrize("at", lines(Deferred.failed_now))
def test_message_whose_failure_was_interrupted_comes_again(at):
    broker, mqtt = connected()
    broker.present = 1
    seen = []

    def handle(message):
        seen.append(message.payload)
        if len(seen) == 1:
            raise ValueError

    mqtt.on_message = handle
    mqtt.on_error = lambda error, message: None
    mqtt.load_waiting()
    broker.give(publish(b"a", b"1", 1, 1))
    interrupted(Deferred.failed_now, at, poll_until, mqtt, lambda: seen)
    poll_until(mqtt, lambda: mqtt.connected)
    if len(seen) == 1 and not mqtt.session.waiting.entries:
        broker.give(publish(b"a", b"1", 1, 1, dup=1))  # on the next connection
    poll_until(mqtt, lambda: len(seen) > 1)
    poll_until(mqtt, lambda: any(one[0] >> 4 == 4 and id_of(one) == 1 for one in broker.packets))
    mqtt.disconnect()


@pytest.mark.req("S1", "R4")
def test_interrupted_publish_does_not_refuse_later_ones():
    count = 0
    for at in lines(Client.publish):
        _, mqtt = connected()
        mqtt.publish("a", b"0", 1)
        count += interrupted(Client.publish, at, mqtt.publish, "a", b"1", 1)
        # `finally` does not cover its own statement, nor (in CPython) the line of a `try` inside it.
        if _line(Client.publish, at) not in ("session.busy = False", "try:"):
            assert mqtt.publish("a", b"2", 1)
        mqtt.disconnect()
    assert count > 20


def _line(function: Callable, number: int) -> str:
    source, first = inspect.getsourcelines(function)
    return source[number - first].strip()


@pytest.mark.req("R1")
def test_subclass_that_replaces_poll_is_not_called_by_the_client_itself():
    broker, mqtt = connected()
    calls = []

    class Counting(Client):
        def poll(self, timeout_ms=0):
            calls.append(timeout_ms)
            assert timeout_ms >= 0
            return super().poll(timeout_ms)

    mine = Counting("127.0.0.1", broker.port, "me", feed=broker, timeout_s=30)
    mqtt.disconnect()
    mine.connect()
    mine.publish("a", b"1", 1)
    assert mine.drain(30) and calls == []
    assert mine.poll() == 0 and calls == [0]
    mine.disconnect()
