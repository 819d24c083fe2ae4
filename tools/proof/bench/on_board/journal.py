"""Runs on MicroPython: measures the heap with 10 and 10,000 stored messages, and whether the steady state allocates."""

import gc

import micropython

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
    out = bytearray(100)
    for _ in range(10):
        journal.append(message, 100)
    at_10 = used()
    while journal.next_seq - journal.low < 10_000:
        journal.append(message, 100)
    print("growth", used() - at_10)
    print("heap", at_10 - before)
    for _ in range(200):
        cycle(journal, message, out)
    micropython.heap_lock()
    try:
        for _ in range(200):
            cycle(journal, message, out)
        print("allocates", 0)
    except MemoryError:
        print("allocates", 1)
    finally:
        micropython.heap_unlock()


def cycle(journal, message, out):
    """Store a message; read, mark and acknowledge the oldest one."""
    journal.append(message, 100)
    seq = journal.low
    journal.read(seq, 0, out, 0, 100)
    journal.mark(seq)
    journal.sync()
    journal.finish(seq)
