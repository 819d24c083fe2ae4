"""What the journal costs: page programs and erases a message, wear, years, memory, and the bytes that a recovery reads.

Everything is counted by the simulated chip (`tools.flashsim.nor`), so nothing here depends on the machine.
"""

import tempfile
from pathlib import Path

from flashmqtt.flash.block import BlockRegion
from flashmqtt.journal.journal import Journal
from tools.flashsim.nor import NorFlash
from tools.proof.bench.codec import PATH
from tools.proof.bench.figures import Bench
from tools.proof.program import MICROPYTHON, ran

DEVICE = Path(__file__).parent / "on_board" / "journal.py"
ENDURANCE = 100_000
MESSAGES = 40_000
SECONDS_A_YEAR = 365.25 * 86400
SECTORS, WINDOW = 64, 8


def steady(qos: int) -> NorFlash:
    """Store and acknowledge messages in a window; return the flash, counted after the ring has turned."""
    flash = NorFlash(SECTORS * 4096)
    journal = Journal(BlockRegion(flash))
    warm = SECTORS * 4096 // 124
    for i in range(warm + MESSAGES):
        if i == warm:
            flash.reset_counters()
        seq = journal.append(bytes(100), 100)
        if qos == 2:
            journal.mark(max(journal.low, seq - WINDOW // 2))
            journal.sync()
        if journal.next_seq - journal.low >= WINDOW:
            journal.finish(journal.low)
    if flash.violations:
        raise RuntimeError(flash.violations[0])
    return flash


def recovery_bytes_read(sectors: int) -> int:
    """Return the bytes that a mount reads after a power cut of a journal that is half full."""
    flash = NorFlash(sectors * 4096)
    region = BlockRegion(flash)
    journal = Journal(region)
    for _ in range((sectors - 4) * 31 // 2):
        journal.append(bytes(100), 100)
    for seq in range(journal.low, min(journal.next_seq, journal.low + 8)):  # a window of 8 was being sent
        journal.mark(seq)
        journal.sync()
    flash.reset_counters()
    Journal(region)
    return flash.bytes_read


def run(bench: Bench) -> None:
    """Measure. A message has 100 bytes and is acknowledged in a window of 8."""
    for qos in (2, 1):
        bench.progress(f"journal: QoS {qos}")
        flash = steady(qos)
        bench.figure(f"journal.qos{qos}.programs", flash.programs / MESSAGES)
        bench.figure(f"journal.qos{qos}.erases", flash.erases / MESSAGES)
    bench.figure("journal.wear_spread", max(flash.erase_counts) - min(flash.erase_counts))
    years = 64 * ENDURANCE / bench.figures["journal.qos1.erases"] / SECONDS_A_YEAR
    bench.figure("journal.years_1_per_s.256k", years)
    bench.progress("journal: recovery")
    bench.figure("journal.recovery_bytes_read.256", recovery_bytes_read(256))
    bench.progress("journal: heap under MicroPython")
    bench.figure("journal.heap_growth_bytes", heap_growth_bytes())


def heap_growth_bytes() -> int:
    """Return how much more heap 10,000 stored messages take than 10, on MicroPython."""
    with tempfile.TemporaryDirectory() as directory:
        return int(ran([MICROPYTHON, "-X", "heapsize=320K", DEVICE, f"{directory}/flash"], PATH).stdout)
