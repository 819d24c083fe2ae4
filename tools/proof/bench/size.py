"""Sizes: a board's .mpy files, and their heap, as `make size` measures them, compared with umqtt.simple.

The files are those that `make deploy` copies. The heap is measured on MicroPython's unix port, whose words have 64 bits; a
board's words, and most of its heap, are half as large. A 32-bit port is measured if FLASHMQTT_MICROPYTHON32 names one, and one
that has the library frozen if FLASHMQTT_FROZEN32 does.
"""

from tools.deploy import build
from tools.proof.bench.codec import PEER
from tools.proof.bench.figures import Bench
from tools.proof.check import size as ledger

BLOCKING = "client and journal"  # the ledger's program with the blocking client and a journal, at levels 3 and 4


def run(bench: Bench) -> None:
    """Measure the sizes."""
    bench.progress("size: compiling")
    blocking = ledger.measured(None)["programs"][BLOCKING]
    simple = build.compiled("umqtt.simple", (PEER / "umqtt" / "simple.py").read_text(), ledger.BOARD)
    bench.figure("size.mpy_bytes", blocking["mpy_bytes"])
    bench.figure("size.heap_import_bytes", blocking["heap_64"])
    bench.figure("size.umqtt_simple.mpy_bytes", len(simple))
    bench.progress("size: programs against a broker")
    interpreter32, frozen32 = map(ledger.named, ("FLASHMQTT_MICROPYTHON32", "FLASHMQTT_FROZEN32"))
    for name, run in ledger.programs(interpreter32).items():
        bench.figure(f"size.{name}.mpy_bytes", run["mpy_bytes"])
        bench.figure(f"size.{name}.heap_{32 if interpreter32 else 64}", run["heap"] + run["native_bytes"])
        if frozen32:
            frozen = ledger.frozen_heap(frozen32, run["modules"])
            bench.figure(f"size.{name}.frozen_heap_32", frozen)
