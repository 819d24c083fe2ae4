"""The fault cases. A suite names settings; each is run without cuts, and then with a cut at every place of that run's trace.

The places come from a trace, so that none is left out when a flow changes.
"""

import contextlib
import re
import tempfile
from argparse import ArgumentTypeError
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from tools.command import progress_bar
from tools.proof import side_by_side
from tools.proof.broker import Broker
from tools.proof.faults import power as power_cuts
from tools.proof.faults.cases import FLOWS, Case, Outcome, places_of
from tools.proof.faults.hostile import runner as hostile
from tools.proof.faults.runner import HEAP, Worker
from tools.proof.program import board_image
from tools.proof.proxy import DOWN, PLACES, Cut

PINGREQ = 12
BORDERS = ("before", "after")


@dataclass(frozen=True)
class Suite:
    """Settings, and the cuts of their flows.

    Attributes:
        bases: the cases without cuts.
        manners: how connections end; none: only the bases are run.
        places: where in a packet.
        depth: the most cuts in one case.
        then: further cuts after the one that a case adds; a case for each.
        heap: the size of MicroPython's heap.
        workers: how many cases run at once.
    """

    name: str
    bases: tuple[Any, ...]
    manners: tuple[str, ...] = ()
    places: tuple[str, ...] = PLACES
    depth: int = 1
    then: tuple[tuple[Cut, ...], ...] = ((),)
    heap: str = HEAP
    workers: int = 16
    again: Counter = field(default_factory=Counter, compare=False)

    async def run(self, report: Callable[[Any], object]) -> None:
        """Run the bases and the cases that follow from them; report each verdict, and show progress."""
        board_image()  # once, and outside the time limit of a case
        with (
            tempfile.TemporaryDirectory(prefix="flashmqtt-faults-") as scratch,
            progress_bar(total=len(self.bases), desc=self.name, unit=" cases") as bar,
        ):

            def add(verdict: Any) -> list[Case]:
                report(verdict)
                more = list(self.further(verdict)) if self.manners else []
                bar.total += len(more)
                bar.update()
                return more

            async with contextlib.AsyncExitStack() as stack:
                shared: dict[str, Broker] = {}
                workers = [Worker(Path(scratch) / f"w{number}", shared, self.heap) for number in range(self.workers)]
                for worker in workers:
                    stack.push_async_callback(worker.stop)
                await side_by_side.run_cases(self.bases, workers, add)

    def further(self, outcome: Outcome) -> Iterable[Case]:
        """Return the cases with one cut more than this one."""
        case = outcome.case
        if len(case.cuts) >= self.depth or outcome.made < len(case.cuts) or outcome.failure:
            return
        if not case.cuts and (outcome.texts or any(seen.type == PINGREQ for seen in outcome.trace)):
            # The machine was busy for a moment, so this trace has packets that other runs do not have: run it again. After five
            # runs with errors, take the trace.
            self.again[case] += 1
            if self.again[case] < 5:
                yield case
                return
        for cut in places_of(outcome.trace, self.manners, len(case.cuts)):
            if cut.place in self.places:
                for rest in self.then:
                    yield replace(case, cuts=(*case.cuts, cut, *rest))


def _cases(levels: str, qos: str, flows: Iterable[str] = FLOWS, interpreters: str = "mpy", **rest) -> tuple[Case, ...]:
    return tuple(
        Case(int(level), int(quality), flow, interpreter, **rest)
        for level, quality, flow, interpreter in product(levels, qos, flows, interpreters.split())
    )


def _brokers(levels: str, qos: str) -> tuple[Case, ...]:
    return tuple(case for kind in ("kill", "lost", "lostdrop") for case in _cases(levels, qos, broker=kind))


LINK = ("fin", "rst", "hole")
# The CONNACK of the next connection does not arrive, or is the last packet that arrives.
NO_CONNACK = ((Cut(DOWN, 1, "before", "rst"),), (Cut(DOWN, 1, "after", "rst"),))

# The blocking client, a journal and a window of 8, with the code in RAM, need 144 KB on a 64-bit machine: in 116 KB some cases
# run out of memory.
EIGHT = _cases("4", "12", window=8, count=12, store="journal")

FULL = (
    Suite("one cut", _cases("345", "012", interpreters="mpy cpy"), LINK),
    Suite("two cuts", _cases("345", "12", count=2), ("rst",), BORDERS, depth=2),
    Suite("a window of 8, in the journal", EIGHT, ("rst",), BORDERS, heap="144K"),
    Suite("in the journal", _cases("345", "12", store="journal"), ("fin", "rst")),
    Suite("both ways at once", _cases("345", "12", ("both",)), ("rst",), BORDERS),
    Suite("asyncio", _cases("45", "12", interpreters="mpyaio cpyaio"), ("rst",), BORDERS),
    Suite("messages in pieces", _cases("345", "12", ("out",), long=True), ("rst", "hole")),
    Suite("the broker dies", _brokers("345", "012"), ("action",), BORDERS),
    Suite("dies, and the next CONNACK is lost", _brokers("345", "2"), ("action",), BORDERS, then=NO_CONNACK),
    # amqtt 0.12 sends no queued messages to a client that reconnects, and answers a PUBREL with an unknown id by no PUBCOMP. So
    # with cuts it is only tested at QoS 0 and 1 from the device.
    Suite("a second broker", _cases("4", "01", ("out",), broker="amqtt"), ("fin", "rst")),
    Suite("a second broker, without cuts", _cases("4", "012", ("out", "in", "both"), broker="amqtt")),
)

SHORT = (
    Suite("one cut", _cases("4", "012") + _cases("35", "2"), ("rst",)),
    Suite("one cut, on CPython", _cases("4", "2", interpreters="cpy"), ("fin",), BORDERS),
    Suite("silence", _cases("4", "12", ("out",)), ("hole",), ("middle",)),
    Suite("both ways at once, in the journal", _cases("4", "2", ("both",), store="journal"), ("rst",), BORDERS),
    Suite("asyncio", _cases("4", "2", interpreters="mpyaio"), ("rst",), BORDERS),
    Suite("the broker dies", _cases("4", "2", ("out",), broker="kill"), ("action",), ("after",)),
)

# Every wrong thing of the hostile broker, at every moment.
HOSTILE = tuple(
    Suite(f"level {level}, {interpreter}", tuple(hostile.all_cases(level, interpreter)))
    for level in hostile.LEVELS
    for interpreter in hostile.INTERPRETERS
)


def power(kills: Iterable[tuple[int, int]], seed: int) -> Suite:
    """Return the suite of a board's kills; `kills` are (level, how many). Other load would shift their moments."""
    return Suite("the board's power", tuple(power_cuts.Case(level, count, seed) for level, count in kills), workers=1)


def find(text: str) -> Any:
    """Return the case with this id, of any kind.

    Raises:
        ArgumentTypeError: there is none.
    """
    if found := re.fullmatch(r"power/([345])/(\d+)/(\d+)", text):
        return power_cuts.Case(*map(int, found.groups()))
    setting, _, cuts = text.partition("/")
    with contextlib.suppress(ArgumentTypeError, ValueError):
        base = side_by_side.find((case for suite in (*FULL, *SHORT) for case in suite.bases), setting)
        return replace(base, cuts=tuple(Cut.parse(cut) for cut in cuts.split("+") if cut))
    return side_by_side.find((case for suite in HOSTILE for case in suite.bases), text)
