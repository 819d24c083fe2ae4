"""FORMAT.md's worked example is the image, byte for byte, and its header table is the layout."""

import re
from pathlib import Path

import pytest

from flashmqtt import journal
from host_tests.journal.make_images import IMAGES
from tools.journal import layout

HERE = Path(__file__).parent
FORMAT = (Path(journal.__file__).parent / "FORMAT.md").read_text()


@pytest.mark.req("S1")
def test_the_worked_example_is_the_image():
    image = (HERE / "images" / "example.bin").read_bytes()
    lines = re.findall(r"^([0-9a-f]{4})  ((?:[0-9a-f]{2} +){1,16})", FORMAT, re.MULTILINE)
    assert len(lines) == 10
    for address, text in lines:
        at = int(address, 16)
        told = bytes.fromhex(text)
        assert image[at : at + len(told)] == told
    assert image[0x9C:].strip(b"\xff") == b""


@pytest.mark.req("S1")
@pytest.mark.parametrize("name", sorted(IMAGES))
def test_the_images_are_still_what_the_code_writes(name):
    assert (HERE / "images" / f"{name}.bin").read_bytes() == bytes(IMAGES[name]().cells)


@pytest.mark.req("S1")
def test_the_header_table_is_the_layout():
    rows = dict(re.findall(r"^\| (\d+) \| [\d+]+ \| ([a-z' A-Z]+?) \|", FORMAT.split("## Record")[0], re.MULTILINE))
    named = {
        "sector sequence": layout.H_SEQ,
        "next sequence": layout.H_NEXT_SEQ,
        "low": layout.H_LOW,
        "stored": layout.H_STORED,
        "dropped": layout.H_DROPPED,
        "backlog": layout.H_BACKLOG,
        "boot": layout.H_BOOT,
        "erases": layout.H_ERASES,
        "low's place": layout.H_LOW_SECTOR,
        "tail": layout.H_TAIL,
        "previous": layout.H_PREV,
        "previous end": layout.H_PREV_END,
        "opening end": layout.H_OPENING_END,
        "previous sequence": layout.H_PREV_SEQ,
        "sectors": layout.H_SECTORS,
        "bad": layout.H_BAD,
    }
    told = {name: int(offset) for offset, name in rows.items()}
    for name, offset in named.items():
        assert told[name] == offset
