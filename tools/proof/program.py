"""Programs on MicroPython and CPython: one that runs to its end, and the board's program that a proof starts, commands and kills.

The board's program is `tools.proof.device`. On MicroPython it has the library as a board has it, packed and without source.
"""

import asyncio
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from tools.bootstrap import ROOT
from tools.children import Child, micropython
from tools.deploy import build

BIN = Path(sys.executable).parent
MICROPYTHON = BIN / "micropython"
# mpy-cross's name for this machine; "": no machine code, the library uses plain Python.
MARCH = {"x86_64": "x64", "i686": "x86", "armv7l": "armv7m"}.get(platform.machine(), "")
# The files of a board's programs besides library and application: path on the board, path in the repository.
BESIDES = {
    "main.mpy": "firmware/main.py",
    "board.mpy": "tools/virtual_board/board.py",
    "flashmqtt/flash/file.mpy": "firmware/flashmqtt/flash/file.py",
    **{
        f"tools/{name}.mpy": f"tools/{name}.py"
        for name in ("__init__", "proof/__init__", "proof/device", "flashsim/__init__", "flashsim/nor")
    },
}


def ran(command: Sequence[object], path: str, timeout_s: float | None = 300) -> subprocess.CompletedProcess[str]:
    """Run a command with this MICROPYPATH to its end.

    Raises:
        RuntimeError: its status is not 0; the text has all that it printed.
    """
    words = list(map(str, command))
    environment = {**os.environ, "MICROPYPATH": path, "PYTHONHASHSEED": "0"}
    done = subprocess.run(
        words, check=False, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}:\n{done.stdout}{done.stderr}")
    return done


def board_image() -> Path:
    """Return the folder with a board's files, packed as `make deploy` packs them; MICROPYPATH has it.

    It is made below `build` if it does not exist. Importing a compiled file takes much less heap than importing source.

    Raises:
        Failure: mpy-cross refused a file; the text has its name and the cause.
    """
    firmware, target = ROOT / "firmware", ROOT / "build" / "virtual_board"
    files = {f"{name[:-3]}.mpy": path for name, path in build.library(bool(MARCH)).items()}
    files |= {str(path.relative_to(firmware))[:-3] + ".mpy": path for path in sorted((firmware / "app").rglob("*.py"))}
    files |= {name: ROOT / path for name, path in BESIDES.items()}
    texts = [name.encode() + path.read_bytes() for name, path in files.items()]
    texts += [path.read_bytes() for path in sorted((ROOT / "tools" / "deploy").glob("*.py"))]
    texts += [" ".join(sorted(build.public_names())).encode()]
    made = target / hashlib.sha256(b"".join(texts)).hexdigest()[:16]
    if not made.exists():
        target.mkdir(parents=True, exist_ok=True)
        # The folder gets its name when it is complete, because other boards may start at the same time.
        scratch = Path(tempfile.mkdtemp(dir=target))
        build.write_files(scratch, build.packed(files, MARCH))
        try:
            scratch.rename(made)
        except OSError:  # another process was first
            shutil.rmtree(scratch)
    return made


class ProgramEnded(Exception):
    """The program ended before it answered; the text has the end of its log."""


class BoardFailed(Exception):
    """A command of the board raised an error.

    Attributes:
        name, code: the error's class, and its code, 0 if it has none.
    """

    def __init__(self, name: str, text: str, code: int):
        super().__init__(f"{name}: {text}")
        self.name = name
        self.code = code


class Program:
    """The board's program on one interpreter.

    Args:
        interpreter: "mpy" or "cpy".
        directory: its working directory, with its log.
        heap: of MicroPython, such as "192K".
        path: where MicroPython finds the library; default: the packed library.

    Attributes:
        note: called with the kind and the words of each line that is no answer.
    """

    def __init__(self, interpreter: str, directory: Path, heap: str, path: str = ""):
        self.note: Callable[[str, list[Any]], object] = lambda kind, words: None
        self._interpreter = interpreter
        self._heap = heap
        self._path = path
        self._directory = directory
        self._child: Child | None = None
        self._reads = False  # it has not ended
        self._answers: deque[asyncio.Future] = deque()

    async def start(self, settings: dict[str, Any]) -> None:
        """Begin a life with these settings, after starting the program if it does not run."""
        if self._child is None or not self._child.running:
            log = self._directory / "device.log"
            self._child = Child(*self._command(), log, self._take, talks=True)
            await self._child.start()
            self._reads = True
        self._child.write(json.dumps(settings))

    def _command(self) -> tuple[list[str], Path, dict[str, str]]:
        """Return the command, its working directory, and its variables."""
        module = ["-m", "tools.proof.device"]
        if self._interpreter == "cpy":
            return [sys.executable, *module], self._directory, {"PYTHONPATH": f"{ROOT}:{ROOT / 'firmware'}"}
        # `.frozen` contains `ssl` and `asyncio`.
        path = f".frozen:{self._path or board_image()}"
        return micropython(self._heap, *module), self._directory, {"MICROPYPATH": path}

    def _take(self, line: str) -> None:
        if not line:
            self._reads = False
            while self._answers:
                if not (answer := self._answers.popleft()).done():
                    answer.set_exception(self._ended())
            return
        try:
            kind, *words = json.loads(line)
        except ValueError:
            return  # cut off by the power cut
        if kind not in ("done", "failed"):
            self.note(kind, words)
        elif self._answers and not (answer := self._answers.popleft()).done():
            if kind == "done":
                answer.set_result(words[0])
            else:
                answer.set_exception(BoardFailed(*words))

    def _ended(self) -> ProgramEnded:
        log = " | ".join(self._child.logged(3).splitlines()) if self._child else ""
        return ProgramEnded(f"the board's program ended: {log}")

    def do(self, verb: str, *arguments: Any) -> asyncio.Future:
        """Send it a command; return its result, which raises BoardFailed or ProgramEnded. It executes one after the other."""
        answer = asyncio.get_running_loop().create_future()
        if self._child is None or not self._reads:
            answer.set_exception(self._ended())
            return answer
        self._answers.append(answer)
        self._child.write(json.dumps([verb, *arguments]))
        return answer

    async def off(self) -> None:
        """Cut its power."""
        if self._child is not None:
            await self._child.kill()


async def holds(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait until a condition holds, for at most this time; return whether it holds."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        await asyncio.sleep(0.005)
    return condition()


async def failure_of(flow: Coroutine[Any, Any, None], seconds: float) -> str:
    """Let a board's program go through a flow; return why it failed, or ""."""
    try:
        async with asyncio.timeout(seconds):  # wait_for of Python 3.11 may swallow a Ctrl-C
            await flow
    except TimeoutError:
        return f"hung: no end within {seconds:.0f} s"
    except (BoardFailed, ProgramEnded) as failed:
        return f"the device failed: {failed}"
    return ""
