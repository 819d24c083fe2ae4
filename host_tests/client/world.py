"""A world in virtual time for a client under CPython: a clock that wraps as a board's, a network with faults, and a broker.

Weeks take seconds, and each run with the same seed is the same. `World.patch` puts the library into it.
"""

from __future__ import annotations

import asyncio
import heapq
import pkgutil
import random
import selectors
import sys
from collections import defaultdict, deque
from importlib import import_module
from typing import Any

import flashmqtt
from tools.proof import packets as p
from tools.proof.session import Session

TURN_MS = 1 << 30  # a board's ticks wrap after 12.4 days
TRIP_MS = 30  # from one side of the network to the other
POLLIN, POLLOUT, POLLERR = 1, 4, 8


class World:
    """Time, network and broker.

    Attributes:
        now_ms: the time since the beginning.
        fault: None; or "refused" (no broker runs), "unknown" (no name server answers), "silent" (packets vanish).
        broker: the broker.
    """

    def __init__(self, level: int, first_ticks: int) -> None:
        self.now_ms = 0
        self.fault: str | None = None
        self.broker = Broker(self, level)
        self.sockets: set[Socket] = set()
        self._first_ticks = first_ticks
        self._events: list[tuple[int, int, Any]] = []
        self._count = 0

    def patch(self, monkeypatch) -> None:
        """Let all modules of the library use this world's time and network."""
        names = [
            one.name for one in pkgutil.walk_packages(flashmqtt.__path__, "flashmqtt.") if "native" not in one.name
        ]
        for name in names:  # a module that is first loaded later would keep what is replaced here
            import_module(name)
        for name in ["flashmqtt.compat", *names]:
            for one in ("ticks_ms", "ticks_diff", "ticks_add"):
                if hasattr(sys.modules[name], one):
                    monkeypatch.setattr(sys.modules[name], one, getattr(self, one))
        monkeypatch.setattr("flashmqtt.link.socket.getaddrinfo", self.look_up)
        monkeypatch.setattr("flashmqtt.link._IDLE_MS", 15_000)  # it looks once a second, though nothing is due
        monkeypatch.setattr("flashmqtt.hosted.HostedSocket", lambda family: Socket(self))
        monkeypatch.setattr("select.poll", lambda: Poller(self))
        monkeypatch.setattr("flashmqtt.client._poll", lambda: Poller(self))
        monkeypatch.setattr("flashmqtt.client._IPOLL", False)
        monkeypatch.setattr("flashmqtt.client._sleep_ms", self.sleep)
        monkeypatch.setattr("flashmqtt.session.expiry.time.time", lambda: 1_800_000_000 + self.now_ms / 1000)

    def ticks_ms(self) -> int:
        return (self._first_ticks + self.now_ms) % TURN_MS

    @staticmethod
    def ticks_diff(later: int, earlier: int) -> int:
        return (later - earlier + TURN_MS // 2) % TURN_MS - TURN_MS // 2

    @staticmethod
    def ticks_add(ticks: int, delta: int) -> int:
        return (ticks + delta) % TURN_MS

    def after(self, delay_ms: int, action) -> None:
        """Call this after a delay."""
        self._count += 1
        heapq.heappush(self._events, (self.now_ms + delay_ms, self._count, action))

    def sleep(self, ms: int, until=lambda: False) -> None:
        """Let time pass until a condition holds."""
        end = self.now_ms + ms
        while not until():
            if not self._events or self._events[0][0] > end:
                self.now_ms = end
                return
            self.now_ms, _, action = heapq.heappop(self._events)
            action()

    def look_up(self, host, port, family, kind):
        if self.fault == "unknown":
            raise OSError(-3, "no name server answers")
        return [(family, kind, 6, "", ("127.0.0.1", port))]

    def send(self, sock: Socket, action) -> None:
        """Do this at the other side of a connection, unless the network loses it: then the connection is dead."""
        sock.dead = sock.dead or self.fault is not None
        if not sock.dead:
            self.after(TRIP_MS, lambda: sock.dead or action())


class Socket:
    """What `HostedSocket` is."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.octets = bytearray()
        self.waiters: list[tuple[asyncio.Future, int]] = []
        self.dead = self.open = self.ended = self.failed = False
        world.sockets.add(self)

    def setsockopt(self, *arguments) -> None:
        pass

    def connect(self, address) -> None:
        if self.world.fault == "refused":
            self.world.after(TRIP_MS, self.reset)
        else:
            self.world.send(self, self._accepted)

    def _accepted(self) -> None:
        self.open = True
        self.world.broker.accept(self)

    def reset(self) -> None:
        self.failed = True

    def end(self) -> None:
        self.ended = True

    def ready(self) -> int:
        readable = bool(self.octets) or self.ended
        return POLLIN * readable | POLLOUT * self.open | (POLLIN | POLLOUT | POLLERR) * self.failed

    def readinto(self, buf):
        if self.failed:
            raise ConnectionResetError(104)
        n = min(len(buf), len(self.octets))
        buf[:n], self.octets = self.octets[:n], self.octets[n:]
        return n or (0 if self.ended else None)

    def write(self, buf, start, n):
        if self.failed:
            raise ConnectionResetError(104)
        octets = bytes(buf[start : start + n])
        self.world.send(self, lambda: self.world.broker.take(self, octets))
        return n

    def close(self) -> None:
        self.world.send(self, lambda: self.world.broker.closed(self))
        self.open = False
        self.world.sockets.discard(self)
        for future, _ in self.waiters:
            if not future.done():
                future.set_result(None)

    async def wait(self, wanted: int) -> None:
        future = asyncio.get_running_loop().create_future()
        self.waiters.append((future, wanted | POLLERR))
        if not self.ready() & wanted:
            await future

    def wake(self) -> None:
        for future, wanted in self.waiters:
            if self.ready() & wanted and not future.done():
                future.set_result(None)
        self.waiters = [one for one in self.waiters if not one[0].done()]


class Poller:
    """What `select.poll` is."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._wanted: dict[Socket, int] = {}

    def register(self, sock: Socket, events: int) -> None:
        self._wanted[sock] = events | POLLERR

    def poll(self, ms: int = 0):
        self._world.sleep(ms, self._ready)
        return self._ready()

    def _ready(self):
        return [(sock, sock.ready() & wanted) for sock, wanted in self._wanted.items() if sock.ready() & wanted]


class Loop(asyncio.SelectorEventLoop):
    """asyncio in virtual time."""

    def __init__(self, world: World) -> None:
        self.world = world
        super().__init__(Selector(self))

    def time(self) -> float:
        return self.world.now_ms / 1000


class Selector(selectors._BaseSelectorImpl):
    def __init__(self, loop: Loop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout=None):
        if timeout is None or timeout > 0:
            self._loop.world.sleep(1 << 40 if timeout is None else -int(-timeout * 1000 // 1), self._woken)
        else:  # a program's turn takes time, too
            self._loop.world.sleep(1)
        self._woken()
        return []

    def _woken(self) -> bool:
        for sock in list(self._loop.world.sockets):
            sock.wake()
        return bool(self._loop._ready)


class Broker:
    """Keeps one client's session, publishes to it, and closes a connection that breaks the rules.

    Attributes:
        taken: how often each payload arrived. first_ms: when it arrived first. topics: its topic.
        broken: what the client did wrong: a missing PINGREQ, or a wrong packet.
        quota: how many messages may be unacknowledged.
        refuses: returns whether to refuse a PUBLISH (level 5).
    """

    def __init__(self, world: World, level: int) -> None:
        self._world = world
        self._level = level
        self._session = Session()
        self._begun = self._subscribed = False
        self.sock: Socket | None = None
        self._heard_ms = self._keep_alive_ms = 0
        self._reader = p.Reader(level)
        self._queue: deque[tuple[str, bytes, int]] = deque()
        self._next_id = 0
        self.quota = 20
        self.refuses = lambda packet: False
        self.taken: dict[bytes, int] = defaultdict(int)
        self.first_ms: dict[bytes, int] = {}
        self.topics: dict[bytes, str] = {}
        self.broken: list[str] = []

    @property
    def idle(self) -> bool:
        return not self._queue and not self._session.unanswered

    def accept(self, sock: Socket) -> None:
        self.closed(self.sock)
        self.sock = sock
        self._reader = p.Reader(self._level)
        self._heard_ms = self._world.now_ms

    def closed(self, sock: Socket | None) -> None:
        if sock and sock is self.sock:
            self.sock = None

    def drop(self, how) -> None:
        """End the connection from this side: `Socket.end` or `Socket.reset`."""
        sock, self.sock = self.sock, None
        if sock:
            self._world.send(sock, lambda: how(sock))

    def forget(self) -> None:
        """Lose the session, as a broker that restarts without its database."""
        self.drop(Socket.reset)
        self._session = Session()
        self._begun = self._subscribed = False

    def publish(self, payload: bytes, qos: int, topic: str = "in") -> None:
        self._queue.append((topic, payload, qos))
        self._pump()

    def take(self, sock: Socket, octets: bytes) -> None:
        if sock is self.sock:
            self._heard_ms = self._world.now_ms
            for packet in self._reader.feed(octets):
                self._process(packet)

    def _process(self, packet: p.Packet) -> None:
        kind = packet.kind
        if kind == p.CONNECT:
            self._level = packet.level
            self._keep_alive_ms = packet.keep_alive_s * 1000
            self._send(p.connack(self._level, self._begun and not packet.clean))
            self._begun = True
            self._send(self._session.repetitions())
            self._check(self.sock)
        elif kind == p.SUBSCRIBE:
            self._subscribed = True
            self._send(p.suback(packet.packet_id, [2] * len(packet.filters), self._level))
        elif kind == p.PINGREQ:
            self._send(p.PONG)
        elif kind == p.DISCONNECT:
            self.drop(Socket.end)
        elif kind == p.PUBLISH and packet.qos and self.refuses(packet):
            self._send(p.ack(p.PUBREC if packet.qos == 2 else p.PUBACK, packet.packet_id, 0x87))
        else:
            if kind == p.PUBLISH and self._session.is_new(packet):
                self.taken[packet.payload] += 1
                self.first_ms.setdefault(packet.payload, self._world.now_ms)
                self.topics[packet.payload] = packet.topic
            self._send(self._session.answer(packet))
        self._pump()

    def _pump(self) -> None:
        while self._queue and self._subscribed and self.sock and len(self._session.unanswered) < self.quota:
            topic, payload, qos = self._queue.popleft()
            self._next_id = self._next_id % 65535 + 1
            octets = p.publish(topic, payload, qos, self._next_id, self._level)
            self._session.unanswered[self._next_id] = octets
            self._send(octets)

    def _send(self, octets: bytes) -> None:
        sock = self.sock
        if sock and octets:
            self._world.send(sock, lambda: sock.octets.extend(octets))

    def _check(self, sock: Socket | None) -> None:
        """Close a connection on which nothing came for 1.5 times the keep alive."""
        if sock and sock is self.sock and self._keep_alive_ms:
            left = self._heard_ms + self._keep_alive_ms * 3 // 2 - self._world.now_ms
            if left > 0:
                self._world.after(left, lambda: self._check(sock))
                return
            if not sock.dead and not self._world.fault:
                self.broken.append(f"nothing for 1.5 times the keep alive, at {self._world.now_ms} ms")
            self.drop(Socket.end)


def some(rng: random.Random, mean_ms: float) -> int:
    """Return a random delay."""
    return int(rng.expovariate(1 / mean_ms)) + 1
