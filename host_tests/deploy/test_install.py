"""Other ways to install on a board: mip, freezing, a custom image; all files are checked that need no build."""

import json
import subprocess
import sys
from contextlib import chdir
from pathlib import Path
from types import SimpleNamespace

import pytest

from tools.bootstrap import ROOT
from tools.deploy import package
from tools.deploy.build import HOST_ONLY
from tools.deploy.image import texts
from tools.virtual_board.device import Device

FIRMWARE = ROOT / "firmware"
MPREMOTE = str(Path(sys.executable).parent / "mpremote")
DEFINITIONS = {"rp2": ROOT / "boards/rp2/definition", "esp32": ROOT / "boards/esp32/definition"}


@pytest.mark.req("B1")
def test_package_file_and_manifest_are_current():
    assert package.PATH.read_text() == package.source_package(), "run: python -m tools.deploy.package"
    assert package.MANIFEST.read_text() == package.manifest(), "run: python -m tools.deploy.package"
    listed = json.loads(package.PATH.read_text())
    assert all((FIRMWARE / url).is_file() for _, url in listed["urls"])
    assert not {name for name, _ in listed["urls"]} & set(HOST_ONLY)


@pytest.mark.req("B1", "B3")
def test_mip_installs_the_library_and_a_first_program_runs(tmp_path):
    program = (
        "import gc\n"
        "gc.threshold(16384)\n"  # as the README's programs begin: the sources are compiled on the board
        "from flashmqtt.client import Client\n"
        "from flashmqtt.journal.journal import Journal\n"
        "from flashmqtt.flash.pinned import PinnedFiles, pin\n"
        "import rp2\n"
        "pin(rp2.Flash(), '/journal', 8)\n"
        "store = Journal(PinnedFiles(rp2.Flash(), '/journal', page_bytes=256))\n"
        "client = Client('127.0.0.1', client_id='first', store=store)\n"
        "print('handle', client.publish('a/b', 'stored', qos=1) > 0, client.pending)\n"
    )
    (tmp_path / "first.py").write_text(program)
    with Device(tmp_path / "board") as device:
        words = [MPREMOTE, "connect", device.path, "mip", "install", str(package.PATH)]
        installed = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
        assert installed.returncode == 0 and "Done" in installed.stdout, installed.stdout + installed.stderr
        words = [MPREMOTE, "connect", device.path, "run", str(tmp_path / "first.py")]
        ran = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
        assert ran.stdout.split() == ["handle", "True", "1"], ran.stdout + ran.stderr


def evaluate(manifest: Path, frozen: dict, port: dict, **given) -> None:
    """Evaluate a manifest.py as MicroPython's manifest tool does, for the functions that our manifests use."""

    def where(path: str) -> Path | None:
        return None if path.startswith("$(") else (manifest.parent / path).resolve()

    def add(base: Path, names):
        for name in names:
            target = str(name.relative_to(base))
            assert target not in frozen, f"{target} is frozen twice"
            frozen[target] = name

    def freeze(path, script=None, opt=None):
        base = where(path)
        if base is None:
            port.setdefault(path, []).extend(script if script else ["*"])
        else:
            add(base, sorted(base.rglob("*.py")))

    def include(path, **more):
        if where(path) is None:
            port.setdefault(path, [])
        else:
            evaluate(where(path), frozen, port, **more)

    options = SimpleNamespace(defaults=lambda **names: vars(options).update(names | given))
    known = {"freeze": freeze, "include": include, "options": options}
    known |= {"require": lambda name, **more: port.setdefault(f"require {name}", []), "metadata": lambda **more: None}
    with chdir(manifest.parent):
        exec(compile(manifest.read_text(), str(manifest), "exec"), known)


@pytest.mark.parametrize("board", list(DEFINITIONS))
@pytest.mark.req("B1")
def test_manifest_freezes_library_application_and_board_once(board):
    frozen: dict = {}
    port: dict = {}
    evaluate(DEFINITIONS[board] / "manifest.py", frozen, port)
    assert {"flashmqtt/client.py", "flashmqtt/journal/journal.py", "app/application.py", "board.py"} <= set(frozen)
    name = {"rp2": "pico_w", "esp32": "esp32"}[board]
    assert frozen["board.py"].read_text() == texts(name, True, True)["board.py"]
    if board == "rp2":
        assert {"_boot.py", "journal_space.py"} <= set(frozen)
        assert port["$(PORT_DIR)/modules"] == ["rp2.py"]  # not its _boot.py


_MANIFEST = """
import pathlib
class options:
    application = ""
    defaults = staticmethod(lambda **names: None)
metadata = lambda **names: None
def freeze(path, opt):
    for name in sorted(pathlib.Path(path).rglob("*.py")):
        print(name.relative_to(path))
exec(open("manifest.py").read())
"""


@pytest.mark.req("B1")
def test_manifest_freezes_the_packed_library_with_a_python_that_has_no_other_packages():
    words = [sys.executable, "-I", "-S", "-c", _MANIFEST]  # MicroPython's build uses the system's Python
    ran = subprocess.run(words, cwd=FIRMWARE, capture_output=True, text=True, timeout=60, check=False)
    assert ran.stdout.split() == sorted(texts("", True, False)), ran.stderr


def number(text: str) -> int:
    return int(text, 0)


@pytest.mark.req("B1", "S3")
def test_partition_table_has_no_gaps_and_fills_the_flash():
    rows = []
    for line in (DEFINITIONS["esp32"] / "partitions.csv").read_text().splitlines():
        if line and not line.startswith("#"):
            name, kind, subtype, offset, size, *_ = (cell.strip() for cell in line.split(","))
            rows.append((name, kind, subtype, number(offset), number(size)))
    assert [row[0] for row in rows] == ["nvs", "phy_init", "factory", "vfs", "journal"]
    end = 0x9000
    for name, kind, _, offset, size in rows:
        assert offset == end, f"{name} leaves a gap or overlaps"
        assert size % 0x1000 == 0 and offset % (0x10000 if kind == "app" else 0x1000) == 0
        end = offset + size
    assert end == 4 * 1024 * 1024
    assert all(len(row[0]) < 16 for row in rows)
    settings = (DEFINITIONS["esp32"] / "sdkconfig.board").read_text()
    assert "CONFIG_PARTITION_TABLE_CUSTOM=y" in settings and "partitions.csv" in settings


@pytest.mark.req("B1", "S3")
def test_boot_of_our_image_keeps_the_journal_space(tmp_path):
    modules = DEFINITIONS["rp2"] / "modules"
    script = tmp_path / "as_frozen.py"
    script.write_text(
        "import sys, vfs, rp2\n"
        "class Space: pass\n"
        f"source = {(modules / 'journal_space.py').read_text()!r}\n"
        "space = Space()\nnames = {}\nexec(source, names)\n"
        "for name in ('file_system', 'device', 'JOURNAL_BYTES'): setattr(space, name, names[name])\n"
        "sys.modules['journal_space'] = space\n"
        "vfs.umount('/')\n"
        f"boot = {(modules / '_boot.py').read_text()!r}\n"
        "exec(boot, {})\n"
        "import os\n"
        "blocks = os.statvfs('/')[2]\n"
        "space.device().writeblocks(0, bytearray(b'j' * 256), 0)\n"
        "with open('/a', 'w') as f: f.write('file')\n"
        "vfs.umount('/')\n"
        "exec(boot, {})\n"
        "buf = bytearray(4)\n"
        "rp2.Flash().readblocks((848 - 256) // 4, buf, 0)\n"
        "print(blocks, space.device().ioctl(4, 0), open('/a').read(), bytes(buf))\n"
    )
    with Device(tmp_path / "board") as device:
        ran = subprocess.run(
            [MPREMOTE, "connect", device.path, "run", str(script)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert ran.stdout.strip() == "148 64 file b'jjjj'", ran.stdout + ran.stderr
