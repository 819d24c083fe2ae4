"""The asyncio face: stored when publish returns, acknowledged when delivered returns, messages one at a time."""

import gc
import sys

import pytest

if sys.implementation.name == "micropython" and ".frozen" not in sys.path:
    sys.path.insert(0, ".frozen")  # where asyncio is

import asyncio

from flashmqtt.aio import Client
from flashmqtt.backoff import Backoff
from flashmqtt.compat import ticks_diff, ticks_ms
from flashmqtt.errors import ConnectionLost, DeadlineExpired, NotAuthorized, SubscriptionRefused, UsageError
from flashmqtt.session.ram import RamStore
from loopback import Flooding, Loopback
from wire import publish, pubrel


def client(broker, **options):
    options.setdefault("backoff", Backoff(base_ms=20, cap_ms=100, lasting_ms=50))
    options.setdefault("timeout_s", 2)
    return Client("127.0.0.1", broker.port, "me", **options)


async def serve(broker):
    while True:
        broker()
        await asyncio.sleep(0.001)


def run(case, seconds=20, broker=None):
    """Run case(broker) beside the broker."""
    broker = broker or Loopback()

    async def both():
        server = asyncio.create_task(serve(broker))
        try:
            await asyncio.wait_for(case(broker), seconds)
        finally:
            server.cancel()
            broker.close()

    if sys.implementation.name == "micropython":
        asyncio.new_event_loop()  # or else tasks of the case before would go on
    asyncio.run(both())


@pytest.mark.req("Q1", "Q2")
def test_publish_returns_stored_and_delivered_returns_acknowledged():
    async def case(broker):
        async with client(broker) as mqtt:
            for qos in (1, 2):
                handle = await mqtt.publish("a", "x", qos)
                await mqtt.delivered(handle, 3)
                assert mqtt.pending == 0
            for i in range(40):
                await mqtt.publish("a", bytes([i]), 1)
            await mqtt.drain(3)
            assert len(broker.of(3)) == 42

    run(case)


@pytest.mark.req("S5", "Q6")
def test_stored_before_there_is_a_connection():
    async def case(broker):
        mqtt = client(broker)
        for i in range(20):
            await mqtt.publish("a", bytes([i]), 1)
        async with mqtt:
            await mqtt.drain(3)
        assert [one[-1] for one in broker.of(3)] == list(range(20))

    run(case)


@pytest.mark.req("Q3", "Q4")
def test_a_message_is_acknowledged_when_the_loop_comes_back():
    async def case(broker):
        async with client(broker) as mqtt:
            await mqtt.subscribe("#", 2)
            broker.give(publish(b"a", b"1", 1, 1), publish(b"b", b"2", 2, 2), publish(b"c", b"3"), pubrel(2))
            seen = []
            async for message in mqtt:
                seen.append((message.topic, message.payload))
                await asyncio.sleep(0.06)
                assert len(broker.of(4)) == (0 if len(seen) == 1 else 1)
                if len(seen) == 3:
                    break
            assert seen == [("a", b"1"), ("c", b"3"), ("b", b"2")]
        await asyncio.sleep(0.02)
        assert len(broker.of(7)) == 1

    run(case)


@pytest.mark.req("Q8", "B4")
def test_dropped_connections_are_made_again():
    async def case(broker):
        async with client(broker) as mqtt:
            broker.present = 1
            for i in range(60):
                await mqtt.publish("a", bytes([i]), 1)
                if i % 20 == 10:
                    broker.drop()
                    await asyncio.sleep(0.1)
            await mqtt.drain(5)
        seen = []
        for one in broker.of(3):
            if one[-1] not in seen:
                seen.append(one[-1])
        assert seen == list(range(60))
        assert broker.connects == 4

    run(case)


@pytest.mark.req("B4")
def test_a_link_that_is_cut_every_time_but_got_a_message_through_is_made_again_soon():
    async def case(broker):
        backoff = Backoff(base_ms=1, cap_ms=200, lasting_ms=60000, step=6)
        async with client(broker, backoff=backoff) as mqtt:
            broker.present = 1
            for i in range(4):
                await mqtt.delivered(await mqtt.publish("a", bytes([i]), 1 + i % 2), 3)
                assert backoff.step == 0
                broker.drop()
                while mqtt.link.connects == i + 1:
                    await asyncio.sleep(0.005)
                assert backoff.step == 1

    run(case)


@pytest.mark.req("B4")
def test_a_socket_that_is_closed_while_the_task_waits_for_it_wakes_it_and_leaves_nothing_behind():
    if sys.implementation.name == "micropython":
        pytest.skip("a board's poller tells of a closed socket by itself")

    async def case(broker):
        import socket

        async with client(broker, backoff=Backoff(base_ms=1, cap_ms=1)) as mqtt:
            await asyncio.sleep(0.05)
            old = mqtt.link.sock.fileno()
            mqtt.link.fail(ConnectionLost("what a write in another task may find"), ticks_ms())
            one, other = socket.socketpair()
            assert old in (one.fileno(), other.fileno())  # its number is somebody else's now
            read = asyncio.Event()
            loop = asyncio.get_running_loop()
            for end in (one, other):
                loop.add_reader(end.fileno(), read.set)
            other.send(b"x")
            await asyncio.sleep(0.2)
            assert read.is_set() and mqtt.connected
            for end in (one, other):
                assert loop.remove_reader(end.fileno())
                end.close()

    run(case)


@pytest.mark.req("W10", "W11")
def test_refusals_are_raised():
    async def case(broker):
        broker.code = 5
        mqtt = client(broker)
        with pytest.raises(NotAuthorized):
            await mqtt.connect()
        await mqtt.disconnect()
        broker.code = 0
        broker.granted = 0x80
        async with client(broker) as mqtt:
            with pytest.raises(SubscriptionRefused):
                await mqtt.subscribe("x", 1)
            assert mqtt.connected

    run(case)


@pytest.mark.req("B4")
def test_connect_has_a_deadline():
    async def case(broker):
        broker.silent = True
        mqtt = client(broker)
        with pytest.raises(ConnectionLost):
            await mqtt.connect(0.2)
        await mqtt.disconnect()

    run(case)


@pytest.mark.req("Q1")
def test_handlers_and_other_tasks_may_publish():
    async def case(broker):
        async with client(broker) as mqtt:
            seen = []
            await mqtt.subscribe("in", 1, lambda message: seen.append(message.payload))

            async def publisher():
                for i in range(10):
                    await mqtt.delivered(await mqtt.publish("out", bytes([i]), 1), 3)

            tasks = [asyncio.create_task(publisher()) for _ in range(3)]
            broker.give(publish(b"in", b"x", 1, 9))
            for task in tasks:
                await task
            assert len(broker.of(3)) == 30
            assert seen == [b"x"]
            assert len(broker.of(4)) == 1

    run(case)


@pytest.mark.req("W13")
def test_other_tasks_run_although_messages_come_without_end():
    async def case(broker):
        async with client(broker, buffer_bytes=128) as mqtt:
            await mqtt.subscribe("a", 0, broker.handle)
            broker.begin(publish(b"a", b"x" * 20) * 40)
            for _ in range(20):
                broker.turn = 0
                await asyncio.sleep(0.01)
                assert broker.turn
            broker.drop()

    run(case, broker=Flooding())


@pytest.mark.req("W13")
def test_waiting_for_an_answer_that_lies_behind_the_message_is_refused():
    async def case(broker):
        async with client(broker) as mqtt:
            await mqtt.subscribe("#", 1)
            broker.give(publish(b"a", b"1", 1, 1))
            async for _ in mqtt:
                handle = await mqtt.publish("b", "2", 1)
                with pytest.raises(UsageError):
                    await mqtt.delivered(handle)
                break

    run(case)


@pytest.mark.req("Q3")
def test_what_a_handler_raises_reaches_who_waits_and_the_client_can_connect_again():
    async def case(broker):
        mqtt = client(broker)
        await mqtt.connect()
        broker.present = 1
        seen = []

        def fail(message):
            raise ValueError("mine")

        await mqtt.subscribe("a", 1, fail)
        broker.give(publish(b"a", b"x", 1, 7))
        for _ in range(2):
            with pytest.raises(ValueError):
                async for _ in mqtt:
                    pass
        await mqtt.disconnect()
        await mqtt.subscribe("a", 1, lambda message: seen.append(message.payload))
        await mqtt.connect()
        broker.give(publish(b"a", b"x", 1, 7, dup=1), publish(b"b", b"y"))
        async for message in mqtt:
            assert message.topic == "b"
            break
        assert seen == [b"x"]
        await mqtt.disconnect()

    run(case)


async def cut(broker, mqtt):
    """Cut the link; return when the client knows."""
    broker.drop()
    while mqtt.connected:
        await mqtt.publish("b", "2")
        await asyncio.sleep(0.01)


@pytest.mark.req("Q4")
def test_a_qos_2_message_taken_while_the_connection_went_does_not_come_again():
    async def case(broker):
        async def release_again():
            while broker.connects == 1:
                await asyncio.sleep(0.01)
            broker.give(pubrel(7), publish(b"a", b"last"))

        async with client(broker) as mqtt:
            broker.present = 1
            await mqtt.subscribe("#", 2)
            broker.give(publish(b"a", b"1", 2, 7), pubrel(7))
            releasing = asyncio.create_task(release_again())
            seen = []
            async for message in mqtt:
                seen.append(message.payload)
                if len(seen) == 2:
                    break
                await cut(broker, mqtt)
            await releasing
            assert seen == [b"1", b"last"]
            while not broker.of(7):
                await asyncio.sleep(0.01)

    run(case)


@pytest.mark.req("Q4")
@pytest.mark.parametrize("gone", [False, True])
def test_a_qos_2_message_that_the_loop_was_left_with_does_not_come_again(gone):
    async def case(broker):
        store = RamStore(4)  # a window of two, the note, and one inbound message
        async with client(broker, store=store, window=2) as mqtt:
            await mqtt.subscribe("#", 2)
            broker.give(publish(b"a", b"1", 2, 7), publish(b"a", b"2", 2, 8), pubrel(7))
            async for _ in mqtt:
                if gone:
                    await cut(broker, mqtt)
                break
        await asyncio.sleep(0.02)
        assert len(broker.of(7)) == (0 if gone else 1)
        assert not mqtt.session.holding

    run(case)


@pytest.mark.req("W13")
def test_deadlines_hold_where_the_ticks_wrap():
    import flashmqtt.aio

    period = 1 << 30
    begin = ticks_ms()
    before = flashmqtt.aio.ticks_ms

    async def case(broker):
        mqtt = client(broker)
        await mqtt.publish("a", "x", 1)
        flashmqtt.aio.ticks_ms = lambda: (ticks_diff(ticks_ms(), begin) + period - 20) % period
        flashmqtt.aio.ticks_diff = lambda later, earlier: (later - earlier + period // 2) % period - period // 2
        with pytest.raises(DeadlineExpired):
            await mqtt.drain(0.2)

    begin = ticks_ms()
    try:
        run(case, 3)
    finally:
        flashmqtt.aio.ticks_ms = before
        flashmqtt.aio.ticks_diff = ticks_diff


@pytest.mark.req("W11")
def test_the_link_is_kept_while_the_program_is_busy_with_a_message():
    async def case(broker):
        async with client(broker, keep_alive_s=1) as mqtt:
            await mqtt.subscribe("#", 1)
            broker.give(publish(b"a", b"1", 1, 1))
            async for _ in mqtt:
                await asyncio.sleep(2.5)
                break
            assert mqtt.connected
            assert broker.connects == 1
            assert len(broker.of(12)) >= 2

    run(case)


@pytest.mark.req("W11")
def test_a_silent_link_is_noticed():
    async def case(broker):
        async with client(broker, keep_alive_s=1) as mqtt:
            broker.present = 1
            broker.deaf = True
            begin = ticks_ms()
            while mqtt.connected:
                await asyncio.sleep(0.05)
            assert ticks_diff(ticks_ms(), begin) <= 1650
            broker.deaf = False

    run(case)


@pytest.mark.req("B2")
def test_an_idle_client_allocates_less_than_a_kilobyte_a_second():
    if sys.implementation.name != "micropython":
        pytest.skip("heap figures are MicroPython's")

    async def idle(seconds):
        gc.collect()
        gc.disable()
        before = gc.mem_alloc()
        await asyncio.sleep(seconds)
        grown = gc.mem_alloc() - before
        gc.enable()
        return grown / seconds

    async def both():
        broker = Loopback()
        server = asyncio.create_task(serve(broker))
        async with client(broker, keep_alive_s=60) as mqtt:
            await mqtt.publish("a", "x", 1)
            await mqtt.drain(2)
            server.cancel()
            await asyncio.sleep(0.1)
            rate = await idle(4)
            assert rate < 2048, rate  # pointers of 64 bits: half of it on a board
            server = asyncio.create_task(serve(broker))
        server.cancel()
        broker.close()

    asyncio.new_event_loop()
    asyncio.run(both())
