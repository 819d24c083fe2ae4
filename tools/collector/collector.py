"""The collector: subscribes with a persistent session, and acknowledges a message only when it is durable (Q3, Q4, P1).

The protocol is the library's own session and connection, the same files as on the boards, handed a landing store for
its Store. This module is the loop around them: read what the broker sent until nothing more is there (at most
`commit_count` messages or `commit_ms`), make all of it durable by one sync, write all the acknowledgements by one
send. So groups grow by themselves when a sync is slow or the broker is fast, and nothing waits when it is not.

When the landing can't be written it stops reading, says so, and tries again; what it has read waits in memory,
unacknowledged. When the broker is gone it comes again, with growing pauses.

It knows no Parquet; `sealer` has the closed logs sealed meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import ssl
import time
from dataclasses import dataclass, field
from pathlib import Path

from flashmqtt import errors
from flashmqtt.backoff import Backoff
from flashmqtt.codec import reasons
from flashmqtt.codec.topics import check_filter
from flashmqtt.compat import ticks_ms
from flashmqtt.connection import CONNECTED, MESSAGE, NOTHING, OUTPUT, RESTART, SUBSCRIBED, Connection
from flashmqtt.session.level5 import Level5
from flashmqtt.session.message import Message
from flashmqtt.session.subscriptions import DECLINED, GRANTED
from tools.collector.health import Health
from tools.collector.oversize import varint
from tools.collector.runs import RunDecoder, RunSession
from tools.collector.sealer import Sealer
from tools.landing import recent, segments
from tools.landing.lock import LandingInUse
from tools.landing.log import MOST_IN_ENTRY, LandingDamaged, LandingStalled, log_numbers, stalled
from tools.landing.store import LandingStore

CONNECT_DEADLINE_S = 10.0
WRITE_DEADLINE_S = 10.0  # without progress
FIRST_PAUSE_MS = 500  # between attempts to connect, at most, then twice that, ...
LASTING_MS = 2000
# Refusals that only a person can help: an identifier, a password, a right; at levels 3 and 4, and at level 5.
_WRONG_CREDENTIALS = (
    2,
    4,
    5,
    reasons.CLIENT_IDENTIFIER_NOT_VALID,
    reasons.BAD_USER_NAME_OR_PASSWORD,
    reasons.NOT_AUTHORIZED,
)
READ_BYTES = 1 << 17  # about 1,300 messages of 100 bytes, 10 ms of work: the grain of a group
LEAST_BUFFER_BYTES = 2 * READ_BYTES
LONGEST_WAIT_S = 0.5  # so that segments are closed by age, and a drain is seen, also when nothing arrives
MOST_PENDING_BYTES = 8 << 20  # what a group may hold in memory, whatever its messages' size
STALLED_RETRY_S = 0.5
WORTH_SEALING_BYTES = 4 << 20  # when the disk is full
OPEN_FLOWS_WAIT = 10  # a drain waits so many times longer for PUBRELs that are still to come
LOCK_WAIT_S = 15.0  # the sealer of a killed collector may still be at work


class _Restart(errors.ConnectionLost):
    """The session asks for a new connection, at once."""


class _Level5(Level5):
    """Level 5's side of a collector: where long messages land as descriptions, the broker is told no limit."""

    def __init__(self, expiry_s: int, limited: bool) -> None:
        super().__init__(expiry_s)
        self._limited = limited

    def start(self, session: RunSession, decoder: RunDecoder) -> bytes:
        """A connection begins: return CONNECT's properties."""
        session.chunks = not self._limited  # it can take a packet of any length
        properties: bytes = super().start(session, decoder)
        session.chunks = False
        return properties


class CollectorError(Exception):
    """The collector can't go on, and a person has to do something; the text says what."""


@dataclass(frozen=True)
class Settings:
    """What one collector is told."""

    host: str
    port: int
    client_id: str
    landing: Path
    topics: tuple[tuple[str, int], ...] = (("#", 2),)
    level: int = 4
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None
    keep_alive_s: int = 30
    session_expiry_s: int = 7 * 86400  # level 5: how long the broker keeps what waits for us; 4: its own setting
    segment_rows: int = 500_000
    segment_bytes: int = 64 << 20
    segment_seconds: float = 60.0
    commit_count: int = 8192
    commit_ms: float = 20.0
    packet_bytes: int = 1 << 20  # the longest message that lands whole
    drop_oversize: bool = (
        False  # a longer one is acknowledged and dropped (5: not asked for); it lands as a description otherwise
    )
    longest_pause_s: float = 10.0  # between attempts to connect
    # QoS 2 messages between PUBLISH and PUBREL: as many as there are packet ids. mosquitto 2.0 sends a backlog of
    # QoS 2 in one go, whatever its max_inflight_messages.
    in_flight: int = 65_535
    reserve_bytes: int = 64 << 20  # of the disk, kept free so that sealing can go on
    drain_s: float | None = None
    salvage: bool = False


class Collector:
    """One collector, from its start to its clean stop."""

    def __init__(self, settings: Settings, health: Health) -> None:
        """Mount the landing.

        Raises:
            LandingError: in one of its kinds; the text says what to do.
            InvalidTopic: not a topic filter.
        """
        self.settings = settings
        self.health = health
        segments.file_name(settings.client_id, 1)  # refuses a name that no segment may have
        try:
            settings.landing.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise stalled(settings.landing, error)
        logs = settings.landing / f"{settings.client_id}.logs"
        number, rows = (0, 0) if log_numbers(logs) else _last_segment(settings.landing, settings.client_id)
        mount = functools.partial(
            LandingStore,
            logs,
            settings.client_id,
            hold_limit=settings.in_flight,
            first_number=number + 1,
            rows_before=rows,
            reserve_bytes=settings.reserve_bytes,
            salvage=settings.salvage,
            # One of several collectors that share a subscription gets its share of the messages, any other gets all.
            shared=all(topic.startswith("$share/") for topic, _ in settings.topics),
        )
        try:
            self.store = mount()
        except LandingInUse as error:
            health.say(f"{error}; waiting up to {LOCK_WAIT_S:.0f} s for its end")
            self.store = mount(wait_s=LOCK_WAIT_S)
        self.store.level = settings.level
        self.session = RunSession(
            self.store,
            level=settings.level,
            window=1,
            out_bytes=4 * settings.commit_count + 4096,
            packet_bytes=max(settings.packet_bytes, LEAST_BUFFER_BYTES),
            remember=False,
        )
        for topic, qos in settings.topics:
            check_filter(topic.encode())
            # 5: a start of ours is no reason to send the retained messages again (Retain Handling 1, §3.8.3.1).
            options = qos | 0x10 if settings.level == 5 else qos
            self.session.subscribe(topic.encode(), options)
        self.connection = self._connection()
        self.decoder = RunDecoder(len(self.connection.decoder.buffer), settings.level, settings.drop_oversize)
        self.decoder.on_oversize = self._note_oversize
        self.connection.decoder = self.decoder
        self.sealer = Sealer(self.store, settings.landing, health, settings.salvage)
        self._landed: dict[int, bytes] | None = None  # see `_has_landed`
        self.connects = 0
        self.connected_at = 0.0
        self._stopping = False
        self._waiting: asyncio.Future[None] | None = None
        self._rows_committed = self.rows_acknowledged = self.store.stored
        self._last_message = time.monotonic()

    def _connection(self) -> Connection:
        settings = self.settings
        return Connection(
            self.session,
            client_id=settings.client_id.encode(),
            buffer_bytes=max(settings.packet_bytes, LEAST_BUFFER_BYTES),
            keep_alive_s=settings.keep_alive_s,
            user=settings.user.encode() if settings.user else None,
            password=settings.password.encode() if settings.password else None,
            five=_Level5(settings.session_expiry_s, settings.drop_oversize) if settings.level == 5 else None,
        )

    # --- from start to stop -------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Ask for a clean stop: no more reading, everything sealed. May be called from a signal handler."""
        self._stopping = True
        self._wake()

    async def run(self) -> None:
        """Collect until told to stop, then seal everything that was received.

        Raises:
            CollectorError, LandingError: what a person has to do something about. Nothing is lost by it.
        """
        if self.store.torn_bytes:
            self.health.torn_bytes.inc(self.store.torn_bytes)
            self.health.say(f"cut off {self.store.torn_bytes} bytes of a block that was never acknowledged")
        self.sealer.start()
        try:
            await self._collect()
            await self._commit_what_is_left()
            self._rotate()
            if self.store.closed:
                self.health.say(f"sealing {len(self.store.closed)} segments")
            await self.sealer.finish()
            waiting = self.store.held_count
            held = f"; {waiting} QoS 2 messages wait for their PUBREL in the log" if waiting else ""
            self.health.say(f"everything received is sealed: {self.store.stored} rows in all{held}")
        finally:
            await self.sealer.stop()
            self.store.close()

    async def _collect(self) -> None:
        longest_ms = int(self.settings.longest_pause_s * 1000)
        backoff = Backoff(min(FIRST_PAUSE_MS, longest_ms), longest_ms, LASTING_MS)
        told = ""
        while not self._stopping:
            connects = self.connects
            started = time.monotonic()
            try:
                sock = await self._connect()
                try:
                    await self._pump(sock)
                except errors.FlashMqttError as error:
                    self.connection.put_error_disconnect(error)  # 5: tell the broker why
                    with contextlib.suppress(OSError, LandingStalled):
                        while self._send(sock):
                            pass
                    raise
                finally:
                    self.connection.close()
                    self.health.connected.set(0)
                    sock.close()
            except _Restart as error:
                if str(error) != told:
                    told = str(error)
                    self.health.say(f"{told}; connecting anew")
                continue
            except errors.ConnectRefused as error:
                if error.code in _WRONG_CREDENTIALS and not self.connects:
                    raise CollectorError(f"{self._where()} refuses '{self.settings.client_id}': {_name(error)}")
                reason = f"{self._where()} refuses us: {_name(error)}"
            except errors.ConnectionLost as error:
                if error.code == reasons.SESSION_TAKEN_OVER:
                    raise CollectorError(
                        f"another client with the client id '{self.settings.client_id}' took over at {self._where()}: "
                        "each collector needs its own"
                    )
                reason = f"{self._where()}{' ended the connection' if error.code else ''}: {_name(error)}"
            except (errors.FlashMqttError, OSError) as error:
                reason = f"{self._where()}: {_name(error)}"
            else:
                return
            if self.connects > connects:
                told = ""
            else:
                self.health.failed_connects.inc()
            if reason != told:
                told = reason
                self.health.say(f"{reason}; trying again")
            await self._sleep(backoff.ended(int((time.monotonic() - started) * 1000)) / 1000)

    def _where(self) -> str:
        return f"the broker at {self.settings.host}:{self.settings.port}"

    async def _connect(self) -> socket.socket:
        """Open the network connection: name look-up, TCP and TLS, in a thread, under one deadline."""
        settings = self.settings

        def connect() -> socket.socket:
            sock: socket.socket = socket.create_connection((settings.host, settings.port), CONNECT_DEADLINE_S)
            try:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if settings.tls:
                    sock = settings.tls.wrap_socket(sock, server_hostname=settings.host)
                sock.setblocking(False)
            except BaseException:
                sock.close()
                raise
            return sock

        return await asyncio.to_thread(connect)

    # --- one network connection ---------------------------------------------------------------------------------

    async def _pump(self, sock: socket.socket) -> None:
        """Read, land, sync, acknowledge, until told to stop.

        Raises:
            FlashMqttError, OSError: the connection ended, or the broker broke a rule.
        """
        connection = self.connection
        connection.start(ticks_ms())
        while True:
            await self._commit(sock)
            if self._stopping:
                connection.disconnect()
                with contextlib.suppress(OSError, errors.FlashMqttError):
                    await self._write(sock)
                return
            self._look_around()
            wait_s = min(connection.check(ticks_ms()) / 1000, LONGEST_WAIT_S)
            if self.session.wants_turn:
                await self._take_in(sock)
            if connection.output.end:
                continue
            if not await self._read(sock):
                await self._readable(sock, wait_s)
            await asyncio.sleep(0)  # the sealer's answers, signals

    async def _read(self, sock: socket.socket) -> bool:
        """Take in what is there, up to the bounds of a group; return whether there was anything."""
        connection = self.connection
        started = time.monotonic()
        first_row = self.store.stored
        read = False
        while True:
            try:
                count = sock.recv_into(connection.decoder.room()[:READ_BYTES])
            except (BlockingIOError, ssl.SSLWantReadError):
                return read
            read = True
            connection.received(count, ticks_ms())
            self.health.received_bytes.inc(count)
            self.store.time_us = time.time_ns() // 1000
            await self._take_in(sock)
            if (
                self.store.stored - first_row >= self.settings.commit_count
                or self.store.pending_bytes >= MOST_PENDING_BYTES
                or (time.monotonic() - started) * 1000 >= self.settings.commit_ms
            ):
                return True

    async def _take_in(self, sock: socket.socket) -> None:
        """Take in every whole packet; commit on the way where the output is full."""
        while self._process() == OUTPUT:
            await self._commit(sock)

    def _process(self) -> int:
        """Take in every whole packet; return OUTPUT if the output has to be written before more fits."""
        connection = self.connection
        session, decoder = self.session, self.decoder
        process, message, now_ms = connection.process, connection.message, ticks_ms()
        decoder.look()
        while True:
            room = session.run_room()
            if room:
                packets, ids = decoder.take_run(min(room, MOST_IN_ENTRY))
                if ids:
                    self.store.land_run(packets, len(ids))
                    session.took_run(ids)
            event = process(now_ms)
            if event == MESSAGE:
                if not decoder.dropped:
                    self._land(message)
                session.taken()
            elif event in (NOTHING, OUTPUT):
                if session.wants_turn:
                    session.put_late()
                return int(event)
            elif event == CONNECTED:
                self.connects += 1
                self.connected_at = time.perf_counter()
                self.health.connects.inc()
                self.health.connected.set(1)
                state = "the broker knows the session" if connection.session_present else "a new session"
                self._landed = None
                if not connection.session_present:
                    self.store.begin_session()
                if not connection.session_present and (self.connects > 1 or self.store.stored):
                    self.health.lost_sessions.inc()
                    state = "but the broker has forgotten the session: what waited there for us is lost"
                self.health.say(f"connected to {self._where()}, {state}")
            elif event == SUBSCRIBED:
                self._subscribed()
            elif event == RESTART:
                raise _Restart(f"more QoS 2 messages came at one go than --in-flight {self.settings.in_flight} allows")

    def _land(self, message: Message) -> None:
        """Take one message as a row, as the packet it came in. At QoS 2 its release is what makes it a row."""
        if message.qos == 2:
            return
        start = message.topic_start - 2
        body = message.buffer[start : message.payload_end]
        self.decoder.know(bytes(message.buffer[start : message.topic_end]))
        qos = message.qos
        if qos and message.dup and self._has_landed(message):
            self.health.copies.inc()
            qos = 0  # with DUP: a mark, see `log.py`
            end = message.topic_end - start
            del body[end : end + 2]
        self.store.land(_head(0x30 | message.dup << 3 | qos << 1 | message.retain, len(body)), body)

    def _has_landed(self, message: Message) -> bool:
        """Return whether a QoS 1 message that comes again landed on an earlier connection of the same session."""
        if not self.connection.session_present:
            return False
        if self._landed is None:
            self._landed = self.store.landed()
        end = message.topic_end
        key = message.buffer[end] << 8 | message.buffer[end + 1]
        topic = bytes(message.buffer[message.topic_start : end])
        return self._landed.get(key) == recent.digest(topic, message.view)

    def _note_oversize(self, topic: str, length: int) -> None:
        self.health.oversize.inc()
        became = "dropped" if self.settings.drop_oversize else "its length and digest land in its place"
        self.health.say(
            f"a message of {length} bytes on '{topic}' is longer than --packet-bytes {self.settings.packet_bytes}: {became}"
        )

    def _subscribed(self) -> None:
        refused = [entry for entry in self.session.subscriptions if entry.state == DECLINED]
        if refused:
            names = ", ".join(f"'{bytes(entry.filter).decode()}' (code {entry.code:#x})" for entry in refused)
            raise CollectorError(f"{self._where()} refuses the subscription to {names}")
        if all(entry.state == GRANTED for entry in self.session.subscriptions):
            names = ", ".join(
                f"'{bytes(entry.filter).decode()}' at QoS {entry.code}" for entry in self.session.subscriptions
            )
            self.health.say(f"subscribed to {names}")

    # --- durable, then acknowledged -----------------------------------------------------------------------------

    async def _commit(self, sock: socket.socket) -> None:
        """Make what was read durable, then write the acknowledgements."""
        pending = self.store.pending_bytes
        if pending:
            await self._sync()
        await self._write(sock)

    async def _sync(self) -> None:
        """Sync the landing, for as long as it takes."""
        health = self.health
        told = ""
        while True:
            started = time.monotonic()
            try:
                self.store.sync()
            except LandingStalled as error:
                if not told:
                    health.stalls.inc()
                    health.stalled.set(1)
                if str(error) != told:
                    told = str(error)
                    health.say(told)
                if self._stopping:
                    raise
                if self.store.log_bytes >= WORTH_SEALING_BYTES:
                    self._rotate()  # its segment will be a fraction of it
                await self._sleep(STALLED_RETRY_S)
            else:
                break
        if told:
            health.stalled.set(0)
            health.say("the landing can be written again; going on")
        health.sync_seconds.observe(time.monotonic() - started)
        self._last_message = time.monotonic()
        rows = self.store.stored - self._rows_committed
        self._rows_committed = self.store.stored
        health.group.observe(rows)
        health.messages.inc(rows)
        health.last_arrival.set(self.store.time_us / 1e6)

    async def _write(self, sock: socket.socket) -> None:
        while True:
            try:
                while self._send(sock):
                    pass
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                await self._writable(sock)
            else:
                self.rows_acknowledged = self._rows_committed
                return

    def _send(self, sock: socket.socket) -> bool:
        """Send what the output offers, once; return whether there was anything."""
        output = self.connection.output
        n = output.offer()  # syncs, if there is anything to sync, before the bytes can leave
        if n:
            output.taken(sock.send(memoryview(output.buf)[output.start : output.start + n]), ticks_ms())
        return bool(n)

    async def _commit_what_is_left(self) -> None:
        """Keep what was read but not yet synced: it would come again, but why."""
        if self.store.pending_bytes:
            await self._sync()

    # --- now and then -------------------------------------------------------------------------------------------

    def _look_around(self) -> None:
        store, settings = self.store, self.settings
        if store.rows and (
            store.rows >= settings.segment_rows
            or store.log_bytes >= settings.segment_bytes
            or time.monotonic() - store.first_row_at >= settings.segment_seconds
        ):
            self._rotate()
        self.health.unsealed_rows.set(store.rows + self.sealer.rows_closed)
        self.health.held.set(store.held_count)
        self.health.free_bytes.set(store.free_bytes())
        if self.sealer.failed:
            raise self.sealer.failed
        if settings.drain_s is not None and self.connects:
            quiet_s = time.monotonic() - self._last_message
            if quiet_s > settings.drain_s * (OPEN_FLOWS_WAIT if store.held_count else 1):
                self._stopping = True

    def _rotate(self) -> None:
        rows = self.store.rows
        try:
            if self.store.rotate():
                self.sealer.rows_closed += rows
                self.health.unsealed_logs.set(len(self.store.closed))
                self.sealer.poke()
        except LandingStalled as error:
            if self._stopping:
                raise
            self.health.say(f"{error} (a new log; the old one stays in use)")

    # --- waiting ------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def _sleep(self, seconds: float) -> None:
        """Sleep, or until `stop`."""
        loop = asyncio.get_running_loop()
        self._waiting = loop.create_future()
        timer = loop.call_later(seconds, self._wake)
        try:
            if not self._stopping:
                await self._waiting
        finally:
            timer.cancel()
            self._waiting = None

    async def _readable(self, sock: socket.socket, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(sock, self._wake)
        try:
            await self._sleep(seconds)
        finally:
            loop.remove_reader(sock)

    async def _writable(self, sock: socket.socket) -> None:
        """Wait until more can be written, also while stopping.

        Raises:
            DeadlineExpired: the broker takes nothing any more.
        """
        loop = asyncio.get_running_loop()
        writable = asyncio.Event()
        loop.add_writer(sock, writable.set)
        try:
            await asyncio.wait_for(writable.wait(), WRITE_DEADLINE_S)
        except TimeoutError:
            raise errors.DeadlineExpired(f"it takes nothing, for {WRITE_DEADLINE_S:.0f} s")
        finally:
            loop.remove_writer(sock)


@functools.lru_cache(4096)
def _head(first: int, length: int) -> bytes:
    """Return a packet's fixed header."""
    return bytes((first,)) + varint(length)


def _name(error: BaseException) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _last_segment(landing: Path, collector: str) -> tuple[int, int]:
    """Return the highest segment number of this collector, and the highest row ordinal in it (0, 0: none).

    Raises:
        LandingDamaged: that segment can't be read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    mine = [segment for segment in segments.find_segments(landing) if segment.collector == collector]
    if not mine:
        return 0, 0
    try:
        rows = pq.read_table(mine[-1].path, columns=["row"])["row"]
    except (OSError, pa.ArrowInvalid) as error:
        raise LandingDamaged(
            f"{mine[-1].path}: {error}. There are no logs, so this segment says where the numbers of the next one go on: "
            "restore it, or move it away and name another client id"
        )
    return mine[-1].number, max(rows.to_pylist(), default=0)
