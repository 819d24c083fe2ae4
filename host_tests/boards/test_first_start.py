"""The first start of a board: its journal region after a power cut in the first pinning, and the heap of its application."""

import ast
import json
from pathlib import Path

import pytest

from tools.deploy import build
from tools.deploy.link import BoardSaid, Link
from tools.flashsim.pico import littlefs_image
from tools.proof.broker import Broker
from tools.virtual_board.device import Device

REGION = (
    "import sys\nsys.path.append('/lib')\nimport board\nr = board.journal_region(8)\nprint(r.sectors, r.page_bytes)\n"
)
NEEDED = ("/board.mpy", *("/lib/flashmqtt/" + name for name in ("__init__", "errors", "fast/", "flash/")))
# After a garbage collection: the largest piece that can be allocated, and all free bytes.
LARGEST = """
import gc
gc.collect()
low, high = 0, gc.mem_free()
total = high
while high - low > 256:
    middle = (low + high) // 2
    try:
        piece = bytearray(middle)
        low = middle
    except MemoryError:
        high = middle
    piece = None
    gc.collect()
print((low, total))
"""
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


@pytest.mark.req("B4")
def test_free_heap_of_the_running_application_is_in_one_piece(tmp_path):
    """TLS on a Pico W takes 17 KB in one piece from this heap."""
    with Broker(tmp_path / "broker") as broker:
        config = {"broker": "127.0.0.1", "port": broker.port, "ssid": "home", "interval_ms": 500}
        files = {path.strip("/"): content for path, content in build.image("pico_w", "x64").items()}
        files["config.json"] = json.dumps(config).encode()
        (tmp_path / "board").mkdir()
        (tmp_path / "board" / "flash.bin").write_bytes(littlefs_image(files, 848 * 1024))
        with Device(tmp_path / "board", wifi="home:") as device:
            device.wait_for(b"delivered 3", 60)
            with Link(device.path) as link:
                largest, free = ast.literal_eval(link.run(LARGEST))
    assert largest > free / 2, (largest, free)
