"""Start a virtual board, cut its power, and read from its flash what it has stored.

The board is a process: `firmware/main.py` on MicroPython with a heap of a board's size, in its own folder. A power cut
kills the process with SIGKILL and tears the current flash operation. What the board has published is then read from a copy
of its flash with the journal's own recovery: the expectation comes from what was stored, not from what arrived.
"""

import json
import random
from dataclasses import dataclass
from pathlib import Path

from flashmqtt.flash.ram import RamRegion
from flashmqtt.journal.journal import Journal
from tools.children import Child, micropython, tail
from tools.command import Failure
from tools.flashsim.nor import PAGE_BYTES, SECTOR_BYTES
from tools.proof.program import board_image
from tools.proof.tear import tear

HEAP = "192K"


class BoardFailed(Failure):
    """The board's program ended with an error; the text has the end of its console."""


@dataclass
class Progress:
    """The last values that the board's console printed."""

    boot: int = 0
    stored: int = 0
    waiting: int = 0
    connects: int = 0
    dropped: int = 0
    done: bool = False


class VirtualBoard(Child):
    """One board and its flash.

    Args:
        directory: the board's folder; made if missing.
        device: the board's id.
        port: the port on loopback of the broker, or of the proxy in front of it.
        settings: more keys of the board's configuration.
        flash_bytes: the chip's size.
        flash_time: how long flash operations take; 1.0 is the data sheet's typical time.
    """

    def __init__(
        self,
        directory: Path,
        device: str,
        port: int,
        settings: dict | None = None,
        flash_bytes: int = 65536,
        flash_time: float = 1.0,
    ):
        self.directory = directory
        self.device = device
        self.console = directory / "console.log"
        self.progress = Progress()
        self.cuts = 0
        self.torn = 0  # flash operations that a power cut tore
        # Each boot in the journal: its number, and the first and last stored sequence number; last < first: it stored nothing.
        self.boots: list[dict[str, int]] = []
        self.dropped = 0  # by policy or refused: the highest count of any boot
        self.flash = directory / "flash.bin"
        self._intent = directory / "flash.intent"
        directory.mkdir(parents=True, exist_ok=True)
        self._settings = {"broker": "127.0.0.1", "port": port, "device": device, "status_ms": 200, **(settings or {})}
        self.configure()
        self.environment = {
            "MICROPYPATH": f".frozen:{board_image()}",
            "FLASHMQTT_FLASH_BYTES": str(flash_bytes),
            "FLASHMQTT_FLASH_TIME": str(flash_time),
        }
        super().__init__(micropython(HEAP, "-m", "main"), directory, self.environment, take=self._hear)

    def configure(self, **settings: int | str) -> None:
        """Change keys of the board's configuration; the next start uses them."""
        self._settings |= settings
        (self.directory / "config.json").write_text(json.dumps(self._settings))

    async def power_on(self, cause: str = "power-on") -> None:
        """Start the board's program."""
        (self.directory / "reset_cause").write_text(cause)
        await self.start()
        self.progress.connects = 0

    async def power_cut(self, rng: random.Random) -> None:
        """Cut the power and record this boot's counters."""
        await self.kill()
        self.torn += tear(self.flash, self._intent, rng)
        self.cuts += 1
        self.note_counters()

    async def finished(self) -> None:
        """Wait until the program ends by itself.

        Raises:
            BoardFailed: it ended without printing `done`.
        """
        await self.ended()
        if not self.progress.done:
            raise BoardFailed(
                f"The board's program ended with an error. Its console, {self.console}:\n{tail(self.console, 15)}"
            )
        self.note_counters()

    def note_counters(self) -> None:
        """Read from the flash which messages the last boot has stored."""
        if not self.flash.exists():
            return
        image = bytearray(self.flash.read_bytes())
        journal = Journal(RamRegion(len(image) // SECTOR_BYTES, page_bytes=PAGE_BYTES, cells=image))
        boot = journal.boot - 1  # this mount counts as one more
        if self.boots and self.boots[-1]["boot"] == boot:
            self.boots[-1]["last"] = journal.stored  # the last start ended before it counted as a boot
        elif boot:
            first = self.boots[-1]["last"] + 1 if self.boots else 1
            self.boots.append({"boot": boot, "first": first, "last": journal.stored})

    def expected(self) -> dict:
        """Return the board's stored messages in the form that the pipeline's audit reads."""
        return {self.device: {"boots": self.boots}}

    def _hear(self, line: str) -> None:
        """Take a line of the console."""
        with self.console.open("a") as log:
            log.write(line)
        kind, _, rest = line.strip().partition(" ")
        if kind in ("boot", "status"):
            for key, _, value in (word.partition("=") for word in rest.split()):
                if key in ("boot", "stored", "waiting", "connects", "dropped") and value.isdigit():
                    setattr(self.progress, key, int(value))
            self.dropped = max(self.dropped, self.progress.dropped)
        elif kind == "done":
            self.progress.done = True
