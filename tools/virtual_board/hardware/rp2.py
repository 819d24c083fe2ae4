"""The fake of `rp2`: the flash is the block device in `simulated`, usually a `NorFlash`."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Simulated:
    """The chip: `device` is its block device."""

    def __init__(self):
        self.device: Any = None


simulated = Simulated()
_BLOCK = 4096


class Flash:
    """All of the storage, or a range of it."""

    def __init__(self, *, start=-1, len=-1):
        count = simulated.device.ioctl(4, 0)
        self._first = 0 if start == -1 else start // _BLOCK
        self._count = count - self._first if len == -1 else len // _BLOCK
        if (start != -1 and start % _BLOCK) or not 0 < self._count <= count - self._first:
            raise ValueError

    def readblocks(self, block_num, buf, offset=0):
        """Read."""
        simulated.device.readblocks(self._first + block_num, buf, offset)

    def writeblocks(self, block_num, buf, offset=None):
        """Program; without an offset, erase first."""
        simulated.device.writeblocks(self._first + block_num, buf, offset)

    def ioctl(self, op, arg=0):
        """Answer the block protocol."""
        if op == 4:
            return self._count
        return simulated.device.ioctl(op, self._first + arg if op == 6 else arg)
