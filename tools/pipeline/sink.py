"""`python -m tools.pipeline.sink --out DIR --to WHERE`: copy the committed readings into a database, each exactly once.

WHERE is a DuckDB file (`readings.duckdb`) or a PostgreSQL server (`postgresql://user@host/database`). One transaction copies
a commit's rows and the position, which is the last commit in the database. So if the sink or the database is killed, the
next start continues after the last complete commit. If a compaction has replaced several commits by one, rows that the
database has are skipped.

The boots' rows are those of the newest commit, because late messages correct them. Rows that our tables delete for their
age stay in the database, which has its own retention. Exit status: 0, or 2 if it could not run.
"""

import argparse
import csv
import hashlib
import json
import re
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from tools import command
from tools.landing.durable import replacing
from tools.landing.names import Names

from . import options
from .sinks.database import BOOTS, LAYOUT, SHEET, TABLES, Position, Sink, SinkError
from .tables.commits import Commit, Output
from .tables.storage import Storage, retried

SINKS = "sinks"
REGISTERED = "registered.json"  # the end of the files' names; earlier versions had one file of this name, with a list
IDENTITY = "sinks/id.json"
FORMULA = ("=", "+", "-", "@", "\t", "\r")
SHEET_ROWS = 1_048_575
ANEW = "--anew deletes its rows and copies everything again"
NO_DATABASE = (".csv", ".tsv", ".txt", ".xls", ".xlsx", ".ods", ".json", ".parquet")


def open_sink(to: str, schema: str = "flashmqtt") -> Sink:
    """Open a database.

    Raises:
        SinkError: it can't be opened, or its driver is not installed.
    """
    try:
        if not _is_address(to):
            from .sinks.duckdb_file import DuckSink

            return DuckSink(Path(to))
        if not to.startswith(("postgresql://", "postgres://")) and "://" in to:
            raise SinkError(f"{to}: give a file's path, or postgresql://user@host/database")
        from .sinks.postgres import PostgresSink

        return PostgresSink(to, schema)
    except ImportError as error:
        raise SinkError(f"the package {error.name} is not installed: pip install -r requirements.txt") from None


def _is_address(to: str) -> bool:
    """Return whether `to` is a server's address, not a file's path (which may contain `=`, too)."""
    return "://" in to or re.match(r"\s*[a-z_]+\s*=", to) is not None


def identity(output: Output) -> str:
    """Return an output's random id, which distinguishes it from others, such as those of `remake`. Make it if needed."""
    if not output.storage.exists(IDENTITY):
        output.storage.write_json(IDENTITY, {"id": uuid.uuid4().hex})
    return str(_read(output, IDENTITY, dict, "delete it, and give --anew")["id"])


def bring(
    output: Output, sink: Sink, anew: bool = False, taken: Callable[[], None] = lambda: None
) -> list[tuple[int, int]]:
    """Update a database to the newest commit; return (batch, readings) of each copied commit.

    Call `taken` when the database is known to be ours, before the first row is written.

    Raises:
        SinkError: the database has rows of another output, or a later position than this output.
    """
    own = identity(output)
    copied: list[tuple[int, int]] = []
    while (brought := retried(lambda: _next(output, own, sink, anew and not copied, taken))) is not None:
        copied.append(brought)
    return copied


def _next(output: Output, own: str, sink: Sink, anew: bool, taken: Callable[[], None]) -> tuple[int, int] | None:
    """Copy the next commit in one transaction; return its batch and number of readings, or None if there is none."""
    with sink.transaction():
        try:
            before = sink.position()  # with `anew`, too: another program's table of this name must not be deleted
        except SinkError:
            if not anew:
                raise
        if anew:
            sink.clear()
            before = None
        commits = output.checked_commits()
        if before:
            _check(before, own, commits, sink)
        elif not sink.is_empty():
            raise SinkError(f"{sink.where} has rows, but no position: {ANEW}")
        taken()
        reached = before.batch if before else 0
        left = [commit for commit in commits if commit.batch > reached]
        if not left:
            return None
        commit = left[0]
        maybe_there = commit.whole and reached > 0
        for table in ("readings", "events", "ties"):
            for rows in _rows(output.storage, commit.files.get(table, ()), TABLES[table]):
                sink.add(table, rows, maybe_there)
        boots = before.boots if before else []
        if commit is commits[-1]:  # the state of older commits may be deleted
            files = commit.state_files("audit")
            for rows in _rows(output.storage, [name for name in files if name not in boots], BOOTS):
                sink.put("boots", rows)
            boots = files
        sink.move(Position(own, commit.batch, commit.stream, commit.stream_batch, boots))
        return commit.batch, commit.rows.get("readings", 0)


def _check(before: Position, own: str, commits: list[Commit], sink: Sink) -> None:
    """Check that a position is of one of these commits.

    Raises:
        SinkError: it is not.
    """
    if before.layout != LAYOUT:
        raise SinkError(f"{sink.where} has tables of layout {before.layout}, this program writes {LAYOUT}: {ANEW}")
    same = [commit for commit in commits if commit.batch == before.batch]
    if before.output != own or any(
        (one.stream, one.stream_batch) != (before.stream, before.stream_batch) for one in same
    ):
        raise SinkError(
            f"{sink.where} has rows of other tables (or of these, before they were made again): give another --to, or {ANEW}"
        )
    if not commits or before.batch > commits[-1].batch:
        raise SinkError(
            f"{sink.where} is at batch {before.batch}, but the tables end before it. If they were restored from a backup, restore"
            f" newer ones, or {ANEW}"
        )


def _rows(storage: Storage, files: Iterable[str], schema: pa.Schema) -> Iterator[pa.Table]:
    for name in files:
        for batch in storage.batches(name, schema.names):
            if batch.num_rows:
                yield pa.Table.from_batches([batch]).select(schema.names).cast(schema)


# The list of databases that have an output's rows, for the deletion of devices.


def register(output: Output, to: str, schema: str) -> None:
    """Add a database to the output's list, without its password.

    Each database has a file of its own, so that two that are added at the same moment both stay.
    """
    if _is_address(to):
        from .sinks.postgres import address

        to = address(to)
    else:
        to = str(Path(to).resolve())
    one = {"to": to, "schema": schema}
    if one not in registered(output):
        digest = hashlib.sha256(json.dumps(one, sort_keys=True).encode()).hexdigest()
        output.storage.write_json(f"{SINKS}/{digest[:16]}.{REGISTERED}", [one])


def registered(output: Output) -> list[dict[str, str]]:
    """Return the databases that have rows of an output, as arguments of `open_sink`."""
    return [one for _, one in _entries(output)]


def _entries(output: Output) -> list[tuple[str, dict[str, str]]]:
    """Return the file and the entry of each registered database."""
    storage = output.storage
    names = [f"{SINKS}/{name}" for name in storage.list(SINKS) if name.endswith(REGISTERED)]
    remedy = "delete it, and run the sink for its database again"
    return [(name, one) for name in names for one in _read(output, name, list, remedy)]


def _read(output: Output, name: str, kind: type, remedy: str) -> Any:
    """Read a JSON file.

    Raises:
        SinkError: it is damaged.
    """
    with suppress(ValueError):
        if isinstance(found := output.storage.read_json(name), kind):
            return found
    raise SinkError(f"{output.storage.uri}/{name} is damaged: restore it from a copy; if there is none, {remedy}")


def forget(output: Output, devices: list[str], names: Names | None = None) -> dict[str, int]:
    """Delete devices from all databases of an output; return the number of deleted rows by database.

    With `names`, texts of other devices get asterisks for these names.

    A database that was later filled from another output has no rows of this one, and is not changed.

    Raises:
        SinkError: a database can't be opened. Nothing was deleted there.
    """
    deleted: dict[str, int] = {}
    failed: list[str] = []
    for name, one in _entries(output):
        to = one["to"]
        try:
            if not _is_address(to) and not Path(to).exists():
                where = output.storage.address(name)
                raise SinkError(f"{to} does not exist: restore it, or, if it was deleted, remove it from {where}")
            sink = open_sink(to, one["schema"])
            try:
                with sink.transaction():
                    position = sink.position()
                is_ours = position is not None and position.output == identity(output)
                deleted[to] = deleted.get(to, 0) + (sink.forget(devices, names) if is_ours else 0)
            finally:
                sink.close()
        except SinkError as error:
            failed.append(str(error))
    if failed:
        raise SinkError("; ".join(failed))
    return deleted


# A spreadsheet.


def write_csv(sink: Sink, path: Path) -> int:
    """Write the dated readings for a spreadsheet; return the number of rows.

    The file begins with a byte order mark, so that Excel recognises UTF-8. A text that begins like a formula gets an
    apostrophe.
    """
    count = 0
    with replacing(path, "w", sync=False, encoding="utf-8-sig", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(SHEET)
        for rows in sink.dated():
            writer.writerows([_cell(cell) for cell in row] for row in rows)
            count += len(rows)
    return count


def _cell(value: Any) -> Any:
    if isinstance(value, str) and value.startswith(FORMULA):
        return f"'{value}"
    if hasattr(value, "isoformat"):
        return value.replace(tzinfo=None).isoformat(sep=" ", timespec="milliseconds")
    return "" if value is None else value


@command.named("sink")
def main(argv: list[str] | None = None) -> int:
    """Update a database; return the exit status."""
    parser = options.parser("sink", __doc__)
    parser.add_argument(
        "--to", nargs="?", help="a DuckDB file, or postgresql://user@host/database (password: PGPASSWORD)"
    )
    parser.add_argument("--schema", default="flashmqtt", help="PostgreSQL's schema for the tables (default: flashmqtt)")
    options.seconds(parser, "--follow", 0.1, "do not end; look for commits at this interval")
    parser.add_argument("--anew", action="store_true", help="delete the database's content, and copy everything again")
    parser.add_argument(
        "--csv", type=command.file, metavar="FILE", help="also write the dated readings for a spreadsheet"
    )
    given = parser.parse_args(argv)
    output = Output.existing(given.out)
    if not (given.to or "").strip():
        raise SinkError("--to is missing: `make sink OUT=tables TO=readings.duckdb`")
    if Path(given.to).suffix.lower() in NO_DATABASE:
        raise SinkError(
            f"--to names a DuckDB file, not {given.to}: give readings.duckdb; "
            'for a spreadsheet also --csv readings.csv (make: ARGS="--csv readings.csv")'
        )
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,62}", given.schema):
        raise SinkError(f"--schema has to be a name of letters, digits and _, not {given.schema!r}")
    given.csv_is_old, last_error = True, ""  # an earlier run may have been ended between its copying and the file
    while True:
        try:
            last_error = _once(output, given)
        except BrokenPipeError:
            raise
        except (command.Failure, OSError) as error:
            if not given.follow or given.anew:
                raise
            text = command.explained(error) if isinstance(error, OSError) else str(error)
            if text != last_error:
                last_error = text
                print(f"sink: {last_error}; trying again", file=sys.stderr, flush=True)
        given.anew = False
        if not given.follow:
            return 0
        time.sleep(given.follow)


def _once(output: Output, given: argparse.Namespace) -> str:
    sink = open_sink(given.to, given.schema)
    try:
        brought = bring(output, sink, given.anew, lambda: register(output, given.to, given.schema))
        for batch, readings in brought:
            print(f"  batch {batch}: {command.counted(readings, 'reading')} to {sink.where}", flush=True)
        if not brought and not given.follow:
            print(f"  {sink.where} is up to date", flush=True)
        given.csv_is_old |= bool(brought)
        if given.csv and (given.csv_is_old or not given.csv.exists()):
            rows = write_csv(sink, given.csv)
            given.csv_is_old = False
            more = f" (an Excel sheet has at most {SHEET_ROWS:,})" if rows > SHEET_ROWS else ""
            print(f"  {command.counted(rows, 'row')} in {given.csv}{more}", flush=True)
    finally:
        with suppress(SinkError):
            sink.close()
    return ""


if __name__ == "__main__":
    sys.exit(command.exit_status(main, stopped="stopped; all completely copied commits are in the database"))
