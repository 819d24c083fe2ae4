"""What a client tells: its log, line by line; `on_disconnect`; and when it tries again."""

import sys

import pytest

if sys.implementation.name == "micropython" and ".frozen" not in sys.path:
    sys.path.insert(0, ".frozen")  # where asyncio is

import asyncio

from flashmqtt import aio
from flashmqtt.backoff import Backoff
from flashmqtt.client import Client
from flashmqtt.client_log import words
from flashmqtt.compat import ticks_diff, ticks_ms
from flashmqtt.errors import ConnectRefused, MalformedPacket, StoreFull, StoreWorn
from flashmqtt.session.ram import RamStore
from loopback import Loopback
from wire import CutStore, puback, publish

PATIENCE_S = 30  # for what has to happen, on a busy machine


def longest(n):
    return n - 1


def backoff(**options):
    options.setdefault("random_below", longest)
    return Backoff(base_ms=20, cap_ms=100, lasting_ms=50, **options)


def client(broker, **options):
    options.setdefault("backoff", backoff())
    options.setdefault("timeout_s", PATIENCE_S)
    return Client("127.0.0.1", broker.port, options.pop("client_id", "me"), feed=broker, **options)


def until(mqtt, condition):
    """Poll until the condition holds."""
    begin = ticks_ms()
    while not condition():
        assert ticks_diff(ticks_ms(), begin) < PATIENCE_S * 1000, "waited in vain"
        mqtt.poll(20)


def without_delay(lines):
    """Return lines, without the number of seconds until the next attempt, and their broker's port."""
    return [line.rpartition("; again in ")[0] + "; again" if "; again in " in line else line for line in lines]


# --- the log ---


@pytest.mark.req("B4", "R5")
def test_a_life_is_told_line_by_line():
    broker = Loopback()
    lines = []
    mqtt = client(broker, log=lines.append)
    mqtt.publish("a/b", "four", 1)
    assert lines == ["stored 1: a/b, QoS 1, 4 bytes"]
    mqtt.connect()
    until(mqtt, lambda: len(lines) >= 4)
    at = "127.0.0.1:%d" % broker.port
    assert lines[1:] == ["broker: connecting to %s as me" % at, "broker: connected, a new session", "delivered 1"]
    del lines[:]
    broker.present = 1
    broker.drop()
    until(mqtt, lambda: broker.connects == 2 and mqtt.connected)
    assert without_delay(lines) == [
        "broker: connection lost: closed by the peer; again",
        "broker: connecting to %s as me" % at,
        "broker: connected, session resumed",
    ]
    del lines[:]
    mqtt.publish("a/b", b"", 2)
    until(mqtt, lambda: len(lines) >= 2)
    mqtt.publish("a/b", "of QoS 0: neither stored nor delivered")
    mqtt.disconnect()
    mqtt.poll(1)
    assert lines == ["stored 2: a/b, QoS 2, 0 bytes", "delivered 2", "broker: disconnected"]


@pytest.mark.req("B4")
def test_each_failed_attempt_is_one_line_that_says_when_the_next_one_is():
    broker = Loopback()
    broker.close()
    lines = []
    mqtt = client(broker, log=lines.append)
    mqtt.start()
    until(mqtt, lambda: len(lines) >= 5)
    at = "127.0.0.1:%d" % broker.port
    assert lines[0] == "broker: connecting to %s as me" % at
    assert [line.split("; ")[1] for line in lines[1:5]] == ["again in 0.%d s" % tenths for tenths in (0, 0, 1, 1)]
    assert [line.split("; ")[0] for line in lines[1:5]] == ["broker: not connected: no answer from " + at] * 4
    broker.open(broker.port)
    until(mqtt, lambda: mqtt.connected)
    assert lines[-1] == "broker: connected, a new session"
    assert sum("connecting" in line for line in lines) == 1
    mqtt.disconnect()


@pytest.mark.req("B4")
def test_refusal_is_told_in_words_and_what_connect_raises_is_told_once():
    broker = Loopback()
    broker.code = 5
    lines = []
    mqtt = client(broker, log=lines.append)
    with pytest.raises(ConnectRefused):
        mqtt.connect()
    assert without_delay(lines[1:]) == ["broker: not connected: not authorized (level 4, code 0x05); again"]
    mqtt.disconnect()


@pytest.mark.req("B4")
def test_long_wait_for_an_answer_is_told_and_its_end():
    broker = Loopback()
    broker.silent = True
    lines = []
    mqtt = client(broker, response_s=4, log=lines.append)
    mqtt.start()
    until(mqtt, lambda: len(lines) >= 2)
    assert lines[1][:-8] == "broker: no answer yet; waiting for up to " and lines[1][-8:] in ("3 s more", "2 s more")
    mqtt.connection.response_ms = 1
    until(mqtt, lambda: len(lines) >= 3)
    assert without_delay(lines[2:3]) == [
        "broker: not connected: no CONNACK for 1 ms (no MQTT port, or with TLS?); again"
    ]
    mqtt.disconnect()


@pytest.mark.req("B4")
@pytest.mark.parametrize("answer", [b"HTTP/1.0 400 Bad Request\r\n", b"\x15\x03\x03\x00\x02\x02\x32", puback(1), b""])
def test_port_that_speaks_something_else_is_told(answer):
    broker = Loopback()
    broker.silent = True
    lines = []
    mqtt = client(broker, log=lines.append)
    mqtt.start()
    until(mqtt, lambda: broker.packets)
    broker.give(answer)
    broker.drop()
    until(mqtt, lambda: len(lines) >= 2)
    assert lines[1].startswith("broker: not connected: ")
    assert lines[1].rpartition("; ")[0].endswith(" (no MQTT port, or with TLS?)")
    broker.silent = False
    until(mqtt, lambda: mqtt.connected)
    broker.silent = True
    broker.drop()
    n = len(broker.packets)
    until(mqtt, lambda: len(broker.packets) > n)
    broker.drop()  # it was the right port once
    until(mqtt, lambda: "broker: not connected: closed by the peer; again" in without_delay(lines))
    mqtt.disconnect()


@pytest.mark.req("B4")
def test_name_that_is_not_known_is_told_in_words():
    lines = []
    mqtt = Client("no-such-name.invalid", 1883, b"", backoff=backoff(), log=lines.append)
    mqtt.start()
    until(mqtt, lambda: len(lines) >= 2)
    assert lines[0] == "broker: connecting to no-such-name.invalid:1883 as a client without an id"
    assert lines[1].startswith("broker: not connected: the name is not known, or there is no network (OSError -")
    mqtt.disconnect()


@pytest.mark.req("R5")
def test_message_that_is_not_stored_is_told():
    lines = []
    broker = Loopback()
    mqtt = client(broker, store=CutStore(limit=1), log=lines.append)
    mqtt.publish("a", "x", 1)
    with pytest.raises(StoreFull):
        mqtt.publish("a", "x", 1)
    assert len(lines) == 2 and lines[1].startswith("not stored: a: ")
    broker.close()


@pytest.mark.req("R5")
def test_message_that_the_store_drops_at_once_is_told():
    lines = []
    broker = Loopback()
    mqtt = client(broker, store=CutStore(limit=1, policy="newest"), log=lines.append)
    assert [mqtt.publish("a", "x", 1) for _ in range(2)] == [1, 0]
    assert lines[1] == "dropped, as the store is full: a, QoS 1, 1 bytes"
    broker.close()


@pytest.mark.parametrize(
    "event,handle,code,line",
    [
        (6, 1, 0, "in doubt 1: the broker lost the session, and may have it"),
        (7, 1, 0x87, "refused 1: the broker answers 0x87"),
        (7, 1, 0x100, "refused 1: the broker closes the connection on it"),
        (9, 1, 0, "damaged 1: the flash lost the message"),
        (10, 1, 0, "expired 1: not sent in time"),
        (11, 1, 1, "dropped 1: the store is full"),
        (11, 1, 7, "dropped 1 to 7: the store is full"),
    ],
)
@pytest.mark.req("R5")
def test_what_became_of_a_message_is_told(event, handle, code, line):
    broker = Loopback()
    lines = []
    mqtt = client(broker, log=lines.append)
    mqtt.connect()
    del lines[:]
    mqtt.session.report_later(event, handle, code)
    until(mqtt, lambda: lines)
    mqtt.poll(5)
    assert lines == [line]
    mqtt.disconnect()


@pytest.mark.req("R2")
def test_message_that_is_too_long_is_told():
    broker = Loopback()
    lines = []
    mqtt = client(broker, buffer_bytes=64, log=lines.append)
    mqtt.connect()
    del lines[:]
    broker.give(publish(b"a", b"x" * 200, 0))
    until(mqtt, lambda: lines)
    assert lines == ["too long: 200 bytes to a; buffer_bytes is too small"]
    mqtt.disconnect()


@pytest.mark.req("W11")
def test_subscription_that_is_refused_is_told_once_an_attempt():
    broker = Loopback()
    lines = []
    mqtt = client(broker, log=lines.append)
    mqtt.subscribe("a/#", 1)
    mqtt.subscribe("b", 1)
    broker.granted = 0x80
    mqtt.connect()
    until(mqtt, lambda: len(lines) >= 4)
    broker.present = 1
    broker.drop()
    until(mqtt, lambda: len(lines) >= 9)
    refused = [line for line in lines if line.startswith("refused")]
    assert [line.rpartition(";")[0] for line in refused] == [
        "refused: subscription %s: the broker answers 0x80" % name for name in ("a/#", "b", "a/#", "b")
    ]
    mqtt.disconnect()


@pytest.mark.req("R4")
def test_what_the_log_raises_goes_to_on_error_and_harms_nothing():
    def log(line):
        raise ValueError(line)

    broker = Loopback()
    mqtt = client(broker, log=log)
    errors = []
    mqtt.on_error = lambda error, message: errors.append((error.args[0], message))
    handle = mqtt.publish("a", "x", 1)
    mqtt.start()
    until(mqtt, lambda: mqtt.delivered(handle))
    mqtt.poll(1)
    assert errors[0] == ("stored 1: a, QoS 1, 1 bytes", None) and errors[-1] == ("delivered 1", None)
    mqtt.disconnect()


@pytest.mark.parametrize(
    "error,text",
    [
        (OSError(104), "closed by the peer (OSError 104)"),
        (OSError(-2), "the name is not known, or there is no network (OSError -2)"),
        (OSError(9999), "OSError "),
        (MalformedPacket("3 bytes"), "3 bytes"),
        (MalformedPacket(), "MalformedPacket"),
        (ValueError("so"), "ValueError: so"),
    ],
)
def test_errors_become_words(error, text):
    assert words(error).startswith(text)


def test_a_client_without_a_log_has_nothing_put_before_its_calls():
    broker = Loopback()
    mqtt = client(broker)
    for one in (mqtt.link, mqtt.session):
        for name in ("step", "fail", "stop", "start", "_open", "store_message"):
            assert name not in one.__dict__
    broker.close()


# --- on_disconnect ---


@pytest.mark.req("R4")
def test_on_disconnect_is_called_by_poll_with_the_reason_and_before_the_next_on_connect():
    broker = Loopback()
    mqtt = client(broker)
    told = []
    mqtt.on_connect = lambda present: told.append(("up", present))
    mqtt.on_disconnect = lambda error: told.append(("down", str(error)))
    mqtt.connect()
    assert told == [("up", False)]
    broker.present = 1
    broker.drop()
    until(mqtt, lambda: len(told) >= 3)
    assert told[1:] == [("down", "closed by the peer"), ("up", True)]
    mqtt.disconnect()
    mqtt.poll(1)
    assert len(told) == 3  # the program's own end is no news


@pytest.mark.req("R4")
def test_publish_never_calls_on_disconnect_nor_hides_what_happened_meanwhile():
    broker = Loopback()
    mqtt = client(broker)
    told = []
    mqtt.on_connect = lambda present: told.append("up")
    mqtt.on_disconnect = lambda error: told.append("down")
    mqtt.connect()
    for n in range(2, 4):  # twice, and the program hears of the state it is in
        broker.drop()
        begin = ticks_ms()
        while broker.connects < n or not mqtt.connected:
            assert ticks_diff(ticks_ms(), begin) < PATIENCE_S * 1000
            mqtt.publish("a", "x")
            broker()
    assert told == ["up"]
    mqtt.poll(0)
    assert told == ["up", "down", "up"]
    mqtt.poll(1)
    assert told == ["up", "down", "up"]
    mqtt.disconnect()


@pytest.mark.req("R4")
def test_what_on_disconnect_raises_goes_to_on_error_or_comes_out_of_poll():
    for with_handler in (True, False):
        broker = Loopback()
        mqtt = client(broker)
        errors = []
        if with_handler:
            mqtt.on_error = lambda error, message: errors.append(error)  # noqa: B023

        def fail(error):
            raise ValueError("mine")

        mqtt.on_disconnect = fail
        mqtt.connect()
        broker.drop()
        try:
            until(mqtt, lambda: broker.connects == 2 and mqtt.connected)  # noqa: B023
        except ValueError as error:
            errors.append(error)
        assert [str(error) for error in errors] == ["mine"]
        until(mqtt, lambda: mqtt.connected)  # noqa: B023
        mqtt.disconnect()


@pytest.mark.req("R4")
def test_connection_that_never_was_is_no_loss():
    broker = Loopback()
    broker.code = 5
    told = []
    mqtt = client(broker)
    mqtt.on_disconnect = told.append
    mqtt.start()
    until(mqtt, lambda: mqtt.link.attempts == 3)
    assert told == []
    mqtt.disconnect()


def run(case):
    """Run case(broker) beside the broker."""
    broker = Loopback()

    async def serve():
        while True:
            broker()
            await asyncio.sleep(0.001)

    async def both():
        server = asyncio.create_task(serve())
        try:
            await asyncio.wait_for(case(broker), 2 * PATIENCE_S)
        finally:
            server.cancel()
            broker.close()

    if sys.implementation.name == "micropython":
        asyncio.new_event_loop()
    asyncio.run(both())


@pytest.mark.req("R4", "B4")
def test_asyncio_tells_the_same():
    async def case(broker):
        lines = []
        told = []
        mqtt = aio.Client("127.0.0.1", broker.port, "me", backoff=backoff(), timeout_s=PATIENCE_S, log=lines.append)

        async def down(error):
            await asyncio.sleep(0)
            told.append(str(error))

        mqtt.on_disconnect = down
        mqtt.on_connect = lambda present: told.append(present)
        async with mqtt:
            assert await mqtt.delivered(await mqtt.publish("a", "x", 2), PATIENCE_S)
            broker.present = 1
            broker.drop()
            while len(told) < 3:
                await asyncio.sleep(0.005)
        assert told == [False, "closed by the peer", True]
        assert without_delay(lines) == [
            "broker: connecting to 127.0.0.1:%d as me" % broker.port,
            "broker: connected, a new session",
            "stored 1: a, QoS 2, 1 bytes",
            "delivered 1",
            "broker: connection lost: closed by the peer; again",
            "broker: connecting to 127.0.0.1:%d as me" % broker.port,
            "broker: connected, session resumed",
            "broker: disconnected",
        ]

    run(case)


@pytest.mark.req("R4")
def test_store_that_fails_ends_the_task_and_the_log_promises_no_further_attempt():
    async def case(broker):
        lines = []
        mqtt = aio.Client("127.0.0.1", broker.port, "me", backoff=backoff(), timeout_s=PATIENCE_S, log=lines.append)
        await mqtt.connect()

        def fail(now_ms):
            raise StoreWorn("2 bad sectors")

        mqtt.link._process = fail
        while mqtt._failure is None:
            await asyncio.sleep(0.005)
        assert lines[-1] == "broker: connection lost: 2 bad sectors"
        await mqtt.disconnect()

    run(case)


# --- no silent wait ---


def after_an_outage(**options):
    """Return a store whose last life was connected as "me", and then saw its broker away for long; and that broker."""
    broker = Loopback()
    store = CutStore()
    mqtt = client(broker, store=store)
    mqtt.connect()
    mqtt.session.keep_step(6)
    mqtt.link.stop()
    return broker, store.cut()


@pytest.mark.req("B4")
def test_the_wait_after_a_restart_in_an_outage_is_told():
    broker, store = after_an_outage()
    lines = []
    mqtt = client(broker, store=store, backoff=Backoff(base_ms=20, random_below=longest), log=lines.append)
    mqtt.start()
    assert lines == ["broker: connecting in 1.3 s, as there was no connection before the restart"]
    mqtt.disconnect()


@pytest.mark.parametrize("changed", ["port", "client id"])
@pytest.mark.req("B4")
def test_another_broker_or_client_id_begins_with_the_shortest_delay(changed):
    broker, store = after_an_outage()
    old = broker.port
    if changed == "port":
        broker.close()
        broker = Loopback()
        while broker.port == old:
            broker.close()
            broker = Loopback()
    mqtt = client(broker, store=store, client_id="me" if changed == "port" else "you", backoff=backoff())
    assert mqtt.link.backoff.step == 0
    mqtt.start()
    mqtt.poll(0)
    assert mqtt.link.attempts == 1
    until(mqtt, lambda: mqtt.connected)
    assert mqtt.session.kept_step() == 0
    mqtt.disconnect()


@pytest.mark.req("B4")
def test_outage_of_a_mistaken_broker_is_not_kept_for_the_right_one():
    broker, store = after_an_outage()
    right = broker.port
    broker.close()
    wrong = Loopback()
    wrong.close()
    mqtt = client(wrong, store=store, backoff=Backoff(base_ms=1, cap_ms=100, random_below=longest))
    mqtt.session.keep_step(0)  # the right broker was there then
    mqtt.start()
    until(mqtt, lambda: mqtt.link.backoff.step >= 6)
    mqtt.link.stop()
    broker.open(right)
    again = client(broker, store=store.cut())
    assert again.link.backoff.step == 0
    again.connect()
    again.disconnect()


@pytest.mark.req("B4")
def test_who_was_never_connected_waits_for_a_quarter_of_a_minute_at_most():
    broker = Loopback()
    broker.code = 5
    mqtt = client(broker, backoff=Backoff(random_below=longest))
    delays = []
    for _ in range(10):
        mqtt.link.start(0)
        mqtt.link._state = 2  # the attempt got as far as the broker
        mqtt.link.fail(ConnectRefused(5), 0)
        delays.append(mqtt.link._since_ms)
    assert delays[:5] == [500, 1000, 2000, 4000, 8000]
    assert delays[5:] == [16000] * 5
    mqtt.disconnect()


@pytest.mark.req("B4")
def test_who_was_connected_spreads_out_as_before_and_keeps_the_step():
    broker, store = after_an_outage()
    mqtt = client(broker, store=store, backoff=Backoff(random_below=longest))
    mqtt.link.start(0)
    for _ in range(4):
        mqtt.link._state = 2
        mqtt.link.fail(ConnectRefused(5), 0)
    assert mqtt.link._since_ms == 120000 and mqtt.session.kept_step() == 8
    mqtt.disconnect()


@pytest.mark.req("B4")
def test_without_a_network_no_attempt_waits_long_and_nothing_is_kept():
    broker, store = after_an_outage()
    mqtt = client(broker, store=store, backoff=Backoff(random_below=longest))
    writes = store.note
    mqtt.link.start(0)
    delays = []
    for _ in range(9):
        mqtt.link._state = 1  # the name's lookup, or `connect` itself, failed
        mqtt.link.fail(OSError(-2), 0)
        delays.append(mqtt.link._since_ms)
    assert delays == [16000] * 9
    assert store.note == writes and mqtt.session.kept_step() == 6
    mqtt.link._state = 1
    mqtt.link.fail(OSError(111), 0)  # but this answer came from the broker's host
    assert mqtt.session.kept_step() == 7
    mqtt.disconnect()


def test_objects_with_a_log_have_no_full_attribute_table_either():
    from test_hot_objects import TABLE_SIZES

    broker = Loopback()
    mqtt = client(broker, store=RamStore(), log=print)
    full = [
        "%s: %d" % (type(one).__name__, len(one.__dict__))
        for one in (mqtt, mqtt.link, mqtt.session)
        if len(one.__dict__) in TABLE_SIZES
    ]
    assert full == []
    broker.close()
