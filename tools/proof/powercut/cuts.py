"""Runs a script once, keeps the flash's content before each operation, and then cuts each operation in every way.

An id replays one case alone: script/operation/model/variant, and after a + the same for a cut of the recovery.
"""

from flashmqtt.flash.block import BlockRegion
from tools.flashsim.nor import NorFlash, PowerCut, Random

from .calls import run
from .model import BREAKS as BROKEN
from .model import Driver, Lost, Model, accept, drain, look, mount, remount
from .scripts import SCRIPTS

# The chip's personality and its page size.
GEOMETRIES = {"rp2": ("rp2", 256), "page64": ("esp32", 64), "page32": ("esp32", 32), "esp32": ("esp32", 1)}


class Recorder(NorFlash):
    """A flash that records its content before each operation."""

    recording = False

    def record(self, model, only=-1):
        """Record from now on: every operation, or only the one with this number."""
        self.steps = []
        self.model = model
        self.only = only
        self.recording = True

    def _remember(self, kind, n, buf, off):
        if self.only >= 0 and self.only != len(self.steps):
            self.steps.append(None)
            return
        self.steps.append((kind, n, buf and bytes(buf), off, self.snapshot(), self.model.copy()))

    def writeblocks(self, n, buf, off=None):
        """Program."""
        if self.recording:
            self._remember("program", n, buf, off)
        super().writeblocks(n, buf, off)

    def ioctl(self, op, arg):
        """Erase."""
        if op == 6 and self.recording:
            self._remember("erase", arg, None, 0)
        return super().ioctl(op, arg)


def variants_of(kind, count):
    """Yield (model, variant): `count` variants of each model."""
    yield "nothing", 0
    yield "unreported", 0
    for i in range(count):
        if kind == "program":
            yield "prefix", (i * 61 + 5) % 255 + 1
        yield "bits", i
        yield "weak", i


def chosen(kind, at, count):
    """Yield (model, variant) for the operation with this number: see `variants_of`.

    With count 0: complete but unreported, and torn in varying ways.
    """
    if count:
        yield from variants_of(kind, count)
        return
    at %= 99  # `--replay` knows these variants
    yield "unreported", 0
    if kind == "erase":  # there are few
        yield "nothing", 0
        yield "bits", at
        yield "weak", at
    else:
        yield (("bits", at), ("prefix", (at * 61 + 5) % 255 + 1), ("weak", at), ("nothing", 0))[at % 4]


class Script:
    """A recorded run of a script."""

    def __init__(self, name, geometry="rp2", only=-1):
        self.name, self.sectors, self.policy, before, what = next(s for s in SCRIPTS if s[0] == name)
        personality, page_bytes = GEOMETRIES[geometry]
        self.flash = Recorder(self.sectors * 4096, personality)
        self.region = BlockRegion(self.flash, page_bytes=page_bytes)
        model = Model()
        if before is None:  # the first mount is cut, too
            self.flash.record(model, only)
            driver = Driver(self.mount(), model)
        else:
            driver = Driver(self.mount(), model)
            run(driver, before, strict=True)
            self.flash.record(model, only)
        run(driver, what, strict=True)
        self.steps = self.flash.steps
        self.flash.recording = False
        if self.flash.violations:
            raise Lost("%s: %s" % (name, self.flash.violations[:3]))

    def mount(self):
        """Mount the journal."""
        return mount(self.region, self.policy)

    def cut(self, step, fault, variant):
        """Restore the flash before an operation, cut the operation, power up; return the model of that moment."""
        flash = self.flash
        kind, n, buf, off, snapshot, model = step
        flash.restore(snapshot)
        flash._rng = Random(variant * 131 + len(fault))
        flash.arm(flash.operations + 1, fault, variant)
        try:
            if kind == "erase":
                flash.ioctl(6, n)
            else:
                flash.writeblocks(n, bytearray(buf), off)
            raise Lost("no cut happened")
        except PowerCut:
            pass
        flash.power_up()
        return model

    def recovery(self, step, fault, variant):
        """Cut an operation, and mount; return the operations of this mount, none if it fails."""
        self.flash.record(self.cut(step, fault, variant))
        try:
            self.mount()
        except BREAKS:
            return []  # the single cut reports it
        finally:
            self.flash.recording = False
        return self.flash.steps

    def verify(self, model, thorough):
        """Mount; check the promises; check that the journal can still be used."""
        flash = self.flash
        model = model.copy()
        journal = self.mount()
        if journal.worn:
            raise Lost("worn")
        accept(journal, model, look(journal))
        driver = Driver(journal, model, 1)
        run(driver, "a33 a300 g m h50 n")
        self._again(driver)
        driver.generation = 2
        run(driver, "f f f f d")
        self._again(driver)
        run(driver, "e")
        self._again(driver)
        run(driver, "a200 a200 f f " * (self.sectors * 8 if thorough else 1) + "a200 a200 f u", strict=True)
        self._again(driver)
        model.check(driver.journal, *drain(driver.journal))
        if flash.violations:
            raise Lost(str(flash.violations[:3]))

    def _again(self, driver):
        """Mount without a clean end, and check."""
        remount(driver)
        if driver.journal.worn or self.flash.violations:
            raise Lost("worn" if driver.journal.worn else str(self.flash.violations[:3]))


BREAKS = BROKEN + (PowerCut,)  # noqa: RUF005 - MicroPython has no star in a tuple


def run_script(name, count, pairs, pair_count, only=None, geometry="rp2", share=(0, 1)):
    """Cut a script at every operation of its share; return (cuts, list of (id, error)).

    count, pair_count: variants of each fault model; 0: the variants alternate from operation to operation.
    pairs: after each such number of cuts, the recovery is cut at every operation, too; 0: never.
    only: the id of one case; its error is raised.
    """
    script = Script(name, geometry)
    prefix = name if geometry == "rp2" else name + "@" + geometry
    cuts = 0
    broken = []

    def attempt(case, cut, thorough):
        nonlocal cuts
        cuts += 1
        try:
            script.verify(script.cut(*cut), thorough or only is not None)
        except BREAKS as error:
            if only:
                raise
            broken.append((case, repr(error)))
            script.flash.violations.clear()

    for case, cut in _cases(prefix + "/", script.steps, range(share[0], len(script.steps), share[1]), count):
        if only in (None, case):
            attempt(case, cut, cuts % 16 == 15)
        if pairs and (cuts % pairs == 0 if only is None else only.startswith(case + "+")):
            steps = script.recovery(*cut)
            for pair, second in _cases(case + "+", steps, range(len(steps)), pair_count):
                if only in (None, pair):
                    attempt(pair, second, False)
        if len(broken) > 20:
            break
    return cuts, broken


def _cases(prefix, steps, numbers, count):
    """Yield the id of each cut of these operations, and the arguments of `Script.cut`."""
    for at in numbers:
        for fault, variant in chosen(steps[at][0], at, count):
            yield "%s%d/%s/%d" % (prefix, at, fault, variant), (steps[at], fault, variant)
