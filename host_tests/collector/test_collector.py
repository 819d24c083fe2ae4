"""The collector against a scripted broker in this process, and as a process against a real mosquitto."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import functools
import hashlib
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from flashmqtt.errors import MalformedPacket, UsageError
from host_tests.waiting import until, until_async
from tools.bootstrap import ROOT
from tools.collector import collector as collector_module
from tools.collector import sealer
from tools.collector.collector import READ_BYTES, Collector, CollectorError, Settings
from tools.collector.health import Health
from tools.collector.oversize import OversizeDecoder
from tools.collector.runs import PUBREC_WINDOW
from tools.command import Failure, serve_metrics
from tools.landing import parquet, seal
from tools.landing.lock import LandingInUse
from tools.landing.log import DiskFull, LandingDamaged, LandingStalled, read_log
from tools.landing.segments import find_segments
from tools.landing.store import LandingStore
from tools.proof import broker as brokers
from tools.proof import packets as p
from tools.proof.collector_kills import Outcome, kill_collector
from tools.proof.packets import PUBACK, PUBCOMP, PUBREC, PUBREL, ack
from tools.proof.soak.judge import Landing

PATIENCE_S = 60  # on a busy machine
CONNACK, CONNACK_PRESENT = b"\x20\x02\x00\x00", b"\x20\x02\x01\x00"
TOPIC = b"flashmqtt/a/readings"

needs_mosquitto = pytest.mark.skipif(not brokers.find_mosquitto(), reason="mosquitto is not installed")


def publish(payload, qos, packet_id, dup=False, level=4, properties=b"", topic=TOPIC):
    return p.publish(topic, payload, qos, packet_id, level, dup=dup, properties=properties)


class ScriptedBroker:
    """Accepts connections and leaves the rest to the test; it reads packets with its own code."""

    def __init__(self):
        self._accepted = asyncio.Queue()

    async def start(self):
        self._server = await asyncio.start_server(lambda *streams: self._accepted.put_nowait(streams), "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def accept(self, connack=CONNACK, suback=b"\x02"):
        """Take the next connection through CONNECT and SUBSCRIBE (where one comes)."""
        self.reader, self.writer = await asyncio.wait_for(self._accepted.get(), PATIENCE_S)
        connect = await self.packet()
        assert connect[0] == 0x10
        assert not connect[9] & 2, "clean session would forget what waits for us"
        self.send(connack)
        if suback is not None:
            subscribe = await self.packet()
            assert subscribe[0] == 0x82
            self.send(b"\x90" + bytes((2 + len(suback),)) + subscribe[2:4] + suback)
        return connect

    async def packet(self):
        head = await asyncio.wait_for(self.reader.readexactly(2), PATIENCE_S)
        return head + await asyncio.wait_for(self.reader.readexactly(head[1]), PATIENCE_S)

    async def silence(self, seconds=0.3):
        """Assert that nothing arrives."""
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(self.reader.readexactly(1), seconds)

    def send(self, *packets):
        self.writer.write(b"".join(packets))

    async def exchange(self, sent, expected):
        """Send a packet and take its answer."""
        self.send(sent)
        assert await self.packet() == expected

    async def close(self):
        self.writer.close()
        self._server.close()


@pytest.fixture
def sealing_process():
    """Use the real sealing process, for tests that are about it."""


@pytest.fixture(autouse=True)
def sealing_here(request, monkeypatch):
    """Let collectors seal in this process: it saves half a second for each test."""

    async def ask(self, number):
        return seal.attempt(self._store.log_path(number), self._directory, self._salvage)

    if "sealing_process" not in request.fixturenames:
        monkeypatch.setattr(sealer.Sealer, "_ask", ask)


def in_a_loop(test):
    """Run a coroutine test in an event loop."""

    @functools.wraps(test)
    def run(*arguments, **named):
        asyncio.run(test(*arguments, **named))

    return run


@contextlib.asynccontextmanager
async def collecting(tmp_path, client_id="c", **more):
    """Run a collector beside a broker of the test's own; at the end it is stopped, and seals its rows."""
    broker = await ScriptedBroker().start()
    more = {"segment_seconds": 3600, "longest_pause_s": 0.05, **more}
    settings = Settings("127.0.0.1", broker.port, client_id, tmp_path, **more)
    collector = Collector(settings, Health("c", quiet=True))
    running = collector.task = asyncio.create_task(collector.run())
    try:
        yield broker, collector
        collector.stop()
        await asyncio.wait_for(running, PATIENCE_S)
    finally:
        running.cancel()
        with contextlib.suppress(BaseException):
            await running
        await broker.close()


def sealed(directory):
    rows = []
    for segment in find_segments(directory):
        rows += pq.read_table(segment.path).to_pylist()
    return sorted(rows, key=lambda row: row["row"])


def payloads(directory):
    return [row["payload"] for row in sealed(directory)]


@pytest.mark.req("P1", "W12")
@pytest.mark.parametrize("level", [4, 5])
@in_a_loop
async def test_only_shared_subscriptions_are_asked_for_again_in_a_known_session(tmp_path, level):
    new, known = [bytes((0x20, level - 2, present)) + bytes(level - 3) for present in (0, 1)]
    topics = (("$share/g/a/#", 1), ("b/#", 1))
    async with collecting(tmp_path, level=level, topics=topics) as (broker, _):
        await broker.accept(new, suback=b"\0\1\1" if level == 5 else b"\1\1")
        broker.writer.close()
        await broker.accept(known, suback=None)
        subscribe = await broker.packet()
        assert subscribe[0] == 0x82
        assert subscribe[4:].lstrip(b"\0")[1:-1] == b"$share/g/a/#"


@needs_mosquitto
@pytest.mark.req("P1", "W12")
def test_shared_subscription_outlasts_a_restart_of_the_broker(tmp_path):
    broker = brokers.Broker(tmp_path / "broker", kind="mosquitto")
    with broker:
        collector = Process(tmp_path, broker.port, "--level", "5", "--topic", "$share/landing/flashmqtt/#")
        collector.says("subscribed")
        broker.stop()
        collector._from = collector.log.stat().st_size
        broker.start()
        collector.says("subscribed")
        send(broker.port, publish(b"1", 1, 1), 4)
        wait_for_rows(tmp_path / "landing", 1)
        assert collector.end() == 0, collector.said


@contextlib.asynccontextmanager
async def flooded(tmp_path, monkeypatch):
    """Yield a broker that sends without a pause and reads nothing, and the collector, which can send a few KB only."""
    many = b"".join(publish(b"", 1, n + 1) for n in range(2000))
    connect = Collector._connect

    def with_a_small_buffer(collector):
        sock = connect(collector)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        return sock

    monkeypatch.setattr(Collector, "_connect", with_a_small_buffer)

    async def flood(writer):
        with contextlib.suppress(OSError):
            while True:
                writer.write(many)
                await writer.drain()

    async with collecting(tmp_path) as (broker, collector):
        await broker.accept()
        broker.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        broker.reader._transport.pause_reading()
        flooding = asyncio.create_task(flood(broker.writer))
        yield broker, collector
        flooding.cancel()


@pytest.mark.req("P1")
@in_a_loop
async def test_log_is_sealed_at_its_age_also_while_the_disk_is_full(tmp_path, monkeypatch):
    """A small log, too: its segment is shorter, and segments in the tables can be deleted."""
    async with collecting(tmp_path, reserve_bytes=1000) as (broker, collector):
        await broker.accept()
        await broker.exchange(publish(b"1", 1, 10), ack(PUBACK, 10))
        monkeypatch.setattr(collector.store, "free_bytes", lambda: 999)
        broker.send(publish(b"2", 1, 11))
        await until_async(lambda: collector.health.stalled._value.get() == 1)
        assert collector.store.closed == []
        collector.store.first_row_at -= 3600
        await until_async(lambda: payloads(tmp_path) == [b"1", b"2"])
        assert await broker.packet() == ack(PUBACK, 11)
        assert collector.health.free_bytes._value.get() == 999


@pytest.mark.req("P1", "Q3")
@in_a_loop
async def test_puback_is_sent_only_after_the_sync_and_in_order(tmp_path, monkeypatch):
    synced = asyncio.Event()
    real = os.fdatasync

    def sync(handle):
        if not synced.is_set():
            raise OSError(28, "No space left on device")
        real(handle)

    async with collecting(tmp_path) as (broker, collector):
        await broker.accept()
        monkeypatch.setattr(os, "fdatasync", sync)
        broker.send(publish(b"1", 1, 10), publish(b"2", 1, 11), publish(b"3", 1, 12))
        await until_async(lambda: collector.health.stalled._value.get() == 1)
        await broker.silence()
        synced.set()
        for packet_id in (10, 11, 12):
            assert await broker.packet() == ack(PUBACK, packet_id)
        assert collector.health.stalled._value.get() == 0
    assert payloads(tmp_path) == [b"1", b"2", b"3"]


@pytest.mark.req("P1", "Q4")
@in_a_loop
async def test_repeated_qos_2_packets_store_the_message_once(tmp_path):
    async with collecting(tmp_path) as (broker, collector):
        await broker.accept()
        for dup in (False, True, True):
            await broker.exchange(publish(b"once", 2, 7, dup), ack(PUBREC, 7))
        assert (collector.store.rows, collector.store.held_count) == (0, 1)
        for _ in range(3):
            await broker.exchange(ack(PUBREL, 7), ack(PUBCOMP, 7))
        assert (collector.store.rows, collector.store.held_count) == (1, 0)
        await broker.exchange(publish(b"the same id, another message", 2, 7), ack(PUBREC, 7))
        await broker.exchange(ack(PUBREL, 7), ack(PUBCOMP, 7))
    assert payloads(tmp_path) == [b"once", b"the same id, another message"]


def marks(directory):
    return [(row["payload"], row["qos"], row["dup"]) for row in sealed(directory)]


@pytest.mark.req("P3", "Q3")
@pytest.mark.parametrize("ends", ["killed", "link lost", "killed, with a rotation before"])
@in_a_loop
async def test_resend_of_a_landed_qos_1_message_is_marked(tmp_path, ends):
    """The acknowledgement of a synced message may be lost: the broker sends the message again, with its packet id."""

    async def again(broker):
        await broker.accept(CONNACK_PRESENT, b"\x02" if ends != "link lost" else None)
        await broker.exchange(publish(b"21.5", 1, 10, dup=True), ack(PUBACK, 10))  # landed, twice the same value
        await broker.exchange(publish(b"21.5", 1, 12, dup=True), ack(PUBACK, 12))  # an unused id
        await broker.exchange(publish(b"22.0", 1, 11, dup=True), ack(PUBACK, 11))  # another message under an old id
        await broker.exchange(publish(b"21.5", 1, 13), ack(PUBACK, 13))  # no DUP

    with contextlib.suppress(Crash):
        async with collecting(tmp_path) as (broker, collector):
            await broker.accept()
            for key in (10, 11):
                await broker.exchange(publish(b"21.5", 1, key), ack(PUBACK, key))
            if ends == "link lost":
                broker.writer.close()
                await again(broker)
                assert collector.health.copies._value.get() == 1
            else:
                "rotation" in ends and collector.store.rotate()
                raise Crash
    if ends != "link lost":
        async with collecting(tmp_path) as (broker, _):
            await again(broker)
    new = [(b"21.5", 1, False)]
    rest = [(b"21.5", 0, True), (b"21.5", 1, True), (b"22.0", 1, True), *new]
    assert marks(tmp_path) == [*new, *new, *rest]


@pytest.mark.req("P1")
@pytest.mark.parametrize("ends", ["killed", "stopped", "running"])
@in_a_loop
async def test_messages_of_a_killed_collector_with_another_name_are_reported(tmp_path, monkeypatch, ends):
    """Only a collector of the same name seals these logs: after a change of --client-id nothing would read them."""
    with contextlib.suppress(Crash):
        async with collecting(tmp_path, "before") as (broker, _):
            await broker.accept()
            await broker.exchange(publish(b"21.5", 1, 10), ack(PUBACK, 10))
            if ends != "stopped":
                raise Crash
    lines = []
    monkeypatch.setattr(Health, "log", lambda _, text: lines.append(text))
    with contextlib.ExitStack() as stack:
        if ends == "running":
            stack.callback(LandingStore(tmp_path / "before.logs", "before", shared=True).close)
        async with collecting(tmp_path, "after", topics=(("$share/g/#", 1),)) as (broker, _):
            await broker.accept(suback=b"\x01")
    told = [line for line in lines if "before.logs has messages that are in no segment" in line]
    assert len(told) == (ends == "killed")


@pytest.mark.req("P3", "Q3")
@in_a_loop
async def test_resend_on_the_same_connection_is_marked(tmp_path):
    """Level 4 allows a broker to send again after a time: EMQX and VerneMQ do so while a full disk delays the PUBACK."""
    async with collecting(tmp_path) as (broker, collector):
        await broker.accept()
        for first in (10, 20):
            for key in range(first, first + 3):
                await broker.exchange(publish(b"21.5", 1, key), ack(PUBACK, key))
            for key in (first, first + 2, first, first + 5):  # the last one is a new message
                await broker.exchange(publish(b"21.5", 1, key, dup=True), ack(PUBACK, key))
        assert collector.health.copies._value.get() == 6
    copy = (b"21.5", 0, True)
    assert marks(tmp_path) == [*[(b"21.5", 1, False)] * 3, copy, copy, copy, (b"21.5", 1, True)] * 2


@pytest.mark.req("P3", "Q3", "Q8")
@in_a_loop
async def test_new_session_or_reused_packet_id_marks_no_duplicate(tmp_path):
    async with collecting(tmp_path) as (broker, collector):
        await broker.accept()
        await broker.exchange(publish(b"old session", 1, 10), ack(PUBACK, 10))
        for _ in range(2):  # a broker that assigns the lowest free id
            await broker.exchange(publish(b"21.5", 1, 11), ack(PUBACK, 11))
        broker.writer.close()
        await broker.accept(CONNACK_PRESENT, None)
        await broker.exchange(publish(b"21.5", 1, 11, dup=True), ack(PUBACK, 11))
        broker.writer.close()
        await broker.accept(CONNACK)  # it has forgotten the session
        broker.writer.close()
        await broker.accept(CONNACK_PRESENT, None)
        await broker.exchange(publish(b"old session", 1, 10, dup=True), ack(PUBACK, 10))
        assert collector.health.copies._value.get() == 0
    assert [qos for _, qos, _ in marks(tmp_path)] == [1] * 5


@pytest.mark.req("P3", "W12")
@in_a_loop
async def test_level_5_resend_with_changed_expiry_is_marked(tmp_path):
    def with_expiry(seconds, dup):
        return publish(b"21.5", 1, 10, dup, 5, b"\x02" + seconds.to_bytes(4))

    present = b"\x20\x03\x01\x00\x00"
    async with collecting(tmp_path, level=5) as (broker, _):
        await broker.accept(connack=b"\x20\x03\x00\x00\x00", suback=b"\x00\x02")
        await broker.exchange(with_expiry(60, False), ack(PUBACK, 10))
        broker.writer.close()
        await broker.accept(present, None)
        await broker.exchange(with_expiry(50, True), ack(PUBACK, 10))
    assert marks(tmp_path) == [(b"21.5", 1, False), (b"21.5", 0, True)]
    assert [row["properties"][-1] for row in sealed(tmp_path)] == [60, 50]


class Crash(Exception):
    """The collector ends here."""


@pytest.mark.req("P1", "Q4")
@pytest.mark.parametrize("crash_at", ["PUBLISH sent", "PUBREC seen", "PUBREL sent", "PUBCOMP seen"])
@in_a_loop
async def test_crash_after_any_packet_stores_a_qos_2_message_once(tmp_path, crash_at):
    """The broker repeats what was not answered; the collector has only its log."""

    async def flow(broker, state, point):
        if state[0] == "publish":
            broker.send(publish(b"once", 2, 7, dup=point is None))
            await asyncio.sleep(0.1)
            point == "PUBLISH sent" and crash()
            assert await broker.packet() == ack(PUBREC, 7)
            state[0] = "release"
            point == "PUBREC seen" and crash()
        broker.send(ack(PUBREL, 7))
        await asyncio.sleep(0.1)
        point == "PUBREL sent" and crash()
        assert await broker.packet() == ack(PUBCOMP, 7)
        point == "PUBCOMP seen" and crash()

    def crash():
        raise Crash

    state = ["publish"]
    with pytest.raises(Crash):
        async with collecting(tmp_path) as (broker, _):
            await broker.accept()
            await flow(broker, state, crash_at)
    assert payloads(tmp_path) == []
    async with collecting(tmp_path) as (broker, _):
        await broker.accept(CONNACK_PRESENT)
        if crash_at != "PUBCOMP seen":
            await flow(broker, state, None)
    assert payloads(tmp_path) == [b"once"]


@pytest.mark.req("P1", "Q8")
@in_a_loop
async def test_held_message_lands_when_the_broker_lost_the_session(tmp_path):
    async with collecting(tmp_path) as (broker, collector):
        await broker.accept()
        await broker.exchange(publish(b"only here", 2, 7), ack(PUBREC, 7))
        broker.writer.close()
        await broker.accept(CONNACK)
        await broker.exchange(publish(b"next", 1, 8), ack(PUBACK, 8))
        assert collector.health.lost_sessions._value.get() == 1
    assert payloads(tmp_path) == [b"only here", b"next"]


@pytest.mark.req("P1", "Q4", "Q8")
@pytest.mark.parametrize("killed", [False, True])
@in_a_loop
async def test_held_message_lands_before_its_packet_id_is_reused(tmp_path, killed):
    """The CONNACK without a session was lost, and the broker uses the packet id for another message."""

    async def next_message(broker):
        await broker.accept(CONNACK_PRESENT, b"\x02" if killed else None)
        await broker.exchange(publish(b"reading B", 2, 7), ack(PUBREC, 7))
        await broker.exchange(publish(b"reading B", 2, 7, dup=True), ack(PUBREC, 7))
        await broker.exchange(ack(PUBREL, 7), ack(PUBCOMP, 7))

    with contextlib.suppress(Crash):
        async with collecting(tmp_path) as (broker, _):
            await broker.accept()
            await broker.exchange(publish(b"reading A", 2, 7), ack(PUBREC, 7))
            if killed:
                raise Crash
            broker.writer.close()
            await next_message(broker)
    if killed:
        async with collecting(tmp_path) as (broker, collector):
            assert collector.store.held() == [7]
            await next_message(broker)
    assert payloads(tmp_path) == [b"reading A", b"reading B"]


@pytest.mark.req("P1", "Q4")
@in_a_loop
async def test_qos_2_beyond_the_in_flight_limit_lands_once_in_order(tmp_path):
    limit, count = 20, 50

    async with collecting(tmp_path, in_flight=limit) as (broker, collector):
        suback = b"\x02"
        connack = CONNACK
        waiting = list(range(1, count + 1))
        while waiting:
            await broker.accept(connack, suback)
            connack, suback = CONNACK_PRESENT, None
            broker.send(*(publish(b"%d" % n, 2, n) for n in waiting))
            answered = waiting[:limit]
            for n in answered:
                assert await broker.packet() == ack(PUBREC, n)
            for n in answered:
                await broker.exchange(ack(PUBREL, n), ack(PUBCOMP, n))
            waiting = waiting[limit:]
            if waiting:
                assert await broker.packet() == b"\xe0\x00"
                broker.writer.close()
        assert collector.connects == 3
    assert payloads(tmp_path) == [b"%d" % n for n in range(1, count + 1)]


@pytest.mark.req("P1")
@in_a_loop
async def test_partial_packet_of_a_lost_connection_does_not_land(tmp_path):
    async with collecting(tmp_path) as (broker, collector):
        whole = publish(b"whole", 1, 5)
        for cut in range(1, len(whole)):
            await broker.accept(CONNACK if cut == 1 else CONNACK_PRESENT, b"\x02" if cut == 1 else None)
            broker.send(whole[:cut])
            await broker.writer.drain()
            broker.writer.close()
        await broker.accept(CONNACK_PRESENT, None)
        assert collector.store.rows == 0
        await broker.exchange(whole, ack(PUBACK, 5))
    assert payloads(tmp_path) == [b"whole"]


@pytest.mark.req("P1")
@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 50])
@in_a_loop
async def test_any_chunking_gives_the_same_rows(tmp_path, chunk):
    stream = b"".join(publish(b"%d" % n, 1 + n % 2, n + 1) + (ack(PUBREL, n + 1) if n % 2 else b"") for n in range(20))

    async with collecting(tmp_path) as (broker, _):
        await broker.accept()
        for at in range(0, len(stream), chunk):
            broker.send(stream[at : at + chunk])
            await broker.writer.drain()
        for n in range(20):
            assert await broker.packet() == ack(PUBREC if n % 2 else PUBACK, n + 1)
            if n % 2:
                assert await broker.packet() == ack(PUBCOMP, n + 1)
    assert payloads(tmp_path) == [b"%d" % n for n in range(20)]


@pytest.mark.req("P1")
@in_a_loop
async def test_log_is_sealed_after_its_row_limit_while_collecting(tmp_path, sealing_process):
    async with collecting(tmp_path, segment_rows=10) as (broker, _):
        await broker.accept()
        for n in range(40):
            await broker.exchange(publish(b"%d" % n, 1, n + 1), ack(PUBACK, n + 1))
        await until_async(lambda: len(find_segments(tmp_path)) == 4)
    assert payloads(tmp_path) == [b"%d" % n for n in range(40)]
    assert [pq.read_metadata(segment.path).num_rows for segment in find_segments(tmp_path)] == [10, 10, 10, 10]


@pytest.mark.req("P1")
@pytest.mark.parametrize("longest_pause_s", [0.05, 86_400])
@in_a_loop
async def test_log_is_sealed_at_its_age_while_the_broker_is_away(tmp_path, longest_pause_s):
    async with collecting(tmp_path, segment_seconds=0.1, longest_pause_s=longest_pause_s) as (broker, _):
        await broker.accept()
        await broker.exchange(publish(b"1", 1, 1), ack(PUBACK, 1))
        await broker.close()
        await until_async(lambda: find_segments(tmp_path))
    assert payloads(tmp_path) == [b"1"]


@pytest.mark.req("P1")
@in_a_loop
async def test_connection_ends_when_acknowledgements_stay_unread_past_the_deadline(tmp_path, monkeypatch):
    monkeypatch.setattr(collector_module, "WRITE_DEADLINE_S", 0.3)
    async with flooded(tmp_path, monkeypatch) as (broker, collector):
        await broker.accept(CONNACK_PRESENT, None)
        await until_async(lambda: collector.connects == 2)


@pytest.mark.req("P1")
@in_a_loop
async def test_acknowledgements_that_the_socket_did_not_take_at_once_are_sent_when_it_has_room(tmp_path, monkeypatch):
    waits = []
    writable = Collector._writable

    async def noted(collector, sock):
        waits.append(sock)
        await writable(collector, sock)

    monkeypatch.setattr(Collector, "_writable", noted)
    async with flooded(tmp_path, monkeypatch) as (broker, collector):
        await until_async(lambda: waits)
        broker.reader._transport.resume_reading()
        for n in range(20_000):
            assert await broker.packet() == ack(PUBACK, n % 2000 + 1)
        assert collector.connects == 1


@pytest.mark.req("P1")
@in_a_loop
async def test_killed_sealer_is_restarted(tmp_path, sealing_process, monkeypatch):
    begin, killed = asyncio.create_subprocess_exec, []

    async def begin_and_kill(*words, **options):
        process = await begin(*words, **options)
        if len(killed) < 2:
            process.kill()
            killed.append(process)
        return process

    monkeypatch.setattr(sealer, "RETRY_S", 0.01)
    monkeypatch.setattr(asyncio, "create_subprocess_exec", begin_and_kill)
    async with collecting(tmp_path, segment_rows=1) as (broker, _):
        await broker.accept()
        for n in range(3):
            await broker.exchange(publish(b"%d" % n, 1, n + 1), ack(PUBACK, n + 1))
            await until_async(lambda n=n: len(find_segments(tmp_path)) > n)
    assert [process.returncode for process in killed] == [-signal.SIGKILL] * 2
    assert payloads(tmp_path) == [b"0", b"1", b"2"]


async def four_logs_without_segments(tmp_path):
    async def failing(*words, **options):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    with pytest.MonkeyPatch.context() as broken, pytest.raises(LandingStalled):
        broken.setattr(asyncio, "create_subprocess_exec", failing)
        async with collecting(tmp_path, segment_rows=1) as (broker, _):
            await broker.accept()
            for n in range(4):
                await broker.exchange(publish(b"%d" % n, 1, n + 1), ack(PUBACK, n + 1))


@pytest.mark.req("P1")
@in_a_loop
async def test_logs_of_an_earlier_run_are_sealed_one_after_the_other(tmp_path, sealing_process, monkeypatch):
    begin, started = asyncio.create_subprocess_exec, []

    async def begin_and_note(*words, **options):
        assert all(process.returncode == 0 for process in started)
        started.append(await begin(*words, **options))
        return started[-1]

    monkeypatch.setattr(sealer, "RETRY_S", 0.01)
    await four_logs_without_segments(tmp_path)
    monkeypatch.setattr(asyncio, "create_subprocess_exec", begin_and_note)
    async with collecting(tmp_path) as (broker, _):
        await broker.accept(CONNACK_PRESENT)
        await until_async(lambda: len(find_segments(tmp_path)) == 4)
    assert len(started) == 4
    assert payloads(tmp_path) == [b"%d" % n for n in range(4)]


STRAY_LINE = """
import sys
from tools.landing import seal
if "01.log" in sys.argv[1] and not any(seal.Path(sys.argv[2]).glob("*.parquet")):
    print("a library's warning", flush=True)
seal.main()
"""


@pytest.mark.req("P1")
@in_a_loop
async def test_line_that_is_no_answer_of_the_sealing_process_removes_no_log(tmp_path, sealing_process, monkeypatch):
    begin, started = asyncio.create_subprocess_exec, []

    async def begin_another(*words, **options):
        started.append(words[-3])
        return await begin(sys.executable, "-c", STRAY_LINE, *words[-3:], **options)

    monkeypatch.setattr(sealer, "RETRY_S", 0.01)
    await four_logs_without_segments(tmp_path)
    monkeypatch.setattr(asyncio, "create_subprocess_exec", begin_another)
    async with collecting(tmp_path) as (broker, _):
        await broker.accept(CONNACK_PRESENT)
    assert len(started) == 5 and started[0] == started[1]
    assert payloads(tmp_path) == [b"%d" % n for n in range(4)]


@pytest.mark.req("P1")
@in_a_loop
async def test_end_of_the_collector_ends_its_sealing_process(tmp_path, sealing_process, monkeypatch):
    begin, started = asyncio.create_subprocess_exec, []

    async def begin_another(*words, **options):
        started.append(await begin(sys.executable, "-c", "import time; time.sleep(600)", **options))
        return started[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", begin_another)
    async with collecting(tmp_path, segment_rows=1) as (broker, collector):
        await broker.accept()
        await broker.exchange(publish(b"1", 1, 1), ack(PUBACK, 1))
        await until_async(lambda: started)
        await collector.sealer.stop()
        assert started[0].returncode == -signal.SIGKILL
        collector.sealer.start()
        monkeypatch.setattr(asyncio, "create_subprocess_exec", begin)
    assert payloads(tmp_path) == [b"1"]


@pytest.mark.req("P1")
def test_collector_process_loads_no_parquet_library():
    program = "import sys, tools.collector.__main__; print({'numpy', 'pandas', 'pyarrow'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "set()\n"


@pytest.mark.req("P1")
@in_a_loop
async def test_failed_last_sealing_is_an_error_and_the_next_start_seals(tmp_path, monkeypatch):
    monkeypatch.setattr(sealer, "RETRY_S", 0.01)
    with pytest.raises(LandingStalled, match="the next start seals them"):
        async with collecting(tmp_path) as (broker, collector):
            await broker.accept()
            collector.sealer._directory = tmp_path / "nowhere"
            await broker.exchange(publish(b"1", 1, 1), ack(PUBACK, 1))
    assert payloads(tmp_path) == []
    async with collecting(tmp_path) as (broker, _):
        await broker.accept(CONNACK_PRESENT)
        await broker.exchange(publish(b"2", 1, 2), ack(PUBACK, 2))
    assert payloads(tmp_path) == [b"1", b"2"]


@pytest.mark.req("P1")
@in_a_loop
async def test_log_that_can_not_be_closed_is_reported_once(tmp_path, monkeypatch):
    real = Path.open
    lines = []

    def no_room(path, mode="r", *more, **named):
        if path.suffix == ".tmp":
            raise OSError(28, "No space left on device")
        return real(path, mode, *more, **named)

    async with collecting(tmp_path, segment_rows=1) as (broker, collector):
        collector.health.log = lines.append
        await broker.accept()
        with monkeypatch.context() as patch:
            patch.setattr(Path, "open", no_room)
            for packet_id in (10, 11, 12):
                await broker.exchange(publish(b"1", 1, packet_id), ack(PUBACK, packet_id))
        await until_async(lambda: collector.store.number > 1)
    assert len(sealed(tmp_path)) == 3
    assert sum("No space left on device" in line for line in lines) == 1


@in_a_loop
async def test_invalid_host_name_ends_with_a_named_error(tmp_path):
    collector = Collector(Settings("broker..local", 1883, "c", tmp_path), Health("c", quiet=True))
    with pytest.raises(CollectorError, match=r"'broker\.\.local' is no host name"):
        await collector.run()


@pytest.mark.parametrize(("user", "text"), [("\udcff", "not UTF-8"), ("x" * 65_536, "length 65536")])
@in_a_loop
async def test_user_name_that_mqtt_forbids_ends_with_a_named_error(tmp_path, user, text):
    broker = await ScriptedBroker().start()
    collector = Collector(Settings("127.0.0.1", broker.port, "c", tmp_path, user=user), Health("c", quiet=True))
    with pytest.raises(UsageError, match=text):
        await asyncio.wait_for(collector.run(), PATIENCE_S)


@in_a_loop
async def test_refused_subscription_ends_with_a_named_error(tmp_path):
    with pytest.raises(CollectorError, match=r"refuses the subscription to '#' \(code 0x80\)"):
        async with collecting(tmp_path) as (broker, collector):
            await broker.accept(suback=b"\x80")
            await asyncio.wait({collector.task}, timeout=PATIENCE_S)


@pytest.mark.req("P1", "W10")
@pytest.mark.parametrize(("code", "option"), [(2, "--client-id"), (4, "--user"), (5, "--user")])
@in_a_loop
async def test_refused_client_ends_with_a_named_error(tmp_path, code, option):
    with pytest.raises(CollectorError, match=f"refuses 'c': .* Check {option}"):
        async with collecting(tmp_path) as (broker, collector):
            await broker.accept(connack=b"\x20\x02\x00" + bytes((code,)), suback=None)
            await asyncio.wait({collector.task}, timeout=PATIENCE_S)


def description(payload):
    return {"oversize": {"bytes": len(payload), "sha256": hashlib.sha256(payload).hexdigest()}}


OVERSIZE = {"packet_bytes": 1 << 18}


@pytest.mark.req("P1", "W13")
@pytest.mark.parametrize("level", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
@in_a_loop
async def test_oversize_message_lands_as_topic_length_and_digest(tmp_path, qos, level):
    payload = os.urandom(700_000)
    properties = b"\x01\x01" if level == 5 else b""
    async with collecting(tmp_path, level=level, **OVERSIZE) as (broker, collector):
        connect = await broker.accept(*((b"\x20\x03\0\0\0", b"\0\x02") if level == 5 else ()))
        assert b"\x27" not in connect[12:], "a Maximum Packet Size would keep the broker from sending it"
        broker.send(publish(payload, qos, 7, level=level, properties=properties))
        if qos == 2:
            assert await broker.packet() == ack(PUBREC, 7)
            await broker.exchange(publish(payload, qos, 7, True, level, properties), ack(PUBREC, 7))
            await broker.exchange(ack(PUBREL, 7), ack(PUBCOMP, 7))
        elif qos == 1:
            assert await broker.packet() == ack(PUBACK, 7)
        await broker.exchange(publish(b"behind", 1, 8, level=level), ack(PUBACK, 8))
        assert collector.connects == 1
        assert collector.health.oversize._value.get() == 1 + (qos == 2)
    first, second = sealed(tmp_path)
    assert (first["topic"], first["qos"], second["payload"]) == (TOPIC.decode(), qos, b"behind")
    assert first["properties"] == (properties or None)
    assert json.loads(first["payload"]) == description(payload)


@in_a_loop
async def test_oversize_messages_topic_gives_one_line_in_the_log(tmp_path, capsys):
    async with collecting(tmp_path, **OVERSIZE) as (broker, collector):
        collector.health = Health("c")
        await broker.accept()
        broker.send(publish(b"x" * 300_000, 1, 7, topic=b"a\nc: stopped\x1b[2J/b"))
        assert await broker.packet() == ack(PUBACK, 7)
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "stopped" in line]
    assert "a message of 300000 bytes on 'a\\nc: stopped\\x1b[2J/b'" in line


@pytest.mark.req("P1")
@pytest.mark.parametrize("qos", [0, 1, 2])
@in_a_loop
async def test_oversize_message_is_dropped_by_the_drop_policy(tmp_path, qos):
    async with collecting(tmp_path, drop_oversize=True, **OVERSIZE) as (broker, _):
        await broker.accept()
        for _ in range(PUBREC_WINDOW + 1 if qos == 2 else 1):  # a slot of the window is released, too
            broker.send(publish(b"x" * 300_000, qos, 7))
            if qos == 1:
                assert await broker.packet() == ack(PUBACK, 7)
            elif qos == 2:
                assert await broker.packet() == ack(PUBREC, 7)
                await broker.exchange(ack(PUBREL, 7), ack(PUBCOMP, 7))
        await broker.exchange(publish(b"behind", 2, 7), ack(PUBREC, 7))
        await broker.exchange(ack(PUBREL, 7), ack(PUBCOMP, 7))
    assert payloads(tmp_path) == [b"behind"]


@pytest.mark.req("P1", "W12")
@pytest.mark.parametrize("drop", [False, True])
@in_a_loop
async def test_level_5_sends_maximum_packet_size_only_with_drop_policy(tmp_path, drop):
    async with collecting(tmp_path, level=5, drop_oversize=drop, **OVERSIZE) as (broker, _):
        connect = await broker.accept(connack=b"\x20\x03\0\0\0", suback=b"\0\x02")
        assert (b"\x27" + OVERSIZE["packet_bytes"].to_bytes(4, "big") in connect) == drop


@pytest.mark.req("P1", "Q4")
@in_a_loop
async def test_interrupted_oversize_message_is_resent_and_lands_once(tmp_path):
    payload = os.urandom(300_000)
    whole = publish(payload, 2, 7)
    cuts = [1, 3, 4, 6, 10, 28, 30, 1000, 1 << 18, len(whole) - 1]
    async with collecting(tmp_path, **OVERSIZE) as (broker, collector):
        for cut in cuts:
            await broker.accept(CONNACK if cut == 1 else CONNACK_PRESENT, b"\x02" if cut == 1 else None)
            broker.send(whole[:cut])
            await broker.writer.drain()
            broker.writer.close()
        await broker.accept(CONNACK_PRESENT, None)
        await broker.exchange(whole, ack(PUBREC, 7))
        broker.writer.close()
        await broker.accept(CONNACK_PRESENT, None)
        await broker.exchange(publish(payload, 2, 7, dup=True), ack(PUBREC, 7))
        await broker.exchange(ack(PUBREL, 7), ack(PUBCOMP, 7))
        assert collector.connects == len(cuts) + 2
    assert [json.loads(payload) for payload in payloads(tmp_path)] == [description(payload)]


@pytest.mark.req("P1", "W13")
@in_a_loop
async def test_oversize_packet_other_than_publish_only_ends_the_connection(tmp_path):
    async with collecting(tmp_path, **OVERSIZE) as (broker, _):
        await broker.accept()
        broker.send(b"\x90\xff\xff\xff\x7f", b"x" * 100)
        await broker.accept(CONNACK_PRESENT, None)
        await broker.exchange(publish(b"next", 1, 8), ack(PUBACK, 8))
    assert payloads(tmp_path) == [b"next"]


def packets_of(decoder, stream, chunk):
    """Feed a decoder in chunks; return its PUBLISH packets from the buffer."""
    found = []
    for at in range(0, len(stream), chunk):
        part = stream[at : at + chunk]
        while part:
            room = decoder.room()
            n = min(len(room), len(part))
            room[:n] = part[:n]
            decoder.received(n)
            part = part[n:]
            while decoder.next():
                found.append(
                    (
                        decoder.qos,
                        decoder.dup,
                        decoder.packet_id,
                        bytes(decoder.buffer[decoder.topic_start : decoder.topic_end]),
                        bytes(decoder.buffer[decoder.payload_start : decoder.payload_end]),
                    )
                )
    return found


@pytest.mark.req("P1", "W6")
@pytest.mark.parametrize("level", [4, 5])
@pytest.mark.parametrize("chunk", [1, 13, 1000, 131_072, 1 << 20])
def test_oversize_and_short_messages_decode_the_same_in_any_chunks(level, chunk):
    size = 1 << 18
    properties = (b"\x26\0\1a\0\x04" + b"v" * 4) * 1258 if level == 5 else b""
    texts = [b"a" * size, b"short", b"b" * (size + 1), b"c" * (3 * size), b"", b"d" * (size * 2)]
    stream, expected = b"", []
    for number, text in enumerate(texts, 1):
        topic = b"t" * (65_535 if number == 4 else number)
        is_long = len(text) > 100
        qos = number % 3 if is_long else 1
        dup = is_long and qos == 1
        stream += publish(text, qos, number, dup, level, properties if number == 3 else b"", topic)
        text = json.dumps(description(text)).encode() if is_long else text
        expected.append((qos, dup, number if qos else 0, topic, text))
    if chunk == 1:  # the size of reads does not matter inside a payload, and a million steps take long
        stream, expected = stream[: p.packet_end(stream)], expected[:1]
    decoder = OversizeDecoder(size, level)
    assert packets_of(decoder, stream, chunk) == expected


@pytest.mark.req("W13")
@pytest.mark.parametrize(
    "packet",
    [
        b"\x36\xff\xff\xff\x7f",
        b"\x38\xff\xff\xff\x7f",
        b"\x32\xff\xff\xff\xff\x01",
        b"\x32\xff\xff\xff\x7f\0\1t\0\1\xff\xff\xff\xff",
        b"\x32\x80\x80\x40\0\1t\0\1\x80\x80\x80\x01",
        b"\x32\x80\x80\xc0\0\0\1t\0\1\0",
    ],
)
def test_malformed_oversize_message_is_refused(packet):
    with pytest.raises(MalformedPacket):
        packets_of(OversizeDecoder(1 << 18, 5), packet + b"x" * 10, 1)


@in_a_loop
async def test_damaged_last_segment_is_refused_only_without_the_logs(tmp_path):
    async with collecting(tmp_path) as (broker, _):
        await broker.accept()
        await broker.exchange(publish(b"0", 1, 1), ack(PUBACK, 1))
    (segment,) = find_segments(tmp_path)
    Path(segment.path).write_bytes(b"PAR1")
    settings = Settings("127.0.0.1", 1, "c", tmp_path)
    Collector(settings, Health("c", quiet=True)).store.close()
    shutil.rmtree(tmp_path / "c.logs")
    with pytest.raises(LandingDamaged, match=r"c-000000001.parquet: .* restore it"):
        Collector(settings, Health("c", quiet=True))
    Path(segment.path).unlink()
    Path(segment.path).symlink_to(segment.path)  # stands for one that this user may not read
    with pytest.raises(LandingStalled, match=r"can't read .*c-000000001.parquet: Too many levels of symbolic links"):
        Collector(settings, Health("c", quiet=True))


@pytest.mark.req("P3")
@in_a_loop
async def test_row_numbers_go_on_without_logs_also_behind_an_empty_segment(tmp_path):
    """They are the numbers of messages without an identity: no two may have the same."""
    for _ in range(2):
        async with collecting(tmp_path) as (broker, _):
            await broker.accept()
            await broker.exchange(publish(b"0", 1, 1), ack(PUBACK, 1))
        parquet.write_segment(tmp_path, "c", len(find_segments(tmp_path)) + 1, parquet.SCHEMA.empty_table())
        shutil.rmtree(tmp_path / "c.logs")
    assert [(row["segment"], row["row"]) for row in sealed(tmp_path)] == [(1, 1), (3, 2)]


@in_a_loop
async def test_drain_ends_only_when_all_that_arrived_was_read(tmp_path):
    """A process that was stopped for a minute finds the messages of that minute in its socket."""
    async with collecting(tmp_path, drain_s=50.0, commit_count=1) as (broker, collector):
        await broker.accept()
        await broker.exchange(publish(b"0", 1, 1), ack(PUBACK, 1))
        collector._last_message -= 60
        for packet_id in (2, 3):  # each longer than one read
            broker.send(publish(bytes(READ_BYTES), 1, packet_id))
        assert [await broker.packet() for _ in range(2)] == [ack(PUBACK, 2), ack(PUBACK, 3)]
    assert len(sealed(tmp_path)) == 3


@pytest.mark.req("P1")
@in_a_loop
async def test_long_message_within_the_limit_lands_whole(tmp_path):
    payload = os.urandom(700_000)
    async with collecting(tmp_path) as (broker, _):
        await broker.accept()
        for qos, answer in ((1, PUBACK), (2, PUBREC)):
            await broker.exchange(publish(payload, qos, 5), ack(answer, 5))
        await broker.exchange(ack(PUBREL, 5), ack(PUBCOMP, 5))
    assert payloads(tmp_path) == [payload, payload]


def test_metrics_are_served_and_a_busy_port_is_named():
    health = Health("c", quiet=True)
    health.messages.inc(3)
    port = brokers.free_port()
    serve_metrics(health.registry, port, "127.0.0.1")
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S).read().decode()
    assert 'flashmqtt_collector_messages_total{collector="c"} 3.0' in text
    with pytest.raises(Failure, match="--metrics-port"):
        serve_metrics(health.registry, port, "127.0.0.1")


@pytest.mark.req("P1", "W12")
@in_a_loop
async def test_level_5_sends_expiry_and_receive_maximum_and_stores_properties(tmp_path):
    async with collecting(tmp_path, level=5, in_flight=100, session_expiry_s=0x01020304) as (broker, _):
        connect = await broker.accept(connack=b"\x20\x03\x00\x00\x00", suback=b"\x00\x02")
        assert connect[8] == 5
        assert b"\x11\x01\x02\x03\x04" in connect  # session expiry
        assert b"\x21\x00\x64" in connect  # receive maximum
        for qos, answer in ((1, PUBACK), (2, PUBREC)):
            await broker.exchange(publish(b"text", qos, 5, level=5, properties=b"\x01\x01"), ack(answer, 5))
        await broker.exchange(ack(PUBREL, 5), ack(PUBCOMP, 5))
    assert [(row["qos"], row["properties"], row["payload"]) for row in sealed(tmp_path)] == [
        (1, b"\x01\x01", b"text"),
        (2, b"\x01\x01", b"text"),
    ]


@pytest.mark.req("P1", "W12")
@in_a_loop
async def test_level_5_session_taken_over_ends_with_a_named_error(tmp_path):
    with pytest.raises(CollectorError, match="each collector needs its own"):
        async with collecting(tmp_path, level=5) as (broker, collector):
            await broker.accept(connack=b"\x20\x03\x00\x00\x00", suback=b"\x00\x02")
            broker.send(b"\xe0\x01\x8e")
            await asyncio.wait({collector.task}, timeout=PATIENCE_S)


@pytest.mark.req("P1", "W13")
@in_a_loop
async def test_level_5_disconnect_carries_the_reason_code(tmp_path):
    async with collecting(tmp_path, level=5) as (broker, _):
        await broker.accept(connack=b"\x20\x03\x00\x00\x00", suback=b"\x00\x02")
        broker.send(b"\x36\x00")  # QoS 3
        assert await broker.packet() == b"\xe0\x01\x81"


# --- as a process, against mosquitto ---------------------------------------------------------------------------


class Process:
    """A collector process and its output."""

    def __init__(self, directory, port, *more, name="collector", **popen):
        self.log = directory / f"{name}.txt"
        self._from = self.log.stat().st_size if self.log.exists() else 0
        command = [sys.executable, "-m", "tools.collector", "--port", str(port), "--client-id", name]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--landing", str(directory / "landing"), *more], cwd=ROOT, stderr=log, **popen
            )

    @property
    def said(self):
        return self.log.read_bytes()[self._from :].decode()

    def says(self, text, seconds=PATIENCE_S):
        until(lambda: text in self.said or self.process.poll() is not None, lambda: self.said, seconds)
        assert text in self.said, self.said

    def end(self, seconds=PATIENCE_S):
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(seconds)


def wait_for_rows(landing, count):
    """Wait until this number of rows is durable, in segments or in logs."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        rows = {segment[:2]: pq.read_metadata(segment.path).num_rows for segment in find_segments(landing)}
        for log in landing.glob("*.logs/*.log"):
            with contextlib.suppress(FileNotFoundError):
                rows.setdefault((log.parent.stem, int(log.stem)), read_log(log).rows)
        if sum(rows.values()) >= count:
            return
        assert time.monotonic() < deadline, rows
        time.sleep(0.1)


def send(port, packets, answers):
    """Publish prepared packets over a plain socket, and wait for this number of bytes of answers."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as sock:
        sock.sendall(bytes.fromhex("100c00044d5154540402003c0000"))
        assert sock.recv(4) == CONNACK
        sock.sendall(packets)
        while answers > 0:
            answers -= len(sock.recv(min(answers, 65536)))


@needs_mosquitto
@pytest.mark.req("P1", "Q3", "Q4")
def test_random_kills_under_load_lose_nothing_and_duplicate_no_message(tmp_path):
    outcome = asyncio.run(kill_collector(tmp_path, kills=3, seed=int(time.time())))
    assert outcome.missing == {1: 0, 2: 0}
    assert outcome.repeated == {1: 0, 2: 0}
    assert outcome.published[2] > 100
    assert outcome.holds


@pytest.mark.parametrize(
    ("found", "holds"),
    [
        ({0: {"1:0": 1}, 1: {"1:0": 1}, 2: {"2:0": 1}}, True),
        ({0: {}, 1: {}, 2: {"2:0": 1}}, False),
        ({0: {"1:0": 1}, 1: {}, 2: {"2:0": 1}}, False),  # only a copy
        ({0: {}, 1: {"1:0": 2}, 2: {"2:0": 1}}, False),
        ({0: {}, 1: {"1:0": 1}, 2: {"2:0": 2}}, False),
        ({0: {"2:0": 1}, 1: {"1:0": 1}, 2: {"2:0": 1}}, False),  # QoS 2 has no copies
        ({0: {}, 1: {"1:0": 1, "2:0": 1}, 2: {"2:0": 1}}, False),
        ({0: {}, 1: {"1:0": 1}, 2: {"2:0": 1, "2:9": 1}}, False),
    ],
)
def test_planted_loss_repetition_or_strange_message_is_found(found, holds):
    assert (
        Outcome({1: {"1:0"}, 2: {"2:0"}}, Landing({qos: Counter(some) for qos, some in found.items()})).holds == holds
    )


@needs_mosquitto
@pytest.mark.req("P1")
def test_full_disk_stops_acknowledgements_until_space_is_free(tmp_path):
    limit = 60_000

    def little_room():
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    with brokers.Broker(tmp_path / "broker", kind="mosquitto", extra="max_inflight_messages 100") as broker:
        collector = Process(tmp_path, broker.port, preexec_fn=little_room)
        collector.says("subscribed")
        payloads_sent = [b"%d" % n + b"x" * 80 for n in range(1500)]
        send(broker.port, b"".join(publish(text, 1, n + 1) for n, text in enumerate(payloads_sent)), 1500 * 4)
        collector.says("nothing more is acknowledged")
        (log,) = (tmp_path / "landing" / "collector.logs").glob("*.log")
        size = log.stat().st_size
        time.sleep(0.5)
        assert log.stat().st_size == size <= limit
        resource.prlimit(collector.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        collector.says("continuing")
        wait_for_rows(tmp_path / "landing", 1500)
        assert collector.end() == 0, collector.said
    assert payloads(tmp_path / "landing") == payloads_sent


@needs_mosquitto
@pytest.mark.req("P1")
def test_full_disk_at_the_end_is_recovered_by_the_next_start(tmp_path):
    def little_room():
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))

    with brokers.Broker(tmp_path / "broker", kind="mosquitto", extra="max_inflight_messages 100") as broker:
        collector = Process(tmp_path, broker.port, preexec_fn=little_room)
        collector.says("subscribed")
        payloads_sent = [b"%d" % n + b"x" * 80 for n in range(500)]
        send(broker.port, b"".join(publish(text, 1, n + 1) for n, text in enumerate(payloads_sent)), 500 * 4)
        collector.says("nothing more is acknowledged")
        assert collector.end() == 1
        assert DiskFull.__name__ in collector.said
        for _ in range(5):  # on a busy machine the broker may be quiet for a second before its last message
            collector = Process(tmp_path, broker.port, "--drain", "1")
            assert collector.process.wait(PATIENCE_S) == 0, collector.said
            if set(payloads(tmp_path / "landing")) == set(payloads_sent):
                break
    assert set(payloads(tmp_path / "landing")) == set(payloads_sent)


@needs_mosquitto
@pytest.mark.req("P1")
@pytest.mark.skipif(not shutil.which("openssl"), reason="openssl is not installed")
def test_tls_carries_messages_and_refuses_an_unknown_certificate(tmp_path):
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    port = brokers.free_port()
    extra = f"listener {port} 127.0.0.1\ncertfile {certificate}\nkeyfile {key}\n"
    with brokers.Broker(tmp_path / "broker", kind="mosquitto", extra=extra) as broker:
        address = ("--host", "localhost", "--port", str(port))
        stranger = Process(tmp_path, port, *address, "--tls", name="stranger")
        stranger.says("CERTIFICATE_VERIFY_FAILED")
        assert stranger.end() == 0
        collector = Process(tmp_path, port, *address, "--tls", "--ca-file", str(certificate))
        collector.says("subscribed")
        sent = [b"%d" % n + b"x" * 50 for n in range(3000)]
        send(broker.port, b"".join(publish(text, 1, n + 1) for n, text in enumerate(sent)), 3000 * 4)
        wait_for_rows(tmp_path / "landing", 3000)
        assert collector.end() == 0, collector.said
    assert payloads(tmp_path / "landing") == sent


@needs_mosquitto
@pytest.mark.req("P1")
def test_missing_broker_is_reported_and_retried(tmp_path):
    port = brokers.free_port()
    collector = Process(tmp_path, port)
    collector.says(f"the broker at 127.0.0.1:{port}: ConnectionRefusedError")
    for rows, ready in ((1, "subscribed"), (2, "the broker knows the session")):
        with brokers.Broker(tmp_path / "broker", port, kind="mosquitto") as broker:
            collector.says(ready)
            send(broker.port, publish(b"%d" % rows, 1, 1), 4)
            wait_for_rows(tmp_path / "landing", rows)
        collector.says("trying again")
        collector._from = collector.log.stat().st_size
    assert collector.end() == 0
    assert "everything received is sealed" in collector.said
    found = sealed(tmp_path / "landing")  # the broker may have ended before it saw the PUBACK
    assert [row["payload"] for row in found if row["qos"] or not row["dup"]] == [b"1", b"2"]


@needs_mosquitto
@pytest.mark.req("P1", "W12")
def test_shared_subscription_with_a_killed_collector_loses_nothing(tmp_path):
    """Shared subscription, level 5: messages that the killed one had not acknowledged wait for it; none is lost or duplicated."""
    shared = ("--level", "5", "--topic", "$share/landing/flashmqtt/#", "--segment-seconds", "3")
    with brokers.Broker(tmp_path / "broker", kind="mosquitto") as broker:
        collectors = [Process(tmp_path, broker.port, *shared, name=name) for name in ("one", "two", "three")]
        for collector in collectors:
            collector.says("subscribed")
        sent = [b"%d" % n for n in range(1800)]
        for first in range(0, 1800, 300):
            many = sent[first : first + 300]
            packets = b"".join(publish(text, 2, n + 1) + ack(PUBREL, n + 1) for n, text in enumerate(many))
            send(broker.port, packets, 300 * 8)
            if first == 600:
                collectors[1].process.kill()
                collectors[1].process.wait()
            if first == 1200:
                collectors[1] = Process(tmp_path, broker.port, *shared, name="two")
        collectors[1].says("connected")
        wait_for_rows(tmp_path / "landing", 1800)
        for collector in collectors:
            assert collector.end() == 0, collector.said
    found = sealed(tmp_path / "landing")
    assert sorted(row["payload"] for row in found) == sorted(sent)
    assert {row["collector"] for row in found} == {"one", "two", "three"}


@needs_mosquitto
@pytest.mark.req("P1")
def test_second_collector_is_refused_until_the_first_is_killed(tmp_path):
    with brokers.Broker(tmp_path / "broker", kind="mosquitto") as broker:
        first = Process(tmp_path, broker.port, name="first")
        first.says("subscribed")
        second = Process(tmp_path, broker.port, name="second")
        second.says("is in use by another collector")
        assert second.end() != 0
        first.process.kill()
        first.process.wait()
        second = Process(tmp_path, broker.port, name="second")
        second.says("subscribed")
        assert second.end() == 0, second.said


@pytest.mark.req("P1")
def test_collector_in_a_locked_folder_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(collector_module, "LOCK_WAIT_S", 0.1)
    settings = Settings("127.0.0.1", 1, "c", tmp_path)
    first = Collector(settings, Health("c", quiet=True))
    other = dataclasses.replace(settings, client_id="d")
    for wanted in (settings, other):
        with pytest.raises(LandingInUse, match="in use by another collector; stop that one"):
            Collector(wanted, Health("c", quiet=True))
    first.store.close()
    Collector(other, Health("c", quiet=True)).store.close()


@needs_mosquitto
@pytest.mark.req("P1")
def test_metrics_of_a_running_collector(tmp_path):
    port = brokers.free_port()
    with brokers.Broker(tmp_path / "broker", kind="mosquitto") as broker:
        collector = Process(tmp_path, broker.port, "--metrics-port", str(port))
        collector.says("subscribed")
        send(broker.port, publish(b"x", 1, 1) + publish(b"y", 1, 2), 8)
        wait_for_rows(tmp_path / "landing", 2)
        figures = {
            'flashmqtt_collector_messages_total{collector="collector"} 2.0',
            'flashmqtt_collector_connected{collector="collector"} 1.0',
            'flashmqtt_collector_unsealed_rows{collector="collector"} 2.0',
        }

        def metrics():
            return urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S).read().decode()

        until(lambda: figures <= set(metrics().splitlines()), metrics)  # they are updated every second
        assert collector.end() == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--client-id", "no/name"], "SegmentError: collector name"),
        (["--topic", "a/#/b"], "InvalidTopic: not a topic filter: b'a/#/b'"),
        (["--topic", b"\xff"], "InvalidTopic: not a topic filter: b'\\xff': not UTF-8"),
        (["--metrics-port", "1", "--metrics-address", "a..b"], "can't serve metrics at a..b:1: "),
        (["--tls", "--ca-file", "/nowhere"], "--ca-file /nowhere"),
        (["--password-file", "/nowhere"], "--password-file /nowhere"),
        (["--password-file", "/dev/null"], "--password-file needs --user"),
        (["--landing", "/dev/null/below"], "can't write /dev/null/below"),
        (["--client-id", "x" * 201], "SegmentError: collector name"),
        (["--password-file", sys.executable], f"--password-file {sys.executable}: 'utf-8' codec can't decode"),
    ],
)
def test_wrong_command_line_is_named(tmp_path, arguments, text):
    collector = Process(tmp_path, 1, *arguments)
    assert collector.process.wait(PATIENCE_S) == 1
    assert text in collector.said
    assert "Traceback" not in collector.said
