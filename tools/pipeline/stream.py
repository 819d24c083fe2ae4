"""The actions on segments: one batch, and the stream of batches.

Spark's checkpoint knows which segments a batch covers; commits.py knows which batches count. A batch that was
committed and is handed over again is skipped, one that was cut off is done again from the same state and the same
segments, and both give the same tables.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from . import bucket, schemas, segments, source
from .commits import Commit, Output
from .storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

SEGMENTS_PER_BATCH = 64


READ = "read/"  # in a task's result: not a file, but how far it read a collector's segments


class Work:
    """What a task does with its bucket's work items; it travels to the executors."""

    def __init__(
        self,
        landing: Storage,
        out: Storage,
        buckets: int,
        batch: int,
        before: Commit | None,
        chosen: list[segments.Segment] | None = None,
    ):
        self.chosen = chosen  # the same segments for every bucket, where the items name buckets only
        self.landing, self.out, self.buckets, self.batch = landing, out, buckets, batch
        self.state = before.state if before else {}
        self.read = {collector: (number, 1 << 62) for collector, number in (before.read if before else {}).items()}

    def __call__(self, items: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Work on the buckets in `items`; yield a row per file written."""
        paths: dict[int, list[str]] = {}
        reached: dict[str, int] = {}
        for batch in items:
            if self.chosen is not None:
                told = [(which, *segment) for which in batch.column(0).to_pylist() for segment in self.chosen]
            else:
                told = list(zip(*(column.to_pylist() for column in batch.columns), strict=True))
            for which, collector, number, path in told:
                paths.setdefault(which, []).append(path)
                reached[collector] = max(number, reached.get(collector, 0))
        for which, names in paths.items():
            state = self.state.get(str(which), {})
            done = bucket.run(self.out, self.landing, which, self.buckets, self.batch, state, self.read, names)
            done += [bucket.Done(which, READ + collector, "", number) for collector, number in reached.items()]
            columns = list(zip(*done, strict=True))
            arrays = [pa.array(column, kind.type) for column, kind in zip(columns, schemas.DONE, strict=True)]
            yield pa.record_batch(arrays, schema=schemas.DONE)


def run_batch(
    items: DataFrame,
    landing: Storage,
    output: Output,
    buckets: int,
    stream: str,
    stream_batch: int,
    chosen: list[segments.Segment] | None = None,
) -> Commit:
    """Do the work items as one batch, and commit it; do nothing where that was done before."""
    before = output.latest()
    if before and before.stream == stream and before.stream_batch >= stream_batch:
        return before
    commit = Commit(before.batch + 1 if before else 1, stream, stream_batch)
    if before:
        commit.state = {key: dict(files) for key, files in before.state.items()}
        commit.read = dict(before.read)
    work = Work(landing, output.storage, buckets, commit.batch, before, chosen)
    for row in sorted(items.mapInArrow(work, schemas.spark_schema(schemas.DONE)).collect()):
        if row.table.startswith(READ):
            collector = row.table.removeprefix(READ)
            commit.read[collector] = max(row.rows, commit.read.get(collector, 0))
        elif row.table.startswith("state/"):
            commit.state.setdefault(str(row.bucket), {})[row.table.removeprefix("state/")] = row.file
        else:
            commit.files.setdefault(row.table, []).append(row.file)
            commit.rows[row.table] = commit.rows.get(row.table, 0) + row.rows
    output.write(commit)
    return commit


def once(spark: SparkSession, landing: str, out: str, buckets: int = segments.BUCKETS) -> Commit:
    """Take all that is in a landing as one batch, without a checkpoint: for a landing that no longer grows."""
    output, directory = Output(out), Storage(landing)
    output.prepare(buckets)
    found = source.latest(directory)
    chosen = source.between(found, {}, {collector: max(numbers) for collector, numbers in found.items()})
    items = spark.range(0, buckets, 1, buckets)  # a bucket to a partition, without starting a source for it
    return run_batch(items, directory, output, buckets, uuid.uuid4().hex, 0, chosen)


def start(
    spark: SparkSession,
    landing: str,
    out: str,
    checkpoint: str,
    buckets: int = segments.BUCKETS,
    segments_per_batch: int = SEGMENTS_PER_BATCH,
    every_s: float | None = None,
) -> StreamingQuery:
    """Start the stream: through what is there now, or, with `every_s`, for ever at that interval.

    Raises:
        OutputError, StorageError, LandingError: see there.
    """
    output, source_directory = Output(out), Storage(landing)
    source.latest(source_directory)
    output.prepare(buckets)
    stream = output.stream_id(Storage(checkpoint))
    spark.dataSource.register(source.SegmentSource)
    reader = spark.readStream.format(source.NAME).option("landing", landing).option("buckets", str(buckets))
    items = reader.option("segments_per_batch", str(segments_per_batch)).load()

    def one(batch_items: DataFrame, number: int) -> None:
        run_batch(batch_items, source_directory, output, buckets, stream, number)

    writer = (
        items.writeStream.foreachBatch(one)
        .option("checkpointLocation", Storage(checkpoint).address())
        .queryName("flashmqtt")
    )
    triggered = writer.trigger(processingTime=f"{every_s} seconds") if every_s else writer.trigger(availableNow=True)
    return triggered.start()
