"""What a journal has promised so far, as plain dictionaries, and the check of a mounted journal against it.

must    a message that is stored and not finished: it is in the journal, complete, in order
may     a message that was being stored when the power went, or whose finish was not durable yet: complete, or absent
gone    a message that is durably finished, or that a mount did not find: it never appears again

The result of a mount is final: a message that it shows stays, and a message that it does not show never appears again. A body
depends on its generation, so that an old message with a reused sequence is noticed.
"""

from flashmqtt.errors import FlashMqttError, StoreFull
from flashmqtt.flash.ram import RamRegion
from flashmqtt.journal.journal import Journal

REFUSE, DROP_OLDEST, DROP_NEWEST = 0, 1, 2
WINDOW = 32
BODY_MAX = 232  # of one record
MOST = 20000  # no script and no life stores more messages
BAD = b"\x02"  # in the journal's `_use`
NO_NOTE = b"\xff" * 12
DAMAGED = -2  # the length of a message that was being stored: see `Model.settle`
GONE = -1  # the length of a message whose body the policy dropped, but not its mark
# Each block of 256 bytes of a body is a piece of this table: byte i is 7 * i, and 7 * 183 is 1 modulo 256.
_SEVENS = bytes(7 * i & 0xFF for i in range(512))
_bodies: dict = {}


class Lost(AssertionError):
    """The journal broke a promise."""


class SectorDied(Exception):
    """A sector died while a message was stored: it does not fit any more, and others were dropped for it.

    Only a message of several records, or in a region of fewer than 8 sectors with held messages.
    """


BREAKS = (AssertionError, FlashMqttError, RuntimeError, LookupError, ValueError, TypeError, AttributeError)


def body_of(seq, length, generation=0):
    """Return the body of a message (or of a held one, by its key) of this generation."""
    key = (seq, length, generation)
    body = _bodies.get(key)
    if body is None:
        if len(_bodies) > 20:  # MicroPython has 192 KB
            _bodies.clear()
        first = seq * 31 + generation * 101
        starts = [(first + block) * 183 & 0xFF for block in range((length + 255) // 256)]
        body = _bodies[key] = b"".join([_SEVENS[start : start + 256] for start in starts])[:length]
    return body


def mount(region, policy=REFUSE):
    """Mount a journal; raise Lost if it claims a number of messages that would take hours to read."""
    journal = Journal(region, policy)
    if journal.next_seq - journal.low > MOST:
        raise Lost("low is %d, next is %d" % (journal.low, journal.next_seq))
    return journal


def longest(journal):
    """Return the greatest length of a message that always finds room if the policy may drop others."""
    region = journal.region
    pages = region.sector_bytes // 256 - 1
    return (region.sectors - bytes(journal._use).count(BAD) - (4 if region.sectors > 5 else 3)) * pages * 232


class Model:
    """The promises of one journal."""

    def __init__(self):
        self.boot = 0
        self.next_seq = 1
        self.messages = {}  # sequence: (length, generation), stored and not durably finished
        self.pending = None  # (sequence, length, generation) that is being stored
        self.finished = {}  # sequence: 1, finished, not durable yet
        self.marks = {}  # sequence: 1: marked; 2: may be marked or not; absent: not marked
        self.held = {}  # key: (length, generation)
        self.may_held = {}  # key: (length, generation) that is being stored
        self.discarded = {}  # key: 1, discarded, not durable yet
        self.dropped = 0
        self.dropped_more = 0  # counted, not durable yet
        self.may_drop = {}  # sequence: 1, the policy is about to drop it
        self.note = (NO_NOTE,)  # its possible values
        self.damaged = 0  # the most that the journal may count

    def copy(self):
        """Return a snapshot."""
        other = Model()
        for name, value in self.__dict__.items():
            setattr(other, name, dict(value) if isinstance(value, dict) else value)
        return other

    def freeze(self):
        """Return the promises as a hashable tuple."""
        return tuple([tuple(sorted(v.items())) if isinstance(v, dict) else v for v in self.__dict__.values()])

    @staticmethod
    def thaw(frozen):
        """Return the model of a tuple from `freeze`."""
        model = Model()
        for (name, empty), value in zip(list(model.__dict__.items()), frozen, strict=True):
            setattr(model, name, dict(value) if isinstance(empty, dict) else value)
        return model

    def written(self):
        """Note that a record was written: earlier finishes and marks are durable."""
        for seq in self.finished:
            self.messages.pop(seq, None)
            self.marks.pop(seq, None)
        self.finished = {}
        for seq, mark in list(self.marks.items()):
            if mark == 2:
                raise Lost("a mark of %d that nobody settled" % seq)

    def check(self, journal, messages, held):
        """Compare with a journal's content: [(sequence, body or None, marked)] in order, and {key: body}."""
        self._check_messages(journal, messages)
        for key, body in held.items():
            allowed = [body_of(key, *what[key]) for what in (self.held, self.may_held) if key in what]
            if body not in allowed:
                raise Lost("held: %d came back, never was, or has other bytes (%d)" % (key, len(body)))
        for key in self.held:
            if key not in held and key not in self.discarded:
                raise Lost("held: missing %d; there are %s" % (key, sorted(held)))
        if bytes(journal.note) not in self.note:
            raise Lost("note is %s, not one of %s" % (journal.note, self.note))
        if not 0 <= journal.damaged <= self.damaged:
            raise Lost("damaged is %d, not %d" % (journal.damaged, self.damaged))
        if journal.next_seq > 1 and journal.fresh:
            raise Lost("fresh, and next is %d" % journal.next_seq)

    def _check_messages(self, journal, messages):
        p = self.pending
        if journal.next_seq != self.next_seq and not (p and journal.next_seq == p[0] + 1):
            raise Lost("next is %d, not %d" % (journal.next_seq, self.next_seq))
        seqs = [seq for seq, _, _ in messages]
        if seqs != sorted(set(seqs)):
            raise Lost("out of order, or twice: %s" % seqs)
        for seq, body, marked in messages:
            if p and seq == p[0]:
                length, generation = p[1:]
            elif seq in self.messages:
                length, generation = self.messages[seq]
            else:
                raise Lost("%d came back, or never was" % seq)
            mark = self.marks.get(seq, 0)
            if mark != 2 and bool(marked) != bool(mark):
                raise Lost("%d is %smarked" % (seq, "" if marked else "not "))
            if body is None and (length == DAMAGED or (p and seq == p[0] and not marked)):
                continue  # its sector has no header: it was being opened, and its records only show the last sequence
            if body is None and marked and (length == GONE or seq in self.may_drop):
                continue
            if length == GONE or body != body_of(seq, length, generation):
                raise Lost("%d has other bytes (%s, not %d)" % (seq, body and len(body), length))
        there = set(seqs)
        missing = [seq for seq in self.messages if seq not in there and seq not in self.finished]
        if [seq for seq in missing if seq not in self.may_drop]:
            raise Lost("missing %s; there are %s" % (sorted(missing)[:9], seqs[:40]))
        if p and journal.next_seq == p[0] + 1 and p[0] not in there:
            raise Lost("%d is lost, and its sequence is used" % p[0])
        low, high = self.dropped + len(missing), self.dropped + len(missing) + self.dropped_more
        if p and (p[0], None, False) in messages:  # that header would have told the count
            low = self.dropped
        high += len([seq for seq in self.may_drop if seq in self.finished and seq not in there])
        if journal.worn:  # it dropped them for a write that then found no sector: the next mount shows them again
            high += len(self.may_drop)
        if not low <= journal.dropped <= high:
            raise Lost("dropped is %d, not %d..%d" % (journal.dropped, low, high))

    def settle(self, journal, messages, held):
        """After a check, take over the journal's content as certain."""
        known = self.messages
        p = self.pending
        if p:
            known[p[0]] = p[1:]
            if (p[0], None, False) in messages:
                self.damaged += 1
        self.messages = {
            seq: known[seq] if body is not None else (GONE if marked else DAMAGED, 0) for seq, body, marked in messages
        }
        self.marks = {seq: 1 for seq, _, marked in messages if marked}
        old, new = self.held, self.may_held
        self.held = {
            key: new[key] if key in new and body == body_of(key, *new[key]) else old[key] for key, body in held.items()
        }
        self.pending = None
        self.may_held, self.finished, self.discarded, self.may_drop = {}, {}, {}, {}
        self.next_seq = journal.next_seq
        self.dropped, self.dropped_more = journal.dropped, 0
        self.note = (bytes(journal.note),)
        self.boot = journal.boot


class Driver:
    """Executes calls on a journal and updates the model. `generation` goes into every body."""

    def __init__(self, journal, model, generation=0):
        self.generation = generation
        self.model = model
        self.use(journal)

    def use(self, journal):
        """Continue with another mount of the journal."""
        self.journal = journal
        self.model.boot = journal.boot
        journal.on_drop = self._dropping

    def _dropping(self, first, end):
        m = self.model
        for seq in m.messages:
            if first <= seq < end:
                m.may_drop[seq] = 1

    def _dropped(self):
        """Update the model after the policy dropped messages: marked ones stay without their body."""
        m, j = self.model, self.journal
        for seq in m.may_drop:
            if seq in m.finished:
                continue
            if m.marks.get(seq) and j.is_marked(seq):
                m.messages[seq] = (GONE, 0)
            else:
                del m.messages[seq]
                m.dropped += 1
        m.may_drop = {}
        if j.dropped != m.dropped + m.dropped_more:
            raise Lost("dropped is %d, not %d" % (j.dropped, m.dropped + m.dropped_more))

    def append(self, length, piece=0):
        """Store a message, in pieces if wanted; return its sequence, 0 where the policy drops it."""
        j, m = self.journal, self.model
        seq = m.next_seq
        if j.next_seq != seq:
            raise Lost("next is %d, not %d" % (j.next_seq, seq))
        body = body_of(seq, length, self.generation)
        bad = bytes(j._use).count(BAD)
        try:
            if piece:
                got = seq if j.begin(length) else 0
                for at in range(0, length if got else 0, piece):
                    j.extend(body[at : at + piece], min(piece, length - at))
                if got:
                    m.pending = (seq, length, self.generation)
                    got = j.commit()
            else:
                m.pending = (seq, length, self.generation)
                got = j.append(body, length)
        except StoreFull:
            m.pending = None
            if m.may_drop or j.next_seq != seq:
                tight = length > BODY_MAX or (j.region.sectors < 8 and m.held)
                if tight and bytes(j._use).count(BAD) > bad:
                    raise SectorDied from None
                raise Lost("dropped something, and StoreFull all the same") from None
            raise
        m.pending = None
        if got == 0 and j.policy == DROP_NEWEST:
            m.dropped_more += 1
            return 0
        if got != seq or j.next_seq != seq + 1:
            raise Lost("append returned %d, not %d; next is %d" % (got, seq, j.next_seq))
        self._dropped()
        m.messages[seq] = (length, self.generation)
        m.next_seq = seq + 1
        self.written()
        return seq

    def written(self):
        """Note that a write has returned: earlier finishes and marks are durable."""
        m = self.model
        for seq in list(m.marks):
            if self.journal.is_marked(seq):
                m.marks[seq] = 1
            else:
                del m.marks[seq]
        m.written()

    def finish(self, seq):
        """Finish a message."""
        self.model.finished[seq] = 1
        self.journal.finish(seq)

    def mark(self, seq):
        """Mark a message; `sync` makes it durable."""
        if not self.model.marks.get(seq):
            self.model.marks[seq] = 2
        self.journal.mark(seq)

    def unmark(self, seq):
        """Remove the mark."""
        if self.model.marks.get(seq):
            self.model.marks[seq] = 2
        self.journal.unmark(seq)

    def sync(self):
        """Make marks and discards durable."""
        m, j = self.model, self.journal
        marks = [seq for seq, mark in m.marks.items() if mark == 2 and seq not in m.finished]
        end = j._head, j._end
        j.sync()
        if marks or end != (j._head, j._end):  # discards need no write if a sector was opened after them
            self.written()
        self._discarded()

    def _discarded(self):
        m = self.model
        for key in m.discarded:
            del m.held[key]
        m.discarded = {}

    def flush(self):
        """Make everything durable."""
        self.journal.flush()
        self._flushed()

    def close(self):
        """End cleanly."""
        self.journal.close()
        self._flushed()

    def _flushed(self):
        """Note that everything is durable, also the count of dropped newest messages."""
        self.written()
        self.model.dropped += self.model.dropped_more
        self.model.dropped_more = 0
        self._discarded()

    def hold(self, key, length):
        """Store an inbound message."""
        j, m = self.journal, self.model
        m.may_held[key] = (length, self.generation)
        try:
            j.hold(key, body_of(key, length, self.generation), length)
        except StoreFull:
            del m.may_held[key]
            raise
        m.held[key] = m.may_held.pop(key)
        m.discarded.pop(key, None)
        self.written()

    def discard(self, key):
        """Forget an inbound message; `sync` makes it durable."""
        self.model.discarded[key] = 1
        self.journal.discard(key)

    def write_note(self, note):
        """Write the note."""
        m = self.model
        m.note += (note,)
        self.journal.write_note(note)
        m.note = (note,)
        self.written()


def in_flight(journal):
    """Return the unfinished messages that may be in flight, oldest first."""
    j = journal
    return [seq for seq in range(j.low, min(j.next_seq, j.low + WINDOW)) if not j.is_finished(seq)]


def see(journal):
    """Return (messages, held) of the window, for `Model.check`."""
    j = journal
    return [(seq, content(j, seq), j.is_marked(seq)) for seq in in_flight(j)], held_of(j)


def drain(journal):
    """Read and finish everything; return (messages, held) for `Model.check`."""
    j = journal
    messages: list[tuple] = []
    while j.low < j.next_seq:
        low = j.low
        for seq in in_flight(j):
            messages.append((seq, content(j, seq), j.is_marked(seq)))
            j.finish(seq)
        if j.low == low:
            raise Lost("low stays at %d" % low)
    held = held_of(j)
    for key in held:
        j.discard(key)
    if j.low != j.next_seq or j.held():
        raise Lost("low is %d of %d, held %s" % (j.low, j.next_seq, j.held()))
    return messages, held


def content(journal, seq):
    """Return a message's body, or None if it was dropped."""
    n = journal.length(seq)
    if not n:
        return None
    buf = bytearray(n + 2)
    journal.read(seq, 0, buf, 1, n)
    return bytes(buf[1 : n + 1])


def held_of(journal):
    """Return the held messages: {key: body}."""
    found = {}
    for key in journal.held():
        n = journal.held_length(key)
        buf = bytearray(n)
        journal.read_held(key, 0, buf, 0, n)
        found[key] = bytes(buf)
    return found


def look(journal):
    """Return a journal's content, from a mount of a copy of its region."""
    region = journal.region
    cells = bytearray(region.sectors * region.sector_bytes)
    region.read(0, cells)
    return drain(mount(RamRegion(region.sectors, region.sector_bytes, region.page_bytes, cells)))


def seen_in(journal):
    """Return a journal's content; if the window has all of it, without mounting a copy."""
    return see(journal) if journal.next_seq - journal.low <= WINDOW else look(journal)


def accept(journal, model, seen):
    """Check a mounted journal, in which `seen` is; its content is final from now on."""
    if journal.boot <= model.boot and not journal.worn:
        raise Lost("boot %d after %d" % (journal.boot, model.boot))
    model.check(journal, *seen)
    model.settle(journal, *seen)


def remount(driver):
    """Mount again without a clean end and without a cut; check, and continue."""
    model = driver.model
    journal = mount(driver.journal.region, driver.journal.policy)
    if journal.boot > model.boot + 1 and not journal.worn:
        raise Lost("boot %d after %d" % (journal.boot, model.boot))
    accept(journal, model, seen_in(journal))
    driver.use(journal)
