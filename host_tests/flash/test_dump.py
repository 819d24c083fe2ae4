"""`python -m tools.journal dump` shows a journal: from an image, from a board."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from zlib import crc32

import pytest

from flashmqtt.flash.block import BlockRegion
from flashmqtt.journal.journal import Journal
from tools.bootstrap import ROOT
from tools.deploy.link import Link
from tools.flashsim.nor import SECTOR_BYTES, NorFlash, PowerCut
from tools.journal import layout
from tools.journal.report import read_sector, report
from tools.virtual_board.device import Device

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
    out, _, status = _run(image, "--all")
    assert status == 0 and "old" in _row(out, "number-050") and "finished" in _row(out, "number-090")
    assert "released" in _row(out, "gone")
    assert " note " in out and " state " in out
    before = image.read_bytes()
    assert before == _image(flash)  # the dump does not change the image


@pytest.mark.req("S3")
def test_dump_reads_the_journal_in_a_backup(tmp_path: Path) -> None:
    flash, journal = _journal()
    journal.append(*_message("kept"))
    (tmp_path / "journal").mkdir()
    for n in range(6):
        (tmp_path / "journal" / f"{n:03}").write_bytes(_image(flash)[n * SECTOR_BYTES : (n + 1) * SECTOR_BYTES])
    (tmp_path / "journal" / "map").write_bytes(b"blocks")
    for folder in (tmp_path, tmp_path / "journal"):
        out, errors, status = _run(folder)
        assert (status, errors) == (0, "") and "waiting" in _row(out, "kept")


@pytest.mark.req("S6")
def test_dump_of_a_path_without_a_journal_says_what_to_do(tmp_path: Path) -> None:
    out, errors, status = _run(tmp_path / "no.bin")
    assert (status, out) == (2, "") and "no.bin: No such file or directory: check the path" in errors
    out, errors, status = _run(tmp_path)
    assert (status, out) == (2, "") and "has no journal" in errors and "make backup" in errors
    with Device(tmp_path / "board") as device:
        out, errors, status = _run("--board", device.path)
        assert (status, out) == (2, "") and "has no board.py" in errors and "make deploy" in errors
        with Link(device.path) as link:
            link.put("/board.py", (ROOT / "boards" / "rp2" / "board.py").read_bytes())  # as `make wipe` leaves it
        for _ in range(2):
            out, errors, status = _run("--board", device.path)
            assert (status, out) == (2, "") and "has no library" in errors and "make backup" in errors
            with Link(device.path) as link:
                link.put("/lib/flashmqtt/errors.py", b"")  # an unfinished deployment
        make = ["make", "-o", "setup", "dump", f"IMAGE={tmp_path}", f"PORT={device.path}"]
        ran = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode and "IMAGE=" in ran.stderr and "PORT=" in ran.stderr and "not both" in ran.stderr


@pytest.mark.req("S3")
def test_dump_says_that_a_waiting_message_may_be_delivered(tmp_path: Path) -> None:
    flash, journal = _journal()
    journal.append(*_message("one"))
    journal.finish(journal.low)
    text, _ = report(_image(flash), SECTOR_BYTES)
    assert "waiting" in _row(text, "one")
    assert "may be delivered" in text
    journal.flush()
    text, _ = report(_image(flash), SECTOR_BYTES)
    assert "one" not in text.split("sector ")[-1] and "may be delivered" not in text


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


def test_dump_of_a_sector_that_follows_a_newer_one_ends() -> None:
    flash, journal = _journal()
    while not (sector := read_sector(2, _image(flash)[2 * SECTOR_BYTES : 3 * SECTOR_BYTES])).fields:
        journal.append(*_message("x" * 100))
    assert sector.seq == 3
    content = bytearray(_image(flash))
    header = memoryview(content)[2 * SECTOR_BYTES :][: layout.HEADER]
    header[layout.H_PREV : layout.H_PREV + 2] = (2).to_bytes(2, "little")
    header[layout.H_PREV_SEQ : layout.H_PREV_SEQ + 4] = (sector.seq + 1).to_bytes(4, "little")
    header[layout.HEADER - 4 :] = crc32(header[: layout.HEADER - 4]).to_bytes(4, "little")
    text, _ = report(bytes(content), SECTOR_BYTES)
    assert " head " in text


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
        ((odd,), "5000 bytes are no whole sectors of 4096 bytes"),
    ):
        out, errors, status = _run(*arguments)
        assert (out, status) == ("", 2) and why in errors and "Traceback" not in errors
    assert _run()[2] == 2


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
    """A virtual Pico W on a pseudo-terminal; the journal is in pinned files of its stock file system."""
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
        out, errors, status = _run("--board", device.path)
    assert (status, errors) == (0, "")
    assert "waiting" in _row(out, "kept on the board 39")


@pytest.mark.req("S6")
def test_dump_of_a_thousand_million_lost_messages_ends() -> None:
    flash, journal = _journal()
    journal.append(*_message("the only one"))
    image = bytearray(_image(flash))
    image[layout.H_FIRST : layout.H_FIRST + 4] = ((1 << 30) - 9).to_bytes(4, "little")
    end = layout.HEADER - 4
    image[end : end + 4] = crc32(image[:end]).to_bytes(4, "little")
    text, mounted = report(bytes(image), SECTOR_BYTES)
    assert mounted and _row(text, "waiting", f"{(1 << 30) - 10:,}")
