"""The session over a journal on marginal flash: power cuts at every flash operation, and every reading of what they touched.

`tools/proof/powercut/adversary.py` explains the cells. A cut leaves a state of the flash, of the broker and of the program. From
each such state the board starts again, in every reading, and continues its program; the broker is honest.

`python -m host_tests.session.test_session_marginal LEVEL CUTS PROGRAM ...` tries other programs.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

if __name__ == "__main__":
    ROOT = Path(__file__).resolve().parents[2]
    sys.path[:0] = [str(ROOT), str(ROOT / "firmware"), str(ROOT / "host_tests" / "both")]

import pytest

from flashmqtt.journal.journal import Journal
from lossy import Broker, World
from tools.proof.powercut.adversary import Cells, canonical

# A program: q publishes at QoS 2, p a message in pieces at QoS 1; for j and i the broker has a message of QoS 2 and 1; t lets
# both sides work once; d cuts the connection, k is idle time, u flushes the journal.
CHOICES = {"q": 99, "p": 0, "j": 99, "i": 1}  # what `World` draws


class Strict(Broker):
    """A broker that never sees two messages with one packet id: they are fewer than there are ids."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.ids: dict[bytes, bytes] = {}

    def packet(self, kind, one, at):
        if kind == 3:
            at_id = at + 2 + (one[at] << 8 | one[at + 1])
            content = one[at_id + 2 :]
            assert self.ids.setdefault(one[at_id : at_id + 2], content) == content, "a packet id was used twice"
        super().packet(kind, one, at)


class Marginal(World):
    """A board that continues its program after a power cut."""

    KEPT = ("broker", "published", "maybe", "taken", "sent", "excused", "unsure", "count", "now", "up", "position")

    def __init__(self, cells: Cells, program: str, level: int, frozen: bytes) -> None:
        self.cells = cells
        self.program = program
        self.position = 0
        self.frozen = frozen
        self.choice = 99
        super().__init__(1, Marginal.open, level)

    def below(self, n: int) -> int:
        return min(self.choice, n - 1)

    def open(self) -> Journal:
        self.random = self
        self.cells.model = self
        self.broker = Strict(self.level)
        if self.frozen:
            self.__dict__.update(pickle.loads(self.frozen))
            self.excused += self.unsure
            self.unsure = []
            if self.up and self.broker.online and self.cells.choose(2):  # the bytes in transit may still arrive
                self.broker.take(self.up)
            self.broker.drop()
        return Journal(self.cells)

    def freeze(self) -> bytes:
        return pickle.dumps({name: getattr(self, name) for name in self.KEPT})

    def turn(self) -> None:
        self.connect()
        self.move_up()
        self.move_down()
        self.process()

    def play(self) -> None:
        calls = {"q": self.publish, "p": self.publish, "j": self.inbound, "i": self.inbound, "t": self.turn}
        calls |= {"d": self.drop, "k": self.store.idle, "u": self.store.flush}
        while self.position < len(self.program):
            letter = self.program[self.position]
            self.position += 1
            self.choice = CHOICES.get(letter, 99)
            calls[letter]()
            self.choice = 99
        self.settle()
        self.verdict()
        assert not self.store.held() and not self.store.damaged and not self.store.worn


def enumerate_cuts(program: str, level: int, cuts: int, skip: tuple = ()) -> int:
    """Run a program with every chain of so many cuts, in every reading; return the number of starts."""
    starts = 0
    found = {0: (((),) * 5, b"")}
    for depth in range(-1, cuts + 1):  # the first start is not cut: its first connection empties the broker's session
        states = list(found.values())
        found = {}
        for state, frozen in states:
            path: list | None = []
            while path is not None:
                cells = Cells(5, 1024, 256)
                cells.skip = skip
                cells.load(state, path)
                cells.children = []
                world = Marginal(cells, program if depth >= 0 else "", level, frozen)
                world.play()
                starts += 1
                for cut in cells.children if depth >= 0 else [(tuple(cells.state), world.freeze())]:
                    found[hash((tuple(map(canonical, cut[0])), cut[1]))] = cut
                path = cells.next_path()
    return starts


@pytest.mark.req("Q1", "Q2", "Q3", "Q4", "Q6", "W8", "S1", "S2")
@pytest.mark.parametrize(("program", "level"), [("qtqjt", 4), ("ptjtt", 5), ("jqtidt", 3)])
def test_no_reading_of_marginal_flash_loses_or_doubles_a_message(program, level):
    assert enumerate_cuts(program, level, 2) > 250


@pytest.mark.req("S2")
def test_enumeration_finds_a_journal_that_leaves_marginal_records_as_they_are():
    with pytest.raises(AssertionError):
        enumerate_cuts("qtqjt", 4, 2, ("record",))


if __name__ == "__main__":
    for one in sys.argv[3:]:
        print(one, enumerate_cuts(one, int(sys.argv[1]), int(sys.argv[2])), flush=True)
