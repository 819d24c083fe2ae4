"""A broker sends unacknowledged QoS 1 messages again: no finished handler runs again, and PUBACKs keep their order (Q3, R4)."""

import pytest

from failing import fail_once
from flashmqtt.backoff import Backoff
from flashmqtt.codec import malformed
from flashmqtt.errors import MalformedPacket
from loopback import Loopback, poll_until
from lossy import Random
from test_client import client, connected
from test_client_receive import acknowledged, reconnect, turn
from wire import id_of, publish, pubrel

TOPICS = (b"a", b"b", b"c")


class Prompt(Loopback):
    """Sends at once, and also if the client has closed the connection."""

    def take(self, one):
        if one[0] >> 4 == 1:
            self.link.setsockopt(6, 1, 1)  # TCP_NODELAY
        super().take(one)

    def give(self, *packets):
        try:
            super().give(*packets)
        except OSError:
            pass


@pytest.mark.req("Q3", "R4")
def test_message_that_is_done_is_recognized_after_a_connection_that_ended_before_it_came_again():
    broker, mqtt = connected()
    seen = []
    mqtt.subscribe("b", 1, lambda m: seen.append(m.payload))
    broker.give(publish(b"a", b"1", 1, 1), publish(b"b", b"2", 1, 2))
    poll_until(mqtt, lambda: seen)  # its PUBACK waits for that of message 1
    reconnect(broker, mqtt)
    reconnect(broker, mqtt)
    broker.give(publish(b"a", b"1", 1, 1, dup=1), publish(b"b", b"2", 1, 2, dup=1))
    turn(broker, mqtt)
    mqtt.subscribe("a", 1, lambda m: seen.append(m.payload))
    poll_until(mqtt, lambda: len(acknowledged(broker)) == 2)
    assert seen == [b"2", b"1"] and acknowledged(broker) == [1, 2]
    mqtt.disconnect()


class Lenient(Prompt):
    """Passes on messages with any topic; sends unacknowledged ones again with every connection."""

    def __init__(self, *messages):
        super().__init__()
        self.present = 1
        self.waiting = dict(messages)

    def take(self, one):
        super().take(one)
        kind = one[0] >> 4
        if kind == 1:
            self.give(*[self.waiting[key] for key in sorted(self.waiting)])
        elif 4 <= kind <= 5:
            del self.waiting[id_of(one)]


@pytest.mark.req("W13", "R4")
@pytest.mark.parametrize("topic", [b"#", b"+", b"\0", b"\xff"])
def test_message_with_an_invalid_topic_ends_one_connection_and_stops_no_other_message(topic):
    """RabbitMQ 3 passes on what any client publishes to a topic with a wildcard or U+0000."""
    for qos in (1, 2):
        broker = Lenient(
            (1, publish(b"a", b"x", 1, 1)), (2, publish(topic, b"x", qos, 2)), (3, publish(b"b", b"x", 1, 3))
        )
        mqtt = client(broker)
        seen = []
        mqtt.on_message = lambda message: seen.append(message.topic)  # noqa: B023
        errors = []
        mqtt.on_disconnect = errors.append
        mqtt.connect()
        poll_until(mqtt, lambda: errors and "b" in seen)  # noqa: B023
        assert broker.connects == 2 and isinstance(errors[0], MalformedPacket)
        mqtt.disconnect()


@pytest.mark.req("W13", "R4")
def test_client_reconnects_although_there_was_no_memory_to_acknowledge_an_invalid_message():
    broker = Lenient((1, publish(b"#", b"x", 1, 1)), (2, publish(b"b", b"x", 1, 2)))
    mqtt = client(broker)
    seen = []
    mqtt.on_message = lambda message: seen.append(message.topic)
    original = malformed.acknowledge
    fail_once(malformed, "acknowledge")
    try:
        with pytest.raises(MemoryError):
            mqtt.connect()
            poll_until(mqtt, lambda: seen)
    finally:
        malformed.acknowledge = original
    assert not mqtt.connected and broker.connects == 1
    poll_until(mqtt, lambda: "b" in seen)
    assert broker.connects == 3
    mqtt.disconnect()


@pytest.mark.req("Q3", "R4")
def test_message_that_is_done_is_forgotten_once_the_broker_has_sent_all_others_again():
    """The broker has let go of message 2, and uses its packet id for another message with the same content."""
    broker, mqtt = connected()
    seen = []
    mqtt.subscribe("b", 1, lambda m: seen.append(m.payload))
    broker.give(publish(b"a", b"1", 1, 1), publish(b"b", b"2", 1, 2))
    poll_until(mqtt, lambda: seen)
    reconnect(broker, mqtt)
    broker.give(publish(b"a", b"1", 1, 1, dup=1), publish(b"a", b"3", 1, 3))
    turn(broker, mqtt)
    reconnect(broker, mqtt)
    broker.give(publish(b"a", b"1", 1, 1, dup=1), publish(b"a", b"3", 1, 3, dup=1), publish(b"b", b"2", 1, 2, dup=1))
    poll_until(mqtt, lambda: len(seen) == 2)
    assert seen == [b"2", b"2"]
    mqtt.disconnect()


@pytest.mark.req("Q3", "Q8")
@pytest.mark.parametrize("done", [False, True])
def test_equal_message_with_the_packet_id_of_one_from_before_the_broker_lost_its_session_is_handed_over(done):
    broker, mqtt = connected()
    seen = []
    broker.give(publish(b"a", b"on", 1, 1))
    turn(broker, mqtt)
    broker.present = 0
    broker.drop()
    poll_until(mqtt, lambda: broker.connects == 2 and mqtt.connected)
    if done:
        mqtt.on_message = lambda m: seen.append(m.payload)
        poll_until(mqtt, lambda: seen)
    reconnect(broker, mqtt)
    broker.give(publish(b"a", b"on", 1, 1, dup=1))  # it got lost with the last connection
    turn(broker, mqtt)
    mqtt.on_message = lambda m: seen.append(m.payload)
    poll_until(mqtt, lambda: acknowledged(broker))
    assert seen == [b"on", b"on"]
    mqtt.disconnect()


@pytest.mark.req("Q3", "R4")
@pytest.mark.clause("MQTT-4.6.0-2", "5:MQTT-4.6.0-2")
def test_no_message_is_acknowledged_after_one_for_which_there_was_no_room():
    broker = Prompt()
    broker.present = 1
    mqtt = client(broker, waiting=2)
    mqtt.connect()
    seen = []
    mqtt.subscribe("b", 1, lambda m: seen.append(m.payload))
    broker.give(*[publish(b"a" if i < 3 else b"b", b"%d" % i, 1, i) for i in range(1, 6)])
    turn(broker, mqtt)
    assert seen == [b"3", b"4"]  # message 5 is left unacknowledged
    broker.give(publish(b"b", b"6", 1, 6))
    mqtt.on_message = lambda m: seen.append(m.payload)
    poll_until(mqtt, lambda: broker.connects == 2)
    assert acknowledged(broker) == [1, 2, 3, 4] and seen == [b"3", b"4", b"1", b"2"]
    broker.give(publish(b"b", b"5", 1, 5, dup=1), publish(b"b", b"6", 1, 6, dup=1))
    poll_until(mqtt, lambda: len(acknowledged(broker)) == 6)
    assert acknowledged(broker) == [1, 2, 3, 4, 5, 6] and seen[4:] == [b"5", b"6"]
    mqtt.disconnect()


class Redelivering(Prompt):
    """Sends every unacknowledged QoS 1 message again with the next connection, in a random order, and checks the PUBACKs."""

    def __init__(self, random, window):
        super().__init__()
        self.present = 1
        self.random = random
        self.window = window
        self.queue = []  # (topic, payload) to be sent
        self.flying = []  # (packet id, topic, payload) sent and not acknowledged
        self.sent = []  # packet ids sent on this connection
        self.taken = 0  # how many of them are acknowledged
        self.mute = False  # this connection ends before the client gets any message
        self.last_id = 0

    def take(self, one):
        super().take(one)
        kind = one[0] >> 4
        if kind == 1:
            self.sent = []
            self.taken = 0
            self.mute = not self.random.below(4)
            rest = [] if self.mute else self.flying[:]
            while rest:
                self.put(rest.pop(self.random.below(len(rest))), 1)
        elif kind == 4:
            assert id_of(one) == self.sent[self.taken], "PUBACK of %d, after %r of %r" % (
                id_of(one),
                self.sent[: self.taken],
                self.sent,
            )
            self.taken += 1
            self.flying = [flight for flight in self.flying if flight[0] != id_of(one)]

    def put(self, flight, dup):
        self.sent.append(flight[0])
        self.give(publish(flight[1], flight[2], 1, flight[0], dup=dup))

    def work(self):
        """Send new messages; return whether all are acknowledged."""
        while self.link and not self.mute and self.queue and len(self.flying) < self.window:
            ids = [flight[0] for flight in self.flying]
            self.last_id = self.last_id % 11 + 1  # only 11 packet ids, so that they are soon reused
            while self.last_id in ids:
                self.last_id = self.last_id % 11 + 1
            topic, payload = self.queue.pop(0)
            self.flying.append((self.last_id, topic, payload))
            self.put(self.flying[-1], 0)
        return not (self.queue or self.flying)


@pytest.mark.req("Q3", "R4")
@pytest.mark.clause("MQTT-4.6.0-2", "5:MQTT-4.6.0-2")
def test_no_finished_handler_runs_again_whatever_the_order_in_which_the_broker_sends_again():
    for seed in range(12):
        random = Random(seed)
        broker = Redelivering(random, 3 + random.below(6))
        mqtt = client(broker, waiting=2, unclaimed="keep", backoff=Backoff(base_ms=1, cap_ms=1))
        mqtt.connect()
        seen = []
        claimed = set()

        def toggle(topic, claim):
            mqtt.subscribe(topic, 1, (lambda m: seen.append(m.payload)) if claim else None)  # noqa: B023
            (claimed.add if claim else claimed.discard)(topic)  # noqa: B023

        for i in range(60):
            broker.queue.append((TOPICS[random.below(3)], b"%d" % i))
            what = random.below(10)
            if what < 2 or broker.mute:
                turn(broker, mqtt, 2)
                while mqtt.link.output.end:
                    mqtt.poll()
                broker()  # so that no PUBACK is lost
                broker.drop()
            elif what < 4:
                topic = TOPICS[random.below(3)]
                toggle(topic, topic not in claimed)
            broker.work()
            mqtt.poll()
        for topic in TOPICS:
            toggle(topic, True)
        while not broker.work():
            if broker.mute:
                broker.drop()
            mqtt.poll(1)
        assert sorted(int(one) for one in seen) == list(range(60)), (seed, seen)
        assert mqtt.session.waiting is None or not mqtt.session.waiting.owing
        mqtt.disconnect()
        broker.close()


class InterruptedSocket:
    """A client's socket, in whose next read or write Ctrl-C comes: when its bytes, or half of them, are gone."""

    def __init__(self, link, call, half=False):
        self._sock = link.sock
        self._call = call
        self._half = half
        link.sock = self

    def __getattr__(self, name):
        return getattr(self._sock, name)

    def readinto(self, buf):
        n = self._sock.readinto(buf)
        return self._interrupt("read", n)

    def write(self, buf, start, n):
        if self._call == "write" and self._half:
            n //= 2
        return self._interrupt("write", self._sock.write(buf, start, n))

    def _interrupt(self, call, n):
        if n and call == self._call:
            self._call = None
            raise KeyboardInterrupt
        return n


@pytest.mark.req("W13", "Q3", "Q4", "R4")
@pytest.mark.parametrize("qos", [1, 2])
def test_message_whose_read_was_interrupted_comes_again_with_the_next_connection(qos):
    broker = Lenient()
    mqtt = client(broker)
    seen = []
    mqtt.on_message = lambda message: seen.append(message.payload)
    mqtt.connect()
    for octets in (b"x", b"y"):
        broker.waiting[1] = publish(b"a", octets, qos, 1)
        InterruptedSocket(mqtt.link, "read")
        broker.give(broker.waiting[1])
        with pytest.raises(KeyboardInterrupt):
            poll_until(mqtt, lambda: seen[-1:] == [octets])  # noqa: B023
        poll_until(mqtt, lambda: not broker.waiting)
        if qos == 2:
            broker.give(pubrel(1))
            poll_until(mqtt, lambda: broker.of(7))
            broker.packets.clear()
    assert seen == [b"x", b"y"] and broker.connects == 3
    mqtt.disconnect()


@pytest.mark.req("W13", "Q1", "Q2", "R4")
@pytest.mark.parametrize("half", [False, True])
def test_nothing_follows_an_interrupted_write_on_its_connection(half):
    """How much of it was written is not known. Bytes that are sent twice, or not at all, are read as other packets."""
    for qos in (1, 2):
        broker = Lenient()
        mqtt = client(broker)
        mqtt.connect()
        InterruptedSocket(mqtt.link, "write", half)
        with pytest.raises(KeyboardInterrupt):
            mqtt.publish("a", b"\x30\x03\x00\x01b" * 20, qos)
        mqtt.publish("a", b"2", qos)
        poll_until(mqtt, lambda: not mqtt.pending)  # noqa: B023
        wanted = [publish(b"a", b"\x30\x03\x00\x01b" * 20, qos, 1), publish(b"a", b"2", qos, 2)]
        got = [bytes((one[0] & 0xF7,)) + one[1:] for one in broker.of(3)]  # without DUP
        assert [one for one in wanted if one not in got] == [] and [one for one in got if one not in wanted] == []
        assert broker.connects == 2
        mqtt.disconnect()


@pytest.mark.req("W11", "R4")
def test_disconnect_after_an_interrupted_write_closes_the_connection():
    broker = Lenient()
    mqtt = client(broker)
    mqtt.connect()
    InterruptedSocket(mqtt.link, "write", True)
    with pytest.raises(KeyboardInterrupt):
        mqtt.publish("a", b"1", 1)
    mqtt.disconnect()
    broker()
    assert not mqtt.connected and broker.of(14) == [] and broker.of(3) == []
