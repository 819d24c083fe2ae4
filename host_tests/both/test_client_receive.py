"""Receiving with the blocking client: unclaimed messages wait unacknowledged and block nothing else (Q3, Q4, R4, R6)."""

import pytest

from failing import fail_once
from flashmqtt.backoff import Backoff
from flashmqtt.compat import ticks_add, ticks_diff, ticks_ms
from flashmqtt.errors import ConnectionLost, FlashFailed, Refused, StoreCorrupt, UsageError
from flashmqtt.session import long as long_messages
from flashmqtt.session import waiting
from flashmqtt.session.ram import RamStore
from flashmqtt.simple import MQTTClient
from heap import heap_lock, heap_unlock
from loopback import Loopback, poll_until
from test_client import connected
from wire import CutStore, id_of, publish, pubrel, split, text, whole

FAILURES = (MemoryError, FlashFailed, KeyboardInterrupt)  # of a store


def acknowledged(broker):
    """Return the packet ids of the PUBACKs and PUBCOMPs, in the order in which they came."""
    return [id_of(one) for one in broker.packets if one[0] >> 4 in (4, 7)]


def expire_unclaimed(mqtt):
    """Let unclaimed messages expire now. (With a short limit from the beginning they could expire before a check.)"""
    mqtt.session.waiting.unclaimed_ms = 1


def reconnect(broker, mqtt):
    """Drop the connection of a client whose session the broker keeps, and wait for the next one."""
    connects = broker.connects
    broker.present = 1
    broker.drop()
    poll_until(mqtt, lambda: broker.connects > connects and mqtt.connected)


def deliver(broker, mqtt, topic, payload, qos, packet_id):
    """Send a message as a broker does; at QoS 2 its PUBREL follows the PUBREC."""
    broker.give(publish(topic, payload, qos, packet_id))
    if qos == 2:
        poll_until(mqtt, lambda: broker.of(5))
        broker.give(pubrel(packet_id))


def failing(*calls, note=lambda message: message.topic):
    """Return a handler that fails in the calls with these numbers, and the list to which it appends each call's note."""
    noted = []

    def handler(message):
        noted.append(note(message))
        if len(noted) in calls:
            raise ValueError("called again after 1 s")

    return handler, noted


def turn(broker, mqtt, n=3):
    """Let both sides process the bytes that have arrived."""
    for _ in range(n):
        broker()
        mqtt.poll(5)
    broker()


@pytest.mark.req("Q0", "Q3", "Q4", "R4", "R1")
def test_messages_received_before_subscribe_reach_the_later_handler():
    broker, mqtt = connected()
    broker.give(
        publish(b"a/1", b"one", 1, 1),
        publish(b"a/2", b"two", 2, 2),
        publish(b"a/3", b"three"),
        publish(b"a/4", b"four", 1, 3),
        pubrel(2),
    )
    turn(broker, mqtt)
    assert acknowledged(broker) == []
    seen = []
    assert mqtt.subscribe("a/#", 2, lambda m: seen.append((m.topic, m.payload, m.qos))) == 2
    poll_until(mqtt, lambda: len(acknowledged(broker)) == 3)
    assert sorted(seen) == [("a/1", b"one", 1), ("a/2", b"two", 2), ("a/3", b"three", 0), ("a/4", b"four", 1)]
    assert seen[0][1] == b"one" and seen.index(("a/1", b"one", 1)) < seen.index(("a/4", b"four", 1))
    assert sorted(acknowledged(broker)) == [1, 2, 3]
    assert broker.connects == 1 and mqtt.session.waiting.entries == [] and mqtt.session.waiting.bytes == 0
    mqtt.disconnect()


@pytest.mark.req("Q3", "R4", "R1")
def test_unclaimed_messages_survive_a_reconnect_and_are_delivered_once():
    broker, mqtt = connected()
    broker.present = 1
    broker.give(publish(b"a/topic", b"1", 1, 1), publish(b"a/topic", b"2", 2, 2), pubrel(2))
    turn(broker, mqtt)
    broker.drop()
    poll_until(mqtt, lambda: broker.connects == 2)
    broker.give(publish(b"a/topic", b"1", 1, 1, dup=1), pubrel(2), publish(b"a/topic", b"3", 1, 3))
    turn(broker, mqtt)
    assert acknowledged(broker) == []
    seen = []
    mqtt.subscribe("a/topic", 2, lambda m: seen.append(m.payload))
    poll_until(mqtt, lambda: len(acknowledged(broker)) == 3)
    turn(broker, mqtt)
    assert sorted(seen) == [b"1", b"2", b"3"] and sorted(acknowledged(broker)) == [1, 2, 3]
    assert mqtt.session.waiting.owing == []
    mqtt.disconnect()


@pytest.mark.req("Q3", "Q8", "R1")
def test_waiting_messages_are_delivered_after_the_broker_lost_the_session():
    broker, mqtt = connected()
    broker.give(publish(b"a", b"1", 1, 1), publish(b"a", b"2", 2, 2), pubrel(2))
    turn(broker, mqtt)
    broker.drop()
    poll_until(mqtt, lambda: broker.connects == 2)
    seen = []
    mqtt.on_message = lambda m: seen.append(m.payload)
    poll_until(mqtt, lambda: len(seen) == 2)
    broker.give(publish(b"a", b"new", 1, 1))  # the broker's new session uses the packet id again
    poll_until(mqtt, lambda: acknowledged(broker) == [1])
    assert seen == [b"1", b"2", b"new"]
    mqtt.disconnect()


@pytest.mark.req("Q3", "R4", "R1")
@pytest.mark.clause("MQTT-4.6.0-2", "5:MQTT-4.6.0-2")
def test_messages_behind_an_unclaimed_one_are_handled_and_acknowledged_in_order():
    broker, mqtt = connected()
    broker.present = 1
    seen = []
    mqtt.subscribe("b", 2, lambda m: seen.append(m.payload))
    broker.give(publish(b"a", b"1", 1, 1), publish(b"b", b"2", 1, 2), publish(b"b", b"3", 2, 3), pubrel(3))
    poll_until(mqtt, lambda: len(seen) == 2)
    assert mqtt.subscribe("c", 1) == 1
    assert mqtt.publish("d", "x", 1) and mqtt.drain(30)
    assert seen == [b"2", b"3"] and acknowledged(broker) == [3]
    # The PUBACK of message 2 has to wait for that of message 1. The broker sends message 2 again after the reconnect, and its
    # handler does not run again.
    broker.drop()
    poll_until(mqtt, lambda: broker.connects == 2)
    broker.give(publish(b"a", b"1", 1, 1, dup=1), publish(b"b", b"2", 1, 2, dup=1), publish(b"b", b"4", 1, 4))
    poll_until(mqtt, lambda: len(seen) == 3)
    assert acknowledged(broker) == [3]
    mqtt.subscribe("a", 1, lambda m: seen.append(m.payload))
    poll_until(mqtt, lambda: len(acknowledged(broker)) == 4)
    assert acknowledged(broker) == [3, 1, 2, 4] and seen == [b"2", b"3", b"4", b"1"]
    mqtt.disconnect()


@pytest.mark.req("Q3", "Q4", "R4")
def test_new_message_with_a_reused_packet_id_and_dup_is_delivered():
    """RabbitMQ gives retransmitted messages new packet ids in every connection."""
    broker, mqtt = connected()
    broker.present = 1
    seen = []
    mqtt.subscribe("b/+", 1, lambda m: seen.append((m.topic, m.payload)))
    broker.give(publish(b"a", b"1", 1, 2), publish(b"b/1", b"one", 1, 3), publish(b"b/1", b"two", 1, 4))
    poll_until(mqtt, lambda: len(seen) == 2)
    broker.drop()  # so all acknowledgements of this connection are lost
    poll_until(mqtt, lambda: broker.connects == 2)
    broker.give(
        publish(b"a", b"1", 1, 1, dup=1),
        publish(b"b/1", b"one", 1, 2, dup=1),
        publish(b"b/1", b"six", 1, 3, dup=1),
        publish(b"b/2", b"two", 1, 4, dup=1),
    )
    poll_until(mqtt, lambda: ("b/1", b"six") in seen and ("b/2", b"two") in seen)
    mqtt.subscribe("a", 1, lambda m: None)
    poll_until(mqtt, lambda: acknowledged(broker) == [1, 2, 3, 4])
    mqtt.disconnect()


@pytest.mark.req("R4", "R5", "R1")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_unclaimed_message_is_reported_counted_and_dropped(qos):
    broker, mqtt = connected()
    told = []
    mqtt.on_unclaimed = lambda m: told.append((m.topic, m.payload, m.qos))
    deliver(broker, mqtt, b"a", b"1", qos, 1)
    turn(broker, mqtt)
    assert told == [] and acknowledged(broker) == []
    expire_unclaimed(mqtt)
    poll_until(mqtt, lambda: told)
    turn(broker, mqtt)
    assert told == [("a", b"1", qos)] and acknowledged(broker) == ([1] if qos else [])
    assert mqtt.unclaimed == 1 and mqtt.session.waiting.entries == [] and not mqtt.session.store.held()
    mqtt.disconnect()


@pytest.mark.req("R4", "R5", "R1")
@pytest.mark.parametrize("qos", [1, 2])
def test_unclaimed_keep_saves_messages_for_a_later_handler(qos):
    broker, mqtt = connected(unclaimed_s=0.1, unclaimed="keep")
    told = []
    mqtt.on_unclaimed = lambda m: told.append(m.payload)
    deliver(broker, mqtt, b"a", b"1", qos, 1)
    poll_until(mqtt, lambda: told)
    begin = ticks_ms()
    while ticks_diff(ticks_ms(), begin) < 400:
        mqtt.poll(20)
    assert told == [b"1"] and acknowledged(broker) == [] and mqtt.unclaimed == 1
    seen = []
    mqtt.subscribe("a", 2, lambda m: seen.append(m.payload))
    poll_until(mqtt, lambda: acknowledged(broker) == [1])
    assert seen == [b"1"]
    mqtt.disconnect()


@pytest.mark.req("R1")
def test_message_claimed_after_a_week_is_handed_over():
    import flashmqtt.client
    from flashmqtt.session import waiting

    period = 1 << 30  # of a board's clock: 12 days
    broker, mqtt = connected(unclaimed="keep", keep_alive_s=0)
    broker.give(publish(b"a", b"1", 1, 1))
    poll_until(mqtt, lambda: mqtt.session.waiting)
    begin = ticks_ms()
    hours = 0
    flashmqtt.client.ticks_ms = lambda: ticks_add(begin, hours * 3600_000)
    waiting.ticks_diff = lambda later, earlier: (later - earlier + period // 2) % period - period // 2
    try:
        while hours < 7 * 24:
            hours += 12
            mqtt.poll(0)
        seen = []
        mqtt.on_message = lambda m: seen.append(m.payload)
        mqtt.poll(0)
        assert seen == [b"1"]
        mqtt.disconnect()
    finally:
        flashmqtt.client.ticks_ms = ticks_ms
        waiting.ticks_diff = ticks_diff


@pytest.mark.req("R4", "R1")
def test_unclaimed_messages_never_block_a_program_that_only_publishes():
    broker, mqtt = connected(waiting=4, buffer_bytes=256)
    broker.present = 1
    for i in range(20):
        broker.give(publish(b"a", b"x" * 50, 1, i + 1), publish(b"b", b"y" * 50))
        assert mqtt.publish("c", "z", 1)
        turn(broker, mqtt, 1)
    assert mqtt.drain(30)
    assert len(mqtt.session.waiting.entries) <= 8 and mqtt.session.waiting.bytes <= 2048 + 60
    assert mqtt.missed > 0 and mqtt.unclaimed == 0 and broker.connects == 1
    expire_unclaimed(mqtt)  # now the client also reconnects, because it left messages unacknowledged
    poll_until(mqtt, lambda: mqtt.unclaimed >= 4)
    mqtt.disconnect()


@pytest.mark.req("Q3", "R4", "R1")
def test_messages_beyond_the_waiting_limit_arrive_in_order_after_a_reconnect():
    broker, mqtt = connected(waiting=4)
    broker.present = 1
    for i in range(1, 11):
        broker.give(publish(b"a", b"%d" % i, 1, i))
    turn(broker, mqtt)
    assert len(mqtt.session.waiting.entries) == 8  # four wait; four are noted as not acknowledged
    assert mqtt.publish("d", "x", 1) and mqtt.drain(30) and broker.connects == 1
    seen = []
    mqtt.subscribe("a", 1, lambda m: seen.append(m.payload))
    while broker.connects < 5 and len(acknowledged(broker)) < 10:
        connects = broker.connects
        poll_until(mqtt, lambda n=connects: broker.connects > n or len(acknowledged(broker)) == 10)
        if broker.connects > connects:  # the broker resends all unacknowledged messages
            for i in range(1, 11):
                if i not in acknowledged(broker):
                    broker.give(publish(b"a", b"%d" % i, 1, i, dup=1))
    assert seen == [b"%d" % i for i in range(1, 11)]
    assert acknowledged(broker) == list(range(1, 11)) and broker.connects == 2
    mqtt.disconnect()


@pytest.mark.req("Q3", "R1")
def test_left_message_is_requested_again_when_half_of_the_waiting_bytes_are_free():
    broker, mqtt = connected(waiting_bytes=400)
    broker.give(publish(b"a", b"1" * 300, 1, 1), publish(b"b", b"2" * 300, 1, 2))  # the second one does not fit
    turn(broker, mqtt)
    mqtt.subscribe("b", 1, lambda m: None)
    queue = mqtt.session.waiting
    assert not queue.wants_restart(queue._left_ms + 60_000)
    mqtt.subscribe("a", 1, lambda m: None)
    poll_until(mqtt, lambda: broker.connects == 2)
    mqtt.disconnect()


@pytest.mark.req("Q3", "R4")
def test_message_without_room_comes_again_although_later_ones_are_done():
    broker, mqtt = connected(waiting=4)
    broker.present = 1
    seen, done = [], []
    mqtt.subscribe("b", 1, lambda m: done.append(m.payload))
    messages = [publish(b"a", b"%d" % i, 1, i) for i in range(1, 6)]  # the last message has no room
    broker.give(*messages, *[publish(b"b", b"", 1, i) for i in range(6, 9)])
    poll_until(mqtt, lambda: len(done) == 3)
    mqtt.subscribe("a", 1, lambda m: seen.append(m.payload))
    poll_until(mqtt, lambda: broker.connects == 2)
    assert acknowledged(broker) == [1, 2, 3, 4]
    broker.give(publish(b"a", b"5", 1, 5, dup=1), *[publish(b"b", b"", 1, i, dup=1) for i in range(6, 9)])
    poll_until(mqtt, lambda: len(acknowledged(broker)) == 8)
    assert seen == [b"1", b"2", b"3", b"4", b"5"] and acknowledged(broker) == list(range(1, 9))
    mqtt.disconnect()


@pytest.mark.req("Q0", "R5", "R1")
def test_qos_0_messages_beyond_the_waiting_limit_are_counted_as_missed():
    broker, mqtt = connected(waiting=4)
    broker.give(*[publish(b"a", b"%d" % i) for i in range(10)])
    turn(broker, mqtt)
    seen = []
    mqtt.on_message = lambda m: seen.append(m.payload)
    poll_until(mqtt, lambda: len(seen) == 4)
    assert seen == [b"0", b"1", b"2", b"3"] and mqtt.missed == 6
    mqtt.disconnect()


@pytest.mark.req("R4", "R5", "R1")
def test_clean_session_acknowledges_messages_beyond_the_waiting_limit():
    broker, mqtt = connected(waiting=2, clean=True)
    broker.give(*[publish(b"a", b"%d" % i, 1, i) for i in range(1, 6)])
    turn(broker, mqtt)
    seen = []
    mqtt.on_message = lambda m: seen.append(m.payload)
    poll_until(mqtt, lambda: len(acknowledged(broker)) == 5)
    assert acknowledged(broker) == [1, 2, 3, 4, 5] and seen == [b"1", b"2"] and mqtt.missed == 3
    assert broker.connects == 1
    mqtt.disconnect()


@pytest.mark.req("R4", "R5")
@pytest.mark.parametrize("qos", [1, 2])
def test_message_whose_handler_always_fails_is_discarded_and_blocks_no_other_handler(qos):
    broker, mqtt = connected(attempts=3)
    errors = []
    seen = []
    ran = []

    def poisoned(message):
        ran.append(message.payload)
        if message.payload == b"poison":
            raise ValueError("mine")

    mqtt.on_error = lambda error, message: errors.append((type(error), message.topic, message.failures))
    mqtt.subscribe("a", 2, poisoned)
    mqtt.subscribe("b", 2, lambda m: seen.append(m.payload))
    deliver(broker, mqtt, b"a", b"poison", qos, 1)
    broker.give(publish(b"a", b"next", 1, 2), publish(b"b", b"other", 0))
    poll_until(mqtt, lambda: seen)
    assert seen == [b"other"] and b"next" not in ran  # one handler's messages stay in order
    poll_until(mqtt, lambda: len(acknowledged(broker)) == 2)
    assert ran == [b"poison"] * 3 + [b"next"]
    assert errors == [(ValueError, "a", n) for n in (1, 2, 3)] and mqtt.failed == 1
    assert acknowledged(broker) == [1, 2] and broker.connects == 1 and not mqtt.session.store.held()
    mqtt.disconnect()


@pytest.mark.req("R4")
def test_only_the_failed_one_of_several_handlers_is_called_again():
    broker, mqtt = connected()
    mqtt.on_error = lambda error, message: None
    ran = []
    mqtt.subscribe("a/#", 1, lambda m: ran.append(1))
    mqtt.subscribe("a/+", 1, failing(1, note=lambda m: ran.append(2))[0])
    mqtt.subscribe("+/b", 1, lambda m: ran.append(3))
    broker.give(publish(b"a/b", b"x", 1, 1))
    poll_until(mqtt, lambda: acknowledged(broker))
    assert ran == [1, 2, 2, 3]
    mqtt.disconnect()


@pytest.mark.req("Q4", "R4")
def test_handler_that_has_finished_does_not_run_again_after_disconnect():
    broker, mqtt = connected()
    mqtt.on_error = lambda error, message: None
    ran = []
    mqtt.subscribe("a/#", 2, lambda m: ran.append(1))
    mqtt.subscribe("a/+", 2, failing(1, note=lambda m: ran.append(2))[0])
    deliver(broker, mqtt, b"a/b", b"x", 2, 1)
    poll_until(mqtt, lambda: len(ran) == 2)
    mqtt.disconnect()
    broker.present = 1
    mqtt.connect()
    broker.give(pubrel(1))
    poll_until(mqtt, lambda: acknowledged(broker))
    assert ran == [1, 2, 2]
    mqtt.disconnect()


@pytest.mark.req("Q1", "R4")
def test_handler_error_is_not_raised_from_publish():
    broker, mqtt = connected()

    def fail(message):
        raise ValueError("mine")

    mqtt.on_message = fail
    broker.give(publish(b"a", b"x"))
    begin = ticks_ms()
    handles = 0
    while not mqtt.errors:
        assert ticks_diff(ticks_ms(), begin) < 30000
        mqtt.link.stepped_ms -= 100
        handles += mqtt.publish("b", "y", 2) > 0
        broker()
    assert mqtt.drain(30)
    assert len({id_of(one[3:]) for one in broker.of(3)}) == handles
    with pytest.raises(ValueError):
        mqtt.poll(0)
    assert mqtt.failed == 1 and mqtt.connected
    mqtt.disconnect()


@pytest.mark.req("Q1", "R4")
@pytest.mark.parametrize("raising", [0, -1, 1])
def test_poll_with_none_leaves_the_errors_of_handlers_to_the_next_poll_with_a_time(raising):
    broker, mqtt = connected()

    def fail(message):
        raise ValueError(message.payload)

    mqtt.on_message = fail
    for payload in (b"first", b"second"):
        broker.give(publish(b"a", payload))
        begin = ticks_ms()
        while not mqtt.errors or mqtt.errors[-1].args != (payload,):
            assert ticks_diff(ticks_ms(), begin) < 30000
            assert mqtt.poll(None) in (0, 1)
            broker()
    for payload in (b"first", b"second"):
        assert mqtt.poll(None) == 0
        with pytest.raises(ValueError) as raised:
            mqtt.poll(raising)
        assert raised.value.args == (payload,)
    assert mqtt.poll(raising) == 0 and mqtt.failed == 2 and mqtt.connected
    mqtt.disconnect()


@pytest.mark.req("R4")
def test_callback_errors_are_reported_and_keep_the_connection():
    broker, mqtt = connected()
    errors = []
    mqtt.on_error = lambda error, message: errors.append((type(error), message))

    def fail(handle):
        raise ValueError("mine")

    mqtt.on_delivered = fail
    mqtt.publish("a", "x", 1)
    assert mqtt.drain(30)
    assert errors == [(ValueError, None)] and broker.connects == 1 and mqtt.connected

    def fail_too(error, message):
        raise KeyError("on_error's own")

    mqtt.on_error = fail_too
    mqtt.publish("a", "x", 1)
    assert mqtt.drain(30)
    with pytest.raises(KeyError):
        mqtt.poll(0)
    mqtt.disconnect()


async def asynchronous(message):
    raise AssertionError("ran")


@pytest.mark.req("R4")
def test_async_handler_is_refused():
    broker, mqtt = connected()
    with pytest.raises(UsageError):
        mqtt.subscribe("a", 1, asynchronous)
    assert mqtt.session.subscriptions == []
    mqtt.on_message = asynchronous
    broker.give(publish(b"a", b"x", 1, 1))
    with pytest.raises(UsageError):
        poll_until(mqtt, lambda: False)
    assert acknowledged(broker) == []
    mqtt.disconnect()


@pytest.mark.req("Q4", "B4")
def test_missing_pubrel_causes_a_reconnect_that_delivers_the_message():
    store = RamStore()
    broker, mqtt = connected(store=store, response_s=1)
    broker.present = 1
    seen = []
    mqtt.subscribe("#", 2, lambda m: seen.append(m.payload))
    broker.give(publish(b"a", b"x", 2, 5))
    poll_until(mqtt, lambda: broker.of(5))
    broker.give(pubrel(6))  # some brokers send PUBREL with another packet id
    poll_until(mqtt, lambda: broker.connects == 2)
    assert seen == []
    broker.give(pubrel(6))
    poll_until(mqtt, lambda: seen)
    turn(broker, mqtt)
    assert seen == [b"x"] and not store.held()
    mqtt.disconnect()


@pytest.mark.req("Q4", "Q8")
@pytest.mark.parametrize("payload", [b"open", b"open" * 50])  # one shorter and one longer than the buffer
def test_equal_message_of_next_session_is_not_taken_for_a_waiting_one(payload):
    broker, mqtt = connected(buffer_bytes=128, chunks=True)
    mqtt.on_message, calls = failing(1, note=lambda message: (message.offset, message.payload))
    mqtt.on_error = lambda error, message: None
    broker.give(publish(b"door", payload, 2, 1), pubrel(1))
    poll_until(mqtt, lambda: calls)
    broker.drop()
    poll_until(mqtt, lambda: broker.connects == 2 and mqtt.connected)
    broker.present = 1
    broker.give(publish(b"door", payload, 2, 1))  # a message of the new session
    poll_until(mqtt, lambda: broker.connects == 3 and mqtt.connected)
    broker.give(publish(b"door", payload, 2, 1, dup=1), pubrel(1))
    poll_until(mqtt, lambda: len(acknowledged(broker)) == 1)
    del calls[0]
    assert b"".join(part for _, part in calls) == payload * 2 and [at for at, _ in calls].count(0) == 2
    mqtt.disconnect()


@pytest.mark.req("R2", "R4", "Q4")
def test_new_message_with_packet_id_of_long_one_comes_again_after_a_failed_piece():
    broker, mqtt = connected(buffer_bytes=128, chunks=True)
    broker.present = 1
    handler, calls = failing(2)
    mqtt.on_message = handler
    mqtt.on_error = lambda error, message: None
    broker.give(publish(b"long", bytes(300), 2, 1))
    poll_until(mqtt, lambda: broker.of(5))
    broker.drop()
    poll_until(mqtt, lambda: broker.connects == 2 and mqtt.connected)
    broker.give(publish(b"new", b"x", 2, 1))
    poll_until(mqtt, lambda: len(calls) == 2)
    mqtt.subscribe("other", 1, handler)
    broker.give(publish(b"other", b"x", 1, 9))
    poll_until(mqtt, lambda: broker.connects == 3 and mqtt.connected)
    broker.give(publish(b"new", b"x", 2, 1, dup=1), pubrel(1))
    poll_until(mqtt, lambda: len(acknowledged(broker)) == 2)
    assert calls == ["long", "long", "other", "long", "long", "long", "new"]
    assert [id_of(one) for one in broker.of(5)] == [1, 1] and acknowledged(broker) == [9, 1]
    mqtt.disconnect()


@pytest.mark.req("R2", "R4", "Q4")
def test_long_message_behind_a_discarded_one_is_handed_over():
    broker, mqtt = connected(buffer_bytes=128, chunks=True, attempts=1)
    handler, calls = failing(1)
    mqtt.on_error = lambda error, message: None
    broker.give(publish(b"a", bytes(200), 2, 1), publish(b"b", bytes(200), 2, 2), pubrel(1), pubrel(2))
    poll_until(mqtt, lambda: mqtt.session.waiting and len(mqtt.session.waiting.entries) == 2)
    mqtt.subscribe([("a", 2), ("b", 2)], 2, handler)
    poll_until(mqtt, lambda: len(acknowledged(broker)) == 2)
    assert calls == ["a", "b", "b"] and mqtt.failed == 1
    mqtt.disconnect()


@pytest.mark.req("R2", "R4")
@pytest.mark.parametrize(("qos", "fails"), [(0, None), (1, None), (2, None), (1, 1), (2, 2)])
def test_message_behind_a_waiting_long_one_does_not_overtake_it(qos, fails):
    broker, mqtt = connected(buffer_bytes=128, chunks=True)
    handler, calls = failing(fails)
    mqtt.on_error = lambda error, message: None
    broker.give(*whole(b"long", bytes(200), 2, 1), *whole(b"short", b"x", qos, 2))
    poll_until(mqtt, lambda: mqtt.session.waiting and len(mqtt.session.waiting.entries) == 2)
    mqtt.on_message = handler
    poll_until(mqtt, lambda: len(acknowledged(broker)) == (2 if qos else 1) and not mqtt.session.waiting.entries)
    assert calls == ["long"] * (2 if fails is None else fails + 2) + ["short"]
    assert acknowledged(broker)[0] == 1 and broker.connects == 1 and not mqtt.session.waiting.bytes
    mqtt.disconnect()


@pytest.mark.req("R2", "R4")
@pytest.mark.parametrize("claimed", [False, True])
def test_long_message_in_one_piece_waits_once_and_is_handed_over_once_more(claimed):
    """A long topic enlarges the buffer of the pieces, so the next message comes whole."""
    broker, mqtt = connected(buffer_bytes=128, chunks=True)
    handler, calls = failing(claimed and 1, note=lambda message: (message.offset, message.more))
    mqtt.on_error = lambda error, message: None
    mqtt.on_message = lambda message: None
    broker.give(publish(b"t" * 120, bytes(300), 2, 120), pubrel(120))
    poll_until(mqtt, lambda: acknowledged(broker) == [120])
    mqtt.on_message = handler if claimed else None
    broker.give(publish(b"a", bytes(300), 2, 1), pubrel(1))
    poll_until(mqtt, lambda: mqtt.session.waiting and mqtt.session.waiting.entries)
    assert calls == [(0, False)] * claimed
    for _ in range(2):
        reconnect(broker, mqtt)
        turn(broker, mqtt)
        assert len(mqtt.session.waiting.entries) == 1
    broker.give(pubrel(1))
    mqtt.on_message = handler
    poll_until(mqtt, lambda: 1 in acknowledged(broker))
    turn(broker, mqtt)
    assert calls == [(0, False)] * (1 + claimed) and not mqtt.session.waiting.entries
    mqtt.disconnect()


@pytest.mark.req("R2", "R4")
@pytest.mark.parametrize("qos", [1, 2])
def test_each_long_message_has_its_own_attempts(qos):
    broker, mqtt = connected(buffer_bytes=128, chunks=True, attempts=3)
    mqtt.on_error = lambda error, message: None
    handler, calls = failing(1, 2)

    def deliver(packet_id):
        calls.clear()
        broker.give(*whole(b"a", bytes(200), qos, packet_id))
        if qos == 1:
            for failures in (1, 2):
                poll_until(mqtt, lambda n=failures: len(calls) >= n)
                reconnect(broker, mqtt)
                broker.give(publish(b"a", bytes(200), 1, packet_id, dup=1))
        poll_until(mqtt, lambda: packet_id in acknowledged(broker))
        assert len(calls) == 4 and mqtt.failed == 0

    mqtt.on_message = handler
    for packet_id in range(1, 6):
        deliver(packet_id)
    mqtt.disconnect()


@pytest.mark.req("R4")
def test_failures_of_a_long_message_do_not_count_for_the_repeated_one_behind_it():
    broker, mqtt = connected(buffer_bytes=128, chunks=True, attempts=3)
    mqtt.on_error = lambda error, message: None
    calls = []

    def handler(message):
        if not message.offset:
            calls.append(message.topic)
            if calls.count(message.topic) < 3:
                raise ValueError("called again")

    mqtt.on_message = handler
    first, second = publish(b"1", bytes(200), 1, 1, dup=1), publish(b"2", bytes(200), 1, 2, dup=1)
    broker.give(first)
    for turns in range(1, 6):
        poll_until(mqtt, lambda n=turns: len(calls) >= n)
        if turns == 3:
            poll_until(mqtt, lambda: acknowledged(broker) == [1])
        else:
            reconnect(broker, mqtt)
        broker.give(first if turns < 3 else second)  # the broker has sent both before, so both have DUP
    poll_until(mqtt, lambda: 2 in acknowledged(broker))
    assert calls == ["1"] * 3 + ["2"] * 3 and mqtt.failed == 0
    mqtt.disconnect()


@pytest.mark.req("R4")
@pytest.mark.parametrize("qos", [0, 1])
def test_on_error_can_read_the_failures_of_a_message_that_has_no_room_to_wait(qos):
    broker, mqtt = connected(waiting=1, waiting_bytes=50)
    seen = []
    mqtt.on_error = lambda error, message: seen.append((str(error), message.topic, message.failures))

    def handler(message):
        raise ValueError("its error")

    mqtt.subscribe("h", 1, handler)
    broker.give(publish(b"unclaimed", b"x" * 20, 1, 1), publish(b"h", b"y" * 30, qos, 2))
    poll_until(mqtt, lambda: seen)
    assert seen == [("its error", "h", 0)]
    mqtt.disconnect()


@pytest.mark.req("Q4", "R4", "R1")
@pytest.mark.parametrize("size", [20, 200])
def test_kept_unclaimed_message_whose_packet_id_is_used_again_causes_no_reconnects(size):
    broker, mqtt = connected(buffer_bytes=128, chunks=True, unclaimed="keep")
    broker.give(publish(b"a", b"1" * size, 2, 1), pubrel(1))
    poll_until(mqtt, lambda: mqtt.session.waiting and mqtt.session.waiting.entries)
    broker.present = 0
    broker.drop()
    poll_until(mqtt, lambda: broker.connects == 2 and mqtt.connected)
    broker.give(publish(b"b", b"2" * size, 2, 1))
    turn(broker, mqtt)
    inbound = mqtt.session.inbound
    assert inbound.left and not inbound.wants_restart(inbound._left_ms + 60_000)
    mqtt.disconnect()


@pytest.mark.req("R2", "R4")
def test_long_message_is_handed_over_after_a_memory_error():
    store = RamStore(100, 40)
    broker, mqtt = connected(store=store, buffer_bytes=128, chunks=True)
    broker.give(publish(b"a", bytes(200), 2, 1), pubrel(1))
    poll_until(mqtt, lambda: mqtt.session.waiting and mqtt.session.waiting.entries)
    calls = []
    mqtt.on_message = lambda message: calls.append(message.offset)
    fail_once(store, "read_held")
    with pytest.raises(MemoryError):
        poll_until(mqtt, lambda: calls)
    poll_until(mqtt, lambda: acknowledged(broker) == [1])
    assert calls[0] == 0 and len(calls) == 2 and not mqtt.session.waiting.entries
    mqtt.disconnect()


@pytest.mark.req("R4")
def test_waiting_message_is_acknowledged_although_no_memory_was_left_for_its_receipt():
    broker, mqtt = connected()
    broker.give(publish(b"a", b"1", 1, 1), publish(b"a", b"2", 1, 2))
    turn(broker, mqtt)
    queue, seen = mqtt.session.waiting, []
    fail_once(waiting, "Receipt")
    with pytest.raises(MemoryError):
        mqtt.subscribe("a", 1, lambda m: seen.append(m.payload))
        poll_until(mqtt, lambda: len(seen) == 2)
    poll_until(mqtt, lambda: acknowledged(broker) == [1, 2])
    assert seen == [b"1", b"2"] and not queue.entries and not queue.bytes
    mqtt.disconnect()


@pytest.mark.req("Q3", "R4")
@pytest.mark.clause("MQTT-4.6.0-2", "5:MQTT-4.6.0-2")
def test_acknowledgements_follow_the_order_in_which_a_broker_sent_messages_again():
    broker, mqtt = connected()
    seen = []
    broker.give(publish(b"a", b"1", 1, 1), publish(b"b", b"2", 1, 2), publish(b"a", b"3", 1, 3))
    turn(broker, mqtt)
    mqtt.subscribe("b", 1, lambda m: seen.append(m.payload))
    poll_until(mqtt, lambda: seen)
    reconnect(broker, mqtt)
    broker.give(
        publish(b"a", b"3", 1, 3, dup=1), publish(b"b", b"2", 1, 2, dup=1), publish(b"c", b"4", 1, 4),
        publish(b"a", b"1", 1, 1, dup=1),
    )  # fmt: skip
    turn(broker, mqtt)
    assert acknowledged(broker) == []
    mqtt.subscribe("a", 1, lambda m: seen.append(m.payload))
    poll_until(mqtt, lambda: len(acknowledged(broker)) == 2)
    assert acknowledged(broker) == [3, 2]
    mqtt.subscribe("c", 1, lambda m: seen.append(m.payload))
    poll_until(mqtt, lambda: len(acknowledged(broker)) == 4)
    assert acknowledged(broker) == [3, 2, 4, 1] and seen == [b"2", b"1", b"3", b"4"]
    assert not mqtt.session.waiting.entries and not mqtt.session.waiting.owing
    mqtt.disconnect()


@pytest.mark.req("R4")
def test_failures_of_handlers_are_counted_for_each_long_message():
    broker, mqtt = connected(buffer_bytes=128, chunks=True, attempts=3, backoff=Backoff(base_ms=20, cap_ms=100))
    broker.present = 1
    mqtt.on_error = lambda error, message: None
    calls = []
    taken = []

    def handler(message):
        if not message.offset:
            calls.append(message.topic)
            if message.topic == "bad" or calls.count("good") < 3:
                raise ValueError("called again")
        if not message.more:
            taken.append(message.topic)

    for topic in ("bad", "good"):
        mqtt.subscribe(topic, 1, lambda message: handler(message))
    connects = before = 0

    def step():
        nonlocal connects, before
        done = acknowledged(broker)
        if broker.connects > connects and mqtt.connected:
            for packet_id, topic in ((1, b"bad"), (2, b"good")):
                if packet_id not in done:
                    broker.give(publish(topic, bytes(200), 1, packet_id, dup=connects > 0))
            connects = broker.connects
            before = len(calls)
        elif broker.link and len(calls) - before == 2 - len(done):
            turn(broker, mqtt)
            if len(acknowledged(broker)) == len(done):  # else one was discarded
                broker.drop()  # the client would reconnect later
        return len(done) == 2

    poll_until(mqtt, step)
    assert calls.count("bad") == calls.count("good") == 3 and taken == ["good"]
    assert (mqtt.failed, mqtt.missed) == (1, 0)
    mqtt.disconnect()


@pytest.mark.req("Q3", "R4")
@pytest.mark.clause("MQTT-4.6.0-2", "5:MQTT-4.6.0-2")
def test_acknowledgement_of_a_repeated_message_passes_no_message_that_was_left_unacknowledged():
    broker, mqtt = connected(waiting=1, unclaimed="keep")
    seen = []
    mqtt.subscribe("b", 1, lambda m: seen.append(m.payload))
    broker.give(publish(b"a", b"1", 1, 1), publish(b"b", b"2", 1, 2))
    poll_until(mqtt, lambda: seen)
    reconnect(broker, mqtt)
    broker.give(
        publish(b"a", b"3", 1, 3), publish(b"a", b"4", 1, 4), publish(b"b", b"2", 1, 2, dup=1),
        publish(b"a", b"1", 1, 1, dup=1),
    )  # fmt: skip
    turn(broker, mqtt)
    assert acknowledged(broker) == [] and seen == [b"2"]
    mqtt.disconnect()


@pytest.mark.req("Q3", "R4")
def test_taken_message_behind_a_waiting_one_is_not_handed_over_again_after_several_reconnects():
    broker, mqtt = connected(unclaimed="keep")
    seen = []
    mqtt.subscribe("b", 1, lambda m: seen.append(m.payload))
    broker.give(publish(b"a", b"1", 1, 1), publish(b"b", b"2", 1, 2))
    poll_until(mqtt, lambda: seen)
    for _ in range(3):
        reconnect(broker, mqtt)
        broker.give(publish(b"a", b"1", 1, 1, dup=1), publish(b"b", b"2", 1, 2, dup=1))
        turn(broker, mqtt)
    mqtt.on_message = lambda m: seen.append(m.payload)
    poll_until(mqtt, lambda: acknowledged(broker) == [1, 2])
    assert seen == [b"2", b"1"]
    mqtt.disconnect()


@pytest.mark.req("R4")
def test_many_messages_left_unacknowledged_come_again_although_their_topics_take_much_room():
    broker, mqtt = connected(buffer_bytes=256)
    broker.present = 1
    mqtt.on_error = lambda error, message: None
    topic = b"t" * 55
    mqtt.subscribe(topic, 1, failing(1)[0])
    for i in range(1, 33):
        broker.give(publish(topic, b"%03d" % i + bytes(150), 1, i))
    poll_until(mqtt, lambda: broker.connects == 2)
    mqtt.disconnect()


class Full(list):
    """A list that has no memory to grow, once."""

    def __init__(self, items):
        super().__init__(items)
        self.full = True

    def append(self, item):
        if self.full:
            self.full = False
            raise MemoryError
        super().append(item)


@pytest.mark.req("Q3", "R4")
@pytest.mark.parametrize("name", ["entries", "owing", "Receipt"])
def test_every_message_is_acknowledged_once_although_no_memory_was_left_to_note_one(name):
    broker, mqtt = connected()
    seen = []
    mqtt.subscribe("b", 1, lambda m: seen.append(m.payload))
    broker.give(publish(b"a", b"1", 1, 1))
    poll_until(mqtt, lambda: mqtt.session.waiting)
    if name == "Receipt":
        fail_once(waiting, name)
    else:
        setattr(mqtt.session.waiting, name, Full(getattr(mqtt.session.waiting, name)))
    broker.give(publish(b"b", b"2", 1, 2))
    with pytest.raises(MemoryError):
        poll_until(mqtt, lambda: len(seen) == 2)
    mqtt.on_message = lambda m: seen.append(m.payload)
    poll_until(mqtt, lambda: acknowledged(broker) == [1, 2])
    turn(broker, mqtt)
    assert acknowledged(broker) == [1, 2] and seen == [b"2", b"1"] and not mqtt.session.waiting.entries
    assert broker.connects == 1
    mqtt.disconnect()


@pytest.mark.req("Q3", "R4")
def test_waiting_message_is_not_acknowledged_although_no_memory_was_left_to_recognize_its_duplicate():
    broker, mqtt = connected()
    broker.give(publish(b"a", b"1", 1, 1))
    turn(broker, mqtt)
    reconnect(broker, mqtt)
    works = waiting._same
    fail_once(waiting, "_same")
    broker.give(publish(b"a", b"1", 1, 1, dup=1))
    try:
        turn(broker, mqtt)
    except MemoryError:
        pass
    turn(broker, mqtt)
    assert waiting._same is works and acknowledged(broker) == []
    seen = []
    mqtt.on_message = lambda m: seen.append(m.payload)
    poll_until(mqtt, lambda: acknowledged(broker) == [1])
    assert b"1" in seen
    mqtt.disconnect()


@pytest.mark.req("Q3", "Q4", "R4")
@pytest.mark.parametrize("case", ["load 1", "load 2", "claims 1", "claims 2", "add 1", "add 2"])
def test_message_not_taken_is_not_acknowledged_although_no_memory_was_left_to_keep_it(case):
    fails, qos = case.split()[0], int(case.split()[1])
    broker, mqtt = connected(level=4)
    broker.present = 1
    seen = []
    if fails == "load":
        owner, name = mqtt, "load_waiting"
    else:
        mqtt.load_waiting()
        owner, name = mqtt.session.waiting, "_append" if fails == "add" else "claims"
    if fails == "claims":
        broker.give(publish(b"x", b"0"))
        poll_until(mqtt, lambda: mqtt.session.waiting.entries, 0)
    works = getattr(owner, name)

    calls = []

    def no_memory(*arguments):
        if fails == "claims" and arguments[0] is not mqtt.session.message:  # every 100 ms for the waiting one
            return works(*arguments)
        calls.append(arguments)
        setattr(owner, name, works)
        raise MemoryError

    setattr(owner, name, no_memory)
    broker.give(*whole(b"a", b"1", qos, 1))
    try:
        poll_until(mqtt, lambda: calls)
    except MemoryError:
        assert fails == "load"
    turn(broker, mqtt)
    assert acknowledged(broker) == []
    if broker.connects == 2:
        broker.give(publish(b"a", b"1", 1, 1, dup=1) if qos == 1 else pubrel(1))
    mqtt.subscribe("a", 2, lambda m: seen.append(m.payload))
    poll_until(mqtt, lambda: acknowledged(broker) == [1])
    turn(broker, mqtt)
    assert seen == [b"1"] and not mqtt.session.store.held()
    mqtt.disconnect()


@pytest.mark.req("Q3", "Q4", "R4")
@pytest.mark.parametrize("qos", [1, 2])
def test_message_is_not_acknowledged_although_no_memory_at_all_was_left_to_keep_it(qos):
    """Even the tuple of an `except` with two classes needs memory."""
    broker, mqtt = connected()
    broker.present = 1
    works = mqtt.load_waiting
    calls = []

    def no_memory():
        calls.append(0)
        heap_lock()
        raise MemoryError

    mqtt.load_waiting = no_memory
    broker.give(*whole(b"a", b"1", qos, 1))
    with pytest.raises(MemoryError):
        poll_until(mqtt, lambda: False)
    for _ in calls:
        heap_unlock()
    assert len(calls) == 2
    mqtt.load_waiting = works
    poll_until(mqtt, lambda: broker.connects == 2 and mqtt.connected)
    turn(broker, mqtt)
    assert acknowledged(broker) == []
    broker.give(publish(b"a", b"1", 1, 1, dup=1) if qos == 1 else pubrel(1))
    seen = []
    mqtt.subscribe("a", 2, lambda m: seen.append(m.payload))
    poll_until(mqtt, lambda: acknowledged(broker) == [1])
    assert seen == [b"1"] and not mqtt.session.store.held()
    mqtt.disconnect()


@pytest.mark.req("Q4", "R4")
def test_qos_2_message_of_a_clean_client_is_handed_over_although_no_memory_was_left_to_keep_it():
    broker, mqtt = connected(clean=True)
    mqtt.load_waiting()
    fail_once(waiting, "Waiting")
    broker.give(publish(b"a", b"1", 2, 1), pubrel(1))
    poll_until(mqtt, lambda: broker.connects == 2 and mqtt.connected)
    seen = []
    mqtt.subscribe("#", 2, lambda m: seen.append(m.payload))
    broker.give(publish(b"b", b"2", 1, 1))
    poll_until(mqtt, lambda: len(seen) == 2)
    turn(broker, mqtt)
    assert sorted(seen) == [b"1", b"2"] and mqtt.missed == 0 and not mqtt.session.store.held()
    mqtt.disconnect()


@pytest.mark.req("R2", "R4")
@pytest.mark.parametrize("fails_at", [1, 2])
def test_message_of_qos_0_in_pieces_counts_as_failed_if_its_handler_raises(fails_at):
    broker, mqtt = connected(buffer_bytes=128, chunks=True)
    mqtt.on_error = lambda error, message: None
    mqtt.on_message, calls = failing(fails_at, fails_at + 1)
    broker.give(publish(b"a", bytes(400)))
    poll_until(mqtt, lambda: mqtt.failed or mqtt.missed)
    assert (mqtt.failed, mqtt.missed) == (1, 0) and len(calls) == fails_at
    mqtt.disconnect()


@pytest.mark.req("Q4", "R4")
@pytest.mark.parametrize("call", ["discard", "sync"])
def test_waiting_qos_2_message_is_taken_once_although_the_store_failed_meanwhile(call):
    store = RamStore(100, 40)
    works, fails, seen = getattr(store, call), [], []

    def may_fail(*arguments):
        if fails:
            raise fails.pop()
        return works(*arguments)

    setattr(store, call, may_fail)
    broker, mqtt = connected(store=store)
    broker.give(publish(b"a", b"1", 2, 1), publish(b"a", b"2", 2, 2))
    turn(broker, mqtt)
    broker.give(pubrel(1), pubrel(2))
    turn(broker, mqtt)

    def handler(message):
        seen.append(message.payload)
        if len(seen) == 1:
            fails.append(FlashFailed("once"))

    with pytest.raises(FlashFailed):
        mqtt.subscribe("a", 2, handler)
        poll_until(mqtt, lambda: len(acknowledged(broker)) == 2)
    poll_until(mqtt, lambda: acknowledged(broker) == [1, 2])
    assert seen == [b"1", b"2"] and not mqtt.session.waiting.entries
    mqtt.disconnect()


@pytest.mark.req("R2", "R4")
def test_long_message_is_handed_over_after_no_memory_was_left_for_its_buffer():
    broker, mqtt = connected(buffer_bytes=128, chunks=True)
    calls = []
    mqtt.on_message = lambda message: calls.append(message.offset)
    broker.give(publish(b"a", bytes(200), 2, 1))
    poll_until(mqtt, lambda: broker.of(5))
    fail_once(mqtt.session.long, "_read_head")
    broker.give(pubrel(1))
    with pytest.raises(MemoryError):
        poll_until(mqtt, lambda: calls)
    assert not mqtt.session.long.key
    reconnect(broker, mqtt)
    broker.give(pubrel(1))
    poll_until(mqtt, lambda: acknowledged(broker) == [1])
    assert calls[0] == 0 and len(calls) == 2
    mqtt.disconnect()


@pytest.mark.req("R2", "R4")
def test_waiting_messages_are_handed_over_before_poll_waits_for_others():
    broker, mqtt = connected(buffer_bytes=128, chunks=True)
    calls = []
    broker.give(publish(b"long", bytes(200), 2, 1), pubrel(1), publish(b"short", b"x"))
    poll_until(mqtt, lambda: mqtt.session.waiting and len(mqtt.session.waiting.entries) == 2)
    mqtt.on_message = lambda message: calls.append(message.topic)
    waits = []
    mqtt._wait = waits.append
    while len(calls) < 3:
        assert mqtt.poll(1000) and not waits
    assert calls == ["long", "long", "short"]
    del mqtt._wait
    mqtt.disconnect()


@pytest.mark.req("R2")
@pytest.mark.parametrize("qos", [1, 2])
def test_handler_set_between_two_pieces_gets_the_remaining_ones(qos):
    broker, mqtt = connected(buffer_bytes=128, chunks=True)
    calls = []

    def first(message):
        calls.append(("first", message.offset))
        mqtt.subscribe("a", 2, lambda message: calls.append(("second", message.offset)))

    mqtt.on_message = first
    broker.give(*whole(b"a", bytes(300), qos, 1))
    poll_until(mqtt, lambda: acknowledged(broker) == [1])
    assert calls[0] == ("first", 0) and len(calls) == 3 and {who for who, _ in calls[1:]} == {"second"}
    mqtt.disconnect()


@pytest.mark.req("R2", "R4")
@pytest.mark.parametrize(("size", "readable"), [(10, 0), (200, 0), (200, 1)])
def test_message_behind_a_waiting_one_that_can_not_be_read_is_handed_over(size, readable):
    store = RamStore(100, 40)
    broker, mqtt = connected(store=store, buffer_bytes=128, chunks=True)
    calls = []

    def handler(message):
        calls.append(message.topic)
        if len(calls) == readable:
            store.read_held = unreadable

    def unreadable(*arguments):
        raise StoreCorrupt

    broker.give(publish(b"first", bytes(size), 2, 1), pubrel(1), publish(b"second", b"x", 1, 2))
    poll_until(mqtt, lambda: mqtt.session.waiting and len(mqtt.session.waiting.entries) == 2)
    if not readable:
        store.read_held = unreadable
    mqtt.on_message = handler
    poll_until(mqtt, lambda: acknowledged(broker) == [1, 2])
    assert calls == ["first"] * readable + ["second"] and store.damaged == 1 and not mqtt.session.waiting.entries
    mqtt.disconnect()


@pytest.mark.req("R2", "R4")
def test_pieces_of_a_held_message_do_not_come_between_those_of_an_arriving_one():
    broker, mqtt = connected(buffer_bytes=128, chunks=True)
    handler, calls = failing(1)
    mqtt.on_error = lambda error, message: None
    mqtt.subscribe([("a", 2), ("b", 2)], 2, handler)
    broker.give(publish(b"b", bytes(300), 2, 1), pubrel(1))
    poll_until(mqtt, lambda: calls)
    long = publish(b"a", bytes(300), 1, 2)
    broker.give(long[:150])
    poll_until(mqtt, lambda: mqtt.session.inbound._resumed)  # "b" is due to be handed over again
    turn(broker, mqtt)
    broker.give(long[150:])
    poll_until(mqtt, lambda: len(acknowledged(broker)) == 2)
    assert calls == ["b", "a", "a", "a", "b", "b", "b"]
    mqtt.disconnect()


@pytest.mark.req("Q3", "R4")
def test_waiting_messages_are_due_at_once_when_a_connection_ends():
    # A long message may wait behind an unacknowledged message of the same handler. The long message must be handed over before
    # the broker resends the other one. Otherwise it waits behind the resent message again, in every connection.
    broker, mqtt = connected()
    broker.give(publish(b"a", b"x", 1, 1))
    poll_until(mqtt, lambda: mqtt.session.waiting)
    waiting = mqtt.session.waiting
    now = ticks_ms()
    waiting.due(now, False)
    assert not waiting.due(now, False)
    mqtt.link.fail(ConnectionLost("by the test"), now)
    assert waiting.due(now, False)
    mqtt.disconnect()


@pytest.mark.req("R2", "R4")
def test_long_message_is_handed_over_after_one_that_failed_and_was_cut():
    broker, mqtt = connected(buffer_bytes=128, chunks=True)
    broker.present = 1
    mqtt.on_message, calls = failing(1)
    mqtt.on_error = lambda error, message: None
    broker.give(publish(b"a", bytes(300), 1, 1)[:150])
    poll_until(mqtt, lambda: calls)
    broker.drop()
    poll_until(mqtt, lambda: broker.connects == 2 and mqtt.connected)
    broker.give(publish(b"b", bytes(200), 2, 2), pubrel(2))
    poll_until(mqtt, lambda: acknowledged(broker) == [2])
    assert calls == ["a", "b", "b"]
    mqtt.disconnect()


@pytest.mark.req("Q4", "R4")
def test_message_handled_offline_is_not_repeated_after_power_cut():
    store = CutStore()
    broker, mqtt = connected(store=store)
    calls = []

    def handler(message):
        calls.append(message.payload)
        if len(calls) == 1:
            broker.close()  # the client can't connect any more
            raise ValueError("called again after 1 s")

    mqtt.on_message = handler
    mqtt.on_error = lambda error, message: None
    broker.give(publish(b"a", b"x", 2, 5), pubrel(5))
    poll_until(mqtt, lambda: len(calls) == 2)
    assert not mqtt.connected and store.cut().held() == []


@pytest.mark.req("Q4", "R4")
def test_power_cut_in_handler_of_waiting_message_does_not_repeat_the_one_before():
    store = CutStore()
    broker, mqtt = connected(store=store)
    held = []
    broker.give(publish(b"a", b"1", 2, 1), publish(b"a", b"2", 2, 2), pubrel(1), pubrel(2))
    poll_until(mqtt, lambda: mqtt.session.waiting and len(mqtt.session.waiting.entries) == 2)
    mqtt.on_message = lambda message: held.append(store.cut().held())  # the power is cut here
    poll_until(mqtt, lambda: len(held) == 2)
    assert held == [[1, 2], [2]]
    mqtt.disconnect()


@pytest.mark.req("W11")
def test_several_filters_share_one_packet_and_each_has_a_result():
    broker, mqtt = connected()
    seen = []
    assert mqtt.subscribe([("a", 0), ("b", 2), "c"], 1, lambda m: seen.append(m.topic)) == [0, 2, 1]
    (request,) = broker.of(8)
    assert request[4:] == text(b"a") + b"\0" + text(b"b") + b"\2" + text(b"c") + b"\1"
    broker.give(publish(b"a", b"x"), publish(b"c", b"x"))
    poll_until(mqtt, lambda: seen == ["a", "c"])
    broker.granted = 0x80
    assert mqtt.subscribe(["d", "e"]) == [0x80, 0x80]
    with pytest.raises(Refused):
        mqtt.subscribe("d")
    assert mqtt.unsubscribe(["a", "b", "of an earlier life"]) == [0, 0, 0]
    assert split(broker.of(10)[0])[0][4:] == text(b"a") + text(b"b") + text(b"of an earlier life")
    assert mqtt.unsubscribe("c") == 0
    assert [one.filter for one in mqtt.session.subscriptions] == [b"d", b"e"]
    mqtt.disconnect()
    assert mqtt.subscribe(["x"]) == [None] and mqtt.unsubscribe("x") is None


@pytest.mark.req("R4")
def test_umqtt_callback_gets_messages_received_before_it_was_set():
    broker = Loopback()
    mqtt = MQTTClient("me", "127.0.0.1", broker.port, feed=broker)
    mqtt.connect(False)
    broker.give(publish(b"a", b"1", 1, 7))
    for _ in range(3):
        mqtt.check_msg()
    assert broker.of(4) == []
    seen = []
    mqtt.set_callback(lambda topic, payload: seen.append((topic, payload)))
    while not broker.of(4):
        mqtt.check_msg()
        broker()
    assert seen == [(b"a", b"1")]
    mqtt.disconnect()


@pytest.mark.req("R4")
def test_messages_waiting_at_disconnect_are_delivered_after_reconnect():
    broker, mqtt = connected()
    broker.give(publish(b"a", b"1", 1, 1), publish(b"a", b"2", 2, 2), pubrel(2))
    turn(broker, mqtt)
    mqtt.disconnect()
    assert mqtt.session.waiting.entries == [] and mqtt.session.waiting.bytes == 0 and mqtt.session.store.held() == [2]
    broker.present = 1
    seen = []
    mqtt.on_message = lambda m: seen.append(m.payload)
    mqtt.connect()
    assert seen == []
    broker.give(publish(b"a", b"1", 1, 1, dup=1), pubrel(2))
    poll_until(mqtt, lambda: len(acknowledged(broker)) == 2)
    assert seen == [b"1", b"2"]
    mqtt.disconnect()


@pytest.mark.req("Q4", "R4")
@pytest.mark.parametrize("qos", [1, 2])
def test_first_message_comes_again_if_there_was_no_memory_for_its_object(qos):
    broker, mqtt = connected()
    broker.present = 1
    got = []
    mqtt.on_message = lambda message: got.append(message.payload)
    fail_once(mqtt.session, "load_message", ConnectionLost("no memory"))  # what it makes of a MemoryError
    deliver(broker, mqtt, b"a", b"x", qos, 7)
    poll_until(mqtt, lambda: broker.connects == 2)
    broker.give(pubrel(7) if qos == 2 else publish(b"a", b"x", 1, 7, dup=1))
    poll_until(mqtt, lambda: acknowledged(broker) == [7])
    assert got == [b"x"]
    mqtt.disconnect()


@pytest.mark.req("Q1", "R4")
@pytest.mark.parametrize("name", ["load_message", "acknowledged", "connected", "request"])
def test_packet_that_was_read_when_no_memory_was_left_comes_again(name):
    """Also if no memory is left for the ConnectionLost of `load_message`."""
    broker, mqtt = connected(response_s=0, keep_alive_s=0)
    broker.present = 1
    got = []
    mqtt.on_message = lambda message: got.append(message.payload)
    mqtt.subscribe("a", 1, mqtt.on_message)
    owner = mqtt.session
    if name == "acknowledged":
        owner = mqtt.connection
        name = "_acknowledged"
    elif name == "request":
        owner = mqtt.session.requests
        name = "answered"
    fail_once(owner, name)
    handle = mqtt.publish("b", b"1", 1)
    if name == "connected":
        broker.drop()
    else:
        broker.give(publish(b"a", b"x", 1, 7))
    with pytest.raises(MemoryError):
        if name == "answered":
            mqtt.subscribe("b", 1)
        poll_until(mqtt, lambda: False)
    poll_until(mqtt, lambda: broker.connects == (3 if name == "connected" else 2) and mqtt.connected)
    broker.give(publish(b"a", b"x", 1, 7, dup=1))
    poll_until(mqtt, lambda: mqtt.delivered(handle) and got)
    assert mqtt.subscribe("b", 1) == 1
    mqtt.disconnect()


@pytest.mark.req("R4", "B4")
@pytest.mark.parametrize("fails", ["note", "call"])
def test_lost_connection_is_reported_although_no_memory_was_left_at_first(fails):
    _, mqtt = connected(backoff=Backoff(500, 500, random_below=lambda n: 400))
    told = []
    mqtt.on_connect = lambda present: told.append("connected")
    mqtt.on_disconnect = lambda error: told.append("disconnected")
    mqtt.link.fail(ConnectionLost("cut"), ticks_ms())
    if fails == "call":
        mqtt.poll(None)  # leaves the call of `on_disconnect` to the next poll
    assert told == []
    heap_lock()
    try:
        mqtt.poll()
    except MemoryError:
        pass
    finally:
        heap_unlock()
    for _ in range(2):
        poll_until(mqtt, lambda: mqtt.connected and told[-1:] == ["connected"])
        assert told == ["disconnected", "connected"]
        told.clear()
        mqtt.link.fail(ConnectionLost("cut"), ticks_ms())
    mqtt.disconnect()


CALLS = [("held_length", 1), ("can_hold", 1), ("hold_begin", 1), ("hold_extend", 1), ("hold_extend", 3)]


@pytest.mark.req("Q4", "R2", "R4")
@pytest.mark.parametrize("name, call, error", [(name, call, error) for name, call in CALLS for error in FAILURES])
def test_long_qos_2_message_comes_again_after_the_store_failed(name, call, error):
    store = RamStore()
    broker, mqtt = connected(store=store, buffer_bytes=128, chunks=True)
    broker.present = 1
    seen = []
    mqtt.subscribe("a", 2, lambda m: seen.append(bytes(m.payload)))
    fail_once(store, name, error, call)
    long = bytes(range(250)) * 2
    broker.give(publish(b"a", long, 2, 1))
    begin = ticks_ms()
    with pytest.raises(error):
        while broker.connects == 1:
            assert ticks_diff(ticks_ms(), begin) < 5000, "the store did not fail"
            mqtt.poll(5)
    poll_until(mqtt, lambda: broker.connects == 2 and mqtt.connected)
    assert broker.of(5) == [] and seen == []
    broker.give(publish(b"a", long, 2, 1, dup=1))
    poll_until(mqtt, lambda: broker.of(5))
    broker.give(pubrel(1))
    poll_until(mqtt, lambda: acknowledged(broker) == [1])
    assert b"".join(seen) == long and not store.held()
    mqtt.disconnect()


NAMES = ("held_length", "can_hold", "hold", "read_held")


@pytest.mark.req("Q4", "R4")
@pytest.mark.parametrize("name, error", [(name, error) for name in NAMES for error in FAILURES[:2]])
def test_qos_2_packet_is_processed_once_more_after_the_store_failed(name, error):
    store = RamStore()
    broker, mqtt = connected(store=store)
    seen = []
    mqtt.subscribe("a", 2, lambda m: seen.append(m.payload))
    fail_once(store, name, error)
    broker.give(publish(b"a", b"1", 2, 1))
    raised = 0
    released = False
    begin = ticks_ms()
    while not acknowledged(broker):
        assert ticks_diff(ticks_ms(), begin) < 5000, "the flow does not continue"
        try:
            mqtt.poll(5)
        except error:
            raised += 1
            if raised == 1:
                fail_once(store, name, error)
        if broker.of(5) and not released:
            released = True
            broker.give(pubrel(1))
    turn(broker, mqtt)
    assert raised == 2 and broker.connects == 1 and seen == [b"1"] and not store.held()
    mqtt.disconnect()


@pytest.mark.req("Q3", "R2", "R4")
def test_long_qos_1_message_interrupted_between_two_pieces_comes_again_from_its_beginning():
    broker, mqtt = connected(buffer_bytes=128, chunks=True)
    broker.present = 1
    seen = []
    mqtt.on_message = lambda m: seen.append((m.offset, bytes(m.payload)))
    works = long_messages.show_packet

    def interrupted(session, packet):
        if packet.payload_offset:
            long_messages.show_packet = works
            raise KeyboardInterrupt
        works(session, packet)

    long_messages.show_packet = interrupted
    long = bytes(range(250)) * 2
    broker.give(publish(b"a", long, 1, 1))
    begin = ticks_ms()
    with pytest.raises(KeyboardInterrupt):
        while ticks_diff(ticks_ms(), begin) < 5000:
            mqtt.poll(5)
    turn(broker, mqtt)
    assert acknowledged(broker) == [] and len(seen) == 1
    reconnect(broker, mqtt)
    broker.give(publish(b"a", long, 1, 1, dup=1))
    poll_until(mqtt, lambda: acknowledged(broker) == [1])
    assert seen[1][0] == 0 and b"".join([payload for _, payload in seen[1:]]) == long
    mqtt.disconnect()


@pytest.mark.req("R4")
@pytest.mark.parametrize("qos", [0, 1])
def test_message_behind_a_qos_2_message_is_handed_over_after_the_store_failed(qos):
    store = RamStore()
    broker, mqtt = connected(store=store)
    seen = []

    def handler(message):
        seen.append(message.payload)
        if len(seen) == 1:
            fail_once(store, "sync", FlashFailed("once"))

    mqtt.on_message = handler
    broker.give(publish(b"a", b"1", 2, 1), pubrel(1), publish(b"a", b"2", qos, 2))
    with pytest.raises(FlashFailed):
        poll_until(mqtt, lambda: len(seen) == 2)
    poll_until(mqtt, lambda: len(acknowledged(broker)) == 1 + qos)
    assert seen == [b"1", b"2"] and broker.connects == 1
    mqtt.disconnect()


@pytest.mark.req("Q4", "R2", "R4")
@pytest.mark.parametrize("name,n", [("load_inbound", 1), ("load_long", 300)])
def test_first_message_comes_again_if_there_was_no_memory_for_its_module(name, n):
    broker, mqtt = connected(buffer_bytes=128, chunks=True)
    broker.present = 1
    seen = []
    mqtt.on_message = lambda m: seen.append(bytes(m.payload))
    fail_once(mqtt.session, name)
    broker.give(publish(b"a", bytes(n), 2, 1))
    poll_until(mqtt, lambda: broker.connects == 2)
    broker.give(publish(b"a", bytes(n), 2, 1, dup=1), pubrel(1))
    poll_until(mqtt, lambda: acknowledged(broker) == [1])
    assert b"".join(seen) == bytes(n)
    mqtt.disconnect()


@pytest.mark.req("Q4", "R2", "R4")
@pytest.mark.parametrize("n, error", [(1, MemoryError), (1, FlashFailed), (300, MemoryError), (300, FlashFailed)])
def test_qos_2_message_just_taken_is_acknowledged_although_the_store_failed(n, error):
    store = RamStore()
    broker, mqtt = connected(store=store, buffer_bytes=128, chunks=True)
    broker.present = 1
    seen = []
    mqtt.on_message = lambda m: seen.append(bytes(m.payload))
    fail_once(store, "discard", error)
    broker.give(publish(b"a", bytes(n), 2, 1), pubrel(1))
    with pytest.raises(error):
        poll_until(mqtt, lambda: acknowledged(broker) == [1])
    poll_until(mqtt, lambda: acknowledged(broker) == [1])
    assert b"".join(seen) == bytes(n) and not store.held() and broker.connects == 1
    mqtt.disconnect()


@pytest.mark.req("Q4", "R4")
@pytest.mark.parametrize(
    "subscribed, error", [(False, MemoryError), (False, FlashFailed), (True, MemoryError), (True, FlashFailed)]
)
def test_handler_of_a_waiting_qos_2_message_runs_once_although_the_store_failed_after_it(subscribed, error):
    store = RamStore()
    broker, mqtt = connected(store=store)
    handler, seen = failing(note=lambda m: m.payload)
    fail_once(store, "discard", error)
    broker.give(publish(b"a", b"1", 2, 1), pubrel(1))
    poll_until(mqtt, lambda: mqtt.session.waiting)
    with pytest.raises(error):
        if subscribed:
            mqtt.subscribe("a", 2, handler)
        mqtt.on_message = handler
        poll_until(mqtt, lambda: acknowledged(broker) == [1])
    poll_until(mqtt, lambda: acknowledged(broker) == [1])
    assert seen == [b"1"] and not store.held()
    mqtt.disconnect()


@pytest.mark.req("R1", "Q4")
def test_message_like_the_last_one_is_right_after_a_held_message():
    broker, mqtt = connected()
    seen = []
    mqtt.on_message = lambda m: seen.append((m.topic, m.payload, m.qos))
    like = publish(b"a", b"1", 1, 1)
    for packet in (publish(b"bb", b"held", 2, 9), like, like, pubrel(9), like, like):
        broker.give(packet)
        turn(broker, mqtt)  # each packet is read alone, and begins where the one before it began
    assert seen == [("a", b"1", 1)] * 2 + [("bb", b"held", 2)] + [("a", b"1", 1)] * 2
    mqtt.disconnect()
