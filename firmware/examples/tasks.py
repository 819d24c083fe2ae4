"""asyncio: one task measures, one handles commands, one keeps the network up, and the client's own task does the rest."""

import gc

gc.threshold(16384)

import asyncio

import board
from flashmqtt.aio import Client
from flashmqtt.journal.journal import DROP_OLDEST, Journal

HOST = "broker.local"
PORT = 1883
DEVICE = "greenhouse-1"
interval_s = 10


async def network(client):
    while True:
        if board.network_up("my Wi-Fi", "its password", "AT", log=print):
            client.start()
        await asyncio.sleep(1)


async def measure(client):
    while True:
        for sensor in board.sensors():
            await client.publish(DEVICE + "/" + sensor.name, str(sensor.read()), qos=1)
        await asyncio.sleep(interval_s)


async def commands(client):
    global interval_s
    await client.subscribe(DEVICE + "/interval", 1)
    async for message in client:  # acknowledged when the loop asks for the next message
        try:
            interval_s = min(max(1, int(message.payload)), 3600)
        except ValueError:  # no number: raised here, it would end the program, and the message would come again
            continue
        await client.publish(DEVICE + "/interval/now", str(interval_s), qos=1)


async def main():
    store = Journal(board.journal_region(64), policy=DROP_OLDEST)
    client = Client(HOST, PORT, client_id=DEVICE, store=store, log=print)
    await asyncio.gather(network(client), measure(client), commands(client))


asyncio.run(main())
