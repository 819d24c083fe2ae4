"""The actions on segments: one batch, and the stream of batches.

Spark's checkpoint knows which segments a batch covers; commits.py knows which batches count. A batch that was
committed and is handed over again is skipped, one that was cut off is done again from the same state and the same
segments, and both give the same tables.
"""

from __future__ import annotations

import copy
import json
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from tools.landing import segments

from . import schemas, source, summary, task
from .commits import Commit, Output
from .delta import Delta
from .mapping import Mapping
from .messages import NO_MAPPING
from .storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

SEGMENTS_PER_BATCH = 64
LATE_AFTER_S = 60.0
"""A delay that the audit calls late."""


class Work:
    """What a task does for its buckets; it travels to the executors."""

    def __init__(
        self,
        landing: Storage,
        out: Storage,
        buckets: int,
        batch: int,
        before: Commit | None,
        chosen: list[segments.Segment],
        late_after_s: float,
        mapping: Mapping = NO_MAPPING,
    ):
        self.landing, self.out, self.buckets, self.batch = landing, out, buckets, batch
        self.late_after_s, self.mapping = late_after_s, mapping
        self.paths = [segment.path for segment in chosen]
        self.state = before.state if before else {}
        self.read = {collector: (number, 1 << 62) for collector, number in (before.read if before else {}).items()}

    def __call__(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Work on the buckets of these numbers; yield a row per file written."""
        for batch in numbers:
            for which in batch.column(0).to_pylist():
                state = self.state.get(str(which), {})
                done = task.run(
                    self.out,
                    self.landing,
                    which,
                    self.buckets,
                    self.batch,
                    state,
                    self.read,
                    self.paths,
                    self.late_after_s,
                    self.mapping,
                )
                columns = list(zip(*done, strict=True)) or [()] * len(schemas.DONE)
                arrays = [pa.array(column, kind.type) for column, kind in zip(columns, schemas.DONE, strict=True)]
                yield pa.record_batch(arrays, schema=schemas.DONE)


def run_batch(
    spark: SparkSession,
    end: dict[str, int],
    landing: Storage,
    output: Output,
    buckets: int,
    stream: str,
    stream_batch: int,
    late_after_s: float = LATE_AFTER_S,
    mapping: Mapping = NO_MAPPING,
) -> Commit:
    """Take each collector's segments up to `end`, those that this stream has not read yet, as one batch: a task a bucket.

    Raises:
        LandingError: one of them is not there.
    """
    before = output.latest()
    commit = Commit(before.batch + 1 if before else 1, stream, stream_batch)
    if before:
        commit.state = {key: dict(files) for key, files in before.state.items()}
        commit.read = dict(before.read)
        commit.summary = copy.deepcopy(before.summary)
        commit.stream_read = dict(before.stream_read) if before.stream == stream else {}
    chosen = source.between(source.latest(landing), commit.stream_read, end)
    for segment in chosen:
        commit.stream_read[segment.collector] = segment.number
        commit.read[segment.collector] = max(segment.number, commit.read.get(segment.collector, 0))
    work = Work(landing, output.storage, buckets, commit.batch, before, chosen, late_after_s, mapping)
    tasks = spark.range(0, buckets, 1, buckets)
    for row in sorted(tasks.mapInArrow(work, schemas.spark_schema(schemas.DONE)).collect()):
        if row.table == "summary":
            summary.add(commit.summary, json.loads(row.told))
        elif row.table.startswith("state/"):
            kind = row.table.removeprefix("state/")
            files = commit.state.setdefault(str(row.bucket), {})
            if row.file:
                files[kind] = row.file
            else:
                del files[kind]  # nothing is left of a settled file
        else:
            commit.files.setdefault(row.table, []).append(row.file)
            commit.rows[row.table] = commit.rows.get(row.table, 0) + row.rows
    output.write(commit)
    return commit


def once(
    spark: SparkSession, landing: str, out: str, buckets: int = segments.BUCKETS, late_after_s: float = LATE_AFTER_S
) -> Commit:
    """Take all that is in a landing as one batch, without a checkpoint: for a landing that no longer grows."""
    output, directory = Output(out), Storage(landing)
    output.prepare(buckets)
    end = {collector: max(numbers) for collector, numbers in source.latest(directory).items()}
    commit = run_batch(spark, end, directory, output, buckets, uuid.uuid4().hex, 0, late_after_s)
    Delta(output).follow()
    return commit


def start(
    spark: SparkSession,
    landing: str,
    out: str,
    checkpoint: str,
    buckets: int = segments.BUCKETS,
    segments_per_batch: int = SEGMENTS_PER_BATCH,
    every_s: float | None = None,
    told: Callable[[Commit], None] = lambda _: None,
    late_after_s: float = LATE_AFTER_S,
    publish: bool = True,
    mapping: Mapping = NO_MAPPING,
) -> StreamingQuery:
    """Start the stream: through what is there now, or, with `every_s`, for ever at that interval; `told` hears of each batch.

    With `publish`, the tables' Delta logs follow each commit, and first catch up where an earlier run was killed before they did.

    Raises:
        OutputError, StorageError, LandingError: see there.
    """
    output, directory = Output(out), Storage(landing)
    found = source.latest(directory)
    output.prepare(buckets)
    stream = output.stream_id(Storage(checkpoint))
    before = output.latest()
    if before and before.stream == stream:  # Spark hands over no name twice, so a batch may not come to see it
        source.check_numbers(found, before.stream_read, Storage(checkpoint))
    delta = Delta(output) if publish else None
    if delta:
        delta.follow()

    def one(batch: DataFrame, number: int) -> None:
        before = output.latest()
        if before and before.stream == stream:
            if before.stream_batch >= number:
                return  # committed, but Spark did not get to note it
            source.check_numbers(source.latest(directory), before.stream_read, Storage(checkpoint))
        end = source.reached(row.path for row in batch.collect())
        # In this session and not in the batch's clone of it: Spark keeps Python workers for each session apart.
        commit = run_batch(spark, end, directory, output, buckets, stream, number, late_after_s, mapping)
        if delta:
            delta.committed(commit)
        told(commit)

    writer = (
        source.names(spark, directory, segments_per_batch)
        .writeStream.foreachBatch(one)
        .option("checkpointLocation", Storage(checkpoint).address())
        .queryName("flashmqtt")
    )
    triggered = writer.trigger(processingTime=f"{every_s} seconds") if every_s else writer.trigger(availableNow=True)
    return triggered.start()
