"""Segments: sealed Parquet files that the collector writes and Spark reads.

The one format that the collector and the Spark jobs agree on. A landing directory holds
`<collector>-<number>.parquet` (numbers from 1, without gaps, nine digits so that names sort). A segment never changes
after it has its name: a file under that name is whole and on the disk, anything else is a temporary that readers
ignore (`.name.tmp`).

Rows lie by device bucket, one row group or more to a bucket, in landing order inside each: a task that works on one
bucket reads nothing else. The file's key-value metadata says which bucket a row group belongs to; a file without
it (another writer's) is still read, by filtering.

This module knows nothing of Spark, MQTT sessions or the log that a segment is sealed from.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tools.landing.log import sync_directory

SCHEMA = pa.schema(
    [
        pa.field("collector", pa.string(), nullable=False),
        pa.field("segment", pa.int64(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),  # ordinal in the collector's log, over all its segments
        pa.field("arrival", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("qos", pa.int8(), nullable=False),
        pa.field("dup", pa.bool_(), nullable=False),  # at QoS 0: a copy of a QoS 1 message that had landed (recent.py)
        pa.field("retain", pa.bool_(), nullable=False),
        pa.field("properties", pa.binary()),  # level 5: the property block as it came; null at levels 3 and 4
        pa.field("payload", pa.binary(), nullable=False),
    ]
)

BUCKETS = 8
"""Device buckets of a landing: also the tasks of a micro-batch. A power of two, so that it can be doubled later."""

ROWS_PER_GROUP = 131_072
"""Most rows of a row group: what a task holds in memory at a time."""

LAYOUT_KEY = b"flashmqtt.layout"
NAME = re.compile(r"(?P<collector>[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?)-(?P<number>[0-9]{9,})\.parquet")
COLLECTOR_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9_])?")


class SegmentError(Exception):
    """A segment or its name is not what this format says."""


class Segment(NamedTuple):
    """A sealed segment: whose, which, where."""

    collector: str
    number: int
    path: str


def file_name(collector: str, number: int) -> str:
    """Return the name of a segment's file."""
    if not COLLECTOR_NAME.fullmatch(collector):
        raise SegmentError(
            f"collector name {collector!r}: use letters, digits, '_', '-' and '.', beginning with a letter or digit and"
            " ending with one or with '_'"
        )
    if number < 1:
        raise SegmentError(f"segment number {number}: they begin at 1")
    return f"{collector}-{number:09d}.parquet"


def parse_name(name: str) -> tuple[str, int] | None:
    """Return (collector, number) of a sealed segment's file name, None for any other name."""
    match = NAME.fullmatch(name)
    return (match["collector"], int(match["number"])) if match else None


def device_of(topic: str) -> str:
    """Return the device in a topic `<prefix>/<device>/<kind>`; the whole topic where it has another shape."""
    first, last = topic.find("/"), topic.rfind("/")
    return topic[first + 1 : last] if 0 <= first < last else topic


def bucket_of(topic: str, buckets: int = BUCKETS) -> int:
    """Return the bucket of a topic's device: the same on every machine and in every Python."""
    return zlib.crc32(device_of(topic).encode()) % buckets


def buckets_of(topics: pa.Array | pa.ChunkedArray, buckets: int = BUCKETS) -> np.ndarray:
    """Return the bucket of every row. One Python call for each *different* topic."""
    encoded = pc.dictionary_encode(topics)
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    if isinstance(encoded, pa.ChunkedArray):  # nothing to combine: no rows
        return np.zeros(0, dtype=np.int32)
    by_topic = np.array([bucket_of(topic, buckets) for topic in encoded.dictionary.to_pylist()], dtype=np.int32)
    return by_topic[encoded.indices.to_numpy()]


def write_segment(
    directory: str | os.PathLike[str],
    collector: str,
    number: int,
    table: pa.Table,
    buckets: int = BUCKETS,
    *,
    rows_per_group: int = ROWS_PER_GROUP,
    sync: bool = True,
) -> Path:
    """Seal `table` (rows in landing order, columns as in SCHEMA) as a segment; durable on return.

    Temporary name, sync, rename, sync of the directory: the name appears only on a whole file. A segment that is
    there already is left alone (a seal that is repeated after a crash: readers may have read it), so the rows that a
    number holds must be a function of the log.

    Raises:
        SegmentError: the columns are not SCHEMA's, or the name is not allowed.
    """
    target = Path(directory) / file_name(collector, number)
    if target.exists():
        return target
    temporary = target.with_name(f".{target.name}.tmp")
    try:
        table = table.select(SCHEMA.names).cast(SCHEMA)
    except (KeyError, pa.ArrowInvalid, ValueError) as error:
        raise SegmentError(f"{target.name}: {error}") from error
    with open(temporary, "wb") as file:
        write_rows(file, table, buckets, rows_per_group)
        file.flush()
        if sync:
            os.fsync(file.fileno())
    os.replace(temporary, target)
    if sync:
        sync_directory(target.parent)
    return target


def write_rows(stream: Any, table: pa.Table, buckets: int = BUCKETS, rows_per_group: int = ROWS_PER_GROUP) -> None:
    """Write rows, in landing order and with the columns of SCHEMA, as a segment's bytes."""
    bucket = buckets_of(table["topic"], buckets)
    order = np.argsort(bucket, kind="stable")
    table = table.take(pa.array(order))
    sizes = np.bincount(bucket, minlength=buckets)
    pieces: list[tuple[int, int, int]] = []  # bucket, first row, rows
    at = 0
    for which, size in enumerate(sizes.tolist()):
        pieces += [(which, at + k, min(rows_per_group, size - k)) for k in range(0, size, rows_per_group)]
        at += size
    layout = {"buckets": buckets, "groups": [which for which, _, _ in pieces]}
    schema = SCHEMA.with_metadata({LAYOUT_KEY: json.dumps(layout, separators=(",", ":")).encode()})
    with pq.ParquetWriter(
        stream,
        schema,
        compression="zstd",
        compression_level=1,
        use_dictionary=["collector", "topic"],
        write_statistics=["arrival", "row", "topic"],
    ) as writer:
        for _, first, rows in pieces:
            writer.write_table(table.slice(first, rows).replace_schema_metadata(schema.metadata), row_group_size=rows)


def buckets_in(metadata: dict[bytes, bytes] | None) -> int:
    """Return how many buckets a segment is laid out for, by its metadata; 1: for none."""
    said = (metadata or {}).get(LAYOUT_KEY)
    return int(json.loads(said)["buckets"]) if said else 1


def find_segments(directory: str | os.PathLike[str]) -> list[Segment]:
    """Return the sealed segments of a local landing directory, by collector and number."""
    found = []
    for entry in os.scandir(directory):
        name = parse_name(entry.name)
        if name:
            found.append(Segment(name[0], name[1], entry.path))
    return sorted(found)


def check_columns(names: list[str]) -> None:
    """Raise SegmentError where a column of SCHEMA is not among the names."""
    lacking = [name for name in SCHEMA.names if name not in names]
    if lacking:
        raise SegmentError(
            f"a segment without the column {lacking[0]!r}: it was written by another version of the collector"
        )


def read_bucket(file: pq.ParquetFile, bucket: int, buckets: int) -> Iterator[pa.Table]:
    """Yield a bucket's rows of one segment, a row group at a time, in landing order.

    Works for any layout: a segment that was laid out for another number of buckets, or for none, is filtered.
    """
    # A layout for a multiple or a divisor of `buckets` narrows the row groups; only the former needs no filter.
    said = (file.schema_arrow.metadata or {}).get(LAYOUT_KEY)
    theirs, groups = 1, [0] * file.num_row_groups
    check_columns(file.schema_arrow.names)
    if said:
        layout = json.loads(said)
        theirs, groups = layout["buckets"], layout["groups"]
    exact = theirs % buckets == 0
    if exact:
        wanted = [n for n, which in enumerate(groups) if which % buckets == bucket]
    elif buckets % theirs == 0:
        wanted = [n for n, which in enumerate(groups) if which == bucket % theirs]
    else:
        wanted = list(range(len(groups)))
    for group in wanted:
        table = file.read_row_group(group, columns=SCHEMA.names, use_threads=False)
        if not exact:
            table = table.filter(pa.array(buckets_of(table["topic"], buckets) == bucket))
        if table.num_rows:
            yield table


def main() -> int:
    """Write an empty segment in the place of one that is lost for good."""
    parser = argparse.ArgumentParser(prog="python -m tools.landing.segments", description=main.__doc__)
    parser.add_argument("--landing", type=Path, required=True)
    parser.add_argument("--collector", required=True)
    parser.add_argument("--number", type=int, required=True)
    options = parser.parse_args()
    print(write_segment(options.landing, options.collector, options.number, SCHEMA.empty_table()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
