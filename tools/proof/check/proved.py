"""What the tests prove: the project's rules, and MQTT's normative statements: `python -m tools.proof.check.proved rules clauses`.

The rules are in `host_tests/requirements.toml`; a test names the rules that it proves with `@pytest.mark.req("Q2")`. Each rule
needs a test on both interpreters, or on CPython alone if it is a rule of the host.

The statements are in `host_tests/clauses.toml`. A line of firmware/ names the statements that it obeys as [MQTT-3.3.1-4] in a
comment or docstring, a test with @pytest.mark.clause("MQTT-3.3.1-4"), a golden vector in its `clause`.

Exit status 1 if a rule or a statement of the codec has no test, or if a name does not exist. This runs no tests, it only lets
pytest collect them; `make test` runs them.
"""

import contextlib
import functools
import io
import json
import re
import sys
import tomllib
from collections import defaultdict

import pytest

from tools.bootstrap import ROOT
from tools.command import exit_status, parser_of, table

MICROPYTHON = "@micropython"  # how the name of a test's twin ends
RULES = ROOT / "host_tests" / "requirements.toml"
STATEMENTS = ROOT / "host_tests" / "clauses.toml"
VECTORS = ROOT / "host_tests" / "vectors"
ID = re.compile(r"MQTT-\d[\d.\-]*\d")
BOTH = ("3.1.1", "5")
WITHOUT_TEST = ("server", "left")  # statements that bind the server only, and those that have nothing to show

Statement = tuple[str, str]  # the standard, the id
Places = dict[Statement, list[str]]


class _Collected:
    """A pytest plugin that keeps the tests."""

    items: list[pytest.Item]

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Keep every collected item."""
        self.items = list(session.items)

    @pytest.hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """End pytest at Ctrl-C, which it would show in many lines; it also calls this if a file can't be collected."""
        if excinfo.type is KeyboardInterrupt:
            raise excinfo.value


@functools.cache
def _items() -> list[pytest.Item]:
    """Return all tests."""
    collected, printed = _Collected(), io.StringIO()
    with contextlib.redirect_stdout(printed):
        status = pytest.main(["--collect-only", "-q", str(ROOT / "host_tests")], plugins=[collected])
    if status != pytest.ExitCode.OK:
        raise SystemExit(printed.getvalue()[-3000:])
    return collected.items


def collect(name: str) -> list[tuple[str, str]]:
    """Return (test, argument) for each argument of each mark with this name; a test's twin on MicroPython counts as another test.

    Raises:
        SystemExit: pytest could not collect; the text is its output.
        KeyboardInterrupt: Ctrl-C.
    """
    return [(item.nodeid, said) for item in _items() for mark in item.iter_markers(name) for said in mark.args]


def print_rules(with_tests: bool) -> bool:
    """Print the table of the rules; return whether something is missing."""
    rules = tomllib.loads(RULES.read_text())
    tests: dict[str, list[str]] = defaultdict(list)
    for test, rule in collect("req"):
        tests[rule].append(test)
    unproved = []
    rows: list[tuple[object, ...]] = [("rule", "CPython", "MicroPython", "what")]
    for group, entries in rules.items():
        for rule, text in entries.items():
            there = sum(test.endswith(MICROPYTHON) for test in tests[rule])
            here = len(tests[rule]) - there
            proved = here and (there or group == "host")
            if not proved:
                unproved.append(rule)
            on_board = there if group == "both" else "host"
            rows.append((rule, here, on_board, f"{text}{'' if proved else '   <- UNPROVED'}"))
            rows += [("", "", "", test) for test in (tests[rule] if with_tests else [])]
    print("\n".join(table(rows, "<>><")))
    unknown = sorted(tests.keys() - {rule for entries in rules.values() for rule in entries})
    if unknown:
        print(f"tests name rules that are not in host_tests/requirements.toml: {', '.join(unknown)}")
    if unproved:
        print(f"unproved: {', '.join(unproved)}")
    return bool(unproved or unknown)


class Book:
    """The statements: the area and the text of each, and the meaning of names in code and tests.

    Attributes:
        areas: those whose statements a client has to obey.
        strange: where a name stands that no statement has.
    """

    def __init__(self) -> None:
        loaded = tomllib.loads(STATEMENTS.read_text(encoding="utf-8"))
        self._differ = set(loaded["differ"])
        self.text: dict[str, dict[Statement, str]] = {}
        self.areas = sorted({area for standard in BOTH for area in loaded[standard]}.difference(WITHOUT_TEST))
        for area in (*self.areas, *WITHOUT_TEST):
            given = {standard: loaded[standard].get(area, {}) for standard in BOTH}
            if area == "server":
                given = {standard: dict.fromkeys(one["ids"], "") for standard, one in given.items()}
            self.text[area] = {(standard, name): text for standard in BOTH for name, text in given[standard].items()}
        self._known = {one for statements in self.text.values() for one in statements}
        self.strange: list[str] = []

    def note(self, found: Places, name: str, standard: str | None, where: str) -> None:
        """Add a place to the statements with this name: of this standard, or of both if they say the same."""
        meant = [(each, name) for each in BOTH if (each, name) in self._known and standard in (None, each)]
        if not meant:
            self.strange.append(f"{where}: {name}")
        for one in meant[:1] if name in self._differ else meant:
            found[one].append(where)

    def has(self, standard: str, name: str) -> bool:
        """Return whether a standard has this statement."""
        return (standard, name) in self._known


def in_source(book: Book) -> Places:
    """Return the lines of firmware/ that name a statement."""
    found: Places = defaultdict(list)
    for path in sorted((ROOT / "firmware").rglob("*.py")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            for match in ID.finditer(line):
                is_5 = re.search(r"\b5: ", line[: match.start()]) or "level5" in path.name
                standard = "5" if is_5 and book.has("5", match[0]) else None
                book.note(found, match[0], standard, f"{path.relative_to(ROOT)}:{number}")
    return found


def in_tests(book: Book) -> Places:
    """Return the tests and golden vectors that name a statement."""
    found: Places = defaultdict(list)
    for test, written in collect("clause"):
        standard, _, name = written.rpartition(":")
        book.note(found, name, standard or None, test.split("[")[0].removesuffix(MICROPYTHON))
    for path in sorted(VECTORS.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            vector = json.loads(line)
            for name in vector["clause"]:
                standard = "5" if vector["level"] == 5 else "3.1.1"
                if book.has(standard, name) or not any(book.has(other, name) for other in BOTH):
                    book.note(found, name, standard, f"{path.name}: {vector['name']}")
    return {one: sorted(set(places)) for one, places in found.items()}


def print_clauses(with_tests: bool) -> bool:
    """Print the tables of the statements, `with_tests` also every statement with its lines and tests."""
    book = Book()
    source, tests = in_source(book), in_tests(book)
    failed = False
    rows: list[tuple[object, ...]] = [("standard", "area", "statements", "with a test", "with a line")]
    for standard in BOTH:
        count = {area: [one for one in book.text[area] if one[0] == standard] for area in book.text}
        for area in book.areas:
            tested, lined = (sum(one in places for one in count[area]) for places in (tests, source))
            rows.append((standard, area, len(count[area]), tested, lined))
            failed |= area == "codec" and tested < len(count[area])
        rows += [(standard, area, len(count[area]), "", "") for area in WITHOUT_TEST]
    print("\n".join(table(rows, "<<>>>")))
    print("server: statements that bind the server only; left: those of which there is nothing to show")
    for area in book.areas:
        for one, text in book.text[area].items():
            missing = [what for what, places in (("test", tests), ("line", source)) if one not in places]
            if missing or with_tests:
                print(f"{one[0]:5} {one[1]:14} {area:7} {text}{'   <- no ' + ', no '.join(missing) if missing else ''}")
            for where in [*source.get(one, ()), *tests.get(one, ())][:12] if with_tests else ():
                print(f"            {where}")
    if with_tests:
        for one, why in book.text["left"].items():
            print(f"{one[0]:5} {one[1]:14} left    {why}")
    for where in book.strange:
        print(f"no such statement in host_tests/clauses.toml: {where}")
    return failed or bool(book.strange)


def main(argv: list[str] | None = None) -> int:
    """Print what is asked for; return the exit status."""
    tables = {"rules": print_rules, "clauses": print_clauses}
    parser = parser_of("tools.proof.check.proved", __doc__)
    parser.add_argument("what", nargs="+", choices=tables)
    parser.add_argument("--list", action="store_true", help="print also each test")
    arguments = parser.parse_args(argv)
    return 1 if sum(tables[what](arguments.list) for what in arguments.what) else 0


if __name__ == "__main__":
    sys.exit(exit_status(main, stopped="stopped"))
