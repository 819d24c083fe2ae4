"""An emulated Pico W on a serial port: rp2040py runs the real firmware, with flash and radio chip, behind a pty.

    with EmulatedPicoW("RPI_PICO_W-20250911-v1.26.1.uf2", Path("build/emulated")) as pico: ...    pico.path, for mpremote

In contrast to `device.py` it runs MicroPython's rp2 port and its drivers on an emulated processor, not the unix port with fakes.
It accepts any Wi-Fi network and password, and is a hundred times slower. It has no power cuts; `tools/flashsim/pico.py` has.

The emulator gives the board its own network (10.0.0.2) and opens the board's TCP connections from the host. There, loopback is
the board itself. So the unused address HOST is mapped to this machine's loopback, where a test's broker listens.
This follows the sources of rp2040py 0.3.6: `cli.main`, whose `--pty` prints the port on stderr, and
`external.cyw43.nat.TcpReflector`, whose `connect_fn` opens a connection.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
from pathlib import Path

from tools import children
from tools.bootstrap import ROOT

HOST = "192.0.2.1"  # TEST-NET-1 (RFC 5737)
START_S = 60.0
_LISTENING = re.compile(rb"PTY REPL listening on (\S+)")


class EmulatorFailed(Exception):
    """The emulator did not start; the text has the end of its log."""


class EmulatedPicoW:
    """One board; it runs while its emulator runs.

    Args:
        uf2: an image of MicroPython for the Pico W.
        directory: the folder of the emulator's log; made if missing.

    Attributes:
        path: the serial port's path.
    """

    def __init__(self, uf2: str | Path, directory: Path):
        self.path = ""
        self.log = directory / "emulator.log"
        self._uf2 = Path(uf2).resolve()
        self._process: subprocess.Popen | None = None
        directory.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> EmulatedPicoW:
        with self.log.open("wb") as log:
            command = [sys.executable, "-m", "host_tests.deploy.emulated", str(self._uf2)]
            self._process = children.popen(command, stdout=log, stderr=log, cwd=ROOT)
        deadline = time.monotonic() + START_S
        while not (found := _LISTENING.search(self.log.read_bytes())):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise EmulatorFailed(f"no serial port: {self.log.read_text(errors='replace')[-800:]}")
            time.sleep(0.05)
        self.path = found[1].decode()
        return self

    def __exit__(self, *exception) -> None:
        self.stop()

    def stop(self) -> None:
        """Kill the emulator: it may be too busy to handle SIGTERM."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def map_to_loopback() -> None:
    """Map the board's connections to HOST to this machine's loopback."""
    from rp2040py.external.cyw43 import nat

    made = nat.TcpReflector.__init__

    async def connect(host: str, port: int):
        return await asyncio.open_connection("127.0.0.1" if host == HOST else host, port)

    def make(self, *arguments, **options) -> None:
        made(self, *arguments, **{"connect_fn": connect, **options})

    nat.TcpReflector.__init__ = make  # type: ignore[method-assign]


def main(uf2: str) -> None:
    """Run an emulator until it is killed."""
    from rp2040py.cli import main as emulator

    map_to_loopback()
    emulator(["micropython", "--board", "pico_w", "--image", uf2, "--pty"])


if __name__ == "__main__":
    main(sys.argv[1])
