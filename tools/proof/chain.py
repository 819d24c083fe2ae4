"""The chain under faults: boards, each behind a proxy of its own, a broker and the collector.

A proof that needs the whole chain is a preset of this one: which boards, which faults, at which moments (`make run`, `make
soak`, `tools.proof.wakes`). The chain starts and ends the programs, applies the faults, and counts them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tools.bootstrap import ROOT
from tools.children import Child
from tools.command import Failure, folder, number, parser_of
from tools.pipeline import run as pipeline
from tools.proof.board import VirtualBoard
from tools.proof.broker import Broker
from tools.proof.program import holds
from tools.proof.proxy import Proxy
from tools.proof.wire.capture import written

START_S = 60  # of the collector; the broker may be down meanwhile
STALLED_S = 120
QUIET_S = 1.5
SETTLE_S = 0.05
# Board and collector reconnect soon. With longer pauses, a run whose links are cut every second would be mostly pauses.
LONGEST_PAUSE_S = 2
# The share of link cuts that fall in the middle of a packet.
SHARE_INSIDE = 0.6
# Flash operations take five times their typical time, which is still below the data sheet's maximum: on a slower chip, more
# power cuts tear an operation.
FLASH_TIME = 5.0
POLL_S = 0.005
POWER, LINK, SILENCE, ABSENCE = "power cut", "link cut", "silence", "absence"
BROKER, COLLECTOR, COLLECTOR_LINK = "broker kill", "collector kill", "collector link cut"


class Collector(Child):
    """One collector, with its log and its landing in `directory`.

    Args:
        directory: made if missing.
        port: the port on loopback of its broker, or of the proxy in front of it.
        options: further arguments of its command line.
    """

    def __init__(self, directory: Path, port: int, options: Sequence[str] = ()):
        self.landing = directory / "landing"
        self._offset = 0  # of the log, where the last start begins
        directory.mkdir(parents=True, exist_ok=True)
        command = [
            *(sys.executable, "-m", "tools.collector", "--host", "127.0.0.1", "--port", str(port)),
            *("--topic", "flashmqtt/#", "--client-id", "collector", "--landing", str(self.landing)),
            *("--segment-seconds", "10", "--longest-pause", str(LONGEST_PAUSE_S), *options),
        ]
        self._log = directory / "collector.log"
        super().__init__(command, ROOT, log=self._log)

    @property
    def subscribed(self) -> bool:
        """Whether its log says, since the last start, that the broker knows its subscription."""
        return b"subscribed" in self._log.read_bytes()[self._offset :]

    async def launch(self) -> None:
        """Start its process."""
        self._offset = self._log.stat().st_size if self._log.exists() else 0
        await super().start()

    async def start(self) -> None:
        """Start it and wait until it is subscribed, so that no message is published before.

        Raises:
            Failure: it does not; the text has the end of its log.
        """
        await self.launch()
        await holds(lambda: self.subscribed or not self.running, START_S)
        if not self.subscribed:
            raise Failure(f"The collector did not start. Its log, {self._log}:\n{self.logged()}")

    async def restart(self) -> None:
        """Kill it, and start it again; its sealer notices by itself."""
        await self.kill(alone=True)
        await self.start()

    async def quiet(self) -> None:
        """Wait until nothing has arrived for a while: the size of the landing stays the same."""
        size, since = -1, time.monotonic()
        while time.monotonic() - since < QUIET_S:
            await asyncio.sleep(0.1)
            with contextlib.suppress(FileNotFoundError):  # a segment was being renamed
                now = sum(path.stat().st_size for path in self.landing.rglob("*") if path.is_file())
                if now != size:
                    size, since = now, time.monotonic()

    async def drain(self) -> None:
        """Start it, wait until nothing arrives any more, let it seal everything, and end it.

        Raises:
            Failure: it did not start, or ended with an error.
        """
        await self.start()
        await self.quiet()
        await self.stop()
        if self.status:
            raise Failure(f"The collector failed. Its log, {self._log}:\n{self.logged()}")


def command_line(name: str, doc: str, folder_name: str, interval_ms: int) -> argparse.ArgumentParser:
    """Return a parser with the arguments of every run of the chain that goes on to the tables."""
    parser = parser_of(f"tools.proof.{name}", doc)
    add = parser.add_argument
    add("--interval-ms", type=number(int, 10, 60_000), default=interval_ms, help="between two samples of a sensor")
    seed = int.from_bytes(os.urandom(4), "big")
    add("--seed", type=int, default=seed, help="draw the same faults as an earlier run; their moments still vary")
    output = ROOT / "runs" / time.strftime(folder_name)
    add("--output", type=folder, default=output, help="folder of all files; default: a new folder below runs/")
    return parser


def to_tables(directory: Path, stats: RunStats, who: str, *options: str) -> int:
    """Print the counts; let the pipeline read the landing and audit it; return the pipeline's status. `who` stored the messages.

    Args:
        directory: of the run; it gets `expected.json` and `tables`.
        stats: the counts.
        who: in the printed counts.
        options: more of the pipeline's.
    """
    expected = directory / "expected.json"
    expected.write_text(json.dumps(stats.expected, indent=2) + "\n")
    print("\n".join(stats.summary_lines(who)), flush=True)
    landing = directory / "collector" / "landing"
    paths = ("--landing", str(landing), "--out", str(directory / "tables"), "--expected", str(expected))
    return pipeline.main([*paths, *options])


async def until(condition: Callable[[], bool], board: VirtualBoard, poll_s: float = POLL_S) -> None:
    """Wait for a condition, or until the board is done, however slow the machine is.

    Raises:
        Failure: the board's program ended with an error, or made no progress for STALLED_S.
    """
    seen, since = replace(board.progress, dropped=0), time.monotonic()
    while not condition() and not board.progress.done:
        if not board.running:
            await board.finished()
        if (now := replace(board.progress, dropped=0)) != seen:
            seen, since = now, time.monotonic()
        elif time.monotonic() - since > STALLED_S:
            raise Failure(f"The board has stored and delivered nothing for {STALLED_S} s. See {board.console}.")
        await asyncio.sleep(poll_s)


async def live(board: VirtualBoard, seconds: float) -> None:
    """Wait; raise BoardFailed if the board's program ends meanwhile."""
    end = time.monotonic() + seconds
    await until(lambda: time.monotonic() >= end, board, poll_s=0.02)


async def cut_link(board: VirtualBoard, proxy: Proxy, rng: random.Random) -> bool:
    """Cut a board's connection as soon as there is one: now, or in the middle of the next packet that it sends.

    Return whether a connection was cut before the board was done.
    """
    before = proxy.cuts
    inside = rng.random() < SHARE_INSIDE
    while proxy.cuts == before and not board.progress.done:
        await until(lambda: proxy.connected, board)
        if inside:
            # Asked again and again: a silent connection passes no packet that could be cut, and the board opens another one.
            proxy.cut_inside_a_packet()
            await asyncio.sleep(POLL_S)
        else:
            proxy.cut()
    return proxy.cuts > before


@dataclass
class RunStats:
    """The faults of a run, and its results.

    Attributes:
        faults: how often each fault was applied.
        torn: how many power cuts tore a flash operation.
        messages: how many the boards stored; dropped: for how many they had no room.
        expected: the messages that the boards have stored, in the form that the pipeline's audit reads.
    """

    seed: int
    seconds: float = 0.0
    began_us: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    torn: int = 0
    link_cuts_inside_a_packet: int = 0
    boots: int = 0
    messages: int = 0
    dropped: int = 0
    expected: dict = field(default_factory=dict)

    def summary_lines(self, who: str) -> list[str]:
        """Return the lines to print; `who` stored the messages."""
        count = self.faults
        further = [f"{kind}s: {count[kind]}" for kind in (SILENCE, ABSENCE, BROKER, COLLECTOR_LINK) if count[kind]]
        return [
            f"faults     power cuts: {count[POWER]} (flash operation incomplete: {self.torn}), link cuts: {count[LINK]} "
            f"(inside a packet: {self.link_cuts_inside_a_packet}), kills of the collector: {count[COLLECTOR]}",
            f"           {', '.join([*further, f'seed {self.seed}'])}",
            f"{who:10} {self.messages:,} messages stored in {self.boots} boots, {self.seconds:.0f} s",
        ]


class Chain:
    """One chain, with all its files below one directory.

    Args:
        directory: the directory.
        broker: not started yet.
        stats: receives the counts.
        longest_absence_s: of a board from the network, and twice that of the broker.
    """

    def __init__(self, directory: Path, broker: Broker, stats: RunStats, longest_absence_s: float = 0.0):
        self.stats = stats
        self.rng = random.Random(stats.seed)
        self.broker = broker
        self.boards: list[VirtualBoard] = []
        self.proxies: list[Proxy] = []  # each board's, in their order
        self._longest_absence_s = longest_absence_s
        self._directory = directory
        self._began = 0.0

    def now(self) -> float:
        """Return the seconds since the boards were started."""
        return time.monotonic() - self._began

    def count(self, kind: str) -> None:
        """Count a fault."""
        self.stats.faults[kind] += 1

    @contextlib.asynccontextmanager
    async def running(
        self,
        folders: Iterable[tuple[str, str]],
        settings: dict[str, Any],
        flash_kib: int,
        flash_time: float = FLASH_TIME,
        capture: bool = False,
        power_on: bool = True,
    ) -> AsyncIterator[None]:
        """Start broker, collector and boards; at the end, stop them and sum up the counts.

        Args:
            folders: folder and id of each board.
            settings: further keys of the boards' configuration.
            flash_kib: the size of their flash.
            flash_time: see VirtualBoard.
            capture: write the traffic to `captures`.
            power_on: start the boards.

        Raises:
            Failure: the broker or the collector did not start.
        """
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(self.broker)
            self.collector_proxy = Proxy(self.broker.port, self.rng)
            stack.push_async_callback(self.collector_proxy.stop)
            await self.collector_proxy.start()
            self.collector = Collector(self._directory / "collector", self.collector_proxy.port)
            stack.push_async_callback(self.collector.stop)
            for within, name in folders:
                proxy = Proxy(self.broker.port, self.rng)
                if capture:
                    proxy.watch = stack.enter_context(written(self._directory / "captures" / f"{name}.jsonl"))
                stack.push_async_callback(proxy.stop)
                await proxy.start()
                place = self._directory / within
                board = VirtualBoard(place, name, proxy.port, settings, flash_kib * 1024, flash_time)
                stack.push_async_callback(board.kill)
                self.boards.append(board)
                self.proxies.append(proxy)
            await self.collector.start()
            self.stats.began_us, self._began = time.time_ns() // 1000, time.monotonic()
            for board in self.boards if power_on else ():
                await board.power_on()
            yield
            self.stats.seconds = self.now()
        self._sum_up()

    def _sum_up(self) -> None:
        stats = self.stats
        for board, proxy in zip(self.boards, self.proxies, strict=True):
            stats.expected |= board.expected()
            stats.torn += board.torn
            stats.boots += len(board.boots)
            stats.messages += board.boots[-1]["last"]
            stats.dropped += board.dropped
            stats.link_cuts_inside_a_packet += proxy.cuts_inside_a_packet

    async def apply(self, kind: str, board: VirtualBoard | None = None, proxy: Proxy | None = None) -> None:
        """Apply a fault, to a board if it is a fault of boards, and count it."""
        if kind == LINK and board and proxy:
            self.stats.faults[kind] += await cut_link(board, proxy, self.rng)  # not if the board was done before
            return
        self.count(kind)
        if kind == POWER and board and proxy:
            proxy.refuse(kind)
            proxy.cut()  # bytes in flight are lost with the power
            await board.power_cut(self.rng)
            proxy.admit(kind)
            await board.power_on()
        elif kind == SILENCE and proxy:
            proxy.swallow()
        elif kind == ABSENCE and board and proxy:
            proxy.refuse(kind)
            proxy.cut()
            await live(board, self.rng.uniform(0, self._longest_absence_s))
            proxy.admit(kind)
        elif kind == COLLECTOR:
            await self.collector.restart()
        elif kind == COLLECTOR_LINK and self.rng.random() < SHARE_INSIDE:
            self.collector_proxy.cut_inside_a_packet()
        elif kind == COLLECTOR_LINK:
            self.collector_proxy.cut()
        elif kind == BROKER:
            await self._kill_broker()

    async def _kill_broker(self) -> None:
        """Stop all traffic, let the broker write its database, kill the broker and start it again.

        Mosquitto acknowledges a message before it writes it. A kill in between would lose messages that their senders have
        already deleted.
        """
        proxies = [self.collector_proxy, *self.proxies]
        for proxy in proxies:
            proxy.refuse(BROKER)
            proxy.swallow()
        await asyncio.sleep(SETTLE_S)
        for proxy in proxies:
            proxy.swallow()  # connections that were accepted meanwhile
        self.broker.save()
        self.broker.kill()
        await asyncio.sleep(self.rng.uniform(0, self._longest_absence_s / 2))
        self.broker.start()
        for proxy in proxies:
            proxy.admit(BROKER)

    async def stop_storing(self) -> None:
        """Cut each board's power once more; it then only sends its backlog and ends."""
        for board, proxy in zip(self.boards, self.proxies, strict=True):
            board.configure(stop_after=1)
            await self.apply(POWER, board, proxy)
