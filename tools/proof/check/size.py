"""Sizes of library and application: `.mpy` bytes of each module, heap after import: `python -m tools.proof.check.size`.

The modules are compiled like `make deploy` compiles them for a Pico W. MicroPython imports one program after the other, with a
garbage collection after each. The figures are compared with `size_ledger.json` beside this file: the check fails if a module grew
by more than a little, until the ledger is updated with `--write`.

The heap on a board is that of a 32-bit MicroPython; here the unix port has 64 bits, and its figures are about 1.4 times
as large. If FLASHMQTT_MICROPYTHON32 names a 32-bit unix port, that is measured, too. It also runs the
application as a virtual Pico W with pinned files, against a real broker, in a heap of 200 KB plus the heap of the fake hardware.
Debian 13 has such an interpreter: package micropython, architecture i386.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path

from tools import command
from tools.bootstrap import ROOT
from tools.command import parser_of
from tools.deploy import build
from tools.flashsim.pico import littlefs_image
from tools.proof.bench import figures as documents
from tools.proof.bench.figures import LEDGER
from tools.proof.broker import Broker
from tools.proof.program import MICROPYTHON, ran
from tools.virtual_board.device import Device

BOARD = "armv6m"
GROWTH = 1.03
GROWTH_BYTES = 64
HEAP_GROWTH = 1.06  # heap figures vary with the order in which names are interned
PICO_HEAP = 200 * 1024
RUNNING_S = 120
FREE_WANTED = 100_000

# The modules that a program imports, in this order.
PROGRAMS = {
    "client and journal": ("flashmqtt.client", "flashmqtt.journal.journal", "flashmqtt.flash.block"),
    "pinned files": ("flashmqtt.flash.pinned",),
    "level 5": ("flashmqtt.session.level5",),
    "umqtt.simple's calls": ("flashmqtt.simple",),
    "umqtt.robust's calls": ("flashmqtt.robust",),
    "umqtt's socket": ("flashmqtt.sock",),
    "TLS": ("flashmqtt.tls",),
    "umqtt's ssl_params": ("flashmqtt.ssl_params",),
    "asyncio": ("flashmqtt.aio",),
    "application": ("app.configuration", "app.application", "app.health", "app.discovery"),
    "mqtt_as's calls": ("flashmqtt.mqtt_as",),
}

# The programs of `tools/proof/bench/on_board/programs.py`, which run against a broker.
RUNS = ("publisher", "client", "aio_ram")
RUNNER = ROOT / "tools" / "proof" / "bench" / "on_board" / "programs.py"

_MEASURE = """
import gc, sys
sys.path.append(%r)
names = %r
def used():
    gc.collect()
    return gc.mem_alloc()
used()
for program, modules in names:
    for name in modules:
        before = set(sys.modules)
        start = used()
        try:
            __import__(name)
        except ImportError:
            if name not in ("flashmqtt.tls", "flashmqtt.ssl_params"):  # a unix port may be without
                raise
            continue
        print(program, name, used() - start, ",".join(sorted(m for m in sys.modules if m not in before)), sep="|")
"""


def modules(march: str) -> dict[str, bytes]:
    """Return the compiled library and application: path, as a board has it below /lib or / -> content."""
    files = {path: source for path, source in build.sources("pico_w").items() if path.endswith(".mpy")}
    return {path.removeprefix("/lib").strip("/"): content for path, content in build.packed(files, march).items()}


def mpy_bytes() -> dict[str, int]:
    """Return module name -> bytes of its `.mpy` for a Pico W."""
    return {build.module_name(path): len(content) for path, content in modules(BOARD).items() if path != "board.mpy"}


def heap_bytes(interpreter: Path, march: str) -> tuple[dict[str, int], dict[str, list[str]]]:
    """Return program -> heap of its import after the programs before it, and program -> modules that this import loaded."""
    with tempfile.TemporaryDirectory() as scratch:
        build.write_files(Path(scratch), modules(march))
        script = _MEASURE % (scratch, [(name, list(modules)) for name, modules in PROGRAMS.items()])
        printed = ran([interpreter, "-X", "heapsize=2M", "-c", script], ".frozen").stdout
    heap: dict[str, int] = dict.fromkeys(PROGRAMS, 0)
    loaded: dict[str, list[str]] = {name: [] for name in PROGRAMS}
    for line in printed.splitlines():
        program, _, grown, names = line.split("|")
        heap[program] += int(grown)
        loaded[program] += [name for name in names.split(",") if name.startswith(("flashmqtt", "app"))]
    return heap, loaded


def native_bytes(loaded: list[str]) -> int:
    """Return an upper bound of the machine code in these modules: the size of its sources alone, compiled for a Pico W."""
    hosts = {name: host for host, names in build.GROUPS.items() for name in names}
    total = 0
    for path, (_, native) in build.CHOICES.items():
        name = build.module_name(path)
        if name in loaded or hosts.get(name) in loaded:
            total += len(build.compiled(name, (ROOT / "firmware" / native).read_text(), BOARD))
    return total


def run_program(interpreter: Path, folder: Path, *arguments: str, runner: Path = RUNNER) -> str:
    """Run `tools/proof/bench/on_board/programs.py` with the modules in a folder; return the last line that it printed."""
    command = [interpreter, "-X", "heapsize=2M", runner, arguments[0], folder, *arguments[1:]]
    return ran(command, f".frozen:{RUNNER.parent}").stdout.strip().splitlines()[-1]


def programs(interpreter32: Path | None) -> dict[str, dict]:
    """Run the programs against a broker; return the modules of each, their bytes for a Pico W, and their heap.

    Machine code is in the heap on a board, but not on a unix port: on a board, `native_bytes` adds to the heap. The heap includes
    the recovery, although a board unloads it after the mount.
    """
    sizes = mpy_bytes()
    found: dict[str, dict] = {}
    with tempfile.TemporaryDirectory() as scratch, Broker(Path(scratch) / "broker", kind="mosquitto") as broker:
        interpreter = interpreter32 or MICROPYTHON
        build.write_files(Path(scratch), modules("x86" if interpreter32 else "x64"))
        for name in RUNS:
            loaded = run_program(interpreter, Path(scratch), name, str(broker.port)).split()
            found[name] = {
                "modules": loaded,
                "mpy_bytes": sum(sizes[module] for module in loaded),
                "native_bytes": native_bytes(loaded),
                "heap": int(run_program(interpreter, Path(scratch), "heap", *loaded)),
            }
    return found


# Runs on the board before main.py: then the heap contains the fake hardware only, and the file system.
_BOOT = """
import gc, rp2, vfs
gc.collect()
base = gc.mem_alloc()
system = vfs.VfsLfs2(rp2.Flash(), progsize=256)
gc.collect()
print('base', 2 * base - gc.mem_alloc())
del system, base
"""


def frozen_heap(interpreter: Path, names: list[str]) -> int:
    """Return the heap that importing these modules takes in an interpreter that has the library frozen, with the recovery."""
    return int(run_program(interpreter, Path(os.devnull), "heap", *names))  # a folder that has no modules


def free_while_running(interpreter: Path, march: str, log: bool = True) -> int:
    """Run the application as a Pico W does, its journal in pinned files, against a broker; with its log, or without.

    The fake hardware (`tools.virtual_board`) is in the same heap, so the heap is made larger by its size.
    Return the least free heap that the board reported, after collection.
    """
    import paho.mqtt.client as paho

    heard: list[int] = []

    def note(client, userdata, message):
        heard.extend(record["v"] for record in json.loads(message.payload) if record["n"] == "heap_free")

    with tempfile.TemporaryDirectory() as scratch, Broker(Path(scratch) / "broker") as broker:
        listener = paho.Client(paho.CallbackAPIVersion.VERSION2)
        listener.on_message = note
        listener.connect("127.0.0.1", broker.port)
        listener.subscribe("flashmqtt/+/health", 0)
        listener.loop_start()
        config = {"broker": "127.0.0.1", "port": broker.port, "ssid": "home"}
        config |= {"health_s": 1, "interval_ms": 500, "log": log}
        files = {path.strip("/"): content for path, content in build.image("pico_w", march).items()}
        files |= {"config.json": json.dumps(config).encode(), "boot.py": _BOOT.encode()}
        image = littlefs_image(files, 848 * 1024)
        with _board(interpreter, Path(scratch) / "base", image, "1M") as board:
            board.wait_for(b"base ", RUNNING_S)
            board.wait_for(b"\n", RUNNING_S, board.console.index(b"base "))
            taken = int(board.console.split(b"base ")[1].split()[0])
        with _board(interpreter, Path(scratch) / "board", image, str(PICO_HEAP + taken)) as board:
            deadline = time.monotonic() + RUNNING_S
            while len(heard) < 4 and time.monotonic() < deadline:
                time.sleep(0.1)
        listener.disconnect()
        listener.loop_stop()
    if not heard:
        raise RuntimeError(f"the application did not report: {board.console.decode('utf-8', 'replace')[-800:]}")
    return min(heard)


def _board(interpreter: Path, folder: Path, image: bytes, heap: str) -> Device:
    """Return a virtual Pico W with this content of its flash."""
    folder.mkdir()
    (folder / "flash.bin").write_bytes(image)
    return Device(folder, wifi="home:", micropython=interpreter, heap=heap)


def measured(interpreter32: Path | None) -> dict:
    """Return all figures."""
    sizes = mpy_bytes()
    heap64, loaded = heap_bytes(MICROPYTHON, "x64")
    # Packages may have no file.
    loaded = {name: [module for module in modules if module in sizes] for name, modules in loaded.items()}
    result: dict = {"mpy_bytes": dict(sorted(sizes.items())), "programs": {}}
    for name, modules in loaded.items():
        size = sum(sizes[module] for module in modules)
        result["programs"][name] = {"modules": len(modules), "mpy_bytes": size, "heap_64": heap64[name]}
    if interpreter32:
        heap32, _ = heap_bytes(interpreter32, "x86")
        for name, value in heap32.items():
            result["programs"][name]["heap_32"] = value
        result["running_free_32"] = free_while_running(interpreter32, "x86")
        result["running_free_32_without_log"] = free_while_running(interpreter32, "x86", log=False)
    return result


def complaints(now: dict, ledger: dict) -> list[str]:
    """Return descriptions of what grew beyond the ledger."""
    found = []
    known_sizes = ledger["mpy_bytes"]
    for name, size in now["mpy_bytes"].items():
        if name not in known_sizes:
            found += [f"{name} is new: {size} bytes"]
        elif size > known_sizes[name] * GROWTH + GROWTH_BYTES:
            found += [f"{name} grew from {known_sizes[name]} to {size} bytes"]
    for name, figures in now["programs"].items():
        known = ledger["programs"].get(name, {})
        for key in ("heap_64", "heap_32"):
            if key in figures and key in known and figures[key] > known[key] * HEAP_GROWTH + 1024:
                found += [f"{name}: {key} grew from {known[key]} to {figures[key]} bytes"]
    return found


def with_unmeasured(now: dict, ledger: dict) -> dict:
    """Return the figures, with the ledger's figures of a 32-bit MicroPython where these were not measured."""
    programs = {}
    for name, figures in now["programs"].items():
        known = ledger["programs"].get(name, {})
        kept = {key: value for key, value in known.items() if key == "heap_32" and key not in figures}
        programs[name] = {**figures, **kept}
    running = {key: value for key, value in ledger.items() if key.startswith("running_free_32")}
    return {**now, "programs": programs, **{key: value for key, value in running.items() if key not in now}}


def tell_runs(interpreter32: Path | None, frozen32: Path | None) -> None:
    """Run the programs against a broker; print what they loaded, and their heap."""
    for name, run in programs(interpreter32).items():
        print(
            f"\n{name}, as it ran: {len(run['modules'])} modules, {run['mpy_bytes']:,} bytes of .mpy, heap {run['heap']:,} "
            f"({32 if interpreter32 else 64} bits), and up to {run['native_bytes']:,} of machine code\n"
            f"  {' '.join(run['modules'])}"
        )
        if frozen32:
            print(f"  frozen as firmware/manifest.py has it: heap {frozen_heap(frozen32, run['modules']):,} (32 bits)")


def tell(now: dict) -> None:
    """Print the figures."""
    rows = [("module", ".mpy bytes"), *now["mpy_bytes"].items()]
    print("\n".join([*command.table(rows, "<>"), ""]))
    keys = {"modules": "modules", "mpy_bytes": ".mpy bytes", "heap_64": "heap, 64 bit", "heap_32": "heap, 32 bit"}
    programs = [("program", *keys.values())]
    programs += [
        (name, *(figures.get(key, "not measured") for key in keys)) for name, figures in now["programs"].items()
    ]
    print("\n".join(command.table(programs, "<>>>>")))
    if "running_free_32" in now:
        free = now["running_free_32"]
        print(
            f"\nfree of a 200 KB heap (32 bit) while the application runs, its journal in pinned files: {free:,} bytes "
            f"(wanted: {FREE_WANTED:,}); without its log: {now['running_free_32_without_log']:,}"
        )


def named(variable: str) -> Path | None:
    """Return the interpreter that an environment variable names: a 32-bit unix port, for FROZEN32 one with the library frozen."""
    path = os.environ.get(variable)
    if path and not Path(path).is_file():
        raise command.Failure(f"{variable}: {path} is not a file; give an interpreter's path")
    return Path(path) if path else None


@command.named("size")
def main(argv: list[str] | None = None) -> int:
    """Measure, print, compare; return the exit status."""
    parser = parser_of("tools.proof.check.size", __doc__)
    parser.add_argument(
        "--runs", action="store_true", help="run the programs against a broker, and print their modules"
    )
    parser.add_argument("--write", action="store_true", help="write these figures into the ledger")
    arguments = parser.parse_args(argv)
    interpreter32, frozen32 = named("FLASHMQTT_MICROPYTHON32"), named("FLASHMQTT_FROZEN32")
    now = measured(interpreter32)
    tell(now)
    if arguments.runs:
        tell_runs(interpreter32, frozen32)
    if arguments.write:
        LEDGER.write_text(json.dumps(with_unmeasured(now, json.loads(LEDGER.read_text())), indent=1) + "\n")
        for path in documents.write():  # those that have these figures
            print(f"written: {path.relative_to(ROOT)}")
        return 0
    found = complaints(now, json.loads(LEDGER.read_text()))
    sys.stdout.flush()
    for line in found:
        print(f"size: {line}", file=sys.stderr)
    if found:
        print("size: if this is intended: .venv/bin/python -m tools.proof.check.size --write", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(command.exit_status(main))
