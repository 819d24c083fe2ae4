"""The interface of a region: a row of equal sectors, read anywhere, programmed by pages, erased one by one.

    sector_bytes, sectors, page_bytes     geometry; a program starts and ends on multiples of page_bytes
    reads_blank                           False if erased flash does not read as FF (an encrypted partition)
    read(offset, buf)                     fills all of buf
    program(offset, buf[, again])         clears bits of 1 to 256 bytes inside one sector; FF leaves a byte as it is. again: the
                                          same bytes were programmed there before, maybe incompletely; no check, no read-back
    erase(sector)                         sets all bits

`program` follows the rules of NOR flash: a byte that is not FF can't get another value (FlashFailed, and nothing was written).
Each write is verified by reading back, unless the device does that itself. A call with arguments outside the region raises
UsageError. This package knows no journal and no MQTT.
"""

from flashmqtt.errors import FlashFailed, UsageError


class Region:
    """Geometry and argument checks; subclasses add the three calls.

    Args:
        sectors: how many sectors it has, numbered from 0.
        sector_bytes: the unit of an erase, at least 256 and a multiple of page_bytes.
        page_bytes: offset and length of a program are multiples of this.

    Raises:
        UsageError: an invalid geometry.
    """

    reads_blank = True

    def __init__(self, sectors: int, sector_bytes: int, page_bytes: int) -> None:
        if sectors < 1 or page_bytes < 1 or sector_bytes < 256 or sector_bytes % page_bytes:
            raise UsageError("region of %d x %d, pages of %d" % (sectors, sector_bytes, page_bytes))
        self.sectors = sectors
        self.sector_bytes = sector_bytes
        self.page_bytes = page_bytes

    def _check(self, offset: int, n: int, page: int) -> None:
        if offset < 0 or offset + n > self.sectors * self.sector_bytes or offset % page or n % page:
            raise UsageError("%d bytes at %d of the region" % (n, offset))

    def _check_program(self, offset: int, n: int) -> None:
        self._check(offset, n, self.page_bytes)
        if not 0 < n <= min(self.sector_bytes - offset % self.sector_bytes, 256):  # a program stays in one sector
            self._check(-1, n, 1)

    def _fail(self, what: str, offset: int, error: object) -> None:
        raise FlashFailed("%s at %d: %s" % (what, offset, error))
