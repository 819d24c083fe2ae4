"""Mount the file system on the storage before the journal's space; create it if needed. Replaces the port's _boot.py."""

import vfs
from journal_space import file_system

bdev = file_system()
try:
    fs = vfs.VfsLfs2(bdev, progsize=256)
except Exception:
    vfs.VfsLfs2.mkfs(bdev, progsize=256)
    fs = vfs.VfsLfs2(bdev, progsize=256)
vfs.mount(fs, "/")

del vfs, file_system, bdev, fs
