"""The client with failing links, stores and timers (Q4, R4, R6, S6). Each test reproduces a defect of an earlier version."""

import sys
from errno import EAGAIN
from struct import pack

import pytest

from flashmqtt.backoff import Backoff
from flashmqtt.client import Client
from flashmqtt.compat import ticks_diff, ticks_ms
from flashmqtt.errors import ConnectRefused, StoreWorn, UsageError
from flashmqtt.flash.ram import RamRegion
from flashmqtt.journal.journal import DROP_OLDEST, Journal
from flashmqtt.session import session as session_module
from flashmqtt.session.ram import RamStore
from flashmqtt.simple import MQTTClient
from loopback import Loopback, poll_until
from test_client import PATIENCE_S, client, connected
from wire import CutStore, connack, publish, pubrel, take


class Patient(Loopback):
    """Notes whether the client had already closed the connection when its DISCONNECT was read; closes it if `closes`."""

    closes = True
    had_closed = None

    def take(self, one):
        if one[0] == 0xE0:
            try:
                self.had_closed = self.link.recv(1) == b""
            except OSError as error:
                self.had_closed = error.errno != EAGAIN
            self.present = 0
        if one[0] != 0xE0 or self.closes:
            super().take(one)


@pytest.mark.req("W11")
def test_broker_can_read_disconnect_before_the_client_closes():
    broker = Patient()
    mqtt = client(broker)
    mqtt.connect()
    mqtt.disconnect()
    assert broker.had_closed is False


@pytest.mark.req("W11")
def test_broker_can_read_disconnect_before_the_client_reconnects():
    broker = Patient()
    broker.present = 1  # a session from before this store: the client discards it, with a second connection
    mqtt = client(broker, store=CutStore())
    assert mqtt.connect() is False
    assert broker.connects > 1 and broker.had_closed is False
    mqtt.disconnect()


@pytest.mark.req("W11")
def test_disconnect_ends_if_the_broker_does_not_close():
    broker = Patient()
    broker.closes = False
    mqtt = client(broker, timeout_s=600)
    mqtt.connect()
    begin = ticks_ms()
    mqtt.disconnect()
    assert ticks_diff(ticks_ms(), begin) < 300000 and broker.had_closed is False


@pytest.mark.req("W10", "W11")
def test_disconnect_while_connect_is_unanswered_reaches_the_broker_which_publishes_no_will():
    class Slow(Loopback):
        def take(self, one):
            self.packets.append(one)
            if one[0] == 0xE0:
                self.drop()

    for level in (3, 4, 5):
        broker = Slow()
        mqtt = client(broker, level=level, will=("a", "b", 0, False))
        mqtt.disconnect()  # nothing was sent: nothing to do
        mqtt.start()
        poll_until(mqtt, lambda broker=broker: broker.of(1))
        mqtt.disconnect()
        broker()
        assert [one[0] for one in broker.packets] == [0x10, 0xE0]


@pytest.mark.req("Q4", "W11")
def test_message_stays_the_same_while_its_handler_disconnects_and_the_broker_continues_to_send():
    class Busy(Patient):
        def take(self, one):
            if one[0] == 0xE0:
                self.give(publish(b"zzz", b"z" * 300))
            super().take(one)

    broker = Busy()
    mqtt = client(broker)
    mqtt.connect()
    got = []

    def first(message):
        mqtt.disconnect()
        got.append((message.topic, message.payload))

    mqtt.subscribe("a/#", 1, first)
    mqtt.subscribe("+/b", 1, lambda message: got.append((message.topic, message.payload)))
    broker.give(publish(b"a/b", b"stop", 1, 7))
    poll_until(mqtt, lambda: got)
    assert got == [("a/b", b"stop")] * 2 and not mqtt.connected


@pytest.mark.req("W11", "R4")
def test_reconnect_at_the_client_s_own_wish_sends_disconnect_at_once():
    class Counting(Patient):
        polls = 0

        def take(self, one):
            if one[0] >> 4 in (1, 14):
                at.append(self.polls)
            super().take(one)

    at = []  # the number of calls of `poll` before each CONNECT and DISCONNECT
    broker = Counting()
    broker.present = 1
    mqtt = Client("127.0.0.1", broker.port, "me", CutStore())
    mqtt.start()
    while broker.connects < 2:
        mqtt.poll(0)
        broker.polls += 1
        broker()
    assert at[1] == at[0] + 1
    mqtt.disconnect()
    broker.close()


@pytest.mark.req("W11", "R4")
def test_reset_after_disconnect_does_not_delay_the_reconnect():
    class Resetting(Patient):
        def take(self, one):
            if one[0] == 0xE0:
                self.link.setsockopt(1, 13, pack("ii", 1, 0))  # SOL_SOCKET, SO_LINGER: close with RST
            super().take(one)

    broker = Resetting()
    broker.present = 1
    delays = []
    mqtt = client(broker, store=CutStore(), backoff=Backoff(random_below=lambda n: delays.append(n) or 0))
    assert mqtt.connect() is False and mqtt.error is None
    assert broker.connects > 1 and delays == []
    mqtt.disconnect()


@pytest.mark.req("Q4", "R4")
def test_finished_handler_does_not_run_again_after_link_loss_with_full_output():
    broker, mqtt = connected(buffer_bytes=1024)
    broker.present = 1
    ran = []

    def handler(message):
        ran.append(message.payload)
        broker.drop()
        for i in range(10):
            mqtt.publish("status", b"z" * (91 if i < 9 else 101))

    mqtt.on_message = handler
    broker.give(publish(b"t", b"open valve", 2, 1))
    poll_until(mqtt, lambda: broker.of(5))
    broker.give(pubrel(1))
    poll_until(mqtt, lambda: broker.connects == 2)
    broker.give(pubrel(1))
    poll_until(mqtt, lambda: broker.of(7))
    assert ran == [b"open valve"]
    mqtt.disconnect()


@pytest.mark.req("Q4")
def test_message_whose_handler_was_interrupted_is_delivered_again():
    broker, mqtt = connected()
    seen = []

    def handler(message):
        seen.append(message.payload)
        if len(seen) == 1:
            raise KeyboardInterrupt

    mqtt.on_message = handler
    broker.give(publish(b"t", b"x", 1, 5))
    with pytest.raises(KeyboardInterrupt):
        poll_until(mqtt, lambda: False)
    assert not broker.of(4)
    poll_until(mqtt, lambda: broker.of(4))
    assert seen == [b"x", b"x"] and mqtt.failed == 0
    mqtt.disconnect()


@pytest.mark.req("S6", "R4")
def test_worn_store_does_not_raise_out_of_disconnect():
    store = CutStore()
    broker, mqtt = connected(store=store)
    broker.answers_publish = False
    mqtt.publish("t", "x", qos=1)
    store.worn = True
    with pytest.raises(StoreWorn):
        mqtt.publish("t", "x", qos=1)
    broker.give(publish(b"t", b"x", 2, 1))  # the store can't hold it: no answer, but the connection stays
    for _ in range(5):
        mqtt.poll(10)
    assert mqtt.connected
    mqtt.disconnect()
    assert not mqtt.connected


@pytest.mark.req("Q4", "R4")
def test_message_refused_by_a_full_store_arrives_without_backoff():
    broker, mqtt = connected(store=RamStore(hold_limit=1), backoff=Backoff(base_ms=100000, cap_ms=100000))
    broker.present = 1
    seen = []
    mqtt.on_message = lambda message: seen.append(message.payload)
    broker.give(publish(b"t", b"1", 2, 1), publish(b"t", b"2", 2, 2))
    poll_until(mqtt, lambda: broker.of(5))
    broker.give(pubrel(1))
    poll_until(mqtt, lambda: broker.connects == 2)
    broker.give(publish(b"t", b"2", 2, 2, dup=1), pubrel(2))
    poll_until(mqtt, lambda: len(seen) == 2)
    assert seen == [b"1", b"2"] and mqtt.link.backoff.step == 0
    mqtt.disconnect()


@pytest.mark.req("R4", "S5")
def test_on_dropped_that_causes_the_next_drop_does_not_stop_receiving():
    store = Journal(RamRegion(6, 1024), policy=DROP_OLDEST)
    broker, mqtt = connected(store=store)
    broker.answers_publish = False
    seen = []
    calls = []

    def publish_again(first, last):
        calls.append(first)
        assert len(calls) < 10_000, "no packet was read meanwhile"
        if not seen:
            mqtt.publish("t", bytes(600), qos=1)  # a sector has room for one: this drops the oldest

    for _ in range(20):
        mqtt.publish("t", bytes(600), qos=1)
    mqtt.on_message = seen.append
    mqtt.on_dropped = publish_again
    broker.give(publish(b"t", b"x"))
    mqtt.publish("t", bytes(600), qos=1)  # on a slow machine, the earlier drops are reported by now
    poll_until(mqtt, lambda: seen)
    assert len(calls) > 1
    mqtt.poll(0)
    mqtt.disconnect()


@pytest.mark.req("S5", "R5")
def test_dropped_messages_are_reported_without_a_connection():
    store = Journal(RamRegion(4, 1024), policy=DROP_OLDEST)
    mqtt = Client("127.0.0.1", 1, "me", store=store, backoff=Backoff(base_ms=100000))
    dropped = []
    mqtt.on_dropped = lambda first, last: dropped.extend(range(first, last + 1))
    for connects in (False, True):  # before `start`, and between two attempts
        before = store.dropped
        while store.dropped < before + 40:
            mqtt.publish("t", bytes(100), 1)
        mqtt.poll(0)
        assert dropped == list(range(1, store.dropped + 1)), connects
        mqtt.start()
        mqtt.poll(0)


@pytest.mark.req("S5", "R5")
def test_dropped_messages_are_reported_while_connect_is_unanswered():
    broker = Loopback()
    broker.silent = True
    store = Journal(RamRegion(4, 1024), policy=DROP_OLDEST)
    mqtt = Client("127.0.0.1", broker.port, "me", store=store, feed=broker)
    dropped = []
    mqtt.on_dropped = lambda first, last: dropped.append(last)
    mqtt.start()
    poll_until(mqtt, lambda: broker.of(1))
    while store.dropped < 40:
        mqtt.publish("t", bytes(100), 1)
    mqtt.poll(0)
    assert dropped[-1] == store.dropped
    broker.give(connack())
    poll_until(mqtt, lambda: mqtt.connected)
    mqtt.disconnect()


@pytest.mark.req("S5", "R5")
def test_dropped_messages_are_not_pending_behind_one_whose_flow_has_begun():
    store = Journal(RamRegion(6, 1024), policy=DROP_OLDEST)
    broker, mqtt = connected(store=store)
    broker.answers_publish = False
    dropped = []
    mqtt.on_dropped = lambda first, last: dropped.extend(range(first, last + 1))
    mqtt.publish("t", b"x", 2)
    poll_until(mqtt, lambda: broker.of(3))
    broker.close()
    last = 1
    while store.dropped < 100:
        last = mqtt.publish("t", bytes(100), 1)
    assert mqtt.pending == 1 + last - store.floor + 1
    mqtt.poll(0)
    assert dropped == list(range(2, store.floor))
    broker.open(broker.port)
    broker.answers_publish = True
    assert mqtt.drain(60) and mqtt.pending == 0
    mqtt.disconnect()


@pytest.mark.req("S5", "R4")
def test_on_dropped_that_causes_the_next_drop_without_a_connection_does_not_keep_poll():
    store = Journal(RamRegion(6, 1024), policy=DROP_OLDEST)
    mqtt = Client("127.0.0.1", 1, "me", store=store)
    calls = []

    def publish_again(first, last):
        calls.append(first)
        assert len(calls) < 1000, "poll does not return"
        mqtt.publish("t", bytes(600), qos=1)

    mqtt.on_dropped = publish_again
    while not store.dropped:
        mqtt.publish("t", bytes(600), qos=1)
    mqtt.poll(0)
    assert calls


@pytest.mark.req("R4", "S1")
def test_poll_refused_within_a_publish_leaves_later_calls_refused():
    outcomes = []

    class Interrupted(RamStore):
        def append(self, buf, length):
            for call in (mqtt.poll, lambda: mqtt.publish("timer", "BBBBBBBB", 1), mqtt.poll) if not outcomes else ():
                try:
                    call()
                    outcomes.append("done")
                except UsageError:
                    outcomes.append("refused")
            return super().append(buf, length)

    mqtt = Client("127.0.0.1", 1, "me", store=Interrupted())
    assert mqtt.publish("main", "AAAA", 1) == 1
    assert outcomes == ["refused"] * 3
    stored = bytearray(14)
    mqtt.session.store.read(1, 0, stored, 0, 14)
    assert stored == publish(b"main", b"AAAA", 1, 1)
    mqtt.publish("main", "AAAA", 1)
    assert mqtt.pending == 2


@pytest.mark.req("Q4", "R4")
def test_long_messages_are_handed_over_whole_while_reports_come_in_a_row():
    store = Journal(RamRegion(24, 1024), policy=DROP_OLDEST)
    broker, mqtt = connected(store=store, chunks=True, buffer_bytes=256, window=1)
    broker.answers_publish = False
    got = []
    drops = []
    mqtt.on_message = lambda message: got.append((message.topic, message.offset))
    for topic, key in ((b"A", 21), (b"B", 22)):
        broker.give(publish(topic, topic * 600, 2, key))
    poll_until(mqtt, lambda: len(store.held()) == 2)

    def dropped(first, last):
        drops.append(first)
        if len(drops) < 100:
            mqtt.publish("t", bytes(600), 1)

    for _ in range(40):
        mqtt.publish("t", bytes(600), 1)
    broker.give(pubrel(21) + pubrel(22) + publish(b"q", b"zero"))
    mqtt.on_dropped = dropped
    mqtt.publish("t", bytes(600), 1)  # on a slow machine, the earlier drops are reported by now
    poll_until(mqtt, lambda: ("q", 0) in got and not store.held())
    assert len(drops) > 32
    assert [topic for topic, _ in got] == ["A"] * (len(got) // 2) + ["B"] * (len(got) // 2) + ["q"]
    assert len(got) > 5 and [offset for topic, offset in got if topic == "A"] == [
        offset for topic, offset in got if topic == "B"
    ]
    mqtt.disconnect()


@pytest.mark.req("Q4", "R4")
def test_message_left_for_want_of_room_comes_again_although_a_later_one_has_to_wait():
    broker, mqtt = connected(store=RamStore(10, 2), chunks=True, buffer_bytes=64, unclaimed="keep")
    got = []
    broker.give(publish(b"u", b"old", 2, 1))
    poll_until(mqtt, lambda: broker.of(5))
    broker.give(pubrel(1))  # nobody claims it: it waits in the store
    poll_until(mqtt, lambda: mqtt.session.waiting)
    broker.drop()
    poll_until(mqtt, lambda: broker.connects == 2)  # the broker has lost the session, and uses the packet ids anew
    mqtt.subscribe(b"h", 2, lambda message: got.append(message.payload))
    broker.give(publish(b"h", b"two", 2, 2))
    poll_until(mqtt, lambda: len(broker.of(5)) == 2)
    broker.give(publish(b"h", b"three", 2, 3))  # no room: left
    broker.give(publish(b"u", b"N" * 200, 2, 1))  # has to wait for "old": left, too
    for _ in range(5):
        mqtt.poll(20)
    assert broker.connects == 2
    broker.give(pubrel(2))
    poll_until(mqtt, lambda: broker.connects == 3)  # there is room now
    assert got == [b"two"]
    mqtt.disconnect()


class Hesitant:
    """A socket whose writes often accept no bytes, as with TLS, or only some; it records the offered lengths."""

    def __init__(self):
        self.offers = []
        self.stream = b""
        self.turns = 0

    def write(self, buf, start, n):
        self.turns += 1
        self.offers.append(n)
        if self.turns % 3:
            return None
        taken = n if self.turns % 2 else (n + 1) // 2
        self.stream += bytes(buf[start : start + taken])
        return taken

    def readinto(self, room):
        return None

    def close(self):
        pass


@pytest.mark.req("W13")
def test_write_that_took_nothing_is_repeated_with_the_same_length():
    mqtt = Client("127.0.0.1", 1, "me", buffer_bytes=256, keep_alive_s=0)
    connection = mqtt.connection
    connection.start(0)
    connection.decoder.feed(b"\x20\x02\0\0")
    while connection.process(0):
        pass
    take(connection, 0)
    link = mqtt.link
    link.sock = sock = Hesitant()
    link._state = 3
    expected = b""
    for i in range(60):
        payload = b"%d" % i * (1 + i % 7)
        mqtt.publish("t", payload)
        expected += publish(b"t", payload)
        if i % 4 == 3:
            while not link.write(0):
                pass
    while not link.write(0):
        pass
    assert sock.stream == expected
    for i in range(len(sock.offers) - 1):
        if (i + 1) % 3:
            assert sock.offers[i + 1] == sock.offers[i]


class Shut:
    """A socket whose writes accept no bytes until `opened` is set."""

    def __init__(self, sock):
        self.sock = sock
        self.opened = False

    def __getattr__(self, name):
        return getattr(self.sock, name)

    def write(self, buf, start, n):
        return self.sock.write(buf, start, n) if self.opened else None


@pytest.mark.req("Q4", "B2")
def test_qos_0_message_behind_a_partly_sent_one_waits_only_for_room():
    broker, mqtt = connected(buffer_bytes=256)
    mqtt.link.sock = sock = Shut(mqtt.link.sock)
    mqtt.publish("t", b"long" * 5000, qos=1)
    sock.opened = True
    feeds = broker.feeds  # the client calls feed each time it waits
    mqtt.publish("t", b"next" * 500)
    assert broker.feeds == feeds
    poll_until(mqtt, lambda: len(broker.of(3)) == 2)
    assert [one[-4:] for one in broker.of(3)] == [b"long", b"next"]
    mqtt.disconnect()


@pytest.mark.req("Q4", "B2")
def test_partly_sent_message_continues_as_soon_as_there_is_room():
    broker, mqtt = connected(buffer_bytes=256)
    mqtt.link.sock = sock = Shut(mqtt.link.sock)
    mqtt.publish("t", b"long" * 5000, qos=1)
    sock.opened = True
    feeds = broker.feeds
    assert mqtt.drain(PATIENCE_S)
    assert broker.feeds - feeds < 10
    assert [len(one) for one in broker.of(3)] == [20009]
    mqtt.disconnect()


@pytest.mark.req("R4", "S1")
@pytest.mark.parametrize("qos", [0, 1])
def test_publish_that_interrupts_publish_or_poll_is_refused_without_damage(qos):
    broker, mqtt = connected()
    refused = []

    class Interrupting:
        def __init__(self, sock):
            self.sock = sock

        def __getattr__(self, name):
            return getattr(self.sock, name)

        def write(self, buf, start, n):
            n = self.sock.write(buf, start, n)
            try:
                mqtt.publish("alarm", "from a timer", qos)
            except UsageError as error:
                refused.append(error)
            return n

        def readinto(self, room):
            try:
                mqtt.publish("alarm", "from a timer", qos)
            except UsageError as error:
                refused.append(error)
            return self.sock.readinto(room)

    sock = mqtt.link.sock
    mqtt.link.sock = Interrupting(sock)
    mqtt.publish("t", "reading", qos)
    n = len(refused)
    assert n
    mqtt.poll(0)
    assert len(refused) > n
    mqtt.link.sock = sock
    mqtt.publish("t", "after", qos)
    poll_until(mqtt, lambda: len(broker.of(3)) == 2)
    assert [one[-5:] for one in broker.of(3)] == [b"ading", b"after"]
    assert mqtt.drain(2)
    mqtt.disconnect()


@pytest.mark.req("R4")
@pytest.mark.parametrize(("waits", "qos"), [(False, 0), (False, 1), (True, 0), (True, 1)])
def test_publish_that_interrupts_an_acknowledgement_is_refused_without_damage(waits, qos):
    broker, mqtt = connected()
    owner, name = (mqtt.session.output, "put_ack") if waits else (session_module, "pack_into")
    put = getattr(owner, name)
    refused = []

    def interrupted(*arguments):
        setattr(owner, name, put)
        with pytest.raises(UsageError):
            mqtt.publish("alarm", "from a timer", qos)
        refused.append(arguments[-1])
        put(*arguments)

    setattr(owner, name, interrupted)
    broker.give(publish(b"a", b"1", 1, 7))
    if waits:
        poll_until(mqtt, lambda: mqtt.session.waiting)
    mqtt.on_message = lambda message: None
    poll_until(mqtt, lambda: broker.of(4))
    mqtt.publish("t", "after", qos)
    poll_until(mqtt, lambda: broker.of(3))
    assert refused == [7] and len(broker.of(4)) == 1 and broker.connects == 1
    mqtt.disconnect()


@pytest.mark.req("R4", "S1")
@pytest.mark.parametrize("name", ["publish", "disconnect"])
def test_call_that_interrupts_disconnect_is_refused_without_damage(name):
    broker, mqtt = connected()
    mqtt.publish("t", "before", 1)
    refused = []

    def interrupt(owner, attribute):
        call = getattr(owner, attribute)

        def interrupted():
            with pytest.raises(UsageError):
                mqtt.publish("alarm", "from a timer", 1) if name == "publish" else mqtt.disconnect()
            refused.append(attribute)
            return call()

        setattr(owner, attribute, interrupted)

    interrupt(mqtt.session.output, "room")
    interrupt(mqtt.session.store, "flush")
    mqtt.disconnect()
    assert refused == ["room", "flush"]
    mqtt.connect()
    mqtt.publish("t", "after", 1)
    assert mqtt.drain(PATIENCE_S) and broker.connects == 2
    assert {one[-5:] for one in broker.of(3)} == {b"efore", b"after"} and broker.of(14) == [b"\xe0\x00"]
    mqtt.disconnect()


def call_from_timer(mqtt, owner, name, refused):
    """Let each call that a timer must not make interrupt a method, once."""
    works = getattr(owner, name)

    def interrupted(*arguments):
        setattr(owner, name, works)
        for call in (mqtt.poll, mqtt.disconnect, lambda: mqtt.subscribe("b", 1), lambda: mqtt.unsubscribe("b")):
            with pytest.raises(UsageError):
                call()
        refused.append(name)
        return works(*arguments)

    setattr(owner, name, interrupted)


@pytest.mark.req("Q3", "Q4", "R4")
@pytest.mark.parametrize("qos", [1, 2])
def test_call_that_interrupts_the_receipt_of_a_message_is_refused_without_damage(qos):
    store = RamStore()
    broker, mqtt = connected(store=store)
    refused = []
    seen = []

    def handler(message):
        seen.append(message.payload)
        if len(seen) == 1:
            raise ValueError

    mqtt.on_message = handler
    mqtt.on_error = lambda error, message: mqtt.publish("t", "failed", 1)
    call_from_timer(mqtt, store, "hold", refused)  # the packet is in the buffer that a SUBSCRIBE needs, too
    call_from_timer(mqtt, mqtt.load_waiting(), "add", refused)  # after the handler has raised
    broker.give(publish(b"a", b"1" * 40, qos, 1), *([pubrel(1)] if qos == 2 else []))
    poll_until(mqtt, lambda: seen)
    call_from_timer(mqtt, mqtt.session.waiting, "begin", refused)  # before it is handed over again
    poll_until(mqtt, lambda: broker.of(4 if qos == 1 else 7))
    assert seen == [b"1" * 40] * 2 and refused == (["hold"] if qos == 2 else []) + ["add", "begin"]
    assert mqtt.drain(PATIENCE_S) and broker.of(3) and broker.of(8) == broker.of(10) == [] and broker.connects == 1
    mqtt.disconnect()


@pytest.mark.req("R4", "S1")
def test_publish_from_a_scheduled_callback_during_publish_is_refused():
    if sys.implementation.name != "micropython":
        return  # CPython has no scheduled callbacks
    import micropython

    ended = []

    def tick(_):
        try:
            mqtt.publish("alarm", "from a timer", qos=1)
            ended.append(0)
        except UsageError:
            ended.append(1)

    class Scheduling(RamStore):
        scheduled = 0

        def append(self, buf, length):
            if not self.scheduled:
                self.scheduled = 1
                micropython.schedule(tick, 0)
                for _ in range(10):
                    pass
            return super().append(buf, length)

    mqtt = Client("127.0.0.1", 1, "me", store=Scheduling())
    assert mqtt.publish("t", "reading", qos=1) == 1
    assert mqtt.publish("t", "after", qos=1) == 2
    assert ended == [1] and mqtt.pending == 2


@pytest.mark.req("Q1", "R5")
def test_umqtt_publish_does_not_wait_for_a_message_lost_by_the_flash():
    broker = Loopback()
    store = RamStore()
    mqtt = MQTTClient("me", "127.0.0.1", broker.port, store=store, feed=broker)
    mqtt.connect()
    append = store.append

    def lossy(buf, n):
        seq = append(buf, n)
        store._lengths[seq % store.limit] = 0
        return seq

    store.append = lossy
    session = mqtt._client.session
    session.window = session.quota = 0  # the window is closed: the message is not sent yet
    feeds = broker.feeds

    def feed():
        broker()
        session.quota = 8
        assert broker.feeds < feeds + 100, "publish waits for a lost message"

    mqtt._client.link.feed = feed
    mqtt.publish(b"t", b"x", qos=1)
    assert not session.store.waiting
    mqtt.disconnect()
    broker.close()


@pytest.mark.req("Q8")
def test_session_is_resumed_after_a_failed_attempt_at_another_level():
    store = CutStore()
    broker, mqtt = connected(store=store)
    mqtt.disconnect()
    broker.present = 1
    for _ in range(2):
        broker.code = 0x84
        mqtt = client(broker, store=store, level=5)
        with pytest.raises(ConnectRefused):
            mqtt.connect()
        mqtt.disconnect()
        broker.code = 0
        before = broker.connects
        mqtt = client(broker, store=store)
        assert mqtt.connect() is True and broker.connects == before + 1
        mqtt.disconnect()


class Forgetful(Loopback):
    """Answers the first PUBREL with the end of the connection."""

    def take(self, one):
        if one[0] >> 4 == 6 and len(self.of(6)) < 1:
            self.packets.append(one)
            self.drop()
        else:
            super().take(one)


@pytest.mark.req("Q8", "W10")
@pytest.mark.parametrize("level,restarts", [(3, True), (3, False), (4, True), (4, False)])
def test_session_that_ended_with_a_clean_connection_is_not_resumed(level, restarts):
    broker = Forgetful()
    store = CutStore()
    mqtt = client(broker, store=store, level=level, clean=True, backoff=Backoff(base_ms=60000, cap_ms=60000))
    mqtt.connect()
    handle = mqtt.publish("a", "once", 2)
    poll_until(mqtt, lambda: not mqtt.connected)
    mqtt.disconnect()
    if restarts:
        mqtt = client(broker, store=store, level=level)
    mqtt.connection.clean = False
    doubtful = []
    mqtt.on_in_doubt = doubtful.append
    mqtt.connect()
    poll_until(mqtt, lambda: not mqtt.pending)
    assert doubtful == [handle]
    assert len(broker.of(3)) == 2  # the broker discarded the first one with its session
    before = broker.connects
    mqtt.disconnect()
    mqtt.connect()
    assert broker.connects == before + 1 and not broker.of(1)[-1][9 if level == 4 else 11] & 2
    mqtt.disconnect()
    broker.close()


# --- one call interrupts another ---


@pytest.mark.req("R4", "S1")
@pytest.mark.parametrize("long", [False, True])
def test_publish_that_interrupts_another_is_refused_without_harm(long):
    class Interrupted(RamStore):
        refused = 0

        def append(self, buf, length):
            try:
                mqtt.publish("alarm", b"from a timer", 1)
            except UsageError:
                self.refused += 1
            return super().append(buf, length)

    mqtt = Client("127.0.0.1", 1, "me", Interrupted(), buffer_bytes=64)
    payload = b"reading" * (20 if long else 1)
    assert mqtt.publish("t", payload, 1) == 1
    store = mqtt.session.store
    assert store.refused == 1
    packet = bytearray(store.length(1))
    store.read(1, 0, packet, 0, len(packet))
    assert packet == publish(b"t", payload, 1, 1)
    assert mqtt.publish("t", b"after", 1) == 2  # also after a publish that was refused for another reason
    with pytest.raises(UsageError):
        mqtt.publish("#", b"x", 1)
    assert mqtt.publish("t", b"after", 1) == 3
