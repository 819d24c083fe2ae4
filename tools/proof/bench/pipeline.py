"""The pipeline's complete run, compared with DuckDB doing the same work on the same generated fleets.

A fleet has 1,000 devices, 1% copies and one reading per message; its sizes are 0.5 and 8 million readings. The area also
measures the cost of one more day after 1, 10 and 100 days. Every job runs in its own process (`_pipeline_jobs`), which counts
its CPU time and that of all its children, and prints each measurement at once. All processes are ended, also after a timeout.
"""

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from tools import children
from tools.bootstrap import ROOT
from tools.pipeline.tables.commits import Output
from tools.proof import fleet
from tools.proof.bench.figures import Bench

SIZES = (500_000, 8_000_000)
HISTORIES = ("1x100", "10x100", "100x100")  # days, messages of each device a day
START_RUNS = 3
BOOTS = (20_000, 120_000)  # of two fleets; the difference of their CPU times gives the cost of a changed boot


def job(bench: Bench, kind: str, out: Path, landings: Sequence[object]) -> list[dict[str, Any]]:
    """Run a job; return its measurements."""
    found: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryFile("w+") as complaints,
        started("tools.proof.bench._pipeline_jobs", kind, str(out), *map(str, landings), errors=complaints) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(b"{"):
                found.append(one := json.loads(line))
                cost = f"{one['wall_s']:.1f} s, {one['cpu_s']:.1f} CPU s, {one['peak_bytes'] / 1e6:.0f} MB"
                bench.progress(f"pipeline: {one['job']}, {one['rows']:,} readings: {cost}")
        if process.wait():
            complaints.seek(0)
            raise RuntimeError(f"{kind} ended with {process.returncode}: {complaints.read()[-2000:]}")
    return found


@contextmanager
def started(module: str, *arguments: str, errors: IO[str] | int) -> Iterator[subprocess.Popen[bytes]]:
    """Run one of our modules in its own process session; kill it and all its children when the block ends."""
    command = [sys.executable, "-m", module, *arguments]
    process = children.popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors)
    try:
        yield process
    finally:
        children.kill(process)  # a JVM exits by itself when its stdin is closed, but not at once
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def start_s(bench: Bench, landing: Path, out: Path) -> float:
    """Return the seconds from a process's start to its first committed batch."""
    output = Output(str(out))
    arguments = ("--landing", str(landing), "--out", str(out), "--no-report")
    begun = time.perf_counter()
    with started("tools.pipeline.run", *arguments, errors=subprocess.STDOUT) as process:
        while not output.commits():
            if process.poll() is not None:
                raise RuntimeError((process.stdout.read() if process.stdout else b"").decode()[-2000:])
            time.sleep(0.02)
        took = time.perf_counter() - begun
        process.wait()
    bench.progress(f"pipeline: the first batch was committed {took:.1f} s after the start")
    return took


def run(bench: Bench) -> None:
    """Measure."""
    with tempfile.TemporaryDirectory(prefix="flashmqtt-bench-", ignore_cleanup_errors=True) as scratch:
        directory = Path(scratch)
        bench.progress("pipeline: the archive of the JVM's classes, if it does not exist yet")
        with started("tools.pipeline.archive", errors=subprocess.STDOUT) as process:
            printed, _ = process.communicate()
            if process.returncode:
                raise RuntimeError(printed.decode()[-2000:])
        landings = []
        for size in SIZES:
            bench.progress(f"pipeline: generating {size:,} readings")
            landings.append(directory / f"landing-{size}")
            landed = fleet.write(fleet.Fleet(), landings[-1], size)
        landing_bytes = sum(path.stat().st_size for path in landings[-1].iterdir()) / landed
        measured: dict[str, list[dict[str, Any]]] = {}
        for kind, what in (("whole", landings), ("duckdb", landings[-1:]), ("spark", landings)):
            bench.progress(f"pipeline: {kind}")
            measured[kind] = job(bench, kind, directory / "out", what)
        for landing in landings:
            shutil.rmtree(landing)
        bench.progress("pipeline: boots")
        landings = []
        for count in BOOTS:  # two boots of two messages for each device
            landings.append(directory / f"boots-{count}")
            fleet.write(fleet.Fleet(count // 2, boot_every=2, interval_ms=60_000), landings[-1], 2 * count)
        few, many = job(bench, "whole", directory / "out", landings)
        bench.figure("pipeline.audit_us_per_changed_boot", 1e6 * (many["cpu_s"] - few["cpu_s"]) / (BOOTS[1] - BOOTS[0]))
        for landing in landings:
            shutil.rmtree(landing)
        bench.progress("pipeline: one more day")
        measured["days"] = job(bench, "days", directory / "out", HISTORIES)
        small = directory / "small"
        fleet.write(fleet.Fleet(devices=10), small, 1000)
        bench.progress("pipeline: from the start to the first batch")
        starts = [start_s(bench, small, directory / f"start-{n}") for n in range(START_RUNS)]
    record(bench, measured, starts)
    bench.figure("pipeline.landing_bytes_per_message", landing_bytes)


def record(bench: Bench, measured: dict[str, list[dict[str, Any]]], starts: list[float]) -> None:
    """Check that the jobs agree, and record the figures."""
    whole, warm = measured["whole"][-1], [one for one in measured["spark"] if one["job"] == "warm"]
    streams = [one for one in measured["spark"] if one["job"] == "stream"]
    peer = measured["duckdb"][-1]
    for one in (*measured["whole"], peer, *measured["days"]):
        if one["missing"]:
            raise RuntimeError(f"{one['job']} finds {one['missing']} missing in a fleet without losses")
    if (peer["rows"], peer["copies"]) != (whole["rows"], whole["copies"]):
        raise RuntimeError("the jobs do not agree on what they read")
    bench.figure("pipeline.whole_8m.cpu_ratio_duckdb", whole["cpu_s"] / peer["cpu_s"])
    bench.figure("pipeline.batch_8m.rows_per_s", warm[-1]["rows"] / warm[-1]["wall_s"])
    bench.figure("pipeline.stream.rows_per_s", streams[0]["rows"] / streams[0]["wall_s"])
    bench.figure("pipeline.peak_bytes", max(one["peak_bytes"] for kind in ("whole", "spark") for one in measured[kind]))
    bench.figure("pipeline.task_bytes", max(one["task_bytes"] for one in measured["spark"]))
    bench.figure("pipeline.cpu_us_per_message", 1e6 * max(one["cpu_s"] / one["rows"] for one in (warm[-1], *streams)))
    bench.figure("pipeline.reading_bytes", warm[-1]["reading_bytes"])
    bench.figure("pipeline.interval_bytes", warm[-1]["interval_bytes"])
    bench.figure("pipeline.start_s", statistics.median(starts))
    days: dict[int, list[float]] = {}
    for one in measured["days"]:
        days.setdefault(one["history"], []).append(one["cpu_s"])
    least = {history: min(each) for history, each in days.items()}  # noise only adds time
    bench.figure("pipeline.one_more_day.ratio_100_to_1", least[max(least)] / least[min(least)])
