"""The simulated flash chip: NOR rules, behaviour of the two ports, counters, power cuts that are repeated by their id."""

import pytest

from chips import chip
from heap import heap_lock, heap_unlock
from tools.flashsim.nor import MODELS, NorFlash, PowerCut

SECTOR = 4096
PERSONALITIES = ["rp2", "esp32", "esp32-encrypted"]


def _read(flash, at, n):
    buf = bytearray(n)
    flash.readblocks(at // SECTOR, buf, at % SECTOR)
    return bytes(buf)


def _pattern(n, salt=1):
    return bytearray((i * 31 + salt * 17 + (i >> 5)) & 0xFF for i in range(n))


@pytest.mark.parametrize("personality", PERSONALITIES)
@pytest.mark.req("S3", "S4")
def test_programmed_bytes_are_read_back_until_erased(personality):
    flash = chip(4 * SECTOR, personality)
    assert flash.ioctl(4, 0) == 4 and flash.ioctl(5, 0) == SECTOR
    flash.ioctl(6, 1)
    flash.writeblocks(1, _pattern(512), 256)
    assert _read(flash, SECTOR + 256, 512) == _pattern(512)
    assert _read(flash, SECTOR + 300, 100) == _pattern(512)[44:144]
    assert (flash.programs, flash.erases, flash.bytes_programmed, flash.operations) == (2, 1, 512, 3)
    assert flash.worst_ms == 406
    flash.ioctl(6, 1)
    assert flash.peek(SECTOR, SECTOR) == b"\xff" * SECTOR
    assert flash.erase_counts == [0, 2, 0, 0]
    flash.writeblocks(2, _pattern(SECTOR))
    assert _read(flash, 2 * SECTOR, SECTOR) == _pattern(SECTOR) and flash.erase_counts[2] == 1
    assert flash.violations == []


@pytest.mark.parametrize("personality", ["rp2", "esp32"])
@pytest.mark.req("S4")
def test_changing_a_programmed_byte_is_a_violation_and_only_clears_bits(personality):
    flash = chip(SECTOR, personality)
    page = bytearray(b"\xff" * 256)
    page[7] = 0xF0
    flash.writeblocks(0, page, 0)
    page[7], page[8] = 0xFF, 0x12
    flash.writeblocks(0, page, 0)  # changes only another byte of the page
    page[8] = 0x12
    flash.writeblocks(0, page, 0)  # programs the same value again
    assert flash.violations == []
    page[7] = 0x0F
    flash.writeblocks(0, page, 0)
    assert len(flash.violations) == 1 and "byte 7" in flash.violations[0]
    assert _read(flash, 7, 2) == b"\x00\x12"


@pytest.mark.req("S4")
def test_encrypted_block_is_programmed_once_and_reads_noise_when_erased():
    flash = chip(SECTOR, "esp32-encrypted")
    assert flash.info()[5] is True
    assert _read(flash, 0, 32) != b"\xff" * 32
    for off, n in ((8, 16), (16, 24)):
        with pytest.raises(OSError):
            flash.writeblocks(0, bytearray(n), off)
    flash.writeblocks(0, _pattern(32), 16)
    assert _read(flash, 20, 20) == _pattern(32)[4:24]
    assert flash.violations == []
    flash.writeblocks(0, _pattern(16), 16)
    assert len(flash.violations) == 1


@pytest.mark.req("S4")
def test_rp2_programs_whole_pages_and_records_invalid_calls():
    flash = NorFlash(2 * SECTOR, "rp2")
    flash.writeblocks(0, bytearray(b"\x00" * 100), 0)
    assert flash.peek(0, 100) == b"\x00" * 100 and flash.peek(100, 156) != b"\xff" * 156
    flash.writeblocks(1, bytearray(256), 300)
    flash.writeblocks(2, bytearray(256), 0)
    flash.writeblocks(1, bytes(256), 1024)
    flash.ioctl(6, 2)
    assert len(flash.violations) == 5
    assert flash.peek(SECTOR + 256, 256) == bytes(256)


@pytest.mark.req("S4")
def test_esp32_refuses_ranges_outside_the_chip():
    flash = NorFlash(2 * SECTOR, "esp32")
    flash.writeblocks(0, bytes(100), 3)
    for call in (
        lambda: flash.writeblocks(1, bytes(100), SECTOR - 99),
        lambda: flash.readblocks(2, bytearray(1), 0),
        lambda: flash.ioctl(6, 2),
    ):
        with pytest.raises(OSError):
            call()
    assert flash.violations == [] and flash.operations == 1


def _script(flash):
    flash.ioctl(6, 0)
    flash.writeblocks(0, _pattern(512), 0)
    flash.ioctl(6, 0)
    flash.writeblocks(0, _pattern(256, 2), 0)


def _cut(personality, operation, model, variant):
    flash = chip(SECTOR, personality)
    flash.arm(operation, model, variant)
    with pytest.raises(PowerCut) as cut:
        _script(flash)
    with pytest.raises(PowerCut):
        flash.readblocks(0, bytearray(1), 0)
    flash.power_up()
    return flash, str(cut.value)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.req("S2")
def test_power_cut_follows_its_model_and_replays_by_id(model):
    for personality in ("rp2", "esp32"):
        for operation in range(1, 6):
            for variant in range(6):
                flash, cut_id = _cut(personality, operation, model, variant)
                again = chip(SECTOR, personality)
                assert cut_id == "%d/%s/%d" % (operation, model, variant)
                again.arm(operation, model, variant)
                with pytest.raises(PowerCut):
                    _script(again)
                again.power_up()
                assert flash.peek(0, SECTOR) == again.peek(0, SECTOR)
                assert _read(flash, 0, SECTOR) == _read(again, 0, SECTOR)
                whole = chip(SECTOR, personality)
                before = bytearray(b"\xff" * SECTOR)
                try:
                    whole.arm(operation, "nothing")
                    _script(whole)
                except PowerCut:
                    before = whole.peek(0, SECTOR)
                now = flash.peek(0, SECTOR)
                if model == "nothing":
                    assert now == before
                if operation in (2, 3, 5) and model != "weak":  # a program: each bit is the old or the new one
                    start, page = ((0, _pattern(512)), (256, _pattern(512)), None, (0, _pattern(256, 2)))[operation - 2]
                    for i in range(SECTOR):
                        inside = start <= i < start + 256
                        low = before[i] & page[i] if inside else before[i]
                        assert now[i] & ~before[i] == 0 and low & ~now[i] == 0
                    if model == "unreported":
                        assert now[start : start + 256] == page[start : start + 256]
                    if model == "prefix":
                        assert now[start + variant : start + 256] == before[start + variant : start + 256]


@pytest.mark.req("S2")
def test_weak_bits_read_differently_until_programmed_or_erased():
    differing = 0
    for variant in range(20):
        flash, _ = _cut("rp2", 2, "weak", variant)
        reads = [_read(flash, 0, SECTOR) for _ in range(12)]
        differing += any(read != reads[0] for read in reads)
        assert all(read[256:] == b"\xff" * (SECTOR - 256) for read in reads)
        if variant % 5 == 1:  # complete, but weak: another program makes the bits stable
            flash.writeblocks(0, _pattern(256), 0)
            assert flash.violations == []
            assert _read(flash, 0, 256) == _pattern(256) == _read(flash, 0, 256)
        else:
            flash.ioctl(6, 0)
            assert _read(flash, 0, SECTOR) == b"\xff" * SECTOR
    assert differing >= 15


@pytest.mark.req("S2")
def test_torn_erase_can_leave_anything():
    results = []
    for variant in range(14):
        flash, _ = _cut("rp2", 4, "bits", variant)
        results.append(bytes(flash.peek(0, SECTOR)))
        assert results[-1] != b"\xff" * SECTOR
    assert len(set(results)) >= 12


@pytest.mark.parametrize("personality", ["rp2", "esp32"])
@pytest.mark.req("S4")
def test_bad_sector_ignores_erases_or_programs(personality):
    flash = chip(2 * SECTOR, personality)
    flash.writeblocks(0, bytearray(256), 0)
    flash.set_bad(0, "erase")
    flash.ioctl(6, 0)
    assert flash.peek(0, SECTOR) != b"\xff" * SECTOR
    flash.set_bad(1, "program")
    flash.writeblocks(1, bytearray(256), 0)
    assert flash.peek(SECTOR, 256) != bytes(256)
    flash.set_bad(0, "")
    flash.ioctl(6, 0)
    assert flash.peek(0, SECTOR) == b"\xff" * SECTOR


@pytest.mark.req("S2")
def test_snapshot_restores_contents_and_weak_cells():
    flash, _ = _cut("rp2", 3, "weak", 3)
    kept = flash.snapshot()
    cells = flash.peek(0, SECTOR)
    flash.ioctl(6, 0)
    flash.restore(kept)
    assert flash.peek(0, SECTOR) == cells
    reads = [_read(flash, 0, SECTOR) for _ in range(12)]
    assert any(read != reads[0] for read in reads)


def _locked(flash, page):
    heap_lock()
    flash.ioctl(6, 1)
    flash.writeblocks(1, page, 256)
    flash.readblocks(1, page, 256)
    heap_unlock()


@pytest.mark.req("S3")
def test_unarmed_chip_in_memory_allocates_nothing():
    for personality in ("rp2", "esp32"):
        flash = chip(2 * SECTOR, personality)
        page = _pattern(256)
        _locked(flash, page)
        assert page == _pattern(256) == flash.peek(SECTOR + 256, 256)
