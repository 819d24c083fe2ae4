"""A region in RAM: for tests, and for programs that use the journal as a queue without durability."""

from flashmqtt.fast import copy, raw_fill, raw_run

from .region import Region


class RamRegion(Region):
    """Sectors in one bytearray.

    Args:
        sectors, sector_bytes, page_bytes: the geometry, see `region`.
        cells: the content, sectors times sector_bytes long, for example an image to examine. None: blank.
    """

    def __init__(
        self, sectors: int, sector_bytes: int = 4096, page_bytes: int = 1, cells: "bytearray | None" = None
    ) -> None:
        super().__init__(sectors, sector_bytes, page_bytes)
        if cells is None:
            cells = bytearray(sectors * sector_bytes)
            raw_fill(cells, len(cells), 0xFF, 0)
        self.cells = cells
        self._window = bytearray(256)

    def read(self, offset: int, buf: "bytearray | memoryview") -> None:
        """Fill buf from offset."""
        self._check(offset, len(buf), 1)
        copy(buf, 0, self.cells, offset, len(buf))

    def program(self, offset: int, buf: "bytes | bytearray | memoryview", again: bool = False) -> None:
        """Clear bits; see `region`."""
        n = len(buf)
        self._check_program(offset, n)
        if again:
            for i in range(n):
                self.cells[offset + i] &= buf[i]
            return
        copy(self._window, 0, self.cells, offset, n)
        if not raw_run(self._window, buf, n, 0, 0, 1):
            self._fail("program", offset, "not blank")
        copy(self.cells, offset, self._window, 0, n)

    def erase(self, sector: int) -> None:
        """Set all bits of a sector."""
        self._check(sector * self.sector_bytes, 1, 1)
        raw_fill(self.cells, self.sector_bytes, 0xFF, sector * self.sector_bytes)
