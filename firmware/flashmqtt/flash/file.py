"""A region in a plain file: MicroPython on unix, CPython, or a FAT card.

If the file does not exist, it is created blank. Each program and erase is synced to the disk before it returns, for durability;
the operating system reports write errors, so nothing is read back.

Two programs that write to one file would destroy each other's messages. So a second region on a file is refused while the first
one is open, also in the same process. CPython takes a lock (flock). MicroPython has no locks on unix, so it asks Linux which
processes have the file open for writing: unlike a lock file, that answer can't be stale after a crash or a reboot. Not detected
are a CPython process that opens a file after a MicroPython process did, and for MicroPython the processes of another user or
container. On a board, and for MicroPython on systems other than Linux, nothing is checked.
"""

import gc
import os

from flashmqtt.compat import TYPE_CHECKING, const
from flashmqtt.errors import FlashFailed, StoreError, StoreForeign
from flashmqtt.fast import is_blank, raw_fill, raw_run

from .region import Region

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251

try:
    from fcntl import LOCK_EX, LOCK_NB, flock
except ImportError:  # MicroPython, Windows
    flock = None  # type: ignore[assignment]


_NO_FILE = const(2)  # ENOENT
_FILE_ERRORS = (OSError, ValueError)  # ValueError: the file is closed, or the path has a NUL


class StoreInUse(StoreError):
    """Another region, in this process or another one, has the file open."""


class FileRegion(Region):
    """Sectors in a file of exactly that size.

    Args:
        path: the file; created blank if it does not exist.
        sectors, sector_bytes, page_bytes: the geometry, see `region`.
        sync: False lets the operating system decide when bytes reach the disk: for tests only.

    Raises:
        FlashFailed: the file can't be opened or made.
        StoreForeign: the file has another size, and is not blank.
        StoreInUse: another region, here or in another process, has the file open. `close` releases it.
    """

    def __init__(
        self, path: str, sectors: int, sector_bytes: int = 4096, page_bytes: int = 1, sync: bool = True
    ) -> None:
        super().__init__(sectors, sector_bytes, page_bytes)
        self.path = path
        self._sync = sync
        self._window = bytearray(256)
        self._file: "Any" = None
        try:
            self._open()
        except _FILE_ERRORS as error:
            try:
                if self._file:
                    self._file.close()
            except OSError:
                pass  # what could not be written can't be flushed
            self._failed(error)

    def _open(self) -> None:
        """Open the file, or create it; an interrupted creation, whose bytes are all blank, is completed."""
        size = self.sectors * self.sector_bytes
        try:
            self._file = open(self.path, "r+b")
        except OSError as error:
            if error.args[0] != _NO_FILE:  # "wb" would empty a file that is there but can't be opened now
                raise
            open(self.path, "wb").close()
            self._file = open(self.path, "r+b")
        if self._is_shared():
            gc.collect()  # this closes a region without references
            if self._is_shared():
                self._file.close()
                raise StoreInUse("%s is open in another region or process: close that first" % self.path)
        have = self._file.seek(0, 2)
        if have == size:
            return
        if have > size or not self._blank(0, have):
            self._file.close()
            raise StoreForeign("%s: %d bytes, not %d" % (self.path, have, size))
        raw_fill(self._window, 256, 0xFF, 0)
        self._file.seek(0)
        for _ in range(size // 256):
            self._file.write(self._window)
        self._flush()

    def _failed(self, error: object) -> None:
        raise FlashFailed("%s: %s" % (self.path, error))

    def _is_shared(self) -> bool:
        """Return whether another region has the file open for writing; lock the file if the system has locks."""
        if flock is not None:
            try:
                flock(self._file.fileno(), LOCK_EX | LOCK_NB)
            except BlockingIOError:
                return True
            except OSError:
                pass  # a file system without locks
            return False
        return _writers(self.path) > 1

    def close(self) -> None:
        """Close the file: another region may open it now."""
        self._file.close()

    def _blank(self, offset: int, n: int) -> bool:
        self._file.seek(offset)
        while n > 0:
            got = self._file.readinto(self._window)
            if not got or not is_blank(self._window, 0, min(got, n)):
                return False
            n -= got
        return True

    def _flush(self) -> None:
        self._file.flush()  # MicroPython syncs here
        if self._sync and hasattr(os, "fsync"):
            os.fsync(self._file.fileno())

    def read(self, offset: int, buf: "bytearray | memoryview") -> None:
        """Fill buf from offset."""
        self._check(offset, len(buf), 1)
        try:
            self._read(offset, buf, len(buf))
        except _FILE_ERRORS as error:
            self._failed(error)

    def _read(self, offset: int, buf: "bytearray | memoryview", n: int) -> None:
        """Read at least n bytes; fewer come if the file became shorter."""
        self._file.seek(offset)
        got = self._file.readinto(buf)
        if got < n:
            self._failed("%d bytes at %d, not %d" % (got, offset, n))

    def program(self, offset: int, buf: "bytes | bytearray | memoryview", again: bool = False) -> None:
        """Clear bits; see `region`."""
        n = len(buf)
        self._check_program(offset, n)
        try:
            if again:
                self._program_again(offset, buf)
            else:
                self._program(offset, buf, n)
            self._flush()
        except _FILE_ERRORS as error:
            self._failed(error)

    def _program_again(self, offset: int, buf: "bytes | bytearray | memoryview") -> None:
        n = len(buf)
        old = bytearray(n)
        self._read(offset, old, n)
        for i in range(n):
            old[i] &= buf[i]
        self._write(offset, old, n)

    def _program(self, offset: int, buf: "bytes | bytearray | memoryview", n: int) -> None:
        window = self._window
        self._read(offset, window, n)  # more than these are not used
        if not raw_run(window, buf, n, 0, 0, 1):
            self._fail("program", offset, "not blank")
        self._write(offset, window, n)

    def _write(self, offset: int, buf: "bytearray | memoryview", n: int) -> None:
        self._file.seek(offset)
        if self._file.write(buf if n == len(buf) else memoryview(buf)[:n]) != n:
            self._failed("a write at %d wrote less than %d bytes" % (offset, n))

    def erase(self, sector: int) -> None:
        """Set all bits of a sector."""
        self._check(sector * self.sector_bytes, 1, 1)
        raw_fill(self._window, 256, 0xFF, 0)
        try:
            for at in range(sector * self.sector_bytes, (sector + 1) * self.sector_bytes, 256):
                self._write(at, self._window, min(256, (sector + 1) * self.sector_bytes - at))
            self._flush()
        except _FILE_ERRORS as error:
            self._failed(error)


def _writers(path: str) -> int:
    """Return how many file descriptors on this machine are open for writing to a file, as far as Linux tells MicroPython."""
    writers = 0
    try:
        inode, device = os.stat(path)[1:3]
        if inode:  # a board's file system has none
            for process in os.ilistdir("/proc"):  # type: ignore[attr-defined]  # a list of all would take 12 KB
                if process[0].isdigit():
                    writers += _descriptors("/proc/%s/" % process[0], inode, device)
    except (AttributeError, OSError):  # no ilistdir, or no /proc
        pass
    return writers


def _descriptors(process: str, inode: int, device: "Any") -> int:
    """Return how many descriptors of one process are open for writing to that file."""
    writers = 0
    try:
        for descriptor in os.ilistdir(process + "fd"):  # type: ignore[attr-defined]
            writers += _writes_to(process, descriptor[0], inode, device)
    except OSError:  # another user's, or gone
        pass
    return writers


def _writes_to(process: str, descriptor: str, inode: int, device: "Any") -> bool:
    """Return whether a process's descriptor is open for writing to that file."""
    try:
        if os.stat(process + "fd/" + descriptor)[1:3] != (inode, device):
            return False
        with open(process + "fdinfo/" + descriptor) as fdinfo:
            for line in fdinfo:
                if line.startswith("flags:"):
                    return int(line[6:].strip(), 8) & 3 != 0
    except OSError:
        pass  # closed meanwhile
    return False
