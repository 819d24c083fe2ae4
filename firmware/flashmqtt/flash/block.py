"""A region on a block device of MicroPython's extended protocol: `rp2.Flash`, `esp32.Partition`, or a range of one.

`readblocks(n, buf, off)` reads, `writeblocks(n, buf, off)` programs without an erase, `ioctl(6, n)` erases. This module adds the
checks that the ports lack. rp2.Flash checks no bounds, reports no errors, and always programs whole 256-byte pages: with a
shorter buffer it would program the RAM after it, too. So pages have 256 bytes there, addresses are checked, and every program
and erase is read back. esp32.Partition programs any number of bytes and raises OSError, but does not verify either.

An encrypted ESP32 partition also works as a region. It is programmed in blocks of 16 bytes, each once. Erased flash reads as
noise there (`reads_blank` is False), so blankness can't be checked; programs are still read back. The journal refuses such a
region with its own error, because it programs a page in several steps.

A buffer to program must be in RAM (a bytearray): the flash can't be read while it is written.
"""

from flashmqtt.compat import TYPE_CHECKING
from flashmqtt.errors import UsageError
from flashmqtt.fast import is_blank, raw_run

from .region import Region

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251


class BlockRegion(Region):
    """The blocks from `first` to first + count - 1 of a device.

    Args:
        device: of the extended block protocol: `readblocks`, `writeblocks` and `ioctl`.
        first, count: its blocks; a count of 0 means all from `first` on. A block is an erase sector.
        page_bytes: 0 for the default: 1 for a device with `info()` (esp32.Partition), 16 if that is encrypted, else 256.
        encrypted: whether erased flash reads as noise; None: `info()` decides.

    Raises:
        UsageError: not a block device, or it does not have these blocks.
    """

    def __init__(
        self, device: "Any", first: int = 0, count: int = 0, page_bytes: int = 0, encrypted: "bool | None" = None
    ) -> None:
        blocks = hasattr(device, "ioctl") and device.ioctl(4, 0)
        sector_bytes = blocks and device.ioctl(5, 0)
        if not sector_bytes:
            raise UsageError("no block device")
        if not count:
            count = blocks - first
        if first < 0 or count < 1 or first + count > blocks:
            raise UsageError("%d blocks from %d of %d" % (count, first, blocks))
        info = None
        try:
            info = device.info()
        except AttributeError:
            pass
        if encrypted is None:
            encrypted = bool(info and info[5])
        if not page_bytes:
            page_bytes = 16 if encrypted else 1 if info else 256
        if encrypted and page_bytes % 16:
            raise UsageError("encrypted: pages of 16")
        super().__init__(count, sector_bytes, page_bytes)
        self._device = device
        self._blocks: "Any" = range(first, first + count)  # the device's number for each sector
        self.reads_blank = not encrypted
        self._bytes = count * sector_bytes
        self._before = bytearray(256)
        self._after = bytearray(256)

    def _raw(self, block: int, buf: "bytearray | memoryview", at: int) -> None:
        """Read inside one block."""
        try:
            error = self._device.readblocks(block, buf, at)  # a device in Python may return it
        except OSError as raised:
            error = raised
        if error:
            self._fail("read", block * self.sector_bytes + at, error)

    def read(self, offset: int, buf: "bytearray | memoryview") -> None:
        """Fill buf from offset; a read inside one sector takes one call and allocates nothing."""
        n = len(buf)
        size = self.sector_bytes
        at = offset % size
        if offset < 0 or offset + n > self._bytes:
            self._check(offset, n, 1)
        while at + n > size:
            view = memoryview(buf)
            self._raw(self._blocks[offset // size], view[: size - at], at)
            buf = view[size - at :]
            n -= size - at
            offset += size - at
            at = 0
        self._raw(self._blocks[offset // size], buf, at)

    def program(self, offset: int, buf: "bytes | bytearray | memoryview", again: bool = False) -> None:
        """Clear bits; see `region`."""
        n = len(buf)
        size = self.sector_bytes
        at = offset % size
        if (
            not 0 < n <= 256
            or n > size - at
            or offset < 0
            or (offset | n) % self.page_bytes
            or offset + n > self._bytes
        ):
            self._check_program(offset, n)
        block = self._blocks[offset // size]
        # Always 256 bytes: a shorter read needs a slice, which allocates.
        window = at if at < size - 256 else size - 256
        i = at - window
        device = self._device
        want = buf
        start = 0
        try:
            if self.reads_blank and not again:
                want = self._before
                start = i
                device.readblocks(block, want, window)
                if not raw_run(want, buf, n, i, 0, 1):
                    self._fail("program", offset, "not blank")
            device.writeblocks(block, buf, at)
            if not again:
                device.readblocks(block, self._after, window)
                if not raw_run(self._after, want, n, i, start, 0):
                    self._fail("program", offset, "read-back differs")
        except OSError as error:
            self._fail("program", offset, error)

    def erase(self, sector: int) -> None:
        """Set all bits of a sector."""
        size = self.sector_bytes
        self._check(sector * size, 1, 1)
        block = self._blocks[sector]
        try:
            failed = self._device.ioctl(6, block)
            for at in range(0, size if self.reads_blank else 0, 256):
                # The last read ends with the sector: a shorter one needs a slice, which allocates.
                self._raw(block, self._after, min(at, size - 256))
                failed = failed or not is_blank(self._after, 0, 256)
            if failed:
                self._fail("erase", sector * size, "read-back differs")
        except OSError as error:
            self._fail("erase", sector * size, error)
