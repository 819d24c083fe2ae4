"""Ctrl-C at each line of a function, and then the program goes on. (MicroPython has no trace that could do the same.)"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import sys
from collections.abc import Callable

import pytest

from flashmqtt.client import Client
from flashmqtt.connection import Connection
from flashmqtt.deferred import Deferred
from flashmqtt.errors import ConnectionLost, DeadlineExpired, StoreWorn, UsageError
from flashmqtt.flash.ram import RamRegion
from flashmqtt.journal.held import Held
from flashmqtt.journal.journal import Journal
from flashmqtt.journal.pieces import Pieces
from flashmqtt.link import Link
from flashmqtt.session import inbound, pieces
from flashmqtt.session.inbound import Inbound
from flashmqtt.session.ram import RamStore
from flashmqtt.session.session import Session
from flashmqtt.session.waiting import WaitingQueue
from host_tests.both.loopback import poll_until
from host_tests.both.stored import held_messages, message
from host_tests.both.test_client import client, connected
from host_tests.both.test_client_redelivery import Prompt
from host_tests.both.wire import connected as peer
from host_tests.both.wire import id_of, in_flight, puback, pubcomp, publish, pubrec, pubrel


def lines(function: Callable) -> list[int]:
    """Return the lines of a function that can be interrupted."""
    first = function.__code__.co_firstlineno
    return sorted({line for _, _, line in function.__code__.co_lines() if line and line > first})


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


def _line(function: Callable, number: int) -> str:
    source, first = inspect.getsourcelines(function)
    return source[number - first].strip()


def jumps(function: Callable) -> list[int]:
    """Return the lines at which Ctrl-C can raise on a board: those with a jump, or after a call."""
    heads = ("if ", "while ", "for ", "return", "break", "self._write", "self._open", "self._put", "journal._write")
    return [at for at in lines(function) if _line(function, at).startswith(heads)]


@pytest.mark.req("Q1", "R4")
@pytest.mark.parametrize("at", lines(inbound.show))
def test_message_after_an_interrupted_held_one_has_its_own_content(at):
    broker = peer()
    broker.give(publish(b"t", b"two - QoS 2", 2, 2), publish(b"t", b"one", 1, 1))
    broker.took()
    if interrupted(inbound.show, at, broker.give, pubrel(2)):
        broker.session.busy = False  # what the link does
        broker.session.handed = 0
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
    assert broker.session.store.waiting == 0


@pytest.mark.req("Q2", "S1")
@pytest.mark.parametrize("n", [1, 2, 3])
def test_interrupted_finish_publishes_no_qos_2_message_a_second_time(n):
    count = 0
    for at in jumps(RamStore.finish):
        broker = in_flight(2, store=RamStore(), window=8)
        for number in range(n):
            broker.session.publish(b"a", b"%d" % number, 2)
        ids = range(2, 3 + n)
        broker.took()
        broker.give(*[pubrec(i) for i in ids])
        broker.took()
        broker.give(*[pubcomp(i) for i in ids if i > 2])
        count += interrupted(RamStore.finish, at, broker.give, pubcomp(2))
        broker.drop()
        assert not [one for one in broker.connect(present=1) if one[0] >> 4 == 3]
        broker.give(*[pubcomp(i) for i in ids])
        assert broker.session.store.waiting == 0
    assert count > 1


@pytest.mark.req("S1", "R4")
@pytest.mark.parametrize("qos", [1, 2])
def test_message_whose_finish_was_interrupted_is_sent_again_when_its_response_is_overdue(qos):
    unfinished = 0
    for at in jumps(RamStore.finish):
        broker = in_flight(qos, store=RamStore())
        if qos == 2:
            broker.give(pubrec(2))
        assert interrupted(RamStore.finish, at, broker.give, puback(2) if qos == 1 else pubcomp(2))
        broker.session.publish(b"a", b"later", 1)
        broker.took()
        broker.give(puback(3))
        if broker.session.store.low == broker.handle:
            unfinished += 1
            with pytest.raises(DeadlineExpired):
                broker.connection.check(31000)
            broker.drop()
            broker.connect(present=1)
            broker.give(puback(2) if qos == 1 else pubcomp(2))
        assert broker.session.store.waiting == 0
    assert unfinished


@pytest.mark.req("Q4", "R4")
@pytest.mark.parametrize(
    "function",
    [
        Client._dispatch,
        Session.acknowledge,
        Inbound.discard_handed,
        Inbound.discard_taken,
        Inbound.discard,
        RamStore.discard,
    ],
)
@pytest.mark.parametrize("subscribed", [False, True])
@pytest.mark.parametrize("disconnects", [False, True])
def test_message_whose_acknowledgement_was_interrupted_is_not_handed_over_again(function, subscribed, disconnects):
    count = 0
    for at in jumps(function) if function is Client._dispatch else lines(function):
        broker, mqtt = connected()
        broker.present = 1
        seen = []
        mqtt.on_message = lambda m, seen=seen: seen.append(m.payload)
        if subscribed:
            mqtt.subscribe("a", 2, mqtt.on_message)
        broker.give(publish(b"a", b"1", 2, 1), pubrel(1))
        count += interrupted(function, at, poll_until, mqtt, lambda broker=broker: pubcomp(1) in broker.packets)
        if disconnects:
            mqtt.disconnect()
            mqtt.connect()
        else:
            broker.drop()
            poll_until(mqtt, lambda broker=broker, mqtt=mqtt: broker.connects == 2 and mqtt.connected)
        broker.give(pubrel(1))
        poll_until(mqtt, lambda broker=broker: pubcomp(1) in broker.packets)
        assert seen == [b"1"]
        mqtt.disconnect()
    assert count > 1


@pytest.mark.req("Q4", "R1", "R4")
@pytest.mark.parametrize("function", [WaitingQueue.begin, WaitingQueue.finish])
@pytest.mark.parametrize("qos", [1, 2])
def test_message_that_waited_blocks_no_other_one_after_an_interrupt(function, qos):
    count = 0
    for at in lines(function):
        broker, mqtt = connected()
        seen = []
        broker.give(*[publish(b"a", b"%d" % n, qos, n) for n in (1, 2)])
        broker.give(*[pubrel(n) for n in (1, 2) if qos == 2])
        poll_until(mqtt, lambda mqtt=mqtt: mqtt.session.waiting and len(mqtt.session.waiting.entries) == 2)
        mqtt.on_message = lambda m, seen=seen: seen.append(m.payload)
        count += interrupted(function, at, poll_until, mqtt, lambda seen=seen: len(seen) == 2)
        poll_until(mqtt, lambda seen=seen: len(seen) == 2)
        assert seen == [b"1", b"2"]
        mqtt.disconnect()
    assert count > 2


@pytest.mark.req("Q4", "R1")
@pytest.mark.parametrize("limit", [1, 20])  # with 1, the second message does not fit
def test_message_whose_report_as_unclaimed_was_interrupted_is_dropped_nevertheless(limit):
    broker, mqtt = connected(unclaimed_s=0, waiting=limit)
    broker.present = 1
    mqtt.connect()
    reported = []

    def report(message):
        reported.append(message.topic)
        if len(reported) < 3:
            raise KeyboardInterrupt

    mqtt.on_unclaimed = report
    broker.give(publish(b"a", b"1", 1, 1), publish(b"b", b"2", 1, 2))
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            poll_until(mqtt, lambda: False)
    poll_until(mqtt, lambda: puback(2) in broker.packets)
    assert sorted(set(reported)) == ["a", "b"] and puback(1) in broker.packets
    mqtt.disconnect()


def failing_once():
    """Return a broker, a client whose handler fails at its first call, and the list of what the handler gets."""
    broker, mqtt = connected()
    broker.present = 1
    seen = []

    def handle(message):
        seen.append(message.payload)
        if len(seen) == 1:
            raise ValueError

    mqtt.on_message = handle
    mqtt.load_waiting()
    return broker, mqtt, seen


@pytest.mark.req("Q1", "R4")
@pytest.mark.parametrize("at", lines(Deferred.failed_now))
def test_message_whose_failure_was_interrupted_comes_again(at):
    broker, mqtt, seen = failing_once()
    mqtt.on_error = lambda error, message: None
    broker.give(publish(b"a", b"1", 1, 1))
    interrupted(Deferred.failed_now, at, poll_until, mqtt, lambda: seen)
    poll_until(mqtt, lambda: mqtt.connected)
    if len(seen) == 1 and not mqtt.session.waiting.entries:
        broker.give(publish(b"a", b"1", 1, 1, dup=1))  # on the next connection
    poll_until(mqtt, lambda: len(seen) > 1)
    poll_until(mqtt, lambda: any(one[0] >> 4 == 4 and id_of(one) == 1 for one in broker.packets))
    mqtt.disconnect()


@pytest.mark.req("Q3", "Q4", "R4")
@pytest.mark.parametrize("owner, name", [(WaitingQueue, "add"), (Client, "load_waiting"), (Deferred, "failed_now")])
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_message_is_not_acknowledged_if_the_call_that_lets_it_wait_fails(owner, name, qos, error, monkeypatch):
    """On a board, the call of a large function needs memory."""
    broker, mqtt, seen = failing_once()
    handle = mqtt.on_message

    def failing(*_):
        monkeypatch.undo()
        raise error

    if name == "add":
        mqtt.subscribe("b", 1)
        mqtt.on_message = None
        broker.give(publish(b"a", b"0", 1, 7))
        poll_until(mqtt, lambda: mqtt.session.waiting.entries)
    monkeypatch.setattr(owner, name, failing)
    broker.give(publish(b"a", b"1", qos, 1), *([pubrel(1)] if qos == 2 else []))
    with pytest.raises((error, ValueError)):
        poll_until(mqtt, lambda: False)
    mqtt.on_error = lambda error, message: None
    mqtt.on_message = handle
    poll_until(mqtt, lambda: mqtt.connected)
    if broker.connects == 2:
        broker.give(publish(b"a", b"1", 1, 1, dup=1) if qos == 1 else pubrel(1))
    poll_until(mqtt, lambda: b"1" in seen[1:])
    poll_until(mqtt, lambda: (puback(1) if qos == 1 else pubcomp(1)) in broker.packets)
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


@pytest.mark.req("Q3", "R4")
@pytest.mark.parametrize("function", [Client.poll, Client._dispatch, Client._report])
def test_timer_that_polls_between_any_two_lines_loses_no_message_and_no_report(function):
    fired = 0
    for at, turn in itertools.product(lines(function), range(4)):
        broker = Prompt()
        mqtt = client(broker)
        told = []
        mqtt.on_connect = lambda present, told=told: told.append("connected")
        mqtt.on_delivered = lambda handle, told=told: told.append("delivered")
        for filter_ in ("a", "+"):
            mqtt.subscribe(filter_, 1, lambda message, told=told: told.append(message.payload))
        mqtt.publish("b", b"", 1)
        mqtt.start()
        turns = iter(range(100))

        def trace(frame, event, _, at=at, turn=turn, mqtt=mqtt, turns=turns):
            nonlocal fired
            if frame.f_code is function.__code__ and event == "line" and frame.f_lineno == at and next(turns) == turn:
                sys.settrace(None)
                fired += 1
                with contextlib.suppress(UsageError):
                    mqtt.poll()
            return trace

        sys.settrace(trace)
        try:
            poll_until(mqtt, lambda broker=broker, mqtt=mqtt: broker.of(8) and not mqtt.pending, 1)
            broker.give(publish(b"a", b"1", 1, 1), publish(b"b", b"2", 1, 2))
            poll_until(mqtt, lambda broker=broker: puback(2) in broker.packets, 1)
        finally:
            sys.settrace(None)
        assert told == ["connected", "delivered", b"1", b"1", b"2"], _line(function, at)
        mqtt.disconnect()
    assert fired > 5


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


# --- the journal ---


def journal_with_messages() -> tuple[Journal, RamRegion]:
    """Return a journal with 9 outgoing messages and 3 held ones; its head has no room for 200 bytes."""
    region = RamRegion(6, 1024, 256)
    journal = Journal(region)
    for key in (1, 2, 3):
        journal.hold(key, b"held %d" % key, 6)
    for number in range(1, 10):
        assert journal.append(b"%d" % number * 60, 60) == number
    return journal, region


def intact(journal: Journal, done: tuple = (), discarded: tuple = ()) -> None:
    for number in range(1, 10):
        if number not in done:
            assert message(journal, number) == b"%d" % number * 60 and not journal.is_finished(number)
    for key in (1, 2, 3):
        if key not in discarded:
            assert (key, b"held %d" % key) in held_messages(journal)


@pytest.mark.req("S1", "S6")
@pytest.mark.parametrize("function", [Journal._open, Journal._write, Held.opened, Held.put_opening])
def test_write_interrupted_at_any_line_loses_nothing(function):
    count = 0
    for at in lines(function):
        if _line(function, at) == "try:":
            continue  # a line of its own in CPython only
        journal, region = journal_with_messages()
        if interrupted(function, at, journal.append, bytes(200), 200):
            count += journal.worn
            try:
                assert message(journal, journal.append(b"next", 4)) == b"next" and not journal.worn
            except StoreWorn as error:
                assert "interrupted" in str(error) and journal.worn
            intact(journal)
            journal.close()
        intact(Journal(region))
    assert count > 2


@pytest.mark.req("S1", "Q2")
@pytest.mark.parametrize("function", [Journal.finish, Journal._advance])
def test_interrupted_finish_leaves_every_message_finished_or_not(function):
    count = 0
    for first in (1, 2):  # the oldest message, or another one before it
        for at in jumps(function):
            journal, region = journal_with_messages()
            if first == 2:
                journal.finish(2)
            count += interrupted(function, at, journal.finish, 1)
            journal.finish(3)
            intact(journal, (1, 2, 3) if first == 2 else (1, 3))
            journal.finish(1) if not journal.is_finished(1) else None
            assert journal.low == (4 if first == 2 else 2)
            journal.flush()
            intact(Journal(region), (1, 2, 3) if first == 2 else (1, 3))
    assert count > 2


@pytest.mark.req("S1", "Q3")
@pytest.mark.parametrize("function", [Held.discard, Held.remove])
def test_interrupted_discard_loses_no_other_held_message(function):
    count = 0
    for at in jumps(function):
        for key in (1, 2, 3):
            journal, region = journal_with_messages()
            count += interrupted(function, at, journal.discard, key)
            intact(journal, (), (key,))
            journal.hold(4, b"four", 4)
            journal.sync()
            intact(Journal(region), (), (key,))
            assert (4, b"four") in held_messages(Journal(region))
    assert count > 2


@pytest.mark.req("S1")
def test_message_in_pieces_after_an_interrupted_one_is_not_mistaken_for_it():
    count = 0
    for at in jumps(Pieces.extend):
        journal, region = journal_with_messages()
        count += interrupted(Pieces.extend, at, journal.append, b"interrupted" * 60, 660)
        if not journal.worn:
            seq = journal.append(b"the next" * 60, 480)
            assert message(journal, seq) == message(Journal(region), seq) == b"the next" * 60
        intact(Journal(region))
    assert count > 2


@pytest.mark.req("W8", "S1", "R4")
@pytest.mark.parametrize("store", [lambda: Journal(RamRegion(8)), RamStore])
@pytest.mark.parametrize("length", [400, 3000])  # longer than a record; longer than the session's buffer
def test_message_after_an_interrupted_long_one_has_a_packet_id_of_its_own(store, length):
    count = 0
    for function in (Pieces.extend, Pieces.commit, Journal.append, RamStore.append, RamStore.commit, pieces.publish):
        for at in lines(function):
            broker = peer(store())
            ended = interrupted(function, at, broker.session.publish, b"a", bytes(length), 1)
            if getattr(broker.session.store, "worn", False):
                continue
            handle = broker.session.publish(b"a", b"next", 1)
            sent = [one for one in broker.took() if one[0] >> 4 == 3]
            assert sent[-1] == publish(b"a", b"next", 1, handle), _line(function, at)
            ids = [one[one.index(b"\0\1a") + 3 :][:2] for one in sent]
            assert len(set(ids)) == len(ids), _line(function, at)
            count += ended
    assert count > 5


@pytest.mark.req("Q3", "Q4", "R2", "R4")
@pytest.mark.parametrize("function", [Connection.process, Connection._other])
@pytest.mark.parametrize("qos", [1, 2])
def test_long_message_whose_arrival_was_interrupted_is_not_acknowledged_without_a_piece(function, qos):
    count = 0
    payload = bytes(range(256)) * 2
    for at, turn in itertools.product(jumps(function), range(2)):
        broker, mqtt = connected(buffer_bytes=128, chunks=True)
        broker.present = 1
        parts = bytearray()

        def handle(message, parts=parts):
            del parts[message.offset :]
            parts.extend(message.payload)

        mqtt.subscribe("a", qos, handle)
        broker.give(publish(b"a", payload, qos, 1)[: 200 if turn else None])
        if turn:
            poll_until(mqtt, lambda mqtt=mqtt: mqtt.connection.decoder.more)
            broker.give(publish(b"a", payload, qos, 1)[200:])
        answered = puback(1) if qos == 1 else pubrec(1)
        count += interrupted(function, at, poll_until, mqtt, lambda b=broker, a=answered: a in b.packets)
        poll_until(mqtt, lambda b=broker, m=mqtt, a=answered: a in b.packets or (b.connects == 2 and m.connected))
        if answered not in broker.packets:
            broker.give(publish(b"a", payload, qos, 1, dup=1))
            poll_until(mqtt, lambda b=broker, a=answered: a in b.packets)
        if qos == 2:
            broker.give(pubrel(1))
            poll_until(mqtt, lambda b=broker: pubcomp(1) in b.packets)
        assert parts == payload, _line(function, at)
        mqtt.disconnect()
    assert count > 3


@pytest.mark.req("S1", "R4")
def test_message_can_be_read_although_memory_ended_at_any_line_of_the_first_read():
    """A new attribute may need memory."""
    for at in lines(Journal._copy_pieces):
        journal, _ = journal_with_messages()
        interrupted(Journal._copy_pieces, at, message, journal, 5)
        assert message(journal, 5) == b"5" * 60
        intact(journal)


@pytest.mark.req("S1", "R4")
@pytest.mark.parametrize("function", [Client.poll, Session.disconnected])
def test_client_goes_on_after_ctrl_c_while_it_handles_a_lost_connection(function):
    count = 0
    for at in jumps(function):
        broker, mqtt = connected()
        broker.present = 1
        broker.answers_publish = False
        mqtt.publish("a", b"1", 1)
        broker.drop()
        broker.answers_publish = True
        count += interrupted(function, at, poll_until, mqtt, lambda broker=broker: broker.connects == 2)
        mqtt.publish("a", b"2", 1)
        assert mqtt.drain(30)
        kinds = [one[0] >> 4 for one in broker.packets]
        assert kinds.index(1, 1) < kinds.index(3, kinds.index(1, 1)), "a packet before CONNECT"
        mqtt.disconnect()
    assert count > 3


@pytest.mark.req("R4", "B4")
@pytest.mark.parametrize("at", jumps(Link._close))
def test_client_whose_connection_ended_can_disconnect_and_connect_although_the_closing_was_interrupted(at):
    for publishes in (False, True):
        broker, mqtt = connected()
        assert interrupted(Link._close, at, mqtt.link.fail, ConnectionLost("cut"), 0)
        if publishes:
            mqtt.publish("a", b"x")
            mqtt.publish("a", b"x" * 5000)
        else:
            mqtt.disconnect()
        mqtt.connect()
        assert broker.connects == 2
        mqtt.disconnect()
        broker.close()
