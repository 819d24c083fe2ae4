"""An emulated Pico (rp2040py) with stock MicroPython. Host only.

    pico = EmulatedPico("RPI_PICO-20250911-v1.26.1.uf2")          the file in FLASHMQTT_UF2
    pico.install({"lib/flashmqtt/...": content}, storage_bytes)   files, before the start
    await pico.start()
    printed, cut = await pico.run(code, timeout_s=60)             the output up to the end or the power cut

`host_tests/flash/cut_pico.py` cuts its power. Written for rp2040py 0.3.6. This module knows no journal.
"""

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

from tools.flashsim.nor import SECTOR_BYTES

FLASH_BYTES = 2 * 1024 * 1024


class EmulatedPico:
    """One board, from power-on to power cut."""

    def __init__(self, uf2: str | Path, content: bytes | None = None) -> None:
        from rp2040py.boards import BOARDS
        from rp2040py.device import MicroPythonDevice

        self.uf2 = Path(uf2)
        board = dataclasses.replace(BOARDS["pico"], image=self.uf2, firmware=None, layout=None)
        self.device: Any = MicroPythonDevice(board=board)
        if content is not None:
            self.device.mcu.flash[: len(content)] = content
        self.cut = asyncio.Event()  # set: the power was cut

    async def start(self, timeout_s: float = 120) -> None:
        """Boot until the USB console is available."""
        await self.device.astart(timeout_s)

    async def run(self, code: str, timeout_s: float = 120) -> tuple[str, bool]:
        """Run code in the raw REPL; return its output, and whether the power was cut.

        Raises:
            RuntimeError: the code raised; the text is the traceback.
            TimeoutError: the code did not end in time.
        """
        from rp2040py.device.raw_repl import RawReplRunner

        cut, done, heard, errors = self.cut, asyncio.Event(), bytearray(), []

        class Runner(RawReplRunner):  # type: ignore[misc, valid-type]
            def feed(self, data: bytes | bytearray) -> None:
                if not cut.is_set():  # drop output of the emulated CPU after the power cut
                    heard.extend(data)
                    super().feed(data)

        def failed(error: Exception) -> None:
            errors.append(error)
            done.set()

        runner = Runner(self.device.cdc, code.encode(), on_result=lambda _: done.set(), on_error=failed)

        def pump() -> None:
            if not done.is_set() and not cut.is_set():
                runner.pump()
                alarm.schedule(1_000_000)

        alarm = self.device.simulator.clock.create_alarm(pump)
        await runner.start()
        alarm.schedule(1_000_000)
        waits = [asyncio.ensure_future(done.wait()), asyncio.ensure_future(cut.wait())]
        finished, _ = await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        printed = bytes(heard)
        printed = printed[printed.find(b">OK") + 3 :] if b">OK" in printed else b""
        printed = printed.split(b"\x04")[0].replace(b"\r", b"")
        if cut.is_set():
            return printed.decode(errors="replace"), True
        if not finished:
            raise TimeoutError(f"no end within {timeout_s} s; printed {printed!r}")
        await runner.stop()
        if errors:
            raise errors[0]
        assert runner.result is not None
        if runner.result[1]:
            raise RuntimeError(runner.result[1].decode(errors="replace"))
        return printed.decode(errors="replace"), False

    def stop(self) -> None:
        """End the emulation."""
        self.device.stop()

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
