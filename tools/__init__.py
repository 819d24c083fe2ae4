"""What a user runs on the host: set-up, deployment, virtual board, collector, pipeline; and `proof`, which proves all of it."""

import sys

if sys.implementation.name == "cpython":
    # The tools stand on the library's own modules: `python -m tools.proof.run` finds them also without the Makefile's PYTHONPATH.
    from pathlib import Path

    _FIRMWARE = str(Path(__file__).resolve().parent.parent / "firmware")
    if _FIRMWARE not in sys.path:
        sys.path.append(_FIRMWARE)
