"""Assign messages to lives. A life ends when a device's counters begin again.

Our boards send the life in every message: a random number, made when the sequence numbers begin. Each such number is a
life. Messages without it (older firmware, other boards) are assigned by boots and sequence numbers: in one life, boots and
numbers only rise. There a life begins with a boot message that does not fit into the current life. Any other message
that fits into no life is *held* until a life begins into which it fits.

`Device` gets a device's messages one by one, in the order of arrival. The result does not depend on how the messages are
divided into batches. It is plain Python; `placing` uses it only for devices that need it.

This module does not use tables, files or Spark.
"""

from bisect import bisect_left, insort
from typing import NamedTuple

LIFE_BITS = 10
MOST_LIVES = (1 << LIFE_BITS) - 2
"""A device with more lives shares its id or does not keep its store: its messages can't be distinguished any more."""
MOST_GAP = 1 << 24
"""No board loses this many messages in a row: a number that is further ahead is suspect."""
NEAR = 1000
"""Another number this close to a suspect one confirms it: the counter really jumped."""
MOST_HELD = 1024
"""The most held messages of a device; with one more, the oldest goes to quarantine."""
MOST_HELD_BYTES = 4 << 20
"""The most bytes in the payloads of a device's held messages; with more, the oldest go to quarantine."""

REUSED = "identity reused: another message has this device, life, boot and seq"
NOT_COMPARED = (
    "identity reused: the first message of this device, life, boot and seq was deleted, so it can't be compared"
)
UNPLACED = "no place: its boot and seq fit into no known life of its device"
JUMPED = f"counter jumped: its seq is more than {MOST_GAP} ahead, and no other message is near it"
TOO_MANY = "its device's counters began again too often: it shares its id or does not keep its store"


class Message(NamedTuple):
    """A message without its life: the fields that determine it, and for a held one the reason and its row in the landing."""

    identity: int  # the life that the board sent, 0 for none
    boot: int
    seq: int
    first: int | None  # of a boot message: the boot's first number
    print: int
    collector: str
    segment: int
    row: int
    topic: str = ""
    payload: bytes = b""
    arrival_us: int = 0
    reason: str = ""
    place: int = -1  # its index in the batch; -1: an earlier batch held it

    @property
    def origin(self) -> tuple[int, str, int, int]:
        """The values of schemas.ORIGIN: the same row of a log, with the same arrival, is the same message."""
        return self.arrival_us, self.collector, self.segment, self.row


class Verdict(NamedTuple):
    """A message's result: a life, or a reason for quarantine, or neither (it is held now, or was held before)."""

    life: int = 0
    reason: str = ""


class Life:
    """A life: the lowest and the highest number of each of its boots."""

    def __init__(self, number: int, identity: int, spans: dict[int, tuple[int, int]] | None = None):
        self.number, self.identity = number, identity
        self.spans = spans if spans is not None else {}
        self.boots = sorted(self.spans)
        self.highest = max((hi for _, hi in self.spans.values()), default=0)

    def fits(self, boot: int, start: int, seq: int) -> bool:
        """Return whether the numbers `start` to `seq` fit this boot: above all earlier boots' numbers, below all later ones'."""
        at = bisect_left(self.boots, boot)
        if at and self.spans[self.boots[at - 1]][1] >= start:
            return False
        if at < len(self.boots) and self.boots[at] == boot:
            at += 1
        return at == len(self.boots) or seq < self.spans[self.boots[at]][0]

    def is_far(self, seq: int) -> bool:
        """Return whether a number is suspiciously far ahead."""
        return self.highest > 0 and seq > self.highest + MOST_GAP

    def take(self, boot: int, seq: int) -> None:
        """Add a number."""
        span = self.spans.get(boot)
        if span is None:
            insort(self.boots, boot)
            span = (seq, seq)
        self.spans[boot] = (min(span[0], seq), max(span[1], seq))
        self.highest = max(self.highest, seq)


class Device:
    """A device's lives and its held messages.

    Args:
        lives: the known lives, in the order of their numbers.
        held: messages that earlier batches held, oldest first.
        known: the prints of the messages that were seen, by (life, boot, seq), for all keys that `take` needs; None if the
            print was deleted.

    Attributes:
        released: held messages that have a life now: (index of the message that caused it, message, life).
        overflowed: held messages that go to quarantine: there are too many, or another message has their number.
    """

    def __init__(self, lives: list[Life], held: list[Message], known: dict[tuple[int, int, int], int | None]):
        self.lives, self.held, self.known = lives, held, known
        self.held_bytes = sum(len(one.payload) for one in held)
        self.waiting = {one.origin for one in held}
        self.by_identity = {life.identity: life for life in lives if life.identity}
        self.released: list[tuple[int, Message, int]] = []
        self.overflowed: list[Message] = []

    def take(self, message: Message) -> Verdict:
        """Assign the next message."""
        if message.origin in self.waiting:
            return Verdict()  # it is held already: a log is read again
        return self._identified(message) if message.identity else self._anonymous(message)

    # --- messages with a life ---

    def _identified(self, message: Message) -> Verdict:
        life = self.by_identity.get(message.identity)
        if life is None:
            life = self._begin(message.identity)
            if life is None:
                return Verdict(reason=TOO_MANY)
        if (life.number, message.boot, message.seq) in self.known:
            return Verdict(life.number)  # a copy or a conflict: the caller compares the prints
        return self._put_or_hold(life, message)

    # --- messages without a life ---

    def _anonymous(self, message: Message) -> Verdict:
        boot, seq = message.boot, message.seq
        lives = [life for life in reversed(self.lives) if not life.identity]
        is_used = False
        for life in lives:
            key = (life.number, boot, seq)
            if key in self.known:
                if self.known[key] == message.print:
                    return Verdict(life.number)
                is_used = True
        if not lives:
            return self._put_in_new(message)
        if message.first is not None:
            start = message.first if 1 <= message.first < seq else seq
            life = lives[0]
            begun = life.spans.get(boot)
            if (
                life.fits(boot, start, seq)
                and (begun is None or start <= begun[0])
                and (life.number, boot, seq) not in self.known
            ):
                return self._put_or_hold(life, message)
            return self._put_in_new(message)
        for life in lives:
            if (life.number, boot, seq) not in self.known and life.fits(boot, seq, seq):
                return self._put_or_hold(life, message)
        if len(self.lives) >= MOST_LIVES:
            return Verdict(reason=TOO_MANY)  # no further life can begin, so waiting is useless
        return self._hold(message, REUSED if is_used else UNPLACED)

    def _put_in_new(self, message: Message) -> Verdict:
        life = self._begin(0)
        if life is None:
            return Verdict(reason=TOO_MANY)
        self._put(life, message)
        for one in tuple(self.held):
            key = (life.number, one.boot, one.seq)
            copy = self.known.get(key) == one.print
            fits = key not in self.known and life.fits(one.boot, one.seq, one.seq)
            if not one.identity and (copy or (fits and not life.is_far(one.seq))):
                self._release(message.place, one, life)
        return Verdict(life.number)

    # --- all messages ---

    def _begin(self, identity: int) -> Life | None:
        number = self.lives[-1].number + 1 if self.lives else 1
        if number > MOST_LIVES:
            return None
        life = Life(number, identity)
        self.lives.append(life)
        if identity:
            self.by_identity[identity] = life
        return life

    def _put(self, life: Life, message: Message) -> None:
        life.take(message.boot, message.seq)
        self.known[life.number, message.boot, message.seq] = message.print

    def _put_or_hold(self, life: Life, message: Message) -> Verdict:
        near: list[Message] = []
        if life.is_far(message.seq):
            near = [
                one
                for one in self.held
                if one.reason == JUMPED
                and one.identity == message.identity
                and 0 < abs(one.seq - message.seq) <= NEAR
                and (message.boot - one.boot) * (message.seq - one.seq) >= 0
            ]
            if not near:
                return self._hold(message, JUMPED)
        self._put(life, message)
        for one in near:
            key = (life.number, one.boot, one.seq)
            if self.known.get(key, one.print) == one.print:
                self._release(message.place, one, life)
            else:
                self.held.remove(one)
                self._remove_waiting(one)
                self.overflowed.append(one._replace(reason=REUSED))
        return Verdict(life.number)

    def _hold(self, message: Message, reason: str) -> Verdict:
        self.held.append(message._replace(reason=reason))
        self.held_bytes += len(message.payload)
        self.waiting.add(message.origin)
        while len(self.held) > MOST_HELD or self.held_bytes > MOST_HELD_BYTES:
            self._remove_waiting(self.held[0])
            self.overflowed.append(self.held.pop(0))
        return Verdict()

    def _remove_waiting(self, one: Message) -> None:
        self.held_bytes -= len(one.payload)
        self.waiting.discard(one.origin)

    def _release(self, place: int, one: Message, life: Life) -> None:
        self.held.remove(one)
        self._remove_waiting(one)
        self._put(life, one)
        self.released.append((place, one, life.number))
