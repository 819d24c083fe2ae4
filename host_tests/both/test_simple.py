"""The calls of umqtt.simple and umqtt.robust: results and errors when the link, the broker or the program fails (R6)."""

import pytest

from flashmqtt import robust, simple
from flashmqtt.backoff import Backoff
from flashmqtt.compat import ticks_diff, ticks_ms
from flashmqtt.errors import UsageError
from loopback import Loopback
from wire import packet, publish

PATIENCE_S = 30  # deadline for expected events, on a busy machine


def new_client(face=simple, name="me", **options):
    options.setdefault("backoff", Backoff(base_ms=20, cap_ms=100, lasting_ms=50))
    broker = Loopback()
    mqtt = face.MQTTClient(name, "127.0.0.1", broker.port, feed=broker, timeout_s=PATIENCE_S, **options)
    mqtt.seen = []
    mqtt.set_callback(lambda topic, payload: mqtt.seen.append((topic, payload)))
    return broker, mqtt


def connected(face=simple, **options):
    broker, mqtt = new_client(face, **options)
    mqtt.connect()
    return broker, mqtt


def call_until_error(broker, call):
    """Call until an error is raised, and let the broker run meanwhile; return the error."""
    begin = ticks_ms()
    while ticks_diff(ticks_ms(), begin) < PATIENCE_S * 1000:
        try:
            call()
        except Exception as error:
            return error
        if broker.listener:
            broker()
    raise AssertionError("the call raised no error")


def deliver_all(broker, mqtt):
    """Call check_msg until every stored message is delivered."""
    begin = ticks_ms()
    while mqtt._client.pending:
        assert ticks_diff(ticks_ms(), begin) < PATIENCE_S * 1000, "the messages were not delivered in time"
        broker()
        mqtt.check_msg()


@pytest.mark.req("R6")
def test_wait_and_check_return_the_first_byte_or_none():
    broker, mqtt = connected()
    assert mqtt.check_msg() is None
    broker.give(publish(b"a", b"1", 1, 7, retain=1))
    while not mqtt.seen:
        got = mqtt.check_msg()
    assert got == 0x33 and mqtt.check_msg() is None
    broker.give(publish(b"a", b"2"))
    assert mqtt.wait_msg() == 0x30 and mqtt.seen == [(b"a", b"1"), (b"a", b"2")]
    mqtt.disconnect()


@pytest.mark.req("R6")
def test_connect_whose_callback_disconnects_raises_at_once():
    class Eager(Loopback):
        def take(self, one):
            super().take(one)
            if one[0] >> 4 == 1:
                self.give(publish(b"a", b"1"))

    broker = Eager()
    mqtt = simple.MQTTClient("me", "127.0.0.1", broker.port, feed=broker, timeout_s=PATIENCE_S)
    mqtt.set_callback(lambda topic, payload: mqtt.disconnect())
    begin = ticks_ms()
    with pytest.raises(OSError):
        mqtt.connect()
    assert ticks_diff(ticks_ms(), begin) < PATIENCE_S * 500
    mqtt.set_callback(lambda topic, payload: None)
    mqtt.connect()
    mqtt.disconnect()


@pytest.mark.req("R6")
@pytest.mark.parametrize("qos", [0, 1])
def test_message_longer_than_the_buffer_arrives_complete(qos):
    broker, mqtt = connected()
    long = bytes(range(250)) * 12
    broker.give(publish(b"a", long, qos, 7), publish(b"a", b"short", qos, 8))
    for _ in range(2):
        assert mqtt.wait_msg() == 0x30 | qos << 1
    assert mqtt.seen == [(b"a", long), (b"a", b"short")]
    if qos:
        while len(broker.of(4)) < 2:
            broker()
            mqtt.check_msg()
        assert [puback[-2:] for puback in broker.of(4)] == [b"\x00\x07", b"\x00\x08"]
    mqtt.disconnect()


@pytest.mark.req("R6")
def test_long_message_cut_by_a_lost_link_arrives_once():
    broker, mqtt = connected()
    long = publish(b"a", b"0123456789" * 300, 1, 7)
    broker.give(long[:2000])
    for _ in range(20):
        broker()
        mqtt.check_msg()
    broker.drop()
    assert isinstance(call_until_error(broker, mqtt.check_msg), OSError) and mqtt.seen == []
    mqtt.connect()
    broker.give(long)
    assert mqtt.wait_msg() == 0x32 and mqtt.seen == [(b"a", b"0123456789" * 300)]
    mqtt.disconnect()


@pytest.mark.req("R6")
def test_callback_error_on_long_message_is_raised_and_next_arrives():
    broker, mqtt = connected()

    def fails(topic, payload):
        mqtt.seen.append(len(payload))
        if len(payload) > 9:
            raise ValueError("too long for me")

    mqtt.set_callback(fails)
    broker.give(publish(b"a", b"0123456789" * 300, 1, 7), publish(b"a", b"short", 1, 8))
    assert isinstance(call_until_error(broker, mqtt.check_msg), ValueError)
    while len(mqtt.seen) < 2:
        broker()
        mqtt.check_msg()
    assert mqtt.seen == [3000, 5]
    mqtt.disconnect()


@pytest.mark.req("R6")
def test_pingresp_ends_wait_msg():
    for keepalive in (0, 60):
        _, mqtt = connected(keepalive=keepalive)
        mqtt.ping()
        assert mqtt.wait_msg() is None
        assert mqtt.check_msg() is None
        mqtt.disconnect()


@pytest.mark.req("R6", "B4")
def test_closed_connection_raises_oserror_once_and_connect_reconnects():
    for call in ("wait_msg", "check_msg", "ping"):
        broker, mqtt = connected()
        mqtt.subscribe(b"a", 1)
        broker.drop()
        error = call_until_error(broker, getattr(mqtt, call))
        assert isinstance(error, OSError), error
        assert mqtt.connect() == 0
        assert mqtt.check_msg() is None and mqtt.sock is not None and broker.connects == 2
        mqtt.disconnect()


@pytest.mark.req("R6")
def test_closed_connection_raises_oserror_minus_one():
    broker, mqtt = connected()
    broker.drop()
    error = call_until_error(broker, mqtt.wait_msg)
    assert type(error) is OSError and error.args[0] == -1
    mqtt.disconnect()


@pytest.mark.req("R6", "B4")
def test_program_that_ignores_the_error_is_reconnected():
    broker, mqtt = connected()
    mqtt.subscribe(b"a", 1)
    broker.drop()
    assert isinstance(call_until_error(broker, mqtt.check_msg), OSError)
    while len(broker.of(8)) < 2:
        broker()
        mqtt.check_msg()
    broker.give(publish(b"a", b"later", 0))
    assert mqtt.wait_msg() == 0x30 and broker.connects == 2
    mqtt.disconnect()


@pytest.mark.req("R6", "B4")
def test_each_failed_attempt_is_reported_once():
    broker, mqtt = connected()
    broker.close()
    first = call_until_error(broker, mqtt.check_msg)
    second = call_until_error(broker, mqtt.wait_msg)
    assert isinstance(first, OSError) and isinstance(second, OSError) and second is not first
    broker.open(broker.port)
    while not mqtt._client.connected:
        try:
            broker()
            mqtt.check_msg()
        except OSError:
            pass
    mqtt.disconnect()
    broker.close()


@pytest.mark.req("R6", "S5")
def test_qos_1_publish_that_raises_is_still_stored():
    broker, mqtt = connected()
    broker.answers_publish = False
    mqtt._client.connection.session.response_ms = 100
    error = call_until_error(broker, lambda: mqtt.publish(b"a", b"kept", qos=1))
    assert isinstance(error, OSError) and mqtt._client.pending == 1
    broker.answers_publish = True
    mqtt.connect(False)
    deliver_all(broker, mqtt)
    assert len(broker.of(3)) == 2
    mqtt.disconnect()


@pytest.mark.req("R6")
def test_calls_without_connection_raise_oserror_every_time():
    broker, mqtt = connected()
    broker.close()
    call_until_error(broker, lambda: mqtt.publish(b"a", b"1"))
    for call in (lambda: mqtt.publish(b"a", b"2"), mqtt.ping, lambda: mqtt.subscribe(b"a")):
        with pytest.raises(OSError):
            call()
    mqtt.disconnect()


@pytest.mark.req("R6")
def test_calls_after_disconnect_raise_oserror_but_qos_1_is_stored():
    broker, mqtt = connected()
    mqtt.disconnect()
    for call in (mqtt.check_msg, mqtt.wait_msg, mqtt.ping, lambda: mqtt.publish(b"a", b"1")):
        with pytest.raises(OSError):
            call()
    mqtt.publish(b"a", b"stored", qos=1)
    assert mqtt._client.pending == 1
    mqtt.connect(False)
    deliver_all(broker, mqtt)
    mqtt.disconnect()


@pytest.mark.req("R6")
def test_disconnect_without_a_connection_does_nothing():
    _, mqtt = new_client()
    mqtt.disconnect()


@pytest.mark.req("R6")
def test_refused_connection_raises_mqtt_exception_with_code():
    broker, mqtt = new_client(name="me")
    broker.code = 5
    with pytest.raises(simple.MQTTException) as raised:
        mqtt.connect()
    assert raised.value.args == (5,) and str(raised.value) == "5"
    broker.code = 0
    assert mqtt.connect() == 0
    mqtt.disconnect()


@pytest.mark.req("R6")
def test_missing_connack_raises_etimedout():
    from errno import ETIMEDOUT

    broker, mqtt = new_client()
    broker.deaf = True
    with pytest.raises(OSError) as raised:
        mqtt.connect(True, 0.05)
    assert raised.value.args[0] == ETIMEDOUT
    broker.close()


@pytest.mark.req("R6")
def test_connect_ignores_a_stored_backoff_step():
    backoff = Backoff(base_ms=60000, cap_ms=60000)
    backoff.step = 5  # as restored from a journal
    _, mqtt = new_client(backoff=backoff)
    begin = ticks_ms()
    assert mqtt.connect() == 0
    assert ticks_diff(ticks_ms(), begin) < 20000
    mqtt.disconnect()


@pytest.mark.req("R6")
def test_invalid_packet_raises_oserror():
    broker, mqtt = connected()
    broker.give(packet(0xF0))
    assert isinstance(call_until_error(broker, mqtt.check_msg), OSError)
    mqtt.disconnect()


@pytest.mark.req("R6")
def test_user_password_and_will_may_be_set_before_connect():
    broker, mqtt = new_client()
    mqtt.user = "me"
    mqtt.pswd = b"secret"
    mqtt.keepalive = 7
    mqtt.connect()
    assert broker.of(1)[0].endswith(b"\x00\x02me\x00\x06secret")
    mqtt.disconnect()
    mqtt.user = ""
    mqtt.set_last_will("me/status", "off", qos=1)
    mqtt.connect()
    assert broker.of(1)[1].endswith(b"\x00\x09me/status\x00\x03off")
    mqtt.disconnect()


@pytest.mark.req("W10", "R6")
@pytest.mark.parametrize("keepalive", [None, "60", 7.5, -1, 65536])
def test_keepalive_that_becomes_invalid_is_refused_by_name(keepalive):
    _, mqtt = connected()
    mqtt.disconnect()
    mqtt.keepalive = keepalive
    with pytest.raises(UsageError) as refused:
        mqtt.connect()
    assert str(refused.value) == "keep_alive_s %r: 0 to 65535" % (keepalive,)
    mqtt.keepalive = 60
    assert mqtt.connect() == 0
    mqtt.disconnect()


@pytest.mark.req("R6")
def test_unsubscribe_ends_a_subscription():
    broker, mqtt = connected()
    mqtt.subscribe(b"a")
    mqtt.unsubscribe("a")
    assert len(broker.of(10)) == 1 and not mqtt._client.session.subscriptions
    mqtt.disconnect()


@pytest.mark.req("R6")
def test_setblocking_and_settimeout_apply_to_the_next_wait():
    broker, mqtt = connected()
    mqtt.sock.setblocking(False)
    assert mqtt.wait_msg() is None
    mqtt.sock.settimeout(0.05)
    with pytest.raises(OSError) as raised:
        mqtt.wait_msg()
    assert "no message" in str(raised.value)
    broker.give(publish(b"a", b"1"))
    mqtt.sock.settimeout(PATIENCE_S)
    assert mqtt.wait_msg() == 0x30 and mqtt._limit_ms is None
    mqtt.publish(b"a", b"1", qos=1)
    assert mqtt.sock is mqtt.sock and mqtt._client.connected
    mqtt.disconnect()


@pytest.mark.req("R6")
def test_program_may_poll_and_close_the_socket():
    from select import poll

    broker, mqtt = connected()
    poller = poll()
    poller.register(mqtt.sock, 1)
    assert not poller.poll(0)
    broker.give(publish(b"a", b"1"))
    for _ in range(1000):
        broker()
        if poller.poll(10):
            break
    assert mqtt.check_msg() == 0x30
    mqtt.sock.close()
    assert mqtt.sock is None
    with pytest.raises(OSError):
        mqtt.check_msg()
    broker()
    assert broker.of(14) == [] and mqtt.connect() == 0
    mqtt.disconnect()


class Quick(robust.MQTTClient):
    """A program's subclass of umqtt.robust: it has a short delay, records each error, and publishes a status when it connects."""

    DELAY = 0.01
    notes: list = []

    def log(self, in_reconnect, e):
        self.notes.append(in_reconnect)
        super().log(in_reconnect, e)

    def connect(self, clean_session=True):
        self.set_last_will(b"status", b"off", retain=True)
        try:
            return super().connect(clean_session)
        finally:
            self.publish(b"status", b"on", retain=True)


class Face:
    MQTTClient = Quick


@pytest.mark.req("R6", "B4")
@pytest.mark.parametrize("call", ["wait_msg", "check_msg", "ping", "publish", "publish 1", "subscribe"])
def test_robust_call_reconnects_with_the_overridden_connect(call):
    Quick.notes = []
    broker, mqtt = connected(Face)
    assert mqtt.is_conn_issue() is False
    broker()
    broker.drop()
    calls = {
        "wait_msg": mqtt.wait_msg,
        "check_msg": mqtt.check_msg,
        "ping": mqtt.ping,
        "publish": lambda: mqtt.publish(b"a", b"1"),
        "publish 1": lambda: mqtt.publish(b"a", b"1", qos=1),
        "subscribe": lambda: mqtt.subscribe(b"a"),
    }
    begin = ticks_ms()
    take = broker.take

    def greet(one):  # wait_msg needs a message
        take(one)
        if call == "wait_msg" and one[0] >> 4 == 1:
            broker.give(publish(b"a", b"1"))

    broker.take = greet
    while broker.connects < 2:
        assert ticks_diff(ticks_ms(), begin) < PATIENCE_S * 1000
        calls[call]()
        broker()
    deliver_all(broker, mqtt)
    assert Quick.notes == [False]
    mqtt.ping()
    assert mqtt.wait_msg() in (None, 0x30)
    assert len([body for body in broker.of(3) if body.endswith(b"on")]) == 2
    mqtt.disconnect()


@pytest.mark.req("R6", "B4")
def test_robust_retries_until_the_broker_is_back():
    Quick.notes = []
    broker, mqtt = connected(Face)
    broker.close()
    delays = []

    def delay(i):
        delays.append(i)
        if i == 12:
            broker.open(broker.port)

    mqtt.delay = delay
    while not delays:
        mqtt.publish(b"a", b"1")
    assert delays == list(range(1, 13)) and Quick.notes == [False] + [True] * 12
    assert not mqtt.is_conn_issue() and broker.connects == 2
    mqtt.disconnect()
    broker.close()


@pytest.mark.req("R6")
def test_robust_program_started_before_its_broker_connects():
    Quick.notes = []
    broker, mqtt = new_client(Face)
    broker.close()
    mqtt.delay = lambda i: broker.open(broker.port)
    # As with umqtt.robust: connect raises, but the publish in the overridden connect reconnects.
    with pytest.raises(OSError):
        mqtt.connect()
    assert not mqtt.is_conn_issue()
    mqtt.disconnect()
    broker.close()


@pytest.mark.req("R6", "B4")
def test_log_has_a_line_for_each_connection_event():
    lines = []
    broker, mqtt = connected(log=lines.append)
    broker.drop()
    assert isinstance(call_until_error(broker, mqtt.check_msg), OSError)
    mqtt.connect()
    mqtt.disconnect()
    assert [line.split(":")[1].strip().split(",")[0] for line in lines if "connect" in line] == [
        "connecting to 127.0.0.1",
        "connected",
        "connection lost",
        "connecting to 127.0.0.1",
        "connected",
        "disconnected",
    ]
    assert "again in " in lines[2]


@pytest.mark.req("R6")
@pytest.mark.parametrize(
    "name,arguments", [("ping", ()), ("publish", ("a", "x")), ("subscribe", ("a",)), ("check_msg", ())]
)
def test_call_before_connect_is_an_error_of_the_connection_and_robust_connects(name, arguments):
    broker, mqtt = new_client()
    with pytest.raises(OSError):
        getattr(mqtt, name)(*arguments)
    broker, mqtt = new_client(robust)
    getattr(mqtt, name)(*arguments)
    assert broker.connects == 1
    mqtt.disconnect()


@pytest.mark.req("S5", "R6")
def test_message_published_before_connect_is_stored():
    broker, mqtt = new_client()
    mqtt.publish("a", "x", qos=1)
    mqtt.connect()
    deliver_all(broker, mqtt)
    assert len(broker.of(3)) == 1
    mqtt.disconnect()


@pytest.mark.req("R6")
def test_connect_ends_the_time_limit_of_wait_msg():
    broker, mqtt = connected()
    mqtt.sock.settimeout(0.01)
    with pytest.raises(OSError):
        mqtt.wait_msg()
    mqtt.connect()
    begin = broker.feeds

    def feed():
        broker()
        if broker.feeds == begin + 3:  # after two waits of 200 ms
            broker.give(publish(b"a", b"1"))

    mqtt._client.link.feed = feed
    assert mqtt.wait_msg() == 0x30
    mqtt.disconnect()
