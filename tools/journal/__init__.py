"""Looking into a journal: `python -m tools.journal dump IMAGE`, or `dump --board PORT` for one that is in use."""

import sys
from pathlib import Path

_FIRMWARE = str(Path(__file__).resolve().parent.parent.parent / "firmware")
if _FIRMWARE not in sys.path:  # so that the command also works without the Makefile's PYTHONPATH
    sys.path.insert(0, _FIRMWARE)
