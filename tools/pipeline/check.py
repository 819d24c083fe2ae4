"""`python -m tools.pipeline.check --out DIR`: the full check: compares all rows of all tables with the audit.

Each batch is checked when it is written (readback.py), and a run's verdict uses those results. This command reads all
readings and events with plain Spark SQL and does not use the batches' counts. Use it for tables that were moved or
restored, or if the disk may be damaged. Exit status: 0 if tables and audit agree, 1 if they differ, 2 if the check
could not run.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from tools.command import ended, named

from . import options, schemas
from .books import Books
from .commits import Output
from .verdict import MOST_ROWS, shown

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BOOT = ["device", "life", "boot"]


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


def inside(readings: DataFrame, events: DataFrame) -> DataFrame:
    """Return for each boot what the tables contain: the number of distinct messages, and of surplus rows."""
    from pyspark.sql import functions as F  # noqa: N812

    rows = readings.groupBy(*BOOT, "seq", "index").agg(F.count("*").alias("copies"))
    reading = rows.groupBy(*BOOT, "seq").agg(F.sum(F.col("copies") - 1).alias("twice"))
    event = events.groupBy(*BOOT, "seq").agg((F.count("*") - 1).alias("twice"))
    both = reading.union(event).groupBy(*BOOT, "seq").agg(F.sum("twice").alias("twice"))
    return both.groupBy(BOOT).agg(F.count("*").alias("in_tables"), F.sum("twice").alias("twice"))


def full_check(spark: SparkSession, out: str) -> Checked:
    """Compare all tables with the audit, except boots that began before the oldest day that is kept."""
    from pyspark.sql import functions as F  # noqa: N812

    output = Output(out)
    commit = output.newest()
    readings = output.read(spark, "readings")
    found = inside(readings.where("life > 0"), output.read(spark, "events"))
    audit = output.read(spark, "audit").select(
        *BOOT, "first_arrival", (F.col("published") - F.col("missing")).alias("delivered")
    )
    both = audit.join(found, BOOT, "full")
    kept_from = output.kept_from()
    if kept_from:
        both = both.where(F.col("first_arrival") >= F.lit(kept_from).cast("timestamp"))
    none = F.lit(0).cast("long")
    in_tables, expected = F.coalesce("in_tables", none), F.coalesce("delivered", none)
    both = both.select(
        *BOOT,
        in_tables.alias("in_tables"),
        F.coalesce("twice", none).alias("twice"),
        F.greatest(expected - in_tables, none).alias("absent"),
        F.greatest(in_tables - expected, none).alias("strange"),
    ).cache()
    try:
        sums = [F.coalesce(F.sum(name), none).alias(name) for name in ("in_tables", "twice", "absent", "strange")]
        total = both.agg(F.count("*").alias("boots"), *sums).collect()[0]
        bad = both.where("twice > 0 or absent > 0 or strange > 0").orderBy(BOOT).limit(MOST_ROWS).collect()
    finally:
        both.unpersist()
    checked = Checked(total.boots, total.in_tables, total.twice, total.absent, total.strange, bad)
    if not kept_from:
        _check_plain(Books(output, commit), readings, checked)
    return checked


def _check_plain(books: Books, readings: DataFrame, checked: Checked) -> None:
    """Compare the readings without an identity: each position of a collector's log once, as many as the sums by device."""
    from pyspark.sql import functions as F  # noqa: N812

    expected = pc.sum(books.all("plain", schemas.PLAIN.names)["readings"]).as_py() or 0
    positions = (
        readings.where("life = 0")
        .groupBy("collector", "segment", "row", "arrival", "index")
        .agg(F.count("*").alias("n"))
    )
    sums = positions.agg(F.count("*").alias("different"), F.coalesce(F.sum("n"), F.lit(0)).alias("rows")).collect()[0]
    checked.plain = sums.different
    checked.twice += sums.rows - sums.different
    checked.absent += max(0, expected - sums.different)
    checked.strange += max(0, sums.different - expected)


@named("check")
def main(argv: list[str] | None = None) -> int:
    """Check an output; return the exit status."""
    from . import session

    given = options.parser("check", __doc__, spark=True).parse_args(argv)
    output = Output.existing(given.out)
    print("  starting Spark, which takes ten seconds or more", flush=True)
    with session.opened(given.master, session.log_file(output.storage)) as spark:
        found = full_check(spark, given.out)
    for row in found.rows:
        print(
            f"  {shown(row.device)} boot {row.boot} (life {row.life}): {row.twice} rows twice, {row.absent} messages absent,"
            f" {row.strange} that the audit does not know"
        )
    print(
        f"{found.messages:,} messages of {found.boots:,} boots"
        + (f", {found.plain:,} readings without an identity: " if found.plain else ": ")
        + (
            "tables and audit agree"
            if found.agrees
            else f"tables and audit do NOT agree: {found.twice:,} rows twice, {found.absent:,} messages absent,"
            f" {found.strange:,} that the audit does not know"
        )
    )
    return int(not found.agrees)


if __name__ == "__main__":
    sys.exit(ended(main, stopped="stopped"))
