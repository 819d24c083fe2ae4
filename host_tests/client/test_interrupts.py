"""Ctrl-C at every place where an interpreter can raise it, in a program that goes on (R4).

CPython raises KeyboardInterrupt when a function begins, after a call of C code and after a backward jump; MicroPython after every
jump. A trace function raises it at one of these places a run; the broker sends again what a new connection has to bring.
"""

from __future__ import annotations

import dis
import signal
import sys
from itertools import count
from pathlib import Path

import pytest

import flashmqtt
from flashmqtt.backoff import Backoff
from flashmqtt.errors import UsageError
from loopback import Loopback, poll_until
from test_client import client
from test_client_redelivery import Lenient
from wire import publish, pubrel

LIBRARY = str(Path(flashmqtt.__file__).parent)
AFTER = {
    op for name, op in dis.opmap.items() if "JUMP" in name or name in ("FOR_ITER", "RESUME", "CALL", "CALL_FUNCTION_EX")
}

# How many places are expected at least: since 3.12, CPython reports only some opcodes to a trace function.
PLACES = 50 if sys.version_info < (3, 12) else 1


class Interrupt:
    """Raises KeyboardInterrupt at place number `at` of the library; `place` says where that was, None: nowhere."""

    def __init__(self, at: int) -> None:
        self.left = at
        self.place = None
        self._last = {}

    def __enter__(self):
        sys.settrace(self._enter)
        return self

    def __exit__(self, *_):
        sys.settrace(None)

    def _enter(self, frame, event, arg):
        if frame.f_back in self._last:
            self._last[frame.f_back] = 0  # that was a call of Python code
        if not frame.f_code.co_filename.startswith(LIBRARY):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._trace

    def _trace(self, frame, event, arg):
        if event == "return":
            self._last.pop(frame, None)
        elif event == "opcode":
            last = self._last.get(frame, 0)
            self._last[frame] = frame.f_code.co_code[frame.f_lasti]
            if last in AFTER:
                self.left -= 1
                if self.left == 0:
                    sys.settrace(None)
                    self.place = f"{frame.f_code.co_filename}:{frame.f_lineno} after {dis.opname[last]}"
                    raise KeyboardInterrupt
        return self._trace


class Called(Interrupt):
    """Calls a function at this place, as a signal's handler does, instead of raising KeyboardInterrupt."""

    def __init__(self, at: int, function) -> None:
        super().__init__(at)
        self._function = function

    def _trace(self, frame, event, arg):
        try:
            return super()._trace(frame, event, arg)
        except KeyboardInterrupt:
            self._function()
            return None


class Resuming(Lenient):
    """Also continues the flow of the one QoS 2 message."""

    released = False

    def take(self, one):
        super().take(one)
        kind = one[0] >> 4
        if kind in {5, 7}:
            self.released = kind == 5
        if self.released and kind in (1, 5):
            self.give(pubrel(1))


def run(mqtt, interrupt, begin, done) -> None:
    with interrupt:
        for call in (begin, lambda: mqtt.poll(0)):
            try:
                call()
            except KeyboardInterrupt:
                pass
    poll_until(mqtt, done, 1)


def receive(qos: int, raises: bool, interrupt: Interrupt) -> None:
    broker = Resuming()
    mqtt = client(broker, backoff=Backoff(1, 1), attempts=1)
    taken = []
    errors = []

    def handler(message):
        if raises and not errors:
            raise ValueError
        taken.append(message.payload)

    mqtt.on_message = handler
    mqtt.on_error = lambda error, message: errors.append(error)
    mqtt.connect()
    broker.waiting[1] = publish(b"a", b"1", qos, 1)
    broker.give(broker.waiting[1])
    run(
        mqtt,
        interrupt,
        lambda: mqtt.poll(0),
        lambda: not (broker.waiting or broker.released) and (taken or mqtt.failed),
    )
    mqtt.disconnect()
    assert taken == [b"1"] * len(taken)
    assert len(taken) + mqtt.failed >= 1 and (qos == 1 or len(taken) <= 1), interrupt.place
    broker.close()


def publish_long(qos: int, interrupt: Interrupt) -> None:
    broker = Loopback()
    broker.present = 1
    mqtt = client(broker, backoff=Backoff(1, 1), buffer_bytes=128)
    mqtt.connect()
    payload = b"\x30\x03\x00\x01b" * 50
    run(mqtt, interrupt, lambda: mqtt.publish("a", payload, qos), lambda: not mqtt.pending)
    mqtt.disconnect()
    wanted = publish(b"a", payload, qos, 1)
    for one in broker.of(3):
        assert bytes((one[0] & 0xF7,)) + one[1:] == wanted, interrupt.place
    broker.close()


@pytest.mark.req("Q3", "Q4", "R4", "W13")
@pytest.mark.parametrize("case", ["receive", "handler raises", "publish"])
@pytest.mark.parametrize("qos", [1, 2])
def test_client_continues_after_ctrl_c_at_any_place(case, qos):
    places = 0
    for at in count(1):
        interrupt = Interrupt(at)
        if case == "publish":
            publish_long(qos, interrupt)
        else:
            receive(qos, case != "receive", interrupt)
        if not interrupt.place:
            break
        places += 1
    assert places > PLACES


@pytest.mark.req("R4")
def test_signal_handler_that_disconnects_ends_a_wait_at_any_place():
    for at in count(1):
        broker = Loopback()
        mqtt = client(broker)
        mqtt.connect()
        refused = []

        def disconnect(mqtt=mqtt, refused=refused):
            try:
                mqtt.disconnect()
            except UsageError as error:  # not allowed while the client works
                refused.append(error)

        called = Called(at, disconnect)
        with called:
            assert mqtt.poll(20) == 0
        assert mqtt.connected == (not called.place or bool(refused)), called.place
        mqtt.disconnect()
        broker.close()
        if not called.place:
            break
    assert at > PLACES


@pytest.mark.req("R4")
def test_signal_handler_that_disconnects_during_the_system_call_ends_the_wait():
    broker = Loopback()
    mqtt = client(broker)
    mqtt.connect()
    mqtt.link.feed = None
    before = signal.signal(signal.SIGALRM, lambda *_: mqtt.disconnect(0.1))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        while mqtt.connected:
            mqtt.poll(1000)
    finally:
        signal.signal(signal.SIGALRM, before)
    broker.close()
