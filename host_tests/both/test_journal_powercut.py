"""The power goes at operations of the journal, and what was promised is still there. `make powercut` does all of it."""

import sys

import pytest

from tools.powercut.cuts import run_sample, run_script

NAMES = ("first", "qos1", "turned", "turn", "qos2", "full", "stuck", "pieces", "drops", "duty", "unclean")


@pytest.mark.req("S1", "S2", "S4")
@pytest.mark.parametrize("name", NAMES)
def test_nothing_promised_is_lost_to_a_power_cut(name):
    if sys.implementation.name == "cpython":
        cuts, broken = run_script(name, 1, 80, 1)
    else:  # the same code, ten times slower, in 192 KB: a sample
        cuts, broken = run_sample(name, 2)
    assert broken == []
    assert cuts
