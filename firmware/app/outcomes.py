"""Which messages were not delivered, and why: what the health message names (APPLICATION.md). Loaded with the first such message.

A range of numbers is told in each health message until one that has it is acknowledged. It knows no network; who calls it says
what happened.
"""

from flashmqtt.compat import const

_KINDS = ("refused", "expired", "dropped", "damaged")
_RANGES = const(32)  # of each kind; older ones stood in earlier messages


class Outcomes:
    """The ranges to be told, by kind, and the message that tells them."""

    def __init__(self):
        self.counts = {kind: 0 for kind in _KINDS}
        self._ranges: "dict" = {kind: [] for kind in _KINDS}  # first, last, first, last, ...
        self._told = dict.fromkeys(_KINDS, 0)  # how many numbers of these stand in the message that told last
        self.handle = 0  # that message
        self.news = False  # is there a range that no stored message has?

    def add(self, kind, first, last):
        """Take note of messages; return whether the one that told last is among them."""
        self.counts[kind] += last - first + 1
        ranges = self._ranges[kind]
        if len(ranges) > self._told[kind] and ranges[-1] == first - 1:
            ranges[-1] = last
        else:
            ranges.append(first)
            ranges.append(last)
            if len(ranges) > 2 * _RANGES:
                del ranges[:2]
                self._told[kind] = max(0, self._told[kind] - 2)
        self.news = True
        return first <= self.handle <= last

    def labels(self):
        """Return the labels that name what is to be told."""
        labels = {}
        for kind in _KINDS:
            ranges = self._ranges[kind]
            if ranges:
                pairs = sorted((ranges[i], ranges[i + 1]) for i in range(0, len(ranges), 2))
                labels[kind + "_seqs"] = ",".join(
                    str(first) if first == last else "%d-%d" % (first, last) for first, last in pairs
                )
        return labels

    def told(self, handle):
        """A message with these labels is stored (0: it is not)."""
        if handle:
            self.handle = handle
            self.news = False
            for kind in _KINDS:
                self._told[kind] = len(self._ranges[kind])

    def delivered(self, handle):
        """A message is acknowledged: was it the one that told last?"""
        if handle == self.handle:
            self.handle = 0
            for kind in _KINDS:
                del self._ranges[kind][: self._told[kind]]
                self._told[kind] = 0
