"""`python -m tools.powercut`: cut the power at every flash operation of the journal, in every way, and check what is left.

Without arguments every script is cut at every operation under every fault model, on both flash personalities, and every so many
of these cuts is followed by cuts of its recovery; then come random lives, in which cuts pile up and sectors go bad. That takes a
while (see --jobs). The count goes to build/powercut.json.

    --short            a minute of CPU: fewer variants, fewer pairs
    --script NAME      only this script (may be repeated)
    --replay ID        one case alone, as a failure printed it, with the error in full

Exit status: 0 nothing broke; 1 a promise was broken, ids are printed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from pathlib import Path

from tools.powercut.cuts import BREAKS, run_script
from tools.powercut.scripts import SCRIPTS
from tools.powercut.soak import soak

ROOT = Path(__file__).resolve().parent.parent.parent
LONG = {"variants": 4, "pairs": 12, "pair_variants": 1, "lives": 400}
SHORT = {"variants": 1, "pairs": 40, "pair_variants": 1, "lives": 10}
LIFE_STEPS = 1000
SLOTS = (8, 2, 16, 32, 56)


def one(job: tuple[str, str, dict[str, int], int, int]) -> tuple[str, str, int, list[tuple[str, str]]]:
    """Cut one script's share of operations; a process of the pool runs this."""
    name, personality, how, share, shares = job
    if name == "lives":
        return name, personality, *lives(range(share, how["lives"], shares))
    cuts, broken = run_script(
        name, how["variants"], how["pairs"], how["pair_variants"], personality=personality, share=(share, shares)
    )
    return name, personality, cuts, broken


def lives(numbers: range) -> tuple[int, list[tuple[str, str]]]:
    """Live random lives; return (cuts, what broke)."""
    cuts = 0
    broken: list[tuple[str, str]] = []
    for number in numbers:
        try:
            cuts += live(number)
        except BREAKS as error:
            broken.append((f"life/{number}", repr(error)))
    return cuts, broken


def live(number: int) -> int:
    """Live one life: every third on an ESP32, every fourth with bad sectors; slots from two to all that an application has."""
    personality = "esp32" if number % 3 == 1 else "rp2"
    bad = 2 if number % 4 == 3 else 0
    return soak(number, LIFE_STEPS, personality, bad, SLOTS[number % len(SLOTS)], number % 7 in (2, 5))


def main() -> int:
    """Run; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.powercut", description=(__doc__ or "").split("\n\n", 1)[0])
    parser.add_argument("--short", action="store_true", help="about a minute of CPU")
    parser.add_argument("--script", action="append", choices=[s[0] for s in SCRIPTS] + ["lives"], help="only this one")
    parser.add_argument("--replay", metavar="ID", help="one case, as it was printed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)")
    options = parser.parse_args()
    if options.replay:
        if options.replay.startswith("life/"):
            print(f"{options.replay}: holds, {live(int(options.replay[5:]))} cuts")
            return 0
        name, _, personality = options.replay.split("/", 1)[0].partition("@")
        run_script(name, 99, 1, 99, only=options.replay, personality=personality or "rp2")
        print(f"{options.replay}: holds")
        return 0
    how = SHORT if options.short else LONG
    names = options.script or [s[0] for s in SCRIPTS] + ["lives"]
    personalities = ("rp2",) if options.short else ("rp2", "esp32")
    shares = 1 if options.short else 8
    jobs = [
        (n, p, how, share, shares)
        for p in personalities
        for n in names
        for share in range(shares)
        if n != "lives" or p == personalities[0]
    ]
    began = time.monotonic()
    total = 0
    broken: list[tuple[str, str]] = []
    by_script: dict[str, int] = {}
    with multiprocessing.Pool(options.jobs) as pool:
        for done, (name, personality, cuts, more) in enumerate(pool.imap_unordered(one, jobs), 1):
            total += cuts
            broken += more
            by_script[name] = by_script.get(name, 0) + cuts
            print(f"{done}/{len(jobs)} {name}@{personality}: {cuts:,} cuts, {len(more)} broken", flush=True)
            for case, error in more[:5]:
                print(f"  --replay {case}\n    {error}", flush=True)
    seconds = time.monotonic() - began
    print(f"\n{total:,} power cuts in {seconds:.0f} s, {len(broken)} broken promises")
    for name in names:
        print(f"  {name:10} {by_script.get(name, 0):>9,}")
    build = ROOT / "build"
    build.mkdir(exist_ok=True)
    (build / "powercut.json").write_text(
        json.dumps({"cuts": total, "violations": len(broken), "seconds": round(seconds, 1), "short": options.short})
    )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
