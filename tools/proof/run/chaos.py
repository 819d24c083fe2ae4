"""The faults of a run and their random moments: power cuts, link cuts, kills of the collector.

A moment is a number of messages stored by the board, so that the faults spread over the work however fast the machine is. A
random delay is added, so that they fall anywhere in time. Some power cuts follow right after a restart, so that recovery is cut,
too.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from tools.proof.chain import COLLECTOR, LINK, POWER

# The collector takes a while to restart, so it is killed early: the board must not be done before every fault was applied.
FIRST, LAST, LAST_OF_COLLECTOR = 0.02, 0.75, 0.4
LONGEST_DELAY_S = 0.25
# One power cut in four comes while the board starts.
EARLY = 4


@dataclass(frozen=True)
class Event:
    """One fault: `delay_s` after `at` messages are stored; if `early`, `delay_s` after the event before."""

    at: int
    delay_s: float
    kind: str
    early: bool = False


def draw(rng: random.Random, messages: int, power: int, link: int, collector: int) -> list[Event]:
    """Return a run's faults, ordered by their moments."""

    def moment(kind: str) -> int:
        return round(messages * rng.uniform(FIRST, LAST_OF_COLLECTOR if kind == COLLECTOR else LAST))

    events = [
        Event(moment(kind), rng.uniform(0, LONGEST_DELAY_S), kind)
        for kind, count in ((POWER, power), (LINK, link), (COLLECTOR, collector))
        for _ in range(count)
    ]
    ordered = sorted(events, key=lambda event: event.at)
    cuts = [index for index, event in enumerate(ordered) if event.kind == POWER]
    for index in rng.sample(cuts[1:], len(cuts[1:]) // EARLY):
        event = ordered[index]
        ordered[index] = Event(event.at, event.delay_s, event.kind, early=True)
    return ordered
