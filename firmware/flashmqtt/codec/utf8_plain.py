"""The scan of `utf8` in plain Python: for CPython, and for a MicroPython without the native emitter."""

import sys

_DECODES_STRICTLY = sys.implementation.name == "cpython"  # MicroPython's str() lets surrogates and overlong forms pass


def text_kind(buf, start, end):
    """Return -1, 0 or 1, as `utf8` says."""
    if start < 0 or start > end or end > len(buf):
        raise IndexError("range outside the buffer")
    if _DECODES_STRICTLY:
        text = bytes(memoryview(buf)[start:end])
        try:
            text.decode()
        except UnicodeDecodeError:
            return -1
        return -1 if 0 in text else 1 if 43 in text or 35 in text else 0
    return text_kind_by_bytes(buf, start, end)


def text_kind_by_bytes(buf, start, end):
    """Return what `text_kind` returns, by the same steps as the machine code."""
    kind = 0
    i = start
    while i < end:
        c = buf[i]
        i += 1
        if c < 0x80:
            if c == 0:
                return -1
            if c == 43 or c == 35:
                kind = 1
        else:
            low = 0x80
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
                if not low <= buf[i] <= high:
                    return -1
                low = 0x80
                high = 0xBF
                i += 1
                n -= 1
    return kind
