"""`python -m tools.proof.soak`: a fleet of boards under every fault at once; then Spark, the audit, memory and wear.

Exit status: 0 every message arrived once, memory does not grow, wear is even; 1 one of these does not hold; 2 a program could
not be started or ended early; 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from tools.bootstrap import find_mosquitto
from tools.command import Failure, ended, named, number
from tools.pipeline import java
from tools.proof import counts
from tools.proof.chain import command_line, to_tables
from tools.proof.soak import judge, samples
from tools.proof.soak.fleet import Fleet, Settings, SoakStats

# So that Spark reads a soak's landing in several batches, like a pipeline that runs all the time.
SEGMENTS_PER_BATCH = 8


def soak(directory: Path, settings: Settings) -> int:
    """Run one soak; return 0 if everything holds, else 1.

    Raises:
        Failure: the soak could not be run to its end.
    """
    if not find_mosquitto():
        raise Failure(
            "The soak kills its broker, and only mosquitto keeps its messages then. Debian: apt install mosquitto."
        )
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
    verdict = Verdict(directory, stats, status == 0)
    print("\n".join(verdict.lines()))
    samples.write(stats.samples, directory / "samples.parquet")
    (directory / "soak.json").write_text(json.dumps(verdict.counted(), indent=2) + "\n")
    print(
        f"written    {os.path.relpath(directory)}: soak.json, samples.parquet (memory), tables/ (Parquet, report.html), "
        "board-*/, collector/, broker/",
        flush=True,
    )
    return 0 if verdict.holds else 1


class Verdict:
    """The result of a soak, by its counts and files; `delivered`: the pipeline's audit found every message once.

    Attributes:
        holds: whether every message arrived once, memory does not grow and wear is even.
    """

    def __init__(self, directory: Path, stats: SoakStats, delivered: bool):
        self._stats = stats
        self._delivered = delivered
        self._landed = judge.landing(directory / "collector" / "landing")
        self._missing = judge.missing(directory / "tables")
        self._trends = judge.memory(stats.samples, set(stats.expected))
        self._uneven = judge.uneven(stats.wear)
        kept = delivered and not self._landed.again[2] and not stats.dropped
        self.holds = kept and all(one.flat for one in self._trends) and not self._uneven

    def counted(self) -> dict[str, Any]:
        """Return the figures."""
        return {
            "minutes": round(self._stats.seconds / 60, 1),
            "published": self._stats.messages,
            "missing": self._missing,
            "repeated": self._landed.again[2],
            "holds": self.holds,
            "erases": {board: list(its.erases.values()) for board, its in self._stats.wear.items()},
        }

    def lines(self) -> list[str]:
        """Return the lines to print."""
        stats, again = self._stats, self._landed.again
        erases = [count for its in stats.wear.values() for count in its.erases.values()]
        widest = max(stats.wear.items(), key=lambda item: item[1].spread)
        return [
            f"delivery   {'every message once' if self._delivered else 'NOT EVERY MESSAGE ONCE'}; the landing has "
            f"{self._landed.messages:,}, {again[1]} of them again at QoS 1, {again[2]} at QoS 2"
            + (f"; {stats.dropped:,} DROPPED as the flash was full" if stats.dropped else ""),
            *(f"{'' if number else 'memory':10} {one}" for number, one in enumerate(self._trends)),
            f"wear       {min(erases, default=0)} to {max(erases, default=0)} erases of a sector, {sum(erases):,} in all; at "
            f"most {widest[1].spread} apart on one board ({widest[0]}: {widest[1].cuts} power cuts, "
            f"bound {judge.even_spread(widest[1])})" + (f"  UNEVEN: {', '.join(self._uneven)}" if self._uneven else ""),
        ]


def parse(argv: list[str] | None) -> tuple[Settings, Path]:
    """Return the settings and the folder."""
    parser = command_line("soak", __doc__, "soak-%Y%m%d-%H%M%S", Settings.interval_ms)
    parser.add_argument("--minutes", type=number(float, 0.01), default=60.0, help="duration of the faults")
    parser.add_argument("--boards", type=number(int, 1, 100), default=10)
    arguments = parser.parse_args(argv)
    return (Settings(arguments.minutes * 60, arguments.boards, arguments.seed, arguments.interval_ms), arguments.output)


@named("soak")
def main(argv: list[str] | None = None) -> int:
    """Run the soak; return the exit status."""
    settings, directory = parse(argv)
    status = soak(directory, settings)
    if status != 2:
        counts.write("soak", json.loads((directory / "soak.json").read_text()))
    return status


if __name__ == "__main__":
    sys.exit(ended(main))
