"""Undelivered messages: they are finished and reported, and never count as delivered (R5).

Loaded with the first such message. It knows the session and its store; its callers know why a message is not delivered.

A message that is set aside (refused, expired, damaged) is finished only after its report was handed over. So a power cut can't
lose the report: anything that the report's handler stored is durable before the message is finished. At worst, the message is
set aside and reported a second time.
"""

from flashmqtt.compat import TYPE_CHECKING, const
from flashmqtt.errors import StoreCorrupt, StoreWorn

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251

# States and events: `flows.py`, `connection.py`.
_NONE = const(0)
_AWAIT_PUBREC = const(2)
_AWAIT_PUBCOMP = const(3)
_IN_DOUBT = const(6)
_DAMAGED = const(9)
_DROPPED = const(11)

_STATE = const(3)
_ASIDE = const(8)
_WINDOW = const(32)
_RANGES = const(32)  # how many ranges of undelivered messages are kept
_REPORTS = const(64)  # how many reports wait at most while there is no connection

_first = bytearray(1)  # of a stored PUBLISH: the session's buffer may have the message for which others are dropped


class Undelivered:
    """The undelivered messages of a session."""

    def __init__(self, session: "Any") -> None:
        self._session = session
        self.ranges: "list[Any]" = []  # first, last, first, last, ...
        self._aside: "list[Any]" = []  # message, event, message, ...: finished as soon as their reports were handed over

    def note(self, first: int, last: "Any") -> None:
        """Note that these messages were not delivered."""
        ranges = self.ranges
        if ranges and ranges[-2] <= first <= ranges[-1] + 1:
            ranges[-1] = max(last, ranges[-1])
            return
        if len(ranges) >= 2 * _RANGES:  # merge the two oldest: delivered messages between them count as undelivered
            ranges[2] = min(ranges[0], ranges[2])
            ranges[3] = max(ranges[1], ranges[3])
            del ranges[:2]
        ranges.append(first)
        ranges.append(last)

    def has(self, handle: "Any") -> bool:
        """Return whether this message was not delivered."""
        ranges = self.ranges
        for i in range(0, len(ranges), 2):
            if ranges[i] <= handle <= ranges[i + 1]:
                return True
        return False

    def report_later(self, event: "Any", handle: "Any", code: int) -> None:
        """Append an event for the session's `report`."""
        self._session.reports.extend((event, handle, code))
        self._session.urgent = True

    def doubt(self, seq: int) -> None:
        """The broker lost the session with a message past PUBREC: publish it again or drop it (`republish`)."""
        session = self._session
        store = session.store
        session.states[seq & 31] = _NONE
        if session.republish and store.length(seq):
            store.unmark(seq)
        else:
            self.note(seq, seq)
            store.finish(seq)
        self.report_later(_IN_DOUBT, seq, 0)

    def set_aside(self, event: "Any", seq: int, code: int) -> None:
        """Stop sending a message, report this event, and finish the message after its report was handed over."""
        session = self._session
        if not session.states[seq & 31] & _ASIDE:
            self.put_aside(event, seq)
            self.report_later(event, seq, code)

    def put_aside(self, event: "Any", seq: int) -> None:
        """Do the same for a message that the caller reports now."""
        session = self._session
        session.states[seq & 31] = _ASIDE
        self.note(seq, seq)
        self._aside.extend((seq, event))
        session.urgent = True

    def reported(self) -> None:
        """All reports were handed over: finish the messages set aside, and make that and their count durable."""
        aside = self._aside
        if not aside:
            return
        self._aside = []
        session = self._session
        store = session.store
        for i in range(0, len(aside), 2):
            seq = aside[i]
            if session.states[seq & 31] & _ASIDE:  # else the store's policy has dropped it meanwhile
                session.states[seq & 31] = _NONE
                store.finish(seq)
                if aside[i + 1] != _DAMAGED and aside[i + 1] != _IN_DOUBT:  # the store counts damaged messages itself
                    store.dropped += 1
        try:
            store.flush()
        except StoreWorn:
            pass

    def dropping(self, first: int, end: int) -> None:
        """The store's policy is about to drop the messages from first to end - 1.

        If a QoS 2 message was sent, the broker may have received it: its flow continues with PUBREL, which needs no body.
        """
        session = self._session
        store = session.store
        states = session.states
        window_end = min(end, store.low + _WINDOW)
        for seq in range(first, window_end):
            slot = seq & 31
            if states[slot] & _ASIDE:
                states[slot] = _NONE
            elif not store.is_finished(seq):
                state = state_of(session, seq)
                if state != _AWAIT_PUBCOMP:
                    self.note(seq, seq)
                if state >= _AWAIT_PUBREC:
                    store.mark(seq)
                else:
                    if seq < session.cursor:
                        session.flight -= 1
                        states[slot] = _NONE
                    self._dropped(seq, seq)
        if end > window_end:
            first = max(first, window_end)
            self.note(first, end - 1)
            self._dropped(first, end - 1)

    def _dropped(self, first: int, last: "Any") -> None:
        """Report these messages as dropped; extend the last report if they follow it."""
        session = self._session
        reports = session.reports
        if reports and reports[-3] == _DROPPED and reports[-1] == first - 1:
            reports[-1] = last
        elif len(reports) < 3 * _REPORTS:
            self.report_later(_DROPPED, first, last)


def state_of(session: "Any", seq: int) -> "Any":
    """Return the state of an unfinished message in the window. If not yet sent on this connection: its last state."""
    if seq < session.cursor:
        return session.states[seq & 31] & _STATE
    store = session.store
    if store.is_marked(seq):
        return _AWAIT_PUBCOMP
    if seq >= session.dup_to or not store.length(seq):
        return _NONE
    try:
        store.read(seq, 0, _first, 0, 1)
    except StoreCorrupt:
        return _NONE
    return _first[0] >> 1 & 3
