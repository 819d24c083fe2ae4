"""Which tests prove which rule: `python -m tools.proof.check.requirements [--list]`; exit status 1 if a rule is unproved.

The rules are in `host_tests/requirements.toml`; a test names the rules that it proves with `@pytest.mark.req`. This runs no
tests; `make test` does.
"""

import sys
import tomllib
from collections import defaultdict

from tools.bootstrap import ROOT
from tools.command import ended, parser_of
from tools.proof.check import marks

RULES = ROOT / "host_tests" / "requirements.toml"


def main() -> int:
    """Print the table; return the exit status."""
    parser = parser_of("tools.proof.check.requirements", __doc__)
    parser.add_argument("--list", action="store_true", help="print the tests")
    arguments = parser.parse_args()
    rules = tomllib.loads(RULES.read_text())
    cpython: dict[str, list[str]] = defaultdict(list)  # the tests of each rule
    micropython: dict[str, list[str]] = defaultdict(list)
    for test, rule in marks.collect("req"):
        (micropython if test.endswith(marks.MICROPYTHON) else cpython)[rule].append(test)
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
        print(f"tests name rules that are not in host_tests/requirements.toml: {', '.join(unknown)}")
    if unproved:
        print(f"unproved: {', '.join(unproved)}")
    return 1 if unproved or unknown else 0


if __name__ == "__main__":
    sys.exit(ended(main, stopped="stopped"))
