"""Tallies: what was counted of each boot's messages. A row group, a batch and the audit have one row per boot.

The audit's cost depends on the number of rows, so the tallies that a task collected in parts are merged.
"""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from . import delays, schemas
from .files import table_of, whole

COUNTS = ("delivered", "readings", "resent", "replayed", "reordered", "returns")
NO_BASE = np.iinfo(np.int64).max
"""The base of a row without a delay."""


def tally(
    key: list[pa.Array],
    of: np.ndarray,
    counts: list[np.ndarray],
    arrivals: tuple[np.ndarray, np.ndarray],
    base_us: np.ndarray,
    row: np.ndarray,
    steps: np.ndarray,
    messages: np.ndarray,
) -> pa.Table:
    """Return a table with one row per boot.

    The delays are counted relative to each boot's smallest base; each delay counts as the middle of its step.

    Args:
        key: the boots' key columns.
        of: the index of the boot of each row, in ascending order.
        counts: the columns COUNTS.
        arrivals: the first and the last arrival of each row (µs).
        base_us: the base of each row's delays, NO_BASE if it has none.
        row, steps, messages: the delays: each one's row, step, and number of messages.
    """
    boots = np.arange(len(key[0]))
    starts = np.searchsorted(of, boots)
    base = np.minimum.reduceat(base_us, starts)
    behind = base_us[row] - base[of[row]] + delays.middles_us(steps)
    pairs, place = np.unique(of[row] * 4096 + delays.steps(behind), return_inverse=True)
    offsets = pa.array(np.searchsorted(pairs, np.arange(len(boots) + 1) * 4096).astype(np.int32))
    total = np.bincount(place, weights=messages, minlength=len(pairs)).astype(np.int64)
    columns = [*key, *(pa.array(np.add.reduceat(one, starts, dtype=np.int64)) for one in counts)]
    for reduce, one in zip((np.minimum, np.maximum), arrivals, strict=True):
        columns.append(pa.array(reduce.reduceat(one, starts)).cast(schemas.MOMENT))
    columns.append(pa.array(np.where(base == NO_BASE, 0, base)))
    columns += [pa.ListArray.from_arrays(offsets, pa.array(one)) for one in ((pairs % 4096).astype(np.int32), total)]
    return table_of(columns, schemas.TALLY)


def merge_tallies(keys_of: Callable[[pa.Table], np.ndarray], tallies: list[pa.Table]) -> pa.Table:
    """Return the tallies of a batch's parts with one row per boot, sorted by packed key."""
    table = pa.concat_tables([one.cast(schemas.TALLY) for one in tallies]).combine_chunks()
    keys = keys_of(table)
    order = np.argsort(keys, kind="stable")
    table = table.take(pa.array(order)).combine_chunks()
    _, first, of = np.unique(keys[order], return_index=True, return_inverse=True)
    steps, messages = (whole(table[name]) for name in ("steps", "counts"))
    lengths = pc.list_value_length(steps).to_numpy()
    return tally(
        [whole(table[field.name]).take(pa.array(first)) for field in schemas.KEY],
        of,
        [table[name].to_numpy() for name in COUNTS],
        (table["first_arrival"].cast(pa.int64()).to_numpy(), table["last_arrival"].cast(pa.int64()).to_numpy()),
        np.where(lengths > 0, table["base_us"].to_numpy(), NO_BASE),
        np.repeat(np.arange(len(table)), lengths),
        steps.flatten().to_numpy(),
        messages.flatten().to_numpy(),
    )
