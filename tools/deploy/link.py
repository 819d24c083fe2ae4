"""A conversation with one board over its serial port: mpremote's transport, with errors that say what happened."""

from __future__ import annotations

import ast
import binascii
import contextlib
import hashlib
import time
from collections.abc import Callable, Iterator

from mpremote.transport import TransportError, TransportExecError
from mpremote.transport_serial import SerialTransport
from serial import SerialException

from tools.deploy import ports
from tools.deploy.errors import DeployFailed

BAUD = 115200
CHUNK = 2048
GOING_S = 0.5  # until a reset has come, and a board with its own USB has taken its port away
REOPEN_S = 20.0
SILENT_S = 8.0
REPL_S = 10
GIVE_S = 300.0  # for one file: at 115,200 baud that is 2.5 MB

# A file as lines of base64: as a literal of bytes, blank flash (FF) would take three times as long over a serial line.
_GIVE = """
import binascii
with open(%r, 'rb') as f:
    while True:
        c = f.read(%d)
        if not c: break
        print(binascii.b2a_base64(c).decode(), end='')
"""
# Compare what arrived by its hash and put it in the old file's place; littlefs renames at once, FAT wants the old one gone.
_TAKE = """
import os, hashlib
n, p = %r, %r
h = hashlib.sha256()
b = bytearray(512)
with open(n, 'rb') as f:
    while True:
        c = f.readinto(b)
        if not c: break
        h.update(memoryview(b)[:c])
if h.digest().hex() == %r:
    try:
        os.rename(n, p)
    except OSError:
        os.remove(p)
        os.rename(n, p)
    print('taken')
"""
# What runs may be anybody's: its `board` may be no module of ours, or raise whatever it likes.
_RESET = """
import time
try:
    from board import reset
except Exception:
    from machine import reset
time.sleep_ms(100)
reset()
"""


class BoardSaid(DeployFailed):
    """Code on the board raised; the text is the last line of its traceback."""


class _Transport(SerialTransport):
    """mpremote's, but what it waits for has a deadline: a board that its watchdog starts again may go on printing for ever."""

    deadline: float | None = None

    def read_until(self, min_num_bytes, ending, timeout=10, data_consumer=None, timeout_overall=None):
        """Read until `ending`, or a time has passed."""
        if self.deadline is None:
            return super().read_until(min_num_bytes, ending, timeout, data_consumer, timeout_overall)
        data = b""
        while not data.endswith(ending) and time.monotonic() < self.deadline:
            data += self.serial.read(1)
        return data


class Link:
    """One board on a port.

    Args:
        path: the port.
    """

    def __init__(self, path: str):
        self.path = path
        self._transport: _Transport | None = None
        self._folders: set[str] = set()  # that are there on the board
        self.waits: Callable[[], object] = lambda: None  # called again and again while the console is watched

    def open(self) -> Link:
        """Open the port and stop what runs there, at a raw REPL.

        Raises:
            DeployFailed: with the cause.
        """
        self._open()
        try:
            self._board.enter_raw_repl(soft_reset=False, timeout_overall=REPL_S)
        except (TransportError, SerialException, OSError) as error:
            self.close()
            raise DeployFailed(
                f"{self.path} does not answer with MicroPython's REPL. Is MicroPython on the board? Unplug it, plug it in again, "
                "and try once more."
            ) from error
        return self

    @property
    def _board(self) -> _Transport:
        assert self._transport is not None, "the port is not open"
        return self._transport

    def _open(self) -> None:
        try:
            self._transport = _Transport(self.path, baudrate=BAUD, timeout=SILENT_S)
        except (TransportError, SerialException, OSError) as error:
            raise ports.why_closed(self.path) from error

    def close(self) -> None:
        """Let the port go."""
        if self._transport is not None:
            with contextlib.suppress(OSError, SerialException):
                self._transport.close()
            self._transport = None

    def __enter__(self) -> Link:
        return self.open()

    def __exit__(self, *exception) -> None:
        self.close()

    def run(self, script: str, timeout_s: float = 30) -> str:
        """Run a script on the board; return what it printed.

        Raises:
            BoardSaid: it raised.
            DeployFailed: the board went away or does not answer.
        """
        self._board.deadline = time.monotonic() + timeout_s
        try:
            printed, problem = self._board.exec_raw(script, timeout=timeout_s)
        except (TransportError, SerialException, OSError) as error:
            raise DeployFailed(f"The board on {self.path} stopped answering: {error}") from error
        finally:
            self._board.deadline = None
        if problem:
            raise BoardSaid(problem.decode("utf-8", "replace").strip().splitlines()[-1])
        return printed.decode("utf-8", "replace")

    def literal(self, script: str, timeout_s: float = 30):
        """Run a script that prints a literal; return its value."""
        return ast.literal_eval(self.run(script, timeout_s).strip())

    def put(self, path: str, content: bytes, step: Callable[[int], object] = lambda _: None) -> None:
        """Write a file so that it is either the old one or the whole new one: beside it, compared by hash, then renamed.

        Raises:
            DeployFailed: what arrived differs, or the board is full.
        """
        new = path + ".new"
        try:
            self._write(new, content, step)
            answer = self.run(_TAKE % (new, path, hashlib.sha256(content).hexdigest())).strip()
        except (TransportExecError, OSError, BoardSaid) as error:  # mpremote turns the board's OSError into ours
            with contextlib.suppress(DeployFailed):
                self.run(f"import os\nos.remove({new!r})")
            raise self._explained(path, error) from error
        except (TransportError, SerialException) as error:
            raise DeployFailed(f"The board on {self.path} stopped answering while {path} was copied.") from error
        if answer != "taken":
            raise DeployFailed(f"{path} did not arrive as it was sent; run this again.")

    def _write(self, path: str, content: bytes, step: Callable[[int], object]) -> None:
        self._make_folders(path)
        self._board.exec(f"f=open({path!r},'wb')\nw=f.write\nw({content[:CHUNK]!r})")
        step(min(len(content), CHUNK))
        for at in range(CHUNK, len(content), CHUNK):
            piece = content[at : at + CHUNK]
            self._board.exec(f"w({piece!r})")
            step(len(piece))
        self._board.exec("f.close()")

    def _make_folders(self, path: str) -> None:
        folder = path.rpartition("/")[0]
        if folder in self._folders:
            return
        parts = folder.strip("/").split("/")
        made = ["/" + "/".join(parts[: depth + 1]) for depth in range(len(parts)) if parts[0]]
        self._board.exec(f"import os\nfor p in {made!r}:\n try:\n  os.mkdir(p)\n except OSError: pass")
        self._folders.add(folder)

    @staticmethod
    def _explained(path: str, error: Exception) -> DeployFailed:
        text = str(getattr(error, "error_output", "") or error)
        if "ENOSPC" in text or "28" in text.split():
            return DeployFailed(
                f"The board's file system is full: {path} does not fit. Remove files, or make the journal smaller."
            )
        return DeployFailed(f"{path} can't be written: {text.strip().splitlines()[-1]}")

    def get(self, path: str) -> bytes:
        """Return a file's content.

        Raises:
            DeployFailed: it can't be read, or the board went away.
        """
        try:
            return b"".join(map(binascii.a2b_base64, self.run(_GIVE % (path, CHUNK), GIVE_S).splitlines()))
        except BoardSaid as error:
            raise DeployFailed(f"{path} can't be read: {error}") from error

    def reset(self) -> None:
        """Reset the chip, as its button would, and open the port again; what then runs is left running.

        By our `board` module where it is there: an RP2040 can't tell `machine.reset()` from a watchdog's bite.
        """
        with contextlib.suppress(TransportError, SerialException, OSError):
            self._board.exec_raw_no_follow(_RESET)
        self.close()
        self.reopen()

    def reopen(self) -> None:
        """Wait for the port to come back; a board with its own USB takes it away at a reset."""
        deadline = time.monotonic() + REOPEN_S
        time.sleep(GOING_S)
        while True:
            self.waits()
            try:
                self._open()
                return
            except DeployFailed:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def stop(self) -> None:
        """Interrupt what runs, and go to the raw REPL."""
        try:
            self._board.enter_raw_repl(soft_reset=False, timeout_overall=REPL_S)
        except (TransportError, SerialException, OSError) as error:
            raise DeployFailed(f"The board on {self.path} does not come back to its REPL after a reset.") from error

    def lines(self, timeout_s: float, away: Callable[[], object] = lambda: None) -> Iterator[str]:
        """Yield the console's lines as they come, until a time has passed in all (0: for ever).

        Args:
            timeout_s: the time.
            away: called when the port has gone; it is waited for.

        Raises:
            DeployFailed: the port does not come back.
        """
        deadline = time.monotonic() + timeout_s
        pending = b""
        port = self._board.serial
        while not timeout_s or time.monotonic() < deadline:
            self.waits()
            try:
                waiting = port.inWaiting()
                pending += port.read(waiting)
            except (SerialException, OSError):  # a deep sleep takes the port away
                self.close()
                away()
                self.reopen()
                port = self._board.serial
                continue
            if not waiting:
                time.sleep(0.02)
            *whole, pending = pending.split(b"\n")
            for line in whole:
                yield line.decode("utf-8", "replace").rstrip("\r")
