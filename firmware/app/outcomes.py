"""Undelivered messages by reason, for the health message (APPLICATION.md). Loaded with the first such message.

A range of numbers is in each health message until one of these is acknowledged. This module knows no network; its caller reports
the events.
"""

from flashmqtt.compat import const
from flashmqtt.errors import StoreCorrupt

_KINDS = ("refused", "expired", "dropped", "damaged", "doubt")  # doubt: delivered never, once or twice
_WINDOW = const(32)  # from the oldest unfinished message on: which are finished is known
_RANGES = const(32)  # of each kind: see `_shorten`


def has_topic(journal, seq, topic):
    """Return whether a stored message has this topic, given as bytes; False if it can't be read any more."""
    begin = bytearray(min(journal.length(seq), 7 + len(topic)))  # type, remaining length, the topic's length, the topic
    try:
        journal.read(seq, 0, begin, 0, len(begin))
    except StoreCorrupt:
        return False
    return topic in bytes(begin)


class Outcomes:
    """The ranges to report, by kind, and the health message that reports them."""

    def __init__(self):
        self.counts = {kind: 0 for kind in _KINDS}
        self._ranges: "dict" = {kind: [] for kind in _KINDS}  # first, last, first, last, ...
        self._reported = dict.fromkeys(_KINDS, 0)  # how many of these numbers are in the last health message
        self.handle = 0  # that message
        self.news = False  # is there a range that is in no stored message?

    def restored(self, journal, first):
        """Add what the last boot noted: undelivered messages from `first` on; return the object, or None if there are none.

        They were dropped, or are finished. If nothing was dropped, the note is of a report that this boot can't name.
        """
        end = journal.floor if first < journal.floor else journal.low
        if first < end:
            self.add("dropped", first, end - 1)
        for seq in range(max(first, end), min(journal.low + _WINDOW, journal.stored + 1)):
            if journal.is_finished(seq):
                self.add("dropped", seq, seq)
        if not self.news:
            return None
        self.news = False  # until there is a connection
        return self

    def add(self, kind, first, last):
        """Add undelivered messages; return whether the last health message is one of them."""
        self.counts[kind] += last - first + 1
        ranges = self._ranges[kind]
        if len(ranges) > self._reported[kind] and ranges[-1] == first - 1:
            ranges[-1] = last
        else:
            ranges.append(first)
            ranges.append(last)
            if len(ranges) > 2 * _RANGES:
                self._shorten(kind)
        self.news = True
        return first <= self.handle <= last

    def first(self, seq):
        """Return the first number that is in no acknowledged message, if it is below seq; else seq."""
        return min([seq] + [min(ranges) for ranges in self._ranges.values() if ranges])

    def _shorten(self, kind):
        """Join two adjacent ranges, or forget the oldest one. (A long outage gives hundreds of adjacent ranges.)"""
        ranges = self._ranges[kind]
        reported = self._reported[kind]
        for i in range(2, len(ranges), 2):
            if ranges[i] == ranges[i - 1] + 1:
                del ranges[i - 1 : i + 1]
                if i < reported:
                    self._reported[kind] = reported - 2
                elif i == reported:  # the second range is in no message yet, so the joined one is not, either
                    self._reported[kind] = i - 2
                return
        del ranges[:2]
        self._reported[kind] = max(0, reported - 2)

    def labels(self):
        """Return the labels with the ranges to report."""
        labels = {}
        for kind in _KINDS:
            ranges = self._ranges[kind]
            if ranges and kind == "doubt":
                labels["doubt_first"] = min(ranges)
                labels["doubt_last"] = max(ranges)
            elif ranges:
                pairs = sorted((ranges[i], ranges[i + 1]) for i in range(0, len(ranges), 2))
                labels[kind + "_seqs"] = ",".join(
                    str(first) if first == last else "%d-%d" % (first, last) for first, last in pairs
                )
        return labels

    def reported(self, handle):
        """A message with these labels is stored (0: it is not). A newer one may be, too, with more labels."""
        if handle > self.handle:
            self.handle = handle
            self.news = False
            for kind in _KINDS:
                self._reported[kind] = len(self._ranges[kind])

    def delivered(self, handle):
        """A message is acknowledged; if it is the last health message, forget the ranges that it reported.

        Return whether it is, and no dropped message is left to report.
        """
        if handle != self.handle:
            return False
        self.handle = 0
        for kind in _KINDS:
            del self._ranges[kind][: self._reported[kind]]
            self._reported[kind] = 0
        return not self._ranges["dropped"]
