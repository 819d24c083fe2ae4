# ruff: noqa: F821
# mypy: ignore-errors
"""The loops of `quick` as machine code (viper); only MicroPython imports this module. Viper checks no bounds: see `quick`."""

import micropython

_len = len  # a board needs 5 us longer to find a builtin than to find a global


@micropython.viper
def plain_end(buf: ptr8, start: int, end: int) -> int:
    """Return where plain text ends."""
    # Up to a 0 or what is not ASCII, and up to the wildcards 35 and 43, which differ in the bit of 8.
    while start < end and uint(buf[start] - 1) < uint(127) and buf[start] | 8 != 43:
        start += 1
    return start


@micropython.viper
def put_message(buf, pos: int, topic, payload, head: int) -> int:
    """Put a PUBLISH; return the position after it, 0 if it may not fit."""
    length = int(_len(topic))
    size = int(_len(payload))
    more = 2 if head > 255 else 0
    n = length + size + more + 2
    if pos + n + 5 > int(_len(buf)):
        return 0
    to = ptr8(int(ptr8(buf)) + pos)
    pos += n + 2
    to[0] = head
    while n > 127:
        to = ptr8(int(to) + 1)
        to[0] = n | 128
        n >>= 7
        pos += 1
    to[1] = n
    to[2] = length >> 8
    to[3] = length
    to = ptr8(int(to) + 4)
    of = ptr8(topic)
    while True:  # first for the topic, then for the payload
        while length > 3:  # four at a time: the loop costs more than the bytes
            to[0] = of[0]
            to[1] = of[1]
            to[2] = of[2]
            to[3] = of[3]
            to = ptr8(int(to) + 4)
            of = ptr8(int(of) + 4)
            length -= 4
        while length:
            to[0] = of[0]
            to = ptr8(int(to) + 1)
            of = ptr8(int(of) + 1)
            length -= 1
        if not n:
            break
        if more:
            to[0] = head >> 16
            to[1] = head >> 8
            to = ptr8(int(to) + 2)
        of = ptr8(payload)
        length = size
        n = 0
    return pos
