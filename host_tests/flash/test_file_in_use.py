"""Only one region in all processes may have a file open; a crashed process leaves no lock."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": f"{ROOT / 'firmware'}",
    "MICROPYPATH": f".frozen:{ROOT / 'firmware'}",
}
COMMANDS = {"cpy": sys.executable, "mpy": str(Path(sys.executable).parent / "micropython")}
PROGRAM = """
import sys
from flashmqtt.flash.file import FileRegion, StoreInUse
from flashmqtt.journal.journal import Journal
try:
    journal = Journal(FileRegion(sys.argv[1], 16))
except StoreInUse as error:
    print("refused", error)
else:
    journal.append(b"one", 3)
    print("open", journal.stored)
    sys.stdin.readline()
"""


def start(kind: str, program: Path, image: Path) -> subprocess.Popen:
    """Start a program that opens the image, in its own process group, because MicroPython's command is a wrapper."""
    return subprocess.Popen(
        [COMMANDS[kind], str(program), str(image)],
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def next_line(process: subprocess.Popen) -> str:
    """Return the next line that the process prints."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.req("S6")
@pytest.mark.parametrize("first, second", [("cpy", "cpy"), ("mpy", "mpy"), ("cpy", "mpy")])
def test_second_process_is_refused_and_killed_process_leaves_no_lock(tmp_path, first, second):
    program, image = tmp_path / "program.py", tmp_path / "store"
    program.write_text(PROGRAM)
    holder = start(first, program, image)
    try:
        assert next_line(holder) == "open 1"
        refused = start(second, program, image)
        assert next_line(refused) == f"refused {image} is open in another region or process: close that first"
        refused.communicate(timeout=10)
    finally:
        os.killpg(holder.pid, signal.SIGKILL)
        holder.communicate(timeout=10)
    heir = start(second, program, image)
    assert next_line(heir) == "open 2"
    heir.communicate("\n", timeout=10)
    assert heir.returncode == 0
