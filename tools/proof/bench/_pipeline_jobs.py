"""The jobs that the pipeline's bench compares, each in its own process: `python -m tools.proof.bench._pipeline_jobs JOB OUT ...`.

Two programs do the complete run: parse the packs (one row per reading), drop the copies by device, boot and sequence
number, write the readings as Parquet (zstd), read them back and check that each is there once, audit (per device and
boot: published, delivered, copies, missing ranges, percentiles and octaves of the delay), and draw the same report, with at
most 256 points for each device's plot. All of these steps are measured, and the loading of the engine. Each job prints one
JSON line per measurement.
"""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

PACK = (
    '[{"bn":"VARCHAR","bt":"DOUBLE","bu":"VARCHAR","bv":"DOUBLE","boot":"BIGINT","seq":"BIGINT","up":"DOUBLE",'
    '"n":"VARCHAR","u":"VARCHAR","v":"DOUBLE","vs":"VARCHAR","t":"DOUBLE"}]'
)
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

    def told(self, name: str, rows: int, **more: Any) -> None:
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
    from tools.pipeline.commits import Output

    for landing in landings:
        fresh(out)
        meter = Meter()
        command = [sys.executable, "-m", "tools.pipeline.run", "--landing", landing, "--out", str(out)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode:
            raise RuntimeError(f"the pipeline ended with {ran.returncode}: {ran.stdout[-1000:]}{ran.stderr[-1000:]}")
        totals = Output(str(out)).latest().summary["totals"]  # type: ignore[union-attr]
        copies = totals["resent"] + totals["replayed"]
        meter.told("whole", totals["delivered"], missing=totals["missing"], copies=copies)


def spark(landings: list[str], out: Path) -> None:
    """Batches and a stream in one Spark session; only the first batch is cold."""
    from tools.landing import segments
    from tools.pipeline import session, source, stream
    from tools.pipeline.commits import Output
    from tools.pipeline.delta import Delta
    from tools.pipeline.storage import Storage

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
        meter.told(
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
    meter.told("stream", rows, batches=len(commits))
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
            meter.told("day", size, history=history, missing=totals["missing"], boots=totals["boots"])
    made.stop()


def duckdb(landings: list[str], out: Path) -> None:
    """The complete run in DuckDB's SQL, as fast as we could make it."""
    for landing in landings:
        fresh(out)
        meter = Meter()
        import duckdb as engine

        from tools.pipeline import report

        connection = engine.connect()
        connection.execute(
            f"SET threads=2; SET preserve_insertion_order=false; SET memory_limit='4GB'; SET temp_directory='{out}/temporary'"
        )

        def rows(sql: str, connection: Any = connection) -> list[dict[str, Any]]:
            found = connection.execute(sql)
            names = [one[0] for one in found.description]
            return [dict(zip(names, row, strict=True)) for row in found.fetchall()]

        connection.execute(
            f"""CREATE TABLE kept AS SELECT rtrim(pack[1].bn, '/') AS device, pack[1].boot AS boot, pack[1].seq AS seq,
            first(pack[1].n) AS name, first(pack[1].u) AS unit, first(pack[1].v) AS value, first(pack[1].vs) AS text,
            first(pack[1].up) AS up, first(pack[1].bt) AS bt, min(arrival) AS arrival, first(collector) AS collector,
            first(segment) AS segment, first("row") AS "row", count(*) AS copies
            FROM (SELECT collector, segment, "row", arrival, from_json(decode(payload), '{PACK}') AS pack
                  FROM read_parquet('{landing}/*.parquet'))
            GROUP BY device, boot, seq"""
        )
        connection.execute(f"COPY kept TO '{out}/readings.parquet' (FORMAT parquet, COMPRESSION zstd)")
        # Read back: each message must be there once.
        connection.execute(
            f"""CREATE TABLE checked AS SELECT device, boot, count(*) AS in_tables, sum(n - 1) AS twice FROM
            (SELECT device, boot, seq, count(*) AS n FROM read_parquet('{out}/readings.parquet') GROUP BY device, boot, seq)
            GROUP BY device, boot"""
        )
        connection.execute(
            """CREATE TABLE ranges AS SELECT device, boot, before + 1 AS lo, seq - 1 AS hi, seq - before - 1 AS messages FROM
            (SELECT device, boot, seq, lag(seq) OVER (PARTITION BY device ORDER BY seq) AS before FROM kept)
            WHERE seq > before + 1"""
        )
        connection.execute(
            """CREATE TABLE audit AS SELECT device, boot, min(seq) AS first_seq, max(seq) AS last_seq, count(*) AS delivered,
            max(seq) - min(seq) + 1 AS published, sum(copies - 1) AS resent,
            approx_quantile((epoch_us(arrival) / 1e6 - bt) * 1000, [0.5, 0.9, 0.99]) AS delay_ms,
            count_if(epoch_us(arrival) / 1e6 - bt > 60) AS late, min(arrival) AS first_arrival, max(arrival) AS last_arrival
            FROM kept GROUP BY device, boot"""
        )
        connection.execute(f"COPY audit TO '{out}/audit.parquet' (FORMAT parquet, COMPRESSION zstd)")
        connection.execute(f"COPY ranges TO '{out}/missing.parquet' (FORMAT parquet, COMPRESSION zstd)")
        totals = rows(
            """SELECT count(DISTINCT device) AS devices, count(*) AS boots, sum(published)::BIGINT AS published,
            sum(delivered)::BIGINT AS delivered, sum(resent)::BIGINT AS resent FROM audit"""
        )[0]
        check = rows("SELECT sum(in_tables)::BIGINT AS held, sum(twice)::BIGINT AS twice FROM checked")[0]
        totals |= {"missing": rows("SELECT coalesce(sum(messages), 0)::BIGINT AS n FROM ranges")[0]["n"]}
        if check["held"] != totals["delivered"] or check["twice"]:
            raise RuntimeError("DuckDB's own check fails")
        devices = rows(
            """SELECT device, 0 AS health, sum(published)::BIGINT AS published, sum(delivered)::BIGINT AS delivered,
            0 AS missing FROM audit GROUP BY device ORDER BY device LIMIT 2500"""
        )
        over_time = rows(
            """SELECT list(minute ORDER BY minute) AS "at", list(n ORDER BY minute) AS messages FROM
            (SELECT epoch_us(arrival) // 60000000 * 60 AS minute, count(*) AS n FROM kept GROUP BY 1)"""
        )[0]
        octaves = rows(
            """SELECT list(octave ORDER BY octave) AS octave, list(n ORDER BY octave) AS messages FROM
            (SELECT floor(log2(greatest((epoch_us(arrival) / 1e6 - bt) * 1000, 1)))::INT AS octave, count(*) AS n
             FROM kept GROUP BY 1)"""
        )[0]
        blank = dict.fromkeys(("replayed", "unexplained", "quarantine", "silent", "readings"), 0)
        facts = {
            "totals": blank | totals | {"readings": totals["delivered"]},
            "verdict": {"line": "made beside", "status": 0},
            "devices": devices,
            "over_time": {"step_s": 60, **over_time},
            "delays": octaves,
            "causes": {},
            "missing": rows("SELECT * FROM ranges ORDER BY messages DESC LIMIT 5000"),
            "own": [],
            "quarantine": {},
            "audit": rows("SELECT * EXCLUDE (delay_ms) FROM audit ORDER BY device, boot LIMIT 5000"),
        }
        # A point of a plot covers 2 ** level ms, so that a plot has at most 256 points.
        span = rows("SELECT max(epoch_ms(arrival)) - min(epoch_ms(arrival)) AS ms FROM kept")[0]["ms"]
        points: dict[str, list[tuple[Any, ...]]] = {}
        found = connection.execute(
            f"""SELECT device, name, any_value(unit), min(ms), max(ms), count(*), avg(value), min(value), max(value) FROM
            (SELECT device, name, unit, value, coalesce((bt * 1000)::BIGINT, epoch_ms(arrival)) AS ms FROM kept
             WHERE value IS NOT NULL) GROUP BY device, name, ms >> {(span // 255).bit_length()} ORDER BY 1, 2, 4"""
        )
        for device, *point in found.fetchall():
            points.setdefault(device, []).append(tuple(point))
        (out / "report").mkdir()
        for n in range(0, len(points), 24):
            told = dict(itertools.islice(points.items(), n, n + 24))
            (out / "report" / f"{n:05d}.js").write_text(json.dumps(told, separators=(",", ":")))
        (out / "report.html").write_text(report.page(facts))
        connection.close()
        meter.told("duckdb", totals["delivered"], missing=totals["missing"], copies=totals["resent"])


JOBS = {"whole": whole, "spark": spark, "days": days, "duckdb": duckdb}

if __name__ == "__main__":
    JOBS[sys.argv[1]](sys.argv[3:], Path(sys.argv[2]))
