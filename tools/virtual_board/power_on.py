# mypy: ignore-errors
# ruff: noqa: I001, SIM115
"""The start of a virtual board's chip: install fake hardware, mount the flash, run boot.py and main.py, then the REPL.

`device.py` starts it as `micropython -i power_on.py` on the unix port of MicroPython, in the board's folder. There, `flash.bin`
is the flash chip, `flash.intent` its current operation, and `wires.bin` the state that survives a reset. `romfs.bin`, if it
exists, is a ROMFS partition. After this file, a program sees the environment of a Pico W or an ESP32: littlefs at "/", and the
port's modules and `sys`.
"""

import os
import sys
import time
import vfs
from collections import namedtuple

from tools.boards import BOARDS
from tools.flashsim.nor import FileNorFlash
from tools.virtual_board.hardware import dht, ds18x20, esp32, machine, neopixel, network, onewire, rp2, with_ethernet

CAUSE, SCRATCH, WATCHDOG = 0, 4, 8
SCRATCH0 = (0x4005800C, 0x400D800C)  # RP2040, RP2350
CHIP_ID = 0x40000000
RP2350 = 4 << 12


class _Registers(dict):
    """The chip's registers; the scratch register is kept in a file."""

    def __init__(self, wires):
        super().__init__()
        self._wires = wires
        wires.seek(SCRATCH)
        mark = int.from_bytes(wires.read(4), "little")
        for address in SCRATCH0:
            super().__setitem__(address, mark)

    def __setitem__(self, address, value):
        super().__setitem__(address, value)
        if address in SCRATCH0:
            self._wires.seek(SCRATCH)
            self._wires.write(value.to_bytes(4, "little"))


class _Clock:
    """The board's clock; a sleep takes its time divided by FLASHMQTT_HASTE."""

    haste = int(os.getenv("FLASHMQTT_HASTE") or 1)

    unix_s = ms = 0  # setting the clock changes nothing: the board uses the host's

    @classmethod
    def sleep_ms(cls, ms):
        time.sleep_ms(ms // cls.haste)

    @staticmethod
    def mktime(date):
        return time.mktime(date)


def _wire_machine(port, is_rp2350):
    wires = open("wires.bin", "r+b", buffering=0)
    simulated = machine.simulated
    simulated.cause = wires.read(1)[0]
    simulated.clock = _Clock
    simulated.id = (os.getenv("FLASHMQTT_BOARD_ID") or "e66164084373532b").encode()[:16]
    simulated.id = bytes(int(simulated.id[i : i + 2], 16) for i in range(0, len(simulated.id), 2))
    simulated.registers = _Registers(wires)
    simulated.registers["chip"] = port
    simulated.registers[CHIP_ID] = RP2350 if is_rp2350 else 0

    def on_reset(how):
        causes = {"rp2": {"reset": 3, "deep-sleep": 3}, "esp32": {"reset": 5, "deep-sleep": 4}}
        if how == "deep-sleep":
            _Clock.sleep_ms(simulated.sleeps[-1])
        wires.seek(CAUSE)
        wires.write(bytes([causes[port][how]]))
        os.system("kill -9 $PPID")

    def on_feed():
        wires.seek(WATCHDOG)
        wires.write(simulated.watchdog_ms.to_bytes(4, "little"))

    simulated.on_reset = on_reset
    simulated.on_feed = on_feed


class _Storage:
    """The flash for the file system. As on a chip, Ctrl-C takes effect after a flash operation, never within it.

    An exception within an operation would leave littlefs with a partly filled cache.
    """

    def __init__(self, storage, late):
        self._storage = storage
        self._late = late  # a byte here makes `device.py` send the Ctrl-C again

    def readblocks(self, *arguments):
        self._whole(self._storage.readblocks, arguments)

    def writeblocks(self, *arguments):
        self._whole(self._storage.writeblocks, arguments)

    def ioctl(self, *arguments):
        return self._whole(self._storage.ioctl, arguments)

    def _whole(self, operation, arguments):
        while True:
            try:
                return operation(*arguments)
            except KeyboardInterrupt:
                self._late.write(b"\x03")


def _wire_flash(port, size):
    page = 256 if port == "rp2" else 32
    device = FileNorFlash(
        "flash.bin", size, port, intent="flash.intent", time_scale=float(os.getenv("FLASHMQTT_FLASH_TIME") or 0)
    )
    chip = rp2 if port == "rp2" else esp32
    chip.simulated.device = device
    if port == "rp2":
        storage = rp2.Flash()
    else:
        esp32.simulated.partitions = {"vfs": (0, size // 4096)}
        storage = esp32.Partition("vfs")
    storage = _Storage(storage, open("late.bin", "wb", buffering=0))
    vfs.umount("/")
    try:  # like the ports' _boot.py and inisetup.py
        system = vfs.VfsLfs2(storage, progsize=page)
    except OSError:
        vfs.VfsLfs2.mkfs(storage, progsize=page)
        system = vfs.VfsLfs2(storage, progsize=page)
    vfs.mount(system, "/")


class _Rom(bytearray):
    """A ROMFS partition in `romfs.bin`, with the calls of a port's flash object."""

    def readblocks(self, block, buf):
        buf[:] = self[block * 4096 : block * 4096 + len(buf)]

    def writeblocks(self, block, buf):
        self[block * 4096 : block * 4096 + len(buf)] = buf
        _Rom.file.seek(block * 4096)
        _Rom.file.write(buf)

    def ioctl(self, request, block):
        if request == 6:
            self.writeblocks(block, b"\xff" * 4096)
        return {4: len(self) // 4096, 5: 4096, 6: 0}[request]


class _Over:
    """A module with other values for some of its names."""

    def __init__(self, real, **names):
        self._real = real
        for name, value in names.items():
            setattr(self, name, value)

    def __getattr__(self, name):
        return getattr(self._real, name)


def _wire_rom(file):
    """Mount ROMFS, like the ports do before main.py."""
    _Rom.file = file
    rom = _Rom(file.read())
    # The unix port has `VfsRom`, but no partition.
    sys.modules["vfs"] = _Over(vfs, rom_ioctl=lambda request, *_: {1: 1, 2: rom}[request])
    try:
        vfs.mount(vfs.VfsRom(rom), "/rom")
    except OSError:
        return
    sys.path[:] = ["", ".frozen", "/rom", "/rom/lib", "/lib"]


def _named(real, port, name):
    """Return the port's module `sys`."""
    fields = namedtuple("implementation", ("name", "version", "_machine", "_mpy"))
    own = real.implementation
    return _Over(real, platform=port, implementation=fields(own.name, own.version, name, own._mpy))


def _wire(kind):
    port, begin, end, kib = BOARDS[kind]
    _wire_machine(port, end.endswith("RP2350"))
    if kind.startswith("w5500"):
        with_ethernet(network)
    joined = os.getenv("FLASHMQTT_WIFI")
    if joined and hasattr(network, "WLAN"):
        ssid, _, password = joined.partition(":")
        network.simulated.access_points[ssid] = password
    rom = open("romfs.bin", "r+b", buffering=0) if "romfs.bin" in os.listdir() else None
    _wire_flash(port, kib * 1024)
    for module in list(sys.modules):
        if module.startswith(("tools", "flashmqtt")):
            del sys.modules[module]
    for module in (machine, network, dht, ds18x20, onewire, neopixel, rp2 if port == "rp2" else esp32):
        sys.modules[module.__name__.rpartition(".")[2]] = module
    sys.modules["sys"] = _named(sys, port, begin + end)
    sys.path[:] = ["", ".frozen", "/lib"]
    os.chdir("/")
    if rom:
        _wire_rom(rom)


def _run(name):
    try:
        os.stat(name)
    except OSError:
        return
    try:
        execfile(name)  # noqa: F821
    except SystemExit:
        # On a board this is a soft reset; the supervisor makes one when the process ends.
        os.system("kill -15 $PPID")
    except BaseException as error:
        sys.print_exception(error)


_wire(os.getenv("FLASHMQTT_BOARD") or "pico_w")
# The board is ready: `device.py` passes input from now on.
print(os.getenv("FLASHMQTT_WIRED") or "", end="")
_run("boot.py")
if not os.getenv("FLASHMQTT_RAW"):
    _run("main.py")
