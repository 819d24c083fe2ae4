"""A random life of one journal: random calls in random order, with power cuts at random operations.

The scripts cut once or twice from a clean start. Here cuts accumulate, also several in a row during recovery, and sectors become
bad, from the beginning or later. The arguments determine a life: `soak(7, 2000)` always does the same.
"""

import random

from flashmqtt.errors import StoreFull, StoreWorn
from flashmqtt.flash.block import BlockRegion
from tools.flashsim.nor import MODELS, NorFlash, PowerCut, Random

from .cuts import GEOMETRIES
from .model import DROP_NEWEST, DROP_OLDEST, REFUSE, Driver, Lost, Model, SectorDied, look, mount, remount


def soak(life, steps, geometry="rp2", bad=0, dies=False, policy=REFUSE):
    """Run one life of so many calls; return the number of its power cuts. Raises Lost.

    bad: how many of 10 sectors are bad from the beginning. dies: one more sector becomes bad at some time.
    """
    rng = random.Random(life)
    sectors = rng.choice((4, 5, 6, 8, 12))
    if bad:
        sectors = 10
    personality, page_bytes = GEOMETRIES[geometry]
    flash = NorFlash(sectors * 4096, personality)
    flash._rng = Random(life)
    region = BlockRegion(flash, page_bytes=page_bytes)
    model = Model()
    driver = Driver(mount(region, policy), model)
    cuts = 0
    for sector in rng.sample(range(1, sectors), bad):
        flash.set_bad(sector, rng.choice(("erase", "program", "both")))
    rate = rng.choice((30, 100, 400))
    dies_at = rng.randrange(steps) if dies else -1
    for step in range(steps):
        driver.generation = step
        if step == dies_at:
            flash.set_bad(rng.randrange(sectors), rng.choice(("erase", "program", "both")))
        if driver.journal.worn:  # it can't be written any more, but everything can be read
            seen = look(driver.journal)
            model.check(driver.journal, *seen)
            break
        if not flash._cut_operation and rng.random() < 0.5:
            flash.arm(flash.operations + rng.randrange(1, rate), rng.choice(MODELS), rng.randrange(10000))
        try:
            act(driver, rng)
            continue
        except SectorDied:  # nobody can say which of the dropped messages a later boot finds again
            break
        except PowerCut:
            cuts += 1
        while True:
            flash.power_up()
            if rng.random() < 0.5:
                flash.arm(flash.operations + rng.randrange(1, 9), rng.choice(MODELS), rng.randrange(10000))
            try:
                journal = mount(region, policy)
                break
            except PowerCut:
                cuts += 1
        if journal.boot <= model.boot and not journal.worn:
            raise Lost("boot %d after %d" % (journal.boot, model.boot))
        seen = look(journal)
        model.check(journal, *seen)
        if journal.worn:  # nothing can be made durable any more
            break
        model.settle(journal, *seen)
        driver.use(journal)
        if flash.violations:
            raise Lost(str(flash.violations[:3]))
    return cuts


def act(driver, rng):
    """Execute one random call."""
    model = driver.model
    journal = driver.journal
    dice = rng.random()
    window = driver.window()
    try:
        if dice < 0.4:
            store(driver, rng)
        elif dice < 0.7:
            if window:
                driver.finish(window[0 if rng.random() < 0.7 else rng.randrange(len(window))])
        elif dice < 0.8:
            if window:
                seq = rng.choice(window)
                body = model.messages[seq][0] > 0  # a message without a body exists only by its mark
                (driver.unmark if body and journal.is_marked(seq) and rng.random() < 0.5 else driver.mark)(seq)
            if rng.random() < 0.7:
                driver.sync()
        elif dice < 0.85:
            if len(model.held) < 6 or rng.random() < 0.1:
                try:
                    key = rng.choice([key for key in range(1, 60) if key not in journal.held()][:9])
                    driver.hold(key, rng.choice((10, 100, 500)))
                except StoreFull:
                    if not model.held and not model.messages:
                        raise
        elif dice < 0.91:
            if model.held:
                driver.discard(
                    rng.choice(sorted(k for k in model.held if k not in model.discarded) or sorted(model.held))
                )
            if rng.random() < 0.5:
                driver.sync()
        elif dice < 0.93:
            driver.write_note(b"%012d" % rng.randrange(1000))
        elif dice < 0.96:
            driver.flush()
        elif dice < 0.98:
            journal.idle()
        else:
            if rng.random() < 0.6:
                driver.close()
            remount(driver)
    except StoreWorn:
        if not journal.worn:
            raise


def store(driver, rng):
    """Store a message, mostly a short one."""
    length = rng.choice((1, 30, 100, 100, 100, 220, 232, 400))
    if rng.random() < 0.02:
        length = rng.choice((1500, 5000))
    piece = rng.choice((0, 0, 0, 50, 300)) if length > 100 else 0
    try:
        driver.append(length, piece)
    except StoreFull:
        if driver.journal.policy == DROP_NEWEST:
            raise
        few = driver.journal.region.sectors < 8  # in a small journal, held messages may leave no room for others
        if driver.journal.policy == DROP_OLDEST and length <= 400 and not (few and driver.model.held):
            raise
