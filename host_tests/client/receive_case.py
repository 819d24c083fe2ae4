"""The program that `test_receive.py` runs on both interpreters, with a real broker: `receive_case.py PORT`.

60 messages of QoS 1 and 2, and a retained one, wait for a client that was offline. It connects first, then subscribes.
"""

import sys

if sys.implementation.name == "micropython" and ".frozen" not in sys.path:
    sys.path.insert(0, ".frozen")  # where asyncio is

import asyncio

from flashmqtt.aio import Client as Asynchronous
from flashmqtt.client import Client
from flashmqtt.session.ram import RamStore

PORT = int(sys.argv[1])
COUNT = 60
PATIENCE_S = 60
TURN_S = 0.02


def leave_messages(name, level):
    """Subscribe and disconnect the client, then publish messages that the broker queues for it."""
    away = Client("127.0.0.1", PORT, name, level=level)
    away.connect(PATIENCE_S)
    away.subscribe("queued/" + name, 2)
    away.disconnect()
    other = Client("127.0.0.1", PORT, name + "-other", window=20)
    other.connect(PATIENCE_S)
    for i in range(COUNT):
        other.publish("queued/" + name, str(i), 1 + i % 2)
    other.publish("kept/" + name, "kept", 1, True)
    assert other.drain(PATIENCE_S)
    other.disconnect()


def blocking(name, level):
    seen = []
    client = Client("127.0.0.1", PORT, name, RamStore(hold_limit=2 * COUNT), level=level)
    client.connect(PATIENCE_S)
    for _ in range(5):
        client.poll(int(TURN_S * 1000))
    client.subscribe("queued/" + name, 2, lambda message: seen.append(message.payload))
    client.subscribe("kept/" + name, 1, lambda message: seen.append(message.payload))
    for _ in range(int(PATIENCE_S / TURN_S)):
        client.poll(int(TURN_S * 1000))
        if len(seen) > COUNT:
            break
    client.disconnect()
    return seen, client.link.connects


async def asynchronous(name, level, way):
    seen = []

    def note(message):
        seen.append(message.payload)

    async def note_later(message):
        await asyncio.sleep(0.005)
        note(message)

    async with Asynchronous("127.0.0.1", PORT, name, RamStore(hold_limit=2 * COUNT), level=level) as client:

        async def consumer():
            async for message in client:
                await client.delivered(await client.publish("echo", "x", 1))
                note(message)

        await asyncio.sleep(5 * TURN_S)
        handler = {"plain": note, "awaited": note_later, "loop": None}[way]
        await client.subscribe("queued/" + name, 2, handler)
        await client.subscribe("kept/" + name, 1, handler)
        task = asyncio.create_task(consumer()) if way == "loop" else None
        for _ in range(int(PATIENCE_S / TURN_S)):
            await asyncio.sleep(TURN_S)
            if len(seen) > COUNT:
                break
    if task:
        await task  # iteration ends where the program disconnects
    return seen, client.link.connects


def main():
    for level in (4, 5):
        for way in ("blocking", "plain", "awaited", "loop"):
            name = "%s-%d-%s" % (sys.implementation.name, level, way)
            leave_messages(name, level)
            if way == "blocking":
                seen, connects = blocking(name, level)
            else:
                if sys.implementation.name == "micropython":
                    asyncio.new_event_loop()
                seen, connects = asyncio.run(asynchronous(name, level, way))
            numbers = [int(one) for one in seen if one != b"kept"]
            in_order = [[n for n in numbers if n % 2 == one] for one in (0, 1)]
            whole = in_order == [list(range(one, COUNT, 2)) for one in (0, 1)]
            print(name, "whole" if whole else numbers, seen.count(b"kept"), connects)


main()
