"""The chip: the time of each operation on an emulated Pico at 125 MHz, compared with umqtt.simple.

FLASHMQTT_UF2 is the path of a firmware image for a plain Pico. Without it this area prints a note, and the chip's figures of the
last run stay. The modules are those that `make deploy` copies. The emulator (rp2040py) counts the processor's cycles, and the
board's clock is derived from them. In the emulator, programming and erasing flash and XIP cache misses take no time, so a real
board is slower. The USB interrupt is off during a measurement: the emulated host's polling would take a third of the cycles.

The proxy needs no image: the user instructions of the same operations on a unix port, a 32-bit one if FLASHMQTT_MICROPYTHON32
names it. `cycles_each` is the chip's cycles for each instruction of the proxy.
"""

import ast
import os
import shutil
import statistics
import tempfile
from pathlib import Path

from flashmqtt.flash.ram import RamRegion
from flashmqtt.journal import journal
from tools.deploy import build
from tools.flashsim.nor import PAGE_BYTES, SECTOR_BYTES
from tools.flashsim.pico import FLASH_BYTES, EmulatedPico
from tools.proof.bench.codec import PEER, executed
from tools.proof.bench.figures import Bench, committed
from tools.proof.program import MICROPYTHON

HERE = Path(__file__).parent
DEVICE = HERE / "on_board" / "chip.py"
SECTORS = 64
CYCLES_A_MS = 125_000

# Runs on the emulated board. The journal starts at sector FIRST, in sectors that littlefs has not written.
RUN = """
import machine, rp2
import bench_chip
def opened():
    from flashmqtt.flash.block import BlockRegion
    return BlockRegion(rp2.Flash(), FIRST, {sectors})
machine.mem32[0xE000E180] = 1 << 5  # no USB interrupt
try:
    took = bench_chip.measure({case!r}, {count}, opened)
finally:
    machine.mem32[0xE000E100] = 1 << 5
print(took)
"""


# For each figure: the case on the board, the number of operations, and the kind of journal at the start.
FIGURES = {
    "umqtt_simple.publish_qos0_ms": ("umqtt0", 20, ""),
    "umqtt_simple.publish_qos1_ms": ("umqtt1", 20, ""),
    "umqtt_simple.receive_qos1_ms": ("umqtt_in1", 20, ""),
    "receive_qos1_ms": ("in1", 40, ""),
    "publish_qos0_ms": ("ram0", 40, ""),
    "publish_qos1_ram_ms": ("ram1", 20, ""),
    "append_100_ms": ("append", 24, "empty"),
    "publish_qos1_journal_ms": ("journal1", 24, "empty"),
    "publish_qos1_journal_threshold_ms": ("threshold_journal1", 40, "empty"),
    "publish_qos2_journal_ms": ("journal2", 16, "empty"),
    "sector_change_ms": ("append", 70, "empty"),
    "sector_change_full_ms": ("append_full", 36, "full"),
    "mount_64_ms": ("mount", 1, "some"),
    "import_ms": ("import", 1, ""),
}
# Runs on the unix port; for no operation, it only starts.
PROXY = """
import chip
from flashmqtt.flash.block import BlockRegion
{count} and chip.measure({case!r}, {count}, lambda: BlockRegion(chip.Memory({image!r})))
"""
# The proxy takes the difference of two runs that differ in the number of operations. For an operation that happens once, it
# takes the difference between a run of the case and a run of the case given here.
BESIDE = {"mount": ("import", 1), "import": ("import", 0)}
WARM = 2  # the first operations do one-time work and are not counted
NO_IMAGE = "FLASHMQTT_UF2 names no image of a plain Pico: nothing was measured on the chip, and its last figures stay"


def files(march: str) -> dict[str, bytes]:
    """Return the emulated board's files: the library as `make deploy` compiles it, umqtt.simple, and the cases."""
    library = build.packed({f"/lib/{path[:-3]}.mpy": source for path, source in build.library().items()}, march)
    simple = (PEER / "umqtt" / "simple.py").read_text()
    return {
        **{path.lstrip("/"): content for path, content in library.items()},
        "lib/umqtt/simple.mpy": build.compiled("umqtt.simple", simple, march),
        "lib/bench_chip.mpy": build.compiled("bench_chip", DEVICE.read_text(), march),
    }


def prepared(kind: str) -> bytes:
    """Return a journal: `empty`, `some` (300 messages), or `full` (it has wrapped around and drops the oldest messages)."""
    if not kind:
        return b""
    region = RamRegion(SECTORS, SECTOR_BYTES, PAGE_BYTES)
    store = journal.Journal(region, policy=journal.DROP_OLDEST)
    while store.dropped < 100 if kind == "full" else store.next_seq <= 300 and kind == "some":
        store.append(bytes(100), 100)
    return bytes(region.cells)


def blank_run(storage: bytes) -> int:
    """Return the first sector of a blank range that is large enough for the journal."""
    found = storage.find(b"\xff" * (SECTORS + 1) * SECTOR_BYTES)
    if found < 0:
        raise RuntimeError("no room for the journal between the files")
    return -(-found // SECTOR_BYTES)


def storage_bytes(uf2: Path) -> int:
    """Return the size of a Pico's file system."""
    return int(EmulatedPico(uf2).once("import rp2\nprint(rp2.Flash().ioctl(4, 0))")) * SECTOR_BYTES


def on_pico(uf2: Path, storage: int, on_board: dict[str, bytes], case: str, count: int, journal: bytes) -> list[float]:
    """Return the time of each operation, in milliseconds, on an emulated Pico with these files and this journal."""
    pico = EmulatedPico(uf2)
    pico.install(on_board, storage)
    start = FLASH_BYTES - storage
    flash = pico.device.mcu.flash
    first = blank_run(bytes(flash[start:FLASH_BYTES]))
    at = start + first * SECTOR_BYTES
    flash[at : at + len(journal)] = journal
    code = f"FIRST = {first}\n" + RUN.format(case=case, count=count, sectors=SECTORS)
    return [us / 1000 for us in ast.literal_eval(pico.once(code, timeout_s=400).strip().splitlines()[-1])]


def figure_of(name: str, took: list[float]) -> float:
    """Return the longest time if the figure is about a sector change, else the mean without the first WARM operations."""
    if name.startswith("sector_change"):
        return max(took)
    return statistics.fmean(took[WARM:] or took)


class Proxy:
    """Counts the user instructions of an operation on a unix port."""

    def __init__(self, folder: Path, interpreter32: str) -> None:
        self.bits = 32 if interpreter32 else 64
        self._interpreter = interpreter32 or str(MICROPYTHON)
        self._folder = folder
        build.write_files(folder, files("x86" if interpreter32 else "x64"))

    def _run(self, case: str, count: int, journal: bytes) -> int:
        """Return the instructions of a run."""
        image = self._folder / "image"
        image.write_bytes(journal)
        script = PROXY.format(case=case, count=count, image=str(image))
        words = [self._interpreter, "-X", "heapsize=1M", "-c", script]
        return executed(words, f".frozen:{self._folder / 'lib'}:{DEVICE.parent}")

    def operation(self, case: str, count: int, journal: bytes) -> int:
        """Return the instructions of one operation."""
        if case in BESIDE:
            return self._run(case, 1, journal) - self._run(*BESIDE[case], b"")
        return round((self._run(case, 2 * count, journal) - self._run(case, count, journal)) / count)


def run(bench: Bench) -> None:
    """Measure the chip if there is an image, and the proxy if there is valgrind."""
    uf2 = os.environ.get("FLASHMQTT_UF2", "")
    if not uf2:
        print(f"\nchip: {NO_IMAGE}")
    has_valgrind = shutil.which("valgrind") is not None
    if not has_valgrind:
        print("\nchip: no valgrind, so there is no proxy")
    storage, on_board = (storage_bytes(Path(uf2)), files("armv6m")) if uf2 else (0, {})
    last = committed()["figures"]
    with tempfile.TemporaryDirectory() as scratch:
        proxy = Proxy(Path(scratch), os.environ.get("FLASHMQTT_MICROPYTHON32", ""))
        for name, (case, count, kind) in FIGURES.items():
            bench.progress(f"chip: {name}")
            journal = prepared(kind)
            ms = last.get(f"chip.{name}")
            if uf2:
                ms = figure_of(name, on_pico(Path(uf2), storage, on_board, case, count, journal))
                bench.figure(f"chip.{name}", ms)
            # Not for a sector change: one slow operation, lost in the difference of two runs.
            if has_valgrind and not name.startswith("sector_change"):
                instructions = proxy.operation(case, count, journal)
                proxied = f"proxy{proxy.bits}.{name.removesuffix('_ms')}"
                bench.figure(f"{proxied}.instructions", instructions)
                if ms and instructions:
                    bench.figure(f"{proxied}.cycles_each", round(ms * CYCLES_A_MS / instructions, 1))
