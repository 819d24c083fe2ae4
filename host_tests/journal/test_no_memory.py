"""A journal whose parts can't be loaded because no memory is left: the policy decides, and nothing that is stored changes."""

import builtins
import sys
from unittest.mock import Mock

import pytest

from flashmqtt.errors import StoreFull
from flashmqtt.flash.ram import RamRegion
from flashmqtt.journal.journal import DROP_NEWEST, DROP_OLDEST, REFUSE, Journal

MESSAGE = bytes(60)


@pytest.fixture
def no_memory(monkeypatch):
    """Return a function that sets whether imports of the journal's parts fail, as on a board with a fragmented heap."""
    real = builtins.__import__
    failing = [False]

    def load(name, globals_=None, locals_=None, names=(), level=0):
        if failing[0] and level and name == "room":
            raise MemoryError
        return real(name, globals_, locals_, names, level)

    for name in ("room", "pieces", "held"):
        monkeypatch.delitem(sys.modules, f"flashmqtt.journal.{name}", raising=False)
    monkeypatch.setattr(builtins, "__import__", load)
    return lambda value: failing.__setitem__(0, value)


@pytest.mark.req("S5", "S6")
@pytest.mark.parametrize("policy", [REFUSE, DROP_OLDEST, DROP_NEWEST])
def test_full_store_without_memory_to_make_room_follows_its_policy(policy, no_memory):
    region = RamRegion(6, 1024)
    journal = Journal(region, policy=policy)
    no_memory(True)
    for stored in range(32):
        assert journal.append(MESSAGE, 60) == stored + 1
    if policy == DROP_NEWEST:
        assert journal.append(MESSAGE, 60) == 0 and journal.dropped == 1
    else:
        with pytest.raises(StoreFull):
            journal.append(MESSAGE, 60)
    assert (journal.low, journal.next_seq) == (1, 33)
    no_memory(False)
    if policy == DROP_OLDEST:
        assert journal.append(MESSAGE, 60) == 33 and journal.dropped > 0
    assert Journal(region, policy=policy).next_seq == journal.next_seq


@pytest.mark.req("S1", "S6")
def test_record_that_lacked_memory_does_not_cost_a_sector(monkeypatch):
    region = RamRegion(6, 1024)
    journal = Journal(region)
    journal.write_note(bytes(12))

    def no_view(_buf):
        raise MemoryError

    with monkeypatch.context() as without:
        without.setattr("flashmqtt.journal.journal.memoryview", no_view, raising=False)
        with pytest.raises(MemoryError):
            journal.append(MESSAGE, 60)
    for seq in 1, 2:
        assert journal.append(b"short", 5) == seq
    assert region.cells[1024:] == b"\xff" * 5 * 1024
    assert Journal(region).next_seq == 3


@pytest.mark.req("S1", "S6")
def test_record_that_lacked_memory_for_its_program_call_is_no_part_of_later_records(monkeypatch):
    """On a board, the call of a large function needs memory; the record is in the buffer then."""
    region = RamRegion(8, 1024)
    journal = Journal(region)

    for _ in range(8):
        with monkeypatch.context() as without:
            without.setattr(Journal, "_program", Mock(side_effect=MemoryError))
            with pytest.raises(MemoryError):
                journal.append(bytes(200), 200)
        journal.append(b"short", 5)
    assert not journal.worn and journal.next_seq == Journal(region).next_seq == 9
