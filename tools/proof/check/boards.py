"""Check the boards' types, each against the stubs of its MicroPython port: `python -m tools.proof.check.boards`.

The stubs replace CPython's own modules (time, os, sys, ...), so each port is a run of mypy of its own; the board's
`board.py`, the application and the library are checked together with them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tools.bootstrap import ROOT

BIN = Path(sys.executable).parent
PORTS = ("rp2", "esp32")  # a port is also the name of its folder in boards/


def command(port: str) -> tuple[list[str], dict[str, str]]:
    """Return the command that checks a port's board, the application and the library; and its environment."""
    stubs = BIN.parent / f"stubs-{port}"
    folder = Path("boards") / port
    files = [str(path.relative_to(ROOT)) for path in sorted((ROOT / folder).glob("*.py"))]
    files += ["firmware/main.py"]
    files += [str(path) for place in ("app", "examples") for path in sorted((ROOT / "firmware" / place).rglob("*.py"))]
    arguments = [
        *(str(BIN / "mypy"), "--config-file", "boards/mypy.ini", "--custom-typeshed-dir", str(stubs)),
        *("--cache-dir", str(ROOT / ".mypy_cache" / port), *files),
    ]
    path = [str(stubs), str(ROOT / "firmware"), str(ROOT / folder)]
    return arguments, {**os.environ, "MYPYPATH": os.pathsep.join(path)}


def check(port: str) -> str:
    """Return mypy's errors of a port's board, or ""."""
    arguments, environment = command(port)
    ran = subprocess.run(
        arguments, check=False, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    return "" if ran.returncode == 0 else ran.stdout or f"exit status {ran.returncode}"


def main() -> int:
    """Check all ports; return the exit status."""
    failed = False
    for port in PORTS:
        problem = check(port)
        failed |= bool(problem)
        print(f"types, {port}: {'FAILED' if problem else 'ok'}")
        print(problem, end="")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
