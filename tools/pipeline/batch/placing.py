"""Assign each message of a batch to a life, for all devices of a bucket at once.

Nearly always the life is obvious, and numpy finds it for a whole batch: every message has a known life, or its device is
new. For all other devices, also those that send no life, `lives.Device` processes message by message. The rules are only in
`lives`. This module has conditions under which the rules have only one possible result.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from tools.pipeline.tables import intervals

from . import lives
from .lives import LIFE_BITS, Message
from .state import BOOT_BITS, State, pack

ONE_LIFE = (1 << LIFE_BITS) - 1


@dataclass
class Messages:
    """Messages in the order of their arrival: parallel arrays."""

    device: np.ndarray
    identity: np.ndarray  # the life that the board sent, 0 for none
    boot: np.ndarray
    seq: np.ndarray


@dataclass
class Placed:
    """The result for the messages. `life` is 0 for a message without a life (refused or held).

    Attributes:
        left: the indices of the messages for `place_one_by_one`, sorted by device.
    """

    life: np.ndarray
    left: np.ndarray
    refused: list[tuple[int, str]] = field(default_factory=list)
    held: list[tuple[int, Message]] = field(default_factory=list)  # (device, message) of this batch
    # (index after which it is sorted, message, life)
    released: list[tuple[int, Message, int]] = field(default_factory=list)
    overflowed: list[Message] = field(default_factory=list)


def seen(state: State, keys: np.ndarray, which: np.ndarray, seq: np.ndarray) -> np.ndarray:
    """Return for each message, with the key `keys[which]`, whether its number was seen in earlier batches."""
    if not len(state.keys):
        return np.zeros(len(seq), dtype=bool)
    at = np.minimum(np.searchsorted(state.keys, keys), len(state.keys) - 1)
    there = state.keys[at] == keys
    return there[which] & state.seen.contains(intervals.encode(at[which], seq))


def place(state: State, messages: Messages) -> Placed:
    """Assign messages to obvious lives, and add new lives to the state."""
    life, is_new = _obvious(state, messages)
    chosen = life > 0
    begin = np.flatnonzero(is_new & chosen)
    if len(begin):
        beginning, first = np.unique(messages.device[begin], return_index=True)
        state.add_lives(beginning, np.ones_like(beginning), messages.identity[begin[first]])
    left = np.flatnonzero(~chosen)
    return Placed(life, left[np.argsort(messages.device[left], kind="stable")])


def _obvious(state: State, messages: Messages) -> tuple[np.ndarray, np.ndarray]:
    """Return each message's life, 0 for all messages of a device if the life of any is not obvious; and which are new.

    Obvious is the known life with the board's number, and the first life of a new device, if the number is no jump.
    """
    devices, device, identity = len(state.devices), messages.device, messages.identity
    known = (state.lives >> LIFE_BITS << 31) + state.identities
    order = np.argsort(known, kind="stable")
    wanted = (device << 31) + identity
    at = np.searchsorted(known[order], wanted)
    life = np.where(np.append(known[order], -1)[at] == wanted, np.append(state.lives[order] & ONE_LIFE, 0)[at], 0)
    first = np.zeros(devices, dtype=np.int64)
    first[device[::-1]] = identity[::-1]
    is_new = (np.bincount(state.lives >> LIFE_BITS, minlength=devices)[device] == 0) & (identity == first[device])
    life[is_new] = 1
    obvious = np.ones(devices, dtype=bool)
    obvious[list(state.held)] = False
    obvious[device[(life == 0) | (identity == 0) | (messages.seq > lives.MOST_GAP)]] = False
    return np.where(obvious[device], life, 0), is_new


def place_one_by_one(state: State, messages: Messages, found: Placed, left: Iterator[Message]) -> None:
    """Assign the messages of `found.left` to lives with `lives.Device`; `left` yields them whole."""
    numbers, begins = np.unique(messages.device[found.left], return_index=True)
    bounds = [*begins.tolist(), len(found.left)]
    known = _known(state, messages, found.left, numbers)
    lo, hi = state.spans()
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
        for message in islice(left, bounds[n + 1] - bounds[n]):
            verdict = its_lives.take(message)
            found.life[message.place] = verdict.life
            if verdict.reason:
                found.refused.append((message.place, verdict.reason))
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
