"""What a store has promised so far, as plain lists and dictionaries, and the check of a mounted journal against it.

must    a message that was stored, and not released: it has to be there, whole, in order
may     one that was being stored when the power went, or whose release was not durable yet: there, whole, or not
gone    one whose release was durable: it must never come back
"""


class Lost(AssertionError):
    """The journal broke a promise."""


def body_of(seq, length):
    """Return the bytes that a message with this sequence has."""
    return bytes((seq * 31 + i * 7 + (i >> 8)) & 0xFF for i in range(length))


class Model:
    """One store's promises. `inflight` is what the power may interrupt."""

    def __init__(self):
        self.queued = {}  # sequence: length, stored and not released
        self.held = {}
        self.may_queued = {}
        self.may_held = {}
        self.marks = {}
        self.may_marks = {}
        self.released = {}  # not durable yet: sequence: (held, length)
        self.stored = 0
        self.stored_more = 0  # how many more there may be
        self.boot = 0
        self.dropped = 0

    def copy(self):
        """Return a snapshot."""
        other = Model()
        for name, value in self.__dict__.items():
            setattr(other, name, dict(value) if isinstance(value, dict) else value)
        return other

    def durable(self):
        """Every release so far is on flash."""
        for seq in self.released:
            self.may_queued.pop(seq, None)
            self.may_held.pop(seq, None)
        self.released = {}

    def release(self, seq, held):
        """A release that is not durable yet."""
        length = (self.held if held else self.queued).pop(seq)
        (self.may_held if held else self.may_queued)[seq] = length
        self.released[seq] = 1

    def check(self, journal, messages, held):
        """Compare with what a journal gave: lists of (sequence, body, mark), queued in the order they came."""
        for name, got, must, may in (
            ("queued", messages, self.queued, self.may_queued),
            ("held", held, self.held, self.may_held),
        ):
            seqs = [seq for seq, _, _ in got]
            if len(set(seqs)) != len(seqs):
                raise Lost("%s: twice the same: %s" % (name, seqs))
            missing = [seq for seq in must if seq not in seqs]
            if missing:
                raise Lost("%s: missing %s; there are %s" % (name, missing, seqs))
            for seq, body, mark in got:
                length = must.get(seq, may.get(seq))
                if length is None:
                    raise Lost("%s: %d came back, or never was" % (name, seq))
                if body != body_of(seq, length):
                    raise Lost("%s: %d has other bytes" % (name, seq))
                if mark != self.marks.get(seq, 0) and mark != self.may_marks.get(seq, 0):
                    raise Lost("%s: %d has mark %d" % (name, seq, mark))
        if not self.stored <= journal.stored <= self.stored + self.stored_more:
            raise Lost("stored is %d, not %d..%d" % (journal.stored, self.stored, self.stored + self.stored_more))

    def settle(self, journal, messages, held):
        """After a check: what is there is there, what is not is gone."""
        lengths = {seq: len(body) for seq, body, _ in messages}
        self.queued = lengths
        self.held = {seq: len(body) for seq, body, _ in held}
        self.may_queued = {}
        self.may_held = {}
        self.released = {}
        self.marks = {seq: mark for seq, _, mark in messages + held if mark}
        self.may_marks = {}
        self.stored = journal.stored
        self.stored_more = 0
        self.dropped = journal.dropped
        self.boot = journal.boot


class Driver:
    """Does things to a journal and tells the model, in that order."""

    def __init__(self, journal, model):
        self.journal = journal
        self.model = model
        self.slots = journal.slots  # as it was asked for: a mount makes more where more are open
        model.boot = journal.boot

    def _wrote(self):
        j = self.journal
        if not j._unsaid and not j._pending_n:
            self.model.durable()

    def append(self, length, piece=0):
        """Store a message, in pieces if wanted."""
        j, m = self.journal, self.model
        seq = j.next_seq
        body = body_of(seq, length)
        m.may_queued[seq] = length
        m.stored_more = 1
        before = j.dropped
        if piece:
            j.begin(length)
            for at in range(0, length, piece):
                j.extend(body[at : at + piece], min(piece, length - at))
            got = j.commit()
        else:
            got = j.append(body, length)
        m.stored_more = 0
        self.follow_drops(before)
        if got == 0:
            del m.may_queued[seq]
            return 0
        if got != seq:
            raise Lost("append returned %d, not %d" % (got, seq))
        del m.may_queued[seq]
        m.queued[seq] = length
        m.stored += 1
        self._wrote()
        return seq

    def follow_drops(self, before):
        """The policy may drop the oldest that were not taken."""
        j, m = self.journal, self.model
        n = j.dropped - before
        if n and j.policy == 1:
            taken = [j.seq_of(slot) for slot in range(j.slots) if j._slot_state[slot]]
            for seq in [seq for seq in sorted(m.queued) if seq not in taken][:n]:
                m.may_queued[seq] = m.queued.pop(seq)
        m.dropped = j.dropped

    def hold(self, length):
        """Store an inbound message."""
        j, m = self.journal, self.model
        seq = j.next_seq
        m.may_held[seq] = length
        slot = j.hold(body_of(seq, length), length)
        del m.may_held[seq]
        m.held[seq] = length
        self._wrote()
        return slot

    def take(self):
        """Take the next; it must be the oldest that is not open."""
        j, m = self.journal, self.model
        slot = j.take()
        if slot >= 0:
            seq = j.seq_of(slot)
            opened = [j.seq_of(s) for s in range(j.slots) if j.is_open(s) and s != slot]
            first = min(s for s in m.queued if s not in opened)
            if seq != first:
                raise Lost("took %d before %d" % (seq, first))
            if content(j, slot) != body_of(seq, m.queued[seq]):
                raise Lost("took %d with other bytes" % seq)
        elif m.queued and j.waiting and j._free_slot() >= 0 and j._window_n < j._span:
            raise Lost("nothing to take, and %d wait" % j.waiting)
        return slot

    def mark(self, slot, value):
        """Mark an open message."""
        j, m = self.journal, self.model
        seq = j.seq_of(slot)
        m.may_marks[seq] = value
        j.mark(slot, value)
        m.marks[seq] = value
        del m.may_marks[seq]
        self._wrote()

    def release(self, slot):
        """Release an open message."""
        j, m = self.journal, self.model
        seq = j.seq_of(slot)
        m.release(seq, j.is_held(slot))
        j.release(slot)
        self._wrote()

    def flush(self):
        """Make releases durable."""
        self.journal.flush()
        self.model.durable()

    def close(self):
        """End cleanly."""
        self.journal.close()
        self.model.durable()

    def opened(self, held=False):
        """Return the open slots of queued (or held) messages, by age."""
        j = self.journal
        slots = [s for s in range(j.slots) if j.is_open(s) and j.is_held(s) == held]
        return sorted(slots, key=j.seq_of)

    def drain(self):
        """Take, read and release everything; return (queued, held) as lists of (sequence, body, mark)."""
        j = self.journal
        messages: list[tuple] = []
        held: list[tuple] = []
        for slot in range(j.slots):
            if j.is_open(slot):
                (held if j.is_held(slot) else messages).append((j.seq_of(slot), content(j, slot), j.mark_of(slot)))
                j.release(slot)
        last = 0
        waiting = j.waiting
        while True:
            slot = j.take()
            if slot < 0:
                break
            waiting -= 1
            if j.seq_of(slot) <= last:
                raise Lost("took %d after %d" % (j.seq_of(slot), last))
            last = j.seq_of(slot)
            messages.append((last, content(j, slot), j.mark_of(slot)))
            j.release(slot)
        if waiting or j.waiting:
            raise Lost("waiting was off by %d, and is %d" % (waiting, j.waiting))
        return messages, held


def content(journal, slot):
    """Return a message's bytes."""
    buf = bytearray(journal.length_of(slot) + 2)
    n = journal.length_of(slot)
    journal.read(slot, 0, buf, 1, n)
    return bytes(buf[1 : n + 1])
