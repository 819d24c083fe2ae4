"""What every database of a sink has: its tables, their keys, the position, the view of dated readings, and the calls.

`sink.py` copies commits with these calls; `duckdb_file.py` and `postgres.py` implement them.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa

from tools.command import Failure
from tools.landing.names import Names
from tools.pipeline.batch import dating
from tools.pipeline.tables import schemas

LAYOUT = 2
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
TYPES = {
    pa.string(): "text",
    pa.int32(): "integer",
    pa.int64(): "bigint",
    pa.float64(): "double precision",
    pa.bool_(): "boolean",
}
SHEET = ("taken", "device", "name", "value", "unit", "text", "flag", "dated_by", "arrival")
ROWS = 20_000
SHEET_QUERY = f"SELECT {', '.join(SHEET)} FROM dated ORDER BY device, taken, name"

OTHER_TABLES = (
    ": if these are another program's tables, give another --to, or --schema; if ours were changed, give --anew"
)


class SinkError(Failure):
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


class Sink(ABC):
    """A database. All methods except `forget` are called inside its transaction.

    Attributes:
        where: the database, for people.
        error: what its driver raises.
        other_tables: what it raises if tables of our names have other columns, or some do not exist.
        mark: a parameter in its SQL.
        moment: its type of a time.
        view: the query of the view `dated`.
        conflict: the end of an INSERT that skips rows with a used key, if its tables have primary keys.
    """

    where: str
    error: type[Exception]
    other_tables: type[Exception] | tuple[type[Exception], ...]
    mark: str
    moment: str
    view: str
    conflict = ""
    _connection: Any

    def _run(self, sql: str, parameters: list[Any] | None = None) -> list[tuple[Any, ...]]:
        """Run a statement; return its rows."""
        found = self._connection.execute(sql, parameters)
        return list(found.fetchall()) if found.description else []

    @abstractmethod
    def _prepare(self) -> None:
        """Begin a transaction: lock out others; create tables and view if they do not exist."""

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Begin an exclusive transaction; commit, or roll back if the block raises."""
        try:
            self._run("BEGIN")
            self._prepare()
            yield
            self._run("COMMIT")
        except BaseException as error:
            with suppress(self.error):  # it may be rolled back already, or the connection is closed
                self._run("ROLLBACK")
            if isinstance(error, self.error):
                is_other = isinstance(error, self.other_tables)
                raise SinkError(f"{self.where}: {first_line(error)}{OTHER_TABLES if is_other else ''}") from error
            raise

    def _create(self) -> None:
        """Create the tables and the view."""
        for table, schema in TABLES.items():
            columns = [
                f'"{one.name}" {TYPES.get(one.type, self.moment)}{"" if one.nullable else " NOT NULL"}'
                for one in schema
            ]
            key = [f"PRIMARY KEY ({column_list(KEYS[table])})"] if self.conflict else []
            self._run(f"CREATE TABLE {table} ({', '.join(columns + key)})")
        self._run(f"CREATE VIEW dated AS {self.view}")
        self._run("CREATE TABLE position (told text NOT NULL)")

    def position(self) -> Position | None:
        """Return the position; None if there is none.

        Raises:
            SinkError: it is damaged.
        """
        rows = self._run("SELECT told FROM position")
        try:
            found = Position(**json.loads(rows[0][0])) if rows else None
            if found and [*map(type, vars(found).values())] != [str, int, str, int, list, int]:
                raise TypeError("a value of another type")
        except (TypeError, ValueError) as error:
            wrote = f"another program or version wrote its table `position`: {error}"
            raise SinkError(f"{self.where}: {wrote}{OTHER_TABLES}") from error
        return found

    def is_empty(self) -> bool:
        """Return whether there are no rows."""
        return not any(self._run(f"SELECT 1 FROM {table} LIMIT 1") for table in TABLES)

    def move(self, position: Position) -> None:
        """Set the position."""
        self._run("DELETE FROM position")
        self._run(f"INSERT INTO position VALUES ({self.mark})", [json.dumps(asdict(position))])

    @abstractmethod
    def _run_with(self, table: str, rows: pa.Table, *statements: str) -> None:
        """Run statements with a table `incoming`, which has rows of this table."""

    def add(self, table: str, rows: pa.Table, maybe_there: bool) -> None:
        """Add rows; with `maybe_there` skip those that exist."""
        but = f"WHERE NOT EXISTS (SELECT 1 FROM {table} WHERE {_same(table)})" if maybe_there else ""
        self._run_with(table, rows, self._insertion(table, but))

    def put(self, table: str, rows: pa.Table) -> None:
        """Add rows; replace those with the same keys."""
        deletion = f"DELETE FROM {table} USING incoming WHERE {_same(table)}"
        self._run_with(table, rows, deletion, self._insertion(table))

    def _insertion(self, table: str, but: str = "") -> str:
        names = column_list(TABLES[table].names)
        return f"INSERT INTO {table} ({names}) SELECT {names} FROM incoming {but} {self.conflict}"

    def clear(self) -> None:
        """Delete all rows and the position. The tables are made again, because they may be of an older layout."""
        for kind, name in (("VIEW", "dated"), *(("TABLE", table) for table in (*TABLES, "position"))):
            self._run(f"DROP {kind} IF EXISTS {name}")
        self._prepare()

    def forget(self, devices: list[str], names: Names | None = None) -> int:
        """Delete all rows of some devices, and their bytes; return the number of rows. Mask `names` in the other rows."""
        deleted = 0
        with self.transaction():
            for table, schema in TABLES.items():
                rows = f"FROM {table} WHERE device = ANY({self.mark})"
                deleted += self._run(f"SELECT count(*) {rows}", [devices])[0][0]
                self._run(f"DELETE {rows}", [devices])
                for one in schema:
                    if names and one.type == pa.string() and one.name != "device":
                        self._mask(table, f'"{one.name}"', names)
        try:
            self._rewrite()
        except self.error as error:
            raise SinkError(f"{self.where}: {first_line(error)}") from error
        return deleted

    def _mask(self, table: str, column: str, names: Names) -> None:
        """Replace names in a column's texts by asterisks, as in our tables."""
        for form in filter(self._holds, (form.decode() for form in names.forms)):
            for (text,) in self._run(
                f"SELECT DISTINCT {column} FROM {table} WHERE strpos({column}, {self.mark}) > 0", [form]
            ):
                masked = names.without(text.encode()).decode()
                self._run(f"UPDATE {table} SET {column} = {self.mark} WHERE {column} = {self.mark}", [masked, text])

    def _holds(self, text: str) -> bool:
        """Return whether the database's encoding has all characters of a text."""
        return True

    @abstractmethod
    def _rewrite(self) -> None:
        """Rewrite the database's files, because they keep deleted bytes."""

    def _cursor(self) -> Any:
        """Return what runs a query whose rows are fetched in parts."""
        return self._connection

    def dated(self) -> Iterator[list[tuple[Any, ...]]]:
        """Yield the rows of the view `dated` (SHEET's columns), in batches, sorted by device and time."""
        with self.transaction():
            found = self._cursor().execute(SHEET_QUERY)
            while rows := found.fetchmany(ROWS):
                yield rows

    def close(self) -> None:
        """Close the database. All written rows of a DuckDB file are in it then, without a separate log."""
        self._connection.close()


def first_line(error: Exception) -> str:
    """Return the first line of a driver's error."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def column_list(names: Iterable[str]) -> str:
    """Return column names for a statement."""
    return ", ".join(f'"{name}"' for name in names)


def _same(table: str) -> str:
    return " AND ".join(f'{table}."{name}" = incoming."{name}"' for name in KEYS[table])


def dated_view(us: str, moment: str) -> str:
    """Return the query of the view `dated`, for a database's expressions: see dating.py."""
    names = column_list((*SHEET[1:7], "arrival", "life", "boot", "seq", "index"))
    return dating.dated_query([names], f"({dating.clocks_query(us)})", us, moment)
