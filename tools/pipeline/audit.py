"""The delivery audit: what each boot of each device published, and what became of it.

DataFrame to DataFrame functions over the small tables that the batches leave behind (tally, intervals, events, ties,
duplicates), so an audit costs in proportion to boots and gaps and not to readings. `check` is the other kind: it looks at the
readings themselves with plain Spark SQL, and believes nothing that the batches counted.

A sequence number is the message's ordinal over the device's life, gapless over its boots. So what a boot published
ends where the next one begins, a hole is a loss, and late data closes it again the next time the audit is made. Only the
end of a device's newest boot is open: what was published after its last message can't be known until the next one comes
(`open`), unless the board's own counters are at hand (`expected`).
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from . import delays

BOOT = ["device", "life", "boot"]
PERCENTILES = (0.5, 0.9, 0.99)

EXPECTED = "device string, life int, boot bigint, first bigint, last bigint"


def extents(intervals: DataFrame, events: DataFrame) -> DataFrame:
    """Return what each boot published, as far as it can be known: device, life, boot, first, last, open."""
    seen = intervals.groupBy(BOOT).agg(F.min("lo").alias("lowest"), F.max("hi").alias("highest"))
    told = events.where("first is not null").groupBy(BOOT).agg(F.min("first").alias("told"))
    life = Window.partitionBy("device", "life").orderBy("first")
    return (
        seen.join(told, BOOT, "full")
        .withColumn("first", F.least(F.coalesce("told", "lowest"), F.coalesce("lowest", "told")))
        .withColumn("next", F.lead("first").over(life))
        .select(
            *BOOT,
            "first",
            F.greatest(F.coalesce("next", F.col("highest") + 1) - 1, F.coalesce("highest", F.lit(0))).alias("last"),
            F.col("next").isNull().alias("open"),
        )
    )


def expected_extents(spark: Any, expected: dict[str, Any]) -> DataFrame:
    """Return the same from the boards' own counters: `{device: {"boots": [{"boot", "first", "last"}, ...]}}`."""
    rows = [
        (device, 1, boot["boot"], boot["first"], boot["last"])
        for device, told in expected.items()
        for boot in told["boots"]
    ]
    return spark.createDataFrame(rows, EXPECTED).withColumn("open", F.lit(False))


def missing(extent: DataFrame, intervals: DataFrame) -> DataFrame:
    """Return the missing ranges: device, life, boot, lo, hi, messages."""
    order = Window.partitionBy(*BOOT).orderBy("lo")
    inside = extent.join(intervals, BOOT, "left").withColumn("before", F.lag("hi").over(order))
    above = F.coalesce(F.col("before"), F.col("first") - 1) + 1
    gaps = inside.select(*BOOT, above.alias("lo"), F.coalesce(F.col("lo") - 1, F.col("last")).alias("hi"))
    tails = (
        inside.groupBy(*BOOT, "last")
        .agg(F.max("hi").alias("reached"))
        .select(*BOOT, F.col("reached") + 1, F.col("last"))
    )
    return gaps.union(tails).where("lo <= hi").withColumn("messages", F.expr("hi - lo + 1"))


def in_doubt(ranges: DataFrame, events: DataFrame) -> DataFrame:
    """Return per boot how many of the missing messages lie in windows that the board called in doubt."""
    windows = events.where("doubt_first is not null").select("device", "life", "doubt_first", "doubt_last").distinct()
    inside = F.least("hi", "doubt_last") - F.greatest("lo", "doubt_first") + 1
    return (
        ranges.join(windows, ["device", "life"])
        .where(inside > 0)
        .groupBy(BOOT)
        .agg(F.sum(inside).cast("long").alias("in_doubt"))
    )


def dropped(events: DataFrame) -> DataFrame:
    """Return per boot how many messages the board says it dropped by policy: its running count, taken apart.

    A boot message tells the count at its start, so what it adds to the one before was dropped in an earlier boot.
    """
    life = Window.partitionBy("device", "life").orderBy("seq")
    told = events.where("dropped is not null").select(
        "device",
        "life",
        F.when(F.col("first") == F.col("seq"), F.coalesce(F.lag("boot").over(life), F.col("boot")))
        .otherwise(F.col("boot"))
        .alias("boot"),
        (F.col("dropped") - F.coalesce(F.lag("dropped").over(life), F.lit(0))).alias("more"),
    )
    return told.groupBy(BOOT).agg(F.sum(F.greatest("more", F.lit(0))).cast("long").alias("declared"))


def middle_us(step: Column) -> Column:
    """Return the delay in the middle of a step of delays.py, in microseconds (0 for step 0)."""
    return F.when(step <= 0, 0.0).otherwise(F.pow(F.lit(2.0), (step - 0.5) / delays.STEPS_PER_OCTAVE) * 1000.0)


def boot_delays(tally: DataFrame, clocks: DataFrame, late_after_s: float) -> DataFrame:
    """Return per boot the percentiles of the delay from capture to arrival in ms, and how many came late."""
    offset = F.when(F.col("base_us") < 10**14, F.lit(0)).otherwise(F.col("offset_us"))
    each = (
        tally.join(clocks.select(*BOOT, "offset_us"), BOOT, "left")
        .select(*BOOT, (F.col("base_us") - offset).alias("base"), F.arrays_zip("steps", "counts").alias("bins"))
        .where("base is not null")
        .select(*BOOT, "base", F.explode("bins").alias("bin"))
        .select(
            *BOOT,
            ((F.col("base") + middle_us(F.col("bin.steps"))) / 1000.0).alias("ms"),
            F.col("bin.counts").alias("n"),
        )
    )
    names = [f"delay_p{round(100 * share)}_ms" for share in PERCENTILES]
    found = F.percentile("ms", F.array(*[F.lit(share) for share in PERCENTILES]), F.col("n")).alias("p")
    late = F.sum(F.when(F.col("ms") > 1000.0 * late_after_s, F.col("n")).otherwise(0)).alias("late")
    return (
        each.groupBy(BOOT)
        .agg(found, late)
        .select(*BOOT, "late", *[F.round(F.col("p")[n], 3).alias(name) for n, name in enumerate(names)])
    )


def clocks(ties: DataFrame) -> DataFrame:
    """Return per boot the tie of its uptime to the wall clock: device, life, boot, offset_us, clock_jumps.

    The last one counts: a clock is set, and set again, towards the right time. Ties that would put a message after its
    own arrival by more than a day, or before 2020, are a clock that was not set.
    """
    plausible = "offset_us > 1577836800000000 and offset_us < unix_micros(arrival) + 86400000000"
    order = Window.partitionBy(*BOOT).orderBy("seq")
    jump = F.abs(F.col("offset_us") - F.lag("offset_us").over(order)) > 1_000_000
    last = F.max_by("offset_us", F.when(F.expr(plausible), F.col("seq")))
    return (
        ties.withColumn("jump", jump)
        .groupBy(BOOT)
        .agg(last.alias("offset_us"), F.count_if("jump").alias("clock_jumps"))
    )


def audit(
    extent: DataFrame,
    ranges: DataFrame,
    tally: DataFrame,
    events: DataFrame,
    ties: DataFrame,
    late_after_s: float = 60.0,
) -> DataFrame:
    """Return the audit: one row per device, life and boot."""
    counted = tally.groupBy(BOOT).agg(
        *[F.sum(name).alias(name) for name in ("delivered", "readings", "resent", "replayed", "reordered")],
        F.min("first_arrival").alias("first_arrival"),
        F.max("last_arrival").alias("last_arrival"),
    )
    lost = ranges.groupBy(BOOT).agg(
        F.sum("messages").alias("missing"),
        F.sort_array(F.collect_list(F.struct("lo", "hi"))).alias("missing_ranges"),
    )
    causes = events.where("cause is not null").groupBy(BOOT).agg(F.min_by("cause", "seq").alias("cause"))
    clock = clocks(ties)
    zero = (
        "delivered",
        "readings",
        "resent",
        "replayed",
        "reordered",
        "missing",
        "in_doubt",
        "declared",
        "clock_jumps",
    )
    joined = extent
    for part in (counted, lost, causes, clock, in_doubt(ranges, events), dropped(events)):
        joined = joined.join(part, BOOT, "left")
    joined = joined.join(boot_delays(tally, clock, late_after_s), BOOT, "left").fillna(0, list(zero))
    return joined.select(
        *BOOT,
        "cause",
        F.col("first").alias("first_seq"),
        F.col("last").alias("last_seq"),
        (F.col("last") - F.col("first") + 1).alias("published"),
        "delivered",
        "readings",
        "resent",
        "replayed",
        "missing",
        F.least("declared", "missing").alias("dropped"),
        "in_doubt",
        F.greatest(F.expr("missing - least(declared, missing) - in_doubt"), F.lit(0)).alias("unexplained"),
        "missing_ranges",
        "reordered",
        "late",
        *[f"delay_p{round(100 * share)}_ms" for share in PERCENTILES],
        "clock_jumps",
        F.when(F.col("offset_us").isNotNull(), "clock").otherwise("arrival").alias("dated_by"),
        "open",
        "first_arrival",
        "last_arrival",
    )


def check(readings: DataFrame, events: DataFrame) -> DataFrame:
    """Return per boot what the tables really hold: distinct messages, and rows that are there more than once.

    Plain Spark SQL over the readings themselves, independent of intervals and tallies.
    """
    rows = readings.groupBy(*BOOT, "seq", "index").agg(F.count("*").alias("copies"))
    reading = rows.groupBy(*BOOT, "seq").agg(F.sum(F.col("copies") - 1).alias("twice"))
    event = events.groupBy(*BOOT, "seq").agg((F.count("*") - 1).alias("twice"))
    both = reading.union(event).groupBy(*BOOT, "seq").agg(F.sum("twice").alias("twice"))
    return both.groupBy(BOOT).agg(F.count("*").alias("in_tables"), F.sum("twice").alias("twice"))
