"""The jobs that the pipeline's bench compares, each in its own process: `python -m tools.proof.bench._pipeline_jobs JOB OUT ...`.

Two programs do the complete run: parse the packs (one row per reading), drop the copies by device, boot and sequence
number, write the readings as Parquet (zstd), read them back and check that each is there once, audit (per device and
boot: published, delivered, copies, missing ranges, percentiles and octaves of the delay), and draw the same report, with at
most 256 points for each device's plot. All of these steps are measured, and the loading of the engine. Each job prints one
JSON line per measurement.
"""

import itertools
import json
import re
import shutil
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from string import Template
from typing import Any

import psutil  # type: ignore[import-untyped]

SAMPLE_S = 0.25
MEMORY_EVERY = 4  # samples
DAY_DEVICES = 1000


class Meter:
    """Wall time, CPU time and memory of this process and all its descendants.

    The CPU time of each process is sampled: Spark's Python workers are killed at the end and no process waits for them, so
    no parent's CPU time includes theirs. CPU time that a process uses after its last sample is not counted.
    """

    def __init__(self) -> None:
        self.root = psutil.Process()
        self.peak_bytes = self.task_bytes = 0
        self._used: dict[tuple[int, float], float] = {}
        self._watching = threading.Lock()
        self._sampler = threading.Thread(target=self._sample, daemon=True)
        self._sampler.start()
        self.reset()

    def _tree(self) -> list[psutil.Process]:
        return [self.root, *self.root.children(recursive=True)]

    def _cpu_s(self) -> float:
        with self._watching:
            for process in self._tree():
                with suppress(psutil.Error):
                    times = process.cpu_times()
                    self._used[process.pid, process.create_time()] = times.user + times.system
            return sum(self._used.values())

    def _sample(self) -> None:
        for n in itertools.count():
            time.sleep(SAMPLE_S)
            self._cpu_s()
            if n % MEMORY_EVERY == 0:
                self._look_at_memory()

    def _look_at_memory(self) -> None:
        total = 0
        for process in self._tree():
            try:
                total += (own := process.memory_full_info().pss)
                if process != self.root and process.name().startswith("python"):
                    self.task_bytes = max(self.task_bytes, own)
            except (psutil.Error, AttributeError):
                continue
        self.peak_bytes = max(self.peak_bytes, total)

    def reset(self) -> None:
        """Begin a measurement."""
        self.cpu, self.wall = self._cpu_s(), time.perf_counter()

    def report(self, name: str, rows: int, **more: Any) -> None:
        """Print the measurement, and begin the next one."""
        wall, cpu = time.perf_counter() - self.wall, self._cpu_s() - self.cpu
        found = {"job": name, "rows": rows, "wall_s": wall, "cpu_s": cpu, **more}
        print(json.dumps(found | {"peak_bytes": self.peak_bytes, "task_bytes": self.task_bytes}), flush=True)
        self.reset()


def fresh(out: Path) -> Path:
    """Return an empty directory."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    return out


def bytes_a_row(out: Path, names: list[str], rows: int = 0) -> float:
    """Return the average bytes per row of some Parquet files."""
    import pyarrow.parquet as pq

    rows = rows or sum(pq.read_metadata(out / name).num_rows for name in names)
    return sum((out / name).stat().st_size for name in names) / rows


def whole(landings: list[str], out: Path) -> None:
    """Our complete run, `python -m tools.pipeline.run`, with all processes that it starts."""
    from tools.pipeline.tables.commits import Output

    for landing in landings:
        fresh(out)
        meter = Meter()
        command = [sys.executable, "-m", "tools.pipeline.run", "--landing", landing, "--out", str(out)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode:
            raise RuntimeError(f"the pipeline ended with {ran.returncode}: {ran.stdout[-1000:]}{ran.stderr[-1000:]}")
        totals = Output(str(out)).latest().summary["totals"]  # type: ignore[union-attr]
        copies = totals["resent"] + totals["replayed"]
        meter.report("whole", totals["delivered"], missing=totals["missing"], copies=copies)


def spark(landings: list[str], out: Path) -> None:
    """Batches and a stream in one Spark session; only the first batch is cold."""
    from tools.landing import segments
    from tools.pipeline import session, stream
    from tools.pipeline.tables import source
    from tools.pipeline.tables.commits import Output
    from tools.pipeline.tables.delta import Delta
    from tools.pipeline.tables.storage import Storage

    meter = Meter()
    made = session.make("local[*]", out.parent / "spark.log")
    for n, landing in enumerate([landings[0], *landings]):  # the second one is warm
        fresh(out)
        meter.reset()
        output, directory = Output(str(out)), Storage(landing)
        output.prepare(segments.BUCKETS)
        end = {collector: max(numbers) for collector, numbers in source.latest(directory).items()}
        commit = stream.run_batch(made, end, directory, output, segments.BUCKETS, "bench", 0)
        Delta(output).follow()
        meter.report(
            "warm" if n else "cold",
            commit.rows["readings"] + commit.rows["events"],
            reading_bytes=bytes_a_row(out, commit.files["readings"], commit.rows["readings"]),
            interval_bytes=bytes_a_row(out, [files["intervals"] for files in commit.state.values()]),
        )
    fresh(out)
    meter.reset()
    stream.Job(made, landings[-1], str(out), f"{out}/checkpoint", segments_per_batch=4).start().awaitTermination()
    commits = Output(str(out)).commits()
    rows = sum(commit.rows.get(table, 0) for commit in commits for table in ("readings", "events"))
    meter.report("stream", rows, batches=len(commits))
    made.stop()


def days(histories: list[str], out: Path) -> None:
    """Measure one more day (batch, verdict and report) after each history: three times each, in a warm Spark session.

    A history is a number of days, `x`, and the messages per device and day.
    """
    from tools.pipeline import report, session, stream, verdict
    from tools.proof import fleet

    meter = Meter()
    made = session.make("local[*]", out.parent / "spark.log")
    for spec in histories:
        fresh(out)
        landing, tables = out / "landing", str(out / "tables")
        history, messages = map(int, spec.split("x"))
        board = fleet.Fleet(DAY_DEVICES, interval_ms=86_400_000 // messages, boot_every=messages)  # a boot each day
        size = DAY_DEVICES * messages

        def take(landing: Path = landing, tables: str = tables) -> None:
            stream.Job(
                made, str(landing), tables, f"{tables}/checkpoint", segments_per_batch=64
            ).start().awaitTermination()
            output = stream.Output(tables)
            report.write(output, verdict.judge(output))

        fleet.write(board, landing, size * history, per_segment=size)
        take()
        for more in range(3):
            fleet.write(board, landing, size, per_segment=size, begin=messages * (history + more))
            meter.reset()
            take()
            totals = stream.Output(tables).latest().summary["totals"]  # type: ignore[union-attr]
            meter.report("day", size, history=history, missing=totals["missing"], boots=totals["boots"])
    made.stop()


def duckdb(landings: list[str], out: Path) -> None:
    """The complete run in DuckDB's SQL: see duckdb.sql."""
    for landing in landings:
        fresh(out)
        meter = Meter()
        import duckdb as engine

        from tools.pipeline import report

        connection = engine.connect()
        connection.execute(
            f"SET threads=2; SET preserve_insertion_order=false; SET memory_limit='4GB'; SET temp_directory='{out}/temporary'"
        )
        text = Template(Path(__file__).with_name("duckdb.sql").read_text()).substitute(landing=landing, out=out)
        _, *named = re.split(r"^-- (\w+)\n", text, flags=re.MULTILINE)
        statements = dict(zip(named[::2], named[1::2], strict=True))

        def rows(name: str, connection: Any = connection, statements: Any = statements) -> list[dict[str, Any]]:
            found = connection.execute(statements[name])
            names = [one[0] for one in found.description]
            return [dict(zip(names, row, strict=True)) for row in found.fetchall()]

        for name in ("kept", "readings", "checked", "ranges", "audit", "audit_file", "ranges_file"):
            connection.execute(statements[name])
        (totals,), (check,) = rows("totals"), rows("read_back")
        if check["held"] != totals["delivered"] or check["twice"]:
            raise RuntimeError("DuckDB's own check fails")
        blank = dict.fromkeys(("replayed", "unexplained", "quarantine", "silent", "readings"), 0)
        facts = {
            "totals": blank | totals | {"readings": totals["delivered"]},
            "verdict": {"line": "made beside", "status": 0},
            "devices": rows("devices"),
            "over_time": {"step_s": 60, **rows("over_time")[0]},
            "delays": rows("octaves")[0],
            "causes": {},
            "missing": rows("missing"),
            "own": [],
            "quarantine": {},
            "audit": rows("boots"),
        }
        # A point of a plot covers 2 ** level ms, so that a plot has at most 256 points.
        level = (rows("span")[0]["ms"] // 255).bit_length()
        points: dict[str, list[tuple[Any, ...]]] = {}
        for device, *point in connection.execute(statements["points"], [level]).fetchall():
            points.setdefault(device, []).append(tuple(point))
        (out / "report").mkdir()
        for n in range(0, len(points), 24):
            part = dict(itertools.islice(points.items(), n, n + 24))
            (out / "report" / f"{n:05d}.js").write_text(json.dumps(part, separators=(",", ":")))
        (out / "report.html").write_text(report.page(facts))
        connection.close()
        meter.report("duckdb", totals["delivered"], missing=totals["missing"], copies=totals["resent"])


JOBS = {"whole": whole, "spark": spark, "days": days, "duckdb": duckdb}

if __name__ == "__main__":
    JOBS[sys.argv[1]](sys.argv[3:], Path(sys.argv[2]))
