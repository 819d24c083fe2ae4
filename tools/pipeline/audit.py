"""The delivery audit: what each boot of each device published, and what became of it.

DataFrame and Column functions over the small tables that the batches leave behind (tally, intervals, events, ties), so
an audit costs in proportion to boots and gaps and not to readings: the facts of all tables in one frame, one
aggregation per boot, one window per device. `check` is the other kind: it looks at the readings themselves with plain
Spark SQL, and believes nothing that the batches counted.

A sequence number is the message's ordinal over the device's life, gapless over its boots. So what a boot published
ends where the next one begins, a hole is a loss, and late data closes it again the next time the audit is made. Only the
end of a device's newest boot is open: what was published after its last message can't be known until the next one comes
(`open`), unless the board's own counters are at hand (`expected`).
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from . import dating, delays

BOOT = dating.BOOT
PERCENTILES = (0.5, 0.9, 0.99)
COUNTS = ("delivered", "readings", "resent", "replayed", "reordered")

EXPECTED = "device string, life int, boot bigint, told_first bigint, told_last bigint"


def expected_facts(spark: Any, expected: dict[str, Any] | None) -> DataFrame:
    """Return what the boards' own counters say: `{device: {"boots": [{"boot", "first", "last"}, ...]}}`."""
    rows = [
        (device, 1, boot["boot"], boot["first"], boot["last"])
        for device, told in (expected or {}).items()
        for boot in told["boots"]
    ]
    return spark.createDataFrame(rows, EXPECTED)


def facts(*tables: DataFrame) -> DataFrame:
    """Return the rows of all tables in one frame, null where a table lacks a column."""
    together = tables[0]
    for table in tables[1:]:
        together = together.unionByName(table, allowMissingColumns=True)
    return together


def per_boot(fact: DataFrame) -> DataFrame:
    """Return one row per boot: the sums, the intervals seen, what its events and clocks told."""
    bins = F.when(F.col("steps").isNotNull(), F.struct("base_us", "steps", "counts"))
    return fact.groupBy(BOOT).agg(
        *[F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in COUNTS],
        F.min("first_arrival").alias("first_arrival"),
        F.max("last_arrival").alias("last_arrival"),
        F.sort_array(F.collect_list(F.when(F.col("lo").isNotNull(), F.struct("lo", "hi")))).alias("seen"),
        F.min("first").alias("begun"),
        F.min_by("cause", F.when(F.col("cause").isNotNull(), F.col("seq"))).alias("cause"),
        F.min("dropped").alias("dropped_before"),
        F.max("dropped").alias("dropped_after"),
        F.collect_set(F.when(F.col("doubt_first").isNotNull(), F.struct("doubt_first", "doubt_last"))).alias("doubts"),
        dating.ties_of().alias("ties"),
        F.collect_list(bins).alias("bins"),
        F.max("told_first").alias("told_first"),
        F.max("told_last").alias("told_last"),
    )


def extents(boots: DataFrame) -> DataFrame:
    """Add what each boot published, as far as it can be known: first, last, open; and what its board says it dropped."""
    lowest, highest = F.array_min("seen.lo"), F.array_max("seen.hi")
    own_first = F.coalesce("told_first", F.least("begun", lowest))
    life = Window.partitionBy("device", "life").orderBy("own_first", "boot")
    whole_life = Window.partitionBy("device", "life")
    known_end = F.coalesce(F.col("told_last"), F.greatest(F.col("next_first") - 1, highest, F.col("own_first") - 1))
    declared = F.coalesce("next_dropped", "dropped_after") - F.col("dropped_before")
    return (
        boots.withColumn("own_first", own_first)
        .withColumns(
            {
                "next_first": F.lead("own_first").over(life),
                "next_dropped": F.lead("dropped_before").over(life),
                "life_doubts": F.flatten(F.collect_list("doubts").over(whole_life)),
            }
        )
        .withColumns(
            {
                "first": F.col("own_first"),
                "last": known_end,
                "open": F.col("next_first").isNull() & F.col("told_last").isNull(),
                "declared": F.coalesce(F.greatest(declared, F.lit(0)), F.lit(0)),
            }
        )
    )


def gaps(seen: Column, first: Column, last: Column) -> Column:
    """Return the ranges of [first, last] that lie in none of the sorted intervals `seen`."""
    los = F.concat(F.array(first), F.transform(seen, lambda one: one["hi"] + 1))
    his = F.concat(F.transform(seen, lambda one: one["lo"] - 1), F.array(last))
    holes = F.zip_with(
        los, his, lambda lo, hi: F.struct(F.greatest(lo, first).alias("lo"), F.least(hi, last).alias("hi"))
    )
    return F.filter(holes, lambda one: one["lo"] <= one["hi"])


def total(ranges: Column) -> Column:
    """Return how many numbers lie in some ranges."""
    return F.aggregate(ranges, F.lit(0).cast("long"), lambda sum_, one: sum_ + one["hi"] - one["lo"] + 1)


def overlap(ranges: Column, windows: Column) -> Column:
    """Return how many numbers of some ranges lie in windows (`doubt_first`, `doubt_last`), which may overlap."""
    in_order = F.array_sort(windows)

    def inside(one: Column) -> Column:
        def count(sum_: Column, window: Column) -> Column:
            lo = F.greatest(sum_["next"], window["doubt_first"])
            hi = F.least(one["hi"], window["doubt_last"])
            counted = sum_["n"] + F.greatest(hi - lo + 1, F.lit(0))
            return F.struct(counted.alias("n"), F.greatest(sum_["next"], hi + 1).alias("next"))

        none = F.struct(F.lit(0).cast("long").alias("n"), one["lo"].alias("next"))
        return F.aggregate(in_order, none, count, lambda sum_: sum_["n"])

    return F.aggregate(ranges, F.lit(0).cast("long"), lambda sum_, one: sum_ + inside(one))


def delay_figures(bins: Column, offset_us: Column, late_after_s: float) -> Column:
    """Return what a boot's delays come to: late, percentiles, and messages by octave of milliseconds (delays.figures)."""
    octaves = "octaves array<struct<octave int, messages bigint>>"
    kind = f"late bigint, {', '.join(f'p{round(100 * share)} double' for share in PERCENTILES)}, {octaves}"

    def of(some_bins: pa.Array, some_offsets: pa.Array) -> pa.Array:
        return delays.figures(some_bins, some_offsets, late_after_s, PERCENTILES)

    made = F.arrow_udf(of, f"struct<{kind}>")  # type: ignore[call-overload]  # pyarrow has no types
    return made(bins, offset_us)


def audit(boots: DataFrame, late_after_s: float = 60.0) -> DataFrame:
    """Return the audit: one row per device, life and boot."""
    return (
        boots.withColumns(
            {
                "offset_us": dating.offset_us(F.col("ties")),
                "clock_jumps": dating.jumps(F.col("ties"))["n"],
                "missing_ranges": gaps(F.col("seen"), F.col("first"), F.col("last")),
            }
        )
        .withColumns(
            {
                "missing": total(F.col("missing_ranges")),
                "in_doubt": overlap(F.col("missing_ranges"), F.col("life_doubts")),
                "delay": delay_figures(F.col("bins"), F.col("offset_us"), late_after_s),
            }
        )
        .withColumn("dropped", F.least("declared", F.col("missing") - F.col("in_doubt")))
        .select(
            *BOOT,
            "cause",
            F.col("first").alias("first_seq"),
            F.col("last").alias("last_seq"),
            (F.col("last") - F.col("first") + 1).alias("published"),
            *COUNTS[:-1],
            "missing",
            "dropped",
            "in_doubt",
            F.expr("missing - dropped - in_doubt").alias("unexplained"),
            "missing_ranges",
            "reordered",
            F.col("delay.late").alias("late"),
            *[
                F.round(f"delay.p{round(100 * share)}", 3).alias(f"delay_p{round(100 * share)}_ms")
                for share in PERCENTILES
            ],
            F.col("delay.octaves").alias("delay_octaves"),
            "clock_jumps",
            F.when(F.col("offset_us").isNotNull(), "clock").otherwise("arrival").alias("dated_by"),
            "open",
            "first_arrival",
            "last_arrival",
        )
    )


def missing(audited: DataFrame) -> DataFrame:
    """Return the missing ranges of an audit as rows: device, life, boot, lo, hi, messages."""
    return audited.select(*BOOT, F.inline("missing_ranges")).withColumn("messages", F.expr("hi - lo + 1"))


def check(readings: DataFrame, events: DataFrame) -> DataFrame:
    """Return per boot what the tables really hold: distinct messages, and rows that are there more than once.

    Plain Spark SQL over the readings themselves, independent of intervals and tallies.
    """
    rows = readings.groupBy(*BOOT, "seq", "index").agg(F.count("*").alias("copies"))
    reading = rows.groupBy(*BOOT, "seq").agg(F.sum(F.col("copies") - 1).alias("twice"))
    event = events.groupBy(*BOOT, "seq").agg((F.count("*") - 1).alias("twice"))
    both = reading.union(event).groupBy(*BOOT, "seq").agg(F.sum("twice").alias("twice"))
    return both.groupBy(BOOT).agg(F.count("*").alias("in_tables"), F.sum("twice").alias("twice"))
