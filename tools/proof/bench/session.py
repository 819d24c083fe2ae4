"""The session on MicroPython against mosquitto: messages a second over a delayed link, CPU, heap, writes; beside umqtt.simple.

Every figure of a pair is taken in the same run, the peer's right after ours; rates over a delay say how many round trips a client
waits for, and hardly depend on the machine. The board's side is `on_board/session.py`. umqtt.simple is the only peer here:
mqtt_as has no package on PyPI, and those of umqtt.simple2 and robust2 have nothing that pip could install.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import os
import socket
import statistics
import subprocess
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, BinaryIO

from tools import children
from tools.bootstrap import ROOT
from tools.broker import Broker, find_mosquitto, free_port
from tools.proof.bench.codec import module_path
from tools.proof.program import MICROPYTHON
from tools.proof.proxy import Proxy

DEVICE = Path(__file__).parent / "on_board" / "session.py"
DEADLINE_S = 120
REPEATS = 5


class Delayed:
    """A proxy in a thread of its own."""

    def __init__(self, target: int, delay_s: float):
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.proxy = Proxy(target, delay_s=delay_s)
        asyncio.run_coroutine_threadsafe(self.proxy.start(), self._loop).result(5)

    def call(self, function) -> None:
        """Call this in the proxy's thread."""
        self._loop.call_soon_threadsafe(function)

    def __enter__(self) -> Delayed:
        return self

    def __exit__(self, *exception) -> None:
        asyncio.run_coroutine_threadsafe(self.proxy.stop(), self._loop).result(5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()


class Board:
    """A MicroPython process that measures one thing."""

    def __init__(self, path: str, name: str, port: int, what: str, count: int, qos: int, window: int = 16):
        self._process: Any = children.popen(  # it ends with this process, also after a timeout
            [str(MICROPYTHON), "-X", "heapsize=8M", str(DEVICE), *map(str, (name, port, what, count, qos, window))],
            env={**os.environ, "MICROPYPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def line(self) -> str:
        """Return the next line it prints."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def result(self) -> dict:
        """Return what it measured."""
        try:
            printed, _ = self._process.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            raise
        if self._process.returncode:
            raise RuntimeError(f"{DEVICE.name} failed: {printed[-800:]}")
        return ast.literal_eval(printed.strip().splitlines()[-1])


def publish_many(port: int, count: int, qos: int, at_once: int = 50) -> None:
    """Publish to the board, as fast as the broker takes it."""
    import paho.mqtt.client as paho

    client = paho.Client(paho.CallbackAPIVersion.VERSION2)
    client.max_inflight_messages_set(100)
    client.connect("127.0.0.1", port)
    client.loop_start()
    infos = []
    for i in range(1, count + 1):
        infos.append(client.publish("bench/in", b"x" * 64, qos))
        if i % at_once == 0:
            infos[-1].wait_for_publish(30)
            time.sleep(0.002)  # at QoS 0 a broker drops what a slow receiver does not take
    for info in infos:
        info.wait_for_publish(30)
    for _ in range(5):
        client.publish("bench/in", b"end", qos).wait_for_publish(30)
        time.sleep(0.05)
    client.disconnect()
    client.loop_stop()


def run(bench) -> None:
    """Measure."""
    if find_mosquitto() is None or not MICROPYTHON.exists():
        bench.progress("session: not measured: it needs mosquitto and MicroPython")
        return
    with tempfile.TemporaryDirectory(prefix="flashmqtt-bench-") as name:
        directory = Path(name)
        path = f".frozen:{module_path()}:{ROOT}"
        broker = Broker(
            directory / "broker",
            kind="mosquitto",
            extra="max_queued_messages 0\nmax_inflight_messages 0\nset_tcp_nodelay true\npersistence true\n",
        )
        with broker:
            _throughput(bench, broker.port, path)
            _cpu_and_heap(bench, broker.port, path)
            _receive_rate(bench, path)
            _silence(bench, broker.port, path)
            _burst(bench, broker.port, path)
        _resume(bench, directory / "resume", path)


def _throughput(bench, port: int, path: str) -> None:
    for delay_ms in (20, 50):
        with Delayed(port, delay_ms / 2000) as link:
            rates = {}
            for name, qos, count in (("flashmqtt", 1, 1000), ("flashmqtt", 2, 600), ("umqtt.simple", 1, 60)):
                bench.progress(f"session: {name}, QoS {qos}, {delay_ms} ms")
                rates[name, qos] = Board(path, name, link.proxy.port, "send", count, qos).result()["per_s"]
        for qos in (1, 2):
            bench.figure(f"session.qos{qos}_{delay_ms}ms.per_s", rates["flashmqtt", qos])
        ratio = rates["flashmqtt", 1] / rates["umqtt.simple", 1]
        bench.figure(f"session.qos1_{delay_ms}ms.ratio_umqtt_simple", ratio)


def _cpu_and_heap(bench, port: int, path: str) -> None:
    ours, simple = "flashmqtt-ram", "umqtt.simple"
    for qos in (0, 1):
        # Long runs: a short burst of QoS 0 would end in the socket's buffer, and the clock of CPU time ticks in milliseconds.
        # But umqtt.simple waits 43 ms for each acknowledgement here (Nagle's algorithm against delayed ACKs).
        count = 4000
        counts = {ours: count * (1 if qos else 10), simple: 200 if qos else count * 10}
        bench.progress(f"session: CPU and heap, QoS {qos}")
        # In turn, and the middle one of five: how many messages a wake-up brings, and what that costs, changes by the minute.
        took: dict[tuple[str, str], list[float]] = defaultdict(list)
        for _ in range(REPEATS):
            for name in counts:
                took["publish", name].append(Board(path, name, port, "send", counts[name], qos).result()["cpu_us"])
                board = Board(path, name, port, "take", count, qos)
                while board.line() != "ready":
                    pass
                publish_many(port, count, qos)
                took["receive", name].append(board.result()["cpu_us"])
        for what in ("publish", "receive"):
            ratio = statistics.median(took[what, ours]) / statistics.median(took[what, simple])
            bench.figure(f"session.{what}_qos{qos}.cpu_ratio_umqtt_simple", ratio)
        # A RAM store allocates by its nature; the journal is what a board has.
        for name, end in (("flashmqtt", ""), (simple, "_umqtt_simple")):
            heap = Board(path, name, port, "heap", 100, qos, 8).result()
            bench.figure(f"session.publish_qos{qos}.heap_bytes{end}", heap["heap_bytes"])
            bench.figure(f"session.publish_qos{qos}.writes{end}", heap["writes"])


class Flood:
    """A server for one client: it answers CONNECT and SUBSCRIBE and then sends messages as fast as they are taken."""

    def __init__(self, count: int):
        self._messages = (b"\x30\x4a\x00\x08bench/in" + b"x" * 64) * count + b"\x30\x0d\x00\x08bench/inend" * 5
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @staticmethod
    def _body(packets: BinaryIO) -> bytes:
        """Return a short packet's bytes behind its header; umqtt.simple sends a packet in several writes."""
        return packets.read(packets.read(2)[1])

    def _serve(self) -> None:
        client, _ = self._listener.accept()
        with client, client.makefile("rb") as packets, contextlib.suppress(OSError):
            client.settimeout(DEADLINE_S)
            self._body(packets)
            client.sendall(b"\x20\x02\x00\x00")
            client.sendall(b"\x90\x03" + self._body(packets)[:2] + b"\x00")
            time.sleep(0.2)  # the client is done with what it does once
            client.sendall(self._messages)
            packets.read()  # until its end

    def __enter__(self) -> Flood:
        return self

    def __exit__(self, *exception) -> None:
        self._listener.close()
        self._thread.join(5)


def _receive_rate(bench, path: str) -> None:
    """How many QoS 0 messages a second a client takes that come as fast as it can, in turns, the best of three."""
    count = 30_000
    best: dict[str, float] = {}
    for _ in range(3):
        for name in ("flashmqtt-ram", "umqtt.simple", "flashmqtt-aio"):
            bench.progress(f"session: receive as fast as can be, {name}")
            with Flood(count) as flood:
                rate = Board(path, name, flood.port, "take", count, 0).result()["per_s"]
            best[name] = max(best.get(name, 0.0), rate)
    bench.figure("session.receive_qos0.per_s", best["flashmqtt-ram"])
    bench.figure("session.receive_qos0.per_s_umqtt_simple", best["umqtt.simple"])
    bench.figure("session.receive_qos0_asyncio.per_s", best["flashmqtt-aio"])


def _silence(bench, port: int, path: str) -> None:
    bench.progress("session: a link that falls silent")
    with Delayed(port, 0) as link:
        board = Board(path, "flashmqtt-ram", link.proxy.port, "silence", 0, 0)
        board.line()
        link.call(link.proxy.swallow)
        bench.figure("session.silent_link_keepalives", board.result()["keep_alives"])


def _burst(bench, port: int, path: str) -> None:
    """How many of 100 QoS 2 messages that come at once, more than the client has slots for, arrive in one connection."""
    bench.progress("session: a burst of inbound QoS 2 messages")
    board = Board(path, "flashmqtt", port, "burst", 100, 2)
    board.line()
    publish_many(port, 100, 2, at_once=100)
    bench.figure("session.inbound_qos2_burst", board.result()["received"])


def _resume(bench, directory: Path, path: str) -> None:
    bench.progress("session: the broker's return")
    port = free_port()
    broker = Broker(directory, port=port, kind="mosquitto").start()
    try:
        board = Board(path, "flashmqtt", port, "resume", 0, 1)
        board.line()
        broker.kill()
        board.line()
        time.sleep(2)
        broker.start()
        begin = time.monotonic()
        board.result()
        bench.figure("session.resume_s", time.monotonic() - begin)
    finally:
        broker.stop()
