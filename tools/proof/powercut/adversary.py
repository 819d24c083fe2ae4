"""Power cuts with an adversary: bits that a cut operation touched are marginal, and it chooses at each boot how they read.

The real journal runs on a region of *units*: a unit is what one program operation wrote, a header or a record. It is firm or
marginal. A cut program leaves its unit marginal; a cut erase leaves all units of its sector marginal. Programming the same bytes
again makes a unit firm, a complete erase removes it. At each boot the adversary chooses for each marginal unit that is read:
    whole, blank, garbled (one of its bits reads 1); in random chains also: without its first bytes, or with random bits at 1.
It is a violation to program a byte to a second value between two erases, marginal or not.

`enumerate_plan` tries every cut of every operation of every program of a plan in every reading, up to a number of cuts in a
chain. States with the same flash and the same promises are tried once. One run of the journal yields the cuts at all its
operations: each operation notes the state that a cut would leave. `lives` runs random chains on larger journals.
"""

import contextlib
import copy
import copyreg
import functools
import os
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

from flashmqtt.flash.region import Region
from tools import children
from tools.flashsim.nor import PowerCut

from .calls import call, run, work_on
from .model import BREAKS, DROP_OLDEST, REFUSE, Driver, Lost, Model, accept, mount, seen_in

WHOLE, BLANK, GARBLED, HEADLESS = range(4)
READINGS = 3  # the first three are enumerated
CARRIED = (0x41, 0x42, 0x46)  # kinds of records, without the flag 80, that don't make a sector count
_intern: dict = {}


class SecondValue(AssertionError):
    """A byte was programmed to a second value between two erases."""


class Cells(Region):
    """A region of units. A sector is a tuple of (offset, content, firm), a state is a tuple of sectors.

    skip: kinds of units ("header", "record", "carried") that a second program of the same bytes does not make firm: a mutation.
    """

    skip: tuple = ()

    def load(self, state, path=(), model=None, rng=None):
        """Load a state, and the adversary's first choices; `model` is copied at each operation."""
        size = self.sector_bytes
        self.state = list(state)
        self.image = image = bytearray(b"\xff" * (size * self.sectors))
        self.open: list[list] = [[] for _ in range(self.sectors)]
        self.ends = [0] * self.sectors  # behind the last unit of each
        for sector, units in enumerate(state):
            for offset, content, firm in units:
                self.ends[sector] = max(self.ends[sector], offset + len(content))
                if firm:
                    at = sector * size + offset
                    image[at : at + len(content)] = content
                else:
                    self.open[sector].append((offset, content))
        self.path = list(path)
        self.chosen = 0
        self.model = model
        self.rng = rng
        self.operations = 0
        self.children = None
        self.cut_at = -1

    def clone(self):
        """Return a copy in the middle of a boot."""
        other = copy.copy(self)
        other.state = list(self.state)
        other.image = bytearray(self.image)
        other.open = [list(units) for units in self.open]
        other.ends = list(self.ends)
        other.path = list(self.path)
        return other

    def choose(self, n):
        """Return the adversary's next choice."""
        if self.rng:
            return self.rng.randrange(n)
        if self.chosen == len(self.path):
            self.path.append(0)
        self.chosen += 1
        return self.path[self.chosen - 1]

    def read(self, offset, buf):
        """Fill buf; the adversary decides about marginal units that are read for the first time."""
        n = len(buf)
        size = self.sector_bytes
        for sector in range(offset // size, (offset + n - 1) // size + 1):
            if self.open[sector]:
                start = offset - sector * size
                for unit in [u for u in self.open[sector] if u[0] < start + n and start < u[0] + len(u[1])]:
                    self._decide(sector, unit)
        buf[:] = self.image[offset : offset + n]

    def _decide(self, sector, unit):
        self.open[sector].remove(unit)
        offset, content = unit
        reading = self.choose(5 if self.rng else READINGS)
        if reading == BLANK:
            return
        shown = bytearray(content)
        if reading == GARBLED:
            at = len(shown) - 1
            while shown[at] == 0xFF:
                at -= 1
            shown[at] |= shown[at] + 1  # its lowest 0
        elif reading == HEADLESS:
            shown[:8] = b"\xff" * 8
        elif reading > HEADLESS:
            rng = self.rng
            kind = rng.randrange(3)
            for i in range(len(shown)):
                if kind == 0 or rng.random() < 0.1:
                    shown[i] |= rng.getrandbits(8) & (rng.getrandbits(8) if kind == 1 else 0xFF)
        at = sector * self.sector_bytes + offset
        self.image[at : at + len(shown)] = shown

    def _passes(self, sector, cut):
        """Note the state that a cut of this operation leaves, or cut it."""
        if self.children is not None:
            state = list(self.state)
            state[sector] = cut
            self.children.append((tuple(state), self.model.freeze()))
        if self.operations == self.cut_at:
            self.state[sector] = cut
            raise PowerCut
        self.operations += 1

    def program(self, offset, buf, again=False):
        """Clear bits."""
        self._check_program(offset, len(buf))
        content = bytes(buf)
        start = offset + len(content) - len(content.lstrip(b"\xff"))
        content = content.strip(b"\xff")
        if not content:
            return
        size = self.sector_bytes
        sector, start = start // size, start % size
        units = self.state[sector]
        same = None
        alone = True
        for unit in units if start < self.ends[sector] else ():
            at, old, _firm = unit
            if at < start + len(content) and start < at + len(old):
                for i in range(max(at, start), min(at + len(old), start + len(content))):
                    if old[i - at] != content[i - start] != 0xFF:
                        raise SecondValue(
                            "byte %d of sector %d: %02x over %02x" % (i, sector, content[i - start], old[i - at])
                        )
                if at == start and old == content:
                    same = unit
                else:
                    alone = False
        if same is None:
            cut, done = (*units, (start, content, 0)), (*units, (start, content, 1))
        else:
            cut = units
            kind = "header" if start == 0 else "record"
            if content[5 - start % 4] & 0x4F in CARRIED:  # a CRC may begin with FF
                kind = "carried"
            done = units
            at = sector * size + start
            whole = self.image[at : at + len(content)] == content
            if not same[2] and not (whole and kind in self.skip):
                done = tuple((start, content, 1) if unit is same else unit for unit in units)
        cut, done = _intern.setdefault(cut, cut), _intern.setdefault(done, done)
        self._passes(sector, cut)
        self.state[sector] = done
        self.ends[sector] = max(self.ends[sector], start + len(content))
        if same is None or done is not units or same[2]:
            at = sector * size + start
            if alone:
                self.image[at : at + len(content)] = content
            else:
                for i, byte in enumerate(content):
                    if byte != 0xFF:
                        self.image[at + i] = byte
            self.open[sector] = [u for u in self.open[sector] if u != (start, content)]

    def erase(self, sector):
        """Set all bits of a sector."""
        self._check(sector * self.sector_bytes, 1, 1)
        if sector in self._needed():
            raise Lost("erases sector %d, which the head's header needs" % sector)
        cut = tuple((offset, content, 0) for offset, content, _ in self.state[sector])
        self._passes(sector, _intern.setdefault(cut, cut))
        self.state[sector] = ()
        self.open[sector] = []
        self.ends[sector] = 0
        size = self.sector_bytes
        self.image[sector * size : (sector + 1) * size] = b"\xff" * size

    def _needed(self):
        """Return the sectors of the chain that begins at the newest firm sector."""
        headers: dict = {}
        counting: dict = {}
        for sector, units in enumerate(self.state):
            header, counts, voids = outline(units)
            if header:
                headers[sector] = header
                if counts:
                    counting[int.from_bytes(header[8:12], "little")] = sector, voids
        head = -1
        void_to = 0
        for sequence, (sector, voids) in sorted(counting.items()):
            if sequence > void_to:
                head = sector
                void_to = sequence + 64 * voids
        found = []
        tail = headers[head][50] | headers[head][51] << 8 if head >= 0 else -1
        while head in headers and tail not in found:
            found.append(head)
            head = headers[head][52] | headers[head][53] << 8
            if len(found) > self.sectors:
                raise Lost("the chain has a ring")
        return found

    def next_path(self, fixed=0):
        """Return the choices of the next run, with the same first `fixed` choices, or None after the last."""
        path = self.path[: self.chosen]
        while len(path) > fixed and path[-1] == READINGS - 1:
            path.pop()
        if len(path) == fixed:
            return None
        path[-1] += 1
        return path


@functools.cache
def outline(units):
    """Return of a sector: its firm header or b"", whether its firm records make it count, and how many make others void."""
    firm = {at: content for at, content, how in units if how}
    header = firm.pop(0, b"")
    kinds = [content[5 - at % 4] & 0x4F for at, content in firm.items()]  # a record's CRC may begin with FF
    whole = len(header) >= 70  # the last bytes of its CRC may be FF
    return header if whole else b"", any(kind not in CARRIED for kind in kinds), kinds.count(0x43)


def check(journal, model):
    """Check a mounted journal; its content is final from now on."""
    if journal.worn:
        raise Lost("worn")
    accept(journal, model, seen_in(journal))


@dataclass(frozen=True)
class Plan:
    """Programs of up to `steps` of these `letters`, with up to `cuts` cuts, after a start without cuts.

    There is one alphabet and length for each boot; the last one repeats.
    """

    name: str
    sectors: int = 4
    page: int = 256
    start: str = ""
    letters: tuple = ("afu",)
    steps: tuple = (2,)
    cuts: int = 5
    policy: int = REFUSE
    sector_bytes: int = 1024


@dataclass
class RunStats:
    """The counts of an enumeration."""

    states: list = field(default_factory=list)  # distinct ones after each cut
    boots: int = 0
    cuts: int = 0
    broken: list = field(default_factory=list)


# A copied journal makes its views of its buffers again.
copyreg.pickle(memoryview, lambda _: (type(None), ()))  # type: ignore[arg-type, return-value]


def clone_journal(journal, region):
    """Return a copy of a mounted journal on a copy of its region."""
    return copy.deepcopy(journal, {id(journal.region): region, id(journal.on_drop): None})


@functools.cache
def canonical(units):
    """Return a sector's units without bytes that have no influence: the erase count, and the header's CRC."""
    return tuple(
        (offset, content[:44] + content.ljust(76 + 4 * (content[7] & 63), b"\xff")[48:-4], firm)
        if offset == 0 and len(content) >= 70
        else (offset, content, firm)
        for offset, content, firm in units
    )


def everything(driver):
    """Return a hash of all that decides what a mounted journal does next. Most readings of a state end in few of them."""
    region, journal = driver.journal.region, driver.journal
    ram = [value for part in (journal, journal._held, journal._pieces) if part for value in vars(part).values()]
    ram = [bytes(value) if isinstance(value, (bytearray, array)) else value for value in ram]
    ram = [value for value in ram if isinstance(value, (int, bytes))]
    flash = (*map(canonical, region.state), bytes(region.image), repr(region.open))
    return hash((flash, tuple(ram), driver.model.freeze()))


def start_state(plan):
    """Run the start of a plan; return (state, promises)."""
    region = Cells(plan.sectors, plan.sector_bytes, plan.page)
    region.load(((),) * plan.sectors)
    model = Model()
    if plan.start:
        driver = Driver(mount(region, plan.policy), model)
        run(driver, list(plan.start))
    return tuple(region.state), model.freeze()


class Level:
    """The states of a plan after so many cuts: all programs and readings of a boot in each of them."""

    def __init__(self, plan, number, states):
        self.plan, self.number, self.states = plan, number, states
        self.last = number == plan.cuts
        self.letters = plan.letters[min(number, len(plan.letters) - 1)]
        self.steps = 0 if self.last else plan.steps[min(number, len(plan.steps) - 1)]
        self.seen: set = set()  # states that a cut of this process left
        self.used: set = set()  # journals that this process used to the end
        self.children: list = []
        self.boots = 0

    def share(self, numbers):
        """Run some of the states; return (boots, cuts, states that the cuts left, errors)."""
        found, broken = [], []
        self.boots = cuts = 0
        for number in numbers:
            self.children = []
            state, frozen = self.states[number]
            try:
                self.run(state, frozen, self.last and (number % 8 == 0 or len(self.states) < 10000))
            except Lost as error:
                broken.append(str(error))
            cuts += len(self.children)
            for child in self.children:
                if (key := key_of(*child)) not in self.seen:
                    self.seen.add(key)
                    found.append(child)
            if len(broken) > 3:
                break
        return self.boots, cuts, found, broken

    def run(self, state, frozen, works):
        """Mount a state in every reading, and run every program; if it `works`, also use the journal. Raises Lost."""
        path: list | None = []
        while path is not None:
            self.boots += 1
            model = Model.thaw(frozen)
            region = Cells(self.plan.sectors, self.plan.sector_bytes, self.plan.page)
            region.load(state, path, model)
            region.children = None if self.last else self.children
            try:
                journal = mount(region, self.plan.policy)
                check(journal, model)
                driver = Driver(journal, model, self.number + 1)
                if works and (key := everything(driver)) not in self.used:
                    self.used.add(key)
                    work_on(driver)
            except BREAKS as error:
                self._fail(region, "", error)
            self._go(driver, "")
            path = region.next_path()

    def _fail(self, region, program, error):
        text = "%s, cut %d: readings %s, program %r: %r"
        raise Lost(text % (self.plan.name, self.number, region.path[: region.chosen], program, error)) from error

    def _go(self, driver, program):
        """Try every next step, in every reading."""
        if len(program) == self.steps:
            return
        before = driver.journal.region
        for letter in self.letters:
            path: list | None = list(before.path[: before.chosen])
            while path is not None:
                self.boots += 1
                region = before.clone()
                region.path = path
                region.model = model = driver.model.copy()
                other = Driver(clone_journal(driver.journal, region), model, driver.generation)
                try:
                    call(other, letter)
                except BREAKS as error:
                    self._fail(region, program + letter, error)
                self._go(other, program + letter)
                path = region.next_path(before.chosen)


_level: list = []  # the processes of a pool share it


def _share(numbers):
    return _level[0].share(numbers)


def key_of(state, frozen):
    """Return a hash of a state and its promises."""
    return hash((tuple(map(canonical, state)), frozen))


def enumerate_plan(plan, jobs=0):
    """Enumerate a plan; return RunStats. It ends at the first level with a broken promise."""
    stats = RunStats()
    states = [start_state(plan)]
    jobs = jobs or os.cpu_count() or 1
    for number in range(plan.cuts + 1):
        stats.states.append(len(states))
        _level[:] = [Level(plan, number, states)]
        size = max(1, min(100, len(states) // (jobs * 4)))
        shares = [range(i, min(i + size, len(states))) for i in range(0, len(states), size)]
        merged: dict = {}
        with contextlib.ExitStack() as stack:
            results: Iterable = map(_share, shares)
            if jobs > 1 and len(states) >= 20:  # a fork of a process with threads can hang
                results = stack.enter_context(children.pool(jobs)).imap_unordered(_share, shares)
            for boots, cuts, found, broken in results:
                stats.boots += boots
                stats.cuts += cuts
                for state, frozen in found:
                    if (key := key_of(state, frozen)) not in merged:
                        state = tuple(_intern.setdefault(s, s) for s in state)
                        merged[key] = (state, _intern.setdefault(frozen, frozen))
                stats.broken += broken
                if broken:
                    return stats
        states = list(merged.values())
    return stats


# --- the plans ---

RICH = "aAfgmuhDcn"
PLANS = (
    # Every chain of five cuts in the first mount and the mounts after it, with every device page.
    *(Plan("first-%d" % page, 4, page, letters=("",), steps=(0,)) for page in (256, 64, 32, 1)),
    # A message, a finish, a flush: five cuts with two steps between them, four with three.
    Plan("two-steps", 4, letters=("afu",), steps=(2,), cuts=5),
    Plan("three-steps", 4, letters=("afu",), steps=(3,), cuts=4),
    *(Plan("two-steps-%d" % page, 5, page, letters=("afu",), steps=(2,), cuts=3) for page in (64, 32, 1)),
    # Two steps of any kind, and then five cuts, four of them in the recovery from the cut before.
    Plan("recoveries", 5, letters=(RICH, ""), steps=(2, 0), cuts=5),
    # The same, with a step between the cuts.
    Plan("steps-between", 5, letters=(RICH, "af"), steps=(2, 1), cuts=4),
    Plan("any-step", 5, letters=(RICH,), steps=(1,), cuts=3),
    # A ring that is nearly full, with a held message in its tail; and a ring that drops the oldest messages.
    Plan("full", 6, start="AAAAmhf", letters=("aAfmhD", "afu"), steps=(1, 1), cuts=5),
    Plan("drop", 5, start="AAAA", policy=DROP_OLDEST, letters=("aAfm", "af"), steps=(1,), cuts=4),
    Plan("held", 5, start="ah", letters=("hHDc", "aD"), steps=(1,), cuts=4),
    # Mounts that carry messages from sector to sector: five cuts in them; steps between the cuts, and a held message in an older
    # sector; a ring that drops the oldest messages; an older message in the sector before.
    Plan("carry", 4, start="aa", letters=("",), steps=(0,), cuts=5),
    Plan("carry-between", 5, start="hraa", letters=("afm", "af"), steps=(1,), cuts=4),
    Plan("carry-drop", 4, start="aa", policy=DROP_OLDEST, letters=("a", "af"), steps=(1,), cuts=4),
    Plan("carry-behind", 5, start="aaaraaffu", letters=("afm", "af"), steps=(1,), cuts=3),
    # The same with messages in pieces.
    Plan("carry-pieces", 4, start="Aa", letters=("",), steps=(0,), cuts=5, sector_bytes=2048),
    Plan("carry-pieces-between", 4, start="A", letters=("aAf", "Af"), steps=(1,), cuts=4, sector_bytes=2048),
    # Openings that carry held messages into the new sector; the second plan has a list, as the header has no room for all.
    Plan("carry-held", 4, start="haaafffaaaa", letters=("a", ""), steps=(1, 0), cuts=5),
    Plan("carry-held-between", 4, start="haaafffaaaa", letters=("a", "aD"), steps=(1,), cuts=4),
    Plan("list", 5, start="h" * 42 + "a" * 10, letters=("a", ""), steps=(1, 0), cuts=4, sector_bytes=4096),
    # Clean ends.
    Plan("clean", 4, letters=("acf",), steps=(2,), cuts=3),
    Plan("clean-between", 4, letters=("ac",), steps=(1,), cuts=5),
    Plan("clean-five", 5, letters=("ac", "", "a"), steps=(2, 0, 1), cuts=5),
)
SHORT_PLANS = ("first-256", "two-steps-64", "two-steps-1", "full", "carry-drop", "clean-five")
