"""Delays as counts on a fixed scale, so that batches add up and percentiles need no second look at the readings.

Step n > 0 covers delays from `2^((n-1)/16)` to `2^(n/16)` ms, step 0 those under 1 ms: a percentile is right to
2.2 %. A board's uptime has no fixed tie to the wall clock until a record gives one, so the counts are taken of
"arrival less uptime", less the smallest of the batch (`base_us`); the tie comes in when the audit reads them.
"""

from __future__ import annotations

import numpy as np

STEPS_PER_OCTAVE = 16


def steps(delays_us: np.ndarray) -> np.ndarray:
    """Return the step of each delay."""
    delays_ms = np.maximum(delays_us, 1) / 1000.0
    return np.maximum(np.floor(np.log2(delays_ms) * STEPS_PER_OCTAVE).astype(np.int64) + 1, 0)


def middles_us(of: np.ndarray) -> np.ndarray:
    """Return the delay in the middle of each step, in microseconds (0 for step 0)."""
    return np.where(of <= 0, 0.0, np.exp2((of - 0.5) / STEPS_PER_OCTAVE) * 1000.0)
