"""One task's work: a device bucket's new rows, from segments to tables, and the bucket's state.

One process per bucket and batch; memory follows the row group, not the batch. What it writes has names of its own for each
attempt; nothing counts until the driver has put those names into the batch's commit (commits.py).

It does not know Spark.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from tools.landing import segments

from . import schemas
from .files import parquet_writer
from .messages import process
from .parts import merge_tallies, merge_ties
from .state import State
from .storage import Storage


class Done(NamedTuple):
    """A file that a task wrote."""

    bucket: int
    table: str
    file: str
    rows: int


def run(
    storage: Storage,
    landing: Storage,
    bucket: int,
    buckets: int,
    batch: int,
    state_files: dict[str, str],
    read: dict[str, tuple[int, int]],
    paths: Iterable[str],
) -> list[Done]:
    """Do one bucket's part of a batch; return the files written. Attempts don't see each other's files."""
    state = State()
    state.read = dict(read)
    if "intervals" in state_files:
        state.load_intervals(_load(storage, state_files["intervals"], schemas.INTERVALS))
    if "boots" in state_files:
        state.load_boots(_load(storage, state_files["boots"], schemas.BOOTS))
    attempt = uuid.uuid4().hex[:8]
    name = f"bucket-{bucket:04d}-{attempt}.parquet"
    gathered: dict[str, list[pa.Table]] = {"tally": [], "ties": []}
    with _Writers(storage, bucket, batch, name) as writers:
        for segment in _in_order(landing, paths, bucket, buckets):
            for rows in segment:
                for table, found in process(state, rows):
                    if table in gathered:
                        gathered[table].append(found)
                    else:
                        writers.write(table, found)
            state.settle()
        for table, merge in (("tally", merge_tallies), ("ties", merge_ties)):
            if gathered[table]:
                writers.write(table, merge(gathered[table]))
        if writers.wrote_any or not state_files:
            writers.write("state/intervals", state.intervals_table())
            writers.write("state/boots", state.boots_table())
    return writers.done


def _load(storage: Storage, name: str, schema: pa.Schema) -> pa.Table:
    with storage.fs.open_input_file(storage.path(name)) as file:
        return pq.read_table(file, columns=schema.names, use_threads=False)


def _in_order(landing: Storage, paths: Iterable[str], bucket: int, buckets: int) -> Iterator[Iterator[pa.Table]]:
    """Yield a bucket's rows segment by segment: in landing order, and between collectors by when a segment begins.

    Raises:
        SegmentError: a file under a segment's name is not one.
    """
    begun: dict[str, float] = {}
    files = []
    for (collector, _), path in sorted((segments.parse_name(path) or ("", 0), path) for path in paths):
        with _opened(landing, path) as source:
            meta = pq.read_metadata(source)
            segments.check_columns(meta.schema.names)
        index = meta.schema.names.index("arrival")
        statistics = [meta.row_group(n).column(index).statistics for n in range(meta.num_row_groups)]
        begins = [one.min.timestamp() for one in statistics if one is not None and one.has_min_max]
        # Never before the segment in front of it: a clock may have been set back, and a message that was held for long
        # lands with its own time of arrival.
        begun[collector] = max(min(begins, default=0.0), begun.get(collector, 0.0))
        files.append((begun[collector], path))
    for _, path in sorted(files):
        with _opened(landing, path) as source:
            file = pq.ParquetFile(source, read_dictionary=["collector", "topic"])
            yield segments.read_bucket(file, bucket, buckets)


@contextmanager
def _opened(landing: Storage, path: str) -> Iterator[Any]:
    try:
        with landing.fs.open_input_file(landing.path(path)) as source:
            yield source
    except (pa.ArrowInvalid, segments.SegmentError, OSError) as error:
        raise segments.SegmentError(
            f"{path}: {error}. A segment has its name only once it is whole, so this file was damaged or written by something"
            " else: restore it, or take it out of the landing"
        ) from error


class _Writers:
    """The Parquet files of one attempt, opened when there is something to write, named when all is written."""

    def __init__(self, storage: Storage, bucket: int, batch: int, name: str):
        self.storage, self.bucket, self.batch, self.name = storage, bucket, batch, name
        self.open: dict[str, tuple[Any, pq.ParquetWriter, int]] = {}
        self.done: list[Done] = []
        self.wrote_any = False

    def __enter__(self) -> _Writers:
        return self

    def write(self, table: str, rows: pa.Table) -> None:
        self.wrote_any = True
        if table not in self.open:
            file = f"{table}/batch={self.batch}/{self.name}"
            context = self.storage.create(file)
            stream = context.__enter__()
            writer = parquet_writer(stream, rows.schema)
            self.open[table] = (context, writer, 0)
        context, writer, count = self.open[table]
        writer.write_table(rows)
        self.open[table] = (context, writer, count + rows.num_rows)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        for table, (context, writer, count) in self.open.items():
            if kind is None:
                writer.close()
            context.__exit__(kind, error, trace)
            if kind is None:
                self.done.append(Done(self.bucket, table, f"{table}/batch={self.batch}/{self.name}", count))
