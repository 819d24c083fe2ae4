"""What the journal costs: page programs and erases a message, wear, years, memory, and the bytes that a recovery reads.

Everything is counted by the simulated chip (`tools.flashsim.nor`), so nothing here depends on the machine; times are modelled on
the data sheet of a W25Q16JV: 0.4 ms a page program, 45 ms an erase; reading at 10 MB/s, about what an RP2040 does through XIP.
"""

from __future__ import annotations

import tempfile
from itertools import product
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
READ_BYTES_A_MS = 10_000


def steady(
    personality: str, qos: int, messages: int, window: int = 8, sectors: int = 64, length: int = 100
) -> NorFlash:
    """Store and acknowledge messages in a window; return the flash, counted after the ring has turned."""
    flash = NorFlash(sectors * 4096, personality)
    journal = Journal(BlockRegion(flash))
    body = bytes(length)
    warm = sectors * 4096 // (length + 24)
    for i in range(warm + messages):
        if i == warm:
            flash.reset_counters()
        seq = journal.append(body, length)
        if qos == 2:
            journal.mark(max(journal.low, seq - window // 2))
            journal.sync()
        if journal.next_seq - journal.low >= window:
            journal.finish(journal.low)
    if flash.violations:
        raise RuntimeError(flash.violations[0])
    return flash


def recovery(sectors: int, part: float) -> tuple[int, float]:
    """Return (bytes that a mount reads after a power cut of a journal that is full to this part, modelled ms with its writes)."""
    flash = NorFlash(sectors * 4096)
    region = BlockRegion(flash)
    journal = Journal(region)
    for _ in range(int((sectors - 4) * 31 * part)):
        journal.append(bytes(100), 100)
    for seq in range(journal.low, min(journal.next_seq, journal.low + 8)):  # a window of 8 was being sent
        journal.mark(seq)
        journal.sync()
    flash.reset_counters()
    Journal(region)
    return flash.bytes_read, flash.typical_ms + flash.bytes_read / READ_BYTES_A_MS


def run(bench: Bench) -> None:
    """Measure. A message has 100 bytes, if nothing else is stated, and is acknowledged in a window of 8."""
    for personality, qos in (("rp2", 1), ("rp2", 2), ("esp32", 1), ("esp32", 2)):
        bench.progress(f"journal: {personality}, QoS {qos}")
        flash = steady(personality, qos, MESSAGES)
        totals = {"programs": flash.programs, "erases": flash.erases, "bytes_ratio": flash.bytes_programmed / 100}
        for what, total in {**totals, "typical_ms": flash.typical_ms, "worst_ms": flash.worst_ms}.items():
            end = "" if personality == "rp2" else "_esp32"
            bench.figure(f"journal.qos{qos}.{what}{end}", total / MESSAGES)
        if (personality, qos) == ("rp2", 1):
            bench.figure("journal.wear_spread", max(flash.erase_counts) - min(flash.erase_counts))
    for length, window, qos in product((20, 100, 500), (1, 8, 32), (1, 2)):
        if (length, window) != (100, 8):
            bench.progress(f"journal: {length} bytes, window {window}, QoS {qos}")
            flash = steady("rp2", qos, MESSAGES // 4, window, length=length)
            for what, count in (("programs", flash.programs), ("erases", flash.erases)):
                bench.figure(f"journal.{length}_bytes.window_{window}.qos{qos}.{what}", count / (MESSAGES // 4))
    for kilobytes in (64, 256, 1024):
        years = kilobytes / 4 * ENDURANCE / bench.figures["journal.qos1.erases"] / SECONDS_A_YEAR
        bench.figure(f"journal.years_1_per_s.{kilobytes}k", years)
    for sectors, (name, part) in product((16, 64, 256), (("_empty", 0.0), ("", 0.5), ("_full", 1.0))):
        bench.progress(f"journal: recovery of {sectors} sectors{name.replace('_', ', ')}")
        read, ms = recovery(sectors, part)
        bench.figure(f"journal.recovery_bytes_read.{sectors}{name}", read)
        bench.figure(f"journal.recovery_ms.{sectors}{name}", ms)
    bench.progress("journal: heap under MicroPython")
    for name, value in on_board().items():
        bench.figure(f"journal.{name}", value)


def on_board() -> dict[str, int]:
    """Run the MicroPython side; return its figures."""
    with tempfile.TemporaryDirectory() as directory:
        command = [MICROPYTHON, "-X", "heapsize=320K", DEVICE, f"{directory}/flash"]
        lines = ran(command, module_path()).stdout.splitlines()
    return {name: int(value) for name, value in map(str.split, lines)}
