"""The byte operations in plain Python, for CPython and for a MicroPython without the native emitter.

Same results and same errors as `native`, which is what boards run; these allocate (slices, CRC results). The package's own
docstring says what each function does.
"""

from binascii import crc32

from flashmqtt.compat import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251


def _check(buf: "bytes | bytearray | memoryview", start: int, n: int) -> None:
    if start < 0 or n < 0 or start + n > len(buf):
        raise IndexError("range outside the buffer")


def copy(dst: "bytearray | memoryview", at: int, src: "bytes | bytearray | memoryview", start: int, n: int) -> None:
    """dst[at:at+n] = src[start:start+n]."""
    _check(dst, at, n)
    _check(src, start, n)
    raw_copy(dst, src, n, at, start)


def equal(a: "Any", at: int, b: "bytes | bytearray | memoryview", start: int, n: int) -> bool:
    """Return whether a[at:at+n] == b[start:start+n]."""
    _check(a, at, n)
    _check(b, start, n)
    return raw_run(a, b, n, at, start, 0)


def is_blank(buf: "bytes | bytearray | memoryview", start: int, end: int) -> bool:
    """Return whether every byte of buf[start:end] is FF."""
    _check(buf, start, end - start)
    return bytes(memoryview(buf)[start:end]) == b"\xff" * (end - start)


def raw_copy(dst: "bytearray | memoryview", src: "bytes | bytearray | memoryview", n: int, at: int, start: int) -> None:
    """dst[at:at+n] = src[start:start+n]."""
    dst[at : at + n] = bytes(memoryview(src)[start : start + n])  # copy first, as the two may overlap


def raw_fill(dst: "bytearray | memoryview", n: int, value: int, start: int) -> None:
    """Set dst[start:start+n]."""
    dst[start : start + n] = bytes([value]) * n


def raw_crc32(buf: "Any", seed: int, n: int, start: int, at: int, put: int) -> bool:
    """Write, or compare, the CRC of buf[start:start+n] at buf[at:at+4]."""
    crc = crc32(memoryview(buf)[start : start + n], seed).to_bytes(4, "little")
    if put:
        buf[at : at + 4] = crc
        return True
    return bytes(memoryview(buf)[at : at + 4]) == crc


def raw_run(
    dst: "bytearray | memoryview", src: "bytes | bytearray | memoryview", n: int, at: int, start: int, lay: int
) -> bool:
    """Return whether the two ranges are equal; or, if `lay` is 1, lay one over the other, as flash is programmed."""
    new = bytes(memoryview(src)[start : start + n])
    old = bytes(memoryview(dst)[at : at + n])
    if not lay:
        return new == old
    if old != b"\xff" * n:
        for i in range(n):
            if new[i] != 0xFF and old[i] != 0xFF and old[i] != new[i]:
                return False
        new = bytes(a & b for a, b in zip(old, new))
    dst[at : at + n] = new
    return True
