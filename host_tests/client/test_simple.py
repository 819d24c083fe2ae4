"""Unchanged programs for umqtt.simple print the same with the original from PyPI and with flashmqtt."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import paho.mqtt.client as paho
import pytest

from tools.bootstrap import ROOT
from tools.proof.broker import Broker, find_mosquitto

PROGRAMS = Path(__file__).parent / "programs"
MICROPYTHON = Path(sys.executable).parent / "micropython"
PATIENCE_S = 120  # deadline for expected events, on a busy machine
SITE = next(Path(path) for path in sys.path if path.endswith("site-packages"))

pytestmark = [
    pytest.mark.skipif(find_mosquitto() is None, reason="needs mosquitto"),
    pytest.mark.skipif(not MICROPYTHON.exists(), reason="needs MicroPython"),
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with Broker(tmp_path_factory.mktemp("broker"), kind="mosquitto") as running:
        yield running


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """Return MICROPYPATH for the original umqtt.simple and for flashmqtt."""
    real = tmp_path_factory.mktemp("real") / "umqtt"
    real.mkdir()
    (real / "simple.py").write_bytes((SITE / "umqtt" / "simple.py").read_bytes())
    ours = tmp_path_factory.mktemp("ours") / "umqtt"
    ours.mkdir()
    (ours / "simple.py").write_text("from flashmqtt.simple import MQTTClient, MQTTException\n")
    return {"umqtt.simple": str(real.parent), "flashmqtt.simple": f"{ours.parent}:{ROOT / 'firmware'}"}


def run(path: str, program: Path, *arguments: object) -> str:
    ran = subprocess.run(
        [str(MICROPYTHON), "-X", "heapsize=512K", str(program), *map(str, arguments)],
        check=False,
        env={**os.environ, "MICROPYPATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def clear_session(port: int, client_id: str) -> None:
    """Clear a client's session at the broker."""
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=client_id, clean_session=True)
    client.connect("127.0.0.1", port)
    client.loop_start()
    while not client.is_connected():
        time.sleep(0.01)
    client.disconnect()
    client.loop_stop()


@pytest.mark.req("Q1", "Q7", "Q8")
@pytest.mark.parametrize("program", sorted(PROGRAMS.glob("*.py")), ids=lambda path: path.stem)
def test_umqtt_simple_program_prints_the_same_with_flashmqtt(program, broker, paths):
    printed = {}
    for name, path in paths.items():
        clear_session(broker.port, program.stem)  # left by the other library, because both resume sessions
        printed[name] = run(path, program, broker.port, program.stem)
    assert printed["flashmqtt.simple"] == printed["umqtt.simple"]
    assert printed["umqtt.simple"].strip()


@pytest.mark.req("S5")
def test_messages_published_during_an_outage_arrive_after_it(tmp_path, paths):
    program = tmp_path / "outage.py"
    program.write_text(
        "import sys, time\n"
        "from umqtt.simple import MQTTClient\n"
        "c = MQTTClient('outage', '127.0.0.1', int(sys.argv[1]))\n"
        "c.connect(clean_session=False)\n"
        "print('connected')\n"
        "sys.stdin.readline()\n"
        "for i in range(5):\n"
        "    try:\n"
        "        c.publish('outage', str(i), qos=1)\n"
        "    except OSError:\n"
        "        pass\n"
        "print('published', c._client.pending)\n"
        "while c._client.pending:\n"
        "    try:\n"
        "        c.check_msg()\n"
        "    except OSError:\n"
        "        pass\n"
        "    time.sleep_ms(20)\n"
        "print('delivered')\n"
        "c.disconnect()\n"
    )
    broker = Broker(tmp_path / "broker", kind="mosquitto").start()
    board = subprocess.Popen(
        [str(MICROPYTHON), "-X", "heapsize=512K", str(program), str(broker.port)],
        env={**os.environ, "MICROPYPATH": paths["flashmqtt.simple"]},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert board.stdout.readline() == "connected\n"
        broker.kill()
        board.stdin.write("\n")
        board.stdin.flush()
        assert board.stdout.readline() == "published 5\n"
        with broker:
            assert board.stdout.readline() == "delivered\n"
            assert board.wait(PATIENCE_S) == 0
    finally:
        board.kill()
        board.wait()
        board.stdin.close()
        board.stdout.close()
