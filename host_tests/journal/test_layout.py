"""The modules repeat the format's numbers as private constants, which cost nothing on a board: they must equal layout.py's."""

import re
from pathlib import Path

import pytest

from flashmqtt import journal
from tools.journal import layout

FOLDER = Path(journal.__file__).parent
OWN = {
    "FREE",
    "CHAINED",
    "BAD",
    "FOR_HELD",
    "FOR_STATE",
    "AFTER_CLOSE",
    "INTERRUPTED",
}  # not part of the format: states of a sector, amounts of free space, states of the journal


@pytest.mark.req("S1")
@pytest.mark.parametrize("module", sorted(p.stem for p in FOLDER.glob("*.py") if p.stem != "__init__"))
def test_module_constants_equal_the_layout(module):
    text = (FOLDER / f"{module}.py").read_text()
    for name, value in re.findall(r"^_([A-Z_0-9]+) = const\((.+)\)", text, re.MULTILINE):
        if name not in OWN:
            assert getattr(layout, name) == int(value, 0), name
