"""Build the release reproducibly: `make release` writes `dist/`.

| in dist/ | for |
|---|---|
| `mip/mpy6-armv6m/package.json` and its files | boards, with mip: one folder for each processor; `any` has no machine code |
| `flashmqtt-VERSION-mip.tar.gz` | the same folders, to unpack on a file server or a branch |
| `flashmqtt-VERSION.tar.gz`, `...-py3-none-any.whl` | CPython: sdist and wheel, the same codec, session and client, with types |
| `SHA256SUMS` | `sha256sum --check` |

The version is `flashmqtt.__version__`. The same sources give the same bytes: the build does not depend on the clock, the machine
or the folder.
"""

import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from flashmqtt import __version__
from tools.bootstrap import ROOT
from tools.command import Failure, exit_status, folder, named, parser_of
from tools.deploy import package
from tools.deploy.build import HOST_ONLY, MPY_VERSION, library, packed, write_files

PC = "x64"
# mpy-cross's name of each processor for which it can compile our native code, with example boards. "": no machine code.
PROCESSORS = {
    "": "every board, slower",
    "armv6m": "RP2040: Pico, Pico W",
    "armv7emsp": "RP2350: Pico 2, Pico 2 W",
    "xtensawin": "ESP32, ESP32-S2, ESP32-S3",
    "rv32imc": "ESP32-C3, ESP32-C6",
    PC: "MicroPython on a PC; with the modules that only hosts use, such as a journal in a file",
}
EPOCH = 315532800  # 1980, the earliest time that a zip file (a wheel) can have


def mip_folder(march: str) -> str:
    """Return the name of a processor's folder."""
    return f"mpy{MPY_VERSION}-{march or 'any'}"


def write_mip(target: Path, march: str) -> None:
    """Write the mip package for one processor into a folder."""
    modules = library(bool(march))
    if march == PC:
        modules.update({name: ROOT / "firmware" / name for name in HOST_ONLY})
    contents = packed({f"{name[:-3]}.mpy": source for name, source in modules.items()}, march)
    write_files(target, contents)
    (target / "package.json").write_text(package.text(sorted(contents)))


def write_archive(target: Path, base: Path, prefix: str) -> None:
    """Write a folder as .tar.gz. The bytes depend only on the files' names and contents."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path in sorted(path for path in base.rglob("*") if path.is_file()):
            entry = tarfile.TarInfo(f"{prefix}/{path.relative_to(base)}")
            entry.size = path.stat().st_size
            entry.mtime = EPOCH
            archive.addfile(entry, io.BytesIO(path.read_bytes()))
    with target.open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=EPOCH) as zipped:
        zipped.write(content.getvalue())


def write_python_packages(target: Path) -> None:
    """Write sdist and wheel.

    Raises:
        Failure: the build failed.
    """
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(target)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH)}
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise Failure(f"hatchling build failed:\n{ran.stdout}{ran.stderr}")


def write_checksums(target: Path) -> None:
    """Write SHA256SUMS for every file below a folder."""
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(target)}\n"
        for path in sorted(target.rglob("*"))
        if path.is_file()
    ]
    (target / "SHA256SUMS").write_text("".join(lines))


def check_replaceable(target: Path) -> None:
    """Check that a folder has no files but those of an earlier release.

    Raises:
        Failure: it has others, which building a release would delete.
    """
    try:
        sums = (target / "SHA256SUMS").read_text().splitlines()
    except (OSError, ValueError):
        sums = []
    known = {line.partition("  ")[2] for line in sums} | {"SHA256SUMS"}
    others = (path for path in target.rglob("*") if not path.is_dir() and str(path.relative_to(target)) not in known)
    if (other := next(others, None)) is not None:
        raise Failure(
            f"{target} is not replaced: {other.relative_to(target)} is no file of a release; give an empty folder"
        )


def release(target: Path) -> None:
    """Build everything into a folder; an earlier release in it is deleted.

    Raises:
        Failure: a build failed, or the folder has other files; the folder is unchanged.
    """
    check_replaceable(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{target.name}-", dir=target.parent) as beside:
        scratch = Path(beside) / target.name
        for march, boards in PROCESSORS.items():
            write_mip(scratch / "mip" / mip_folder(march), march)
            print(f"release: mip/{mip_folder(march):15} {boards}")
        write_archive(scratch / f"flashmqtt-{__version__}-mip.tar.gz", scratch / "mip", f"flashmqtt-{__version__}-mip")
        write_python_packages(scratch)
        write_checksums(scratch)
        shutil.rmtree(target, ignore_errors=True)
        scratch.rename(target)
    for path in sorted(target.iterdir()):
        if path.is_file():
            print(f"release: {path.name}")


@named("release")
def main(argv: list[str] | None = None) -> int:
    """Run the command; return the exit status."""
    parser = parser_of("tools.deploy.release", __doc__)
    what = "the folder (default: dist); an earlier release in it is deleted"
    parser.add_argument("--into", type=folder, default=ROOT / "dist", help=what)
    release(parser.parse_args(argv).into)
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(main, stopped="stopped; dist/ is unchanged"))
