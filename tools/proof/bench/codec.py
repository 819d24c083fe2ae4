"""The codec on MicroPython, beside umqtt.simple: instructions and heap a message.

Instructions are counted by cachegrind, since a clock on a shared machine wanders by a factor of two: without valgrind there are
no ratios. mqtt_as is on no package registry, so it can't be measured from a clean clone. Words have 64 bits here: a board's heap
figures are about half of these.
"""

from __future__ import annotations

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


def heap_bytes(what: str, path: str) -> int:
    """Return the heap that a message allocates, as the board's side printed it."""
    return int(ran(command(what, 10), path).stdout)


def run(bench: Any) -> None:
    """Measure what a message costs on each side."""
    path = module_path()
    has_valgrind = shutil.which("valgrind") is not None
    if not has_valgrind:
        bench.progress("codec: no valgrind, so instructions are not counted")
    for case in CASES:
        bench.progress(f"codec: {case}")
        name = f"{case[:6]}_qos{case[6]}"
        bench.figure(f"codec.alloc_bytes.{name}", heap_bytes(f"ours.{case}", path))
        if has_valgrind:
            ours, simple = (instructions(f"{side}.{case}", path, 4000) for side in ("ours", "umqtt"))
            bench.figure(f"codec.{name}.instructions", round(ours))
            bench.figure(f"codec.{name}.ratio_umqtt_simple", ours / simple)
