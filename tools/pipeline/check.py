"""`python -m tools.pipeline.check --out DIR`: all tables, row by row, against the audit: the full check.

Each batch is checked when it is written (readback.py), which is what a run's verdict goes by. This looks at all readings
and events of all time with plain Spark SQL, and believes nothing that the batches counted: for tables that were moved or
restored, or whose disk is in doubt. Exit status: 0 where tables and audit agree, 1 where they do not, 2 where it could
not run.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from tools.command import ended

from . import plain, schemas
from .books import Books
from .commits import Output, OutputError
from .storage import StorageError
from .verdict import MOST_ROWS, shown

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BOOT = ["device", "life", "boot"]


@dataclass
class Checked:
    """What the full check found: boots looked at, messages in the tables, what differs, and the first boots that do.

    `plain`: different readings of devices without an identity.
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
    """Return per boot what the tables really hold: distinct messages, and rows that are there more than once."""
    from pyspark.sql import functions as F  # noqa: N812

    rows = readings.groupBy(*BOOT, "seq", "index").agg(F.count("*").alias("copies"))
    reading = rows.groupBy(*BOOT, "seq").agg(F.sum(F.col("copies") - 1).alias("twice"))
    event = events.groupBy(*BOOT, "seq").agg((F.count("*") - 1).alias("twice"))
    both = reading.union(event).groupBy(*BOOT, "seq").agg(F.sum("twice").alias("twice"))
    return both.groupBy(BOOT).agg(F.count("*").alias("in_tables"), F.sum("twice").alias("twice"))


def full_check(spark: SparkSession, out: str) -> Checked:
    """Hold all tables against the audit. Boots that began before the days that are kept are left out."""
    from pyspark.sql import functions as F  # noqa: N812

    output = Output(out)
    if output.latest() is None:
        raise OutputError(f"{out} has no batches: run the pipeline first (make pipeline)")
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
    held, told = F.coalesce("in_tables", none), F.coalesce("delivered", none)
    both = both.select(
        *BOOT,
        held.alias("in_tables"),
        F.coalesce("twice", none).alias("twice"),
        F.greatest(told - held, none).alias("absent"),
        F.greatest(held - told, none).alias("strange"),
    ).cache()
    try:
        sums = [F.coalesce(F.sum(name), none).alias(name) for name in ("in_tables", "twice", "absent", "strange")]
        total = both.agg(F.count("*").alias("boots"), *sums).collect()[0]
        bad = both.where("twice > 0 or absent > 0 or strange > 0").orderBy(BOOT).limit(MOST_ROWS).collect()
    finally:
        both.unpersist()
    checked = Checked(total.boots, total.in_tables, total.twice, total.absent, total.strange, bad)
    if not kept_from:
        _check_plain(output, readings, checked)
    return checked


def _check_plain(output: Output, readings: DataFrame, checked: Checked) -> None:
    """Count the readings without an identity: each place of a collector's log once, and as many as each device brought."""
    from pyspark.sql import functions as F  # noqa: N812

    brought = plain.summed(
        [Books(output, commit).all("plain", schemas.PLAIN.names)] if (commit := output.latest()) else []
    )
    told = pc.sum(brought["readings"]).as_py() or 0
    place = (
        readings.where("life = 0")
        .groupBy("collector", "segment", "row", "arrival", "index")
        .agg(F.count("*").alias("n"))
    )
    sums = place.agg(F.count("*").alias("different"), F.coalesce(F.sum("n"), F.lit(0)).alias("rows")).collect()[0]
    checked.plain = sums.different
    checked.twice += sums.rows - sums.different
    checked.absent += max(0, told - sums.different)
    checked.strange += max(0, sums.different - told)


def main(argv: list[str] | None = None) -> int:
    """Check an output; return the exit status."""
    from pyspark.errors import PySparkException

    from . import java, session
    from .run import cause

    parser = argparse.ArgumentParser(prog="python -m tools.pipeline.check", description=__doc__.split("\n")[0])
    parser.add_argument("--out", nargs="?", help="the output directory of the pipeline")
    parser.add_argument("--master", help="Spark master (default: spark-submit's, or this machine)")
    options = parser.parse_args(argv)
    if not options.out:
        print("check: --out is missing: say which tables, `make check-tables OUT=tables`", file=sys.stderr)
        return 2
    with contextlib.ExitStack() as stack:
        try:
            output = Output(options.out)
            output.check_format()
            print("  Spark starts, which takes ten seconds or more", flush=True)
            spark = stack.enter_context(session.opened(options.master, session.log_file(output.storage)))
            found = full_check(spark, options.out)
        except (OutputError, StorageError, java.JavaNotFound) as error:
            print(f"check: {error}", file=sys.stderr)
            return 2
        except PySparkException as error:
            print(f"check: {cause(error)}", file=sys.stderr)
            return 2
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
