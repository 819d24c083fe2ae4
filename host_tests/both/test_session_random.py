"""Random simulations of lost connections, power cuts and chunking: no loss at QoS 1 and 2, no duplicate at QoS 2, kept order."""

import pytest

from lossy import World
from wire import CutStore


def open_store(world):
    """Return an empty store at the first call, later the previous store as it is after a power cut."""
    store = getattr(world, "store", None)
    return CutStore(1000, world.hold_limit) if store is None else store.cut()


@pytest.mark.req("Q1", "Q2", "Q3", "Q4", "Q6", "Q8", "S1")
@pytest.mark.parametrize("level", [3, 4, 5])
def test_random_failures_lose_no_message(level):
    for seed in range(25):
        world = World(seed, open_store, level)
        try:
            world.run(300)
        except Exception:
            print("level", level, "seed", seed)
            raise
    assert world.drops + world.cuts


@pytest.mark.req("Q4")
def test_all_messages_arrive_from_broker_with_larger_window():
    for seed in range(15):
        World(seed, open_store, 4, window=6, broker_window=9, hold_limit=3).run(300)
