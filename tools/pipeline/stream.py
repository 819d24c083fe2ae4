"""Process segments: one batch, or a stream of batches.

Spark's checkpoint has the segments of each batch; commits.py has the valid batches. After a kill, Spark may repeat a batch.
If it was committed, it is skipped. If not, it is repeated from the same state and the same segments. Both give the same
tables.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

import pyarrow as pa

from tools.landing import segments

from .batch import task
from .batch.mapping import NO_MAPPING, Mapping
from .tables import source, summary
from .tables.commits import Commit, Output
from .tables.delta import READERS, Delta
from .tables.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

SEGMENTS_PER_BATCH = 64


def _run_tasks(
    run: Callable[..., task.Done], state: dict[str, dict[str, str]], numbers: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Process the buckets of these numbers; yield what was done in each, as JSON. (Spark sends this to the executors.)"""
    for which in (one for some in numbers for one in some.column(0).to_pylist()):
        done = run(which, state_files=state.get(str(which), {}))
        yield pa.record_batch([[json.dumps([which, *done])]], ["done"])


def run_batch(
    spark: SparkSession,
    end: dict[str, int],
    landing: Storage,
    output: Output,
    buckets: int,
    stream: str,
    stream_batch: int,
    mapping: Mapping = NO_MAPPING,
    found: dict[str, dict[int, str]] | None = None,
) -> Commit:
    """Process each collector's segments up to `end` that this stream has not read, as one batch, with a task per bucket.

    `found` has the landing's segments, if the caller has listed them.

    Raises:
        LandingError: one of them is missing.
    """
    before = output.latest() or Commit(0, "", 0)
    commit = Commit(before.batch + 1, stream, stream_batch)
    commit.state, commit.read, commit.summary = copy.deepcopy((before.state, before.read, before.summary))
    if before.stream == stream:
        commit.stream_read, commit.last_arrival_us = dict(before.stream_read), dict(before.last_arrival_us)
    found = source.latest(landing) if found is None else found
    chosen = source.between(landing, found, commit.stream_read, end, commit.read)
    begun: dict[str, int] = {}
    ordered = []
    with ThreadPoolExecutor(READERS) as pool:
        all_arrivals = list(pool.map(partial(source.arrivals_us, landing), [one.path for one in chosen]))
    for (collector, number, path), arrivals in zip(chosen, all_arrivals, strict=True):
        commit.stream_read[collector] = number
        commit.read[collector] = max(number, commit.read.get(collector, 0))
        commit.last_arrival_us.pop(collector, None)
        if arrivals:
            commit.last_arrival_us[collector] = arrivals[1]
        # In landing order; segments of several collectors by their first arrival, but never before the collector's previous
        # segment: a clock may have been set back, and a message that the collector has held for long has an early arrival.
        begun[collector] = max(arrivals[0] if arrivals else 0, begun.get(collector, 0))
        ordered.append((begun[collector], path))
    paths = [path for _, path in sorted(ordered)]
    own = partial(task.run, output.storage, landing, batch=commit.batch, read=before.read, paths=paths, mapping=mapping)
    work = partial(_run_tasks, partial(own, buckets=buckets), before.state)
    tasks = spark.range(0, buckets, 1, buckets).mapInArrow(work, "done string").collect()
    for which, files, its_state, sums in sorted(json.loads(row.done) for row in tasks):
        if its_state:
            commit.state[str(which)] = its_state
        summary.add(commit.summary, sums)
        for table, file, rows in files:
            commit.files.setdefault(table, []).append(file)
            commit.rows[table] = commit.rows.get(table, 0) + rows
    output.write(commit)
    return commit


@dataclass
class Job:
    """The processing of a landing with Spark's checkpoint.

    Attributes:
        checkpoint: Spark's, with the segments of each batch.
        on_commit: called for each batch.
        publish: whether the tables' Delta logs are updated, at the start, because an earlier run may have been killed, and
            after each commit.
    """

    spark: SparkSession
    landing: str
    out: str
    checkpoint: str
    buckets: int = segments.BUCKETS
    segments_per_batch: int = SEGMENTS_PER_BATCH
    on_commit: Callable[[Commit], None] = lambda _: None
    publish: bool = True
    mapping: Mapping = NO_MAPPING

    def __post_init__(self) -> None:
        self.output, self.directory = Output(self.out), Storage(self.landing)
        self.delta = Delta(self.output) if self.publish else None

    @cached_property
    def stream(self) -> str:
        """The id of the checkpoint's stream."""
        return self.output.stream_id(Storage(self.checkpoint))

    def start(self, every_s: float | None = None) -> StreamingQuery:
        """Start the stream: over the present segments, or, with `every_s`, without end.

        Raises:
            OutputError, StorageError, LandingError: the output or the landing can't be used.
        """
        checkpoint = Storage(self.checkpoint)
        last = source.sealed(self.directory)
        found = source.latest(self.directory)
        self.output.prepare(self.buckets)
        source.check_checkpoint(checkpoint)
        latest = self.output.latest()
        self._before(found)  # Spark reports each name once, so there may be no batch that would check the numbers
        source.check_last(self.directory, found, last, latest.read if latest else {})
        if self.delta:
            self.delta.follow()

        def one(batch: DataFrame, number: int) -> None:
            found = source.latest(self.directory)
            before = self._before(found)
            if before and before.stream_batch >= number:
                return  # committed, but Spark was killed before it recorded that
            # In this session, not in the batch's clone of it, because each session has its own Python workers.
            self._run(source.reached(row.path for row in batch.collect()), number, found)

        writer = (
            source.names(self.spark, self.directory, self.segments_per_batch)
            .writeStream.foreachBatch(one)
            .option("checkpointLocation", checkpoint.address())
            .queryName("flashmqtt")
        )
        if not every_s:
            return writer.trigger(availableNow=True).start()
        # Not a trigger with an interval: it waits by the host's clock, and so for an hour longer if that is set back by an hour.
        self.spark.conf.set("spark.sql.streaming.pollingDelay", f"{round(every_s * 1000)}ms")
        return writer.start()

    def _run(self, end: dict[str, int], number: int, found: dict[str, dict[int, str]]) -> None:
        """Process a batch, publish its commit, and report it."""
        at = (self.directory, self.output, self.buckets, self.stream, number)
        commit = run_batch(self.spark, end, *at, self.mapping, found)
        if self.delta:
            self.delta.committed(commit)
        self.on_commit(commit)

    def _before(self, found: dict[str, dict[int, str]]) -> Commit | None:
        """Return the output's newest commit if it is of this stream, else None. Check the segments' numbers since then."""
        stream, latest = self.stream, self.output.latest()
        if latest is None or latest.stream != stream:
            return None
        read = (latest.stream_read, latest.last_arrival_us)
        source.check_numbers(self.directory, found, *read, Storage(self.checkpoint))
        return latest
