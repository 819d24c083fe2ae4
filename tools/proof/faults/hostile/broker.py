"""A broker for one client. It does everything right, except for one wrong thing at one moment.

It accepts any number of connections of one session and takes part in every flow: it receives the client's numbered messages, and
sends three messages (QoS 1, 2 and 0), then one whose payload is "end". When the chosen moment comes for the first time, it does
the wrong thing once; after that it does everything right again.

It also checks the client's packets: bytes that no client may send, acknowledgements of unknown packets, repetitions without DUP.

After its wrong thing it reads until the client closes the connection, so that it always sees level 5's DISCONNECT: see `Wire`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import struct
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from tools.proof import packets as p
from tools.proof.faults.hostile.wrongs import Scene, Wrong
from tools.proof.session import Session

X_ID, Y_ID, END_ID = 1, 2, 3
READ_BYTES = 65536
LAST_BYTES_S = 10.0  # at the end of a case the client has closed its sockets, so this takes a moment only
NO_DISCONNECT = -1
# The moments before and after the answer to a packet.
MOMENTS_OF = {p.PUBREL: ("pubrel", "pubcomp"), p.PUBACK: ("out1", ""), p.PUBREC: ("out2", ""), p.PUBCOMP: ("out3", "")}
MOMENTS_OF_PUBLISH = {1: ("publish1", "puback"), 2: ("publish2", "pubrec")}


@dataclass
class Seen:
    """The broker's observations."""

    done: bool = False  # the wrong thing was done
    connection: int = 0  # on which connection
    connections: int = 0
    numbers: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    disconnect_code: int = NO_DISCONNECT  # of the DISCONNECT that followed on the same connection


class Wire:
    """One connection's socket, read to its end even after a write has failed.

    A client that closes its socket before it has read everything resets the connection. The kernel still has the bytes that the
    client sent before the reset, among them its DISCONNECT. asyncio's streams drop these bytes when a write fails, which is a
    race between two processes. So this class reads and writes the socket itself.
    """

    def __init__(self, sock: socket.socket, number: int):
        self.number = number  # the first connection is 1
        self.silent = False  # nothing more is answered
        self.open = True  # not closed by this side
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def answers(self) -> bool:
        """Whether the broker still answers on it."""
        return self.open and not self.silent

    async def read(self) -> bytes:
        """Return received bytes, or b"" at the end of the connection."""
        with contextlib.suppress(OSError):  # a reset, after the last byte; or it was closed
            return await self._loop.sock_recv(self._sock, READ_BYTES)
        return b""

    async def write(self, *contents: bytes) -> bool:
        """Send bytes; return whether that worked."""
        with contextlib.suppress(OSError):
            await self._loop.sock_sendall(self._sock, b"".join(contents))
            return True
        return False

    def close(self, how: str = "fin") -> None:
        """Close; "rst": by a reset."""
        self.open = False
        with contextlib.suppress(OSError):  # it was closed
            if how == "rst":
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            else:
                while self._sock.recv(READ_BYTES):  # unread bytes would turn it into a reset
                    pass
        self._sock.close()


class HostileBroker:
    """Listens on a free port of loopback. It is made in a running event loop.

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
        self.seen = Seen()
        self._scene = Scene(level, topic=topic)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=100)
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]
        self._accepting = asyncio.ensure_future(self._accept())
        self._serving: set[asyncio.Task] = set()
        self._wire: Wire  # the newest connection
        self._known = False
        self._forget()
        self._numbers: set[int] = set()  # of the client's messages

    async def stop(self) -> None:
        """Stop. The client has closed its sockets; the bytes that it sent before are still read."""
        try:
            if self._serving:
                await asyncio.wait(self._serving, timeout=LAST_BYTES_S)
        finally:
            tasks = [self._accepting, *self._serving]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._listener.close()

    async def _accept(self) -> None:
        while True:
            sock, _ = await asyncio.get_running_loop().sock_accept(self._listener)
            self.seen.connections += 1
            self._wire = Wire(sock, self.seen.connections)
            self._begin(self._serve(self._wire))

    def _begin(self, serving: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(serving)
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, wire: Wire) -> None:
        codec = p.Reader(self.level)
        try:
            while chunk := await wire.read():
                for packet in codec.feed(chunk):
                    if packet.kind == p.DISCONNECT and self.seen.connection == wire.number:
                        self.seen.disconnect_code = packet.code
                    if wire is self._wire and wire.answers:
                        await self._take(packet)
        except p.Wrong as wrong:
            self.seen.problems.append(f"the client sent: {wrong}")
        finally:
            wire.close()

    async def _at(self, moment: str, *right: bytes) -> None:
        """Do the wrong thing if its moment has come; then the right thing, unless the wrong one replaces it."""
        if moment != self.moment or self.seen.done:
            await self._wire.write(*right)
            return
        wire = self._wire
        self.seen.done = True
        self.seen.connection = wire.number
        for step in self.wrong.script(self._scene):
            if isinstance(step, bytes):
                await wire.write(step)
                continue
            wire.silent = True  # no other packet can be sent inside a packet that never ends
            if step[0] == "close":
                await asyncio.sleep(0.01)  # so that the client mostly reads the sent bytes first
                wire.close(step[1])
            elif step[0] == "drip":
                self._begin(self._drip(wire, *step[1:]))
            return
        if not self.wrong.instead:
            await wire.write(*right)

    async def _drip(self, wire: Wire, content: bytes, seconds: float) -> None:
        for byte in itertools.cycle(content):
            if not await wire.write(bytes((byte,))):
                break
            await asyncio.sleep(seconds)

    # --- the right things ---

    def _forget(self) -> None:
        """Begin a session."""
        self._session = Session()
        self._subscribed = self._begun = self._ended = False

    async def _take(self, packet: p.Packet) -> None:
        if packet.kind == p.CONNECT:
            await self._connected(packet)
        elif packet.kind == p.SUBSCRIBE:
            self._scene.request = packet.packet_id
            codes = [options & 3 for _, options in packet.filters]
            await self._at("subscribe", p.suback(packet.packet_id, codes, self.level))
            self._subscribed = True
            await self._at("suback")
        elif packet.kind == p.PINGREQ:
            await self._wire.write(p.PONG)
        elif packet.kind in (p.PUBLISH, p.PUBREL) or (
            packet.packet_id in self._session.unanswered and (packet.kind == p.PUBACK) == (packet.packet_id != Y_ID)
        ):
            if packet.kind == p.PUBLISH:
                self._published(packet)
            before, after = MOMENTS_OF_PUBLISH[packet.qos] if packet.kind == p.PUBLISH else MOMENTS_OF[packet.kind]
            await self._at(before, self._session.answer(packet))
            await self._at(after)
        await self._own_messages()

    async def _connected(self, packet: p.Packet) -> None:
        if packet.clean:
            self._known = False
            self._forget()
        present = int(self._known and self.level > 3)
        # At level 5 a session lasts even after a clean start, if the client asks for an expiry interval.
        self._known = not packet.clean or self.level == 5
        await self._at("connect", p.connack(self.level, present))
        if (
            self.level > 3 or not packet.clean
        ):  # at level 3 a clean connection only makes the broker forget an earlier life
            await self._at("connack")
        if self._wire.answers:
            await self._wire.write(self._session.repetitions())

    def _published(self, packet: p.Packet) -> None:
        number = int(packet.payload.split(b";")[0])
        if number in self._numbers and not packet.dup:
            self.seen.problems.append(f"message {number} again without DUP")
        self._numbers.add(number)
        if self._session.is_new(packet):
            self.seen.numbers.append(number)
        setattr(self._scene, f"id{packet.qos}", packet.packet_id)

    def _message(self, payload: str, qos: int, packet_id: int = 0) -> bytes:
        message = p.publish(f"{self.topic}/in", payload, qos, packet_id, self.level)
        if qos:
            self._session.unanswered[packet_id] = message
        return message

    async def _own_messages(self) -> None:
        """Send the three messages, and the last one when they are acknowledged."""
        if not self._wire.answers or not self._subscribed:
            return
        if not self._begun:
            self._begun = True
            await self._wire.write(self._message("1;", 1, X_ID), self._message("2;", 2, Y_ID), self._message("3;", 0))
        elif not self._session.unanswered and not self._ended:
            await self._at("idle")
            if self._wire.answers:
                self._ended = True
                await self._wire.write(self._message("end", 1, END_ID))
