"""A session under lost connections, lost sessions, full stores and power cuts at bad moments (Q2 to Q8, R4, S5).

Each test reproduces a defect of an earlier version. Packets are written by hand: see `wire.py`.
"""

import pytest

from flashmqtt.connection import CONNECTED, DAMAGED, DELIVERED, IN_DOUBT, MESSAGE, RESTART
from flashmqtt.errors import ConnectionLost, DeadlineExpired, StoreCorrupt, StoreFull
from flashmqtt.output import Output
from flashmqtt.session.level5 import Level5
from flashmqtt.session.ram import RamStore
from flashmqtt.session.session import Session
from flashmqtt.session.waiting import UNCLAIMED, WaitingQueue
from wire import (
    DISCONNECT,
    PINGREQ,
    PINGRESP,
    CutStore,
    Peer,
    Taker,
    connack,
    connected,
    in_flight,
    packet,
    past_pubrec,
    peer,
    puback,
    pubcomp,
    publish,
    pubrec,
    pubrel,
    split,
)


def reboot(life, level=4, client_id=b"me", **options):
    """Cut the power; return the peer after the restart."""
    session = Session(life.session.store.cut(), level, life.session.window)
    return Peer(session, client_id=client_id, **options)


def payloads(broker):
    return [message[1] for message in broker.messages]


# --- a lost CONNACK ---


def lose_connack(broker):
    """Connect, and cut the connection before CONNACK arrives; that CONNACK might have reported a lost session."""
    broker.drop()
    broker.start()
    broker.drop()


@pytest.mark.req("Q8")
def test_message_stays_in_doubt_until_its_flow_ends():
    broker = past_pubrec()
    lose_connack(broker)
    broker.connect(1)
    broker.drop()
    broker.connect(1)
    broker.give(pubcomp(2))
    assert broker.handled[-1] == (IN_DOUBT, broker.handle)
    for _ in range(32):  # later messages in the same slot are not in doubt
        handle = broker.session.publish(b"a", b"y", 2)
        broker.took()
        broker.give(pubrec(handle), pubcomp(handle))
        assert broker.handled[-1] == (DELIVERED, handle) and broker.session.delivered(handle)


class NotingStore(CutStore):
    """Counts the writes of notes."""

    notes = 0

    def write_note(self, note):
        super().write_note(note)
        self.notes += 1


def begin(broker, present):
    """Connect at the session's level; return the packets that came after CONNECT."""
    broker.start()
    broker.give(packet(0x20, bytes([present, 0]), b"\0" if broker.session.level == 5 else b""))
    return broker.took()


def past_pubrec_at(level):
    """Return a connected peer of this level whose broker has answered a QoS 2 message by PUBREC."""
    broker = peer(NotingStore(), level=level, five=Level5() if level == 5 else None)
    begin(broker, 0)
    broker.handle = broker.session.publish(b"a", b"x", 2)
    broker.took()
    broker.give(pubrec(2))
    assert broker.took() == [pubrel(2)]
    return broker


def restart(broker):
    """Cut the power; return the peer after the restart, at the same level."""
    level = broker.session.level
    return reboot(broker, level, five=Level5() if level == 5 else None)


@pytest.mark.req("Q8", "S1", "W12")
@pytest.mark.parametrize(
    "restarts, level, code",
    [(0, 4, b""), (0, 5, b""), (0, 5, b"\x92"), (2, 4, b""), (2, 5, b"\x92"), (2, 5, b"")],
)
def test_message_past_pubrec_is_in_doubt_after_a_lost_connack(restarts, level, code):
    broker = past_pubrec_at(level)
    lose_connack(broker)
    for _ in range(restarts or 1):  # the doubt outlasts a restart before PUBCOMP
        broker = restart(broker) if restarts else broker
        assert begin(broker, 1) == [pubrel(2)]  # not PUBLISH: the broker may still have the old session
    broker.give(packet(0x70, b"\0\2", code))  # mosquitto 2.0 sends no code for an unknown id
    assert broker.handled[-1] == (IN_DOUBT, 2)
    assert not broker.session.delivered(2) and not broker.session.store.waiting


@pytest.mark.req("Q8", "S1")
@pytest.mark.parametrize("level, code", [(4, b""), (5, b""), (5, b"\x92")])
def test_message_past_pubrec_is_not_in_doubt_after_a_restart_alone(level, code):
    broker = past_pubrec_at(level)
    broker.drop()
    begin(broker, 1)  # this CONNECT was answered
    broker = restart(broker)
    assert begin(broker, 1) == [pubrel(2)]
    broker.give(packet(0x70, b"\0\2", code))  # level 5, 0x92: an earlier PUBCOMP was lost
    assert broker.handled[-1] == (DELIVERED, 2) and broker.session.delivered(2)


@pytest.mark.req("Q8", "S1")
def test_message_marked_after_the_doubt_ended_is_not_in_doubt_after_a_restart():
    broker = past_pubrec_at(4)
    lose_connack(broker)
    begin(broker, 1)
    broker.give(pubcomp(2))
    assert broker.handled[-1] == (IN_DOUBT, 2)
    broker.session.publish(b"a", b"y", 2)
    broker.took()
    broker.give(pubrec(3))
    broker.took()
    broker = restart(broker)
    assert begin(broker, 1) == [pubrel(3)]
    broker.give(pubcomp(3))
    assert broker.handled[-1] == (DELIVERED, 3)


@pytest.mark.req("Q8", "S4")
def test_doubt_of_messages_past_pubrec_costs_two_writes():
    broker = past_pubrec_at(4)
    store = broker.session.store
    broker.session.note.keep_step(6)
    before = store.notes
    for _ in range(3):
        lose_connack(broker)
    assert store.notes == before + 1
    broker.connect(1)
    assert store.notes == before + 1  # the message is in doubt until its PUBCOMP
    broker.give(pubcomp(2))
    broker.drop()
    broker.connect(1)
    assert store.notes == before + 2
    for _ in range(3):
        lose_connack(broker)  # no message is past PUBREC
        broker.connect(1)
    assert store.notes == before + 2 and broker.session.note.octets[1] & 127 == 6


@pytest.mark.req("Q4", "Q8")
@pytest.mark.parametrize("doubtful", [False, True])
def test_new_message_with_packet_id_of_held_one_is_not_lost(doubtful):
    broker = connected()
    broker.give(publish(b"t", b"old command", 2, 1))
    assert broker.took() == [pubrec(1)]
    if doubtful:
        lose_connack(broker)
    else:
        broker.drop()
    broker.connect(1)
    broker.give(publish(b"t", b"old command", 2, 1, dup=1))
    assert broker.took() == [pubrec(1)] and not broker.messages  # the same bytes, so a duplicate
    # The broker has discarded the old message, so the held copy is the only one.
    broker.give(publish(b"t", b"NEW COMMAND", 2, 1))
    assert payloads(broker) == [b"old command"]
    assert broker.took() == [pubrec(1)]
    broker.give(pubrel(1))
    assert payloads(broker) == [b"old command", b"NEW COMMAND"]
    assert broker.took() == [pubcomp(1)] and not broker.session.store.held()


@pytest.mark.req("Q4", "Q8")
def test_failed_handler_loses_neither_held_nor_new_message():
    broker = connected()
    broker.give(publish(b"t", b"old", 2, 1))
    broker.took()

    def fail(message):
        raise ValueError("no")

    broker.on_message = fail
    with pytest.raises(ValueError):
        broker.give(publish(b"t", b"new", 2, 1))
    broker.on_message = None
    broker.drop()
    broker.connect(1)
    broker.give(publish(b"t", b"new", 2, 1, dup=1), pubrel(1))
    assert payloads(broker)[-2:] == [b"old", b"new"]


@pytest.mark.req("Q4", "Q8", "S1")
def test_power_cut_while_lost_session_is_reported_loses_nothing():
    broker = connected(CutStore())
    handle = broker.session.publish(b"a", b"x", 2)
    broker.took()
    broker.give(pubrec(handle), publish(b"t", b"old command", 2, 1))
    broker.took()
    broker.drop()
    broker.start()
    broker.connection.decoder.feed(connack(0))
    assert broker.connection.process(broker.now) == CONNECTED
    after = reboot(broker)
    assert after.connect(1) == [publish(b"a", b"x", 2, handle, dup=1)]  # not PUBREL: it is a new session
    after.give(publish(b"t", b"NEW COMMAND", 2, 1), pubrel(1))
    assert payloads(after) == [b"old command", b"NEW COMMAND"]


# --- messages that were handed over ---


@pytest.mark.req("Q4", "R4")
def test_handled_message_is_not_repeated_if_pubcomp_had_no_room():
    broker = connected(out_bytes=64, packet_bytes=64)
    broker.give(publish(b"t", b"open valve", 2, 1))
    broker.took()

    def fill(message):
        while broker.session.put_unstored(b"s", b"z" * 10):
            pass

    broker.on_message = fill
    connection = broker.connection
    connection.decoder.feed(pubrel(1))
    assert connection.process(broker.now) == MESSAGE
    fill(None)
    broker.session.acknowledge()
    broker.drop()  # none of the output was sent
    broker.on_message = None
    broker.connect(1)
    broker.give(pubrel(1))
    assert not broker.messages and broker.took() == [pubcomp(1)]


@pytest.mark.req("Q4", "R4")
def test_acknowledgements_keep_their_order_while_output_is_full():
    broker = connected(out_bytes=64, packet_bytes=64)
    broker.give(publish(b"t", b"1", 2, 1), publish(b"t", b"2", 2, 2))
    broker.took()
    seen = []

    def fill(message):
        seen.append(message.payload)
        while broker.session.put_unstored(b"s", b"z"):
            pass

    broker.on_message = fill
    broker.give(pubrel(1), publish(b"t", b"3", 1, 3), pubrel(2))
    assert seen == [b"1", b"3", b"2"]
    acks = [one for one in broker.took() if one[0] >> 4 != 3]
    assert acks == [pubcomp(1), puback(3), pubcomp(2)]


@pytest.mark.req("Q4", "S1")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_power_cut_in_a_handler_does_not_repeat_previous_message(qos):
    broker = connected(CutStore())
    broker.give(publish(b"t", b"open valve", 2, 1), publish(b"t", b"close valve", 2, 2))
    broker.took()
    stores = []

    def handler(message):
        stores.append(broker.session.store.cut())  # the power is cut here

    broker.on_message = handler
    broker.give(pubrel(1), pubrel(2) if qos == 2 else publish(b"t", b"x", qos, 9 if qos else 0))
    after = Peer(Session(stores[1], 4, 4))
    after.connect(1)
    after.give(pubrel(1), pubrel(2))
    assert payloads(after) == [b"close valve"]


@pytest.mark.req("Q4", "Q8", "R4")
def test_message_handed_over_without_pubrel_is_not_repeated_after_power_cut():
    broker = connected(CutStore())
    broker.give(publish(b"t", b"open valve", 2, 1))
    broker.took()
    broker.drop()
    broker.connect(0)  # the session is lost: no PUBREL comes
    assert payloads(broker) == [b"open valve"] and broker.session.store.cut().held() == []


# --- the store is full ---


@pytest.mark.req("Q4", "R4", "S5")
def test_full_store_still_delivers_and_receives():
    store = CutStore(limit=20, hold_limit=1)
    broker = connected(store)
    broker.drop()
    with pytest.raises(StoreFull):
        while True:
            broker.session.publish(b"t", b"x", 1)
    sent = broker.connect(1)
    broker.give(publish(b"c", b"1", 2, 1), publish(b"c", b"2", 2, 2), publish(b"c", b"3", 2, 3))
    acked = 0
    while sent:
        for one in sent:
            if one[0] >> 4 == 3:
                broker.give(puback(one[5] << 8 | one[6]))
                acked += 1
        sent = broker.took()
    assert acked == 20 and not broker.session.store.waiting and RESTART not in broker.events
    for i in (1, 2, 3):
        broker.give(pubrel(i))
        assert payloads(broker)[-1] == b"%d" % i
        if i < 3:
            assert broker.events[-1] == RESTART  # the client reconnects at once, without an error
            broker.drop()
            broker.connect(1)
            broker.give(*[publish(b"c", b"%d" % n, 2, n, dup=1) for n in range(i + 1, 4)])
    assert len(broker.messages) == 3


@pytest.mark.req("Q4", "R4")
def test_store_with_wrong_can_hold_causes_no_endless_reconnects():
    class Lying(RamStore):
        def hold(self, key, buf, length):
            raise StoreFull

    broker = connected(Lying())
    broker.give(publish(b"t", b"x", 2, 1))
    assert broker.events[-1] == RESTART
    for _ in range(3):
        broker.drop()
        broker.connect(1)
        broker.give(publish(b"t", b"x", 2, 1, dup=1))
        broker.process()
        assert broker.events[-1] != RESTART
    broker.now += 10000
    broker.process()
    assert broker.events[-1] == RESTART


@pytest.mark.req("Q4", "R4")
@pytest.mark.parametrize("window", [20, 40])
def test_burst_of_qos_2_messages_arrives_in_one_connection(window):
    broker = connected()
    waiting = [(i, b"%d" % i) for i in range(1, 101)]
    flying = 0
    while len(broker.messages) < 100:
        while waiting and flying < window:
            broker.give(publish(b"t", waiting[0][1], 2, waiting.pop(0)[0]))
            flying += 1
        for one in broker.took():
            if one[0] == 0x50:
                broker.give(b"\x62" + one[1:])
            else:
                flying -= 1
    assert payloads(broker) == [b"%d" % i for i in range(1, 101)]
    assert RESTART not in broker.events


# --- messages that the policy drops ---


@pytest.mark.req("S5", "R5")
@pytest.mark.parametrize("sent", [0, 6])
def test_dropped_message_is_never_reported_as_delivered(sent):
    store = CutStore(limit=20, policy="oldest")
    broker = peer(store, window=4)
    session = broker.session
    handles = [session.publish(b"t", b"%03d" % i, 1) for i in range(sent)]
    if sent:
        broker.connect(1)
        broker.drop()
    handles += [session.publish(b"t", b"%03d" % i, 1) for i in range(sent, 200)]
    got = []
    sent = broker.connect(1)
    while sent:
        for one in sent:
            got.append(int(one[-3:]))
            broker.give(puback(one[5] << 8 | one[6]))
        sent = broker.took()
    assert not session.store.waiting and 0 < len(got) <= 20
    assert [i for i, handle in enumerate(handles) if session.delivered(handle)] == sorted(set(got))
    assert store.dropped == 200 - len(got)


@pytest.mark.req("S5", "Q2")
def test_flow_of_message_dropped_after_publish_is_completed():
    store = CutStore(limit=8, policy="oldest")
    broker = connected(store)
    handle = broker.session.publish(b"t", b"x", 2)
    assert len(broker.took()) == 1
    broker.drop()
    for i in range(12):
        broker.session.publish(b"t", b"%d" % i, 1)
    assert broker.connect(1)[0] == pubrel(handle)  # the body is lost, but the broker may hold the message
    broker.give(pubcomp(handle))
    assert not broker.session.delivered(handle)


@pytest.mark.req("S5", "Q1")
def test_dropped_messages_in_flight_leave_the_window():
    store = CutStore(limit=8, policy="oldest")
    broker = connected(store, window=4)
    for i in range(7):
        broker.session.publish(b"t", b"%d" % i, 1)
    assert len(broker.took()) == 4
    handles = [broker.session.publish(b"t", b"new %d" % i, 1) for i in range(3)]
    assert store.dropped == 4
    sent = broker.took()
    while sent:
        broker.give(*[puback(one[5] << 8 | one[6]) for one in sent])
        sent = broker.took()
    assert not broker.session.store.waiting and all(broker.session.delivered(handle) for handle in handles)


@pytest.mark.req("S5", "W13")
def test_dropping_a_half_sent_message_ends_the_connection():
    store = CutStore(limit=8, policy="oldest")
    broker = connected(store, out_bytes=64, packet_bytes=64)
    broker.session.publish(b"t", b"y" * 500, 1)
    broker.connection.pump(broker.now)
    assert len(broker.offered()) == 64
    for i in range(8):
        broker.session.publish(b"t", b"%d" % i, 1)
    assert store.dropped
    with pytest.raises(ConnectionLost):
        broker.took()
    broker.drop()
    assert [one[-1:] for one in broker.connect(1)] == [b"3", b"4", b"5", b"6"]


@pytest.mark.req("R5", "W13")
def test_damaged_message_behind_a_half_sent_one_lets_no_packet_into_its_middle():
    broker = connected(out_bytes=64, packet_bytes=64)
    store = broker.session.store
    for body in (b"y" * 500, b"damaged", b"z"):
        broker.session.publish(b"t", body, 1)
    length = store.length
    store.length = lambda seq: 0 if seq == 3 else length(seq)
    broker.connection.pump(broker.now)
    assert len(broker.offered()) == 64 and broker.session.partial
    assert not broker.connection.output.limit
    assert [one[-1:] for one in broker.took()] == [b"y", b"z"]


def held_before_reconnect():
    """Return a peer whose broker has not continued the flow of a held message in the 30 s since the reconnect."""
    broker = connected(response_ms=30000, keep_alive_s=0)
    broker.give(publish(b"a", b"x", 2, 9))
    assert broker.took() == [pubrec(9)]
    broker.drop()
    broker.now += 100000
    broker.connect(1)
    for ms in (600, 600, 28000):
        pass_time(broker, ms)
        assert broker.took() == []
    pass_time(broker, 3000)
    assert broker.took() == [PINGREQ] and broker.messages == []
    return broker


def pass_time(broker, ms):
    """Let this time pass, then check deadlines as a poll loop does."""
    broker.now += ms
    broker.connection.check(broker.now)
    broker.process()


@pytest.mark.req("Q4", "Q8")
def test_held_message_without_pubrel_is_handed_over_after_response_time():
    broker = held_before_reconnect()
    broker.give(PINGRESP)
    broker.process()
    assert payloads(broker) == [b"x"]


@pytest.mark.req("Q4", "B4")
def test_held_message_is_handed_over_once_if_a_connection_fails_silently():
    broker = held_before_reconnect()
    with pytest.raises(DeadlineExpired):
        for _ in range(32):
            pass_time(broker, 1000)
    assert broker.took() == [] and broker.messages == []
    broker.drop()
    broker.connect(1)
    broker.give(publish(b"a", b"x", 2, 9, dup=1), pubrel(9))
    assert payloads(broker) == [b"x"] and broker.took() == [pubrec(9), pubcomp(9)]


@pytest.mark.req("S5")
def test_drop_newest_drops_long_messages_too():
    store = CutStore(limit=3, policy="newest")
    session = Session(store, packet_bytes=64)
    assert [session.publish(b"t", b"x", 1) for _ in range(3)] == [1, 2, 3]
    assert session.publish(b"t", b"x", 1) == 0
    assert session.publish(b"t", b"y" * 400, 1) == 0
    assert store.dropped == 2 and session.store.waiting == 3


@pytest.mark.req("S2", "R5")
def test_message_lost_by_the_flash_is_reported_and_skipped():
    store = RamStore()
    broker = connected(store)
    broker.drop()
    handles = [broker.session.publish(b"t", b"%d" % i, 1) for i in range(3)]
    store._lengths[handles[1] % store.limit] = 0
    assert broker.connect(1) == [publish(b"t", b"0", 1, handles[0]), publish(b"t", b"2", 1, handles[2])]
    broker.process()
    assert broker.handled[-1] == (DAMAGED, handles[1])
    broker.give(puback(handles[0]), puback(handles[2]))
    assert [broker.session.delivered(handle) for handle in handles] == [True, False, True]
    assert not broker.session.store.waiting


class RottenStore(RamStore):
    """Messages become unreadable after the mount: `rotten` lists their sequence numbers, or the keys of held messages."""

    def __init__(self):
        super().__init__()
        self.rotten = []
        self.rots_at = 0  # the first unreadable byte

    def read(self, seq, offset, buf, at, n):
        if seq in self.rotten and offset + n > self.rots_at:
            self._lengths[seq % self.limit] = 0
            raise StoreCorrupt("message %d can't be read" % seq)
        super().read(seq, offset, buf, at, n)

    def read_held(self, key, offset, buf, at, n):
        if key in self.rotten and offset + n > self.rots_at:
            raise StoreCorrupt("the message held for %d can't be read" % key)
        super().read_held(key, offset, buf, at, n)


@pytest.mark.req("S2", "R5")
@pytest.mark.parametrize("qos", [1, 2])
def test_message_unreadable_when_sent_is_reported_and_skipped(qos):
    store = RottenStore()
    broker = connected(store)
    handles = [broker.session.publish(b"t", b"%d" % i, qos) for i in range(3)]
    store.rotten = [handles[1]]
    assert broker.took() == [publish(b"t", b"0", qos, handles[0]), publish(b"t", b"2", qos, handles[2])]
    broker.process()
    assert broker.handled[-1] == (DAMAGED, handles[1])
    for answer in (puback,) if qos == 1 else (pubrec, pubcomp):
        broker.give(answer(handles[0]), answer(handles[2]))
    assert [broker.session.delivered(handle) for handle in handles] == [True, False, True]
    assert not broker.session.store.waiting and not broker.session.flight


@pytest.mark.req("S2", "R5")
@pytest.mark.parametrize("qos", [1, 2])
def test_message_unreadable_when_retransmitted_is_reported_and_skipped(qos):
    store = RottenStore()
    broker = connected(store)
    handles = [broker.session.publish(b"t", b"%d" % i, qos) for i in range(3)]
    broker.took()
    broker.drop()
    store.rotten = [handles[0]]
    first = broker.connect(1)
    assert first == [publish(b"t", b"1", qos, handles[1], 1), publish(b"t", b"2", qos, handles[2], 1)]
    broker.process()
    assert broker.handled[-1] == (DAMAGED, handles[0])


@pytest.mark.req("S2", "R5")
def test_level_3_reports_message_unreadable_at_timed_retry():
    store = RottenStore()
    broker = in_flight(1, store, level=3)
    store.rotten = [broker.handle]
    broker.now += 20000
    broker.connection.check(broker.now)
    broker.process()
    assert broker.handled[-1] == (DAMAGED, broker.handle) and not broker.session.flight


@pytest.mark.req("S2", "R5")
def test_partly_unreadable_message_ends_connection_and_is_skipped_afterwards():
    store = RottenStore()
    broker = connected(store, out_bytes=64, packet_bytes=64)
    handles = [broker.session.publish(b"t", b"y" * 500, 1), broker.session.publish(b"t", b"x", 1)]
    store.rotten = [handles[0]]
    store.rots_at = 100
    with pytest.raises(ConnectionLost):
        broker.took()
    broker.drop()
    assert broker.connect(1) == [publish(b"t", b"x", 1, handles[1])]
    broker.process()
    assert broker.handled[-1] == (DAMAGED, handles[0])


@pytest.mark.req("S2", "R5")
def test_acknowledgement_of_unreadable_message_is_no_error():
    for qos, answer in ((1, puback), (2, pubrec)):
        store = RottenStore()
        broker = connected(store, window=1)
        handles = [broker.session.publish(b"t", b"%d" % i, qos) for i in range(2)]
        broker.took()
        broker.session.dup_to = handles[1] + 1  # as after a mount, when both messages may have been sent
        store.rotten = handles[1:]
        broker.give(answer(handles[1]))
        broker.took()
        broker.give(puback(handles[0])) if qos == 1 else broker.give(pubrec(handles[0]), pubcomp(handles[0]))
        broker.took()
        broker.process()
        assert broker.handled[-1] == (DAMAGED, handles[1]) and not broker.session.store.waiting


@pytest.mark.req("S2", "R5")
def test_unreadable_held_message_is_counted_and_its_flow_completed():
    store = RottenStore()
    broker = connected(store)
    broker.give(*[publish(b"t", b"%d" % i, 2, i) for i in (7, 8, 9)])
    broker.took()
    store.rotten = [8]
    broker.give(pubrel(7), pubrel(8), pubrel(9))
    assert broker.took() == [pubcomp(7), pubcomp(8), pubcomp(9)]
    assert payloads(broker) == [b"7", b"9"] and store.damaged == 1 and not store.held()


@pytest.mark.req("Q4", "R5")
def test_unreadable_held_message_is_replaced_by_its_duplicate():
    store = RottenStore()
    broker = connected(store)
    broker.give(publish(b"t", b"once", 2, 7))
    broker.drop()
    broker.connect(1)
    store.rotten = [7]
    broker.give(publish(b"t", b"once", 2, 7, 1))
    store.rotten = []
    broker.give(pubrel(7))
    assert broker.took() == [pubrec(7), pubcomp(7)] and payloads(broker) == [b"once"]
    assert not store.damaged  # no message was lost


@pytest.mark.req("Q4", "R5")
@pytest.mark.parametrize("rots_at", [0, 8])
def test_unreadable_held_message_does_not_block_its_packet_id(rots_at):
    store = RottenStore()
    broker = connected(store)
    broker.give(publish(b"t", b"old", 2, 7))
    store.rotten = [7]
    store.rots_at = rots_at  # with 8 readable bytes the held message is recognized as another one
    broker.give(publish(b"t", b"newer", 2, 7), publish(b"t", b"0"))
    store.rotten = []
    broker.give(pubrel(7))
    assert broker.took() == [pubrec(7), pubrec(7), pubcomp(7)]
    assert payloads(broker) == [b"0", b"newer"] and store.damaged == 1


@pytest.mark.req("R2", "R5")
@pytest.mark.parametrize("rots_at", [0, 3, 100, 303])
def test_partly_unreadable_held_message_is_counted_and_its_flow_completed(rots_at):
    store = RottenStore()
    broker = connected(store, buffer_bytes=64, packet_bytes=64, chunks=True)
    broker.give(publish(b"t", b"x" * 300, 2, 7), publish(b"t", b"y", 2, 8))
    broker.took()
    store.rotten = [7]
    store.rots_at = rots_at
    broker.give(pubrel(7), pubrel(8))
    assert broker.took() == [pubcomp(7), pubcomp(8)]
    *pieces, last = payloads(broker)
    assert last == b"y" and len(b"".join(pieces)) <= max(0, rots_at - 4)
    assert store.damaged == 1 and not store.held()


@pytest.mark.req("R2", "R5")
def test_held_message_unreadable_after_reconnect_is_acknowledged_on_pubrel():
    store = RottenStore()
    broker = connected(store, buffer_bytes=64, packet_bytes=64, chunks=True)
    broker.give(publish(b"t", b"x" * 300, 2, 7))
    broker.took()

    def cut(message):
        if message.more:
            store.rotten = [7]
            raise OSError("cut")

    broker.on_message = cut
    with pytest.raises(OSError):
        broker.give(pubrel(7))
    broker.session.acknowledge()
    broker.drop()
    assert broker.connect(1) == [] and store.damaged == 1 and not store.held()
    broker.give(pubrel(7), publish(b"t", b"y"))
    assert broker.took() == [pubcomp(7)] and payloads(broker)[1:] == [b"y"]


@pytest.mark.req("Q8", "R5")
def test_unreadable_held_messages_of_lost_session_are_skipped():
    store = RottenStore()
    broker = connected(store)
    broker.give(*[publish(b"t", b"%d" % i, 2, i) for i in (7, 8, 9)])
    broker.drop()
    store.rotten = [7, 8]
    broker.connect(0)
    broker.give(publish(b"t", b"0"))
    assert payloads(broker) == [b"9", b"0"] and store.damaged == 2 and not store.held()


@pytest.mark.req("Q2", "R5")
def test_message_dropped_in_flight_is_in_doubt_after_power_cut():
    life = connected(CutStore(4, policy="oldest"))
    handles = [life.session.publish(b"t", b"%d" % i, 2) for i in range(3)]
    life.offered()  # PUBLISH was sent, but does not arrive
    life.connection.pump(life.now)
    life.drop()
    handles += [life.session.publish(b"t", b"%d" % i, 2) for i in range(3, 6)]
    life = reboot(life)
    assert life.connect(1)[:3] == [pubrel(handle) for handle in handles[:3]]
    for handle in handles[:3]:
        life.give(pubcomp(handle))
        assert life.handled[-1] == (IN_DOUBT, handle) and not life.session.delivered(handle)


def lose_every_other(broker, n):
    """Publish n QoS 2 messages; after the PUBREC of every second one, lose the session. Return the handles of those messages."""
    session = broker.session
    lost = []
    for i in range(n):
        handle = session.publish(b"t", b"x", 2)
        broker.took()
        broker.give(pubrec(handle))
        broker.took()
        if i % 2:
            broker.give(pubcomp(handle))
        else:
            lost.append(handle)
            broker.drop()
            broker.connect(0)
    return lost


@pytest.mark.req("R5")
def test_many_undelivered_messages_are_never_reported_as_delivered():
    broker = connected(republish=False)
    session = broker.session
    lost = lose_every_other(broker, 90)
    assert not any(session.delivered(handle) for handle in lost)
    assert len(session.undelivered.ranges) <= 64 and session.delivered(lost[-1] - 1)


@pytest.mark.req("R5")
def test_delivered_messages_between_32_undelivered_ones_stay_delivered():
    broker = connected(republish=False)
    lost = lose_every_other(broker, 64)
    assert len(lost) == 32 and all(broker.session.delivered(handle + 1) for handle in lost)


@pytest.mark.req("S2", "R5")
@pytest.mark.parametrize(("dropped", "damaged"), [(0, 0), (1, 0), (0, 1)])
def test_after_mount_finished_messages_are_delivered_only_without_losses(dropped, damaged):
    life = connected(CutStore())
    handles = [life.session.publish(b"t", b"%d" % i, 1) for i in range(4)]
    life.took()
    life.give(puback(handles[0]), puback(handles[2]))
    life.session.store.flush()
    store = life.session.store.cut()
    store.dropped = dropped
    store.damaged = damaged
    life = Peer(Session(store), b"me")
    assert [life.session.delivered(handle) for handle in handles[::2]] == [not dropped + damaged] * 2
    life.connect(1)
    life.give(puback(handles[1]), puback(handles[3]))
    assert [life.session.delivered(handle) for handle in handles[1::2]] == [True, True]
    assert [life.session.delivered(handle) for handle in handles[::2]] == [not dropped + damaged] * 2


# --- after a restart: another client id, broker or level ---


@pytest.mark.req("W8", "Q8")
@pytest.mark.parametrize("change", ["client_id", "broker"])
def test_new_client_id_or_broker_clears_an_old_session(change):
    broker = peer(CutStore(), settled=False, broker=b"one:1883")
    broker.connect(0)
    after = reboot(broker, broker=b"one:1883")
    assert after.connect(1) == [] and after.events == [CONNECTED]
    other = {"client_id": b"other"} if change == "client_id" else {}
    after = reboot(after, broker=b"two:1883" if change == "broker" else b"one:1883", **other)
    after.connect(1)
    assert after.events == [RESTART]
    after.drop()
    after.connect(0)
    assert after.connect_packet[9] & 2 == 2 and after.events == [RESTART] * 2
    after.drop()
    after.connect(0)
    assert after.connect_packet[9] & 2 == 0 and after.events[-1] == CONNECTED


@pytest.mark.req("Q8")
@pytest.mark.parametrize("level", [3, 4])
def test_broker_change_reports_in_doubt_and_hands_over_held_message(level):
    broker = past_pubrec(CutStore(), level=level)
    broker.give(publish(b"t", b"held", 2, 7))
    broker.took()
    after = reboot(broker, level=level, broker=b"another:1883")
    for present in (1, 0, 0)[level == 3 :]:
        after.connect(present)
        if after.events[-1] == RESTART:
            after.drop()
    assert (IN_DOUBT, broker.handle) in after.handled and payloads(after) == [b"held"]


@pytest.mark.req("Q4")
@pytest.mark.parametrize("first, then", [(4, 5), (5, 4)])
def test_held_message_is_readable_after_a_level_change(first, then):
    def start(session):
        broker = Peer(session, five=Level5() if session.level == 5 else None)
        for _ in range(3):
            broker.start()
            broker.give(packet(0x20, b"\0\0", b"\0" if session.level == 5 else b""))
            if broker.events[-1] != RESTART:
                break
            broker.drop()
        return broker

    broker = start(Session(CutStore(), first, 4))
    payload = b'{"id":"7","do":"reboot"}'
    properties = b"\x03\x03\0\0" if first == 5 else b""
    broker.give(packet(0x34, b"\0\1t\0\7", properties, payload))
    assert len(broker.took()) == 1
    after = start(Session(broker.session.store.cut(), then, 4))
    assert [message[:2] for message in after.messages] == [("t", payload)]
    assert not after.session.store.held()


# --- the output ---


def offered(output, most, now):
    """Return the bytes that a write offers to a socket, which takes `most` of them."""
    sock = Taker(most)
    output.write_to(sock, now)
    return sock.offered


@pytest.mark.req("W13")
def test_unsent_write_is_offered_again_with_the_same_length():
    output = Output(64, 4, lambda: None)
    output.open()
    output.put_copy(b"x" * 20, 20)
    assert len(offered(output, 0, 0)) == 20
    output.put_copy(b"y" * 10, 10)
    assert (
        len(offered(output, 20, 5)) == 20
    )  # TLS has encrypted these 20 bytes: the write is repeated with the same bytes
    assert output.start == 20 and output.sent_ms == 5
    assert len(offered(output, 4, 6)) == 10
    assert len(offered(output, 6, 7)) == 6
    assert output.start == output.end == 0


class TlsSocket:
    """Encrypts a write before it can send it, as mbedTLS does: the next write only sends that."""

    def __init__(self):
        self.encrypted = None
        self.sent = []

    def write(self, buf, start, n):
        if self.encrypted is None:
            self.encrypted = bytes(buf[start : start + n])
            raise KeyboardInterrupt  # while it is encrypted
        self.sent.append(self.encrypted)
        self.encrypted = bytes(buf[start + len(self.encrypted) : start + n])
        return n


@pytest.mark.req("R4", "W13")
def test_interrupted_write_is_not_repeated():
    """Nobody knows how much of it was written or, with TLS, encrypted."""
    output = Output(64, 4, lambda: None)
    output.open()
    output.put_copy(b"x" * 20, 20)
    sock = TlsSocket()
    with pytest.raises(KeyboardInterrupt):
        output.write_to(sock, 0)
    output.put_copy(b"y" * 10, 10)
    for _ in range(2):
        with pytest.raises(ConnectionLost):
            output.write_to(sock, 0)
    assert sock.sent == []


@pytest.mark.req("R1", "W11")
def test_reconnect_for_messages_left_unacknowledged_waits_until_a_long_message_is_sent():
    broker = peer(window=4, out_bytes=64, packet_bytes=64)
    session = broker.session
    session.waiting = queue = WaitingQueue(session, 1, 1000, 5, False)
    broker.on_message = lambda message: queue.add(broker.now)
    broker.connect(1)
    broker.give(publish(b"a", b"0"), publish(b"a", b"1", 1, 1))  # one waits, and one has no room
    long = publish(b"t", b"x" * 400, 1, session.publish(b"t", b"x" * 400, 1))
    broker.process()
    queue.takes_unclaimed = True
    entry = queue.next(broker.now, UNCLAIMED)
    queue.begin(entry)
    queue.finish(entry)  # room for the other one: the client reconnects
    sent = b""
    for _ in range(10):
        sent += broker._take()
        broker.process()
    assert broker.events[-1] == RESTART
    # A DISCONNECT comes last, else the broker would publish the will.
    assert split(sent + broker.full + broker.offered()) == [long, DISCONNECT]
