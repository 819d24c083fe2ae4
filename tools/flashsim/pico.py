"""An emulated Pico (rp2040py) with stock MicroPython. Host only.

    pico = EmulatedPico("RPI_PICO-20250911-v1.26.1.uf2")          the file in FLASHMQTT_UF2
    pico.install({"lib/flashmqtt/...": content}, storage_bytes)   files, before the start
    printed = pico.once(code, timeout_s=60)                       from power-on to power-off

`host_tests/flash/cut_pico.py` cuts its power. Written for rp2040py 0.3.6. This module knows no journal.
"""

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

from tools.flashsim.nor import SECTOR_BYTES

FLASH_BYTES = 2 * 1024 * 1024


class EmulatedPico:
    """One board, from power-on to power-off."""

    def __init__(self, uf2: str | Path) -> None:
        from rp2040py.boards import BOARDS
        from rp2040py.device import MicroPythonDevice

        board = dataclasses.replace(BOARDS["pico"], image=Path(uf2), firmware=None, layout=None)
        self.device: Any = MicroPythonDevice(board=board)

    async def start(self, timeout_s: float = 120) -> None:
        """Boot until the USB console is available."""
        await self.device.astart(timeout_s)

    async def run(self, code: str, timeout_s: float = 120) -> str:
        """Run code in the raw REPL; return its output.

        Raises:
            RuntimeError: the code raised; the text is the traceback.
            TimeoutError: the code did not end in time.
        """
        printed, problem = await self.device.aexec(code, timeout_s)
        if problem:
            raise RuntimeError(problem.decode(errors="replace"))
        return printed.replace(b"\r", b"").decode(errors="replace")

    def stop(self) -> None:
        """End the emulation."""
        self.device.stop()

    def once(self, code: str, timeout_s: float = 120) -> str:
        """Boot, run code, and switch off; return its output. The errors are those of `run`."""

        async def live() -> str:
            try:
                await self.start()
                return await self.run(code, timeout_s)
            finally:
                self.stop()

        return asyncio.run(live())

    def install(self, files: dict[str, bytes], storage_bytes: int) -> None:
        """Write a littlefs with these files to the end of the flash; `storage_bytes` is the size of rp2.Flash()."""
        self.device.mcu.flash[FLASH_BYTES - storage_bytes : FLASH_BYTES] = littlefs_image(files, storage_bytes)


def littlefs_image(files: dict[str, bytes], storage_bytes: int) -> bytes:
    """Return a littlefs image with these files, formatted like the Pico's firmware does."""
    from littlefs import LittleFS

    fs = LittleFS(block_size=SECTOR_BYTES, block_count=storage_bytes // SECTOR_BYTES, prog_size=256, read_size=32)
    for path, content in files.items():
        fs.makedirs("/" + path.rpartition("/")[0], exist_ok=True)
        with fs.open("/" + path, "wb") as file:
            file.write(content)
    fs.unmount()
    return bytes(fs.context.buffer)
