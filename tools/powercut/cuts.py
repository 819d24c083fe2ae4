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

    def record(self, model):
        """Begin to remember."""
        self.steps = []
        self.model = model
        self.recording = True

    def writeblocks(self, n, buf, off=None):
        """Program."""
        if getattr(self, "recording", False):
            self.steps.append(("program", n, bytes(buf), off, self.snapshot(), self.model and self.model.copy()))
        super().writeblocks(n, buf, off)

    def ioctl(self, op, arg):
        """Erase."""
        if op == 6 and getattr(self, "recording", False):
            self.steps.append(("erase", arg, None, 0, self.snapshot(), self.model and self.model.copy()))
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

    def __init__(self, name, personality="rp2"):
        self.name, self.sectors, self.policy, before, what = next(s for s in SCRIPTS if s[0] == name)
        self.flash = Recorder(self.sectors * 4096, personality)
        self.region = BlockRegion(self.flash)
        model = Model()
        if before is None:  # the very first mount is part of it
            self.flash.record(model)
            driver = Driver(self.mount(), model)
        else:
            driver = Driver(self.mount(), model)
            before(driver)
            self.flash.record(model)
        what(driver)
        self.steps = self.flash.steps
        self.flash.recording = False
        self.final = (self.flash.snapshot(), model.copy())
        if self.flash.violations:
            raise Lost("%s: %s" % (name, self.flash.violations[:3]))

    def mount(self):
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


def run_script(name, count, pairs, pair_count, step_by=1, only=None, personality="rp2", say=None):
    """Cut a script everywhere; return (cuts, list of (id, what broke))."""
    script = Script(name, personality)
    cuts = 0
    broken = []
    for at in range(0, len(script.steps), step_by):
        step = script.steps[at]
        for fault, variant in variants_of(step[0], count):
            case = "%s/%d/%s/%d" % (name, at, fault, variant)
            if only and not only.startswith(case):
                continue
            flash = script.flash
            if not only or only == case:
                try:
                    model = script.cut(step, fault, variant)
                    cuts += 1
                    script.verify(model, cuts % 16 == 0 or only is not None)
                except (Lost, FlashMqttError, PowerCut, IndexError, ValueError, KeyError, TypeError) as error:
                    broken.append((case, repr(error)))
                    if only:
                        raise
                    flash.violations.clear()
            if pairs and (cuts % pairs == 0 or only):
                n, more = run_pairs(script, step, fault, variant, case, pair_count, only)
                cuts += n
                broken += more
        if say:
            say(name, at, len(script.steps), cuts, len(broken))
        if len(broken) > 20:
            break
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
    except FlashMqttError:
        return 0, []  # told by the single cut
    finally:
        flash.recording = False
    for at, second in enumerate(flash.steps):
        for fault2, variant2 in variants_of(second[0], count):
            pair = "%s+%d/%s/%d" % (case, at, fault2, variant2)
            if only and only != pair:
                continue
            try:
                script.cut(second, fault2, variant2)
                cuts += 1
                script.verify(model, only is not None)
            except (Lost, FlashMqttError, PowerCut, IndexError, ValueError, KeyError, TypeError) as error:
                broken.append((pair, repr(error)))
                if only:
                    raise
                flash.violations.clear()
    return cuts, broken
