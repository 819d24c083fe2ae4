"""The board's side of the fault cases with the asyncio client: the same commands and answers as `device.py`."""

import asyncio

from flashmqtt.aio import Client
from flashmqtt.compat import ticks_add, ticks_diff, ticks_ms
from flashmqtt.errors import ConnectionLost, ConnectRefused
from flashmqtt.session.subscriptions import GRANTED
from tools.proof.faults.device import DRAIN_S, QUIET_MS, Case, body, kind_of, main, say


async def sleep_ms(ms):
    """Let the client's task run for a time."""
    await asyncio.sleep(ms / 1000)


class AioCase(Case):
    """One case, as a program with asyncio tasks."""

    client_class = Client

    def run(self):
        """Run the case to its end."""
        asyncio.run(self.go())

    async def go(self):
        """Publish; receive messages in another task."""
        client = self.client
        taking = None
        if self.flow != "out":
            await client.subscribe(self.topic + ("/in" if self.flow == "both" else ""), 2)
            taking = asyncio.create_task(self.take())
        deadline = ticks_add(ticks_ms(), DRAIN_S * 1000)
        if self.flow != "in":
            await self.publish_some(1, self.count // 2 + 1 if self.qos else 1)
            await self.connect()
            await self.publish_some(self.count // 2 + 1 if self.qos else 1, self.count + 1)
        else:
            await self.connect()
        if self.flow != "out":
            while client.session.subscriptions[0].state != GRANTED:
                await sleep_ms(5)
            say("ready", self.name)
        await client.drain(DRAIN_S)
        while taking and not self.ended and ticks_diff(deadline, ticks_ms()) > 0:
            await sleep_ms(5)
        if taking:
            await self.settle()
            await client.disconnect()
            await self.connect()
            await self.settle()
            taking.cancel()
        await client.disconnect()

    async def connect(self):
        """Connect; if the broker refuses, the client tries again."""
        try:
            await self.client.connect(DRAIN_S)
        except ConnectRefused:
            pass

    async def publish_some(self, first, last):
        """Publish the messages from `first` to `last` - 1."""
        for number in range(first, last):
            qos = self.qos
            if self.flow == "both":
                qos = 2 - number % 2
            while not qos and not self.client.connected:
                await sleep_ms(5)
            self.publishing = number
            self.numbers[await self.client.publish(self.topic, body(number, self.size), qos)] = number

    async def take(self):
        """Receive messages until the task is cancelled."""
        while True:
            try:
                async for message in self.client:
                    self.on_message(message)
            except ConnectionLost as error:
                say("error", self.name, kind_of(error), error)

    async def settle(self):
        """Wait a moment for what still comes, while there is a connection."""
        deadline = ticks_add(ticks_ms(), QUIET_MS)
        while ticks_diff(deadline, ticks_ms()) > 0 or not self.client.connected:
            await sleep_ms(QUIET_MS // 3)


main(AioCase)
