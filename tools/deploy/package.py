"""Write `firmware/package.json`, by which mip installs the library: `python -m tools.deploy.package`; a test checks it."""

from __future__ import annotations

import json
from pathlib import Path

from tools.deploy.build import HOST_ONLY

ROOT = Path(__file__).resolve().parent.parent.parent
PATH = ROOT / "firmware" / "package.json"
VERSION = "0.1.0"


def package() -> dict:
    """Return the package's description, its files by their path beside it."""
    firmware = ROOT / "firmware"
    names = [str(path.relative_to(firmware)) for path in sorted((firmware / "flashmqtt").rglob("*.py"))]
    urls = [[name, name] for name in names if name not in HOST_ONLY]
    return {"urls": urls, "deps": [], "version": VERSION}


def text() -> str:
    """Return the file's content."""
    described = package()
    rows = ",\n".join("    " + json.dumps(row) for row in described["urls"])
    return f'{{\n  "version": "{VERSION}",\n  "deps": [],\n  "urls": [\n{rows}\n  ]\n}}\n'


if __name__ == "__main__":
    PATH.write_text(text())
