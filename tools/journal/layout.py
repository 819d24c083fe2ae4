"""The positions of a journal's fields. FORMAT.md is the normative text; this module has the same numbers.

A sector is a header, then records; no record crosses a page of 256 bytes. All integers are little-endian. Except for bitmaps they
are below 2^30, so that none of them is a heap object on a 32-bit board.
"""

MAGIC = b"fmqj"
VERSION = 2
PAGE = 256
WINDOW = 32  # messages from `low` that may be finished or marked

# A sector's header. Its first four bytes are MAGIC.
H_VERSION = 4  # the next byte is its complement: a torn header can't look like another version
H_SHIFT = 6  # log2 of the sector's bytes
H_HELD = 7  # number of listed held messages, and a flag
H_CONTINUED = 0x80  # the flag: an incomplete message begins before this sector
H_SEQ = 8  # the sector's sequence
H_LOW = 12  # every message below is finished
H_FINISHED = 16
H_MARKED = 20
H_FIRST = 24  # the first message that begins here or later
H_FLOOR = 28  # the bodies of messages below are gone
H_DROPPED = 32
H_DAMAGED = 36
H_BOOT = 40
H_ERASES = 44
H_SECTORS = 48
H_TAIL = 50
H_PREV = 52
H_PREV_END = 54  # the end of the previous sector's records
H_PREV_SEQ = 56
H_NOTE = 60
H_LIST = 72  # for each held message its sector and its offset / 4, two bytes each; then the CRC
HEADER = 76  # with an empty list
NOTE_SIZE = 12
HELD_MAX = IN_HEADER = 40  # held messages in a header; more are in LIST records
IN_LIST = 58
VOIDED = 64  # sector sequences that a mount record makes void
NONE = 0xFFFF

# A record: the CRC-32 of the rest, seeded with the sector's sequence; the rest of the head; the body, padded to 4 bytes with FF.
R_LENGTH = 4  # of the body; FF: not yet written
R_KIND = 5
R_KEY = 6  # MESSAGE: the piece; HELD: the key; STATE: in an opening, how many carried records it has
R_SEQ = 8  # MESSAGE: the sequence; HELD: the piece; else: the next sequence
R_LOW = 12
R_FINISHED = 16
R_MARKED = 20
RECORD = 24
BODY_MAX = 232  # a record fills a page at most

# R_KIND: a type and two flags.
TYPE = 0x0F
MOUNT = 0x40  # STATE: a mount continues here after a clean end
CARRIED = 0x40  # MESSAGE, HELD, LIST: written while the sector was opened, before its header
LAST = 0x80  # MESSAGE, HELD: the last piece
CLOSE = 0x80  # STATE: a clean end
MESSAGE = 1
HELD = 2
STATE = 3
RELEASED = 4
NOTE = 5
LIST = 6

SEQUENCE_LIMIT = 0x3FFFFFFF
