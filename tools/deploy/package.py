"""Write `firmware/package.json`, with which mip installs the sources: `python -m tools.deploy.package`. A test checks it."""

import json
import re
import sys
from collections.abc import Iterable

from flashmqtt import __version__
from tools.bootstrap import ROOT
from tools.command import exit_status, parser_of
from tools.deploy.build import HOST_ONLY

PATH = ROOT / "firmware" / "package.json"
MANIFEST = ROOT / "firmware" / "manifest.py"


def text(names: Iterable[str]) -> str:
    """Return a package.json for files, with their paths relative to it."""
    rows = ",\n".join("    " + json.dumps([name, name]) for name in names)
    return f'{{\n  "version": "{__version__}",\n  "deps": [],\n  "urls": [\n{rows}\n  ]\n}}\n'


def source_package() -> str:
    """Return the content of `firmware/package.json`."""
    firmware = ROOT / "firmware"
    names = [str(path.relative_to(firmware)) for path in sorted((firmware / "flashmqtt").rglob("*.py"))]
    return text(name for name in names if name not in HOST_ONLY)


def manifest() -> str:
    """Return the content of `firmware/manifest.py` with the current version."""
    return re.sub(r'version="[^"]*"', f'version="{__version__}"', MANIFEST.read_text())


def main(argv: list[str] | None = None) -> int:
    """Write both files; return the exit status."""
    text = "Write firmware/package.json, with which mip installs the sources, and the version in firmware/manifest.py."
    parser_of("tools.deploy.package", text).parse_args(argv)
    PATH.write_text(source_package())
    MANIFEST.write_text(manifest())
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(main, stopped="stopped"))
