"""`python -m tools.pipeline.compact --out DIR`: merge the small files of many batches, and delete old data.

A stream writes a file per bucket, table, day and batch. This separate job merges a bucket's files of a day into one file,
and replaces all commits by one. Days that are already merged are not rewritten. Readers see either the old files or the new
ones, never both: the new commit gets the last commit's name by one rename, which makes all earlier commits invalid. The
old files are deleted after that. The stream may run at the same time: it only adds later commits.

`--keep-days N` also deletes readings, prints, duplicates and quarantine that arrived more than N days ago; the whole audit is
kept. `--retire LANDING` deletes segments that are in the tables; with `--keep-raw-days N` only those that were sealed
more than N days ago. Days are counted back from the newest message: a clock in the future deletes nothing, unless a
collector's clock is wrong, too; and a fleet that has stopped keeps its last N days permanently.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import sys
import uuid
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from tools.command import counted, exit_status, filled, named
from tools.landing import segments

from . import options, series
from .tables import schemas, source
from .tables.commits import DELTA_LOG, Commit, Output, OutputError, batch_of, bucket_of, day_of
from .tables.delta import Delta
from .tables.files import rewrite
from .tables.storage import Storage, retried

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST_PARTS = 256


def merge(out: Storage, to: int, items: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Merge the files of each item of `files_to_merge`, as JSON; yield the new files' names. (Spark sends this to its tasks.)

    `to` is the number of the commit.
    """
    for which, table, day, files in (json.loads(one) for batch in items for one in batch.column(0).to_pylist()):
        name = f"{table}/day={day}/batch={to}/compact-{which:04d}-{uuid.uuid4().hex[:8]}.parquet"
        rewrite(out, sorted(files), name, schemas.TABLES[table])
        yield pa.record_batch([[name]], ["done"])


def aged(files: dict[str, list[str]], keep_from: str | None) -> set[str]:
    """Return the files of days before `keep_from`, of the tables with a retention by age."""
    return {file for table in schemas.AGING for file in files.get(table, ()) if keep_from and day_of(file) < keep_from}


def compact(spark: SparkSession | None, out: str, keep_from: str | None = None) -> Commit | None:
    """Merge small files, delete old rows; return the commit, or None if there was nothing to do.

    Args:
        spark: None if there is nothing to merge: see `files_to_merge`.
        out: the output directory.
        keep_from: the first day (YYYY-MM-DD) whose readings, prints, duplicates and quarantine are kept.

    Raises:
        OutputError: a commit is missing.
    """
    output = Output(out)
    commits = output.checked_commits()
    if not commits:
        return None
    delta = Delta(output)
    publish = delta.follow if delta.exist() else lambda: None
    publish()  # first: the log must have all rows before they move, and must not name files that are deleted
    series.follow(output, commits[-1])
    merged = output.whole(commits)
    old, named = merged.files, merged.named
    gone = aged(old, keep_from)
    merged.files = {table: [file for file in files if file not in gone] for table, files in old.items()}
    items = files_to_merge(merged.files)
    if len(commits) < 2 and not gone and not items:
        return None
    for file in gone:
        merged.rows[file.split("/", 1)[0]] -= output.storage.rows(file)
    merged.kept_from = max((one for one in (merged.kept_from, keep_from if gone else None) if one), default=None)
    if items and spark is not None:
        rows = [(json.dumps(item),) for item in items]
        frame = spark.createDataFrame(rows, "item string").repartition(min(MOST_PARTS, len(items)))
        done = frame.mapInArrow(partial(merge, output.storage, merged.batch), "done string").collect()
        replaced = {file for *_, files in items for file in files}
        merged.files = {
            table: [name for name in names if name not in replaced] for table, names in merged.files.items()
        }
        for name in sorted(row.done for row in done):
            merged.files[name.split("/", 1)[0]].append(name)
    merged.files = {table: files for table, files in merged.files.items() if files}
    output.replace(merged, named, publish)
    return merged


def files_to_merge(files: dict[str, list[str]]) -> list[tuple[int, str, str, list[str]]]:
    """Return each bucket, table and day that has more than one file, with its files."""
    groups: dict[tuple[int, str, str], list[str]] = {}
    for table, names in files.items():
        for file in names:
            groups.setdefault((bucket_of(file), table, day_of(file)), []).append(file)
    return [(*group, some) for group, some in groups.items() if len(some) > 1]


def orphans(output: Output) -> list[str]:
    """Return the tables' files that no commit names: those of interrupted attempts."""
    commits = output.commits()
    if not commits:
        return []
    named = set().union(*(commit.named for commit in commits))
    stored = {f"{table}/{name}" for table in schemas.TABLES for name in output.storage.list(table, recursive=True)}
    return [name for name in sorted(stored - named) if DELTA_LOG not in name and batch_of(name) <= commits[-1].batch]


def retired(landing: Storage, last: Commit, sealed_before_s: float | None = None) -> list[segments.Segment]:
    """Return the segments that may be deleted: the last commit's stream has read them. Each collector's last one is kept.

    Segments that only an earlier stream has read are not returned: new segments may have the same numbers now. With
    `sealed_before_s`, only segments that were sealed before that time (Unix time) are returned.
    """
    return [
        segments.Segment(collector, number, name)
        for collector, numbers in source.latest(landing).items()
        for number, name in sorted(numbers.items())
        if number < min(last.stream_read.get(collector, 0), max(numbers))
        and (sealed_before_s is None or landing.modified_s(name) < sealed_before_s)
    ]


def lost_by(found: list[segments.Segment]) -> str:
    """Return a warning: what becomes impossible when some segments are deleted."""
    newest = {segment.collector: segment.number for segment in sorted(found)}
    what = ", ".join(segments.file_name(*one) for one in newest.items())
    return (
        f"From now on the tables can't be made again from the segments up to {what}: not if the output is damaged or lost,"
        " not by a later version that reads payloads in another way, and not with another number of buckets. Topics,"
        " QoS, properties and payloads of the messages are deleted, except those in quarantine."
    )


@named("compact")
def main(argv: list[str] | None = None) -> int:
    """Compact an output directory."""
    from . import session

    parser = options.parser("compact", __doc__, spark=True)
    options.days(parser, "--keep-days", "delete readings that arrived more than N days ago")
    parser.add_argument(
        "--retire",
        type=filled,
        metavar="LANDING",
        help="also delete the segments of this landing that are in the tables",
    )
    options.days(parser, "--keep-raw-days", "with --retire: keep segments that were sealed in the last N days")
    parser.add_argument("--dry-run", action="store_true", help="only show what would be done")
    given = parser.parse_args(argv)
    output = Output.existing(given.out)
    landing = Storage(given.retire) if given.retire else None
    if landing:
        source.latest(landing)  # raises LandingError
    before = output.newest()
    now = datetime.datetime.now(datetime.UTC)
    # The first one is of messages that could be read.
    arrivals_us = [before.summary["last_arrival_us"], *before.last_arrival_us.values()]
    if newest_us := max(filter(None, arrivals_us), default=0):  # this machine's clock may be wrong
        now = min(now, source.EPOCH + datetime.timedelta(microseconds=newest_us))
    keep_from = str((now - datetime.timedelta(days=given.keep_days)).date()) if given.keep_days else None
    sealed_before_s = now.timestamp() - 86_400 * given.keep_raw_days if given.keep_raw_days else None
    gone = retired(landing, before, sealed_before_s) if landing else []
    if gone and (missing := retried(output.missing_files)):
        how_many = counted(len(missing), "file")
        raise OutputError(
            f"{output.storage.uri}/{missing[0]} is missing or incomplete ({how_many} in all), so no segment is deleted: restore"
            " the files, or make the tables again (remake)"
        )
    with contextlib.ExitStack() as stack:
        if not given.dry_run:
            stack.enter_context(output.locked("compaction"))
        files = {table: output.files(table) for table in schemas.TABLES}
        to_merge, count = files_to_merge(files), sum(map(len, files.values()))
        if given.dry_run:
            old = len(aged(files, keep_from))
            merging = f"{counted(sum(len(some) for *_, some in to_merge), 'file')} would be merged"
            print(f"{merging}, {old} deleted for their age, {counted(len(gone), 'segment')} retired")
        else:
            spark = stack.enter_context(session.opened(given.master, output.storage)) if to_merge else None
            merged = compact(spark, given.out, keep_from)
            print(f"{counted(count, 'file')} before, {sum(map(len, merged.files.values())) if merged else count} after")
            if left_over := orphans(output):
                for file in left_over:
                    output.storage.delete(file)
                print(f"{counted(len(left_over), 'file')} of interrupted attempts deleted")
            if landing:
                for segment in gone:
                    landing.delete(segment.path, target=True)
                print(f"{counted(len(gone), 'segment')} retired")
    if gone:
        print(lost_by(gone))
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(main, stopped="stopped"))
