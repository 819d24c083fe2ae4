"""What fails when a test chooses: a call, and regions in RAM at a read or program. (For bad sectors see `NorFlash.set_bad`.)"""

from flashmqtt.errors import FlashFailed
from flashmqtt.flash.ram import RamRegion


def fail_once(owner, name, error=MemoryError, call=1):
    """Let the next call of a function or method raise an error, or a later one; after that it works again."""
    works = getattr(owner, name)
    left = call

    def fails(*arguments):
        nonlocal left
        left -= 1
        if left:
            return works(*arguments)
        setattr(owner, name, works)
        raise error

    setattr(owner, name, fails)


class FailingRegion(RamRegion):
    """Raises FlashFailed at the read or program that decrements its counter to 0. A counter of 0 or less never fails."""

    reads_left = 0
    programs_left = 0

    def read(self, offset, buf):
        """Fill buf, or raise FlashFailed."""
        self.reads_left -= 1
        if self.reads_left == 0:
            raise FlashFailed("read")
        super().read(offset, buf)

    def program(self, offset, buf, again=False):
        """Program buf, or raise FlashFailed."""
        self.programs_left -= 1
        if self.programs_left == 0:
            raise FlashFailed("program")
        super().program(offset, buf, again)


class UnreadableRegion(RamRegion):
    """The page at `page` can't be read; all other pages can. -1: there is no such page; ALL: no page can be read.

    A program there fails, because it reads first; one with `again` does not read. An erase fails there if `verifies` is set.
    """

    ALL = -2
    page = -1
    verifies = False

    def read(self, offset, buf):
        """Fill buf, or raise FlashFailed."""
        if self.page == self.ALL or (0 <= self.page < offset + len(buf) and offset < self.page + 256):
            raise FlashFailed("read at %d: EIO" % offset)
        super().read(offset, buf)

    def program(self, offset, buf, again=False):
        """Program buf, or raise FlashFailed."""
        if not again:
            self.read(offset, bytearray(len(buf)))
        super().program(offset, buf, again)

    def erase(self, sector):
        """Set all bits of a sector."""
        super().erase(sector)
        if self.verifies:
            self.read(sector * self.sector_bytes, bytearray(self.sector_bytes))


class StuckRegion(RamRegion):
    """A bit of sector 0 that can't be programmed: the lowest one of the byte at `stuck`."""

    stuck = 0

    def program(self, offset, buf, again=False):
        """Program buf but for this bit; raise FlashFailed if it should be 0 and the program is read back."""
        super().program(offset, buf, again)
        i = self.stuck - offset
        if 0 <= i < len(buf) and not buf[i] & 1:
            self.cells[self.stuck] |= 1
            if not again:
                raise FlashFailed("read-back differs")
