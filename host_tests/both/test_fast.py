"""Allocation-free byte operations: the native and the plain implementation agree, and both stay inside their buffers."""

from binascii import crc32

import pytest

from flashmqtt import fast
from flashmqtt.fast import plain
from heap import heap_lock, heap_unlock

IMPLEMENTATIONS = [plain, fast]  # `fast` is the native one on MicroPython


def _ramp(n):
    return bytearray((i * 37 + 11) & 0xFF for i in range(n))


@pytest.mark.parametrize("ops", IMPLEMENTATIONS, ids=["plain", "chosen"])
@pytest.mark.req("S4")
def test_crc32_of_known_vectors(ops):
    buf = bytearray(b"123456789....")
    assert ops.raw_crc32(buf, 0, 9, 0, 9, 1)
    assert buf[9:] == b"\x26\x39\xf4\xcb"  # CBF43926, the check value of this CRC
    assert ops.raw_crc32(buf, 0, 9, 0, 9, 0)
    buf[3] ^= 0x10
    assert not ops.raw_crc32(buf, 0, 9, 0, 9, 0)


@pytest.mark.parametrize("ops", IMPLEMENTATIONS, ids=["plain", "chosen"])
@pytest.mark.req("S4")
def test_crc32_agrees_with_zlib_for_every_length_and_several_seeds(ops):
    for seed in (0, 1, 0x7FFF, 0x12345678, (1 << 30) - 1):
        for n in range(70):
            buf = _ramp(80)
            want = crc32(bytes(buf[3 : 3 + n]), seed).to_bytes(4, "little")
            assert ops.raw_crc32(buf, seed, n, 3, 75, 1)
            assert bytes(buf[75:79]) == want
            assert buf[:75] == _ramp(80)[:75] and buf[79:] == _ramp(80)[79:]
            assert ops.raw_crc32(buf, seed, n, 3, 75, 0)
            for bit in range(32):
                buf[75 + bit // 8] ^= 1 << bit % 8
                assert not ops.raw_crc32(buf, seed, n, 3, 75, 0)
                buf[75 + bit // 8] ^= 1 << bit % 8


@pytest.mark.parametrize("ops", IMPLEMENTATIONS, ids=["plain", "chosen"])
@pytest.mark.req("S4")
def test_copy_moves_overlapping_ranges_both_ways(ops):
    for at in range(12):
        for start in range(12):
            for n in range(12):
                buf = _ramp(24)
                want = _ramp(24)
                want[at : at + n] = bytes(want[start : start + n])
                ops.copy(buf, at, buf, start, n)
                assert buf == want
    view = memoryview(_ramp(24))
    target = bytearray(24)
    ops.copy(memoryview(target)[4:], 1, view[8:], 2, 5)
    assert target[5:10] == _ramp(24)[10:15]


@pytest.mark.parametrize("ops", IMPLEMENTATIONS, ids=["plain", "chosen"])
@pytest.mark.req("S4")
def test_equal_blank_and_fill(ops):
    buf = bytearray(b"\xff" * 40)
    assert ops.is_blank(buf, 0, 40) and ops.is_blank(buf, 7, 7)
    for i in range(40):
        buf[i] = 0xFE
        assert not ops.is_blank(buf, 0, 40)
        assert ops.is_blank(buf, 0, i) and ops.is_blank(buf, i + 1, 40)
        assert not ops.equal(buf, i, b"\xff", 0, 1) and ops.equal(buf, i, b"..\xfe", 2, 1)
        buf[i] = 0xFF
    ops.raw_fill(buf, 20, 0xA5, 10)
    assert buf == b"\xff" * 10 + b"\xa5" * 20 + b"\xff" * 10
    assert ops.equal(buf, 10, buf, 20, 10) and not ops.equal(buf, 10, buf, 21, 10)
    assert ops.equal(b"", 0, b"abc", 3, 0)


@pytest.mark.parametrize("ops", IMPLEMENTATIONS, ids=["plain", "chosen"])
@pytest.mark.req("S4")
def test_range_outside_its_buffer_raises_and_changes_nothing(ops):
    for at, start, n in ((-1, 0, 4), (0, -1, 4), (13, 0, 4), (0, 13, 4), (0, 0, 17), (0, 0, -1), (17, 0, 0)):
        buf = _ramp(16)
        with pytest.raises(IndexError):
            ops.copy(buf, at, bytes(16), start, n)
        with pytest.raises(IndexError):
            ops.equal(buf, at, bytes(16), start, n)
        assert buf == _ramp(16)
    for start, end in ((-1, 4), (0, 17), (5, 4)):
        buf = _ramp(16)
        with pytest.raises(IndexError):
            ops.is_blank(buf, start, end)
        assert buf == _ramp(16)


@pytest.mark.parametrize("ops", IMPLEMENTATIONS, ids=["plain", "chosen"])
@pytest.mark.req("S4")
def test_lay_clears_bits_as_flash_is_programmed(ops):
    cells = bytearray(b"\xff\xff\x12\x12\x00\x5a")
    assert ops.raw_run(cells, b"..\x07\xff\x12\x00.", 4, 1, 2, 1) is True
    assert cells == b"\xff\x07\x12\x12\x00\x5a"
    for at, byte in ((2, 0x02), (2, 0x13), (5, 0x00), (4, 0x01)):
        assert ops.raw_run(bytearray(cells), b"\xff" * at + bytes([byte]), at + 1, 0, 0, 1) is False
    assert cells == b"\xff\x07\x12\x12\x00\x5a"


@pytest.mark.parametrize("ops", IMPLEMENTATIONS, ids=["plain", "chosen"])
@pytest.mark.req("S4")
def test_results_are_equal_at_every_alignment(ops):
    """The operations work by words if both sides are aligned; the result must be the same as by bytes."""
    for at in range(5):
        for start in range(5):
            for n in range(14):
                for which in range(n):
                    a, b = bytearray(b"\xff" * 20), bytearray(b"\xff" * 20)
                    assert ops.equal(a, at, b, start, n)
                    b[start + which] = 0x7F
                    assert not ops.equal(a, at, b, start, n)
                    assert not ops.is_blank(b, start, start + n) and ops.is_blank(b, start, start + which)
                    assert ops.raw_run(a, b, n, at, start, 1)
                    want = bytearray(b"\xff" * 20)
                    want[at + which] = 0x7F
                    assert a == want
                    assert ops.raw_run(a, b, n, at, start, 1) and a == want
                    b[start + which] = 0x3F
                    assert not ops.raw_run(a, b, n, at, start, 1)
                    if n > 1:  # another byte of the same word may still be programmed
                        b[start + which] = 0xFF
                        b[start + (which + 1) % n] = 0x00
                        want[at + (which + 1) % n] = 0x00
                        assert ops.raw_run(a, b, n, at, start, 1) and a == want


@pytest.mark.parametrize("ops", IMPLEMENTATIONS, ids=["plain", "chosen"])
@pytest.mark.req("S4")
def test_fill_at_every_boundary(ops):
    for value in (0x00, 0x5A, 0xFF):
        for start in range(6):
            for end in range(start, 14):
                buf = _ramp(16)
                ops.raw_fill(buf, end - start, value, start)
                assert buf == _ramp(16)[:start] + bytes([value]) * (end - start) + _ramp(16)[end:]


def _every_operation_locked(buf, other, view):
    heap_lock()
    fast.raw_crc32(buf, (1 << 30) - 1, 200, 0, 250, 1)
    fast.raw_crc32(buf, 12345, 200, 0, 250, 0)
    fast.copy(buf, 0, other, 100, 100)
    fast.copy(view, 0, other, 100, 100)
    fast.equal(buf, 0, other, 100, 100)
    fast.raw_fill(buf, 100, 0xFF, 0)
    fast.raw_run(buf, other, 100, 0, 0, 1)
    fast.raw_fill(buf, 100, 0xFF, 0)
    fast.is_blank(buf, 0, 256)
    heap_unlock()


@pytest.mark.req("S4")
def test_chosen_operations_allocate_nothing():
    buf = bytearray(256)
    _every_operation_locked(buf, bytearray(256), memoryview(bytearray(256)))
    assert buf[:100] == b"\xff" * 100


@pytest.mark.req("S2")
def test_unchecked_calls_equal_the_checked_and_the_plain_ones():
    for n in range(20):
        for at in range(5):
            for start in range(5):
                one = bytearray(range(40))
                other = bytearray(range(40))
                fast.copy(one, at, bytes(range(100, 140)), start, n)
                fast.raw_copy(other, bytes(range(100, 140)), n, at, start)
                assert one == other
                plain.raw_fill(one, n, 0xA5, at)
                fast.raw_fill(other, n, 0xA5, at)
                assert one == other
                assert plain.raw_crc32(one, 77, n, start, 30 + at, 1)
                assert fast.raw_crc32(other, 77, n, start, 30 + at, 1)
                assert one == other and fast.raw_crc32(other, 77, n, start, 30 + at, 0)
                other[30 + at] ^= 1
                assert not fast.raw_crc32(other, 77, n, start, 30 + at, 0)
