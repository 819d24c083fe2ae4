"""The board contract: the interface of the module `board`, which the application imports on every board.

All differences between boards are behind these names. A board's folder has its `board.py`; the virtual board's is in
`tools/virtual_board`. Each file is independent, so that a new board can begin with a copy of one; in return, a few functions
(such as setting the clock) exist twice. A function whose hardware a board lacks returns None and does not raise. Only
`journal_region` (it reads flash), `sleep` and `reset` may wait.
"""

from collections.abc import Callable
from typing import NoReturn, Protocol

MODEL: str
"""The kind of board, as a text for people."""

class Sensor(Protocol):
    name: str
    """The reading's name in SenML: letters, digits and `- : . / _`, starting with a letter or digit (RFC 8428, 4.5.1)."""
    unit: str
    """A unit of the SenML registry (RFC 8428, 12.1), or "" for none."""

    qos: int
    """The QoS of its readings; 1 if the sensor has no such attribute."""
    interval_ms: int
    """How often it is read; without this attribute, or with 0, the configuration's interval."""

    def read(self) -> float | None:
        """Return the value, or None if the sensor has none now."""

class Region(Protocol):
    """See `flashmqtt.flash.region`."""

    sector_bytes: int
    sectors: int
    page_bytes: int

    def read(self, offset: int, buf: bytearray | memoryview) -> None:
        """Fill all of buf from this offset."""

    def program(self, offset: int, buf: bytearray | memoryview, again: bool = False) -> None:
        """Clear bits from this offset on; offset and length of buf are multiples of page_bytes, inside one sector.

        Args:
            again: the same bytes were programmed there before, maybe incompletely: no check, no read-back.
        """

    def erase(self, sector: int) -> None:
        """Set all bits of the sector."""

def unique_id() -> str:
    """Return the chip's unique id: lower-case hex digits."""

def reset_cause() -> str:
    """Return why the board started: "power-on", "brown-out", "watchdog", "reset", "deep-sleep" or "unknown"."""

def reset() -> NoReturn:
    """Reset the board, like the reset button."""

def network_up(ssid: str, password: str, country: str, log: Callable[[str], object] | None = None) -> bool:
    """Join the network if it is not up, without waiting; return whether it is up now. Call this repeatedly.

    Args:
        ssid, password: of the Wi-Fi; "" if the board has none, or joins in its boot.py.
        country: two capital letters, or "": selects the allowed channels.
        log: a function such as `print`, called with one line of text for each change (joining, joined, lost) and for each failed
            attempt, with the reason and the time of the next attempt. Each line begins with `network: `.
    """

def network_problem() -> str:
    """Return why the network is not up ("wrong password" ...), or "" if it is up or the reason is unknown."""

def network_down() -> None:
    """Switch the network off."""

def network_strength() -> int | None:
    """Return the signal strength in dBm."""

def journal_region(sectors: int, feed: Callable[[], None] | None = None) -> Region:
    """Return the flash region that the journal may use; the region's `sectors` says how many it has.

    Args:
        sectors: how many sectors of 4 KB the first call reserves if the journal shares the flash with the file system. An
            existing journal keeps its size and its messages, whatever is given: for another size, deliver the messages, remove
            the journal (`make wipe JOURNAL=1`), and call this again. A separate partition is used whole.
        feed: called at least once a second meanwhile, because the first call may make hundreds of files.

    Raises:
        flashmqtt.errors.StoreError: there is no such region, or it is not the journal's.
    """

def sensors() -> list[Sensor]:
    """Return the sensors on the board itself."""

def led(on: bool) -> None:
    """Switch the status LED."""

def watchdog(timeout_ms: int) -> Callable[[], None]:
    """Start the watchdog with timeout_ms, or the nearest timeout that is safe on this chip; return its feed function."""

def watchdog_off() -> None:
    """Stop the watchdog, or feed it from a timer: the program ends, and a person may use the REPL.

    Do nothing if no watchdog was started.
    """

def sleep(duration_ms: int) -> NoReturn:
    """Switch the network off, sleep for duration_ms in the deepest mode of the board, and reset."""

def supply_millivolts() -> int | None:
    """Return the voltage of the supply or battery in mV."""

def clock() -> int | None:
    """Return the seconds since 1970 UTC, or None while the clock is not set."""

def set_clock(unix_s: int) -> None:
    """Set the clock to unix_s, the seconds since 1970 UTC."""
