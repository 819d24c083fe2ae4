"""The collector as a process that gets killed and started again: by `make run`, and by `make soak`."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from pathlib import Path

from tools.children import Child

ROOT = Path(__file__).resolve().parents[3]
START_S = 60
STOP_S = 60
QUIET_S = 1.5
# Board and collector are soon back after they lost the broker: where links are cut every second, a run would be all pauses.
LONGEST_PAUSE_S = 2


class CollectorFailed(Exception):
    """The collector did not start; the text holds the end of its log."""


class Collector:
    """One collector, with its log and its landing in `directory`.

    Args:
        directory: made if missing.
        port: where its broker, or the proxy before it, listens on loopback.
        start_s: how long it may take until it is subscribed; more where the broker itself may be away.
    """

    def __init__(self, directory: Path, port: int, start_s: float = START_S):
        self.kills = 0
        self.landing = directory / "landing"
        self._start_s = start_s
        directory.mkdir(parents=True, exist_ok=True)
        command = [
            *(sys.executable, "-m", "tools.collector", "--host", "127.0.0.1", "--port", str(port)),
            *("--topic", "flashmqtt/#", "--client-id", "collector", "--landing", str(self.landing)),
            *("--segment-seconds", "10", "--longest-pause", str(LONGEST_PAUSE_S)),
        ]
        self._log = directory / "collector.log"
        self._child = Child(command, ROOT, log=self._log)

    @property
    def pid(self) -> int:
        """Its process id, 0 while it does not run."""
        return self._child.pid

    async def start(self) -> None:
        """Start it and wait until the broker knows its subscription, so that nothing is published to nobody.

        Raises:
            CollectorFailed: see the class.
        """
        offset = self._log.stat().st_size if self._log.exists() else 0
        await self._child.start()
        deadline = time.monotonic() + self._start_s
        while b"subscribed" not in self._log.read_bytes()[offset:]:
            if not self._child.running or time.monotonic() > deadline:
                raise CollectorFailed(f"The collector did not start. Its log, {self._log}:\n{self._child.logged()}")
            await asyncio.sleep(0.05)

    async def kill(self) -> None:
        """End it as a crash would, and start it again."""
        await self._child.kill(alone=True)  # its sealer notices by itself
        self.kills += 1
        await self.start()

    def landed_bytes(self) -> int:
        """Return how much lies in the landing directory: it stops to grow when nothing arrives any more."""
        return sum(path.stat().st_size for path in self.landing.rglob("*") if path.is_file())

    async def quiet(self) -> None:
        """Wait until nothing has arrived for a while."""
        size, since = -1, time.monotonic()
        while time.monotonic() - since < QUIET_S:
            await asyncio.sleep(0.1)
            with contextlib.suppress(FileNotFoundError):  # a segment was renamed just now
                now = self.landed_bytes()
                if now != size:
                    size, since = now, time.monotonic()

    async def stop(self) -> None:
        """Let it seal what it has, and end it."""
        await self._child.stop(STOP_S)
