"""The compatibility layer gives the same names on both interpreters."""

import pytest

from flashmqtt.compat import const, ticks_add, ticks_diff, ticks_ms


def test_const_is_the_value():
    assert const(7) == 7


@pytest.mark.parametrize("delta", [0, 1, 1000, -1000])
def test_ticks_add_and_diff_are_inverse(delta):
    now = ticks_ms()
    assert ticks_diff(ticks_add(now, delta), now) == delta
