"""Ties: where a boot's uptime met the calendar, and how often its clock was set anew.

A boot's clock jumps are counted between neighbours in the order of their numbers. Of many ties few are kept: one may go
where its neighbours on both sides tell the same clock and no message can come between them any more. So the count does
not depend on the order in which the messages came, and what is kept grows with jumps and gaps, not with messages.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from . import intervals, schemas
from .files import table_of
from .state import State

JUMP_US = 1_000_000
DRIFT = 1e-3  # of the uptime between two ties: no crystal is as bad as that
SET_SINCE_US = 1_577_836_800_000_000  # a clock before 2020 was never set
AHEAD_US = 86_400_000_000  # nor was one that is a day ahead of the arrival


def plausible(clock_us: np.ndarray, arrival_us: np.ndarray) -> np.ndarray:
    """Return where a board's clock can be right."""
    return (clock_us > SET_SINCE_US) & (clock_us < arrival_us + AHEAD_US)


def jumped(offset_us: np.ndarray, uptime: np.ndarray) -> np.ndarray:
    """Return between which neighbours of the same boot the clock was set anew."""
    return np.abs(np.diff(offset_us)) > JUMP_US + np.diff(uptime) * DRIFT * 1e6


def kept(offset_us: np.ndarray, uptime: np.ndarray, apart: np.ndarray) -> np.ndarray:
    """Return which of some ties to keep: those at both ends of a stretch that tells one clock.

    Args:
        offset_us, uptime: of the ties, by boot and number.
        apart: between which neighbours another message may come, or another boot begins.
    """
    if not len(offset_us):
        return np.zeros(0, dtype=bool)
    breaks = apart | jumped(offset_us, uptime)
    found = np.concatenate(([True], breaks)) | np.concatenate((breaks, [True]))
    while True:  # a clock that creeps is no jump, but its two ends would look like one: keep one between them
        at = np.flatnonzero(found)
        creeps = jumped(offset_us[at], uptime[at]) & (np.diff(at) > 1)
        if not creeps.any():
            return found
        found[(at[:-1] + at[1:])[creeps] // 2] = True


def unbroken(seen: intervals.Intervals, codes: np.ndarray) -> np.ndarray:
    """Return between which neighbours of some sorted codes every number was seen."""
    at = np.searchsorted(seen.lo, codes, side="right")
    return at[1:] == at[:-1]


def merge(state: State, known: np.ndarray, seen_before: intervals.Intervals, parts: list[pa.Table]) -> pa.Table:
    """Return the ties of a batch's parts in order, without those that are not needed beside the others.

    Args:
        state: the bucket's state, with the batch in it.
        known, seen_before: the keys and the numbers from before the batch: their ties are in other files.
        parts: tables of ties.
    """
    table = pa.concat_tables([one.cast(schemas.TIES) for one in parts]).combine_chunks()
    keys = state.keys_of(table)
    order = np.lexsort((table["seq"].to_numpy(), keys))
    table, keys = table.take(pa.array(order)), keys[order]
    seq = table["seq"].to_numpy()
    apart = ~unbroken(state.seen, intervals.encode(np.searchsorted(state.keys, keys), seq))
    begun = np.searchsorted(seen_before.lo, intervals.encode(np.searchsorted(known, keys), seq))
    apart |= np.isin(keys[1:], known) & (begun[1:] != begun[:-1])
    table = table.filter(pa.array(kept(table["offset_us"].to_numpy(), table["uptime"].to_numpy(), apart)))
    return table_of([column.combine_chunks() for column in table.columns], schemas.TIES)
