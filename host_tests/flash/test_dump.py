"""`python -m tools.journal dump` shows a journal: from an image, from pinned files, from a board."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flashmqtt.flash.block import BlockRegion
from flashmqtt.journal.journal import Journal
from tools.flashsim.nor import SECTOR_BYTES, NorFlash, PowerCut
from tools.journal.image import ImageUnreadable, parsed
from tools.journal.report import report
from tools.virtual_board.device import Device

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "host_tests" / "journal" / "images"


def _message(text: str) -> tuple[bytearray, int]:
    body = bytearray(b"\x32\x20\x00\x08a/b" + text.encode())
    return body, len(body)


def _journal(sectors: int = 6) -> tuple[NorFlash, Journal]:
    flash = NorFlash(sectors * SECTOR_BYTES)
    return flash, Journal(BlockRegion(flash))


def _image(flash: NorFlash) -> bytes:
    return bytes(flash.peek(0, flash.size_bytes))


def _run(*arguments: object) -> tuple[str, str, int]:
    ran = subprocess.run(
        [sys.executable, "-m", "tools.journal", "dump", *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return ran.stdout, ran.stderr, ran.returncode


def _row(text: str, *words: str) -> str:
    rows = [line for line in text.splitlines() if all(word in line for word in words)]
    assert len(rows) == 1, (words, rows, text)
    return rows[0]


@pytest.mark.req("S3", "S5")
def test_dump_shows_state_records_and_sectors(tmp_path: Path) -> None:
    flash, journal = _journal()
    for i in range(100):
        journal.append(*_message(f"number-{i:03} " + "x" * 60))
        if i >= 12:
            journal.finish(i - 11)
    journal.mark(89)
    journal.finish(91)
    journal.hold(77, *_message("from outside"))
    journal.hold(78, *_message("long " + "y" * 300))
    journal.hold(79, *_message("gone"))
    journal.discard(79)
    journal.flush()
    journal.write_note(b"twelve bytes")
    image = tmp_path / "flash.bin"
    image.write_bytes(_image(flash))
    out, errors, status = _run(image)
    assert (status, errors) == (0, "")
    for name, value in (("next sequence", "101"), ("low", "89"), ("waiting", "11"), ("dropped", "0"), ("damaged", "0")):
        assert any(line.split("  ")[0].strip() == name and line.split()[-1] == value for line in out.splitlines()), name
    assert _row(out, "note").endswith(b"twelve bytes".hex(" "))
    assert "waiting, marked" in _row(out, "number-088")
    assert "waiting" in _row(out, "number-099") and "marked" not in _row(out, "number-099")
    assert "held" in _row(out, "from outside") and "key 77" in _row(out, "from outside")
    assert len([line for line in out.splitlines() if "key 78" in line]) == 2  # its pieces
    assert "number-050" not in out and "number-090" not in out and "gone" not in out
    assert "head" in out and "in use" in out
    out, _, status = _run(image, "--all", "--width", "90")
    assert status == 0 and "old" in _row(out, "number-050") and "finished" in _row(out, "number-090")
    assert "released" in _row(out, "gone")
    assert " note " in out and " state " in out
    before = image.read_bytes()
    assert before == _image(flash)  # the dump does not change the image


@pytest.mark.req("S2", "S6")
def test_dump_distinguishes_torn_damaged_foreign_and_blank_images(tmp_path: Path) -> None:
    flash, journal = _journal()
    for i in range(40):
        journal.append(*_message(f"number-{i:03} " + "x" * 60))
    flash.arm(flash.operations + 1, "prefix", 60)
    with pytest.raises(PowerCut):
        journal.append(*_message("number-040 " + "x" * 60))
    flash.power_up()
    text, found = report(_image(flash), SECTOR_BYTES)
    assert found and "number-039" in text and "number-040" not in text
    assert _row(text, " head ").split()[-3] == "1"  # one torn place
    damaged = bytearray(_image(flash))
    at = damaged.index(b"number-020")
    damaged[at] ^= 0x20  # a damage that no power cut can cause
    text, found = report(bytes(damaged), SECTOR_BYTES)
    assert found and "number-019" in text and "umber-020" not in text and "number-021" in text
    assert _row(text, "in use").split()[-3] == "1"  # one damaged place
    foreign = tmp_path / "foreign.bin"
    foreign.write_bytes(b"somebody's" * 4096)
    out, _, status = _run(foreign)
    assert status == 1 and "No sector has a journal." in out and "StoreForeign" in out
    blank = tmp_path / "blank.bin"
    blank.write_bytes(b"\xff" * 16384)
    out, _, status = _run(blank)
    assert status == 1 and "No sector has a journal." in out and "blank" in out and "mount" not in out


@pytest.mark.req("S6")
def test_dump_of_format_version_1_is_refused_as_foreign() -> None:
    out, _, status = _run(IMAGES / "version_1.bin", "--sector-bytes", 1024)
    assert status == 1 and "StoreForeign" in out and "version 1" in _row(out, "0 ", "version")


@pytest.mark.req("S3")
@pytest.mark.parametrize(
    "name, words",
    (
        ("example", ("second", "waiting, marked")),
        ("closed", ("inbound", "held")),
        ("torn", ("second", "waiting, marked")),
    ),
)
def test_dump_shows_the_golden_images(name: str, words: tuple[str, str]) -> None:
    text, found = report((IMAGES / f"{name}.bin").read_bytes(), 1024)
    assert found and words[1] in _row(text, words[0])


@pytest.mark.req("S6")
def test_unreadable_image_error_gives_the_reason(tmp_path: Path) -> None:
    odd = tmp_path / "odd.bin"
    odd.write_bytes(bytes(5000))
    for arguments, why in (
        ((tmp_path / "nowhere.bin",), "No such file"),
        ((odd,), "5000 bytes do not contain"),
        ((odd, "--pinned", "/journal"), "5000 bytes do not contain"),
    ):
        out, errors, status = _run(*arguments)
        assert (out, status) == ("", 2) and why in errors and "Traceback" not in errors
    image = tmp_path / "no-fs.bin"
    image.write_bytes(bytes(16 * SECTOR_BYTES))
    _, errors, status = _run(image, "--pinned", "/journal")
    assert status == 2 and "no pinned files" in errors
    assert _run()[2] == 2


@pytest.mark.req("S3")
def test_dump_shows_a_range_of_a_larger_image(tmp_path: Path) -> None:
    flash = NorFlash(10 * SECTOR_BYTES)
    journal = Journal(BlockRegion(flash, 3, 4))
    journal.append(*_message("in the middle"))
    image = tmp_path / "chip.bin"
    image.write_bytes(_image(flash))
    out, _, status = _run(image, "--first", 3, "--sectors", 4)
    assert status == 0 and "waiting" in _row(out, "in the middle")


@pytest.mark.req("S3", "S6")
def test_printed_sectors_of_a_board_are_parsed_into_an_image() -> None:
    page = "Z" * 0 + "AAEC" * 85 + "AA=="
    lines = ["region 1 512", page, "-", "end"]
    content, size = parsed("\r\n".join(lines))
    assert size == 512 and content == (bytes(range(3)) * 86)[:256] + b"\xff" * 256
    for broken in (lines[:3], [lines[0], page, "end"], []):
        with pytest.raises(ImageUnreadable):
            parsed("\n".join(broken))
    with pytest.raises(ImageUnreadable, match="PinsLost"):
        parsed("", "Traceback\nflashmqtt.errors.PinsLost: gone\n")


WRITER = """
import vfs
from tools.flashsim.nor import FileNorFlash
from flashmqtt.flash.pinned import open_or_pin
from flashmqtt.journal.journal import Journal
device = FileNorFlash({path!r}, 32 * 4096)
vfs.VfsLfs2.mkfs(device, progsize=256)
vfs.mount(vfs.VfsLfs2(device, progsize=256), "/flash")
journal = Journal(open_or_pin(device, "/journal", 5, "/flash"))
for i in range(50):
    message = bytearray(b"pinned message %d" % i)
    journal.append(message, len(message))
"""


@pytest.mark.req("S3")
def test_dump_finds_pinned_files_in_a_chip_image(tmp_path: Path) -> None:
    image = tmp_path / "chip.bin"
    subprocess.run(
        [str(Path(sys.executable).parent / "micropython"), "-c", WRITER.format(path=str(image))],
        env={"MICROPYPATH": f"{ROOT}:{ROOT / 'firmware'}"},
        check=True,
        timeout=60,
    )
    out, errors, status = _run(image, "--pinned", "/journal")
    assert (status, errors) == (0, "")
    assert "waiting" in _row(out, "pinned message 49")
    assert _row(out, "next sequence").split() == ["next", "sequence", "51"]


BOARD = """
def journal_region(sectors):
    import rp2
    from flashmqtt.flash.pinned import open_or_pin
    return open_or_pin(rp2.Flash(), "/journal", sectors)
"""
FILLING = """
import board
from flashmqtt.journal.journal import Journal
journal = Journal(board.journal_region(5))
for i in range(40):
    message = bytearray(b"kept on the board %d" % i)
    journal.append(message, len(message))
"""


@pytest.mark.req("S3")
def test_dump_reads_a_board_over_its_serial_port(tmp_path: Path) -> None:
    """The real mpremote and a virtual Pico W on a pseudo-terminal; the journal is in pinned files of its stock file system."""
    library = tmp_path / "lib"
    for name in ("__init__.py", "compat.py", "errors.py", "fast", "flash", "journal"):
        source = ROOT / "firmware" / "flashmqtt" / name
        target = library / "flashmqtt" / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.md"))
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
    (library / "board.py").write_text(BOARD)
    with Device(tmp_path / "board") as device:
        mpremote = [sys.executable, "-m", "mpremote", "connect", device.path]
        subprocess.run([*mpremote, "fs", "cp", "-r", str(library), ":"], check=True, capture_output=True, timeout=60)
        _, errors, status = _run("--board", device.path)
        assert status == 2 and "PinsRefused" in errors  # no journal exists, and the dump creates none
        filled = subprocess.run([*mpremote, "exec", FILLING], capture_output=True, text=True, timeout=60, check=False)
        assert filled.returncode == 0, filled.stdout + filled.stderr
        saved = tmp_path / "saved.bin"
        out, errors, status = _run("--board", device.path, "--save", saved)
    assert (status, errors) == (0, "")
    assert "waiting" in _row(out, "kept on the board 39")
    assert len(saved.read_bytes()) == 5 * SECTOR_BYTES and _run(saved)[0] == out
