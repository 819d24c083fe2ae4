"""`python -m tools.proof.soak`: a fleet of boards under every fault at once; then Spark, the audit, memory and wear.

Exit status: 0 every message arrived once, memory does not grow, wear is even; 1 one of these does not hold; 2 a program could
not be started or ended early; 130 stopped by Ctrl-C.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

from tools.command import exit_status, named, number
from tools.pipeline import java
from tools.proof import counts
from tools.proof.chain import command_line, to_tables
from tools.proof.soak import judge, samples
from tools.proof.soak.fleet import Fleet, Settings

# So that Spark reads a soak's landing in several batches, like a pipeline that runs all the time.
SEGMENTS_PER_BATCH = 8


def soak(directory: Path, settings: Settings) -> int:
    """Run one soak; return 0 if everything holds, else 1.

    Raises:
        Failure: the soak could not be run to its end.
    """
    java.find_java()
    directory.mkdir(parents=True, exist_ok=True)
    print(
        f"soak       {settings.boards} boards, about one message of each every {settings.interval_ms / 2:.0f} ms, "
        f"{settings.seconds / 60:.3g} min; faults by seed {settings.seed}",
        flush=True,
    )
    stats = asyncio.run(Fleet(directory, settings).soak())
    status = to_tables(directory, stats, "fleet", "--segments-per-batch", str(SEGMENTS_PER_BATCH))
    if status == 2:
        return status
    stats.samples += samples.heaps(directory / "tables", stats.began_us)
    samples.write(stats.samples, directory / "samples.parquet")
    landed = judge.landing(directory / "collector" / "landing")
    trends = judge.memory(stats.samples, set(stats.expected))
    uneven, wear = judge.uneven(stats.wear), list(stats.wear.values())
    delivered = status == 0 and not landed.again[2] and not stats.dropped
    holds = delivered and all(one.flat for one in trends) and not uneven
    print(
        f"delivery   {'every message once' if delivered else 'NOT EVERY MESSAGE ONCE'}; the landing has "
        f"{landed.messages:,}, {landed.again[1]} of them again at QoS 1, {landed.again[2]} at QoS 2; "
        f"{stats.dropped:,} dropped because the flash was full"
    )
    for one in trends:
        print(f"memory     {one}")
    erases = [count for its in wear for count in its.erases.values()]
    print(
        f"wear       {min(erases, default=0)} to {max(erases, default=0)} erases of a sector, at most "
        f"{max(its.spread for its in wear)} apart on one board" + (f"  UNEVEN: {', '.join(uneven)}" if uneven else "")
    )
    counted = {
        "minutes": round(stats.seconds / 60, 1),
        "published": stats.messages,
        "missing": judge.missing(directory / "tables"),
        "repeated": landed.again[2],
        "holds": holds,
        "erases": {board: list(its.erases.values()) for board, its in stats.wear.items()},
    }
    (directory / "soak.json").write_text(json.dumps(counted, indent=2) + "\n")
    print(
        f"written    {os.path.relpath(directory)}: soak.json, samples.parquet (memory), tables/ (Parquet, report.html), "
        "board-*/, collector/, broker/",
        flush=True,
    )
    return 0 if holds else 1


@named("soak")
def main(argv: list[str] | None = None) -> int:
    """Run the soak; return the exit status."""
    parser = command_line("soak", __doc__, "soak-%Y%m%d-%H%M%S", Settings.interval_ms)
    parser.add_argument("--minutes", type=number(float, 0.01), default=60.0, help="duration of the faults")
    parser.add_argument("--boards", type=number(int, 1, 100), default=10)
    arguments = parser.parse_args(argv)
    settings = Settings(arguments.minutes * 60, arguments.boards, arguments.seed, arguments.interval_ms)
    status = soak(arguments.output, settings)
    if status != 2:
        counts.write("soak", json.loads((arguments.output / "soak.json").read_text()))
    return status


if __name__ == "__main__":
    sys.exit(exit_status(main))
