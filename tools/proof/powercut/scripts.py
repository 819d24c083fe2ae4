"""The scripts: uses of a journal, each small enough that every flash operation in it can be cut.

A script is (name, sectors, policy, words without cuts, words with cuts); `calls` has the words. Without the first words, the
first mount is cut, too.
"""

from .model import DROP_NEWEST, DROP_OLDEST, REFUSE

TURNED = "a100 " * 3 + "a100 f " * 247  # the ring was used at least once around
QOS1 = "a100 " * 4 + "a100 f " * 76 + "u"
QOS2 = "a100 m " * 4 + "a100 m h70 f a100 m f a100 m x f a100 m d f " * 9
MARKED = "m m1 n m2 m3 h200 m4 m5 m6 n f u " + "f u m n f u h200 f u m f u " * 3
REPLACED = "h20 h300 h90 h20 h300 D1 h90 d h20 h300 "
PIECES = "a700 a5000/600 j a100 f f f f f h500 a300/100 f a1 a231 a232 a233 a464 u"

SCRIPTS = (
    ("first", 4, REFUSE, None, "a10"),
    # QoS 1 with a window, acknowledged in order, across a change of sector; and in a ring that was used before.
    ("qos1", 6, REFUSE, "", QOS1),
    ("turned", 6, REFUSE, TURNED, QOS1),
    # Acknowledgements out of order; the oldest message is acknowledged last.
    ("turn", 6, REFUSE, "", "a60 " * 8 + "f3 a30 f1 a30 f5 a30 f2 a30 f3 a30 u " + "a90 g " * 19 + "a90 " * 11 + "f u"),
    # QoS 2 in both directions: a mark after PUBREC; inbound messages are held.
    ("qos2", 6, REFUSE, "a100 " * 3 + "a100 f " * 97, "f f f " + QOS2 + "u"),
    # Full; used while it is full; drained a little and filled again.
    ("full", 6, REFUSE, "", "F220 " + MARKED + "F220 " + "f " * 20 + "F220"),
    # A held message is never discarded and one message is acknowledged late, while the ring is used again and again.
    ("stuck", 6, REFUSE, "", "h40 a600 a50 " + "a200 g " * 30 + "m0 f f " + "a200 f " * 60),
    # Many inbound messages, long and short, replaced and discarded in any order, while the journal is full.
    ("holds", 6, REFUSE, "", "F220 " + REPLACED + "f " * 80 + "u " + "a220 f " * 60),
    # Messages longer than a page and longer than a sector, whole and in pieces; one is abandoned.
    ("pieces", 8, REFUSE, "a100 " * 3 + "a100 f " * 27, PIECES),
    # Almost nothing is acknowledged, and the oldest messages are dropped; or those that find no room.
    ("drops", 5, DROP_OLDEST, "", "a200 " * 60 + "f1 a3000 " + "a200 " * 20),
    ("newest", 5, DROP_NEWEST, "", "a200 " * 50 + "a3000 u " + "f " * 20 + "a200"),
    # A full window with marks waits for a connection, and the oldest messages are dropped.
    ("in-flight", 6, DROP_OLDEST, "", "a200 " * 8 + "M1 m4 M5 f2 " + "a200 " * 75 + "u " + "f " * 32 + "a200 " * 20),
    # Clean ends, as before deep sleep: the next boot continues in the same sector.
    ("duty", 4, REFUSE, "a100 " * 3 + "a100 f " * 17, "a100 i c a100 f i c a100 i c a100 f i c a80 c c"),
    # Boots without clean ends: each opens a sector, and the chain must not grow.
    ("unclean", 9, REFUSE, "a100 " * 10, "a100 g r a100 m g r a100 g r a100 g r a100 m g r " + "f " * 9 + "r " * 6),
)
