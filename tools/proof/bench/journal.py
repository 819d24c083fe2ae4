"""What the journal costs: page programs and erases a message, wear, years, memory, and the bytes that a recovery reads.

Everything is counted by the simulated chip (`tools.flashsim.nor`), so nothing here depends on the machine; times are modelled on
the data sheet of a W25Q16JV: 0.4 ms a page program, 45 ms an erase; reading at 10 MB/s, about what an RP2040 does through XIP.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from flashmqtt.flash.block import BlockRegion
from flashmqtt.journal.journal import Journal
from tools.flashsim.nor import NorFlash
from tools.proof.bench.codec import BIN, module_path, ran

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


def recovery(sectors: int, part: float) -> tuple[int, float, int]:
    """Return (bytes that a mount reads after a power cut, modelled ms with its writes, messages stored)."""
    flash = NorFlash(sectors * 4096)
    region = BlockRegion(flash)
    journal = Journal(region)
    for _ in range(int((sectors - 4) * 31 * part)):
        journal.append(bytes(100), 100)
    for seq in range(journal.low, min(journal.next_seq, journal.low + 8)):  # a window of 8 was being sent
        journal.mark(seq)
        journal.sync()
    flash.reset_counters()
    mounted = Journal(region)
    return flash.bytes_read, flash.typical_ms + flash.bytes_read / READ_BYTES_A_MS, mounted.next_seq - mounted.low


def run(bench) -> None:
    """Measure."""
    rows: list[list[object]] = []
    for personality, qos in (("rp2", 1), ("rp2", 2), ("esp32", 1), ("esp32", 2)):
        bench.progress(f"journal: {personality}, QoS {qos}")
        flash = steady(personality, qos, MESSAGES)
        programs, erases = flash.programs / MESSAGES, flash.erases / MESSAGES
        ratio = flash.bytes_programmed / MESSAGES / 100
        typical, worst = flash.typical_ms / MESSAGES, flash.worst_ms / MESSAGES
        rows.append([personality, qos, round(programs, 3), round(erases, 4), round(ratio, 3), round(typical, 2), worst])
        if personality == "rp2":
            bench.figure(f"journal.qos{qos}.programs", programs)
            bench.figure(f"journal.qos{qos}.erases", erases)
        else:
            bench.figure(f"journal.qos{qos}.bytes_ratio_esp32", ratio)
        if (personality, qos) == ("rp2", 1):
            bench.figure("journal.wear_spread", max(flash.erase_counts) - min(flash.erase_counts))
            a_message = erases
    bench.table(
        "Journal: a message of 100 bytes, stored and acknowledged, window 8",
        ["flash", "QoS", "programs", "erases", "bytes programmed / 100", "ms typical", "ms worst"],
        rows,
    )
    rows = []
    for length in (20, 100, 500):
        for window in (1, 8, 32):
            counted = []
            for qos in (1, 2):
                bench.progress(f"journal: {length} bytes, window {window}, QoS {qos}")
                flash = steady("rp2", qos, MESSAGES // 4, window, length=length)
                counted += [flash.programs / (MESSAGES // 4), flash.erases / (MESSAGES // 4)]
                if (length, window) != (100, 8):
                    bench.figure(f"journal.{length}_bytes.window_{window}.qos{qos}.programs", counted[-2])
            rows.append([length, window, *(round(n, 3) for n in counted)])
    bench.table(
        "Journal: other lengths and windows, a message",
        ["bytes", "window", "QoS 1: programs", "erases", "QoS 2: programs", "erases"],
        rows,
    )
    rows = []
    for kilobytes in (64, 256, 1024):
        years = kilobytes / 4 * ENDURANCE / a_message / SECONDS_A_YEAR
        bench.figure(f"journal.years_1_per_s.{kilobytes}k", years)
        rows.append([kilobytes, (kilobytes // 4 - 4) * 31, round(years, 1)])
    bench.table(
        "Journal: lifetime at one message a second (QoS 1)", ["KB", "messages of 100 bytes it holds", "years"], rows
    )
    rows = []
    for sectors in (16, 64, 256):
        for name, part in (("empty", 0.0), ("half full", 0.5), ("full", 1.0)):
            bench.progress(f"journal: recovery of {sectors} sectors, {name}")
            read, ms, waiting = recovery(sectors, part)
            rows.append([sectors, name, waiting, read, round(ms, 1)])
            if part == 0.5:
                bench.figure(f"journal.recovery_bytes_read.{sectors}", read)
    bench.table(
        "Journal: recovery from a power cut",
        ["sectors", "filled", "messages", "bytes read", "ms, with one erase"],
        rows,
    )
    bench.progress("journal: heap under MicroPython")
    for name, value in on_board().items():
        bench.figure(f"journal.{name}", value)


def on_board() -> dict[str, int]:
    """Run the MicroPython side; return its figures."""
    with tempfile.TemporaryDirectory() as directory:
        command = [str(BIN / "micropython"), "-X", "heapsize=320K", str(DEVICE), f"{directory}/flash"]
        lines = ran(command, module_path()).stdout.splitlines()
    return {name: int(value) for name, value in map(str.split, lines)}
