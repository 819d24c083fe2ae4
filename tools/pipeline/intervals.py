"""Sets of sequence numbers as intervals, many sets at once: what de-duplication remembers.

A set costs as much as it has gaps, not as it has members: a boot that lost nothing is one interval, whether it sent
ten messages or ten million. All sets of a bucket lie in two sorted arrays of *codes*, `group << 31 | seq`, so that
membership and union are a few numpy calls for a whole batch. Sequence numbers are 1 to 2^31 - 1; two groups are never
adjacent, because code 0 of a group is never used.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

SEQ_BITS = 31


class Intervals(NamedTuple):
    """Disjoint, sorted, not adjacent: [lo[i], hi[i]]."""

    lo: np.ndarray
    hi: np.ndarray

    def contains(self, codes: np.ndarray) -> np.ndarray:
        """Return for each code whether it is in the set."""
        if not len(self.lo):
            return np.zeros(len(codes), dtype=bool)
        at = np.searchsorted(self.lo, codes, side="right") - 1
        return (at >= 0) & (codes <= self.hi[np.maximum(at, 0)])

    def union(self, codes: np.ndarray) -> Intervals:
        """Return the set with `codes` added: sorted, each once, none of them in the set yet."""
        if not len(codes):
            return self
        begins = np.concatenate(([True], np.diff(codes) != 1))
        lo = np.concatenate((self.lo, codes[begins]))
        hi = np.concatenate((self.hi, codes[np.concatenate((begins[1:], [True]))]))
        order = np.argsort(lo, kind="stable")
        lo, hi = lo[order], hi[order]
        begins = np.concatenate(([True], lo[1:] != hi[:-1] + 1))
        return Intervals(lo[begins], hi[np.concatenate((begins[1:], [True]))])


EMPTY = Intervals(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))


def encode(groups: np.ndarray, seqs: np.ndarray) -> np.ndarray:
    """Return the codes of sequence numbers in groups."""
    return (groups.astype(np.int64) << SEQ_BITS) | seqs


def group_of(codes: np.ndarray) -> np.ndarray:
    """Return the groups of codes."""
    return codes >> SEQ_BITS


def seq_of(codes: np.ndarray) -> np.ndarray:
    """Return the sequence numbers of codes."""
    return codes & ((1 << SEQ_BITS) - 1)
