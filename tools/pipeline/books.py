"""Reading an output's books, the audit and the sums by device, without Spark: a part at a time, as of one commit.

What is read here grows with the fleet, so it is read in batches of rows and only the worst of anything is kept. It runs
beside a stream: a commit's files stay until two batches later, and whoever is overtaken begins again with the newest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from . import schemas
from .commits import Commit, Output

T = TypeVar("T")
TRIES = 5
ROWS = 32_768

Where = Any
"""A filter for rows (`pc.field(...) > ...`), or None: pyarrow has no types."""


class Books:
    """The audit of an output as of a commit."""

    def __init__(self, output: Output, commit: Commit):
        self.output, self.commit = output, commit

    def rows(
        self, kind: str, columns: list[str], where: Where = None, settled: bool = True
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows of `audit` or `lives`, some at a time; of the audit without the settled boots, where they are not wanted."""
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
            yield from (batch for batch in scanner.to_batches() if batch.num_rows)

    def all(self, kind: str, columns: list[str], where: Where = None) -> pa.Table:
        """Return rows that are known to be few."""
        schema = pa.schema([schemas.STATE[kind].field(name) for name in columns])
        return pa.Table.from_batches([one.cast(schema) for one in self.rows(kind, columns, where)], schema)

    def worst(
        self,
        kind: str,
        columns: list[str],
        order: list[tuple[str, str]],
        most: int,
        where: Where = None,
        settled: bool = True,
    ) -> pa.Table:
        """Return the first rows in an order."""
        found = None
        for batch in self.rows(kind, columns, where, settled):
            table = pa.Table.from_batches([batch])
            found = table if found is None else pa.concat_tables([found, table])
            if found.num_rows > 2 * most:
                found = found.take(pc.select_k_unstable(found, most, sort_keys=order))
        if found is None:
            return self.all(kind, columns, pc.scalar(False))
        return found.sort_by(order).slice(0, most)


def as_of_one_commit(output: Output, what: Callable[[Books], T]) -> T | None:
    """Return what a function makes of the newest books; None where there is no commit yet.

    It is called again where a stream that goes on has deleted files of the commit that it reads.
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
