"""Sealing: write a closed landing log as the segment of the same number. The caller then removes the log.

The rows are a function of the log alone, and an existing segment is never written again. So sealing may be interrupted at
any point and repeated: no row is written twice.

`python -m tools.landing.seal` is the collector's sealing process, which writes Parquet on another core: one process for each
log. It shares the collector's lock, so that no second collector starts while the sealing process of a killed one still works.
"""

import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tools.landing import parquet, publish
from tools.landing.log import HELD, Contents, LandingDamaged, read_log
from tools.landing.publish import DUP_BIT, QOS_BITS, RETAIN_BIT

DAMAGED = ".damaged"
ROWS_AT_ONCE = 32_768


class Columns:
    """The rows of a segment, collected as columns."""

    def __init__(self) -> None:
        self.heads = bytearray()  # first byte of each packet: QoS, DUP, RETAIN
        self.topics: list[bytes] = []
        self.payloads: list[bytes] = []
        self.properties: list[bytes | None] = []
        self.times: list[int] = []
        self.times_count: list[int] = []

    def add(self, data: bytes, start: int, end: int, level: int, time_us: int) -> None:
        """Decode the PUBLISH packets in `data[start:end]`; the session validated them before they landed."""
        before = len(self.heads)
        for head, topic, _, properties, payload in publish.decoded(data, start, end, level):
            self.heads.append(head)
            self.topics.append(topic)
            self.properties.append(properties)
            self.payloads.append(payload)
        self.times.append(time_us)
        self.times_count.append(len(self.heads) - before)

    def table(self, collector: str, number: int, rows_before: int) -> pa.Table:
        """Return the rows in landing order."""
        count = len(self.heads)
        heads = np.frombuffer(self.heads, dtype=np.uint8)
        times = np.repeat(np.array(self.times, dtype=np.int64), np.array(self.times_count, dtype=np.int64))
        origin = [pa.repeat(pa.scalar(collector, pa.string()), count), pa.repeat(pa.scalar(number, pa.int64()), count)]
        origin += [pa.array(np.arange(rows_before + 1, rows_before + count + 1, dtype=np.int64))]
        origin += [pa.array(times).cast(pa.timestamp("us", tz="UTC"))]
        head = [
            pa.array(self.topics, pa.binary()).cast(pa.string()),
            pa.array(((heads & QOS_BITS) >> 1).astype(np.int8)),
        ]
        head += [pa.array((heads & bit).astype(np.bool_)) for bit in (DUP_BIT, RETAIN_BIT)]
        texts = [pa.array(self.properties, pa.binary()), pa.array(self.payloads, pa.binary())]
        return pa.table([*origin, *head, *texts], schema=parquet.SCHEMA)


def rows_of(contents: Contents) -> pa.Table:
    """Return the rows of a log: landed and released messages, in the order in which they landed or were released."""
    header, data = contents.header, contents.data
    tables: list[pa.Table] = []
    columns = Columns()
    rows = 0
    for entry in contents.replayed()[0]:
        columns.add(data, entry.start, entry.end, entry.level, entry.time_us)
        if entry.kind == HELD:
            columns.heads[-1] &= ~DUP_BIT  # has another meaning in a held packet: see `flashmqtt.session.inbound`
        if len(columns.heads) >= ROWS_AT_ONCE:  # Python objects take ten times the memory of a table
            tables.append(columns.table(header.collector, header.number, header.rows_before + rows))
            rows += len(columns.heads)
            columns = Columns()
    tables.append(columns.table(header.collector, header.number, header.rows_before + rows))
    return pa.concat_tables(tables)


def seal(log: Path, directory: Path, salvage: bool = False) -> dict[str, Any]:
    """Write the segment of a closed log, durable on return; the log is kept.

    Raises:
        LandingDamaged: the log lost durable bytes. A torn tail is damage, too: a closed log has none.
        OSError: the disk is full or failed; the log stays, and can be sealed again.
    """
    contents = read_log(log, salvage)
    if contents.torn_bytes and not salvage:
        raise LandingDamaged(
            f"{log}: the last {contents.torn_bytes} bytes were durable and are now broken; "
            "start once with --salvage to seal the readable part; the damaged file is kept"
        )
    table = rows_of(contents)
    path = parquet.write_segment(directory, contents.header.collector, contents.header.number, table)
    rows = pq.read_metadata(path).num_rows
    if rows != table.num_rows:  # it existed
        raise LandingDamaged(
            f"{path} has {rows} rows, but its log {log} has {table.num_rows}: one of them is an older copy; restore the newer "
            "one, or move the segment away, and it is made again from the log"
        )
    if contents.damage or contents.torn_bytes:
        os.replace(log, log.with_suffix(DAMAGED))
    return {"number": contents.header.number, "rows": table.num_rows, "path": str(path), "bytes": path.stat().st_size}


def attempt(log: Path, directory: Path, salvage: bool) -> dict[str, Any]:
    """Return what `seal` returns; if it fails, `error` (a text) and `damaged`. The collector reports the error and retries."""
    try:
        return seal(log, directory, salvage)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}", "damaged": isinstance(error, LandingDamaged)}


def main() -> None:
    """Seal a log; print the answer as JSON. The arguments are the log's path, the directory, and 1 to salvage."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the collector handles them, and waits for this process
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(5)  # the collector has priority
    pa.set_cpu_count(1)
    log, directory, salvage = sys.argv[1:]
    answer = json.dumps(attempt(Path(log), Path(directory), salvage == "1"))
    with contextlib.suppress(BrokenPipeError):  # the collector was killed; its next start finds the segment
        os.write(sys.stdout.fileno(), answer.encode())


if __name__ == "__main__":
    main()
