"""All checks of CI, one line a check: `python -m tools.proof.check [--no-tests]`; a failing check shows its output.

Every check runs even if an earlier one failed, so that one run shows all failures. They run side by side, and then the tests.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from tools.bootstrap import ROOT
from tools.command import Failure, exit_status, parser_of
from tools.deploy import build

BIN = Path(sys.executable).parent
ARCHITECTURES = ("armv6m", "xtensawin")
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'firmware'}"}
PORTS = ("rp2", "esp32")  # a port is also the name of its folder in boards/


def checks() -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield name and function of each check, the longest ones first; the function returns "" or what is wrong."""

    def command(*words: str) -> Callable[[], str]:
        return partial(run_command, [str(BIN / words[0]), *words[1:]])

    yield "types, CPython", command("mypy", "firmware", "tools")
    for port in PORTS:
        yield f"types, {port}", partial(board_types, port)
    yield "rules and clauses proved", command("python", "-m", "tools.proof.check.proved", "rules", "clauses")
    yield "sizes", command("python", "-m", "tools.proof.check.size")
    for architecture in ARCHITECTURES:
        yield f"mpy-cross {architecture}", partial(cross_compile, architecture)
    yield "layers", command("lint-imports", "--no-cache")
    yield "lint", command("ruff", "check", "--quiet", ".")
    yield "format", command("ruff", "format", "--check", "--quiet", ".")


def run_command(command: list[str], **environment: str) -> str:
    """Run a command; return "" if it succeeded, else its output."""
    variables = ENVIRONMENT | environment
    ran = subprocess.run(
        command, check=False, cwd=ROOT, env=variables, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    return "" if ran.returncode == 0 else (ran.stdout or f"exit status {ran.returncode}")


def board_types(port: str) -> str:
    """Check the types of a port's board, the application and the library against the port's stubs; return the errors.

    The stubs replace CPython's own modules (time, os, sys, ...), so each port is a run of mypy of its own.
    """
    stubs = str(BIN.parent / f"stubs-{port}")
    places = (f"boards/{port}/*.py", "firmware/main.py", "firmware/app/**/*.py", "firmware/examples/**/*.py")
    command = [
        *(str(BIN / "mypy"), "--config-file", "boards/mypy.ini", "--custom-typeshed-dir", stubs),
        *("--cache-dir", str(ROOT / ".mypy_cache" / port)),
        *(str(path) for place in places for path in sorted(ROOT.glob(place))),
    ]
    return run_command(command, MYPYPATH=os.pathsep.join((stubs, str(ROOT / "firmware"), str(ROOT / "boards" / port))))


def cross_compile(architecture: str) -> str:
    """Compile every device file for one architecture; return the errors."""
    problems = []
    for source in sorted(path for folder in ("firmware", "boards") for path in (ROOT / folder).rglob("*.py")):
        try:
            build.compiled(str(source.relative_to(ROOT)), source.read_text(), architecture)
        except Failure as problem:
            problems.append(str(problem))
    return "\n".join(problems)


def passes(name: str, check: Callable[[], str]) -> bool:
    """Run a check, and print its line; return whether it passed."""
    started = time.monotonic()
    problem = check()
    lines = [f"check: {name:24} {'FAILED' if problem else 'ok':6} {time.monotonic() - started:6.1f} s"]
    print("\n    ".join(lines + problem.splitlines()[-60:]), flush=True)
    return not problem


def main() -> int:
    """Run all checks; return the exit status."""
    parser = parser_of("tools.proof.check", __doc__)
    parser.add_argument("--no-tests", action="store_true", help="do not run the tests")
    arguments = parser.parse_args()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        passed = all(list(pool.map(passes, *zip(*checks(), strict=True))))
    if not arguments.no_tests:
        # The tests' output is shown directly: CI reads its last line.
        passed &= subprocess.run([sys.executable, "-m", "pytest", "-n", "auto"], check=False, cwd=ROOT).returncode == 0
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(exit_status(main, stopped="stopped"))
