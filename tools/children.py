"""Processes that end with the one that started them, also when that is killed with SIGKILL and can end nothing any more.

    subprocess.Popen(command, preexec_fn=bound_to_this_process())

Linux does it (PR_SET_PDEATHSIG); elsewhere the function does nothing, and what is started outlives a SIGKILL of its parent. The
kernel watches the thread that started the child: start it from one that lives as long as the child has to.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
# Looked up here: between fork and exec nothing should be loaded any more.
_prctl = getattr(ctypes.CDLL(None), "prctl", None) if sys.platform == "linux" else None


def bound_to_this_process() -> Callable[[], None]:
    """Return what the child has to call before its program begins: `preexec_fn`, for subprocess and for asyncio."""
    parent = os.getpid()

    def bind() -> None:
        if _prctl is None:
            return
        _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:  # it was killed before the kernel knew
            os._exit(1)

    return bind
