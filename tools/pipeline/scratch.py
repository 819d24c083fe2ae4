"""Where a JVM of ours keeps what it needs while it runs: a folder of its own, gone at the end, or at the next start after a kill.

Spark and its libraries leave `spark-*`, `blockmgr-*`, `artifacts-*` and unpacked libraries in the JVM's temporary
directory, and remove them in an orderly end only. In a folder of their own they can be removed without them. A folder
that nobody holds the lock of is one that a killed process left behind.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "flashmqtt-spark-"


class Scratch:
    """A folder in the temporary directory that is this process's until `remove`, or until it ends."""

    def __init__(self) -> None:
        remove_left_behind()
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
            try:
                self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError:
                continue  # another start took it for one that was left behind
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            if self.path.exists():
                return
            os.close(self._lock)

    def remove(self) -> None:
        """Delete the folder and what is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def remove_left_behind() -> None:
    """Delete the folders of this user's processes that were killed."""
    for path in Path(tempfile.gettempdir()).glob(PREFIX + "*"):
        try:
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:  # just removed, another user's, or no folder
            continue
        try:
            if os.fstat(handle).st_uid == os.getuid():
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
        except BlockingIOError:
            pass  # in use
        finally:
            os.close(handle)
