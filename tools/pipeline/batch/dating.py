"""Compute when a reading was taken, also if its board did not know the time then.

A record with both uptime and wall-clock time (a tie) gives the offset between the two for its whole boot, also for earlier
readings. So readings are dated when a program reads them, by a join with their boot's clock: a tie that arrives a week
later also dates the readings that were written before. The readings of a board that never learns the time are dated by
their arrival. `dated_by` has the method. If a clock was set wrong and later right, its offset from the uptime jumps; times
from before the last jump are not used.

Spark, DuckDB and PostgreSQL share the SQL, except for two expressions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from .ties import AHEAD_US, DRIFT, JUMP_US, SET_SINCE_US

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

US, MOMENT = "unix_micros({})", "timestamp_micros({})"  # Spark's expressions


def clocks_query(us: str = US, ties: str = "ties") -> str:
    """Return the query of each boot's clock: device, life, boot, offset_us, and set_at, the number after its last jump.

    Args:
        us: an expression that converts a time, `{}`, to µs since 1970.
        ties: the table.
    """
    clock_us = "offset_us + CAST(uptime * 1e6 AS bigint)"
    return f"""
WITH right_ones AS (
  SELECT device, life, boot, seq, offset_us, uptime,
    lag(offset_us) OVER w AS offset_before, lag(uptime) OVER w AS uptime_before, row_number() OVER (
      PARTITION BY device, life, boot ORDER BY seq DESC, offset_us DESC, uptime DESC) AS from_the_end
  FROM {ties}
  WHERE {clock_us} > {SET_SINCE_US} AND {clock_us} < {us.format("arrival")} + {AHEAD_US}
  WINDOW w AS (PARTITION BY device, life, boot ORDER BY seq, offset_us, uptime)
)
SELECT device, life, boot, max(CASE WHEN from_the_end = 1 THEN offset_us END) AS offset_us,
  max(CASE WHEN abs(offset_us - offset_before) > {JUMP_US} + (uptime - uptime_before) * {DRIFT * 1e6} THEN seq END) AS set_at
FROM right_ones GROUP BY device, life, boot"""


def dated_query(
    columns: Iterable[str], clocks: str, us: str = US, moment: str = MOMENT, readings: str = "readings"
) -> str:
    """Return the query of the dated readings: the time, `taken`, and its source, `dated_by` (clock, uptime or arrival).

    A reading's own time is used unless the reading is from before the clock's last jump.

    Args:
        columns: of the readings, quoted if necessary.
        clocks: the table of the boots' clocks.
        us: as in `clocks_query`.
        moment: the inverse expression, with `{}` for the µs.
        readings: the table.
    """
    time_us, arrival_us = us.format("r.time"), us.format("r.arrival")
    return f"""
WITH with_source AS (
  SELECT r.*, c.offset_us, CASE
    WHEN {time_us} > {SET_SINCE_US} AND {time_us} < {arrival_us} + {AHEAD_US} AND (c.set_at IS NULL OR r.seq >= c.set_at)
    THEN 'clock' WHEN c.offset_us IS NOT NULL AND r.uptime IS NOT NULL THEN 'uptime' ELSE 'arrival' END AS dated_by
  FROM {readings} r LEFT JOIN {clocks} c ON c.device = r.device AND c.life = r.life AND c.boot = r.boot
)
SELECT {", ".join(columns)}, CASE dated_by WHEN 'clock' THEN time WHEN 'uptime'
    THEN {moment.format("(offset_us + CAST(round(uptime * 1e6) AS bigint))")} ELSE arrival END AS taken, dated_by
FROM with_source"""


def clocks(ties: DataFrame) -> DataFrame:
    """Return the clock of each boot that has one."""
    return ties.sparkSession.sql(clocks_query(ties="{ties}"), ties=ties)


def dated(readings: DataFrame, clock: DataFrame) -> DataFrame:
    """Add `taken` and `dated_by` to readings."""
    query = dated_query([f"`{name}`" for name in readings.columns], "{clock}", readings="{readings}")
    return readings.sparkSession.sql(query, readings=readings, clock=clock)
