# mypy: ignore-errors
"""The board's side of the session's figures; runs on MicroPython: `session.py NAME PORT WHAT COUNT QOS WINDOW`.

NAME is the client to measure: `flashmqtt` (stored in a journal on a simulated NOR flash), `flashmqtt-ram`, `flashmqtt-aio` (only
with `take` as WHAT), or `umqtt.simple`. The last line that it prints is a dict of its measurements.
"""

import gc
import sys
import time

NAME = sys.argv[1]
PORT = int(sys.argv[2])
WHAT = sys.argv[3]
COUNT = int(sys.argv[4])
QOS = int(sys.argv[5])
WINDOW = int(sys.argv[6])
TOPIC = b"bench/01234567890123"  # 20 characters
PAYLOAD = b"x" * 64


class Taken:
    """Counts the received messages, and takes the time from the first one on. Each client counts with one call a message."""

    received = 0
    ended = False

    def start(self):
        """Note the time of the first message."""
        self.begin = time.ticks_ms()
        self.cpu = time.clock()

    def take(self, message):
        """Count a message of flashmqtt; the last one is short."""
        if message.payload_end - message.payload_start == 3:
            self.ended = True
        else:
            if not self.received:
                self.start()
            self.received += 1

    def take_payload(self, topic, payload):
        """Count a message of umqtt.simple."""
        if payload == b"end":
            self.ended = True
        else:
            if not self.received:
                self.start()
            self.received += 1

    def rates(self):
        """Return messages per second and CPU time per message, without the wait for the first one."""
        seconds = time.ticks_diff(time.ticks_ms(), self.begin) / 1000
        n = self.received - 1
        return {"per_s": n / (seconds or 0.001), "cpu_us": (time.clock() - self.cpu) * 1e6 / n}


class Ours(Taken):
    """flashmqtt's blocking client."""

    def __init__(self, journal):
        from flashmqtt.client import Client
        from flashmqtt.errors import StoreFull

        self.full = StoreFull
        store = None
        if journal:
            from flashmqtt.journal.journal import Journal

            if WHAT == "heap":  # the simulated chip allocates
                from flashmqtt.flash.ram import RamRegion

                region = RamRegion(256)
            else:
                from flashmqtt.flash.block import BlockRegion
                from tools.flashsim.nor import NorFlash

                region = BlockRegion(NorFlash(1024 * 1024))
            store = Journal(region)
        else:
            from flashmqtt.session.ram import RamStore

            store = RamStore()
        self.mqtt = Client(
            "127.0.0.1",
            PORT,
            "bench-ours",
            store,
            window=WINDOW,
            # umqtt.simple's sessions are clean, too. With a persistent session the next run would begin with thousands of
            # messages that the broker has queued; mosquitto 2.0.11 may then use CPU time without sending anything.
            clean=WHAT == "take",
        )
        self.mqtt.connect(5)

    def publish(self):
        """Publish one message, as soon as the store has room."""
        while True:
            try:
                self.mqtt.publish(TOPIC, PAYLOAD, QOS)
                break
            except self.full:
                self.mqtt.poll(1000)

    def finish(self):
        """Wait until all is acknowledged."""
        if not self.mqtt.drain(120):
            raise OSError("not drained")

    def subscribe(self):
        """Subscribe to what the harness publishes."""
        self.mqtt.subscribe("bench/in", QOS, self.take)

    def receive(self):
        """Wait for a message, or a moment."""
        self.mqtt.poll(1000)


class Simple(Taken):
    """umqtt.simple, as it comes from PyPI."""

    def __init__(self):
        from umqtt.simple import MQTTClient

        self.mqtt = MQTTClient("bench-simple", "127.0.0.1", PORT)
        self.mqtt.set_callback(self.take_payload)
        self.mqtt.connect()

    def publish(self):
        """Publish one message."""
        self.mqtt.publish(TOPIC, PAYLOAD, qos=QOS)

    def finish(self):
        """Wait until all is acknowledged."""

    def subscribe(self):
        """Subscribe to what the harness publishes."""
        self.mqtt.subscribe(b"bench/in", QOS)

    def receive(self):
        """Wait for a message, or a moment."""
        self.mqtt.wait_msg()


class Counting:
    """A socket that counts how often it is written to."""

    def __init__(self, sock):
        self.sock = sock
        self.writes = 0

    def write(self, *arguments):
        """Count the write, and pass it on."""
        self.writes += 1
        return self.sock.write(*arguments)

    def __getattr__(self, name):
        return getattr(self.sock, name)


def send(client):
    """Return messages per second and CPU time per message, up to the last acknowledgement."""
    begin = time.ticks_ms()
    cpu = time.clock()
    for _ in range(COUNT):
        client.publish()
    client.finish()
    seconds = time.ticks_diff(time.ticks_ms(), begin) / 1000
    return {"per_s": COUNT / seconds, "cpu_us": (time.clock() - cpu) * 1e6 / COUNT}


def take(client):
    """Return received messages per second and CPU time per message; the harness publishes when it reads `ready`."""
    client.subscribe()
    gc.collect()
    print("ready")
    while not client.ended:  # at QoS 0 a broker may drop some
        client.receive()
    return client.rates()


def take_aio():
    """Measure the same as `take`, with the asyncio client: messages by `async for`."""
    import asyncio

    from flashmqtt.aio import Client
    from flashmqtt.session.ram import RamStore

    async def main():
        taken = Taken()
        async with Client("127.0.0.1", PORT, "bench-aio", RamStore()) as client:
            await client.subscribe("bench/in", QOS)
            gc.collect()
            print("ready")
            async for message in client:
                taken.take(message)
                if taken.ended:
                    break
        return taken.rates()

    return asyncio.run(main())


def heap(client):
    """Return the heap allocated per message, and the socket writes of one publish."""
    for _ in range(60):  # into the journal's second sector: only the first sector change allocates 64 bytes
        client.publish()
    client.finish()
    gc.collect()
    gc.disable()
    before = gc.mem_alloc()
    for _ in range(COUNT):
        client.publish()
    grown = gc.mem_alloc() - before
    gc.enable()
    client.finish()
    holder = client.mqtt.link if NAME.startswith("flashmqtt") else client.mqtt
    holder.sock = counting = Counting(holder.sock)
    client.publish()
    return {"heap_bytes": grown / COUNT, "writes": counting.writes}


if NAME == "flashmqtt-aio":
    print(take_aio())
else:
    print(
        {"send": send, "take": take, "heap": heap}[WHAT](
            Simple() if NAME == "umqtt.simple" else Ours(NAME == "flashmqtt")
        )
    )
