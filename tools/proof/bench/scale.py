"""The pipeline at its limits: a fleet of 300,000 devices, one device with ten million readings, one more day after a year.

Each is the whole run of `python -m tools.pipeline.run` in a process of its own (`_pipeline_jobs`).
"""

import shutil
import tempfile
from pathlib import Path
from typing import Any

from tools.proof import fleet
from tools.proof.bench.figures import Bench
from tools.proof.bench.pipeline import job

DEVICES = 300_000  # of the large fleet
READINGS = 10_000_000  # of the one device
MESSAGES = 4  # of each device of the large fleet, in two boots
YEAR = "365x10"  # days, messages of each device a day


def run(bench: Bench) -> None:
    """Measure."""
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="flashmqtt-scale-", ignore_cleanup_errors=True) as scratch:
        directory = Path(scratch)
        landing = directory / "fleet"
        board = fleet.Fleet(DEVICES, boot_every=MESSAGES // 2, interval_ms=60_000)
        fleet.write(board, landing, MESSAGES * DEVICES)
        (found["fleet"],) = job(bench, "whole", directory / "out", [landing])
        shutil.rmtree(landing)
        landing = directory / "one"
        fleet.write(fleet.Fleet(1, boot_every=1 << 30, interval_ms=100), landing, READINGS)
        (found["one_device"],) = job(bench, "whole", directory / "out", [landing])
        shutil.rmtree(landing)
        found["year"] = job(bench, "days", directory / "out", [YEAR])[-1]
    for name, one in found.items():
        if one["missing"]:
            raise RuntimeError(f"{one['missing']} missing in a fleet without losses")
        bench.figure(f"scale.{name}.peak_bytes", one["peak_bytes"])
    bench.figure("scale.one_device.task_bytes", found["one_device"]["task_bytes"])
