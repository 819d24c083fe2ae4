"""`python -m tools.proof.faults`: cut the link everywhere, kill the broker everywhere, and count what was lost or came twice.

A case that fails prints its id; `python -m tools.proof.faults --case ID` runs it alone. Exit status: 0 nothing was violated; 1
something was; 2 it could not be run. What was counted goes to build/faults.json, the packets of failing cases to
build/faults-failing.txt.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path

from tqdm import tqdm

from tools.broker import BrokerFailed
from tools.command import ended, number
from tools.proof import packets as p
from tools.proof.faults.cases import Case
from tools.proof.faults.compiled import ROOT
from tools.proof.faults.power import Story, torment
from tools.proof.faults.runner import Verdict, run_cases
from tools.proof.faults.suites import FULL, SHORT, Suite

RESULT = ROOT / "build" / "faults.json"
FAILING = ROOT / "build" / "faults-failing.txt"
WORKERS = 16
POWER = "the board's power"
KILLS = ((3, 50), (4, 100), (5, 50))
KILLS_SHORT = ((4, 20),)
COUNTED = ("cases", "cuts", "violations", "lost", "duplicates_qos2", "not_reached", "repeated_by_the_broker")


class Tally:
    """Counts verdicts, and shows the bad ones."""

    def __init__(self) -> None:
        self.counts: Counter = Counter()
        self.suites: dict[str, dict[str, int]] = {}
        self.failing: list[str] = []

    def add(self, verdict: Verdict, suite: str) -> None:
        """Count one verdict."""
        outcome = verdict.outcome
        here = Counter(
            cases=1,
            cuts=outcome.made,
            violations=int(bool(verdict.problems)),
            lost=outcome.lost,
            duplicates_qos2=outcome.duplicates,
            not_reached=int(outcome.made < len(verdict.case.cuts)),
            repeated_by_the_broker=int(bool(outcome.repeated)),
        )
        self.counts.update(here)
        self.suites[suite] = dict(Counter(self.suites.get(suite, {})) + here)
        if verdict.problems:
            self.failing.append(str(verdict.case))
            tqdm.write(f"FAILED {verdict.case}\n       " + "\n       ".join(verdict.problems))
            with FAILING.open("a") as log:
                print(verdict.case, *verdict.problems, *story_of(verdict), sep="\n    ", file=log)

    def add_story(self, story: Story, suite: str) -> None:
        """Count the kills of a board."""
        here = Counter(
            cases=story.kills,
            cuts=story.kills,
            violations=int(bool(story.problems)),
            lost=story.lost,
            duplicates_qos2=story.duplicates_qos2,
            torn=story.torn,
            handed_again=story.handed_again,
        )
        self.counts.update(here)
        self.suites[suite] = dict(Counter(self.suites.get(suite, {})) + here)
        if story.problems:
            self.failing.append(story.id)
            tqdm.write(f"FAILED {story.id}\n       " + "\n       ".join(story.problems))

    def result(self, seconds: float) -> dict:
        """Return what goes into faults.json."""
        return {
            **{key: self.counts[key] for key in COUNTED},
            "seconds": round(seconds, 1),
            "suites": self.suites,
            "failing": self.failing,
        }


async def run_suite(suite: Suite, tally: Tally, workers: int) -> None:
    """Run a suite, showing progress."""
    with tqdm(total=len(suite.bases), desc=suite.name, unit=" cases", disable=None, leave=False) as bar:

        def report(verdict: Verdict) -> list[Case]:
            tally.add(verdict, suite.name)
            further = list(suite.further(verdict.case, verdict.outcome))
            bar.total += len(further)
            bar.update()
            return further

        await run_cases(suite.bases, workers, report, suite.heap)


def tell(name: str, tally: Tally, seconds: float) -> None:
    """Print a suite's line."""
    counted = tally.suites.get(name, {})
    print(
        f"{name:32} {counted.get('cases', 0):6} cases {counted.get('violations', 0):4} violated {seconds:6.0f} s",
        flush=True,
    )


def story_of(verdict: Verdict) -> list[str]:
    """Return all that is known of one case, in lines."""
    outcome = verdict.outcome
    lines = [
        f"received {outcome.received}, handed over {outcome.handed}",
        f"delivered {outcome.delivered}, in doubt {outcome.doubtful}",
    ]
    readers: dict[tuple[int, str], p.Reader] = {}
    for seen in outcome.trace:
        reader = readers.setdefault((seen.connection, seen.direction), p.Reader(verdict.case.level))
        try:
            packet: p.Packet | str = reader.feed(seen.content)[0]
        except p.Wrong as wrong:
            packet = f"{seen.content.hex(' ')}: {wrong}"
        passed = "" if seen.whole else f"   cut after {seen.passed} of {len(seen.content)} bytes"
        lines.append(f"{seen.connection} {'->' if seen.direction == 'up' else '<-'} {packet}{passed}")
    return [*lines, *(f"the device: {error}" for error in outcome.errors)]


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Return the command line's meaning; `suites` are those to run, `power` says whether the board's power is cut, too."""
    parser = argparse.ArgumentParser(prog="python -m tools.proof.faults", description=__doc__.splitlines()[0])
    parser.add_argument("--case", action="append", help="run only the case with this id, and show its packets")
    parser.add_argument("--times", type=number(int, 1), default=1, help="how often")
    parser.add_argument("--short", action="store_true", help="the part that belongs to the tests")
    parser.add_argument("--only", default="", help="only the suites whose name begins so")
    parser.add_argument("--workers", type=number(int, 1), default=WORKERS, help="cases side by side")
    parser.add_argument("--seed", type=int, help="of the moments at which the board is killed")
    parser.add_argument("--output", type=Path, default=RESULT)
    arguments = parser.parse_args(argv)
    arguments.cases, arguments.stories = [], []
    for text in arguments.case or ():
        try:
            if text.startswith(Story.PREFIX):
                arguments.stories.append(Story.parse(text))
            else:
                arguments.cases.append(Case.parse(text))
        except ValueError:
            parser.error(f"argument --case: not the id of a case: {text}")
    every = SHORT if arguments.short else FULL
    arguments.suites = [suite for suite in every if suite.name.startswith(arguments.only)]
    arguments.power = POWER.startswith(arguments.only)
    if not arguments.suites and not arguments.power:
        names = ", ".join([*(suite.name for suite in every), POWER])
        parser.error(f"argument --only: no suite begins with {arguments.only!r}; there are: {names}")
    return arguments


def run_chosen(arguments: argparse.Namespace, tally: Tally) -> None:
    """Run the cases with these ids, and show their packets."""

    def report(verdict: Verdict) -> None:
        tally.add(verdict, "chosen")
        if verdict.problems or arguments.times == 1:
            print(verdict.case, *story_of(verdict), sep="\n  ")

    for chosen in arguments.stories:
        story = asyncio.run(torment(*chosen))
        print(story)
        tally.add_story(story, "chosen")
    cases = arguments.cases * arguments.times
    if cases:
        asyncio.run(run_cases(cases, min(arguments.workers, len(cases)), report))


def run_suites(arguments: argparse.Namespace, tally: Tally) -> None:
    """Run the suites, and cut the board's power."""
    for suite in arguments.suites:
        before = time.monotonic()
        asyncio.run(run_suite(suite, tally, arguments.workers))
        tell(suite.name, tally, time.monotonic() - before)
    if arguments.power:
        before = time.monotonic()
        for level, kills in KILLS_SHORT if arguments.short else KILLS:
            seed = arguments.seed if arguments.seed is not None else int.from_bytes(os.urandom(4), "big")
            tally.add_story(asyncio.run(torment(level, kills, seed)), POWER)
        tell(POWER, tally, time.monotonic() - before)


def run(arguments: argparse.Namespace) -> int:
    """Run suites or cases; return the exit status."""
    FAILING.parent.mkdir(parents=True, exist_ok=True)
    FAILING.unlink(missing_ok=True)
    tally = Tally()
    if arguments.case:
        run_chosen(arguments, tally)
        return 1 if tally.counts["violations"] else 0
    started = time.monotonic()
    run_suites(arguments, tally)
    result = {**tally.result(time.monotonic() - started), "short": arguments.short}
    if not arguments.only:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(json.dumps(result, indent=2) + "\n")
    told = ", ".join(f"{result[key]} {key.replace('_', ' ')}" for key in COUNTED)
    print(f"{told}; {result['seconds']:.0f} s")
    return 1 if result["violations"] else 0


def main(argv: list[str] | None = None) -> int:
    """Read the command line and run; return the exit status."""
    arguments = parse(argv)
    return ended(lambda: run(arguments), BrokerFailed)


if __name__ == "__main__":
    sys.exit(main())
