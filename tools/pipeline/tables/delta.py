"""Delta logs, for engines that don't know our commits: a log in each table's directory, which follows the commits.

Our commits cover all tables at once, which Delta can't; so our commits decide which files are valid. After each commit, its
files are added to each table's `_delta_log`; no data is copied. Each Delta version has the number of our commit as an
application transaction id, and is written only if no other version was written since the log was read. So publishing again
changes nothing, two processes that publish at the same time get the same result, and a killed run's logs are completed at
the next start. Files are deleted only after the logs have removed them, so the files of an older log still exist.

A log is made only from our commits: if you delete a `_delta_log`, the next run makes it again. It has no device names: the
only column with minimum and maximum is `arrival`.
"""

from __future__ import annotations

import datetime
import json
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.fs as pafs

from . import schemas
from .commits import DELTA_LOG, Commit, Output, OutputError, day_of
from .storage import Storage, limits

if TYPE_CHECKING:
    from deltalake import DeltaTable

DIRECTORIES = {name: name for name in schemas.TABLES} | {name: f"state/{name}" for name in ("audit", "lives", "held")}
"""The Delta tables' directories. Held messages count as quarantine as long as they are held."""
PARTITIONS = [pa.field("day", pa.date32()), pa.field("batch", pa.int64())]
"""The tables' directories, day=YYYY-MM-DD/batch=N, as columns; the state's tables have none."""
BATCH = "flashmqtt.batch"
CONFIGURATION: dict[str, str | None] = {"delta.checkpointInterval": "20"}
LAST_MOMENT = datetime.datetime.max.replace(tzinfo=datetime.UTC)
TRIES = 16
READERS = 8


class DeltaError(OutputError):
    """A Delta log can't be written. The text has the reason and what to do."""


class Delta:
    """The Delta logs of an output."""

    def __init__(self, output: Output):
        self.output = output
        self._batch = -1  # the batch that all logs have; -1: unknown

    def exist(self) -> bool:
        """Return whether there is a Delta log."""
        storage = self.output.storage
        return any(storage.exists(f"{directory}/{DELTA_LOG}") for directory in DIRECTORIES.values())

    def follow(self) -> None:
        """Update all logs to the newest commit, whatever their state.

        Raises:
            DeltaError: a log can't be read or written.
        """
        self._batch = -1
        if latest := self.output.latest():
            self._publish()
            self._batch = latest.batch

    def committed(self, commit: Commit) -> None:
        """Add a commit's files to the logs. Read all commits only if another process has changed something.

        Raises:
            DeltaError: see `follow`.
        """
        self._publish(commit if commit.batch == self._batch + 1 else None)
        self._batch = commit.batch

    def forget_history(self) -> None:
        """Delete all versions of each log except the newest, which has no statistics of deleted files.

        Raises:
            DeltaError: see `follow`.
        """
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError as Failed

        storage = self.output.storage
        for table, directory in DIRECTORIES.items():
            log = f"{directory}/{DELTA_LOG}"
            if not storage.exists(log):
                continue
            try:
                found = DeltaTable(address(storage, directory))
                newest = f"{found.version():020d}"
                if f"{newest}.checkpoint.parquet" not in storage.list(log):
                    found.create_checkpoint()
                for name in storage.list(log, recursive=True):
                    if not name.startswith((newest, "_last_checkpoint")):
                        storage.delete(f"{log}/{name}")
            except (Failed, OSError, ValueError) as error:
                raise self._error(table, error) from error

    def _publish(self, one: Commit | None = None) -> None:
        """Update the logs to the newest commit, or add the commit `one`, if they have all earlier ones."""
        from deltalake.exceptions import CommitFailedError
        from deltalake.exceptions import DeltaError as Failed

        table = ""
        for tries_left in reversed(range(TRIES)):
            # In this order: if another process writes in the meantime, our write fails, because its version exists.
            found: dict[str, DeltaTable] = {}
            try:
                for table in DIRECTORIES:
                    if not one or table in schemas.STATE or table in one.files:
                        found[table] = self._open(table)
                commits = [one] if one else self.output.commits()
                for table, log in found.items():
                    self._reconcile(table, log, commits, one is None)
                return
            except (Failed, OSError, ValueError) as error:
                if not tries_left or not isinstance(error, CommitFailedError | FileNotFoundError):
                    raise self._error(table, error) from error
            one = None  # another process publishes or compacts
            time.sleep(0.01)

    def _reconcile(self, table: str, found: DeltaTable, commits: list[Commit], all_there: bool) -> None:
        """Write a new version if the log differs from the commits, or, unless `all_there`, lacks their files."""
        from deltalake import CommitProperties, Transaction
        from deltalake.transaction import RemoveAction

        last, first = commits[-1], commits[0]
        published = found.transaction_version(BATCH)
        if table in schemas.STATE:
            files, written = set(last.state_files(table)), {}
        else:
            written = {name: commit for commit in commits for name in commit.files.get(table, [])}
            files = set(written)
        present = set(pa.table(found.get_add_actions())["path"].to_pylist()) if published is not None else set()
        present = {f"{DIRECTORIES[table]}/{name}" for name in present}
        adds = sorted(files - present)
        removes = sorted(present - files) if all_there or table in schemas.STATE else []
        if not adds and not removes:
            return
        # A compaction only moves rows that were published before.
        moves = published is not None and first.whole and first.batch <= published and not first.forgets

        def changes(name: str) -> bool:
            if table in schemas.STATE or not moves:
                return True
            if name in written:
                return written[name].batch > (published or 0)
            return table in schemas.AGING and day_of(name) < (first.kept_from or "")

        now_ms = int(time.time() * 1000)
        actions: list[Any] = self._added(table, adds, changes)
        actions += [
            RemoveAction(_relative(table, name), changes(name), now_ms, None, _partition_values(name))
            for name in removes
        ]
        ids = [Transaction(BATCH, last.batch, now_ms)]
        found.create_write_transaction(
            actions,
            "append",
            found.schema(),
            found.metadata().partition_columns,
            commit_properties=CommitProperties({"flashmqttBatch": str(last.batch)}, 0, ids),
        )

    def _open(self, table: str) -> DeltaTable:
        """Open a table; create it if it does not exist."""
        from deltalake import DeltaTable, Schema
        from deltalake.exceptions import TableNotFoundError

        directory = DIRECTORIES[table]
        where = address(self.output.storage, directory)
        fields = list(schemas.TABLES.get(table) or schemas.STATE[table])
        partitions = [] if table in schemas.STATE else PARTITIONS
        schema = Schema.from_arrow(pa.schema(fields + partitions))
        try:
            found = DeltaTable(where)
        except TableNotFoundError:
            by = [field.name for field in partitions]
            DeltaTable.create(where, schema, "ignore", by, name=table, configuration=CONFIGURATION)
            found = DeltaTable(where)
        if found.schema() != schema:
            raise ValueError("it has another schema")
        return found

    def _added(self, table: str, names: list[str], changes: Callable[[str], bool]) -> list[Any]:
        """Return the actions that add some files: their sizes, rows, and minimum and maximum of `arrival`."""
        from deltalake.transaction import AddAction

        storage = self.output.storage

        def one(name: str) -> AddAction:
            info = storage.fs.get_file_info(storage.path(name))
            if info.type == pafs.FileType.NotFound:
                raise FileNotFoundError(f"{storage.uri}/{name} is not there")
            footer = storage.footer(name)
            stats: dict[str, Any] = {"numRecords": footer.num_rows}
            if bounds := limits(footer, "arrival"):  # Delta stores milliseconds
                stats["minValues"], stats["maxValues"] = (
                    {"arrival": _milliseconds(moment, more_us)}
                    for moment, more_us in zip(bounds, (0, 999), strict=True)
                )
            return AddAction(
                _relative(table, name),
                info.size,
                _partition_values(name),
                int(info.mtime.timestamp() * 1000),
                changes(name),
                json.dumps(stats),
            )

        with ThreadPoolExecutor(READERS) as pool:
            return list(pool.map(one, names))

    def _error(self, table: str, error: Exception) -> DeltaError:
        files = self.output.files(table) if isinstance(error, FileNotFoundError) else []
        gone = [name for name in files if not self.output.storage.exists(name)]
        if gone:
            return DeltaError(
                f"{self.output.storage.uri}/{gone[0]} is missing, with {len(gone)} of the {len(files)} files of the table"
                f" {table}: restore them from a backup. If there is none, give another --out: the pipeline makes all tables again"
                " from the landing"
            )
        log = self.output.storage.address(f"{DIRECTORIES[table]}/{DELTA_LOG}")
        text = re.sub(r"\x1b\[\d+m", "", str(error))
        lines = re.split(r"\n *0: ", text)[0].splitlines()  # without a traceback; the last one has the cause
        reason = ": ".join(line.strip(" ↳") for line in lines)
        return DeltaError(
            f"the Delta log {log} can't be updated: {reason}. The tables themselves are complete. Delete that log, and the next"
            " run makes it again; or run with --no-delta"
        )


def _relative(table: str, name: str) -> str:
    return name.removeprefix(f"{DIRECTORIES[table]}/")


def _partition_values(name: str) -> dict[str, str | None]:
    """Return a file's values of the partition columns, from its directories' names."""
    return {key: value for key, sign, value in (part.partition("=") for part in name.split("/")) if sign}


def address(storage: Storage, name: str = "") -> str:
    """Return a file's path in the form that deltalake needs."""
    if storage.local:
        return storage.path(name)
    return storage.address(name).replace("s3a://", "s3://", 1)


def _milliseconds(moment: datetime.datetime, more_us: int) -> str:
    more = datetime.timedelta(microseconds=more_us)
    rounded = min(moment, LAST_MOMENT - more) + more
    return rounded.astimezone(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
