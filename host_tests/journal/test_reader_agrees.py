"""The independent reader and the library agree on a thousand images that random runs with power cuts left."""

import random

import pytest

from flashmqtt.errors import StoreCorrupt, StoreError, StoreFull
from flashmqtt.flash.block import BlockRegion
from flashmqtt.flash.ram import RamRegion
from flashmqtt.journal.journal import DROP_NEWEST, DROP_OLDEST, REFUSE, Journal
from host_tests.both.test_journal_crafted import craft, made
from host_tests.journal.reader import Refused, read
from tools.flashsim.nor import NorFlash, PowerCut, Random

LIVES = 50
IMAGES = 20  # of each life
STEPS = 50  # between two of them, at most
CRAFTED = 1500
WINDOW = 32


class TornRegion(RamRegion):
    """A region of small sectors whose power can be cut in an operation; any subset of the bits is done then."""

    def __init__(self, sectors, sector_bytes):
        super().__init__(sectors, sector_bytes, 1)
        self.operations = 0
        self.cut_at = 0
        self.rng = random.Random(0)

    def arm(self, operation, _model, variant):
        self.cut_at = operation
        self.rng = random.Random(variant)

    def power_up(self):
        self.cut_at = 0

    def _torn(self, at, n, operation):
        self.operations += 1
        if self.operations != self.cut_at:
            return operation()
        before = bytes(self.cells[at : at + n])
        operation()
        after = self.cells[at : at + n]
        style = self.rng.randrange(3)
        done = self.rng.randrange(n + 1)
        for i in range(n):
            mask = (0xFF if i < done else 0, self.rng.randrange(256), 0xFF)[style]
            self.cells[at + i] = (after[i] & mask) | (before[i] & ~mask & 0xFF)
        raise PowerCut("%d" % self.operations)

    def program(self, offset, buf, again=False):
        self._torn(offset, len(buf), lambda: super(TornRegion, self).program(offset, buf, again))

    def erase(self, sector):
        self._torn(sector * self.sector_bytes, self.sector_bytes, lambda: super(TornRegion, self).erase(sector))

    def image(self):
        return bytes(self.cells)


class Life:
    """A journal that is used at random; the number is the seed of everything."""

    def __init__(self, number):
        self.rng = random.Random(number)
        self.policy = (REFUSE, DROP_OLDEST, DROP_NEWEST)[number % 3]
        sectors = self.rng.choice((4, 4, 5, 6, 9))
        if number % 5 == 0:
            self.chip = NorFlash(sectors * 4096, "rp2" if number % 2 else "esp32")
            self.region = BlockRegion(self.chip)
        else:
            self.chip = self.region = TornRegion(sectors, self.rng.choice((1024, 1024, 2048)))
        self.journal = None
        self.power_on()

    def image(self):
        if isinstance(self.chip, TornRegion):
            return self.chip.image()
        return bytes(self.chip.peek(0, self.chip.size_bytes))

    def power_on(self):
        """Mount; the power may be cut meanwhile."""
        while True:
            self.chip.power_up()
            self.arm(0.4, 8)
            try:
                self.journal = Journal(self.region, self.policy)
                self.journal.on_drop = self.drop
                return
            except PowerCut:
                pass

    def arm(self, chance, within):
        if self.rng.random() < chance:
            model = self.rng.choice(("nothing", "prefix", "bits", "unreported"))
            self.chip.arm(self.chip.operations + self.rng.randrange(1, within), model, self.rng.randrange(10000))

    def drop(self, first, end):
        for sequence in range(max(first, self.journal.low), min(end, self.journal.low + WINDOW)):
            if self.rng.random() < 0.2:
                self.journal.mark(sequence)

    def live(self):
        """Do some steps; return whether the power was cut in the last one."""
        self.arm(0.7, 60)
        try:
            for _ in range(self.rng.randrange(1, STEPS)):
                try:
                    self.step()
                except StoreFull:
                    self.finish(8)
        except PowerCut:
            return True
        return False

    def unfinished(self):
        journal = self.journal
        window = range(journal.low, min(journal.next_seq, journal.low + WINDOW))
        return [sequence for sequence in window if not journal.is_finished(sequence)]

    def finish(self, n):
        for sequence in self.unfinished()[:n]:
            self.journal.finish(sequence)

    def step(self):
        journal, rng = self.journal, self.rng
        dice = rng.random()
        if dice < 0.35:
            size = rng.choice((1, 20, 100, 100, 200, 232, 233, 500))
            if rng.random() < 0.5:
                journal.append(rng.randbytes(size), size)
            elif journal.begin(size):
                while size and rng.random() < 0.95:  # else it is abandoned
                    part = min(size, rng.choice((7, 100, 300)))
                    journal.extend(bytearray(rng.randbytes(part)), part)
                    size -= part
                if not size:
                    journal.commit()
        elif dice < 0.55:
            self.finish(rng.choice((1, 1, 2, 5)))
        elif dice < 0.62:
            left = self.unfinished()
            if left:
                journal.finish(rng.choice(left))
        elif dice < 0.7:
            left = self.unfinished()
            if left:
                sequence = rng.choice(left)
                (journal.unmark if journal.is_marked(sequence) else journal.mark)(sequence)
        elif dice < 0.78:
            if len(journal.held()) < (3 if rng.random() < 0.9 else journal.hold_limit):
                size = rng.choice((2, 30, 100, 300))
                key = rng.randrange(1, 65536 if rng.random() < 0.5 else 50)
                if key not in journal.held():
                    journal.hold(key, rng.randbytes(size), size)
        elif dice < 0.86:
            held = journal.held()
            if held:
                journal.discard(rng.choice(held))
        elif dice < 0.9:
            journal.sync()
        elif dice < 0.94:
            journal.flush()
        elif dice < 0.96:
            journal.write_note(rng.randbytes(12))
        elif dice < 0.98:
            journal.idle()
        else:
            if rng.random() < 0.6:
                journal.close()
            self.power_on()


def read_by_library(journal):
    """Read a journal with the library and finish all messages; return what was read."""
    told = {"low": journal.low, "next": journal.next_seq, "dropped": journal.dropped, "damaged": journal.damaged}
    told["note"] = bytes(journal.note)
    window = range(journal.low, min(journal.next_seq, journal.low + WINDOW))
    told["finished"] = {sequence for sequence in window if journal.is_finished(sequence)}
    told["marked"] = {sequence for sequence in window if journal.is_marked(sequence)} - told["finished"]
    told["held"] = []
    for key in journal.held():
        buf = bytearray(journal.held_length(key))
        journal.read_held(key, 0, buf, 0, len(buf))
        told["held"].append((key, bytes(buf)))
    told["messages"] = messages = {}
    while journal.low < journal.next_seq:
        sequence = journal.low
        buf = bytearray(journal.length(sequence))
        if buf:
            journal.read(sequence, 0, buf, 0, len(buf))
            messages[sequence] = bytes(buf)
        journal.finish(sequence)
    return told


def compare_readers(image, sector_bytes, policy=REFUSE):
    """Compare reader and library on one image; return the reader's state."""
    state = read(image, sector_bytes)
    region = RamRegion(len(image) // sector_bytes, sector_bytes, 256, bytearray(image))
    journal = Journal(region, policy)
    assert journal.boot == state.boot + 1
    again = read(region.cells, sector_bytes)  # the image after the mount reads the same
    assert (again.boot, again.clean, again.hurt) == (state.boot + 1, False, False)
    assert not state.hurt and not state.lost
    for seen in (state, again):
        told = {"low": seen.low, "next": seen.next_seq, "dropped": seen.dropped, "damaged": seen.damaged}
        told.update(note=seen.note, finished=seen.finished, marked=seen.marked - seen.finished)
        told.update(held=seen.held, messages=seen.messages)
        if seen is state:
            library = read_by_library(journal)
        assert told == library
    return state


@pytest.mark.req("S1", "S2")
@pytest.mark.parametrize("number", range(LIVES))
def test_reader_and_library_agree_on_images_of_random_runs(number):
    life = Life(number)
    for _ in range(IMAGES):
        cut = life.live()
        compare_readers(life.image(), life.region.sector_bytes, life.policy)
        if cut:
            life.power_on()


def crafted_by_library(cells):
    """What the library says about an image with any content: the name of an error, or what is in it."""
    try:
        journal = Journal(RamRegion(len(cells) // 1024, 1024, 1, bytearray(cells)))
    except StoreError as error:
        return type(error).__name__
    window = range(journal.low, min(journal.next_seq, journal.low + WINDOW))
    finished = {sequence for sequence in window if journal.is_finished(sequence)}
    marked = {sequence for sequence in window if journal.is_marked(sequence)} - finished
    held = {}
    for key in journal.held():
        held[key] = bytearray(journal.held_length(key))
        journal.read_held(key, 0, held[key], 0, len(held[key]))
    messages = {}
    numbers = journal.low, journal.next_seq, journal.boot, bytes(journal.note), journal.dropped
    for _ in range(50):  # there may be a million, all but some of them lost
        sequence = journal.low
        if sequence < journal.next_seq:
            body = bytearray(journal.length(sequence))
            try:
                journal.read(sequence, 0, body, 0, len(body))
            except StoreCorrupt:
                body = b""
            if body:
                messages[sequence] = bytes(body)
            journal.finish(sequence)
    return numbers, finished, marked, held, messages


def crafted_by_reader(cells):
    try:
        state = read(cells, 1024)
    except Refused as refused:
        return str(refused)
    messages = {sequence: body for sequence, body in state.messages.items() if body}
    numbers = state.low, state.next_seq, state.boot + 1, state.note, state.dropped
    return numbers, state.finished, state.marked - state.finished, dict(state.held), messages


@pytest.mark.req("S2", "S6")
def test_reader_and_library_agree_on_images_with_impossible_content():
    rng = Random(7)
    images = (made(5), made(6), made(9))
    refused = 0
    for number in range(CRAFTED):
        cells = craft(rng, images)
        told = crafted_by_library(cells)
        assert told == crafted_by_reader(bytes(cells)), number
        refused += isinstance(told, str)
    assert 0 < refused < CRAFTED // 4
