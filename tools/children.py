"""Child processes that end with their parent, even if the parent is killed with SIGKILL.

    process = children.popen(command, stdout=log)

    child = children.Child(command, directory, log=path, take=print)
    await child.start()
    await child.kill()

    with children.pool() as workers:
        workers.map(function, arguments)

This works on Linux (PR_SET_PDEATHSIG); elsewhere a child survives a SIGKILL of its parent. The kernel watches the thread that
started the child, so that thread must live as long as the child. Each child has its own session: Ctrl-C reaches only the parent,
which then ends its children, and killing a child also kills the child's own children.
"""

import asyncio
import contextlib
import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
STOP_S = 60
_HELD_BACK = {signal.SIGINT, signal.SIGTERM}
# Looked up here, because nothing should be loaded between fork and exec.
_prctl = getattr(ctypes.CDLL(None), "prctl", None) if sys.platform == "linux" else None


def bound_to_this_process() -> Callable[[], None]:
    """Return the `preexec_fn` that binds a child to this process, for subprocess and asyncio."""
    parent = os.getpid()

    def bind() -> None:
        if _prctl is None:
            return
        _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:  # the parent was killed before prctl
            os._exit(1)

    return bind


def popen(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a child; the options are those of subprocess.Popen. Its stdin is empty, if not given."""
    options = {"stdin": subprocess.DEVNULL, "start_new_session": True, **options}
    return subprocess.Popen(command, preexec_fn=bound_to_this_process(), **options)  # noqa: PLW1509 - one system call


def micropython(heap: str, *words: object) -> list[str]:
    """Return a command of the wheel's MicroPython: without Python's `site`, so that it starts in half the time."""
    run = "import sys; sys.path.append(sys.argv[1]); from micropython_run import run_main; sys.exit(run_main(sys.argv[1:]))"
    wheels = sysconfig.get_path("platlib")
    return [sys.executable, "-IS", "-c", run, wheels, "-X", f"heapsize={heap}", *map(str, words)]


def kill(process: subprocess.Popen[bytes] | asyncio.subprocess.Process, how: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to a child and its children."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, how)


def _in_worker(bind: Callable[[], None]) -> None:
    """Prepare a worker: a session of its own, and SIGTERM ends it.

    In the parent's session, `timeout` would end an idle worker together with the parent, and the end of the pool would hang.
    Ctrl-C stays blocked: a Ctrl-C that came before the fork is for the parent.
    """
    bind()
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


@contextlib.contextmanager
def pool(workers: int | None = None) -> Iterator[Pool]:
    """Yield a pool of forked processes, which share this process's data; by default as many as there are processors."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD_BACK)  # an interrupted start of a pool would hang
    try:
        started = multiprocessing.get_context("fork").Pool(workers, _in_worker, (bound_to_this_process(),))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        yield started
    finally:
        started.terminate()
        started.join()


class Child:
    """A child process for asyncio. After its end it can be started again.

    Args:
        command: the program and its arguments.
        directory: its working directory.
        environment: additional environment variables.
        log: file to append stderr to, and without `take` also stdout.
        take: called with each line of stdout, and with "" at the end; without `log` also with the lines of stderr.
        talks: `write` sends lines to its stdin.
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
        """Its process id, or 0 if it does not run."""
        return self._process.pid if self._process is not None and self.running else 0

    @property
    def status(self) -> int | None:
        """Its exit status, or None before its end."""
        return self._process.returncode if self._process is not None else None

    async def start(self) -> None:
        """Start the process."""
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
        """Send a line to its stdin."""
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")

    def logged(self, lines: int = 8) -> str:
        """Return the last lines of its log."""
        return tail(self.log, lines) if self.log else ""

    async def ended(self) -> None:
        """Wait until the process has ended and `take` has received all its output."""
        if self._process is not None:
            await self._process.wait()
        if self._reading is not None:
            await self._reading

    async def kill(self, alone: bool = False) -> None:
        """Kill the process, if it runs, with SIGKILL; also its children, unless `alone`."""
        if self._process is not None and self.running:
            if alone:
                self._process.kill()
            else:
                kill(self._process)
        await self.ended()

    async def stop(self, seconds: float = STOP_S) -> None:
        """End the process with SIGTERM; kill it if it has not ended after so many seconds."""
        if self._process is not None and self.running:
            self._process.terminate()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._process.wait()
        await self.kill()


def tail(log: Path, lines: int = 8) -> str:
    """Return the last lines of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
