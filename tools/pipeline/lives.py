"""Lives: which messages belong together after a device's counters began again, told from boots and sequence numbers alone."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from . import intervals
from .state import BOOT_BITS, LIFE_BITS, State

MOST_LIVES = (1 << LIFE_BITS) - 2
"""A device that begins anew more often has another's id, or no memory: what it says then can't be told apart."""


def lives_of(state: State, device: np.ndarray, boot: np.ndarray, seq: np.ndarray, messages: pa.Table) -> np.ndarray:
    """Return each message's life; note the boot messages among them.

    Only devices with more than one life, known or beginning now, are gone through message by message: they are rare.
    """
    life = np.ones(len(device), dtype=np.int64)
    first = messages["first"]
    boots = np.flatnonzero(first.is_valid().to_numpy()) if first.null_count < len(first) else np.zeros(0, np.int64)
    if not len(boots) and not state.life:
        return life
    by_device = np.argsort(device, kind="stable")
    bounds = np.searchsorted(device[by_device], np.arange(len(state.devices) + 1))

    def own(number: int) -> np.ndarray:
        return by_device[bounds[number] : bounds[number + 1]]

    several = {number for number in state.life if len(own(number))}
    for number in several:
        life[own(number)] = state.life[number]
    uptimes = messages["uptime"].take(pa.array(boots)).to_pylist()
    firsts = first.take(pa.array(boots)).to_pylist()
    for at, up, its_first in zip(boots.tolist(), uptimes, firsts, strict=True):
        number, which, its_seq = int(device[at]), int(boot[at]), int(seq[at])
        if 1 <= its_first < its_seq:  # another message of the boot went before the one that tells of it
            its_seq = its_first
        known = state.boots.setdefault(number, {})
        if any(key[1] == which and value == (its_seq, up) for key, value in known.items()):
            continue  # a copy of one that was believed
        current = state.life.get(number, 1)
        mine = own(number)
        before = mine[: np.searchsorted(mine, at)]
        before = before[life[before] == current]
        if (current, which) in known or _out_of_line(state, number, current, which, its_seq, boot[before], seq[before]):
            current = min(current + 1, MOST_LIVES + 1)
            several.add(number)
            state.life[number] = current
            life[mine[mine >= at]] = current
        known[current, which] = (its_seq, up)
    for number in several:
        mine = own(number)
        begun: dict[int, list[tuple[int, int]]] = {}
        for (one, which), (its_seq, _) in state.boots.get(number, {}).items():
            begun.setdefault(one, []).append((which, its_seq))
        for at in mine.tolist():
            life[at] = _life_of(begun, int(life[at]), int(boot[at]), int(seq[at]))
    return life


def _out_of_line(
    state: State, number: int, current: int, which: int, its_seq: int, boots: np.ndarray, seqs: np.ndarray
) -> bool:
    """Return whether a boot message can't belong to the device's current life (`boots`, `seqs`: of this batch's part).

    In one life boots rise and sequence numbers go on from boot to boot, so all of an earlier boot lies below this
    one's first message, and all of a later boot above it.
    """
    below = state.extent(number, current, range(which))
    above = state.extent(number, current, range(which + 1, 1 << BOOT_BITS))
    highest_below = max(int(seqs[boots < which].max(initial=0)), below[1] if below else 0)
    far = 1 << intervals.SEQ_BITS
    lowest_above = min(int(seqs[boots > which].min(initial=far)), above[0] if above else far)
    return highest_below >= its_seq or lowest_above <= its_seq


def _life_of(begun: dict[int, list[tuple[int, int]]], current: int, which: int, its_seq: int) -> int:
    """Return the newest life, from the one in force when a message came, that its boot and sequence number fit into.

    `begun`: for each life the boots that are known, with their first sequence numbers.
    """
    for life in range(current, 0, -1):
        if all((its_seq >= seq) if boot <= which else (its_seq < seq) for boot, seq in begun.get(life, ())):
            return life
    return current
