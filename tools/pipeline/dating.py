"""Compute when a reading was taken, also if its board did not know the time then.

A record with both uptime and wall-clock time (a tie) gives the offset between the two for its whole boot, also for earlier
readings. So readings are dated when a program reads them, by a join with their boot's clock: a tie that arrives a week
later also dates the readings that were written before. The readings of a board that never learns the time are dated by
their arrival. `dated_by` has the method. If a clock was set wrong and later right, its offset from the uptime jumps; times
from before the last jump are not used.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from .ties import AHEAD_US, DRIFT, JUMP_US, SET_SINCE_US

BOOT = ["device", "life", "boot"]


def plausible(clock_us: Column, arrival: Column) -> Column:
    """Return whether a board's clock is plausible."""
    return (clock_us > SET_SINCE_US) & (clock_us < F.unix_micros(arrival) + AHEAD_US)


def ties_of() -> Column:
    """Return a boot's plausible ties in order: an aggregate of (seq, offset_us, uptime)."""
    is_plausible = plausible(F.col("offset_us") + (F.col("uptime") * 1e6).cast("long"), F.col("arrival"))
    return F.sort_array(F.collect_list(F.when(is_plausible, F.struct("seq", "offset_us", "uptime"))))


def jumps(ties: Column) -> Column:
    """Return how often a clock jumped, and the first message after the last jump: (n, seq); seq is null if it never did."""
    before = F.slice(ties, 1, F.greatest(F.size(ties) - 1, F.lit(0)))
    after = F.slice(ties, 2, F.greatest(F.size(ties) - 1, F.lit(0)))
    moved = F.zip_with(
        before,
        after,
        lambda one, next_: F.when(
            F.abs(next_["offset_us"] - one["offset_us"]) > JUMP_US + (next_["uptime"] - one["uptime"]) * DRIFT * 1e6,
            next_["seq"],
        ),
    )
    found = F.filter(moved, lambda seq: seq.isNotNull())
    return F.struct(F.size(found).alias("n"), F.array_max(found).alias("seq"))


def offset_us(ties: Column) -> Column:
    """Return a boot's wall-clock time minus its uptime, from its last tie; null if it has no tie."""
    return F.get(ties, F.size(ties) - 1)["offset_us"]


def clocks(ties: DataFrame) -> DataFrame:
    """Return the clock of each boot that has one: device, life, boot, offset_us, set_at, clock_jumps."""
    return (
        ties.groupBy(BOOT)
        .agg(ties_of().alias("ties"))
        .withColumn("jumps", jumps(F.col("ties")))
        .select(
            *BOOT,
            offset_us(F.col("ties")).alias("offset_us"),
            F.col("jumps.seq").alias("set_at"),
            F.col("jumps.n").alias("clock_jumps"),
        )
    )


def dated(readings: DataFrame, clock: DataFrame) -> DataFrame:
    """Add the time of each reading, `taken`, and its source, `dated_by` (clock, uptime or arrival).

    A reading's own time is used unless the reading is from before the clock's last jump.
    """
    has_own_time = plausible(F.unix_micros("time"), F.col("arrival")) & (
        F.col("set_at").isNull() | (F.col("seq") >= F.col("set_at"))
    )
    by_uptime = F.timestamp_micros(F.col("offset_us") + F.round(F.col("uptime") * 1e6).cast("long"))
    by = (
        F.when(has_own_time, "clock")
        .when(F.col("offset_us").isNotNull() & F.col("uptime").isNotNull(), "uptime")
        .otherwise("arrival")
    )
    return (
        readings.join(F.broadcast(clock), BOOT, "left")
        .withColumn("dated_by", by)
        .withColumn(
            "taken",
            F.when(F.col("dated_by") == "clock", F.col("time"))
            .when(F.col("dated_by") == "uptime", by_uptime)
            .otherwise(F.col("arrival")),
        )
        .select(*readings.columns, "taken", "dated_by")
    )
