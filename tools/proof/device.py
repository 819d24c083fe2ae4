"""The board's side of the fault cases, the power cuts and the brokers' scenarios, with either client, on both interpreters.

It executes the commands of its input. A life begins with a JSON object: the face ("client" or "aio") and the client's settings
(see `make_client`). Every further line is a JSON list: a verb and its arguments. The verb "over" ends the life; its result is the
number of connections and the bytes in use on MicroPython's heap. The next line begins another life.

It answers each command by one line, and prints further lines for other events. All lines are JSON lists:

    ["done", result]  ["failed", class, text, code]       the answer
    ["got", topic, head, qos, retain, length, crc]        the program received this message; its payload begins with `head`
    ["stored", number]  ["full"]                          publish() has returned; it found no space, and will be repeated
    ["delivered", number]  ["refused", number, code]      the result of a published message
    ["doubt", number]                                     the message was past PUBREC when the broker lost the session
    ["oversize", length]                                  a long message was skipped
    ["ended", class[:reason], text]                       a connection, or an attempt to connect, ended

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
from flashmqtt.errors import FlashMqttError, StoreFull
from flashmqtt.session.subscriptions import GRANTED

ANSWER_S = 30
QUIET_MS = 30
TURN_MS = 20
FULL_MS = 50
PATTERN = bytes(range(256)) * 4
END = "end"  # the payload of the last message


def body(number, size):
    """Return a message's payload: its number and a semicolon, padded to a size."""
    text = b"%d;" % number
    return text + (PATTERN * ((size - len(text)) // len(PATTERN) + 1))[: max(0, size - len(text))]


def say(*words):
    """Print a line for the runner."""
    print(json.dumps(words))
    try:
        sys.stdout.flush()
    except AttributeError:  # MicroPython does not buffer
        pass


def kind_of(error):
    """Return an error's class, with the reason code of level 5's DISCONNECT if it has one."""
    kind = type(error).__name__
    return "%s:%02x" % (kind, error.reason) if isinstance(error, FlashMqttError) and error.reason else kind


def make_store(journal, sectors, flash_time):
    """Return a journal in a file, or a store in RAM if there is no file's name.

    With `flash_time` the file is a simulated chip, whose operations take this share of their typical time.
    """
    if not journal:
        from flashmqtt.session.ram import RamStore

        return RamStore()
    from flashmqtt.journal.journal import Journal

    if flash_time:
        from flashmqtt.flash.block import BlockRegion
        from tools.flashsim.nor import FileNorFlash

        chip = FileNorFlash(journal, sectors * 4096, intent=journal + ".intent", time_scale=flash_time)
        return Journal(BlockRegion(chip))
    from flashmqtt.flash.file import FileRegion

    return Journal(FileRegion(journal, sectors, page_bytes=256, sync=False))


def make_client(aio, settings):
    """Return the asyncio client or the blocking one, with these settings."""
    module = __import__("flashmqtt.aio" if aio else "flashmqtt.client", None, None, ("Client",))
    store = make_store(settings.pop("journal"), settings.pop("sectors"), settings.pop("flash_time", 0))
    ca = settings.pop("ca", None)
    tls = None
    if ca:
        from flashmqtt.tls import context

        tls = context(ca=ca)
    return module.Client(store=store, tls=tls, backoff=Backoff(*settings.pop("backoff")), **settings)


class Board:
    """One life of a board."""

    def __init__(self, settings):
        self.crc = 0
        self.head = ""
        self.ended = False
        self.numbers: dict[int, int] = {}  # handle -> number
        self.publishing = 0
        takes_all = settings.pop("takes_all", False)
        self.pause_ms = settings.pop("pause_ms")  # after each published message
        self.waits = settings.pop("waits", False)  # for space in its store
        self.aio = settings.pop("face") == "aio"
        self.taking = None  # the task of the asyncio client's program that receives
        self.client = client = make_client(self.aio, settings)
        if takes_all:
            client.on_message = self.take
        # A message can be delivered before the call that publishes it has returned.
        client.on_delivered = lambda handle: say("delivered", self.numbers.pop(handle, self.publishing))
        client.on_refused = lambda handle, code: say("refused", self.numbers.pop(handle, self.publishing), code)
        client.on_in_doubt = lambda handle: say("doubt", self.numbers.get(handle, 0))
        client.on_oversize = lambda topic, length: say("oversize", length)
        self._fail = client.link.fail
        client.link.fail = self.fail

    def fail(self, error, now_ms):
        """Print why a connection ended."""
        say("ended", kind_of(error), str(error))
        self._fail(error, now_ms)

    def take(self, message):
        """Receive a message, or a part of a long one."""
        view = message.view
        if not message.offset:
            self.head = bytes(view[:12]).split(b";")[0].decode()
            self.crc = 0
        self.crc = binascii.crc32(view, self.crc)
        if not message.more:
            length = message.offset + len(view)
            say("got", message.topic, self.head, message.qos, bool(message.retain), length, self.crc)
            self.ended = self.ended or self.head == END

    async def receive(self):
        """Receive messages from the asyncio client."""
        try:
            async for message in self.client:
                self.take(message)
        except Exception as error:
            say("ended", type(error).__name__, "async for: %s" % error)

    async def turn(self, ms=TURN_MS):
        """Let the client work for a moment."""
        if self.aio:
            await asyncio.sleep(ms / 2000)
        else:
            self.client.poll(ms)

    async def call(self, verb, *arguments):
        """Call the client; return the result."""
        result = getattr(self.client, verb)(*arguments)
        return await result if self.aio and result is not None else result

    async def until(self, condition, ms):
        """Let the client work until a condition holds, for at most this time; return whether it holds."""
        deadline = ticks_add(ticks_ms(), ms)
        while not condition():
            if ticks_diff(deadline, ticks_ms()) < 0:
                return False
            await self.turn()
        return True

    async def publish(self, number, *arguments):
        """Publish a message; if the program waits for space, until there is some."""
        self.publishing = number
        while True:
            try:
                self.numbers[await self.call("publish", *arguments)] = number
            except StoreFull:
                if not self.waits:
                    raise
                say("full")
                await self.turn(FULL_MS)
            else:
                return say("stored", number)

    async def do(self, verb, arguments):
        """Execute a command; return the result."""
        client = self.client
        if verb == "publish":
            topic, numbers, qos, size, retain = arguments
            for number in numbers:
                quality = qos[number % len(qos)]
                while not quality and not client.connected:
                    await self.turn()
                await self.publish(number, topic, body(number, size) if size else b"", quality, retain)
                await self.turn(self.pause_ms)
            return None
        if verb == "count":  # the messages of all lives
            return client.session.store.stored
        if verb == "idle":
            return client.session.store.idle()
        if verb == "settle":  # until there is a connection whose subscriptions are granted

            def granted():
                return client.connected and all(one.state == GRANTED for one in client.session.subscriptions)

            if not await self.until(granted, ANSWER_S * 1000):
                raise RuntimeError("no connection with granted subscriptions")
            return None
        if verb == "drain":
            await self.until(lambda: not client.pending, arguments[0] * 1000)
            return client.pending
        if verb == "finish":  # until all is delivered, and the last message was received
            return await self.until(lambda: self.ended and not client.pending, arguments[0] * 1000)
        if verb == "linger":  # receive what still comes, while there is a connection
            await self.until(lambda: False, QUIET_MS)
            return await self.until(lambda: client.connected, ANSWER_S * 1000)
        if verb == "connect":
            arguments = (ANSWER_S,)
        elif verb == "subscribe" and not client.on_message:
            if not self.aio:
                arguments += (self.take,)
            elif not self.taking:
                self.taking = asyncio.create_task(self.receive())
        return await self.call(verb, *arguments)

    async def live(self, source):
        """Execute the commands of the input until the life is over; return how often the client has connected, -1 at the end."""
        poller = select.poll()
        poller.register(source, 1)
        while True:
            if not poller.poll(0):
                await self.turn()
                continue
            line = source.readline()
            if not line:
                return -1
            verb, *arguments = json.loads(line)
            if verb == "over":
                return self.client.link.connects
            try:
                result = await self.do(verb, arguments)
            except Exception as error:
                say("failed", type(error).__name__, str(error), getattr(error, "code", 0))
            else:
                say("done", result)


def live(settings, source):
    """Live once; return what `Board.live` returns."""
    if settings["face"] == "aio":

        async def begin():
            return await Board(settings).live(source)

        return asyncio.run(begin())
    coroutine = Board(settings).live(source)
    try:
        coroutine.send(None)  # it never waits for an event loop
    except StopIteration as end:
        return end.value


def main():
    """Live as often as the input asks for."""
    # CPython's sys.stdin reads ahead, and a poller does not see the bytes in its buffer.
    source = sys.stdin if sys.implementation.name == "micropython" else open(0, "rb", buffering=0)  # noqa: SIM115
    connects = 0
    while connects >= 0:
        line = source.readline()
        if not line:
            break
        gc.collect()
        connects = live(json.loads(line), source)
        gc.collect()
        say("done", [connects, gc.mem_alloc() if hasattr(gc, "mem_alloc") else 0])


if __name__ == "__main__":
    main()
