"""PostgreSQL as a sink. With TimescaleDB in the database, the readings are a hypertable by arrival.

COPY writes the rows into a temporary table, and INSERT copies those with a new key from there; the same transaction writes
the position. Texts that PostgreSQL can't store are changed: U+0000 becomes U+FFFD, and names that are too long for its indexes
are cut, with a digest at the end. (In a database whose encoding does not have U+FFFD, U+0000 becomes "?".)
"""

import hashlib
import io
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from tools.landing.names import Names

from .database import TABLES, Sink, SinkError, column_list, dated_view, first_line

NAMES = ("device", "name", "collector")
LONGEST_NAME_BYTES = 600
CHUNK = "7 days"


class PostgresSink(Sink):
    """A schema of a PostgreSQL database."""

    error = psycopg.Error
    other_tables = (psycopg.errors.DuplicateTable, psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn)
    mark, moment, conflict = "%s", "timestamptz", "ON CONFLICT DO NOTHING"
    view = dated_view(
        "CAST(extract(epoch FROM {}) * 1000000 AS bigint)", "(timestamptz 'epoch' + {} * interval '1 microsecond')"
    )

    def __init__(self, to: str, schema: str):
        self.where, self._schema = address(to), schema
        try:
            self._connection = psycopg.connect(to, autocommit=True, connect_timeout=10, client_encoding="utf8")
        except self.error as error:
            raise SinkError(f"{self.where}: {first_line(error)}") from None
        self._nul = "\ufffd" if self._holds("\ufffd") else "?"
        self._cut = "…" if self._holds("…") else "..."

    def _holds(self, text: str) -> bool:
        """Return whether the database's encoding has all characters of a text."""
        try:
            return bool(self._connection.execute("SELECT %s::text", [text]))
        except psycopg.errors.UntranslatableCharacter:
            return False
        except self.error as error:
            raise SinkError(f"{self.where}: {first_line(error)}") from error

    def _prepare(self) -> None:
        """Lock out other sinks; create the schema, tables and view if they do not exist."""
        # A role or a database may have other settings.
        self._run("SET LOCAL TIME ZONE 'UTC'; SET LOCAL DateStyle TO ISO; SET LOCAL extra_float_digits TO 1")
        self._run("SELECT pg_advisory_xact_lock(hashtext(%s))", [f"flashmqtt {self._schema}"])
        # Not IF NOT EXISTS: this needs rights on the database also if the schema exists.
        if not self._run("SELECT to_regnamespace(%s)", [f'"{self._schema}"'])[0][0]:
            self._run(f'CREATE SCHEMA "{self._schema}"')
        self._run(f'SET LOCAL search_path TO "{self._schema}", public')
        if self._run("SELECT to_regclass(%s)", [f'"{self._schema}".position'])[0][0]:
            return
        self._create()
        if self._run("SELECT 1 FROM pg_proc WHERE proname = 'create_hypertable'"):
            self._run("SELECT create_hypertable('readings', 'arrival', chunk_time_interval => %s::interval)", [CHUNK])
        self._run("CREATE INDEX readings_by_device ON readings (device, arrival)")

    def _run_with(self, table: str, rows: pa.Table, *statements: str) -> None:
        names = column_list(TABLES[table].names)
        self._run("DROP TABLE IF EXISTS pg_temp.incoming")
        self._run(f"CREATE TEMPORARY TABLE incoming ON COMMIT DROP AS SELECT {names} FROM {table} WITH NO DATA")
        text = io.BytesIO()
        pyarrow.csv.write_csv(self._storable(rows), text, pyarrow.csv.WriteOptions(include_header=False))
        try:
            with self._connection.cursor().copy(f"COPY incoming ({names}) FROM STDIN (FORMAT csv)") as copy:
                copy.write(text.getvalue())
        except psycopg.errors.UntranslatableCharacter as error:
            remedy = "make a database with ENCODING 'UTF8', and copy everything into it"
            raise SinkError(f"{self.where}: a text of {table}: {first_line(error)}: {remedy}") from error
        for one in statements:
            self._run(one)

    def _storable(self, rows: pa.Table) -> pa.Table:
        """Return the rows with texts that PostgreSQL can store."""
        for n, kind in enumerate(rows.schema):
            if not pa.types.is_string(kind.type):
                continue
            column = rows.column(n)
            if pc.any(pc.match_substring(column, "\0")).as_py():
                column = pc.replace_substring(column, "\0", self._nul)
            if kind.name in NAMES and (pc.max(pc.binary_length(column)).as_py() or 0) > LONGEST_NAME_BYTES:
                encoded = column.combine_chunks().dictionary_encode()
                texts = [self._short(one) for one in encoded.dictionary.to_pylist()]
                column = pa.array(texts, pa.string()).take(encoded.indices)
            rows = rows.set_column(n, kind, column)
        return rows

    def _short(self, name: str) -> str:
        """Return a name that is short enough for an index; different names stay different."""
        name = name.replace("\0", self._nul)
        data = name.encode()
        if len(data) <= LONGEST_NAME_BYTES:
            return name
        return (
            data[: LONGEST_NAME_BYTES - 40].decode(errors="ignore")
            + self._cut
            + hashlib.blake2b(data, digest_size=16).hexdigest()
        )

    def forget(self, devices: list[str], names: Names | None = None) -> int:
        """Delete all rows of some devices, and their bytes; return the number of rows. Mask `names` in the other rows.

        The server's write-ahead log, replicas and backups are not changed.
        """
        return super().forget([one for one in map(self._short, devices) if self._holds(one)], names)

    def _rewrite(self) -> None:
        warnings: list[str] = []
        self._connection.add_notice_handler(lambda one: warnings.append(one.message_primary))
        for table in TABLES:
            self._run(f'VACUUM FULL "{self._schema}".{table}')
        if warnings:  # only the owner of a table may
            raise SinkError(
                f"{self.where}: {warnings[0]}. Deleted rows are still in the server's files: VACUUM FULL deletes them"
            )

    def _cursor(self) -> Any:
        return self._connection.cursor("flashmqtt_dated")  # on the server: the client would read all rows at once


def address(to: str) -> str:
    """Return an address without its password."""
    try:
        parameters: dict[str, Any] = psycopg.conninfo.conninfo_to_dict(to)
    except psycopg.Error as error:
        raise SinkError(f"this is no PostgreSQL address: {first_line(error)}") from None
    parameters.pop("password", None)
    return str(psycopg.conninfo.make_conninfo(**parameters)) or "dbname="
