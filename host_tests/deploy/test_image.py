"""`make image`: what it checks, on a stand-in for MicroPython's sources; what it freezes; and the real build, where one is asked for."""

import re
from pathlib import Path

import pytest

from tools.deploy import build

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.req("B2")
@pytest.mark.parametrize("path", [path for _, path in build.CHOICES.values()])
def test_frozen_machine_code_of_an_rp2040_has_no_wide_constants(path):
    """A Cortex-M0+ reads them beside the code, from a word's boundary; mpy-tool aligns frozen functions by two bytes only.

    (Met with MicroPython 1.25: `raw_fill` filled with the code behind its constant, and no journal could be made.)
    What says how many arguments a function takes is read only where their number is wrong.
    """
    code = build.compiled("m", (ROOT / "firmware" / path).read_text(), "armv6m")
    words = [int.from_bytes(found[1], "little") for found in re.finditer(rb"\x00[\x48-\x4f]\x01\xe0(....)", code, re.S)]
    assert words, "the pattern finds none of the numbers of arguments any more"
    assert [hex(word) for word in words if word >> 17 != (word & 0xFFFF) >> 1] == []
