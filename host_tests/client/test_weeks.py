"""Days and weeks in virtual time: both clients live through outages of seconds to days, while a board's ticks wrap."""

from __future__ import annotations

import asyncio
import itertools
import random

import pytest

from flashmqtt import aio
from flashmqtt.backoff import Backoff
from flashmqtt.client import Client
from flashmqtt.session.ram import RamStore
from host_tests.client.world import TURN_MS, Loop, Socket, World, some

MINUTE = 60_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR
WEEKS = 3 * 7 * DAY
MORE_THAN_A_WEEK = 8 * DAY  # asyncio takes more time
RESUMED_MS = 4 * MINUTE  # after the network works again: the longest delay of the backoff, and a connection attempt


class Life:
    """One random life: what the program does, and what the network suffers."""

    def __init__(self, seed: int, level: int, monkeypatch) -> None:
        self.rng = rng = random.Random(seed)
        self.world = World(level, rng.choice((0, TURN_MS // 2 - MINUTE, TURN_MS - DAY, rng.randrange(TURN_MS))))
        self.world.patch(monkeypatch)
        self.broker = self.world.broker
        self.broker.quota = rng.choice((1, 5, 20))
        self.mean_ms = rng.choice((20 * MINUTE, 4 * HOUR, 2 * DAY))
        self.sent: dict[bytes, tuple[int, int]] = {}  # payload -> QoS, time
        self.came: dict[bytes, int] = {}
        self.expected: dict[bytes, int] = {}  # payload -> QoS
        self.down: list[tuple[int, int]] = []  # outages: begin, end
        self.options = {
            "client_id": "weeks",
            "store": RamStore(1 << 20),
            "level": level,
            "backoff": Backoff(random_below=lambda n: rng.randrange(n)),
            "keep_alive_s": rng.choice((60, 600)),
            "waiting": rng.choice((2, 64)),
        }
        self.publish_ms = self.deliver_ms = 0
        self.fault_ms = some(rng, DAY)

    def due(self) -> bool:
        """Do what the broker and the network do now; return whether the program has to publish."""
        now = self.world.now_ms
        if now >= self.deliver_ms:
            self.deliver_ms = now + some(self.rng, self.mean_ms)
            payload = b"in %d" % len(self.expected)
            self.expected[payload] = self.rng.choice((1, 2))
            self.broker.publish(payload, self.expected[payload])
        if now >= self.fault_ms:
            self.fault_ms = now + some(self.rng, self.rng.choice((1000, MINUTE, HOUR, DAY, 9 * DAY)))
            if self.world.fault:
                self.recover()
            elif self.rng.random() < 0.3:
                self.broker.drop(self.rng.choice((Socket.end, Socket.reset)))
            else:
                self.world.fault = self.rng.choice(("refused", "unknown", "silent"))
                self.down.append((now, 0))
        if now < self.publish_ms:
            return False
        self.publish_ms = now + some(self.rng, self.mean_ms)
        return True

    def next_ms(self) -> int:
        """Return how long nothing is due."""
        return max(min(self.publish_ms, self.deliver_ms, self.fault_ms) - self.world.now_ms, 1)

    def recover(self) -> None:
        if self.world.fault:
            self.world.fault = None
            self.down[-1] = (self.down[-1][0], self.world.now_ms)

    def message(self) -> tuple[bytes, int]:
        payload, qos = b"out %d" % len(self.sent), self.rng.choice((1, 2))
        self.sent[payload] = (qos, self.world.now_ms)
        return payload, qos

    def take(self, message) -> None:
        payload = bytes(message.payload)
        self.came[payload] = self.came.get(payload, 0) + 1

    def is_complete(self) -> bool:
        return self.broker.idle and len(self.broker.taken) == len(self.sent) and len(self.came) == len(self.expected)

    def judge(self) -> None:
        assert not self.broker.broken
        assert set(self.broker.taken) == set(self.sent) and set(self.came) == set(self.expected)
        assert not [one for one, (qos, _) in self.sent.items() if qos == 2 and self.broker.taken[one] > 1]
        assert not [one for one, qos in self.expected.items() if qos == 2 and self.came[one] > 1]
        for payload, (_, begin) in self.sent.items():
            end = self.broker.first_ms[payload]
            # The longest time without an outage between: it was not sent although the network worked.
            moments = [begin, *(one for outage in self.down for one in outage if begin < one < end), end]
            working = [b - a for a, b in itertools.pairwise(moments) if not any(x <= a < y for x, y in self.down)]
            assert max(working) < RESUMED_MS, f"{payload!r}: {begin} to {end}"


@pytest.mark.req("B4", "Q1", "Q2", "Q4", "S5")
@pytest.mark.parametrize("seed,level", [(0, 4), (1, 5), (2, 4), (3, 5)])
def test_client_delivers_everything_through_weeks_of_outages(seed, level, monkeypatch):
    life = Life(seed, level, monkeypatch)
    client = Client("broker", **life.options)
    client.start()
    client.subscribe("in", 2, life.take)
    while life.world.now_ms < WEEKS:
        if life.due():
            client.publish("out", *life.message())
        client.poll(min(life.next_ms(), life.rng.choice((100, 10 * MINUTE, 9 * 3600_000))))
    life.recover()
    end = life.world.now_ms + HOUR
    while life.world.now_ms < end and not life.is_complete():
        client.poll(MINUTE)
    life.judge()
    assert client.pending == 0


@pytest.mark.req("B4", "Q1", "Q2", "Q4", "S5")
@pytest.mark.parametrize("taker,level", [("plain", 4), ("async def", 5), ("async for", 4)])
def test_asyncio_client_delivers_everything_through_days_of_outages(taker, level, monkeypatch):
    life = Life(len(taker), level, monkeypatch)
    monkeypatch.setattr("flashmqtt.aio.ready", lambda sock, writing: sock.wait(4 if writing else 1))
    client = aio.Client("broker", **life.options)

    async def slow(message):
        await asyncio.sleep(life.rng.choice((0, 0.01, 2)))
        life.take(message)

    async def iterate():
        async for message in client:
            life.take(message)

    async def program():
        client.start()
        await client.subscribe("in", 2, {"plain": life.take, "async def": slow}.get(taker))
        task = asyncio.create_task(iterate())
        while life.world.now_ms < MORE_THAN_A_WEEK:
            if life.due():
                await client.publish("out", *life.message())
                if life.rng.random() < 0.05:
                    await client.disconnect()
                    await asyncio.sleep(life.rng.choice((0, 3)))
                    client.start()
                    task.cancel()
                    task = asyncio.create_task(iterate())
            await asyncio.sleep(life.next_ms() / 1000)
        life.recover()
        end = life.world.now_ms + HOUR
        while life.world.now_ms < end and not life.is_complete():
            await asyncio.sleep(60)
        await client.disconnect()
        await task

    loop = Loop(life.world)
    try:
        loop.run_until_complete(program())
    finally:
        loop.close()
    life.judge()


@pytest.mark.req("Q3", "Q4", "R1")
@pytest.mark.parametrize("qos", [1, 2])
def test_message_that_had_no_room_for_a_week_comes_as_soon_as_it_can_be_taken(qos, monkeypatch):
    world = World(4, 0)
    world.patch(monkeypatch)
    came = []
    options = {"store": RamStore(hold_limit=2), "waiting": 2, "waiting_bytes": 100, "unclaimed": "keep"}
    client = Client("broker", client_id="weeks", keep_alive_s=600, **options)
    client.connect()
    client.subscribe("#", 2)

    def pass_ms(ms):
        end = world.now_ms + ms
        while world.now_ms < end:
            client.poll(min(ms, HOUR))

    # QoS 1: at most 100 bytes wait. QoS 2: at most 2 messages are held.
    for topics, pause_ms in (("kept a", MINUTE), ("b b", 7 * DAY)):
        for topic in topics.split():
            world.broker.publish(b"%-100s" % topic.encode() if topic != "kept" else b"kept", qos, topic)
        pass_ms(pause_ms)
        client.subscribe(topic, qos, lambda message: came.append(message.topic))
        pass_ms(MINUTE)
    assert came == ["a", "b", "b"]
