"""Operations on bytes that allocate nothing: copy, compare, fill, blank test and CRC-32 inside a caller's buffers.

Slices of buffers and CRC results of 2^30 or more are heap objects on a 32-bit board. These functions make neither, so that the
steady state of the layers above can run under `micropython.heap_lock()`. This package knows no packets and no flash.

    copy(dst, at, src, start, n)            dst[at:at+n] = src[start:start+n]; the two may overlap in one buffer
    equal(a, at, b, start, n) -> bool       a[at:at+n] == b[start:start+n]
    fill(dst, start, end, value)            every byte of dst[start:end] = value (0..255)
    lay(dst, at, src, start, n) -> bool     dst[at:at+n] &= src[start:start+n], as flash is programmed; False, and dst undefined,
                                            if a byte would get a second value (neither is FF, and they differ)
    is_blank(buf, start, end) -> bool       every byte of buf[start:end] is FF, as an erase leaves it (True when empty)
    put_crc32(buf, start, end, at, seed)    buf[at:at+4] = crc32(buf[start:end], seed), least significant byte first
    crc32_matches(buf, start, end, at, seed) -> bool     does buf[at:at+4] have that CRC?

Without any check, for a caller that has checked every range itself (the journal's inner loop, where a check costs more than the
work):

    raw_copy(dst, src, n, at, start)        dst[at:at+n] = src[start:start+n]
    raw_fill(dst, n, value, start)          every byte of dst[start:start+n] = value
    raw_run(dst, src, n, at, start, laid) -> bool    lay where laid is 1, else equal
    raw_crc32(buf, seed, n, start, at, put) -> bool    put_crc32 of buf[start:start+n] where put is 1, or else crc32_matches

The CRC is that of zlib and Ethernet; `seed` is the second argument of zlib.crc32 (0..2^30-1 here, so that it is not a heap object
either). Buffers are bytes, bytearrays or memoryviews of bytes. A range outside its buffer raises IndexError and changes nothing:
native code would otherwise overwrite other memory.

The implementation is chosen once: `native` (MicroPython with the viper emitter: both boards, unix on x64) or `plain`.
"""

try:
    from .native import (
        copy,
        crc32_matches,
        equal,
        fill,
        is_blank,
        lay,
        put_crc32,
        raw_copy,
        raw_crc32,
        raw_fill,
        raw_run,
    )
except (ImportError, SyntaxError, ValueError):  # CPython; no native emitter; compiled for another processor
    from .plain import (  # noqa: F401
        copy,
        crc32_matches,
        equal,
        fill,
        is_blank,
        lay,
        put_crc32,
        raw_copy,
        raw_crc32,
        raw_fill,
        raw_run,
    )
