"""The loops of `quick` in plain Python: for CPython, and for a MicroPython without the native emitter."""

_is_ascii = getattr(bytes, "isascii", None)  # CPython's


def plain_end(buf: "bytes | bytearray | memoryview", start: int, end: int) -> int:
    """Return where plain text ends, or an earlier position."""
    if _is_ascii is None:
        return start
    text = bytes(memoryview(buf)[start:end])
    return end if _is_ascii(text) and 0 not in text and 43 not in text and 35 not in text else start


def put_message(
    buf: "bytearray | memoryview",
    pos: int,
    topic: "bytes | bytearray | memoryview",
    payload: "bytes | bytearray | memoryview",
    head: int,
) -> int:
    """Put a PUBLISH; return the position after it, 0 if it may not fit."""
    length = len(topic)
    n = length + len(payload) + (4 if head > 255 else 2)
    if pos + n + 5 > len(buf):
        return 0
    buf[pos] = head & 255
    pos += 1
    while n > 127:
        buf[pos] = n & 127 | 128
        n >>= 7
        pos += 1
    buf[pos] = n
    buf[pos + 1] = length >> 8
    buf[pos + 2] = length & 255
    pos += 3
    buf[pos : pos + length] = topic
    pos += length
    if head > 255:
        buf[pos] = head >> 16
        buf[pos + 1] = head >> 8 & 255
        pos += 2
    end = pos + len(payload)
    buf[pos:end] = payload
    return end
