"""The bytes of a journal: where each field lies. FORMAT.md is the normative text, these are the same numbers.

A sector is a header, then records; no record crosses a page of 256 bytes. All integers are little-endian and below 2^30, bitmaps
apart, so that none of them is a heap object on a 32-bit board.
"""

MAGIC = b"fmqj"
VERSION = 2
PAGE = 256
WINDOW = 32  # messages from low on that may be finished or marked

# A sector's header.
# MAGIC, in its first four bytes.
H_VERSION = 4  # and its complement in the next byte: a torn header can't pass for another version
H_SHIFT = 6  # log2 of the sector's bytes
H_HELD = 7  # how many held messages are listed
H_CONTINUED = 0x80  # its flag: a message that is not complete has begun before this sector
H_SEQ = 8  # of the sector
H_LOW = 12  # every message below is finished
H_FINISHED = 16
H_MARKED = 20
H_FIRST = 24  # the first message that begins here or later
H_FLOOR = 28  # no message below has a body any more
H_DROPPED = 32
H_DAMAGED = 36
H_BOOT = 40
H_ERASES = 44
H_SECTORS = 48
H_TAIL = 50
H_PREV = 52
H_PREV_END = 54  # where the records of the sector before end
H_PREV_SEQ = 56
H_NOTE = 60
H_LIST = 72  # four bytes for each held message: its sector, and its offset divided by 4; then the CRC
HEADER = 76  # with an empty list
NOTE_SIZE = 12
HELD_MAX = IN_HEADER = 40  # held messages that a header lists; more stand in lists
IN_LIST = 58
VOIDED = 64  # sector sequences that a mount record makes void
NONE = 0xFFFF

# A record: CRC-32 of all that follows, seeded with the sector's sequence; the rest of its head; the body, padded to 4 with FF.
R_LENGTH = 4  # of the body; FF: nothing was ever written here
R_KIND = 5
R_KEY = 6  # a message's piece, a held one's key
R_SEQ = 8  # a message's sequence, a held one's piece, else the dropped ones
R_LOW = 12
R_FINISHED = 16
R_MARKED = 20
RECORD = 24
BODY_MAX = 232  # a record fills a page at most

# R_KIND: a type and two flags.
TYPE = 0x0F
MOUNT = 0x40  # of a state: a mount goes on here after a clean end
CARRIED = 0x40  # of a held one or a list: written in an opening, before the header
LAST = 0x80  # of a message or held one: its last piece
CLOSE = 0x80  # of a state: a clean end
MESSAGE = 1
HELD = 2
STATE = 3
RELEASED = 4
NOTE = 5
LIST = 6

SEQUENCE_LIMIT = 0x3FFFFFFF
