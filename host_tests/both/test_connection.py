"""One network connection: handshake, keep alive, deadlines, chunking, bounded buffers, no allocation."""

import pytest

from flashmqtt.connection import CLOSED, OPEN, Connection
from flashmqtt.errors import (
    ConnectRefused,
    DeadlineExpired,
    MalformedPacket,
    ProtocolError,
    UsageError,
)
from flashmqtt.flash.ram import RamRegion
from flashmqtt.journal.journal import Journal
from flashmqtt.session.ram import RamStore
from flashmqtt.session.session import Session
from heap import heap_lock, heap_unlock
from wire import (
    DISCONNECT,
    PINGREQ,
    PINGRESP,
    connack,
    connected,
    in_flight,
    packet,
    peer,
    puback,
    pubcomp,
    publish,
    pubrec,
    pubrel,
    take,
    text,
)


@pytest.mark.req("W10")
@pytest.mark.clause("MQTT-3.1.0-1")
def test_connect_carries_all_options():
    broker = connected(client_id=b"c", user=b"u", password=b"p", will=(b"w", b"gone", 1, True), keep_alive_s=30)
    assert broker.connect_packet == packet(
        0x10,
        text(b"MQTT"),
        b"\x04",
        bytes([0x80 | 0x40 | 0x20 | 1 << 3 | 4]),
        b"\x00\x1e",
        text(b"c"),
        text(b"w"),
        text(b"gone"),
        text(b"u"),
        text(b"p"),
    )
    assert broker.connection.state == OPEN


@pytest.mark.req("W10")
def test_refused_connect_has_an_error_text():
    broker = peer()
    broker.connection.start(broker.now)
    with pytest.raises(ConnectRefused) as refused:
        broker.give(connack(0, 4))
    assert refused.value.code == 4 and "bad user name or password" in str(refused.value)


@pytest.mark.req("W13")
def test_missing_connack_raises_at_the_deadline():
    broker = peer(response_ms=5000)
    broker.start()
    assert broker.connection.check(broker.now + 4000) == 1000
    with pytest.raises(DeadlineExpired):
        broker.connection.check(broker.now + 5000)


@pytest.mark.req("W13")
def test_slowly_arriving_bytes_do_not_defer_deadlines():
    broker = peer(response_ms=5000)
    broker.start()
    dripping(broker, 5000, b"\x20\x7f")
    broker = connected(response_ms=5000, keep_alive_s=10)
    dripping(broker, 20000, b"\x30\xff\x06\x00\x01a")


def dripping(broker, ms, head):
    broker.give(head)
    begin = broker.now
    with pytest.raises(DeadlineExpired):
        for _ in range(100):
            broker.now += 500
            broker.give(b"x")
            broker.connection.check(broker.now)
            broker.took()
    assert broker.now - begin <= ms


def silence(broker, ms, step=100):
    """Let time pass as a poll loop does; return the time when a deadline expired, and (time, packet) for each packet sent."""
    sent = []
    for t in range(0, ms, step):
        broker.now = 1000 + t
        try:
            broker.connection.check(broker.now)
        except DeadlineExpired:
            return t, sent
        sent += [(t, one) for one in broker.took()]
    return None, sent


@pytest.mark.req("W11")
@pytest.mark.clause("MQTT-3.1.2-23")
def test_silent_link_is_found_within_one_and_a_half_keep_alives():
    broker = connected(keep_alive_s=10)
    given_up, sent = silence(broker, 20000)
    assert [one for _, one in sent] == [PINGREQ]
    assert sent[0][0] <= 10000
    assert given_up <= 15000


@pytest.mark.req("W11")
def test_silent_link_is_found_while_we_keep_sending():
    broker = connected(keep_alive_s=10)
    for t in range(0, 20000, 100):
        broker.now = 1000 + t
        broker.session.put_unstored(b"a", b"x")
        broker.took()
        try:
            broker.connection.check(broker.now)
        except DeadlineExpired:
            assert t <= 15000
            return
    pytest.fail("the deadline did not expire")


@pytest.mark.req("W11")
@pytest.mark.clause("MQTT-3.1.2-23", "5:MQTT-3.1.2-20")
def test_pings_keep_an_idle_connection_open():
    broker = connected(keep_alive_s=10)
    pings = 0
    last = 1000
    for t in range(0, 100000, 100):
        broker.now = 1000 + t
        broker.connection.check(broker.now)
        for one in broker.took():
            assert one == PINGREQ
            assert broker.now - last <= 10000
            last = broker.now
            pings += 1
            broker.give(PINGRESP)
    assert 10 <= pings <= 12


@pytest.mark.req("W11")
def test_client_pings_while_the_broker_keeps_sending():
    broker = connected(keep_alive_s=10)
    pings = 0
    for t in range(0, 60000, 500):
        broker.now = 1000 + t
        broker.give(publish(b"a", b"x"))
        broker.connection.check(broker.now)
        if PINGREQ in broker.took():
            pings += 1
            broker.give(PINGRESP)
    assert pings >= 5  # with fewer PINGREQs the broker would end the connection


@pytest.mark.req("Q1", "W13")
def test_missing_acknowledgement_ends_the_connection():
    broker = in_flight(1, keep_alive_s=10, response_ms=20000)
    for t in range(0, 30000, 100):
        broker.now = 1000 + t
        try:
            broker.connection.check(broker.now)
        except DeadlineExpired:
            assert 20000 <= t <= 20600
            return
        if PINGREQ in broker.took():
            broker.give(PINGRESP)
    pytest.fail("the deadline did not expire")


@pytest.mark.req("Q1", "W13")
def test_acknowledgement_deadline_begins_when_the_message_is_sent():
    broker = connected(out_bytes=64, packet_bytes=64, response_ms=5000, keep_alive_s=0)
    broker.session.publish(b"a", bytes(1000), 1)
    connection = broker.connection
    connection.pump(broker.now)
    while take(connection, broker.now):  # the link is slow
        broker.now += 1000
        connection.pump(broker.now)
    assert broker.now >= 16000
    connection.check(broker.now + 3900)
    with pytest.raises(DeadlineExpired):
        connection.check(broker.now + 5000)


@pytest.mark.req("W11")
def test_disconnect_is_sent_and_nothing_is_read_after_it():
    broker = connected()
    broker.connection.disconnect()
    assert broker.took() == [DISCONNECT]
    broker.give(publish(b"a", b"x"))
    assert broker.messages == []
    broker.drop()
    assert broker.connection.state == CLOSED


@pytest.mark.req("W6")
@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 11, 64])
def test_any_chunking_gives_the_same_events(size):
    stream = b"".join(
        [
            publish(b"a", b"0"),
            publish(b"a", b"1", 1, 1),
            publish(b"a", b"2", 2, 2),
            PINGRESP,
            pubrel(2),
            publish(b"long/topic", b"z" * 40, 2, 3),
            pubrel(3),
            pubrec(77),
        ]
    )
    broker = connected(buffer_bytes=64)
    for at in range(0, len(stream), size):
        broker.give(stream[at : at + size])
    assert [(m[0], m[1]) for m in broker.messages] == [
        ("a", b"0"),
        ("a", b"1"),
        ("a", b"2"),
        ("long/topic", b"z" * 40),
    ]
    assert broker.took() == [puback(1), pubrec(2), pubcomp(2), pubrec(3), pubcomp(3), pubrel(77)]


@pytest.mark.req("W13")
@pytest.mark.parametrize(
    "wrong, error, reason",
    [
        (b"\x00\x00", MalformedPacket, 0x81),
        (b"\x10\x00", MalformedPacket, 0x81),
        (b"\x82\x00", MalformedPacket, 0x81),
        (b"\xf0\x00", MalformedPacket, 0x81),
        (b"\x40\x02\x00\x00", MalformedPacket, 0x81),
        (b"\x30\xff\xff\xff\xff\x01", MalformedPacket, 0x81),
        (b"\x90\xff\xff\xff\x7f", MalformedPacket, 0x95),
        (b"\xb0\x80\x10", MalformedPacket, 0x95),
        (b"\x20\x02\x00\x00", ProtocolError, 0x82),
        (b"\x36\x05\x00\x01a\x00\x01", MalformedPacket, 0x81),
    ],
)
def test_invalid_packet_ends_the_connection_with_its_reason(wrong, error, reason):
    broker = connected(buffer_bytes=1024)
    with pytest.raises(error) as ended:
        broker.give(wrong)
    assert ended.value.reason == reason
    assert broker.messages == []


@pytest.mark.req("W13")
def test_flood_of_messages_is_received_with_bounded_buffers():
    broker = connected(buffer_bytes=128, out_bytes=64, packet_bytes=128)
    broker.give(*[publish(b"a", b"x" * 50, 1, 1 + i % 100, retain=1) for i in range(150)])
    assert len(broker.messages) == 150
    assert len(broker.connection.output.buf) == 64 and len(broker.connection.decoder.buffer) == 128


class Greedy:
    """A socket that takes every byte, and allocates nothing."""

    def write(self, buf, start, n):
        return n


class Quiet:
    """Does the work of a client without a socket, so that it can run under heap_lock: it only copies bytes in and out."""

    def __init__(self, level):
        self.session = Session(RamStore(), level, 8, 512, 512, remember=False)
        self.session._may_be_older = False
        self.connection = Connection(self.session, b"q", buffer_bytes=512)
        self.sock = Greedy()
        self.connection.start(0)
        self.give(connack())
        self.room = None

    def give(self, octets):
        self.connection.decoder.feed(octets)
        while self.connection.process(0):
            pass

    def write(self, i):
        self.connection.output.write_to(self.sock, i)

    def round(self, first, answers, n):
        """Publish, receive the answers, take the output. Nothing here may allocate."""
        connection = self.connection
        session = self.session
        decoder = connection.decoder
        for i in range(n):
            packet_id = (session.store.next_seq - 1) % 65535 + 1
            if first and i & 1:
                session.publish(TOPIC, PAYLOAD, first)
            elif first:
                session.publish(TOPIC, PAYLOAD, first, False, None, i)
            connection.pump(i)
            self.write(i)
            for answer in answers:
                room = decoder.room()
                for j in range(len(answer)):
                    room[j] = answer[j]
                if first:
                    room[2] = packet_id >> 8
                    room[3] = packet_id & 255
                decoder.received(len(answer))
                connection.received_ms = i
                while connection.process(i):
                    pass
                self.write(i)
            connection.check(i)


TOPIC = b"sensors/temperature1"
PAYLOAD = b"p" * 64


@pytest.mark.req("B2")
@pytest.mark.parametrize(
    "qos, answers",
    [
        (1, (puback(1),)),
        (2, (pubrec(1), pubcomp(1))),
        (0, (publish(TOPIC, PAYLOAD),)),
        (0, (publish(TOPIC, PAYLOAD, 1, 5),)),
        (0, (publish(TOPIC, PAYLOAD, 2, 5), publish(TOPIC, PAYLOAD, 2, 5, dup=1), pubrel(5), pubrel(5))),
        (0, (PINGRESP,)),
        (0, ()),
    ],
)
def test_steady_state_allocates_nothing(qos, answers):
    for level in (3, 4):
        quiet = Quiet(level)
        if level == 3:
            quiet.give(connack()) if quiet.connection.state != OPEN else None
        quiet.round(qos, answers, 20)
        heap_lock()
        try:
            quiet.round(qos, answers, 40)
        finally:
            heap_unlock()
        assert quiet.session.store.waiting == 0


# --- messages longer than the buffer ---


def chunks_of(broker):
    """Record (offset, bytes, total, more) of each received message."""
    seen = []
    broker.on_message = lambda message: seen.append((message.offset, message.payload, message.total, message.more))
    return seen


@pytest.mark.req("W13", "Q3")
@pytest.mark.parametrize("qos", [0, 1])
def test_message_longer_than_the_buffer_arrives_in_chunks_and_is_acknowledged_last(qos):
    broker = connected(buffer_bytes=64, chunks=True)
    seen = chunks_of(broker)
    payload = bytes(range(200))
    long = publish(b"a/b", payload, qos, 9)
    answers = []
    for i in range(len(long)):
        broker.give(long[i : i + 1])
        answers += broker.took()
        assert not answers or i == len(long) - 1
    assert b"".join([part for _, part, _, _ in seen]) == payload
    at = 0
    for offset, part, total, more in seen:
        at += len(part)
        assert total == 200 and offset == at - len(part) and more == (at < 200)
    assert len(seen) > 3 and answers == ([puback(9)] if qos else [])
    broker.give(publish(b"c", b"short", qos, 10))
    assert seen[-1] == (0, b"short", 5, False)
    assert broker.messages[-1][0] == "c"
    assert broker.took() == ([puback(10)] if qos else [])


@pytest.mark.req("W13", "Q3")
def test_chunked_message_cut_off_is_not_acknowledged_and_restarts():
    broker = connected(buffer_bytes=64, chunks=True)
    seen = chunks_of(broker)
    long = publish(b"a", bytes(150), 1, 9)
    broker.give(long[:100])
    assert seen and seen[-1][3] and broker.took() == []
    broker.drop()
    broker.connect(1)
    del seen[:]
    broker.give(long)
    assert seen[0][0] == 0 and not seen[-1][3]
    assert broker.took() == [puback(9)]


@pytest.mark.req("W13", "Q4")
def test_short_held_message_arrives_whole_with_chunks_enabled():
    broker = connected(buffer_bytes=64, chunks=True)
    seen = chunks_of(broker)
    broker.give(publish(b"a", bytes(150)), publish(b"b", b"held", 2, 3), pubrel(3))
    assert seen[-1] == (0, b"held", 4, False)


@pytest.mark.req("Q8")
def test_connect_that_can_not_be_encoded_puts_no_message_in_doubt():
    store = Journal(RamRegion(8, 4096))
    session = Session(store)
    session.note.begin(b"me", b"")
    store.mark(session.publish(b"t", b"x", 2))
    connection = Connection(session, b"me", password=b"secret")
    with pytest.raises(UsageError):
        connection.start(0)
    assert session.note.octets[1] < 128
    Connection(session, b"me").start(0)
    assert session.note.octets[1] >= 128
