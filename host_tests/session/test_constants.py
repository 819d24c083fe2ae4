"""Private copies of constants, which cost a board nothing, have the same values as the originals."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FIRMWARE = Path(__file__).resolve().parents[2] / "firmware" / "flashmqtt"
DEFINITION = re.compile(r"^(_?)([A-Z][A-Z0-9_]*) = (?:const\()?(0x[0-9a-fA-F]+|\d+)", re.MULTILINE)


def constants(name: str) -> dict[str, int]:
    return {found[2]: int(found[3], 0) for found in DEFINITION.finditer((FIRMWARE / name).read_text())}


@pytest.mark.req("Q1", "Q2")
@pytest.mark.parametrize(
    ("copy", "original"),
    [
        ("session/session.py", "codec/packets.py"),
        ("session/session.py", "session/flows.py"),
        ("session/session.py", "connection.py"),
        ("session/inbound.py", "codec/packets.py"),
        ("session/inbound.py", "session/flows.py"),
        ("session/level5.py", "connection.py"),
        ("connection.py", "codec/packets.py"),
    ],
)
def test_repeated_constants_equal_their_originals(copy, original):
    ours, theirs = constants(copy), constants(original)
    shared = ours.keys() & theirs.keys()
    assert shared
    assert {name: ours[name] for name in shared} == {name: theirs[name] for name in shared}
