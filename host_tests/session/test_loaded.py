"""A program loads only the parts of the library that it uses: the exact list of modules of five programs on MicroPython.

They run against a broker (`tools/proof/bench/on_board/programs.py`, `more_programs.py`), once with one file per module, once as
`make deploy` packs them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tools.deploy import build
from tools.proof.broker import Broker
from tools.proof.check import size

MICROPYTHON = Path(sys.executable).parent / "micropython"

BASE = {"", "compat", "errors", "fast"}
CODEC = {"codec", "codec.decode", "codec.encode", "codec.quick", "codec.utf8"}
CLIENT = {"backoff", "client", "connection", "link", "output", "session"} | {
    f"session.{name}" for name in ("flows", "note", "session")
}
JOURNAL = {"flash", "flash.block", "flash.region", "journal", "journal.journal", "journal.recovery"}
SUBSCRIPTIONS = {"codec.subscribe", "codec.topics", "session.message", "session.subscriptions"}
INBOUND = {"journal.held", "journal.room", "session.inbound", "session.several"}
LEVEL_5 = {"codec.aliases", "codec.level5", "codec.packets", "codec.properties", "codec.reasons", "session.level5"}

LOADED = {
    "publisher": BASE | CODEC | CLIENT | JOURNAL,
    "subscriber": BASE | CODEC | CLIENT | SUBSCRIPTIONS | {"session.ram"},
    "client": BASE | CODEC | CLIENT | JOURNAL | SUBSCRIPTIONS | INBOUND,
    "aio_ram": BASE | CODEC | CLIENT | SUBSCRIPTIONS | {"aio", "deferred", "session.ram", "session.waiting"},
    "level5": BASE
    | CODEC
    | CLIENT
    | JOURNAL
    | SUBSCRIPTIONS
    | INBOUND
    | LEVEL_5
    | {"session.pieces", "journal.pieces"},
}
# Packages without code have no file.
PACKED = {
    "publisher": {"", "errors", "codec.encode", "client", "flash.block", "journal.journal", "journal.recovery"},
    "subscriber": {"", "errors", "codec.encode", "client", "session.ram", "session.subscriptions"},
    "aio_ram": {"", "errors", "codec.encode", "client", "session.ram", "session.subscriptions", "aio", "deferred"},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[bool, Path]:
    """Return two folders with the library: with one file per module (key True), and packed (key False)."""
    base = tmp_path_factory.mktemp("loaded")
    folders = {plain: base / ("plain" if plain else "packed") for plain in (True, False)}
    library = {f"{path[:-3]}.mpy": source for path, source in build.library().items()}
    for plain, folder in folders.items():
        for path, content in build.packed(library, "x64", plain).items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
    return folders


def loaded(folder: Path, scratch: Path, name: str) -> set[str]:
    with Broker(scratch / "broker", kind="mosquitto") as broker:  # a new broker, without the session of an earlier run
        runner = size.RUNNER if name in size.RUNS else Path(__file__).with_name("more_programs.py")
        names = size.run_program(MICROPYTHON, folder, name, str(broker.port), runner=runner).split()
    assert len(names) == len(set(names)), "a module was loaded twice"
    return {module.removeprefix("flashmqtt").removeprefix(".") for module in names}


@pytest.mark.req("B2")
@pytest.mark.parametrize("name", LOADED)
def test_program_loads_exactly_the_modules_that_it_uses(folders, tmp_path, name):
    assert loaded(folders[True], tmp_path, name) == LOADED[name]


@pytest.mark.req("B2")
@pytest.mark.parametrize("name", PACKED)
def test_packed_program_loads_few_modules(folders, tmp_path, name):
    assert loaded(folders[False], tmp_path, name) == PACKED[name]
