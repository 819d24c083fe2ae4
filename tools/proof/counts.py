"""What a long proof counted: `build/NAME.json`, which `make bench` reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tools.bootstrap import ROOT

BUILD = ROOT / "build"


def write(name: str, counts: dict[str, Any], path: Path | None = None) -> None:
    """Write the counts of a proof; `path`: another file."""
    path = path or BUILD / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(counts, indent=2) + "\n")


def read(name: str) -> dict[str, Any] | None:
    """Return what the last run of a proof counted, or None if there was none."""
    path = BUILD / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None
