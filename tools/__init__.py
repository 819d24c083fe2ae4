"""What runs on the host: set-up, virtual board, flash simulator, broker, pipeline, measurements, deployment."""

import sys

if sys.implementation.name == "cpython":
    # The tools stand on the library's own modules: `python -m tools.run` finds them also without the Makefile's PYTHONPATH.
    from pathlib import Path

    _FIRMWARE = str(Path(__file__).resolve().parent.parent / "firmware")
    if _FIRMWARE not in sys.path:
        sys.path.append(_FIRMWARE)
