"""Random lives of a journal, an adversary who chooses how marginal bits read, and cut first mounts. `make powercut` does more."""

import pytest

from tools.proof.powercut.adversary import (
    MUTATIONS,
    Mutation,
    Plan,
    enumerate_plan,
    first_mount,
    first_mount_on_chip,
    sample_chain,
)
from tools.proof.powercut.soak import soak

GEOMETRIES = ("rp2", "esp32", "page64", "page32")


@pytest.mark.req("S1", "S2", "S4", "S6")
@pytest.mark.parametrize("life", range(12))
def test_a_random_life_keeps_every_promise(life):
    soak(life, 500, GEOMETRIES[life % 4], 2 if life % 4 == 3 else 0, life % 4 == 2, life % 5 % 3)


@pytest.mark.req("S1", "S2")
@pytest.mark.parametrize(("page", "sectors"), [(256, 4), (64, 5), (32, 4), (1, 5)])
def test_every_chain_of_cuts_under_the_adversary_keeps_every_promise(page, sectors):
    """Four cuts, the last programs of all of them marginal, and the next sector erased, made version 1 unreadable."""
    stats = enumerate_plan(Plan("afu", sectors, page, letters=("afu",), steps=(1,), cuts=4), jobs=1)
    assert not stats.broken, stats.broken[0][2]
    assert stats.cuts > 1000


@pytest.mark.req("S1", "S2")
@pytest.mark.parametrize("part", range(4))
def test_random_chains_of_cuts_under_the_adversary_keep_every_promise(part):
    for seed in range(part * 50, part * 50 + 50):
        sample_chain(seed)


@pytest.mark.req("S2", "S6")
def test_first_mounts_that_are_cut_always_end_with_a_journal():
    cuts = 0
    for seed in range(200):
        cuts += first_mount(seed) + first_mount_on_chip(seed)
    assert cuts > 400


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_check_can_fail(name):
    with Mutation(name):
        for plan in CATCH[name]:
            if enumerate_plan(plan, jobs=1, limit_s=60).broken:
                return
    pytest.fail("nothing noticed")


CATCH = {
    "header": (Plan("two", 4, letters=("afu",), steps=(2,), cuts=4),),
    "record": (Plan("two", 4, letters=("afu",), steps=(2,), cuts=3),),
    "supersede": (Plan("two", 4, letters=("af", ""), steps=(2, 0), cuts=5),),
    "free": (Plan("two", 4, letters=("afu",), steps=(2,), cuts=4),),
    "one": (Plan("two", 4, letters=("afu",), steps=(2,), cuts=4),),
}
