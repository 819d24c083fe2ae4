"""Sets of sequence numbers as intervals, many sets in one object: the state of de-duplication.

The size of a set depends on its gaps, not on its members: a boot without losses is one interval, for ten messages and for
ten million. All sets of a bucket are in two sorted arrays of *codes*, `group << 31 | seq`, so membership and union need
only a few numpy calls for a whole batch. Sequence numbers are 1 to 2^31 - 1. Two groups are never adjacent, because code 0
of a group is never used.
"""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

import numpy as np

SEQ_BITS = 31


class Intervals(NamedTuple):
    """Disjoint, sorted, non-adjacent intervals [lo[i], hi[i]]."""

    lo: np.ndarray
    hi: np.ndarray

    def covers(self, lo: np.ndarray, hi: np.ndarray) -> np.ndarray:
        """Return for each range of codes whether it is within one interval."""
        if not len(self.lo):
            return np.zeros(len(lo), dtype=bool)
        at = np.searchsorted(self.lo, lo, side="right") - 1
        return (at >= 0) & (hi <= self.hi[np.maximum(at, 0)])

    def contains(self, codes: np.ndarray) -> np.ndarray:
        """Return for each code whether it is in the set."""
        return self.covers(codes, codes)

    def members(self, lo: np.ndarray, hi: np.ndarray) -> np.ndarray:
        """Return for each range of codes how many of them are in the set."""
        before = np.concatenate(([0], np.cumsum(self.hi - self.lo + 1)))
        ends = np.concatenate(([-1], self.hi))

        def below(codes: np.ndarray) -> np.ndarray:
            at = np.searchsorted(self.lo, codes)
            return before[at] - np.maximum(ends[at] - codes + 1, 0)

        return below(hi + 1) - below(lo)

    def joined(self, other: Intervals) -> Intervals:
        """Return the union with other intervals, which may overlap and be in any order."""
        lo, hi = np.concatenate((self.lo, other.lo)), np.concatenate((self.hi, other.hi))
        if not len(lo):
            return self
        order = np.argsort(lo, kind="stable")
        lo, hi = lo[order], np.maximum.accumulate(hi[order])
        begins = np.concatenate(([True], lo[1:] > hi[:-1] + 1))
        return Intervals(lo[begins], hi[np.concatenate((begins[1:], [True]))])

    def moved(self, groups: np.ndarray) -> Intervals:
        """Return the same numbers in other groups: `groups` has the new one of each. Their order is the same."""
        return Intervals(*(encode(groups[group_of(one)], seq_of(one)) for one in self))

    def union(self, codes: np.ndarray) -> Intervals:
        """Return the set with `codes` added. They must be sorted and distinct."""
        if not len(codes):
            return self
        begins = np.concatenate(([True], np.diff(codes) != 1))
        return self.joined(Intervals(codes[begins], codes[np.concatenate((begins[1:], [True]))]))


EMPTY = Intervals(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))


def encode(groups: np.ndarray, seqs: np.ndarray) -> np.ndarray:
    """Return the codes of sequence numbers in groups."""
    return (groups.astype(np.int64) << SEQ_BITS) | seqs


def begins(*columns: np.ndarray) -> np.ndarray:
    """Return which rows differ from the row before them in any of some columns; the first one does."""
    found = np.ones(len(columns[0]), dtype=bool)
    found[1:] = reduce(np.logical_or, (one[1:] != one[:-1] for one in columns))
    return found


def group_of(codes: np.ndarray) -> np.ndarray:
    """Return the groups of codes."""
    return codes >> SEQ_BITS


def seq_of(codes: np.ndarray) -> np.ndarray:
    """Return the sequence numbers of codes."""
    return codes & ((1 << SEQ_BITS) - 1)
