"""`python -m tools.proof.brokers`: the same scenarios against every real broker installed here; a table of the results.

A case that fails prints its id; `--case ID` runs it alone and prints its packets. Exit status: 0 the client did everything right;
1 it did not; 2 it could not be run; 130 stopped by Ctrl-C. Faults of a broker are reported, but are no failure.
"""

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from pathlib import Path

from tools.bootstrap import ROOT
from tools.command import exit_status, named, parser_of, progress_bar
from tools.proof import counts
from tools.proof.broker import BrokerFailed
from tools.proof.brokers import page
from tools.proof.brokers.judge import Verdict
from tools.proof.brokers.kinds import KINDS, NotHere, make_certificate
from tools.proof.brokers.runner import Case, all_cases, find, run_broker
from tools.proof.tally import Tally

PAGE = ROOT / "tools" / "proof" / "brokers" / "README.md"
WORKERS = 4


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = parser_of("tools.proof.brokers", __doc__)
    only = "run only the case with this id, and print its packets"
    parser.add_argument("--case", action="append", type=find, default=[], dest="cases", help=only)
    parser.add_argument("--brokers", nargs="+", choices=tuple(KINDS), default=tuple(KINDS), help="only these")
    parser.add_argument("--keep", action="store_true", help=f"write the table into {PAGE.relative_to(ROOT)}")
    arguments = parser.parse_args(argv)
    arguments.whole = not arguments.cases and tuple(arguments.brokers) == tuple(KINDS)
    if arguments.keep and not arguments.whole:
        parser.error("--keep: the table on the page is of all cases")
    return arguments


@named("brokers")
def main(argv: list[str] | None = None) -> int:
    """Run the cases; return the exit status."""
    arguments = parse(argv)
    results, tally = page.Results(), Tally(shows=bool(arguments.cases))
    # asyncio warns of a board whose power was cut: it reads nothing any more.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="flashmqtt-brokers-", ignore_cleanup_errors=True) as scratch:
        directory = Path(scratch).resolve()
        make_certificate(directory)
        names = tuple(dict.fromkeys(case.broker for case in arguments.cases)) or arguments.brokers
        for name in names:
            _run_kind(name, arguments.cases, directory, results, tally)
    print(page.table(results))
    if arguments.keep:
        page.write(PAGE, results)
    print(f"{results.cases} cases, {len(tally.failing)} failed; {time.monotonic() - started:.0f} s")
    for reason in results.not_run:
        print(f"NOT RUN: {reason}")
    if arguments.whole:
        counted = {"scenarios": results.cases, "failed": len(tally.failing), "not_run": results.not_run}
        counts.write("brokers", counted)
    return tally.status()


def _run_kind(name: str, chosen: list[Case], directory: Path, results: page.Results, tally: Tally) -> None:
    """Run one broker's cases: the chosen ones, or all."""
    kind = KINDS[name]
    cases = [case for case in chosen if case.broker == name] or all_cases(name)
    try:
        results.versions[name] = kind.provide()
    except NotHere as reason:
        results.not_run.append(f"{name}: {reason}")
        return
    for level in () if chosen else (3, 4, 5):
        if level not in kind.levels:
            results.not_run.append(f"{name} {results.versions[name]} at level {level}: not supported")
    with progress_bar(total=len(cases), desc=name, unit=" cases") as bar:

        def report(verdict: Verdict) -> None:
            tally.add(verdict)
            results.verdicts[name, verdict.case.scenario.name].append(verdict)
            bar.update()

        try:
            asyncio.run(run_broker(kind, cases, directory / name, WORKERS, report))
        except BrokerFailed as failed:
            results.not_run.append(f"{name} {results.versions[name]}: {failed}")
            tally.failing.append(f"{name} does not start")


if __name__ == "__main__":
    sys.exit(exit_status(main))
