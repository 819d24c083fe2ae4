"""A region in RAM; a test chooses the read or program that fails. (For bad sectors see `NorFlash.set_bad`.)"""

from flashmqtt.errors import FlashFailed
from flashmqtt.flash.ram import RamRegion


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
