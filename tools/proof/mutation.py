"""Mutation testing, sampled: `make mutation` changes one place of the code at a time and runs the tests of its area.

The changes are cosmic-ray's operators, and one that removes a statement. Only CPython runs, in a copy of the tree. A mutant
that survives shows a missing test, unnecessary code, or a change without effect. Its diff is printed for a person to judge.
"""

import difflib
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tools.bootstrap import ROOT
from tools.command import exit_status, number, parser_of

PACKAGES = ROOT / ".venv" / "mutation"
BOTH = "host_tests/both/test_"
# area: (the code, its tests, the fastest first)
AREAS = {
    "session": (
        "firmware/flashmqtt/session/*.py",
        f"{BOTH}session*.py {BOTH}long*.py {BOTH}client_*.py {BOTH}aio*.py host_tests/session/test_session_*.py",
    ),
    "journal": ("firmware/flashmqtt/journal/*.py", f"{BOTH}journal*.py host_tests/journal/test_*.py"),
    "codec": ("firmware/flashmqtt/codec/*.py", f"{BOTH}codec*.py host_tests/codec {BOTH}long*.py {BOTH}connection.py"),
    "application": (
        "firmware/app/*.py firmware/app/sensors/*.py",
        f"{BOTH}app*.py host_tests/boards/test_discovery.py host_tests/boards/test_application.py",
    ),
    "pipeline": (
        "tools/pipeline/batch/ledger.py tools/pipeline/batch/state.py "
        "tools/pipeline/batch/placing.py tools/pipeline/batch/lives.py",
        "host_tests/pipeline/test_ledger.py host_tests/pipeline/test_lives.py host_tests/pipeline/test_past.py",
    ),
}
# A test that hangs ends the process: within one process hypothesis would run it again.
PYTEST = ["-m", "pytest", "-x", "-p", "no:xdist", "--timeout", "120", "--timeout-method", "thread", "-k"]
LONGEST_S = 900


def operators() -> list:
    """Return cosmic-ray's operators that need no arguments, and RemoveStatement."""
    if not PACKAGES.exists():
        pip = [sys.executable, "-m", "pip", "install", "-q", "--target", str(PACKAGES)]
        subprocess.run([*pip, "-r", str(ROOT / "requirements-mutation.txt")], check=True)
    sys.path.append(str(PACKAGES))
    from cosmic_ray import plugins
    from parso.python.tree import Keyword

    class RemoveStatement:
        """Puts `pass` in the place of a statement."""

        def mutation_positions(self, node) -> Iterator[tuple]:
            inside = node.type == "simple_stmt" and node.parent.type == "suite"
            if inside and node.children[0].type not in {"string", "import_name", "import_from"}:
                yield node.start_pos, node.end_pos

        def mutate(self, node, index: int):
            node.children[0] = Keyword("pass", node.start_pos, node.get_first_leaf().prefix)
            return node

    found = [plugins.get_operator(name) for name in plugins.operator_names()]
    return [RemoveStatement(), *(operator() for operator in found if not operator.arguments())]


def is_code(node) -> bool:
    """Return whether a node is neither in an annotation nor in a function's head, nor for type checks only."""
    while node.parent:
        if node.type == "if_stmt" and node.children[1].get_code() == " TYPE_CHECKING":
            return False
        if node.parent.type in {"annassign", "param"} or (node.parent.type == "funcdef" and node.type != "suite"):
            return False
        node = node.parent
    return True


def sample(paths: list[Path], count: int, rng: random.Random) -> Iterator[tuple[Path, str]]:
    """Yield mutants as (file, source). Each is a random change of a random kind in a random line."""
    some = operators()
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.mutating import mutate_code

    lines: dict[tuple[Path, int], dict[str, list]] = {}
    for path in paths:
        nodes = list(ast_nodes(get_ast(path.read_text())))
        for operator in some:
            places = ((node, start[0]) for node in nodes for start, _ in operator.mutation_positions(node))
            for occurrence, (node, line) in enumerate(places):
                if is_code(node):
                    kinds = lines.setdefault((path, line), {})
                    kinds.setdefault(type(operator).__name__.split("_")[0], []).append((operator, occurrence))
    for path, line in rng.sample(list(lines), min(count, len(lines))):
        operator, occurrence = rng.choice(rng.choice(list(lines[path, line].values())))
        yield path, mutate_code(path.read_text(), operator, occurrence)


def expand(tree: Path, globs: str) -> list[Path]:
    """Return the files that these patterns match in a tree, without those that run on MicroPython only."""
    found = [path for pattern in globs.split() for path in sorted(tree.glob(pattern))]
    return [path for path in found if not path.stem.endswith("_native")]


def pass_tests(tree: Path, tests: str) -> bool:
    """Return whether all tests pass in a tree."""
    environment = {**os.environ, "PYTHONPATH": f"{tree}:{tree / 'firmware'}", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, *PYTEST, "not micropython", *map(str, expand(tree, tests))]
    try:
        ran = subprocess.run(command, cwd=tree, env=environment, capture_output=True, timeout=LONGEST_S)
    except subprocess.TimeoutExpired:
        return False
    return ran.returncode == 0


def main() -> int:
    """Try a sample of mutants; print those that survive; return the exit status."""
    parser = parser_of("tools.proof.mutation", __doc__)
    parser.add_argument("--seed", type=number(int, 0), default=random.randrange(10**6))
    parser.add_argument("--sample", type=number(int, 1), default=40, help="how many mutants of each area")
    parser.add_argument("--areas", nargs="+", choices=AREAS, default=list(AREAS))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch) / "tree"
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".?*", "build", "__pycache__"))
        for area in arguments.areas:
            code, tests = AREAS[area]
            if not pass_tests(tree, tests):
                raise SystemExit(f"{area}: the tests fail, or take more than {LONGEST_S} s, on the code as it is")
            tried = survived = 0
            for path, mutant in sample(expand(tree, code), arguments.sample, random.Random(arguments.seed)):
                source = path.read_text()
                path.write_text(mutant)
                if pass_tests(tree, tests):
                    name = str(path.relative_to(tree))
                    diff = difflib.unified_diff(source.splitlines(), mutant.splitlines(), name, name, lineterm="")
                    print("\n".join(diff), flush=True)
                    survived += 1
                path.write_text(source)
                tried += 1
            print(f"{area}: {tried} mutants, {survived} survived", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(main, subprocess.CalledProcessError))
