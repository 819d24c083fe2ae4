"""Assign each message of a batch to a life, for all devices of a bucket at once.

Nearly always the life is obvious, and numpy finds it for a whole batch: every message has a known life, or its device has
only one life, and the numbers of the batch fit into it. For all other devices, `lives.Device` processes message by message.
The rules are only in `lives`. This module has conditions under which the rules have only one possible result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from . import intervals, lives
from .lives import LIFE_BITS, Message
from .state import BOOT_BITS, State, pack, unpack

ONE_LIFE = (1 << LIFE_BITS) - 1


@dataclass
class Messages:
    """Messages in the order of their arrival: parallel arrays."""

    device: np.ndarray
    identity: np.ndarray  # the life that the board sent, 0 for none
    boot: np.ndarray
    seq: np.ndarray
    first: np.ndarray  # of a boot message: the boot's first number; else -1
    print: np.ndarray
    collector: list[str]  # names
    origin: np.ndarray  # for each message: index in `collector`, segment, row
    content: Callable[[int], tuple[str, bytes, int]]  # topic, payload and arrival (µs) of a message


@dataclass
class Placed:
    """The result for the messages. `life` is 0 for a message without a life (refused or held)."""

    life: np.ndarray
    refused: list[tuple[int, str]] = field(default_factory=list)
    held: list[tuple[int, Message]] = field(default_factory=list)  # (device, message) of this batch
    released: list[tuple[int, Message, int]] = field(
        default_factory=list
    )  # (index after which it is sorted, ..., life)
    overflowed: list[Message] = field(default_factory=list)


class Comparison:
    """Messages sorted by identity, each compared with the first one of the same identity.

    Attributes:
        order: the messages sorted by identity, copies by arrival. The following arrays are in this order.
        first: is it the first of its identity in this batch? known: was its identity seen in an earlier batch?
        same: does it have the first one's print? lost: was the first one's print deleted?
        keys: the distinct packed keys. which: the index in `keys` of each message's key.
    """

    def __init__(
        self, state: State, device: np.ndarray, life: np.ndarray, boot: np.ndarray, seq: np.ndarray, prints: np.ndarray
    ):
        packed = pack(device, life, boot)
        self.keys, which = np.unique(packed, return_inverse=True)
        codes = intervals.encode(which, seq)
        order = self.order = np.argsort(codes, kind="stable")
        codes = codes[order]
        self.which, self.seq = which[order], seq[order]
        self.first = intervals.begins(codes)
        self.known = seen(state, self.keys, self.which, self.seq)
        self.same, self.lost = self.first & ~self.known, np.zeros(len(codes), dtype=bool)
        if not self.same.all():
            self._compare(state, prints[order])

    def _compare(self, state: State, prints: np.ndarray) -> None:
        """Compare the prints of copies with those of their originals."""
        at = np.flatnonzero(~self.same)
        begins = np.flatnonzero(self.first)
        original = prints[begins[np.searchsorted(begins, at, side="right") - 1]]
        known = self.known[at]
        there = np.ones(len(at), dtype=bool)
        if known.any():
            before = at[known]
            original[known], there[known] = state.prints.find(self.keys[self.which[before]], self.seq[before])
        self.lost[at] = ~there
        self.same[at] = there & (original == prints[at])

    def spans(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the lowest and the highest number of each key in this batch."""
        begins = np.searchsorted(self.which, np.arange(len(self.keys)))
        ends = np.searchsorted(self.which, np.arange(len(self.keys)), side="right") - 1
        return self.seq[begins], self.seq[ends]


def seen(state: State, keys: np.ndarray, which: np.ndarray, seq: np.ndarray) -> np.ndarray:
    """Return for each message, with the key `keys[which]`, whether its number was seen in earlier batches."""
    if not len(state.keys):
        return np.zeros(len(seq), dtype=bool)
    at = np.minimum(np.searchsorted(state.keys, keys), len(state.keys) - 1)
    there = state.keys[at] == keys
    return there[which] & state.seen.contains(intervals.encode(at[which], seq))


def place(state: State, messages: Messages) -> tuple[Placed, Comparison | None]:
    """Assign messages to lives, and add new lives to the state.

    Returns:
        The result; and the comparison of the messages, if `_one_by_one` was not needed, else None.
    """
    life, obvious, is_new = _obvious(state, messages)
    chosen = obvious[messages.device]
    compared = None
    if chosen.any():
        some = messages if chosen.all() else _part(messages, chosen)
        compared = Comparison(state, some.device, life[chosen], some.boot, some.seq, some.print)
        undecided = _undecided(state, some, compared, life[chosen])
        if len(undecided):
            obvious[undecided] = False
            chosen = obvious[messages.device]
    begin = np.flatnonzero(is_new & chosen)
    if len(begin):
        beginning, first = np.unique(messages.device[begin], return_index=True)
        state.add_lives(beginning, np.ones_like(beginning), messages.identity[begin[first]])
    if chosen.all():
        return Placed(life), compared
    found = Placed(np.where(chosen, life, 0))
    _one_by_one(state, messages, np.flatnonzero(~chosen), found)
    return found, None


def _part(messages: Messages, which: np.ndarray) -> Messages:
    names = ("device", "identity", "boot", "seq", "first", "print", "origin")
    return Messages(
        **{name: getattr(messages, name)[which] for name in names},
        collector=messages.collector,
        content=messages.content,
    )


def _obvious(state: State, messages: Messages) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return each message's life if it is obvious, for each device whether all of its lives are, and which lives are new.

    Obvious is the known life with the board's number, the only life of a board that sends none, and the first life of a new
    device.
    """
    devices, device, identity = len(state.devices), messages.device, messages.identity
    lives_before = np.bincount(state.lives >> LIFE_BITS, minlength=devices)[device]
    known = (state.lives >> LIFE_BITS << 31) + state.identities
    order = np.argsort(known, kind="stable")
    wanted = (device << 31) + identity
    at = np.searchsorted(known[order], wanted)
    life = np.where(np.append(known[order], -1)[at] == wanted, np.append(state.lives[order] & ONE_LIFE, 0)[at], 0)
    first = np.zeros(devices, dtype=np.int64)
    first[device[::-1]] = identity[::-1]
    is_new = (lives_before == 0) & (identity == first[device])
    life[is_new] = 1
    anonymous = identity == 0
    is_mixed = anonymous != (first[device] == 0)  # only a part of the device's messages has a life
    obvious = np.ones(devices, dtype=bool)
    obvious[list(state.held)] = False
    obvious[device[(life == 0) | is_mixed | (anonymous & (lives_before > 1))]] = False
    return life, obvious, is_new


def _undecided(state: State, messages: Messages, compared: Comparison, life: np.ndarray) -> np.ndarray:
    """Return the devices of these messages for which the rules in `lives` have to decide."""
    found = []
    anonymous = messages.identity == 0
    order = compared.order
    if anonymous.any():
        conflict = ~compared.same & anonymous[order]
        found.append(messages.device[order[conflict]])
        found.append(_overlapping(state, messages, compared, anonymous))
    if int(messages.seq.max()) > lives.MOST_GAP:
        found.append(_far(state, messages, life))
    return np.unique(np.concatenate(found)) if found else np.zeros(0, dtype=np.int64)


def _overlapping(state: State, messages: Messages, compared: Comparison, anonymous: np.ndarray) -> np.ndarray:
    """Return the devices without identities whose boots, including this batch, have overlapping numbers."""
    keys = np.union1d(state.keys, compared.keys)
    lo, hi = np.full(len(keys), np.iinfo(np.int64).max), np.zeros(len(keys), dtype=np.int64)
    at = np.searchsorted(keys, state.keys)
    lo[at], hi[at] = state.spans()
    at = np.searchsorted(keys, compared.keys)
    batch_lo, batch_hi = compared.spans()
    lo[at], hi[at] = np.minimum(lo[at], batch_lo), np.maximum(hi[at], batch_hi)
    # A boot message claims all numbers from the boot's first one.
    has_identity = np.flatnonzero(messages.first[compared.order] >= 0)
    claimed = lo.copy()
    begins = messages.first[compared.order[has_identity]]
    seq = compared.seq[has_identity]
    start = np.where((begins >= 1) & (begins < seq), begins, seq)
    place_of = at[compared.which[has_identity]]
    np.minimum.at(claimed, place_of, start)
    late = np.zeros(len(keys), dtype=bool)
    late[place_of[start > lo[place_of]]] = True  # a number of the boot is below its first number in the boot message
    same_life = (keys[1:] >> BOOT_BITS) == (keys[:-1] >> BOOT_BITS)
    late[1:] |= same_life & (hi[:-1] >= claimed[1:])
    device, _, _ = unpack(keys[late])
    concerned = np.zeros(len(state.devices), dtype=bool)
    concerned[messages.device[anonymous]] = True
    return device[concerned[device]]


def _far(state: State, messages: Messages, life: np.ndarray) -> np.ndarray:
    """Return the devices with a number that may be suspiciously far ahead."""
    key = (messages.device << LIFE_BITS) | life
    keys, which = np.unique(key, return_inverse=True)
    highest, lowest = np.zeros(len(keys), dtype=np.int64), np.full(len(keys), np.iinfo(np.int64).max)
    np.maximum.at(highest, which, messages.seq)
    np.minimum.at(lowest, which, messages.seq)
    before = np.zeros(len(keys), dtype=np.int64)
    its_life = state.keys >> BOOT_BITS
    at = np.minimum(np.searchsorted(keys, its_life), len(keys) - 1)
    concerned = keys[at] == its_life
    np.maximum.at(before, at[concerned], state.spans()[1][concerned])
    reference = np.where(before > 0, before, lowest)
    return keys[highest > reference + lives.MOST_GAP] >> LIFE_BITS


def _one_by_one(state: State, messages: Messages, rows: np.ndarray, found: Placed) -> None:
    """Process messages with `lives.Device`. For each device, `rows` must have all its messages."""
    device = messages.device[rows]
    order = np.argsort(device, kind="stable")
    rows, device = rows[order], device[order]
    numbers, begins = np.unique(device, return_index=True)
    bounds = [*begins.tolist(), len(rows)]
    known = _known(state, messages, rows, numbers)
    lo, hi = state.spans()
    firsts = [None if one < 0 else one for one in messages.first[rows].tolist()]
    some, more = (messages.identity, messages.boot, messages.seq), (messages.print, messages.origin)
    columns = [rows.tolist(), *(one[rows].tolist() for one in some), firsts, *(one[rows].tolist() for one in more)]
    fields = zip(*columns, strict=True)
    begun = []
    for n, number in enumerate(numbers.tolist()):
        concerned = []
        for one, identity in state.lives_of(number):
            a, b = np.searchsorted(state.keys, [pack(number, one, 0), pack(number, one + 1, 0)])
            boots = (state.keys[a:b] & ((1 << BOOT_BITS) - 1)).tolist()
            spans = dict(zip(boots, zip(lo[a:b].tolist(), hi[a:b].tolist(), strict=True), strict=True))
            concerned.append(lives.Life(one, identity, spans))
        its_lives = lives.Device(concerned, list(state.held.get(number, ())), known.get(number, {}))
        before = len(concerned)
        for _ in range(bounds[n], bounds[n + 1]):
            at, *rest, (collector, segment, row) = next(fields)
            own = (*rest, messages.collector[collector], segment, row, *messages.content(at))
            message = Message._make((*own, "", at))
            verdict = its_lives.take(message)
            found.life[at] = verdict.life
            if verdict.reason:
                found.refused.append((at, verdict.reason))
        begun += [(number, life.number, life.identity) for life in its_lives.lives[before:]]
        found.released += its_lives.released
        found.overflowed += its_lives.overflowed
        state.held[number] = [one for one in its_lives.held if one.place < 0]
        found.held += [(number, one) for one in its_lives.held if one.place >= 0]
        if not state.held[number]:
            del state.held[number]
    if begun:
        state.add_lives(*np.array(begun, dtype=np.int64).T)


def _known(
    state: State, messages: Messages, rows: np.ndarray, numbers: np.ndarray
) -> dict[int, dict[tuple[int, int, int], int | None]]:
    """Return, by device, the known prints for all identities that `lives.Device` may look up."""
    waiting = [(number, one.boot, one.seq) for number in numbers.tolist() for one in state.held.get(number, ())]
    asked = np.array(waiting, dtype=np.int64).reshape(-1, 3).T
    device = np.concatenate((messages.device[rows], asked[0]))
    boot = np.concatenate((messages.boot[rows], asked[1]))
    seq = np.concatenate((messages.seq[rows], asked[2]))
    count = np.bincount(state.lives >> LIFE_BITS, minlength=len(state.devices))
    found: dict[int, dict[tuple[int, int, int], int | None]] = {}
    for life in range(1, int(count[numbers].max(initial=0)) + 1):
        some = np.flatnonzero(count[device] >= life)
        packed = pack(device[some], life, boot[some])
        hits = some[seen(state, packed, np.arange(len(packed)), seq[some])]
        keys = pack(device[hits], life, boot[hits])
        prints, there = state.prints.find(keys, seq[hits])
        columns = (device[hits], boot[hits], seq[hits], prints, there)
        for number, its_boot, its_seq, its_print, is_there in zip(*(one.tolist() for one in columns), strict=True):
            found.setdefault(number, {})[life, its_boot, its_seq] = its_print if is_there else None
    return found
