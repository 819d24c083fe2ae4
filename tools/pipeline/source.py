"""The streaming source: which segments a batch takes.

Spark's own file source notices the files of a landing and keeps in its checkpoint which it has seen. What streams are the
segments' *names*: the batch's tasks, one a device bucket (stream.py), read their own row groups, so no message goes
through the JVM and nothing is shuffled. A batch's names only say how far it goes in each collector's segments; every
number up to there has to be there, also one that was brought back later under an older name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tools.landing import segments

from .storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILE = "path string, modificationTime timestamp, length bigint, content binary"  # of Spark's format binaryFile
MOST_AGE = "90d"
"""How much older than the newest a segment may be to be noticed: Spark remembers the names of this long."""


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


def check_numbers(found: dict[str, dict[int, str]], read: dict[str, int], checkpoint: Storage) -> None:
    """Check that no collector has begun to number its segments anew since `read`: those would be taken for read ones.

    Raises:
        LandingError: one has.
    """
    for collector, last in read.items():
        newest = max(found.get(collector, {last: ""}))
        if newest < last:
            raise LandingError(
                f"segment {segments.file_name(collector, newest)} is its collector's newest, but {last} of them have been read:"
                f" their numbers began anew. Stop the pipeline, delete the checkpoint {checkpoint.uri}, and start it again: it"
                " reads the whole landing then, and finds what is in the tables already"
            )


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
                    " lost, put an empty one in its place (python -m tools.landing.segments), and the audit lists what it held"
                    " as missing"
                )
            chosen.append(segments.Segment(collector, number, numbers[number]))
    return chosen


def names(spark: SparkSession, landing: Storage, segments_per_batch: int) -> DataFrame:
    """Return the stream of the segments' names: one row, `path`, for each that appears."""
    files = spark.readStream.format("binaryFile").schema(FILE)
    options: dict[str, str | int | bool] = {
        "pathGlobFilter": "*.parquet",
        "maxFilesPerTrigger": segments_per_batch,
        "maxFileAge": MOST_AGE,
        "ignoreMissingFiles": True,  # `between` names them, with what to do
    }
    return files.options(**options).load(landing.address()).select("path")  # the contents are not read


def reached(paths: Iterable[str]) -> dict[str, int]:
    """Return the last segment of each collector among some paths."""
    found: dict[str, int] = {}
    for path in paths:
        parsed = segments.parse_name(path.rsplit("/", 1)[-1])
        if parsed:
            found[parsed[0]] = max(parsed[1], found.get(parsed[0], 0))
    return found
