"""The engine: runs a script once, keeps what the flash was before each operation, and then cuts each one in every way.

An id names a case and replays it alone: script/operation/model/variant, and after a + the same for a cut in the recovery.
"""

from flashmqtt.errors import FlashMqttError, StoreFull
from flashmqtt.flash.block import BlockRegion
from flashmqtt.journal.journal import Journal
from tools.flashsim.nor import NorFlash, PowerCut, Random

from .model import Driver, Lost, Model, body_of
from .scripts import SCRIPTS

SLOTS = 8


class Recorder(NorFlash):
    """A flash that remembers what each operation found."""

    recording = False

    def record(self, model, only=-1):
        """Begin to remember: every operation, or only the one with that number."""
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
    """Yield (model, variant), some of each model."""
    yield "nothing", 0
    yield "unreported", 0
    for i in range(count):
        if kind == "program":
            yield "prefix", (i * 61 + 5) % 255 + 1
        yield "bits", i
        yield "weak", i


class Script:
    """A script, run once."""

    def __init__(self, name, personality="rp2", only=-1):
        self.name, self.sectors, self.policy, before, what = next(s for s in SCRIPTS if s[0] == name)
        self.flash = Recorder(self.sectors * 4096, personality)
        self.region = BlockRegion(self.flash)
        model = Model()
        if before is None:  # the very first mount is part of it
            self.flash.record(model, only)
            driver = Driver(self.mount(), model)
        else:
            driver = Driver(self.mount(), model)
            before(driver)
            self.flash.record(model, only)
        what(driver)
        self.steps = self.flash.steps
        self.flash.recording = False
        if self.flash.violations:
            raise Lost("%s: %s" % (name, self.flash.violations[:3]))

    def mount(self):
        """Mount the journal."""
        return Journal(self.region, SLOTS, self.policy)

    def cut(self, step, fault, variant):
        """Bring back the moment, cut the operation, switch on again; return the model of that moment."""
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

    def verify(self, model, thorough):
        """Mount; everything promised must be there; the journal must go on working."""
        flash = self.flash
        model = model.copy()
        journal = self.mount()
        if journal.boot <= model.boot:
            raise Lost("boot %d after boot %d" % (journal.boot, model.boot))
        if journal.dropped < model.dropped and self.policy != 1:
            raise Lost("dropped %d, was %d" % (journal.dropped, model.dropped))
        # Before anything is drained: store, and boot again.
        later = None
        try:
            seq = journal.next_seq
            journal.append(body_of(seq, 33), 33)
            later = seq
        except StoreFull:
            pass
        if self.policy == 1 and journal.dropped != model.dropped:
            forgive(model, journal)
        if later:
            model.queued[later] = 33
            model.stored += 1
        journal = self.mount()
        if self.policy == 1:
            forgive(model, journal)
        driver = Driver(journal, model)
        messages, held = driver.drain()
        model.check(journal, messages, held)
        journal.flush()
        if flash.violations:
            raise Lost(str(flash.violations[:3]))
        # Empty now, and it has to stay so; then once around.
        model = Model()
        model.stored = journal.stored
        driver = Driver(journal, model)
        for i in range(self.sectors * 17 if thorough else 3):
            driver.append(200)
            if i % 5:
                driver.take()
                driver.release(driver.opened()[0])
        driver.flush()
        journal = self.mount()
        driver = Driver(journal, model)
        messages, held = driver.drain()
        model.check(journal, messages, held)
        if flash.violations:
            raise Lost(str(flash.violations[:3]))


def forgive(model, journal):
    """Dropping the oldest: what is missing must be the oldest, and counted."""
    slack = journal.dropped - model.dropped
    for seq in sorted(model.queued)[: slack + SLOTS]:
        if seq not in model.marks:
            model.may_queued[seq] = model.queued.pop(seq)


BREAKS = (Lost, FlashMqttError, PowerCut, IndexError, ValueError, KeyError, TypeError, AttributeError)


def run_script(name, count, pairs, pair_count, only=None, personality="rp2", share=(0, 1)):
    """Cut a script at every operation (of its share); return (cuts, list of (id, what broke)).

    count: variants of each fault model. pairs: after every so many cuts the recovery is cut too, everywhere; 0: never.
    only: the id of one case; what it breaks is raised.
    """
    script = Script(name, personality)
    prefix = name if personality == "rp2" else name + "@" + personality
    cuts = 0
    broken = []
    for at in range(share[0], len(script.steps), share[1]):
        step = script.steps[at]
        if only and only.split("/")[1] != str(at):
            continue
        for fault, variant in variants_of(step[0], count):
            case = "%s/%d/%s/%d" % (prefix, at, fault, variant)
            if only and only.partition("+")[0] != case:
                continue
            if only is None or only == case:
                cuts += 1
                try:
                    model = script.cut(step, fault, variant)
                    script.verify(model, cuts % 16 == 0 or only is not None)
                except BREAKS as error:
                    if only:
                        raise
                    broken.append((case, repr(error)))
                    script.flash.violations.clear()
            if pairs and (cuts % pairs == 0 or only):
                n, more = run_pairs(script, step, fault, variant, case, pair_count, only)
                cuts += n
                broken += more
        if len(broken) > 20:
            break
    return cuts, broken


def run_sample(name, samples):
    """Cut a few operations of a script once under each model, in little memory: for MicroPython. Return (cuts, broken)."""
    n = len(Script(name, only=1 << 20).steps)
    cuts = 0
    broken = []
    for i in range(samples):
        at = (2 * i + 1) * n // (2 * samples)
        script = Script(name, only=at)
        step = script.steps[at]
        for fault, variant in variants_of(step[0], 1):
            cuts += 1
            try:
                script.verify(script.cut(step, fault, variant), False)
            except BREAKS as error:
                broken.append(("%s/%d/%s/%d" % (name, at, fault, variant), repr(error)))
    return cuts, broken


def run_pairs(script, step, fault, variant, case, count, only):
    """Cut the recovery from a cut, at each of its operations."""
    flash = script.flash
    cuts = 0
    broken = []
    model = script.cut(step, fault, variant)
    flash.record(model)
    try:
        script.mount()
    except BREAKS:
        return 0, []  # told by the single cut
    finally:
        flash.recording = False
    for at, second in enumerate(flash.steps):
        for fault2, variant2 in variants_of(second[0], count):
            pair = "%s+%d/%s/%d" % (case, at, fault2, variant2)
            if only and only != pair:
                continue
            cuts += 1
            try:
                script.cut(second, fault2, variant2)
                script.verify(model, only is not None)
            except BREAKS as error:
                if only:
                    raise
                broken.append((pair, repr(error)))
                flash.violations.clear()
    return cuts, broken
