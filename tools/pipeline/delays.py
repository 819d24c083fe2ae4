"""Histograms of delays with fixed steps: batches can be added, and percentiles do not need the readings again.

Step n > 0 covers delays from `2^((n-1)/16)` to `2^(n/16)` ms, step 0 delays under 1 ms. So a percentile has an error of
at most 2.2 %. The offset between a board's uptime and the wall clock is unknown until a record has both. So the histogram
counts "arrival minus uptime", minus the batch's smallest such value (`base_us`). The audit applies the offset later.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

STEPS_PER_OCTAVE = 16
NO_MOMENT_US = 10**14
"""A smaller base is of a board that sent its time but no uptime. (As a time, this is in 1973.)"""


def steps(delays_us: np.ndarray) -> np.ndarray:
    """Return the step of each delay."""
    delays_ms = np.maximum(delays_us, 1) / 1000.0
    return np.maximum(np.floor(np.log2(delays_ms) * STEPS_PER_OCTAVE).astype(np.int64) + 1, 0)


def middles_us(of: np.ndarray) -> np.ndarray:
    """Return the middle of each step, in microseconds (0 for step 0)."""
    return np.where(of <= 0, 0.0, np.exp2((of - 0.5) / STEPS_PER_OCTAVE) * 1000.0)


def expanded(bins: pa.Array, offset_us: pa.Array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the histograms of many boots as arrays (boot, delay in microseconds, number of messages), in this order.

    Args:
        bins: for each boot a list of {base_us, steps, counts}, one for each of its tallies.
        offset_us: for each boot its clock minus its uptime, null if unknown. A base can't be used without the offset,
            unless it is below NO_MOMENT_US: such a base is relative to the board's clock already.
    """
    boot = np.repeat(np.arange(len(bins)), pc.fill_null(pc.list_value_length(bins), 0).to_numpy())
    flat = bins.flatten()
    base = pc.struct_field(flat, "base_us").to_numpy(zero_copy_only=False)
    known = offset_us.is_valid().to_numpy(zero_copy_only=False)
    offset = pc.fill_null(offset_us, 0).to_numpy()
    own_clock = base < NO_MOMENT_US
    usable = own_clock | known[boot]
    base = base - np.where(own_clock, 0, offset[boot])
    steps_of = pc.struct_field(flat, "steps")
    lengths = pc.list_value_length(steps_of).to_numpy()
    boot, base, usable = (np.repeat(one, lengths) for one in (boot, base, usable))
    delay = base + middles_us(steps_of.flatten().to_numpy())
    count = pc.struct_field(flat, "counts").flatten().to_numpy()
    boot, delay, count = boot[usable], delay[usable], count[usable]
    order = np.lexsort((delay, boot))
    return boot[order], delay[order], count[order]


def percentile(boot: np.ndarray, value: np.ndarray, weight: np.ndarray, boots: int, share: float) -> np.ndarray:
    """Return for each boot its first value at which `share` of its total weight is reached; NaN if it has no values."""
    reached = np.cumsum(weight)
    ends = np.concatenate(([0], reached))[np.searchsorted(boot, np.arange(boots + 1))]
    wanted = ends[:-1] + share * np.diff(ends)
    at = np.minimum(np.searchsorted(reached, wanted), max(0, len(value) - 1))
    return np.where(np.diff(ends) > 0, value[at] if len(value) else 0.0, np.nan)


def figures(bins: pa.Array, offset_us: pa.Array, late_after_s: float, shares: tuple[float, ...]) -> pa.StructArray:
    """Return for each boot: messages later than `late_after_s`, percentiles (ms), messages by octave of milliseconds."""
    boots = len(bins)
    boot, delay_us, count = expanded(bins, offset_us)
    late = np.bincount(boot, weights=count * (delay_us > 1e6 * late_after_s), minlength=boots).astype(np.int64)
    reached = [percentile(boot, delay_us / 1000.0, count, boots, share) for share in shares]
    octave = np.floor(np.log2(np.maximum(delay_us / 1000.0, 1.0))).astype(np.int64)
    pairs, place = np.unique(boot * 64 + octave, return_inverse=True)
    offsets = pa.array(np.searchsorted(pairs, np.arange(boots + 1) * 64).astype(np.int32))
    messages = np.bincount(place, weights=count, minlength=len(pairs)).astype(np.int64)
    by_octave = pa.StructArray.from_arrays(
        [pa.array((pairs % 64).astype(np.int32)), pa.array(messages)], names=["octave", "messages"]
    )
    arrays = [pa.array(late), *[pa.array(one, from_pandas=True) for one in reached]]
    arrays.append(pa.ListArray.from_arrays(offsets, by_octave))
    names = ["late", *[f"p{round(100 * share)}" for share in shares], "octaves"]
    return pa.StructArray.from_arrays(arrays, names=names)
