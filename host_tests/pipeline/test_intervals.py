"""Interval sets against plain Python sets."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tools.pipeline.tables import intervals

SEQS = st.integers(1, 40) | st.integers(2**31 - 6, 2**31 - 1)
MEMBERS = st.sets(st.tuples(st.integers(0, 3), SEQS), max_size=30)


def codes(members):
    groups = np.array([group for group, _ in members], dtype=np.int64)
    return np.sort(intervals.encode(groups, np.array([seq for _, seq in members], dtype=np.int64)))


@pytest.mark.req("P3")
@settings(max_examples=200, deadline=None)
@given(st.lists(MEMBERS, max_size=5))
def test_union_equals_a_python_set_in_the_fewest_intervals(batches):
    held = intervals.EMPTY
    model = set()
    for batch in batches:
        asked = codes(batch)
        known = held.contains(asked)
        assert known.tolist() == [(code >> 31, code & (2**31 - 1)) in model for code in asked.tolist()]
        held = held.union(asked[~known])
        model |= batch
        members = [
            (int(lo) >> 31, seq)
            for lo, hi in zip(held.lo, held.hi, strict=True)
            for seq in range(lo & (2**31 - 1), (hi & (2**31 - 1)) + 1)
        ]
        assert members == sorted(model)
        assert not np.any(held.lo[1:] == held.hi[:-1] + 1)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=8), st.lists(st.integers(0, 70), max_size=9)
)
def test_ranges_in_any_order_are_joined_covered_and_counted_like_python_sets(ranges, marks):
    lo = np.array([first for first, _ in ranges], dtype=np.int64)
    hi = np.array([first + more for first, more in ranges], dtype=np.int64)
    model = {n for first, last in zip(lo, hi, strict=True) for n in range(first, last + 1)}
    half = len(lo) // 2
    found = intervals.EMPTY.joined(intervals.Intervals(lo[:half], hi[:half])).joined(
        intervals.Intervals(lo[half:], hi[half:])
    )
    assert {n for first, last in zip(*found, strict=True) for n in range(first, last + 1)} == model
    assert not np.any(found.lo[1:] <= found.hi[:-1] + 1)
    pairs = [(one, other) for one in marks for other in marks if one <= other]
    first, last = (np.array(side, dtype=np.int64) for side in (zip(*pairs, strict=True) if pairs else ((), ())))
    within = [set(range(one, other + 1)) for one, other in pairs]
    assert found.members(first, last).tolist() == [len(some & model) for some in within]
    assert found.covers(first, last).tolist() == [some <= model for some in within]
