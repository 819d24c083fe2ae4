"""The journal as a store, on flash in RAM: what goes in comes out, in order, also after a restart."""

import pytest

from flashmqtt.flash.ram import RamRegion
from flashmqtt.journal.journal import Journal


def content(journal, slot):
    buf = bytearray(journal.length_of(slot))
    journal.read(slot, 0, buf, 0, len(buf))
    return bytes(buf)


def everything(journal):
    found = []
    while True:
        slot = journal.take()
        if slot < 0:
            return found
        found.append(content(journal, slot))
        journal.release(slot)


@pytest.mark.req("S1")
def test_stored_messages_come_out_in_order_after_a_restart():
    region = RamRegion(8)
    journal = Journal(region)
    assert journal.fresh and journal.boot == 1
    for i in range(100):
        assert journal.next_seq == journal.append(b"message %d" % i, len(b"message %d" % i))
    journal = Journal(region)
    assert not journal.fresh and journal.boot == 2 and journal.stored == 100 and journal.waiting == 100
    assert everything(journal) == [b"message %d" % i for i in range(100)]


@pytest.mark.req("S1")
def test_a_marked_message_comes_back_open_with_its_mark():
    region = RamRegion(8)
    journal = Journal(region)
    for i in range(3):
        journal.append(b"%d" % i, 1)
        journal.take()
    journal.mark(1, 77)
    journal = Journal(region)
    open_slots = [slot for slot in range(journal.slots) if journal.is_open(slot)]
    assert [(content(journal, s), journal.mark_of(s), journal.old(s)) for s in open_slots] == [(b"1", 77, True)]
    assert everything(journal) == [b"0", b"2"]


@pytest.mark.req("S1", "Q4")
def test_a_held_message_comes_back_held_until_it_is_released():
    region = RamRegion(8)
    journal = Journal(region)
    slot = journal.hold(b"inbound", 7)
    assert journal.is_held(slot)
    journal = Journal(region)
    assert journal.waiting == 0 and journal.is_held(0) and content(journal, 0) == b"inbound"
    journal.release(0)
    journal.flush()
    journal = Journal(region)
    assert not journal.is_open(0)
