"""The library and the device's programs as a board has them: packed like `make deploy` packs them, without source."""

from __future__ import annotations

import sys
from pathlib import Path

from tools.bootstrap import ROOT
from tools.deploy import build
from tools.virtual_board.image import MARCH, laid_out

# The modules that the device's programs import besides a board's library.
BESIDES = (
    *("tools/__init__.py", "tools/proof/__init__.py", "tools/proof/device.py", "tools/proof/faults/__init__.py"),
    *("tools/proof/faults/board.py", "tools/flashsim/__init__.py", "tools/flashsim/nor.py"),
)


def compile_library() -> Path:
    """Compile what is not compiled yet; return the folder for MICROPYPATH."""
    files = {
        **build.library(bool(MARCH)),
        "flashmqtt/flash/file.py": ROOT / "firmware" / "flashmqtt" / "flash" / "file.py",
    }
    files |= {name: ROOT / name for name in BESIDES}
    return laid_out({f"{name[:-3]}.mpy": path for name, path in files.items()}, ROOT / "build" / "faults" / "image")


def program_on(interpreter: str, module: str, heap: str, path: str = "") -> tuple[list[str], dict[str, str]]:
    """Return the command that runs a module, and its environment variables.

    Args:
        interpreter: MicroPython if it begins with "mpy", else CPython.
        module: the name of the module.
        heap: of MicroPython, such as "192K".
        path: where MicroPython finds the library; default: the packed library.
    """
    if interpreter.startswith("mpy"):
        micropython = str(Path(sys.executable).parent / "micropython")
        # `.frozen` contains `ssl` and `asyncio`.
        path = f".frozen:{path or compile_library()}"
        return [micropython, "-X", f"heapsize={heap}", "-m", module], {"MICROPYPATH": path}
    return [sys.executable, "-m", module], {"PYTHONPATH": f"{ROOT}:{ROOT / 'firmware'}"}
