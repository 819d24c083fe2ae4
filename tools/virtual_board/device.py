"""A virtual board on a serial port: MicroPython's REPL on a pty, for mpremote and for people.

    python -m tools.virtual_board.device --board pico_w --directory build/board

The board is a process: `power_on.py` on the unix port. This supervisor passes bytes between the board's pty and the pty for
the user. It also does the hardware's part: it restarts the board after a reset, with the reset's cause; it makes a soft reset
after Ctrl-D, back into the raw REPL if the user was there; it resets the board when the watchdog is not fed.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import select
import signal
import subprocess
import sys
import termios
import threading
import time
import tty
from pathlib import Path
from zlib import crc32

from tools import children
from tools.boards import BOARDS
from tools.bootstrap import ROOT
from tools.command import Failure, exit_status, folder, named, parser_of

POWER_ON_PY = Path(__file__).resolve().parent / "power_on.py"
HEAP = "512K"  # a word is twice as long as on a board, and the heap also has the simulated chip
POWER_ON, WATCHDOG_RESET = 1, 3
CTRL_C = b"\x03"
INTERRUPT_S = 1.0
RAW_BANNER = b"raw REPL; CTRL-B to exit\r\n"
READY = "\x01wired\x02"  # `power_on.py` prints this when the board is ready; the user does not see it
BANNER = b"\nMicroPython "  # of the REPL that follows an error of `power_on.py`
READY_S = 60.0
TICK_S = 0.05
LOOK_S = 0.01  # between two checks of the watchdog and of a late Ctrl-C, however often the board prints
UNREAD_S = 1.0  # how long output waits for a reader
FORGET_S = 60.0  # how long the command keeps what the board has printed


class Device:
    """One board with a serial port.

    Args:
        directory: the board's folder, with its flash; made if missing.
        board: one of BOARDS.
        wifi: "network:password" that the radio finds.
        environment: further variables for the board's process (FLASHMQTT_HASTE, FLASHMQTT_FLASH_TIME, ...).
        micropython, heap: the interpreter, and the size of its heap, if not the usual ones.

    Attributes:
        path: the serial port's path, for mpremote.
        console: what the board has printed.
    """

    def __init__(
        self,
        directory: Path,
        board: str = "pico_w",
        wifi: str = "",
        environment: dict[str, str] | None = None,
        micropython: Path | None = None,
        heap: str = "",
    ):
        self.directory = directory
        self._command = children.micropython(heap or HEAP, "-i", POWER_ON_PY)
        if micropython:
            self._command[: self._command.index("-X")] = [str(micropython)]
        self.console = bytearray()
        directory.mkdir(parents=True, exist_ok=True)
        self._environment = {
            **os.environ,
            "TZ": "UTC",  # a board knows no time zone
            "MICROPYPATH": f"{ROOT}:{ROOT / 'firmware'}",
            "FLASHMQTT_BOARD": board,
            "FLASHMQTT_WIFI": wifi,
            "FLASHMQTT_WIRED": READY,
            "TERM": "dumb",
            **(environment or {}),
        }
        self._wires = directory / "wires.bin"
        self._late = directory / "late.bin"  # not empty: a Ctrl-C arrived during a flash operation
        self._outer, slave = os.openpty()
        os.set_blocking(self._outer, False)
        self._slave = slave  # kept open, so that the pty survives when a user closes the port
        tty.setraw(slave, termios.TCSANOW)
        self.path = os.ttyname(slave)
        self._inner = -1
        self._process: subprocess.Popen | None = None
        self._raw = False
        self._hidden: bytes | None = None  # output that the user does not see, until the raw REPL's banner
        self._start_output: bytes | None = None  # output before READY; None: the board is ready
        self._early = b""  # input before READY
        self._is_read = True  # somebody reads the output
        self._lock = threading.RLock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> Device:
        """Switch the power on.

        Raises:
            Failure: the board does not start.
        """
        self._boot("power-on")
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, daemon=True)
            self._thread.start()
        self._wait_until_ready()
        return self

    def stop(self) -> None:
        """Switch the power off and close the port."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
        self._kill()
        for descriptor in (self._outer, self._slave):
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def __enter__(self) -> Device:
        return self.start()

    def __exit__(self, *exception) -> None:
        self.stop()

    def wait_for(self, text: bytes, timeout_s: float = 60.0, since: int = 0) -> None:
        """Wait until the board's console has printed a text.

        Raises:
            TimeoutError: it has not; the text has the end of the console.
        """
        deadline = time.monotonic() + timeout_s
        while text not in bytes(self.console[since:]):
            if time.monotonic() > deadline:
                raise TimeoutError(f"no {text!r} on the console: {bytes(self.console[-800:])!r}")
            time.sleep(0.02)

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + READY_S
        while (said := self._start_output) is not None and time.monotonic() < deadline:
            if BANNER in said:  # instead of READY
                self.stop()
                reason = said.partition(BANNER)[0].decode(errors="replace").splitlines()[-1]
                raise Failure(
                    f"the board in {self.directory} does not start: {reason}; if it is the folder of another kind of board, "
                    "give another one (DIR=)"
                )
            time.sleep(0.005)

    def _boot(self, how: str, wires: bytes = bytes([POWER_ON]) + bytes(7)) -> None:
        """Start the process; `wires`, without a watchdog, is what survives, unless this is a soft reset."""
        if how != "soft":
            self._wires.write_bytes(wires + bytes(4))
            self._raw = False
        inner, slave = os.openpty()
        tty.setraw(slave, termios.TCSANOW)
        environment = {**self._environment, **({"FLASHMQTT_RAW": "1"} if self._raw else {})}
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), slave)
        self._process = children.popen(self._command, cwd=self.directory, env=environment, **streams)
        os.close(slave)
        self._inner = inner
        # A board that was in the raw REPL returns there: request it, and hide the friendly REPL's banner.
        self._hidden = b"" if self._raw else None
        self._start_output, self._early = b"", b""
        if self._raw:
            os.write(inner, b"\x01")

    def _kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._inner >= 0:
            os.close(self._inner)
            self._inner = -1

    def _serve(self) -> None:
        next_look = 0.0
        while not self._stopping.is_set():
            with self._lock:
                watched = [descriptor for descriptor in (self._outer, self._inner) if descriptor >= 0]
            try:
                ready, _, _ = select.select(watched, [], [], TICK_S)
            except OSError:  # another thread has closed the board's end since
                continue
            with self._lock:
                if self._outer in ready:
                    self._from_user(os.read(self._outer, 4096))
                if self._inner in ready:
                    try:
                        data = os.read(self._inner, 4096)
                    except OSError:
                        data = b""
                    if data:
                        self._from_board(data)
                    else:
                        self._ended()
                if time.monotonic() >= next_look:
                    next_look = time.monotonic() + LOOK_S
                    self._send_late_interrupt()
                    self._check_watchdog()

    def _from_user(self, data: bytes) -> None:
        for byte in data:
            if byte == 1:
                self._raw = True
            elif byte == 2:
                self._raw = False
        if self._start_output is not None:  # a Ctrl-C would interrupt the unix port, not the board
            self._early += data
            return
        self._send_to_board(data)

    def _send_to_board(self, data: bytes) -> None:
        if CTRL_C in data and self._interrupt():
            data = data.replace(CTRL_C, b"")
        try:
            os.write(self._inner, data)
        except OSError:
            pass  # the process is ending: a board in reset loses its input

    def _send_late_interrupt(self) -> None:
        if self._late.exists() and self._late.stat().st_size:
            os.truncate(self._late, 0)
            self._interrupt()

    def _interrupt(self) -> bool:
        """Send SIGINT to a running program; return False if there is none: then Ctrl-C is a byte for the REPL.

        A board raises KeyboardInterrupt before the next bytecode, the unix port raises it at once. During a garbage collection,
        that would leave the heap locked. So the process gets the signal while it is in a system call. A program that makes none
        gets it after INTERRUPT_S.
        """
        assert self._process is not None
        process = Path(f"/proc/{self._process.pid}")
        deadline = time.monotonic() + INTERRUPT_S
        try:
            while True:
                self._process.send_signal(signal.SIGSTOP)
                while (state := (status := (process / "status").read_text()).partition("State:\t")[2][0]) != "T":
                    if state in "ZX":
                        return False  # it has ended, and nobody has waited for it yet
                    time.sleep(0.0002)
                # The handler is there while a program runs; the REPL would be ended by the signal.
                runs = bool(int(status.partition("SigCgt:")[2].split(maxsplit=1)[0], 16) & 1 << signal.SIGINT - 1)
                in_call = not (process / "syscall").read_text().startswith("-1 ")
                if runs and (in_call or time.monotonic() > deadline):
                    self._process.send_signal(signal.SIGINT)
                    deadline = 0.0
                self._process.send_signal(signal.SIGCONT)
                if not runs or not deadline:
                    return runs
                time.sleep(0.001)
        except OSError:
            return False  # the process is ending

    def _from_board(self, data: bytes) -> None:
        if self._start_output is not None:
            self._start_output += data
            before, ready, after = self._start_output.partition(READY.encode())
            if not ready:
                return
            self._start_output = None
            data = before + after
            self._send_to_board(self._early)
        if self._hidden is not None:
            self._hidden += data
            at = self._hidden.find(RAW_BANNER)
            if at < 0:
                return
            data, self._hidden = self._hidden[at:], None
        self._to_user(data)

    def _to_user(self, data: bytes) -> None:
        self.console += data
        deadline = time.monotonic() + (UNREAD_S if self._is_read else 0.0)
        while data:
            try:  # (`select` would call a port with room for a part writable)
                data = data[os.write(self._outer, data) :]
                self._is_read = True
                deadline = time.monotonic() + UNREAD_S
            except BlockingIOError:
                if time.monotonic() > deadline:
                    self._is_read = False  # a board's USB port drops the output, too
                    return
                time.sleep(0.005)

    def _ended(self) -> None:
        assert self._process is not None
        if self._start_output:  # the start failed: show why
            self._to_user(self._start_output)
            self._start_output = None
        status = self._process.wait()
        self._kill()
        if status == -signal.SIGKILL:  # machine.reset() or the end of a deep sleep; a reset stops the watchdog
            self._boot("hard", self._wires.read_bytes()[:8])
        else:
            self._to_user(b"MPY: soft reboot\r\n")
            self._boot("soft")

    def _check_watchdog(self) -> None:
        timeout_ms = int.from_bytes(self._wires.read_bytes()[8:12], "little")
        if timeout_ms and time.time() - self._wires.stat().st_mtime > timeout_ms / 1000:
            self._kill()
            self._boot("watchdog", bytes([WATCHDOG_RESET, 0, 0, 0]) + self._wires.read_bytes()[4:8])


def network(text: str) -> str:
    """Return a network: argparse's `type`. The error does not show the text, which may be a password."""
    if text and text.find(":") < 1:
        raise argparse.ArgumentTypeError("it has to be NETWORK:PASSWORD")
    return text


@named("virtual-board")
def main(argv: list[str] | None = None) -> int:
    """Run a board until Ctrl-C."""
    usual = ROOT / "build" / "board"
    parser = parser_of("tools.virtual_board.device", __doc__)
    parser.add_argument("--directory", type=folder, default=usual, help="folder of the board's flash")
    parser.add_argument("--board", choices=BOARDS, default="pico_w", help="the kind of board")
    parser.add_argument("--wifi", type=network, default="", help="NETWORK:PASSWORD that its radio finds")
    arguments = parser.parse_args(argv)
    board, directory = arguments.board, arguments.directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    lock = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        parser.error(f"{directory} is in use by another virtual board; for a second board, give another folder as DIR=")
    # Each folder is another board, with an id of its own: two boards with one id end each other's connections.
    ids = {} if directory == usual else {"FLASHMQTT_BOARD_ID": f"e6616408{crc32(bytes(directory)):08x}"}
    with Device(directory, board, arguments.wifi, ids) as device:
        print(
            f"A virtual board, {board}, is on {device.path}; Ctrl-C switches it off. In another terminal:", flush=True
        )
        print(f"  .venv/bin/mpremote connect {device.path}", flush=True)
        print(f"  make deploy PORT={device.path}", flush=True)
        try:
            while True:
                time.sleep(FORGET_S)
                device.console.clear()  # it may run for weeks
        except KeyboardInterrupt:
            return 0


if __name__ == "__main__":
    sys.exit(exit_status(main, stopped="stopped"))
