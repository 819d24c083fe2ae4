"""A store in RAM, for programs that need no power safety and for tests: the shortest implementation of the store's interface.

It knows no MQTT: a message is bytes with a sequence number, a held message is bytes with a key. When `limit` messages are
unfinished, the next one is refused. A new message reuses the memory of a finished one if that is long enough, so that the steady
state allocates nothing.
"""

from flashmqtt.compat import TYPE_CHECKING, const
from flashmqtt.errors import StoreFull, UsageError
from flashmqtt.fast import copy, raw_copy

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251

_FINISHED = const(1)
_MARKED = const(2)
_SPARES = const(8)
_SPARE_BYTES = const(2048)  # a longer body is not kept

_len = len  # a board needs 5 us longer to find a builtin than to find a global


class RamStore:
    """Messages numbered 1, 2, 3 ...: appended, read, marked, finished; and held ones, by key. Lost with the process.

    Its methods are those of `Journal` and mean the same, except for durability.

    Args:
        limit: the longest backlog, counted from the oldest unfinished message; one more message is refused with StoreFull.
        hold_limit: how many messages may be held at once.
        longest: the longest held message that may come in pieces.
    """

    volatile = True  # nothing is kept from an earlier run of the program
    boot = 1
    dropped = damaged = 0
    on_drop = None
    # Few programs set these. In a full table of attributes, MicroPython compares all names before it looks into the class.
    _pieces: "Any" = b""
    _begun: "Any" = None  # a held message that comes in pieces: its key, its body
    _begun_done = 0

    def __init__(self, limit: int = 100, hold_limit: int = 40, longest: int = 32768) -> None:
        for number in (limit, hold_limit, longest):
            if not isinstance(number, int) or number < 1:
                raise UsageError("RamStore: %r: a whole number from 1 on is needed" % (number,))
        self.limit = limit
        self.hold_limit = hold_limit
        self.longest = longest
        self.next_seq = self.low = 1
        self.note = b"\xff" * 12
        self._bodies: "list[Any]" = [None] * limit  # by seq % limit; not shorter than the message
        self._lengths = [0] * limit
        self._flags = bytearray(32)  # by seq & 31, of the messages from `low` on
        self._spares: "list[Any]" = [None] * _SPARES  # bodies of messages that are done
        self._spare_count = 0
        self._keys: "list[int]" = []  # of held messages, oldest first
        self._held: "dict[int, Any]" = {}  # by key: bodies, not shorter than the message; and lengths
        self._held_lengths: "dict[int, int]" = {}

    def __getattr__(self, name: str) -> "Any":
        """Return how many messages are not finished: `waiting`. (A property would slow down every attribute store.)"""
        if name != "waiting":
            raise AttributeError(name)
        n = self.next_seq - self.low
        for seq in range(self.low, self.low + min(n, 32)):
            n -= self.is_finished(seq)
        return n

    # --- outgoing ---

    def append(self, buf: "bytes | bytearray | memoryview", length: int) -> int:
        """Store buf[:length]; return its sequence number.

        Raises:
            StoreFull: `limit` messages are unfinished.
        """
        # (No new local here: a frame over 11 words is allocated on the heap, which takes 25 us. So does a call: `hold` has the
        # same lines.)
        seq = self.next_seq
        if seq - self.low >= self.limit:
            raise StoreFull("%d messages wait: deliver some, or raise limit" % self.limit)
        if length > _len(buf):
            raise UsageError("%d bytes of %d" % (length, len(buf)))
        body: "Any" = self._spare_count  # first the number of spares, then the body
        if body:
            self._spare_count = body = body - 1
            body = self._spares[body]
        if not body or _len(body) < length:
            body = bytearray(length)
        raw_copy(body, buf, length, 0, 0)
        seq %= self.limit
        self._bodies[seq] = body
        self._lengths[seq] = length
        self.next_seq = seq = self.next_seq + 1
        return seq - 1

    def begin(self, length: int) -> bool:
        """Begin a message that comes in pieces; check here that there is room for all of it.

        Raises:
            StoreFull: see `append`.
        """
        if self.next_seq - self.low >= self.limit:
            raise StoreFull("%d messages wait: deliver some, or raise limit" % self.limit)
        self._pieces = bytearray()
        return True

    def extend(self, buf: "bytes | bytearray | memoryview", n: int) -> None:
        """Add buf[:n] to the message."""
        self._pieces += memoryview(buf)[:n]

    def commit(self) -> int:
        """Store the message; return its sequence number."""
        pieces = self._pieces
        self._pieces = bytearray()
        return self.append(pieces, len(pieces))

    def length(self, seq: int) -> int:
        """Return the length of a message from `low` on."""
        return self._lengths[seq % self.limit]

    def read(self, seq: int, offset: int, buf: "bytearray | memoryview", at: int, n: int) -> None:
        """Copy n bytes of a message, from offset, to buf[at:at+n]."""
        copy(buf, at, self._bodies[seq % self.limit], offset, n)

    def finish(self, seq: int) -> None:
        """Remove a message that is done."""
        flags = self._flags
        low = self.low
        # Ctrl-C raises at a jump: it can't separate the lines of one case.
        if seq == low:
            self.low = low = seq + 1
            flags[seq & 31] = 0
        else:
            flags[seq & 31] |= _FINISHED
        while flags[low & 31] & _FINISHED:
            flags[low & 31] = 0
            low += 1
            self.low = low
        # Last, because Ctrl-C may end this half-way, and an unfinished message needs its body.
        seq %= self.limit
        bodies = self._bodies
        body = bodies[seq]
        bodies[seq] = None
        n = self._spare_count
        if n < _SPARES and body and self._lengths[seq] <= _SPARE_BYTES:  # a longer body has its message's length
            self._spares[n] = body
            self._spare_count = n + 1

    def is_finished(self, seq: int) -> bool:
        """Return whether a message in the window is done."""
        return self._flags[seq & 31] & _FINISHED != 0

    def mark(self, seq: int) -> None:
        """Mark a message in the window: its PUBREC has arrived."""
        self._flags[seq & 31] |= _MARKED

    def unmark(self, seq: int) -> None:
        """Clear a message's mark."""
        self._flags[seq & 31] &= ~_MARKED

    def is_marked(self, seq: int) -> bool:
        """Return whether a message in the window is marked."""
        return self._flags[seq & 31] & _MARKED != 0

    # --- inbound ---

    def can_hold(self, length: int) -> bool:
        """Return whether a message of this length could be held now."""
        return len(self._keys) + (self._begun is not None) < self.hold_limit

    def hold(self, key: int, buf: "bytes | bytearray | memoryview", length: int) -> None:
        """Hold buf[:length] until `discard`; key is its packet id.

        Raises:
            StoreFull: `hold_limit` messages are held.
        """
        if len(self._keys) + (self._begun is not None) >= self.hold_limit:
            raise StoreFull("%d messages are held, which is the limit" % self.hold_limit)
        body = None
        n = self._spare_count
        if length > len(buf):
            raise UsageError("%d bytes of %d" % (length, len(buf)))
        if n:
            self._spare_count = n = n - 1
            body = self._spares[n]
        if body is None or len(body) < length:
            body = bytearray(length)
        copy(body, 0, buf, 0, length)
        self._held[key] = body
        self._held_lengths[key] = length
        self._keys.append(key)  # last: with no memory for it, the message is not held

    def hold_begin(self, key: int, length: int) -> None:
        """Begin a held message of `length` bytes that comes in pieces; allocate all of it here.

        Raises:
            StoreFull: `hold_limit` messages are held, or there is no memory for this one.
        """
        if len(self._keys) >= self.hold_limit:
            raise StoreFull("%d messages are held, which is the limit" % self.hold_limit)
        try:
            self._begun = (key, bytearray(length))
        except MemoryError:
            raise StoreFull("no memory for %d bytes to hold" % length)
        self._begun_done = 0

    def hold_extend(self, buf: "bytes | bytearray | memoryview", start: int, n: int) -> None:
        """Add buf[start:start+n]; the message is held when it is complete."""
        body: "Any"
        key, body = self._begun or (0, b"")
        left = len(body) - self._begun_done
        if start < 0 or not 0 <= n <= min(left, len(buf) - start):
            raise UsageError("%d bytes of %d" % (n, left))
        copy(body, self._begun_done, buf, start, n)
        self._begun_done += n
        if self._begun_done == len(body):
            self._begun = None
            self._held[key] = body
            self._held_lengths[key] = len(body)
            self._keys.append(key)

    def hold_abandon(self) -> None:
        """Discard an incomplete message."""
        self._begun = None

    def longest_hold(self) -> int:
        """Return how long a held message may be."""
        return self.longest

    def held(self) -> "list[int]":
        """Return the keys of the held messages, oldest first."""
        return list(self._keys)

    def held_length(self, key: int) -> int:
        """Return the length of a held message, 0 if there is none with this key."""
        return self._held_lengths[key] if key in self._keys else 0

    def read_held(self, key: int, offset: int, buf: "bytearray | memoryview", at: int, n: int) -> None:
        """Copy n bytes of a held message, from offset, to buf[at:at+n]."""
        copy(buf, at, self._held[key], offset, n)

    def discard(self, key: int) -> None:
        """Remove a held message that is done."""
        self._keys.remove(key)
        self._held_lengths.pop(key)
        body = self._held.pop(key)
        n = self._spare_count
        if n < _SPARES and len(body) <= _SPARE_BYTES:
            self._spares[n] = body
            self._spare_count = n + 1

    # --- the note, and durability ---

    def write_note(self, note: "bytes | bytearray | memoryview") -> None:
        """Set `note` to these 12 bytes."""
        self.note = bytes(note)

    # RAM is not durable: nothing to do. (On a board, the call of a builtin costs less than that of an empty function.)
    sync = flush = idle = close = bool
