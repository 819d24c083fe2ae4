"""Read a journal's bytes from a file or from a board."""

import binascii
from pathlib import Path

from tools.command import Failure, explained
from tools.deploy.__main__ import retry_after_reset, stopped
from tools.deploy.link import BoardSaid

# Runs on the board. `journal_region(0)` opens the existing region; it can't make one with 0 sectors. It imports nothing from
# flashmqtt: on a board that `make deploy` filled, internal modules are joined and have other names.
READ_REGION = """
from binascii import b2a_base64
import board
region = board.journal_region(0)
print(region.sector_bytes)
page = bytearray(256)
blank = b"\\xff" * 256
for at in range(0, region.sectors * region.sector_bytes, 256):
    region.read(at, page)
    print("-" if page == blank else str(b2a_base64(page), "ascii").strip())
"""
BOARD_DEADLINE_S = 300


def from_file(path: Path, sector_bytes: int) -> bytes:
    """Return the sectors in a file, or in a backup: a folder `journal` with a file for each sector.

    Raises:
        Failure: the path can't be read, or has no whole sectors.
    """
    try:
        files = [path]
        if path.is_dir():
            files = sorted(file for file in (path, path / "journal") for file in file.glob("[0-9]*[0-9]"))
            if not files:
                raise Failure(f"{path} has no journal: give an image, or a folder that `make backup` made")
        content = b"".join(file.read_bytes() for file in files)
    except OSError as error:
        raise Failure(explained(error)) from None
    if not content or len(content) % sector_bytes:
        raise Failure(
            f"{path}: {len(content)} bytes are no whole sectors of {sector_bytes} bytes; --sector-bytes gives another size"
        )
    return content


def from_board(port: str) -> tuple[bytes, int]:
    """Read the region of the board at a serial port; return the bytes and the sector size. The board's program starts again.

    Raises:
        Failure: the board does not answer, or has no journal.
    """
    with stopped(port) as (link, _):
        try:
            size, *pages = retry_after_reset(link, lambda: link.run(READ_REGION, BOARD_DEADLINE_S)).split()
        except BoardSaid as said:
            if "no module named 'board'" in str(said):
                raise Failure("The board has no board.py, so no journal is known there: `make deploy` first") from said
            if "no module named 'flashmqtt" in str(said):  # or a part of it
                raise Failure(
                    "The board has no library, which board.py needs: `make deploy` first, or `make backup`, then "
                    "`make dump IMAGE=` with its folder"
                ) from said
            raise
    return b"".join(b"\xff" * 256 if page == "-" else binascii.a2b_base64(page) for page in pages), int(size)
