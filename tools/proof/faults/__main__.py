"""`python -m tools.proof.faults`: cut the link and kill the broker at every place; count lost and repeated messages.

With `--hostile`: a broker that does every wrong thing, at every moment, at every level, on both interpreters.

A case that fails prints its id; `python -m tools.proof.faults --case ID` runs it alone. Exit status: 0 no rule was violated; 1 a
rule was violated; 2 it could not be run; 130 stopped by Ctrl-C. The counts go to build/faults.json or build/hostile.json. The
details of failing cases go to a file in build/faults-failing/, named by the time when the run began; no run deletes them.
"""

import asyncio
import os
import sys
import time

from tools.command import exit_status, named, parser_of
from tools.proof import counts
from tools.proof.faults.suites import FULL, HOSTILE, SHORT, Suite, find, power
from tools.proof.tally import Tally

KILLS = ((3, 50), (4, 100), (5, 50))
KILLS_SHORT = ((4, 20),)


@named("faults")
def main(argv: list[str] | None = None) -> int:
    """Run suites or cases; return the exit status."""
    parser = parser_of("tools.proof.faults", __doc__)
    parser.add_argument(
        "--case", action="append", type=find, help="run only the case with this id, and show its packets"
    )
    parser.add_argument("--hostile", action="store_true", help="run the cases of the hostile broker instead")
    parser.add_argument("--short", action="store_true", help="only the part that the tests run")
    arguments = parser.parse_args(argv)
    if arguments.case:
        suites: tuple[Suite, ...] = (Suite("chosen", tuple(arguments.case)),)
    elif arguments.hostile:
        suites = HOSTILE
    else:
        seed = int.from_bytes(os.urandom(4), "big")
        suites = (*(SHORT if arguments.short else FULL), power(KILLS_SHORT if arguments.short else KILLS, seed))
    tally = Tally(shows=bool(arguments.case))
    started = time.monotonic()
    for suite in suites:
        before, began = tally.counts.copy(), time.monotonic()
        asyncio.run(suite.run(tally.add))
        here, seconds = tally.counts - before, time.monotonic() - began
        print(f"{suite.name:32} {here['cases']:6} cases {here['violations']:4} violated {seconds:6.0f} s", flush=True)
    if not arguments.case:
        name = "hostile" if arguments.hostile else "faults"
        counts.write(name, {**tally.counts, "failing": tally.failing, "short": arguments.short})
    sums = ", ".join(f"{count} {what.replace('_', ' ')}" for what, count in tally.counts.items())
    print(f"{sums}; {time.monotonic() - started:.0f} s")
    return tally.status()


if __name__ == "__main__":
    sys.exit(exit_status(main))
