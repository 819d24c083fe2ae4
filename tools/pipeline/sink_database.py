"""What every database of a sink has: its tables, their keys, the position, the view of dated readings, and the calls.

`sink.py` copies commits with these calls; `sink_duckdb.py` and `sink_postgres.py` implement them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from . import schemas
from .ties import AHEAD_US, DRIFT, JUMP_US, SET_SINCE_US

LAYOUT = 1
"""The version of the sinks' tables; increased when they change."""
PLACE = ("collector", "segment", "row", "arrival")
_BOOTS = schemas.AUDIT.names[: schemas.AUDIT.names.index("begun")]
BOOTS = pa.schema([field for field in schemas.AUDIT if field.name in _BOOTS and not pa.types.is_list(field.type)])
TABLES = {"readings": schemas.READINGS, "events": schemas.EVENTS, "ties": schemas.TIES, "boots": BOOTS}
KEYS = {
    "readings": (*PLACE, "index"),
    "events": PLACE,
    "ties": ("device", "life", "boot", "seq"),
    "boots": ("device", "life", "boot"),
}
"""The key columns of each table. Readings and events have their position in the collector's log, which is unique."""
SHEET = ("taken", "device", "name", "value", "unit", "text", "flag", "dated_by", "arrival")


class SinkError(Exception):
    """The database can't be used. The text has the reason and what to do."""


@dataclass
class Position:
    """The last commit in a database.

    Attributes:
        output: the output directory's id: see `sink.identity`.
        boots: the files of the audit whose rows the database has.
    """

    output: str
    batch: int
    stream: str
    stream_batch: int
    boots: list[str] = field(default_factory=list)
    layout: int = LAYOUT


class Sink(Protocol):
    """A database. All methods except `forget` are called inside its transaction."""

    where: str

    def transaction(self) -> AbstractContextManager[None]:
        """Return an exclusive transaction. Its begin creates the tables if they do not exist."""

    def position(self) -> Position | None:
        """Return the position; None if the database is empty."""

    def move(self, position: Position) -> None:
        """Set the position."""

    def add(self, table: str, rows: pa.Table, maybe_there: bool) -> None:
        """Add rows; with `maybe_there` skip those that exist."""

    def put(self, table: str, rows: pa.Table) -> None:
        """Add rows; replace those with the same keys."""

    def clear(self) -> None:
        """Delete all rows and the position."""

    def forget(self, devices: list[str]) -> int:
        """Delete all rows of some devices, and their bytes; return the number of rows."""

    def dated(self) -> Iterator[list[tuple[Any, ...]]]:
        """Yield the rows of the view `dated` (SHEET's columns), in batches, sorted by device and time."""

    def close(self) -> None:
        """Close the database."""


def as_json(position: Position) -> str:
    """Return a position as JSON, for the table `position`."""
    return json.dumps(asdict(position))


def position_of(rows: list[tuple[Any, ...]]) -> Position | None:
    """Return the position from the rows of the table `position`."""
    return Position(**json.loads(rows[0][0])) if rows else None


# The time of a reading, as in dating.py. DuckDB and PostgreSQL share this SQL, except for two expressions.


def column_definition(field: pa.Field, types: Mapping[pa.DataType, str]) -> str:
    """Return a column's definition for CREATE TABLE; `types` has the database's names of types."""
    return f'"{field.name}" {types[field.type]}' + ("" if field.nullable else " NOT NULL")


def column_list(names: Iterable[str]) -> str:
    """Return column names for a statement."""
    return ", ".join(f'"{name}"' for name in names)


def dated_view(us: str, moment: str) -> str:
    """Return the query of the view `dated`.

    Args:
        us: an expression that converts a time, `{}`, to µs since 1970.
        moment: the inverse expression, with `{}` for the µs.
    """
    has_own_time = (
        f"{us.format('r.time')} > {SET_SINCE_US} AND {us.format('r.time')} < {us.format('r.arrival')} + {AHEAD_US}"
    )
    return f"""
WITH right_ones AS (
  SELECT device, life, boot, seq, offset_us, uptime,
    lag(offset_us) OVER w AS offset_before, lag(uptime) OVER w AS uptime_before, row_number() OVER (
      PARTITION BY device, life, boot ORDER BY seq DESC, offset_us DESC, uptime DESC) AS from_the_end
  FROM ties
  WHERE offset_us + CAST(uptime * 1e6 AS bigint) > {SET_SINCE_US}
    AND offset_us + CAST(uptime * 1e6 AS bigint) < {us.format("arrival")} + {AHEAD_US}
  WINDOW w AS (PARTITION BY device, life, boot ORDER BY seq, offset_us, uptime)
), clocks AS (
  SELECT device, life, boot, max(CASE WHEN from_the_end = 1 THEN offset_us END) AS offset_us,
    max(CASE WHEN abs(offset_us - offset_before) > {JUMP_US} + (uptime - uptime_before) * {DRIFT * 1e6} THEN seq END) AS set_at
  FROM right_ones GROUP BY device, life, boot
), told AS (
  SELECT r.*, c.offset_us, CASE WHEN {has_own_time} AND (c.set_at IS NULL OR r.seq >= c.set_at) THEN 'clock'
    WHEN c.offset_us IS NOT NULL AND r.uptime IS NOT NULL THEN 'uptime' ELSE 'arrival' END AS dated_by
  FROM readings r LEFT JOIN clocks c ON c.device = r.device AND c.life = r.life AND c.boot = r.boot
)
SELECT CASE dated_by WHEN 'clock' THEN time WHEN 'uptime'
    THEN {moment.format("(offset_us + CAST(round(uptime * 1e6) AS bigint))")} ELSE arrival END AS taken,
  device, name, value, unit, text, flag, dated_by, arrival, life, boot, seq, "index"
FROM told"""
