"""A timer that feeds the watchdog during a name lookup, which blocks for up to 7 s per name server.

The guard feeds for 20 s at most, so that the watchdog still resets a program that hangs. Loaded if the program gives `feed` and
the port has a timer whose callbacks run while lwIP waits (rp2). On other ports the import or the timer fails, and there is no
guard. It knows no network.
"""

from machine import Timer  # type: ignore[import-not-found, unused-ignore]

from .compat import TYPE_CHECKING, const

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251

_PERIOD_MS = const(500)
_TICKS = const(40)  # 20 s


class Guard:
    """Feeds every half second until `end`, for 20 s at most."""

    def __init__(self, feed: "Any") -> None:
        self._feed = feed
        self._left = _TICKS
        self._timer = Timer(-1)
        self._timer.init(period=_PERIOD_MS, callback=self._tick)

    def _tick(self, _timer: "Any") -> None:
        self._left -= 1
        if self._left < 0:
            self._timer.deinit()
        else:
            self._feed()

    def end(self) -> None:
        """Stop: the lookup has returned."""
        self._timer.deinit()
