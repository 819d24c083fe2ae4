# ruff: noqa: F821
# mypy: ignore-errors
"""The byte operations as machine code (viper), for boards; only MicroPython imports this module.

Viper's `int` is a machine word: 32 bits on the boards, 64 on x64, so every right shift here is masked and every result is taken
bytewise; then both give the same. The ranges are checked before a pointer is made, since viper checks nothing. Compile with
`mpy-cross -march=armv6m` (RP2040) or `-march=xtensawin` (ESP32). The package's own docstring says what each function does.
"""

import micropython

# CRC-32 (reflected polynomial EDB88320) by half bytes: 64 bytes of table instead of 1024, two steps a byte. A bytearray and not
# bytes, as it is read in words and a frozen constant may lie unaligned, which the RP2040's Cortex-M0+ answers with a fault.
_TABLE = bytearray(
    b"\x00\x00\x00\x00\x64\x10\xb7\x1d\xc8\x20\x6e\x3b\xac\x30\xd9\x26\x90\x41\xdc\x76\xf4\x51\x6b\x6b\x58\x61\xb2\x4d\x3c\x71\x05\x50"
    b"\x20\x83\xb8\xed\x44\x93\x0f\xf0\xe8\xa3\xd6\xd6\x8c\xb3\x61\xcb\xb0\xc2\x64\x9b\xd4\xd2\xd3\x86\x78\xe2\x0a\xa0\x1c\xf2\xbd\xbd"
)


def _check(a, at, b, start, n):
    if at < 0 or start < 0 or n < 0 or at + n > len(a) or start + n > len(b):
        raise IndexError


@micropython.viper
def copy(dst, at: int, src, start: int, n: int):
    """dst[at:at+n] = src[start:start+n]."""
    _check(dst, at, src, start, n)
    to = ptr8(dst)
    of = ptr8(src)
    step = 1
    if int(to) + at > int(of) + start:  # the two may overlap: from the end
        at += n - 1
        start += n - 1
        step = -1
    while n > 0:
        to[at] = of[start]
        at += step
        start += step
        n -= 1


@micropython.viper
def _run(dst, at: int, src, start: int, n: int, how: int) -> bool:
    """Go through two ranges byte by byte: are they equal (0), may one be laid over the other (1), lay it (2)."""
    to = ptr8(dst)
    of = ptr8(src)
    while n > 0:
        old = to[at]
        new = of[start]
        if how == 2:
            to[at] = old & new
        elif old != new and (how == 0 or (old != 0xFF and new != 0xFF)):
            return False
        at += 1
        start += 1
        n -= 1
    return True


@micropython.viper
def fill(dst, start: int, end: int, value: int):
    """Set every byte of dst[start:end]."""
    _check(dst, start, dst, start, end - start)
    p = ptr8(dst)
    while start < end:
        p[start] = value
        start += 1


def equal(a, at, b, start, n):
    """Return whether a[at:at+n] == b[start:start+n]."""
    _check(a, at, b, start, n)
    return _run(a, at, b, start, n, 0)


def lay(dst, at, src, start, n):
    """Clear in dst[at:at+n] the bits that are 0 in src[start:start+n], unless a byte that is not FF would change."""
    _check(dst, at, src, start, n)
    return _run(dst, at, src, start, n, 1) and _run(dst, at, src, start, n, 2)


def is_blank(buf, start, end):
    """Return whether every byte of buf[start:end] is FF: the first one is, and each other is as the one before it."""
    n = end - start
    _check(buf, start, buf, start, n)
    return n == 0 or (buf[start] == 0xFF and _run(buf, start, buf, start + 1, n - 1, 0))


@micropython.viper
def _crc32(buf, start: int, end: int, at: int, seed: int, put: int) -> bool:
    p = ptr8(buf)
    table = ptr32(_TABLE)
    crc = seed ^ -1
    i = start
    while i < end:
        crc ^= p[i]
        crc = table[crc & 15] ^ ((crc >> 4) & 0x0FFFFFFF)
        crc = table[crc & 15] ^ ((crc >> 4) & 0x0FFFFFFF)
        i += 1
    crc ^= -1
    i = at
    while i < at + 4:
        if put:
            p[i] = crc
        elif p[i] != crc & 0xFF:
            return False
        crc = crc >> 8
        i += 1
    return True


def _checked_crc32(buf, start, end, at, seed, put):
    _check(buf, start, buf, start, end - start)
    _check(buf, at, buf, at, 4)
    return _crc32(buf, start, end, at, seed, put)


def put_crc32(buf, start, end, at, seed):
    """Write crc32(buf[start:end], seed) to buf[at:at+4]."""
    _checked_crc32(buf, start, end, at, seed, 1)


def crc32_matches(buf, start, end, at, seed):
    """Return whether buf[at:at+4] is crc32(buf[start:end], seed)."""
    return _checked_crc32(buf, start, end, at, seed, 0)
