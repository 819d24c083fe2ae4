"""Which tests prove which rule: `python -m tools.requirements [--list]`; exit status 1 where a rule is unproved.

The rules are those of `host_tests/requirements.toml`; a test names those it proves with `@pytest.mark.req`.
Nothing is run here: that the tests pass is what `make test` says.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
RULES = ROOT / "host_tests" / "requirements.toml"
MICROPYTHON = "@micropython"


class Collected:
    """A pytest plugin that keeps, for each rule, the tests that name it, by interpreter."""

    def __init__(self) -> None:
        self.cpython: dict[str, list[str]] = defaultdict(list)
        self.micropython: dict[str, list[str]] = defaultdict(list)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Sort every collected item's rules."""
        for item in session.items:
            proved = self.micropython if item.name.endswith(MICROPYTHON) else self.cpython
            for mark in item.iter_markers("req"):
                for rule in mark.args:
                    proved[rule].append(item.nodeid)


def collect() -> Collected:
    """Collect all tests without running any.

    Raises:
        SystemExit: pytest could not collect; what it printed is shown.
    """
    collected, printed = Collected(), io.StringIO()
    with contextlib.redirect_stdout(printed):
        status = pytest.main(["--collect-only", "-q", str(ROOT / "host_tests")], plugins=[collected])
    if status != pytest.ExitCode.OK:
        raise SystemExit(printed.getvalue()[-3000:])
    return collected


def main() -> int:
    """Print the table; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.requirements", description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="name the tests")
    arguments = parser.parse_args()
    rules = tomllib.loads(RULES.read_text())
    collected = collect()
    unproved = []
    print("rule  CPython  MicroPython  what")
    for group, entries in rules.items():
        for rule, text in entries.items():
            here, there = collected.cpython[rule], collected.micropython[rule]
            proved = bool(here) and (bool(there) or group == "host")
            if not proved:
                unproved.append(rule)
            shown = str(len(there)) if group == "both" else "host"
            print(f"{rule:5} {len(here):7}  {shown:>11}  {text}{'' if proved else '   <- UNPROVED'}")
            for test in [*here, *there] if arguments.list else []:
                print(f"          {test}")
    known = {rule for entries in rules.values() for rule in entries}
    unknown = sorted((collected.cpython.keys() | collected.micropython.keys()) - known)
    if unknown:
        print(f"tests name rules that do not exist: {', '.join(unknown)}")
    if unproved:
        print(f"unproved: {', '.join(unproved)}")
    return 1 if unproved or unknown else 0


if __name__ == "__main__":
    sys.exit(main())
