"""What a long proof counted: `build/NAME.json`, which `make bench` reports."""

import json
from typing import Any

from tools.bootstrap import ROOT

BUILD = ROOT / "build"


def write(name: str, counts: dict[str, Any]) -> None:
    """Write the counts of a proof."""
    BUILD.mkdir(exist_ok=True)
    (BUILD / f"{name}.json").write_text(json.dumps(counts, indent=2) + "\n")


def read(name: str) -> dict[str, Any]:
    """Return what the last run of a proof counted; nothing if there was none."""
    path = BUILD / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}
