"""`python -m tools.proof.run`: board, broker and collector under faults, then Spark and the audit; the proof of `make run`.

A fault's moment is a number of messages stored by the board, so that the faults spread over the work however fast the machine is.
A random delay is added, so that they fall anywhere in time. Some power cuts follow right after a restart, and cut the recovery.

Exit status: 0 every reading arrived once; 1 a reading is missing or came twice; 2 a program could not be started or
ended early; 130 stopped by Ctrl-C.
"""

import argparse
import asyncio
import os
import random
import sys
from pathlib import Path
from typing import NamedTuple

from tools.command import exit_status, named, number, progress_bar
from tools.pipeline import java
from tools.proof.broker import Broker
from tools.proof.chain import COLLECTOR, LINK, LONGEST_PAUSE_S, POWER, Chain, RunStats, command_line, to_tables, until

DEVICE = "virtual-1"
FLASH_KIB = 64
INTERVAL_MS = 40
MOST_FAULTS = 10_000
# The collector takes a while to restart, so it is killed early: the board must not be done before every fault was applied.
FIRST, LAST, LAST_OF_COLLECTOR = 0.02, 0.75, 0.4
LONGEST_DELAY_S = 0.25
EARLY = 4  # one power cut in so many comes while the board starts
AMQTT_WARNING = "amqtt loses QoS 2 messages in flight when a link is cut. Install mosquitto for a run without losses."


class Event(NamedTuple):
    """One fault: `delay_s` after `at` messages are stored; if `early`, `delay_s` after the event before."""

    at: int
    delay_s: float
    kind: str
    early: bool = False


def draw(rng: random.Random, messages: int, power: int, link: int, collector: int) -> list[Event]:
    """Return a run's faults, ordered by their moments."""
    kinds = [POWER] * power + [LINK] * link + [COLLECTOR] * collector
    last = {COLLECTOR: LAST_OF_COLLECTOR}
    events = [
        Event(round(messages * rng.uniform(FIRST, last.get(kind, LAST))), rng.uniform(0, LONGEST_DELAY_S), kind)
        for kind in kinds
    ]
    events.sort(key=lambda event: event.at)
    cuts = [index for index, event in enumerate(events) if event.kind == POWER][1:]
    for index in rng.sample(cuts, len(cuts) // EARLY):
        events[index] = events[index]._replace(early=True)
    return events


async def run_chain(arguments: argparse.Namespace, directory: Path) -> RunStats:
    """Run board, proxy, broker and collector until everything is delivered; return the counts."""
    broker = Broker(directory / "broker")
    chain = Chain(directory, broker, RunStats(arguments.seed))
    # When the flash is full, for example after many cuts in a row, publish() refuses. The run is about accepted messages.
    settings = {"interval_ms": arguments.interval_ms, "keep_alive_s": 5, "when_full": "refuse"}
    settings["longest_pause_s"] = LONGEST_PAUSE_S
    if not arguments.cuts:
        settings["stop_after"] = arguments.readings
    print(f"broker     {broker.kind} on 127.0.0.1:{broker.port}; faults by seed {arguments.seed}", flush=True)
    if broker.kind == "amqtt":
        print("           " + AMQTT_WARNING, flush=True)
    async with chain.running([("board", DEVICE)], settings, FLASH_KIB, capture=True):
        print(f"board      {DEVICE}: MicroPython with a heap of 192 KB and {FLASH_KIB} KB of NOR flash", flush=True)
        (board,) = chain.boards
        await apply_faults(arguments, chain)
        await board.finished()
        await chain.collector.quiet()
    return chain.stats


async def apply_faults(arguments: argparse.Namespace, chain: Chain) -> None:
    """Apply the run's faults and show progress, until the board has delivered everything.

    The last power cut ends the storing. So the board goes on until every fault was applied, however slow the machine is.
    """
    (board,), (proxy,), done = chain.boards, chain.proxies, chain.stats.faults
    cuts = max(0, arguments.cuts - 1)
    events = draw(chain.rng, arguments.readings, cuts, arguments.link_cuts, arguments.collector_kills)
    with progress_bar(total=arguments.readings, unit=" messages") as bar:

        async def show() -> None:
            while True:
                bar.n = min(board.progress.stored, arguments.readings)
                bar.set_postfix_str(", ".join(f"{kind}s {count}" for kind, count in done.items()), refresh=False)
                bar.refresh()
                await asyncio.sleep(0.1)

        async def reached(stored: int) -> None:
            await until(lambda: board.progress.stored >= stored, board)

        showing = asyncio.ensure_future(show())
        try:
            for event in events:
                if not event.early:
                    await reached(event.at)
                await asyncio.sleep(event.delay_s)
                await chain.apply(event.kind, board, proxy)
            if arguments.cuts:
                await reached(arguments.readings)
                await chain.stop_storing()
            await until(lambda: False, board)
        finally:
            showing.cancel()


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = command_line("run", __doc__, "%Y%m%d-%H%M%S", INTERVAL_MS)
    add, faults = parser.add_argument, number(int, 0, MOST_FAULTS)
    add("--readings", type=number(int, 1), default=1000, help="messages, each with a reading of every sensor")
    add("--cuts", type=faults, default=20, help="power cuts")
    add("--link-cuts", type=faults, default=10, help="cuts of the network connection")
    add("--collector-kills", type=faults, default=3, help="times the collector is killed")
    return parser.parse_args(argv)


@named("run")
def main(argv: list[str] | None = None) -> int:
    """Run the chain, the pipeline and the audit; return the exit status."""
    arguments = parse(argv)
    directory = arguments.output
    directory.mkdir(parents=True, exist_ok=True)
    java.find_java()
    stats = asyncio.run(run_chain(arguments, directory))
    status = to_tables(directory, stats, "board")
    print(
        f"written    {os.path.relpath(directory)}: tables/ (Parquet, report.html), board/console.log, collector/, broker/, "
        "captures/ (for make wire-audit)",
        flush=True,
    )
    return status


if __name__ == "__main__":
    sys.exit(exit_status(main))
