"""When to reconnect: exponential backoff with full jitter, a maximum delay, and a step that can survive power cuts.

It knows no clock, no socket and no store: the caller reports an event and gets the milliseconds to wait. The step returns to 0
only after a connection that lasted; the caller sets it to 0 if a connection delivered a message. So a broker that accepts and
drops every connection is not overloaded. A caller that keeps `step` in its store (`note.keep_step`) also delays a fleet of
devices that reboots repeatedly.
"""

from random import getrandbits

from .compat import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def _random_below(n: int) -> int:
    return getrandbits(30) % n


class Backoff:
    """Delays between attempts: a random time below base_ms, twice that, four times that, up to cap_ms.

    Args:
        base_ms: the longest delay before the first attempt after a lost connection.
        cap_ms: the longest delay of all.
        lasting_ms: a connection that lasted this long sets the step to 0.
        step: the first step; not 0 after a reboot during an outage.
        random_below: takes n, returns a number from 0 to n - 1.
    """

    def __init__(
        self,
        base_ms: int = 500,
        cap_ms: int = 120000,
        lasting_ms: int = 5000,
        step: int = 0,
        random_below: "Callable[[int], int]" = _random_below,
    ) -> None:
        self.base_ms = int(base_ms)  # a board's clock takes no float: the client could not reconnect
        self.cap_ms = int(cap_ms)
        self.lasting_ms = lasting_ms
        self.step = step
        self._random_below = random_below

    def next_delay_ms(self, lasted_ms: int) -> int:
        """A connection ended after lasted_ms (0: the attempt failed); return the ms to wait before the next attempt."""
        if lasted_ms >= self.lasting_ms:
            self.step = 0
        limit = self.limit_ms()
        if limit < self.cap_ms:
            self.step += 1
        return self._random_below(limit + 1)

    def limit_ms(self) -> int:
        """Return the longest delay at this step."""
        limit = self.base_ms
        for _ in range(self.step):
            limit *= 2
            if limit >= self.cap_ms:
                return self.cap_ms
        return limit
