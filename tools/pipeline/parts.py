"""Merge the tallies that a task collected in parts, because the audit's cost depends on their number of rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from . import delays, schemas
from .files import table_of
from .state import pack


def merge_tallies(tallies: list[pa.Table]) -> pa.Table:
    """Return the tallies of a batch's parts with one row per boot.

    The delays are counted again relative to each boot's smallest base; each delay counts as the middle of its step.
    """
    table = pa.concat_tables([one.cast(schemas.TALLY) for one in tallies]).combine_chunks()
    device = pc.dictionary_encode(table["device"].combine_chunks())
    key = pack(
        device.indices.to_numpy().astype(np.int64), table["life"].to_numpy().astype(np.int64), table["boot"].to_numpy()
    )
    groups, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    starts = np.searchsorted(inverse[order], np.arange(len(groups)))
    sums = {
        name: np.add.reduceat(table[name].to_numpy()[order], starts)
        for name in ("delivered", "readings", "resent", "replayed", "reordered", "returns")
    }
    arrivals = {name: table[name].cast(pa.int64()).to_numpy()[order] for name in ("first_arrival", "last_arrival")}
    steps = table["steps"].combine_chunks()
    lengths = pc.list_value_length(steps).to_numpy()
    # A part without a new message has no delays; its base is not used.
    own_base = np.where(lengths > 0, table["base_us"].to_numpy(), np.iinfo(np.int64).max)
    base = np.minimum.reduceat(own_base[order], starts)
    base = np.where(base == np.iinfo(np.int64).max, 0, base)
    of_row = np.repeat(np.arange(len(table)), lengths)
    behind = own_base[of_row] - base[inverse[of_row]] + delays.middles_us(steps.flatten().to_numpy())
    pairs, place = np.unique(inverse[of_row] * 4096 + delays.steps(behind), return_inverse=True)
    counts = np.zeros(len(pairs), dtype=np.int64)
    np.add.at(counts, place, table["counts"].combine_chunks().flatten().to_numpy())
    offsets = pa.array(np.searchsorted(pairs, np.arange(len(groups) + 1) * 4096).astype(np.int32))
    merged = table.take(pa.array(first))
    columns = [merged[name].combine_chunks() for name in ("device", "life", "boot")]
    columns += [pa.array(one) for one in sums.values()]
    columns += [pa.array(np.minimum.reduceat(arrivals["first_arrival"], starts)).cast(schemas.MOMENT)]
    columns += [pa.array(np.maximum.reduceat(arrivals["last_arrival"], starts)).cast(schemas.MOMENT), pa.array(base)]
    columns += [pa.ListArray.from_arrays(offsets, pa.array((pairs % 4096).astype(np.int32)))]
    columns += [pa.ListArray.from_arrays(offsets, pa.array(counts))]
    return table_of(columns, schemas.TALLY)
