"""The session's flows, packet by packet (requirements Q0 to Q8). Packets are written by hand: see `wire.py`."""

import gc
import sys

import pytest

from flashmqtt.connection import CLOSED, IN_DOUBT, RESTART
from flashmqtt.errors import (
    ConnectionLost,
    FlashFailed,
    ProtocolError,
    StoreCorrupt,
    StoreFull,
    StoreWorn,
    UsageError,
)
from flashmqtt.session.flows import RECEIVER, SENDER
from flashmqtt.session.ram import RamStore
from flashmqtt.session.session import Session
from flashmqtt.session.subscriptions import requests_of
from wire import (
    DISCONNECT,
    CutStore,
    Peer,
    connack,
    connected,
    id_of,
    in_flight,
    past_pubrec,
    peer,
    puback,
    pubcomp,
    publish,
    pubrec,
    pubrel,
    split,
    suback,
    take,
)

DUP = 8


def reboot(broker, **options):
    """Cut the power; return the peer after the restart."""
    return Peer(Session(broker.session.store.cut(), broker.session.level, broker.session.window, **options))


# --- Q0 ---


@pytest.mark.req("Q0")
@pytest.mark.clause("MQTT-4.3.1-1")
def test_qos_0_is_sent_at_once_and_not_retransmitted():
    broker = connected()
    assert broker.session.put_unstored(b"a/b", b"x")
    assert broker.took() == [publish(b"a/b", b"x")]
    assert broker.session.store.waiting == 0
    broker.drop()
    assert broker.connect(1) == []


@pytest.mark.req("Q0")
def test_incoming_qos_0_is_delivered_without_an_acknowledgement():
    broker = connected()
    broker.give(publish(b"a/b", b"x"))
    assert broker.messages == [("a/b", b"x", 0, False, False)]
    assert broker.took() == []


# --- Q1 ---


@pytest.mark.req("Q1", "W8")
@pytest.mark.clause("MQTT-4.3.2-1", "5:MQTT-4.3.2-2")
def test_puback_marks_qos_1_message_as_delivered():
    broker = connected()
    handle = broker.session.publish(b"a/b", b"x", 1)
    (sent,) = broker.took()
    assert sent == publish(b"a/b", b"x", 1, 2)  # sequence 1 was used by `settle`
    assert not broker.session.delivered(handle)
    broker.give(puback(2))
    assert broker.session.delivered(handle)
    assert broker.handled[-1] == (4, handle)
    assert broker.session.store.waiting == 0


@pytest.mark.req("Q1", "Q2", "Q5", "S1")
@pytest.mark.clause("MQTT-4.4.0-1", "MQTT-3.3.1-1", "MQTT-2.3.1-3", "MQTT-4.3.2-3", "MQTT-4.3.3-3")
@pytest.mark.clause("MQTT-3.1.2-4", "MQTT-4.1.0-1", "MQTT-4.1.0-2", "5:MQTT-4.1.0-1")
@pytest.mark.parametrize("qos, power_cut", [(1, False), (1, True), (2, False)])
def test_unacknowledged_message_is_retransmitted_with_id_and_dup(qos, power_cut):
    broker = in_flight(qos, CutStore())
    if power_cut:
        broker = reboot(broker)
    else:
        broker.drop()
    assert broker.connect(1) == [publish(b"a", b"x", qos, 2, dup=1)]


@pytest.mark.req("Q1")
def test_acknowledgement_lost_by_power_cut_only_causes_a_retransmit():
    broker = in_flight(1, CutStore())
    broker.give(puback(2))
    after = reboot(broker)
    assert after.connect(1) == [publish(b"a", b"x", 1, 2, dup=1)]
    after.give(puback(2))
    assert after.session.store.waiting == 0


@pytest.mark.req("Q1")
def test_repeated_or_unknown_puback_is_ignored():
    broker = in_flight(1)
    broker.give(puback(2), puback(2), puback(77))
    assert broker.took() == []


# --- Q2 ---


@pytest.mark.req("Q2")
@pytest.mark.clause("MQTT-4.3.3-1", "MQTT-2.3.1-6", "MQTT-2.2.1-5", "5:MQTT-4.3.3-2", "MQTT-4.3.3-4")
def test_qos_2_message_is_delivered_after_pubrec_pubrel_pubcomp():
    broker = connected()
    handle = broker.session.publish(b"a", b"x", 2)
    assert broker.took() == [publish(b"a", b"x", 2, 2)]
    broker.give(pubrec(2))
    assert broker.took() == [pubrel(2)]
    assert not broker.session.delivered(handle)
    broker.give(pubcomp(2))
    assert broker.took() == []
    assert broker.session.delivered(handle)


@pytest.mark.req("Q2", "Q6")
@pytest.mark.clause("MQTT-4.6.0-4")
def test_pubrels_go_out_in_the_order_of_the_pubrecs():
    broker = connected()
    for _ in range(3):
        broker.session.publish(b"a", b"x", 2)
    ids = [one[5] << 8 | one[6] for one in broker.took()]
    broker.give(pubrec(ids[0]), pubrec(ids[2]), pubrec(ids[1]))
    assert broker.took() == [pubrel(ids[0]), pubrel(ids[2]), pubrel(ids[1])]


@pytest.mark.req("Q3", "Q4", "Q6")
@pytest.mark.clause("MQTT-4.6.0-2", "MQTT-4.6.0-3")
def test_acknowledgements_go_out_in_the_order_of_the_messages():
    broker = connected()
    broker.give(*[publish(b"a", b"x", 1 + i % 2, 20 - i) for i in range(8)])
    assert broker.took() == [pubrec(20 - i) if i % 2 else puback(20 - i) for i in range(8)]


@pytest.mark.req("Q2", "S1")
@pytest.mark.clause("MQTT-4.3.3-5", "MQTT-4.3.3-6")
def test_pubrec_is_durable_before_pubrel_is_sent():
    broker = in_flight(2, CutStore())
    broker.give(pubrec(2))
    assert reboot(broker).connect(1) == [publish(b"a", b"x", 2, 2, dup=1)]  # cut before PUBREL was sent
    assert broker.took() == [pubrel(2)]
    after = reboot(broker)
    assert after.connect(1) == [pubrel(2)]
    after.give(pubcomp(2))
    assert after.session.store.waiting == 0


@pytest.mark.req("Q2")
def test_repeated_pubrec_is_answered_by_pubrel_only():
    broker = in_flight(2)
    broker.give(pubrec(2), pubrec(2))
    assert broker.took() == [pubrel(2), pubrel(2)]
    broker.give(pubcomp(2), pubcomp(2), pubrec(2))
    assert broker.took() == [pubrel(2)]  # the packet id is unknown now, but the broker still needs a PUBREL


@pytest.mark.req("Q2")
def test_pubrec_repeated_while_pubrel_waits_is_answered_once():
    broker = connected(out_bytes=64, packet_bytes=64)
    for _ in range(2):
        broker.session.publish(b"a", b"x", 2)
    broker.took()
    broker.give(pubrec(2), pubrec(3))
    broker.took()
    broker.drop()
    broker.start()
    broker.give(connack(1) + pubrec(3))
    assert broker.took() == [pubrel(2), pubrel(3)]


@pytest.mark.req("Q1", "Q2")
@pytest.mark.clause("MQTT-4.8.0-1")
@pytest.mark.parametrize(
    "qos, answer",
    [(1, pubrec), (1, pubcomp), (2, pubcomp)],
)
def test_acknowledgement_of_wrong_flow_ends_connection_and_keeps_message(qos, answer):
    broker = in_flight(qos)
    with pytest.raises(ProtocolError):
        broker.give(answer(2))
    broker.drop()
    assert broker.connect(1) == [publish(b"a", b"x", qos, 2, dup=1)]


@pytest.mark.req("Q2")
def test_flow_tables_cover_every_state_and_event():
    assert len(SENDER) == 4 * 8 and len(RECEIVER) == 2 * 3
    for state in range(4):
        for event in range(8):
            step = SENDER[state * 8 + event]
            assert step >> 4 < 4 and step & 15 < 10
            if step & 15 == 1:  # a violation changes nothing
                assert step >> 4 == state
    assert [SENDER[state * 8] for state in range(4)] == [0] * 4  # event 0: a connection begins
    # PUBLISH is never sent again after PUBREC
    assert SENDER[3 * 8 + 1] & 15 == SENDER[3 * 8 + 2] & 15 == 1


# --- Q3, Q4 ---


@pytest.mark.req("Q3")
@pytest.mark.clause("MQTT-4.3.2-2", "MQTT-4.3.2-4", "MQTT-3.3.4-1", "MQTT-4.5.0-2")
def test_puback_is_sent_after_the_handler_returns():
    broker = connected()
    seen = []
    broker.on_message = lambda message: seen.append(broker.offered())
    broker.give(publish(b"a", b"x", 1, 9))
    assert seen == [b""]
    assert broker.took() == [puback(9)]


@pytest.mark.req("Q3")
def test_message_whose_handler_fails_is_not_acknowledged():
    broker = connected()

    def fail(message):
        raise ValueError("no")

    broker.on_message = fail
    with pytest.raises(ValueError):
        broker.give(publish(b"a", b"x", 1, 9))
    broker.drop()
    broker.on_message = None
    assert broker.connect(1) == []
    broker.give(publish(b"a", b"x", 1, 9, dup=1))
    assert broker.took() == [puback(9)]
    assert broker.messages[-1] == ("a", b"x", 1, False, True)


@pytest.mark.req("Q3")
@pytest.mark.clause("MQTT-4.3.2-5", "MQTT-3.3.1-3")
def test_duplicate_qos_1_message_is_delivered_again():
    broker = connected()
    broker.give(publish(b"a", b"x", 1, 9), publish(b"a", b"x", 1, 9, dup=1))
    assert len(broker.messages) == 2
    assert broker.took() == [puback(9), puback(9)]


@pytest.mark.req("Q4")
@pytest.mark.clause("MQTT-4.3.3-2", "MQTT-4.3.3-8", "MQTT-4.3.3-11")
def test_qos_2_message_is_held_and_handed_over_on_pubrel():
    broker = connected()
    broker.give(publish(b"a/b", b"hello", 2, 7, retain=1))
    assert broker.messages == []
    assert broker.took() == [pubrec(7)]
    broker.give(pubrel(7))
    assert broker.messages == [("a/b", b"hello", 2, True, False)]
    assert broker.took() == [pubcomp(7)]


@pytest.mark.req("Q4")
def test_held_message_survives_a_power_cut():
    broker = connected(CutStore())
    broker.give(publish(b"a", b"x", 2, 7))
    assert broker.took() == [pubrec(7)]
    after = reboot(broker)
    after.connect(1)
    after.give(publish(b"a", b"x", 2, 7, dup=1))
    assert after.took() == [pubrec(7)]
    after.give(pubrel(7))
    assert after.messages == [("a", b"x", 2, False, False)]


@pytest.mark.req("Q4")
@pytest.mark.clause("MQTT-4.3.3-10")
def test_repeated_qos_2_publish_is_answered_and_not_stored_twice():
    broker = connected()
    broker.give(publish(b"a", b"x", 2, 7), publish(b"a", b"x", 2, 7, dup=1))
    assert broker.took() == [pubrec(7), pubrec(7)]
    broker.give(pubrel(7), pubrel(7))
    assert len(broker.messages) == 1
    assert broker.took() == [pubcomp(7), pubcomp(7)]


@pytest.mark.req("Q4")
def test_pubrel_for_an_unknown_id_is_answered_by_pubcomp():
    broker = connected()
    broker.give(pubrel(1234))
    assert broker.took() == [pubcomp(1234)]
    assert broker.messages == []


@pytest.mark.req("Q4")
@pytest.mark.clause("MQTT-4.3.3-12")
def test_discard_of_held_message_is_durable_before_pubcomp_is_sent():
    broker = connected(CutStore())
    broker.give(publish(b"a", b"x", 2, 7))
    broker.took()
    broker.give(pubrel(7))
    assert broker.took() == [pubcomp(7)]
    after = reboot(broker)
    after.connect(1)
    after.give(publish(b"a", b"new", 2, 7))  # the broker has freed the id, so this is another message
    after.give(pubrel(7))
    assert after.messages == [("a", b"new", 2, False, False)]


@pytest.mark.req("Q4", "S1")
def test_message_handed_over_before_power_cut_is_not_handed_over_again():
    broker = connected(CutStore())
    broker.give(publish(b"a", b"x", 2, 7))
    broker.took()
    broker.give(pubrel(7))
    assert len(broker.messages) == 1
    broker.drop()  # before PUBCOMP was sent
    after = reboot(broker)
    after.connect(1)
    after.give(pubrel(7))
    assert after.messages == [] and after.took() == [pubcomp(7)]


class SyncingStore(RamStore):
    """Counts its syncs."""

    syncs = 0

    def sync(self):
        self.syncs += 1


@pytest.mark.req("Q3", "Q4", "S1")
def test_batch_of_acknowledgements_is_sent_after_a_single_sync():
    store = SyncingStore()
    broker = connected(store)
    store.syncs = 0
    broker.give(publish(b"a", b"x", 1, 7), publish(b"a", b"y", 2, 8), publish(b"a", b"z", 0))
    assert store.syncs == 0
    assert broker.took() == [puback(7), pubrec(8)] and store.syncs == 1
    broker.session.put_unstored(b"a", b"promises nothing")
    assert len(broker.took()) == 1 and store.syncs == 1


class FailingStore(RamStore):
    """Raises FlashFailed at every write while `broken` is set."""

    broken = False

    def _write(self, *_):
        if self.broken:
            raise FlashFailed("not now")

    sync = flush = mark = _write


@pytest.mark.req("Q3", "Q4", "S6")
def test_no_acknowledgement_is_sent_while_store_sync_fails():
    store = FailingStore()
    broker = connected(store)
    broker.give(publish(b"a", b"x", 2, 8))
    broker.took()
    store.broken = True
    broker.give(publish(b"a", b"x", 1, 7), pubrel(8))
    for _ in range(3):  # each attempt fails
        with pytest.raises(FlashFailed):
            broker.offered()
    store.broken = False
    assert broker.took() == [puback(7), pubcomp(8)]


@pytest.mark.req("B4", "S6")
def test_connection_closes_even_if_the_store_fails():
    store = FailingStore()
    broker = connected(store)
    broker.give(publish(b"a", b"x", 2, 8), pubrel(8))
    store.broken = True
    with pytest.raises(FlashFailed):
        broker.drop()
    store.broken = False
    assert broker.connection.state == CLOSED and broker.connect(1) == []
    broker.give(pubrel(8))
    assert broker.took() == [pubcomp(8)]


@pytest.mark.req("Q4")
def test_held_message_whose_handler_failed_is_handed_over_again():
    broker = connected()
    broker.give(publish(b"a", b"x", 2, 7))
    broker.took()

    def fail(message):
        raise ValueError("no")

    broker.on_message = fail
    with pytest.raises(ValueError):
        broker.give(pubrel(7))
    broker.drop()
    broker.on_message = None
    broker.connect(1)
    broker.give(pubrel(7))
    assert broker.took() == [pubcomp(7)]
    assert [m[1] for m in broker.messages] == [b"x", b"x"]


@pytest.mark.req("Q4", "R4")
def test_qos_2_messages_over_the_hold_limit_arrive_later_in_order():
    broker = connected(RamStore(hold_limit=2))
    broker.give(*[publish(b"a", bytes([i]), 2, i) for i in (1, 2, 3)])
    assert broker.took() == [pubrec(1), pubrec(2)]
    broker.give(pubrel(1))
    assert broker.took() == [pubcomp(1)]
    broker.give(publish(b"a", b"\x04", 2, 4))  # the store has room, but message 3 must arrive first
    assert broker.took() == []
    broker.give(pubrel(2))
    assert broker.events[-1] == RESTART
    assert broker.took() == [pubcomp(2), DISCONNECT]
    broker.drop()
    broker.connect(1)
    broker.give(*[publish(b"a", bytes([i]), 2, i, dup=1) for i in (3, 4)])
    assert broker.took() == [pubrec(3), pubrec(4)]
    broker.give(pubrel(3), pubrel(4))
    assert [m[1] for m in broker.messages] == [b"\x01", b"\x02", b"\x03", b"\x04"]


@pytest.mark.req("Q4")
def test_publish_in_a_handler_keeps_the_payload_intact():
    broker = connected(out_bytes=64, packet_bytes=64)
    payloads = []

    def echo(message):
        for i in range(3):
            broker.session.publish(b"echo", message.payload + bytes([48 + i]), 1)
            broker.connection.pump(broker.now)
        payloads.append(message.payload)

    broker.on_message = echo
    broker.give(publish(b"a", b"x" * 20, 2, 7))
    broker.took()
    broker.give(pubrel(7))
    assert payloads == [b"x" * 20]
    sent = broker.took()
    assert sorted(p[0] >> 4 for p in sent) == [3, 3, 3, 7]


# --- Q5 ---


@pytest.mark.req("Q5")
def test_level_3_retransmits_on_open_connection_with_dup():
    broker = connected(level=3, retry_ms=5000)
    requests_of(broker.session).want(b"s", 1)
    (request,) = broker.took()
    broker.session.publish(b"a", b"1", 1)
    broker.session.publish(b"a", b"2", 2)
    broker.took()
    broker.give(pubrec(3))
    assert broker.took() == [pubrel(3)]
    broker.now += 4000
    broker.connection.check(broker.now)
    assert broker.took() == []
    broker.now += 1100
    broker.connection.check(broker.now)
    assert broker.took() == [
        bytes([request[0] | DUP]) + request[1:],
        publish(b"a", b"1", 1, 2, dup=1),
        pubrel(3, dup=1),
    ]


@pytest.mark.req("Q5")
def test_level_4_retransmits_on_open_connection_only_with_retry_ms():
    broker = connected(keep_alive_s=0, response_ms=0)
    broker.session.publish(b"a", b"1", 1)
    broker.took()
    broker.now += 10000000
    broker.connection.check(broker.now)
    assert broker.took() == []

    broker = connected(keep_alive_s=0, response_ms=0, retry_ms=1000)
    broker.session.publish(b"a", b"1", 1)
    broker.took()
    broker.now += 1000
    broker.connection.check(broker.now)
    assert broker.took() == [publish(b"a", b"1", 1, 2, dup=1)]


@pytest.mark.req("Q5")
@pytest.mark.clause("MQTT-4.4.0-1")
def test_level_5_refuses_timed_retries():
    with pytest.raises(UsageError):
        Session(RamStore(), 5, retry_ms=1000)


# --- Q6 ---


@pytest.mark.req("Q6")
def test_window_limits_messages_in_flight_and_keeps_their_order():
    broker = connected(window=3)
    for i in range(6):
        broker.session.publish(b"a", bytes([i]), 1)
    assert broker.took() == [publish(b"a", bytes([i]), 1, 2 + i) for i in range(3)]
    broker.give(puback(3))  # out of order: allowed
    assert broker.took() == [publish(b"a", b"\x03", 1, 5)]
    broker.give(puback(2), puback(4))
    assert broker.took() == [publish(b"a", b"\x04", 1, 6), publish(b"a", b"\x05", 1, 7)]


@pytest.mark.req("Q6")
@pytest.mark.clause("MQTT-4.6.0-1")
def test_retransmits_are_in_order_and_before_new_messages():
    broker = connected(CutStore(), window=3)
    for i in range(5):
        broker.session.publish(b"a", bytes([i]), 2)
    broker.took()
    broker.give(pubrec(3))
    broker.took()
    expected = [publish(b"a", b"\0", 2, 2, dup=1), pubrel(3), publish(b"a", b"\2", 2, 4, dup=1)]
    broker.drop()
    assert broker.connect(1) == expected
    after = reboot(broker)
    assert after.connect(1) == expected
    after.give(pubrec(2))
    after.give(pubcomp(2))
    assert after.took() == [pubrel(2), publish(b"a", b"\3", 2, 5, dup=1)]


@pytest.mark.req("Q6")
def test_batch_of_publishes_is_sent_in_one_write():
    broker = connected(window=8)
    for i in range(5):
        broker.session.publish(b"a", bytes([i]), 1)
    broker.connection.pump(broker.now)
    assert len(split(broker.offered())) == 5


@pytest.mark.req("Q6", "W8")
@pytest.mark.clause("MQTT-2.3.1-2", "5:MQTT-4.3.2-1", "5:MQTT-4.3.3-1")
def test_packet_ids_wrap_after_65535_and_stay_unique_in_window():
    store = RamStore()
    store.next_seq = store.low = 65534
    broker = connected(store, window=4)
    for payload in (b"65534", b"65535", b"1", b"2", b"3"):
        broker.session.publish(b"a", payload, 1)
    assert broker.took() == [
        publish(b"a", b"65534", 1, 65534),
        publish(b"a", b"65535", 1, 65535),
        publish(b"a", b"1", 1, 1),
        publish(b"a", b"2", 1, 2),
    ]
    broker.give(puback(65535), puback(1))
    assert broker.took() == [publish(b"a", b"3", 1, 3)]
    broker.give(puback(65534), puback(2), puback(3))
    assert broker.session.store.waiting == 0
    for _ in range(40):  # more messages than the range of 32, while message 4 is unacknowledged
        broker.session.publish(b"a", b"x", 1)
        for one in broker.took():
            if one[5] << 8 | one[6] != 4:
                broker.give(puback(one[5] << 8 | one[6]))
    assert broker.took() == [] and broker.session.store.waiting == 9  # message 4, and 8 messages beyond the range of 32
    broker.give(puback(4))
    assert len(broker.took()) == 4


@pytest.mark.req("Q6")
def test_message_longer_than_the_output_buffer_is_sent_in_pieces():
    broker = connected(out_bytes=64, packet_bytes=64, buffer_bytes=64)
    long = bytes([i & 255 for i in range(1000)])
    broker.session.publish(b"a", long, 1)
    broker.session.publish(b"a", b"next", 1)
    assert broker.took() == [publish(b"a", long, 1, 2), publish(b"a", b"next", 1, 3)]
    broker.drop()
    assert broker.connect(1) == [publish(b"a", long, 1, 2, dup=1), publish(b"a", b"next", 1, 3, dup=1)]


@pytest.mark.req("Q6")
def test_acknowledgements_wait_until_a_long_message_is_sent():
    broker = connected(out_bytes=64, packet_bytes=64, buffer_bytes=64)
    broker.session.publish(b"a", b"y" * 500, 1)
    broker.connection.pump(broker.now)
    broker.give(publish(b"b", b"x", 1, 9), publish(b"b", b"x", 1, 10))
    assert broker.took() == [publish(b"a", b"y" * 500, 1, 2), puback(9), puback(10)]


@pytest.mark.req("Q6", "W13")
def test_unreadable_half_sent_message_ends_connection_without_reason_code():
    broker = connected(out_bytes=64, packet_bytes=64, buffer_bytes=64)
    broker.session.publish(b"a", b"y" * 500, 1)
    broker.connection.pump(broker.now)

    def unreadable(*_):
        raise StoreCorrupt("flipped")

    broker.session.store.read = unreadable
    with pytest.raises(ConnectionLost) as ended:
        broker.took()
    assert ended.value.reason == 0 and "only a part was sent" in str(ended.value) and "flipped" in str(ended.value)


# --- Q7 ---


@pytest.mark.req("Q7")
def test_retain_flag_is_sent_and_received():
    broker = connected()
    broker.session.publish(b"a", b"", 1, True)
    assert broker.took() == [publish(b"a", b"", 1, 2, retain=1)]
    broker.give(publish(b"a", b"last", 0, retain=1), publish(b"a", b"live"))
    assert [m[3] for m in broker.messages] == [True, False]


# --- Q8 ---


@pytest.mark.req("Q8")
def test_messages_are_sent_without_dup_after_broker_lost_session():
    broker = connected()
    for qos in (1, 2):
        broker.session.publish(b"a", b"x", qos)
    broker.took()
    broker.drop()
    assert broker.connect(0) == [publish(b"a", b"x", 1, 2), publish(b"a", b"x", 2, 3)]


@pytest.mark.req("Q8")
def test_session_lost_after_pubrec_reports_in_doubt_and_republishes():
    broker = past_pubrec()
    broker.drop()
    assert broker.connect(0) == [publish(b"a", b"x", 2, 2)]
    assert broker.handled[-1] == (IN_DOUBT, broker.handle)
    broker.give(pubrec(2), pubcomp(2))
    assert broker.session.delivered(broker.handle)


@pytest.mark.req("Q8")
def test_session_lost_after_pubrec_without_republish_reports_and_discards():
    broker = past_pubrec(republish=False)
    broker.drop()
    assert broker.connect(0) == []
    assert broker.handled[-1] == (IN_DOUBT, broker.handle)
    assert broker.session.store.waiting == 0


@pytest.mark.req("Q8", "S1")
def test_republished_message_in_doubt_is_retransmitted_after_power_cut():
    broker = past_pubrec(CutStore())
    broker.drop()
    broker.connect(0)
    after = reboot(broker)
    assert after.connect(1) == [publish(b"a", b"x", 2, 2, dup=1)]


@pytest.mark.req("Q8")
def test_held_message_of_a_lost_session_is_handed_over():
    broker = connected()
    broker.give(publish(b"a", b"x", 2, 7))
    broker.took()
    broker.drop()
    assert broker.connect(0) == []
    assert broker.messages == [("a", b"x", 2, False, False)]
    broker.give(publish(b"a", b"y", 2, 7), pubrel(7))  # the broker's new session may use the same id again
    assert broker.messages[-1][1] == b"y"


@pytest.mark.req("Q8")
def test_many_held_messages_of_a_lost_session_are_handed_over_in_order():
    broker = connected(RamStore(hold_limit=100), buffer_bytes=4096)
    for packet_id in range(100, 0, -1):
        broker.give(publish(b"a", b"%d" % packet_id, 2, packet_id))
        broker.took()
    broker.drop()
    broker.connect(0)
    broker.process()
    assert [message[1] for message in broker.messages] == [b"%d" % packet_id for packet_id in range(100, 0, -1)]


@pytest.mark.req("Q6", "Q1")
def test_full_window_is_retransmitted_in_order():
    broker = connected(window=32)
    for i in range(40):
        broker.session.publish(b"a", b"%d" % i, 1)
    assert len(broker.took()) == 32
    broker.give(puback(5), puback(30))
    assert broker.took() == []  # the window is a range of ids, which begins at the oldest unfinished message
    broker.drop()
    again = broker.connect(1)
    assert again == [publish(b"a", b"%d" % i, 1, i + 2, dup=1) for i in range(32) if i + 2 not in (5, 30)]
    broker.give(puback(2), puback(3))
    assert broker.took() == [publish(b"a", b"%d" % i, 1, i + 2) for i in (32, 33)]
    broker.give(puback(4))
    assert broker.took() == [publish(b"a", b"%d" % i, 1, i + 2) for i in (34, 35)]


# --- the first connection of an empty store ---


@pytest.mark.req("W8", "Q8")
@pytest.mark.clause("MQTT-3.1.2-6")
def test_empty_store_clears_an_old_session_at_the_broker():
    broker = peer(CutStore(), settled=False)
    broker.session.publish(b"a", b"x", 2)
    assert broker.connect(1) == [b"\xe0\x00"]  # the broker has an old session: the client only sends DISCONNECT
    assert broker.connect_packet[9] & 2 == 0
    assert broker.events == [8]
    broker.drop()
    assert broker.connect(0) == [b"\xe0\x00"]
    assert broker.connect_packet[9] & 2 == 2  # clean session: the broker discards the old session
    broker.drop()
    assert broker.connect(0) == [publish(b"a", b"x", 2, 1)]
    assert broker.connect_packet[9] & 2 == 0


@pytest.mark.req("W8")
def test_empty_store_and_no_broker_session_need_one_connection():
    broker = peer(settled=False)
    broker.session.publish(b"a", b"x", 2)
    assert broker.connect(0) == [publish(b"a", b"x", 2, 1)]


@pytest.mark.req("W8")
def test_level_3_without_session_present_starts_clean_once():
    broker = peer(CutStore(), settled=False, level=3)
    assert broker.connect(0) == [b"\xe0\x00"]
    assert broker.connect_packet[11] & 2 == 2
    broker.drop()
    broker.connect(0)
    assert broker.connect_packet[11] & 2 == 0
    broker.drop()
    broker.connect(0)
    assert broker.connect_packet[11] & 2 == 0


@pytest.mark.req("W8", "S1")
def test_note_of_client_id_and_broker_survives_a_power_cut():
    broker = peer(CutStore(), settled=False)
    broker.connect(0)
    after = reboot(broker)
    assert after.session.note.is_of(b"me", b"")
    assert after.connect(1) == []


@pytest.mark.req("B4")
def test_backoff_step_survives_a_power_cut():
    broker = peer(CutStore())
    assert broker.session.note.octets[1] & 127 == 0
    broker.session.note.keep_step(7)
    after = reboot(broker)
    assert after.session.note.octets[1] & 127 == 7
    after.session.note.keep_step(0)
    assert reboot(after).session.note.octets[1] & 127 == 0


@pytest.mark.req("B4")
def test_connection_is_proved_by_an_acknowledgement_of_our_message():
    for qos, answer in ((1, puback), (2, pubrec), (2, pubcomp)):
        broker = peer()
        broker.connect()
        broker.give(puback(77), pubrec(77), pubcomp(77), suback(77, 0))  # none acknowledges a message of this session
        assert not broker.session.proved
        broker.session.publish(b"a", b"x", qos)
        broker.took()
        assert not broker.session.proved
        if answer is pubcomp:
            broker.give(pubrec(2))
            broker.drop()
            broker.connect(1)
            assert not broker.session.proved
        broker.give(answer(2))
        assert broker.session.proved
        broker.drop()
        assert not broker.session.proved


# --- limits ---


@pytest.mark.req("S5")
def test_full_store_refuses_new_messages_and_keeps_stored_ones():
    broker = peer(RamStore(limit=3))
    for _ in range(3):
        broker.session.publish(b"a", b"x", 1)
    with pytest.raises(StoreFull):
        broker.session.publish(b"a", b"x", 1)
    assert len(broker.connect(1)) == 3


@pytest.mark.req("S6", "Q1", "Q2")
def test_worn_store_delivers_its_messages_and_refuses_new_ones():
    broker = connected(CutStore())
    broker.drop()
    session = broker.session
    stored = [session.publish(b"a", bytes([i]), 1 + i % 2) for i in range(12)]
    session.store.worn = True
    for _ in range(2):
        with pytest.raises(StoreWorn):
            session.publish(b"a", b"x", 1)
    sent = broker.connect(1)
    received = []
    while sent:
        for one in sent:
            if one[0] >> 4 == 6:
                broker.give(pubcomp(id_of(one)))
            else:
                received.append(one[-1])
                broker.give((pubrec if one[0] & 4 else puback)(one[5] << 8 | one[6]))
        sent = broker.took()
    assert received == list(range(12)) and session.store.waiting == 0
    assert all(session.delivered(handle) for handle in stored)
    broker.give(publish(b"b", b"not held", 2, 7))  # not acknowledged: the broker keeps it
    assert broker.took() == [] and broker.messages == []
    broker.drop()


@pytest.mark.req("W13", "Q6")
def test_early_acknowledgement_waits_until_its_message_is_completely_sent():
    broker = connected(out_bytes=64, packet_bytes=64)
    message = publish(b"a", b"y" * 500, 1, broker.session.publish(b"a", b"y" * 500, 1))
    broker.connection.pump(broker.now)
    assert take(broker.connection, broker.now) == message[:64]
    broker.give(puback(2))
    assert broker.full == message[64:] and broker.session.store.waiting == 0


@pytest.mark.req("Q8")
def test_packet_before_connack_and_second_connack_are_refused():
    broker = peer()
    broker.connection.start(broker.now)
    with pytest.raises(ProtocolError):
        broker.give(publish(b"a", b"x"))
    broker.drop()
    broker.connect()
    with pytest.raises(ProtocolError):
        broker.give(connack())


@pytest.mark.req("S5", "Q8")
def test_store_full_before_first_connection_keeps_note_and_is_sent():
    broker = peer(CutStore(limit=3), settled=False)
    for _ in range(3):
        broker.session.publish(b"a", b"x", 1)
    assert len(broker.connect(0)) == 3
    after = reboot(broker)
    assert len(after.connect(1)) == 3 and after.events == [2]


@pytest.mark.req("Q4", "S6")
def test_qos_2_message_is_not_acknowledged_until_store_has_room():
    class Full(RamStore):
        full = False

        def can_hold(self, length):
            return not self.full

        def hold(self, key, buf, length):
            if self.full:
                raise StoreFull
            super().hold(key, buf, length)

    store = Full()
    broker = connected(store)
    store.full = True
    broker.give(publish(b"a", b"x", 2, 7), publish(b"a", b"qos 1", 1, 8))
    assert broker.took() == [puback(8)]
    handle = broker.session.publish(b"b", b"goes out", 1)
    broker.took()
    broker.give(puback(handle))
    assert broker.session.delivered(handle)
    assert RESTART not in broker.events
    store.full = False
    broker.process()
    assert broker.events[-1] == RESTART and broker.took() == [DISCONNECT]
    broker.drop()
    broker.connect(1)
    broker.give(publish(b"a", b"x", 2, 7, dup=1), pubrel(7))
    assert [m[1] for m in broker.messages] == [b"qos 1", b"x"]


@pytest.mark.req("S1")
def test_stored_messages_refuse_a_session_of_another_level():
    from flashmqtt.session.level5 import Level5

    store = CutStore()
    broker = peer(store)
    broker.session.publish(b"a", b"x", 1)
    store = store.cut()
    with pytest.raises(UsageError):
        Session(store, 5, 4)
    broker = Peer(Session(store.cut(), 4, 4))
    broker.connect(1)
    broker.give(puback(2))
    broker.session.store.flush()
    store = broker.session.store.cut()
    later = Peer(Session(store, 5, 4), five=Level5())
    later.session.publish(b"a", b"x", 1)
    later.session.note.begin(b"me", b"")
    assert Session(store.cut(), 5, 4).note.is_of(b"me", b"")


@pytest.mark.req("S1")
@pytest.mark.parametrize("level,other,connected_before", [(4, 5, 0), (4, 5, 1), (5, 4, 0), (5, 4, 1)])
def test_messages_stored_before_a_connection_are_refused_at_another_level_only(level, other, connected_before):
    from flashmqtt.session.level5 import Level5

    def of_level(store, level):
        return Peer(Session(store, level, 4), five=Level5() if level == 5 else None)

    store = CutStore()
    if connected_before:  # at the other level
        broker = of_level(store, other)
        broker.session.note.begin(b"me", b"")
        store = store.cut()
    broker = of_level(store, level)
    broker.session.publish(b"a", b"x", 1)
    stored = store.cut()
    with pytest.raises(UsageError) as caught:
        Session(stored, other, 4)
    assert str(caught.value).startswith("messages of level %d are stored" % level)
    later = of_level(stored.cut(), level)
    assert later.session.store.waiting == 1 and not later.session.note.is_of(b"me", b"")


@pytest.mark.req("Q4")
def test_message_longer_than_packet_bytes_is_held():
    broker = connected(buffer_bytes=4096, packet_bytes=64)
    broker.give(publish(b"a", b"y" * 4000, 2, 7), pubrel(7))
    assert broker.messages[0][1] == b"y" * 4000


@pytest.mark.req("B2")
def test_ram_store_keeps_no_memory_of_finished_long_messages():
    if sys.implementation.name != "micropython":
        pytest.skip("only MicroPython reports its heap")
    store = RamStore()
    message = bytes(20_000)
    used = []
    for _ in range(2):
        gc.collect()
        used.append(gc.mem_alloc())
        for seq in [store.append(message, len(message)) for _ in range(8)]:
            store.finish(seq)
    gc.collect()
    used.append(gc.mem_alloc())
    assert used[2] - used[0] < 2 * len(message)  # the collector may take one or two for reachable
