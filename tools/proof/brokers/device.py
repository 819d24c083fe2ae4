"""The board's side of the scenarios, with either client, on MicroPython and CPython: it executes the commands of its input.

Its first line is a JSON object with the face and the client's settings (see `make_client`), every further line a JSON list: a
verb and its arguments. It answers each command by one line, and prints further lines for other events. All lines are JSON lists:

    ["done", result]  ["failed", class, text, code]       the answer
    ["got", topic, number, qos, retain, length, crc]      the program received this message
    ["delivered", number]  ["refused", number, code]      the result of a published message
    ["oversize", length]                                  a long message was skipped
    ["ended", class, text]                                a connection, or an attempt to connect, ended

Between two commands the client works.
"""

import asyncio
import binascii
import gc
import json
import select
import sys

from flashmqtt.backoff import Backoff
from flashmqtt.compat import ticks_add, ticks_diff, ticks_ms
from flashmqtt.flash.file import FileRegion
from flashmqtt.journal.journal import Journal
from flashmqtt.session.subscriptions import GRANTED

ANSWER_S = 30
PATTERN = bytes(range(256)) * 4


def body(number, size):
    """Return a message's payload: its number and a semicolon, padded to a size."""
    text = b"%d;" % number
    return text + (PATTERN * ((size - len(text)) // len(PATTERN) + 1))[: max(0, size - len(text))]


# CPython's sys.stdin reads ahead, and a poller does not see the bytes in its buffer.
_input = sys.stdin if sys.implementation.name == "micropython" else open(0, "rb", buffering=0)  # noqa: SIM115


def say(*words):
    """Print a line for the runner."""
    print(json.dumps(words))
    try:
        sys.stdout.flush()
    except AttributeError:  # MicroPython does not buffer
        pass


def make_client(kind, settings):
    """Return a client of this class with these settings."""
    store = Journal(FileRegion(settings.pop("journal"), settings.pop("sectors"), page_bytes=256, sync=False))
    ca = settings.pop("ca")
    tls = None
    if ca:
        from flashmqtt.tls import context

        tls = context(ca=ca)
    backoff = Backoff(base_ms=50, cap_ms=200, lasting_ms=100)
    return kind(store=store, tls=tls, timeout_s=ANSWER_S, backoff=backoff, **settings)


class Blocking:
    """The blocking client; its coroutines wait for nothing but the client."""

    def __init__(self, settings, take):
        from flashmqtt.client import Client

        self.client = make_client(Client, settings)
        self._take = take

    async def turn(self):
        """Let the client work for a moment."""
        self.client.poll(20)

    async def connect(self):
        """Connect."""
        return self.client.connect(ANSWER_S)

    async def subscribe(self, topic, qos):
        """Subscribe; messages go to the handler."""
        return self.client.subscribe(topic, qos, self._take)

    async def publish(self, *arguments):
        """Publish; return the handle."""
        return self.client.publish(*arguments)

    async def disconnect(self):
        """Disconnect."""
        self.client.disconnect()


class Tasks:
    """The asyncio client; messages are received by `async for`."""

    def __init__(self, settings, take):
        from flashmqtt.aio import Client

        self.client = make_client(Client, settings)
        self._take = take
        self._taking = None

    async def turn(self):
        """Let the client's task work for a moment."""
        await asyncio.sleep(0.01)

    async def connect(self):
        """Connect."""
        return await self.client.connect(ANSWER_S)

    async def subscribe(self, topic, qos):
        """Subscribe, and receive messages from now on."""
        granted = await self.client.subscribe(topic, qos)
        if self._taking is None:
            self._taking = asyncio.create_task(self._receive())
        return granted

    async def _receive(self):
        try:
            async for message in self.client:
                self._take(message)
        except Exception as error:
            say("ended", type(error).__name__, "async for: %s" % error)

    async def publish(self, *arguments):
        """Publish; return the handle."""
        return await self.client.publish(*arguments)

    async def disconnect(self):
        """Disconnect."""
        await self.client.disconnect()


class Board:
    """One start of a board."""

    def __init__(self, face, settings):
        self.crc = self.number = 0
        self.numbers: dict[int, int] = {}  # handle -> number
        self.publishing = 0
        self.face = (Tasks if face == "aio" else Blocking)(settings, self.take)
        self.client = client = self.face.client
        client.on_delivered = lambda handle: say("delivered", self.numbers.get(handle, self.publishing))
        client.on_refused = lambda handle, code: say("refused", self.numbers.get(handle, self.publishing), code)
        client.on_oversize = lambda topic, length: say("oversize", length)
        self._fail = client.link.fail
        client.link.fail = self.fail

    def fail(self, error, now_ms):
        """Print why a connection ended."""
        say("ended", type(error).__name__, str(error))
        self._fail(error, now_ms)

    def take(self, message):
        """Receive a message, or a part of a long one."""
        view = message.view
        if not message.offset:
            head = bytes(view[:12])
            self.crc = 0
            self.number = int(head.split(b";")[0]) if b";" in head else 0
        self.crc = binascii.crc32(view, self.crc)
        if not message.more:
            say(
                "got",
                message.topic,
                self.number,
                message.qos,
                bool(message.retain),
                message.offset + len(view),
                self.crc,
            )

    async def do(self, verb, arguments):
        """Execute a command; return the result."""
        face = self.face
        if verb == "publish":
            topic, numbers, qos, size, retain = arguments
            for number in numbers:
                self.publishing = number
                payload = body(number, size) if size else b""
                self.numbers[await face.publish(topic, payload, qos[number % len(qos)], retain)] = number
                if len(numbers) > 1:
                    await face.turn()
            return None
        if verb == "settle":  # until there is a connection whose subscriptions are granted
            deadline = ticks_add(ticks_ms(), ANSWER_S * 1000)
            while not (
                self.client.connected and all(one.state == GRANTED for one in self.client.session.subscriptions)
            ):
                if ticks_diff(deadline, ticks_ms()) < 0:
                    raise RuntimeError("no connection with granted subscriptions")
                await face.turn()
            return None
        if verb == "drain":
            deadline = ticks_add(ticks_ms(), arguments[0] * 1000)
            while self.client.pending and ticks_diff(deadline, ticks_ms()) > 0:
                await face.turn()
            return self.client.pending
        return await getattr(face, verb)(*arguments)

    async def live(self):
        """Execute the commands of the input until it ends."""
        poller = select.poll()
        poller.register(_input, 1)
        while True:
            if not poller.poll(0):
                await self.face.turn()
                continue
            line = _input.readline()
            if not line:
                return
            verb, *arguments = json.loads(line)
            try:
                result = await self.do(verb, arguments)
            except Exception as error:
                say("failed", type(error).__name__, str(error), getattr(error, "code", 0))
            else:
                say("done", result)


def main():
    """Live once."""
    settings = json.loads(_input.readline())
    face = settings.pop("face")
    gc.collect()
    if face == "aio":

        async def live():
            await Board(face, settings).live()

        asyncio.run(live())
        return
    coroutine = Board(face, settings).live()
    try:
        coroutine.send(None)  # it never waits for an event loop
    except StopIteration:
        pass


if __name__ == "__main__":
    main()
