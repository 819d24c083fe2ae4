"""FORMAT.md's worked example equals the image, its tables equal the layout, and the code still writes the golden images."""

import re
from pathlib import Path

import pytest

from flashmqtt import journal
from host_tests.journal.make_images import IMAGES, MADE
from host_tests.journal.reader import Refused, read
from tools.journal import layout

FORMAT = (Path(journal.__file__).parent / "FORMAT.md").read_text()


@pytest.mark.req("S1")
def test_worked_example_equals_the_image():
    image = (IMAGES / "example.bin").read_bytes()
    lines = re.findall(r"^([0-9a-f]{4})  ((?:[0-9a-f]{2} +){1,16})", FORMAT, re.MULTILINE)
    assert len(lines) > 10
    told = {}
    for address, text in lines:
        at = int(address, 16)
        told.update(enumerate(bytes.fromhex(text), at))
    assert sorted(told) == list(range(len(told)))  # every byte, once
    assert bytes(told[at] for at in range(len(told))) == image[: len(told)]
    assert image[len(told) :].strip(b"\xff") == b""


@pytest.mark.req("S1")
@pytest.mark.parametrize("make", MADE)
def test_code_still_writes_the_golden_images(make):
    assert (IMAGES / f"{make.__name__}.bin").read_bytes() == bytes(make().cells)


@pytest.mark.req("S1", "S6")
@pytest.mark.parametrize("name", sorted(path.stem for path in IMAGES.glob("*.bin")))
def test_reader_reads_or_refuses_each_golden_image(name):
    image = (IMAGES / f"{name}.bin").read_bytes()
    refused = "StoreForeign" if name in ("foreign", "version_1") else None
    if refused:
        with pytest.raises(Refused, match=refused):
            read(image, 1024)
        return
    state = read(image, 1024)
    assert state.lost == ([2] if name == "damaged" else []) and state.hurt == (name == "damaged")
    assert state.clean == (name == "closed")
    assert (state.head < 0) == (name == "first_mount")


NAMES = {
    "version": "H_VERSION",
    "sector size": "H_SHIFT",
    "held": "H_HELD",
    "sector sequence": "H_SEQ",
    "low": "H_LOW",
    "finished": "H_FINISHED",
    "marked": "H_MARKED",
    "first": "H_FIRST",
    "floor": "H_FLOOR",
    "dropped": "H_DROPPED",
    "damaged": "H_DAMAGED",
    "boot": "H_BOOT",
    "erases": "H_ERASES",
    "sectors": "H_SECTORS",
    "tail": "H_TAIL",
    "previous": "H_PREV",
    "previous end": "H_PREV_END",
    "previous sequence": "H_PREV_SEQ",
    "note": "H_NOTE",
    "held messages": "H_LIST",
}
RECORD_NAMES = ("length", "kind", "key", "sequence", "low", "finished", "marked")
TYPES = ("message", "held", "state", "released", "note", "list")


@pytest.mark.req("S1")
def test_format_tables_equal_the_layout():
    header, record = FORMAT.split("## Record")[:2]
    rows = {name: int(at) for at, name in re.findall(r"^\| (\d+) \| [\dn]+ \| ([a-z ]+?) \|", header, re.MULTILINE)}
    for name, constant in NAMES.items():
        assert rows[name] == getattr(layout, constant), name
    rows = {name: int(at) for at, name in re.findall(r"^\| (\d+) \| \d+ \| ([a-z]+) \|", record, re.MULTILINE)}
    for name in RECORD_NAMES:
        assert rows[name] == getattr(layout, "R_" + {"sequence": "SEQ"}.get(name, name.upper())), name
    rows = {name: int(value) for value, name in re.findall(r"^\| (\d) \| ([a-z]+) \|", record, re.MULTILINE)}
    assert rows == {name: getattr(layout, name.upper()) for name in TYPES}
    assert layout.R_MARKED + 4 == layout.RECORD and layout.H_LIST + 4 == layout.HEADER
    assert layout.BODY_MAX == layout.PAGE - layout.RECORD
