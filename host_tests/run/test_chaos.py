"""The random faults of a run have the requested numbers, are spread over the run, and are equal for equal seeds."""

import random
from collections import Counter

from tools.proof import run


def test_requested_faults_are_drawn_in_order():
    events = run.draw(random.Random(7), 1000, 20, 10, 3)
    assert Counter(event.kind for event in events) == {run.POWER: 20, run.LINK: 10, run.COLLECTOR: 3}
    assert [event.at for event in events] == sorted(event.at for event in events)
    assert all(20 <= event.at <= 950 for event in events)


def test_some_power_cuts_hit_the_start():
    events = run.draw(random.Random(7), 1000, 20, 10, 3)
    assert sum(event.early for event in events) == 4
    assert all(event.kind == run.POWER for event in events if event.early)


def test_same_seed_repeats_the_faults():
    assert run.draw(random.Random(3), 100, 5, 5, 1) == run.draw(random.Random(3), 100, 5, 5, 1)
    assert run.draw(random.Random(3), 100, 5, 5, 1) != run.draw(random.Random(4), 100, 5, 5, 1)
