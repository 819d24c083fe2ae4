"""One flash, one journal, a random life: any calls in any order, the power going at any operation, again and again.

The scripts cut one or two times from a clean start; here cuts pile up, also five in a row while recovering, and sectors go bad,
from the beginning or in mid-life. A life is its arguments: `soak(7, 2000)` always does the same.
"""

import random

from flashmqtt.errors import StoreFull, StoreWorn
from flashmqtt.flash.block import BlockRegion
from flashmqtt.journal.journal import Journal
from tools.flashsim.nor import MODELS, NorFlash, PowerCut, Random

from .model import Driver, Lost, Model
from .scripts import look

worn: list[int] = []  # lives that ended so


def soak(life, steps, personality="rp2", bad=0, slots=8, dies=False):
    """Live one life of so many calls; return the number of power cuts in it. Raises Lost.

    bad: how many of 8 sectors are so from the beginning. dies: one more sector becomes bad at some time.
    """
    rng = random.Random(life)
    sectors = rng.choice((4, 4, 5, 6, 8))
    flash = NorFlash(sectors * 4096, personality)
    flash._rng = Random(life)
    region = BlockRegion(flash)
    model = Model()
    driver = Driver(Journal(region, slots), model)
    cuts = 0
    if bad:
        sectors = 8
        flash = NorFlash(sectors * 4096, personality)
        flash._rng = Random(life)
        region = BlockRegion(flash)
        driver.journal = Journal(region, slots)
        for sector in rng.sample(range(1, sectors), bad):
            flash.set_bad(sector, rng.choice(("erase", "program", "both")))
    rate = rng.choice((30, 100, 400))
    dies_at = rng.randrange(steps) if dies else -1
    for step in range(steps):
        if step == dies_at:
            flash.set_bad(rng.randrange(sectors), rng.choice(("erase", "program", "both")))
        if driver.journal.worn:  # the end of its life: everything can still be read
            messages, held = look(driver.journal)
            model.check(driver.journal, messages, held)
            worn.append(life)
            break
        if not flash._cut_operation and rng.random() < 0.5:
            flash.arm(flash.operations + rng.randrange(1, rate), rng.choice(MODELS), rng.randrange(10000))
        try:
            act(driver, rng)
            continue
        except PowerCut:
            cuts += 1
        while True:
            flash.power_up()
            if rng.random() < 0.5:
                flash.arm(flash.operations + rng.randrange(1, 9), rng.choice(MODELS), rng.randrange(10000))
            try:
                journal = Journal(region, slots)
                break
            except PowerCut:
                cuts += 1
        if journal.boot <= model.boot and not journal.worn:
            raise Lost("boot %d after %d" % (journal.boot, model.boot))
        messages, held = look(journal)
        model.check(journal, messages, held)
        model.settle(journal, messages, held)
        driver.journal = journal
        if flash.violations:
            raise Lost(str(flash.violations[:3]))
    return cuts


def act(driver, rng):
    """Do one thing."""
    journal, model = driver.journal, driver.model
    dice = rng.random()
    opened = driver.opened()
    try:
        if dice < 0.35:
            seq = journal.next_seq
            length = rng.choice((1, 30, 100, 100, 100, 220, 244, 400))
            if rng.random() < 0.02:
                length = rng.choice((1500, 5000))
            try:
                driver.append(length, rng.choice((0, 0, 0, 50, 300)) if length > 100 else 0)
            except (StoreFull, StoreWorn):
                model.may_queued.pop(seq, None)
                model.stored_more = 0
        elif dice < 0.6:
            driver.take()
        elif dice < 0.82:
            if opened:
                driver.release(opened[0 if rng.random() < 0.7 else rng.randrange(len(opened))])
        elif dice < 0.88:
            if opened:
                driver.mark(rng.choice(opened), rng.randrange(1, 256))
        elif dice < 0.91:
            seq = journal.next_seq
            try:
                if len(driver.opened(True)) < 3 and journal._free_slot() >= 0:
                    driver.hold(rng.choice((10, 100, 500)))
            except (StoreFull, StoreWorn):
                model.may_held.pop(seq, None)
        elif dice < 0.94:
            held = driver.opened(True)
            if held:
                driver.release(rng.choice(held))
        elif dice < 0.96:
            driver.flush()
        elif dice < 0.98:
            journal.idle()
        else:
            if rng.random() < 0.6:
                driver.close()
            remounted(driver)
    except StoreWorn:
        pass


def remounted(driver):
    """Switch off and on."""
    model = driver.model
    journal = Journal(driver.journal.region, driver.slots)
    if journal.boot != model.boot + 1 and not journal.worn:
        raise Lost("boot %d after %d" % (journal.boot, model.boot))
    messages, held = look(journal)
    model.check(journal, messages, held)
    model.settle(journal, messages, held)
    driver.journal = journal
