"""The fake of `esp32`: partitions are ranges of the block device in `simulated`."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Simulated:
    """The chip: `device` is its block device, `partitions` its table: label -> (first block, blocks)."""

    def __init__(self):
        self.device: Any = None
        self.partitions = {}
        self.fahrenheit = 127


simulated = Simulated()
_BLOCK = 4096


class Partition:
    """One partition."""

    TYPE_APP = 0
    TYPE_DATA = 1
    BOOT = 0
    RUNNING = 1

    def __init__(self, id, block_size=4096):
        self._label = id
        self._first, self._count = simulated.partitions[id]

    @staticmethod
    def find(type=TYPE_APP, subtype=0xFF, label=None):
        """Return the matching partitions."""
        if type != Partition.TYPE_DATA:
            return []
        return [Partition(name) for name in sorted(simulated.partitions) if label is None or name == label]

    def info(self):
        """Return (type, subtype, address, size, label, encrypted)."""
        return (Partition.TYPE_DATA, 0x81, self._first * _BLOCK, self._count * _BLOCK, self._label, False)

    def readblocks(self, block_num, buf, offset=0):
        """Read."""
        self._check(block_num, offset, buf)
        simulated.device.readblocks(self._first + block_num, buf, offset)

    def writeblocks(self, block_num, buf, offset=None):
        """Program; without an offset, erase first."""
        self._check(block_num, offset or 0, buf)
        simulated.device.writeblocks(self._first + block_num, buf, offset)

    def ioctl(self, op, arg=0):
        """Answer the block protocol."""
        if op == 4:
            return self._count
        if op == 6:
            self._check(arg, 0, b"")
            arg += self._first
        return simulated.device.ioctl(op, arg)

    def _check(self, block, offset, buf):
        if block * _BLOCK + offset + len(buf) > self._count * _BLOCK:
            raise OSError(-0x104)


def raw_temperature():
    """Return the chip's temperature in degrees Fahrenheit."""
    return simulated.fahrenheit
