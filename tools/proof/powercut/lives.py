"""Random lives of a journal: random calls, with power cuts at random operations, also several in a row during recovery.

The scripts cut once or twice from a clean start; here cuts accumulate. A life is on a simulated chip, whose sectors become bad
early or late; or on the adversary's marginal cells, which it reads in more ways than the enumerated plans do. The
number of a life determines everything.
"""

import random

from flashmqtt.errors import StoreWorn
from flashmqtt.flash.block import BlockRegion
from tools.flashsim.nor import MODELS, NorFlash, PowerCut, Random

from .adversary import Cells
from .calls import call, work_on
from .cuts import GEOMETRIES
from .model import DROP_OLDEST, REFUSE, Driver, Lost, Model, SectorDied, accept, look, mount, seen_in

BAD = "a sector becomes bad"
ANY = "a1 a30 a100 a100 a100 a100 a220 a220 a232 a400 a220/50 a400/300 " * 3 + "f " * 24 + "f1 f3 f6 f11 g g g g "
ANY += "m m3 M M5 M9 x x x h10 h100 h500 H d d1 d3 D D1 n n u u u i i r c "
ANY += ANY + "a1500 a5000/300"
WORDS = tuple(
    map(tuple, (ANY.split(), "aaaf", "aaafffu", "aaAAffggmMuhHdDnic", "a" * 12 + "fffg", "aAhHdDm", "aaaffmmcri"))
)


class Chip:
    """A simulated chip, with the interface of the adversary's cells."""

    def __init__(self, rng, sectors, geometry):
        personality, page_bytes = GEOMETRIES[geometry]
        self.flash = NorFlash(sectors * 4096, personality)
        self.flash._rng = Random(rng.getrandbits(31))
        self.region = BlockRegion(self.flash, page_bytes=page_bytes)
        self._rng = rng

    def boot(self, cut_at):
        """Switch on, and cut the power after so many operations, -1 for never."""
        self.flash.power_up()
        if cut_at >= 0:
            self.flash.arm(self.flash.operations + 1 + cut_at, self._rng.choice(MODELS), self._rng.randrange(10000))

    def wear_out(self):
        """Make a sector bad."""
        self.flash.set_bad(self._rng.randrange(self.flash.sectors), self._rng.choice(("erase", "program", "both")))


class Marginal:
    """The adversary's cells: it draws how marginal units read."""

    def __init__(self, rng, sectors, sector_bytes, page_bytes):
        self.region = Cells(sectors, sector_bytes, page_bytes)
        self.region.state = [()] * sectors
        self._rng = rng

    def boot(self, cut_at):
        """Switch on, and cut the power after so many operations, -1 for never."""
        self.region.load(self.region.state, rng=self._rng)
        self.region.cut_at = cut_at


def live(rng, chip, policy, words, lengths, boots, bad=0, dies=False):
    """Run one life; return the number of its power cuts.

    Args:
        rng: draws everything.
        chip: a Chip, or Marginal cells.
        policy: of the journal.
        words: of the calls.
        lengths: the numbers of calls between two starts.
        boots: how many starts may be cut; one more is not, and uses the whole ring.
        bad: how many sectors are bad from the beginning; dies: one more becomes bad at some time.

    Raises:
        Lost: the journal broke a promise. Also other errors of BREAKS.
    """
    model = Model()
    cuts = 0
    dies_in = rng.randrange(boots) if dies else -1
    for boot in range(boots + 1):
        program = [rng.choice(words) for _ in range(rng.choice(lengths))] if boot < boots else []
        cut_at = rng.randrange(6) if rng.random() < 0.6 else rng.randrange(6 + 2 * len(program))
        for _ in range(bad if boot == 1 else 0):
            program.insert(0, BAD)
        if boot == dies_in:
            program.insert(rng.randrange(len(program) + 1), BAD)
        chip.boot(cut_at if boot < boots else -1)
        try:
            journal = mount(chip.region, policy)
            accept(journal, model, seen_in(journal))
            driver = Driver(journal, model, boot + 1)
            _execute(driver, chip, program)
            if boot == boots and not driver.journal.worn:
                try:
                    work_on(driver)
                except StoreWorn:  # the last free sectors are bad: see LIMITS.md
                    if not bad and not dies:
                        raise
        except PowerCut:
            cuts += 1
        except SectorDied:  # nobody can say which of the dropped messages a later boot finds again
            break
        else:
            if driver.journal.worn:  # it can't be written any more, but everything can be read
                model.check(driver.journal, *look(driver.journal))
                if not bad and not dies:
                    raise Lost("worn")
                break
        if isinstance(chip, Chip) and chip.flash.violations:
            raise Lost(str(chip.flash.violations[:3]))
    return cuts


def _execute(driver, chip, program):
    """Execute calls, up to the one that finds no usable sector any more."""
    for word in program:
        if driver.journal.worn:
            break
        try:
            chip.wear_out() if word == BAD else call(driver, word)
        except StoreWorn:
            if not driver.journal.worn:
                raise


def on_chip(number, boots=60):
    """Run a life on a simulated chip; every fourth has bad sectors."""
    rng = random.Random(number)
    bad, dies = (2 if number % 4 == 3 else 0), number % 7 in (2, 5)
    chip = Chip(rng, 10 if bad else rng.choice((4, 5, 6, 8, 12)), list(GEOMETRIES)[number % 4 if number % 3 else 0])
    return live(rng, chip, number % 5 % 3, WORDS[0], (0, 1, 10, 30, 100), boots, bad, dies)


def on_cells(number):
    """Run a life on marginal cells."""
    rng = random.Random(number)
    sizes = rng.choice((4, 5, 6, 16, 24, 40, 64)), rng.choice((1024, 1024, 1024, 2048, 4096))
    cells = Marginal(rng, *sizes, (256, 64, 32, 1)[number % 4])
    words, policy = rng.choice(WORDS[1:]), rng.choice((REFUSE, REFUSE, DROP_OLDEST))
    return live(rng, cells, policy, words, (0, 1, 2, 3, 6, 12, 40, 300), rng.choice((5, 6, 8, 12)))


def first_mounts(number):
    """Cut several first mounts on a simulated chip."""
    rng = random.Random(number)
    return live(
        rng, Chip(rng, rng.choice((4, 5)), list(GEOMETRIES)[number % 4]), REFUSE, (), (0,), rng.choice((1, 2, 4, 5, 8))
    )
