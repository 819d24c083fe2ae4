"""The scripts: what a journal is used for, each small enough that every flash operation in it can be cut.

A script is (name, sectors, policy, what it does before the cuts begin, what is cut). `d` is a model.Driver.
"""


def nothing(d):
    """Begin with an empty journal."""


def fill(n, length=100):
    """Store n messages and acknowledge none."""

    def do(d):
        for _ in range(n):
            d.append(length)

    return do


def run(n, length=100, window=4):
    """Store and acknowledge n messages, so that the ring has turned."""

    def do(d):
        for _ in range(n):
            d.append(length)
            d.take()
            if len(d.opened()) >= window:
                d.release(d.opened()[0])

    return do


def qos1(d):
    """QoS 1, acknowledged in order, with a window, across a change of sector."""
    for i in range(40):
        d.append(100)
        if i % 3 == 0:
            d.take()
            d.take()
        while len(d.opened()) > 4:
            d.release(d.opened()[0])
    d.flush()


def out_of_turn(d):
    """Acknowledgements out of turn; the oldest of all comes last."""
    for _ in range(8):
        d.append(60)
        d.take()
    for i in (3, 1, 5, 2, 3):
        d.release(d.opened()[i])
        d.append(30)
    d.flush()
    d.take()
    for _ in range(30):
        d.append(90)
        d.take()
        d.release(d.opened()[-1])
    d.release(d.opened()[0])
    d.flush()


def qos2(d):
    """QoS 2, both roles: PUBREC seen is a mark; an inbound message is held."""
    for slot in d.opened():
        d.release(slot)
    held = []
    for i in range(24):
        d.append(100)
        d.mark(d.take(), 1)
        if i % 4 == 0:
            held.append(d.hold(70))
        if i % 4 == 3:
            d.release(held.pop(0))
        if i > 3:
            d.release(d.opened()[0])
    d.flush()


def full(d):
    """Store until there is no more room, go on as far as a full store can, drain a little, store again."""
    from flashmqtt.errors import StoreFull

    def until_full():
        while True:
            seq = d.journal.next_seq
            try:
                d.append(220)
            except StoreFull:
                d.model.may_queued.pop(seq, None)
                d.model.stored_more = 0
                return

    until_full()
    for _ in range(20):
        slot = d.take()
        if slot < 0:
            break
        d.mark(slot, 9)
        if len(d.opened()) > 6:
            d.release(d.opened()[0])
    until_full()
    d.flush()
    for slot in d.opened():
        d.release(slot)
    for _ in range(20):
        d.take()
        d.release(d.opened()[0])
    until_full()


def stuck(d):
    """One message is never acknowledged, one inbound is never released, the others go round and round."""
    d.append(50)
    d.take()
    d.hold(40)
    d.append(600)
    d.take()
    for _ in range(75):
        d.append(200)
        d.take()
        d.release(d.opened()[-1])
    d.mark(d.opened()[0], 3)


def pieces(d):
    """Messages longer than a page and longer than a sector, whole and in pieces, one of them given up."""
    d.append(700)
    d.append(5000, 600)
    d.journal.begin(900)
    d.journal.extend(bytes(500), 500)
    d.append(100)
    d.take()
    d.take()
    d.release(d.opened()[0])
    d.hold(500)
    d.append(300, 100)
    d.release(d.opened()[0])
    d.append(0)
    d.append(244)
    d.append(245)
    d.flush()


def drops(d):
    """Nobody takes anything, and the oldest make room."""
    d.take()
    for _ in range(60):
        d.append(200)
    d.take()
    for _ in range(20):
        d.append(200)


def in_flight(d):
    """A full window waits for a link that stays away, and the oldest behind it make room."""
    for _ in range(8):
        d.append(200)
        d.take()
    for _ in range(75):
        d.append(200)
    for slot in d.opened():
        d.release(slot)
    d.take()
    for _ in range(20):
        d.append(200)


def duty(d):
    """Clean ends, as before deep sleeps: the next boot goes on in the same sector."""
    for i in range(4):
        d.append(100)
        slot = d.take()
        if i % 2:
            d.release(slot)
        d.journal.idle()
        d.close()
        remount(d)
    d.append(80)
    d.close()
    remount(d)
    d.close()
    remount(d)


def unclean(d):
    """Boots without clean ends: each begins a sector, and the chain must not grow."""
    for i in range(8):
        d.append(100)
        if i % 3 == 1:
            d.mark(d.take(), 5)
        remount(d)


def remount(d):
    """Switch off and on again."""
    d.journal = type(d.journal)(d.journal.region, 8, d.journal.policy)
    d.model.boot = d.journal.boot
    if d.model.released:  # the model's own view after a restart without a cut
        messages, held = look(d.journal)
        d.model.check(d.journal, messages, held)
        d.model.settle(d.journal, messages, held)


def look(journal):
    """Return what a journal holds, from a mount of a copy of its region."""
    from flashmqtt.flash.ram import RamRegion

    from .model import Driver, Model

    region = journal.region
    cells = bytearray(region.sectors * region.sector_bytes)
    region.read(0, cells)
    copied = RamRegion(region.sectors, region.sector_bytes, region.page_bytes, cells)
    return Driver(type(journal)(copied, 8), Model()).drain()


SCRIPTS = (
    ("first", 4, 0, None, lambda d: d.append(10)),
    ("qos1", 5, 0, nothing, qos1),
    ("turned", 4, 0, run(100), qos1),
    ("turn", 5, 0, nothing, out_of_turn),
    ("qos2", 5, 0, run(40), qos2),
    ("full", 4, 0, nothing, full),
    ("stuck", 5, 0, nothing, stuck),
    ("pieces", 6, 0, run(30), pieces),
    ("drops", 4, 1, nothing, drops),
    ("in-flight", 6, 1, nothing, in_flight),
    ("duty", 4, 0, run(20), duty),
    ("unclean", 5, 0, fill(40), unclean),
)
