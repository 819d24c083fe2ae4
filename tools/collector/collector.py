"""The collector: subscribes with a persistent session, and acknowledges a message only when it is durable (Q3, Q4, P1).

The protocol is the library's own session and connection, the same files as on the boards, with a landing store as the
session's store. This module is the loop around them, a group commit: read until the socket is empty (at most
`commit_count` messages or `commit_ms`), make the whole group durable by one sync, send all its acknowledgements at once.
A group grows when a sync is slow or the broker is fast; otherwise nothing waits.

When the landing can't be written, the collector stops reading, reports it, and tries again. The messages that it has
read stay in memory, unacknowledged. When the connection is lost, it reconnects with growing pauses.

This module knows no Parquet: `sealer` seals the closed logs in another process.
"""

import asyncio
import contextlib
import functools
import os
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
from flashmqtt.session.subscriptions import DECLINED, GRANTED, requests_of
from tools.collector.health import Health
from tools.collector.oversize import encode_varint
from tools.collector.runs import RunDecoder, RunSession
from tools.collector.sealer import Sealer
from tools.command import Failure, counted, explained
from tools.landing import recent, segments
from tools.landing.lock import LandingInUse, take_lock
from tools.landing.log import (
    MOST_IN_ENTRY,
    LandingDamaged,
    LandingError,
    LandingStalled,
    log_numbers,
    log_path,
    read_log,
    stalled,
)
from tools.landing.store import LandingStore

CONNECT_DEADLINE_S = 10.0
WRITE_DEADLINE_S = 10.0  # without progress
FIRST_PAUSE_MS = 500  # at most, before the second attempt to connect; doubled after each failure
LASTING_MS = 2000  # a connection that lasted as long resets the pause
# Refusals that need a person: wrong identifier, password or permission; first levels 3 and 4, then level 5.
_AT_LEVEL_5 = (reasons.CLIENT_IDENTIFIER_NOT_VALID, reasons.BAD_USER_NAME_OR_PASSWORD, reasons.NOT_AUTHORIZED)
_WRONG_CREDENTIALS = (2, 4, 5, *_AT_LEVEL_5)
READ_BYTES = 1 << 17  # at most per read: about 1,300 messages of 100 bytes, 10 ms of work
LEAST_BUFFER_BYTES = 2 * READ_BYTES
LONGEST_WAIT_S = 0.5  # when nothing arrives: the interval of checking a segment's age and --drain
MOST_PENDING_BYTES = 8 << 20  # of one group, in memory
STALLED_RETRY_S = 0.5
FULL_DISK_ROTATE_BYTES = 4 << 20  # a longer log is sealed when the disk is full, to free space
HELD_DRAIN_FACTOR = 10  # --drain waits so many times longer while QoS 2 messages wait for their PUBREL
LOCK_WAIT_S = 15.0  # the sealer of a killed collector may still hold the lock


class _Writer:
    """A socket with MicroPython's `write`: None if it takes nothing now."""

    def __init__(self, sock: socket.socket):
        self._sock = sock

    def write(self, buf: bytearray, start: int, n: int) -> int | None:
        try:
            return self._sock.send(memoryview(buf)[start : start + n])
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None


class _Restart(errors.ConnectionLost):
    """The session asks for a new connection without a pause."""


class _Level5(Level5):
    """Level 5 for a collector: Maximum Packet Size is announced only if longer messages are dropped."""

    def __init__(self, expiry_s: int, limited: bool) -> None:
        super().__init__(expiry_s)
        self._limited = limited

    def start(self, session: RunSession, decoder: RunDecoder) -> bytes:
        """Return CONNECT's properties for a new connection."""
        session.chunks = not self._limited  # True: announce no Maximum Packet Size
        properties: bytes = super().start(session, decoder)
        session.chunks = False
        return properties


class CollectorError(Failure):
    """The collector can't continue without a person; the text says what to do."""


@dataclass(frozen=True)
class Settings:
    """One collector's settings."""

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
    session_expiry_s: int = 7 * 86400  # level 5 only; at level 4 the broker's setting counts
    segment_rows: int = 500_000
    segment_bytes: int = 64 << 20
    segment_seconds: float = 60.0
    commit_count: int = 8192
    commit_ms: float = 20.0
    packet_bytes: int = 1 << 20  # the longest message that lands whole
    # What happens to a longer message. True: it is acknowledged and dropped, and at level 5 the broker is asked not to
    # send it. False: a description lands in its place.
    drop_oversize: bool = False
    longest_pause_s: float = 10.0  # between two attempts to connect
    # QoS 2 messages between PUBLISH and PUBREL, by default one for each packet id: mosquitto 2.0 sends a whole backlog
    # of QoS 2 at once and ignores its max_inflight_messages.
    in_flight: int = 65_535
    reserve_bytes: int = 64 << 20  # of the disk, kept free for sealing
    drain_s: float | None = None
    salvage: bool = False


class Collector:
    """One collector, from start to clean stop."""

    def __init__(self, settings: Settings, health: Health) -> None:
        """Mount the landing.

        Raises:
            LandingError: the landing can't be used; the text says what to do.
            InvalidTopic: a topic filter is not valid.
        """
        self.settings = settings
        self.health = health
        segments.file_name(settings.client_id, 1)  # raises SegmentError if the client id can't name a segment
        try:
            settings.landing.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise stalled(settings.landing, error)
        logs = settings.landing / f"{settings.client_id}.logs"
        number, rows = (0, 0) if log_numbers(logs) else _last_segment(settings.landing, settings.client_id)
        # Only collectors with shared subscriptions may use one landing: others would each store all messages.
        shared = all(topic.startswith("$share/") for topic, _ in settings.topics)
        first = (settings.in_flight, number + 1, rows, settings.reserve_bytes, settings.salvage)
        mount = functools.partial(LandingStore, logs, settings.client_id, *first, shared=shared)
        try:
            self.store = mount()
        except LandingInUse as error:
            health.log(f"{error}; waiting up to {LOCK_WAIT_S:.0f} s for it to end")
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
        self.inbound = self.session.load_inbound()
        for topic, qos in settings.topics:
            encoded = os.fsencode(topic)  # as on the command line, also if it is not UTF-8
            check_filter(encoded)
            # Level 5, Retain Handling 1: no retained messages if the subscription exists already (§3.8.3.1).
            options = qos | 0x10 if settings.level == 5 else qos
            requests_of(self.session).want(encoded, options)
        self.connection = Connection(
            self.session,
            client_id=settings.client_id.encode(),
            buffer_bytes=max(settings.packet_bytes, LEAST_BUFFER_BYTES),
            keep_alive_s=settings.keep_alive_s,
            user=os.fsencode(settings.user) if settings.user else None,
            password=os.fsencode(settings.password) if settings.password else None,
            five=_Level5(settings.session_expiry_s, settings.drop_oversize) if settings.level == 5 else None,
        )
        self.decoder = RunDecoder(len(self.connection.decoder.buffer), settings.level, settings.drop_oversize)
        self.decoder.on_oversize = self._note_oversize
        self.connection.decoder = self.decoder
        self.sealer = Sealer(self.store, settings.landing, health, settings.salvage)
        self._not_rotated = ""  # the reason, if the last attempt failed
        self.connects = 0
        self.connected_at = 0.0
        self._stopping = False
        self._woken = asyncio.Event()
        self._rows_committed = self.rows_acknowledged = self.store.stored
        self._last_message = time.monotonic()

    # --- start and stop -----------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Request a clean stop: stop reading, seal everything. May be called from a signal handler."""
        self._stopping = True
        self._woken.set()

    async def run(self) -> None:
        """Collect until `stop` is called, then seal everything that was received.

        Raises:
            CollectorError, LandingError: a person has to act; the text says how. Nothing is lost.
        """
        if self.store.torn_bytes:
            self.health.torn_bytes.inc(self.store.torn_bytes)
            self.health.log(f"cut off {counted(self.store.torn_bytes, 'byte')} of a block that was never acknowledged")
        for logs in _abandoned(self.settings.landing):
            self.health.log(
                f"{logs} has messages that are in no segment: its collector was killed. Start it once more, with"
                f" --client-id {logs.name.removesuffix('.logs')}"
            )
        self.sealer.start()
        try:
            await self._collect()
            await self._sync()
            self._rotate()
            if self.store.closed:
                self.health.log(f"sealing {counted(len(self.store.closed), 'segment')}")
            await self.sealer.finish()
            waiting = self.store.held_count
            held = f"; the log has {counted(waiting, 'QoS 2 message')} without PUBREL" if waiting else ""
            self.health.log(f"everything received is sealed: {counted(self.store.stored, 'row')} in all{held}")
        finally:
            await self.sealer.stop()
            self.store.close()

    async def _collect(self) -> None:
        longest_ms = int(self.settings.longest_pause_s * 1000)
        backoff = Backoff(min(FIRST_PAUSE_MS, longest_ms), longest_ms, LASTING_MS)
        reported = ""
        while not self._stopping:
            connects = self.connects
            started = time.monotonic()
            try:
                sock = await asyncio.to_thread(self._connect)
                try:
                    await self._pump(sock)
                except errors.FlashMqttError as error:
                    self.connection.put_error_disconnect(error)  # level 5: send the reason to the broker
                    with contextlib.suppress(OSError, LandingStalled):
                        self._send(sock)
                    raise
                finally:
                    self.connection.close()
                    self.health.connected.set(0)
                    sock.close()
            except _Restart as error:
                if str(error) != reported:
                    reported = str(error)
                    self.health.log(f"{reported}; reconnecting")
                continue
            except errors.ConnectRefused as error:
                if error.code in _WRONG_CREDENTIALS and not self.connects:
                    of_id = error.code in (2, reasons.CLIENT_IDENTIFIER_NOT_VALID)
                    options = "--client-id" if of_id else "--user, and --password-file or FLASHMQTT_PASSWORD"
                    raise CollectorError(
                        f"{self._broker_name()} refuses '{self.settings.client_id}': {_describe(error)}. Check {options}"
                    )
                reason = f"{self._broker_name()} refuses the connection: {_describe(error)}"
            except errors.ConnectionLost as error:
                if error.code == reasons.SESSION_TAKEN_OVER:
                    raise CollectorError(
                        f"another client with the id '{self.settings.client_id}' took over the session at {self._broker_name()}: "
                        "each collector needs its own client id"
                    )
                reason = f"{self._broker_name()}{' ended the connection' if error.code else ''}: {_describe(error)}"
            except errors.UsageError:
                raise  # of these settings: another attempt would fail, too
            except (errors.FlashMqttError, OSError) as error:
                reason = f"{self._broker_name()}: {_describe(error)}"
            else:
                return
            if self.connects > connects:
                reported = ""
                if self.settings.level == 4:  # level 5 has a reason code for it
                    reason += f" (if this repeats, another client may have the id '{self.settings.client_id}')"
            else:
                self.health.failed_connects.inc()
            if reason != reported:
                reported = reason
                self.health.log(f"{reason}; trying again")
            pause_s = backoff.next_delay_ms(int((time.monotonic() - started) * 1000)) / 1000
            resume = time.monotonic() + pause_s
            while not self._stopping and (left_s := resume - time.monotonic()) > 0:
                self._check_segment()
                await self._sleep(min(left_s, LONGEST_WAIT_S))

    def _broker_name(self) -> str:
        return f"the broker at {self.settings.host}:{self.settings.port}"

    def _connect(self) -> socket.socket:
        """Open the network connection: name look-up, TCP, TLS. It blocks, so it runs in a thread."""
        settings = self.settings
        try:
            sock: socket.socket = socket.create_connection((settings.host, settings.port), CONNECT_DEADLINE_S)
        except UnicodeError as error:
            raise CollectorError(f"{settings.host!r} is no host name: {error}") from error
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if settings.tls:
                sock = settings.tls.wrap_socket(sock, server_hostname=settings.host)
            sock.setblocking(False)
        except BaseException:
            sock.close()
            raise
        return sock

    # --- one network connection ---------------------------------------------------------------------------------

    async def _pump(self, sock: socket.socket) -> None:
        """Read, land, sync and acknowledge until `stop` is called.

        Raises:
            FlashMqttError, OSError: the connection ended, or the broker violated the protocol.
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
            self._check_segment()
            wait_s = min(connection.check(ticks_ms()) / 1000, LONGEST_WAIT_S)
            if self.inbound.wants_turn:
                await self._process_all(sock)
            if connection.output.end:
                continue
            if not await self._read(sock):
                self._check_drain()
                await self._readable(sock, wait_s)
            await asyncio.sleep(0)  # let the sealer's tasks and signal handlers run

    async def _read(self, sock: socket.socket) -> bool:
        """Read and process what has arrived, at most one group; return whether anything had."""
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
            if not count:
                raise errors.ConnectionLost(errors.CLOSED_BY_PEER)
            connection.decoder.received(count)
            connection.received_ms = ticks_ms()
            self.health.received_bytes.inc(count)
            self.store.time_us = time.time_ns() // 1000
            await self._process_all(sock)
            if (
                self.store.stored - first_row >= self.settings.commit_count
                or self.store.pending_bytes >= MOST_PENDING_BYTES
                or (time.monotonic() - started) * 1000 >= self.settings.commit_ms
            ):
                return True

    async def _process_all(self, sock: socket.socket) -> None:
        """Process every complete packet; commit whenever the output is full."""
        while self._process() == OUTPUT:
            await self._commit(sock)

    def _process(self) -> int:
        """Process every complete packet; return OUTPUT if the output is full and has to be written first."""
        connection = self.connection
        session, decoder = self.session, self.decoder
        process, message, now_ms = connection.process, session.load_message(), ticks_ms()
        decoder.look()
        while True:
            room = session.run_room()
            if room:
                packets, ids = decoder.take_run(min(room, MOST_IN_ENTRY))
                if ids:
                    self.store.land(packets, len(ids))
                    session.acknowledge_run(ids)
            event = process(now_ms)
            if event == MESSAGE:
                if not decoder.dropped:
                    self._land(message)
                session.acknowledge()
            elif event in (NOTHING, OUTPUT):
                self.inbound.put_delayed()
                return int(event)
            elif event == CONNECTED:
                self.connects += 1
                self.connected_at = time.perf_counter()
                self.health.connects.inc()
                self.health.connected.set(1)
                state = "the broker knows the session" if connection.session_present else "a new session"
                if not connection.session_present:
                    self.store.begin_session()
                if not connection.session_present and (self.connects > 1 or self.store.stored):
                    self.health.lost_sessions.inc()
                    state = "but the broker has forgotten the session: the messages queued there are lost"
                self.health.log(f"connected to {self._broker_name()}, {state}")
            elif event == SUBSCRIBED:
                self._subscribed()
            elif event == RESTART:
                raise _Restart(f"more QoS 2 messages are in flight than --in-flight {self.settings.in_flight} allows")

    def _land(self, message: Message) -> None:
        """Land one message as a row, in its packet's bytes. A QoS 2 message becomes a row only when it is released."""
        if message.qos == 2:
            return
        start = message.topic_start - 2
        body = message.buffer[start : message.payload_end]
        self.decoder.know(bytes(message.buffer[start : message.topic_end]))
        qos = message.qos
        if qos and message.dup and self._is_copy(message):
            self.health.copies.inc()
            qos = 0  # QoS 0 with DUP marks a copy: see `log.py`
            end = message.topic_end - start
            del body[end : end + 2]
        head = _head(0x30 | message.dup << 3 | qos << 1 | message.retain, len(body))
        self.store.land(head + body, 1)

    def _is_copy(self, message: Message) -> bool:
        """Return whether a resent QoS 1 message landed in this session."""
        end = message.topic_end
        key = message.buffer[end] << 8 | message.buffer[end + 1]
        return self.store.recent.has(key, recent.digest(bytes(message.buffer[message.topic_start : end]), message.view))

    def _note_oversize(self, topic: str, length: int) -> None:
        self.health.oversize.inc()
        outcome = "dropped" if self.settings.drop_oversize else "its length and digest land in its place"
        self.health.log(
            f"a message of {length} bytes on {topic!r} is longer than --packet-bytes {self.settings.packet_bytes}: {outcome}"
        )

    def _subscribed(self) -> None:
        refused = [entry for entry in self.session.subscriptions if entry.state == DECLINED]
        if refused:
            names = ", ".join(f"'{bytes(entry.filter).decode()}' (code {entry.code:#x})" for entry in refused)
            raise CollectorError(f"{self._broker_name()} refuses the subscription to {names}")
        if all(entry.state == GRANTED for entry in self.session.subscriptions):
            names = ", ".join(
                f"'{bytes(entry.filter).decode()}' at QoS {entry.code}" for entry in self.session.subscriptions
            )
            self.health.log(f"subscribed to {names}")

    # --- durable, then acknowledged -----------------------------------------------------------------------------

    async def _commit(self, sock: socket.socket) -> None:
        """Make the group durable, then send its acknowledgements."""
        await self._sync()
        await self._write(sock)

    async def _sync(self) -> None:
        """Make durable what was read but not yet synced: otherwise the broker would resend it. Retry until it succeeds.

        Raises:
            LandingStalled: the sync failed while the collector is stopping.
        """
        health = self.health
        reported = ""
        if not self.store.pending_bytes:
            return
        while True:
            started = time.monotonic()
            try:
                self.store.sync()
            except LandingStalled as error:
                if not reported:
                    health.stalls.inc()
                    health.stalled.set(1)
                if str(error) != reported:
                    reported = str(error)
                    health.log(f"{reported}; nothing more is acknowledged until it can be written")
                if self._stopping:
                    raise
                if self.store.log_bytes >= FULL_DISK_ROTATE_BYTES:
                    self._rotate()  # frees space: a segment is much smaller than its log
                self._check_segment()
                await self._sleep(STALLED_RETRY_S)
            else:
                break
        if reported:
            health.stalled.set(0)
            health.log("the landing can be written again; continuing")
        health.sync_seconds.observe(time.monotonic() - started)
        self._last_message = time.monotonic()
        rows = self.store.stored - self._rows_committed
        self._rows_committed = self.store.stored
        health.group.observe(rows)
        health.messages.inc(rows)
        health.last_arrival.set(self.store.time_us / 1e6)

    async def _write(self, sock: socket.socket) -> None:
        while not self._send(sock):
            await self._writable(sock)
        self.rows_acknowledged = self._rows_committed

    def _send(self, sock: socket.socket) -> bool:
        """Send the output's bytes; return False if the socket does not take all of them now."""
        output = self.connection.output
        while output.end:
            start = output.start
            # Before acknowledgements are sent, this syncs their messages.
            if not output.write_to(_Writer(sock), ticks_ms()) and output.start == start:
                return False
        return True

    # --- limits -------------------------------------------------------------------------------------------------

    def _check_segment(self) -> None:
        """Close the log if it is full or old enough, also while there is no connection."""
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

    def _check_drain(self) -> None:
        drain_s = self.settings.drain_s
        if drain_s is not None and self.connects:
            quiet_s = time.monotonic() - self._last_message
            if quiet_s > drain_s * (HELD_DRAIN_FACTOR if self.store.held_count else 1):
                self._stopping = True

    def _rotate(self) -> None:
        rows = self.store.rows
        try:
            rotated = self.store.rotate()
            self._not_rotated = ""
            if rotated:
                self.sealer.rows_closed += rows
                self.health.unsealed_logs.set(len(self.store.closed))
                self.sealer.wake()
        except LandingStalled as error:
            if self._stopping:
                raise
            if str(error) != self._not_rotated:
                self._not_rotated = str(error)
                self.health.log(f"{error}; no new log was made, the old one stays in use")

    # --- waiting ------------------------------------------------------------------------------------------------

    async def _sleep(self, seconds: float) -> None:
        """Sleep for so many seconds, or until `_woken` is set."""
        if not self._stopping:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._woken.wait()
        self._woken.clear()

    async def _readable(self, sock: socket.socket, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(sock, self._woken.set)
        try:
            await self._sleep(seconds)
        finally:
            loop.remove_reader(sock)

    async def _writable(self, sock: socket.socket) -> None:
        """Wait until the socket can be written, also while stopping.

        Raises:
            DeadlineExpired: the broker has stopped reading.
        """
        loop = asyncio.get_running_loop()
        writable = asyncio.Event()
        loop.add_writer(sock, writable.set)
        try:
            await asyncio.wait_for(writable.wait(), WRITE_DEADLINE_S)
        except TimeoutError:
            raise errors.DeadlineExpired(f"the broker read nothing for {WRITE_DEADLINE_S:.0f} s")
        finally:
            loop.remove_writer(sock)


@functools.lru_cache(4096)
def _head(first: int, length: int) -> bytes:
    """Return a packet's fixed header."""
    return bytes((first,)) + encode_varint(length)


def _describe(error: BaseException) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _abandoned(landing: Path) -> list[Path]:
    """Return the folders of logs that have messages, and that no collector has open."""
    found = []
    for logs in sorted(landing.glob("*.logs")):
        with contextlib.suppress(LandingError, OSError):
            os.close(take_lock(logs / "lock", LandingInUse()))
            if any(any(read_log(log_path(logs, number), salvage=True).replayed()) for number in log_numbers(logs)):
                found.append(logs)
    return found


def _last_segment(landing: Path, collector: str) -> tuple[int, int]:
    """Return this collector's highest segment number and its highest row ordinal; (0, 0) without segments.

    Raises:
        LandingDamaged, LandingStalled: a segment is damaged, or can't be read.
    """
    mine = [segment for segment in segments.find_segments(landing) if segment.collector == collector]
    if not mine:
        return 0, 0
    import pyarrow as pa  # not before: a new collector needs 50 MB less without it
    import pyarrow.parquet as pq

    last = 0
    for segment in reversed(mine):  # the newest ones may be empty: made instead of lost ones, or of a deleted device
        try:
            with Path(segment.path).open("rb") as file:
                last = max(pq.read_table(file, columns=["row"])["row"].to_pylist(), default=0)
        except (OSError, pa.ArrowInvalid) as error:
            if getattr(error, "errno", None):  # of the system, not of the content
                raise LandingStalled(f"can't read {explained(error, segment.path)}")
            raise LandingDamaged(
                f"{segment.path}: {error}. There is no log, so the numbers of the next segment and its rows follow from this one:"
                " restore it, or move it away and use another client id"
            )
        if last:
            break
    return mine[-1].number, last
