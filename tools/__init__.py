"""The host's programs: set-up, deployment, virtual board, collector, pipeline, and in `proof` the tests' own tools."""

import sys

if sys.implementation.name == "cpython":
    import os

    # Nothing here uses numpy's linear algebra, whose threads take half the CPU time of each start, also of child processes.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

    # The tools import flashmqtt's modules. This finds them without the Makefile's PYTHONPATH.
    from pathlib import Path

    _FIRMWARE = str(Path(__file__).resolve().parent.parent / "firmware")
    if _FIRMWARE not in sys.path:
        sys.path.append(_FIRMWARE)
