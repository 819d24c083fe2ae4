"""`python -m tools.proof.soak`: a fleet of boards under every fault at once; then Spark, the audit, memory and wear.

Exit status: 0 every message arrived once, memory does not grow, wear is even; 1 one of these does not hold; 2 a program could
not be started or ended early; 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tools.bootstrap import ROOT, find_mosquitto
from tools.broker import BrokerFailed
from tools.command import ended, folder, number
from tools.pipeline import java
from tools.pipeline import run as pipeline
from tools.proof import counts
from tools.proof.board import BoardFailed
from tools.proof.chain import CollectorFailed
from tools.proof.soak import judge, samples
from tools.proof.soak.fleet import Fleet, Settings, SoakFailed, SoakStats
from tools.proof.soak.samples import Wear

# So that Spark reads a soak's landing in several batches, like a pipeline that runs all the time.
SEGMENTS_PER_BATCH = 8


def soak(directory: Path, settings: Settings) -> int:
    """Run one soak; return 0 if everything holds, else 1.

    Raises:
        BrokerFailed, BoardFailed, CollectorFailed, SoakFailed, java.JavaNotFound: the soak could not be run to its end.
    """
    if not find_mosquitto():
        raise BrokerFailed(
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
    print("\n".join(stats.summary_lines("fleet")), flush=True)
    (directory / "expected.json").write_text(json.dumps(stats.expected, indent=2) + "\n")
    landing, tables = directory / "collector" / "landing", directory / "tables"
    status = pipeline.main(
        [
            *("--landing", str(landing), "--out", str(tables), "--expected", str(directory / "expected.json")),
            *("--segments-per-batch", str(SEGMENTS_PER_BATCH)),
        ]
    )
    if status == 2:
        return status
    stats.samples += samples.heaps(tables, stats.began_us)
    verdict = judged(directory, stats, status == 0)
    print("\n".join(verdict.lines()))
    write(directory, stats, verdict)
    print(
        f"written    {os.path.relpath(directory)}: soak.json, samples.parquet (memory), tables/ (Parquet, report.html), "
        "board-*/, collector/, broker/",
        flush=True,
    )
    return 0 if verdict.holds else 1


@dataclass(frozen=True)
class Verdict:
    """The result of a soak."""

    missing: int
    repeated: int
    dropped: int
    delivered: bool
    landed: judge.Landing
    trends: list[judge.Trend]
    wear: dict[str, Wear]
    boards: set[str]

    @property
    def holds(self) -> bool:
        """Whether every message arrived once, memory does not grow and wear is even."""
        kept = self.delivered and not self.repeated and not self.dropped
        return kept and all(one.flat for one in self.trends) and not self.uneven

    @property
    def uneven(self) -> list[str]:
        """The boards whose flash wears unevenly."""
        return judge.uneven(self.wear)

    def lines(self) -> list[str]:
        """Return the lines to print; of the boards' memory, the worst."""
        boards = [one for one in self.trends if one.subject in self.boards]
        told = [one for one in boards if one.is_conclusive]
        kept = [max(told, key=lambda one: one.growth / one.bound)] if told else boards[:1]
        kept += [one for one in boards if not one.flat and one not in kept]
        kept += [one for one in self.trends if one.subject not in self.boards]
        erases = [count for its in self.wear.values() for count in its.erases.values()]
        widest = max(self.wear.items(), key=lambda item: item[1].spread)
        return [
            f"delivery   {'every message once' if self.delivered else 'NOT EVERY MESSAGE ONCE'}; the landing has "
            f"{self.landed.messages:,}, {self.landed.again[1]} of them again at QoS 1, {self.landed.again[2]} at QoS 2"
            + (f"; {self.dropped:,} DROPPED as the flash was full" if self.dropped else ""),
            *(f"{'' if number else 'memory':10} {one}" for number, one in enumerate(kept)),
            f"wear       {min(erases, default=0)} to {max(erases, default=0)} erases of a sector, {sum(erases):,} in all; at "
            f"most {widest[1].spread} apart on one board ({widest[0]}: {widest[1].cuts} power cuts, "
            f"bound {judge.even_spread(widest[1])})" + (f"  UNEVEN: {', '.join(self.uneven)}" if self.uneven else ""),
        ]


def judged(directory: Path, stats: SoakStats, delivered: bool) -> Verdict:
    """Judge a soak by its files."""
    landed = judge.landing(directory / "collector" / "landing")
    boards = set(stats.expected)
    return Verdict(
        missing=judge.missing(directory / "tables"),
        repeated=landed.again[2],
        dropped=stats.dropped,
        delivered=delivered,
        landed=landed,
        trends=judge.memory(stats.samples, boards),
        wear=stats.wear,
        boards=boards,
    )


def write(directory: Path, stats: SoakStats, verdict: Verdict) -> None:
    """Write samples and figures."""
    samples.write(stats.samples, directory / "samples.parquet")
    counted = {
        **stats.counted(),
        "missing": verdict.missing,
        "repeated": verdict.repeated,
        "resent_qos1": verdict.landed.again[1],
        "holds": verdict.holds,
        "memory": {one.subject: vars(one) | {"flat": one.flat} for one in verdict.trends},
        "erases": {board: list(its.erases.values()) for board, its in verdict.wear.items()},
    }
    (directory / "soak.json").write_text(json.dumps(counted, indent=2) + "\n")


def parse(argv: list[str] | None) -> tuple[Settings, Path]:
    """Return the settings and the folder."""
    parser = argparse.ArgumentParser(prog="python -m tools.proof.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=number(float, 0.01), default=60.0, help="duration of the faults")
    parser.add_argument("--boards", type=number(int, 1, 100), default=10)
    parser.add_argument(
        "--interval-ms",
        type=number(int, 10, 60_000),
        default=Settings.interval_ms,
        help="between two samples of a sensor",
    )
    parser.add_argument(
        "--seed", type=int, default=None, help="draw the same faults as an earlier soak; their moments still vary"
    )
    parser.add_argument(
        "--output", type=folder, default=None, help="folder of all files; default: a new folder below runs/"
    )
    arguments = parser.parse_args(argv)
    seed = int.from_bytes(os.urandom(4), "big") if arguments.seed is None else arguments.seed
    directory = arguments.output or ROOT / "runs" / ("soak-" + time.strftime("%Y%m%d-%H%M%S"))
    return (
        Settings(arguments.minutes * 60, arguments.boards, seed, arguments.interval_ms),
        directory,
    )


def main(argv: list[str] | None = None) -> int:
    """Run the soak; return the exit status."""
    settings, directory = parse(argv)

    def run() -> int:
        status = soak(directory, settings)
        if status != 2:
            counts.write("soak", json.loads((directory / "soak.json").read_text()))
        return status

    return ended(run, SoakFailed, BrokerFailed, BoardFailed, CollectorFailed, java.JavaNotFound)


if __name__ == "__main__":
    sys.exit(main())
