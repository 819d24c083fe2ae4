"""A region that feeds the watchdog at each of its calls, for a mount, which may take seconds.

Loaded if `Journal` is given `feed`; after the mount the journal uses the original region.
"""

from flashmqtt.compat import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251


class FedRegion:
    """Wraps a region of the same geometry."""

    def __init__(self, region: "Any", feed: "Any") -> None:
        self.sectors = region.sectors
        self.sector_bytes = region.sector_bytes
        self.page_bytes = region.page_bytes
        self.reads_blank = region.reads_blank
        self._region = region
        self._feed = feed

    def read(self, offset: int, buf: "bytearray | memoryview") -> None:
        """Fill buf from offset."""
        self._feed()
        self._region.read(offset, buf)

    def program(self, offset: int, buf: "bytes | bytearray | memoryview", again: bool = False) -> None:
        """Clear bits; see `region`."""
        self._feed()
        self._region.program(offset, buf, again)

    def erase(self, sector: int) -> None:
        """Set all bits of a sector."""
        self._feed()
        self._region.erase(sector)
