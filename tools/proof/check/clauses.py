"""Which normative statements have a line that obeys them and a test: `python -m tools.proof.check.clauses [--list]`.

The statements are in `host_tests/clauses.toml`. A line of firmware/ names the statements that it obeys as [MQTT-3.3.1-4] in a
comment or docstring, a test with @pytest.mark.clause("MQTT-3.3.1-4"), a golden vector in its `clause`. Exit status 1 if a
statement of the codec has no test, or if a named statement does not exist. This runs no tests; `make test` does.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections import defaultdict

from tools.bootstrap import ROOT
from tools.command import ended, parser_of
from tools.proof.check import marks

STATEMENTS = ROOT / "host_tests" / "clauses.toml"
VECTORS = ROOT / "host_tests" / "vectors"
ID = re.compile(r"MQTT-\d[\d.\-]*\d")
BOTH = ("3.1.1", "5")

Statement = tuple[str, str]  # the standard, the id


class Book:
    """The statements, and the meaning of names in code and tests."""

    def __init__(self) -> None:
        loaded = tomllib.loads(STATEMENTS.read_text(encoding="utf-8"))
        self._differ = set(loaded["differ"])
        self.text: dict[str, dict[Statement, str]] = defaultdict(dict)
        self.areas: set[str] = set()
        self.server: set[Statement] = set()
        self.left: dict[Statement, str] = {}
        for standard in BOTH:
            for area, entries in loaded[standard].items():
                if area == "server":
                    self.server |= {(standard, name) for name in entries["ids"]}
                    continue
                for name, text in entries.items():
                    if area == "left":
                        self.left[standard, name] = text
                    else:
                        self.areas.add(area)
                        self.text[area][standard, name] = text
        self.known = self.server | self.left.keys() | {one for area in self.text.values() for one in area}

    def meant(self, name: str, standard: str | None) -> list[Statement]:
        """Return the statements with this name; none if there is no such statement."""
        found = [one for one in ((standard, name),) if one in self.known] if standard else []
        if standard is None:
            found = [(each, name) for each in BOTH if (each, name) in self.known]
            if name in self._differ:
                found = found[:1]
        return found


def in_source(book: Book, strange: list[str]) -> dict[Statement, list[str]]:
    """Return the lines of firmware/ that name a statement."""
    lines: dict[Statement, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "firmware").rglob("*.py")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            for match in ID.finditer(line):
                standard = "5" if re.search(r"\b5: ", line[: match.start()]) or "level5" in path.name else None
                where = f"{path.relative_to(ROOT)}:{number}"
                meant = book.meant(match[0], standard) or book.meant(match[0], None)
                if not meant:
                    strange.append(f"{where}: {match[0]}")
                for one in meant:
                    lines[one].append(where)
    return lines


def in_tests(book: Book, strange: list[str]) -> dict[Statement, set[str]]:
    """Return the tests and golden vectors that name a statement."""
    tests: dict[Statement, set[str]] = defaultdict(set)
    for test, written in marks.collect("clause"):
        standard, _, name = written.rpartition(":")
        meant = book.meant(name, standard or None)
        if not meant:
            strange.append(f"{test}: {written}")
        for one in meant:
            tests[one].add(test.split("[")[0].removesuffix(marks.MICROPYTHON))
    for path in sorted(VECTORS.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            vector = json.loads(line)
            for name in vector["clause"]:
                standard = "5" if vector["level"] == 5 else "3.1.1"
                if not book.meant(name, None):
                    strange.append(f"{path.name}, {vector['name']}: {name}")
                for one in book.meant(name, standard):
                    tests[one].add(f"{path.name}: {vector['name']}")
    return tests


def main() -> int:
    """Print the tables; return the exit status."""
    parser = parser_of("tools.proof.check.clauses", __doc__)
    parser.add_argument("--list", action="store_true", help="print every statement with its lines and tests")
    arguments = parser.parse_args()
    book = Book()
    strange: list[str] = []
    source = in_source(book, strange)
    tests = in_tests(book, strange)
    failed = False
    print("standard  area     statements  with a test  with a line")
    for standard in BOTH:
        for area in sorted(book.areas):
            mine = [one for one in book.text[area] if one[0] == standard]
            tested = sum(bool(tests[one]) for one in mine)
            lined = sum(bool(source[one]) for one in mine)
            print(f"{standard:8}  {area:7}  {len(mine):10}  {tested:11}  {lined:11}")
            failed |= area == "codec" and tested < len(mine)
        server = sum(one[0] == standard for one in book.server)
        left = sum(one[0] == standard for one in book.left)
        print(f"{standard:8}  not for a client: {server} bind the server only; {left} have nothing to show")
    for area in sorted(book.areas):
        for one, text in book.text[area].items():
            missing = [what for what, where in (("test", tests[one]), ("line", source[one])) if not where]
            if missing or arguments.list:
                print(f"{one[0]:5} {one[1]:14} {area:7} {text}{'   <- no ' + ', no '.join(missing) if missing else ''}")
            for where in [*source[one], *sorted(tests[one])][:12] if arguments.list else ():
                print(f"            {where}")
    if arguments.list:
        for one, why in book.left.items():
            print(f"{one[0]:5} {one[1]:14} left    {why}")
    for where in strange:
        print(f"no such statement in host_tests/clauses.toml: {where}")
    return 1 if failed or strange else 0


if __name__ == "__main__":
    sys.exit(ended(main, stopped="stopped"))
