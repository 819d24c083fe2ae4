"""Build a MicroPython image that has flashmqtt frozen: `make image BOARD=pico_w MICROPYTHON=path` (boards/IMAGES.md).

It runs the port's own build as MicroPython documents it, with our manifest as FROZEN_MANIFEST and, if given, USER_C_MODULES.
All output, mpy-cross included, goes into `build/image/BOARD`; nothing is written into MicroPython's sources. Before the build it
checks for every tool and source that is needed. The frozen modules are the ones that `make deploy` copies.
"""

import atexit
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from argparse import ArgumentTypeError, Namespace
from collections.abc import Mapping
from pathlib import Path

from flashmqtt import __version__
from tools.bootstrap import ROOT
from tools.command import Failure, exit_status, folder, named, number, parser_of, report_line
from tools.deploy import build

DEFINITION = ROOT / "boards" / "rp2" / "definition"
OLDEST = (1, 24)
MARKER = "flashmqtt_image"  # a frozen module that describes the image
TOOLS = {  # program that the ports' builds need -> how to install it
    "make": "package make",
    "gcc": "package gcc; it compiles mpy-cross",
    "cmake": "package cmake",
    "arm-none-eabi-gcc": "packages gcc-arm-none-eabi, libnewlib-arm-none-eabi and libstdc++-arm-none-eabi-newlib",
    "idf.py": "ESP-IDF of the version in ports/esp32/README.md: run its install.sh once, then `. export.sh` in this shell",
}
# Option in a board's cmake file -> the folder with its sources.
OPTIONAL = {
    "MICROPY_PY_NETWORK_CYW43": "cyw43-driver",
    "MICROPY_PY_LWIP": "lwip",
    "MICROPY_BLUETOOTH_BTSTACK": "btstack",
    "MICROPY_BLUETOOTH_NIMBLE": "mynewt-nimble",
    "MICROPY_PY_NETWORK_WIZNET5K": "wiznet5k",
}
SHOWN_LINES = 25


# board -> the port's name of it
CHIPS = {
    "pico": "RPI_PICO",
    "pico_w": "RPI_PICO_W",
    "pico2": "RPI_PICO2",
    "pico2_w": "RPI_PICO2_W",
    "w5500_evb_pico": "W5500_EVB_PICO",
    "esp32": "ESP32_GENERIC",
    "esp32_s3": "ESP32_GENERIC_S3",
    "esp32_c3": "ESP32_GENERIC_C3",
}
# port -> the build's files: the image, then the raw firmware
PRODUCTS = {"rp2": ("firmware.uf2", "firmware.bin"), "esp32": ("firmware.bin", "micropython.bin")}


def version(micropython: Path) -> tuple[int, int, int]:
    """Return the version of MicroPython's sources.

    Raises:
        Failure: the folder has no sources of MicroPython.
    """
    header = micropython / "py" / "mpconfig.h"
    text = header.read_text() if header.is_file() else ""
    found = [re.search(rf"#define MICROPY_VERSION_{part} (\d+)", text) for part in ("MAJOR", "MINOR", "MICRO")]
    if not all(found):
        raise Failure(
            f"MICROPYTHON={micropython} is not a checkout of MicroPython: it has no py/mpconfig.h with a version. "
            "Get one: git clone --branch v1.26.1 https://github.com/micropython/micropython"
        )
    return tuple(int(one[1]) for one in found if one)  # type: ignore[return-value]


def missing(wanted: Namespace) -> list[str]:
    """Return the folders of MicroPython's lib/ that this board needs and that are empty: submodules that were not fetched."""
    # Debian's sources have an incomplete micropython-lib, with `mip` only.
    needed = {"micropython-lib": "micropython-lib/micropython/drivers"} if wanted.drivers else {}
    if wanted.port == "rp2":  # ESP-IDF has the rest
        asked = (wanted.definition / "mpconfigboard.cmake").read_text()
        names = ["pico-sdk", "tinyusb", "mbedtls"]
        names += [
            name for option, name in OPTIONAL.items() if re.search(rf"^\s*set\({option} (?!OFF|0\b)", asked, re.M)
        ]
        needed |= {name: name for name in names}
    folders = {name: wanted.micropython / "lib" / path for name, path in needed.items()}
    return [name for name, folder in folders.items() if not folder.is_dir() or not any(folder.iterdir())]


def check(wanted: Namespace) -> tuple[int, int, int]:
    """Check everything that the build needs; return MicroPython's version.

    Raises:
        Failure: something is missing or too old, or the options contradict each other.
    """
    found = version(wanted.micropython)
    if found[:2] < OLDEST:
        raise Failure(
            f"MICROPYTHON={wanted.micropython} is version {'.'.join(map(str, found))}; "
            f"{OLDEST[0]}.{OLDEST[1]} or newer is needed."
        )
    if not (wanted.definition / "mpconfigboard.cmake").is_file():
        raise Failure(f"This MicroPython has no board {wanted.chip}: {wanted.definition} is missing.")
    if wanted.application and wanted.board not in build.BOARDS:
        raise Failure(
            f"The application needs a board with a network: {', '.join(build.BOARDS)}. "
            f"BOARD={wanted.board} has none. Without APP=1 only the library is frozen."
        )
    if wanted.port != "rp2" and (wanted.journal or wanted.romfs_kib):
        option = "JOURNAL=1" if wanted.journal else "ROMFS"
        raise Failure(
            f"{option} is for boards of the rp2 port only. For an ESP32, edit the partition table: boards/esp32/definition."
        )
    tools = ("make", "gcc", "cmake", "arm-none-eabi-gcc") if wanted.port == "rp2" else ("make", "gcc", "idf.py")
    absent = [f"{tool} ({TOOLS[tool]})" for tool in tools if shutil.which(tool) is None]
    if absent:
        raise Failure(f"The toolchain is incomplete. Not found: {'; '.join(absent)}.")
    lacking = missing(wanted)
    if lacking:
        names = ", ".join(f"lib/{name}" for name in lacking)
        without = " NODRIVERS=1 builds without micropython-lib." if "micropython-lib" in lacking else ""
        raise Failure(
            f"{wanted.chip} needs sources that {wanted.micropython} does not have: {names}. In a git checkout: "
            f"make -C {wanted.sources} BOARD={wanted.chip} submodules. Debian's source package of MicroPython does not have "
            f"them.{without}"
        )
    return found


def texts(board: str, native: bool, application: bool) -> dict[str, str]:
    """Return the frozen modules: path -> text, shrunk like those of `make deploy`."""
    if application:
        files = {path.removeprefix("/lib").lstrip("/"): source for path, source in build.sources(board, native).items()}
        del files["main.py"]  # MicroPython starts it as a file
    else:
        files = {f"{path[:-3]}.mpy": source for path, source in build.library(native).items()}
    found = build.shrunk({build.module_name(path): source.read_text() for path, source in files.items()}).texts
    return {f"{path[:-4]}.py": found[build.module_name(path)] for path in files if build.module_name(path) in found}


def library_to_freeze(board: str = "") -> str:
    """Write the library's frozen modules into a folder that lasts as long as this process; return its path.

    board: with the application and this board's `board.py`.
    """
    scratch = tempfile.TemporaryDirectory()
    atexit.register(scratch.cleanup)
    frozen = texts(board, True, bool(board))
    build.write_files(Path(scratch.name), {name: text.encode() for name, text in frozen.items()})
    return scratch.name


def digest(frozen: Mapping[str, str]) -> str:
    """Return a digest that identifies this version of the frozen modules."""
    whole = hashlib.sha256()
    for path, text in sorted(frozen.items()):
        whole.update(f"{path}\0{text}\0".encode())
    return whole.hexdigest()[:16]


def manifest(wanted: Namespace, modules: Path) -> str:
    """Return the manifest's text."""
    own = (wanted.definition / "manifest.py").is_file()
    stock = '"$(BOARD_DIR)/manifest.py"' if own else '"$(PORT_DIR)/boards/manifest.py"'
    if wanted.drivers and not wanted.journal:
        lines = [f"include({stock})"]
    elif wanted.port != "rp2":
        lines = ['freeze("$(PORT_DIR)/modules")', 'include("$(MPY_DIR)/extmod/asyncio")']
    else:  # the parts of the port's manifest, perhaps with our _boot.py or without its drivers
        read = [wanted.sources / "boards" / "manifest.py", *([wanted.definition / "manifest.py"] if own else [])]
        asked = [line for path in read for line in path.read_text().splitlines() if line.startswith("require(")]
        port = ', ("rp2.py",)' if wanted.journal else ""
        lines = [f'freeze("$(PORT_DIR)/modules"{port})', 'include("$(MPY_DIR)/extmod/asyncio")']
        lines += [f'freeze("{DEFINITION / "modules"}")'] if wanted.journal else []
        lines += asked if wanted.drivers else []
    lines += [f'freeze("{modules}", opt=2)'] if wanted.freezes else []
    lines += [f'include("{wanted.manifest}")'] if wanted.manifest else []
    return "\n".join(lines) + "\n"


def prepare(wanted: Namespace, target: Path) -> Path:
    """Write the modules and the manifest; return the manifest's path."""
    modules = target / "modules"
    shutil.rmtree(modules, ignore_errors=True)
    frozen = texts(wanted.board, True, wanted.application) if wanted.freezes else {}
    marker = (
        '"""What is frozen into this image, by `make image`."""\n'
        f"BOARD = {wanted.board!r}\nVERSION = {__version__!r}\nAPPLICATION = {wanted.application}\n"
        f"DIGEST = {digest(frozen)!r}\n"
    )
    if wanted.freezes:
        frozen = {**frozen, f"{MARKER}.py": marker}
        build.write_files(modules, {name: text.encode() for name, text in frozen.items()})
    path = target / "manifest.py"
    path.write_text(manifest(wanted, modules))
    return path


def run(command: list[str], environment: dict[str, str], log: Path) -> None:
    """Run a step of the build; its output goes to the log.

    Raises:
        Failure: the step failed.
    """
    with log.open("ab") as file:
        file.write(f"$ {' '.join(command)}\n".encode())
        file.flush()
        ran = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file, check=False)
    if ran.returncode:
        last = "\n".join("    " + line for line in log.read_text(errors="replace").splitlines()[-SHOWN_LINES:])
        raise Failure(f"The build failed. The log is {os.path.relpath(log)}; its last lines:\n{last}")


def built(wanted: Namespace) -> Path:
    """Build the image; return its path.

    Raises:
        Failure: something is missing, or the build failed.
    """
    found = check(wanted)
    target = wanted.output.resolve() / wanted.board
    target.mkdir(parents=True, exist_ok=True)
    what = "flashmqtt and the application frozen" if wanted.application else "flashmqtt frozen"
    if not wanted.freezes:
        what = f"{wanted.romfs_kib} KB of ROMFS, for the modules that make deploy copies"
    report_line("image", f"{wanted.chip}, MicroPython {'.'.join(map(str, found))}, with {what}")
    path = prepare(wanted, target)
    report_line("manifest", os.path.relpath(path))
    log = target / "build.log"
    log.unlink(missing_ok=True)
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "MAKEFLAGS": "", "MFLAGS": ""}
    for name in ("BOARD", "BOARD_DIR", "BUILD", "MANIFEST", "USER_C_MODULES", "PYTHONPATH", "MAKEOVERRIDES"):
        environment.pop(name, None)  # set by `make image BOARD=...`
    cross = target / "mpy-cross"
    jobs = f"-j{os.cpu_count() or 1}"
    report_line("build", f"mpy-cross, then the port; output goes to {os.path.relpath(log)}")
    run(["make", "-C", str(wanted.micropython / "mpy-cross"), jobs, f"BUILD={cross}"], environment, log)
    environment["MICROPY_MPYCROSS"] = str(cross / "mpy-cross")
    # CMake's cache would keep the options of the last build.
    options = f"{wanted.micropython} {wanted.romfs_kib} {wanted.c_modules} {wanted.drivers}"
    noted = target / "options"
    if not noted.is_file() or noted.read_text() != options:
        shutil.rmtree(target / "port", ignore_errors=True)
        noted.write_text(options)
    if wanted.romfs_kib:
        environment["CFLAGS_EXTRA"] = f"-DMICROPY_HW_ROMFS_BYTES={wanted.romfs_kib * 1024}"
    if wanted.port == "rp2" and not wanted.drivers:  # CMake needs this folder although nothing of it is frozen
        lib = target / "micropython-lib"
        lib.mkdir(exist_ok=True)
        (lib / "README.md").write_text("empty\n")
        environment["CMAKE_ARGS"] = f"{environment.get('CMAKE_ARGS', '')} -DMICROPY_LIB_DIR={lib}".strip()
    words = [f"BOARD={wanted.chip}", f"BUILD={target / 'port'}", f"FROZEN_MANIFEST={path}"]
    words += [f"USER_C_MODULES={wanted.c_modules}"] if wanted.c_modules else []
    run(["make", "-C", str(wanted.sources), jobs, *words], environment, log)
    made, code = (target / "port" / name for name in PRODUCTS[wanted.port])
    if not made.is_file():
        raise Failure(f"The build succeeded, but {made} does not exist. See {os.path.relpath(log)}.")
    report_line(
        "built", f"{os.path.relpath(made)}, {made.stat().st_size:,} bytes; {code.stat().st_size:,} bytes of flash"
    )
    return made


# Runs on the emulated board, which has no network: an empty module is enough to import the library.
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


def report_heap(wanted: Namespace, image: Path) -> None:
    """Print the image's free heap, if it can be measured."""
    if not wanted.freezes:
        report_line("heap", "not measured: nothing is frozen")
    elif wanted.board != "pico":
        report_line("heap", "not measured: the emulator (rp2040py) runs images for a plain Pico only")
    else:
        from tools.flashsim.pico import EmulatedPico

        # At the prompt; after importing client and journal; after making both.
        start, imported, made = map(int, EmulatedPico(image).once(_HEAP, 300).split())
        report_line("heap", f"{start:,} bytes free at the prompt, {imported:,} with client and journal imported,")
        report_line("", f"{made:,} with client and journal made; measured by booting the image on an emulated Pico")


def existing(text: str) -> Path:
    """Return an absolute path: argparse's `type` of a file or folder that must exist."""
    path = Path(text).expanduser().resolve()
    if not text or not path.exists():
        raise ArgumentTypeError(f"{text!r} does not exist")
    return path


@named("image")
def main(argv: list[str] | None = None) -> int:
    """Run the command; return the exit status."""
    parser = parser_of("tools.deploy.image", __doc__)
    add = parser.add_argument
    add("--board", choices=CHIPS, required=True)
    add("--micropython", type=existing, required=True, help="MicroPython's sources")
    add("--app", action="store_true", dest="application", help="freeze the application, too")
    add("--journal", action="store_true", help="reserve 256 KB of flash for the journal (rp2)")
    drivers = "do not freeze the port's modules of micropython-lib"
    add("--no-drivers", action="store_false", dest="drivers", help=drivers)
    romfs = "KB of flash for a ROMFS (rp2)"
    add("--romfs", type=number(int, 0, 14 * 1024), default=0, dest="romfs_kib", help=romfs)
    add("--manifest", type=existing, help="your own manifest, frozen in addition")
    add("--user-c-modules", type=existing, dest="c_modules", help="USER_C_MODULES of MicroPython's build")
    add("--output", type=folder, default=ROOT / "build" / "image", help="the folder for the build")
    wanted = parser.parse_args(argv)
    wanted.chip, wanted.port = CHIPS[wanted.board], "esp32" if wanted.board.startswith("esp32") else "rp2"
    wanted.sources = wanted.micropython / "ports" / wanted.port
    wanted.definition = wanted.sources / "boards" / wanted.chip
    # With a ROMFS and without the application nothing is frozen: `make deploy` writes the modules into ROMFS.
    wanted.freezes = wanted.application or not wanted.romfs_kib
    report_heap(wanted, built(wanted))
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(main, stopped="stopped; the next run continues with what was built"))
