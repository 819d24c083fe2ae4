"""The bytes of a journal: where each field lies. FORMAT.md is the normative text, these are the same numbers.

A sector is a header, then records; no record crosses a page of 256 bytes; the last 32 bytes are for seals. All integers are
little-endian and below 2^30, so that none of them is a heap object on a 32-bit board.
"""

from flashmqtt.compat import const
from flashmqtt.journal.log import MAGIC, get_u16, get_u32, put_u32  # noqa: F401

VERSION = const(1)
PAGE = const(256)

# A sector's header.
# MAGIC, in its first four bytes.
H_VERSION = const(4)  # and its complement in the next byte: a torn header can't pass for another version
H_FLAGS = const(6)
H_SECTOR_SHIFT = const(7)  # log2 of the sector's bytes
H_SEQ = const(8)  # of the sector
H_NEXT_SEQ = const(12)  # of the records
H_LOW = const(16)  # every queued record below is done, or has moved
H_STORED = const(20)
H_DROPPED = const(24)
H_BACKLOG = const(28)  # messages from low on
H_BOOT = const(32)
H_ERASES = const(36)
H_LOW_SECTOR = const(40)
H_LOW_OFFSET = const(42)
H_TAIL = const(44)  # the oldest sector that holds anything live
H_PREV = const(46)
H_PREV_END = const(48)  # where the records of the sector before end
H_OPENING_END = const(50)  # where what was carried over, and the table, end
H_PREV_SEQ = const(52)
H_SECTORS = const(56)
H_BAD = const(58)  # how many of them took no erase or no program
H_CRC = const(60)
HEADER = const(64)
NO_SECTOR = const(0xFFFF)

# A record: CRC-32 of all that follows, seeded with the sector's sequence; then a head of 8 bytes; then the body, padded to 4.
R_LENGTH = const(4)  # of the body; FF: nothing was ever written here
R_KIND = const(5)
R_DELTA = const(6)  # sequence - low, or 255 for nothing said
R_RIDES = const(7)  # how many finished sequences stand before the body
R_SEQ = const(8)
RECORD = const(12)
BODY_MAX = const(244)  # a record fills a page at most

# R_KIND: a type, and for messages whether this is their first, their last piece.
TYPE = const(0x0F)
FIRST = const(0x40)
LAST = const(0x80)
QUEUED = const(1)  # an outgoing message, in its turn
HELD = const(2)  # an inbound message, until released by name
MOVED = const(3)  # the copy of a message that stood in the way of reuse
MARK = const(4)  # a state byte of a message
DONE = const(5)  # low, the drop count, and finished sequences
TABLE = const(6)  # what a header can't say: messages with a place or state of their own
OPEN = const(7)  # a mount's first record, which confirms its header
CLOSE = const(8)  # a clean end, twice
MOUNT = const(9)  # goes on behind a clean end

ENTRY = const(12)  # of a table: sequence, sector, offset, mark, flags
E_SECTOR = const(4)
E_OFFSET = const(6)
E_MARK = const(8)
E_FLAGS = const(9)
E_EXPLICIT = const(1)
E_HELD = const(2)
E_DONE = const(4)
ENTRIES_MAX = const(15)  # to a record: they fill the first page

# Eight times a word that says: a recovery has left this sector. Each attempt takes a blank one.
SEAL = const(32)

SEQ_LIMIT = const(0x3FFFFFFF)

# In RAM only: what a sector is,
FREE = const(0)
CHAINED = const(1)
RETIRED = const(2)

# and what a slot is: 0 free, else
OPENED = const(1)  # handed out
AGAIN = const(2)  # a moved message that is queued again since the last mount
EXPLICIT = const(4)  # with a place of its own
HOLD = const(8)  # inbound

WINDOW = const(32)  # messages that may be taken and not done, out of turn
