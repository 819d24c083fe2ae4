"""Whatever a broker does wrong, at whatever moment: a named error or a tolerance, no hang, no wrong delivery."""

import asyncio

import pytest

from tools.hostile.runner import Case, all_cases, run_cases
from tools.hostile.wrongs import MOMENTS, WRONGS

WORKERS = 16
# The other levels differ in what is malformed, hardly in what a moment means; `make hostile` runs all.
SOME_MOMENTS = ("connect", "pubrec", "out2", "idle")
ALL = [
    *all_cases("4", "mpy"),
    *(case for case in all_cases("5", "mpy") if case.moment in SOME_MOMENTS),
    *(case for case in all_cases("3", "cpy") if case.moment == "idle"),
]


@pytest.mark.req("W13", "Q4", "Q8")
def test_every_wrong_thing_at_every_moment_has_a_named_end_or_is_tolerated():
    verdicts = []
    asyncio.run(run_cases(ALL, WORKERS, verdicts.append))
    assert {str(verdict.case): verdict.problems for verdict in verdicts if verdict.problems} == {}
    assert len(verdicts) == len(ALL) > 1400
    # Neither floods nor packets without an end take memory that a case does not give back; level 5's own modules take 24 KB.
    heaps = [verdict.heap for verdict in verdicts if verdict.case.interpreter == "mpy"]
    assert max(heaps) - min(heaps) < 40_000
    # Level 5 says why it ends a connection, wherever the packet that says so is not lost with the connection.
    malformed = [
        verdict for verdict in verdicts if verdict.case.level == 5 and verdict.first_error == "MalformedPacket"
    ]
    said = [verdict for verdict in malformed if verdict.seen.farewell > 0]
    assert len(said) > len(malformed) // 2


def test_names_are_unique_and_ids_find_their_case():
    assert len({wrong.name for wrong in WRONGS}) == len(WRONGS)
    for case in ALL:
        assert Case.parse(str(case)) == case
        assert case.moment in MOMENTS
