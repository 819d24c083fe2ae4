"""What counts: the commits of an output directory, one JSON file a batch.

A commit names every file of its batch, and the state that the next batch begins from. It appears whole, by one rename
(or one put), after all those files are durable; a file that no commit names is a cut-off attempt's and does not count. So a
batch is in all tables or in none, wherever the driver or a task was killed, and a batch that Spark hands over
again, because its own checkpoint did not get to note it, is known by its commit.
"""

from __future__ import annotations

import fcntl
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from . import schemas, summary
from .storage import Storage

FORMAT_FILE = "format.json"
COMMITS = "commits"
DELTA_LOG = "_delta_log"
"""The directory of a table's Delta log: see delta.py."""


class OutputError(Exception):
    """The output directory can't be used; the text says why and what to do."""


@dataclass
class Commit:
    """One batch: its files by table, the state behind it, how far each collector's segments were read, and by whom."""

    batch: int
    stream: str
    stream_batch: int
    files: dict[str, list[str]] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    state: dict[str, dict[str, str]] = field(default_factory=dict)  # bucket -> {"intervals": file, ...}
    read: dict[str, int] = field(default_factory=dict)  # collector -> segment
    stream_read: dict[str, int] = field(default_factory=dict)  # the same, of this stream: another begins anew
    summary: dict[str, Any] = field(default_factory=summary.empty)  # of the fleet, with this batch: see summary.py
    kept_from: str | None = None  # of a compaction: the day before which it deleted readings for their age
    whole: bool = False  # compacted: it stands for all batches up to it
    revision: int = 0  # of a whole one: how many have been made, with it
    forgets: bool = False  # of a whole one: it has let go of devices' rows

    def state_files(self, kind: str, settled: bool = True) -> list[str]:
        """Return the files of a kind of state; an audit's settled files have keys that go on behind a dot."""
        return [
            file
            for files in self.state.values()
            for key, file in files.items()
            if key == kind or (settled and key.partition(".")[0] == kind)
        ]


class Output:
    """An output directory: its format, its commits, its tables."""

    def __init__(self, uri: str):
        self.storage = Storage(uri)

    @contextmanager
    def alone(self, what: str = "run") -> Iterator[None]:
        """Keep others of the same kind out of the directory meanwhile; on an object store nothing can, but see `write`.

        Raises:
            OutputError: another one is at work.
        """
        if not self.storage.local:
            yield
            return
        Path(self.storage.root).mkdir(parents=True, exist_ok=True)
        handle = os.open(self.storage.path(f"{what}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise OutputError(
                    f"another {what} is at work in {self.storage.uri}: wait for its end, or give another --out"
                ) from None
            yield
        finally:
            os.close(handle)

    def prepare(self, buckets: int) -> None:
        """Create the directory, or check that this version of the pipeline may write to it.

        Raises:
            OutputError: it was written by another format, or for another number of buckets.
        """
        storage = self.storage
        if storage.exists(FORMAT_FILE):
            found = self.check_format()
            if found != buckets:
                raise OutputError(f"{storage.uri} was begun with {found} buckets: run with --buckets {found}")
            return
        if storage.list(COMMITS):
            raise OutputError(f"{storage.uri} has commits but no {FORMAT_FILE}: restore it, or give another --out")
        storage.write_json(FORMAT_FILE, {"format": schemas.FORMAT, "buckets": buckets})

    def check_format(self) -> int:
        """Return the buckets of an output that is there.

        Raises:
            OutputError: there is none, or it was written by another format.
        """
        storage = self.storage
        if not storage.exists(FORMAT_FILE):
            raise OutputError(f"{storage.uri} has no tables yet: run the pipeline first (make pipeline)")
        found = storage.read_json(FORMAT_FILE)
        if found.get("format") != schemas.FORMAT:
            raise OutputError(
                f"{storage.uri} has table format {found.get('format')}, this program writes {schemas.FORMAT}: give another"
                " --out (all tables can be made again from the landing), or use the version that wrote it"
            )
        return int(found["buckets"])

    def stream_id(self, checkpoint: Storage) -> str:
        """Return the id of the stream that a checkpoint belongs to: a fresh one for a fresh checkpoint."""
        name = "flashmqtt.json"
        if checkpoint.exists(name):
            found = checkpoint.read_json(name)
            if found["out"] != self.storage.uri:
                raise OutputError(
                    f"the checkpoint {checkpoint.uri} belongs to {found['out']}, not to {self.storage.uri}: give the --out that"
                    " belongs to it, or another --checkpoint"
                )
            latest = self.latest()
            if checkpoint.list("commits") and latest is None:
                raise OutputError(
                    f"the checkpoint {checkpoint.uri} has batches that {self.storage.uri} lacks: its tables are gone. Delete the"
                    " checkpoint too, and everything is made again from the landing"
                )
            return found["stream"]
        stream = uuid.uuid4().hex
        checkpoint.write_json(name, {"stream": stream, "out": self.storage.uri})
        return stream

    def numbers(self) -> list[int]:
        """Return the numbers of the commits that are there, also of those that a compacted one stands for."""
        return [int(name.removesuffix(".json")) for name in self.storage.list(COMMITS) if not name.startswith(".")]

    def commits(self) -> list[Commit]:
        """Return the commits that count: back to the last compacted one."""
        found: list[Commit] = []
        for number in sorted(self.numbers(), reverse=True):
            found.append(self.commit(number))
            if found[-1].whole:
                break
        return found[::-1]

    def commit(self, batch: int) -> Commit:
        """Read a commit."""
        return Commit(**self.storage.read_json(name_of(batch)))

    def commit_modified_s(self, batch: int) -> float:
        """Return when a commit was written (Unix time)."""
        return self.storage.modified_s(name_of(batch))

    def latest(self) -> Commit | None:
        """Return the last commit."""
        numbers = self.numbers()
        return self.commit(max(numbers)) if numbers else None

    def rows(self, table: str) -> int:
        """Return how many rows a table has."""
        found = sum(commit.rows.get(table, 0) for commit in self.commits())
        if table == "quarantine":
            for name in self.files("held"):
                with self.storage.fs.open_input_file(self.storage.path(name)) as file:
                    found += pq.read_metadata(file).num_rows
        return found

    def kept_from(self) -> str | None:
        """Return the day before which readings were deleted for their age, None where none were."""
        return max((commit.kept_from for commit in self.commits() if commit.kept_from), default=None)

    def write(self, commit: Commit) -> None:
        """Make a batch count. Files in its files' directories that it does not name are a cut-off attempt's: they are deleted.

        Raises:
            OutputError: there is such a batch, so those files are another run's.
        """
        if self.storage.exists(name_of(commit.batch)):
            raise OutputError(
                f"batch {commit.batch} of {self.storage.uri} was committed by another run meanwhile: let one run work at a time"
            )
        named = {name for names in commit.files.values() for name in names}
        for directory in {name.rsplit("/", 1)[0] for name in named}:
            for name in self.storage.list(directory):
                if f"{directory}/{name}" not in named:
                    self.storage.delete(f"{directory}/{name}")
        self.storage.write_json(name_of(commit.batch), asdict(commit))
        self._forget_states(commit)

    def replace(self, whole: Commit, old: list[str], then: Callable[[], None] = lambda: None) -> None:
        """Put a compacted commit in the place of all up to it; `then` hears of it; then delete their files."""
        self.storage.write_json(name_of(whole.batch), asdict(whole))
        for number in self.numbers():
            if number < whole.batch:
                self.storage.delete(name_of(number))
        then()
        named = {name for names in whole.files.values() for name in names}
        for name in old:
            if name not in named:
                self.storage.delete(name)

    def _forget_states(self, commit: Commit) -> None:
        """Delete state files that neither this commit nor the one before it needs."""
        kept = {name for files in commit.state.values() for name in files.values()}
        if (commit.batch - 1) in self.numbers():
            kept |= {name for files in self.commit(commit.batch - 1).state.values() for name in files.values()}
        for kind in schemas.STATE:
            for name in self.storage.list(f"state/{kind}", recursive=True):
                full = f"state/{kind}/{name}"
                if full not in kept and "/." not in full and not name.startswith(DELTA_LOG):
                    self.storage.delete(full)

    def files(self, table: str) -> list[str]:
        """Return the files of a table, over all commits; of the state (`audit`, `intervals`, ...), those of the last."""
        if table in schemas.STATE:
            latest = self.latest()
            return latest.state_files(table) if latest else []
        return [name for commit in self.commits() for name in commit.files.get(table, [])]

    def read(self, spark: Any, table: str) -> Any:
        """Return a table as a DataFrame: exactly what is committed. What is held counts as quarantine as long as it is."""
        schema = schemas.spark_schema(schemas.TABLES.get(table) or schemas.STATE[table])
        files = self.files(table) + (self.files("held") if table == "quarantine" else [])
        if not files:
            return spark.createDataFrame([], schema)
        return spark.read.schema(schema).parquet(*[self.storage.address(name) for name in files])


def name_of(batch: int) -> str:
    """Return the name of a commit's file."""
    return f"{COMMITS}/{batch:09d}.json"


def bucket_of(file: str) -> int:
    """Return the bucket that a table's file belongs to: the first number in its name."""
    return int(file.rsplit("/", 1)[-1].split("-")[1].split(".", maxsplit=1)[0])


def day_of(file: str) -> str:
    """Return the day that a table's file holds the arrivals of: YYYY-MM-DD."""
    return file.split("/day=", 1)[1].split("/", 1)[0]
