"""The boards' journal region on MicroPython's littlefs: a board must start after a power cut in the first pinning."""

from pathlib import Path

import pytest

from tools.deploy import build
from tools.deploy.link import BoardSaid, Link
from tools.virtual_board.device import Device

REGION = (
    "import sys\nsys.path.append('/lib')\nimport board\nr = board.journal_region(8)\nprint(r.sectors, r.page_bytes)\n"
)
NEEDED = ("/board.mpy", *("/lib/flashmqtt/" + name for name in ("__init__", "errors", "fast/", "flash/")))
BLANK = "with open('/journal/%03d', 'wb') as f:\n for _ in range(16): f.write(b'\\xff' * 256)\n"


@pytest.fixture(params=[("pico_w", "8 256"), ("esp32", "8 1")], ids=["rp2", "esp32"])
def board(request, tmp_path: Path):
    name, region = request.param
    with Device(tmp_path / "board", name) as device, Link(device.path) as link:
        for path, content in build.image(name, "x64").items():
            if path.startswith(NEEDED):
                link.put(path, content)
        yield link, region


@pytest.mark.req("B4", "S2")
def test_interrupted_first_pinning_is_completed_at_the_next_start(board):
    link, region = board
    link.run("import os\nos.mkdir('/journal')\n" + BLANK % 0 + BLANK % 1)
    assert link.run(REGION).strip() == region
    assert link.run(REGION).strip() == region


@pytest.mark.req("B4", "S6")
def test_journal_without_its_map_is_refused(board):
    link, region = board
    assert link.run(REGION).strip() == region
    link.run("import os\nr.program(0, bytearray(256))\nos.remove('/journal/map')\n")
    with pytest.raises(BoardSaid, match="PinsLost"):
        link.run(REGION)
