"""Tests that run on each kind of region; then tests for block devices only, and for files only."""

import os
import sys

import pytest

from chips import chip
from flashmqtt.errors import FlashFailed, StoreForeign, UsageError
from flashmqtt.flash.block import BlockRegion
from flashmqtt.flash.file import FileRegion, StoreInUse
from flashmqtt.flash.ram import RamRegion
from heap import heap_lock, heap_unlock
from tools.flashsim.nor import NorFlash, PowerCut

SECTOR = 4096


class Block:
    """Makes a region on a range of a simulated chip. `after` asserts that no rule of the chip was violated."""

    def __init__(self, personality, sectors=4, first=2, beyond=1):
        self.personality, self.sectors, self.first, self.beyond = personality, sectors, first, beyond

    def make(self):
        self.flash = chip((self.first + self.sectors + self.beyond) * SECTOR, self.personality)
        self.neighbours = self._neighbours()
        return BlockRegion(self.flash, self.first, self.sectors)

    def _neighbours(self):
        end = self.first + self.sectors
        return self.flash.peek(0, self.first * SECTOR) + self.flash.peek(end * SECTOR, self.beyond * SECTOR)

    def after(self):
        assert self.flash.violations == []
        assert self._neighbours() == self.neighbours


class Ram:
    def __init__(self, page_bytes):
        self.page_bytes = page_bytes

    def make(self):
        return RamRegion(4, SECTOR, self.page_bytes)

    def after(self):
        pass


_serial = 0


def _scratch(name):
    global _serial
    _serial += 1
    return "/tmp/flashmqtt-%s-%s-%d-%d" % (
        name,
        sys.implementation.name,
        id(_scratch) & 0xFFFFFF,
        _serial,
    )


class File:
    def __init__(self, page_bytes):
        self.page_bytes = page_bytes

    def make(self):
        self.path = _scratch("region")
        return FileRegion(self.path, 4, SECTOR, self.page_bytes, sync=False)

    def after(self):
        os.remove(self.path)


KINDS = [Ram(1), Ram(256), File(1), File(256), Block("rp2"), Block("esp32"), Block("esp32-encrypted")]
NAMES = ["ram1", "ram256", "file1", "file256", "rp2", "esp32", "encrypted"]


def _pattern(n, salt=0):
    return bytearray((i * 29 + salt * 13 + (i >> 6) + 1) & 0xFF for i in range(n))


def _read(region, offset, n):
    buf = bytearray(n)
    region.read(offset, buf)
    return bytes(buf)


def _erased(kind):
    region = kind.make()
    for sector in range(region.sectors):
        region.erase(sector)
    return region


def _fill(region, offset, buf):
    """Program any number of bytes."""
    for at in range(0, len(buf), 256):
        region.program(offset + at, buf[at : at + 256])


def _same(region, offset, want):
    """Assert that the region has these bytes at the offset."""
    assert _read(region, offset, len(want)) == bytes(want)


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
@pytest.mark.req("S3", "S4")
def test_program_of_up_to_256_bytes_reads_back_and_changes_nothing_else(kind):
    region = _erased(kind)
    page = region.page_bytes
    assert (region.sectors, region.sector_bytes) == (4, SECTOR)
    shadow = bytearray(b"\xff" * (4 * SECTOR))
    offset = 0
    for n in (1, 2, 3, 15, 16, 100, 112, 255, 256):
        n = (n + page - 1) // page * page
        if offset % SECTOR + n > SECTOR:
            offset = (offset // SECTOR + 1) * SECTOR
        if offset + n > 4 * SECTOR:
            break
        region.program(offset, _pattern(n, n))
        shadow[offset : offset + n] = _pattern(n, n)
        _same(region, offset, shadow[offset : offset + n])
        offset += n
    if region.reads_blank:
        _same(region, 0, shadow)
    kind.after()


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
@pytest.mark.req("S3", "S4")
def test_erase_clears_one_sector_only(kind):
    region = _erased(kind)
    for sector in range(4):
        _fill(region, sector * SECTOR, _pattern(SECTOR, sector))
    region.erase(2)
    for sector in (0, 1, 3):
        _same(region, sector * SECTOR, _pattern(SECTOR, sector))
    if region.reads_blank:
        _same(region, 2 * SECTOR, b"\xff" * SECTOR)
    region.program(2 * SECTOR + 256, _pattern(256, 9))
    _same(region, 2 * SECTOR + 256, _pattern(256, 9))
    kind.after()


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
@pytest.mark.req("S3", "S4")
def test_reads_may_start_anywhere_and_cross_sectors(kind):
    region = _erased(kind)
    whole = _pattern(4 * SECTOR)
    for sector in range(4):
        _fill(region, sector * SECTOR, whole[sector * SECTOR : (sector + 1) * SECTOR])
    for offset, n in ((0, 1), (1, 17), (4095, 2), (4000, 200), (0, 4 * SECTOR), (3, 3 * SECTOR), (4 * SECTOR - 1, 1)):
        _same(region, offset, whole[offset : offset + n])
    buf = bytearray(32)
    region.read(4090, memoryview(buf)[4:20])
    assert buf == bytes(4) + whole[4090:4106] + bytes(12)
    kind.after()


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
@pytest.mark.req("S3", "S4")
def test_invalid_argument_is_refused_and_changes_nothing(kind):
    region = _erased(kind)
    page = region.page_bytes
    size = 4 * SECTOR
    region.program(0, _pattern(256))
    before = _read(region, 0, size)
    bad = [
        lambda: region.program(-page, bytearray(page)),
        lambda: region.program(size, bytearray(page)),
        lambda: region.program(0, bytearray(0)),
        lambda: region.program(256, bytearray(512)),  # more than a journal's page
        lambda: region.program(SECTOR - page, bytearray(2 * page)),  # crosses a sector
        lambda: region.program(size - page, bytearray(2 * page)),
        lambda: region.read(-1, bytearray(1)),
        lambda: region.read(size - 3, bytearray(4)),
        lambda: region.erase(-1),
        lambda: region.erase(4),
    ]
    if page > 1:
        bad.append(lambda: region.program(page // 2, bytearray(page)))
        bad.append(lambda: region.program(page, bytearray(page + 1)))
        bad.append(lambda: region.program(page, bytearray(page - 1)))
    for call in bad:
        with pytest.raises(UsageError):
            call()
    assert _read(region, 0, size) == before
    kind.after()


@pytest.mark.parametrize("kind", KINDS[:6], ids=NAMES[:6])
@pytest.mark.req("S4", "S6")
def test_programmed_byte_refuses_another_value_and_ff_keeps_it(kind):
    region = _erased(kind)
    first = bytearray(b"\xff" * 256)
    first[0:100] = _pattern(100)
    region.program(512, first)
    second = bytearray(b"\xff" * 256)
    second[100:200] = _pattern(100, 5)
    region.program(512, second)  # other bytes of the same page
    _same(region, 512, _pattern(100) + _pattern(100, 5) + b"\xff" * 56)
    region.program(512, second)  # the same bytes with the same values
    region.program(512, first)
    for at in (0, 99, 199):
        third = bytearray(b"\xff" * 256)
        third[at] = 0
        with pytest.raises(FlashFailed):
            region.program(512, third)
    _same(region, 512, _pattern(100) + _pattern(100, 5) + b"\xff" * 56)
    kind.after()


# --- block devices ---


@pytest.mark.req("S3")
def test_geometry_comes_from_the_device_or_arguments():
    for personality, page in (("rp2", 256), ("esp32", 1), ("esp32-encrypted", 16)):
        region = BlockRegion(chip(8 * SECTOR, personality))
        assert (region.sectors, region.sector_bytes, region.page_bytes) == (8, SECTOR, page)
        assert region.reads_blank is (page != 16)
    flash = NorFlash(8 * SECTOR, "esp32")
    assert BlockRegion(flash, page_bytes=256).page_bytes == 256
    assert BlockRegion(flash, 6).sectors == 2
    for first, count, page in ((0, 9, 0), (8, 0, 0), (-1, 2, 0), (7, 2, 0), (0, 0, 3)):
        with pytest.raises(UsageError):
            BlockRegion(flash, first, count, page)
    with pytest.raises(UsageError):
        BlockRegion(chip(SECTOR, "esp32-encrypted"), page_bytes=8)


@pytest.mark.req("S6")
def test_what_is_no_block_device_is_refused():
    for device in (None, [NorFlash(8 * SECTOR)], "journal"):  # `esp32.Partition.find` returns a list
        with pytest.raises(UsageError):
            BlockRegion(device)


@pytest.mark.parametrize("personality", ["rp2", "esp32", "esp32-encrypted"])
@pytest.mark.req("S4", "S6")
def test_sector_that_fails_to_program_or_erase_is_reported(personality):
    flash = chip(4 * SECTOR, personality)
    region = BlockRegion(flash)
    region.erase(0)
    flash.set_bad(0, "program")
    with pytest.raises(FlashFailed):
        region.program(0, _pattern(256))
    region.erase(1)
    _fill(region, SECTOR, _pattern(SECTOR))
    flash.set_bad(1, "erase")
    if region.reads_blank:
        with pytest.raises(FlashFailed):
            region.erase(1)


@pytest.mark.req("S4")
def test_disturbed_byte_in_a_half_filled_page_is_reported():
    """A bit is cleared in a byte that must stay FF. A check of only the programmed bytes would not notice it."""

    class Disturbing(NorFlash):
        def writeblocks(self, n, buf, off=None):
            NorFlash.writeblocks(self, n, buf, off)
            self.poke(150, b"\xef")

    region = BlockRegion(Disturbing(SECTOR))
    page = bytearray(b"\xff" * 256)
    page[0:100] = _pattern(100)
    with pytest.raises(FlashFailed):
        region.program(0, page)


@pytest.mark.req("S4", "S6")
def test_device_error_raises_flash_failed():
    class Refusing(NorFlash):
        def writeblocks(self, n, buf, off=None):
            raise OSError(5)

        def readblocks(self, n, buf, off=0):
            raise OSError(5)

        def ioctl(self, op, arg):
            if op == 6:
                raise OSError(5)
            return NorFlash.ioctl(self, op, arg)

    region = BlockRegion(Refusing(SECTOR))
    for call in (
        lambda: region.read(0, bytearray(4)),
        lambda: region.program(0, bytearray(256)),
        lambda: region.erase(0),
    ):
        with pytest.raises(FlashFailed):
            call()

    class SaysNo(NorFlash):
        def readblocks(self, n, buf, off=0):
            return -5

        def ioctl(self, op, arg):
            return -22 if op == 6 else NorFlash.ioctl(self, op, arg)

    with pytest.raises(FlashFailed):
        BlockRegion(SaysNo(SECTOR)).erase(0)
    with pytest.raises(FlashFailed):
        BlockRegion(SaysNo(SECTOR)).read(0, bytearray(4))


@pytest.mark.parametrize("personality", ["rp2", "esp32"])
@pytest.mark.req("S2", "S4")
def test_power_cut_during_program_leaves_a_usable_region(personality):
    flash = chip(2 * SECTOR, personality)
    region = BlockRegion(flash)
    region.erase(0)
    flash.arm(2, "prefix", 10)
    with pytest.raises(PowerCut):
        region.program(0, _pattern(256))
    flash.power_up()
    assert _read(region, 0, 12) == _pattern(10) + b"\xff\xff"
    with pytest.raises(FlashFailed):
        region.program(0, _pattern(256, 3))
    region.erase(0)
    region.program(0, _pattern(256, 3))
    assert flash.violations == []


def _steady(region, page, long):
    heap_lock()
    region.erase(1)
    region.program(SECTOR, page)
    region.read(SECTOR, page)
    region.read(SECTOR + 512, long)
    heap_unlock()


@pytest.mark.parametrize("personality", ["rp2", "esp32"])
@pytest.mark.req("S3", "S4")
def test_erase_program_and_read_allocate_nothing(personality):
    flash = chip(2 * SECTOR, personality)
    region = BlockRegion(flash)
    page, long = _pattern(256), _pattern(768)
    _steady(region, page, long)
    assert page == _pattern(256) and flash.bytes_read > 4096 + 2 * 256
    _steady(region, memoryview(bytearray(256)), memoryview(bytearray(768)))


# --- files ---


@pytest.mark.req("S3")
def test_file_keeps_content_and_interrupted_creation_is_completed():
    path = _scratch("kept")
    region = FileRegion(path, 3, SECTOR)
    region.program(SECTOR, _pattern(200))
    region.close()
    region = FileRegion(path, 3, SECTOR)
    assert _read(region, SECTOR, 201) == _pattern(200) + b"\xff"
    region.close()
    with open(path, "wb") as torn:
        torn.write(b"\xff" * 5000)
    region = FileRegion(path, 3, SECTOR)
    assert _read(region, 0, 3 * SECTOR) == b"\xff" * (3 * SECTOR)
    region.close()
    os.remove(path)


@pytest.mark.req("S6")
def test_file_of_wrong_size_is_refused_and_kept():
    path = _scratch("foreign")
    for content in (b"somebody's notes", bytes(4 * SECTOR), b"\xff" * (4 * SECTOR)):
        with open(path, "wb") as foreign:
            foreign.write(content)
        with pytest.raises(StoreForeign):
            FileRegion(path, 3, SECTOR)
        with open(path, "rb") as kept:
            assert kept.read() == content
    os.remove(path)


@pytest.mark.req("S6")
def test_file_open_in_another_region_is_refused_until_closed():
    path = _scratch("shared")
    first = FileRegion(path, 3, SECTOR)
    first.program(0, _pattern(16))
    with open(path, "rb"):  # a plain reader does not lock the file
        with pytest.raises(StoreInUse):
            FileRegion(path, 3, SECTOR)
        first.program(16, _pattern(16))
        assert _read(first, 0, 32) == bytes(_pattern(16)) * 2
        first.close()
        second = FileRegion(path, 3, SECTOR)
    assert _read(second, 0, 32) == bytes(_pattern(16)) * 2
    second.close()
    os.remove(path)


class FailingFile:
    """A file whose calls fail from a chosen one on."""

    def __init__(self, file, failing, short=False):
        self._file = file
        self._failing = failing
        self._short = short

    def _check(self, call):
        if call == self._failing and not self._short:
            raise OSError(5)  # EIO

    def seek(self, offset, whence=0):
        """Seek, or raise EIO."""
        self._check("seek")
        return self._file.seek(offset, whence)

    def readinto(self, buf):
        """Fill buf, or raise EIO."""
        self._check("readinto")
        return self._file.readinto(buf)

    def write(self, buf):
        """Write, or raise EIO, or write a part as MicroPython does on a disk that is full."""
        self._check("write")
        if self._short:
            return self._file.write(memoryview(buf)[: len(buf) // 2])
        return self._file.write(buf)

    def flush(self):
        """Flush, or raise EIO."""
        self._check("flush")
        self._file.flush()

    def close(self):
        """Close."""
        self._file.close()


@pytest.mark.req("S6")
@pytest.mark.parametrize("call", ("seek", "readinto", "write", "flush", "short"))
def test_failing_file_raises_flash_failed(call):
    path = _scratch("failing")
    region = FileRegion(path, 3, SECTOR, sync=False)
    file = region._file
    try:
        region.program(0, b"before")
        region._file = FailingFile(file, call, call == "short")
        if call in ("seek", "readinto"):
            with pytest.raises(FlashFailed):
                region.read(0, bytearray(6))
        else:
            with pytest.raises(FlashFailed):
                region.erase(1)
        for again in (False, True):
            with pytest.raises(FlashFailed):
                region.program(64 if not again else 0, b"before", again)
        region._file = file
        got = bytearray(6)
        region.read(0, got)
        assert got == b"before"
    finally:
        file.close()
        os.remove(path)


@pytest.mark.req("S6")
@pytest.mark.parametrize("path", ("/", "/no such directory/journal", "/dev/full"))
def test_file_that_cant_be_made_raises_flash_failed(path):
    with pytest.raises(FlashFailed):
        FileRegion(path, 3, SECTOR)


@pytest.mark.req("S6")
def test_closed_file_raises_flash_failed():
    path = _scratch("closed")
    region = FileRegion(path, 3, SECTOR)
    region.close()
    region.close()
    for call in (
        lambda: region.read(0, bytearray(6)),
        lambda: region.program(0, b"closed"),
        lambda: region.program(0, b"closed", True),
        lambda: region.erase(1),
    ):
        with pytest.raises(FlashFailed):
            call()
    os.remove(path)


@pytest.mark.req("S6")
def test_file_that_became_shorter_raises_flash_failed_and_gets_no_other_bytes():
    path = _scratch("shortened")
    region = FileRegion(path, 3, SECTOR)
    region.program(0, b"other bytes")
    with open(path, "wb") as emptied:
        emptied.write(b"\xff" * 100)
    for again in (False, True):
        with pytest.raises(FlashFailed):
            region.program(SECTOR, b"\xff" * 50 + b"message", again)
    region.close()
    with open(path, "rb") as kept:
        assert kept.read() == b"\xff" * 100
    os.remove(path)
