"""When to try to connect again: exponential backoff with full jitter, a cap, and a step that survives power cuts.

It knows no clock, no socket and no store: the caller says what happened and is told how many milliseconds to wait. The step goes
back to 0 only after a connection that lasted, or that the caller saw do its work (it then sets `step` to 0): a broker that
accepts and drops everybody is not hammered. A caller that keeps `step` in its store (`session.keep_step`) spreads out a fleet
that reboots again and again.
"""

from .compat import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def _random_below(n: int) -> int:
    from random import getrandbits

    return getrandbits(30) % n


class Backoff:
    """Delays between attempts: a random time below base_ms, twice that, four times that, up to cap_ms.

    Args:
        base_ms: the longest delay before the first attempt that follows a lost connection.
        cap_ms: no delay is longer.
        lasting_ms: a connection that stood for this long sets the step back.
        step: where to begin; not 0 after a reboot in the middle of an outage.
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
        self.base_ms = base_ms
        self.cap_ms = cap_ms
        self.lasting_ms = lasting_ms
        self.step = step
        self._random_below = random_below

    def ended(self, lasted_ms: int) -> int:
        """A connection ended after lasted_ms (0: it never came about); return how many ms to wait before the next attempt."""
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
