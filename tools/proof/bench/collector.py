"""The collector compared with paho-mqtt: how fast each receives the same backlog of QoS 1 messages from mosquitto.

The collector makes every message durable before it sends the acknowledgement, and seals segments meanwhile; paho only
counts messages. They run in alternating rounds, each in its own process. Measured is the time from the CONNACK to the
last message (for the collector: to its sync).
"""

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tools.bootstrap import ROOT
from tools.proof.bench.figures import Bench
from tools.proof.broker import Broker
from tools.proof.faults.peer import Peer

BROKER = "max_inflight_messages 10000\nautosave_on_changes false\nautosave_interval 1800\nlog_type none"
DEVICES = 50
COUNT, ROUNDS = 200_000, 3
PAYLOAD = b'[{"bn":"device-%02d/","boot":3,"seq":%08d,"up":12.345,"n":"load1","v":0.42}]'
DEADLINE_S = 120


async def prepare(port: int, client_id: str, count: int) -> None:
    """Make a client's persistent session with a QoS 1 subscription; then publish so many readings of about 100 bytes."""
    receiver = await Peer(port, client_id, clean=False).start()
    await receiver.subscribe("flashmqtt/#", 1)
    await receiver.stop()
    peer = await Peer(port, "bench-peer").start()
    for first in range(0, count, 1000):
        batch = ((ordinal % DEVICES, ordinal) for ordinal in range(first, min(first + 1000, count)))
        await asyncio.gather(*(peer.send("flashmqtt/device-%02d/readings" % one[0], PAYLOAD % one, 1) for one in batch))
    await peer.stop()


def ours(port: int, count: int, landing: Path) -> float:
    """Collect `count` messages; return the seconds from CONNACK until the last was durable and acknowledged."""
    from tools.collector.collector import Collector, Settings
    from tools.collector.health import Health

    settings = Settings(
        "127.0.0.1", port, "ours", landing, topics=(("flashmqtt/#", 1),), segment_rows=50_000, segment_seconds=30.0
    )
    collector = Collector(settings, Health("ours", quiet=True))

    async def collect() -> float:
        running = asyncio.create_task(collector.run())
        while collector.rows_acknowledged < count and not running.done():
            await asyncio.sleep(0.005)
        if running.done():
            running.result()
        seconds = time.perf_counter() - collector.connected_at
        collector.stop()
        await running
        return seconds

    return asyncio.run(collect())


def paho(port: int, count: int) -> float:
    """Count `count` messages with paho-mqtt; return the seconds from CONNACK to the last."""
    from paho.mqtt import client
    from paho.mqtt.enums import CallbackAPIVersion

    times: list[float] = []
    seen = 0

    def on_connect(*_: object) -> None:
        times.append(time.perf_counter())

    def on_message(*_: object) -> None:
        nonlocal seen
        seen += 1
        if seen == count:
            times.append(time.perf_counter())
            mqtt.disconnect()

    mqtt = client.Client(CallbackAPIVersion.VERSION2, "paho", clean_session=False)
    mqtt.on_connect, mqtt.on_message = on_connect, on_message
    mqtt.connect("127.0.0.1", port)
    mqtt.loop_forever()
    return times[1] - times[0]


def measure(kind: str, port: int, count: int, directory: Path) -> float:
    """Run one side in a process of its own; return messages a second."""
    asyncio.run(prepare(port, kind, count))
    command = [sys.executable, "-m", "tools.proof.bench.collector", kind, str(port), str(count), str(directory)]
    answer = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, timeout=DEADLINE_S, check=True).stdout
    return count / float(answer)


def run(bench: Bench) -> None:
    """Measure, and report."""
    rates: dict[str, list[float]] = {"ours": [], "paho": []}
    with tempfile.TemporaryDirectory(prefix="bench-collector-") as name:
        for turn in range(ROUNDS):
            for kind, found in rates.items():
                bench.progress(f"collector: {kind}, round {turn + 1} of {ROUNDS}")
                # Each round has its own broker: in a shared one, the session of the other client would fill up meanwhile.
                with Broker(Path(name) / f"broker-{kind}-{turn}", kind="mosquitto", extra=BROKER) as broker:
                    found.append(measure(kind, broker.port, COUNT, Path(name) / f"landing-{turn}"))
    best = {kind: statistics.median(found) for kind, found in rates.items()}
    ratio = statistics.median(mine / theirs for mine, theirs in zip(rates["ours"], rates["paho"], strict=True))
    bench.figure("collector.qos1.per_s", best["ours"])
    bench.figure("collector.qos1.per_s_paho", best["paho"])
    bench.figure("collector.qos1.ratio_paho", ratio)


if __name__ == "__main__":  # one side of the measurement
    kind, port, count, landing = sys.argv[1:]
    print(ours(int(port), int(count), Path(landing)) if kind == "ours" else paho(int(port), int(count)))
