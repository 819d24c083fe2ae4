"""`python -m tools.proof.run`: board, broker, collector and Spark under faults, ended by the audit.

Exit status: 0 every reading arrived once; 1 one is missing or came twice; 2 something could not be started or
ended early; 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import os
import random
import sys
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path

from tqdm import tqdm

from tools.broker import Broker, BrokerFailed
from tools.command import ended, folder, number
from tools.landing.segments import find_segments
from tools.pipeline import java
from tools.pipeline import run as pipeline
from tools.proof.run import chaos, faults
from tools.proof.run.collector import LONGEST_PAUSE_S, Collector, CollectorFailed
from tools.virtual_board.supervisor import BoardFailed, VirtualBoard

ROOT = Path(__file__).resolve().parents[3]
DEVICE = "virtual-1"
INTERVAL_MS = 40
STALLED_S = 120
AMQTT_WARNING = (
    "amqtt forgets QoS 2 messages in flight when a link is cut: what is missing then, it lost. Install mosquitto."
)


class RunFailed(Exception):
    """The run can't go on; the text says why."""


@dataclass
class Story:
    """What was done to the chain."""

    seed: int
    broker: str
    boots: int = 0
    power_cuts: int = 0
    torn: list[str] = field(default_factory=list)
    link_cuts: int = 0
    link_cuts_inside_a_packet: int = 0
    connects: int = 0
    collector_kills: int = 0
    messages: int = 0
    seconds: float = 0.0


async def inflict(
    event: chaos.Event, board: VirtualBoard, line: faults.Line, collector: Collector, rng: random.Random
) -> bool:
    """Do one fault to the chain and see that all runs again; return whether it could be done: a board may be done before."""
    if event.kind == chaos.POWER:
        await faults.cut_power(board, line, rng)
    elif event.kind == chaos.LINK:
        return await faults.cut_link(board, line, rng)
    else:
        await collector.kill()
    return True


async def chain(arguments: argparse.Namespace, directory: Path, story: Story) -> dict:
    """Run board, proxy, broker and collector until all is delivered; return what the board says it published."""
    rng = random.Random(arguments.seed)
    with Broker(
        directory / "broker", arguments.port, None if arguments.broker == "auto" else arguments.broker
    ) as broker:
        story.broker = broker.kind
        print(f"broker     {broker.kind} on 127.0.0.1:{broker.port}; faults by seed {arguments.seed}", flush=True)
        if broker.kind == "amqtt":
            print("           " + AMQTT_WARNING, flush=True)
        line = faults.Line(broker.port, rng, directory / "captures" / "link.jsonl")
        await line.start()
        collector = Collector(directory / "collector", broker.port)
        # Where the flash is full, say after many cuts in a row, publish() refuses: what it took is what this run is about.
        settings = {"interval_ms": arguments.interval_ms, "keep_alive_s": 5, "when_full": "refuse"}
        settings["longest_pause_s"] = LONGEST_PAUSE_S
        if not arguments.cuts:
            settings["stop_after"] = arguments.readings
        board = VirtualBoard(
            directory / "board", DEVICE, line.port, settings, arguments.flash_kib * 1024, faults.FLASH_TIME
        )
        try:
            await collector.start()
            print(
                f"board      {DEVICE}: MicroPython with a heap of 192 KB and {arguments.flash_kib} KB of NOR flash",
                flush=True,
            )
            started = time.monotonic()
            await board.power_on()
            await unless_stalled(suffer(arguments, story, board, line, collector, rng), board)
            await board.finished()
            await collector.quiet()
            story.seconds = time.monotonic() - started
        finally:
            await board.stop()
            await collector.stop()
            await line.stop()
    story.boots = len(board.boots)
    story.power_cuts, story.torn = board.power.cuts, board.power.torn
    story.link_cuts_inside_a_packet = line.counts.cuts_inside_a_packet
    story.connects, story.collector_kills, story.messages = board.connects, collector.kills, board.progress.stored
    return board.expected()


def progressed(board: VirtualBoard) -> tuple[int, ...]:
    """Return what changes while a board gets on."""
    progress = board.progress
    return progress.boot, progress.stored, progress.waiting, progress.connects


async def unless_stalled(running: Coroutine[None, None, None], board: VirtualBoard) -> None:
    """Let something run to its end, as long as the board gets on with storing or delivering, however slow the machine is.

    Raises:
        RunFailed: it got on with nothing for STALLED_S.
    """
    task = asyncio.ensure_future(running)
    seen, since = progressed(board), time.monotonic()
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=1.0)
            if progressed(board) != seen:
                seen, since = progressed(board), time.monotonic()
            elif time.monotonic() - since > STALLED_S:
                raise RunFailed(f"The board has stored and delivered nothing for {STALLED_S} s. See {board.console}.")
        await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def suffer(
    arguments: argparse.Namespace,
    story: Story,
    board: VirtualBoard,
    line: faults.Line,
    collector: Collector,
    rng: random.Random,
) -> None:
    """Let the run's faults happen, showing progress, until the board has delivered all.

    The last power cut ends the storing: however slow the machine is, the board goes on until every fault has had its turn.
    """
    cuts = max(0, arguments.cuts - 1)
    events = chaos.draw(rng, arguments.readings, cuts, arguments.link_cuts, arguments.collector_kills)
    done = dict.fromkeys((chaos.POWER, chaos.LINK, chaos.COLLECTOR), 0)
    with tqdm(total=arguments.readings, unit=" messages", disable=None, dynamic_ncols=True, leave=False) as bar:

        def show() -> bool:
            bar.n = min(board.progress.stored, arguments.readings)
            bar.set_postfix_str(", ".join(f"{kind} {count}" for kind, count in done.items()), refresh=False)
            bar.refresh()
            return False

        async def progress() -> None:
            while True:
                show()
                await asyncio.sleep(0.1)

        def reached(stored: int) -> bool:
            return board.progress.stored >= stored

        showing = asyncio.ensure_future(progress())
        try:
            for event in events:
                if not event.early:
                    await faults.until(functools.partial(reached, event.at), board)
                await asyncio.sleep(event.delay_s)
                done[event.kind] += await inflict(event, board, line, collector, rng)
            if arguments.cuts:
                await faults.until(functools.partial(reached, arguments.readings), board)
                board.configure(stop_after=1)
                await faults.cut_power(board, line, rng)
                done[chaos.POWER] += 1
            await faults.until(lambda: False, board)
            story.link_cuts = done[chaos.LINK]
        finally:
            showing.cancel()


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Return the command line's meaning."""
    parser = argparse.ArgumentParser(prog="python -m tools.proof.run", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--readings", type=number(int, 1), default=1000, help="messages to publish, each with a reading of every sensor"
    )
    parser.add_argument("--cuts", type=number(int, 0), default=20, help="power cuts")
    parser.add_argument("--link-cuts", type=number(int, 0), default=10, help="cuts of the network connection")
    parser.add_argument("--collector-kills", type=number(int, 0), default=3, help="times the collector is killed")
    parser.add_argument(
        "--interval-ms", type=number(int, 10, 60_000), default=INTERVAL_MS, help="between two samples of a sensor"
    )
    parser.add_argument("--flash-kib", type=number(int, 16), default=64, help="size of the simulated flash, in fours")
    parser.add_argument(
        "--seed", type=int, default=None, help="repeat the faults of an earlier run, as far as time allows"
    )
    parser.add_argument("--broker", choices=("auto", "mosquitto", "amqtt"), default="auto")
    parser.add_argument(
        "--port", type=number(int, 1, 65535), default=None, help="the broker's port; a free one by default"
    )
    parser.add_argument(
        "--output", type=folder, default=None, help="where everything goes; a new folder below runs/ by default"
    )
    arguments = parser.parse_args(argv)
    if arguments.flash_kib % 4:
        parser.error(f"argument --flash-kib: flash comes in sectors of 4 KB, not in {arguments.flash_kib}")
    if arguments.seed is None:
        arguments.seed = int.from_bytes(os.urandom(4), "big")
    return arguments


def tell(story: Story, directory: Path) -> None:
    """Print what was done to the chain, and write it down."""
    (directory / "story.json").write_text(json.dumps(vars(story), indent=2) + "\n")
    print(
        f"faults     {story.power_cuts} power cuts ({len(story.torn)} tore a flash operation), "
        f"{story.link_cuts} link cuts ({story.link_cuts_inside_a_packet} inside a packet), "
        f"{story.collector_kills} kills of the collector; seed {story.seed}\n"
        f"board      {story.messages} messages stored in {story.boots} boots, {story.connects} connections, "
        f"{story.seconds:.0f} s",
        flush=True,
    )


def run(arguments: argparse.Namespace) -> int:
    """Run it all; return the exit status."""
    directory = arguments.output or ROOT / "runs" / time.strftime("%Y%m%d-%H%M%S")
    directory.mkdir(parents=True, exist_ok=True)
    java.find_java()
    story = Story(arguments.seed, arguments.broker)
    expected = asyncio.run(chain(arguments, directory, story))
    (directory / "expected.json").write_text(json.dumps(expected, indent=2) + "\n")
    tell(story, directory)
    landing = directory / "collector" / "landing"
    print(f"pipeline   Spark reads {len(find_segments(landing))} segments", flush=True)
    status = pipeline.main(
        [
            *("--landing", str(landing), "--out", str(directory / "tables")),
            *("--expected", str(directory / "expected.json")),
        ]
    )
    print(
        f"written    {os.path.relpath(directory)}: tables/ (Parquet, report.html), board/console.log, collector/, broker/, "
        "captures/ (for make wire-audit), story.json",
        flush=True,
    )
    return status


def main(argv: list[str] | None = None) -> int:
    """Read the command line and run; return the exit status."""
    arguments = parse(argv)
    return ended(lambda: run(arguments), RunFailed, BrokerFailed, BoardFailed, CollectorFailed, java.JavaNotFound)


if __name__ == "__main__":
    sys.exit(main())
