"""Queued and retained messages from a real broker, for clients that connect first and subscribe afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.bootstrap import ROOT
from tools.proof.broker import Broker, find_mosquitto

MICROPYTHON = Path(sys.executable).parent / "micropython"


@pytest.mark.skipif(find_mosquitto() is None, reason="needs mosquitto")
@pytest.mark.skipif(not MICROPYTHON.exists(), reason="needs MicroPython")
@pytest.mark.req("Q3", "Q4", "R4")
@pytest.mark.parametrize("interpreter", ["cpython", "micropython"])
def test_no_queued_message_is_lost_if_subscribe_follows_connect(tmp_path, interpreter):
    command = [sys.executable] if interpreter == "cpython" else [str(MICROPYTHON), "-X", "heapsize=2M"]
    paths = f"{ROOT / 'firmware'}:{ROOT}"
    with Broker(tmp_path, kind="mosquitto") as broker:
        ran = subprocess.run(
            [*command, str(Path(__file__).with_name("receive_case.py")), str(broker.port)],
            check=False,
            env={**os.environ, "MICROPYPATH": paths, "PYTHONPATH": paths},
            capture_output=True,
            text=True,
            timeout=600,
        )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    ways = [f"{interpreter}-{level}-{way}" for level in (4, 5) for way in ("blocking", "plain", "awaited", "loop")]
    assert ran.stdout.splitlines() == [f"{way} whole 1 1" for way in ways]
