"""A task's work: convert a device bucket's new rows from segments to tables, and update the bucket's state.

There is one process per bucket and batch. Its memory depends on the row group, not on the batch. Each attempt's files have
unique names, and are valid when the driver has written these names into the batch's commit (commits.py). Files are in
directories by day of arrival. After the rows are written, they are read back (readback.py), and the bucket's audit is
updated (ledger.py).

This module does not use Spark.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tools.landing import parquet, segments
from tools.pipeline.tables import schemas, summary
from tools.pipeline.tables.commits import Output
from tools.pipeline.tables.files import DICTIONARY, parquet_writer
from tools.pipeline.tables.storage import Storage, limits

from . import ledger, plain, ties
from .mapping import NO_MAPPING, Mapping
from .messages import process
from .prints import Past, encoded
from .readback import read_back
from .state import State

DAY_US = 86_400_000_000
MOST_OPEN = 64
"""The most open files of a task: a batch may have messages of many days."""
COLUMNS = pa.schema(
    [one.with_type(DICTIONARY) if one.name in {"collector", "topic"} else one for one in parquet.SCHEMA]
)
"""The columns of a segment's rows, as they are processed."""
DAMAGE = (OSError, ValueError, KeyError, TypeError, IndexError, OverflowError, pa.ArrowException, segments.SegmentError)
"""What reading a damaged segment, or one of another writer, may raise."""
SETTLED = "audit."
"""The prefix of the keys of a bucket's settled files in a commit's state. A number follows it."""


class Done(NamedTuple):
    """What a task did: the files that it wrote (table, name, rows), its bucket's state, its addition to the fleet's sums."""

    files: list[tuple[str, str, int]]
    state: dict[str, str]
    summary: summary.Summary


def run(
    storage: Storage,
    landing: Storage,
    bucket: int,
    buckets: int,
    batch: int,
    state_files: dict[str, str],
    read: dict[str, int],
    paths: Iterable[str],
    mapping: Mapping = NO_MAPPING,
) -> Done:
    """Process one bucket's part of the segments in `paths`, in this order. Attempts don't see each other's files."""
    state = State(Past(Output(storage.uri), bucket))
    state.read = dict(read)
    loads = {"intervals": state.load_intervals, "identities": state.load_lives, "held": state.load_held}
    for kind, load in loads.items():
        if kind in state_files:
            load(storage.table(state_files[kind]))
    held_before = state.held_reasons()
    known, seen_before = state.keys, state.seen
    name = f"bucket-{bucket:04d}-{uuid.uuid4().hex[:8]}"
    audited, sums = ledger.Batch(), summary.empty()
    plain_sums: list[pa.Table] = []
    with _Writers(storage, batch, name, state_files) as writers:
        for path in paths:
            for rows in _rows(landing, path, bucket, buckets):
                summary.add_topics(sums, encoded(rows["topic"]))
                for table, found in process(state, rows, mapping):
                    audited.take(table, found)
                    if table == "quarantine":
                        summary.add_reasons(sums, summary.counts_of(found["reason"]))
                    elif table in ("readings", "plain"):
                        summary.add_arrivals(sums, found)
                    if table == "sums":
                        plain_sums.append(found)
                    elif table not in ("ties", "tally"):
                        writers.write_by_day("readings" if table == "plain" else table, found)
        if audited.ties:
            audited.ties = [ties.merge(state, known, seen_before, audited.ties)]
            writers.write_by_day("ties", audited.ties[0])
        writers.close()
        held = state.held_reasons()
        if writers.files or held != held_before or not state_files:
            files = {
                name: [file for table, file, _ in writers.files if table == name] for name in ("readings", "events")
            }
            audited.checked, found_plain = read_back(storage, files, state, known, seen_before, bool(plain_sums))
            made = ledger.update(state, known, _kept(storage, state_files), audited)
            summary.add(sums, made.summary)
            summary.add_reasons(sums, summary.sum_of(held, held_before, -1))  # they count as quarantine
            writers.write("state/intervals", state.intervals_table())
            writers.write("state/identities", state.lives_table())
            if held or held_before:
                writers.write("state/held", state.held_table())
            writers.write("state/audit", made.newest)
            writers.write("state/lives", made.lives)
            _write_settled(writers, made)
            if plain_sums:
                _add_plain(writers, sums, plain_sums, found_plain)
            writers.close()
    return Done(sorted(writers.files), writers.state, sums)


def _add_plain(writers: _Writers, sums: summary.Summary, plain_sums: list[pa.Table], found: tuple[int, int]) -> None:
    """Write the sums of the devices without an identity. `found`: the number of their rows in the files, and of distinct ones."""
    by_device = plain.summed(plain_sums)
    totals = sums["totals"]
    for name in ("messages", "readings", "copies"):
        totals[f"plain_{name}"] = pc.sum(by_device[name]).as_py()
    arrivals = summary.empty()
    arrivals["first_arrival_us"] = pc.min(by_device["first_arrival"].cast(pa.int64())).as_py()
    arrivals["last_arrival_us"] = pc.max(by_device["last_arrival"].cast(pa.int64())).as_py()
    summary.add(sums, arrivals)
    rows, different = found
    totals["twice"] += rows - different
    totals["absent"] += totals["plain_readings"] - different
    if "plain" in writers.state:
        by_device = plain.summed([writers.storage.table(writers.state["plain"]), by_device])
    writers.write("state/plain", by_device)


def _kept(storage: Storage, state_files: dict[str, str]) -> ledger.Kept:
    """Return a bucket's audit from the last commit."""
    if "audit" not in state_files:
        return ledger.Kept(schemas.AUDIT.empty_table(), schemas.LIVES.empty_table())

    def load(name: str, columns: list[str]) -> pa.Table:
        return storage.table(state_files[name], columns).cast(pa.schema([schemas.AUDIT.field(one) for one in columns]))

    return ledger.Kept(
        load("audit", schemas.AUDIT.names),
        storage.table(state_files["lives"]).cast(schemas.LIVES),
        sorted(key for key in state_files if key.startswith(SETTLED)),
        load,
    )


def _write_settled(writers: _Writers, made: ledger.Update) -> None:
    """Write the settled files that a batch adds or changes."""
    numbers = [int(key.removeprefix(SETTLED)) for key in writers.state if key.startswith(SETTLED)]
    for key, rows in made.settled.items():
        if rows is None:
            del writers.state[key]
        else:
            writers.write(f"state/{key}", rows)
    if made.spilled is not None:
        writers.write(f"state/{SETTLED}{max(numbers, default=0) + 1:06d}", made.spilled)


def _rows(landing: Storage, path: str, bucket: int, buckets: int) -> Iterator[pa.Table]:
    """Yield the rows of a segment's bucket.

    Raises:
        SegmentError: the file is damaged. Each page has a checksum.
    """
    try:
        with landing.fs.open_input_file(landing.path(path)) as source:
            meta = pq.read_metadata(source)
            parquet.check_columns(meta.schema.names)
            limits(meta, "arrival")  # raises if Python does not have such a time
            texts = ["collector", "topic"]
            file = pq.ParquetFile(source, metadata=meta, read_dictionary=texts, page_checksum_verification=True)
            for table in parquet.read_bucket(file, bucket, buckets):
                table.validate(full=True)  # the footer has no checksum
                origin = tuple(pc.unique(table[name]).to_pylist() for name in ("collector", "segment"))
                if origin != tuple([one] for one in segments.parse_name(path) or ()):
                    raise segments.SegmentError(f"it has the rows of another segment (collector, number: {origin})")
                yield table.select(COLUMNS.names).cast(COLUMNS)
    except DAMAGE as error:
        if landing.of_system(error):
            raise
        raise segments.SegmentError(
            f"{path}: {str(error).rstrip('.')}. A segment gets its name when it is complete, so this file was damaged, or"
            " another program wrote it: restore it, or remove it from the landing"
        ) from error


class _Writers:
    """The Parquet files of one attempt. Each is opened at the first write, and gets its name when it is complete.

    Attributes:
        files: the complete files of the tables.
        state: the files of the bucket's state; a complete file replaces the earlier one of its kind.
    """

    def __init__(self, storage: Storage, batch: int, name: str, state: dict[str, str]):
        self.storage, self.batch, self.name, self.state = storage, batch, name, dict(state)
        self.open: dict[tuple[str, str], tuple[str, ExitStack, pq.ParquetWriter, int]] = {}
        self.files: list[tuple[str, str, int]] = []
        self.numbers = count()

    def __enter__(self) -> _Writers:
        return self

    def write_by_day(self, table: str, rows: pa.Table) -> None:
        """Write rows to the files of their days of arrival."""
        day = rows["arrival"].cast(pa.int64()).to_numpy() // DAY_US
        days = np.unique(day).tolist()
        for one in days:
            chosen = rows if len(days) == 1 else rows.filter(pa.array(day == one))
            if "arrival" not in schemas.TABLES[table].names:
                chosen = chosen.drop_columns(["arrival"])
            self.write(table, chosen, f"day={np.datetime64(one, 'D')}/")

    def write(self, table: str, rows: pa.Table, where: str = "") -> None:
        """Write rows to the file of a table, or of a part of it."""
        key = table, where
        if key not in self.open:
            if len(self.open) >= MOST_OPEN:
                self._finish(next(iter(self.open)))
            # No directory per batch for the state: its files are deleted later, and the directories would stay.
            below = f"{self.batch:09d}-" if table.startswith("state/") else f"{where}batch={self.batch}/"
            file = f"{table.partition('.')[0]}/{below}{self.name}-{next(self.numbers)}.parquet"
            stack = ExitStack()
            stream = stack.enter_context(self.storage.create(file))
            self.open[key] = file, stack, stack.enter_context(parquet_writer(stream, rows.schema, file)), 0
        file, stack, writer, before = self.open[key]
        try:
            writer.write_table(rows)
        except OSError as error:
            if error.errno and not error.filename:  # closing the file raises an error of its own, which gets the name
                error.filename = self.storage.path(file)
            raise
        self.open[key] = file, stack, writer, before + rows.num_rows

    def close(self) -> None:
        """Complete all open files; they get their names."""
        for key in list(self.open):
            self._finish(key)

    def _finish(self, key: tuple[str, str]) -> None:
        file, stack, _, rows = self.open.pop(key)
        stack.close()
        if key[0].startswith("state/"):
            self.state[key[0].removeprefix("state/")] = file
        else:
            self.files.append((key[0], file, rows))

    def __exit__(self, *error: Any) -> None:
        for _, stack, _, _ in self.open.values():  # the files that an error left incomplete
            with suppress(OSError):  # the disk is full
                stack.__exit__(*error)
