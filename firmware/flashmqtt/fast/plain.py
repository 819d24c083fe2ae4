"""The byte operations in plain Python, for CPython and for a MicroPython without the native emitter.

Same results and same errors as `native`, which is what boards run; these allocate (slices, CRC results). The package's own
docstring says what each function does.
"""

from binascii import crc32


def _check(buf, start, n):
    if start < 0 or n < 0 or start + n > len(buf):
        raise IndexError("range outside the buffer")


def copy(dst, at, src, start, n):
    """dst[at:at+n] = src[start:start+n]."""
    _check(dst, at, n)
    _check(src, start, n)
    dst[at : at + n] = bytes(memoryview(src)[start : start + n])  # a copy first: the two may overlap


def equal(a, at, b, start, n):
    """Return whether a[at:at+n] == b[start:start+n]."""
    _check(a, at, n)
    _check(b, start, n)
    return bytes(memoryview(a)[at : at + n]) == bytes(memoryview(b)[start : start + n])


def fill(dst, start, end, value):
    """Set every byte of dst[start:end]."""
    _check(dst, start, end - start)
    dst[start:end] = bytes([value & 0xFF]) * (end - start)


def is_blank(buf, start, end):
    """Return whether every byte of buf[start:end] is FF."""
    _check(buf, start, end - start)
    return bytes(memoryview(buf)[start:end]) == b"\xff" * (end - start)


def lay(dst, at, src, start, n):
    """dst[at:at+n] &= src[start:start+n], until a byte that is not FF would change; return whether none would."""
    _check(dst, at, n)
    _check(src, start, n)
    new = bytes(memoryview(src)[start : start + n])
    old = bytes(memoryview(dst)[at : at + n])
    if old != b"\xff" * n:
        for i in range(n):
            if new[i] != 0xFF and old[i] != 0xFF and old[i] != new[i]:
                return False
        new = bytes(a & b for a, b in zip(old, new))
    dst[at : at + n] = new
    return True


def put_crc32(buf, start, end, at, seed):
    """Write crc32(buf[start:end], seed) to buf[at:at+4]."""
    _check(buf, start, end - start)
    _check(buf, at, 4)
    buf[at : at + 4] = crc32(memoryview(buf)[start:end], seed).to_bytes(4, "little")


def crc32_matches(buf, start, end, at, seed):
    """Return whether buf[at:at+4] is crc32(buf[start:end], seed)."""
    _check(buf, start, end - start)
    _check(buf, at, 4)
    return bytes(memoryview(buf)[at : at + 4]) == crc32(memoryview(buf)[start:end], seed).to_bytes(4, "little")


def raw_copy(dst, src, n, at, start):
    """dst[at:at+n] = src[start:start+n]."""
    dst[at : at + n] = bytes(memoryview(src)[start : start + n])


def raw_fill(dst, n, value, start):
    """Set dst[start:start+n]."""
    dst[start : start + n] = bytes([value]) * n


def raw_crc32(buf, seed, n, start, at, put):
    """Write, or compare, the CRC of buf[start:start+n] at buf[at:at+4]."""
    crc = crc32(memoryview(buf)[start : start + n], seed).to_bytes(4, "little")
    if put:
        buf[at : at + 4] = crc
        return True
    return buf[at : at + 4] == crc


def raw_run(dst, src, n, at, start, laid):
    """Do what `lay` does where laid is 1, else what `equal` does."""
    return lay(dst, at, src, start, n) if laid else equal(dst, at, src, start, n)
