"""Ties: pairs of a boot's uptime and its clock; and the number of the clock's jumps.

Jumps are counted between adjacent ties, in the order of their sequence numbers. Only few ties are kept: a tie is dropped if
its neighbours on both sides have the same clock offset, and no message can arrive between them any more. So the count does
not depend on the order of arrival, and the number of kept ties depends on jumps and gaps, not on messages.
"""

import numpy as np
import pyarrow as pa

from tools.pipeline.tables import intervals, schemas
from tools.pipeline.tables.files import table_of

from .state import State

JUMP_US = 1_000_000
DRIFT = 1e-3  # of the uptime between two ties: no crystal has such an error
SET_SINCE_US = 1_577_836_800_000_000  # a clock before 2020 was not set
AHEAD_US = 86_400_000_000  # a clock that is a day ahead of the arrival is wrong


def plausible(clock_us: np.ndarray, arrival_us: np.ndarray) -> np.ndarray:
    """Return which clocks are plausible."""
    return (clock_us > SET_SINCE_US) & (clock_us < arrival_us + AHEAD_US)


def jumped(offset_us: np.ndarray, uptime: np.ndarray) -> np.ndarray:
    """Return between which adjacent ties of a boot the clock jumped."""
    return np.abs(np.diff(offset_us)) > JUMP_US + np.diff(uptime) * DRIFT * 1e6


def kept(offset_us: np.ndarray, uptime: np.ndarray, apart: np.ndarray) -> np.ndarray:
    """Return which ties to keep: the first and the last of each sequence with one clock offset.

    Args:
        offset_us, uptime: of the ties, sorted by boot and sequence number.
        apart: between which adjacent ties another message may arrive, or another boot begins.
    """
    if not len(offset_us):
        return np.zeros(0, dtype=bool)
    breaks = apart | jumped(offset_us, uptime)
    found = np.concatenate(([True], breaks)) | np.concatenate((breaks, [True]))
    while True:  # slow drift is no jump, but adds up to one between the two ends: keep a tie between them
        at = np.flatnonzero(found)
        drifts = jumped(offset_us[at], uptime[at]) & (np.diff(at) > 1)
        if not drifts.any():
            return found
        found[(at[:-1] + at[1:])[drifts] // 2] = True


def merge(state: State, known: np.ndarray, seen_before: intervals.Intervals, parts: list[pa.Table]) -> pa.Table:
    """Return the ties of a batch's parts in order, without those that need not be kept.

    Args:
        state: the bucket's state, including the batch.
        known, seen_before: the keys and the intervals before the batch, whose ties are in other files.
        parts: tables of ties.
    """
    table = pa.concat_tables([one.cast(schemas.TIES) for one in parts]).combine_chunks()
    keys = state.keys_of(table)
    order = np.lexsort((table["seq"].to_numpy(), keys))
    table, keys = table.take(pa.array(order)), keys[order]
    seq = table["seq"].to_numpy()
    at = np.searchsorted(state.seen.lo, intervals.encode(np.searchsorted(state.keys, keys), seq), side="right")
    apart = at[1:] != at[:-1]
    begun = np.searchsorted(seen_before.lo, intervals.encode(np.searchsorted(known, keys), seq))
    apart |= np.isin(keys[1:], known) & (begun[1:] != begun[:-1])
    table = table.filter(pa.array(kept(table["offset_us"].to_numpy(), table["uptime"].to_numpy(), apart)))
    return table_of([column.combine_chunks() for column in table.columns], schemas.TIES)
