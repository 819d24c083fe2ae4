"""Histograms of delays with fixed steps: batches can be added, and percentiles do not need the readings again.

Step n > 0 covers delays from `2^((n-1)/16)` to `2^(n/16)` ms, step 0 delays under 1 ms. So a percentile has an error of
at most 2.2 %. The offset between a board's uptime and the wall clock is unknown until a record has both. So the histogram
counts "arrival minus uptime", minus the batch's smallest such value (`base_us`). The audit applies the offset later.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

STEPS_PER_OCTAVE = 16
SHARES = (0.5, 0.9, 0.99)
"""Of the percentiles."""
LATE_AFTER_S = 60.0
"""A longer delay counts as late in the audit."""


def steps(delays_us: np.ndarray) -> np.ndarray:
    """Return the step of each delay."""
    delays_ms = np.maximum(delays_us, 1) / 1000.0
    return np.maximum(np.floor(np.log2(delays_ms) * STEPS_PER_OCTAVE).astype(np.int64) + 1, 0)


def middles_us(of: np.ndarray) -> np.ndarray:
    """Return the middle of each step, in microseconds (0 for step 0)."""
    return np.where(of <= 0, 0.0, np.exp2((of - 0.5) / STEPS_PER_OCTAVE) * 1000.0)


def percentile(boot: np.ndarray, value: np.ndarray, weight: np.ndarray, boots: int, share: float) -> np.ndarray:
    """Return for each boot its first value at which `share` of its total weight is reached; NaN if it has no values."""
    reached = np.cumsum(weight)
    ends = np.concatenate(([0], reached))[np.searchsorted(boot, np.arange(boots + 1))]
    wanted = ends[:-1] + share * np.diff(ends)
    at = np.minimum(np.searchsorted(reached, wanted), max(0, len(value) - 1))
    return np.where(np.diff(ends) > 0, value[at] if len(value) else 0.0, np.nan)


def figures(
    base_us: np.ndarray, steps_of: pa.ListArray, counts: pa.ListArray, offset_us: np.ndarray
) -> dict[str, pa.Array]:
    """Return the audit's columns about the delays: late messages, percentiles (ms), messages by octave of milliseconds.

    Args:
        base_us, steps_of, counts: each boot's histogram.
        offset_us: for each boot its clock minus its uptime, NaN if unknown. Without it, a boot's delays are unknown.
    """
    boots = len(base_us)
    boot = np.repeat(np.arange(boots), pc.list_value_length(steps_of).to_numpy())
    delay = (base_us - offset_us)[boot] + middles_us(steps_of.flatten().to_numpy())
    known = ~np.isnan(delay)
    boot, delay, count = boot[known], delay[known], counts.flatten().to_numpy()[known]
    late = np.bincount(boot, weights=count * (delay > 1e6 * LATE_AFTER_S), minlength=boots).astype(np.int64)
    octave = np.floor(np.log2(np.maximum(delay / 1000.0, 1.0))).astype(np.int64)
    pairs, place = np.unique(boot * 64 + octave, return_inverse=True)
    offsets = pa.array(np.searchsorted(pairs, np.arange(boots + 1) * 64).astype(np.int32))
    messages = np.bincount(place, weights=count, minlength=len(pairs)).astype(np.int64)
    by_octave = pa.StructArray.from_arrays(
        [pa.array((pairs % 64).astype(np.int32)), pa.array(messages)], names=["octave", "messages"]
    )
    found = {"late": pa.array(late), "delay_octaves": pa.ListArray.from_arrays(offsets, by_octave)}
    for share in SHARES:
        reached = percentile(boot, delay / 1000.0, count, boots, share)
        found[f"delay_p{round(100 * share)}_ms"] = pc.round(pa.array(reached, from_pandas=True), 3)
    return found
