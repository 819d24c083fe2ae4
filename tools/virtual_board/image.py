"""What is on a virtual board's file system: the firmware, packed as `make deploy` packs it for a real board.

Compiled files take a fraction of the heap that a source file takes while it is imported, and a board-sized heap
is what the virtual board is run with. The architecture is this machine's, for the few functions that are native
code.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import tempfile
from pathlib import Path

from tools.deploy import build as packing

ROOT = Path(__file__).resolve().parent.parent.parent
# Of this machine, as mpy-cross calls it; "" without machine code: the library takes its plain functions.
MARCH = {"x86_64": "x64", "i686": "x86", "armv7l": "armv7m"}.get(platform.machine(), "")
# Beside the library and the application: where a file of the repository lies on the board.
CONTENTS = {
    "firmware/main.py": "main.mpy",
    "tools/__init__.py": "tools/__init__.mpy",
    "tools/flashsim/__init__.py": "tools/flashsim/__init__.mpy",
    "tools/flashsim/nor.py": "tools/flashsim/nor.mpy",
    "tools/virtual_board/board.py": "board.mpy",
}


def sources(native: bool = True) -> dict[str, Path]:
    """Return target path -> source file of all that belongs on the board."""
    found = {f"{name[:-3]}.mpy": path for name, path in packing.library(native).items()}
    firmware = ROOT / "firmware"
    found |= {str(path.relative_to(firmware))[:-3] + ".mpy": path for path in sorted((firmware / "app").rglob("*.py"))}
    return found | {target: ROOT / origin for origin, target in CONTENTS.items()}


def build(target: Path = ROOT / "build" / "virtual_board") -> Path:
    """Return the folder with all that belongs on a virtual board, made if it is not there."""
    return laid_out(sources(bool(MARCH)), target)


def laid_out(files: dict[str, Path], target: Path) -> Path:
    """Pack files into a folder below `target` that is named after their content, unless it is there; return it.

    Args:
        files: path on the board -> source.
        target: made if missing.

    Raises:
        DeployFailed: mpy-cross refused a file; the text says which and why.
    """
    texts = [name.encode() + path.read_bytes() for name, path in files.items()]
    texts += [path.read_bytes() for path in sorted((ROOT / "tools" / "deploy").glob("*.py"))]
    texts += [" ".join(sorted(packing.public_names())).encode()]
    image = target / hashlib.sha256(b"".join(texts)).hexdigest()[:16]
    if image.exists():
        return image
    target.mkdir(parents=True, exist_ok=True)
    # Under its name only when it is whole: other boards may be starting meanwhile.
    scratch = Path(tempfile.mkdtemp(dir=target))
    for name, content in packing.packed(files, MARCH).items():
        path = scratch / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    try:
        scratch.rename(image)
    except OSError:  # another process was first
        shutil.rmtree(scratch)
    return image
