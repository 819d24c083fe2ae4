"""The host's programs: set-up, deployment, virtual board, collector, pipeline, and in `proof` the tests' own tools."""

import sys

if sys.implementation.name == "cpython":
    import os
    import signal

    # `python -m tools.X` imports this first, then X's modules, which takes seconds for some. Ctrl-C meanwhile ends the command
    # without a traceback; `tools.command.exit_status` then makes Ctrl-C a KeyboardInterrupt again.
    if sys.argv[:1] == ["-m"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    # Nothing here uses numpy's linear algebra, whose threads take half the CPU time of each start, also of child processes.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

    # The tools import flashmqtt's modules. This finds them without the Makefile's PYTHONPATH.
    from pathlib import Path

    _FIRMWARE = str(Path(__file__).resolve().parent.parent / "firmware")
    if _FIRMWARE not in sys.path:
        sys.path.append(_FIRMWARE)
