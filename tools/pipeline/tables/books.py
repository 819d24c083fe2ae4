"""Read an output's audit and the sums by device without Spark: a file at a time, as of one commit.

Each file has the rows of one bucket. They grow with the fleet. So only the worst rows are kept. A stream may commit at the
same time: it deletes a commit's files two batches later. A reader whose files were deleted reads the newest commit.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from . import schemas
from .commits import Commit, Output

Where = Any
"""A filter for rows (`pc.field(...) > ...`), or None. (pyarrow has no type annotations.)"""


class Books:
    """The audit of an output as of a commit."""

    def __init__(self, output: Output, commit: Commit):
        self.output, self.commit = output, commit

    def rows(self, kind: str, columns: list[str], where: Where = None, settled: bool = True) -> Iterator[pa.Table]:
        """Yield an empty table, and then the rows of `audit`, `lives` or `plain`, a file at a time.

        With `settled` false, the audit's settled boots are left out.
        """
        schema = pa.schema([schemas.STATE[kind].field(name) for name in columns])
        yield schema.empty_table()
        for name in sorted(self.commit.state_files(kind, settled)):
            found = self.output.storage.table(name, columns, filters=where)
            if found.num_rows:
                yield found.cast(schema).combine_chunks()

    def all(self, kind: str, columns: list[str], where: Where = None) -> pa.Table:
        """Return all matching rows. Only for queries with few results."""
        return pa.concat_tables(self.rows(kind, columns, where))


def first(parts: Iterable[pa.Table], order: list[tuple[str, str]], most: int) -> pa.Table:
    """Return the first `most` rows of some tables, at least one, in the given order."""
    found: list[pa.Table] = []
    for part in parts:
        found.append(part)
        if sum(map(len, found)) > 2 * most:
            both = pa.concat_tables(found)
            found = [both.take(pc.select_k_unstable(both, most, sort_keys=order))]
    return pa.concat_tables(found).sort_by(order).slice(0, most)
