"""A region in RAM of which one read or program fails, wherever a test wants it (the chip of `nor` has sectors that are bad)."""

from flashmqtt.errors import FlashFailed
from flashmqtt.flash.ram import RamRegion


class FailingRegion(RamRegion):
    """Fails once, when the last of these is used up, and does nothing then; 0 or less: never."""

    reads_left = 0
    programs_left = 0

    def read(self, offset, buf):
        """Fill buf, or fail."""
        self.reads_left -= 1
        if self.reads_left == 0:
            raise FlashFailed("read")
        super().read(offset, buf)

    def program(self, offset, buf, again=False):
        """Clear bits, or fail."""
        self.programs_left -= 1
        if self.programs_left == 0:
            raise FlashFailed("program")
        super().program(offset, buf, again)
