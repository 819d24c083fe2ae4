"""What the journal costs: page programs and erases a message, wear, years, memory, and the bytes that a recovery reads.

Everything is counted by the simulated chip of an RP2040 (`tools.flashsim.nor`), so nothing here depends on the machine. A message
has 100 bytes, and is acknowledged in a window of 8.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from flashmqtt.flash.block import BlockRegion
from flashmqtt.journal.journal import Journal
from tools.flashsim.nor import NorFlash
from tools.proof.bench.codec import module_path
from tools.proof.program import MICROPYTHON, ran

if TYPE_CHECKING:
    from tools.proof.bench.__main__ import Bench

DEVICE = Path(__file__).parent / "on_board" / "journal.py"
ENDURANCE = 100_000
MESSAGES = 40_000
SECONDS_A_YEAR = 365.25 * 86400
LENGTH, WINDOW, SECTORS = 100, 8, 64


def steady(qos: int, messages: int) -> NorFlash:
    """Store and acknowledge messages in a window; return the flash, counted after the ring has turned."""
    flash = NorFlash(SECTORS * 4096)
    journal = Journal(BlockRegion(flash))
    body = bytes(LENGTH)
    warm = SECTORS * 4096 // (LENGTH + 24)
    for i in range(warm + messages):
        if i == warm:
            flash.reset_counters()
        seq = journal.append(body, LENGTH)
        if qos == 2:
            journal.mark(max(journal.low, seq - WINDOW // 2))
            journal.sync()
        if journal.next_seq - journal.low >= WINDOW:
            journal.finish(journal.low)
    if flash.violations:
        raise RuntimeError(flash.violations[0])
    return flash


def recovery_bytes(sectors: int) -> int:
    """Return the bytes that a mount reads after a power cut of a journal that is half full."""
    flash = NorFlash(sectors * 4096)
    region = BlockRegion(flash)
    journal = Journal(region)
    for _ in range((sectors - 4) * 31 // 2):
        journal.append(bytes(LENGTH), LENGTH)
    for seq in range(journal.low, min(journal.next_seq, journal.low + WINDOW)):  # these were being sent
        journal.mark(seq)
        journal.sync()
    flash.reset_counters()
    Journal(region)
    return flash.bytes_read


def run(bench: Bench) -> None:
    """Measure."""
    for qos in (1, 2):
        bench.progress(f"journal: QoS {qos}")
        flash = steady(qos, MESSAGES)
        bench.figure(f"journal.qos{qos}.programs", flash.programs / MESSAGES)
        bench.figure(f"journal.qos{qos}.erases", flash.erases / MESSAGES)
        if qos == 1:
            bench.figure("journal.wear_spread", max(flash.erase_counts) - min(flash.erase_counts))
    for kilobytes in (64, 256, 1024):
        years = kilobytes / 4 * ENDURANCE / bench.figures["journal.qos1.erases"] / SECONDS_A_YEAR
        bench.figure(f"journal.years_1_per_s.{kilobytes}k", years)
    for sectors in (16, 64, 256):
        bench.progress(f"journal: recovery of {sectors} sectors")
        bench.figure(f"journal.recovery_bytes_read.{sectors}", recovery_bytes(sectors))
    bench.progress("journal: heap under MicroPython")
    for name, value in on_board().items():
        bench.figure(f"journal.{name}", value)


def on_board() -> dict[str, int]:
    """Run the MicroPython side; return its figures."""
    with tempfile.TemporaryDirectory() as directory:
        command = [MICROPYTHON, "-X", "heapsize=320K", DEVICE, f"{directory}/flash"]
        lines = ran(command, module_path()).stdout.splitlines()
    return {name: int(value) for name, value in map(str.split, lines)}
