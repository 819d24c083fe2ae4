"""Read a journal's bytes from a file, from pinned files in a littlefs image, or from a board over mpremote."""

from __future__ import annotations

import binascii
import subprocess
import sys
from pathlib import Path

# Runs on the board. `journal_region(0)` opens the existing region; it can't make one with 0 sectors. It imports nothing from
# flashmqtt: on a board that `make deploy` filled, internal modules are joined and have other names.
READ_REGION = """
from binascii import b2a_base64
import board
region = board.journal_region(0)
print("region", region.sectors, region.sector_bytes)
page = bytearray(256)
blank = b"\\xff" * 256
for at in range(0, region.sectors * region.sector_bytes, 256):
    region.read(at, page)
    print("-" if page == blank else str(b2a_base64(page), "ascii").strip())
print("end")
"""
BOARD_DEADLINE_S = 300


class ImageUnreadable(Exception):
    """The journal's bytes can't be read; the text says why."""


def from_file(path: Path, first: int, sectors: int, sector_bytes: int) -> bytes:
    """Return a range of sectors of a file."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ImageUnreadable(str(error)) from None
    available = len(content) // sector_bytes - first
    if len(content) % sector_bytes or first < 0 or available < max(sectors, 1):
        raise ImageUnreadable(
            f"{path}: {len(content)} bytes do not contain {sectors or 1} sectors of {sector_bytes} bytes from sector {first}"
        )
    count = sectors or available
    return content[first * sector_bytes : (first + count) * sector_bytes]


def from_pinned_files(path: Path, directory: str, sector_bytes: int) -> bytes:
    """Return the pinned files of a littlefs image, joined in their order."""
    from littlefs import LittleFS, LittleFSError

    content = from_file(path, 0, 0, sector_bytes)
    fs = LittleFS(
        block_size=sector_bytes, block_count=len(content) // sector_bytes, read_size=32, prog_size=32, mount=False
    )
    fs.context.buffer = bytearray(content)
    try:
        fs.mount()
        names = sorted(name for name in fs.listdir(directory) if name.isdigit())
        parts = []
        for name in names:
            with fs.open(f"{directory}/{name}", "rb") as file:
                parts.append(file.read())
    except LittleFSError as error:
        raise ImageUnreadable(f"{path}: no pinned files in {directory} ({error})") from None
    if not parts or any(len(part) != sector_bytes for part in parts):
        raise ImageUnreadable(f"{path}: {directory} has no files of one block each")
    return b"".join(parts)


def from_board(port: str) -> tuple[bytes, int]:
    """Read the region of the board at a serial port, then reset the board; return the bytes and the sector size."""
    try:
        ran = _mpremote(port, "exec", READ_REGION)
    finally:
        _mpremote(port, "reset")  # a command of its own: mpremote skips what follows an `exec` that fails
    return parsed(ran.stdout.decode("ascii", "replace"), ran.stderr.decode("utf-8", "replace"))


def _mpremote(port: str, *words: str) -> subprocess.CompletedProcess[bytes]:
    connect = [] if port == "auto" else ["connect", port]
    command = [sys.executable, "-m", "mpremote", *connect, *words]
    try:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=BOARD_DEADLINE_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise ImageUnreadable(f"the board at {port} did not answer within {BOARD_DEADLINE_S} s") from None


def parsed(printed: str, errors: str = "") -> tuple[bytes, int]:
    """Return the bytes and the sector size from the output of `READ_REGION`."""
    lines = [line.strip() for line in printed.splitlines()]
    head = next((line for line in lines if line.startswith("region ")), "")
    if not head or "end" not in lines:
        last = [line for line in (errors or printed).splitlines() if line.strip()]
        raise ImageUnreadable("the board printed no journal: " + (last[-1] if last else "its output was empty"))
    _, sectors, sector_bytes = head.split()
    begin = lines.index(head) + 1
    content = bytearray()
    for line in lines[begin : lines.index("end")]:
        if line:
            content += b"\xff" * 256 if line == "-" else binascii.a2b_base64(line)
    if len(content) != int(sectors) * int(sector_bytes):
        raise ImageUnreadable(f"the board sent {len(content)} of {int(sectors) * int(sector_bytes)} bytes; try again")
    return bytes(content), int(sector_bytes)
