"""A bit that changes by itself, no power cut near: what was stored is read or refused, but for what a torn write looks like."""

import pytest

from flashmqtt.errors import StoreError
from flashmqtt.flash.ram import RamRegion
from flashmqtt.journal.journal import Journal

SECTOR = 1024
SECTORS = 6


def content(journal, slot):
    buf = bytearray(journal.length_of(slot))
    journal.read(slot, 0, buf, 0, len(buf))
    return bytes(buf)


def everything(cells):
    """Return all messages of an image, as a mount of it gives them."""
    journal = Journal(RamRegion(SECTORS, SECTOR, 1, bytearray(cells)), 8)
    found = [content(journal, slot) for slot in range(journal.slots) if journal.is_open(slot)]
    while (slot := journal.take()) >= 0:
        found.append(content(journal, slot))
        journal.release(slot)
    return found


def store(journal, name, n):
    for i in range(n):
        body = b"%s %03d" % (name, i) + bytes(60)
        journal.append(body, len(body))


def running():
    """Return a journal in its first boot: the ring has turned, messages wait in several sectors."""
    journal = Journal(RamRegion(SECTORS, SECTOR), 8)
    for _ in range(30):
        store(journal, b"old", 1)
        journal.release(journal.take())
    store(journal, b"new", 16)
    return journal


def after_a_cut():
    """Return it after a boot that nothing closed: marked messages, one copied along."""
    journal = Journal(running().region, 8)
    store(journal, b"more", 4)
    journal.mark(journal.take(), 1)
    store(journal, b"last", 1)
    return journal


def closed():
    """Return it after a clean end."""
    journal = Journal(after_a_cut().region, 8)
    store(journal, b"final", 1)
    journal.close()
    return journal


@pytest.mark.req("S6")
@pytest.mark.parametrize("made", (running, after_a_cut, closed))
def test_a_flipped_bit_hides_nothing_but_the_last_record(made):
    journal = made()
    cells = bytes(journal.region.cells)
    stored = everything(cells)
    last = len(stored) - 1  # the newest, which a torn write looks like, too
    silent = 0
    for at in range(0, 8 * len(cells), 11):
        flipped = bytearray(cells)
        flipped[at // 8] ^= 1 << at % 8
        try:
            found = everything(flipped)
        except StoreError:
            continue
        if made is not closed and [message for message in found if message != stored[last]] == stored[:last]:
            silent += stored[last] not in found
            continue
        assert found == stored, "sector %d, offset %d" % divmod(at // 8, SECTOR)
    assert silent <= 8 * 84 // 11 + 1
