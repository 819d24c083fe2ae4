"""Names of MicroPython that CPython lacks, so that the same files run on both.

MicroPython's compiler replaces `_NAME = const(expression)` by the value; only CPython calls `const` at run time.
"""

try:
    from micropython import const
except ImportError:  # CPython

    def const(value: int) -> int:
        """Return the value."""
        return value


try:
    from time import ticks_add, ticks_diff, ticks_ms  # type: ignore[attr-defined]
except ImportError:  # CPython
    from time import monotonic_ns

    def ticks_ms() -> int:
        """Return milliseconds of a monotonic clock; only differences are meaningful."""
        return monotonic_ns() // 1_000_000

    def ticks_diff(later: int, earlier: int) -> int:
        """Return the milliseconds from one `ticks_ms` to another."""
        return later - earlier

    def ticks_add(ticks: int, delta: int) -> int:
        """Return the `ticks_ms` value delta milliseconds after `ticks`."""
        return ticks + delta


TYPE_CHECKING = const(0)
