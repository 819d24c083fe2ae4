"""The scripts: uses of a journal, each small enough that every flash operation in it can be cut.

A script is (name, sectors, policy, preparation without cuts, part with cuts). `d` is a model.Driver.
"""

from flashmqtt.errors import StoreFull

from .model import remount


def nothing(d):
    """Start with an empty journal."""


def fill(n, length=100):
    """Store n messages, acknowledge none."""

    def do(d):
        for _ in range(n):
            d.append(length)

    return do


def run(n, length=100, window=4):
    """Store and acknowledge n messages, so that the ring was used at least once around."""

    def do(d):
        for _ in range(n):
            d.append(length)
            if len(d.window()) >= window:
                d.finish(d.window()[0])

    return do


def qos1(d):
    """QoS 1 with a window, acknowledged in order, across a change of sector."""
    for _ in range(80):
        d.append(100)
        while len(d.window()) > 4:
            d.finish(d.window()[0])
    d.flush()


def out_of_turn(d):
    """Acknowledgements out of order; the oldest message is acknowledged last."""
    for _ in range(8):
        d.append(60)
    for i in (3, 1, 5, 2, 3):
        d.finish(d.window()[i])
        d.append(30)
    d.flush()
    for _ in range(30):
        d.append(90)
        if d.window()[-1] == d.journal.next_seq - 1:
            d.finish(d.window()[-1])
    d.finish(d.window()[0])
    d.flush()


def qos2(d):
    """QoS 2 in both directions: a mark after PUBREC; inbound messages are held."""
    for seq in d.window():
        d.finish(seq)
    held = []
    for i in range(40):
        seq = d.append(100)
        d.mark(seq)
        d.sync()
        if i % 4 == 0:
            d.hold(1 + i % 7, 70)
            held.append(1 + i % 7)
        if i % 4 == 3:
            d.discard(held.pop(0))
        if i % 5 == 2:
            d.unmark(d.window()[-1])
        if i > 3:
            d.finish(d.window()[0])
    d.flush()


def full(d):
    """Store until the journal is full, use the full journal, drain a little, store again."""

    def until_full():
        for _ in range(200):
            try:
                d.append(220)
            except StoreFull:
                return

    until_full()
    for i in range(20):
        window = d.window()
        d.mark(window[0])
        d.sync()
        if i % 5 == 1:
            d.write_note(b"%012d" % i)
        if i % 7 == 3:
            d.hold(i, 200)
        if i > 6:
            d.finish(window[0])
            d.flush()
    until_full()
    for _ in range(20):
        d.finish(d.window()[0])
    until_full()


def stuck(d):
    """A held message is never discarded and one message is acknowledged late, while the ring is used again and again."""
    d.hold(7, 40)
    d.append(600)
    d.append(50)
    for _ in range(30):
        d.append(200)
        d.finish(d.window()[-1])
    d.mark(d.window()[0])
    d.sync()
    d.finish(d.window()[0])
    d.finish(d.window()[0])
    for _ in range(60):
        d.append(200)
        d.finish(d.window()[0])


def holds(d):
    """Many inbound messages, long and short, replaced and discarded in any order, while the journal is full."""
    for _ in range(120):
        try:
            d.append(220)
        except StoreFull:
            break
    for i in range(8):
        if 1 + i % 6 in d.model.held:
            d.discard(1 + i % 6)
            if i % 2:
                d.sync()
        d.hold(1 + i % 6, (20, 300, 90)[i % 3])
        if i % 5 == 4:
            d.discard(d.journal.held()[1])
            d.sync()
    while d.window():
        for seq in d.window():
            d.finish(seq)
        d.flush()
    for _ in range(60):
        d.append(220)
        d.finish(d.window()[0])


def pieces(d):
    """Messages longer than a page and longer than a sector, whole and in pieces; one is abandoned."""
    d.append(700)
    d.append(5000, 600)
    d.journal.begin(900)
    d.journal.extend(bytes(500), 500)
    d.append(100)
    for seq in d.window()[:-1]:
        d.finish(seq)
    d.hold(3, 500)
    d.append(300, 100)
    d.finish(d.window()[0])
    for length in (1, 231, 232, 233, 464):
        d.append(length)
    d.flush()


def drops(d):
    """Almost nothing is acknowledged, and the oldest messages are dropped."""
    for _ in range(60):
        d.append(200)
    d.finish(d.window()[1])
    d.append(3000)
    for _ in range(20):
        d.append(200)


def newest(d):
    """Messages that find no room are dropped and counted."""
    for _ in range(50):
        d.append(200)
    d.append(3000)
    d.flush()
    for _ in range(20):
        d.finish(d.window()[0])
    d.append(200)


def in_flight(d):
    """A full window with marks waits for a connection, and the oldest messages are dropped."""
    for _ in range(8):
        d.append(200)
    d.mark(2)
    d.mark(5)
    d.sync()
    d.mark(6)
    d.finish(3)
    for _ in range(75):
        d.append(200)
    d.flush()
    for seq in d.window():
        d.finish(seq)
    for _ in range(20):
        d.append(200)


def duty(d):
    """Clean ends, as before deep sleep: the next boot continues in the same sector."""
    for i in range(4):
        d.append(100)
        if i % 2:
            d.finish(d.window()[0])
        d.journal.idle()
        d.close()
        remount(d)
    d.append(80)
    d.close()
    remount(d)
    d.close()
    remount(d)


def unclean(d):
    """Boots without clean ends: each opens a sector, and the chain must not grow."""
    for i in range(5):
        d.append(100)
        if i % 3 == 1:
            d.mark(d.window()[0])
            d.sync()
        d.finish(d.window()[-1])
        remount(d)
    for seq in d.window()[:-1]:
        d.finish(seq)
    for _ in range(6):
        remount(d)


SCRIPTS = (
    ("first", 4, 0, None, lambda d: d.append(10)),
    ("qos1", 6, 0, nothing, qos1),
    ("turned", 6, 0, run(250), qos1),
    ("turn", 6, 0, nothing, out_of_turn),
    ("qos2", 6, 0, run(100), qos2),
    ("full", 6, 0, nothing, full),
    ("stuck", 6, 0, nothing, stuck),
    ("holds", 6, 0, nothing, holds),
    ("pieces", 8, 0, run(30), pieces),
    ("drops", 5, 1, nothing, drops),
    ("newest", 5, 2, nothing, newest),
    ("in-flight", 6, 1, nothing, in_flight),
    ("duty", 4, 0, run(20), duty),
    ("unclean", 9, 0, fill(10), unclean),
)
