"""Tear the flash operation that was running when a virtual board's process was killed.

    tear(image, intent, rng) -> str

Call this on the host after a kill -9, with the two paths of `nor.FileNorFlash` and a `random.Random`. If an operation was
running, the image gets a torn result (program: a prefix of the bytes or a subset of the bits; erase: any bits), the intent is
cleared, and the result is a one-line description. Otherwise nothing changes, and the result is "".
"""

from __future__ import annotations

import os
import random
from binascii import crc32
from pathlib import Path


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


def tear(image: str | os.PathLike[str], intent: str | os.PathLike[str], rng: random.Random) -> str:
    """Write a torn result of the interrupted operation; return a one-line description, or "" if there was none."""
    found = in_flight(intent)
    if found is None:
        return ""
    kind, offset, old, new = found
    n = len(old)
    if kind == "P":
        wanted = bytes(a & b for a, b in zip(old, new, strict=True))
        if rng.random() < 0.5:
            done = rng.randrange(n + 1)
            left = wanted[:done] + old[done:]
            description = f"program of {n} bytes at {offset:#x} torn: the first {done} landed"
        else:
            left = bytes(a ^ ((a ^ b) & rng.getrandbits(8)) for a, b in zip(old, wanted, strict=True))
            description = (
                f"program of {n} bytes at {offset:#x} torn: {_bits(left, wanted)} of {_bits(old, wanted)} bits missing"
            )
    else:
        style = rng.randrange(4)
        if style == 0:  # just begun
            left = bytes(a | (rng.getrandbits(8) & rng.getrandbits(8) & rng.getrandbits(8)) for a in old)
        elif style == 1:
            left = bytes(a | rng.getrandbits(8) for a in old)
        elif style == 2:  # all but one bit
            at = rng.randrange(n)
            left = b"\xff" * at + bytes([0xFF ^ (1 << rng.randrange(8))]) + b"\xff" * (n - at - 1)
        else:  # chips program the sector to 0 before the erase pulses
            left = bytes(rng.getrandbits(8) for _ in range(n))
        description = f"erase at {offset:#x} torn: {_bits(left, new)} bits left"
    with open(image, "r+b") as flash:
        flash.seek(offset)
        flash.write(left)
    with open(intent, "r+b") as cleared:
        cleared.write(b"-")
    return description


def _bits(one: bytes, other: bytes) -> int:
    return sum((a ^ b).bit_count() for a, b in zip(one, other, strict=True))
