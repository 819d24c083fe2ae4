"""The virtual board for tests: its power can be cut, and it notes its starts and what it receives."""

from __future__ import annotations

import random

from tools.proof.tear import tear
from tools.virtual_board import device


class Device(device.Device):
    """One board.

    Attributes:
        resets: the cause of each start: "power-on", "hard", "soft" or "watchdog".
        started_at: the position in `console` of the last start.
        heard: the number of bytes received through the port.
    """

    resets: list[str] = []
    started_at = heard = 0

    def power_cut(self, seed: int = 0) -> bool:
        """Switch the power off and on; return whether that tore a flash operation."""
        with self._lock:
            self._kill()
            torn = tear(self.directory / "flash.bin", self.directory / "flash.intent", random.Random(seed))
            self._boot("power-on")
        self._wait_until_ready()
        return torn

    def _boot(self, how: str, *wires: bytes) -> None:
        self.started_at = len(self.console)
        super()._boot(how, *wires)
        self.resets = [*self.resets, how]

    def _from_user(self, data: bytes) -> None:
        self.heard += len(data)
        super()._from_user(data)
