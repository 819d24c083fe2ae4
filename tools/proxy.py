"""A TCP proxy on loopback that does to a connection what a bad link does: cuts it, cuts it inside a packet,
swallows its bytes.

It finds packet boundaries with a parser of its own, so that it shares no mistake with the codec under test. It
keeps a count of what it did. It knows nothing of sessions.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from dataclasses import dataclass, field

READ_BYTES = 4096


def packet_ends(chunk: bytes) -> list[int]:
    """Return where the MQTT packets in a chunk end, if the chunk starts at a packet's first byte; only complete packets count."""
    ends: list[int] = []
    position = 0
    while position + 2 <= len(chunk):
        length, shift, at = 0, 0, position + 1
        while at < len(chunk):
            byte = chunk[at]
            length |= (byte & 0x7F) << shift
            shift += 7
            at += 1
            if byte < 0x80:
                break
        else:
            return ends
        position = at + length
        if position > len(chunk):
            return ends
        ends.append(position)
    return ends


def place_inside_a_packet(chunk: bytes, rng: random.Random) -> int:
    """Return how many bytes of the chunk to pass on so that the last packet passed on is cut in its middle."""
    borders = {0, *packet_ends(chunk)}
    inside = [place for place in range(1, len(chunk)) if place not in borders]
    return rng.choice(inside) if inside else 0


@dataclass
class Counts:
    """What the proxy did."""

    connections: int = 0
    cuts: int = 0
    cuts_inside_a_packet: int = 0
    bytes_up: int = 0
    bytes_down: int = 0


@dataclass(eq=False)
class _Link:
    down: asyncio.StreamWriter  # towards the client
    up: asyncio.StreamWriter  # towards the broker
    tasks: list[asyncio.Task] = field(default_factory=list)
    swallow: bool = False
    cut_inside: bool = False

    def abort(self) -> None:
        """End both sides with a reset; what lies in buffers is gone, as it is when a board loses its power."""
        for writer in (self.down, self.up):
            raw = writer.get_extra_info("socket")
            if raw is not None:
                try:
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                except OSError:
                    pass
            writer.transport.abort()


class Proxy:
    """Listens on 127.0.0.1:`port` and forwards to 127.0.0.1:`target`."""

    def __init__(self, target: int, rng: random.Random | None = None):
        self.target = target
        self.port = 0
        self.counts = Counts()
        self.accepting = True
        self._rng = rng or random.Random()
        self._links: set[_Link] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> Proxy:
        """Start to listen, on a free port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        """Stop to listen and end every connection."""
        if self._server is not None:
            self._server.close()
        self.cut()
        await asyncio.sleep(0)

    @property
    def connected(self) -> bool:
        """Whether a connection stands at this moment."""
        return bool(self._links)

    def cut(self) -> int:
        """Reset every connection now; return how many there were."""
        links = list(self._links)
        for link in links:
            link.abort()
            for task in link.tasks:
                task.cancel()
        self.counts.cuts += len(links)
        return len(links)

    def cut_inside_a_packet(self) -> None:
        """Reset each connection in the middle of the next packet that the client sends."""
        for link in self._links:
            link.cut_inside = True

    def swallow(self) -> None:
        """Let every connection stand but pass nothing on, in either direction: a black hole."""
        for link in self._links:
            link.swallow = True

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.accepting:
            writer.transport.abort()
            return
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        self.counts.connections += 1
        link = _Link(writer, up_writer)
        self._links.add(link)
        link.tasks = [
            asyncio.ensure_future(self._pump(link, reader, up_writer, True)),
            asyncio.ensure_future(self._pump(link, up_reader, writer, False)),
        ]
        try:
            await asyncio.wait(link.tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in link.tasks:
                task.cancel()
            self._links.discard(link)
            for side in (writer, up_writer):
                side.close()

    async def _pump(
        self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, upward: bool
    ) -> None:
        try:
            while chunk := await reader.read(READ_BYTES):
                if link.swallow:
                    continue
                if upward and link.cut_inside:
                    place = place_inside_a_packet(chunk, self._rng)
                    if place:
                        writer.write(chunk[:place])
                        await writer.drain()
                        # The part that got through must reach the broker before the reset discards what is unread.
                        await asyncio.sleep(0.01)
                        self.counts.cuts += 1
                        self.counts.cuts_inside_a_packet += 1
                        link.abort()
                        return
                if upward:
                    self.counts.bytes_up += len(chunk)
                else:
                    self.counts.bytes_down += len(chunk)
                writer.write(chunk)
                await writer.drain()
        except OSError:
            pass
