"""The asyncio client: publish returns once a message is stored, delivered once it is acknowledged; one message at a time."""

import gc
import sys

import pytest

if sys.implementation.name == "micropython" and ".frozen" not in sys.path:
    sys.path.insert(0, ".frozen")  # where asyncio is

import asyncio

from failing import fail_once
from flashmqtt.aio import Client
from flashmqtt.backoff import Backoff
from flashmqtt.compat import ticks_diff, ticks_ms
from flashmqtt.errors import ConnectionLost, ConnectRefused, DeadlineExpired, FlashFailed, Refused, UsageError
from flashmqtt.flash.ram import RamRegion
from flashmqtt.journal.journal import DROP_OLDEST, Journal
from flashmqtt.session.ram import RamStore
from loopback import Flooding, Loopback
from wire import publish, pubrel, whole

PATIENCE_S = 30  # deadline for expected events, on a busy machine


def client(broker, **options):
    options.setdefault("backoff", Backoff(base_ms=20, cap_ms=100, lasting_ms=50))
    options.setdefault("timeout_s", PATIENCE_S)
    return Client("127.0.0.1", broker.port, "me", **options)


async def serve(broker):
    while True:
        broker()
        await asyncio.sleep(0.001)


async def until(condition):
    """Wait until the condition holds; `run` has a deadline."""
    while not condition():
        await asyncio.sleep(0.005)


def run(case, broker=None):
    """Run case(broker) and the broker as concurrent tasks."""
    broker = broker or Loopback()

    async def both():
        server = asyncio.create_task(serve(broker))
        try:
            await asyncio.wait_for(case(broker), 2 * PATIENCE_S)
        finally:
            server.cancel()
            broker.close()

    if sys.implementation.name == "micropython":
        asyncio.new_event_loop()  # otherwise the tasks of the previous case continue
    asyncio.run(both())


def in_a_loop(case):
    """Make a test of a coroutine function: `run` gives it the broker as its first argument."""

    def test(*arguments, **named):
        run(lambda broker: case(broker, *arguments, **named))

    if sys.implementation.name != "micropython":
        import inspect

        signature = inspect.signature(case)  # pytest reads the names of the other arguments in it
        test.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])
    return test


@pytest.mark.req("Q1", "R5")
@in_a_loop
async def test_delivered_returns_false_for_lost_or_dropped_messages(broker):
    store = RamStore()
    mqtt = client(broker, store=store)
    handles = []
    for _ in range(3):
        handles.append(await mqtt.publish("a", "x", 1))  # noqa: PERF401  # MicroPython has no await in a list comprehension
    store._lengths[handles[1] % store.limit] = 0  # as if the flash had lost the message
    async with mqtt:
        for handle in handles:
            assert await mqtt.delivered(handle, 3) == (handle != handles[1])
        assert not await mqtt.delivered(0, 3)  # handle 0: the store's policy dropped the message


@pytest.mark.req("S5", "R5")
@in_a_loop
async def test_dropped_messages_are_reported_before_the_next_attempt_to_connect(broker):
    broker.close()
    mqtt = client(broker, store=Journal(RamRegion(6, 1024), policy=DROP_OLDEST), backoff=Backoff(60000, 60000))
    dropped = []
    mqtt.on_dropped = lambda first, last: dropped.append(first)
    mqtt.link.backoff._random_below = lambda n: n - 1
    mqtt.start()
    await until(lambda: mqtt.error)
    while not mqtt.session.store.dropped:
        await mqtt.publish("a", bytes(60), 1)
    await until(lambda: dropped)
    assert dropped[0] == 1 and mqtt.link.attempts == 1
    await mqtt.disconnect()
    broker.open()


@pytest.mark.req("W11", "R4")
@pytest.mark.parametrize("awaits", [False, True])
@in_a_loop
async def test_connect_raises_at_once_when_the_program_disconnects_meanwhile(broker, awaits):
    mqtt = client(broker)

    async def stop(present=None):
        await mqtt.disconnect()

    if awaits:
        mqtt.on_connect = stop
    begin = ticks_ms()
    connecting = asyncio.create_task(mqtt.connect(PATIENCE_S))
    await asyncio.sleep(0)
    if not awaits:
        await stop()
    with pytest.raises(ConnectionLost, match="disconnected meanwhile"):
        await connecting
    assert ticks_diff(ticks_ms(), begin) < PATIENCE_S * 500 and not mqtt.connected


@pytest.mark.req("W11", "R5")
@in_a_loop
async def test_handler_that_refuses_its_cancellation_does_not_block_disconnect(broker):
    mqtt = client(broker)
    begun = []
    ended = []
    taken = []

    async def stubborn(message):
        begun.append(True)
        while not ended:
            try:
                await asyncio.sleep(0.01)
            except BaseException:  # what the test is about
                pass
        taken.append(message.payload)

    async with mqtt:
        await mqtt.subscribe("a", 1, stubborn)
        await mqtt.subscribe("b", 1, lambda message: taken.append(message.payload))
        broker.give(publish(b"a", b"1", 1, 1))
        await until(lambda: begun)
        await mqtt.disconnect()
        await mqtt.connect()
        broker.give(publish(b"b", b"2", 1, 2))
        await until(lambda: taken == [b"2"])
        ended.append(True)
        await until(lambda: taken == [b"2", b"1"] and not mqtt._tasks)


@pytest.mark.req("W11", "R4")
@in_a_loop
async def test_start_after_one_of_two_disconnects_connects_again(broker):
    mqtt = client(broker)
    await mqtt.connect()

    async def start_again():
        await mqtt.disconnect()
        mqtt.start()

    await asyncio.gather(start_again(), mqtt.disconnect())
    await until(lambda: mqtt.connected)
    assert broker.connects == 2
    await mqtt.disconnect()


@pytest.mark.req("W11", "R4")
@in_a_loop
async def test_two_tasks_disconnect_at_the_same_time(broker):
    mqtt = client(broker)
    await mqtt.connect()
    await asyncio.gather(mqtt.disconnect(), mqtt.disconnect())
    assert not mqtt.connected
    await mqtt.connect()
    await mqtt.disconnect()


@pytest.mark.req("Q1", "Q2")
@in_a_loop
async def test_publish_returns_once_stored_and_delivered_once_acknowledged(broker):
    async with client(broker) as mqtt:
        for qos in (1, 2):
            handle = await mqtt.publish("a", "x", qos)
            await mqtt.delivered(handle, PATIENCE_S)
            assert mqtt.pending == 0
        for i in range(40):
            await mqtt.publish("a", bytes([i]), 1)
        await mqtt.drain(PATIENCE_S)
        assert len(broker.of(3)) == 42


@pytest.mark.req("S5", "Q6")
@in_a_loop
async def test_messages_stored_before_connect_are_delivered_in_order(broker):
    mqtt = client(broker)
    for i in range(20):
        await mqtt.publish("a", bytes([i]), 1)
    async with mqtt:
        await mqtt.drain(PATIENCE_S)
    assert [one[-1] for one in broker.of(3)] == list(range(20))


@pytest.mark.req("Q3", "Q4")
@in_a_loop
async def test_message_is_acknowledged_when_the_loop_asks_for_the_next(broker):
    async with client(broker) as mqtt:
        await mqtt.subscribe("#", 2)
        broker.give(publish(b"a", b"1", 1, 1), publish(b"b", b"2", 2, 2), publish(b"c", b"3"), pubrel(2))
        seen = []
        async for message in mqtt:
            seen.append((message.topic, message.payload))
            if len(seen) == 1:
                await asyncio.sleep(0.06)
                assert len(broker.of(4)) == 0
            else:
                await until(lambda: len(broker.of(4)) == 1)
            if len(seen) == 3:
                break
        assert seen == [("a", b"1"), ("c", b"3"), ("b", b"2")]
    await until(lambda: len(broker.of(7)) == 1)


@pytest.mark.req("Q8", "B4")
@in_a_loop
async def test_client_reconnects_and_delivers_everything_in_order(broker):
    async with client(broker) as mqtt:
        broker.present = 1
        for i in range(60):
            await mqtt.publish("a", bytes([i]), 1)
            if i % 20 == 10:
                broker.drop()
            if i % 20 == 15:
                await until(lambda n=i // 20 + 2: broker.connects == n and mqtt.connected)
        await mqtt.drain(PATIENCE_S)
    seen = []
    for one in broker.of(3):
        if one[-1] not in seen:
            seen.append(one[-1])
    assert seen == list(range(60))
    assert broker.connects == 4


@pytest.mark.req("B4", "R4")
@pytest.mark.parametrize("disconnects", [True, False])
def test_client_continues_in_a_new_event_loop(disconnects):
    broker = Loopback()
    broker.present = 1
    mqtt = client(broker)
    seen = []

    async def case(n):
        server = asyncio.create_task(serve(broker))
        await mqtt.connect()
        await mqtt.subscribe("a", 1)
        assert await mqtt.delivered(await mqtt.publish("b", "x", 1), PATIENCE_S)

        async def take():
            async for message in mqtt:
                seen.append((n, message.payload))
                await asyncio.sleep(PATIENCE_S)  # the loop ends meanwhile

        task = asyncio.create_task(take())
        await asyncio.sleep(0.02)
        broker.give(publish(b"a", b"x", 1, 1, dup=n > 0))
        await until(lambda: len(seen) == n + 1)
        if disconnects:
            await mqtt.disconnect()
            task.cancel()
        server.cancel()

    for n in range(3):
        if sys.implementation.name == "micropython":
            asyncio.new_event_loop()
        asyncio.run(asyncio.wait_for(case(n), PATIENCE_S))
    assert seen == [(0, b"x"), (1, b"x"), (2, b"x")]
    mqtt.link.stop()
    broker.close()


class Unacknowledged(Loopback):
    """Sends a message with every connection until it is acknowledged."""

    def take(self, one):
        super().take(one)
        if one[0] >> 4 == 1 and not self.of(4):
            self.give(publish(b"a", b"x", 1, 1, dup=self.connects > 1))


@pytest.mark.req("R4", "Q3")
@pytest.mark.parametrize("awaits, new", [(False, True), (False, False), (True, True), (True, False)])
def test_client_continues_after_ctrl_c_in_a_handler(awaits, new):
    broker = Unacknowledged()
    broker.present = 1
    mqtt = client(broker)
    seen = []

    def handle(message):
        seen.append(message.payload)
        if len(seen) == 1:
            raise KeyboardInterrupt

    async def handle_later(message):
        await asyncio.sleep(0)
        handle(message)

    mqtt.on_message = handle_later if awaits else handle

    async def case():
        server = asyncio.create_task(serve(broker))
        await mqtt.connect()
        if seen:
            await until(lambda: broker.of(4))
            await mqtt.disconnect()
        else:
            await asyncio.sleep(PATIENCE_S)
        server.cancel()

    for n in range(2):
        if sys.implementation.name == "micropython" and (new or not n):
            asyncio.new_event_loop()  # else the tasks that Ctrl-C did not end continue
        try:
            asyncio.run(asyncio.wait_for(case(), PATIENCE_S / 2))
            assert n
        except KeyboardInterrupt:
            assert not n
    gc.collect()  # now, not later: CPython logs that nobody took the ended task's KeyboardInterrupt
    assert seen == [b"x", b"x"]
    broker.close()


@pytest.mark.req("R4")
@in_a_loop
async def test_task_cancelled_in_disconnect_ends_and_the_client_can_connect_again(broker):
    for turns in range(1, 6):
        mqtt = client(broker)
        await mqtt.connect()

        async def end(mqtt=mqtt):
            await mqtt.disconnect()
            await asyncio.sleep(0.5)

        task = asyncio.create_task(end())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not mqtt.connected
        await mqtt.connect()
        assert await mqtt.delivered(await mqtt.publish("b", "x", 1), PATIENCE_S)
        await mqtt.disconnect()


@pytest.mark.req("B4")
@in_a_loop
async def test_delivered_message_resets_the_backoff_of_a_short_connection(broker):
    backoff = Backoff(base_ms=1, cap_ms=200, lasting_ms=60000, step=6)
    async with client(broker, backoff=backoff) as mqtt:
        broker.present = 1
        for i in range(4):
            await mqtt.delivered(await mqtt.publish("a", bytes([i]), 1 + i % 2), PATIENCE_S)
            assert backoff.step == 0
            broker.drop()
            while mqtt.link.connects == i + 1:
                await asyncio.sleep(0.005)
            assert backoff.step == 1


@pytest.mark.req("B4")
@in_a_loop
async def test_closing_the_socket_wakes_its_task_and_keeps_other_readers(broker):
    if sys.implementation.name == "micropython":
        pytest.skip("MicroPython's poller reports a closed socket by itself")
    import socket

    async with client(broker, backoff=Backoff(base_ms=1, cap_ms=1)) as mqtt:
        await asyncio.sleep(0.05)
        old = mqtt.link.sock.fileno()
        mqtt.link.fail(ConnectionLost("as a failed write in another task reports it"), ticks_ms())
        one, other = socket.socketpair()
        assert old in (one.fileno(), other.fileno())  # the new sockets reuse the closed socket's number
        read = asyncio.Event()
        loop = asyncio.get_running_loop()
        for end in (one, other):
            loop.add_reader(end.fileno(), read.set)
        other.send(b"x")
        await until(lambda: read.is_set() and mqtt.connected)
        for end in (one, other):
            assert loop.remove_reader(end.fileno())
            end.close()


@pytest.mark.req("W10", "W11")
@in_a_loop
async def test_refused_connect_and_subscribe_raise(broker):
    broker.code = 5
    mqtt = client(broker)
    with pytest.raises(ConnectRefused) as refused:
        await mqtt.connect()
    assert refused.value.code == 5
    await mqtt.disconnect()
    broker.code = 0
    broker.granted = 0x80
    async with client(broker) as mqtt:
        with pytest.raises(Refused) as refused:
            await mqtt.subscribe("x", 1)
        assert refused.value.code == 0x80
        assert mqtt.connected


class Refusing(Loopback):
    """A level 5 broker that refuses QoS 1 messages: it sends the refusals of `batch` messages in one write."""

    def __init__(self, batch):
        super().__init__()
        self.batch = batch

    def take(self, one):
        self.packets.append(one)
        if one[0] >> 4 == 1:
            self.give(b"\x20\x03\0\0\0")
        elif len(self.of(3)) == self.batch:
            self.give(b"".join(b"\x40\x03" + one[5:7] + b"\x97" for one in self.of(3)))


@pytest.mark.req("R3", "R5", "W12")
def test_every_message_refused_in_one_read_raises_refused():
    async def case(broker):
        async with client(broker, level=5, window=32) as mqtt:
            handles = []
            for _ in range(broker.batch):
                handles.append(await mqtt.publish("a", "x", 1))  # noqa: PERF401  # MicroPython has no await in a list comprehension
            codes = []

            async def wait(handle):
                try:
                    codes.append(await mqtt.delivered(handle))
                except Refused as error:
                    codes.append(error.code)

            await asyncio.gather(*[wait(handle) for handle in handles])
            assert codes == [0x97] * broker.batch

    run(case, Refusing(32))


@pytest.mark.req("R3", "R5", "W12")
def test_refused_message_raises_in_every_task_that_waits_for_it():
    async def case(broker):
        async with client(broker, level=5) as mqtt:
            handle = await mqtt.publish("a", "x", 1)
            codes = []

            async def wait():
                try:
                    codes.append(await mqtt.delivered(handle))
                except Refused as error:
                    codes.append(error.code)

            await asyncio.gather(wait(), wait())
            await wait()
            assert codes == [0x97] * 3

    run(case, Refusing(1))


@pytest.mark.req("B4")
@in_a_loop
async def test_connect_without_connack_raises_at_its_deadline(broker):
    broker.silent = True
    mqtt = client(broker)
    with pytest.raises(ConnectionLost):
        await mqtt.connect(0.2)
    await mqtt.disconnect()


@pytest.mark.req("Q1")
@in_a_loop
async def test_handlers_and_other_tasks_may_publish(broker):
    async with client(broker) as mqtt:
        seen = []
        await mqtt.subscribe("in", 1, lambda message: seen.append(message.payload))

        async def publisher():
            for i in range(10):
                await mqtt.delivered(await mqtt.publish("out", bytes([i]), 1), PATIENCE_S)

        tasks = [asyncio.create_task(publisher()) for _ in range(3)]
        broker.give(publish(b"in", b"x", 1, 9))
        for task in tasks:
            await task
        assert len(broker.of(3)) == 30
        assert seen == [b"x"]
        assert len(broker.of(4)) == 1


@pytest.mark.req("W13")
def test_other_tasks_run_during_an_endless_flood_of_messages():
    async def case(broker):
        async with client(broker, buffer_bytes=128) as mqtt:
            await mqtt.subscribe("a", 0, broker.handle)
            broker.begin(publish(b"a", b"x" * 20) * 40)
            for _ in range(20):
                broker.turn = 0
                await until(lambda: broker.turn)
            broker.drop()

    run(case, broker=Flooding())


@pytest.mark.req("R4")
@in_a_loop
async def test_receive_loop_may_await_acknowledgements(broker):
    async with client(broker) as mqtt:
        await mqtt.subscribe("#", 1)
        broker.give(publish(b"a", b"1", 1, 1), publish(b"a", b"2", 1, 2))
        seen = []
        async for message in mqtt:
            seen.append(message.payload)
            handle = await mqtt.publish("b", message.payload, 1)
            assert await mqtt.delivered(handle)
            assert await mqtt.subscribe("c", 1) == 1
            await mqtt.drain()
            if len(seen) == 2:
                break
        assert seen == [b"1", b"2"]


@pytest.mark.req("R4")
@pytest.mark.parametrize("asynchronous", [False, True])
@in_a_loop
async def test_handler_error_is_reported_and_its_message_retried(broker, asynchronous):
    async with client(broker) as mqtt:
        seen = []
        errors = []
        mqtt.on_error = lambda error, message: errors.append((type(error), message.payload, message.failures))

        def fail(message):
            seen.append(message.payload)
            if len(seen) == 1:
                raise ValueError("mine")

        async def fail_later(message):
            await asyncio.sleep(0)
            fail(message)

        await mqtt.subscribe("a", 1, fail_later if asynchronous else fail)
        broker.give(publish(b"a", b"x", 1, 7), publish(b"a", b"y", 1, 8))
        assert await mqtt.subscribe("b") == 0  # the client still works
        assert await mqtt.delivered(await mqtt.publish("c", "1", 1))
        assert broker.of(4) == []
        await until(lambda: len(broker.of(4)) == 2)
        assert seen == [b"x", b"x", b"y"] and errors == [(ValueError, b"x", 1)]
        assert broker.connects == 1


async def cut(broker, mqtt):
    """Cut the link; return when the client has noticed."""
    attempts = mqtt.link.attempts
    broker.drop()
    while mqtt.connected and mqtt.link.attempts == attempts:
        await mqtt.publish("b", "2")
        await asyncio.sleep(0.01)


@pytest.mark.req("Q4")
@in_a_loop
async def test_qos_2_message_handled_during_connection_loss_is_not_repeated(broker):
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


@pytest.mark.req("Q4")
@pytest.mark.parametrize("gone", [False, True])
@in_a_loop
async def test_leaving_the_loop_discards_the_held_qos_2_message(broker, gone):
    store = RamStore(hold_limit=1)
    async with client(broker, store=store, window=2) as mqtt:
        await mqtt.subscribe("#", 2)
        broker.give(publish(b"a", b"1", 2, 7), publish(b"a", b"2", 2, 8), pubrel(7))
        async for _ in mqtt:
            if gone:
                await cut(broker, mqtt)
            break
    if gone:
        await asyncio.sleep(0.02)
        assert len(broker.of(7)) == 0
    else:
        await until(lambda: len(broker.of(7)) == 1)
    assert not store.held()


@pytest.mark.req("B4", "R4")
@in_a_loop
async def test_timeout_of_0_does_not_wait(broker):
    mqtt = client(broker)
    handle = await mqtt.publish("a", "x", 1)

    async def asks():
        with pytest.raises(DeadlineExpired):
            await mqtt.delivered(handle, 0)
        with pytest.raises(DeadlineExpired):
            await mqtt.connect(0)
        await mqtt.connect()
        broker.silent = True
        with pytest.raises(DeadlineExpired):
            await mqtt.subscribe("a", 1, timeout_s=0)
        with pytest.raises(DeadlineExpired):
            await mqtt.unsubscribe("a", 0)
        broker.silent = False
        await mqtt.disconnect()

    await asyncio.wait_for(asks(), 20)
    await mqtt.connect()
    await mqtt.delivered(handle)
    assert await mqtt.delivered(handle, 0)
    await mqtt.disconnect()


@pytest.mark.req("W10", "W11")
@in_a_loop
async def test_disconnect_while_connect_is_unanswered_reaches_the_broker_which_publishes_no_will(broker):
    broker.silent = True
    mqtt = client(broker, will=("a", "b", 0, False))
    mqtt.start()
    await until(lambda: broker.of(1))
    await mqtt.disconnect()
    await until(lambda: broker.of(14))


@pytest.mark.req("R4", "B4")
@in_a_loop
async def test_deadline_of_delivered_and_drain_expires_in_an_outage_as_with_a_connection(broker):
    broker.close()
    mqtt = client(broker)
    handle = await mqtt.publish("a", "x", 1)
    mqtt.start()
    await until(lambda: mqtt.error)
    for call in (mqtt.delivered(handle, 0.05), mqtt.drain(0.05)):
        with pytest.raises(DeadlineExpired):
            await call
    await mqtt.disconnect()
    broker.open()


@pytest.mark.req("W10", "W11", "W13")
@in_a_loop
async def test_invalid_timeout_is_refused(broker):
    mqtt = client(broker)
    handle = await mqtt.publish("a", "x", 1)
    for wrong in ("5", [5], float("nan"), float("inf"), 1 << 40):
        for call in (
            mqtt.connect(wrong),
            mqtt.drain(wrong),
            mqtt.delivered(handle, wrong),
            mqtt.subscribe("a", timeout_s=wrong),
            mqtt.unsubscribe("a", wrong),
        ):
            with pytest.raises(UsageError) as caught:
                await call
            assert str(caught.value).startswith("timeout %r: a number of seconds" % (wrong,))
    assert mqtt.session.subscriptions == []
    await mqtt.disconnect()


@pytest.mark.req("W13")
def test_deadline_holds_when_ticks_wrap():
    import flashmqtt.aio

    period = 1 << 30
    before = flashmqtt.aio.ticks_ms

    async def case(broker):
        mqtt = client(broker)
        await mqtt.publish("a", "x", 1)
        begin = ticks_ms()
        flashmqtt.aio.ticks_ms = lambda: (ticks_diff(ticks_ms(), begin) + period - 20) % period
        flashmqtt.aio.ticks_diff = lambda later, earlier: (later - earlier + period // 2) % period - period // 2
        with pytest.raises(DeadlineExpired):
            await mqtt.drain(0.2)

    try:
        run(case)
    finally:
        flashmqtt.aio.ticks_ms = before
        flashmqtt.aio.ticks_diff = ticks_diff


@pytest.mark.req("W11")
@in_a_loop
async def test_keep_alive_continues_while_the_program_handles_a_message(broker):
    async with client(broker, keep_alive_s=1) as mqtt:
        await mqtt.subscribe("#", 1)
        broker.give(publish(b"a", b"1", 1, 1))
        async for _ in mqtt:
            await asyncio.sleep(2.5)
            await until(lambda: len(broker.of(12)) >= 2)
            break
        assert mqtt.connected
        assert broker.connects == 1


@pytest.mark.req("W11")
@in_a_loop
async def test_silent_link_is_noticed(broker):
    async with client(broker, keep_alive_s=1) as mqtt:
        broker.present = 1
        broker.deaf = True
        silent_ms = 0
        before = ticks_ms()
        while mqtt.connected:
            await asyncio.sleep(0.02)
            now = ticks_ms()
            silent_ms += min(ticks_diff(now, before), 30)  # if a step takes longer, the machine runs no task
            before = now
        assert silent_ms <= 1650
        broker.deaf = False


@pytest.mark.req("B2")
def test_idle_client_allocates_less_than_a_kilobyte_a_second():
    if sys.implementation.name != "micropython":
        pytest.skip("only MicroPython reports its heap")

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
            await mqtt.drain(PATIENCE_S)
            server.cancel()
            await asyncio.sleep(0.1)
            rate = await idle(4)
            assert rate < 2048, rate  # with 64-bit pointers; a board needs half of it
            server = asyncio.create_task(serve(broker))
        server.cancel()
        broker.close()

    asyncio.new_event_loop()
    asyncio.run(both())


@pytest.mark.req("R2")
@pytest.mark.parametrize("chunks", [False, True])
@in_a_loop
async def test_long_message_is_skipped_or_delivered_in_chunks(broker, chunks):
    told, parts = [], []
    async with client(broker, buffer_bytes=64, chunks=chunks) as mqtt:
        mqtt.on_oversize = lambda topic, length: told.append((topic, length))
        await mqtt.subscribe("a", 2, lambda message: parts.append(message.payload))
        for qos in (0, 1, 2):
            broker.give(*whole(b"a", b"x" * 500, qos, 9))
        broker.give(publish(b"a", b"short", 1, 8))
        await until(lambda: parts and parts[-1] == b"short")
        assert told == ([] if chunks else [("a", 500)] * 3) and mqtt.oversize == len(told)
        assert b"".join(parts) == (b"x" * 1500 if chunks else b"") + b"short"
        await until(lambda: len(broker.of(4)) == 2 and len(broker.of(5)) == 1 and len(broker.of(7)) == 1)
        assert broker.connects == 1


@pytest.mark.req("Q0", "R4")
@in_a_loop
async def test_messages_received_while_sending_a_long_qos_0_message_block_neither(broker):
    got = []
    async with client(broker, buffer_bytes=256) as mqtt:
        await mqtt.subscribe("a", 0, lambda message: got.append(message.payload))
        sending = asyncio.create_task(mqtt.publish("b", bytes(20_000)))
        given = 0
        while not sending.done():
            given += 1
            broker.give(publish(b"a", b"%d" % given))
            await asyncio.sleep(0)
        await until(lambda: len(got) == given)
        assert given > 2
        assert got == [b"%d" % (n + 1) for n in range(given)]
        await until(lambda: len(broker.of(3)) == 1)
        assert broker.connects == 1


@pytest.mark.req("R4")
@in_a_loop
async def test_async_handler_may_await_every_call(broker):
    mqtt = client(broker)
    await mqtt.connect()
    got = []
    tasks = []

    async def handle(message):
        handle_ = await mqtt.publish("b", "x", 1)
        got.append(await mqtt.delivered(handle_))
        await mqtt.publish("b", "x")
        await mqtt.publish("b", bytes(3000))
        got.append(await mqtt.subscribe("c", 1))
        got.append(await mqtt.unsubscribe("c"))
        await mqtt.drain(PATIENCE_S)
        mqtt.start()
        got.append(await mqtt.connect())
        await mqtt.disconnect()
        got.append("disconnected")

    def plain(message):
        tasks.append(asyncio.create_task(mqtt.publish("from a plain function", "x", 1)))

    await mqtt.subscribe("a", 1, handle)
    await mqtt.subscribe("d", 1, plain)
    broker.give(publish(b"d", b"1", 1, 6), publish(b"a", b"1", 1, 7))
    await until(lambda: len(got) == 5)
    assert got == [True, 1, 0, False, "disconnected"] and not mqtt.connected
    assert any(b"from a plain function" in one for one in broker.packets)


@pytest.mark.req("W8", "W9")
@in_a_loop
async def test_wrong_arguments_are_refused_at_once_by_name(broker):
    mqtt = client(broker)
    handle = await mqtt.publish("a", b"x", 1)
    calls = [
        (lambda: mqtt.delivered(handle + 1), "handle 2: no message has this number; the last one has 1"),
        (lambda: mqtt.delivered("1"), "handle '1': give the number that publish returned"),
        (lambda: mqtt.publish("a/#", b"x", 1), "not a topic name: b'a/#': # is a wildcard"),
        (lambda: mqtt.publish(5, b"x", 1), "topic must be str or bytes, not int"),
        (lambda: mqtt.publish("a", 5, 1), "payload must be str or bytes, not int"),
        (lambda: mqtt.subscribe("a#"), "not a topic filter: b'a#': # must be the last level"),
    ]
    for call, text in calls:
        with pytest.raises(UsageError) as caught:
            await call()
        assert str(caught.value).startswith(text)


@pytest.mark.req("R4")
@pytest.mark.parametrize("ends", ["deadline", "cancelled"])
@in_a_loop
async def test_async_with_that_can_not_connect_leaves_no_task_behind(broker, ends):
    broker.silent = True
    mqtt = client(broker, timeout_s=0.2 if ends == "deadline" else PATIENCE_S)

    async def enter():
        async with mqtt:
            raise AssertionError("entered")

    try:
        await asyncio.wait_for(enter(), PATIENCE_S if ends == "deadline" else 0.2)
        raise AssertionError("no error")
    except (ConnectionLost, asyncio.TimeoutError):  # noqa: UP041  # MicroPython has no TimeoutError
        pass
    # A program that tries again with a new client would have two clients over one store.
    attempts = mqtt.link.attempts
    broker.silent = False
    await asyncio.sleep(0.5)
    assert mqtt.link.attempts == attempts and not mqtt.connected and mqtt.link.sock is None
    async with mqtt:
        assert mqtt.connected


class StoreFailingOnce(RamStore):
    """A store whose first write of a received message fails."""

    failed = False

    def hold(self, *message):
        """Hold a message."""
        if not self.failed:
            self.failed = True
            raise FlashFailed("program")
        super().hold(*message)


@pytest.mark.req("R4", "S6")
@in_a_loop
async def test_client_reconnects_after_an_error_of_the_store_which_each_waiting_call_raises(broker):
    async with client(broker, store=StoreFailingOnce()) as mqtt:
        await mqtt.subscribe("#", 2)
        broker.give(publish(b"a", b"1", 2, 1))
        with pytest.raises(FlashFailed):
            await mqtt.__anext__()
        handle = await mqtt.publish("a", "x", 1)
        await until(lambda: mqtt.connected and broker.connects == 2)
        assert await mqtt.delivered(handle, PATIENCE_S)
        broker.give(publish(b"a", b"1", 2, 1, 1), pubrel(1))
        assert bytes((await mqtt.__anext__()).payload) == b"1"


@pytest.mark.req("R4", "S6")
@pytest.mark.parametrize("iterates", [False, True])
@in_a_loop
async def test_client_reconnects_although_the_program_repeats_the_call_that_raised_the_store_s_error(broker, iterates):
    async with client(broker, store=StoreFailingOnce()) as mqtt:
        await mqtt.subscribe("#", 2)
        broker.answers_publish = False
        handle = await mqtt.publish("a", "x", 1)
        broker.give(publish(b"a", b"1", 2, 1))
        call = mqtt.__anext__ if iterates else lambda: mqtt.delivered(handle)
        mqtt.on_connect = lambda present: broker.give(publish(b"a", b"2"))
        errors = 0
        while broker.connects == 1:
            try:
                await call()
            except FlashFailed:
                errors += 1
                assert errors < 1000  # without a pause, no other task would run
                broker.answers_publish = True
        assert errors


@pytest.mark.req("R4", "S1")
@in_a_loop
async def test_publish_raises_no_error_after_the_message_was_stored(broker):
    async with client(broker) as mqtt:
        fail_once(mqtt.link, "flush")
        assert await mqtt.publish("a", "x", 1) == 1
        assert await mqtt.delivered(1, PATIENCE_S)


@pytest.mark.req("R4", "B4")
@pytest.mark.parametrize(
    "error", [MemoryError, asyncio.CancelledError]
)  # without memory, MicroPython's wait_for_ms raises either
@in_a_loop
async def test_client_reconnects_after_a_step_without_memory(broker, error):
    async with client(broker) as mqtt:
        step = mqtt.link.step

        def no_memory(now_ms):
            mqtt.link.step = step
            raise error

        mqtt.link.step = no_memory
        await until(lambda: broker.connects == 2)
        assert await mqtt.delivered(await mqtt.publish("a", "x", 1), PATIENCE_S)


@pytest.mark.req("R4", "B4")
def test_client_stays_connected_and_can_disconnect_later_if_disconnect_had_no_memory():
    class NoMemory(list):
        def __iter__(self):
            raise MemoryError

    async def case(broker):
        mqtt = client(broker)
        await mqtt.connect()
        mqtt._tasks = NoMemory()
        with pytest.raises(MemoryError):
            await mqtt.disconnect()
        mqtt._tasks = []
        assert await mqtt.delivered(await mqtt.publish("a", "x", 1), PATIENCE_S)
        await mqtt.disconnect()
        await until(lambda: broker.of(14))
        await mqtt.connect()
        assert await mqtt.delivered(await mqtt.publish("a", "x", 1), PATIENCE_S)
        await mqtt.disconnect()

    run(case)


@pytest.mark.req("R4", "B4")
def test_iterating_task_waits_after_there_was_no_memory_for_an_event():
    real = asyncio.Event

    class Event(real):
        fails = False
        waits = 0

        def __init__(self):
            if Event.fails:
                Event.fails = False
                raise MemoryError
            super().__init__()

        async def wait(self):
            Event.waits += 1
            assert Event.waits < 1000  # otherwise it would turn for ever
            return await super().wait()

    async def case(broker):
        async with client(broker) as mqtt:
            await mqtt.subscribe("#", 1)
            reader = asyncio.create_task(mqtt.__anext__())
            await asyncio.sleep(0.01)
            Event.fails = True
            handle = await mqtt.publish("a", "x", 1)
            await until(lambda: broker.connects == 2 and mqtt.session.is_done(handle))
            broker.give(publish(b"a", b"1"))
            assert bytes((await asyncio.wait_for(reader, PATIENCE_S)).payload) == b"1"

    asyncio.Event = Event
    try:
        run(case)
    finally:
        asyncio.Event = real
