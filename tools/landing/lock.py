"""Locks on a landing folder: held by an open file, so that the kernel lets go of them however their process ends.

Two files are locked. `<collector>.logs/lock` belongs to one collector. `.lock` in the landing folder itself is held by every
collector that writes there: alone, or together with others where all of them share one subscription. Without that, each message
would land once for each of them.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from tools.landing.log import LandingError

LANDING_LOCK = ".lock"  # hidden: neither Spark nor `find_segments` takes it for a segment
RETRY_S = 0.05


class LandingInUse(LandingError):
    """Another collector works in this directory."""


def take_lock(path: Path, advice: str, wait_s: float = 0.0, shared: bool = False) -> int:
    """Lock a file, making it if it is not there; return its handle, which holds the lock until it is closed.

    Raises:
        LandingInUse: another collector holds it, for longer than `wait_s`; the text ends in `advice`.
        OSError: the file can't be written.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    deadline = time.monotonic() + wait_s
    try:
        while True:
            try:
                fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise LandingInUse(f"{path.parent} is in use by another collector; {advice}") from None
                time.sleep(RETRY_S)
            else:
                return handle
    except BaseException:
        os.close(handle)
        raise
