"""The asyncio client under CPython, whose event loop cancels the tasks that a program leaves."""

import asyncio

import pytest

from flashmqtt.aio import Client
from loopback import Loopback
from wire import publish


async def serve(broker):
    while True:
        broker()
        await asyncio.sleep(0.001)


@pytest.mark.req("W11")
@pytest.mark.parametrize("turns", range(8))
def test_a_program_that_ends_without_disconnect_ends_at_whatever_moment_it_does(turns):
    """`asyncio.run` cancels all tasks once. The client's task must not lose that while its socket becomes ready."""

    async def case(broker):
        server = asyncio.create_task(serve(broker))
        mqtt = Client("127.0.0.1", broker.port, "me", timeout_s=30)
        before = asyncio.all_tasks()
        await mqtt.connect()
        for _ in range(10):
            broker()
            await asyncio.sleep(0)
        broker.give(publish(b"a", b"x"))
        broker()
        for _ in range(turns):
            await asyncio.sleep(0)
        tasks = asyncio.all_tasks() - before
        assert tasks
        for task in tasks:
            task.cancel()
        pending = (await asyncio.wait(tasks, timeout=1))[1]
        await mqtt.disconnect()
        server.cancel()
        assert not pending

    broker = Loopback()
    try:
        asyncio.run(case(broker))
    finally:
        broker.close()
