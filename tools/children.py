"""Programs that end with the process that started them, also when that is killed with SIGKILL and can end nothing any more.

    process = children.popen(command, stdout=log)

    child = children.Child(command, directory, log=path, take=print)
    await child.start()
    await child.kill()

Linux does it (PR_SET_PDEATHSIG); elsewhere what is started outlives a SIGKILL of its parent. The kernel watches the thread that
started the child: start it from one that lives as long as the child has to. A child has a session of its own: Ctrl-C reaches only
this process, which then ends its children, and a kill takes the child's own children, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
# Looked up here: between fork and exec nothing should be loaded any more.
_prctl = getattr(ctypes.CDLL(None), "prctl", None) if sys.platform == "linux" else None


def bound_to_this_process() -> Callable[[], None]:
    """Return what the child has to call before its program begins: `preexec_fn`, for subprocess and for asyncio."""
    parent = os.getpid()

    def bind() -> None:
        if _prctl is None:
            return
        _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:  # it was killed before the kernel knew
            os._exit(1)

    return bind


def popen(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a child; the options are those of subprocess.Popen."""
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=bound_to_this_process(),  # noqa: PLW1509 - one system call
        **options,
    )


def kill(process: subprocess.Popen[bytes] | asyncio.subprocess.Process) -> None:
    """End a child with SIGKILL, and what it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


class Child:
    """A child for asyncio; after its end it can be started again.

    Args:
        command: the program and its arguments.
        directory: where it works.
        environment: variables besides ours.
        log: the file to whose end it writes: its errors, and without `take` all it prints.
        take: is given each line that it prints, and "" at its end; without a `log` its errors, too.
        talks: it reads what `write` is given.
    """

    def __init__(
        self,
        command: Sequence[str],
        directory: Path,
        environment: Mapping[str, str] | None = None,
        log: Path | None = None,
        take: Callable[[str], object] | None = None,
        talks: bool = False,
    ):
        self.command = command
        self.log = log
        self._directory = directory
        self._environment = environment or {}
        self._take = take
        self._talks = talks
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Future | None = None

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int:
        """Its process id, 0 while it does not run."""
        return self._process.pid if self._process is not None and self.running else 0

    @property
    def status(self) -> int | None:
        """Its exit status, None before its end."""
        return self._process.returncode if self._process is not None else None

    async def start(self) -> None:
        """Start it."""
        with contextlib.ExitStack() as stack:
            log = stack.enter_context(self.log.open("ab")) if self.log else subprocess.STDOUT
            self._process = await asyncio.create_subprocess_exec(
                *self.command,
                cwd=self._directory,
                env={**os.environ, **self._environment},
                stdin=subprocess.PIPE if self._talks else subprocess.DEVNULL,
                stdout=subprocess.PIPE if self._take else log,
                stderr=log,
                start_new_session=True,
                preexec_fn=bound_to_this_process(),
            )
        if self._take:
            self._reading = asyncio.ensure_future(self._read(self._process, self._take))

    async def _read(self, process: asyncio.subprocess.Process, take: Callable[[str], object]) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            take(line.decode("utf-8", "replace"))
        take("")

    def write(self, line: str) -> None:
        """Give it a line."""
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")

    def logged(self, lines: int = 8) -> str:
        """Return the end of its log."""
        return tail(self.log, lines) if self.log else ""

    async def ended(self) -> None:
        """Wait until it ends and all it printed is taken."""
        if self._process is not None:
            await self._process.wait()
        if self._reading is not None:
            await self._reading

    async def kill(self, alone: bool = False) -> None:
        """End it with SIGKILL, if it runs, and what it started, unless `alone`."""
        if self._process is not None and self.running:
            if alone:
                self._process.kill()
            else:
                kill(self._process)
        await self.ended()

    async def stop(self, seconds: float) -> None:
        """Ask it to end; kill it where it does not within so many seconds."""
        if self._process is not None and self.running:
            self._process.terminate()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._process.wait()
        await self.kill()


def tail(log: Path, lines: int = 8) -> str:
    """Return the last lines of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
