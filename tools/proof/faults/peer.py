"""The other client of a fault case: a small MQTT 3.1.1 client that publishes and receives exactly once.

It shares no code with the library under test (its codec is `tools.proof.packets`). It is connected to the broker without the
proxy, and connects again after the broker's restart.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict

from tools.proof import packets as p
from tools.proof.session import Session

ANSWER_S = 10.0
RETRY_S = 0.02


class Peer:
    """One client of the broker on 127.0.0.1:`port`; `user` and `password` if the broker needs them."""

    def __init__(self, port: int, client_id: str, clean: bool = True, user: str = "", password: str = ""):
        self.port = port
        self.user = user
        self.password = password
        self.client_id = client_id
        self.clean = clean
        self.received: dict[str, list[bytes]] = defaultdict(list)
        self._writer: asyncio.StreamWriter | None = None
        self._task: asyncio.Task | None = None
        self._up = asyncio.Event()
        self._next_id = 0
        self._awaited: dict[int, asyncio.Future] = {}
        self._unsent: list[bytes] = []  # packets made since the last CONNACK, before the answer to PINGREQ
        self._session = Session()
        self._filters: list[tuple[str, int]] = []
        self._waiting = False
        self._taken = 0  # how many packets came, without PINGRESP
        self._pong = asyncio.Event()

    async def start(self) -> Peer:
        """Connect, and reconnect after each loss of the connection."""
        self._task = asyncio.ensure_future(self._run())
        async with asyncio.timeout(ANSWER_S):
            await self._up.wait()
        return self

    async def stop(self) -> None:
        """Disconnect."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._writer is not None:
            with contextlib.suppress(OSError):
                self._writer.write(p.disconnect())
            self._writer.close()

    async def subscribe(self, topic_filter: str, qos: int = 2) -> None:
        """Subscribe, now and after every loss of the session."""
        self._filters.append((topic_filter, qos))
        packet_id = self._id()
        await self._answered(packet_id, p.subscribe(packet_id, [(topic_filter, qos)]), resend=False)

    def unsubscribe(self, topic_filter: str) -> None:
        """End a subscription without waiting for the answer."""
        self._filters = [entry for entry in self._filters if entry[0] != topic_filter]
        if self._writer is not None:
            self._writer.write(p.unsubscribe(self._id(), [topic_filter]))

    def send(self, topic: str, payload: bytes, qos: int, retain: bool = False) -> asyncio.Future:
        """Publish; the future is done when the broker has acknowledged the message (at QoS 0: at once)."""
        packet_id = self._id() if qos else 0
        return self._answered(packet_id, p.publish(topic, payload, qos, packet_id, retain=retain), resend=True)

    @property
    def pending(self) -> int:
        """How many messages the broker has not acknowledged yet."""
        return len(self._session.unanswered)

    def wait(self) -> None:
        """Send no new packet until the broker was restarted."""
        self._waiting = True

    async def settled(self) -> None:
        """Wait until no flow is under way: three PINGREQs bring nothing, and no QoS 2 message waits for its PUBREL."""
        quiet = 0
        async with asyncio.timeout(ANSWER_S):
            while quiet < 3:
                taken = self._taken
                self._pong.clear()
                if self._writer is not None:
                    self._writer.write(p.PING)
                await self._pong.wait()
                quiet = quiet + 1 if taken == self._taken and not self._session.held else 0

    def begin(self) -> None:
        """Begin a case: forget open flows, because a killed broker may use an id again whose PUBREL was never sent."""
        self._session.held.clear()

    def lost(self) -> None:
        """Note that the broker was killed, before the socket reports it."""
        self._up.clear()

    async def resumed(self, seconds: float = ANSWER_S) -> None:
        """Wait until this client is connected to the restarted broker, and subscribed."""
        self._waiting = False
        async with asyncio.timeout(seconds):
            await self._up.wait()
        self._flush()

    def _id(self) -> int:
        self._next_id = self._next_id % 65535 + 1
        return self._next_id

    def _answered(self, packet_id: int, packet: bytes, resend: bool) -> asyncio.Future:
        future = asyncio.get_running_loop().create_future()
        if not packet_id:
            future.set_result(None)
        elif resend:
            self._session.unanswered[packet_id] = packet
        self._awaited[packet_id] = future
        if self._up.is_set() and self._writer is not None and not self._waiting:
            self._writer.write(packet)
        else:
            self._unsent.append(packet)
        return future

    def _flush(self) -> None:
        if self._writer is not None:
            self._writer.write(b"".join(self._unsent))
            self._unsent.clear()

    async def _run(self) -> None:
        while True:
            try:
                reader, self._writer = await asyncio.open_connection("127.0.0.1", self.port)
                self._writer.write(p.connect(self.client_id, clean=self.clean, user=self.user, password=self.password))
                codec = p.Reader()
                while chunk := await reader.read(65536):
                    for packet in codec.feed(chunk):
                        self._take(packet, self._writer)
            except OSError:
                pass
            self._up.clear()
            if self._writer is not None:
                self._writer.close()
            await asyncio.sleep(RETRY_S)

    def _take(self, packet: p.Packet, writer: asyncio.StreamWriter) -> None:
        self._taken += packet.kind != p.PINGRESP
        if packet.kind == p.CONNACK:
            if packet.code:
                raise p.Wrong(f"the broker refused the peer with code {packet.code}")
            if not packet.session_present:
                self._session.held.clear()
                for topic_filter in self._filters:
                    writer.write(p.subscribe(self._id(), [topic_filter]))
            self._unsent.clear()  # they are among the repetitions
            # A broker answers in order: after the answer to PINGREQ the subscriptions are active.
            writer.write(self._session.repetitions() + p.PING)
        elif packet.kind == p.PINGRESP:
            if not self._up.is_set():
                self._flush()
            self._up.set()
            self._pong.set()
        else:
            if packet.kind == p.PUBLISH and self._session.is_new(packet):
                self.received[packet.topic].append(packet.payload)
            writer.write(self._session.answer(packet))
            if packet.kind in (p.PUBACK, p.PUBCOMP, p.SUBACK):
                future = self._awaited.pop(packet.packet_id, None)
                if future is not None and not future.done():
                    future.set_result(packet)
