"""Random runs of a journal, an adversary that chooses how marginal bits read, interrupted first mounts. More: `make powercut`."""

import pytest

from flashmqtt.journal import journal
from flashmqtt.journal.journal import Journal
from host_tests.journal.mutations import Mutation
from tools.proof.powercut import lives
from tools.proof.powercut.__main__ import main
from tools.proof.powercut.adversary import Plan, enumerate_plan
from tools.proof.powercut.cuts import run_script


@pytest.mark.req("S1", "S2", "S4", "S6")
@pytest.mark.parametrize("life", range(12))
def test_random_run_keeps_all_guarantees(life):
    lives.on_chip(life, boots=40)


@pytest.mark.req("S2", "S5", "S6")
@pytest.mark.parametrize("life", [289, 323])
def test_bad_sectors_make_the_longest_message_shorter_and_may_wear_out_a_full_journal(life):
    assert lives.on_chip(life) == 51  # 289: StoreFull for 5,000 bytes; 323: StoreWorn, see LIMITS.md


@pytest.mark.req("S1", "S2")
@pytest.mark.parametrize(("page", "sectors", "cuts"), [(256, 4, 4), (64, 5, 3), (32, 4, 3), (1, 5, 3)])
def test_every_series_of_cuts_with_marginal_bits_keeps_all_guarantees(page, sectors, cuts):
    """Four cuts, each with a marginal last program, and an erase of the next sector made format version 1 unreadable."""
    stats = enumerate_plan(Plan("afu", sectors, page, letters=("afu",), steps=(1,), cuts=cuts), jobs=1)
    assert not stats.broken, stats.broken[0]
    assert stats.cuts > (1000 if cuts == 4 else 400)


@pytest.mark.req("S1", "S2")
@pytest.mark.parametrize(
    ("sectors", "start", "policy", "size"),
    [(4, "aa", 0, 1024), (5, "hraa", 0, 1024), (5, "aaaraaffu", 0, 1024), (4, "aa", 1, 1024), (4, "A", 0, 2048)],
)
def test_every_series_of_cuts_in_mounts_that_carry_messages_keeps_all_guarantees(sectors, start, policy, size):
    """One of the cuts may be in an erase of a sector whose opening was cut: what it carried is marginal, too."""
    carrying = Plan("carry", sectors, 256, start, ("", "a"), (0, 1), 3, policy, size)
    stats = enumerate_plan(carrying, jobs=1)
    assert not stats.broken, stats.broken[0]
    assert stats.cuts > 300


@pytest.mark.req("S1", "S2")
@pytest.mark.parametrize(("sectors", "start"), [(4, "Haaafffaaa"), (6, "haaaaaaafffaaaa")])
def test_every_series_of_cuts_in_openings_that_carry_held_messages_keeps_all_guarantees(sectors, start):
    """A cut opening, and then a cut erase of its sector, could leave header and first record whole, and the held message not."""
    carrying = Plan("held", sectors, start=start, letters=("a", ""), steps=(1, 0), cuts=3)
    stats = enumerate_plan(carrying, jobs=1)
    assert not stats.broken, stats.broken[0]
    assert stats.cuts > 500


@pytest.mark.req("S1", "S2")
@pytest.mark.parametrize("part", range(4))
def test_random_series_of_cuts_with_marginal_bits_keep_all_guarantees(part):
    for seed in range(part * 50, part * 50 + 50):
        lives.on_cells(seed)


@pytest.mark.req("S2", "S6")
def test_interrupted_first_mount_always_yields_a_journal():
    assert sum(map(lives.first_mounts, range(300))) > 400


CATCH = {
    "header": (Plan("two", 4, letters=("afu",), steps=(2,), cuts=4),),
    "record": (Plan("two", 4, letters=("afu",), steps=(2,), cuts=3),),
    "carried": (Plan("carry", 4, start="aa", letters=("",), steps=(0,), cuts=4),),
    "whole": (Plan("held", 4, start="haaafffaaaa", letters=("a", ""), steps=(1, 0), cuts=3),),
    "first": (Plan("carry", 5, start="aaaraaffu", letters=("a",), steps=(1,), cuts=2),),
    "order": (Plan("carry", 4, start="aa", letters=("a",), steps=(1,), cuts=2),),
    "supersede": (Plan("two", 4, letters=("Af", ""), steps=(2, 0), cuts=5),),
    "free": (Plan("two", 4, letters=("Af",), steps=(2,), cuts=2),),
    "one": (Plan("two", 4, start="AAA", letters=("afu",), steps=(2,), cuts=2),),
}


@pytest.mark.parametrize("name", CATCH)
def test_check_detects_each_mutation(name):
    with Mutation(name):
        for plan in CATCH[name]:
            if enumerate_plan(plan, jobs=1).broken:
                return
    pytest.fail("nothing noticed")


def test_check_after_a_cut_detects_a_flush_that_makes_no_finished_message_durable(monkeypatch):
    monkeypatch.setattr(Journal, "flush", Journal.sync)
    assert run_script("duty", 1, 0, 0)[1]


def test_replayed_life_without_a_cut_holds(capsys):
    number = next(number for number in range(50) if not lives.first_mounts(number))
    assert main(["--replay", f"first-mounts/{number}"]) == 0
    assert capsys.readouterr().out == f"first-mounts/{number}: holds, 0 cuts\n"


def test_journal_that_ignores_checksums_is_found_and_does_not_hang(monkeypatch):
    real = journal.raw_crc32
    monkeypatch.setattr(journal, "raw_crc32", lambda *arguments: real(*arguments) or not arguments[-1])
    assert main(["--short", "--script", "lives"]) == 1
