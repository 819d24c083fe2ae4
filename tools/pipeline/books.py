"""Read an output's audit and the sums by device without Spark: in batches of rows, as of one commit.

These files grow with the fleet. So they are read in batches of rows, and only the worst rows are kept. A stream may commit
at the same time: it deletes a commit's files two batches later. A reader whose files were deleted reads the newest commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from . import schemas
from .commits import Commit, Output, OutputError

T = TypeVar("T")
TRIES = 5
ROWS = 32_768

Where = Any
"""A filter for rows (`pc.field(...) > ...`), or None. (pyarrow has no type annotations.)"""


class Books:
    """The audit of an output as of a commit."""

    def __init__(self, output: Output, commit: Commit):
        self.output, self.commit = output, commit

    def rows(
        self, kind: str, columns: list[str], where: Where = None, settled: bool = True
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows of `audit` or `lives` in batches; with `settled` false, without the audit's settled boots.

        Raises:
            OutputError: a file is damaged.
        """
        schema = schemas.STATE[kind]
        storage = self.output.storage
        for name in sorted(self.commit.state_files(kind, settled)):
            part = ds.dataset(
                storage.path(name), schema=schema, filesystem=storage.fs, format="parquet", partitioning=None
            )
            scanner = part.scanner(
                columns=columns,
                filter=where,
                batch_size=ROWS,
                batch_readahead=1,
                fragment_readahead=1,
                use_threads=False,
            )
            try:
                yield from (batch for batch in scanner.to_batches() if batch.num_rows)
            except pa.ArrowInvalid as error:
                raise OutputError(f"{storage.path(name)} is damaged: restore it from a copy. {error}") from error

    def all(self, kind: str, columns: list[str], where: Where = None) -> pa.Table:
        """Return all matching rows. Only for queries with few results."""
        return pa.concat_tables([self._none(kind, columns), *self._tables(kind, columns, where, True)])

    def _none(self, kind: str, columns: list[str]) -> pa.Table:
        return pa.schema([schemas.STATE[kind].field(name) for name in columns]).empty_table()

    def _tables(self, kind: str, columns: list[str], where: Where, settled: bool) -> Iterator[pa.Table]:
        schema = self._none(kind, columns).schema
        return (pa.Table.from_batches([one]).cast(schema) for one in self.rows(kind, columns, where, settled))

    def worst(
        self,
        kind: str,
        columns: list[str],
        order: list[tuple[str, str]],
        most: int,
        where: Where = None,
        settled: bool = True,
    ) -> pa.Table:
        """Return the first `most` rows in the given order."""
        return first(self._tables(kind, columns, where, settled), order, most, self._none(kind, columns))


def first(parts: Iterable[pa.Table], order: list[tuple[str, str]], most: int, found: pa.Table) -> pa.Table:
    """Return the first `most` rows of `found` and of some more tables, in the given order."""
    for part in parts:
        found = pa.concat_tables([found, part])
        if found.num_rows > 2 * most:
            found = found.take(pc.select_k_unstable(found, most, sort_keys=order))
    return found.sort_by(order).slice(0, most)


def as_of_one_commit(output: Output, what: Callable[[Books], T]) -> T | None:
    """Call a function with the newest commit's books; return its result, or None if there is no commit yet.

    The function is called again, with a newer commit, if a running stream has deleted files of the commit that it reads.
    """
    for left in reversed(range(TRIES)):
        commit = output.latest()
        if commit is None:
            return None
        try:
            return what(Books(output, commit))
        except FileNotFoundError:
            newest = output.latest()
            if not left or (newest is not None and newest.batch == commit.batch):
                raise
    return None
