"""Reads whole messages from a journal."""


def message(journal, seq):
    """Return an outgoing message, b"" if it is lost."""
    buf = bytearray(journal.length(seq))
    if buf:
        journal.read(seq, 0, buf, 0, len(buf))
    return bytes(buf)


def held_messages(journal):
    """Return (key, message) of each held message, oldest first."""
    found = []
    for key in journal.held():
        buf = bytearray(journal.held_length(key))
        journal.read_held(key, 0, buf, 0, len(buf))
        found.append((key, bytes(buf)))
    return found
