"""A TCP proxy on loopback that simulates a bad link: it delays bytes, cuts a connection at a chosen packet or inside one, or
keeps a connection open without passing anything.

It passes whole packets, and finds their boundaries with the tests' codec, which shares no mistake with the product's. It counts
its cuts. It knows nothing of sessions.

Planned cuts have an address, so that every place of a flow can be enumerated, and each cut replayed alone:

    Cut("up", 3, "before", "rst")     the third packet from the client does not pass; the connection is reset
    Cut("down", 1, "middle", "fin")   half of the first packet to the client passes; then the connection ends
    Cut("up", 2, "after", "hole")     the second packet passes, and from then on nothing does, in either direction

A cut's packet number counts from the previous cut of the plan, over all connections; the first cut's from the start.
"""

from __future__ import annotations

import asyncio
import collections
import random
import socket
import struct
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field

from tools.proof.packets import Packet, Reader, Wrong, packet_end

READ_BYTES = 65536
# The receiver must read the part that passed before a reset discards it.
SETTLE_S = 0.01

UP, DOWN = "up", "down"
PLACES = ("before", "first", "middle", "last", "after")
INSIDE = "inside"
MANNERS = ("fin", "rst", "hole", "action")


@dataclass(frozen=True)
class Cut:
    """One planned cut.

    Attributes:
        direction: "up", from the client to the broker, or "down".
        packet: which packet in that direction; 1 is the first packet after the cut before.
        place: how much of it passes: nothing ("before"), its first byte, half, all but its last byte, all of it ("after"); or
            "inside": a random part.
        manner: "fin" both ends are closed; "rst" both are reset; "hole" nothing passes any more, nothing is closed;
            "action" the proxy's `action` is awaited, then both are reset.
    """

    direction: str
    packet: int
    place: str
    manner: str

    def passes(self, length: int, rng: random.Random | None = None) -> int:
        """Return how many bytes of a packet of this length pass."""
        if self.place == INSIDE and rng:
            return rng.randrange(1, length)
        return {"before": 0, "first": 1, "middle": length // 2, "last": length - 1, "after": length}[self.place]

    def __str__(self) -> str:
        return f"{self.direction}{self.packet}.{self.place}.{self.manner}"

    @classmethod
    def parse(cls, text: str) -> Cut:
        """Return the cut of a text that `str` made."""
        where, place, manner = text.split(".")
        direction = UP if where.startswith(UP) else DOWN
        if place not in PLACES or manner not in MANNERS:
            raise ValueError(text)
        return cls(direction, int(where.removeprefix(direction)), place, manner)


@dataclass(frozen=True)
class Seen:
    """One complete packet that the proxy received.

    Attributes:
        direction: UP or DOWN.
        content: its bytes.
        passed: how many of them were passed on.
        connection: the number of its connection; 1 is the first.
        cuts: how many planned cuts were made before.
        at_s: when it was received, since the proxy was made.
    """

    direction: str
    content: bytes
    passed: int
    connection: int
    cuts: int
    at_s: float = field(default=0.0, compare=False)

    @property
    def type(self) -> int:
        """The packet's type."""
        return self.content[0] >> 4

    @property
    def whole(self) -> bool:
        """Whether all of it was passed on."""
        return self.passed == len(self.content)


def decoded(trace: list[Seen], level: int) -> Iterator[tuple[Seen, list[Packet], str]]:
    """Yield what a proxy received, its packets, and what is wrong with it, or ""."""
    readers: dict[tuple[int, str], Reader] = collections.defaultdict(lambda: Reader(level))
    for seen in trace:
        try:
            yield seen, readers[seen.connection, seen.direction].feed(seen.content), ""
        except (Wrong, IndexError) as wrong:
            yield seen, [], str(wrong)


def packet_lines(trace: list[Seen], level: int) -> Iterator[str]:
    """Yield a line for each packet that a proxy saw."""
    for seen, packets, wrong in decoded(trace, level):
        text = ", ".join(f"{one} {one.payload[:12]!r}" if one.payload else f"{one}" for one in packets)
        text += f"{seen.content.hex(' ')}: {wrong}" if wrong else ""
        passed = "" if seen.whole else f"   cut after {seen.passed} of {len(seen.content)} bytes"
        yield f"{seen.at_s:6.3f} s  {seen.connection} {'->' if seen.direction == UP else '<-'} {text}{passed}"


@dataclass(eq=False)
class _Link:
    down: asyncio.StreamWriter  # towards the client
    up: asyncio.StreamWriter  # towards the broker
    number: int = 0
    tasks: list[asyncio.Task] = field(default_factory=list)
    swallow: bool = False
    cut_inside: bool = False

    def abort(self) -> None:
        """Reset both sides. Bytes in buffers are lost, as when a board loses its power."""
        for writer in (self.down, self.up):
            raw = writer.get_extra_info("socket")
            if raw is not None:
                try:
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                except OSError:
                    pass
            writer.transport.abort()

    def end(self) -> None:
        """Close both sides normally."""
        self.down.close()
        self.up.close()


class Proxy:
    """Listens on 127.0.0.1:`port` and forwards to 127.0.0.1:`target`.

    Args:
        target: the broker's port.
        rng: draws the places of unplanned cuts.
        delay_s: the delay of every byte, one way; a round trip takes twice as long.
        plan: cuts to make, one after the other.
        action: what a cut of manner "action" awaits.
        watch: called with each packet that it received, before it passes it on.

    Attributes:
        connections, cuts, cuts_inside_a_packet: how many there were.
    """

    def __init__(
        self,
        target: int,
        rng: random.Random | None = None,
        delay_s: float = 0.0,
        plan: list[Cut] | None = None,
        action: Callable[[], Coroutine[None, None, None]] | None = None,
        watch: Callable[[Seen], object] = lambda seen: None,
    ):
        self.target = target
        self.port = 0
        self.connections = self.cuts = self.cuts_inside_a_packet = 0
        self._refusing: set[str] = set()  # the reasons
        self.delay_s = delay_s
        self.made: list[Cut] = []
        self._acting: asyncio.Future | None = None
        self._plan = collections.deque(plan or [])
        self.watch = watch
        self._seen = {UP: 0, DOWN: 0}
        self._action = action
        self._rng = rng or random.Random()
        self._links: set[_Link] = set()
        self._accepted: set[asyncio.Task] = set()
        self._server: asyncio.Server | None = None
        self._stopped = False
        self._made_s = time.monotonic()

    async def start(self) -> Proxy:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._begin, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        """Stop listening and end every connection; wait for the action's end, and raise its error."""
        self._stopped = True
        if self._server is not None:
            self._server.close()
        self.cut()
        await asyncio.gather(*self._accepted, return_exceptions=True)
        if self._acting is not None:
            await self._acting

    @property
    def connected(self) -> bool:
        """Whether there is a connection at this moment."""
        return bool(self._links)

    def refuse(self, reason: str) -> None:
        """Refuse connections as long as there is this reason, or another one."""
        self._refusing.add(reason)

    def admit(self, reason: str) -> None:
        """Remove a reason to refuse connections."""
        self._refusing.discard(reason)

    def cut(self) -> None:
        """Reset every connection now."""
        for link in self._links:
            link.abort()
            for task in link.tasks:
                task.cancel()
            self.cuts += 1

    def cut_inside_a_packet(self) -> None:
        """Reset each connection in the middle of the next packet that the client sends."""
        for link in self._links:
            link.cut_inside = True

    def swallow(self) -> None:
        """Keep every connection open, but pass nothing in either direction."""
        for link in self._links:
            link.swallow = True

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Python 3.11 prints a traceback if a task of its own is cancelled.
        task = asyncio.ensure_future(self._accept(reader, writer))
        self._accepted.add(task)
        task.add_done_callback(self._accepted.discard)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusing:
            writer.transport.abort()
            return
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        if self._stopped:
            _Link(writer, up_writer).abort()
            return
        self.connections += 1
        link = _Link(writer, up_writer, self.connections)
        self._links.add(link)
        link.tasks = [
            asyncio.ensure_future(self._pump(link, reader, up_writer, UP)),
            asyncio.ensure_future(self._pump(link, up_reader, writer, DOWN)),
        ]
        try:
            done, _ = await asyncio.wait(link.tasks, return_when=asyncio.FIRST_COMPLETED)
            if link.swallow and done == {link.tasks[0]}:
                # The client closed a silent connection; the broker must not learn that from the proxy.
                await asyncio.wait(link.tasks)
        finally:
            for task in link.tasks:
                task.cancel()
            self._links.discard(link)
            link.end()
            await asyncio.gather(*link.tasks, return_exceptions=True)

    async def _pump(
        self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: str
    ) -> None:
        late = _Late(writer, self.delay_s) if self.delay_s else None
        pending = bytearray()  # the incomplete packet
        try:
            while chunk := await reader.read(READ_BYTES):
                pending += chunk
                while not link.swallow and (end := packet_end(pending)):
                    packet = bytes(pending[:end])
                    del pending[:end]
                    if await self._pass(link, packet, direction, late.write if late else writer.write):
                        return
                    await writer.drain()
                if link.swallow:
                    pending.clear()
        except OSError:
            pass
        finally:
            if late:
                await late.close()

    def _due(self, link: _Link, direction: str) -> Cut | None:
        """Return the cut of the packet that was received now."""
        if link.cut_inside and direction == UP:
            return Cut(UP, self._seen[UP], INSIDE, "rst")
        if self._plan and (self._plan[0].direction, self._plan[0].packet) == (direction, self._seen[direction]):
            return self._plan.popleft()
        return None

    async def _pass(self, link: _Link, packet: bytes, direction: str, write: Callable[[bytes], None]) -> bool:
        """Pass a packet on, all of it or the part that a cut leaves; return whether that ended the connection."""
        self._seen[direction] += 1
        cut = self._due(link, direction)
        passes = cut.passes(len(packet), self._rng) if cut else len(packet)
        at_s = time.monotonic() - self._made_s
        self.watch(Seen(direction, packet, passes, link.number, len(self.made), at_s))
        write(packet[:passes])
        if cut is None:
            return False
        self.made.append(cut)
        self._seen = {UP: 0, DOWN: 0}
        self.cuts += 1
        self.cuts_inside_a_packet += 0 < passes < len(packet)
        link.swallow = True
        if cut.manner == "hole":
            return False
        await asyncio.sleep(SETTLE_S)
        if cut.manner == "action" and self._action is not None:
            # What it does may end this connection's tasks: it goes on without them.
            self._acting = asyncio.ensure_future(self._action())
            await asyncio.shield(self._acting)
        link.swallow = False
        if cut.manner == "fin":
            link.end()
        else:
            link.abort()
        return True


class _Late:
    """Writes bytes after a delay, in their order."""

    def __init__(self, writer: asyncio.StreamWriter, delay_s: float):
        self._writer = writer
        self._delay_s = delay_s
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()

    def write(self, chunk: bytes) -> None:
        """Write bytes when the delay has passed."""
        # Two timers with the same time may fire in any order, so each one is later than the one before.
        self._last = max(self._loop.time() + self._delay_s, self._last + 1e-7)
        self._loop.call_at(self._last, self._writer.write, chunk)

    async def close(self) -> None:
        """Wait until everything is written."""
        await asyncio.sleep(max(0.0, self._last - self._loop.time()) + 0.001)
