"""The front of `utf8`'s scan in plain Python: for CPython, and for a MicroPython without the native emitter."""

_is_ascii = getattr(bytes, "isascii", None)  # CPython's


def plain_end(buf, start, end):
    """Return `end` where nothing in buf[start:end] needs a second look, or else a position before what does."""
    if _is_ascii is None:
        return start
    text = bytes(memoryview(buf)[start:end])
    return end if _is_ascii(text) and 0 not in text and 43 not in text and 35 not in text else start
