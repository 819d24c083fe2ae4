"""The client's log, line by line; `on_disconnect`; and the delay before the next attempt."""

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
from loopback import Loopback, poll_until
from test_aio import in_a_loop
from wire import CutStore, puback, publish

PATIENCE_S = 30  # for events that must happen, on a busy machine


def longest(n):
    return n - 1


def backoff(**options):
    options.setdefault("random_below", longest)
    return Backoff(base_ms=20, cap_ms=100, lasting_ms=50, **options)


def client(broker, **options):
    options.setdefault("backoff", backoff())
    options.setdefault("timeout_s", PATIENCE_S)
    return Client("127.0.0.1", broker.port, options.pop("client_id", "me"), feed=broker, **options)


def without_delay(lines):
    """Return the lines without the number of seconds until the next attempt."""
    return [line.rpartition("; again in ")[0] + "; again" if "; again in " in line else line for line in lines]


# --- the log ---


@pytest.mark.req("B4", "R5")
def test_log_has_a_line_for_each_connection_and_delivery():
    broker = Loopback()
    lines = []
    mqtt = client(broker, log=lines.append)
    mqtt.publish("a/b", "four", 1)
    assert lines == ["stored 1: a/b, QoS 1, 4 bytes"]
    mqtt.connect()
    poll_until(mqtt, lambda: len(lines) >= 4)
    at = "127.0.0.1:%d" % broker.port
    assert lines[1:] == ["broker: connecting to %s as me" % at, "broker: connected, a new session", "delivered 1"]
    del lines[:]
    broker.present = 1
    broker.drop()
    poll_until(mqtt, lambda: broker.connects == 2 and mqtt.connected)
    assert without_delay(lines) == [
        "broker: connection lost: closed by the peer; again",
        "broker: connecting to %s as me" % at,
        "broker: connected, session resumed",
    ]
    del lines[:]
    mqtt.publish("a/b", b"", 2)
    poll_until(mqtt, lambda: len(lines) >= 2)
    mqtt.publish("a/b", "of QoS 0: neither stored nor delivered")
    mqtt.disconnect()
    mqtt.poll(1)
    assert lines == ["stored 2: a/b, QoS 2, 0 bytes", "delivered 2", "broker: disconnected"]


@pytest.mark.req("B4")
def test_each_failed_attempt_is_logged_with_the_next_delay():
    broker = Loopback()
    broker.close()
    lines = []
    mqtt = client(broker, log=lines.append)
    mqtt.start()
    poll_until(mqtt, lambda: len(lines) >= 5)
    at = "127.0.0.1:%d" % broker.port
    assert lines[0] == "broker: connecting to %s as me" % at
    assert [line.split("; ")[1] for line in lines[1:5]] == ["again in 0.%d s" % tenths for tenths in (0, 0, 1, 1)]
    assert [line.split("; ")[0] for line in lines[1:5]] == ["broker: not connected: no answer from " + at] * 4
    broker.open(broker.port)
    poll_until(mqtt, lambda: mqtt.connected)
    assert lines[-1] == "broker: connected, a new session"
    assert sum("connecting" in line for line in lines) == 1
    mqtt.disconnect()


@pytest.mark.req("B4")
def test_refused_connection_is_logged_once_with_the_reason():
    broker = Loopback()
    broker.code = 5
    lines = []
    mqtt = client(broker, log=lines.append)
    with pytest.raises(ConnectRefused):
        mqtt.connect()
    assert without_delay(lines[1:]) == ["broker: not connected: not authorized (level 4, code 0x05); again"]
    mqtt.disconnect()


@pytest.mark.req("B4")
def test_long_wait_for_connack_and_its_end_are_logged():
    broker = Loopback()
    broker.silent = True
    lines = []
    mqtt = client(broker, response_s=4, log=lines.append)
    mqtt.start()
    poll_until(mqtt, lambda: len(lines) >= 2)
    assert lines[1][:-8] == "broker: no answer yet; waiting for up to " and lines[1][-8:] in ("3 s more", "2 s more")
    mqtt.connection.session.response_ms = 1
    poll_until(mqtt, lambda: len(lines) >= 3)
    assert without_delay(lines[2:3]) == [
        "broker: not connected: no CONNACK for 1 ms (no MQTT port, or with TLS?); again"
    ]
    mqtt.disconnect()


@pytest.mark.req("B4")
@pytest.mark.parametrize("answer", [b"HTTP/1.0 400 Bad Request\r\n", b"\x15\x03\x03\x00\x02\x02\x32", puback(1), b""])
def test_port_of_another_protocol_is_logged(answer):
    broker = Loopback()
    broker.silent = True
    lines = []
    mqtt = client(broker, log=lines.append)
    mqtt.start()
    poll_until(mqtt, lambda: broker.packets)
    broker.give(answer)
    broker.drop()
    poll_until(mqtt, lambda: len(lines) >= 2)
    assert lines[1].startswith("broker: not connected: ")
    assert lines[1].rpartition("; ")[0].endswith(" (no MQTT port, or with TLS?)")
    broker.silent = False
    poll_until(mqtt, lambda: mqtt.connected)
    broker.silent = True
    broker.drop()
    n = len(broker.packets)
    poll_until(mqtt, lambda: len(broker.packets) > n)
    broker.drop()  # no hint about the port, because an earlier connection succeeded
    poll_until(mqtt, lambda: "broker: not connected: closed by the peer; again" in without_delay(lines))
    mqtt.disconnect()


@pytest.mark.req("B4")
def test_unknown_host_name_is_logged():
    lines = []
    mqtt = Client("no-such-name.invalid", 1883, b"", backoff=backoff(), log=lines.append)
    mqtt.start()
    poll_until(mqtt, lambda: len(lines) >= 2)
    assert lines[0] == "broker: connecting to no-such-name.invalid:1883 as a client without an id"
    assert lines[1].startswith("broker: not connected: the name is not known, or there is no network (OSError -")
    mqtt.disconnect()


@pytest.mark.req("R5")
def test_message_that_is_not_stored_is_logged():
    lines = []
    broker = Loopback()
    mqtt = client(broker, store=CutStore(limit=1), log=lines.append)
    mqtt.publish("a", "x", 1)
    with pytest.raises(StoreFull):
        mqtt.publish("a", "x", 1)
    assert len(lines) == 2 and lines[1].startswith("not stored: a: ")
    broker.close()


@pytest.mark.req("R5")
def test_message_that_the_store_drops_at_once_is_logged():
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
def test_each_message_event_is_logged_in_words(event, handle, code, line):
    broker = Loopback()
    lines = []
    mqtt = client(broker, log=lines.append)
    mqtt.connect()
    del lines[:]
    mqtt.session.load_undelivered().report_later(event, handle, code)
    poll_until(mqtt, lambda: lines)
    mqtt.poll(5)
    assert lines == [line]
    mqtt.disconnect()


@pytest.mark.req("R2")
def test_message_longer_than_the_buffer_is_logged():
    broker = Loopback()
    lines = []
    mqtt = client(broker, buffer_bytes=64, log=lines.append)
    mqtt.connect()
    del lines[:]
    broker.give(publish(b"a", b"x" * 200, 0))
    poll_until(mqtt, lambda: lines)
    assert lines == ["too long: 200 bytes to a; buffer_bytes is too small"]
    mqtt.disconnect()


@pytest.mark.req("W11")
def test_refused_subscription_is_logged_once_per_attempt():
    broker = Loopback()
    lines = []
    mqtt = client(broker, log=lines.append)
    mqtt.subscribe("a/#", 1)
    mqtt.subscribe("b", 1)
    broker.granted = 0x80
    mqtt.connect()
    poll_until(mqtt, lambda: len(lines) >= 4)
    broker.present = 1
    broker.drop()
    poll_until(mqtt, lambda: len(lines) >= 9)
    refused = [line for line in lines if line.startswith("refused")]
    assert [line.rpartition(";")[0] for line in refused] == [
        "refused: subscription %s: the broker answers 0x80" % name for name in ("a/#", "b", "a/#", "b")
    ]
    mqtt.disconnect()


@pytest.mark.req("W11", "R4")
def test_unsubscribe_on_which_the_broker_closes_the_connection_is_logged_and_does_not_stop_messages():
    class Closing(Loopback):
        def take(self, one):
            if one[0] >> 4 == 10:
                self.packets.append(one)
                self.drop()
            elif self.link:
                super().take(one)

    broker = Closing()
    broker.present = 1
    lines = []
    mqtt = client(broker, log=lines.append)
    mqtt.unsubscribe("a/#")
    handle = mqtt.publish("b", "x", 1)
    mqtt.connect()
    poll_until(mqtt, lambda: mqtt.delivered(handle))
    assert len(broker.of(10)) == 3
    refused = [line for line in lines if line.startswith("refused")]
    assert refused == ["refused: end of subscription a/#: the broker closes the connection on it"]
    mqtt.disconnect()


@pytest.mark.req("R4")
def test_error_in_log_function_goes_to_on_error_without_harm():
    def log(line):
        raise ValueError(line)

    broker = Loopback()
    mqtt = client(broker, log=log)
    errors = []
    mqtt.on_error = lambda error, message: errors.append((error.args[0], message))
    handle = mqtt.publish("a", "x", 1)
    mqtt.start()
    poll_until(mqtt, lambda: mqtt.delivered(handle))
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
def test_errors_are_described_in_words(error, text):
    assert words(error).startswith(text)


def test_client_without_log_has_no_wrapped_methods():
    broker = Loopback()
    mqtt = client(broker)
    for one in (mqtt.link, mqtt.session):
        for name in ("step", "fail", "stop", "start", "_open", "publish"):
            assert name not in one.__dict__
    broker.close()


# --- on_disconnect ---


@pytest.mark.req("R4")
def test_poll_calls_on_disconnect_with_reason_before_on_connect():
    broker = Loopback()
    mqtt = client(broker)
    told = []
    mqtt.on_connect = lambda present: told.append(("up", present))
    mqtt.on_disconnect = lambda error: told.append(("down", str(error)))
    mqtt.connect()
    assert told == [("up", False)]
    broker.present = 1
    broker.drop()
    poll_until(mqtt, lambda: len(told) >= 3)
    assert told[1:] == [("down", "closed by the peer"), ("up", True)]
    mqtt.disconnect()
    mqtt.poll(1)
    assert len(told) == 3  # the program's own disconnect is not reported


@pytest.mark.req("R4")
def test_reconnect_inside_publish_is_reported_by_the_next_poll():
    broker = Loopback()
    mqtt = client(broker)
    told = []
    mqtt.on_connect = lambda present: told.append("up")
    mqtt.on_disconnect = lambda error: told.append("down")
    mqtt.connect()
    for n in range(2, 4):  # two reconnects, but only one report
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
def test_on_disconnect_error_goes_to_on_error_or_poll_raises_it():
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
            poll_until(mqtt, lambda: broker.connects == 2 and mqtt.connected)  # noqa: B023
        except ValueError as error:
            errors.append(error)
        assert [str(error) for error in errors] == ["mine"]
        poll_until(mqtt, lambda: mqtt.connected)  # noqa: B023
        mqtt.disconnect()


@pytest.mark.req("R4")
def test_failed_first_connection_does_not_call_on_disconnect():
    broker = Loopback()
    broker.code = 5
    told = []
    mqtt = client(broker)
    mqtt.on_disconnect = told.append
    mqtt.start()
    poll_until(mqtt, lambda: mqtt.link.attempts == 3)
    assert told == []
    mqtt.disconnect()


@pytest.mark.req("R4", "B4")
@in_a_loop
async def test_asyncio_client_logs_the_same_lines(broker):
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


@pytest.mark.req("R4")
@in_a_loop
async def test_store_failure_ends_asyncio_task_and_log_names_no_retry(broker):
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


# --- delays before an attempt ---


def after_an_outage(**options):
    """Return a broker, and the store of a client "me" that was connected to it and was then restarted in a long outage."""
    broker = Loopback()
    store = CutStore()
    mqtt = client(broker, store=store)
    mqtt.connect()
    mqtt.session.note.keep_step(6)
    mqtt.link.stop()
    return broker, store.cut()


@pytest.mark.req("B4")
def test_delay_after_restart_in_an_outage_is_logged():
    broker, store = after_an_outage()
    lines = []
    mqtt = client(broker, store=store, backoff=Backoff(base_ms=20, random_below=longest), log=lines.append)
    mqtt.start()
    assert lines == ["broker: connecting in 1.3 s, as there was no connection before the restart"]
    mqtt.disconnect()


@pytest.mark.parametrize("changed", ["port", "client id"])
@pytest.mark.req("B4")
def test_new_broker_or_client_id_starts_with_shortest_delay(changed):
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
    poll_until(mqtt, lambda: mqtt.connected)
    assert mqtt.session.note.octets[1] & 127 == 0
    mqtt.disconnect()


@pytest.mark.req("B4")
def test_backoff_of_wrong_broker_is_not_kept_for_right_one():
    broker, store = after_an_outage()
    right = broker.port
    broker.close()
    wrong = Loopback()
    wrong.close()
    mqtt = client(wrong, store=store, backoff=Backoff(base_ms=1, cap_ms=100, random_below=longest))
    mqtt.session.note.keep_step(0)  # as after a connection to the right broker
    mqtt.start()
    poll_until(mqtt, lambda: mqtt.link.backoff.step >= 6)
    mqtt.link.stop()
    broker.open(right)
    again = client(broker, store=store.cut())
    assert again.link.backoff.step == 0
    again.connect()
    again.disconnect()


@pytest.mark.req("B4")
def test_client_that_never_connected_waits_at_most_16_seconds():
    broker = Loopback()
    broker.code = 5
    mqtt = client(broker, backoff=Backoff(random_below=longest))
    delays = []
    for _ in range(10):
        mqtt.link.start(0)
        mqtt.link._state = 2  # the attempt reached the broker
        mqtt.link.fail(ConnectRefused(5), 0)
        delays.append(mqtt.link._since_ms)
    assert delays[:5] == [500, 1000, 2000, 4000, 8000]
    assert delays[5:] == [16000] * 5
    mqtt.disconnect()


@pytest.mark.req("B4")
def test_client_that_was_connected_continues_backoff_and_stores_step():
    broker, store = after_an_outage()
    mqtt = client(broker, store=store, backoff=Backoff(random_below=longest))
    mqtt.link.start(0)
    for _ in range(4):
        mqtt.link._state = 2
        mqtt.link.fail(ConnectRefused(5), 0)
    assert mqtt.link._since_ms == 120000 and mqtt.session.note.octets[1] & 127 == 8
    mqtt.disconnect()


@pytest.mark.req("B4")
def test_attempts_without_network_wait_16_seconds_and_store_nothing():
    broker, store = after_an_outage()
    mqtt = client(broker, store=store, backoff=Backoff(random_below=longest))
    writes = store.note
    mqtt.link.start(0)
    delays = []
    for _ in range(9):
        mqtt.link._state = 1  # the name lookup or the call of `connect` failed
        mqtt.link.fail(OSError(-2), 0)
        delays.append(mqtt.link._since_ms)
    assert delays == [16000] * 9
    assert store.note == writes and mqtt.session.note.octets[1] & 127 == 6
    mqtt.link._state = 1
    mqtt.link.fail(OSError(111), 0)  # ECONNREFUSED: the broker's host has answered
    assert mqtt.session.note.octets[1] & 127 == 7
    mqtt.disconnect()


def test_objects_with_a_log_have_no_full_attribute_table():
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
