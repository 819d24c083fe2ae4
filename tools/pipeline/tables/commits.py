"""The commits of an output directory: one JSON file per batch. Only files that a commit names are valid.

A commit names all files of its batch, and the state that the next batch starts from. It is written by one rename (or one
put) after all those files are durable. A file that no commit names belongs to an interrupted attempt. So a batch is in all
tables or in none, whenever the driver or a task is killed. If Spark repeats a batch because its checkpoint does not have
it yet, the batch is recognised by its commit.
"""

from __future__ import annotations

import json
import os
import re
import time
import uuid
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from tools.command import Failure
from tools.landing.lock import take_lock

from . import schemas, source, summary
from .storage import Storage

FORMAT_FILE = "format.json"
COMMIT_NAME = re.compile(r"([0-9]{9,})\.json")
COMMITS = "commits"
TEMPORARY = re.compile(r"(^|/)\.[^/]+\.[0-9a-f]{8}\.tmp$")
WITH_TEMPORARY = ("", COMMITS, "missing", "report", "sinks")
"""Directories in which a killed command may leave a temporary file; those of the tables have names of batches."""
KILLED_S = 3600.0
"""No command writes for so long at one of these files: an older temporary one is a killed command's."""
DELTA_LOG = "_delta_log"
"""The directory of a table's Delta log: see delta.py."""


class OutputError(Failure):
    """The output directory can't be used. The text has the reason and what to do."""


@dataclass
class Commit:
    """One batch: its files by table, the state after it, the last segment read of each collector, and the stream's id."""

    batch: int
    stream: str
    stream_batch: int
    files: dict[str, list[str]] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    state: dict[str, dict[str, str]] = field(default_factory=dict)  # bucket -> {"intervals": file, ...}
    read: dict[str, int] = field(default_factory=dict)  # collector -> segment
    # The same, of this stream: another stream starts at the first segment.
    stream_read: dict[str, int] = field(default_factory=dict)
    last_arrival_us: dict[str, int] = field(default_factory=dict)  # of the messages in these segments
    summary: dict[str, Any] = field(default_factory=summary.empty)  # of the fleet, including this batch: see summary.py
    kept_from: str | None = None  # of a compaction: readings of earlier days were deleted for their age
    whole: bool = False  # a compaction: it replaces all commits up to this batch
    forgets: bool = False  # of a compaction: `forget` made it, and it lacks the rows of some devices

    @property
    def named(self) -> set[str]:
        """The files of the batch's tables."""
        return {name for names in self.files.values() for name in names}

    @property
    def named_states(self) -> set[str]:
        """The files of the state."""
        return {name for names in self.state.values() for name in names.values()}

    def state_files(self, kind: str, settled: bool = True) -> list[str]:
        """Return the files of a kind of state. The keys of an audit's settled files have a dot and a number at the end."""
        pairs = [pair for files in self.state.values() for pair in files.items()]
        return [file for key, file in pairs if key == kind or (settled and key.partition(".")[0] == kind)]


class Output:
    """An output directory: its format, its commits, its tables."""

    def __init__(self, uri: str):
        if not uri:
            raise OutputError("--out is missing: name the folder of the tables, OUT=tables")
        self.storage = Storage(uri)

    @classmethod
    def existing(cls, uri: str) -> Output:
        """Return an output that has tables of this program's format.

        Raises:
            OutputError, StorageError: there is none.
        """
        output = cls(uri)
        output.check_format()
        return output

    @contextmanager
    def locked(self, what: str = "run") -> Iterator[None]:
        """Lock the directory against other commands that take this lock. An object store has no lock, but see `write`.

        Raises:
            OutputError: another one is running.
        """
        if not self.storage.local:
            yield
            return
        Path(self.storage.root).mkdir(parents=True, exist_ok=True)
        active = {"run": "run or `forget`"}.get(what, "compaction, `remake` or `forget`")
        refusal = f"another {active} is active in {self.storage.uri}: wait until it ends, or give another --out"
        handle = take_lock(Path(self.storage.path(f"{what}.lock")), OutputError(refusal))
        try:
            yield
        finally:
            os.close(handle)

    def prepare(self, buckets: int) -> None:
        """Create the directory, or check that this version of the pipeline can write to it; delete killed commands' files.

        Raises:
            OutputError: it has another format or another number of buckets.
        """
        storage = self.storage
        for directory in WITH_TEMPORARY:
            for name in storage.list(directory, recursive=bool(directory)):
                path = f"{directory}/{name}".lstrip("/")
                with suppress(FileNotFoundError):  # a command that is active has completed it
                    if TEMPORARY.search(path) and storage.modified_s(path) < time.time() - KILLED_S:
                        storage.delete(path)
        if storage.exists(FORMAT_FILE):
            found = self.check_format()
            if found != buckets:
                raise OutputError(f"{storage.uri} was made with {found} buckets: run with --buckets {found}")
            return
        if storage.list(COMMITS):
            raise OutputError(f"{storage.uri} has commits but no {FORMAT_FILE}: restore it, or give another --out")
        storage.write_json(FORMAT_FILE, {"format": schemas.FORMAT, "buckets": buckets})

    def check_format(self) -> int:
        """Check an existing output's format; return its number of buckets.

        Raises:
            OutputError: there is no output, or it has another format.
        """
        storage = self.storage
        if not storage.exists(FORMAT_FILE):
            raise OutputError(f"{storage.uri} has no tables yet: run the pipeline first (make pipeline)")
        try:
            found = dict(storage.read_json(FORMAT_FILE))
        except (ValueError, TypeError) as error:
            way = "restore it, or give another --out" if storage.list(COMMITS) else "delete it: there are no tables yet"
            raise OutputError(f"{storage.uri}/{FORMAT_FILE} is damaged: {way}") from error
        if found.get("format") != schemas.FORMAT:
            raise OutputError(
                f"{storage.uri} has table format {found.get('format')}, this program writes {schemas.FORMAT}: give another"
                " --out (the pipeline makes all tables again from the landing), or use the version that wrote it"
            )
        return int(found["buckets"])

    def stream_id(self, checkpoint: Storage) -> str:
        """Return the id of a checkpoint's stream; a new checkpoint gets a new id."""
        name = "flashmqtt.json"
        if checkpoint.exists(name):
            try:
                found = checkpoint.read_json(name)
                stream, out = str(found["stream"]), str(found["out"])
            except (ValueError, TypeError, KeyError) as error:
                raise OutputError(source.damaged_checkpoint(checkpoint, name)) from error
            latest = self.latest()
            is_ours = latest is not None and latest.stream == stream  # the tables may have been moved
            if not is_ours and out != self.storage.uri and Storage(out).place != self.storage.place:
                raise OutputError(
                    f"the checkpoint {checkpoint.uri} belongs to {out}, not to {self.storage.uri}: give that --out,"
                    " or another --checkpoint"
                )
            read = max((int(one) for one in checkpoint.list("commits") if one.isdigit()), default=-1)
            if read >= 0 and (latest is None or (is_ours and latest.stream_batch < read)):
                raise OutputError(
                    f"the checkpoint {checkpoint.uri} has batches that {self.storage.uri} lacks: its tables were deleted, or are"
                    " from an older backup. Delete the checkpoint, too; then the pipeline reads the whole landing again, and"
                    " recognises messages that are in the tables"
                )
            return stream
        stream = uuid.uuid4().hex
        checkpoint.write_json(name, {"stream": stream, "out": self.storage.uri})
        return stream

    def numbers(self) -> list[int]:
        """Return the numbers of all commit files, also of those that a compaction has replaced."""
        return [int(match[1]) for match in map(COMMIT_NAME.fullmatch, self.storage.list(COMMITS)) if match]

    def commits(self) -> list[Commit]:
        """Return the valid commits: the last compaction and those after it."""
        numbers = self.numbers()
        found: list[Commit] = []
        try:
            for number in sorted(numbers, reverse=True):
                found.append(self.commit(number))
                if found[-1].whole:
                    break
        except FileNotFoundError:
            if self.numbers() == numbers:
                raise
            return self.commits()  # a compaction has replaced commits meanwhile
        return found[::-1]

    def commit(self, batch: int) -> Commit:
        """Read a commit.

        Raises:
            OutputError: its file is damaged, or a newer version of the pipeline wrote it.
        """
        try:
            found = dict(self.storage.read_json(name_of(batch)))
            if found.pop("crc", None) not in (None, _crc(found)):  # an earlier version's commits have none
                raise ValueError
            unknown = found.keys() - {known.name for known in fields(Commit)}
            commit = Commit(**{name: found[name] for name in found.keys() - unknown})
            blank = vars(Commit(0, "", 0))
            if any(type(value) is not type(blank[name]) for name, value in vars(commit).items() if name != "kept_from"):
                raise TypeError
        except (ValueError, TypeError) as error:
            raise self._lost(name_of(batch), "damaged") from error
        if unknown:
            raise OutputError(
                f"{self.storage.uri}/{name_of(batch)} was written by a newer version of the pipeline: this one does not know"
                f" {', '.join(sorted(unknown))}; use the newer one"
            )
        return commit

    def _lost(self, name: str, how: str) -> OutputError:
        return OutputError(
            f"{self.storage.uri}/{name} is {how}, and only it names the files of its batch: restore it from a"
            " backup. If there is none, give another --out: the pipeline makes all tables again from the landing"
        )

    def checked_commits(self) -> list[Commit]:
        """Return the valid commits, all of them: the files of a missing one would count as those of an interrupted attempt.

        Raises:
            OutputError: one is missing.
        """
        commits = self.commits()
        if missing := _missing(commits):
            raise self._lost(missing[0], "missing")
        return commits

    def latest(self) -> Commit | None:
        """Return the last commit."""
        numbers = self.numbers()
        return self.commit(max(numbers)) if numbers else None

    def newest(self) -> Commit:
        """Return the last commit.

        Raises:
            OutputError: there is none.
        """
        latest = self.latest()
        if latest is None:
            raise OutputError(f"{self.storage.uri} has no batches: run the pipeline first (make pipeline)")
        return latest

    def kept_from(self) -> str | None:
        """Return the first day whose readings were not deleted for their age; None if no readings were deleted."""
        return max((commit.kept_from for commit in self.commits() if commit.kept_from), default=None)

    def whole(self, commits: list[Commit]) -> Commit:
        """Return a compaction that has all the files of some commits."""
        tables = schemas.TABLES
        files = {table: [name for commit in commits for name in commit.files.get(table, [])] for table in tables}
        rows = {table: sum(commit.rows.get(table, 0) for commit in commits) for table in tables}
        merged = replace(commits[-1], files=files, rows=rows, whole=True, forgets=False)
        merged.kept_from = self.kept_from()
        return merged

    def write(self, commit: Commit) -> None:
        """Write the commit of a batch. Delete other files in its directories, and older states: no commit needs them.

        Raises:
            OutputError: another run has committed a batch of this number, so the other files may be valid.
        """
        if self.storage.exists(name_of(commit.batch)):
            raise OutputError(
                f"batch {commit.batch} of {self.storage.uri} was committed by another run: start only one run at a time"
            )
        self._delete_others({name.rsplit("/", 1)[0] for name in commit.named}, commit.named)
        self._put(commit)
        states = commit.named_states  # this commit and the one before it need them
        if (commit.batch - 1) in self.numbers():
            states |= self.commit(commit.batch - 1).named_states
        self._delete_others({f"state/{kind}" for kind in schemas.STATE}, states)

    def replace(self, whole: Commit, old: set[str], then: Callable[[], None] = lambda: None) -> None:
        """Write a compaction, which replaces all commits up to it; call `then`; delete the files that it does not name."""
        self._put(whole)
        for number in self.numbers():
            if number < whole.batch:
                self.storage.delete(name_of(number))
        then()
        for name in old - whole.named:
            self.storage.delete(name, target=True)

    def _put(self, commit: Commit) -> None:
        found = asdict(commit)
        self.storage.write_json(name_of(commit.batch), found | {"crc": _crc(found)})

    def _delete_others(self, directories: set[str], kept: set[str]) -> None:
        """Delete the files directly in some directories, except some files."""
        for directory in directories:
            for name in self.storage.list(directory):
                if f"{directory}/{name}" not in kept:
                    with suppress(FileNotFoundError):  # a task that was killed deletes its temporary file
                        self.storage.delete(f"{directory}/{name}")

    def files(self, table: str) -> list[str]:
        """Return a table's files, of all commits; for a kind of state (`audit`, `intervals`, ...), those of the last commit."""
        if table in schemas.STATE:
            latest = self.latest()
            return latest.state_files(table) if latest else []
        return [name for commit in self.commits() for name in commit.files.get(table, [])]

    def missing_files(self) -> list[str]:
        """Return the files that valid commits name and that are not there or not complete; and the commits that are not there.

        Raises:
            FileNotFoundError: another process has committed meanwhile: try again.
        """
        before = self.numbers()
        commits = self.commits()
        missing = _missing(commits)
        wanted = set().union(*(commit.named for commit in commits), commits[-1].named_states if commits else ())
        tops = sorted({name.split("/", 1)[0] for name in wanted})
        there = {f"{top}/{name}" for top in tops for name in self.storage.list(top, True)}
        missing += sorted(name for name in wanted if name not in there or self.storage.is_cut(name))
        if missing and self.numbers() != before:
            raise FileNotFoundError(missing[0])
        return missing

    def read(self, spark: Any, table: str) -> Any:
        """Return a table's committed rows as a DataFrame. Held messages are rows of `quarantine` as long as they are held."""
        schema = schemas.spark_schema(schemas.TABLES.get(table) or schemas.STATE[table])
        files = self.files(table) + (self.files("held") if table == "quarantine" else [])
        if not files:
            return spark.createDataFrame([], schema)
        return spark.read.schema(schema).parquet(*[self.storage.pattern(name) for name in files])


def _missing(commits: list[Commit]) -> list[str]:
    """Return the names of the commits that are not there."""
    first = 1 if not commits or not commits[0].whole else commits[0].batch
    numbers = {commit.batch for commit in commits}
    return [name_of(batch) for batch in range(first, max(numbers, default=0)) if batch not in numbers]


def _crc(commit: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(commit, sort_keys=True).encode())


def name_of(batch: int) -> str:
    """Return the name of a commit's file."""
    return f"{COMMITS}/{batch:09d}.json"


def bucket_of(file: str) -> int:
    """Return the bucket of a table's file: the first number in its name."""
    return int(file.rsplit("/", 1)[-1].split("-")[1].split(".", maxsplit=1)[0])


def day_of(file: str) -> str:
    """Return the day of arrival (YYYY-MM-DD) of the rows in a table's file."""
    return file.split("/day=", 1)[1].split("/", 1)[0]


def batch_of(file: str) -> int:
    """Return the batch or compaction that wrote a table's file; 0 for another file."""
    return int(file.partition("/batch=")[2].split("/", 1)[0] or 0)
