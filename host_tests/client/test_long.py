"""Messages longer than a client's buffer, from a real broker: queued over a restart, retained, live; at every QoS and level."""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from flashmqtt.client import Client
from tools.bootstrap import ROOT
from tools.proof.broker import Broker, find_mosquitto

MICROPYTHON = Path(sys.executable).parent / "micropython"
LENGTHS = (700, 5000, 40_000)

pytestmark = pytest.mark.skipif(find_mosquitto() is None, reason="needs mosquitto")


def run(interpreter: str, directory: Path, *arguments: object) -> list[str]:
    """Run `long_case.py` in a directory of its own; return what it printed."""
    # From source, the program has about 1,260 names. With the next one MicroPython allocates a table of 1,280 names: 14 KB in one
    # piece, and the compiler's garbage has fragmented the heap.
    python = [sys.executable] if interpreter == "cpython" else [str(MICROPYTHON), "-X", "heapsize=1M"]
    path = ".frozen:" + str(ROOT / "firmware")
    ran = subprocess.run(
        [*python, str(Path(__file__).with_name("long_case.py")), *map(str, arguments)],
        check=False,
        cwd=directory,
        env={**os.environ, "PYTHONPATH": path, "MICROPYPATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout.splitlines()


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with Broker(tmp_path_factory.mktemp("long"), kind="mosquitto") as running:
        yield running


def payload(n: int) -> bytes:
    return bytes((i * 31 + (i >> 8)) & 255 for i in range(n))


@pytest.mark.req("R2", "Q4")
@pytest.mark.parametrize("interpreter", ["cpython", "micropython"])
@pytest.mark.parametrize("level", [3, 4])
@pytest.mark.parametrize("chunks", ["pass", "chunks"])
def test_long_queued_and_retained_messages_do_not_block_later_ones(interpreter, level, chunks, broker, tmp_path):
    assert run(interpreter, tmp_path, broker.port, level, chunks, 0)[0] == "connects 1"
    sender = Client("127.0.0.1", broker.port, "sender", buffer_bytes=2048)
    sender.connect()
    expected = []
    for qos in (1, 2):
        for n in LENGTHS:
            topic = f"long/{qos}/{n}"
            sender.publish(topic, payload(n), qos=qos)
            expected.append((topic, n))
    sender.publish("long/retained", payload(3000), qos=1, retain=True)
    sender.publish("long/short", b"behind", qos=1)
    assert sender.drain(30)
    lines = run(interpreter, tmp_path, broker.port, level, chunks, 9 if level == 3 else 8)
    assert lines[0] == "connects 1", lines
    assert lines[-1] == "held 0", lines
    got = lines[1:-1]
    for topic, n in expected:
        # The journal can hold 40,000 bytes: one message may use a quarter of its 64 sectors.
        whole = f"whole {topic} {n} {zlib.crc32(payload(n))}"
        assert got.count(whole if chunks == "chunks" else f"oversize {topic} {n}") == 1, got
    assert f"whole long/short 6 {zlib.crc32(b'behind')}" in got
    kind = (
        f"whole long/retained 3000 {zlib.crc32(payload(3000))}" if chunks == "chunks" else "oversize long/retained 3000"
    )
    assert kind in got
    assert run(interpreter, tmp_path, broker.port, level, chunks, 0)[0] == "connects 1"
    sender.publish("long/retained", b"", qos=1, retain=True)
    sender.drain(10)
    sender.disconnect()


@pytest.mark.req("R2")
@pytest.mark.parametrize("interpreter", ["cpython", "micropython"])
def test_level_5_long_messages_arrive_only_with_chunks(interpreter, broker, tmp_path):
    sender = Client("127.0.0.1", broker.port, "sender", buffer_bytes=2048)
    for chunks in ("pass", "chunks"):
        directory = tmp_path / chunks
        directory.mkdir()
        run(interpreter, directory, broker.port, 5, chunks, 0)
        sender.connect()
        for qos in (1, 2):
            sender.publish(f"long/{qos}", payload(5000), qos=qos)
        sender.publish("long/short", b"behind", qos=1)
        assert sender.drain(30)
        sender.disconnect()
        lines = run(interpreter, directory, broker.port, 5, chunks, 3 if chunks == "chunks" else 1)
        whole = [f"whole long/{qos} 5000 {zlib.crc32(payload(5000))}" for qos in (1, 2)] if chunks == "chunks" else []
        assert set(lines[1:-1]) == {*whole, f"whole long/short 6 {zlib.crc32(b'behind')}"}, lines
        assert lines[0] == "connects 1" and lines[-1] == "held 0"
