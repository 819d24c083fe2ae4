"""What happens to the chain during a run, and when: power cuts, link cuts, kills of the collector, at moments
nobody chose.

Moments are drawn over the run's progress (messages stored by the board), so that they spread over the work
however fast the machine is; a further random delay lets them fall anywhere in time. Some power cuts follow a
restart at once, so that recovery is cut too.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from tools.proof.chain import COLLECTOR, LINK, POWER

# What takes a while (the collector restarts) comes early, so that the board is not done before every fault has had its turn.
FIRST, LAST, LAST_OF_COLLECTOR = 0.02, 0.75, 0.4
LONGEST_DELAY_S = 0.25
# One power cut in four comes while the board is still starting.
EARLY = 4


@dataclass(frozen=True)
class Event:
    """One fault: when `at` messages are stored, and `delay_s` later."""

    at: int
    delay_s: float
    kind: str
    early: bool = False


def draw(rng: random.Random, messages: int, power: int, link: int, collector: int) -> list[Event]:
    """Return a run's faults in the order of their moments."""

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
