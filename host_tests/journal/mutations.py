"""Journals that leave one rule out: the power cuts' check must find each."""

from flashmqtt.journal.journal import Journal
from tools.proof.powercut.adversary import Cells


class Mutation:
    """Leaves one rule of the journal out, inside its `with` block."""

    def __init__(self, name):
        self.name = name

    def __enter__(self):
        self.saved = opened, written, put = Journal._open, Journal._write, Journal._put
        patched: dict = {}
        if self.name == "header":  # the head's header is not programmed again
            Cells.skip = ("header",)
        elif self.name == "record":  # the last record is not programmed again
            Cells.skip = ("record",)
        elif self.name == "carried":  # carried records are not programmed again
            Cells.skip = ("carried",)
        elif self.name == "whole":  # an opening does not state how many records were carried

            def puts(self, sector, at, kind, key, *args):
                return put(self, sector, at, kind, 0 if kind == 3 else key, *args)

            patched["_put"] = puts
        elif self.name == "first":  # the header names a message before the carried ones as its first

            def opens_early(self, kind, key, seq, *args):
                self.next_seq -= seq > self.next_seq
                return opened(self, kind, key, seq, *args)

            patched["_open"] = opens_early
        elif self.name == "order":  # messages are carried after the opening is complete

            def opens_first(self, kind, key, seq, buf, start, n, need, recovery=None):
                old, end = self._head, self._end
                at = opened(self, kind, 0, seq, buf, start, n, need)
                if recovery:
                    new = self._head
                    self._head, self._end = old, end
                    at = recovery.put_opening(self, new, at + 24) - 24
                    self._head = new
                return at

            patched["_open"] = opens_first
        elif self.name == "supersede":  # a head without messages stays on the chain

            def keeps(self, *args):
                self._head_top = 1 << 29
                return opened(self, *args)

            patched["_open"] = keeps
        elif self.name == "free":  # a sector is freed because of a later record

            def frees(self, *args):
                place = written(self, *args)
                while self._tail != self._head and self._first[self._after[self._tail]] <= self.low:
                    self._use[self._tail] = 0
                    self._chain -= 1
                    self._free += 1
                    self._tail = self._after[self._tail]
                return place

            patched["_write"] = frees
        elif self.name == "one":  # only one sector stays free after a message

            def writes(self, kind, *args):
                return written(self, kind, *(*args[:-1], 1 if kind & 15 == 1 else args[-1]))

            patched["_write"] = writes
        for name, method in patched.items():
            setattr(Journal, name, method)
        return self

    def __exit__(self, *error):
        Cells.skip = ()
        for name, method in zip(("_open", "_write", "_put"), self.saved, strict=True):
            setattr(Journal, name, method)
