"""Operations on bytes that allocate nothing: copy, compare, fill, blank test and CRC-32 inside a caller's buffers.

Slices of buffers and CRC results of 2^30 or more are heap objects on a 32-bit board. These functions make neither, so that the
steady state of the layers above can run under `micropython.heap_lock()`. This package knows no packets and no flash.

    copy(dst, at, src, start, n)            dst[at:at+n] = src[start:start+n]; the two may overlap in one buffer
    equal(a, at, b, start, n) -> bool       a[at:at+n] == b[start:start+n]
    is_blank(buf, start, end) -> bool       every byte of buf[start:end] is FF, as an erase leaves it (True when empty)

Without any check, for a caller that has checked every range itself (the journal's inner loop, where a check costs more than the
work):

    raw_copy(dst, src, n, at, start)        dst[at:at+n] = src[start:start+n]; the two may overlap in one buffer
    raw_fill(dst, n, value, start)          every byte of dst[start:start+n] = value (0..255)
    raw_run(dst, src, n, at, start, lay) -> bool
        with lay 0: dst[at:at+n] == src[start:start+n]
        with lay 1: dst[at:at+n] &= src[start:start+n], as flash is programmed; False, and dst undefined, if a byte would get a
        second value (neither is FF, and they differ)
    raw_crc32(buf, seed, n, start, at, put) -> bool
        with put 1: buf[at:at+4] = crc32(buf[start:start+n], seed), least significant byte first; True
        with put 0: does buf[at:at+4] have that CRC?

The CRC is that of zlib and Ethernet; `seed` is the second argument of zlib.crc32 (0..2^30-1 here, so that it is not a heap object
either). Buffers are bytes, bytearrays or memoryviews of bytes. In the first three calls, a range outside its buffer raises
IndexError and changes nothing: native code would otherwise overwrite other memory.

The implementation is chosen once: `native` (MicroPython with the viper emitter: both boards, unix on x64) or `plain`.
"""

try:
    from .native import copy, equal, is_blank, raw_copy, raw_crc32, raw_fill, raw_run
except (ImportError, SyntaxError, ValueError):  # CPython; no native emitter; compiled for another processor
    from .plain import copy, equal, is_blank, raw_copy, raw_crc32, raw_fill, raw_run  # noqa: F401
