"""`load_board("rp2")` imports a board's `board.py` with fakes of the hardware, and with a clock that moves only by sleeping."""

import sys

from tools.virtual_board.hardware import with_ethernet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PACKAGE = "tools.virtual_board.hardware."
FAKES = ("machine", "network", "rp2", "esp32", "neopixel")


class Clock:
    """A fake of `time` that moves only by sleeping and begins at `set_to` seconds since 1970."""

    def __init__(self, set_to=1609459200):
        self.ms = 0
        self.unix_s = set_to

    def ticks_ms(self):
        """Return the milliseconds slept so far."""
        return self.ms

    def ticks_add(self, ticks, delta):
        """Return ticks + delta."""
        return ticks + delta

    def ticks_diff(self, later, earlier):
        """Return later - earlier, as a board does: its ticks wrap after 2^30 ms, which is 12 days."""
        return (later - earlier + (1 << 29)) % (1 << 30) - (1 << 29)

    def sleep_ms(self, ms):
        """Advance the clock."""
        self.ms += ms

    def time(self):
        """Return the seconds since 1970 of the simulated real-time clock."""
        return self.unix_s + self.ms // 1000

    def gmtime(self, seconds=None):
        """Return the calendar date of a time."""
        from time import gmtime

        return gmtime(self.time() if seconds is None else seconds)

    def mktime(self, date):
        """Return the seconds since 1970 of a date in UTC."""
        days = (date[0] - 1970) * 365 + (date[0] - 1969) // 4
        for month in range(1, date[1]):
            days += (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)[month - 1]
        if date[1] > 2 and date[0] % 4 == 0:
            days += 1
        return (((days + date[2] - 1) * 24 + date[3]) * 60 + date[4]) * 60 + date[5]


class _MicroPython:
    @staticmethod
    def const(value):
        """Return the value."""
        return value


class _Implementation:
    def __init__(self, machine):
        self._machine = machine


class _Sys:
    def __init__(self, machine):
        self.implementation = _Implementation(machine)


def load_board(name, machine="", ethernet=False, **simulated):
    """Import boards/NAME/board.py again, with the fakes; return the module.

    Args:
        name: "rp2" or "esp32".
        machine: the value of `sys.implementation._machine`.
        ethernet: an image with a WIZNET5K instead of Wi-Fi.
        simulated: attributes of `machine.simulated` to set before the import.
    """
    clock = Clock()
    modules: dict = {"time": clock}
    if sys.implementation.name != "micropython":
        modules["micropython"] = _MicroPython
    for fake in FAKES:
        sys.modules.pop(PACKAGE + fake, None)
        __import__(PACKAGE + fake)
        modules[fake] = sys.modules[PACKAGE + fake]
    for key, value in simulated.items():
        setattr(modules["machine"].simulated, key, value)
    modules["machine"].simulated.clock = clock
    if machine and sys.implementation.name == "micropython":
        modules["sys"] = _Sys(machine)
    elif machine:  # CPython needs its own `sys` to import anything
        sys.implementation._machine = machine  # type: ignore[attr-defined]
    if ethernet:
        with_ethernet(modules["network"])
    saved = {key: sys.modules.get(key) for key in modules}
    path = "boards." + name + ".board"
    loaded = sys.modules
    loaded.pop(path, None)
    loaded.update(modules)
    try:
        __import__(path)
        board: Any = loaded[path]
    finally:
        if hasattr(sys.implementation, "_machine") and sys.implementation.name != "micropython":
            del sys.implementation._machine
        for key, module in saved.items():
            if module is None:
                loaded.pop(key, None)
            else:
                loaded[key] = module
    board.clock_module = clock
    return board
