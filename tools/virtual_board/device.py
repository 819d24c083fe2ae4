"""A virtual board on a serial port: MicroPython's REPL on a pty, for mpremote and for people.

    python -m tools.virtual_board.device --board pico_w --directory build/board

The board is a process (`power_on.py` on the unix port); this supervisor stands between its pty and the one that it
offers, and does what hardware does: start it again after a reset, with the cause of the reset; make a soft reset of
Ctrl-D, back into the raw REPL where it came from there; cut the power, tearing the flash operation under way; bite when
the watchdog is not fed.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import random
import select
import signal
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

from tools.flashsim.tear import tear

ROOT = Path(__file__).resolve().parent.parent.parent
BOARDS = ("pico_w", "pico2_w", "w5500_evb_pico", "esp32", "esp32_s3", "esp32_c3")
HEAP = "512K"  # words are twice as long as on a board, and the simulated chip lives in it too
POWER_ON, WATCHDOG_RESET = 1, 3
CTRL_C = b"\x03"
RAW_BANNER = b"raw REPL; CTRL-B to exit\r\n"
WIRED = "\x01wired\x02"  # what `power_on.py` prints when it is a board, and nobody sees
WIRED_S = 60.0
TICK_S = 0.05


class Device:
    """One board with a serial port.

    Args:
        directory: the board's own; made if missing, its flash is kept.
        board: "rp2" (a Pico W), or another of `power_on.BOARDS`.
        wifi: "network:password" that the radio finds.
        environment: further variables for the board's process (FLASHMQTT_HASTE, FLASHMQTT_FLASH_TIME, ...).

    Attributes:
        path: the serial port's path, for mpremote.
        resets: how often the board has started, by what ("power-on", "hard", "soft", "watchdog").
        started_at: where in `console` the last start begins.
        heard: how many bytes came in through the port.
    """

    def __init__(self, directory: Path, board: str = "rp2", wifi: str = "", environment: dict[str, str] | None = None):
        self.directory = directory
        self.resets: list[str] = []
        self.started_at = 0
        self.heard = 0
        self.console = bytearray()
        directory.mkdir(parents=True, exist_ok=True)
        self._environment = {
            **os.environ,
            "MICROPYPATH": f"{ROOT}:{ROOT / 'firmware'}",
            "FLASHMQTT_BOARD": board,
            "FLASHMQTT_WIFI": wifi,
            "FLASHMQTT_WIRED": WIRED,
            "TERM": "dumb",
            **(environment or {}),
        }
        self._wires = directory / "wires.bin"
        self._late = directory / "late.bin"  # not empty: a Ctrl-C came while the flash was busy
        self._outer, slave = os.openpty()
        self._slave = slave  # kept open, so that a user's closing the port is no end for us
        _make_raw(slave)
        self.path = os.ttyname(slave)
        self._inner = -1
        self._process: subprocess.Popen | None = None
        self._raw = False
        self._swallow: bytes | None = None
        self._unwired: bytes | None = None  # what a board that is not one yet has printed
        self._early = b""  # what the user sent it
        self._lock = threading.RLock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> Device:
        """Give the board power."""
        self._wires.write_bytes(bytes([POWER_ON]) + bytes(11))
        self._raw = False
        self._boot("power-on")
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, daemon=True)
            self._thread.start()
        self._until_wired()
        return self

    def power_cut(self, seed: int = 0) -> str:
        """Take the power away and give it back; return what that tore."""
        with self._lock:
            self._kill()
            torn = tear(self.directory / "flash.bin", self.directory / "flash.intent", random.Random(seed))
            self._wires.write_bytes(bytes([POWER_ON]) + bytes(11))
            self._raw = False
            self._boot("power-on")
        self._until_wired()
        return torn

    def stop(self) -> None:
        """Take the power away and close the port."""
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
        """Wait until the board's console has printed something.

        Raises:
            TimeoutError: it did not in time; the text holds the console's end.
        """
        deadline = time.monotonic() + timeout_s
        while text not in bytes(self.console[since:]):
            if time.monotonic() > deadline:
                raise TimeoutError(f"no {text!r} on the console: {bytes(self.console[-800:])!r}")
            time.sleep(0.02)

    def _until_wired(self) -> None:
        deadline = time.monotonic() + WIRED_S
        while self._unwired is not None and time.monotonic() < deadline:
            time.sleep(0.005)

    def _boot(self, how: str) -> None:
        inner, slave = os.openpty()
        _make_raw(slave, signals=True)
        environment = {**self._environment, **({"FLASHMQTT_RAW": "1"} if self._raw else {})}
        self._process = subprocess.Popen(
            [
                *(str(Path(sys.executable).parent / "micropython"), "-X", f"heapsize={HEAP}", "-i"),
                str(Path(__file__).resolve().parent / "power_on.py"),
            ],
            cwd=self.directory,
            env=environment,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            preexec_fn=lambda: _own_terminal(0),  # noqa: PLW1509 - two system calls, so that Ctrl-C finds the board
        )
        os.close(slave)
        self._inner = inner
        self.started_at = len(self.console)
        self.resets.append(how)
        # A board that was in the raw REPL comes back to it: ask for it, and keep the friendly one's banner to ourselves.
        self._swallow = b"" if self._raw else None
        self._unwired, self._early = b"", b""
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
        while not self._stopping.is_set():
            with self._lock:
                watched = [descriptor for descriptor in (self._outer, self._inner) if descriptor >= 0]
            ready, _, _ = select.select(watched, [], [], TICK_S)
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
                self._send_late_interrupt()
                self._watch_the_dog()

    def _from_user(self, data: bytes) -> None:
        self.heard += len(data)
        for byte in data:
            if byte == 1:
                self._raw = True
            elif byte == 2:
                self._raw = False
        if self._unwired is not None:  # a Ctrl-C would find the unix port, not the board
            self._early += data
            return
        self._from_user_now(data)

    def _from_user_now(self, data: bytes) -> None:
        if CTRL_C in data and self._deaf():
            assert self._process is not None
            self._process.send_signal(signal.SIGINT)
            data = data.replace(CTRL_C, b"")
        try:
            os.write(self._inner, data)
        except OSError:
            pass  # it is just ending: what is sent to a board in reset is lost

    def _send_late_interrupt(self) -> None:
        if self._late.exists() and self._late.stat().st_size:
            os.truncate(self._late, 0)
            if self._deaf():
                assert self._process is not None
                self._process.send_signal(signal.SIGINT)

    def _deaf(self) -> bool:
        """Return whether a program runs that no Ctrl-C would reach: one that came through the raw REPL.

        The unix port then waits for SIGINT, but its terminal stays as it is while a line is read: Ctrl-C is a byte like any.
        """
        assert self._process is not None
        try:
            status = Path(f"/proc/{self._process.pid}/status").read_text()
        except OSError:
            return False  # it is just ending
        caught = int(status.partition("SigCgt:")[2].split(maxsplit=1)[0], 16)
        return bool(caught & 1 << signal.SIGINT - 1) and not termios.tcgetattr(self._inner)[3] & termios.ISIG

    def _from_board(self, data: bytes) -> None:
        if self._unwired is not None:
            self._unwired += data
            before, sign, after = self._unwired.partition(WIRED.encode())
            if not sign:
                return
            self._unwired = None
            data = before + after
            self._from_user_now(self._early)
        if self._swallow is not None:
            self._swallow += data
            at = self._swallow.find(RAW_BANNER)
            if at < 0:
                return
            data, self._swallow = self._swallow[at:], None
        self._to_user(data)

    def _to_user(self, data: bytes) -> None:
        self.console += data
        while data:
            _, writable, _ = select.select([], [self._outer], [], 1.0)
            if not writable:
                return  # nobody reads: a board's USB port drops it too
            data = data[os.write(self._outer, data) :]

    def _ended(self) -> None:
        assert self._process is not None
        if self._unwired:  # why it could not become a board
            self._to_user(self._unwired)
            self._unwired = None
        status = self._process.wait()
        self._kill()
        if status == -signal.SIGKILL:  # machine.reset(), or a sleep's end: the chip's reset stops its watchdog
            self._wires.write_bytes(self._wires.read_bytes()[:8] + bytes(4))
            self._raw = False
            self._boot("hard")
        else:
            self._to_user(b"MPY: soft reboot\r\n")
            self._boot("soft")

    def _watch_the_dog(self) -> None:
        timeout_ms = int.from_bytes(self._wires.read_bytes()[8:12], "little")
        if timeout_ms and time.time() - self._wires.stat().st_mtime > timeout_ms / 1000:
            self._kill()
            scratch = self._wires.read_bytes()[4:8]
            self._wires.write_bytes(bytes([WATCHDOG_RESET, 0, 0, 0]) + scratch + bytes(4))
            self._raw = False
            self._boot("watchdog")


def _make_raw(descriptor: int, signals: bool = False) -> None:
    """Let a terminal pass bytes as they are; with `signals`, Ctrl-C still interrupts what runs on it."""
    attributes = termios.tcgetattr(descriptor)
    attributes[0] = attributes[1] = 0
    attributes[3] = termios.ISIG if signals else 0
    termios.tcsetattr(descriptor, termios.TCSANOW, attributes)


def _own_terminal(descriptor: int) -> None:
    os.setsid()
    fcntl.ioctl(descriptor, termios.TIOCSCTTY, 0)


def main() -> int:
    """Run a board until Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m tools.virtual_board.device", description=__doc__.splitlines()[0])
    parser.add_argument("--directory", type=Path, default=ROOT / "build" / "board", help="where its flash is kept")
    parser.add_argument("--board", choices=BOARDS, default="pico_w", help="which one it is")
    parser.add_argument("--wifi", default="", help="NETWORK:PASSWORD that its radio finds")
    arguments = parser.parse_args()
    board = arguments.board
    with Device(arguments.directory.resolve(), "rp2" if board == "pico_w" else board, arguments.wifi) as device:
        print(
            f"A virtual board, {board}, is on {device.path}; Ctrl-C switches it off. From another terminal:", flush=True
        )
        print(f"  .venv/bin/mpremote connect {device.path}", flush=True)
        print(f"  make deploy PORT={device.path}", flush=True)
        try:
            signal.pause()
        except KeyboardInterrupt:
            return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
