"""The session on MicroPython with mosquitto, compared with umqtt.simple: rates over a delayed link, CPU, heap, writes.

Both figures of a pair are from the same run, the peer's measured right after ours. Rates over a delayed link depend on the number
of round trips that a client waits for, and hardly on the machine. The board's side is `on_board/session.py`. umqtt.simple is the
only peer here: mqtt_as has no package on PyPI, and pip can't install those of umqtt.simple2 and robust2.
"""

import ast
import asyncio
import contextlib
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from tools.bootstrap import ROOT
from tools.children import Child
from tools.proof import packets as p
from tools.proof.bench.codec import PATH as LIBRARIES
from tools.proof.bench.figures import Bench
from tools.proof.broker import Broker
from tools.proof.device import END
from tools.proof.faults.peer import Peer
from tools.proof.faults.runner import settings
from tools.proof.program import MICROPYTHON, Program, holds
from tools.proof.proxy import Proxy

DEVICE = Path(__file__).parent / "on_board" / "session.py"
PATH = f".frozen:{LIBRARIES}:{ROOT}"
DEADLINE_S = 120
KEEP_ALIVE_S = 4
# A board's heap, in 64-bit words. In a heap of megabytes umqtt.simple's garbage is not collected during a measurement, and each
# new page costs a page fault: that doubled its CPU time.
HEAP = "heapsize=512K"
HEAP_WITH_CHIP = "heapsize=8M"  # the simulated flash is in the heap, too
REPEATS = 5
BROKER = "max_queued_messages 0\nmax_inflight_messages 0\nset_tcp_nodelay true\npersistence true\n"


async def measured(
    name: str, port: int, what: str, count: int, qos: int, window: int = 16, ready: Coroutine | None = None
) -> dict[str, float]:
    """Return the figures of a MicroPython process that measures one thing; `ready` is awaited when it prints its first line."""
    heap = HEAP_WITH_CHIP if name == "flashmqtt" else HEAP
    words = list(map(str, (MICROPYTHON, "-X", heap, DEVICE, name, port, what, count, qos, window)))
    printed: list[str] = []
    child = Child(words, ROOT, {"MICROPYPATH": PATH}, take=printed.append)
    try:
        async with asyncio.timeout(DEADLINE_S):
            await child.start()
            if ready:
                await holds(lambda: bool(printed), DEADLINE_S)
                await ready
            await child.ended()
    finally:
        await child.kill()
    if child.status:
        raise RuntimeError(f"{DEVICE.name} failed: {''.join(printed)[-800:]}")
    return ast.literal_eval(printed[-2])  # before "", the end


async def publish_many(port: int, count: int, qos: int, at_once: int = 50) -> None:
    """Publish to the board, as fast as the broker takes it."""
    peer = await Peer(port, "bench-peer").start()
    for first in range(0, count, at_once):
        await asyncio.gather(
            *(peer.send("bench/in", b"x" * 64, qos) for _ in range(first, min(first + at_once, count)))
        )
        await asyncio.sleep(0.002)  # at QoS 0 a broker drops what a slow receiver does not take
    for _ in range(5):
        await peer.send("bench/in", END.encode(), qos)
        await asyncio.sleep(0.05)
    await peer.stop()


def run(bench: Bench) -> None:
    """Measure."""
    with tempfile.TemporaryDirectory(prefix="flashmqtt-bench-") as name:
        asyncio.run(_measure(bench, Path(name)))


async def _measure(bench: Bench, directory: Path) -> None:
    with Broker(directory / "broker", kind="mosquitto", extra=BROKER) as broker:
        await _throughput(bench, broker.port)
        await _cpu_and_heap(bench, broker.port)
        await _receive_rate(bench)
        await _silence(bench, directory / "silence", broker.port)
        await _burst(bench, directory / "burst", broker.port)
    await _resume(bench, directory)


async def _throughput(bench: Bench, port: int) -> None:
    for delay_ms in (20, 50):
        link = await Proxy(port, delay_s=delay_ms / 2000).start()
        rates = {}
        for name, qos, count in (("flashmqtt", 1, 1000), ("flashmqtt", 2, 600), ("umqtt.simple", 1, 60)):
            bench.progress(f"session: {name}, QoS {qos}, {delay_ms} ms")
            rates[name, qos] = (await measured(name, link.port, "send", count, qos))["per_s"]
        await link.stop()
        for qos in (1, 2):
            bench.figure(f"session.qos{qos}_{delay_ms}ms.per_s", rates["flashmqtt", qos])
        ratio = rates["flashmqtt", 1] / rates["umqtt.simple", 1]
        bench.figure(f"session.qos1_{delay_ms}ms.ratio_umqtt_simple", ratio)


async def _cpu_and_heap(bench: Bench, port: int) -> None:
    ours, simple = "flashmqtt-ram", "umqtt.simple"
    for qos in (0, 1):
        # Long runs: a short burst of QoS 0 would end in the socket's buffer, and the clock of CPU time ticks in milliseconds.
        # But umqtt.simple waits 43 ms for each acknowledgement here (Nagle's algorithm against delayed ACKs).
        count = 4000
        counts = {ours: count * (1 if qos else 10), simple: 200 if qos else count * 10}
        bench.progress(f"session: CPU and heap, QoS {qos}")
        # In turn, and the median of five: how many messages arrive with one wake-up, and its cost, change by the minute.
        took: dict[tuple[str, str], list[float]] = defaultdict(list)
        for _ in range(REPEATS):
            for name in counts:
                took["publish", name].append((await measured(name, port, "send", counts[name], qos))["cpu_us"])
                received = await measured(name, port, "take", count, qos, ready=publish_many(port, count, qos))
                took["receive", name].append(received["cpu_us"])
        for what in ("publish", "receive"):
            ratio = statistics.median(took[what, ours]) / statistics.median(took[what, simple])
            bench.figure(f"session.{what}_qos{qos}.cpu_ratio_umqtt_simple", ratio)
        # With the journal, which a board has: a store in RAM has to allocate.
        for name, end in (("flashmqtt", ""), (simple, "_umqtt_simple")):
            heap = await measured(name, port, "heap", 100, qos, 8)
            bench.figure(f"session.publish_qos{qos}.heap_bytes{end}", heap["heap_bytes"])
            bench.figure(f"session.publish_qos{qos}.writes{end}", heap["writes"])


async def _flood(messages: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve one client: answer CONNECT and SUBSCRIBE, and then send messages as fast as they are taken."""
    codec = p.Reader()
    with contextlib.suppress(ConnectionResetError), contextlib.closing(writer):
        while chunk := await reader.read(1000):
            for packet in codec.feed(chunk):
                if packet.kind == p.CONNECT:
                    writer.write(p.connack())
                elif packet.kind == p.SUBSCRIBE:
                    writer.write(p.suback(packet.packet_id, [0]))
                    await asyncio.sleep(0.2)  # the client has done its one-time work by then
                    writer.write(messages)


async def _receive_rate(bench: Bench) -> None:
    """Measure how many QoS 0 messages a second a client receives from a broker that never waits; in turn, the best of three."""
    count = 30_000
    best: dict[str, float] = defaultdict(float)
    messages = p.publish("bench/in", b"x" * 64) * count + p.publish("bench/in", b"end") * 5
    async with await asyncio.start_server(partial(_flood, messages), "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        for _ in range(3):
            for name in ("flashmqtt-ram", "umqtt.simple", "flashmqtt-aio"):
                bench.progress(f"session: receive at full speed, {name}")
                best[name] = max(best[name], (await measured(name, port, "take", count, 0))["per_s"])
    bench.figure("session.receive_qos0.per_s", best["flashmqtt-ram"])
    bench.figure("session.receive_qos0.per_s_umqtt_simple", best["umqtt.simple"])
    bench.figure("session.receive_qos0_asyncio.per_s", best["flashmqtt-aio"])


@contextlib.asynccontextmanager
async def _subscribed(directory: Path, port: int, **more: Any) -> AsyncIterator[tuple[Program, list[str]]]:
    """Yield a board's program that is connected and subscribed, and the kinds of the lines that it prints."""
    directory.mkdir()
    program, printed = Program("mpy", directory, HEAP.partition("=")[2]), list[str]()
    program.note = lambda kind, words: printed.append(END if END in words else kind)
    journal = directory / "journal"
    try:
        await program.start(settings("bench", port, 4, journal, response_s=30, backoff=(100, 500), window=16, **more))
        for step in (("subscribe", "bench/in", 2), ("connect",), ("settle",)):
            await program.do(*step)
        yield program, printed
    finally:
        await program.off()


async def _silence(bench: Bench, directory: Path, port: int) -> None:
    bench.progress("session: a link that falls silent")
    link = await Proxy(port).start()
    async with _subscribed(directory, link.port, keep_alive_s=KEEP_ALIVE_S) as (_, printed):
        link.swallow()
        begin = time.monotonic()
        await holds(lambda: "ended" in printed, DEADLINE_S)
        bench.figure("session.silent_link_keepalives", (time.monotonic() - begin) / KEEP_ALIVE_S)
    await link.stop()


async def _burst(bench: Bench, directory: Path, port: int) -> None:
    """Measure how many of 100 QoS 2 messages, sent at once, arrive in one connection."""
    bench.progress("session: a burst of inbound QoS 2 messages")
    async with _subscribed(directory, port, keep_alive_s=60, sectors=256) as (_, printed):
        await publish_many(port, 100, 2, at_once=100)
        await holds(lambda: "ended" in printed or printed.count("got") >= 100, 20)
        received = printed[: printed.index("ended")] if "ended" in printed else printed
        bench.figure("session.inbound_qos2_burst", received.count("got"))


async def _resume(bench: Bench, directory: Path) -> None:
    """Measure how long after the broker's return a message is delivered that was published meanwhile."""
    bench.progress("session: the broker's return")
    with Broker(directory / "broker", kind="mosquitto") as broker:
        async with _subscribed(directory / "board", broker.port) as (program, printed):
            broker.kill()
            await holds(lambda: "ended" in printed, DEADLINE_S)
            await program.do("publish", "bench/out", [1], (1,), 64, False)
            await asyncio.sleep(2)
            broker.start()
            begin = time.monotonic()
            await holds(lambda: "delivered" in printed, DEADLINE_S)
            bench.figure("session.resume_s", time.monotonic() - begin)
