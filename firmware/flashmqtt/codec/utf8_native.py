# ruff: noqa: F821
# mypy: ignore-errors
"""The front of `utf8`'s scan as machine code (viper); only MicroPython imports this module.

Viper checks no bounds: `text_kind`, the only caller, does.
"""

import micropython


@micropython.viper
def plain_end(buf, start: int, end: int) -> int:
    """Return the position of the first byte of buf[start:end] that is not ASCII, or 0, or a wildcard; or `end`."""
    p = ptr8(buf)
    while start < end:
        c = p[start]
        if c > 127 or c < 1 or c == 43 or c == 35:
            break
        start += 1
    return start
