"""Lives: which messages belong together after a device's counters began again.

A board of ours says in every message which life it is in: a random number that is as old as its sequence numbers. Then
there is nothing to guess: each such number is a life. Messages without one (older firmware, other boards) are told apart by
boots and sequence numbers: in one life boots rise and numbers go on. There a life begins with a boot message that does
not fit into the one in force. Any other message that fits nowhere is *held*, until a life begins that it fits into.

`Device` takes a device's messages one by one, in the order in which they arrived, and goes by nothing else: how they fell
into batches makes no difference. It is plain Python; `placing` sees to it that only devices that need it come here.

It knows nothing of tables, files and Spark.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Any, NamedTuple

from .state import LIFE_BITS

MOST_LIVES = (1 << LIFE_BITS) - 2
"""A device that begins anew more often has another's id, or no memory: what it says then can't be told apart."""
MOST_GAP = 1 << 24
"""No board loses so many messages in a row: a number that is further ahead than this is suspect."""
NEAR = 1000
"""So close to a suspect number another one confirms it: then the counter really jumped."""
MOST_HELD = 1024
"""So many messages of a device are held; with more, the oldest goes to quarantine."""

REUSED = "identity reused: another message has this device, life, boot and seq"
NOT_COMPARED = "identity reused: the message that has this device, life, boot and seq can't be compared any more"
UNPLACED = "no place: its boot and seq fit into no life of its device that is known yet"
JUMPED = f"counter jumped: its seq is more than {MOST_GAP} ahead, and no other message is near it"
TOO_MANY = "its device's counters began again too often: the id is not its own"


class Message(NamedTuple):
    """What is asked of a message."""

    identity: int  # the life that the board says, 0 for none
    boot: int
    seq: int
    first: int | None  # of a boot message: the number that the boot began with
    print: int
    where: tuple[str, int, int]  # collector, segment, row: the same row of a log is the same message


class Held(NamedTuple):
    """A message that is held, why, and whatever its keeper knows it by."""

    message: Message
    reason: str
    tag: Any


class Verdict(NamedTuple):
    """What becomes of a message: a life, or a reason for quarantine, or neither (it is held, or was held already)."""

    life: int = 0
    reason: str = ""


class Life:
    """A life as far as placing goes: the lowest and highest number of each of its boots."""

    def __init__(self, number: int, identity: int, spans: dict[int, tuple[int, int]] | None = None):
        self.number, self.identity = number, identity
        self.spans = spans if spans is not None else {}
        self.boots = sorted(self.spans)
        self.highest = max((hi for _, hi in self.spans.values()), default=0)

    def fits(self, boot: int, start: int, seq: int) -> bool:
        """Return whether a boot can have had the numbers from `start` to `seq`: above all earlier ones, below later ones."""
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
        """Take a number in."""
        span = self.spans.get(boot)
        if span is None:
            insort(self.boots, boot)
            span = (seq, seq)
        self.spans[boot] = (min(span[0], seq), max(span[1], seq))
        self.highest = max(self.highest, seq)


class Device:
    """A device's lives, and the messages that are held.

    Args:
        lives: those known, by their number.
        held: messages that earlier batches could not place, oldest first.
        known: the prints of numbers that were seen, by (life, boot, seq), as far as `take` will ask for them; None where a
            print is gone.

    Attributes:
        released: held messages that found their life, as (place of the message that brought it about, held, life).
        overflowed: held messages that go to quarantine for good: there was no room, or another has their number.
    """

    def __init__(self, lives: list[Life], held: list[Held], known: dict[tuple[int, int, int], int | None]):
        self.lives, self.held, self.known = lives, held, known
        self.waiting = {(one.message.where, one.message.print) for one in held}
        self.by_identity = {life.identity: life for life in lives if life.identity}
        self.released: list[tuple[int, Held, int]] = []
        self.overflowed: list[Held] = []

    def take(self, place: int, message: Message) -> Verdict:
        """Take the next message; `place` is where it stands in its batch."""
        if (message.where, message.print) in self.waiting:
            return Verdict()  # it is held: a log is read again
        return self._identified(place, message) if message.identity else self._anonymous(place, message)

    # --- messages that tell their life ---

    def _identified(self, place: int, message: Message) -> Verdict:
        life = self.by_identity.get(message.identity)
        if life is None:
            life = self._begin(message.identity)
            if life is None:
                return Verdict(reason=TOO_MANY)
        if (life.number, message.boot, message.seq) in self.known:
            return Verdict(life.number)  # a copy or a conflict: the prints tell
        return self._put_or_hold(place, life, message)

    # --- messages that don't ---

    def _anonymous(self, place: int, message: Message) -> Verdict:
        boot, seq = message.boot, message.seq
        lives = [life for life in reversed(self.lives) if not life.identity]
        taken = False
        for life in lives:
            key = (life.number, boot, seq)
            if key in self.known:
                if self.known[key] == message.print:
                    return Verdict(life.number)
                taken = True
        if not lives:
            return self._put_in_new(place, message)
        if message.first is not None:
            start = message.first if 1 <= message.first < seq else seq
            life = lives[0]
            begun = life.spans.get(boot)
            if (
                life.fits(boot, start, seq)
                and (begun is None or start <= begun[0])
                and (life.number, boot, seq) not in self.known
            ):
                return self._put_or_hold(place, life, message)
            return self._put_in_new(place, message)
        for life in lives:
            if (life.number, boot, seq) not in self.known and life.fits(boot, seq, seq):
                return self._put_or_hold(place, life, message)
        if len(self.lives) >= MOST_LIVES:
            return Verdict(reason=TOO_MANY)  # no life will begin that it could wait for
        return self._hold(place, message, REUSED if taken else UNPLACED)

    def _put_in_new(self, place: int, message: Message) -> Verdict:
        life = self._begin(0)
        if life is None:
            return Verdict(reason=TOO_MANY)
        self._put(life, message)
        for one in tuple(self.held):
            waiting = one.message
            key = (life.number, waiting.boot, waiting.seq)
            copy = self.known.get(key) == waiting.print
            fits = key not in self.known and life.fits(waiting.boot, waiting.seq, waiting.seq)
            if not waiting.identity and (copy or (fits and not life.is_far(waiting.seq))):
                self._release(place, one, life)
        return Verdict(life.number)

    # --- both ---

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

    def _put_or_hold(self, place: int, life: Life, message: Message) -> Verdict:
        if life.is_far(message.seq):
            near = [
                one
                for one in self.held
                if one.reason == JUMPED
                and one.message.identity == message.identity
                and 0 < abs(one.message.seq - message.seq) <= NEAR
                and (message.boot - one.message.boot) * (message.seq - one.message.seq) >= 0
            ]
            if not near:
                return self._hold(place, message, JUMPED)
            self._put(life, message)
            for one in near:
                key = (life.number, one.message.boot, one.message.seq)
                if self.known.get(key, one.message.print) == one.message.print:
                    self._release(place, one, life)
                else:
                    self.held.remove(one)
                    self._forget(one)
                    self.overflowed.append(one._replace(reason=REUSED))
            return Verdict(life.number)
        self._put(life, message)
        return Verdict(life.number)

    def _hold(self, place: int, message: Message, reason: str) -> Verdict:
        if len(self.held) >= MOST_HELD:
            self._forget(self.held[0])
            self.overflowed.append(self.held.pop(0))
        self.held.append(Held(message, reason, place))
        self.waiting.add((message.where, message.print))
        return Verdict()

    def _forget(self, one: Held) -> None:
        self.waiting.discard((one.message.where, one.message.print))

    def _release(self, place: int, one: Held, life: Life) -> None:
        self.held.remove(one)
        self._forget(one)
        self._put(life, one.message)
        self.released.append((place, one, life.number))
