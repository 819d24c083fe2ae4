"""What a correct program on sound flash never needs: the errors of wrong calls, and reading on after damaged bytes.

FORMAT.md, "Damage". This module is loaded when such a thing happens.
"""

from flashmqtt.compat import TYPE_CHECKING, const
from flashmqtt.errors import FlashFailed, StoreError, StoreWorn, UsageError
from flashmqtt.fast import raw_fill

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251

_PAGE = const(256)
_HEADER = const(76)
_RECORD = const(24)
_MESSAGE = const(1)
_HELD = const(2)
_TYPE = const(15)
_SEQUENCE_LIMIT = const(0x3FFFFFFF)
_AFTER_CLOSE = const(2)
_INTERRUPTED = const(3)


def refuse_write(journal: "Any") -> None:
    """Refuse a write now.

    Raises:
        StoreWorn: Ctrl-C interrupted a write. UsageError: in all other cases.
    """
    if journal._busy == _INTERRUPTED:
        raise StoreWorn("a write was interrupted: mount the journal again")
    if journal._busy == _AFTER_CLOSE:
        raise UsageError("closed: only the next mount may write")
    raise UsageError("called from a callback (a timer?) during another call of this store")


def refuse_length(journal: "Any", length: int, buf: "bytes | bytearray | memoryview") -> None:
    """Refuse a message."""
    if journal.next_seq >= _SEQUENCE_LIMIT:
        raise StoreError("every sequence is used: call format()")
    raise UsageError("%d bytes of %d" % (length, len(buf)))


def refuse_read(journal: "Any", seq: int, offset: int, buf: "bytes | bytearray | memoryview", at: int, n: int) -> None:
    """Refuse to read bytes that a message, or its buffer, does not have."""
    raise UsageError(
        "read: %d bytes from %d: the message has %d, the buffer %d" % (n, offset, journal.length(seq), len(buf) - at)
    )


def refuse_outside(journal: "Any", seq: int) -> None:
    """Refuse a message outside the window."""
    raise UsageError("%d is not in the window from %d" % (seq, journal.low))


def refuse_note() -> None:
    """Refuse a note of the wrong length."""
    raise UsageError("a note has 12 bytes")


def skip(journal: "Any", sector: int, at: int) -> bool:
    """Read the record after damaged bytes in the loaded page, and note the damage.

    Try the damaged record's length field, as it is and with each single bit flipped; return False if the next record in this page
    is not there.
    """
    i = at & 255
    page = journal._page
    if len([j for j in range(i + 4, i + 8) if page[j] != 0xFF]) < 2:
        return False  # nothing was written
    message = page[i + 5] & _TYPE == _MESSAGE or not page[i + 6] | page[i + 7]
    # Even if its type is damaged: only a held message has a key.
    journal._skipped = _MESSAGE if message else _HELD
    n = page[i + 4]
    bit = 256
    while bit:
        size = (_RECORD + 3 + (n ^ bit & 255)) & -4
        if i + size <= _PAGE - _RECORD and journal._look(sector, at + size):
            return True
        bit >>= 1
    return False


def is_unreadable(journal: "Any", at: int) -> bool:
    """Return whether a page whose read failed fails three times more, while other pages can be read. It counts as damaged then.

    Any other error may be over at the next call, and must not cost a message.
    """
    read = journal.region.read
    page = journal._page
    failed = 0
    for sector in range(journal.region.sectors):
        try:
            read(sector * journal._sector_bytes, page)
            failed += 1  # unless the next read succeeds
            read(at, page)
            return False
        except FlashFailed:
            if failed == 3:
                break
    # These bytes count as a damaged record with a key, because a held message may have been there.
    raw_fill(page, _PAGE, 0xC0, 0)
    return failed > 0


def rescue(recovery: "Any", journal: "Any", head: int, sector: int) -> None:
    """Use the records of a newer sector whose header is damaged: they have the last sequences.

    An interrupted opening leaves one record at most, so the sector must have two.
    """
    for seq in recovery._shown[sector], journal._seqs[head] + 1, journal._ring_seq + 1:
        if journal._seqs[head] < seq < _SEQUENCE_LIMIT:
            journal._seqs[sector] = seq
            at = _HEADER
            # The header's length may be damaged, too.
            while at < _PAGE and not journal._look(sector, at):
                at += 4
            if recovery._scan(journal, sector, at) > 1:
                journal._ring_seq = max(journal._ring_seq, seq)
                recovery._apply(journal, sector, at, journal._sector_bytes)
                break
    journal._seqs[sector] = 0
