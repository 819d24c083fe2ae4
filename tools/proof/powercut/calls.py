"""A use of a journal is a text of words, one for each call. The scripts, the adversary's plans and the random lives share them.

a100 A        store 100 bytes (default: 130; A: 300); a700/100: in pieces of 100 bytes
F220          store messages of 220 bytes until the journal is full
j             begin a message in pieces, and abandon it
f f3 g        finish the oldest message of the window, the one behind three others, the newest
m m3 M        mark the first message without a mark, or another, and make that durable; M: not durable yet
x             remove the newest mark
h70 H         hold an inbound message of 70 bytes (default: 40; H: 250)
d d1 D        discard the first held message, or another; D: make that durable
n u i         write the note; flush; idle
r c           mount again without a clean end, and after one
e             finish and discard everything; the journal has to be empty
"""

from flashmqtt.errors import StoreFull

from .model import DROP_NEWEST, DROP_OLDEST, Lost, in_flight, longest, remount, see

SIZES = {"a": 130, "A": 300, "h": 40, "H": 250}  # a page takes 130 bytes; 300 are a piece of 232 and one of 68


def call(driver, word, strict=False):
    """Execute one call if it is possible now; if `strict`, what is stored has to fit."""
    journal, letter, window = driver.journal, word[0], in_flight(driver.journal)
    text, _, piece = word[1:].partition("/")
    number = int(text or SIZES.get(letter, 0))
    if letter in "aA":
        try:
            driver.append(number, int(piece or 0))
        except StoreFull:
            if strict or _takes_all(journal, number):
                raise
    elif letter == "F":
        try:
            while True:
                driver.append(number)
        except StoreFull:
            pass
    elif letter == "j":
        journal.begin(900)
        journal.extend(bytes(500), 500)
    elif letter in "fg":
        if window:
            driver.finish(window[-1 if letter == "g" else number % len(window)])
    elif letter in "mM":
        if not text:
            window = [seq for seq in window if not journal.is_marked(seq)]
        if window:
            driver.mark(window[number % len(window)])
            if letter == "m":
                driver.sync()
    elif letter == "x":
        marked = [seq for seq in window if journal.is_marked(seq) and journal.length(seq)]
        if marked:  # a message without a body exists only by its mark
            driver.unmark(marked[-1])
    elif letter in "hH":
        held = journal.held()
        try:
            driver.hold(next(key for key in range(1, 100) if key not in held), number)
        except StoreFull:
            if strict or (not held and journal.low == journal.next_seq):
                raise
    elif letter in "dD":
        held = journal.held()
        if held:
            driver.discard(held[number % len(held)])
            if letter == "D":
                driver.sync()
    elif letter == "n":
        driver.write_note(b"%012d" % driver.generation)
    elif letter == "u":
        driver.flush()
    elif letter == "i":
        journal.idle()
    elif letter in "rc":
        if letter == "c":
            driver.close()
        remount(driver)
    elif letter == "e":
        _empty(driver)
    else:
        raise ValueError(word)


def _takes_all(journal, length):
    """Return whether the policy makes room for every message. In a small journal, held messages may leave none."""
    if journal.policy == DROP_OLDEST:
        return longest(journal) >= length and (journal.region.sectors > 7 or not journal.held())
    return journal.policy == DROP_NEWEST and longest(journal) >= length


def _empty(driver):
    while messages := in_flight(driver.journal):
        for seq in messages:
            driver.finish(seq)
    for key in driver.journal.held():
        driver.discard(key)
    driver.flush()
    if see(driver.journal) != ([], {}):
        raise Lost("not empty")


def run(driver, words, strict=False):
    """Execute the calls of a text, or of a list of words."""
    for word in words.split() if isinstance(words, str) else words:
        call(driver, word, strict)


def work_on(driver):
    """Check that the journal can still be used: empty it, then use the whole ring."""
    run(driver, "e " + "a f " * (driver.journal.region.sectors * 4) + "e", strict=True)
