"""The fleet, the chain behind it, and all that happens to them at once, at moments nobody chose.

Every board has its own line, flash and journal. To each of them, independently: the power goes, and in one case of four goes
again while it recovers; the connection is cut, also inside a packet; it falls silent; it can't be had for seconds.
Meanwhile the broker is killed and started again with what it had persisted, the collector is killed, the collector's
connection is cut.

Every fifth board keeps its power: only a program that runs all the time shows whether its heap grows.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path

from tqdm import tqdm

from tools.broker import Broker
from tools.proof.run import faults
from tools.proof.run.collector import Collector
from tools.proof.soak.samples import Sample, Wear, children_of, resident_bytes
from tools.virtual_board.supervisor import VirtualBoard

SETTLE_S = 0.05
AGAIN = 0.25  # of the power cuts, so many are followed by another while the board starts
AGAIN_S = 0.4
STEADY_EVERY = 5
COLLECTOR_START_S = 60.0  # the broker may be away, too
KEEP_ALIVE_S = 5
SAMPLES = 600  # over the whole soak, about
SHORTEST_SAMPLE_S = 0.5
BAR = "{l_bar}{bar}| {n_fmt}/{total_fmt} s{postfix}"


class SoakFailed(Exception):
    """The soak can't go on; the text says why."""


@dataclass(frozen=True)
class Settings:
    """What is soaked, for how long, and how often each fault comes: mean seconds between two, for one board or program.

    Where it is 0, the programs of the host are killed about eight times: what they hold in memory shows between two kills.
    A board may pause for `longest_pause_s` between two attempts to connect, also after the last fault.
    """

    seconds: float
    boards: int = 10
    seed: int = 1
    interval_ms: int = 400
    health_s: int = 5
    flash_kib: int = 128
    power_s: float = 40.0
    link_s: float = 40.0
    silence_s: float = 120.0
    absence_s: float = 90.0
    broker_s: float = 0.0
    collector_s: float = 0.0
    collector_link_s: float = 60.0
    drain_s: float = 240.0
    longest_absence_s: float = 6.0
    longest_pause_s: int = 20

    def host_s(self, given: float) -> float:
        """Return the mean seconds between two kills of a host's program."""
        return given or max(15.0, self.seconds / 8)


@dataclass
class Story:
    """What was done, and what came of it."""

    seed: int
    seconds: float = 0.0
    began_us: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    torn: int = 0
    inside_a_packet: int = 0
    boots: int = 0
    connects: int = 0
    messages: int = 0
    dropped: int = 0
    moments: list[tuple[float, str]] = field(default_factory=list)
    expected: dict = field(default_factory=dict)
    wear: dict[str, Wear] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)


class Fleet:
    """One soak.

    Args:
        directory: where everything goes.
        settings: see there.
    """

    def __init__(self, directory: Path, settings: Settings):
        self.settings = settings
        self.story = Story(settings.seed)
        self._directory = directory
        self._rng = random.Random(settings.seed)
        self._broker = Broker(directory / "broker", kind="mosquitto", extra="autosave_on_changes false")
        self._boards: list[VirtualBoard] = []
        self._lines: list[faults.Line] = []
        self._began = 0.0

    async def soak(self) -> Story:
        """Run it all; return the story.

        Raises:
            BrokerFailed, BoardFailed, CollectorFailed, SoakFailed: something did not run as it should.
        """
        settings = self.settings
        width = len(str(settings.boards))
        self._broker.start()
        try:
            self._collector_line = await self._line()
            self._collector = Collector(self._directory / "collector", self._collector_line.port, COLLECTOR_START_S)
            keys = {
                "interval_ms": settings.interval_ms,
                "health_s": settings.health_s,
                "keep_alive_s": KEEP_ALIVE_S,
                "longest_pause_s": settings.longest_pause_s,
            }
            for number in range(1, settings.boards + 1):
                name = f"board-{number:0{width}d}"
                line = await self._line()
                board = VirtualBoard(
                    self._directory / name, name, line.port, keys, settings.flash_kib * 1024, faults.FLASH_TIME
                )
                self._boards.append(board)
                self.story.wear[name] = Wear(board.flash)
            await self._collector.start()
            self.story.began_us, self._began = time.time_ns() // 1000, time.monotonic()
            for board in self._boards:
                await board.power_on()
            sampling = asyncio.ensure_future(self._sample())
            try:
                await self._all_at_once()
                await self._drain()
            finally:
                sampling.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await sampling
            self.story.seconds = self._now()
        finally:
            for board in self._boards:
                await board.stop()
            if self._lines:
                await self._collector.stop()
            for line in self._lines:
                await line.stop()
            self._broker.stop()
        self._sum_up()
        return self.story

    async def _line(self) -> faults.Line:
        line = faults.Line(self._broker.port, self._rng)
        await line.start()
        self._lines.append(line)
        return line

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _sum_up(self) -> None:
        story = self.story
        for board in self._boards:
            story.expected |= board.expected()
            story.torn += len(board.power.torn)
            story.boots += len(board.boots)
            story.connects += board.connects
            story.messages += board.boots[-1].last
            story.dropped += board.dropped
            story.wear[board.device].look()
            story.wear[board.device].cuts = board.power.cuts
        story.inside_a_packet = sum(line.counts.cuts_inside_a_packet for line in self._lines)

    # --- the faults ---

    async def _all_at_once(self) -> None:
        settings = self.settings
        running: list[Coroutine[None, None, None]] = [
            self._again("broker kill", settings.host_s(settings.broker_s), self._kill_broker),
            self._again("collector kill", settings.host_s(settings.collector_s), self._collector.kill),
            self._again("collector link cut", settings.collector_link_s, self._cut_collector),
        ]
        for number, (board, line) in enumerate(zip(self._boards, self._lines[1:], strict=True), 1):
            running.append(self._torment(board, line, self._steady(number)))
        tasks = [asyncio.ensure_future(one) for one in running]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _steady(self, number: int) -> bool:
        """Return whether a board keeps its power."""
        return number % STEADY_EVERY == 0 or number == self.settings.boards < STEADY_EVERY

    async def _again(self, kind: str, mean_s: float, act: Callable[[], Awaitable[None]]) -> None:
        """Do something again and again, until the time is up."""
        while (pause := self._rng.expovariate(1 / mean_s)) < self.settings.seconds - self._now():
            await asyncio.sleep(pause)
            self._count(kind)
            await act()
        await asyncio.sleep(max(0.0, self.settings.seconds - self._now()))

    def _count(self, kind: str) -> None:
        self.story.faults[kind] += 1
        self.story.moments.append((self._now(), kind))

    async def _torment(self, board: VirtualBoard, line: faults.Line, steady: bool) -> None:
        """Let one board's faults happen, one after the other: it has one power supply and one link."""
        settings = self.settings
        means = {
            "power cut": 0.0 if steady else settings.power_s,
            "link cut": settings.link_s,
            "silence": settings.silence_s,
            "absence": settings.absence_s,
        }
        weights = [1 / mean if mean else 0.0 for mean in means.values()]
        while (pause := self._rng.expovariate(sum(weights))) < settings.seconds - self._now():
            await self._live(board, pause)
            kind = self._rng.choices(list(means), weights)[0]
            if kind in ("link cut", "silence") and not line.connected:
                continue  # to wait for a connection and then cut it would mean that none ever lasts
            self._count(kind)
            if kind == "power cut":
                await faults.cut_power(board, line, self._rng)
                while self._rng.random() < AGAIN:
                    await self._live(board, self._rng.uniform(0, AGAIN_S))
                    self._count(kind)
                    await faults.cut_power(board, line, self._rng)
            elif kind == "link cut":
                await faults.cut_link(board, line, self._rng)
            elif kind == "silence":
                line.swallow()
            else:
                line.refuse("absence")
                line.cut()
                await self._live(board, self._rng.uniform(0, settings.longest_absence_s))
                line.admit("absence")
        await self._live(board, max(0.0, settings.seconds - self._now()))

    async def _live(self, board: VirtualBoard, seconds: float) -> None:
        """Wait; raise BoardFailed where the board's program ends meanwhile."""
        end = time.monotonic() + seconds
        await faults.until(lambda: time.monotonic() >= end, board, poll_s=0.02)

    async def _kill_broker(self) -> None:
        """Kill it once it has written down what it acknowledged, and nothing can reach it any more; start it again.

        Mosquitto acknowledges before it writes. Killed in between, it loses messages that are nobody else's any more.
        """
        for line in self._lines:
            line.refuse("broker")
            line.swallow()
        await asyncio.sleep(SETTLE_S)
        for line in self._lines:
            line.swallow()  # those that were just being let through
        self._broker.save()
        self._broker.kill()
        await asyncio.sleep(self._rng.uniform(0, self.settings.longest_absence_s / 2))
        self._broker.start()
        for line in self._lines:
            line.admit("broker")

    async def _cut_collector(self) -> None:
        if self._rng.random() < faults.SHARE_INSIDE:
            self._collector_line.cut_inside_a_packet()
        else:
            self._collector_line.cut()

    async def _drain(self) -> None:
        """After the last fault: start each board once more, to send what it has, and wait until the collector has it."""
        self._collector_line.cut()  # one that fell silent would be noticed too late
        for board, line in zip(self._boards, self._lines[1:], strict=True):
            board.configure(stop_after=1)
            self._count("power cut")
            await faults.cut_power(board, line, self._rng)
        try:
            async with asyncio.timeout(self.settings.drain_s):
                for board in self._boards:
                    await board.finished()
        except TimeoutError:
            left = [f"{board.device} ({board.progress.waiting} waiting)" for board in self._boards if board.running]
            raise SoakFailed(
                f"Not delivered {self.settings.drain_s:.0f} s after the last fault: {', '.join(left)}."
            ) from None
        await self._collector.quiet()

    # --- the figures ---

    async def _sample(self) -> None:
        settings = self.settings
        every_s = max(SHORTEST_SAMPLE_S, settings.seconds / SAMPLES)
        with tqdm(
            total=round(settings.seconds), unit=" s", disable=None, dynamic_ncols=True, leave=False, bar_format=BAR
        ) as bar:
            while True:
                self._look()
                bar.n = min(round(self._now()), bar.total)
                stored = sum(board.progress.stored for board in self._boards)
                waiting = sum(board.progress.waiting for board in self._boards)
                count = self.story.faults.total()
                bar.set_postfix_str(f"{stored:,} messages stored, {waiting:,} waiting, {count:,} faults")
                await asyncio.sleep(every_s)

    def _look(self) -> None:
        at, add = self._now(), self.story.samples.append
        for board in self._boards:
            wear = self.story.wear[board.device]
            wear.look()
            boot = board.progress.boot
            add(Sample(at, board.device, boot, "waiting", board.progress.waiting))
            add(Sample(at, board.device, boot, "erases_least", wear.least))
            add(Sample(at, board.device, boot, "erases_most", wear.most))
        programs = [("broker", self._broker.pid)] if self._broker.running else []
        programs.append(("collector", self._collector.pid))
        programs += [("sealer", pid) for pid in children_of(self._collector.pid)]
        for name, pid in programs:
            if pid and (held := resident_bytes(pid)):
                add(Sample(at, name, pid, "memory", held))
