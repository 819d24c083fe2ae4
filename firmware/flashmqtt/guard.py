"""Feeding the watchdog from a timer while a call blocks that has no steps: the look-up of a name, of 7 s for each name server.

For so long only as such a call may take, so that a program that hangs is still reset. Loaded by a board that gives `feed` and
has a timer whose callbacks run while lwIP waits (rp2); elsewhere the import or the timer fails, and there is no guard. It knows
no network.
"""

from machine import Timer  # type: ignore[import-not-found, unused-ignore]

from .compat import TYPE_CHECKING, const

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251

_PERIOD_MS = const(500)
_TICKS = const(40)  # 20 s


class Guard:
    """Feeds every half second, 20 s at most, until `end`."""

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
        """The call has returned."""
        self._timer.deinit()
