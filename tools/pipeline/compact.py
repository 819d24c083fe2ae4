"""`python -m tools.pipeline.compact --out DIR`: the small files of many batches into few large ones.

A stream leaves a file per bucket, table and batch. This job of its own writes the rows of all batches so far into one
file per bucket and table, and puts one commit in the place of many. Readers find the old files or the new ones, never
both: that commit takes the last one's name by one rename, and what came before it no longer counts. Only then the old
files go; with `--retire` also the segments in the landing that are in the tables. The stream may run meanwhile: it only
adds commits behind.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from tools.command import ended

from . import schemas, source
from .commits import Commit, Output, OutputError
from .files import parquet_writer, table_of
from .storage import Storage, StorageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 131_072


class Merge:
    """A task's work: one bucket of one table; it travels to the executors."""

    def __init__(self, out: Storage, batch: int):
        self.out, self.batch = out, batch

    def __call__(self, items: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Merge the files named in `items` (bucket, table, file); yield a row per file written."""
        work: dict[tuple[int, str], list[str]] = {}
        for batch in items:
            for which, table, file, _ in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                work.setdefault((which, table), []).append(file)
        for (which, table), files in work.items():
            name = f"{table}/batch={self.batch}/compact-{which:04d}-{uuid.uuid4().hex[:8]}.parquet"
            rows = self._merge(table, sorted(files), name)
            yield pa.record_batch([[which], [table], [name], [rows]], schema=schemas.DONE)

    def _merge(self, table: str, files: list[str], name: str) -> int:
        """Write the rows of some files as one, a part of each at a time; return how many."""
        schema = schemas.TABLES[table]
        total = 0
        with self.out.create(name) as stream:
            writer = None
            for file in files:
                with self.out.fs.open_input_file(self.out.path(file)) as opened:
                    for batch in pq.ParquetFile(opened).iter_batches(ROWS, columns=schema.names, use_threads=False):
                        rows = table_of(
                            [one.combine_chunks() for one in pa.Table.from_batches([batch]).columns], schema
                        )
                        if writer is None:
                            writer = parquet_writer(stream, rows.schema)
                        writer.write_table(rows)
                        total += rows.num_rows
            if writer is None:
                pq.write_table(schema.empty_table(), stream, store_schema=False)
            else:
                writer.close()
        return total


def bucket_of(file: str) -> int:
    """Return the bucket that a table's file belongs to: the first number in its name."""
    return int(file.rsplit("/", 1)[-1].split("-")[1].split(".", maxsplit=1)[0])


def compact(spark: SparkSession, out: str) -> Commit | None:
    """Merge all batches into one; return its commit, or None where there is nothing to merge."""
    output = Output(out)
    commits = output.commits()
    if len(commits) < 2:
        return None
    last = commits[-1]
    old = {table: output.files(table) for table in schemas.TABLES}
    items = [(bucket_of(file), table, file, 0) for table, files in old.items() for file in files]
    frame = spark.createDataFrame(items, schemas.spark_schema(schemas.DONE))
    parts = max(1, len({(which, table) for which, table, *_ in items}))
    merge = Merge(output.storage, last.batch)
    done = frame.repartition(parts, "bucket", "table").mapInArrow(merge, schemas.spark_schema(schemas.DONE)).collect()
    merged = replace(last, files={}, rows={}, whole=True)
    for row in sorted(done):
        merged.files.setdefault(row.table, []).append(row.file)
        merged.rows[row.table] = merged.rows.get(row.table, 0) + row.rows
    output.replace(merged, [file for files in old.values() for file in files])
    return merged


def retire(landing: str, last: Commit) -> int:
    """Delete the segments that the stream of the last commit has read, but each collector's last; return how many.

    Not those that an earlier stream has read: what lies there now may be others under the same numbers.
    """
    directory = Storage(landing)
    count = 0
    for collector, numbers in source.latest(directory).items():
        for number, name in numbers.items():
            if number < min(last.stream_read.get(collector, 0), max(numbers)):
                directory.delete(name)
                count += 1
    return count


def main() -> int:
    """Compact an output directory."""
    from . import java, session

    parser = argparse.ArgumentParser(prog="python -m tools.pipeline.compact", description=__doc__.split("\n")[0])
    parser.add_argument("--out", nargs="?", help="the output directory of the pipeline")
    parser.add_argument(
        "--retire", metavar="LANDING", help="also delete the segments of this landing that are in the tables"
    )
    parser.add_argument("--master", help="Spark master (default: spark-submit's, or this machine)")
    options = parser.parse_args()
    if not options.out:
        print("compact: --out is missing: say which tables, `make compact OUT=tables`", file=sys.stderr)
        return 2
    with contextlib.ExitStack() as stack:
        try:
            output = Output(options.out)
            if options.retire:
                source.latest(Storage(options.retire))
            before = output.latest()
            if before is None:
                raise OutputError(f"{options.out} has no batches: run python -m tools.pipeline.run first")
            stack.enter_context(output.alone("compaction"))
            spark = session.make(options.master, session.log_file(output.storage))
            stack.callback(spark.stop)
        except (OutputError, StorageError, source.LandingError, java.JavaNotFound) as error:
            print(f"compact: {error}", file=sys.stderr)
            return 2
        files = sum(len(output.files(table)) for table in schemas.TABLES)
        merged = compact(spark, options.out)
        after = sum(map(len, merged.files.values())) if merged else files
        print(f"{files} files are {after} now")
        if options.retire:
            print(f"{retire(options.retire, before)} segments retired")
    return 0


if __name__ == "__main__":
    sys.exit(ended(main, stopped="stopped"))
