"""The wire audit: which QoS flows captured traffic holds, and who broke a rule; `python -m tools.wire`."""

import sys
from pathlib import Path

_FIRMWARE = str(Path(__file__).resolve().parents[2] / "firmware")
if _FIRMWARE not in sys.path:  # so that the command also works without the Makefile's PYTHONPATH
    sys.path.insert(0, _FIRMWARE)
