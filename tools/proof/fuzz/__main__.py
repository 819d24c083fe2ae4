"""Fuzz the codec: `python -m tools.proof.fuzz [--cases N]`; prints the counts; status 1 after the first failure,
130 stopped by Ctrl-C.

    mutations     every other value of every byte of every golden packet
    random        a million streams from seeds on CPython, and a tenth as many on MicroPython, where the scan is native
    hypothesis    the properties of host_tests/codec, with many more examples

A failing random case is replayed by its number: `python -m tools.proof.fuzz --replay 4711`.
"""

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from tools import children
from tools.bootstrap import ROOT
from tools.command import exit_status, named, number, parser_of
from tools.proof.fuzz import cases
from tools.proof.program import MICROPYTHON, ran

VECTORS = str(ROOT / "host_tests" / "vectors")
WORKERS = os.cpu_count() or 1
SHARE = 5000  # random cases that a worker runs at once


def mutate(share: int) -> int:
    """Try every mutation of this worker's share of the golden packets; return how many there were."""
    count = 0
    for level, packets in cases.load(VECTORS).items():
        for packet in packets[share::WORKERS]:
            count += cases.mutations(packet, abs(level))
    return count


def on_micropython(first: int, count: int) -> str:
    """Run random cases on MicroPython; return its output."""
    script = (
        f"from tools.proof.fuzz import cases\nprint(cases.run({first}, {count}, cases.load({VECTORS!r})), 'packets')\n"
    )
    command = [MICROPYTHON, "-X", "heapsize=2M", "-c", script]
    try:
        return ran(command, f"{ROOT / 'firmware'}:{ROOT}", timeout_s=None).stdout.strip()
    except RuntimeError as error:
        raise cases.WrongEvent(f"on MicroPython: {error}") from None


def timed(what: str, start: float, detail: str) -> None:
    """Print one result with its time."""
    print(f"{what:<12} {detail} in {time.monotonic() - start:.0f} s", flush=True)


def on_all_cores(count: int) -> None:
    """Try mutations and random cases, on CPython."""
    with children.pool() as pool:
        start = time.monotonic()
        done = sum(pool.map(mutate, range(WORKERS)))
        timed("mutations", start, f"{done:,} packets, one byte changed: read or refused")
        start = time.monotonic()
        vectors = cases.load(VECTORS)
        shares = [(at, min(SHARE, count - at), vectors) for at in range(0, count, SHARE)]
        packets = sum(pool.starmap(cases.run, shares, chunksize=1))
        timed("random", start, f"{count:,} streams, {packets:,} packets: the same in any pieces")


def on_boards_interpreter(count: int) -> None:
    """Try a tenth as many other random cases, on MicroPython."""
    start = time.monotonic()
    each = count // 10 // WORKERS
    with ThreadPoolExecutor(WORKERS) as pool:
        printed = list(pool.map(on_micropython, [(worker + 1) * count for worker in range(WORKERS)], [each] * WORKERS))
    timed("micropython", start, f"{each * WORKERS:,} more streams, {' + '.join(printed)}")


def properties(examples: int) -> bool:
    """Run the codec's property tests with so many examples; return whether they pass."""
    start = time.monotonic()
    tests = [sys.executable, "-m", "pytest", "host_tests/codec", "--timeout=3600"]
    if subprocess.run(tests, check=False, cwd=ROOT, env={**os.environ, "FLASHMQTT_EXAMPLES": str(examples)}).returncode:
        return False
    timed("hypothesis", start, f"{examples} examples a property")
    return True


@named("fuzz")
def main(argv: list[str] | None = None) -> int:
    """Run the kinds of cases one after another; return the exit status."""
    parser = parser_of("tools.proof.fuzz", __doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=number(int, 100), default=1_000_000, help="random streams")
    parser.add_argument("--replay", type=number(int, 0), help="run only this random case, on CPython")
    arguments = parser.parse_args(argv)
    count = arguments.cases
    try:
        if arguments.replay is not None:
            case = cases.random_case(arguments.replay, cases.load(VECTORS))
            print(case)
            print(cases.attack(*case), "packets")
            return 0
        on_all_cores(count)
        on_boards_interpreter(count)
    except cases.WrongEvent as finding:
        print(f"FOUND        {finding}")
        return 1
    return 0 if properties(max(200, count // 250)) else 1


if __name__ == "__main__":
    sys.exit(exit_status(main))
