"""Runs on MicroPython: measures how much more heap 10,000 stored messages take than 10."""

import gc
import sys

from flashmqtt.flash.file import FileRegion
from flashmqtt.journal.journal import Journal


def used():
    """Return the heap in use after a garbage collection."""
    gc.collect()
    return gc.mem_alloc()


def main(path):
    """Print the growth."""
    journal = Journal(FileRegion(path, 512, 4096, 256))
    message = bytearray(100)
    for _ in range(10):
        journal.append(message, 100)
    at_10 = used()
    while journal.next_seq - journal.low < 10_000:
        journal.append(message, 100)
    print(used() - at_10)


main(sys.argv[1])
