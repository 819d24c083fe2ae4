"""Build a MicroPython image that has flashmqtt frozen: `make image BOARD=pico_w MICROPYTHON=path` (boards/IMAGES.md).

The port's own build does the work, as MicroPython's documentation has it: its board, a manifest of ours in FROZEN_MANIFEST, and
USER_C_MODULES where one is given. All that is made lies in `build/image/BOARD`, mpy-cross included; nothing is written into
MicroPython's sources. What is missing is told by its name before anything is built. What is frozen is what `make deploy` copies:
the same packed modules.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flashmqtt import __version__
from tools.command import ended, folder, number
from tools.deploy import build

ROOT = Path(__file__).resolve().parent.parent.parent
DEFINITION = ROOT / "boards" / "rp2" / "definition"
OLDEST = (1, 24)
MARKER = "flashmqtt_image"  # a frozen module that tells what of ours is frozen beside it
TOOLS = {  # what the ports' builds run -> where it comes from
    "make": "package make",
    "gcc": "package gcc; it compiles mpy-cross",
    "cmake": "package cmake",
    "arm-none-eabi-gcc": "packages gcc-arm-none-eabi, libnewlib-arm-none-eabi and libstdc++-arm-none-eabi-newlib",
    "idf.py": "ESP-IDF of the version that ports/esp32/README.md names: its install.sh once, then `. export.sh` in this shell",
}
# What a board's cmake file asks for -> the folder with its sources.
OPTIONAL = {
    "MICROPY_PY_NETWORK_CYW43": "cyw43-driver",
    "MICROPY_PY_LWIP": "lwip",
    "MICROPY_BLUETOOTH_BTSTACK": "btstack",
    "MICROPY_BLUETOOTH_NIMBLE": "mynewt-nimble",
    "MICROPY_PY_NETWORK_WIZNET5K": "wiznet5k",
}
WHAT = {
    "pico-sdk": "the Raspberry Pi Pico SDK",
    "tinyusb": "the USB stack",
    "mbedtls": "TLS",
    "micropython-lib": "Python modules that the port freezes",
    "cyw43-driver": "the Wi-Fi radio's driver and firmware",
    "lwip": "TCP/IP",
    "btstack": "Bluetooth",
    "mynewt-nimble": "Bluetooth",
    "wiznet5k": "the Ethernet chip's driver",
}
SHOWN_LINES = 25


class ImageFailed(Exception):
    """The image can't be built; the text says what is missing, and how to get it."""


@dataclass(frozen=True)
class Chip:
    """One board to build for.

    Attributes:
        port: MicroPython's port.
        name: the port's name of the board.
        products: what the build makes, of which the first is the image.
    """

    port: str
    name: str
    products: tuple[str, ...]


_RP2 = ("firmware.uf2", "firmware.bin")
_ESP32 = ("firmware.bin", "micropython.bin")
CHIPS = {
    "pico": Chip("rp2", "RPI_PICO", _RP2),
    "pico_w": Chip("rp2", "RPI_PICO_W", _RP2),
    "pico2": Chip("rp2", "RPI_PICO2", _RP2),
    "pico2_w": Chip("rp2", "RPI_PICO2_W", _RP2),
    "w5500_evb_pico": Chip("rp2", "W5500_EVB_PICO", _RP2),
    "esp32": Chip("esp32", "ESP32_GENERIC", _ESP32),
    "esp32_s3": Chip("esp32", "ESP32_GENERIC_S3", _ESP32),
    "esp32_c3": Chip("esp32", "ESP32_GENERIC_C3", _ESP32),
}


@dataclass(frozen=True)
class Wanted:
    """What is to be built.

    Attributes:
        board: a name in CHIPS.
        micropython: MicroPython's sources.
        application: freeze the application and `board.py`, too.
        journal: leave 256 KB of flash to the journal alone, behind the file system.
        drivers: freeze the modules of micropython-lib that the port freezes.
        romfs_kib: flash for a ROMFS partition; without `application`, nothing is frozen then: `make deploy` puts it there.
        manifest: one of somebody's own, to be frozen, too.
        c_modules: as USER_C_MODULES in MicroPython's documentation.
        output: the folder for all that is made.
    """

    board: str
    micropython: Path
    application: bool = False
    journal: bool = False
    drivers: bool = True
    romfs_kib: int = 0
    manifest: Path | None = None
    c_modules: Path | None = None
    output: Path = ROOT / "build" / "image"

    @property
    def chip(self) -> Chip:
        """The board's port and names."""
        return CHIPS[self.board]

    @property
    def freezes(self) -> bool:
        """Whether anything of ours is frozen."""
        return self.application or not self.romfs_kib

    @property
    def port(self) -> Path:
        """The port's folder."""
        return self.micropython / "ports" / self.chip.port

    @property
    def definition(self) -> Path:
        """The port's definition of the board."""
        return self.port / "boards" / self.chip.name


def say(kind: str, text: str) -> None:
    """Print one line of the report."""
    print(f"{kind:10} {text}", flush=True)


def version(micropython: Path) -> tuple[int, int, int]:
    """Return the version of MicroPython's sources.

    Raises:
        ImageFailed: no such folder, or no sources of MicroPython.
    """
    if not micropython.is_dir():
        raise ImageFailed(f"MICROPYTHON={micropython} is no folder.")
    header = micropython / "py" / "mpconfig.h"
    text = header.read_text() if header.is_file() else ""
    found = [re.search(rf"#define MICROPY_VERSION_{part} (\d+)", text) for part in ("MAJOR", "MINOR", "MICRO")]
    if not all(found):
        raise ImageFailed(
            f"MICROPYTHON={micropython} is not a checkout of MicroPython: it has no py/mpconfig.h with a version. "
            "Get one: git clone --branch v1.26.1 https://github.com/micropython/micropython"
        )
    return tuple(int(one[1]) for one in found if one)  # type: ignore[return-value]


def has_content(path: Path) -> bool:
    """Return whether a folder is there and holds anything: a submodule that was not fetched is an empty one."""
    return path.is_dir() and any(path.iterdir())


def submodules(wanted: Wanted) -> list[str]:
    """Return the names in MicroPython's lib/ whose sources this board needs."""
    if wanted.chip.port != "rp2":
        return ["micropython-lib"] if wanted.drivers else []  # ESP-IDF brings the rest
    asked = (wanted.definition / "mpconfigboard.cmake").read_text()
    names = ["pico-sdk", "tinyusb", "mbedtls", *(["micropython-lib"] if wanted.drivers else [])]
    return names + [
        name for option, name in OPTIONAL.items() if re.search(rf"^\s*set\({option} (?!OFF|0\b)", asked, re.MULTILINE)
    ]


def missing(wanted: Wanted) -> list[str]:
    """Return the names of submodules that are not there."""
    lib = wanted.micropython / "lib"
    absent = [name for name in submodules(wanted) if not has_content(lib / name)]
    # Debian's sources have a micropython-lib that holds `mip` only.
    if "micropython-lib" in submodules(wanted) and "micropython-lib" not in absent:
        absent += [] if (lib / "micropython-lib" / "micropython" / "drivers").is_dir() else ["micropython-lib"]
    return absent


def check(wanted: Wanted) -> tuple[int, int, int]:
    """See that all is there that the build needs; return MicroPython's version.

    Raises:
        ImageFailed: something is not.
    """
    found = version(wanted.micropython)
    if found[:2] < OLDEST:
        raise ImageFailed(
            f"MICROPYTHON={wanted.micropython} is version {'.'.join(map(str, found))}; "
            f"{OLDEST[0]}.{OLDEST[1]} or newer is needed."
        )
    if not (wanted.definition / "mpconfigboard.cmake").is_file():
        raise ImageFailed(f"This MicroPython has no board {wanted.chip.name}: {wanted.definition} is missing.")
    if wanted.application and wanted.board not in build.BOARDS:
        raise ImageFailed(
            f"The application needs a board with a network: {', '.join(build.BOARDS)}. "
            f"BOARD={wanted.board} has none; without APP=1 the library is frozen."
        )
    if wanted.chip.port != "rp2" and (wanted.journal or wanted.romfs_kib):
        option = "JOURNAL=1" if wanted.journal else "ROMFS"
        raise ImageFailed(
            f"{option} is for the boards of the rp2 port. On an ESP32 the partition table says it: boards/esp32/definition."
        )
    for path, name in ((wanted.manifest, "MANIFEST"), (wanted.c_modules, "USER_C_MODULES")):
        if path is not None and not path.exists():
            raise ImageFailed(f"{name}={path}: no such file.")
    tools = ("make", "gcc", "cmake", "arm-none-eabi-gcc") if wanted.chip.port == "rp2" else ("make", "gcc", "idf.py")
    absent = [f"{tool} ({TOOLS[tool]})" for tool in tools if shutil.which(tool) is None]
    if absent:
        raise ImageFailed(f"The toolchain is not complete. Not found: {'; '.join(absent)}.")
    lacking = missing(wanted)
    if lacking:
        names = ", ".join(f"lib/{name} ({WHAT[name]})" for name in lacking)
        without = " NODRIVERS=1 builds without micropython-lib." if "micropython-lib" in lacking else ""
        raise ImageFailed(
            f"{wanted.chip.name} needs sources that {wanted.micropython} does not have: {names}. In a git checkout: "
            f"make -C {wanted.port} BOARD={wanted.chip.name} submodules (Debian's source package of MicroPython has none of "
            f"them, and of micropython-lib only mip).{without}"
        )
    return found


def texts(board: str, native: bool, application: bool) -> dict[str, str]:
    """Return what is frozen: path -> text, packed as `make deploy` packs it."""
    if application:
        files = {path.removeprefix("/lib").lstrip("/"): source for path, source in build.sources(board, native).items()}
        del files["main.py"]  # stays a file, as a board starts it
    else:
        files = {f"{path[:-3]}.mpy": source for path, source in build.library(native).items()}
    found = build.shrunk({build.module_name(path): source.read_text() for path, source in files.items()}).texts
    return {f"{path[:-4]}.py": found[build.module_name(path)] for path in files if build.module_name(path) in found}


def digest(frozen: Mapping[str, str]) -> str:
    """Return what tells whether an image has this state of the sources."""
    whole = hashlib.sha256()
    for path, text in sorted(frozen.items()):
        whole.update(f"{path}\0{text}\0".encode())
    return whole.hexdigest()[:16]


def manifest(wanted: Wanted, modules: Path) -> str:
    """Return what goes into FROZEN_MANIFEST."""
    own = (wanted.definition / "manifest.py").is_file()
    stock = '"$(BOARD_DIR)/manifest.py"' if own else '"$(PORT_DIR)/boards/manifest.py"'
    if wanted.drivers and not wanted.journal:
        lines = [f"include({stock})"]
    elif wanted.chip.port != "rp2":
        lines = ['freeze("$(PORT_DIR)/modules")', 'include("$(MPY_DIR)/extmod/asyncio")']
    else:  # the port's manifest in parts: its _boot.py may be ours, its drivers may be left out
        read = [wanted.port / "boards" / "manifest.py", *([wanted.definition / "manifest.py"] if own else [])]
        asked = [line for path in read for line in path.read_text().splitlines() if line.startswith("require(")]
        port = ', ("rp2.py",)' if wanted.journal else ""
        lines = [f'freeze("$(PORT_DIR)/modules"{port})', 'include("$(MPY_DIR)/extmod/asyncio")']
        lines += [f'freeze("{DEFINITION / "modules"}")'] if wanted.journal else []
        lines += asked if wanted.drivers else []
    lines += [f'freeze("{modules}", opt=2)'] if wanted.freezes else []
    lines += [f'include("{wanted.manifest.resolve()}")'] if wanted.manifest else []
    return "\n".join(lines) + "\n"


def prepare(wanted: Wanted, target: Path) -> Path:
    """Write the modules and the manifest; return the manifest's path."""
    modules = target / "modules"
    shutil.rmtree(modules, ignore_errors=True)
    frozen = texts(wanted.board, True, wanted.application) if wanted.freezes else {}
    marker = (
        '"""What of flashmqtt is frozen into this image, by `make image`."""\n'
        f"BOARD = {wanted.board!r}\nVERSION = {__version__!r}\nAPPLICATION = {wanted.application}\n"
        f"DIGEST = {digest(frozen)!r}\n"
    )
    for name, text in ({**frozen, f"{MARKER}.py": marker} if wanted.freezes else {}).items():
        (modules / name).parent.mkdir(parents=True, exist_ok=True)
        (modules / name).write_text(text)
    path = target / "manifest.py"
    path.write_text(manifest(wanted, modules))
    return path


def run(command: list[str], environment: dict[str, str], log: Path) -> None:
    """Run a part of the build; what it prints goes to the log.

    Raises:
        ImageFailed: it failed.
    """
    with log.open("ab") as file:
        file.write(f"$ {' '.join(command)}\n".encode())
        file.flush()
        ran = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file, check=False)
    if ran.returncode:
        last = "\n".join("    " + line for line in log.read_text(errors="replace").splitlines()[-SHOWN_LINES:])
        raise ImageFailed(f"The build failed; all that it said is in {os.path.relpath(log)}. Its end:\n{last}")


def built(wanted: Wanted, jobs: int) -> Path:
    """Build the image; return its path.

    Raises:
        ImageFailed: something is missing, or the build failed.
    """
    found = check(wanted)
    target = wanted.output.resolve() / wanted.board
    target.mkdir(parents=True, exist_ok=True)
    what = "flashmqtt and the application frozen" if wanted.application else "flashmqtt frozen"
    if not wanted.freezes:
        what = f"{wanted.romfs_kib} KB of ROMFS, into which make deploy puts the modules"
    say("image", f"{wanted.chip.name}, MicroPython {'.'.join(map(str, found))}, with {what}")
    path = prepare(wanted, target)
    say("manifest", os.path.relpath(path))
    log = target / "build.log"
    log.unlink(missing_ok=True)
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "MAKEFLAGS": "", "MFLAGS": ""}
    for name in ("BOARD", "BOARD_DIR", "BUILD", "MANIFEST", "USER_C_MODULES", "PYTHONPATH", "MAKEOVERRIDES"):
        environment.pop(name, None)  # that `make image BOARD=...` hands on
    cross = target / "mpy-cross"
    say("build", f"mpy-cross, then the port; {jobs} at a time; what they say goes to {os.path.relpath(log)}")
    run(["make", "-C", str(wanted.micropython / "mpy-cross"), f"-j{jobs}", f"BUILD={cross}"], environment, log)
    environment["MICROPY_MPYCROSS"] = str(cross / "mpy-cross")
    # Where CMake's cache was made with other options, it would keep them.
    options = f"{wanted.micropython.resolve()} {wanted.romfs_kib} {wanted.c_modules} {wanted.drivers}"
    noted = target / "options"
    if not noted.is_file() or noted.read_text() != options:
        shutil.rmtree(target / "port", ignore_errors=True)
        noted.write_text(options)
    if wanted.romfs_kib:
        environment["CFLAGS_EXTRA"] = f"-DMICROPY_HW_ROMFS_BYTES={wanted.romfs_kib * 1024}"
    if wanted.chip.port == "rp2" and not wanted.drivers:  # CMake asks for this folder although nothing of it is frozen
        lib = target / "micropython-lib"
        lib.mkdir(exist_ok=True)
        (lib / "README.md").write_text("empty\n")
        environment["CMAKE_ARGS"] = f"{environment.get('CMAKE_ARGS', '')} -DMICROPY_LIB_DIR={lib}".strip()
    words = [f"BOARD={wanted.chip.name}", f"BUILD={target / 'port'}", f"FROZEN_MANIFEST={path}"]
    words += [f"USER_C_MODULES={wanted.c_modules.resolve()}"] if wanted.c_modules else []
    run(["make", "-C", str(wanted.port), f"-j{jobs}", *words], environment, log)
    made = target / "port" / wanted.chip.products[0]
    code = target / "port" / wanted.chip.products[1]
    if not made.is_file():
        raise ImageFailed(f"The build ended without an error, but {made} is not there. See {os.path.relpath(log)}.")
    say("built", f"{os.path.relpath(made)}, {made.stat().st_size:,} bytes; {code.stat().st_size:,} bytes of flash")
    return made


# Runs on the emulated board, which has no network: what the library asks of `socket` when it is imported is nothing.
_HEAP = """
import gc, sys
def free():
    gc.collect()
    return gc.mem_free()
class Socket:
    pass
if "socket" not in sys.modules:
    try:
        import socket
    except ImportError:
        sys.modules["socket"] = Socket
start = free()
from flashmqtt.client import Client
from flashmqtt.flash.block import BlockRegion
from flashmqtt.journal.journal import Journal
imported = free()
try:
    from journal_space import device
    region = BlockRegion(device(), page_bytes=256)
except ImportError:
    from flashmqtt.flash.pinned import open_or_pin
    import rp2
    region = open_or_pin(rp2.Flash(), "/journal", 16, page_bytes=256)
client = Client("192.0.2.1", client_id="heap", store=Journal(region))
print(start, imported, free())
"""


def heap(image: Path) -> tuple[int, int, int]:
    """Boot a plain Pico's image in an emulator; return its free heap: at the prompt, client and journal imported, both made."""
    from tools.flashsim.pico import EmulatedPico

    async def measure() -> str:
        pico = EmulatedPico(image)
        try:
            await pico.start()
            return (await pico.run(_HEAP, 300))[0]
        finally:
            pico.stop()

    words = asyncio.run(measure()).split()
    return int(words[0]), int(words[1]), int(words[2])


def tell_heap(wanted: Wanted, image: Path) -> None:
    """Say what heap the image leaves, where it can be measured."""
    if not wanted.freezes:
        say("heap", "not measured: nothing is frozen")
    elif wanted.board != "pico":
        say("heap", "not measured: the emulator that is used here (rp2040py) runs a plain Pico's image")
    elif importlib.util.find_spec("rp2040py") is None:
        say("heap", "not measured: rp2040py is not installed (requirements-dev.txt has it)")
    else:
        start, imported, made = heap(image)
        say("heap", f"{start:,} bytes free at the prompt, {imported:,} with client and journal imported,")
        say("", f"{made:,} with both of them made; measured by booting the image on an emulated Pico")


def existing(text: str) -> Path | None:
    """Return a path from the command line, or None for "": its existence is checked by its name later."""
    return Path(text) if text else None


def main(argv: list[str] | None = None) -> int:
    """Build; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.deploy.image", description=__doc__.splitlines()[0])
    parser.add_argument("--board", required=True, help=f"one of {', '.join(CHIPS)}")
    parser.add_argument("--micropython", required=True, help="MicroPython's sources")
    parser.add_argument("--app", action="store_true", help="freeze the application, too")
    parser.add_argument("--journal", action="store_true", help="leave 256 KB of flash to the journal alone (rp2)")
    parser.add_argument("--no-drivers", action="store_true", help="leave out what the port freezes of micropython-lib")
    parser.add_argument("--romfs", type=number(int, 0, 14 * 1024), default=0, help="KB of flash for a ROMFS (rp2)")
    parser.add_argument("--manifest", type=existing, default=None, help="a manifest of one's own, frozen too")
    parser.add_argument("--user-c-modules", type=existing, default=None, help="as MicroPython's USER_C_MODULES")
    parser.add_argument("--output", type=folder, default=ROOT / "build" / "image", help="where all is made")
    parser.add_argument("--jobs", type=number(int, 1, 64), default=os.cpu_count() or 1)
    arguments = parser.parse_args(argv)

    def act() -> int:
        if arguments.board not in CHIPS:
            raise ImageFailed(f"BOARD={arguments.board} is none of {', '.join(CHIPS)}.")
        if not arguments.micropython:
            raise ImageFailed("MICROPYTHON=path is missing: where MicroPython's sources are.")
        wanted = Wanted(
            board=arguments.board,
            micropython=Path(arguments.micropython).expanduser().resolve(),
            application=arguments.app,
            journal=arguments.journal,
            drivers=not arguments.no_drivers,
            romfs_kib=arguments.romfs,
            manifest=arguments.manifest,
            c_modules=arguments.user_c_modules,
            output=arguments.output,
        )
        tell_heap(wanted, built(wanted, arguments.jobs))
        return 0

    return ended(act, ImageFailed, stopped="stopped; what was built stays, and the next run goes on with it")


if __name__ == "__main__":
    sys.exit(main())
