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
    i = 0
    if int(to) + at <= int(of) + start:
        while i < n:
            to[at + i] = of[start + i]
            i += 1
    else:  # the two may overlap: from the end
        i = n - 1
        while i >= 0:
            to[at + i] = of[start + i]
            i -= 1


@micropython.viper
def equal(a, at: int, b, start: int, n: int) -> bool:
    """Return whether a[at:at+n] == b[start:start+n]."""
    _check(a, at, b, start, n)
    p = ptr8(a)
    q = ptr8(b)
    i = 0
    while i < n:
        if p[at + i] != q[start + i]:
            return False
        i += 1
    return True


@micropython.viper
def fill(dst, start: int, end: int, value: int):
    """Set every byte of dst[start:end]."""
    _check(dst, start, dst, start, end - start)
    p = ptr8(dst)
    i = start
    while i < end:
        p[i] = value
        i += 1


@micropython.viper
def is_blank(buf, start: int, end: int) -> bool:
    """Return whether every byte of buf[start:end] is FF."""
    _check(buf, start, buf, start, end - start)
    p = ptr8(buf)
    i = start
    while i < end:
        if p[i] != 0xFF:
            return False
        i += 1
    return True


@micropython.viper
def lay(dst, at: int, src, start: int, n: int) -> bool:
    """Clear in dst[at:at+n] the bits that are 0 in src[start:start+n], unless a byte that is not FF would change."""
    _check(dst, at, src, start, n)
    to = ptr8(dst)
    of = ptr8(src)
    i = 0
    while i < n:
        if of[start + i] != 0xFF and to[at + i] != 0xFF and to[at + i] != of[start + i]:
            return False
        i += 1
    i = 0
    while i < n:
        to[at + i] = to[at + i] & of[start + i]
        i += 1
    return True


@micropython.viper
def _crc32(buf, start: int, end: int, at: int, seed: int, put: int) -> bool:
    _check(buf, start, buf, start, end - start)
    _check(buf, at, buf, at, 4)
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


def put_crc32(buf, start, end, at, seed):
    """Write crc32(buf[start:end], seed) to buf[at:at+4]."""
    _crc32(buf, start, end, at, seed, 1)


def crc32_matches(buf, start, end, at, seed):
    """Return whether buf[at:at+4] is crc32(buf[start:end], seed)."""
    return _crc32(buf, start, end, at, seed, 0)
