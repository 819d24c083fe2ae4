"""The streaming source: sealed segments as work items, one Spark partition per device bucket.

Its offset is `{collector: segment number}`, so a checkpoint grows with collectors and not with files. What it yields
is not rows of messages but *which segments a bucket has to read*: the task behind it reads its own row groups, so no
message crosses between the JVM and Python twice and nothing is shuffled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from . import schemas, segments
from .storage import Storage

NAME = "flashmqtt_segments"


class LandingError(Exception):
    """The landing directory is not what the checkpoint says it should be; the text says what to do."""


def latest(landing: Storage) -> dict[str, dict[int, str]]:
    """Return the sealed segments of a landing: collector -> number -> name."""
    if not landing.exists():
        raise LandingError(
            f"{landing.uri}: there is no such landing directory. Start a collector first, or mend --landing"
        )
    found: dict[str, dict[int, str]] = {}
    for name in landing.list():
        parsed = segments.parse_name(name)
        if parsed:
            found.setdefault(parsed[0], {})[parsed[1]] = name
    return found


def between(found: dict[str, dict[int, str]], start: dict[str, int], end: dict[str, int]) -> list[segments.Segment]:
    """Return the segments after `start` up to `end`.

    Raises:
        LandingError: one of them is not there.
    """
    chosen = []
    for collector in sorted(end):
        numbers = found.get(collector, {})
        first = start.get(collector, 0) + 1
        if collector not in start and numbers:
            first = min(numbers)  # older ones were never ours: retired before this pipeline began
        for number in range(first, end[collector] + 1):
            if number not in numbers:
                raise LandingError(
                    f"segment {segments.file_name(collector, number)} is missing from the landing: bring it back. If it is"
                    " lost, put an empty one in its place (python -m tools.pipeline.segments), and the audit lists what it held"
                    " as missing"
                )
            chosen.append(segments.Segment(collector, number, numbers[number]))
    return chosen


class Bucket(InputPartition):
    """One bucket's work in a micro-batch."""

    def __init__(self, bucket: int, chosen: list[segments.Segment]):
        self.bucket = bucket
        self.chosen = chosen


class SegmentReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows a landing directory."""

    def __init__(self, options: dict[str, str]):
        self.landing = Storage(options["landing"])
        self.buckets = int(options["buckets"])
        self.most = int(options["segments_per_batch"])
        self.target: dict[str, int] | None = None

    def initialOffset(self) -> dict:  # noqa: N802, D102
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802, D102
        return ReadMaxFiles(self.most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802, D102
        self.target = {collector: max(numbers) for collector, numbers in latest(self.landing).items()}

    def latestOffset(self, start: dict, limit: ReadLimit) -> dict:  # noqa: N802, D102
        found = latest(self.landing)
        target = self.target or {collector: max(numbers) for collector, numbers in found.items()}
        if isinstance(limit, ReadAllAvailable):
            return {**start, **target}
        most = getattr(limit, "max_files", self.most)
        share = max(1, most // max(1, sum(target[one] > start.get(one, 0) for one in target)))
        end = dict(start)
        for collector, number in target.items():
            begin = start.get(collector, min(found.get(collector, {1: ""})) - 1)
            end[collector] = max(begin, min(number, begin + share))
        return end

    def partitions(self, start: dict, end: dict) -> Sequence[InputPartition]:  # noqa: D102
        chosen = between(latest(self.landing), start, end)
        return [Bucket(bucket, chosen) for bucket in range(self.buckets)] if chosen else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: D102
        assert isinstance(partition, Bucket)
        yield work_items(partition.bucket, partition.chosen)


def work_items(bucket: int, chosen: list[segments.Segment]) -> pa.RecordBatch:
    """Return a bucket's work on some segments."""
    columns = [[bucket] * len(chosen), *(list(column) for column in zip(*chosen, strict=True))]
    arrays = [pa.array(column, kind.type) for column, kind in zip(columns, schemas.WORK, strict=True)]
    return pa.record_batch(arrays, schema=schemas.WORK)


class SegmentSource(DataSource):
    """`spark.readStream.format("flashmqtt_segments")`; options `landing`, `buckets`, `segments_per_batch`."""

    @classmethod
    def name(cls) -> str:  # noqa: D102
        return NAME

    def schema(self) -> StructType:  # noqa: D102
        return schemas.spark_schema(schemas.WORK)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802, D102
        return SegmentReader(dict(self.options))
