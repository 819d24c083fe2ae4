"""Receiving with asyncio: a slow or failing handler blocks only its own messages (Q3, Q4, R4)."""

import sys

import pytest

if sys.implementation.name == "micropython" and ".frozen" not in sys.path:
    sys.path.insert(0, ".frozen")  # where asyncio is

import asyncio

import failing
from flashmqtt.compat import ticks_diff, ticks_ms
from flashmqtt.errors import ConnectionLost, FlashFailed
from flashmqtt.session.ram import RamStore
from loopback import Loopback
from test_aio import PATIENCE_S, client, cut, in_a_loop, run, until
from wire import connack, id_of, publish, pubrel, whole


def acknowledged(broker):
    """Return the packet ids of the PUBACKs and PUBCOMPs, in the order in which they came."""
    return [id_of(one) for one in broker.packets if one[0] >> 4 in (4, 7)]


class Retaining(Loopback):
    """Sends messages before and after every SUBACK."""

    def __init__(self, before, behind):
        super().__init__()
        self.before = before
        self.behind = behind

    def take(self, one):
        if one[0] >> 4 == 8:
            self.give(*self.before)
        super().take(one)
        if one[0] >> 4 == 8:
            self.give(*self.behind)


@pytest.mark.req("R4", "Q7", "R1")
@pytest.mark.parametrize("qos", [0, 1])
def test_retained_messages_wait_for_the_loop_and_block_no_answer(qos):
    async def case(broker):
        async with client(broker) as mqtt:
            assert await mqtt.subscribe("a/#", 1) == 1
            assert await mqtt.subscribe("b", 1) == 1
            assert await mqtt.delivered(await mqtt.publish("c", "x", 1))
            seen = []
            async for message in mqtt:
                seen.append(message.payload)
                if len(seen) == 60:
                    break
            assert seen == [b"%d" % (i % 30) for i in range(60)]
        assert broker.connects == 1

    kept = [publish(b"a/b", b"%d" % i, qos, i + 1, retain=1) for i in range(30)]
    run(case, Retaining(kept[:15], kept[15:]))


@pytest.mark.req("Q3", "R4", "R1")
@pytest.mark.parametrize("waited_for", [False, True])
@in_a_loop
async def test_messages_received_before_the_loop_starts_are_delivered_to_it(broker, waited_for):
    async with client(broker) as mqtt:
        broker.give(publish(b"a", b"1", 1, 1), publish(b"a", b"2", 2, 2), publish(b"a", b"3"), pubrel(2))
        await asyncio.sleep(0.1)
        await mqtt.subscribe("a", 2)
        assert acknowledged(broker) == []
        seen = []
        while len(seen) < 3:
            if waited_for:
                message = await asyncio.wait_for(mqtt.__anext__(), PATIENCE_S)
            else:
                message = await mqtt.__anext__()
            seen.append(message.payload)
            assert await mqtt.delivered(await mqtt.publish("b", "x", 1), PATIENCE_S)
            assert await mqtt.subscribe("c", 1, None, PATIENCE_S) == 1
        assert sorted(seen) == [b"1", b"2", b"3"]
        if waited_for:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(mqtt.__anext__(), 0.05)
        else:
            broker.give(publish(b"a", b"4"))
            await mqtt.__anext__()
        await until(lambda: sorted(acknowledged(broker)) == [1, 2])
        assert broker.connects == 1


@pytest.mark.req("Q3")
@in_a_loop
async def test_timed_out_wait_loses_no_message(broker):
    async with client(broker) as mqtt:
        await mqtt.subscribe("a", 1)
        seen = []
        given = turns = 0
        while len(seen) < 200:
            if given - len(seen) < 3 and given < 200:
                given += 1
                broker.give(publish(b"a", b"%d" % given, 1, given))
            turns += 1
            try:
                message = await asyncio.wait_for(mqtt.__anext__(), 0.001 * (turns % 3))
            except asyncio.TimeoutError:  # noqa: UP041  # MicroPython's is not the built-in one
                continue
            seen.append(int(message.payload))
        assert seen == list(range(1, 201))


@pytest.mark.req("Q3")
@in_a_loop
async def test_message_returned_to_an_ended_task_is_delivered_again(broker):
    async with client(broker) as mqtt:
        await mqtt.subscribe("a", 1)
        broker.give(publish(b"a", b"1", 1, 1), publish(b"a", b"2", 1, 2))
        await asyncio.create_task(mqtt.__anext__())  # MicroPython's wait_for does so, and may drop the result
        message = await mqtt.__anext__()
        assert message.payload == b"1"
        message = await mqtt.__anext__()
        assert message.payload == b"2"
        await until(lambda: acknowledged(broker) == [1])


@pytest.mark.req("Q4", "R4")
@in_a_loop
async def test_message_that_one_task_waits_for_is_not_returned_to_another_one_as_well(broker):
    async with client(broker) as mqtt:
        await mqtt.subscribe("a", 2)
        broker.give(publish(b"a", b"1", 2, 1), pubrel(1))
        first = asyncio.create_task(mqtt.__anext__())  # as `wait_for` does
        await until(first.done)
        second = asyncio.create_task(mqtt.__anext__())  # before the task that called `wait_for` runs again
        await asyncio.sleep(0.01)
        assert (await first).payload == b"1"
        await until(lambda: acknowledged(broker) == [1])
        broker.give(publish(b"a", b"2"))
        assert (await second).payload == b"2"


@pytest.mark.req("Q4", "R4")
@pytest.mark.parametrize("qos", [1, 2])
@in_a_loop
async def test_message_that_one_task_waited_for_is_not_returned_to_another_one_after_a_disconnect(broker, qos):
    broker.present = 1
    mqtt = client(broker)
    await mqtt.connect()
    await mqtt.subscribe("a", 2)
    broker.give(*whole(b"a", b"1", qos, 1))
    first = asyncio.create_task(mqtt.__anext__())  # as `wait_for` does
    await until(first.done)
    second = asyncio.create_task(mqtt.__anext__())  # before the task that called `wait_for` runs again
    await asyncio.sleep(0)
    assert (await first).payload == b"1"
    await mqtt.disconnect()
    with pytest.raises(StopAsyncIteration):
        await second
    await mqtt.connect()
    broker.give(publish(b"a", b"1", 1, 1, dup=1) if qos == 1 else pubrel(1), publish(b"a", b"2"))
    assert (await mqtt.__anext__()).payload == b"2"
    await until(lambda: acknowledged(broker) == [1])
    await mqtt.disconnect()


@pytest.mark.req("Q3", "R4")
@pytest.mark.parametrize("qos", [1, 2])
@in_a_loop
async def test_message_that_comes_once_more_is_not_acknowledged_if_its_task_is_cancelled(broker, qos):
    async with client(broker) as mqtt:
        await mqtt.subscribe("a", 2)
        broker.give(*whole(b"a", b"1", qos, 1))
        lost = asyncio.create_task(mqtt.__anext__())  # its result is never read
        await until(lost.done)
        seen = []

        async def work():
            async for message in mqtt:
                seen.append(message.payload)
                await asyncio.sleep(PATIENCE_S)

        task = asyncio.create_task(work())
        await until(lambda: seen)
        task.cancel()
        await until(task.done)
        again = asyncio.create_task(mqtt.__anext__())
        await until(lambda: again.done() or acknowledged(broker))
        assert acknowledged(broker) == [] and seen == [b"1"]
        assert (await again).payload == b"1"


@pytest.mark.req("Q3", "Q4", "R4")
@pytest.mark.parametrize(
    ("waits", "qos", "length"), [("loop", 1, 1), ("loop", 2, 300), ("on_message", 2, 1), ("on_message", 1, 300)]
)
@in_a_loop
async def test_message_of_a_cancelled_task_goes_to_who_waits_for_messages(broker, waits, qos, length):
    async with client(broker, buffer_bytes=128, chunks=True) as mqtt:
        await mqtt.subscribe("a", 2)
        seen = []

        async def work(name, patience_s):
            async for message in mqtt:
                seen.append((name, message.offset))
                await asyncio.sleep(patience_s)

        first = asyncio.create_task(work("first", PATIENCE_S))
        await asyncio.sleep(0)
        broker.give(*whole(b"a", bytes(length), qos, 1))
        await until(lambda: seen)
        if waits == "loop":
            second = asyncio.create_task(work("second", 0))
            await asyncio.sleep(0.01)
        else:
            mqtt.on_message = lambda message: seen.append(("second", message.offset))
        first.cancel()
        await until(lambda: acknowledged(broker) == [1])
        assert seen[:2] == [("first", 0), ("second", 0)]
        assert await mqtt.delivered(await mqtt.publish("b", "x", 1), PATIENCE_S)
        if waits == "loop":
            second.cancel()


@pytest.mark.req("Q3", "R4")
@in_a_loop
async def test_message_whose_loop_raised_is_delivered_again(broker):
    async with client(broker) as mqtt:
        await mqtt.subscribe("a", 1)

        async def consumer():
            async for message in mqtt:
                raise ValueError(message.payload)

        broker.give(publish(b"a", b"1", 1, 1))
        with pytest.raises(ValueError):
            await asyncio.create_task(consumer())
        message = await mqtt.__anext__()
        assert message.payload == b"1" and message.failures == 1
        assert acknowledged(broker) == []


@pytest.mark.req("Q3", "Q4", "R4")
@pytest.mark.parametrize("qos", [1, 2])
@in_a_loop
async def test_message_whose_body_raised_out_of_async_with_is_delivered_again_to_the_same_task(broker, qos):
    mqtt = client(broker)
    broker.present = 1
    seen = []
    with pytest.raises(ValueError):
        async with mqtt:
            await mqtt.subscribe("a", 2)
            broker.give(*whole(b"a", b"1", qos, 1))
            async for message in mqtt:
                seen.append(message.payload)
                raise ValueError
    assert acknowledged(broker) == []
    async with mqtt:
        broker.give(publish(b"a", b"1", 1, 1, dup=1) if qos == 1 else pubrel(1))
        async for message in mqtt:
            seen.append(message.payload)
            if len(seen) == 3:
                break
            broker.give(publish(b"a", b"2"))
    await until(lambda: acknowledged(broker) == [1])
    assert seen == [b"1", b"1", b"2"]


@pytest.mark.req("R4")
@in_a_loop
async def test_iteration_ends_at_disconnect_and_works_after_reconnect(broker):
    mqtt = client(broker)
    seen = []

    async def consumer():
        async for message in mqtt:
            seen.append(message.payload)  # noqa: PERF401
        return "ended"

    early = asyncio.create_task(consumer())
    await mqtt.connect()
    other = asyncio.create_task(consumer())
    broker.give(publish(b"a", b"1"))
    await until(lambda: seen)
    await mqtt.disconnect()
    assert await early == "ended" and await other == "ended" and await consumer() == "ended"
    await mqtt.connect()
    again = asyncio.create_task(consumer())
    broker.give(publish(b"a", b"2"))
    await until(lambda: len(seen) == 2)
    await mqtt.disconnect()
    assert await again == "ended" and seen == [b"1", b"2"]


@pytest.mark.req("R4", "Q6")
@pytest.mark.clause("MQTT-4.6.0-2", "5:MQTT-4.6.0-2")
@in_a_loop
async def test_slow_async_handler_delays_only_its_own_messages(broker):
    async with client(broker) as mqtt:
        gate = asyncio.Event()
        seen = []

        async def slow(message):
            await gate.wait()
            seen.append(message.payload)

        class Device:
            async def quick(self, message):
                await mqtt.delivered(await mqtt.publish("echo", message.payload, 1))
                seen.append(message.payload)

        await mqtt.subscribe("slow", 2, slow)
        await mqtt.subscribe("quick", 2, Device().quick)
        await mqtt.subscribe("plain", 2, lambda m: seen.append(m.payload))
        broker.give(publish(b"slow", b"s1", 1, 1), publish(b"slow", b"s2", 1, 2))
        broker.give(
            publish(b"quick", b"q1", 1, 3), publish(b"quick", b"q2", 2, 4), pubrel(4), publish(b"plain", b"p", 1, 5)
        )
        await until(lambda: len(seen) == 3)
        assert sorted(seen) == [b"p", b"q1", b"q2"] and seen.index(b"q1") < seen.index(b"q2")
        await until(lambda: acknowledged(broker) == [4])
        gate.set()
        await until(lambda: len(acknowledged(broker)) == 5)
        assert acknowledged(broker) == [4, 1, 2, 3, 5] and seen[3:] == [b"s1", b"s2"]


@pytest.mark.req("Q3", "R1", "R4")
@in_a_loop
async def test_message_whose_handler_is_removed_just_before_its_call_is_not_lost(broker):
    seen = []

    async def remove():
        await mqtt.subscribe("a", 1)

    async def handler(message):
        seen.append(message.payload)
        asyncio.create_task(remove())  # it begins before the task of the next message  # noqa: RUF006

    async with client(broker) as mqtt:
        await mqtt.subscribe("a", 1, handler)
        broker.give(publish(b"a", b"1", 1, 1), publish(b"a", b"2", 1, 2))
        await until(lambda: seen and len(broker.of(8)) == 2)
        assert seen == [b"1"] and acknowledged(broker) == [1]
        async for message in mqtt:
            seen.append(message.payload)
            break
        assert seen == [b"1", b"2"]


@pytest.mark.req("Q6", "R4")
@in_a_loop
async def test_on_message_works_on_one_message_at_a_time(broker):
    log = []

    async def slow(message):
        payload = message.payload
        log.append(b"begin " + payload)
        await asyncio.sleep(0.02)
        log.append(b"end " + payload)

    mqtt = client(broker)
    mqtt.on_message = slow
    async with mqtt:
        broker.give(publish(b"a", b"1", 1, 1), publish(b"a", b"2", 1, 2), publish(b"b", b"3"))
        await until(lambda: len(log) == 6)
        assert log == [b"begin 1", b"end 1", b"begin 2", b"end 2", b"begin 3", b"end 3"]


@pytest.mark.req("Q6", "R4")
@in_a_loop
async def test_no_message_overtakes_the_one_that_on_message_is_called_again_with(broker):
    log = []

    def failing(message):
        log.append(message.payload)
        if len(log) < 3:
            raise ValueError("called again after 1 s, and after 2 s")

    mqtt = client(broker)
    mqtt.on_message = failing
    mqtt.on_error = lambda error, message: None
    async with mqtt:
        broker.give(publish(b"a", b"1", 1, 1), publish(b"a", b"2", 1, 2), publish(b"b", b"3"))
        await until(lambda: b"3" in log)
        assert log == [b"1", b"1", b"1", b"2", b"3"]


@pytest.mark.req("R4", "R5")
@in_a_loop
async def test_message_whose_handler_always_fails_is_acknowledged_and_discarded(broker):
    async with client(broker, attempts=2) as mqtt:
        errors = []
        seen = []

        async def on_error(error, message):
            await asyncio.sleep(0)
            errors.append((type(error), message and message.payload))

        async def fail(message):
            if message.payload == b"poison":
                raise ValueError("mine")
            seen.append(message.payload)

        mqtt.on_error = on_error
        mqtt.on_message = fail
        broker.give(publish(b"a", b"poison", 2, 1), pubrel(1), publish(b"a", b"next", 1, 2), publish(b"a", b"poison"))
        await until(lambda: len(errors) == 3)
        await until(lambda: sorted(acknowledged(broker)) == [1, 2])
        assert seen == [b"next"] and mqtt.failed == 2
        assert errors == [(ValueError, b"poison")] * 3

        async def on_delivered(handle):
            raise KeyError(handle)

        mqtt.on_delivered = on_delivered
        handle = await mqtt.publish("b", "x", 1)
        assert await mqtt.delivered(handle)
        await until(lambda: len(errors) == 4)
        assert errors[3] == (KeyError, None) and broker.connects == 1


@pytest.mark.req("R4")
@in_a_loop
async def test_error_without_on_error_goes_to_the_event_loop(broker):
    told = []
    loop = asyncio.get_event_loop()
    loop.set_exception_handler(lambda loop, context: told.append(type(context["exception"])))

    async with client(broker, attempts=1) as mqtt:

        def fail(message):
            raise ValueError("mine")

        await mqtt.subscribe("a", 1, fail)
        broker.give(publish(b"a", b"x", 1, 1))
        await until(lambda: acknowledged(broker) == [1])
        assert told == [ValueError] and mqtt.failed == 1 and mqtt.connected
    loop.set_exception_handler(None)


@pytest.mark.req("Q3", "Q4")
@in_a_loop
async def test_message_handled_while_disconnected_is_not_delivered_twice(broker):
    async with client(broker) as mqtt:
        broker.present = 1
        await mqtt.subscribe("a", 1)
        broker.give(publish(b"a", b"1", 1, 1), publish(b"a", b"2", 1, 2))
        seen = []
        async for message in mqtt:
            seen.append(message.payload)
            if len(seen) == 1:
                await cut(broker, mqtt)
                await until(lambda: mqtt.connected and broker.connects == 2)
                broker.give(
                    publish(b"a", b"1", 1, 1, dup=1), publish(b"a", b"2", 1, 2, dup=1), publish(b"a", b"3", 1, 3)
                )
            if len(seen) == 3:
                break
        assert seen == [b"1", b"2", b"3"]
    await until(lambda: acknowledged(broker) == [1, 2, 3])


@pytest.mark.req("Q4", "R4")
@pytest.mark.parametrize(
    "subscribed, error", [(False, MemoryError), (True, MemoryError), (False, FlashFailed), (True, FlashFailed)]
)
@in_a_loop
async def test_handler_of_a_qos_2_message_just_taken_runs_once_although_the_store_failed_after_it(
    broker, subscribed, error
):
    store = RamStore()
    failing.fail_once(store, "discard", error("once"))
    broker.present = 1
    seen = []
    handler = lambda message: seen.append(bytes(message.payload))  # noqa: E731
    async with client(broker, store=store) as mqtt:
        mqtt.on_message = None if subscribed else handler
        await mqtt.subscribe("a", 2, handler if subscribed else None)
        broker.give(publish(b"a", b"1", 2, 1), pubrel(1))
        await until(lambda: mqtt.connected and broker.connects == 2)
        broker.give(pubrel(1), publish(b"a", b"2"))
        await until(lambda: acknowledged(broker) == [1] and b"2" in seen)
        assert seen == [b"1", b"2"] and not store.held()


@pytest.mark.req("R4")
@in_a_loop
async def test_disconnect_cancels_handlers_and_their_messages_are_delivered_again(broker):
    store = RamStore()
    mqtt = client(broker, store=store)
    await mqtt.connect()
    began = []

    async def work(message):
        began.append(message.payload)
        await asyncio.sleep(PATIENCE_S)

    await mqtt.subscribe("#", 2, work)
    broker.give(publish(b"a", b"1", 2, 1), pubrel(1), publish(b"a", b"2", 1, 2))
    await until(lambda: began == [b"1"])
    await mqtt.disconnect()
    assert store.held() == [1] and acknowledged(broker) == [] and mqtt.session.waiting.entries == []
    broker.present = 1
    seen = []
    await mqtt.subscribe("#", 2, lambda m: seen.append(m.payload))
    await mqtt.connect()
    broker.give(pubrel(1), publish(b"a", b"2", 1, 2, dup=1))
    await until(lambda: len(acknowledged(broker)) == 2)
    assert seen == [b"1", b"2"]
    await mqtt.disconnect()


@pytest.mark.req("R4")
def test_long_publish_and_disconnect_do_not_block_other_tasks():
    if sys.implementation.name == "micropython":
        pytest.skip("this heap has no room for a message that fills the system's buffers")

    async def case(broker):
        worst = 0

        async def beat():
            nonlocal worst
            while True:
                begin = ticks_ms()
                await asyncio.sleep(0.005)
                worst = max(worst, ticks_diff(ticks_ms(), begin))

        mqtt = client(broker, timeout_s=1)
        await mqtt.connect()
        broker.deaf = True
        beating = asyncio.create_task(beat())
        await mqtt.publish("a", b"x" * 10000000)
        await mqtt.disconnect()
        beating.cancel()
        # A client that blocks the event loop would block it for timeout_s, which is 1 s here.
        assert worst < 900
        broker.deaf = False

    run(case)


@pytest.mark.req("Q0")
@in_a_loop
async def test_concurrent_long_and_short_messages_are_sent_intact(broker):
    async with client(broker, buffer_bytes=128) as mqtt:
        tasks = [asyncio.create_task(mqtt.publish("a", b"%d" % i * 3000)) for i in range(1, 6)]
        tasks += [asyncio.create_task(mqtt.publish("b", b"short", i % 2)) for i in range(10)]
        for task in tasks:
            await task
        await mqtt.drain(PATIENCE_S)
        await until(lambda: len(broker.of(3)) == 15)
        long = sorted([one[-3000:] for one in broker.of(3) if len(one) > 3000])
        assert long == [b"%d" % i * 3000 for i in range(1, 6)]
        assert broker.connects == 1


@pytest.mark.req("Q0", "R4")
@in_a_loop
async def test_cancelling_a_long_message_that_waits_for_another_one_keeps_the_connection(broker):
    async with client(broker, buffer_bytes=128) as mqtt:
        first = asyncio.create_task(mqtt.publish("a", b"1" * 20000))
        second = asyncio.create_task(mqtt.publish("a", b"2" * 3000))
        for _ in range(3):
            await asyncio.sleep(0)
        assert not first.done()  # it has sent a part, and the second nothing
        second.cancel()
        await first
        await until(lambda: broker.of(3))
        assert broker.connects == 1 and len(broker.of(3)[0]) > 20000


@pytest.mark.req("W11")
@in_a_loop
async def test_list_of_filters_returns_a_list_of_results(broker):
    async with client(broker) as mqtt:
        assert await mqtt.subscribe([("a", 2), "b"], 1) == [2, 1]
        assert len(broker.of(8)) == 1
        assert await mqtt.unsubscribe(["a", "b", "c"]) == [0, 0, 0]
        assert await mqtt.unsubscribe("of an earlier life") == 0
        assert mqtt.session.subscriptions == []


@pytest.mark.req("R4", "R5", "R1")
@in_a_loop
async def test_unclaimed_message_is_reported_and_dropped(broker):
    async with client(broker, unclaimed_s=0.2) as mqtt:
        told = []

        async def on_unclaimed(message):
            told.append(message.payload)

        mqtt.on_unclaimed = on_unclaimed
        broker.give(publish(b"a", b"1", 1, 1))
        await until(lambda: acknowledged(broker) == [1])
        await until(lambda: told == [b"1"])
        assert mqtt.unclaimed == 1


@pytest.mark.req("B4")
@pytest.mark.parametrize("turns", range(8))
@in_a_loop
async def test_client_reconnects_when_another_task_closes_its_socket(broker, turns):
    async with client(broker) as mqtt:
        broker.present = 1
        await mqtt.subscribe("a", 0, lambda m: None)
        broker.give(publish(b"a", b"x"))  # so that the task ends its wait and begins the next one
        for _ in range(turns):
            await asyncio.sleep(0)
        mqtt.link.fail(ConnectionLost("as a failed write in another task reports it"), ticks_ms())
        await until(lambda: mqtt.connected and broker.connects == 2)
        assert await mqtt.delivered(await mqtt.publish("b", "x", 1), PATIENCE_S)


@pytest.mark.req("R4", "W13")
@pytest.mark.parametrize(
    ("qos", "way"), [(qos, way) for qos in (0, 1, 2) for way in ("loop", "handler", "async handler")]
)
@in_a_loop
async def test_long_message_arrives_in_chunks_at_loop_and_handlers(broker, qos, way):
    long = b"0123456789" * 60
    async with client(broker, buffer_bytes=256, chunks=True, store=RamStore()) as mqtt:
        seen = []

        def note(message):
            if message.offset == 0:
                seen.append(b"")
            seen[-1] += message.payload

        async def note_later(message):
            await asyncio.sleep(0.001)
            note(message)

        await mqtt.subscribe("a", 2, {"loop": None, "handler": note, "async handler": note_later}[way])
        if way == "loop":

            async def consumer():
                async for message in mqtt:
                    note(message)

            task = asyncio.create_task(consumer())
            await asyncio.sleep(0)
        broker.give(publish(b"a", long, qos, 1), publish(b"a", b"short", 1, 2))
        if qos == 2:
            await until(lambda: broker.of(5))
            broker.give(pubrel(1))
        await until(lambda: len(seen) == 2 and len(seen[0] + seen[1]) == 605)
        await until(lambda: sorted(acknowledged(broker)) == ([1, 2] if qos else [2]))
        assert sorted(seen) == [long, b"short"] and broker.connects == 1
        if way == "loop":
            task.cancel()


@pytest.mark.req("Q4", "R2", "R4")
@pytest.mark.parametrize("way", ["plain", "awaited", "loop"])
@in_a_loop
async def test_piece_of_a_qos_2_message_whose_handler_disconnects_is_not_handed_over_again(broker, way):
    broker.present = 1
    mqtt = client(broker, buffer_bytes=128, chunks=True)
    seen = []
    ends = []

    def plain(message):
        seen.append(message.offset)
        ends.append(asyncio.create_task(mqtt.disconnect()))

    async def awaited(message):
        seen.append(message.offset)
        await mqtt.disconnect()

    mqtt.on_message = {"plain": plain, "awaited": awaited, "loop": None}[way]
    await mqtt.connect()
    broker.give(publish(b"a", bytes(300), 2, 1), pubrel(1))
    for n in range(1, 4):
        if way == "loop":
            async for message in mqtt:
                await awaited(message)
        await until(lambda: len(seen) == n and not mqtt._task)  # noqa: B023
        mqtt.start()
    await mqtt.connect()
    broker.give(pubrel(1))
    await until(lambda: 1 in acknowledged(broker))
    assert seen == [0, 120, 240]
    await mqtt.disconnect()


@pytest.mark.req("Q3", "R2", "R4")
@in_a_loop
async def test_piece_that_counts_as_taken_acknowledges_no_later_piece(broker):
    mqtt = client(broker, buffer_bytes=128, chunks=True, unclaimed_s=0.1, response_s=0)
    await mqtt.connect()
    broker.give(publish(b"a", bytes(300), 2, 1), pubrel(1))
    assert (await mqtt.__anext__()).topic == "a"
    seen = []

    async def work():
        async for message in mqtt:
            seen.append(message.offset)
            await asyncio.sleep(PATIENCE_S)  # it does not finish with the second piece

    worker = asyncio.create_task(work())
    await until(lambda: seen == [120])
    last = asyncio.create_task(mqtt.disconnect())
    async for _ in mqtt:  # this finishes with the first piece
        pass
    assert mqtt.session.handed  # the second one is not acknowledged, or it would be lost in a power cut
    await last
    worker.cancel()


async def offsets(mqtt, n):
    """Take n pieces; return their offsets."""
    seen = []
    while len(seen) < n:
        seen.append((await mqtt.__anext__()).offset)
    return seen


@pytest.mark.req("R2", "R4")
@pytest.mark.parametrize("qos", [0, 1, 2])
@in_a_loop
async def test_piece_that_the_program_keeps_does_not_stop_reading_for_good(broker, qos):
    broker.present = 1
    async with client(broker, buffer_bytes=128, chunks=True, unclaimed_s=0.1, response_s=0) as mqtt:
        broker.give(*whole(b"a", bytes(300), qos, 1))
        message = await asyncio.create_task(mqtt.__anext__())
        assert (message.topic, message.offset, message.more) == ("a", 0, True)
        assert await mqtt.subscribe("b", 1, None, PATIENCE_S) == 1
        await until(lambda: mqtt.missed + mqtt.unclaimed == 1 and acknowledged(broker) == [1][:qos])
        broker.drop()
        await until(lambda: broker.connects == 2 and mqtt.connected)


@pytest.mark.req("R2", "R4")
@in_a_loop
async def test_handler_that_keeps_the_last_piece_does_not_stop_reading_for_good(broker):
    async with client(broker, buffer_bytes=128, chunks=True, unclaimed_s=0.1, response_s=0) as mqtt:
        seen = []

        async def handler(message):
            seen.append(message.offset)
            while message.offset == 120 and len(seen) < 5:
                await asyncio.sleep(0.01)

        await mqtt.subscribe("a", 2, handler)
        broker.give(publish(b"a", bytes(200), 1, 1), publish(b"c", b""), publish(b"a", b"", 1, 2))
        await until(lambda: acknowledged(broker) == [1])
        assert (await mqtt.__anext__()).topic == "c"
        assert seen == [0, 120]  # a handler works on one message at a time
        seen += [1] * 3
        await until(lambda: acknowledged(broker) == [1, 2])
        assert seen[5:] == [0]


@pytest.mark.req("R2", "R4")
@pytest.mark.parametrize("qos", [0, 1, 2])
@in_a_loop
async def test_lost_connection_is_noticed_while_the_program_works_on_a_piece(broker, qos):
    broker.present = 1
    async with client(broker, buffer_bytes=128, chunks=True) as mqtt:
        broker.give(*whole(b"a", bytes(300), qos, 1))
        assert (await mqtt.__anext__()).offset == 0
        broker.drop()
        while broker.connects == 1 or not mqtt.connected:
            await mqtt.publish("b", "x", 1)
            await asyncio.sleep(0.01)
        if qos < 2:
            broker.give(publish(b"a", bytes(300), qos, 1, dup=qos))
        assert await offsets(mqtt, 2) == [120, 240] if qos == 2 else [0, 120]


@pytest.mark.req("Q4", "R2", "R4")
@pytest.mark.parametrize(
    ("finished", "n"), [(when, n) for when in ("before", "while connecting", "after") for n in (0, 2)]
)
@in_a_loop
async def test_piece_of_a_qos_2_message_is_not_handed_over_again_after_a_disconnect_and_connect(broker, finished, n):
    broker.present = 1
    mqtt = client(broker, buffer_bytes=128, chunks=True)
    await mqtt.connect()
    broker.give(publish(b"a", bytes(300), 2, 1), pubrel(1))
    seen = []
    going_on = asyncio.Event()

    async def work():
        while len(seen) < 3:
            try:
                async for message in mqtt:
                    seen.append(message.offset)
                    if len(seen) == n + 1:
                        await going_on.wait()
            except Exception:
                seen.append("failed")
            await asyncio.sleep(0.001)

    worker = asyncio.create_task(work())
    await until(lambda: len(seen) == n + 1)
    await mqtt.disconnect()
    broker.silent = finished == "while connecting"
    if finished == "before":
        going_on.set()
        await asyncio.sleep(0.02)
    mqtt.start()
    await until(lambda: len(broker.of(1)) == 2)
    if broker.silent:
        going_on.set()
        await asyncio.sleep(0.02)
        broker.silent = False
        broker.give(connack(1))
    await until(lambda: mqtt.connected)
    broker.give(pubrel(1))
    await asyncio.sleep(0.05)
    going_on.set()
    await until(lambda: acknowledged(broker) == [1])
    assert seen == [0, 120, 240]
    await mqtt.disconnect()
    worker.cancel()


@pytest.mark.req("R4", "W13", "R1")
@pytest.mark.parametrize("qos", [1, 2])
@in_a_loop
async def test_unclaimed_long_message_blocks_nothing_and_reaches_a_later_handler(broker, qos):
    long = b"0123456789" * 60
    async with client(broker, buffer_bytes=256, chunks=True, store=RamStore()) as mqtt:
        broker.present = 1
        broker.give(publish(b"a", long, qos, 1))
        if qos == 2:
            await until(lambda: broker.of(5))
            broker.give(pubrel(1))
        await asyncio.sleep(0.1)
        assert await mqtt.subscribe("b", 1) == 1
        assert await mqtt.delivered(await mqtt.publish("c", "x", 1))
        assert acknowledged(broker) == []
        seen = []
        await mqtt.subscribe("a", 2, lambda m: seen.append(m.payload))
        if qos == 1:
            await until(lambda: broker.connects == 2 and mqtt.connected)
            broker.give(publish(b"a", long, qos, 1, dup=1))
        await until(lambda: acknowledged(broker) == [1])
        assert b"".join(seen) == long and not mqtt.session.waiting.bytes


@pytest.mark.req("R2", "R4")
@pytest.mark.parametrize("way", ["plain", "awaited", "loop"])
@in_a_loop
async def test_message_behind_a_waiting_long_one_does_not_overtake_it(broker, way):
    async with client(broker, buffer_bytes=128, chunks=True) as mqtt:
        broker.give(publish(b"a/long", bytes(200), 2, 1), pubrel(1), publish(b"a/short", b"x", 1, 2))
        await until(lambda: mqtt.session.waiting and len(mqtt.session.waiting.entries) == 2)
        seen = []

        async def awaited(message):
            await asyncio.sleep(0.01)
            seen.append(message.topic)

        if way == "loop":
            async for message in mqtt:
                seen.append(message.topic)
                if len(seen) == 3:
                    break
        else:
            await mqtt.subscribe("a/#", 2, awaited if way == "awaited" else lambda m: seen.append(m.topic))
            await until(lambda: len(seen) == 3)
        assert seen == ["a/long", "a/long", "a/short"]
    await until(lambda: acknowledged(broker) == [1, 2])
    assert not mqtt.session.waiting.entries


async def fail_once(mqtt):
    """Subscribe to "a" with a handler whose first call fails; return its calls: first byte and offset of each."""
    calls = []

    def handler(message):
        calls.append((message.payload[:1], message.offset))
        if len(calls) == 1:
            raise ValueError("called again after 1 s")

    mqtt.on_error = lambda error, message: None
    await mqtt.subscribe("a", 2, handler)
    return calls


@pytest.mark.req("Q3", "R4")
@pytest.mark.parametrize("length, qos", [(1, 0), (1, 1), (1, 2), (200, 0), (200, 1), (200, 2)])
@in_a_loop
async def test_long_message_behind_a_failed_one_does_not_stop_reading(broker, length, qos):
    """A failed long message can be handed over again only if the connection's next packets are processed."""
    async with client(broker, buffer_bytes=128, chunks=True) as mqtt:
        broker.present = 1
        other = []
        calls = await fail_once(mqtt)
        await mqtt.subscribe("x", 0, lambda message: other.append(len(calls)))
        first = whole(b"a", b"1" * length, 1 if length == 1 else 2, 1)
        broker.give(*first, *whole(b"a", b"2" * 200, qos, 2), publish(b"x", b"y"))
        if length == 1:
            await until(lambda: other)
            assert other == [1]  # before the next attempt
        connects = 1
        while not other or 1 not in acknowledged(broker) or (qos and 2 not in acknowledged(broker)):
            if broker.connects > connects and mqtt.connected:
                connects = broker.connects
                if length > 1:
                    broker.give(pubrel(1))
                elif 1 not in acknowledged(broker):
                    broker.give(publish(b"a", b"1", 1, 1, dup=1))
                if qos == 1:
                    broker.give(publish(b"a", b"2" * 200, 1, 2, dup=1))
            await asyncio.sleep(0.005)
        assert await mqtt.subscribe("z", 0, None, PATIENCE_S) == 0
        taken = [first for first, offset in calls[1:] if not offset]
        assert taken == ([b"1", b"2"] if qos else [b"1"]) and mqtt.missed == (0 if qos else 1)
        assert not mqtt.session.waiting.entries


@pytest.mark.req("R4")
@pytest.mark.parametrize("way", ["plain", "awaited"])
def test_handler_raising_cancelled_error_counts_as_failed(way):
    def plain(message):
        raise asyncio.CancelledError  # as `future.result()` does for a cancelled future

    async def awaited(message):
        await asyncio.sleep(0)
        raise asyncio.CancelledError

    async def case(broker):
        failed = []
        mqtt = client(broker, attempts=2)
        mqtt.on_error = lambda error, message: failed.append((message.payload, message.failures))
        async with mqtt:
            await mqtt.subscribe("a", 2, plain if way == "plain" else awaited)
            broker.give(publish(b"a", b"1", 1, 1), publish(b"a", b"0"))
            await until(lambda: len(failed) == 3)
            assert sorted(failed) == [(b"0", 1), (b"1", 1), (b"1", 2)]
            assert await mqtt.delivered(await mqtt.publish("b", "x", 1), PATIENCE_S)
            assert acknowledged(broker) == [1] and mqtt.failed == 2 and broker.connects == 1

    run(case)


@pytest.mark.req("R4")
@in_a_loop
async def test_callback_raising_cancelled_error_does_not_stop_the_client(broker):
    def cancelled(*arguments):
        raise asyncio.CancelledError

    mqtt = client(broker)
    mqtt.on_connect = mqtt.on_delivered = mqtt.on_error = cancelled
    async with mqtt:
        for _ in range(2):
            assert await mqtt.delivered(await mqtt.publish("b", "x", 1), PATIENCE_S)


@pytest.mark.req("Q4", "R4")
@pytest.mark.parametrize("name", ["_handle", "failed_with"])
@in_a_loop
async def test_message_is_handed_over_although_no_memory_was_left_for_its_handler(broker, name):
    broker.present = 1
    async with client(broker) as mqtt:
        seen = []

        async def handler(message):
            seen.append(message.payload)
            if name == "failed_with" and len(seen) == 1:
                raise ValueError

        owner = mqtt._load_waiting() if name == "failed_with" else mqtt
        works = getattr(owner, name)

        def no_memory(*arguments):
            setattr(owner, name, works)
            raise MemoryError

        setattr(owner, name, no_memory)
        await mqtt.subscribe("a", 2, handler)
        broker.give(publish(b"a", b"1", 2, 1), pubrel(1))
        await until(lambda: broker.connects == 2 and not mqtt.session.store.held())
        assert seen == ([b"1", b"1"] if name == "failed_with" else [b"1"])


class Full(list):
    """A list that has no memory to grow, once."""

    full = True

    def append(self, item):
        if self.full:
            self.full = False
            raise MemoryError
        super().append(item)


@pytest.mark.req("Q4", "R4")
@in_a_loop
async def test_iteration_goes_on_after_no_memory_was_left_to_note_its_message(broker):
    async with client(broker) as mqtt:
        mqtt._held = Full()
        broker.give(publish(b"a", b"1", 2, 1), pubrel(1))
        with pytest.raises(MemoryError):
            await mqtt.__anext__()
        assert (await mqtt.__anext__()).payload == b"1"
