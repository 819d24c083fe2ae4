"""`python -m tools.proof.hostile`: every wrong thing a broker can do, at every moment, at every level, on both interpreters.

A case that fails prints its id; `--case ID` runs it alone. `--table` prints what the client did about each wrong thing. Exit
status: 0 all as it must be; 1 something was not; 130 stopped by Ctrl-C. What a whole run counted goes to build/hostile.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import defaultdict

from tqdm import tqdm

from tools.command import ended, number
from tools.proof.faults.compiled import ROOT
from tools.proof.hostile.runner import INTERPRETERS, LEVELS, Case, Verdict, all_cases, run_cases

RESULT = ROOT / "build" / "hostile.json"


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Return the command line's meaning; its `cases` are those to run."""
    parser = argparse.ArgumentParser(prog="python -m tools.proof.hostile", description=__doc__.splitlines()[0])
    parser.add_argument("--case", action="append", help="run only the case with this id, and show what happened")
    parser.add_argument("--levels", default=LEVELS, help="of these: 345")
    parser.add_argument("--interpreters", nargs="+", choices=INTERPRETERS, default=INTERPRETERS)
    parser.add_argument("--table", action="store_true", help="print what came of each wrong thing")
    parser.add_argument("--workers", type=number(int, 1), default=24)
    arguments = parser.parse_args(argv)
    if not arguments.levels or set(arguments.levels) - set(LEVELS):
        parser.error(f"argument --levels: it has to be some of {LEVELS}, not {arguments.levels!r}")
    try:
        arguments.cases = [Case.parse(text) for text in arguments.case or ()]
    except ValueError as error:
        parser.error(f"argument --case: {error}")
    arguments.whole = not arguments.case and {*arguments.levels, *arguments.interpreters} == {*LEVELS, *INTERPRETERS}
    for interpreter in () if arguments.case else arguments.interpreters:
        arguments.cases += all_cases(arguments.levels, interpreter)
    return arguments


def run(arguments: argparse.Namespace) -> int:
    """Run cases; return the exit status."""
    cases = arguments.cases
    verdicts: list[Verdict] = []
    started = time.monotonic()
    with tqdm(total=len(cases), unit=" cases", disable=None, leave=False) as bar:

        def report(verdict: Verdict) -> None:
            verdicts.append(verdict)
            bar.update()
            if verdict.problems:
                tqdm.write(f"FAILED {verdict.case}\n       " + "\n       ".join(verdict.problems))
            if arguments.case:
                print(f"{verdict.case}: {verdict.texts or 'tolerated'}; took {verdict.got}; {verdict.seen}")

        asyncio.run(run_cases(cases, arguments.workers, report))
    failing = [str(verdict.case) for verdict in verdicts if verdict.problems]
    if arguments.table:
        table: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        for verdict in verdicts:
            where = f"{verdict.case.level}:{verdict.case.moment}"
            table[verdict.case.wrong.name][verdict.first_error or "tolerated"].append(where)
        for name, outcomes in table.items():
            print(f"{name}: " + "; ".join(f"{error} {len(where)}" for error, where in sorted(outcomes.items())))
    if arguments.whole:
        RESULT.parent.mkdir(parents=True, exist_ok=True)
        RESULT.write_text(json.dumps({"cases": len(verdicts), "failing": failing}, indent=2) + "\n")
    heaps = [verdict.heap for verdict in verdicts if verdict.heap]
    if heaps:
        print(f"MicroPython's heap after a case: {min(heaps):,} to {max(heaps):,} bytes")
    print(f"{len(verdicts)} cases, {len(failing)} failed; {time.monotonic() - started:.0f} s")
    return 1 if failing else 0


def main(argv: list[str] | None = None) -> int:
    """Read the command line and run; return the exit status."""
    arguments = parse(argv)
    return ended(lambda: run(arguments))


if __name__ == "__main__":
    sys.exit(main())
