"""The codec on MicroPython, beside umqtt.simple: instructions, time and heap a message.

Ratios are of instructions (cachegrind) where valgrind is installed, since a clock on a shared machine wanders by a factor of two;
of the clock, best of several in turns, where it is not. mqtt_as is on no package registry, so it can't be measured from a clean
clone. Words have 64 bits here: a board's heap figures are about half of these.
"""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Sequence
from importlib import util
from pathlib import Path
from typing import Any

from tools.bootstrap import ROOT
from tools.proof.program import MICROPYTHON, ran

HERE = Path(__file__).parent
DEVICE = HERE / "on_board" / "codec.py"
CASES = ("encode0", "encode1", "decode0", "decode1")
ROUNDS = 3


def peer_path() -> Path:
    """Return the folder in which the package umqtt lies."""
    spec = util.find_spec("umqtt")
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError("micropython-umqtt.simple is not installed")
    return Path(next(iter(spec.submodule_search_locations))).parent


def module_path() -> str:
    """Return MICROPYPATH with flashmqtt and umqtt."""
    return f"{ROOT / 'firmware'}:{peer_path()}"


def command(*arguments: object) -> list[object]:
    """Return the command that runs the board's side, with a heap as a board has it: an allocation costs what has to be
    searched for room, and what collects the garbage, and both grow with the heap.
    """
    return [MICROPYTHON, "-X", "heapsize=320K", DEVICE, *arguments]


def executed(arguments: Sequence[object], path: str) -> int:
    """Return the instructions of a command with this MICROPYPATH, counted by valgrind's cachegrind."""
    valgrind = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
    counted = re.search(r"I\s+refs:\s+([\d,]+)", ran([*valgrind, *arguments], path).stderr)
    if counted is None:
        raise RuntimeError("cachegrind printed no count")
    return int(counted[1].replace(",", ""))


def instructions(what: str, path: str, count: int) -> float:
    """Return the instructions a message takes: the difference of two runs, so that the start cancels out."""
    return (executed(command(what, 2 * count), path) - executed(command(what, count), path)) / count


def measured(what: str, path: str, count: int) -> dict[str, Any]:
    """Return what the board's side printed."""
    return ast.literal_eval(ran(command(what, count), path).stdout.strip().splitlines()[-1])


def run(bench: Any) -> None:
    """Measure what a message costs on each side."""
    path = module_path()
    has_valgrind = shutil.which("valgrind") is not None
    if not has_valgrind:
        bench.progress("codec: no valgrind, so the ratios are of the clock")
    for case in CASES:
        bench.progress(f"codec: {case}")
        best: dict[str, dict[str, Any]] = {}
        for _ in range(ROUNDS):  # in turns, so that a slow moment hits both
            for side in ("ours", "umqtt"):
                figures = measured(f"{side}.{case}", path, 20000)
                if side not in best or figures["us"] < best[side]["us"]:
                    best[side] = figures
        cost = {side: instructions(f"{side}.{case}", path, 4000) if has_valgrind else 0.0 for side in best}
        ratio = cost["ours"] / cost["umqtt"] if has_valgrind else best["ours"]["us"] / best["umqtt"]["us"]
        for side, name in (("ours", ""), ("umqtt", "_umqtt_simple")):
            bench.figure(f"codec.{case[:6]}_qos{case[6]}.us{name}", best[side]["us"])
            bench.figure(f"codec.{case[:6]}_qos{case[6]}.instructions{name}", round(cost[side]))
            bench.figure(f"codec.alloc_bytes.{case[:6]}_qos{case[6]}{name}", best[side]["heap"])
        bench.figure(f"codec.{case[:6]}_qos{case[6]}.ratio_umqtt_simple", ratio)
