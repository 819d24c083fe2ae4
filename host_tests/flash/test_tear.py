"""SIGKILL ends a virtual board's process during a flash operation; `tear` changes the image as a power cut changes a chip."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tools.bootstrap import ROOT
from tools.flashsim.nor import SECTOR_BYTES, FileNorFlash
from tools.proof.tear import in_flight, tear

WRITER = """
import sys
from tools.flashsim.nor import FileNorFlash
flash = FileNorFlash(sys.argv[1], 8 * 4096, "rp2", intent=sys.argv[2], time_scale=float(sys.argv[3]))
page = bytearray(256)
n = 0
while True:
    for sector in range(8):
        flash.ioctl(6, sector)
        for at in range(0, 4096, 256):
            n += 1
            for i in range(256):
                page[i] = (n * 7 + i) & 0xFF
            flash.writeblocks(sector, page, at)
            sys.stdout.write(".")
"""


def _interpreter(name: str) -> list[str]:
    return [sys.executable if name == "cpython" else str(Path(sys.executable).parent / "micropython")]


@pytest.mark.parametrize("interpreter", ["cpython", "micropython"])
@pytest.mark.req("S2", "S3")
def test_tear_applies_the_operation_that_a_killed_process_left(tmp_path: Path, interpreter: str) -> None:
    script = tmp_path / "writer.py"
    script.write_text(WRITER)
    image, intent = tmp_path / "flash.bin", tmp_path / "flash.intent"
    rng = random.Random(4)
    told: list[str] = []
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'firmware'}", "MICROPYPATH": f"{ROOT}:{ROOT / 'firmware'}"}
    for kill in range(60):
        if kill >= 6 and len(told) >= 4 and "E" in told:
            break
        process = subprocess.Popen(
            [*_interpreter(interpreter), str(script), str(image), str(intent), "1.0"],
            stdout=subprocess.PIPE,
            env=env,
        )
        assert process.stdout is not None
        assert process.stdout.read(3)  # the process writes to its flash
        time.sleep(rng.random() * 0.1)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        found, before = in_flight(intent), image.read_bytes()
        torn = tear(image, intent, rng)
        after = image.read_bytes()
        assert in_flight(intent) is None
        assert torn == (found is not None)
        if found is None:
            assert after == before
            continue
        kind, offset, old, new = found
        told.append(kind)
        n = len(old)
        assert n == (256 if kind == "P" else SECTOR_BYTES)
        assert before[offset : offset + n] in (
            old,
            new,
        )  # killed before the operation was applied, or before the intent was cleared
        assert after[:offset] == before[:offset] and after[offset + n :] == before[offset + n :]
        if kind == "P":
            for was, now, wanted in zip(old, after[offset : offset + n], new, strict=True):
                assert now & ~was == 0 and (was & wanted) & ~now == 0
    # An erase takes 45 of every 51 ms, so most kills interrupt an erase; on a busy machine fewer do.
    assert len(told) >= 4, told
    assert "E" in told


@pytest.mark.req("S2")
def test_tear_produces_every_kind_of_torn_program_and_erase(tmp_path: Path) -> None:
    image, intent = tmp_path / "flash.bin", tmp_path / "flash.intent"
    rng = random.Random(1)
    kinds = set()
    sector, page = bytes(range(256)) * 16, bytes(range(256))
    for _ in range(60):
        flash = FileNorFlash(str(image), 2 * SECTOR_BYTES, intent=str(intent))
        flash.poke(0, sector)
        flash.poke(SECTOR_BYTES, b"\xff" * SECTOR_BYTES)
        programs = rng.random() < 0.5
        if programs:
            flash._begin("P", SECTOR_BYTES + 256, 256, bytearray(page), 0)
        else:
            flash._begin("E", 0, SECTOR_BYTES, None, 0)
        flash.close()
        assert tear(image, intent, rng)
        after = image.read_bytes()
        if programs:
            assert after[:SECTOR_BYTES] == sector
            left = after[SECTOR_BYTES + 256 : SECTOR_BYTES + 512]
            prefixes = (page[:n] + b"\xff" * (256 - n) for n in range(257))
            kinds.add("a prefix is programmed" if left in prefixes else "some bits are programmed")
        else:
            assert after[SECTOR_BYTES:] == b"\xff" * SECTOR_BYTES
            bits = sum((byte ^ 0xFF).bit_count() for byte in after[:SECTOR_BYTES])
            kinds.add("one bit is not erased" if bits == 1 else "bits are not erased" if bits else "all is erased")
    assert kinds >= {
        *("a prefix is programmed", "some bits are programmed"),
        *("one bit is not erased", "bits are not erased"),
    }


@pytest.mark.req("S2")
def test_incomplete_or_missing_intent_changes_nothing(tmp_path: Path) -> None:
    image, intent = tmp_path / "flash.bin", tmp_path / "flash.intent"
    assert not tear(image, intent, random.Random(0))
    flash = FileNorFlash(str(image), SECTOR_BYTES, intent=str(intent))
    assert not tear(image, intent, random.Random(0))
    flash._begin("E", 0, SECTOR_BYTES, None, 0)
    whole = intent.read_bytes()
    for cut in (1, 5, 9, 100, len(whole) - 1):
        intent.write_bytes(whole[:cut])
        assert not tear(image, intent, random.Random(0))
    intent.write_bytes(whole)
    assert in_flight(intent) is not None
    flash.writeblocks(0, bytearray(256), 0)
    assert in_flight(intent) is None and flash.violations == []
    flash.close()
    assert image.read_bytes() == bytes(256) + b"\xff" * (SECTOR_BYTES - 256)
