"""An outgoing message that comes in pieces, or is longer than a record. FORMAT.md, "Record", type 1.

Every 232 bytes are written as a record. `commit` writes the last record, and the message exists when that is whole. This module
is loaded with the first such message.
"""

from flashmqtt.compat import TYPE_CHECKING, const
from flashmqtt.errors import StoreError, StoreFull, UsageError
from flashmqtt.fast import raw_copy

from .journal import DROP_NEWEST
from .room import has_room, longest_message, may_drop_for, refuse_worn

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251

_BODY_MAX = const(232)
_MESSAGE = const(1)
_LAST = const(0x80)
_SEQUENCE_LIMIT = const(0x3FFFFFFF)


class Pieces:
    """The message in progress; `Journal` has the calls' descriptions."""

    def __init__(self, journal: "Any") -> None:
        self._journal = journal
        self._left = 0  # bytes to come; -1: the policy dropped the message
        self._piece = self._fill = 0  # the next record
        self._part = bytearray(_BODY_MAX)  # the first `_fill` bytes are not written yet

    def begin(self, length: int) -> bool:
        """Begin a message."""
        journal = self._journal
        if length < 1:
            raise UsageError("a message of %d bytes" % length)
        if journal.next_seq >= _SEQUENCE_LIMIT:
            raise StoreError("every sequence is used: call format()")
        if journal._busy:
            from .faults import refuse_write

            refuse_write(journal)
        self.abandon()
        if journal.worn:
            refuse_worn(journal)
        most = longest_message(journal)
        if length > most or not (may_drop_for(journal, length) or has_room(journal, length, journal._reserve, True)):
            if length > most or journal.policy != DROP_NEWEST:
                raise StoreFull("%d bytes; %d at most, %d messages wait" % (length, most, journal.waiting))
            journal.dropped += 1
            return False
        self._left = length
        self._fill = 0
        return True

    def extend(self, buf: "bytes | bytearray | memoryview", n: int) -> None:
        """Add buf[:n]."""
        if self._left < 0:
            return
        if not 0 <= n <= min(len(buf), self._left):
            raise UsageError("extend: %d bytes, %d left, the buffer has %d" % (n, self._left, len(buf)))
        done = 0
        while done < n:
            # Short pieces are joined: a record that is not full would also take a page, and `begin` counted full ones only.
            fill = self._fill
            part = min(n - done, _BODY_MAX - fill)
            raw_copy(self._part, buf, part, fill, done)
            self._fill = fill = fill + part
            self._left -= part
            done += part
            if fill == _BODY_MAX and self._left and not self._write(_MESSAGE, 1):
                return

    def commit(self) -> int:
        """Write the last record, which ends the message; return its sequence, or 0 if the policy dropped it."""
        if self._left > 0 or not (self._left or self._fill):
            raise UsageError("commit: %d bytes are missing" % self._left)
        journal = self._journal
        seq = journal.next_seq
        if self._left or not self._write(_MESSAGE | _LAST, 0):
            self.abandon()
            return 0
        self._piece = 0
        journal.fresh = False
        return seq

    def _write(self, kind: int, continued: int) -> bool:
        """Write the next record; return False if the policy dropped the message."""
        journal = self._journal
        try:
            journal._write(kind, self._piece, journal.next_seq, self._part, 0, self._fill, journal._reserve)
            # Ctrl-C raises at a jump or after a call: it can't separate the next lines.
            self._piece += 1
            self._fill = 0
            journal._continued = continued
        except StoreFull:  # a sector was found to be bad
            if journal.policy != DROP_NEWEST:
                raise
            journal.dropped += 1
            self._left = -1
            return False
        return True

    def abandon(self) -> None:
        """Discard an incomplete message: the next message gets its sequence, and begins in the head or later."""
        journal = self._journal
        if self._piece:
            for sector in range(journal.region.sectors):
                journal._first[sector] = min(journal._first[sector], journal.next_seq)
        self._piece = self._fill = self._left = journal._continued = 0
