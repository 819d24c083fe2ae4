"""The streaming source: determines the segments of a batch.

Spark's file source finds the files of a landing and records them in its checkpoint. The stream has only the segments'
*names*: the batch's tasks, one per device bucket (stream.py), read their own row groups. So no message passes through the
JVM, and nothing is shuffled. A batch's names only determine the last segment of each collector. All segments up to it must
exist, also one that was restored later.
"""

from __future__ import annotations

import datetime
import json
import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from tools.landing import segments
from tools.landing.log import LandingError, log_numbers

from .storage import Storage, StorageError, limits

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILE = "path string, modificationTime timestamp, length bigint, content binary"  # of Spark's format binaryFile
MOST_AGE = "100000d"
"""Spark does not find files that are older than the newest by more than this, and forgets their names. A segment may have any
time: the clock was wrong, or the file was restored. So it forgets none, and has to remember them all."""
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
LOGS = ".logs"  # the end of the name of a collector's folder of logs

LINES = {"offsets": 3, "commits": 2, "sources": 1}
"""The least number of lines of the files in a checkpoint's directories. The first one is the format's version."""


def latest(landing: Storage) -> dict[str, dict[int, str]]:
    """Return the sealed segments of a landing: collector -> number -> name."""
    if not landing.exists():
        raise LandingError(
            f"{landing.uri}: there is no such landing directory. Start a collector first, or correct --landing"
        )
    found: dict[str, dict[int, str]] = {}
    for name in landing.list():
        parsed = segments.parse_name(name)
        if parsed:
            found.setdefault(parsed[0], {})[parsed[1]] = name
    return found


def sealed(landing: Storage) -> dict[str, int]:
    """Return the number of each collector's last segment, as the collectors' logs have it. Only a local landing has logs.

    Call it before `latest`: a log is removed when its segment is there.
    """
    if not landing.local:
        return {}
    folders = Path(landing.path()).glob("*" + LOGS)
    numbers = {folder.name.removesuffix(LOGS): log_numbers(folder) for folder in folders}
    return {collector: its[0] - 1 for collector, its in numbers.items() if its}


def check_last(landing: Storage, found: dict[str, dict[int, str]], last: dict[str, int], read: dict[str, int]) -> None:
    """Check that no collector's last segments are missing.

    Args:
        found: the segments of the landing.
        last: the result of `sealed`.
        read: the last segment that was read of each collector; it may be deleted.

    Raises:
        LandingError: one is missing.
    """
    for collector, number in last.items():
        if max(*found.get(collector, {}), read.get(collector, 0), 0) < number:
            raise LandingError(_missing(landing, collector, number))


def arrivals_us(landing: Storage, name: str) -> tuple[int, int] | None:
    """Return the first and the last arrival in a segment; None if it has no message, or its footer is damaged."""
    try:
        found = limits(landing.footer(name), "arrival")
        if found is None:
            return None
        first, last = ((one - EPOCH) // datetime.timedelta(microseconds=1) for one in found)
        return first, last
    except (OSError, ValueError, TypeError, OverflowError, pa.ArrowException, StorageError) as error:
        if landing.of_system(error):
            raise
        return None  # the task that reads the segment reports its damage; another writer may have times without a zone


def check_numbers(
    landing: Storage,
    found: dict[str, dict[int, str]],
    read: dict[str, int],
    last_arrival_us: dict[str, int],
    checkpoint: Storage,
) -> None:
    """Check that no collector's segment numbers have begun again since `read`. Such segments would count as read.

    Args:
        landing: the landing.
        found: its segments.
        read: the last segment that was read of each collector.
        last_arrival_us: the last arrival in each of these segments. `forget` only removes messages from a segment, so
            a segment with messages that arrived later is another one.
        checkpoint: Spark's checkpoint.

    Raises:
        LandingError: a collector's newest number is below its last one that was read, or this number has a new segment.
    """
    for collector, last in read.items():
        numbers = found.get(collector, {})
        newest = max(numbers, default=last)
        if newest < last:
            its = f"is its collector's newest, but segment {last} has been read"
        elif last in numbers and collector in last_arrival_us:
            arrivals = arrivals_us(landing, numbers[last])
            if arrivals is None or arrivals[1] <= last_arrival_us[collector]:
                continue
            newest, its = last, "is not the segment that was read: it has messages that arrived later"
        else:
            continue
        raise LandingError(
            f"segment {segments.file_name(collector, newest)} {its}: the numbers began again. Stop the pipeline, delete the"
            f" checkpoint {checkpoint.uri}, and start it again: it then reads the whole landing, and recognises messages that"
            " are in the tables"
        )


def between(
    landing: Storage,
    found: dict[str, dict[int, str]],
    start: dict[str, int],
    end: dict[str, int],
    read: dict[str, int] | None = None,
) -> list[segments.Segment]:
    """Return the segments after `start`, up to and including `end`.

    `read` has each collector's last segment that any stream has read. Up to it, the first segments may have been retired.

    Raises:
        LandingError: one of them is missing.
    """
    chosen = []
    for collector in sorted(end):
        numbers = found.get(collector, {})
        first = start.get(collector, (read or {}).get(collector, 0)) + 1
        if collector not in start:
            first = min([first, *numbers])  # all that are there: older ones were retired before this stream started
        for number in range(first, end[collector] + 1):
            if number not in numbers:
                later = min((one for one in numbers if one > number), default=end[collector] + 1)
                raise LandingError(_missing(landing, collector, number, later - number))
            chosen.append(segments.Segment(collector, number, numbers[number]))
    return chosen


def _missing(landing: Storage, collector: str, number: int, count: int = 1) -> str:
    """Return the error's text for `count` segments from a number on."""
    name, more = segments.file_name(collector, number), f" --count {count}" if count > 1 else ""
    where, then = (landing.uri, "") if landing.local else (".", f", and put it into {landing.uri}")
    which = f"{count} segments from {name} on are" if more else f"segment {name} is"
    return (
        f"{which} missing from the landing: restore what is missing. If it is lost, make an empty segment for each number"
        f" (python -m tools.landing.parquet --landing {shlex.quote(where)} --collector {collector} --number {number}{more}){then}"
        "; the audit then lists the messages as missing"
    )


def check_checkpoint(checkpoint: Storage) -> None:
    """Check the files of Spark's checkpoint. Spark's own errors name neither the file nor what to do.

    Raises:
        LandingError: a file is damaged.
    """
    if not checkpoint.local:  # a put is complete or was never done
        return
    for name in checkpoint.list("", recursive=True):
        top, base = name.split("/", 1)[0], name.rsplit("/", 1)[-1]
        if base.startswith(".") or (name != "metadata" and (top not in LINES or base == name)):
            continue
        lines = checkpoint.read(name).decode(errors="replace").splitlines()
        try:
            if name == "metadata":
                whole = "id" in json.loads("".join(lines))
            else:
                whole = len(lines) >= LINES[top] and re.fullmatch(r"v\d+", lines[0]) is not None
                for line in lines[1:]:
                    json.loads("null" if line == "-" else line)
        except (ValueError, TypeError):
            whole = False
        if not whole:
            raise LandingError(damaged_checkpoint(checkpoint, name))


def damaged_checkpoint(checkpoint: Storage, name: str) -> str:
    """Return what to do about a damaged file of a checkpoint."""
    return (
        f"{checkpoint.uri}/{name} is damaged: delete the whole checkpoint {checkpoint.uri}, and start the pipeline again. It"
        " then reads the whole landing, and recognises messages that are in the tables"
    )


def names(spark: SparkSession, landing: Storage, segments_per_batch: int) -> DataFrame:
    """Return the stream of the segments' names: one row, `path`, for each new segment."""
    files = spark.readStream.format("binaryFile").schema(FILE)
    options: dict[str, str | int | bool] = {
        "pathGlobFilter": "*.parquet",
        "maxFilesPerTrigger": segments_per_batch,
        "maxFileAge": MOST_AGE,
        "ignoreMissingFiles": True,  # `between` reports them
    }
    return files.options(**options).load(landing.pattern()).select("path")  # the contents are not read


def reached(paths: Iterable[str]) -> dict[str, int]:
    """Return the last segment of each collector in some paths."""
    found: dict[str, int] = {}
    for path in paths:
        parsed = segments.parse_name(path.rsplit("/", 1)[-1])
        if parsed:
            found[parsed[0]] = max(parsed[1], found.get(parsed[0], 0))
    return found
