"""Numbers in bytes, little-endian, and the four bytes that every sector begins with. FORMAT.md, "Conventions"."""

MAGIC = b"fmqj"


def get_u16(buf, at):
    """Return two bytes as a number."""
    return buf[at] | buf[at + 1] << 8


def get_u32(buf, at):
    """Return four bytes as a number."""
    return buf[at] | buf[at + 1] << 8 | buf[at + 2] << 16 | buf[at + 3] << 24


def put_u16(buf, at, value):
    """Write a number as two bytes."""
    buf[at] = value & 0xFF
    buf[at + 1] = value >> 8


def put_finished(buf, at, seq):
    """Write the sequence of a finished message; the top bit says that it had a place of its own (seq is negative)."""
    put_u32(buf, at, abs(seq))
    if seq < 0:
        buf[at + 3] |= 0x80


def put_u32(buf, at, value):
    """Write a number as four bytes."""
    buf[at] = value & 0xFF
    buf[at + 1] = value >> 8 & 0xFF
    buf[at + 2] = value >> 16 & 0xFF
    buf[at + 3] = value >> 24
