"""The fleet, and all its faults at once, at random moments.

Each board has its own faults: its power is cut, and in one case of four again while it recovers; its connection is cut, also
inside a packet; its connection passes nothing any more (silence); it gets no connection for seconds (absence). Meanwhile the
broker is killed and started again with what it had persisted, the collector is killed, the collector's connection is cut.

Every fifth board keeps its power: only a program that runs all the time shows whether its heap grows.
"""

import asyncio
import contextlib
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from tools.command import Failure, progress_bar
from tools.proof.board import VirtualBoard
from tools.proof.broker import Broker
from tools.proof.chain import ABSENCE, BROKER, COLLECTOR, COLLECTOR_LINK, LINK, POWER, SILENCE, Chain, RunStats, live
from tools.proof.proxy import Proxy
from tools.proof.soak.samples import Sample, Wear

AGAIN = 0.25  # the share of power cuts that are followed by another one while the board starts
AGAIN_S = 0.4
STEADY_EVERY = 5
KEEP_ALIVE_S = 5
SAMPLES = 600  # about so many over the whole soak
SHORTEST_SAMPLE_S = 0.5
BAR = "{l_bar}{bar}| {n_fmt}/{total_fmt} s{postfix}"


@dataclass(frozen=True)
class Settings:
    """The soak's size, duration and faults: for each fault the mean seconds between two, for one board or program.

    With 0, a program of the host is killed about eight times: the trend of its memory is taken between two kills. A board may
    pause for `longest_pause_s` between two attempts to connect, also after the last fault.
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
        """Return the mean seconds between two kills of a program of the host."""
        return given or max(15.0, self.seconds / 8)


@dataclass
class SoakStats(RunStats):
    """The counts of a soak: also each board's wear, and memory over time."""

    wear: dict[str, Wear] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)


class Fleet:
    """One soak.

    Args:
        directory: the folder of all files.
        settings: see Settings.
    """

    def __init__(self, directory: Path, settings: Settings):
        self.settings = settings
        self.stats = SoakStats(settings.seed)
        broker = Broker(directory / "broker", kind="mosquitto", extra="autosave_on_changes false")
        self._chain = Chain(directory, broker, self.stats, settings.longest_absence_s)
        self._rng = self._chain.rng

    async def soak(self) -> SoakStats:
        """Run the soak; return the counts.

        Raises:
            Failure: a program failed, or not all was delivered in time.
        """
        settings, chain = self.settings, self._chain
        width = len(str(settings.boards))
        names = [f"board-{number:0{width}d}" for number in range(1, settings.boards + 1)]
        keys = {
            "interval_ms": settings.interval_ms,
            "health_s": settings.health_s,
            "keep_alive_s": KEEP_ALIVE_S,
            "longest_pause_s": settings.longest_pause_s,
        }
        async with chain.running([(name, name) for name in names], keys, settings.flash_kib):
            self.stats.wear = {board.device: Wear(board.flash) for board in chain.boards}
            sampling = asyncio.ensure_future(self._sample())
            try:
                await self._all_at_once()
                await self._drain()
            finally:
                sampling.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await sampling
        for board in chain.boards:
            wear = self.stats.wear[board.device]
            wear.look()
            wear.cuts = board.cuts
        return self.stats

    # --- the faults ---

    async def _all_at_once(self) -> None:
        settings, chain = self.settings, self._chain
        running: list[Coroutine[None, None, None]] = [
            self._again(BROKER, settings.host_s(settings.broker_s)),
            self._again(COLLECTOR, settings.host_s(settings.collector_s)),
            self._again(COLLECTOR_LINK, settings.collector_link_s),
        ]
        for number, (board, proxy) in enumerate(zip(chain.boards, chain.proxies, strict=True), 1):
            steady = number % STEADY_EVERY == 0 or number == settings.boards < STEADY_EVERY
            running.append(self._apply_faults(board, proxy, steady))
        tasks = [asyncio.ensure_future(one) for one in running]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _left_s(self) -> float:
        return max(0.0, self.settings.seconds - self._chain.now())

    async def _again(self, kind: str, mean_s: float) -> None:
        """Apply a fault again and again, until the time is up."""
        while (pause := self._rng.expovariate(1 / mean_s)) < self._left_s():
            await asyncio.sleep(pause)
            await self._chain.apply(kind)
        await asyncio.sleep(self._left_s())

    async def _apply_faults(self, board: VirtualBoard, proxy: Proxy, steady: bool) -> None:
        """Apply one board's faults, one after the other: it has one power supply and one link."""
        settings, chain = self.settings, self._chain
        means = {
            POWER: 0.0 if steady else settings.power_s,
            LINK: settings.link_s,
            SILENCE: settings.silence_s,
            ABSENCE: settings.absence_s,
        }
        weights = [1 / mean if mean else 0.0 for mean in means.values()]
        while (pause := self._rng.expovariate(sum(weights))) < self._left_s():
            await live(board, pause)
            kind = self._rng.choices(list(means), weights)[0]
            if kind in (LINK, SILENCE) and not proxy.connected:
                continue  # waiting for a connection to cut it would mean that no connection ever lasts
            await chain.apply(kind, board, proxy)
            while kind == POWER and self._rng.random() < AGAIN:
                await live(board, self._rng.uniform(0, AGAIN_S))
                await chain.apply(kind, board, proxy)
        await live(board, self._left_s())

    async def _drain(self) -> None:
        """After the last fault, start each board once more to send its backlog; wait until the collector has everything."""
        boards = self._chain.boards
        self._chain.collector_proxy.cut()  # a silent connection would be noticed too late
        await self._chain.stop_storing()
        try:
            async with asyncio.timeout(self.settings.drain_s):
                for board in boards:
                    await board.finished()
        except TimeoutError:
            left = [f"{board.device} ({board.progress.waiting} waiting)" for board in boards if board.running]
            raise Failure(
                f"Not delivered {self.settings.drain_s:.0f} s after the last fault: {', '.join(left)}."
            ) from None
        await self._chain.collector.quiet()

    # --- the figures ---

    async def _sample(self) -> None:
        settings, boards = self.settings, self._chain.boards
        every_s = max(SHORTEST_SAMPLE_S, settings.seconds / SAMPLES)
        with progress_bar(total=round(settings.seconds), unit=" s", bar_format=BAR) as bar:
            while True:
                self._look()
                bar.n = min(round(self._chain.now()), bar.total)
                stored = sum(board.progress.stored for board in boards)
                waiting = sum(board.progress.waiting for board in boards)
                count = self.stats.faults.total()
                bar.set_postfix_str(f"{stored:,} messages stored, {waiting:,} waiting, {count:,} faults")
                await asyncio.sleep(every_s)

    def _look(self) -> None:
        chain, at, add = self._chain, self._chain.now(), self.stats.samples.append
        for wear in self.stats.wear.values():
            wear.look()
        broker = chain.broker.pid if chain.broker.running else 0
        for name, pid in (("broker", broker), ("collector", chain.collector.pid)):
            with contextlib.suppress(psutil.Error):  # it was killed
                if pid:
                    add(Sample(at, name, pid, psutil.Process(pid).memory_info().rss))
