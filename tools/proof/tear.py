"""Tear the flash operation that was running when a virtual board's process was killed.

    tear(image, intent, rng) -> bool

Call this on the host after a kill -9, with the two paths of `nor.FileNorFlash` and a `random.Random`. If an operation was
running, the image gets a result that `nor.NorFlash` leaves after a power cut (program: a prefix of the bytes or a subset of the
bits; erase: any bits), the intent is cleared, and the result is True. Otherwise nothing changes, and the result is False.
"""

import contextlib
import os
import random
from binascii import crc32
from pathlib import Path

from tools.flashsim.nor import SECTOR_BYTES, NorFlash, PowerCut


def in_flight(intent: str | os.PathLike[str]) -> tuple[str, int, bytes, bytes] | None:
    """Return (kind "P" or "E", offset, old bytes, new bytes) of the interrupted operation, or None."""
    try:
        text = Path(intent).read_bytes()
    except FileNotFoundError:
        return None
    if text[:1] not in (b"P", b"E") or len(text) < 9:
        return None
    offset, n = int.from_bytes(text[1:5], "little"), int.from_bytes(text[5:9], "little")
    body, crc = text[1 : 9 + 2 * n], text[9 + 2 * n : 13 + 2 * n]
    if len(crc) != 4 or crc32(body) != int.from_bytes(crc, "little"):
        return None
    return text[:1].decode(), offset, body[8 : 8 + n], body[8 + n :]


def tear(image: str | os.PathLike[str], intent: str | os.PathLike[str], rng: random.Random) -> bool:
    """Write a torn result of the interrupted operation; return whether there was one."""
    found = in_flight(intent)
    if found is None:
        return False
    kind, offset, old, new = found
    at = offset % SECTOR_BYTES
    chip = NorFlash(SECTOR_BYTES, "esp32")
    chip.poke(at, old)
    chip.arm(1, rng.choice(("prefix", "bits")) if kind == "P" else "bits", rng.randrange(10000))
    with contextlib.suppress(PowerCut):
        if kind == "P":
            chip.writeblocks(0, bytearray(new), at)
        else:
            chip.ioctl(6, 0)
    with open(image, "r+b") as flash:
        flash.seek(offset)
        flash.write(chip.peek(at, len(old)))
    with open(intent, "r+b") as cleared:
        cleared.write(b"-")
    return True
