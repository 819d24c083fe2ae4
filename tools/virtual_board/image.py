"""The files of a virtual board: the firmware, packed as `make deploy` packs it for a real board.

The virtual board has a heap of a board's size, and importing a compiled file takes much less heap than importing source. The
few native functions are compiled for this machine.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import tempfile
from pathlib import Path

from tools.bootstrap import ROOT
from tools.deploy import build as packing

# mpy-cross's name for this machine; "": no machine code, the library uses plain Python.
MARCH = {"x86_64": "x64", "i686": "x86", "armv7l": "armv7m"}.get(platform.machine(), "")
# Files besides library and application: path in the repository -> path on the board.
CONTENTS = {
    "firmware/main.py": "main.mpy",
    "tools/__init__.py": "tools/__init__.mpy",
    "tools/flashsim/__init__.py": "tools/flashsim/__init__.mpy",
    "tools/flashsim/nor.py": "tools/flashsim/nor.mpy",
    "tools/virtual_board/board.py": "board.mpy",
}


def sources(native: bool = True) -> dict[str, Path]:
    """Return the board's files: path on the board -> source file."""
    found = {f"{name[:-3]}.mpy": path for name, path in packing.library(native).items()}
    firmware = ROOT / "firmware"
    found |= {str(path.relative_to(firmware))[:-3] + ".mpy": path for path in sorted((firmware / "app").rglob("*.py"))}
    return found | {target: ROOT / origin for origin, target in CONTENTS.items()}


def build(target: Path = ROOT / "build" / "virtual_board") -> Path:
    """Build a virtual board's files unless they exist already; return their folder."""
    return laid_out(sources(bool(MARCH)), target)


def laid_out(files: dict[str, Path], target: Path) -> Path:
    """Pack files into a folder below `target` whose name is a digest, unless it exists already; return it.

    Args:
        files: path on the board -> source file.
        target: the parent folder; made if missing.

    Raises:
        Failure: mpy-cross refused a file; the text has its name and the cause.
    """
    texts = [name.encode() + path.read_bytes() for name, path in files.items()]
    texts += [path.read_bytes() for path in sorted((ROOT / "tools" / "deploy").glob("*.py"))]
    texts += [" ".join(sorted(packing.public_names())).encode()]
    image = target / hashlib.sha256(b"".join(texts)).hexdigest()[:16]
    if image.exists():
        return image
    target.mkdir(parents=True, exist_ok=True)
    # The folder gets its name when it is complete, because other boards may start at the same time.
    scratch = Path(tempfile.mkdtemp(dir=target))
    packing.write_files(scratch, packing.packed(files, MARCH))
    try:
        scratch.rename(image)
    except OSError:  # another process was first
        shutil.rmtree(scratch)
    return image
