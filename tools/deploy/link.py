"""A connection to one board's REPL over its serial port: mpremote's transport, with errors that explain the cause."""

from __future__ import annotations

import ast
import binascii
import contextlib
import errno
import hashlib
import io
import math
import re
import select
import time
from collections.abc import Callable, Iterator

from mpremote.transport import TransportError, TransportExecError
from mpremote.transport_serial import SerialTransport
from serial import SerialException

from tools.command import Failure
from tools.deploy import ports

BAUD = 115200
CHUNK = 2048
RESET_S = 0.5  # until a reset has happened and the port of a board with its own USB has disappeared
REOPEN_S = 20.0
SILENT_S = 8.0
REPL_S = 10.0
ATTEMPTS = 4  # to enter the raw REPL, in REPL_S together
READ_FILE_S = 300.0  # for one file: 2.5 MB at 115,200 baud
REASONS = {
    errno.ENOTDIR: "%s can't be written: a part of this path is a file on the board. Remove that (.venv/bin/mpremote rm).",
    errno.EISDIR: "%s can't be written: the board has a folder with this name, or with this name and .new. Remove that "
    "(.venv/bin/mpremote rm -r).",
    errno.ENOSPC: "The board's file system is full: %s does not fit. Remove files, or make the journal smaller.",
    errno.EROFS: "%s can't be written: the board's file system is read-only. Does its boot.py mount it read-only?",
}

# Print a file as base64. As a bytes literal, erased flash (FF) would take three times as long over a serial line.
_READ_FILE = """
import binascii
with open(%r, 'rb') as f:
    while c := f.read(%d): print(binascii.b2a_base64(c).decode(), end='')
"""
SHA256 = """
import os, hashlib
def sha256(p):
    h = hashlib.sha256()
    b = bytearray(512)
    with open(p, 'rb') as f:
        while n := f.readinto(b): h.update(memoryview(b)[:n])
    return h.digest().hex()
"""
# Check the new file's hash and replace the old file. On FAT the old file must be removed before the rename.
_REPLACE_FILE = f"""{SHA256}
n, p = %r, %r
if sha256(n) == %r:
    try:
        os.rename(n, p)
    except OSError:
        os.remove(p)
        os.rename(n, p)
    print('replaced')
"""
# An `mpremote mount` that was killed leaves its folder as the current one. There any import would wait for mpremote without end,
# except those of names with "u", which are not searched for in folders.
_LEAVE_MOUNT = """
try:
    from uos import chdir, umount
    chdir('/')
    umount('/remote')
except Exception: pass
print(%s)
"""
# The board may run another program, whose `board` is another module or raises any exception.
# Ctrl-C must not interrupt this script: on a busy machine it may still run when the port is open again.
_RESET = """
import time, micropython
micropython.kbd_intr(-1)
try:
    from board import reset
except Exception:
    from machine import reset
time.sleep_ms(100)
reset()
"""


class BoardSaid(Failure):
    """Code on the board raised an exception; the text is the last line of the traceback."""


class _Transport(SerialTransport):
    """mpremote's transport with a deadline: a board that its watchdog resets again and again prints without end."""

    deadline: float | None = None

    def read_until(self, min_num_bytes, ending, timeout=10, data_consumer=None, timeout_overall=None):
        """Read until `ending` or the deadline."""
        if self.deadline is None:
            return super().read_until(min_num_bytes, ending, timeout, data_consumer, timeout_overall)
        data = bytearray()
        while not data.endswith(ending) and (left := self.deadline - time.monotonic()) > 0:
            if select.select([self.serial], [], [], left)[0]:
                data += self.serial.read(1)
        return bytes(data)


class Link:
    """One board on a port.

    Args:
        path: the port.
    """

    def __init__(self, path: str):
        self.path = path
        self._transport: _Transport | None = None
        self._folders: set[str] = set()  # known to exist on the board
        self.listen_until = 0.0  # the end of `lines`, which may be moved meanwhile

    def open(self) -> Link:
        """Open the port, interrupt the board's program, and enter the raw REPL.

        Raises:
            Failure: the port can't be opened, or the board does not answer.
        """
        self._open()
        try:
            self._enter_raw_repl()
        except (TransportError, SerialException, OSError) as error:
            self.close()
            raise Failure(
                f"{self.path} does not answer with MicroPython's REPL. Is MicroPython on the board, and does its program let "
                "Ctrl-C interrupt it? Unplug it, plug it in, and try again; if that does not help, erase its flash and install "
                "MicroPython again (boards/*/README.md)."
            ) from error
        return self

    def _enter_raw_repl(self, soft_reset: bool = False) -> None:
        """Enter the raw REPL, and check that it runs what is sent.

        A board that is still in a reset loses its input, or answers and then starts again. Late bytes of its prompt would be
        taken for the answer to the first script. So all this is repeated until a script prints the right number.
        """
        board = self._board
        attempt_s = REPL_S if soft_reset else REPL_S / ATTEMPTS
        board.serial.timeout = attempt_s
        try:
            for _ in range(2 if soft_reset else ATTEMPTS):
                # mpremote's own deadline ends nothing while the board keeps printing
                board.deadline = time.monotonic() + attempt_s
                board.use_raw_paste = True
                try:
                    with contextlib.redirect_stdout(io.StringIO()):  # mpremote prints what it did not expect
                        board.enter_raw_repl(soft_reset, timeout_overall=attempt_s)
                        number = str(100_000 + time.monotonic_ns() % 900_000)
                        printed, problem = board.exec_raw(_LEAVE_MOUNT % number, timeout=attempt_s)
                    # A board without free memory also answers: `retry_after_reset` handles that.
                    if b"MemoryError" in problem or (printed.strip() == number.encode() and not problem):
                        return
                    raise TransportError("the REPL did not run a script")
                except TransportError as error:
                    refusal = error
            raise refusal
        finally:
            board.deadline = None
            board.serial.timeout = SILENT_S

    @property
    def _board(self) -> _Transport:
        if self._transport is None:  # it did not appear again after a reset
            raise self._gone()
        return self._transport

    def _open(self) -> None:
        try:
            self._transport = _Transport(self.path, baudrate=BAUD, timeout=SILENT_S)
        except (TransportError, SerialException, OSError) as error:
            raise ports.why_closed(self.path) from error

    def close(self) -> None:
        """Close the port."""
        if self._transport is not None:
            with contextlib.suppress(OSError, SerialException):
                self._transport.close()
            self._transport = None

    def __enter__(self) -> Link:
        return self.open()

    def __exit__(self, *exception) -> None:
        self.close()

    def run(self, script: str, timeout_s: float = 30) -> str:
        """Run a script on the board; return its output.

        Raises:
            BoardSaid: the script raised an exception.
            Failure: the board was unplugged or does not answer.
        """
        self._board.deadline = time.monotonic() + timeout_s
        try:
            printed, problem = self._board.exec_raw(script, timeout=timeout_s)
        except (TransportError, SerialException, OSError) as error:
            raise self._gone() from error
        finally:
            self._board.deadline = None
        if problem:
            raise BoardSaid(problem.decode("utf-8", "replace").strip().splitlines()[-1])
        return printed.decode("utf-8", "replace")

    def _gone(self) -> Failure:
        return Failure(
            f"The board on {self.path} stopped answering: it was unplugged or reset, or another program reads from its port. "
            "Plug it in, end the other program, and run the command again."
        )

    def literal(self, script: str, timeout_s: float = 30):
        """Run a script that prints a literal; return its value."""
        return ast.literal_eval(self.run(script, timeout_s).strip())

    def create(self, path: str, timeout_s: float = 30) -> None:
        """Create an empty file.

        Raises:
            BoardSaid: it can't be created.
        """
        try:
            self.run(f"open({path!r}, 'w').close()", timeout_s)
        except BoardSaid as error:
            raise self._explained(path, error) from error

    def put(self, path: str, content: bytes, step: Callable[[int], object] = lambda _: None) -> None:
        """Write a file atomically: under a temporary name, checked by its hash, then renamed.

        Raises:
            Failure: the hash differs, or the board's file system is full.
        """
        new = path + ".new"
        try:
            self._write(new, content, step)
            answer = self.run(_REPLACE_FILE % (new, path, hashlib.sha256(content).hexdigest())).strip()
        except SerialException as error:
            raise self._gone() from error
        except (TransportExecError, OSError, BoardSaid) as error:  # mpremote raises the board's OSError here
            with contextlib.suppress(Failure):
                self.run(f"import os\nos.remove({new!r})")
            raise self._explained(path, error) from error
        except TransportError as error:
            raise self._gone() from error
        if answer != "replaced":
            raise Failure(f"{path} did not arrive as it was sent; run the command again.")

    def _write(self, path: str, content: bytes, step: Callable[[int], object]) -> None:
        self._make_folders(path)
        # An interrupted deployment may have left `f` open. When the garbage collector closes it later, it would write the old
        # content into the new file.
        closed = "try: f.close()\nexcept Exception: pass"
        self._board.exec(f"{closed}\nfrom binascii import a2b_base64 as a\nf=open({path!r},'wb')\nw=f.write")
        for at in range(0, len(content), CHUNK):
            piece = content[at : at + CHUNK]
            self._board.exec(f"w(a({binascii.b2a_base64(piece, newline=False)!r}))")  # a bytes literal is twice as long
            step(len(piece))
        self._board.exec("f.close()")

    def _make_folders(self, path: str) -> None:
        folder = path.rpartition("/")[0]
        if folder in self._folders:
            return
        parts = folder.strip("/").split("/")
        made = ["/" + "/".join(parts[: depth + 1]) for depth in range(len(parts)) if parts[0]]
        there = f"  if e.errno != {errno.EEXIST}: raise"
        self._board.exec(f"import os\nfor p in {made!r}:\n try:\n  os.mkdir(p)\n except OSError as e:\n{there}")
        self._folders.add(folder)

    @staticmethod
    def _explained(path: str, error: Exception) -> BoardSaid:
        text = str(getattr(error, "error_output", "") or error).strip().splitlines()[-1]
        code = re.search(r"OSError: (?:\[Errno )?(\d+)", text)
        reason = REASONS.get(int(code[1]) if code else 0)
        return BoardSaid(reason % path if reason else f"{path} can't be written: {text}")

    def get(self, path: str) -> bytes:
        """Return a file's content.

        Raises:
            Failure: the file can't be read, or the board does not answer.
        """
        try:
            return b"".join(map(binascii.a2b_base64, self.run(_READ_FILE % (path, CHUNK), READ_FILE_S).splitlines()))
        except BoardSaid as error:
            raise Failure(f"{path} can't be read: {error}") from error

    def reset(self) -> None:
        """Reset the chip, like its button, without interrupting the program; if the port disappears, open it again.

        It uses our `board` module if it is there, because an RP2040 can't tell `machine.reset()` from a watchdog reset.
        A port that stays (behind a USB bridge) is not opened again: that would discard the program's first lines.
        """
        with contextlib.suppress(TransportError, SerialException, OSError):
            self._board.exec_raw_no_follow(_RESET)
        time.sleep(RESET_S)
        try:
            self._board.serial.inWaiting()
        except (SerialException, OSError):
            self.close()
            self.reopen()

    def reopen(self, wait_s: float | None = None) -> None:
        """Wait for the port, by default for REOPEN_S: on a board with its own USB it disappears during a reset."""
        deadline = time.monotonic() + (REOPEN_S if wait_s is None else wait_s)
        time.sleep(RESET_S)
        while True:
            try:
                self._open()
                return
            except Failure:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def stop(self, soft_reset: bool = False) -> None:
        """Interrupt the board's program and enter the raw REPL; soft_reset: also free all memory. main.py does not start."""
        try:
            self._enter_raw_repl(soft_reset)
        except (TransportError, SerialException, OSError) as error:
            raise Failure(
                f"The board on {self.path} does not return to its REPL after a reset. Unplug it, plug it in, and try again."
            ) from error

    def lines(self, timeout_s: float, away: Callable[[], object] = lambda: None) -> Iterator[str]:
        """Yield the console's lines as they arrive.

        Args:
            timeout_s: end after this time; 0: never.
            away: called when the port has disappeared; `lines` then waits for it.

        Raises:
            Failure: the port does not reappear.
        """
        self.listen_until = time.monotonic() + timeout_s if timeout_s else math.inf
        pending = b""
        port = self._board.serial
        while time.monotonic() < self.listen_until:
            try:
                waiting = port.inWaiting()
                pending += port.read(waiting)
            except (SerialException, OSError):  # the port disappears in deep sleep
                self.close()
                away()
                self.reopen(self.listen_until - time.monotonic())
                port = self._board.serial
                continue
            if not waiting:
                time.sleep(0.02)
            *whole, pending = pending.split(b"\n")
            for line in whole:
                yield line.decode("utf-8", "replace").rstrip("\r")
