"""The few names of MicroPython that CPython lacks, so that the same files run on both.

`const` is folded away by MicroPython's compiler wherever a module writes `_NAME = const(expression)`; at run
time only CPython ever calls it.
"""

try:
    from micropython import const
except ImportError:  # CPython

    def const(value: int) -> int:
        """Return the value: on CPython a constant is a name like any other."""
        return value


try:
    from time import ticks_add, ticks_diff, ticks_ms  # type: ignore[attr-defined]
except ImportError:  # CPython
    from time import monotonic_ns

    def ticks_ms() -> int:
        """Return milliseconds of a clock that never goes back; only differences mean anything."""
        return monotonic_ns() // 1_000_000

    def ticks_diff(later: int, earlier: int) -> int:
        """Return the milliseconds from one `ticks_ms` to another."""
        return later - earlier

    def ticks_add(ticks: int, delta: int) -> int:
        """Return the `ticks_ms` that lies delta milliseconds after another."""
        return ticks + delta


TYPE_CHECKING = const(0)
