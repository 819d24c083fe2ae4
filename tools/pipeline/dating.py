"""When a reading was taken, where its board may not have known the time.

A record that has both uptime and wall-clock time ties one to the other for its whole boot, backwards too: so readings are
dated when they are read, by a join with their boot's clock, and a tie that comes a week later dates all that was
written before it. A board that never learns the time is dated by arrival, and marked so (`dated_by`). A clock that was set
wrong and then right moves against the uptime: what it said before it was set for the last time does not count.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from .ties import AHEAD_US, DRIFT, JUMP_US, SET_SINCE_US

BOOT = ["device", "life", "boot"]


def plausible(clock_us: Column, arrival: Column) -> Column:
    """Return whether a board's clock can be right."""
    return (clock_us > SET_SINCE_US) & (clock_us < F.unix_micros(arrival) + AHEAD_US)


def ties_of() -> Column:
    """Return a boot's ties in order: an aggregate of (seq, offset_us, uptime), of those that can be right."""
    right = plausible(F.col("offset_us") + (F.col("uptime") * 1e6).cast("long"), F.col("arrival"))
    return F.sort_array(F.collect_list(F.when(right, F.struct("seq", "offset_us", "uptime"))))


def jumps(ties: Column) -> Column:
    """Return how often a clock was set anew, and at which message for the last time: (n, seq), seq null for never."""
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
    """Return a boot's wall-clock time less its uptime: the last tie's, null where there is none."""
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
    """Add when each reading was taken: `taken`, and by what that is known, `dated_by` (clock, uptime or arrival).

    A reading's own time counts unless it was told before the clock was set for the last time.
    """
    told = plausible(F.unix_micros("time"), F.col("arrival")) & (
        F.col("set_at").isNull() | (F.col("seq") >= F.col("set_at"))
    )
    by_uptime = F.timestamp_micros(F.col("offset_us") + F.round(F.col("uptime") * 1e6).cast("long"))
    by = (
        F.when(told, "clock")
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
