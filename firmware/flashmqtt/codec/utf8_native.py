# ruff: noqa: F821, RUF046
# mypy: ignore-errors
"""The scan of `utf8` as machine code (viper); only MicroPython imports this module.

Bounds are checked before the pointer is made, since viper checks nothing: a
length field that lies must not read beyond the buffer.
"""

import micropython


@micropython.viper
def text_kind(buf, start: int, end: int) -> int:
    """Return -1, 0 or 1, as `utf8` says."""
    if start < 0 or start > end or end > int(len(buf)):
        raise IndexError
    p = ptr8(buf)
    kind = 0
    i = start
    while i < end:
        c = p[i]
        i += 1
        if c < 0x80:
            if c == 0:  # [MQTT-1.5.3-2] [MQTT-1.5.4-2]
                return -1
            if c == 43 or c == 35:
                kind = 1
        else:
            low = 0x80  # the second byte's range says all: overlong, surrogate, beyond 10FFFF [MQTT-1.5.3-1] [MQTT-1.5.4-1]
            high = 0xBF
            if c < 0xC2 or c > 0xF4:
                return -1
            n = 1
            if c >= 0xE0:
                n = 2
                if c == 0xE0:
                    low = 0xA0
                elif c == 0xED:
                    high = 0x9F
                elif c >= 0xF0:
                    n = 3
                    if c == 0xF0:
                        low = 0x90
                    elif c == 0xF4:
                        high = 0x8F
            if i + n > end:
                return -1
            while n:
                c = p[i]
                if c < low or c > high:
                    return -1
                low = 0x80
                high = 0xBF
                i += 1
                n -= 1
    return kind
