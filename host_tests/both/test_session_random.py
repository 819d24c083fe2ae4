"""Many small worlds: lost connections, power cuts, any chunking; nothing lost at QoS 1, exactly once at QoS 2, order kept."""

import pytest

from lossy import World
from wire import CutStore


def open_store(world):
    """Return an empty store, or what the power cut left of the last one."""
    store = getattr(world, "store", None)
    return CutStore(1000, world.hold_limit) if store is None else store.cut()


@pytest.mark.req("Q1", "Q2", "Q3", "Q4", "Q6", "Q8", "S1")
@pytest.mark.parametrize("level", [3, 4, 5])
def test_nothing_is_lost_in_any_world(level):
    for seed in range(25):
        world = World(seed, open_store, level)
        try:
            world.run(300)
        except Exception:
            print("level", level, "seed", seed)
            raise
    assert world.drops + world.cuts


@pytest.mark.req("Q4")
def test_a_broker_with_a_larger_window_than_ours_is_served_completely():
    for seed in range(15):
        World(seed, open_store, 4, window=6, broker_window=9, hold_limit=3).run(300)
