"""Sizes: a board's .mpy files, and their heap after import, compared with umqtt.simple.

The files are those that `make deploy` copies, with constants inserted and private names shortened; the row "as written" is
without that. The heap is measured on MicroPython's unix port, whose words have 64 bits. A board's words, and most of its heap,
are half as large.
"""

from __future__ import annotations

import ast
import os
import tempfile
from pathlib import Path
from typing import Any

from tools.deploy import build
from tools.proof.bench.codec import command, peer_path, ran
from tools.proof.check import size as ledger

ARCHITECTURES = {"RP2040": "armv6m", "ESP32": "xtensawin"}
HOST = "x64"
# The imports of a program with the blocking client and a journal on a block device, at levels 3 and 4.
BLOCKING = ("flashmqtt.client", "flashmqtt.journal.journal", "flashmqtt.flash.block", "flashmqtt.backoff")
CODEC = ("flashmqtt.codec.encode", "flashmqtt.codec.decode")
CODEC_5 = ("flashmqtt.session.level5",)  # the codec's part is packed into it
Files = dict[str, bytes]  # by the name under which a board imports them


def ours(march: str, plain: bool) -> Files:
    """Return the library's modules, compiled."""
    packed = build.packed({f"/lib/{path[:-3]}.mpy": source for path, source in build.library().items()}, march, plain)
    return {path.removeprefix("/lib/"): content for path, content in packed.items()}


def peer(march: str) -> Files:
    """Return umqtt.simple, compiled in the same way."""
    source = (peer_path() / "umqtt" / "simple.py").read_text()
    return {"umqtt/simple.mpy": build.compiled("umqtt.simple", source, march)}


def imported(files: Files, names: tuple[str, ...]) -> tuple[int, set[str]]:
    """Return the heap that importing these modules takes on this machine, and the files that this loads."""
    with tempfile.TemporaryDirectory() as folder:
        build.write_files(Path(folder), files)
        told = ast.literal_eval(ran(command("import", *names), folder).stdout.strip().splitlines()[-1])
    return told["heap"], {path for path in files if build.module_name(path) in told["modules"]}


def run(bench: Any) -> None:
    """Measure the sizes."""
    bench.progress("size: compiling")
    marches = (*ARCHITECTURES.values(), HOST)
    packed = {march: ours(march, False) for march in marches}
    written = {march: ours(march, True) for march in marches}
    other = {march: peer(march) for march in marches}
    codec = imported(packed[HOST], CODEC)[1]
    rows: list[list[object]] = []
    nothing: set[str] = set()
    for title, figure, files, names, without in (
        ("blocking client and journal, levels 3 and 4", "size", packed, BLOCKING, nothing),
        ("the same, as written", "size.plain", written, BLOCKING, nothing),
        ("the codec with what it imports", "size.codec", packed, CODEC, nothing),
        ("what level 5 adds", "size.codec_level5", packed, CODEC_5, codec),
        ("umqtt.simple", "size.umqtt_simple", other, ("umqtt.simple",), nothing),
    ):
        bench.progress(f"size: {title}")
        heap, loaded = imported(files[HOST], names)
        parts = loaded - without
        size = {board: sum(len(files[march][path]) for path in parts) for board, march in ARCHITECTURES.items()}
        bench.figure(f"{figure}.mpy_bytes", size["RP2040"])
        if not without:
            bench.figure(f"{figure}.heap_import_bytes", heap)
        rows.append([title, len(parts), *size.values(), "" if without else heap])
    bench.table(
        "size: .mpy files, and the heap after importing them (64-bit words; a board's are half as long)",
        ["", "files", *ARCHITECTURES, "heap bytes"],
        rows,
    )
    share: dict[str, int] = {}
    for path in imported(packed[HOST], BLOCKING)[1]:
        part = ".".join(build.module_name(path).split(".")[:2])
        share[part] = share.get(part, 0) + len(packed[ARCHITECTURES["RP2040"]][path])
    bench.table("size: of which (RP2040)", ["", "bytes"], [[part, size] for part, size in sorted(share.items())])
    ran_programs(bench)


def ran_programs(bench: Any) -> None:
    """Report the modules of programs that ran against a broker; their heap only with a 32-bit interpreter."""
    interpreter32 = os.environ.get("FLASHMQTT_MICROPYTHON32", "")
    bench.progress("size: programs against a broker")
    interpreter = Path(interpreter32) if interpreter32 else ledger.MICROPYTHON
    runs = ledger.programs(interpreter, "x86" if interpreter32 else "x64")
    rows: list[list[object]] = []
    for name, run in runs.items():
        heap = run["heap"] + run["native_bytes"]
        bench.figure(f"size.{name}.mpy_bytes", run["mpy_bytes"])
        if interpreter32:
            bench.figure(f"size.{name}.heap_32", heap)
        rows.append([name, len(run["modules"]), run["mpy_bytes"], heap])
    bits = 32 if interpreter32 else 64
    bench.table(
        f"size: programs that ran against a broker, recovery and machine code counted ({bits}-bit heap)",
        ["", "modules", ".mpy bytes", "heap bytes"],
        rows,
    )
    if not interpreter32:
        bench.clear()
        print("FLASHMQTT_MICROPYTHON32 names no 32-bit interpreter: the heap of a board's words was NOT measured")
