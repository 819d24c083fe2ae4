"""The board contract: what `firmware/main.py` asks of the module `board` that lies beside it on every board.

All that differs between boards is behind these names. A board's folder holds its `board.py`; the virtual board's lies in
`tools/virtual_board`. A function that a board has no hardware for returns None, it does not raise.
"""

from typing import Protocol

class Sensor(Protocol):
    name: str
    """The reading's name in SenML: letters, digits and `- : . / _`, starting with a letter or digit (RFC 8428, 4.5.1)."""
    unit: str
    """A unit of the SenML registry (RFC 8428, 12.1), or "" for none."""

    def read(self) -> float | None:
        """Return the value, or None where the sensor gives none just now."""

class Region(Protocol):
    sector_bytes: int
    sectors: int
    page_bytes: int

    def read(self, offset: int, buf: bytearray | memoryview) -> None: ...
    def program(self, offset: int, buf: bytearray | memoryview) -> None: ...
    def erase(self, sector: int) -> None: ...

def unique_id() -> str:
    """Return an id that no other board has, from the chip: lower-case hex digits."""

def reset_cause() -> str:
    """Return why the board started: "power-on", "brown-out", "watchdog", "reset", "deep-sleep" or "unknown"."""

def network_up(ssid: str, password: str, timeout_ms: int, feed) -> bool:
    """Bring the network up, calling feed() meanwhile; return whether it is up at the deadline."""

def network_down() -> None:
    """Switch the network off."""

def network_strength() -> int | None:
    """Return the signal strength in dBm."""

def journal_region() -> Region:
    """Return the flash region that the journal may use.

    Raises:
        flashmqtt.errors.StoreError: there is none, or it is not the journal's.
    """

def sensors() -> list[Sensor]:
    """Return the sensors that are on the board itself."""

def led(on: bool) -> None:
    """Switch the status LED."""

def watchdog(timeout_ms: int):
    """Start the watchdog; return the function that feeds it."""

def sleep(duration_ms: int) -> None:
    """Sleep as deeply as the board can; where that ends in a reset, this does not return."""

def supply_millivolts() -> int | None:
    """Return the supply's or battery's voltage in mV."""
