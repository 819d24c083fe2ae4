"""A broker for one client that does everything right, but for one wrong thing at one moment.

It accepts any number of connections of one session and plays its part in every flow: it takes the client's numbered messages,
and sends three of its own (QoS 1, 2 and 0), then one whose payload is "end". When the chosen moment has come, on the connection
where it comes first, it does the wrong thing once; from then on it does everything right again.

It checks what the client sends, too: bytes that no client may send, acknowledgements of nothing, messages repeated without DUP.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import struct
from dataclasses import dataclass, field

from tools.faults import packets as p
from tools.hostile.wrongs import Scene, Wrong

X_ID, Y_ID, END_ID = 1, 2, 3


@dataclass
class Seen:
    """What the broker saw."""

    done: bool = False  # the wrong thing was done
    connection: int = 0  # on which connection
    connections: int = 0
    numbers: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    farewell: int = -1  # the reason code of the DISCONNECT that followed on the same connection (level 5)


class HostileBroker:
    """Listens on a free port of loopback.

    Args:
        wrong, moment: what to do, and when.
        level: what the client speaks.
        topic: the client's; its subscription is `topic`/in.
    """

    def __init__(self, wrong: Wrong, moment: str, level: int, topic: str):
        self.wrong = wrong
        self.moment = moment
        self.level = level
        self.topic = topic
        self.port = 0
        self.seen = Seen()
        self._scene = Scene(level, topic=topic)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task] = set()
        # The session.
        self._known = False
        self._subscribed = False
        self._held: set[int] = set()
        self._x = self._y = self._end = ""  # "", "sent", "received", "done"
        self._sent_z = False
        self._ids: dict[int, int] = {}
        # The connection.
        self._writer: asyncio.StreamWriter | None = None
        self._silent = False
        self._closed = False
        self._up_once: set[tuple[int, int]] = set()

    async def start(self) -> HostileBroker:
        """Start to listen."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        """Stop, and end every connection."""
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.sleep(0)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.seen.connections += 1
        self._writer, self._silent, self._closed = writer, False, False
        self._up_once = set()
        number = self.seen.connections
        codec = p.Reader(self.level)
        try:
            while chunk := await reader.read(65536):
                for packet in codec.feed(chunk):
                    if self._silent:
                        continue
                    if packet.kind == p.DISCONNECT and self.seen.done and self.seen.connection == number:
                        self.seen.farewell = packet.code
                    if self._closed:
                        continue
                    await self._take(packet)
        except p.Wrong as wrong:
            self.seen.problems.append(f"the client sent: {wrong}")
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            with contextlib.suppress(OSError):
                writer.close()

    async def _send(self, *contents: bytes) -> None:
        assert self._writer is not None
        if not self._closed and not self._writer.is_closing():
            self._writer.write(b"".join(contents))

    async def _at(self, moment: str, *right: bytes) -> None:
        """Do the wrong thing if its moment has come, and then the right one, unless it takes its place."""
        if moment != self.moment or self.seen.done:
            await self._send(*right)
            return
        self.seen.done = True
        self.seen.connection = self.seen.connections
        for step in self.wrong.script(self._scene):
            if isinstance(step, bytes):
                await self._send(step)
            elif step[0] == "close":
                await self._close(step[1])
                return
            elif step[0] == "silence":
                self._silent = True
                return
            else:
                self._drip(step[1], step[2])
        if not self.wrong.instead:
            await self._send(*right)

    async def _close(self, how: str) -> None:
        assert self._writer is not None
        self._closed = True
        await asyncio.sleep(0.01)  # what was sent shall be read first
        if how == "rst":
            raw = self._writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._writer.transport.abort()
        else:
            self._writer.close()

    def _drip(self, content: bytes, seconds: float) -> None:
        writer = self._writer
        assert writer is not None
        self._silent = True  # nothing can be sent inside a packet

        async def drip() -> None:
            with contextlib.suppress(OSError):
                for byte in itertools.cycle(content):
                    if writer.is_closing():
                        break
                    writer.write(bytes((byte,)))
                    await writer.drain()
                    await asyncio.sleep(seconds)

        task = asyncio.ensure_future(drip())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- the right things ---

    async def _take(self, packet: p.Packet) -> None:
        kind, packet_id = packet.kind, packet.packet_id
        if kind == p.CONNECT:
            await self._connected(packet)
        elif kind == p.SUBSCRIBE:
            self._scene.request = packet_id
            await self._at("subscribe", p.suback(packet_id, [options & 3 for _, options in packet.filters], self.level))
            self._subscribed = True
            await self._at("suback")
            await self._own_messages()
        elif kind == p.PUBLISH:
            await self._published(packet)
        elif kind == p.PUBREL:
            self._held.discard(packet_id)
            await self._at("pubrel", p.ack(p.PUBCOMP, packet_id))
            await self._at("pubcomp")
        elif kind == p.PUBACK and packet_id == X_ID and self._x == "sent":
            self._x = "done"
            await self._at("out1")
        elif kind == p.PUBACK and packet_id == END_ID:
            self._end = "done"
        elif kind == p.PUBREC and packet_id == Y_ID:
            self._y = "received"
            await self._at("out2", p.ack(p.PUBREL, Y_ID))
        elif kind == p.PUBCOMP and packet_id == Y_ID:
            self._y = "done"
            await self._at("out3")
        elif kind == p.PINGREQ:
            await self._send(p.PONG)
        await self._finish()

    async def _connected(self, packet: p.Packet) -> None:
        if packet.clean:
            self._known = self._subscribed = False
            self._held.clear()
            self._x = self._y = self._end = ""
        present = int(self._known and self.level > 3)
        # At level 5 a session lasts where the client asks for it, which clean start does not say.
        self._known = not packet.clean or self.level == 5
        await self._at("connect", p.connack(self.level, present))
        if (
            self.level > 3 or not packet.clean
        ):  # at level 3 a clean connection only makes the broker forget an earlier life
            await self._at("connack")
        if self._silent or self._closed:
            return
        if self._x == "sent":
            await self._send(self._message("1;", 1, X_ID, dup=True))
        if self._y == "sent":
            await self._send(self._message("2;", 2, Y_ID, dup=True))
        elif self._y == "received":
            await self._send(p.ack(p.PUBREL, Y_ID))
        if self._end == "sent":
            await self._send(self._message("end", 1, END_ID, dup=True))
        if self._subscribed:
            await self._own_messages()

    async def _published(self, packet: p.Packet) -> None:
        number = int(packet.payload.split(b";")[0])
        again = number in self._ids
        if again and not packet.dup:
            self.seen.problems.append(f"message {number} again without DUP")
        self._ids[number] = packet.packet_id
        if packet.qos == 1:
            self.seen.numbers.append(number)
            self._scene.id1 = packet.packet_id
            await self._at("publish1", p.ack(p.PUBACK, packet.packet_id))
            await self._at("puback")
        elif packet.qos == 2:
            self._scene.id2 = packet.packet_id
            if packet.packet_id not in self._held:
                self._held.add(packet.packet_id)
                self.seen.numbers.append(number)
            await self._at("publish2", p.ack(p.PUBREC, packet.packet_id))
            await self._at("pubrec")

    def _message(self, payload: str, qos: int, packet_id: int = 0, dup: bool = False) -> bytes:
        return p.publish(f"{self.topic}/in", payload, qos, packet_id, self.level, dup=dup)

    async def _own_messages(self) -> None:
        if self._silent or self._closed:
            return
        if not self._x:
            self._x = "sent"
            await self._send(self._message("1;", 1, X_ID))
        if not self._y:
            self._y = "sent"
            await self._send(self._message("2;", 2, Y_ID))
        if not self._sent_z:
            self._sent_z = True
            await self._send(self._message("3;", 0))

    async def _finish(self) -> None:
        if self._x == self._y == "done" and not self._end and not self._silent and not self._closed:
            await self._at("idle")
            if not self._silent and not self._closed:
                self._end = "sent"
                await self._send(self._message("end", 1, END_ID))
