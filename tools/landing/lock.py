"""Locks on a landing folder. An open file holds a lock, so the kernel releases it however the process ends.

Two files are locked. One collector locks `<collector>.logs/lock`, exclusively. Every collector that writes into the landing
folder also locks its `.lock`: shared if its subscriptions are shared ones (`$share/...`), else exclusively. Two collectors
without shared subscriptions would both store every message. A file that somebody deletes is made and locked again before the
next write; if another collector was faster, the write is refused.
"""

import fcntl
import os
import time
from pathlib import Path

from tools.command import Failure
from tools.landing.durable import give
from tools.landing.log import LandingError

LANDING_LOCK = ".lock"  # a hidden name, which Spark and `find_segments` ignore
RETRY_S = 0.05


class LandingInUse(LandingError):
    """Another collector uses this directory."""


def take_lock(path: Path, refusal: Failure, wait_s: float = 0.0, shared: bool = False) -> int:
    """Lock a file, creating it if necessary; return its handle, which holds the lock until it is closed.

    Raises:
        Failure: `refusal`, if another process holds the lock for longer than `wait_s`.
        OSError: the file can't be written.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    give(handle, path.parent)
    deadline = time.monotonic() + wait_s
    try:
        while True:
            try:
                fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
                return handle
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise refusal from None
                time.sleep(RETRY_S)
    except BaseException:
        os.close(handle)
        raise
