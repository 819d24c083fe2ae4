"""A timer that feeds the watchdog during a name lookup, which blocks for up to 7 s per name server.

It feeds for 20 s at most, so that the watchdog still resets a program that hangs. Loaded for a lookup if the program gives
`feed`. Only some ports (rp2) have a timer whose callbacks run while lwIP waits; on others the lookup is not guarded. It knows no
network.
"""

from .compat import TYPE_CHECKING, const

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any  # noqa: TID251

_PERIOD_MS = const(500)
_TICKS = const(40)  # 20 s


class Guard:
    """Feeds every half second until `end`, for 20 s at most."""

    def __init__(self, feed: "Any") -> None:
        from machine import Timer  # type: ignore[import-not-found, unused-ignore]

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
        """Stop."""
        self._timer.deinit()


def look_up(feed: "Any", getaddrinfo: "Callable[..., Any]", host: str, port: int, kind: int) -> "Any":
    """Return what getaddrinfo finds; feed before and meanwhile. A numeric address needs no lookup."""
    guard = None
    if not host.replace(".", "").isdigit():
        feed()
        try:
            guard = Guard(feed)
        except (ImportError, ValueError, OSError):  # a port without such a timer
            pass
    try:
        return getaddrinfo(host, port, 0, kind)
    finally:
        if guard:
            guard.end()
