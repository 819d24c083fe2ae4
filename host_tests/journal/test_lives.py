"""Random lives of a journal: any calls, the power going at any operation, sectors going bad. `make powercut` lives more."""

import pytest

from tools.powercut.soak import soak


@pytest.mark.req("S1", "S2", "S4", "S6")
@pytest.mark.parametrize("life", range(12))
def test_a_random_life_keeps_every_promise(life):
    soak(life, 500, "esp32" if life % 2 else "rp2", 2 if life % 4 == 3 else 0, (8, 2, 32)[life % 3], life % 4 == 2)


@pytest.mark.req("S1", "S2")
@pytest.mark.parametrize(
    "life",
    (
        40,  # a held message that was named as finished twice counted as one of the queue
        45,  # messages moved in the order of their slots, not by age
        1055,  # a place of the cursor that an earlier opening had left
        2027,  # the first piece of a copy that was cut short counted already
        4139,  # a message begun, nothing of it written: low above the next sequence
    ),
)
def test_lives_that_once_lost_something(life):
    soak(life, 1500)
