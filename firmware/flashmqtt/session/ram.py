"""A store in RAM, for programs that need no power safety and for tests: the store's contract in its shortest form.

It knows no MQTT. `limit` bounds how many records may wait, and what is full is refused. A record takes the memory of one that was
released, where that is long enough: in steady state nothing is allocated.
"""

from flashmqtt.errors import StoreFull
from flashmqtt.fast import copy


class RamStore:
    """Records with rising numbers: queued, taken into slots, marked, released. Gone with the process.

    Its calls are those of `Journal`, and mean the same but for the durability.

    Args:
        slots: how many records may be open at once.
        limit: how many may wait; one more is refused with StoreFull.
    """

    fresh = True  # a client that starts with this must start clean at the broker
    boot = 1

    def __init__(self, slots=16, limit=100):
        self.slots = slots
        self.limit = limit
        self.next_seq = 1
        self.stored = 0
        self.dropped = 0
        self._bodies = {}  # seq -> bytearray, not shorter than the record
        self._lengths = {}  # seq -> length of the record
        self._spare = []  # bodies of released records
        self._queue = []  # seqs, oldest first
        self._seqs = [0] * slots
        self._marks = bytearray(slots)
        self._held = bytearray(slots)
        self._pending = bytearray()

    @property
    def waiting(self):
        """How many queued records nobody has taken yet."""
        return len(self._queue)

    def append(self, buf, length):
        """Queue a record; return its number."""
        if len(self._queue) >= self.limit:
            raise StoreFull(self.limit)
        self.stored += 1
        seq = self._keep(buf, length)
        self._queue.append(seq)
        return seq

    def _keep(self, buf, length):
        """Copy a record; return its number."""
        spare = self._spare
        body = spare.pop() if spare else b""
        if len(body) < length:
            body = bytearray(length)
        copy(body, 0, buf, 0, length)
        seq = self.next_seq
        self.next_seq = seq + 1
        self._bodies[seq] = body
        self._lengths[seq] = length
        return seq

    def begin(self, length):
        """Start a queued record that comes in pieces."""
        self._pending = bytearray()

    def extend(self, buf, n):
        """Add a piece to it."""
        self._pending += memoryview(buf)[:n]

    def commit(self):
        """Queue it; return its number."""
        return self.append(self._pending, len(self._pending))

    def hold(self, buf, length):
        """Store a record that is open at once and never queued; return its slot."""
        slot = self._free_slot()
        if slot < 0:
            raise StoreFull(self.slots)
        self._open(slot, self._keep(buf, length), 1)
        return slot

    def take(self):
        """Open the oldest queued record; return its slot, or -1."""
        slot = self._free_slot() if self._queue else -1
        if slot >= 0:
            self._open(slot, self._queue.pop(0), 0)
        return slot

    def _free_slot(self):
        for slot in range(self.slots):
            if not self._seqs[slot]:
                return slot
        return -1

    def _open(self, slot, seq, held):
        self._seqs[slot] = seq
        self._marks[slot] = 0
        self._held[slot] = held

    def is_open(self, slot):
        """Return whether the slot holds a record."""
        return self._seqs[slot] != 0

    def is_held(self, slot):
        """Return whether the slot's record was held, not queued."""
        return bool(self._held[slot])

    def seq_of(self, slot):
        """Return the number of the slot's record."""
        return self._seqs[slot]

    def length_of(self, slot):
        """Return the length of the slot's record."""
        return self._lengths[self._seqs[slot]]

    def mark_of(self, slot):
        """Return the slot's mark, 0 where none was set."""
        return self._marks[slot]

    def old(self, slot):
        """Return whether the record is older than this mount: never, in RAM."""
        return False

    def read(self, slot, offset, buf, at, n):
        """Copy n bytes of the record, from offset, to buf[at:at+n]."""
        copy(buf, at, self._bodies[self._seqs[slot]], offset, n)

    def mark(self, slot, value):
        """Set the slot's mark, 1..255."""
        self._marks[slot] = value

    def release(self, slot):
        """Forget the record."""
        seq = self._seqs[slot]
        self._seqs[slot] = 0
        del self._lengths[seq]
        body = self._bodies.pop(seq)
        if len(self._spare) < self.slots:
            self._spare.append(body)

    def sync(self):
        """Nothing to do: RAM is as durable as it gets."""

    flush = idle = sync
