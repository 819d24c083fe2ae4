"""A temporary folder for a JVM: deleted at its end, or, after a kill, at the next start.

Spark and its libraries create `spark-*`, `blockmgr-*`, `artifacts-*` and unpacked libraries in the JVM's temporary
directory, and delete them only at a normal end. In a separate folder, another process can delete them. A folder that no
process has locked belongs to a killed process.
"""

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "flashmqtt-spark-"


class Scratch:
    """A folder in the temporary directory, locked by this process until `remove` or until the process ends."""

    def __init__(self) -> None:
        remove_left_behind()
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
            try:
                self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError:
                continue  # another process deleted it, because it was not locked yet
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            if self.path.exists():
                return
            os.close(self._lock)

    def remove(self) -> None:
        """Delete the folder with its contents."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def remove_left_behind() -> None:
    """Delete the folders of this user's killed processes."""
    for path in Path(tempfile.gettempdir()).glob(PREFIX + "*"):
        try:
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:  # already deleted, of another user, or not a folder
            continue
        try:
            if os.fstat(handle).st_uid == os.getuid():
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
        except BlockingIOError:
            pass  # in use
        finally:
            os.close(handle)
