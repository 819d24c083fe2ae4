"""Seals a collector's closed logs, one after the other, each in a process of its own.

When sealing fails, for example because the disk is full, it reports the failure and retries. A log is removed only when its
segment is durable.
"""

import asyncio
import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Any

from tools.collector.health import Health
from tools.command import counted
from tools.landing.log import LandingDamaged, LandingError, LandingStalled
from tools.landing.store import LandingStore

RETRY_S = 1.0
LAST_TRIES = 3  # attempts for a segment when the collector is stopping


class Sealer:
    """Seals the closed logs of a store in the background."""

    def __init__(self, store: LandingStore, directory: Path, health: Health, salvage: bool = False) -> None:
        self._store = store
        self._directory = directory
        self._health = health
        self._salvage = salvage
        self._work = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._finishing = False
        self._reported = ""
        self.rows_closed = 0  # rows of closed logs that are not yet sealed

    def start(self) -> None:
        """Start; seal the closed logs of an earlier run first."""
        self._task = asyncio.create_task(self._run())
        self._health.unsealed_logs.set(len(self._store.closed))
        self.wake()

    def wake(self) -> None:
        """Look for closed logs: call this after a log was closed."""
        self._work.set()

    async def finish(self) -> None:
        """Wait until every closed log is sealed.

        Raises:
            LandingDamaged: a log can't be sealed without losing rows.
            LandingStalled: sealing fails, for example because the disk is full; the logs are kept.
        """
        self._finishing = True
        self.wake()
        assert self._task is not None
        await self._task

    async def stop(self) -> None:
        """End at any point: sealing can be repeated."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError, LandingError):
                await self._task

    @property
    def failed(self) -> BaseException | None:
        """The error that ended the sealing, or None."""
        if self._task is None or not self._task.done() or self._task.cancelled():
            return None
        return self._task.exception()

    async def _run(self) -> None:
        failures = 0
        while self._store.closed or not self._finishing:
            if not self._store.closed:
                self._work.clear()
                await self._work.wait()
            elif await self._seal(self._store.closed[0]):
                failures = 0
            else:
                failures += 1
                if self._finishing and failures >= LAST_TRIES:
                    raise LandingStalled(
                        f"not sealed: {counted(len(self._store.closed), 'segment')}: {self._reported}; "
                        "their logs are durable, the next start seals them"
                    )
                await asyncio.sleep(RETRY_S)

    async def _seal(self, number: int) -> bool:
        started = time.monotonic()
        answer = await self._ask(number)
        if answer.get("damaged"):
            raise LandingDamaged(answer["error"].partition(": ")[2])
        if "error" not in answer:
            try:
                self._store.sealed(number)
            except OSError as error:
                answer = {"error": f"{error}"}
        if "error" in answer:
            self._health.seal_failures.inc()
            if answer["error"] != self._reported:
                self._reported = answer["error"]
                self._health.log(f"segment {number} is not sealed yet: {self._reported}; trying again")
            return False
        self._reported = ""
        self._health.seal_seconds.observe(time.monotonic() - started)
        self._health.segments.inc()
        self._health.sealed_rows.inc(answer["rows"])
        self.rows_closed = max(0, self.rows_closed - answer["rows"])
        self._health.unsealed_logs.set(len(self._store.closed))
        return True

    async def _ask(self, number: int) -> dict[str, Any]:
        """Let a process seal a log; return its answer, or one with an error if it can't start or is killed."""
        process = None
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tools.landing.seal"),
                *(str(self._store.log_path(number)), str(self._directory), str(int(self._salvage))),
                stdout=asyncio.subprocess.PIPE,
                pass_fds=self._store.locks,
            )
            output, _ = await process.communicate()
            if not output:
                return {"error": f"the sealing process ended with status {process.returncode}"}
            answer: dict[str, Any] = json.loads(output)
        except (OSError, ValueError) as error:
            return {"error": f"{type(error).__name__}: {error}"}
        finally:
            if process is not None and process.returncode is None:  # this task was cancelled
                process.kill()
                await process.wait()
        return answer
