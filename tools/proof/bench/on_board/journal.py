"""Runs on MicroPython: measures the heap with 10 and 10,000 stored messages."""

import gc
import sys

from flashmqtt.flash.file import FileRegion
from flashmqtt.journal.journal import Journal


def used():
    """Return the heap in use after a garbage collection."""
    gc.collect()
    return gc.mem_alloc()


def main(path):
    """Print `name value` lines."""
    before = used()
    journal = Journal(FileRegion(path, 512, 4096, 256))
    message = bytearray(100)
    for _ in range(10):
        journal.append(message, 100)
    at_10 = used()
    while journal.next_seq - journal.low < 10_000:
        journal.append(message, 100)
    print("heap_growth_bytes", used() - at_10)
    print("heap_bytes_64bit", at_10 - before)


main(sys.argv[1])
