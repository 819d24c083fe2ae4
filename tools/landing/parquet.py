"""The content of a segment: a sealed Parquet file that the collector's sealing process writes and Spark reads.

Rows are sorted by device bucket, and keep the landing order within a bucket. Each row group belongs to one bucket, so a
task reads only its own bucket's row groups. The file's key-value metadata maps row groups to buckets. A file without this
metadata, from another writer, is read whole and filtered.

This module knows nothing of Spark, MQTT sessions or logs.
"""

import json
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import tools.landing.arrow  # noqa: F401 - before the first conversion
from tools.command import exit_status, named, parser_of
from tools.landing.durable import replacing
from tools.landing.segments import BUCKETS, SegmentError, bucket_of, file_name

SCHEMA = pa.schema(
    [
        pa.field("collector", pa.string(), nullable=False),
        pa.field("segment", pa.int64(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),  # ordinal over all of the collector's segments
        pa.field("arrival", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("qos", pa.int8(), nullable=False),
        pa.field("dup", pa.bool_(), nullable=False),  # at QoS 0: marks a copy of a QoS 1 message (recent.py)
        pa.field("retain", pa.bool_(), nullable=False),
        pa.field("properties", pa.binary()),  # level 5: the encoded properties; null at levels 3 and 4
        pa.field("payload", pa.binary(), nullable=False),
    ]
)

ROWS_PER_GROUP = 131_072
"""Most rows of a row group: a task holds one row group in memory."""

LAYOUT_KEY = b"flashmqtt.layout"


def buckets_of(topics: pa.Array | pa.ChunkedArray, buckets: int = BUCKETS) -> np.ndarray:
    """Return the bucket of every row, with one Python call for each distinct topic."""
    if isinstance(topics, pa.ChunkedArray):
        topics = topics.combine_chunks()
    encoded = pc.dictionary_encode(topics)
    by_topic = np.array([bucket_of(topic, buckets) for topic in encoded.dictionary.to_pylist()], dtype=np.int32)
    return by_topic[encoded.indices.to_numpy()]


def write_segment(
    directory: str | os.PathLike[str],
    collector: str,
    number: int,
    table: pa.Table,
    buckets: int = BUCKETS,
    *,
    sync: bool = True,
) -> Path:
    """Write `table` (rows in landing order, columns of SCHEMA) as a segment; durable on return.

    The file is written under a temporary name, synced, renamed, and the directory is synced, so only a complete file has
    the segment's name. An existing segment is not written again, because readers may have read it: the rows of a number
    must be a function of the log.

    Raises:
        SegmentError: the columns are not SCHEMA's, or the name is not allowed.
    """
    target = Path(directory) / file_name(collector, number)
    if target.exists():
        return target
    try:
        table = table.select(SCHEMA.names).cast(SCHEMA)
    except (KeyError, pa.ArrowInvalid, ValueError) as error:
        raise SegmentError(f"{target.name}: {error}") from error
    with replacing(target, sync=sync) as file:
        write_rows(file, table, buckets)
    return target


def write_rows(stream: Any, table: pa.Table, buckets: int = BUCKETS) -> None:
    """Write rows, in landing order and with the columns of SCHEMA, as a segment to a stream."""
    bucket = buckets_of(table["topic"], buckets)
    order = np.argsort(bucket, kind="stable")
    table = table.take(pa.array(order))
    sizes = np.bincount(bucket, minlength=buckets)
    pieces: list[tuple[int, int, int]] = []  # bucket, first row, rows
    at = 0
    for which, size in enumerate(sizes.tolist()):
        pieces += [(which, at + k, min(ROWS_PER_GROUP, size - k)) for k in range(0, size, ROWS_PER_GROUP)]
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
        write_page_checksum=True,
    ) as writer:
        for _, first, rows in pieces:
            writer.write_table(table.slice(first, rows).replace_schema_metadata(schema.metadata), row_group_size=rows)


def layout_of(metadata: dict[bytes, bytes] | None) -> tuple[int, list[int] | None]:
    """Return the number of buckets in a segment's layout, and the bucket of each row group; (1, None) without a layout."""
    layout = json.loads((metadata or {}).get(LAYOUT_KEY, b'{"buckets": 1}'))
    return layout["buckets"], layout.get("groups")


def check_columns(names: list[str]) -> None:
    """Raise SegmentError if a column of SCHEMA is not among the names."""
    missing = [name for name in SCHEMA.names if name not in names]
    if missing:
        raise SegmentError(
            f"a segment without the column {missing[0]!r}: it was written by another version of the collector"
        )


def read_bucket(file: pq.ParquetFile, bucket: int, buckets: int) -> Iterator[pa.Table]:
    """Yield a bucket's rows of one segment, a row group at a time, in landing order.

    Any layout works: a segment with another number of buckets, or without a layout, is filtered.
    """
    # A row group that can't have rows of the bucket is not read. No filter is needed where `buckets` divides.
    theirs, groups = layout_of(file.schema_arrow.metadata)
    exact = theirs % buckets == 0
    common = math.gcd(theirs, buckets)
    for group in range(file.num_row_groups):
        if groups and groups[group] % common != bucket % common:
            continue
        table = file.read_row_group(group, columns=SCHEMA.names, use_threads=False)
        if not exact:
            table = table.filter(pa.array(buckets_of(table["topic"], buckets) == bucket))
        if table.num_rows:
            yield table


@named("parquet")
def main(argv: list[str] | None = None) -> int:
    """Write empty segments in place of some that are permanently lost."""
    parser = parser_of("tools.landing.parquet", main.__doc__)
    parser.add_argument("--landing", type=Path, required=True)
    parser.add_argument("--collector", required=True)
    parser.add_argument("--number", type=int, required=True, help="of the first one")
    parser.add_argument("--count", type=int, default=1, help="how many")
    options = parser.parse_args(argv)
    for number in range(options.number, options.number + options.count):
        print(write_segment(options.landing, options.collector, number, SCHEMA.empty_table()))
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(main, stopped="stopped"))
