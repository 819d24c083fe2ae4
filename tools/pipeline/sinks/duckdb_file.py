"""A DuckDB file as a sink: one file, without a server.

Each row is in the file once, because the same transaction writes rows and position. Only after a compaction of commits that
the sink has not read are rows compared with existing ones. Times are in UTC, without a time zone, as in spreadsheets.
"""

import os
from contextlib import suppress
from pathlib import Path

import duckdb
import pyarrow as pa

from tools.landing.durable import sync_directory

from .database import Sink, SinkError, dated_view, first_line


class DuckSink(Sink):
    """A DuckDB file."""

    error, other_tables = duckdb.Error, duckdb.ProgrammingError
    mark, moment, view = "?", "TIMESTAMP", dated_view("epoch_us({})", "make_timestamp({})")

    def __init__(self, path: Path):
        # The target of a link, because `forget` replaces the file.
        self.path, self.where = path.resolve(), str(path)
        self._anew = self.path.with_name(f".{self.path.name}.anew")
        self._open()

    def _open(self) -> None:
        if not self.path.parent.is_dir():
            raise SinkError(f"{self.path}: there is no folder {self.path.parent}: make it, or check the path")
        if self.path.is_dir():
            raise SinkError(f"{self.path} is a folder: give a file in it, such as {self.path / 'readings.duckdb'}")
        is_new = not self.path.exists()
        try:
            if is_new:  # under another name, because DuckDB can't open the part that a kill or a full disk leaves
                self._anew.unlink(missing_ok=True)
                duckdb.connect(str(self._anew)).close()
                with suppress(FileNotFoundError):  # another sink has made it meanwhile
                    self._anew.replace(self.path)
            self._connection = duckdb.connect(str(self.path), config={"threads": 2})
        except self.error as error:
            text = first_line(error)
            self._anew.unlink(missing_ok=True)
            if "lock" in text:
                raise SinkError(f"{self.path} is open in another program: close it there") from None
            raise SinkError(
                f"{self.path}: {text}{'' if is_new else '. Is it a DuckDB file, of this version?'}"
            ) from None

    def _prepare(self) -> None:
        if not self._run("SELECT 1 FROM duckdb_tables() WHERE table_name = 'position'"):
            self._create()

    def _run_with(self, table: str, rows: pa.Table, *statements: str) -> None:
        naive = [one.with_type(pa.timestamp("us")) if pa.types.is_timestamp(one.type) else one for one in rows.schema]
        self._connection.register("incoming", rows.cast(pa.schema(naive)))
        try:
            for one in statements:
                self._run(one)
        finally:
            with suppress(self.error):  # after an error there is no transaction in which it could
                self._connection.unregister("incoming")

    def _rewrite(self) -> None:
        anew = self._anew
        anew.unlink(missing_ok=True)
        own = self._run("SELECT current_database()")[0][0].replace('"', '""')
        quoted = str(anew).replace("'", "''")
        try:
            self._run(f"ATTACH '{quoted}' AS \"{own}.anew\"")
            self._run(f'COPY FROM DATABASE "{own}" TO "{own}.anew"')
            self._run(f'DETACH "{own}.anew"')
        except self.error:
            anew.unlink(missing_ok=True)
            raise
        self._connection.close()
        with anew.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(anew, self.path)
        sync_directory(self.path.absolute().parent)
        for leftover in (self.path.with_name(self.path.name + ".wal"), anew.with_name(anew.name + ".wal")):
            leftover.unlink(missing_ok=True)
        self._open()
