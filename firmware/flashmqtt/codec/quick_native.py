# ruff: noqa: F821
# mypy: ignore-errors
"""The loops of `quick` as machine code (viper); only MicroPython imports this module. Viper checks no bounds: see there."""

import micropython


@micropython.viper
def plain_end(buf: ptr8, start: int, end: int) -> int:
    """Return where plain text ends."""
    while start < end:
        c = buf[start]
        if c > 127 or c < 1 or c == 43 or c == 35:
            break
        start += 1
    return start


@micropython.viper
def same(buf: ptr8, start: int, other: ptr8, n: int) -> bool:
    """Return whether the bytes are the same."""
    while n:
        n -= 1
        if buf[start + n] != other[n]:
            return False
    return True


@micropython.viper
def put_message(
    buf: ptr8,
    pos: int,
    head: int,
    n: int,
    topic: ptr8,
    topic_length: int,
    packet_id: int,
    payload: ptr8,
    payload_length: int,
) -> int:
    """Put a PUBLISH; return the position behind it."""
    buf[pos] = head
    pos += 1
    while n > 127:
        buf[pos] = n | 128
        n >>= 7
        pos += 1
    buf[pos] = n
    buf[pos + 1] = topic_length >> 8
    buf[pos + 2] = topic_length
    pos += 3
    i = 0
    while i < topic_length:
        buf[pos] = topic[i]
        i += 1
        pos += 1
    if packet_id:
        buf[pos] = packet_id >> 8
        buf[pos + 1] = packet_id
        pos += 2
    i = 0
    while i < payload_length:
        buf[pos] = payload[i]
        i += 1
        pos += 1
    return pos
