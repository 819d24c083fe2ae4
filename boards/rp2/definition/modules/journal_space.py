"""The journal's space on this image: the end of the flash, after the file system; `_boot.py` does not use it."""

import rp2

JOURNAL_BYTES = 256 * 1024


def file_system():
    """Return the block device of the file system."""
    return rp2.Flash(len=_all_bytes() - JOURNAL_BYTES)


def device():
    """Return the block device of the journal."""
    return rp2.Flash(start=_all_bytes() - JOURNAL_BYTES, len=JOURNAL_BYTES)


def _all_bytes():
    storage = rp2.Flash()
    return storage.ioctl(4, 0) * storage.ioctl(5, 0)
