"""MicroPython's hardware modules without hardware: `machine`, `network`, `rp2`, `esp32`, for tests and the virtual board.

Each fake has the names and the signatures of the port's own module, as far as the boards use them; a test compares them with the
ports' type stubs. What a test sets and looks at lies in `simulated`, an object in each fake. `load_board("rp2")` imports a
board's `board.py` on top of them, with a clock that only moves when somebody sleeps; it runs on both interpreters.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FAKES = ("machine", "network", "rp2", "esp32", "neopixel")


class Clock:
    """A module `time` whose ticks move only by sleeping, beginning at `set_to` seconds since 1970."""

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
        """Return later - earlier."""
        return later - earlier

    def sleep_ms(self, ms):
        """Let time go by."""
        self.ms += ms

    def time(self):
        """Return the seconds since 1970 that the simulated real-time clock shows."""
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


def with_ethernet(network):
    """Make the fake of `network` that of an image with an Ethernet chip and no radio."""
    from tools.virtual_board.hardware import wiznet

    wiznet.simulated = wiznet.Simulated()  # the cable of an earlier board is none of this one's
    del network.WLAN
    network.WIZNET5K = wiznet.WIZNET5K
    network.simulated = wiznet.simulated


class _Implementation:
    def __init__(self, machine):
        self._machine = machine


class _Sys:
    def __init__(self, machine):
        self.implementation = _Implementation(machine)


def load_board(name, machine="", ethernet=False, **simulated):
    """Import boards/NAME/board.py afresh on the fakes; return it, with the fakes as its attributes.

    Args:
        name: "rp2" or "esp32".
        machine: what `sys.implementation._machine` says there.
        ethernet: an image without Wi-Fi, with a WIZNET5K.
        simulated: what `machine.simulated` is to hold before the board's module runs.
    """
    package = __name__
    clock = Clock()
    modules: dict = {"time": clock}
    if sys.implementation.name != "micropython":
        modules["micropython"] = _MicroPython
    for fake in FAKES:
        sys.modules.pop(package + "." + fake, None)
        __import__(package + "." + fake)
        modules[fake] = sys.modules[package + "." + fake]
    for key, value in simulated.items():
        setattr(modules["machine"].simulated, key, value)
    modules["machine"].simulated.clock = clock
    if machine and sys.implementation.name == "micropython":
        modules["sys"] = _Sys(machine)
    elif machine:  # CPython's own is needed to import anything
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
