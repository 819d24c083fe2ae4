"""The jobs that the pipeline's bench compares, each in a process of its own: `python -m tools.bench._pipeline_jobs JOB ...`.

All of them do the same work on the same landing: parse the packs, one row a reading, drop the copies by device, boot and
sequence number, write the readings as Parquet (zstd), and audit: per device and boot delivered, copies, missing, delay
percentiles. Each prints one JSON line per measurement.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

PACK = (
    '[{"bn":"VARCHAR","bt":"DOUBLE","bu":"VARCHAR","bv":"DOUBLE","boot":"BIGINT","seq":"BIGINT","up":"DOUBLE",'
    '"n":"VARCHAR","u":"VARCHAR","v":"DOUBLE","vs":"VARCHAR","t":"DOUBLE"}]'
)


class Meter:
    """Wall time, CPU time and memory of this process and all below it."""

    def __init__(self) -> None:
        self.root = psutil.Process()
        self.peak_bytes = self.task_bytes = 0
        self._end = threading.Event()
        self._sampler = threading.Thread(target=self._sample, daemon=True)
        self._sampler.start()
        self.reset()

    def _tree(self) -> list[psutil.Process]:
        return [self.root, *self.root.children(recursive=True)]

    def _cpu_s(self) -> float:
        total = 0.0
        for process in self._tree():
            try:
                times = process.cpu_times()
            except psutil.Error:
                continue
            total += times.user + times.system
            if process != self.root:  # the children of ours that ended are in their parents' counts
                total += times.children_user + times.children_system
        return total

    def _sample(self) -> None:
        while not self._end.wait(2.0):
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
        """Print what the measurement gave, and begin the next."""
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
    """Return how many bytes of some Parquet files a row takes."""
    import pyarrow.parquet as pq

    rows = rows or sum(pq.read_metadata(out / name).num_rows for name in names)
    return sum((out / name).stat().st_size for name in names) / rows


def spark(landings: list[str], out: Path) -> None:
    """Our pipeline: a cold batch, then each landing warm, in one session, as `python -m tools.pipeline.run` makes it."""
    from tools.pipeline import session, stream, verdict

    meter = Meter()
    made = session.make("local[*]", out.parent / "spark.log")
    for n, landing in enumerate([landings[0], *landings]):
        fresh(out)
        meter.reset()
        commit = stream.once(made, landing, str(out))
        audited = verdict.audited(made, str(out)).collect()
        missing = sum(row.missing for row in audited)
        copies = sum(row.resent + row.replayed for row in audited)
        meter.told(
            "cold" if n == 0 else "warm",
            commit.rows["readings"] + commit.rows["events"],
            missing=missing,
            copies=copies,
            reading_bytes=bytes_a_row(out, commit.files["readings"], commit.rows["readings"]),
            interval_bytes=bytes_a_row(out, [files["intervals"] for files in commit.state.values()]),
        )
    for each in (4, 1):
        fresh(out)
        meter.reset()
        stream.start(made, landings[-1], str(out), f"{out}/checkpoint", segments_per_batch=each).awaitTermination()
        output = stream.Output(str(out))
        meter.told("stream", output.rows("readings") + output.rows("events"), batches=len(output.commits()))
    made.stop()


def duckdb(landings: list[str], out: Path) -> None:
    """The same in DuckDB's SQL, as fast as we could make it."""
    import duckdb as engine

    for landing in landings:
        fresh(out)
        meter = Meter()
        connection = engine.connect()
        connection.execute(
            f"SET threads=2; SET preserve_insertion_order=false; SET memory_limit='4GB'; SET temp_directory='{out}/temporary'"
        )
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
        audit = connection.execute(
            """SELECT device, boot, count(*), sum(copies - 1), max(seq) - min(seq) + 1 - count(*),
            approx_quantile(epoch_us(arrival) / 1e6 - bt, [0.5, 0.9, 0.99]) FROM kept GROUP BY device, boot"""
        ).fetchall()
        rows = sum(row[2] for row in audit)
        meter.told("duckdb", rows, missing=int(sum(row[4] for row in audit)), copies=int(sum(row[3] for row in audit)))
        connection.close()


def loop(landings: list[str], out: Path) -> None:
    """The same in a plain Python loop with orjson."""
    import orjson
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = [
        "device",
        "boot",
        "seq",
        "name",
        "unit",
        "value",
        "text",
        "up",
        "bt",
        "arrival",
        "collector",
        "segment",
        "row",
    ]
    for landing in landings:
        fresh(out)
        meter = Meter()
        seen: dict[tuple[str, int], set[int]] = {}
        copies: dict[tuple[str, int], int] = {}
        delays: dict[tuple[str, int], list[float]] = {}
        writer = None
        for path in sorted(Path(landing).glob("*.parquet")):
            table = pq.read_table(
                path, columns=["collector", "segment", "row", "arrival", "payload"], use_threads=False
            )
            table = table.set_column(3, "arrival", table["arrival"].cast(pa.int64()))
            found: list[tuple[Any, ...]] = []
            for batch in table.to_batches(65_536):
                for collector, segment, row, arrival, payload in zip(
                    *(c.to_pylist() for c in batch.columns), strict=True
                ):
                    for record in orjson.loads(payload):
                        device, boot, seq = record["bn"][:-1], record["boot"], record["seq"]
                        known = seen.setdefault((device, boot), set())
                        if seq in known:
                            copies[device, boot] = copies.get((device, boot), 0) + 1
                            continue
                        known.add(seq)
                        get = record.get
                        delays.setdefault((device, boot), []).append(arrival / 1e6 - get("bt", 0.0))
                        told = (get("n"), get("u"), get("v"), get("vs"), get("up"), get("bt"))
                        found.append((device, boot, seq, *told, arrival, collector, segment, row))
            columns = [pa.array(column) for column in zip(*found, strict=True)]
            written = pa.table(columns, names)
            if writer is None:
                writer = pq.ParquetWriter(out / "readings.parquet", written.schema, compression="zstd")
            writer.write_table(written.cast(writer.schema))
        if writer is not None:
            writer.close()
        missing = sum(max(known) - min(known) + 1 - len(known) for known in seen.values())
        for values in delays.values():
            statistics.quantiles(values, n=100) if len(values) > 1 else values
        meter.told("loop", sum(map(len, seen.values())), missing=missing, copies=sum(copies.values()))


if __name__ == "__main__":
    {"spark": spark, "duckdb": duckdb, "loop": loop}[sys.argv[1]](sys.argv[3:], Path(sys.argv[2]))
