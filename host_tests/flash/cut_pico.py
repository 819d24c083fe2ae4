"""An emulated Pico whose power can be cut at any flash operation.

    pico.flash.arm(pico.flash.operations + 7, "weak", 3)          as in `nor`
    printed, cut = await pico.run_until_cut(code, timeout_s=60)   the output up to the end or the power cut
    pico = pico.power_cycle()                                     a new chip with the same flash

The emulator executes each flash command in `RPSSI._apply_command`, when chip select rises. This module replaces that method:
programs and erases of the 2 MB flash go to a `NorFlash` whose cells are the emulated chip's memory. So operations are counted,
rules checked and cuts torn exactly as in the simulator. The CPU reads flash as memory, so weak bits can't flicker: each gets its
value when the power returns.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tools.flashsim.nor import PAGE_BYTES, SECTOR_BYTES, NorFlash, PowerCut
from tools.flashsim.pico import FLASH_BYTES, EmulatedPico

_PAGE_PROGRAM, _SECTOR_ERASE, _BLOCK_ERASE = 0x02, 0x20, 0xD8


class _ChipFlash(NorFlash):
    """The simulator's rules and faults on the emulated chip's memory."""

    def __init__(self, memory: Any) -> None:
        self._memory = memory
        super().__init__(FLASH_BYTES, "rp2")

    def _open_cells(self) -> None:
        pass

    def _load(self, at: int, buf: bytearray, start: int, n: int) -> None:
        buf[start : start + n] = self._memory[at : at + n]

    def _save(self, at: int, buf: bytearray, start: int, n: int) -> None:
        self._memory[at : at + n] = bytes(buf[start : start + n])

    def _save_erased(self, at: int) -> None:
        self._memory[at : at + SECTOR_BYTES] = b"\xff" * SECTOR_BYTES

    def settled(self) -> bytes:
        """Return the contents after the power returns; each weak bit gets a random value."""
        content = bytearray(self._memory[:FLASH_BYTES])
        for address, weak in self._weak.items():
            content[address] = (content[address] & ~weak & 0xFF) | (weak & self._rng.byte())
        return bytes(content)


def redirect_flash(mcu: Any, flash: NorFlash, on_cut: Any) -> None:
    """Redirect the flash commands of an emulated RP2040 to `flash`; call `on_cut` at a power cut."""
    ssi = mcu.ssi
    emulated = ssi._apply_command

    def apply() -> None:
        command = bytearray(ssi._tx_buffer)
        opcode = command[0] if len(command) >= 4 else 0
        if opcode not in (_PAGE_PROGRAM, _SECTOR_ERASE, _BLOCK_ERASE):
            emulated()
            return
        ssi._tx_buffer = bytearray()
        enabled, ssi._write_enabled = ssi._write_enabled, False
        address = int.from_bytes(command[1:4], "big")
        if not enabled or flash.dead or address >= FLASH_BYTES:
            return
        try:
            if opcode == _PAGE_PROGRAM:
                content = command[4 : 4 + PAGE_BYTES - address % PAGE_BYTES]
                flash._program(address, content, 0, len(content))
            else:
                count = 1 if opcode == _SECTOR_ERASE else 16
                first = address // SECTOR_BYTES // count * count
                for sector in range(first, first + count):
                    flash._erase(sector)
        except PowerCut:
            on_cut()

    ssi._apply_command = apply


class CutPico(EmulatedPico):
    """One board, from power-on to power cut."""

    def __init__(self, uf2: str | Path, content: bytes | None = None) -> None:
        super().__init__(uf2)
        self.uf2 = uf2
        if content is not None:
            self.device.mcu.flash[: len(content)] = content
        self.flash = _ChipFlash(self.device.mcu.flash)
        redirect_flash(self.device.mcu, self.flash, self._on_cut)
        self._cut = asyncio.Event()
        self._printed = b""

    def _on_cut(self) -> None:
        self._printed = bytes(self.device.cdc.on_serial_data.__self__._stdout)  # of rp2040py's RawReplRunner
        self._cut.set()
        self.device.simulator.stop()

    async def run_until_cut(self, code: str, timeout_s: float) -> tuple[str, bool]:
        """Run code; return its output up to its end or the power cut, and whether the power was cut."""
        running, cutting = asyncio.ensure_future(self.run(code, timeout_s)), asyncio.ensure_future(self._cut.wait())
        await asyncio.wait((running, cutting), return_when=asyncio.FIRST_COMPLETED)
        for one in (running, cutting) if self._cut.is_set() else (cutting,):
            one.cancel()
        await asyncio.wait((running, cutting))
        return (self._printed.replace(b"\r", b"").decode(), True) if self._cut.is_set() else (running.result(), False)

    def power_cycle(self) -> CutPico:
        """Return a new chip with the same flash."""
        self.stop()
        return CutPico(self.uf2, self.flash.settled())
