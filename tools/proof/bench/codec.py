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
PEER = Path(sysconfig.get_path("purelib"))  # contains the package umqtt
PATH = f"{ROOT / 'firmware'}:{PEER}"  # MICROPYPATH with flashmqtt and umqtt
# A heap of a board's size: in a larger heap, the search for free blocks and the garbage collection take longer.
COMMAND = [MICROPYTHON, "-X", "heapsize=320K", DEVICE]


def executed(arguments: Sequence[object], path: str) -> int:
    """Return the instructions of a command with this MICROPYPATH."""
    valgrind = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
    counted = re.search(r"I\s+refs:\s+([\d,]+)", ran([*valgrind, *arguments], path).stderr)
    if counted is None:
        raise RuntimeError("cachegrind printed no count")
    return int(counted[1].replace(",", ""))


def instructions(what: str) -> float:
    """Return the instructions that a number of messages takes: the difference of two runs, so that the start cancels out."""
    return executed([*COMMAND, what, 2 * MESSAGES], PATH) - executed([*COMMAND, what, MESSAGES], PATH)


def heap(what: str) -> int:
    """Return the heap that a message allocates."""
    return int(ran([*COMMAND, what, 0], PATH).stdout)


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
