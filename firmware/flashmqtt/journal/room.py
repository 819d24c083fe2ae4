"""Room: whether a long message fits, and what a full journal does. FORMAT.md, "Room", "Carrying", "Dropping".

This module is loaded when a journal is full for the first time, with the first held message, or for the first message of more
than one record.
"""

from flashmqtt.compat import TYPE_CHECKING, const
from flashmqtt.errors import StoreFull, StoreWorn

from .journal import DROP_OLDEST

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251

_PAGE = const(256)
_RECORD = const(24)
_BODY_MAX = const(232)
_STATE = const(3)
_WINDOW = const(32)
_FOR_HELD = const(2)
_FOR_STATE = const(1)


def longest_message(journal: "Any") -> int:
    """Return the longest length of a message that fits if all other messages are dropped."""
    pages = journal._sector_bytes // _PAGE - 1
    sectors = journal._chain + journal._free - journal._reserve - 1
    return (sectors * pages if sectors > 0 else pages >> 1) * _BODY_MAX


def may_drop_for(journal: "Any", length: int) -> bool:
    """Return whether a long message fits if all messages are dropped that may be dropped."""
    if journal.policy != DROP_OLDEST:
        return False
    held = journal._held
    # Outgoing messages between held ones may make carrying take one sector more.
    stays = min(held.sectors(False), held.sectors(True) + 1) if held else 0
    sectors = length // _BODY_MAX // (journal._sector_bytes // _PAGE - 1) + 1
    return not stays or journal._chain + journal._free - stays - 1 - sectors >= journal._reserve


def has_room(journal: "Any", length: int, need: int, leave: bool) -> bool:
    """Return whether a message fits without a drop. If it must begin in a new sector, and `leave` is set, leave the head."""
    pages = journal._sector_bytes // _PAGE - 1
    pieces = (length + _BODY_MAX - 1) // _BODY_MAX
    in_head = 0
    if not journal._spoiled and journal._free >= need:
        in_head = (journal._sector_bytes - journal._end) // _PAGE
        # `- 1`: at the end of a page, also of the last one, nothing of the page is left.
        if pieces == 1 and (journal._end - 1 & 255) + _RECORD + length < _PAGE:
            in_head += 1
    if pieces <= in_head:
        return True
    sectors = journal._chain + journal._free - journal._chain_from(need > _FOR_HELD) - need
    keep = journal._keep_head
    if journal._held:
        pieces += (journal._held.carried + 255) // _PAGE
    if sectors - (0 if keep else 1) >= (pieces - in_head + pages - 1) // pages:
        return True
    if keep or sectors < (pieces + pages - 1) // pages:
        return False
    if leave:
        journal._spoiled = True
    return True


def refuse_worn(journal: "Any") -> None:
    """Refuse to store: too few sectors work."""
    raise StoreWorn("%d of %d sectors left" % (journal._chain + journal._free, journal.region.sectors))


def make_room(journal: "Any", need: int, message: bool) -> None:
    """Make a full journal's tail sector unnecessary: move its held messages to a new sector, or drop its outgoing messages.

    Raises:
        StoreFull: not possible, not even with all drops that the policy allows. StoreWorn: too few sectors are left.
    """
    usable = journal._chain + journal._free
    if usable < 4 or need == _FOR_STATE:
        journal.worn = True
        refuse_worn(journal)
    held = journal._held
    floor = max(journal.low, journal.floor)
    tail = journal._new_tail
    after = journal._after[tail]
    end = journal._first[after] if tail != journal._head else journal.next_seq
    # Drops help if there is room when only held messages, and a message begun in pieces, are left.
    stays = 1 if journal._continued else 0
    if held:
        stays += held.sectors(True)
    may_drop = journal.policy == DROP_OLDEST and usable - stays - 1 >= need
    if (
        message
        and end <= floor
        and tail != journal._head
        and (may_drop or not held.lies_in(after))
        and held.fits(held.carried_end(tail, 0), True)
    ):
        # Open a sector only for these held messages, because the outgoing message would not fit beside them.
        oldest = journal._tail
        held.rotating = True
        try:
            journal._end = journal._open(_STATE, 0, journal.next_seq, b"", 0, 0, _FOR_STATE) + _RECORD
        finally:
            held.rotating = False
        if journal._tail == oldest:
            raise StoreFull("held messages fill sector %d" % oldest)
    elif message and may_drop and floor < end <= journal.next_seq:
        _drop(journal, floor, end, tail)
    else:
        raise StoreFull("%d sectors, %d messages wait" % (usable, journal.waiting))


def _drop(journal: "Any", first: int, end: int, tail: int) -> None:
    """Drop the messages of the oldest sector: their bodies are lost."""
    window_end = journal.low + _WINDOW
    if journal.on_drop:
        journal.on_drop(first, end)
    for seq in range(first, end):
        if seq >= window_end:
            journal.dropped += end - seq
            break
        if not journal.is_finished(seq) and not journal.is_marked(seq):
            journal.dropped += 1
    for seq in range(journal.low, min(end, window_end)):
        journal._lengths[seq & 31] = 0
    journal.floor = end
    if journal._located < end:
        journal._located = end
        journal._cursor_sector = tail
        journal._cursor_at = 0
    journal._advance()
