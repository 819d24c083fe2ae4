"""Received messages longer than the buffer: skipped or delivered in pieces, cut at any byte, at every QoS and level."""

import pytest

from flashmqtt.connection import OVERSIZE, RESTART
from flashmqtt.errors import DeadlineExpired, MalformedPacket
from loopback import Loopback
from wire import (
    DISCONNECT,
    PINGREQ,
    PINGRESP,
    connected,
    in_flight,
    packet,
    peer,
    puback,
    pubcomp,
    publish,
    pubrec,
    pubrel,
    text,
)

SIZE = 64
SHORT = publish(b"s", b"behind", 1, 8)
BEHIND = [puback(8)]


def payload(n):
    """Return n bytes in which neighbouring pieces differ."""
    return bytes((i * 31 + (i >> 5)) & 255 for i in range(n))


def oversize(broker):
    """Return (topic, length) of the last skipped message."""
    return broker.session.long.topic, broker.session.handle


def answers(qos, packet_id=9):
    """Return the packets that answer a PUBLISH of this QoS."""
    return [[], [puback(packet_id)], [pubrec(packet_id)]][qos]


# --- skipped ---


@pytest.mark.req("R2", "W13")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_long_message_is_skipped_for_any_chunking(qos):
    for n in (58, 59, 60, 61, 62, 63, 64, 120, 127, 128, 129, 500):
        for step in (1, 7, 64, 1000):
            broker = connected(buffer_bytes=SIZE)
            long = publish(b"a/b", payload(n), qos, 9)
            passes = len(long) > SIZE
            octets = long + SHORT
            for at in range(0, len(octets), step):
                broker.give(octets[at : at + step])
            if passes:
                assert broker.events.count(OVERSIZE) == 1 and broker.session.oversize == 1
                assert broker.session.long.topic == "a/b"
                assert (OVERSIZE, n) in broker.handled
            assert [message[:2] for message in broker.messages[-1:]] == [("s", b"behind")]
            took = broker.took()
            assert took[: len(answers(qos))] == answers(qos) or not passes
            assert took[-1] == puback(8)


@pytest.mark.req("R2", "W13")
@pytest.mark.parametrize("chunks", [False, True])
def test_payload_of_a_long_message_is_not_read_as_packets(chunks):
    for before in range(4):
        broker = connected(buffer_bytes=SIZE, chunks=chunks)
        broker.give(SHORT, publish(b"a", b"x" * before + puback(9) * 60), SHORT)
        assert broker.took() == BEHIND * 2
        # The decoder must not take the last one for a repetition of the first one, whose place in the buffer is gone.
        assert broker.messages[0][:2] == broker.messages[-1][:2] == ("s", b"behind")


@pytest.mark.req("R2")
@pytest.mark.parametrize("level", [3, 4])
def test_skipped_qos_2_message_completes_its_flow(level):
    broker = connected(buffer_bytes=SIZE, level=level)
    long = publish(b"a", payload(300), 2, 9)
    broker.give(long)
    assert broker.took() == [pubrec(9)]
    broker.give(pubrel(9))
    assert broker.took() == [pubcomp(9)]
    assert broker.messages == [] and broker.session.store.held() == []
    broker.give(SHORT)
    assert broker.took() == [puback(8)]


@pytest.mark.req("R2")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_long_message_cut_at_any_byte_is_skipped_once(qos):
    long = publish(b"a/b", payload(150), qos, 9)
    for cut in range(len(long)):
        broker = connected(buffer_bytes=SIZE)
        broker.give(long[:cut])
        assert broker.took() == [] and broker.events.count(OVERSIZE) == 0
        broker.drop()
        broker.connect(1)
        broker.give(long, SHORT)
        assert broker.events.count(OVERSIZE) == 1
        assert broker.took() == answers(qos) + BEHIND
        assert len(broker.messages) == 1


@pytest.mark.req("R2")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_message_with_a_topic_longer_than_the_buffer_is_skipped(qos):
    for length in (
        20,
        29,
        30,
        31,
        32,
        55,
        56,
        57,
        58,
        59,
        60,
        61,
        62,
        63,
        64,
        65,
        66,
        67,
        100,
        126,
        127,
        128,
        129,
        300,
    ):
        topic = ("t\u00e9" * length).encode()[:length]
        topic = topic if topic[-1] != 0xC3 else topic[:-1] + b"x"
        for n in (0, 1, 70):
            long = publish(topic, payload(n), qos, 0x1234)
            if len(long) <= SIZE:
                continue
            broker = connected(buffer_bytes=SIZE)
            for at in range(len(long)):
                broker.give(long[at : at + 1])
            broker.give(SHORT)
            told, size = oversize(broker)
            assert topic.decode().startswith(told) and len(told.encode()) >= min(len(topic), 25)
            assert size == n and broker.events.count(OVERSIZE) == 1
            assert broker.took() == answers(qos, 0x1234) + BEHIND, (length, n)


@pytest.mark.req("R2", "W13")
def test_malformed_long_message_raises():
    for long in (
        publish(b"a\xff", payload(100), 1, 9),
        publish(b"", payload(100), 1, 9),
        publish(b"a/#", payload(100), 1, 9),
        publish(b"a", payload(100), 1, 0),
        publish(b"\xff" * 100, payload(100), 1, 9),
        publish(b"t" * 100, payload(100), 1, 0),
    ):
        broker = connected(buffer_bytes=SIZE)
        with pytest.raises(MalformedPacket) as ended:
            broker.give(long)
        assert ended.value.reason == 0x81
        assert broker.events.count(OVERSIZE) == 0 and broker.took() == []


@pytest.mark.req("R2")
def test_skipped_message_does_not_discard_a_held_one_with_its_id():
    broker = connected(buffer_bytes=SIZE)
    broker.give(publish(b"h", b"held", 2, 9), publish(b"a", payload(200), 2, 9), pubrel(9))
    assert broker.took() == [pubrec(9), pubrec(9), pubcomp(9)]
    assert [message[1] for message in broker.messages] == [b"held"]


@pytest.mark.req("R2")
def test_deadlines_wait_while_a_long_message_arrives():
    broker = in_flight(1, buffer_bytes=SIZE, response_ms=1000, keep_alive_s=2)
    long = publish(b"a", payload(3000), 0)
    took = []
    for at in range(0, len(long), 10):  # 10 bytes per 100 ms: 30 s in all
        broker.give(long[at : at + 10])
        broker.now += 100
        broker.connection.check(broker.now)
        took += broker.took()
    assert PINGREQ in took
    broker.give(puback(2), PINGRESP)
    broker.now += 1500
    broker.connection.check(broker.now)
    assert broker.session.is_done(broker.handle)


@pytest.mark.req("R2")
@pytest.mark.parametrize("owed", ["acknowledgement", "PINGRESP"])
def test_missing_answer_after_a_long_message_raises_at_its_deadline(owed):
    broker = (in_flight if owed == "acknowledgement" else lambda _, **options: connected(**options))(
        1, buffer_bytes=SIZE, response_ms=5000, keep_alive_s=4
    )
    broker.give(publish(b"a", payload(300), 0))
    with pytest.raises(DeadlineExpired) as expired:
        for _ in range(100):
            broker.now += 500
            if owed == "acknowledgement":
                broker.give(SHORT)  # so that the link is not silent
            broker.connection.check(broker.now)
            if PINGREQ in broker.took() and owed == "acknowledgement":
                broker.give(PINGRESP)
    assert owed in str(expired.value)


@pytest.mark.req("R2")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_client_reports_a_skipped_message_and_stays_connected(qos):
    from flashmqtt.client import Client

    broker = Loopback()
    mqtt = Client("127.0.0.1", broker.port, client_id="a", feed=broker, buffer_bytes=SIZE)
    told, got = [], []
    mqtt.on_oversize = lambda topic, length: told.append((topic, length))
    mqtt.on_message = lambda message: got.append(message.payload)
    mqtt.connect()
    broker.give(publish(b"a/b", payload(1000), qos, 9), SHORT)
    while not got:
        mqtt.poll(100)
    assert told == [("a/b", 1000)] and mqtt.oversize == 1 and got == [b"behind"]
    while not broker.of(4):
        mqtt.poll(100)
    assert broker.connects == 1 and broker.of(4)[-1] == puback(8)
    assert broker.of(5) == ([pubrec(9)] if qos == 2 else [])
    mqtt.disconnect()
    broker.close()


# --- in pieces ---


def pieces_of(broker):
    """Record (offset, bytes, total, more) of each received message."""
    seen = []
    broker.on_message = lambda message: seen.append((message.offset, message.payload, message.total, message.more))
    return seen


@pytest.mark.req("R2")
@pytest.mark.parametrize("qos", [0, 1])
def test_chunked_message_cut_at_any_byte_restarts(qos):
    body = payload(150)
    long = publish(b"a/b", body, qos, 9)
    for cut in range(len(long)):
        broker = connected(buffer_bytes=SIZE, chunks=True)
        seen = pieces_of(broker)
        broker.give(long[:cut])
        assert broker.took() == [] and all(more for _, _, _, more in seen)
        broker.drop()
        broker.connect(1)
        del seen[:]
        broker.give(long, SHORT)
        whole = b"".join([part for _, part, _, _ in seen[:-1]])
        assert whole == body and seen[0][0] == 0 and not seen[-2][3]
        assert seen[-1] == (0, b"behind", 6, False)
        assert broker.took() == answers(qos) + BEHIND


@pytest.mark.req("R2")
def test_head_longer_than_the_buffer_is_skipped_with_chunks_enabled():
    broker = connected(buffer_bytes=SIZE, chunks=True)
    seen = pieces_of(broker)
    broker.give(publish(b"t" * 100, payload(100), 1, 9), SHORT)
    assert oversize(broker) == ("t" * 27, 100)
    assert len(seen) == 1 and broker.took() == [puback(9), puback(8)]


# --- in pieces, at QoS 2: held in the store ---


class Taker:
    """A program that receives pieces: joins them, and asserts that each piece follows the previous one."""

    def __init__(self, broker):
        broker.on_message = self
        self.whole = []
        self.part = b""
        self.pieces = 0

    def __call__(self, message):
        self.pieces += 1
        if not message.offset:
            self.part = b""
        assert message.offset == len(self.part), "the piece does not follow the previous one"
        self.part += message.payload
        assert message.more == (len(self.part) < message.total)
        if not message.more:
            self.whole.append((message.topic, self.part))
            self.part = b""


def stores():
    """Return functions that make a store: in RAM, and a journal."""
    from flashmqtt.flash.block import BlockRegion
    from flashmqtt.journal.journal import Journal
    from flashmqtt.session.ram import RamStore
    from tools.flashsim.nor import NorFlash

    return {"ram": RamStore, "journal": lambda: Journal(BlockRegion(NorFlash(16 * 4096)))}


@pytest.mark.req("R2", "Q4")
@pytest.mark.parametrize("kind", ["ram", "journal"])
def test_qos_2_chunks_are_held_and_delivered_at_pubrel(kind):
    for n in (60, 100, 231, 232, 233, 464, 1000, 5000):
        broker = connected(stores()[kind](), buffer_bytes=SIZE, packet_bytes=SIZE, chunks=True)
        taker = Taker(broker)
        body = payload(n)
        long = publish(b"a/b", body, 2, 9)
        for at in range(0, len(long), 37):
            assert broker.took() == [] and not taker.pieces
            broker.give(long[at : at + 37])
        assert broker.took() == [pubrec(9)] and not taker.pieces
        broker.give(long)  # PUBREC was lost
        assert broker.took() == [pubrec(9)] and not taker.pieces
        broker.give(pubrel(9))
        assert broker.took() == [pubcomp(9)]
        assert taker.whole == [("a/b", body)] and (taker.pieces > 1 or n < 100)
        broker.give(pubrel(9), SHORT)
        assert broker.took() == [pubcomp(9), puback(8)]
        assert taker.whole[1:] == [("s", b"behind")]
        assert broker.session.store.held() == []


@pytest.mark.req("R2", "Q4")
@pytest.mark.parametrize("level", [3, 4, 5])
def test_long_qos_2_message_cut_at_any_byte_arrives_once(level):
    from flashmqtt.session.level5 import Level5

    body = payload(150)
    options = {}
    long, short = publish(b"a/b", body, 2, 9), SHORT
    if level == 5:
        options["five"] = Level5()
        long = packet(0x34, text(b"a/b"), b"\x00\x09", b"\x05\x26\x00\x00\x00\x00", body)  # a user property
        short = packet(0x32, text(b"s"), b"\x00\x08", b"\x00", b"behind")

    def accepted(broker, present=0):
        broker.start()
        broker.give(packet(0x20, bytes((present, 0)), b"\x00" if level == 5 else b""))

    stream = long + pubrel(9)
    for cut in range(len(stream) + 1):
        broker = peer(buffer_bytes=SIZE, packet_bytes=8, chunks=True, level=level, **options)
        accepted(broker)
        taker = Taker(broker)
        broker.give(stream[:cut])
        broker.took()
        broker.drop()
        accepted(broker, 0 if level == 3 else 1)
        if cut < len(long):
            broker.give(long)
        broker.give(pubrel(9), short)
        assert taker.whole == [("a/b", body), ("s", b"behind")], cut
        assert broker.session.store.held() == []


@pytest.mark.req("R2", "Q4")
def test_delivery_continues_after_the_last_handled_chunk():
    body = payload(300)
    for fails_at in range(1, 12):
        broker = connected(buffer_bytes=SIZE, packet_bytes=SIZE, chunks=True)
        taker = Taker(broker)

        def handle(message, broker=broker, taker=taker, fails_at=fails_at):
            taker(message)
            if taker.pieces == fails_at:
                raise OSError("cut")

        broker.on_message = handle
        broker.give(publish(b"a", body, 2, 9))
        broker.took()
        try:
            broker.give(pubrel(9))
            assert taker.pieces < fails_at
        except OSError:
            broker.session.acknowledge()
            broker.drop()
            broker.connect(1)
            broker.process()
            broker.give(pubrel(9))
        assert taker.whole == [("a", body)]
        assert broker.took()[-1] == pubcomp(9)


@pytest.mark.req("R2", "Q4", "R4")
def test_only_the_chunk_whose_handler_failed_is_repeated():
    body = payload(300)
    for fails_at in range(1, 6):
        broker = connected(buffer_bytes=SIZE, packet_bytes=SIZE, chunks=True)
        taker = Taker(broker)
        seen = []

        def handle(message, seen=seen, taker=taker, fails_at=fails_at):
            seen.append(message.offset)
            if len(seen) == fails_at:
                raise OSError("the handler's own")
            taker(message)

        broker.on_message = handle
        broker.give(publish(b"a", body, 2, 9))
        with pytest.raises(OSError):
            broker.give(pubrel(9))
        broker.session.handed = 0
        broker.drop()
        broker.connect(1)
        broker.process()
        broker.give(pubrel(9))
        assert taker.whole == [("a", body)]
        assert seen[fails_at - 1] == seen[fails_at] and len(seen) == len(set(seen)) + 1


@pytest.mark.req("R2", "Q4")
def test_new_message_with_a_held_id_arrives_after_the_held_one():
    broker = connected(buffer_bytes=SIZE, packet_bytes=SIZE, chunks=True)
    taker = Taker(broker)
    first, second = payload(300), payload(301)[1:]
    broker.give(publish(b"a", first, 2, 9))
    assert broker.took() == [pubrec(9)]
    long = publish(b"a", second, 2, 9)
    for at in range(0, len(long), SIZE):
        if RESTART not in broker.events:
            broker.give(long[at : at + SIZE])
    assert taker.whole == [("a", first)] and broker.took() == [DISCONNECT]
    assert RESTART in broker.events
    broker.drop()
    broker.connect(1)
    broker.give(publish(b"a", second, 2, 9), pubrel(9))
    assert taker.whole == [("a", first), ("a", second)]


@pytest.mark.req("R2")
def test_message_longer_than_the_store_can_hold_is_skipped():
    from flashmqtt.session.ram import RamStore

    broker = connected(RamStore(longest=1000), buffer_bytes=SIZE, packet_bytes=SIZE, chunks=True)
    taker = Taker(broker)
    broker.give(publish(b"a", payload(1200), 2, 9), pubrel(9), SHORT)
    assert broker.took() == [pubrec(9), pubcomp(9), puback(8)]
    assert oversize(broker) == ("a", 1200) and taker.whole == [("s", b"behind")]


@pytest.mark.req("R2", "R4")
def test_long_message_without_room_arrives_when_there_is_room():
    from flashmqtt.session.ram import RamStore

    broker = connected(RamStore(hold_limit=1), buffer_bytes=SIZE, packet_bytes=SIZE, chunks=True)
    taker = Taker(broker)
    long = publish(b"a", payload(300), 2, 9)
    broker.give(publish(b"h", b"held", 2, 3), long)
    assert broker.took() == [pubrec(3)]
    broker.give(pubrel(3))
    broker.process()
    assert RESTART in broker.events and broker.session.oversize == 0
    broker.drop()
    broker.connect(1)
    broker.give(long, pubrel(9))
    assert taker.whole == [("h", b"held"), ("a", payload(300))]


@pytest.mark.req("R2", "R4")
def test_skipped_message_that_comes_again_is_reported_once():
    from flashmqtt.session.ram import RamStore

    broker = connected(RamStore(hold_limit=1), buffer_bytes=SIZE)
    long = publish(b"a", payload(100), 2, 9)
    broker.give(publish(b"h", b"held", 2, 3), publish(b"h", b"left", 2, 4), long)
    assert broker.took() == [pubrec(3)]  # from the second message on, the broker has to send them again
    broker.give(pubrel(3))
    broker.process()
    assert RESTART in broker.events and broker.session.oversize == 0
    broker.drop()
    broker.connect(1)
    broker.give(publish(b"h", b"left", 2, 4), long)
    assert broker.took() == [pubrec(4), pubrec(9)]
    assert broker.events.count(OVERSIZE) == 1 and broker.session.oversize == 1


@pytest.mark.req("R2", "Q4", "S2")
@pytest.mark.parametrize("model", ["prefix", "bits", "unreported"])
def test_long_message_is_delivered_after_a_power_cut_at_any_operation(model):
    """The handler joins the pieces in RAM, so an unfinished message starts again after a power cut."""
    from flashmqtt.flash.block import BlockRegion
    from flashmqtt.journal.journal import Journal
    from tools.flashsim.nor import NorFlash, PowerCut

    flash = NorFlash(12 * 4096)
    store = Journal(BlockRegion(flash))
    for number in range(40):  # so that the ring wraps and some messages wait
        message = publish(b"t", payload(300 + number), 1, number + 1)
        store.append(message, len(message))
        if store.next_seq - store.low > 3:
            store.finish(store.low)
    start = flash.snapshot()
    body = payload(4000)
    long = publish(b"a", body, 2, 9)

    def life(broker, taker, done):
        """Receive the message while publishing others; return whether its PUBCOMP was sent."""
        if not done:
            for at in range(0, len(long), 500):
                broker.give(long[at : at + 500])
                broker.session.publish(b"out", payload(100), 1)
                broker.took()
        broker.give(pubrel(9))
        return pubcomp(9) in broker.took()

    def mounted():
        broker = connected(Journal(BlockRegion(flash)), settled=False, buffer_bytes=600, packet_bytes=600, chunks=True)
        return broker, Taker(broker)

    flash.restore(start)
    before = flash.operations
    broker, taker = mounted()
    assert life(broker, taker, False) and taker.whole == [("a", body)]
    end = flash.operations - before
    assert end > 25
    for i in range(1, end + 1):
        flash.restore(start)
        flash.arm(flash.operations + i, model, i * 5 + 1)
        whole = 0
        acknowledged = False  # whether the message was handled and discarded before the power cut
        try:
            broker = None
            broker, taker = mounted()
            life(broker, taker, False)
        except PowerCut:
            pass
        if broker is not None:
            whole = len(taker.whole)
        flash.power_up()
        broker, taker = mounted()
        held = broker.session.store.held()
        assert held in ([], [9])
        if held:
            assert broker.session.store.held_length(9) == len(long)
        elif whole:
            acknowledged = True
        assert life(broker, taker, acknowledged or bool(held))
        whole += len(taker.whole)
        # Handled once; twice only if the power was cut between the handler's return and the record of the discard.
        assert whole == 1 or (whole == 2 and held), (i, whole, held)
        assert broker.session.store.held() == [] and flash.violations == []
