"""Write a file as a whole: readers see its old content or its new one, never a part of it."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of a write; the operating system does not name the file."""


@contextlib.contextmanager
def replacing(
    path: Path, mode: str = "wb", *, sync: bool = True, temporary: Path | None = None, **options: Any
) -> Iterator[Any]:
    """Open a file for writing that gets the name `path` at the end of the block, or is deleted if the block raises.

    A file that it replaces passes on its mode and its owner. A new one belongs to the owner of its folder.

    Args:
        sync: the file and its name are durable at the end. Without it, the file may be empty after a power cut: only for
            files that can be made again.
        temporary: the name until then, in the same directory. After a kill the file of this name is left.
        options: for `open`.

    Raises:
        OSError: it could not be written. If the directory could not be synced, the file has its name.
    """
    temporary = temporary or path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open(mode, **options) as file:
            with contextlib.suppress(OSError):  # there is no file yet
                os.fchmod(file.fileno(), path.stat().st_mode & 0o777)
            give(file.fileno(), path if path.exists() else path.parent)
            yield file
            file.flush()
            if sync:
                os.fsync(file.fileno())
        temporary.replace(path)
        if sync:
            sync_directory(path.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            is_write = error.filename is None and error.errno in FULL
            if is_write or error.filename == str(temporary):
                error.filename = str(path)
        raise


def give(handle: int, like: Path) -> None:
    """Give an open file to the owner of another file or folder: else what root makes can't be written by that owner."""
    with contextlib.suppress(OSError):  # only root may give files away
        owner = like.stat()
        os.fchown(handle, owner.st_uid, owner.st_gid)


def sync_directory(directory: Path) -> None:
    """Make a directory's entries durable."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
