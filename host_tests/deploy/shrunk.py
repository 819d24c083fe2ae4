"""Shrink and compile the firmware once a run, in the first process that needs it: it takes six seconds, and many tests deploy.

A session fixture shares the result in a folder of the run: in `conftest.py` here, and in other test folders that deploy.
"""

import fcntl
import hashlib
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tools.deploy import build

# `python -c DEPLOY folder ...`: `python -m tools.deploy ...` with the firmware from the shared folder.
DEPLOY = """
import sys
from host_tests.deploy import shrunk
from tools.deploy.__main__ import main

shrunk.share(sys.argv[1])
sys.exit(main(sys.argv[2:]))
"""


@pytest.fixture(scope="session", autouse=True)
def shrunk_once(tmp_path_factory):
    """Share the folder with the other processes of this run."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if own.name.startswith("popen-") else own) / "shrunk"
    folder.mkdir(exist_ok=True)
    share(folder)


def share(folder: Path | str) -> None:
    """Read from a folder what another process has built; store there what this one builds."""
    if hasattr(build.packed, "folder"):
        return
    shrink, pack = build._shrunk, build.packed

    def shrunk(pairs):
        return shared(Path(folder), pairs, lambda: shrink(pairs))

    def packed(files, march, plain=False):
        key = [(path, source.read_bytes()) for path, source in files.items()], march, plain
        return shared(Path(folder), key, lambda: pack(files, march, plain))

    packed.folder = str(folder)
    build._shrunk, build.packed = shrunk, packed


def shared(folder: Path, key: object, make: Callable[[], Any]) -> Any:
    """Return the result for a key, made by the first process that asks."""
    with (folder / hashlib.sha256(repr(key).encode()).hexdigest()).open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        kept = file.read()
        if kept:
            return pickle.loads(kept)
        made = make()
        file.write(pickle.dumps(made))
        return made


def command(*words: str) -> list[str]:
    """Return the command that deploys in another process."""
    return [sys.executable, "-c", DEPLOY, build.packed.folder, *words]
