"""The codec on MicroPython, compared with umqtt.simple: instructions (counted by valgrind's cachegrind) and heap of a message.

mqtt_as is on no package registry, so it can't be measured from a clean clone. Words have 64 bits here: a board's heap figures are
about half of these.
"""

import re
import shutil
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.bootstrap import ROOT
from tools.proof.program import MICROPYTHON, ran

DEVICE = Path(__file__).parent / "on_board" / "codec.py"
CASES = ("encode0", "encode1", "decode0", "decode1")
MESSAGES = 4000


def peer_path() -> Path:
    """Return the folder that contains the package umqtt."""
    return Path(sysconfig.get_path("purelib"))


def module_path() -> str:
    """Return MICROPYPATH with flashmqtt and umqtt."""
    return f"{ROOT / 'firmware'}:{peer_path()}"


def command(*arguments: object) -> list[object]:
    """Return the command that runs the board's side, with a heap of a board's size: in a larger heap, the search for free
    blocks and the garbage collection take longer.
    """
    return [MICROPYTHON, "-X", "heapsize=320K", DEVICE, *arguments]


def executed(arguments: Sequence[object], path: str) -> int:
    """Return the instructions of a command with this MICROPYPATH."""
    valgrind = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
    counted = re.search(r"I\s+refs:\s+([\d,]+)", ran([*valgrind, *arguments], path).stderr)
    if counted is None:
        raise RuntimeError("cachegrind printed no count")
    return int(counted[1].replace(",", ""))


def instructions(what: str) -> float:
    """Return the instructions that a number of messages takes: the difference of two runs, so that the start cancels out."""
    path = module_path()
    return executed(command(what, 2 * MESSAGES), path) - executed(command(what, MESSAGES), path)


def heap(what: str) -> int:
    """Return the heap that a message allocates."""
    return int(ran(command(what, 0), module_path()).stdout)


def run(bench: Any) -> None:
    """Measure what a message costs on each side."""
    has_valgrind = shutil.which("valgrind") is not None
    if not has_valgrind:
        bench.progress("codec: no valgrind, so the instructions are not counted")
    for case in CASES:
        bench.progress(f"codec: {case}")
        name = f"{case[:6]}_qos{case[6]}"
        bench.figure(f"codec.alloc_bytes.{name}", heap(f"ours.{case}"))
        if has_valgrind:
            ratio = instructions(f"ours.{case}") / instructions(f"umqtt.{case}")
            bench.figure(f"codec.{name}.ratio_umqtt_simple", ratio)
