"""Which tests prove which rule: `python -m tools.proof.check.requirements [--list] [--write]`; status 1 if a rule is unproved.

The rules are in `host_tests/requirements.toml`; a test names the rules that it proves with `@pytest.mark.req`. This runs no
tests; `make test` does. `host_tests/README.md` shows the result by chapter: `--write` writes it there. Without `--write`,
another result on that page is an error.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections import defaultdict

from tools.bootstrap import ROOT
from tools.command import ended
from tools.proof.check import marks

RULES = ROOT / "host_tests" / "requirements.toml"
PAGE = ROOT / "host_tests" / "README.md"
PLACE = re.compile(r"(<!-- requirements -->\n).*?(<!-- /requirements -->)", re.DOTALL)
CHAPTERS = {
    "W": "what goes over the wire",
    "Q": "quality of service",
    "S": "storage that survives failure",
    "R": "receiving, and nothing that stops the rest",
    "B": "boards",
    "P": "the pipeline",
}


Tests = dict[str, list[str]]  # by rule


def collect() -> tuple[Tests, Tests]:
    """Return the tests that name each rule: on CPython, and on MicroPython."""
    cpython: Tests = defaultdict(list)
    micropython: Tests = defaultdict(list)
    for test, rule in marks.collect("req"):
        (micropython if test.endswith(marks.MICROPYTHON) else cpython)[rule].append(test)
    return cpython, micropython


def result(rules: dict[str, dict[str, str]], cpython: Tests, micropython: Tests) -> str:
    """Return the page's table: how many rules of each chapter are proved on which interpreter."""
    lines = ["| rules | | proved on CPython | and on MicroPython | concern the host only |", "|---|---|---|---|---|"]
    both, host = rules["both"], rules["host"]
    for letter, title in [*CHAPTERS.items(), ("", "**all**")]:
        everywhere = [rule for rule in both if rule.startswith(letter)]
        here_only = [rule for rule in host if rule.startswith(letter)]
        of = len(everywhere) + len(here_only)
        here = sum(bool(cpython[rule]) for rule in [*everywhere, *here_only])
        there = sum(bool(micropython[rule]) for rule in everywhere)
        shown = f"{there} of {len(everywhere)}" if everywhere else ""
        lines.append(f"| {letter} | {title} | {here} of {of} | {shown} | {len(here_only) or ''} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Print the table; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.proof.check.requirements", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--list", action="store_true", help="print the tests")
    parser.add_argument("--write", action="store_true", help="write the result into the page")
    arguments = parser.parse_args()
    rules = tomllib.loads(RULES.read_text())
    cpython, micropython = collect()
    unproved = []
    print("rule  CPython  MicroPython  what")
    for group, entries in rules.items():
        for rule, text in entries.items():
            here, there = cpython[rule], micropython[rule]
            proved = bool(here) and (bool(there) or group == "host")
            if not proved:
                unproved.append(rule)
            shown = str(len(there)) if group == "both" else "host"
            print(f"{rule:5} {len(here):7}  {shown:>11}  {text}{'' if proved else '   <- UNPROVED'}")
            for test in [*here, *there] if arguments.list else []:
                print(f"          {test}")
    known = {rule for entries in rules.values() for rule in entries}
    unknown = sorted((cpython.keys() | micropython.keys()) - known)
    if unknown:
        print(f"tests name rules that do not exist: {', '.join(unknown)}")
    if unproved:
        print(f"unproved: {', '.join(unproved)}")
    text = PAGE.read_text()
    filled = PLACE.sub(lambda match: match[1] + result(rules, cpython, micropython) + match[2], text)
    if arguments.write:
        PAGE.write_text(filled)
    elif filled != text:
        print("host_tests/README.md tells otherwise: python -m tools.proof.check.requirements --write")
    return 1 if unproved or unknown or (filled != text and not arguments.write) else 0


if __name__ == "__main__":
    sys.exit(ended(main, stopped="stopped"))
