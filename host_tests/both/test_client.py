"""The blocking client over real sockets: deadlines, reconnects, handlers, messages stored while disconnected."""

import socket
import sys

import pytest

from failing import fail_once
from flashmqtt.backoff import Backoff
from flashmqtt.client import Client
from flashmqtt.compat import ticks_add, ticks_diff, ticks_ms
from flashmqtt.errors import (
    ConnectionLost,
    ConnectRefused,
    DeadlineExpired,
    FlashFailed,
    InvalidTopic,
    Refused,
    StoreWorn,
    UsageError,
)
from flashmqtt.session.ram import RamStore
from flashmqtt.simple import MQTTClient
from loopback import Flooding, Loopback, poll_until
from wire import CutStore, puback, publish, pubrel

PATIENCE_S = 30  # deadline for expected events, on a busy machine


def client(broker, **options):
    options.setdefault("backoff", Backoff(base_ms=20, cap_ms=100, lasting_ms=50))
    options.setdefault("timeout_s", PATIENCE_S)
    return Client("127.0.0.1", broker.port, "me", feed=broker, **options)


def connected(**options):
    """Return a broker and a connected client with these options."""
    broker = Loopback()
    mqtt = client(broker, **options)
    mqtt.connect()
    return broker, mqtt


@pytest.mark.req("Q1", "Q2")
def test_drain_delivers_all_published_messages():
    broker = Loopback()
    mqtt = client(broker)
    assert mqtt.connect() is False
    delivered = []
    mqtt.on_delivered = delivered.append
    handles = [mqtt.publish("a/b", "x%d" % i, qos=1 + i % 2) for i in range(20)]
    assert mqtt.drain(PATIENCE_S)
    assert sorted(delivered) == handles
    assert all(mqtt.delivered(handle) for handle in handles)
    mqtt.disconnect()
    broker()
    assert broker.packets[-1] == b"\xe0\x00"


@pytest.mark.parametrize(
    "place, qos", [("flush", 1), ("write_to", 1), ("write_to", 0), ("_step", 1), ("_step", 2), ("_step", 0)]
)
@pytest.mark.req("R4", "S1")
def test_publish_raises_no_error_after_the_message_was_stored(place, qos):
    _, mqtt = connected()
    mqtt.link.stepped_ms = ticks_add(ticks_ms(), -1000 if place == "_step" else 1000)
    mqtt.session._direct = place != "flush"
    fail_once(mqtt if place == "_step" else mqtt.link, place)
    if qos:
        assert mqtt.publish("a", "x", qos) == 1
        assert mqtt.drain(PATIENCE_S) and mqtt.delivered(1)
    else:
        with pytest.raises(MemoryError):
            mqtt.publish("a", "x")
    mqtt.disconnect()


@pytest.mark.req("S5", "Q6")
def test_messages_stored_before_connect_are_sent_in_order():
    broker = Loopback()
    mqtt = client(broker)
    for i in range(30):
        mqtt.publish("a", bytes([i]), qos=1)
    assert mqtt.pending == 30 and not mqtt.connected
    mqtt.start()
    assert mqtt.drain(PATIENCE_S)
    assert [one[-1] for one in broker.of(3)] == list(range(30))
    mqtt.disconnect()


@pytest.mark.req("S5", "Q6")
@pytest.mark.parametrize("qos", [1, 2])
def test_long_message_stored_before_connect_is_sent_without_pauses(qos):
    broker = Loopback()
    mqtt = client(broker, buffer_bytes=128)
    payload = b"0123456789" * 500
    for present in (0, 1):  # 1: at QoS 2 a PUBREL clears the packet id first
        broker.present = present
        mqtt.publish("a", payload, qos)
        mqtt.connect()
        begin = ticks_ms()
        assert mqtt.drain(PATIENCE_S)
        assert ticks_diff(ticks_ms(), begin) < 5000  # it has 40 pieces, so a pause after each would take longer
        mqtt.disconnect()
    assert [one[-5000:] for one in broker.of(3)] == [payload] * 2


@pytest.mark.req("Q6")
def test_window_larger_than_the_output_buffer_is_filled_before_any_answer():
    broker = Loopback()
    broker.answers_publish = False
    mqtt = client(broker, window=12, buffer_bytes=128)
    for i in range(12):
        mqtt.publish("a", bytes([i]) * 30, qos=1)
    mqtt.connect()
    mqtt.poll(10)
    broker()
    assert [one[-1] for one in broker.of(3)] == list(range(12))
    mqtt.disconnect()


@pytest.mark.req("Q8", "B4")
def test_client_reconnects_while_publish_keeps_storing():
    broker, mqtt = connected()
    broker.present = 1
    for i in range(60):
        mqtt.publish("a", bytes([i]), qos=1)
        if i % 20 == 10:
            broker()
            broker.drop()
            mqtt.poll(0)
        if i % 20 == 15:
            poll_until(mqtt, lambda: mqtt.connected)
    assert mqtt.drain(PATIENCE_S)
    assert broker.connects == 4
    seen = []
    for one in broker.of(3):
        if one[-1] not in seen:
            seen.append(one[-1])
    assert seen == list(range(60))
    mqtt.disconnect()


@pytest.mark.req("B4")
def test_next_connection_attempt_after_an_outage_delivers_the_message():
    broker, mqtt = connected(backoff=Backoff(base_ms=20, cap_ms=200))
    broker.present = 1
    port = broker.port
    broker.close()
    handle = mqtt.publish("a", "x", qos=1)
    begin = ticks_ms()
    while ticks_diff(ticks_ms(), begin) < 300:
        mqtt.poll(50)
    assert mqtt.error is not None and not mqtt.connected
    poll_until(mqtt, lambda: mqtt.link.sock is None)
    attempts = mqtt.link.attempts
    assert mqtt.link.wait_ms <= 200  # the next attempt comes within 200 ms, and must deliver the message
    broker.open(port)
    poll_until(mqtt, lambda: mqtt.delivered(handle))
    assert mqtt.link.attempts == attempts + 1
    mqtt.disconnect()


@pytest.mark.req("B4", "W13")
@pytest.mark.parametrize("silent", [False, True])
def test_connect_without_a_broker_or_an_answer_raises_at_its_deadline(silent):
    broker = Loopback()
    if silent:
        broker.silent = True
    else:
        broker.close()
    mqtt = client(broker)
    begin = ticks_ms()
    with pytest.raises(ConnectionLost):
        mqtt.connect(0.3)
    assert 300 <= ticks_diff(ticks_ms(), begin) < PATIENCE_S * 500
    assert broker.feeds > 0  # the watchdog was fed
    mqtt.disconnect()


@pytest.mark.req("B4", "W13")
@pytest.mark.parametrize("response_s", [0.25, 1.0])
def test_missing_connack_with_a_fraction_as_response_s_ends_the_attempt(response_s):
    broker = Loopback()
    broker.silent = True
    mqtt = client(broker, response_s=response_s)
    mqtt.start()
    poll_until(mqtt, lambda: isinstance(mqtt.error, DeadlineExpired))
    assert "no CONNACK for %d ms" % (response_s * 1000) in str(mqtt.error)
    broker.silent = False
    poll_until(mqtt, lambda: mqtt.connected)
    mqtt.disconnect()


@pytest.mark.req("B4")
@pytest.mark.parametrize("host", [b"127.0.0.1", bytearray(b"127.0.0.1"), "127.0.0.1", b"localhost"])
def test_host_may_be_text_or_bytes_also_with_a_watchdog_and_a_log(host):
    broker = Loopback()
    lines = []
    mqtt = Client(host, broker.port, "me", feed=broker, log=lines.append, backoff=Backoff(20, 100, 50))
    mqtt.connect(PATIENCE_S)
    name = "localhost" if host == b"localhost" else "127.0.0.1"
    assert lines[0] == "broker: connecting to %s:%d as me" % (name, broker.port)
    mqtt.disconnect()
    broker.close()
    mqtt.start()
    poll_until(mqtt, lambda: mqtt.error)
    assert str(mqtt.error) == "no answer from %s:%d" % (name, broker.port)
    mqtt.disconnect()


@pytest.mark.req("W10")
def test_refused_connect_raises_at_once():
    broker = Loopback()
    broker.code = 5
    mqtt = client(broker)
    with pytest.raises(ConnectRefused) as refused:
        mqtt.connect()
    assert refused.value.code == 5 and "not authorized" in str(refused.value)
    mqtt.disconnect()


@pytest.mark.req("W11")
def test_refused_subscription_raises_and_keeps_the_connection():
    broker = Loopback()
    broker.granted = 0x80
    mqtt = client(broker)
    mqtt.connect()
    with pytest.raises(Refused) as refused:
        mqtt.subscribe("x", 1)
    assert refused.value.code == 0x80 and str(refused.value) == "filter x: code 0x80"
    mqtt.poll(100)
    assert broker.connects == 1 and mqtt.connected
    assert len(broker.of(8)) == 1
    mqtt.disconnect()


@pytest.mark.req("W11")
def test_subscribe_without_suback_raises_at_its_deadline():
    broker, mqtt = connected()
    broker.silent = True
    with pytest.raises(DeadlineExpired):
        mqtt.subscribe("x", 1, timeout_s=0.3)
    mqtt.disconnect()


@pytest.mark.req("Q0", "Q3", "Q4")
def test_messages_go_to_the_handler_of_their_filter_or_to_on_message():
    broker, mqtt = connected()
    seen = []
    assert mqtt.subscribe("a/+", 1, lambda m: seen.append(("plus", m.topic, m.payload))) == 1
    assert mqtt.subscribe("b/#", 2, lambda m: seen.append(("hash", m.topic, m.payload))) == 2
    mqtt.on_message = lambda m: seen.append(("rest", m.topic, m.payload))
    broker.give(publish(b"a/1", b"1"), publish(b"b/2/3", b"2", 1, 1), publish(b"c", b"3"))
    broker.give(publish(b"b", b"4", 2, 2), pubrel(2))
    poll_until(mqtt, lambda: len(seen) == 4)
    assert seen == [
        ("plus", "a/1", b"1"),
        ("hash", "b/2/3", b"2"),
        ("rest", "c", b"3"),
        ("hash", "b", b"4"),
    ]
    broker()
    assert [one[0] >> 4 for one in broker.packets[-3:]] == [4, 5, 7]
    mqtt.unsubscribe("a/+")
    assert len(mqtt.session.subscriptions) == 1
    mqtt.disconnect()


@pytest.mark.req("W11", "S5")
@pytest.mark.clause("MQTT-3.1.0-2", "MQTT-3.14.4-1", "MQTT-3.14.4-2", "5:MQTT-3.14.4-1", "5:MQTT-3.14.4-2")
def test_after_disconnect_nothing_is_sent_and_the_connection_is_closed():
    broker, mqtt = connected()
    mqtt.publish("a", "x")
    mqtt.disconnect()
    assert mqtt.publish("a", "stored", 1) and not mqtt.publish("a", "not sent", 0)
    for _ in range(3):
        mqtt.poll(5)
        broker()
    assert broker.packets[-1] == b"\xe0\x00" and len(broker.of(1)) == 1
    assert broker.link is None  # the broker has seen the end of the stream
    assert mqtt.pending == 1


@pytest.mark.req("W11")
@pytest.mark.clause("MQTT-3.14.4-3")
@pytest.mark.parametrize(
    "level,code,expiry_s,expected", ((4, 0, None, b"\xe0\x00"), (5, 4, 60, b"\xe0\x07\x04\x05\x11\0\0\0<"))
)
def test_disconnect_is_sent_however_little_room_the_output_has(level, code, expiry_s, expected):
    for n in range(100, 125):
        broker, mqtt = connected(buffer_bytes=128, level=level)

        def fill_and_disconnect(_):
            mqtt.publish("a", b"x" * n)  # noqa: B023
            mqtt.disconnect(code=code, expiry_s=expiry_s)  # noqa: B023

        mqtt.on_message = fill_and_disconnect
        broker.give(publish("b", b"go") if level == 4 else b"\x30\x06\0\1b\0go")
        mqtt.poll(100)
        poll_until(mqtt, lambda: broker.link is None)  # noqa: B023
        assert len(broker.of(3)) == 1 and broker.packets[-1] == expected
        broker.close()


@pytest.mark.req("W11")
@pytest.mark.clause("MQTT-3.14.4-3")
def test_disconnect_follows_a_message_that_was_sent_in_part():
    if sys.implementation.name == "micropython":
        pytest.skip("this heap has no room for a message that fills the system's buffers")
    broker, mqtt = connected()
    broker.deaf = True
    mqtt.publish("a", b"x" * 10000000, 1)
    mqtt.poll()
    broker.deaf = False
    mqtt.disconnect()
    poll_until(mqtt, lambda: broker.link is None)
    assert len(broker.of(3)) == 1 and broker.packets[-1] == b"\xe0\x00"


class Limiting(Loopback):
    """A level 5 broker that accepts neither retained messages nor packets of more than 200 bytes."""

    def take(self, one):
        if one[0] >> 4 == 1:
            self.give(b"\x20\x0a\0\0\x07\x25\0\x27\0\0\0\xc8")
        self.packets.append(one)


@pytest.mark.req("Q0", "W12")
@pytest.mark.clause("5:MQTT-3.2.2-14", "5:MQTT-3.2.2-15")
def test_limits_of_the_broker_apply_to_qos_0_messages_that_find_the_output_full():
    broker = Limiting()
    mqtt = client(broker, buffer_bytes=128, level=5)
    mqtt.connect()

    def publish_all(_):
        mqtt.publish("a", b"x" * 122)  # fills the output
        mqtt.publish("a", b"retained", retain=True)
        mqtt.publish("a", b"x" * 122)
        mqtt.publish("a", b"too long" * 30)
        mqtt.publish("a", b"x" * 122)
        mqtt.publish("a", b"accepted")

    mqtt.on_message = publish_all
    broker.give(b"\x30\x06\0\1b\0go")
    mqtt.poll(100)
    poll_until(mqtt, lambda: len(broker.of(3)) >= 4)
    full = b"\x30\x7e\0\1a\0" + b"x" * 122
    assert broker.of(3) == [full, full, full, b"\x30\x0c\0\1a\0accepted"]


@pytest.mark.req("W12")
@pytest.mark.clause("MQTT-3.3.4-6")
def test_publish_with_a_subscription_identifier_is_refused():
    mqtt = Client("127.0.0.1", 1, "me", level=5)
    for qos in (0, 1):
        with pytest.raises(UsageError):
            mqtt.publish("a", "x", qos, properties={0x0B: 7})
    assert mqtt.pending == 0


@pytest.mark.req("W2", "Q7")
@pytest.mark.parametrize("qos", [0, 1])
def test_any_true_retain_value_sets_only_the_retain_bit(qos):
    broker, mqtt = connected(will=("w", "gone", 1, 2))
    for _ in range(2):
        mqtt.publish("a", "x", qos, 2)
    poll_until(mqtt, lambda: len(broker.of(3)) == 2)
    assert [one[0] for one in broker.of(3)] == [0x31 | qos << 1] * 2
    assert broker.of(1)[0][9] == 0x20 | 1 << 3 | 4
    mqtt.disconnect()


class SyncingStore(RamStore):
    """Counts its syncs."""

    syncs = 0

    def sync(self):
        self.syncs += 1


@pytest.mark.req("Q3", "S1")
def test_store_is_synced_before_an_acknowledgement_is_sent():
    store = SyncingStore()
    broker, mqtt = connected(store=store)
    mqtt.subscribe("a", 1, lambda message: None)
    store.syncs = 0
    broker.give(publish(b"a", b"1", 1, 1))
    poll_until(mqtt, lambda: broker.of(4))
    assert store.syncs == 1
    mqtt.disconnect()


@pytest.mark.req("Q1")
def test_handlers_may_publish():
    broker, mqtt = connected()
    mqtt.on_message = lambda m: [mqtt.publish("echo", m.payload, qos) for qos in (0, 1, 2)]
    broker.give(publish(b"a", b"hello", 1, 7))
    poll_until(mqtt, lambda: len(broker.of(3)) == 3)
    assert mqtt.drain(PATIENCE_S)
    assert len(broker.of(4)) == 1
    mqtt.disconnect()


@pytest.mark.req("Q3")
@pytest.mark.clause("MQTT-4.8.0-2")
def test_handler_error_is_raised_from_poll_and_its_message_retried():
    broker, mqtt = connected()
    seen = []

    def fail(message):
        seen.append(message.payload)
        if len(seen) == 1:
            raise ValueError("mine")

    mqtt.on_message = fail
    broker.give(publish(b"a", b"hello", 1, 7))
    with pytest.raises(ValueError):
        poll_until(mqtt, lambda: False)
    assert mqtt.connected
    mqtt.poll(20)
    assert broker.of(4) == []
    poll_until(mqtt, lambda: broker.of(4))
    assert seen == [b"hello"] * 2 and broker.connects == 1
    mqtt.disconnect()


@pytest.mark.req("W11")
def test_silent_link_is_noticed_within_one_and_a_half_keep_alives():
    import flashmqtt.client

    broker, mqtt = connected(keep_alive_s=1)
    broker.present = 1
    broker.deaf = True
    begin = ticks_ms()
    passed_ms = 0
    flashmqtt.client.ticks_ms = lambda: ticks_add(begin, passed_ms)  # independent of the machine's speed
    try:
        while mqtt.connected:
            passed_ms += 10
            mqtt.poll(0)
        assert passed_ms <= 1500
        assert isinstance(mqtt.error, DeadlineExpired)
        broker.deaf = False
        while not mqtt.connected:
            passed_ms += 10
            broker()
            mqtt.poll(0)
            assert passed_ms <= 10000
        mqtt.disconnect()
    finally:
        flashmqtt.client.ticks_ms = ticks_ms


@pytest.mark.req("Q0")
def test_long_messages_are_sent_through_small_buffers():
    broker, mqtt = connected(buffer_bytes=128)
    long = b"0123456789" * 300
    for qos in (0, 1, 2):
        mqtt.publish("a", long, qos)
    assert mqtt.drain(PATIENCE_S)
    poll_until(mqtt, lambda: len(broker.of(3)) == 3)
    assert [one[-3000:] == long for one in broker.of(3)] == [True] * 3
    mqtt.disconnect()


@pytest.mark.req("Q0")
def test_qos_0_message_without_a_connection_is_not_stored():
    broker = Loopback()
    mqtt = client(broker)
    assert mqtt.publish("a", "x") == 0
    assert mqtt.pending == 0


@pytest.mark.req("W9")
@pytest.mark.parametrize("qos", [0, 1])
def test_topic_with_a_wildcard_is_refused(qos):
    _, mqtt = connected()
    with pytest.raises(InvalidTopic):
        mqtt.publish("a/#", "x", qos)
    assert mqtt.pending == 0
    with pytest.raises(InvalidTopic):
        mqtt.subscribe("a#")
    mqtt.disconnect()


@pytest.mark.req("B5")
def test_drain_ends_at_its_deadline():
    broker, mqtt = connected()
    broker.answers_publish = False
    mqtt.publish("a", "x", 1)
    begin = ticks_ms()
    assert mqtt.drain(0.2) is False
    assert 150 <= ticks_diff(ticks_ms(), begin) < PATIENCE_S * 1000
    mqtt.disconnect()


class Resolver:
    """The socket module; `addresses` replaces the result of a name lookup."""

    def __init__(self, addresses):
        from flashmqtt import link

        self._link = link
        self._original = link.socket
        self.socket = link.socket.socket
        self.SOCK_STREAM = link.socket.SOCK_STREAM
        self.asked = []
        self._addresses = addresses
        link.socket = self

    def end(self):
        self._link.socket = self._original

    def getaddrinfo(self, *arguments):
        self.asked.append(arguments[0])
        return self._addresses(self._original.getaddrinfo(*arguments))


@pytest.mark.req("B4")
def test_host_name_is_resolved_for_every_connection_attempt():
    broker = Loopback()
    mqtt = client(broker)
    resolver = Resolver(lambda found: found)
    try:
        mqtt.connect()
        broker.present = 1
        broker.drop()
        poll_until(mqtt, lambda: broker.connects == 2)
    finally:
        resolver.end()
    assert resolver.asked == ["127.0.0.1"] * 2
    mqtt.disconnect()


@pytest.mark.req("B4")
@pytest.mark.parametrize("turn", [0, 1])
def test_address_that_does_not_answer_is_not_tried_for_ever_if_the_name_server_rotates_the_addresses(turn):
    broker = Loopback()
    mqtt = client(broker)
    dead = socket.getaddrinfo("127.0.0.1", 1, 0, socket.SOCK_STREAM)
    resolver = Resolver(lambda found: found + dead if len(resolver.asked) % 2 == turn else dead + found)
    try:
        mqtt.connect(5)
    finally:
        resolver.end()
    assert len(resolver.asked) <= 2
    mqtt.disconnect()


@pytest.mark.req("Q8")
def test_subscription_made_before_connect_is_sent_after_it():
    broker = Loopback()
    mqtt = client(broker)
    assert mqtt.subscribe("x", 1) is None
    mqtt.connect()
    poll_until(mqtt, lambda: len(broker.of(8)) == 1)
    mqtt.disconnect()


@pytest.mark.req("B4")
def test_backoff_continues_after_a_reboot_during_an_outage():
    broker = Loopback()
    broker.close()
    store = CutStore()
    mqtt = client(broker, store=store, backoff=Backoff(base_ms=1, cap_ms=400, random_below=longest))
    mqtt.session.note.begin(mqtt.connection.client_id, mqtt.connection.broker)
    mqtt.start()
    poll_until(mqtt, lambda: mqtt.session.note.octets[1] & 127 >= 8)
    after = client(broker, store=store.cut(), backoff=Backoff(base_ms=1, cap_ms=400, random_below=longest))
    begin = ticks_ms()
    after.start()
    poll_until(after, lambda: after.link.attempts == 1)
    assert ticks_diff(ticks_ms(), begin) >= 200
    mqtt.disconnect()
    after.disconnect()


@pytest.mark.req("B4")
def test_lasting_connection_resets_the_stored_backoff_step():
    broker = Loopback()
    mqtt = client(broker, store=CutStore(), backoff=Backoff(base_ms=1, cap_ms=50, lasting_ms=100, step=6))
    mqtt.session.note.begin(mqtt.connection.client_id, mqtt.connection.broker)
    mqtt.session.note.keep_step(6)
    mqtt.connect()
    poll_until(mqtt, lambda: mqtt.session.note.octets[1] & 127 == 0)
    assert mqtt.connected
    mqtt.disconnect()


def longest(n):
    return n - 1


@pytest.mark.req("B4")
def test_delivered_message_resets_the_backoff_of_a_short_connection():
    broker = Loopback()
    backoff = Backoff(base_ms=1, cap_ms=200, lasting_ms=60000, step=6, random_below=longest)
    mqtt = client(broker, store=CutStore(), backoff=backoff)
    mqtt.session.note.begin(mqtt.connection.client_id, mqtt.connection.broker)
    mqtt.session.note.keep_step(6)
    mqtt.connect()
    broker.present = 1
    for i in range(5):
        mqtt.publish("a", bytes([i]), qos=1 + i % 2)
        poll_until(mqtt, lambda: not mqtt.pending)
        assert mqtt.link.backoff.step == mqtt.session.note.octets[1] & 127 == 0
        broker.drop()
        poll_until(mqtt, lambda n=i + 2: mqtt.link.connects == n)
        assert mqtt.link.backoff.step == 1  # one attempt after a delay that was reset to the shortest
    mqtt.disconnect()


@pytest.mark.req("B4")
def test_backoff_grows_while_connections_deliver_nothing():
    broker = Loopback()
    broker.answers_publish = False
    mqtt = client(broker, backoff=Backoff(base_ms=1, cap_ms=200, lasting_ms=60000, random_below=longest))
    mqtt.publish("a", "x", qos=1)
    mqtt.start()
    for i in range(6):
        poll_until(mqtt, lambda n=i + 1: mqtt.link.connects == n and len(broker.of(3)) == n)
        assert mqtt.link.backoff.step == i
        broker.present = 1
        broker.drop()
    mqtt.disconnect()


class FailingStore(RamStore):
    """Every write raises `failure`, if it is set."""

    failure = None

    def _write(self, *_):
        if self.failure:
            raise self.failure

    flush = sync = _write


@pytest.mark.req("B4", "S6")
def test_message_in_a_worn_store_is_delivered_after_repeated_outages():
    store = FailingStore()
    broker, mqtt = connected(store=store, backoff=Backoff(base_ms=1, cap_ms=10, lasting_ms=60000, step=6))
    mqtt.publish("a", "x", 1)
    store.failure = StoreWorn("no sector left")
    broker.present = 1
    for i in range(3):
        broker.drop()
        poll_until(mqtt, lambda n=i + 2: mqtt.link.connects == n)
    poll_until(mqtt, lambda: not mqtt.pending)
    store.failure = None
    mqtt.disconnect()


def with_store_failing_in_a_handler():
    """Let a handler break the store; return the failing store, the broker and the client."""
    store = FailingStore()
    broker, mqtt = connected(store=store)

    def fail(message):
        store.failure = FlashFailed("not now")

    mqtt.on_message = fail
    broker.give(publish(b"a", b"x", 2, 8), pubrel(8))
    with pytest.raises(FlashFailed):
        poll_until(mqtt, lambda: False)
    return store, broker, mqtt


@pytest.mark.req("B4", "S6")
def test_client_reconnects_after_the_store_failed_at_connection_loss():
    store, broker, mqtt = with_store_failing_in_a_handler()
    broker.present = 1
    broker.drop()
    with pytest.raises(FlashFailed):
        mqtt.link.fail(ConnectionLost("gone"), ticks_ms())
    store.failure = None
    poll_until(mqtt, lambda: mqtt.connected and broker.connects == 2)
    mqtt.disconnect()


def flooded(broker):
    """Return a client that receives messages faster than it can read them."""
    mqtt = client(broker, keep_alive_s=1, buffer_bytes=128)
    mqtt.connect()
    mqtt.on_message = broker.handle
    broker.begin(publish(b"a", b"x" * 20) * 40)
    return mqtt


@pytest.mark.req("W13", "B4")
def test_poll_and_publish_return_during_an_endless_flood_of_messages():
    broker = Flooding()
    mqtt = flooded(broker)
    for _ in range(3):
        broker.turn = 0
        assert 0 < mqtt.poll(10) == broker.turn
    broker.turn = 0
    mqtt.link.stepped_ms -= 100
    mqtt.publish("b", "y", 1)
    assert broker.turn
    mqtt.disconnect()


@pytest.mark.req("B4")
def test_publish_connects_after_start_although_the_last_step_seems_to_be_in_the_future():
    broker = Loopback()
    mqtt = client(broker)
    begin = ticks_ms()
    mqtt.link.stepped_ms = ticks_add(begin, 1 << 28)  # as 0 seems if the clock shows more than 2^29 ms
    mqtt.start()
    while not broker.connects:
        assert ticks_diff(ticks_ms(), begin) < PATIENCE_S * 1000, "publish does not connect"
        mqtt.publish("a", "x")
        broker()
    mqtt.disconnect()


@pytest.mark.req("W11")
def test_client_pings_during_an_endless_flood_of_messages():
    broker = Flooding()
    mqtt = flooded(broker)
    begin = ticks_ms()
    while not broker.of(12):
        assert ticks_diff(ticks_ms(), begin) < PATIENCE_S * 1000, "no PINGREQ during the flood"
        broker.turn = 0
        mqtt.poll(10)
    mqtt.disconnect()


@pytest.mark.req("Q3", "Q4")
@pytest.mark.parametrize("waiting", ["poll", "drain"])
def test_blocking_call_in_a_handler_raises_and_its_message_is_not_acknowledged(waiting):
    broker, mqtt = connected()
    broker.present = 1
    seen = []

    def wait(message):
        seen.append(message.payload)
        mqtt.poll(10) if waiting == "poll" else mqtt.drain(1)
        seen.append(message.payload)

    mqtt.publish("b", "y", 1)
    broker.answers_publish = False
    mqtt.publish("b", "y", 1)
    mqtt.on_message = wait
    broker.give(publish(b"a", b"1", 1, 7), publish(b"a", b"2", 1, 8))
    with pytest.raises(UsageError):
        poll_until(mqtt, lambda: False)
    mqtt.poll(20)
    assert seen == [b"1"] and broker.of(4) == []
    mqtt.disconnect()


@pytest.mark.req("R4")
def test_drain_in_a_handler_is_refused_without_waiting():
    broker, mqtt = connected()
    broker.answers_publish = False
    feeds = []

    def drain(message):
        feeds.append(broker.feeds)
        with pytest.raises(UsageError):
            mqtt.drain(1)
        feeds.append(broker.feeds)

    mqtt.publish("b", "y", 1)
    mqtt.on_message = drain
    broker.give(publish(b"a", b"1"))
    poll_until(mqtt, lambda: feeds)
    assert feeds[0] == feeds[1]
    mqtt.disconnect()


NOT_ALLOWED = "blocking calls are not allowed in a message handler"
IN_A_HANDLER = [  # the call, its result or the error's text, the packet types that it sends
    ("publish", lambda mqtt: mqtt.publish("x", b"1"), 0, [3]),
    ("publish, QoS 1", lambda mqtt: mqtt.publish("x", b"1", 1), 2, [3]),
    ("publish, QoS 2", lambda mqtt: mqtt.publish("x", b"1", 2), 2, [3]),
    ("publish, QoS 0, longer than the buffer", lambda mqtt: mqtt.publish("x", bytes(3000)), 0, [3]),
    ("publish, QoS 1, longer than the buffer", lambda mqtt: mqtt.publish("x", bytes(3000), 1), 2, [3]),
    ("subscribe", lambda mqtt: mqtt.subscribe("q", 1), None, [8]),
    ("subscribe to several", lambda mqtt: mqtt.subscribe(["q", "r"], 1), [None, None], [8]),
    ("unsubscribe", lambda mqtt: mqtt.unsubscribe("q"), None, [10]),
    ("delivered", lambda mqtt: mqtt.delivered(1), False, []),
    ("start", lambda mqtt: mqtt.start(), None, []),
    ("connect, connected", lambda mqtt: mqtt.connect(), False, []),
    ("disconnect", lambda mqtt: mqtt.disconnect(), None, [14]),
    ("attributes", lambda mqtt: (mqtt.connected, mqtt.error, mqtt.pending), (True, None, 1), []),
    ("poll", lambda mqtt: mqtt.poll(), NOT_ALLOWED, []),
    ("poll, waiting", lambda mqtt: mqtt.poll(10), NOT_ALLOWED, []),
    ("drain, pending", lambda mqtt: mqtt.drain(1), NOT_ALLOWED, []),
    ("connect, not connected", lambda mqtt: (mqtt.disconnect(), mqtt.connect()), NOT_ALLOWED, [14]),
]


@pytest.mark.req("R4", "R6")
@pytest.mark.parametrize("name,call,result,sent", IN_A_HANDLER, ids=[one[0] for one in IN_A_HANDLER])
def test_calls_in_a_handler_work_or_raise_as_the_reference_says(name, call, result, sent):
    for event in ("message", "subscription", "connect"):
        got, packets = called_in_a_handler(event, call)
        assert got == [result], event
        kinds = [one[0] >> 4 for one in packets]
        for kind in sent:
            assert kind in kinds, event


def called_in_a_handler(event, call):
    """Call call(mqtt) in a handler of this event while a message is pending; return its result and the packets sent after it."""
    broker, mqtt = connected()
    broker.answers_publish = False
    got = []

    def handle(_):
        if not got:
            got.append(None)
            try:
                got[0] = call(mqtt)
            except UsageError as error:
                got[0] = str(error)

    mqtt.publish("p", b"1", 1)
    if event == "subscription":
        mqtt.subscribe("a", 1, handle)
    elif event == "message":
        mqtt.on_message = handle
    else:
        mqtt.on_connect = handle
    broker()
    before = len(broker.packets)
    if event == "connect":
        broker.drop()
    else:
        broker.give(publish(b"a", b"1", 1, 7))
    poll_until(mqtt, lambda: got)
    for _ in range(5):
        broker()
        mqtt.poll(5)
    mqtt.on_connect = None
    mqtt.disconnect()
    packets = broker.packets[before:]
    broker.close()
    return got, packets


@pytest.mark.req("Q4")
def test_qos_2_message_whose_handler_disconnects_is_not_delivered_again():
    broker, mqtt = connected()
    broker.present = 1
    seen = []

    def stop(message):
        seen.append(message.payload)
        mqtt.disconnect()

    mqtt.on_message = stop
    broker.give(publish(b"a", b"1", 2, 7), pubrel(7))
    poll_until(mqtt, lambda: seen)
    mqtt.connect()
    broker.give(pubrel(7))
    poll_until(mqtt, lambda: broker.of(7))
    assert seen == [b"1"]
    mqtt.disconnect()


@pytest.mark.req("W11", "R4")
def test_connect_raises_at_once_when_on_connect_disconnects():
    broker = Loopback()
    mqtt = client(broker)
    mqtt.on_connect = lambda present: mqtt.disconnect()
    begin = ticks_ms()
    with pytest.raises(ConnectionLost, match="disconnected meanwhile"):
        mqtt.connect(PATIENCE_S)
    assert ticks_diff(ticks_ms(), begin) < PATIENCE_S * 500 and not mqtt.connected
    mqtt.on_connect = None
    mqtt.connect(PATIENCE_S)
    mqtt.disconnect()
    broker.close()


@pytest.mark.req("W11")
def test_client_stays_disconnected_when_the_disconnecting_handler_fails():
    broker, mqtt = connected()

    def stop(message):
        mqtt.disconnect()
        raise ValueError("mine")

    mqtt.on_message = stop
    broker.give(publish(b"a", b"1"))
    with pytest.raises(ValueError):
        poll_until(mqtt, lambda: False)
    for _ in range(3):
        mqtt.poll(30)
    assert broker.connects == 1 and len(broker.of(1)) == 1 and mqtt.link.attempts == 1


@pytest.mark.req("W11", "S6")
def test_client_stays_disconnected_when_the_store_fails_during_disconnect():
    _, _broker, mqtt = with_store_failing_in_a_handler()
    with pytest.raises(FlashFailed):
        mqtt.disconnect()
    for _ in range(3):
        mqtt.poll(20)
    assert not mqtt.connected and mqtt.link.sock is None and mqtt.link.attempts == 1


IN_A_CALLBACK = [
    ("publish", lambda mqtt: mqtt.publish("x", b"1"), None, 3),
    ("publish, QoS 1", lambda mqtt: mqtt.publish("x", b"1", False, 1), None, 3),
    ("subscribe", lambda mqtt: mqtt.subscribe("q", 1), None, 8),
    ("unsubscribe", lambda mqtt: mqtt.unsubscribe("q"), None, 10),
    ("ping", lambda mqtt: mqtt.ping(), None, 12),
    ("check_msg", lambda mqtt: mqtt.check_msg(), None, 4),
    ("set_callback", lambda mqtt: mqtt.set_callback(mqtt.cb), None, 4),
    ("disconnect", lambda mqtt: mqtt.disconnect(), None, 14),
    ("wait_msg", lambda mqtt: mqtt.wait_msg(), NOT_ALLOWED, 4),
    ("connect", lambda mqtt: mqtt.connect(), NOT_ALLOWED, 1),
]


@pytest.mark.req("R4", "R6")
@pytest.mark.parametrize("name,call,result,sent", IN_A_CALLBACK, ids=[one[0] for one in IN_A_CALLBACK])
def test_calls_in_an_umqtt_callback_work_or_raise_as_the_reference_says(name, call, result, sent):
    broker = Loopback()
    mqtt = MQTTClient("me", "127.0.0.1", broker.port, feed=broker)
    got = []

    def handle(topic, message):
        if not got:
            got.append("nothing")
            try:
                got[0] = call(mqtt)
            except UsageError as error:
                got[0] = str(error)

    mqtt.set_callback(handle)
    mqtt.connect()
    broker.give(publish(b"a", b"1", 1, 7))
    for _ in range(20):
        try:
            mqtt.check_msg()
        except OSError:
            assert name == "disconnect"
        broker()
    assert got == [result]
    assert sent in [one[0] >> 4 for one in broker.packets]
    mqtt.disconnect()


@pytest.mark.req("Q3", "R6")
def test_connect_refused_in_an_umqtt_callback_leaves_the_connection_as_it_is():
    broker = Loopback()
    mqtt = MQTTClient("me", "127.0.0.1", broker.port, feed=broker)
    refused = []

    def note(topic, payload):
        try:
            mqtt.connect()
        except UsageError as error:
            refused.append(str(error))

    mqtt.set_callback(note)
    mqtt.connect(False)
    broker.give(publish(b"a", b"1", 1, 7))
    for _ in range(20):
        mqtt.check_msg()
        broker()
    assert refused == [NOT_ALLOWED] and broker.connects == 1
    assert broker.of(4) == [puback(7)]  # the callback has returned: the message is taken
    assert mqtt._client.connection.clean is False
    mqtt.disconnect()


@pytest.mark.req("Q3")
def test_umqtt_callback_may_call_check_msg_and_ping():
    broker = Loopback()
    mqtt = MQTTClient("me", "127.0.0.1", broker.port, feed=broker)
    seen = []

    def note(topic, payload):
        seen.append(payload)
        mqtt.check_msg()
        mqtt.ping()

    mqtt.set_callback(note)
    mqtt.connect()
    broker.give(publish(b"a", b"1", 1, 7), publish(b"a", b"2", 1, 8))
    while len(seen) < 2:
        mqtt.check_msg()
    assert seen == [b"1", b"2"]
    mqtt.disconnect()


@pytest.mark.req("Q0", "R4")
def test_long_qos_0_message_waits_for_the_broker_without_a_busy_loop():
    broker, mqtt = connected(buffer_bytes=128, timeout_s=1)
    broker.deaf = True  # it reads nothing, and its own bytes wait to be read
    broker.give(publish(b"b", b"unread"))
    mqtt.link.wait_ms = 0
    payload = bytes(20_000)
    while mqtt.connected:
        feeds = broker.feeds
        begin = ticks_ms()
        mqtt.publish("a", payload)
    assert ticks_diff(ticks_ms(), begin) >= 900
    assert broker.feeds - feeds < 100
    broker.close()


@pytest.mark.req("Q1", "R4")
def test_stuck_output_waits_for_the_broker_without_a_busy_loop():
    broker, mqtt = connected(buffer_bytes=128)
    broker.deaf = True  # it reads nothing, and its own bytes wait to be read
    mqtt.link.sock.setsockopt(1, 7, 4096)  # SO_SNDBUF
    for _ in range(14):
        mqtt.publish("a", bytes(8_000), qos=1)
    mqtt.poll(200)
    broker.give(publish(b"b", bytes(100)), publish(b"b", bytes(100)))
    mqtt.poll(100)
    feeds = broker.feeds
    mqtt.poll(300)
    assert mqtt.connected and mqtt.link.events & 4 and broker.feeds - feeds < 50
    broker.deaf = False
    mqtt.on_message = lambda message: None
    assert mqtt.drain(PATIENCE_S)
    mqtt.disconnect()
