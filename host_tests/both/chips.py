"""More simulated flash chips: one that encrypts, and a chip after a restart of its board."""

from flashmqtt.fast import copy, is_blank
from tools.flashsim.nor import SECTOR_BYTES, NorFlash


class EncryptedFlash(NorFlash):
    """An encrypted partition of an ESP32: multiples of 16 bytes; each block of 16 bytes can be programmed once.

    An erased block reads as noise.
    """

    def __init__(self, size_bytes):
        super().__init__(size_bytes, "esp32")

    def readblocks(self, n, buf, off=0):
        """Read, and decrypt."""
        super().readblocks(n, buf, off)
        copy(buf, 0, _ciphered(n * SECTOR_BYTES + off, buf), 0, len(buf))

    def writeblocks(self, n, buf, off=None):
        """Encrypt, and program."""
        at = n * SECTOR_BYTES + (off or 0)
        if at % 16 or len(buf) % 16:
            raise OSError(-0x102 if at % 16 else -0x104)
        super().writeblocks(n, _ciphered(at, buf), off)

    def info(self):
        """Return what esp32.Partition.info() returns."""
        return super().info()[:5] + (True,)  # noqa: RUF005 - MicroPython has no star in a tuple

    def _combine(self, at, buf, start, n):
        known = len(self.violations)
        blocks = [i for i in range(0, n, 16) if not is_blank(self._page, i, i + 16)]
        super()._combine(at, buf, start, n)
        self.violations[known:] = ["second program of an encrypted block at %d" % (at + i) for i in blocks[:1]]


def _ciphered(at, buf):
    return bytearray([buf[i] ^ ((at + i) * 2654435761 >> 13 & 0xFF) for i in range(len(buf))])


def chip(size_bytes, personality):
    """Return a chip of the personality "rp2", "esp32" or "esp32-encrypted"."""
    return EncryptedFlash(size_bytes) if personality == "esp32-encrypted" else NorFlash(size_bytes, personality)


def replugged(flash):
    """Return the same chip as a new object, powered up and with counters at 0; the old object stays dead.

    So objects of the old program, for example a file's finaliser, can't write to the chip after a power cut.
    """
    new = NorFlash(SECTOR_BYTES, flash.personality)
    new.size_bytes, new.sectors = flash.size_bytes, flash.sectors
    new.erase_counts = [0] * flash.sectors
    for name in ("violations", "_weak", "_weak_density", "_bad", "_meant", "_cells"):
        setattr(new, name, getattr(flash, name))
    flash._cells = bytearray(0)
    flash.dead = True
    return new
