"""Fuzz the codec: `python -m tools.fuzz [--cases N] [--seconds N]`; prints what was tried, exit status 1 on the first failure.

    mutations     every other value of every byte of every golden packet, through both decoders
    random        a million streams made from seeds, on CPython, and a tenth of them on MicroPython, where the scan is native
    hypothesis    the properties of host_tests/codec, with many more examples
    guided        atheris, coverage-guided, for some seconds

A failing random case is replayed by its number: `python -m tools.fuzz --replay 4711`.
"""

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "firmware"), str(ROOT)]

from tools.fuzz import cases  # noqa: E402

VECTORS = str(ROOT / "host_tests" / "vectors")
WORKERS = os.cpu_count() or 1


def mutate(share: int) -> int:
    """Attack with every mutation of this worker's share of the golden packets; return how many there were."""
    count = 0
    for level, packets in cases.load(VECTORS).items():
        for packet in packets[share::WORKERS]:
            count += cases.mutations(packet, abs(level))
    return count


def random_share(first: int, count: int) -> int:
    """Run random cases in a worker."""
    return cases.run(first, count, cases.load(VECTORS))


def on_micropython(first: int, count: int) -> str:
    """Run random cases on MicroPython; return what it printed."""
    script = (
        f"from tools.fuzz import cases\nvectors = cases.load({VECTORS!r})\n"
        f"print(cases.run({first}, {count}, vectors), 'packets')\n"
    )
    environment = {**os.environ, "MICROPYPATH": f"{ROOT / 'firmware'}:{ROOT}"}
    command = [str(Path(sys.executable).parent / "micropython"), "-X", "heapsize=2M", "-c", script]
    ran = subprocess.run(
        command, check=False, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    if ran.returncode:
        raise SystemExit(f"on MicroPython:\n{ran.stdout}{ran.stderr}")
    return ran.stdout.strip()


def timed(what: str, start: float, detail: str) -> None:
    """Print one line of result."""
    print(f"{what:<12} {detail} in {time.monotonic() - start:.0f} s", flush=True)


def main() -> int:
    """Run the attacks one after another."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=1_000_000, help="random streams")
    parser.add_argument("--first", type=int, default=0, help="the first one's number")
    parser.add_argument("--seconds", type=int, default=60, help="of coverage-guided fuzzing")
    parser.add_argument("--replay", type=int, help="run just this random case, on CPython")
    arguments = parser.parse_args()
    if arguments.replay is not None:
        case = cases.random_case(arguments.replay, cases.load(VECTORS))
        print(case)
        print(cases.attack(*case), "packets")
        return 0
    with ProcessPoolExecutor(WORKERS) as pool:
        start = time.monotonic()
        done = sum(pool.map(mutate, range(WORKERS)))
        timed("mutations", start, f"{done:,} packets, one byte changed: read or refused")
        start = time.monotonic()
        step = 5000
        firsts = range(arguments.first, arguments.first + arguments.cases, step)
        counts = [min(step, arguments.first + arguments.cases - first) for first in firsts]
        packets = sum(pool.map(random_share, firsts, counts))
        timed("random", start, f"{arguments.cases:,} streams, {packets:,} packets: the same in any pieces")
        start = time.monotonic()
        parts = [arguments.first + arguments.cases + worker * arguments.cases for worker in range(WORKERS)]
        each = arguments.cases // 10 // WORKERS
        printed = list(pool.map(on_micropython, parts, [each] * WORKERS))
        timed("micropython", start, f"{each * WORKERS:,} streams more, {' + '.join(printed)}")
    start = time.monotonic()
    environment = {**os.environ, "FLASHMQTT_EXAMPLES": str(max(200, arguments.cases // 250))}
    tests = [sys.executable, "-m", "pytest", "host_tests/codec", "--timeout=3600"]
    if subprocess.run(tests, check=False, cwd=ROOT, env=environment).returncode:
        return 1
    timed("hypothesis", start, f"{environment['FLASHMQTT_EXAMPLES']} examples a property")
    start = time.monotonic()
    guided = [sys.executable, str(Path(__file__).with_name("guided.py")), f"-max_total_time={arguments.seconds}"]
    ran = subprocess.run(guided, check=False, cwd=ROOT, capture_output=True, text=True)
    if "No module named 'atheris'" in ran.stderr:
        print("guided       atheris is not installed: skipped")
        return 0
    if ran.returncode:
        print(ran.stdout, ran.stderr[-5000:])
        return 1
    edges = [line.split()[3] for line in ran.stderr.splitlines() if " cov: " in line][-1]
    runs = [line for line in ran.stderr.splitlines() if line.startswith("Done ")][-1]
    timed("guided", start, f"{runs.split()[1]} streams, {edges} edges of the codec covered: no finding")
    return 0


if __name__ == "__main__":
    sys.exit(main())
