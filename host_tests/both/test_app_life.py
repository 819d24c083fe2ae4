"""A device's life number: it changes when the journal's sequence numbers start again, or when the state file is lost."""

import pytest

from app.life import life_of


class Facts(dict):
    """A state without a file; its save can fail."""

    full = False

    def save(self, **changes):
        if self.full:
            raise OSError(28)
        self.update(changes)


def numbers(*found):
    """Return a fake of os.urandom that gives these numbers."""
    left = list(found)
    return lambda n: left.pop(0).to_bytes(n, "big")


@pytest.mark.req("P4")
def test_life_continues_while_the_journal_keeps_its_sequence_numbers():
    state = Facts()
    assert life_of(state, 0, "a", numbers(40)) == (10, 1)
    assert life_of(state, 1, "a", numbers()) == (10, 1)
    assert life_of(state, 1000000, "a", numbers()) == (10, 1)


@pytest.mark.req("P4")
def test_wiped_journal_begins_a_new_life():
    state = Facts()
    life_of(state, 0, "a", numbers(40))
    assert life_of(state, 500, "a", numbers()) == (10, 1)
    assert life_of(state, 0, "a", numbers(80)) == (20, 1)  # the journal was wiped
    assert life_of(state, 0, "a", numbers(120)) == (30, 1)  # the first start was interrupted before its first message
    assert life_of(state, 1, "a", numbers()) == (30, 1)


@pytest.mark.req("P4")
def test_lost_state_begins_a_new_life_at_the_next_sequence():
    state = Facts()
    assert life_of(state, 500, "a", numbers(40)) == (10, 501)
    assert life_of(state, 501, "a", numbers()) == (10, 501)
    assert life_of(Facts(life="x", since=1), 7, "a", numbers(40)) == (10, 8)
    # Another journal: its last sequence number is below the first one of this life.
    assert life_of(state, 20, "a", numbers(80)) == (20, 21)


@pytest.mark.req("P4")
def test_changed_device_id_begins_a_new_life_at_the_next_sequence():
    state = Facts()
    life_of(state, 0, "a", numbers(40))
    assert life_of(state, 500, "b", numbers(80)) == (20, 501)
    assert life_of(state, 501, "b", numbers()) == (20, 501)
    assert life_of(state, 600, "a", numbers(120)) == (30, 601)
    assert life_of(Facts(life=10, since=1), 7, "a", numbers()) == (10, 1)  # a state saved without the device id


def intent(seq):
    """Return the note of a command whose reply has this sequence number."""
    return {"id": "1", "do": "interval", "ms": 5000, "seq": seq}


@pytest.mark.req("P4", "Q4")
def test_new_life_forgets_what_has_numbers_of_the_old_one():
    state = Facts()
    life_of(state, 0, "a", numbers(40))
    state.save(intent=intent(7), done=["x"], dropped_from=3, worn=5)
    assert life_of(state, 9, "a", numbers()) == (10, 1) and state["intent"]["seq"] == 7 and state["worn"] == 5
    # The journal was wiped. Without this its command would run again when the new journal has 6 messages at a start.
    assert life_of(state, 0, "a", numbers(80)) == (20, 1)
    assert state["done"] == ["x"] and [state.get(name) for name in ("intent", "dropped_from", "worn")] == [None] * 3


@pytest.mark.req("P4", "Q4")
def test_new_device_id_keeps_the_command_that_a_power_cut_interrupted():
    state = Facts()
    life_of(state, 0, "a", numbers(40))
    state.save(intent=intent(8))
    assert life_of(state, 7, "b", numbers(80)) == (20, 8)
    assert state["intent"] == intent(8)


@pytest.mark.req("P4")
def test_journal_older_than_the_state_begins_a_new_life():
    state = Facts()
    life_of(state, 0, "a", numbers(40))
    state.save(intent=intent(50))
    assert life_of(state, 49, "a", numbers()) == (10, 1)  # a power cut before the reply
    assert life_of(state, 48, "a", numbers(80)) == (20, 49)  # the journal was restored from a backup: 49 was used
    assert not state.get("intent")
    assert life_of(state, 49, "a", numbers()) == (20, 49)


def test_life_is_positive_and_below_2_to_the_30():
    assert life_of(Facts(), 0, "a", numbers(0)) == (1, 1)
    assert life_of(Facts(), 0, "a", numbers(0xFFFFFFFF)) == (0x3FFFFFFF, 1)
    assert 0 < life_of(Facts(), 0, "a")[0] < 1 << 30


def test_life_that_cannot_be_saved_is_0():
    state = Facts()
    state.full = True
    assert life_of(state, 0, "a", numbers(40)) == (0, 0)
    assert state == {}
