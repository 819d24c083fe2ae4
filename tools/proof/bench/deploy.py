"""The time to the first reading: `make deploy` to a virtual board whose first configuration named the wrong broker."""

import contextlib
import io
import os
import secrets
import statistics
import tempfile
import time
from pathlib import Path
from unittest import mock

from tools.deploy import __main__ as deploy
from tools.proof.bench.figures import Bench
from tools.proof.broker import Broker, free_port
from tools.virtual_board.device import Device

RUNS = 3
WRONG_S = "20"  # timeout of the deployment with the wrong broker


def first_reading_s(directory: Path) -> float:
    """Deploy a wrong configuration, then the right one; return the seconds that the second deployment took.

    The second deployment ends when a reading has been delivered.
    """
    password = secrets.token_hex(8)
    config = directory / "config"
    config.mkdir(parents=True)
    with (
        mock.patch.dict(os.environ, FLASHMQTT_WIFI_PASSWORD=password),
        Broker(directory / "broker", kind="mosquitto") as broker,
        Device(directory / "board", wifi=f"home:{password}") as device,
    ):
        words = ["deploy", "--board", "pico_w", "--port", device.path, "--config", str(config), "--timeout"]
        for port, patience_s, expected in ((free_port(), WRONG_S, 1), (broker.port, "120", 0)):
            (config / "config.toml").write_text(
                f'[wifi]\nssid = "home"\n[broker]\nhost = "127.0.0.1"\nport = {port}\n[journal]\nkib = 64\n'
            )
            printed = io.StringIO()
            begin = time.monotonic()
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                status = deploy.main([*words, patience_s])
            seconds = time.monotonic() - begin
            if status != expected:
                raise RuntimeError(f"deployment ended with {status}: {printed.getvalue()[-1000:]}")
    return seconds


def run(bench: Bench) -> None:
    """Measure."""
    took = []
    for number in range(RUNS):
        with tempfile.TemporaryDirectory(prefix="flashmqtt-bench-") as scratch:
            took.append(first_reading_s(Path(scratch)))
        bench.progress(f"deploy: {number + 1}: {took[-1]:.1f} s")
    bench.figure("first_reading_s", statistics.median(took))
