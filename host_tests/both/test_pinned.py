"""Flash blocks reserved by one-block littlefs files: the region finds them, writes them directly and notices their loss.

The tests need MicroPython's VfsLfs2, which runs over a simulated chip. CPython has no VfsLfs2 and skips them; test_regions tests
the region's own logic on both interpreters.
"""

import gc
import sys
from binascii import crc32

import pytest

from chips import replugged
from flashmqtt.errors import FlashFailed, UsageError
from flashmqtt.flash.block import BlockRegion
from heap import heap_lock, heap_unlock
from tools.flashsim.nor import NorFlash, PowerCut, Random

ON_MICROPYTHON = sys.implementation.name == "micropython"
SECTOR = 4096
ROOT = "/pinned"

if ON_MICROPYTHON:
    import os

    import vfs

    from flashmqtt.flash.pinned import PinnedFiles, PinsLost, PinsRefused, open_or_pin, pin


class Board:
    """A chip with a file system, as stock firmware makes it; `reboot` discards all RAM state."""

    def __init__(self, sectors=28, personality="rp2"):
        if not ON_MICROPYTHON:
            pytest.skip("only MicroPython has VfsLfs2")
        try:
            vfs.umount(ROOT)
        except (OSError, PowerCut):
            pass
        gc.collect()
        self.flash = NorFlash(sectors * SECTOR, personality)
        self.progsize = 256 if personality == "rp2" else 32
        self.fs = None
        vfs.VfsLfs2.mkfs(self.flash, progsize=self.progsize)
        self.mount()

    def mount(self):
        try:
            vfs.umount(ROOT)
        except OSError:
            pass
        self.fs = vfs.VfsLfs2(self.flash, progsize=self.progsize)
        vfs.mount(self.fs, ROOT)

    def reboot(self):
        """Discard all RAM state. (The chip is dead meanwhile, so that the finaliser of an old file object writes nothing.)"""
        self.flash.dead = True
        try:
            vfs.umount(ROOT)
        except (OSError, PowerCut):
            pass
        self.fs = None
        self.flash = replugged(self.flash)
        gc.collect()
        self.mount()

    def pinned(self, count=4):
        pin(self.flash, "/journal", count, ROOT)
        return PinnedFiles(self.flash, "/journal")

    def in_use(self):
        """Return a region of four pinned sectors, each with a programmed first page."""
        region = self.pinned()
        for sector in range(4):
            region.program(sector * SECTOR, _pattern(256, sector))
        return region

    def open(self):
        return PinnedFiles(self.flash, "/journal")

    def fresh(self, path):
        """Return a file's content, read by a new mount: an older mount could read it from its cache."""
        with vfs.VfsLfs2(self.flash, progsize=self.progsize).open(path, "rb") as file:
            return file.read()

    def refuses(self, call, *arguments):
        """Check that a call raises PinsLost and changes no byte of the chip."""
        before = self.content()
        with pytest.raises(PinsLost):
            call(*arguments)
        assert self.content() == before

    def content(self):
        return [crc32(self.flash.peek(at, SECTOR)) for at in range(0, self.flash.size_bytes, SECTOR)]


def _pattern(n, salt=0):
    return bytearray((i * 29 + salt * 13 + (i >> 6) + 1) & 0xFF for i in range(n))


def _write(path, content):
    with open(ROOT + path, "wb") as file:
        file.write(content)


def _read(region, offset, n):
    buf = bytearray(n)
    region.read(offset, buf)
    return bytes(buf)


def _pin_path(sector):
    return "/journal/%03d" % sector


@pytest.mark.parametrize("personality", ["rp2", "esp32"])
@pytest.mark.req("S3")
def test_new_pins_are_blank_and_programmed_bytes_are_in_the_files(personality):
    board = Board(personality=personality)
    region = board.pinned(5)
    assert (region.sectors, region.sector_bytes) == (5, SECTOR)
    assert region.page_bytes == (256 if personality == "rp2" else 1)
    assert _read(region, 0, 5 * SECTOR) == b"\xff" * (5 * SECTOR)
    for sector in range(5):
        region.erase(sector)
        region.program(sector * SECTOR, _pattern(256, sector))
        region.program(sector * SECTOR + 3840, _pattern(256, 90 + sector))
    for sector in range(5):
        content = board.fresh(_pin_path(sector))
        assert len(content) == SECTOR
        assert content[:256] == _pattern(256, sector) and content[3840:] == _pattern(256, 90 + sector)
    assert _read(region, SECTOR - 256, 512) == _pattern(256, 90) + _pattern(256, 1)
    assert board.flash.violations == []


@pytest.mark.req("S4", "S6")
def test_invalid_arguments_and_overwrites_are_refused():
    board = Board()
    region = board.pinned(3)
    before = board.content()
    for call in (
        lambda: region.program(3 * SECTOR, bytearray(256)),
        lambda: region.program(128, bytearray(256)),
        lambda: region.program(SECTOR - 256, bytearray(512)),
        lambda: region.read(3 * SECTOR - 1, bytearray(2)),
        lambda: region.erase(3),
    ):
        with pytest.raises(UsageError):
            call()
    assert board.content() == before
    region.program(0, _pattern(256))
    with pytest.raises(FlashFailed):
        region.program(0, _pattern(256, 1))


@pytest.mark.parametrize("personality,seed", [("rp2", 1), ("rp2", 2), ("rp2", 3), ("esp32", 4)])
@pytest.mark.req("S3", "S4")
def test_region_and_other_files_do_not_change_each_other(personality, seed):
    """Other files are written, renamed and deleted, with reboots in between; both sides always read back what they wrote."""
    rng = Random(seed)
    board = Board(30, personality)
    region = board.pinned(6)
    os.mkdir(ROOT + "/log")
    mine = [bytearray(b"\xff" * SECTOR) for _ in range(6)]
    theirs = {}
    for step in range(160):
        what = rng.below(12)
        sector = rng.below(6)
        if what < 4:
            at = 0
            while at < SECTOR and mine[sector][at : at + 256] != b"\xff" * 256:
                at += 256
            if at < SECTOR:
                region.program(sector * SECTOR + at, _pattern(256, step))
                mine[sector][at : at + 256] = _pattern(256, step)
        elif what < 6:
            region.erase(sector)
            mine[sector][:] = b"\xff" * SECTOR
        elif what < 9:
            name = "/log/%d" % rng.below(5)
            theirs[name] = _pattern(rng.below(7000), step)
            _write(name, theirs[name])
        elif what == 9 and theirs:
            name = sorted(theirs)[rng.below(len(theirs))]
            del theirs[name]
            os.remove(ROOT + name)
        elif what == 10 and theirs:
            name = sorted(theirs)[rng.below(len(theirs))]
            os.rename(ROOT + name, ROOT + "/moved%d" % (step % 3))
            theirs["/moved%d" % (step % 3)] = theirs.pop(name)
        elif what == 11 and rng.below(3) == 0:
            board.reboot()
            region = board.open()
        if step % 8 == 7:
            for i in range(6):
                assert _read(region, i * SECTOR, SECTOR) == mine[i]
            for name, content in theirs.items():
                assert board.fresh(name) == content, name
    assert board.flash.violations == []


def _delete(board):
    os.remove(ROOT + _pin_path(2))


def _rename(board):
    os.rename(ROOT + _pin_path(2), ROOT + "/elsewhere")


def _swap(board):
    os.rename(ROOT + _pin_path(2), ROOT + "/journal/tmp")
    os.rename(ROOT + _pin_path(3), ROOT + _pin_path(2))
    os.rename(ROOT + "/journal/tmp", ROOT + _pin_path(3))


def _replace(board):
    """Replace the file, as restoring a backup does: same name, size and content, but another block."""
    content = board.fresh(_pin_path(2))
    os.remove(ROOT + _pin_path(2))
    _write("/keeps-the-block", b"x" * 5000)
    _write(_pin_path(2), content)


def _rewrite(board):
    with open(ROOT + _pin_path(2), "r+b") as file:
        file.write(b"hello")


def _truncate(board):
    _write(_pin_path(2), b"short")


def _grow(board):
    with open(ROOT + _pin_path(2), "ab") as file:
        file.write(b"one byte more")


def _move_directory(board):
    os.rename(ROOT + "/journal", ROOT + "/diary")


def _format(board):
    vfs.umount(ROOT)
    vfs.VfsLfs2.mkfs(board.flash, progsize=board.progsize)
    board.mount()


def _format_fat(board):
    vfs.umount(ROOT)
    for block in range(board.flash.sectors):
        board.flash.writeblocks(block, bytearray(SECTOR))


MISHAPS = [_delete, _rename, _swap, _replace, _rewrite, _truncate, _grow, _move_directory, _format, _format_fat]
MISHAP_NAMES = ["delete", "rename", "swap", "replace", "rewrite", "truncate", "grow", "move", "format", "other"]


@pytest.mark.parametrize("mishap", MISHAPS, ids=MISHAP_NAMES)
@pytest.mark.req("S6")
def test_opening_changed_pins_is_refused_and_writes_nothing(mishap):
    board = Board()
    board.in_use()
    mishap(board)
    board.refuses(board.open)


@pytest.mark.parametrize("mishap", MISHAPS, ids=MISHAP_NAMES)
@pytest.mark.req("S6")
def test_pins_changed_at_run_time_are_noticed_before_the_next_erase(mishap):
    board = Board()
    region = board.in_use()
    mishap(board)
    before = board.content()
    with pytest.raises(PinsLost):
        region.erase(2)
    with pytest.raises(PinsLost):
        region.erase(2)
    assert board.content() == before


@pytest.mark.parametrize("mishap", MISHAPS, ids=MISHAP_NAMES)
@pytest.mark.req("S6")
def test_block_reused_by_another_file_is_not_programmed(mishap):
    """After the change other files fill the file system; a program to the region's sector must not change any of them."""
    board = Board(24)
    region = board.pinned()
    region.erase(2)
    region.program(2 * SECTOR, _pattern(256))
    mishap(board)
    files = {}
    if mishap is not _format_fat:
        for i in range(30):
            content = b"\xff" * 4096 if i % 2 else _pattern(4096, i)
            try:
                _write("/fill%d" % i, content)
            except OSError:
                break
            files["/fill%d" % i] = content
        assert files
    before = board.content()
    try:
        region.program(2 * SECTOR + 256, _pattern(256, 1))
    except PinsLost:
        assert board.content() == before
    for name, content in files.items():
        assert board.fresh(name) == content, name
    assert board.flash.violations == []


@pytest.mark.parametrize("already", [False, True], ids=["erased", "programmed"])
@pytest.mark.req("S6")
def test_program_into_lost_block_without_mark_is_refused(already):
    """A block that now belongs to a file of FF bytes looks like our erased block; only the file system knows the difference."""
    board = Board(24)
    region = board.pinned()
    region.erase(2)
    if already:
        region.program(2 * SECTOR + 256, _pattern(256))  # a page without the mark
    os.remove(ROOT + _pin_path(2))
    for i in range(30):
        try:
            _write("/ff%d" % i, b"\xff" * SECTOR)
        except OSError:
            break
    board.refuses(region.program, 2 * SECTOR + 512, _pattern(256))


@pytest.mark.req("S6")
def test_damaged_map_is_refused_and_pinning_again_keeps_the_content():
    board = Board()
    region = board.in_use()
    whole = board.fresh("/journal/map")
    damaged = [b"", whole[:5], whole[:-1], whole + b"\x00", b"X" + whole[1:], whole[:8] + b"\x63" + whole[9:], None]
    for content in damaged:
        if content is None:
            os.remove(ROOT + "/journal/map")
        else:
            _write("/journal/map", content)
        board.refuses(board.open)
    region = board.pinned()
    for sector in range(4):
        assert _read(region, sector * SECTOR, 256) == _pattern(256, sector)


@pytest.mark.req("S6")
def test_open_or_pin_pins_only_on_the_first_start():
    board = Board()
    region = open_or_pin(board.flash, "/journal", 4, ROOT)
    region.program(2 * SECTOR + 256, _pattern(256))
    assert _read(open_or_pin(board.flash, "/journal", 4, ROOT), 2 * SECTOR + 256, 256) == _pattern(256)
    for path in ("/journal/map", _pin_path(0)):
        os.remove(ROOT + path)
        board.refuses(open_or_pin, board.flash, "/journal", 4, ROOT)


@pytest.mark.req("S6")
def test_directories_among_the_pinned_files_are_kept_or_refused_by_name():
    board = Board()
    for name in ("", "/of the user", "/001"):
        os.mkdir(ROOT + "/journal" + name)
    with pytest.raises(PinsRefused):
        open_or_pin(board.flash, "/journal", 4, ROOT)
    os.rmdir(ROOT + "/journal/001")
    assert open_or_pin(board.flash, "/journal", 4, ROOT).sectors == 4
    assert os.listdir(ROOT + "/journal/of the user") == []


@pytest.mark.req("S1", "S6")
@pytest.mark.parametrize("count", [3, 5, 8, 1600])
def test_existing_journal_keeps_its_size_and_messages_whatever_size_is_asked_for(count):
    from flashmqtt.journal.journal import Journal

    board = Board(20)
    journal = Journal(open_or_pin(board.flash, "/journal", 5, ROOT))
    for i in range(10):
        journal.append(_pattern(100, i), 100)
    board.reboot()
    region = open_or_pin(board.flash, "/journal", count, ROOT)
    assert region.sectors == 5
    journal = Journal(region)
    assert (journal.low, journal.next_seq) == (1, 11)
    buf = bytearray(100)
    for i in range(10):
        journal.read(i + 1, 0, buf, 0, 100)
        assert buf == _pattern(100, i)


@pytest.mark.req("S6")
def test_stale_map_is_refused():
    board = Board()
    board.pinned()
    stale = board.fresh("/journal/map")
    for sector in range(4):
        os.remove(ROOT + _pin_path(sector))
    _write("/takes-the-blocks", _pattern(5 * SECTOR))
    board.pinned()
    _write("/journal/map", stale)
    board.refuses(board.open)
    assert board.fresh("/takes-the-blocks") == _pattern(5 * SECTOR)


@pytest.mark.req("S3", "S6")
def test_region_reads_the_chip_not_the_file_system_cache():
    """The application's mount may still cache the old content of a pinned block; the region reads the chip."""
    board = Board()
    region = board.pinned()
    with open(ROOT + _pin_path(1), "rb") as file:
        assert file.read(64) == b"\xff" * 64
    region.erase(1)
    region.program(SECTOR, _pattern(256, 7))
    assert _read(region, SECTOR, 64) == _pattern(256, 7)[:64]
    region.erase(1)
    region = board.open()
    assert _read(region, SECTOR, 64) == b"\xff" * 64


@pytest.mark.req("S6")
def test_impossible_pinning_is_refused_and_keeps_other_files():
    board = Board(16)
    files = {"/keep": _pattern(3000)}
    _write("/keep", files["/keep"])
    with pytest.raises(PinsRefused) as refused:
        pin(board.flash, "/journal", 30, ROOT)  # more blocks than the file system has
    assert os.listdir(ROOT + "/journal") == []
    assert board.fresh("/keep") == files["/keep"]
    assert str(refused.value) == "can't pin 30 blocks: no room; ask for fewer, or remove files"
    pin(board.flash, "/journal", os.statvfs(ROOT + "/")[3] - 2, ROOT)  # leaves two blocks for the file system itself
    for name in os.listdir(ROOT + "/journal"):
        os.remove(ROOT + "/journal/" + name)
    _write("/journal/001", b"a note of somebody")
    with pytest.raises(PinsRefused):
        pin(board.flash, "/journal", 3, ROOT)
    assert board.fresh("/journal/001") == b"a note of somebody"
    for device in (NorFlash(16 * SECTOR), Board2().flash):
        with pytest.raises(PinsRefused):
            pin(device, "/other", 2, ROOT)  # the mounted file system is on another device
    for count in (0, 1000):
        with pytest.raises(PinsRefused) as refused:
            pin(board.flash, "/third", count, ROOT)
        assert str(refused.value) == "%d blocks: 1 to 999" % count


@pytest.mark.req("S6")
def test_file_in_the_place_of_the_directory_is_kept_and_named():
    board = Board()
    _write("/journal", b"a note of somebody")
    with pytest.raises(PinsRefused) as refused:
        open_or_pin(board.flash, "/journal", 4, ROOT)
    assert str(refused.value) == ROOT + "/journal is not ours"
    assert board.fresh("/journal") == b"a note of somebody"


@pytest.mark.req("S6")
def test_pinning_on_a_full_disk_is_refused():
    board = Board(12)
    sizes = [4096, 64]
    for size in sizes:
        for i in range(200):
            try:
                _write("/fill%d-%d" % (size, i), _pattern(size))
            except OSError:
                break
    with pytest.raises(PinsRefused):
        pin(board.flash, "/journal", 2, ROOT)
    assert board.fresh("/fill4096-0") == _pattern(4096)


class Board2:
    """Another chip with a littlefs, which is not mounted."""

    def __init__(self):
        self.flash = NorFlash(16 * SECTOR)
        vfs.VfsLfs2.mkfs(self.flash, progsize=256)


@pytest.mark.parametrize("model", ["nothing", "prefix", "bits", "unreported"])
@pytest.mark.req("S2", "S6")
def test_pinning_interrupted_by_power_cut_completes_at_next_start(model):
    board = Board(16)
    _write("/keep", _pattern(3000))
    board.reboot()
    start = board.flash.snapshot()
    first = board.flash.operations
    pin(board.flash, "/journal", 2, ROOT)
    count = board.flash.operations - first
    assert count > 30
    for operation in range(1, count + 1, 1 if model == "prefix" else 3):
        board.flash.restore(start)
        board.reboot()
        board.flash.arm(operation, model, operation * 5)
        with pytest.raises(PowerCut):
            pin(board.flash, "/journal", 2, ROOT)
        board.reboot()
        region = open_or_pin(board.flash, "/journal", 2, ROOT)
        for sector in range(2):
            region.erase(sector)
            region.program(sector * SECTOR, _pattern(256, sector))
        assert board.fresh("/keep") == _pattern(3000)
        _write("/more", _pattern(2000))
        assert board.fresh("/more") == _pattern(2000)
        assert board.fresh(_pin_path(1))[:256] == _pattern(256, 1)


def _steady(region, page):
    heap_lock()
    region.erase(1)
    region.program(SECTOR, page)
    region.program(SECTOR + 256, page)
    region.read(SECTOR, page)
    heap_unlock()


@pytest.mark.req("S3", "S4")
def test_pin_checks_cost_no_program_and_no_allocation():
    board = Board()
    region = board.pinned()
    board.flash.reset_counters()
    page = _pattern(256)
    _steady(region, page)
    assert (board.flash.programs, board.flash.erases) == (2, 1)
    board.flash.reset_counters()
    region.program(SECTOR + 512, page)
    assert board.flash.bytes_read == 16 + 256 + 256
    _write("/a-file-of-the-app", b"1")
    board.flash.reset_counters()
    region.erase(2)
    region.erase(3)
    assert (board.flash.programs, board.flash.erases) == (0, 2)


def _journal_cost(region, flash):
    from flashmqtt.journal.journal import Journal

    journal = Journal(region)
    message = bytearray(100)
    flash.reset_counters()
    for i in range(400):
        message[0] = i & 0xFF
        journal.finish(journal.append(message, 100))
    return flash.programs, flash.erases, flash.bytes_read


@pytest.mark.req("S3", "S4")
def test_journal_in_pinned_files_writes_as_often_as_in_partition():
    board = Board(16)
    programs, erases, pinned_read = _journal_cost(board.pinned(6), board.flash)
    board = None
    flash = NorFlash(6 * SECTOR)
    alone = _journal_cost(BlockRegion(flash), flash)
    assert (programs, erases) == alone[:2]
    assert erases >= 10
    # The checks read 16 bytes before each program, and four metadata blocks before each erase and each first program of a sector.
    assert pinned_read - alone[2] <= 400 * 32 + erases * 3 * 4 * SECTOR


@pytest.mark.req("S6")
def test_journal_with_lost_pins_refuses_appends_and_can_be_read():
    from flashmqtt.journal.journal import Journal

    board = Board(20)
    journal = Journal(board.pinned(5))
    message = bytearray(100)
    for i in range(10):
        message[0] = i
        journal.append(message, 100)
    for sector in range(5):
        os.remove(ROOT + _pin_path(sector))
    before = board.content()
    with pytest.raises(PinsLost):
        for _ in range(40):  # enough messages to reach the erase of the next sector
            journal.append(message, 100)
    changed = [sector for sector in range(20) if board.content()[sector] != before[sector]]
    assert len(changed) <= 1  # the sector in use, whose block no other file uses yet
    for i in range(8):
        journal.read(i + 1, 0, message, 0, 100)
        assert message[0] == i
        journal.finish(i + 1)
