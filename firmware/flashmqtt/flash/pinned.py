"""A region on stock firmware, without repartitioning: files whose blocks littlefs never relocates.

A littlefs file of exactly one block occupies one data block from offset 0, without a pointer in it. littlefs never moves the data
of a file that is not written. So N such files in their own directory reserve N blocks, which are then programmed and erased
directly, like a swap file. `pin` makes the files, once; `PinnedFiles` finds and guards the blocks at every start; `open_or_pin`
does either as needed.

littlefs itself tells which block a file has. A second, read-only instance is mounted on the same device through a wrapper that
notes which block is read for the first byte of a file. So no token has to be written and searched, a copy with equal content
can't be mistaken for the file, and each lookup is a fresh mount without stale caches. A small file, `map`, keeps the block
numbers found by `pin`: a file that was replaced or restored later has another block and is refused.

The blocks are checked again, without programming a page:
- before each erase, and before a program into a block that does not begin with our own bytes: the metadata blocks that the mount
  read (each directory has two) are compared by a fingerprint. If they are unchanged, the file still has the same block. If they
  have changed, a new mount must find the file in the same block.
- before any other program: the block's first 16 bytes must be the ones that we wrote. littlefs erases a block before it reuses
  it, so the deletion of a file is detected before a byte of another file is overwritten.
A block that is not ours is never written; the error is PinsLost. If the device has no littlefs, or there is no room, the error is
PinsRefused. The files must be made through the mounted file system, because its allocator has to know them: hence `root`.

A fingerprint allocates nothing; a mount allocates about 3 KB temporarily. This module knows no journal.
"""

import os
from array import array

from flashmqtt.compat import TYPE_CHECKING, const
from flashmqtt.errors import StoreError
from flashmqtt.fast import copy, equal, is_blank, raw_crc32

from .block import BlockRegion

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any  # noqa: TID251

_MAP = "/map"
_MAGIC = b"FMP1"
_NO_ROOM = const(28)  # ENOSPC
_IS_FILE = const(0x8000)


class PinsRefused(StoreError):
    """Blocks can't be reserved by files: no littlefs on that device, no room, or other files in that directory."""


class PinsLost(StoreError):
    """The files that reserved the store's blocks are gone, replaced or moved; no other data was overwritten."""


class _ReadRecorder:
    """A read-only wrapper of the device that notes which blocks littlefs reads."""

    def __init__(self, device: "Any", blocks: "Any", feed: "Callable[[], object] | None") -> None:
        self._device = device
        self._feed = feed
        self.seen = bytearray(blocks)
        self.block = -1  # the block read since this was set to -1; -2: several
        self.in_lookup = False

    def readblocks(self, n: int, buf: "bytearray | memoryview", off: int = 0) -> "Any":
        """Read, and note the block. Feed the watchdog, as a lookup makes hundreds of reads."""
        if self._feed:
            self._feed()
        if self.in_lookup:
            self.block = n if self.block in (-1, n) else -2
        else:
            self.seen[n] = 1
        return self._device.readblocks(n, buf, off)

    def writeblocks(self, _n: int, _buf: "bytes | bytearray | memoryview", _off: int = 0) -> None:
        """Refuse with EROFS."""
        raise OSError(30)

    def ioctl(self, op: int, arg: int) -> "Any":
        """Refuse an erase; ignore start and stop, which are not for the device; pass on the rest."""
        if op == 6:
            raise OSError(30)
        return 0 if op < 4 else self._device.ioctl(op, arg)


class _FreshMount:
    """A fresh, read-only mount of the file system, to find the blocks of the pinned files."""

    def __init__(self, device: "Any", mount: "Any", feed: "Callable[[], object] | None") -> None:
        self._recorder = _ReadRecorder(device, device.ioctl(4, 0), feed)
        try:
            self._fs = mount(self._recorder)
        except (OSError, ValueError) as error:
            raise PinsLost("no littlefs here: %s" % error)

    def metadata(self) -> "array[int]":
        """Return the blocks that the mount read: all metadata blocks."""
        seen = self._recorder.seen
        return array("H", [n for n in range(len(seen)) if seen[n]])

    def block_of(self, path: str, size: int) -> int:
        """Return the block of a one-block file, or raise PinsLost."""
        try:
            if self._fs.stat(path)[6] != size:
                raise PinsLost("%s: its size is not one block" % path)
            recorder = self._recorder
            with self._fs.open(path, "rb") as file:
                recorder.block = -1
                recorder.in_lookup = True
                got = file.readinto(bytearray(1))
                recorder.in_lookup = False
        except OSError as error:
            raise PinsLost("%s: gone (%s)" % (path, error))
        if got != 1 or recorder.block < 0:
            raise PinsLost("%s: not in one data block" % path)
        return recorder.block

    def is_unused(self, directory: str) -> bool:
        """Return whether there is no map, and all pinned files are blank: `pin` was never completed."""
        fs = self._fs
        window = bytearray(256)
        try:
            names = [entry[0] for entry in fs.ilistdir(directory) if entry[1] == _IS_FILE]
        except OSError:
            return True  # no such directory
        for name in names:
            if name == _MAP[1:]:
                return False
            with fs.open(directory + "/" + name, "rb") as file:
                while name.isdigit():
                    got = file.readinto(window)
                    if not got:
                        break
                    if not is_blank(window, 0, got):
                        return False
        return True

    def content(self, path: str) -> bytearray:
        """Return the content of a small file, or raise PinsLost."""
        try:
            with self._fs.open(path, "rb") as file:
                return bytearray(file.read(2048))
        except OSError as error:
            raise PinsLost("%s: gone (%s)" % (path, error))


def _littlefs(device: "Any") -> "Any":
    """Return a littlefs object without mounting it in the file tree; its cache must hold an inline file of 512 bytes."""
    from vfs import VfsLfs2

    return VfsLfs2(device, readsize=128, progsize=128)


def _name(directory: str, sector: int) -> str:
    return "%s/%03d" % (directory, sector)


def _packed(blocks: "Any") -> bytearray:
    """Return the map's bytes: magic, count, the block of each file, CRC; numbers of 16 bits, least significant byte first."""
    out = bytearray(_MAGIC)
    out += len(blocks).to_bytes(2, "little")
    for block in blocks:
        out += block.to_bytes(2, "little")
    end = len(out)
    out += bytes(4)
    raw_crc32(out, 0, end, 0, end, 1)
    return out


def _unpacked(content: "bytes | bytearray | memoryview") -> "array[int]":
    """Return the blocks of a map, or raise PinsLost."""
    end = len(content) - 4
    if end < 8 or content[:4] != _MAGIC or not raw_crc32(content, 0, end, 0, end, 0):
        raise PinsLost("the map is damaged; pin() rewrites it and keeps the files")
    blocks = array("H", [content[i] | content[i + 1] << 8 for i in range(6, end, 2)])
    if len(blocks) != content[4] | content[5] << 8:
        raise PinsLost("the map is damaged; pin() rewrites it and keeps the files")
    return blocks


def pin(
    device: "Any",
    directory: str,
    count: int,
    root: str = "",
    mount: "Any" = _littlefs,
    feed: "Callable[[], object] | None" = None,
) -> None:
    """Make the files that reserve `count` blocks, and the map; complete an interrupted or damaged pinning.

    Args:
        device: the raw block device with the file system.
        directory: for the files: a path inside that file system, such as "/journal".
        count: how many blocks.
        root: where that file system is mounted ("" for "/", as on boards).
        mount: makes a littlefs object of a block device.
        feed: called at least once per file; there may be hundreds, a tenth of a second each: feed the watchdog here.

    Raises:
        PinsRefused: no littlefs on the device, no room, or other files in that directory.
    """
    size = device.ioctl(5, 0)
    if count < 1 or count > 999:
        raise PinsRefused("%d blocks: 1 to 999" % count)
    try:
        mount(_ReadRecorder(device, device.ioctl(4, 0), feed))
    except (OSError, ValueError) as error:
        raise PinsRefused("no littlefs here: %s" % error)
    made = []
    try:
        path = root + directory
        try:
            if os.stat(path)[0] == _IS_FILE:
                raise PinsRefused("%s is not ours" % path)
        except OSError:
            os.mkdir(path)
        for sector in range(count):
            if feed:
                feed()
            path = _name(root + directory, sector)
            try:
                have = os.stat(path)[6]
            except OSError:
                have = 0
            if have == size:
                continue  # from an interrupted pinning, or the map was lost: keep its content
            if have:
                raise PinsRefused("%s is not ours" % path)
            made.append(path)
            _fill(path, size, feed)
        fresh = _FreshMount(device, mount, feed)
        blocks = [fresh.block_of(_name(directory, sector), size) for sector in range(count)]
        if len(set(blocks)) != count:
            raise PinsRefused("two files in one block")
        with open(root + directory + _MAP + ".new", "wb") as file:
            file.write(_packed(blocks))
        os.rename(root + directory + _MAP + ".new", root + directory + _MAP)
    except (OSError, PinsLost) as error:
        for path in made:
            if feed:
                feed()
            try:
                os.remove(path)
            except OSError:
                pass
        why: "Any" = error
        if error.args[0] == _NO_ROOM:
            why = "no room; ask for fewer, or remove files"
        raise PinsRefused("can't pin %d blocks: %s" % (count, why))


def open_or_pin(
    device: "Any",
    directory: str,
    count: int,
    root: str = "",
    page_bytes: int = 0,
    encrypted: "bool | None" = None,
    mount: "Any" = _littlefs,
    feed: "Callable[[], object] | None" = None,
) -> "PinnedFiles":
    """Return the pinned region; make it if it was never used (first start, or a power cut during that).

    An existing region keeps its size and its content, whatever `count` is: its `sectors` says how many it has. If there is a map,
    or a file that is not blank, then a missing file is an error, and no new region is made.

    Args:
        device, directory, count, root, mount, feed: see `pin`.
        page_bytes, encrypted: see `BlockRegion`.

    Raises:
        PinsLost, PinsRefused: see `PinnedFiles` and `pin`.
    """
    if _FreshMount(device, mount, feed).is_unused(directory):
        pin(device, directory, count, root, mount, feed)
    return PinnedFiles(device, directory, page_bytes, encrypted, mount, feed)


def _fill(path: str, size: int, feed: "Callable[[], object] | None") -> None:
    blank = b"\xff" * 256
    with open(path, "wb") as file:
        for _ in range(size // 256):
            file.write(blank)
            if feed:
                feed()


class PinnedFiles(BlockRegion):
    """The region of the blocks that `pin` reserved; each write is guarded.

    Args:
        device, directory, mount: as for `pin`.
        page_bytes, encrypted: see `BlockRegion`.
        feed: called during every lookup of the files, now or later.

    Raises:
        PinsLost: the files are gone, replaced or moved; raised here, or by a later program or erase.
    """

    def __init__(
        self,
        device: "Any",
        directory: str,
        page_bytes: int = 0,
        encrypted: "bool | None" = None,
        mount: "Any" = _littlefs,
        feed: "Callable[[], object] | None" = None,
    ) -> None:
        self._directory = directory
        self._mount = mount
        self._feed = feed
        fresh = _FreshMount(device, mount, feed)
        blocks = _unpacked(fresh.content(directory + _MAP))
        super().__init__(device, 0, len(blocks), page_bytes, encrypted)
        self._blocks = blocks
        self._checked = bytearray(len(blocks))  # 1: the file was found in its block since `_fingerprint` was computed
        for sector in range(len(blocks)):
            self._find(fresh, sector)
        self._metadata = fresh.metadata()
        self._chain = bytearray(260)  # 256 bytes, and the CRC up to these
        self._fingerprint = bytearray(4)
        self._compute_fingerprint()
        copy(self._fingerprint, 0, self._chain, 256, 4)
        self._sector = -1  # the sector whose first bytes are in `_head`
        self._head = bytearray(16)
        self._now = bytearray(16)
        self._marked = False  # is `_head` not blank?

    def erase(self, sector: int) -> None:
        """Set all bits of a sector if it is still ours."""
        self._check(sector * self.sector_bytes, 1, 1)
        self._guard(sector)
        self._sector = -1
        super().erase(sector)

    def program(self, offset: int, buf: "bytes | bytearray | memoryview", again: bool = False) -> None:
        """Clear bits if the sector is still ours; see `region`."""
        self._check_program(offset, len(buf))
        sector = offset // self.sector_bytes
        block = self._blocks[sector]
        self._raw(block, self._now, 0)
        if sector != self._sector or not self._marked or not equal(self._now, 0, self._head, 0, 16):
            self._guard(sector)
            self._remember_head(sector, self._now)
        super().program(offset, buf, again)
        if offset % self.sector_bytes < 16:
            self._raw(block, self._now, 0)
            self._remember_head(sector, self._now)
            self._marked = self._marked or not self.reads_blank

    def _remember_head(self, sector: int, head: "bytes | bytearray | memoryview") -> None:
        self._sector = sector
        copy(self._head, 0, head, 0, 16)
        self._marked = self.reads_blank and not is_blank(head, 0, 16)

    def _guard(self, sector: int) -> None:
        """Raise PinsLost unless the file system still has the sector's file in this block."""
        self._compute_fingerprint()
        if equal(self._chain, 256, self._fingerprint, 0, 4) and self._checked[sector]:
            return
        fresh = _FreshMount(self._device, self._mount, self._feed)
        if not equal(self._chain, 256, self._fingerprint, 0, 4):
            for other in range(self.sectors):
                self._checked[other] = 0
            self._metadata = fresh.metadata()
            self._compute_fingerprint()
            copy(self._fingerprint, 0, self._chain, 256, 4)
        self._find(fresh, sector)

    def _find(self, fresh: "Any", sector: int) -> None:
        path = _name(self._directory, sector)
        block = fresh.block_of(path, self.sector_bytes)
        if block != self._blocks[sector]:
            raise PinsLost("%s: now in block %d, not %d: replaced" % (path, block, self._blocks[sector]))
        self._checked[sector] = 1

    def _compute_fingerprint(self) -> None:
        """Compute into `_chain` the CRC of all metadata blocks, in steps over 256 bytes and the last CRC."""
        chain = self._chain
        chain[256] = chain[257] = chain[258] = chain[259] = 0
        window = self._after
        i = 0
        while i < len(self._metadata):
            if self._feed:
                self._feed()
            at = 0
            while at < self.sector_bytes:
                self._raw(self._metadata[i], window, at)
                copy(chain, 0, window, 0, 256)
                raw_crc32(chain, 0, 260, 0, 256, 1)
                at += 256
            i += 1
