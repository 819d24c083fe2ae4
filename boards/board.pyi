"""The board contract: what the application asks of the module `board` that lies beside it on every board.

All that differs between boards is behind these names. A board's folder holds its `board.py`; the virtual board's lies
in `tools/virtual_board`. Each of them stands alone, so that a new board begins with a copy of one: the few functions
that are the same in two (setting the clock) are the price. A function that a board has no hardware for returns None,
it does not raise. Nothing here waits, but for `journal_region` (it reads flash), `sleep` and `reset`.
"""

from collections.abc import Callable
from typing import NoReturn, Protocol

MODEL: str
"""What kind of board this is, for people."""

class Sensor(Protocol):
    name: str
    """The reading's name in SenML: letters, digits and `- : . / _`, starting with a letter or digit (RFC 8428, 4.5.1)."""
    unit: str
    """A unit of the SenML registry (RFC 8428, 12.1), or "" for none."""

    qos: int
    """At which QoS its readings are published; 1 where a sensor has no such attribute."""
    interval_ms: int
    """How often it is read; the configuration's interval where it has none, or 0."""

    def read(self) -> float | None:
        """Return the value, or None where the sensor gives none just now."""

class Region(Protocol):
    """What `flashmqtt.flash.region` describes."""

    sector_bytes: int
    sectors: int
    page_bytes: int

    def read(self, offset: int, buf: bytearray | memoryview) -> None:
        """Fill all of buf from this offset."""

    def program(self, offset: int, buf: bytearray | memoryview, again: bool = False) -> None:
        """Clear bits from this offset on; offset and length of buf are multiples of page_bytes, inside one sector.

        Args:
            again: the same bytes were programmed there before, maybe cut short: nothing is checked or read back.
        """

    def erase(self, sector: int) -> None:
        """Set all bits of the sector."""

def unique_id() -> str:
    """Return an id that no other board has, from the chip: lower-case hex digits."""

def reset_cause() -> str:
    """Return why the board started: "power-on", "brown-out", "watchdog", "reset", "deep-sleep" or "unknown"."""

def reset() -> NoReturn:
    """Start again, as after a press of the reset button."""

def network_up(ssid: str, password: str, country: str, log: Callable[[str], object] | None = None) -> bool:
    """See that the network is up or on its way; return whether it is up now. To be called again and again.

    Args:
        ssid, password: of the Wi-Fi; "" where the board has none, or joins in its boot.py.
        country: two letters, or "": which channels may be used.
        log: called with one line of text, such as `print`, for each change: joining, joined, lost; and for each attempt that
            failed: why, and when the next one is. Each line begins with `network: `.
    """

def network_problem() -> str:
    """Return in words why the network is not up ("wrong password" ...), or "" where it is or nothing is known."""

def network_down() -> None:
    """Switch the network off."""

def network_strength() -> int | None:
    """Return the signal strength in dBm."""

def journal_region(sectors: int, feed: Callable[[], None] | None = None) -> Region:
    """Return the flash region that the journal may use.

    Args:
        sectors: how many sectors it is to have where it shares the flash with the file system; a partition of its own
            is taken whole.
        feed: called at least once a second meanwhile: the first call may make hundreds of files.

    Raises:
        flashmqtt.errors.StoreError: there is none, or it is not the journal's.
    """

def sensors() -> list[Sensor]:
    """Return the sensors that are on the board itself."""

def led(on: bool) -> None:
    """Switch the status LED."""

def watchdog(timeout_ms: int) -> Callable[[], None]:
    """Start the watchdog, with the nearest to timeout_ms that is safe on this chip; return the function that feeds it."""

def watchdog_off() -> None:
    """See that the watchdog resets nobody any more, because the program ends and a person may use the REPL: stop it, or feed it
    from a timer. Nothing, where none was started.
    """

def sleep(duration_ms: int) -> NoReturn:
    """Switch the network off, sleep for duration_ms as deeply as the board can, and start again."""

def supply_millivolts() -> int | None:
    """Return the supply's or battery's voltage in mV."""

def clock() -> int | None:
    """Return the seconds since 1970 UTC, or None while the clock is not set."""

def set_clock(unix_s: int) -> None:
    """Set the clock to unix_s, the seconds since 1970 UTC."""
