"""A temporary folder for a JVM: deleted at its end, or, after a kill, at the next start.

Spark and its libraries create `spark-*`, `blockmgr-*`, `artifacts-*` and unpacked libraries in the JVM's temporary
directory, and delete them only at a normal end. In a separate folder, another process can delete them. A folder that no
process has locked belongs to a killed process.
"""

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from tools.command import Failure
from tools.landing.lock import take_lock

PREFIX = "flashmqtt-spark-"
LOCK = "lock"


class Scratch:
    """A folder in the temporary directory, locked by this process until `remove` or until the process ends."""

    def __init__(self) -> None:
        remove_left_behind()
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
            with suppress(FileNotFoundError, Failure):  # another process deletes it, because it was not locked yet
                self._lock = take_lock(self.path / LOCK, Failure("in use"))
                return

    def remove(self) -> None:
        """Delete the folder with its contents."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def remove_left_behind() -> None:
    """Delete the folders of this user's killed processes."""
    for path in Path(tempfile.gettempdir()).glob(PREFIX + "*"):
        with suppress(OSError, Failure):  # already deleted, of another user, or in use
            if not path.is_symlink() and path.stat().st_uid == os.getuid():
                handle = take_lock(path / LOCK, Failure("in use"))
                shutil.rmtree(path, ignore_errors=True)
                os.close(handle)
