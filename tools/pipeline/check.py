"""`python -m tools.pipeline.check --out DIR`: the full check: compares all rows of all tables with the audit.

Each batch is checked when it is written (readback.py), and a run's verdict uses those results. This command reads all files
and their checksums, and compares readings and events with the audit by plain Spark SQL, which does not use the batches'
counts. Use it for tables that were moved or restored, or if the disk may be damaged. Exit status: 0 if tables and audit
agree, 1 if they differ, 2 if the check could not run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from tools.command import counted, exit_status, named

from . import options
from .tables import schemas
from .tables.books import Books
from .tables.commits import Output
from .tables.storage import Storage
from .verdict import MOST_ROWS, shown

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILES_AT_ONCE = 64
"""The most tasks that read files."""
QUERY = """
WITH audit AS (
  SELECT device, life, boot, first_arrival, published - missing AS expected FROM {audit}
), copies AS (
  SELECT device, life, boot, seq, count(*) - 1 AS twice FROM {readings} WHERE life > 0
  GROUP BY device, life, boot, seq, index
  UNION ALL SELECT device, life, boot, seq, count(*) - 1 FROM {events} GROUP BY device, life, boot, seq
), messages AS (
  SELECT device, life, boot, seq, sum(twice) AS twice FROM copies GROUP BY device, life, boot, seq
), found AS (
  SELECT device, life, boot, count(*) AS in_tables, sum(twice) AS twice FROM messages GROUP BY device, life, boot
)
SELECT device, life, boot, first_arrival, coalesce(in_tables, 0) AS in_tables, coalesce(twice, 0) AS twice,
  greatest(coalesce(expected, 0) - coalesce(in_tables, 0), 0) AS absent,
  greatest(coalesce(in_tables, 0) - coalesce(expected, 0), 0) AS strange
FROM audit FULL JOIN found USING (device, life, boot)"""
"""Each boot's messages in the tables, compared with the audit."""
PLAIN = """
SELECT count(*) AS different, coalesce(sum(n), 0) AS rows FROM (
  SELECT count(*) AS n FROM {readings} WHERE life = 0 GROUP BY collector, segment, row, arrival, index)"""
"""The readings without an identity: each position of a collector's log is there once."""


@dataclass
class Checked:
    """The result of the full check.

    Attributes:
        boots, messages: how many boots were compared, and how many messages the tables have.
        twice: surplus rows; absent: messages that only the audit has; strange: messages that only the tables have.
        rows: the first boots that differ.
        plain: distinct readings of devices without an identity.
    """

    boots: int
    messages: int
    twice: int
    absent: int
    strange: int
    rows: list[Any]
    plain: int = 0

    @property
    def agrees(self) -> bool:
        """Whether tables and audit agree."""
        return not (self.twice or self.absent or self.strange)


def compared(readings: DataFrame, events: DataFrame, audit: DataFrame) -> DataFrame:
    """Return for each boot the messages and surplus rows in the tables, and the differences from the audit."""
    return readings.sparkSession.sql(QUERY, readings=readings, events=events, audit=audit)


def _read(storage: Storage, names: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Read whole files; damage raises an error. Spark itself ignores the pages' checksums, and what a file is called."""
    for batch in names:
        for name in batch.column(0).to_pylist():
            for _ in storage.batches(name, None):
                pass
        yield batch


def full_check(spark: SparkSession, out: str) -> Checked:
    """Compare all tables with the audit, except boots that began before the oldest day that is kept."""
    output = Output(out)
    commit = output.newest()
    files = sorted(commit.named_states.union(*(one.named for one in output.commits())))
    names = spark.createDataFrame([(name,) for name in files], "name string").repartition(
        min(len(files) or 1, FILES_AT_ONCE)
    )
    names.mapInArrow(partial(_read, output.storage), "name string").count()
    tables = {name: output.read(spark, name) for name in ("readings", "events", "audit")}
    kept_from = output.kept_from()
    both = compared(**tables)
    kept = f"first_arrival >= timestamp'{kept_from}' OR first_arrival IS NULL"  # NULL: the audit does not know the boot
    both = (both.where(kept) if kept_from else both).cache()
    try:
        sums = [f"coalesce(sum({name}), 0)" for name in ("in_tables", "twice", "absent", "strange")]
        boots, messages, twice, absent, strange = both.selectExpr("count(*)", *sums).collect()[0]
        bad = both.where("twice > 0 or absent > 0 or strange > 0").orderBy("device", "life", "boot")
        checked = Checked(boots, messages, twice, absent, strange, bad.limit(MOST_ROWS).collect())
    finally:
        both.unpersist()
    if not kept_from:
        expected = pc.sum(Books(output, commit).all("plain", schemas.PLAIN.names)["readings"]).as_py() or 0
        plain = spark.sql(PLAIN, readings=tables["readings"]).collect()[0]
        checked.plain = plain.different
        checked.twice += plain.rows - plain.different
        checked.absent += max(0, expected - plain.different)
        checked.strange += max(0, plain.different - expected)
    return checked


@named("check")
def main(argv: list[str] | None = None) -> int:
    """Check an output; return the exit status."""
    from . import session

    given = options.parser("check", __doc__, spark=True).parse_args(argv)
    output = Output.existing(given.out)
    print("  starting Spark, which takes ten seconds or more", flush=True)
    with session.opened(given.master, output.storage) as spark:
        found = full_check(spark, given.out)
    for row in found.rows:
        print(f"  {shown(row.device)} boot {row.boot} (life {row.life}): {differences(row)}")
    plain = f", {counted(found.plain, 'reading')} without an identity" if found.plain else ""
    result = "tables and audit agree" if found.agrees else f"tables and audit do NOT agree: {differences(found)}"
    print(f"{counted(found.messages, 'message')} of {counted(found.boots, 'boot')}{plain}: {result}")
    return int(not found.agrees)


def differences(found: Any) -> str:
    """Return a text about a boot's differences, or about those of all boots."""
    known = f"{counted(found.twice, 'row')} twice, {counted(found.absent, 'message')} absent"
    return f"{known}, {found.strange:,} that the audit does not know"


if __name__ == "__main__":
    sys.exit(exit_status(main, stopped="stopped"))
