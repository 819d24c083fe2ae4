"""A board's program, `tools.proof.device`, that a proof starts, commands and kills."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tools.children import Child
from tools.proof.faults.compiled import program_on


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
    """The program on one interpreter.

    Args:
        interpreter: "mpy" or "cpy".
        directory: its working directory, with its log.
        heap, path: see `program_on`.

    Attributes:
        note: called with the kind and the words of each line that is no answer.
    """

    def __init__(self, interpreter: str, directory: Path, heap: str, path: str = ""):
        self.note: Callable[[str, list[Any]], object] = lambda kind, words: None
        self._make = lambda: program_on(interpreter, "tools.proof.device", heap, path)
        self._directory = directory
        self._child: Child | None = None
        self._answers: deque[asyncio.Future] = deque()

    async def start(self, settings: dict[str, Any]) -> None:
        """Begin a life with these settings, after starting the program if it does not run."""
        if self._child is None or not self._child.running:
            command, environment = self._make()
            log = self._directory / "device.log"
            self._child = Child(command, self._directory, environment, log, self._take, talks=True)
            await self._child.start()
        self._child.write(json.dumps(settings))

    def _take(self, line: str) -> None:
        if not line:
            log = " | ".join(self._child.logged(3).splitlines()) if self._child else ""
            while self._answers:
                if not (answer := self._answers.popleft()).done():
                    answer.set_exception(ProgramEnded(f"the board's program ended: {log}"))
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

    def do(self, verb: str, *arguments: Any) -> asyncio.Future:
        """Send it a command; return its result, which raises BoardFailed or ProgramEnded. It executes one after the other."""
        assert self._child is not None
        answer = asyncio.get_running_loop().create_future()
        self._answers.append(answer)
        self._child.write(json.dumps([verb, *arguments]))
        return answer

    async def off(self) -> None:
        """Cut its power."""
        if self._child is not None:
            await self._child.kill()
