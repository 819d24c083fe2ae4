"""Sealing: write a closed landing log as the segment of the same number. The caller then removes the log.

The rows are a function of the log alone, and an existing segment is never written again. So sealing may be interrupted at
any point and repeated: no row is written twice.

`python -m tools.landing.seal` is the collector's sealing process, which writes Parquet on another core: one process for each
log. It shares the collector's lock, so that no second collector starts while the sealing process of a killed one still works.
"""

import contextlib
import gc
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tools.landing import parquet
from tools.landing.log import HELD, Contents, Header, LandingDamaged, read_log
from tools.landing.publish import DUP_BIT, QOS_BITS, RETAIN_BIT, decoded

DAMAGED = ".damaged"
ROWS_AT_ONCE = 32_768


def rows_of(contents: Contents) -> pa.Table:
    """Return the rows of a log: landed and released messages, in the order in which they landed or were released."""
    header = contents.header
    tables: list[pa.Table] = []
    packets: list[tuple[Any, ...]] = []
    times: list[int] = []
    first = header.rows_before + 1
    for entry in contents.replayed()[0]:
        packets += decoded(contents.data, entry.start, entry.end, entry.level)
        times += [entry.time_us] * (len(packets) - len(times))
        if entry.kind == HELD:
            head, *rest = packets[-1]
            # DUP has another meaning in a held packet: see `flashmqtt.session.inbound`.
            packets[-1] = (head & ~DUP_BIT, *rest)
        if len(packets) >= ROWS_AT_ONCE:  # Python objects take ten times the memory of a table
            tables.append(_table(header, first, packets, times))
            first += len(packets)
            packets, times = [], []
    return pa.concat_tables([*tables, _table(header, first, packets, times)])


def _table(header: Header, first: int, packets: list[tuple[Any, ...]], times: list[int]) -> pa.Table:
    """Return the rows of some decoded packets, numbered from `first`."""
    count = len(packets)
    heads, topics, _, properties, payloads = zip(*packets, strict=True) if packets else ((),) * 5
    head = np.frombuffer(bytes(heads), dtype=np.uint8)
    columns = [pa.repeat(header.collector, count), pa.repeat(pa.scalar(header.number, pa.int64()), count)]
    columns += [
        pa.array(np.arange(first, first + count)),
        pa.array(np.array(times, dtype=np.int64)).cast(pa.timestamp("us", tz="UTC")),
    ]
    columns += [pa.array(topics, pa.binary()).cast(pa.string()), pa.array(((head & QOS_BITS) >> 1).astype(np.int8))]
    columns += [pa.array((head & bit).astype(np.bool_)) for bit in (DUP_BIT, RETAIN_BIT)]
    columns += [pa.array(properties, pa.binary()), pa.array(payloads, pa.binary())]
    return pa.table(columns, schema=parquet.SCHEMA)


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
    gc.disable()  # packets have no cycles, and its passes over all packets double the time
    log, directory, salvage = sys.argv[1:]
    answer = json.dumps(attempt(Path(log), Path(directory), salvage == "1"))
    with contextlib.suppress(BrokenPipeError):  # the collector was killed; its next start finds the segment
        os.write(sys.stdout.fileno(), answer.encode())


if __name__ == "__main__":
    main()
