"""Prints: a 32-bit hash of each message's payload, to distinguish a copy from another message of the same identity.

The table `prints` has the print of every stored message. A message whose number was seen before is compared with its
original, whatever the original's age: with the prints of this batch, then with the table's files, newest first, until all
are found. So a batch without late copies reads no file, and a batch with recent copies reads the last file or two.

This module knows neither Spark nor the files' names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

from . import intervals

WORDS = 1 << 14  # then the factors repeat: no board's message is longer than 128 KB
MOST = (1 << intervals.SEQ_BITS) - 1
MOST_KEPT = 1 << 22
"""The most prints from files that are kept in memory, 12 bytes each."""


class Past(Protocol):
    """A bucket's files of earlier batches. Each is a function that reads the file.

    The function raises FileNotFoundError if a compaction has replaced the file: then request the list again.
    """

    def prints(self) -> Sequence[Callable[[], pa.Table]]:
        """Return the files of prints, newest first."""

    def quarantine(self) -> Sequence[Callable[[], pa.Table]]:
        """Return the files of messages in quarantine."""

    def duplicates(self) -> Sequence[Callable[[], pa.Table]]:
        """Return the files of dropped copies."""

    def kept_from_us(self) -> int:
        """Return the time (Unix time, µs) before which all rows were deleted for their age; 0 if none were."""

    def plain(self) -> Sequence[Callable[[], np.ndarray]]:
        """Return the files of readings without an identity; each function returns their positions (`plain.places`)."""


class Nothing:
    """The past of the first batch: no files."""

    def prints(self) -> Sequence[Callable[[], pa.Table]]:
        """Return no files."""
        return ()

    def quarantine(self) -> Sequence[Callable[[], pa.Table]]:
        """Return no files."""
        return ()

    def duplicates(self) -> Sequence[Callable[[], pa.Table]]:
        """Return no files."""
        return ()

    def plain(self) -> Sequence[Callable[[], np.ndarray]]:
        """Return no files."""
        return ()

    def kept_from_us(self) -> int:
        """Return 0: nothing was deleted."""
        return 0


def _factors() -> np.ndarray:
    """Return pseudo-random odd numbers, always the same (splitmix64)."""
    mixed = np.arange(1, WORDS + 2, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (mixed ^ (mixed >> np.uint64(31))) | np.uint64(1)


FACTORS = _factors()
MIX = np.uint64(0xD6E8FEB86659FD93)


def of(payloads: pa.Array) -> np.ndarray:
    """Return the print of each payload: the sum of its length and its words, each times its own odd factor, then mixed.

    Two different payloads have the same print with a probability of 2^-32. A message is compared with only one other.
    """
    payloads = payloads.cast(pa.large_binary())
    if not len(payloads):
        return np.zeros(0, dtype=np.int32)
    _, offset_bytes, data = payloads.buffers()
    offsets = np.frombuffer(offset_bytes, np.int64)[payloads.offset : payloads.offset + len(payloads) + 1]
    start, length = offsets[:-1] - offsets[0], np.diff(offsets)
    raw = np.zeros(offsets[-1] - offsets[0] + 8, np.uint8)  # 8 more bytes: the last word extends past the end
    if data is not None:
        raw[:-8] = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]
    words: np.ndarray = np.ndarray((len(raw) - 7,), np.dtype("<u8"), raw.data, strides=(1,))
    found = length.astype(np.uint64) * FACTORS[WORDS]
    whole = int(length.min()) // 8
    for n in range(whole):
        found += words[start + 8 * n] * FACTORS[n % WORDS]
    active = np.arange(len(found))
    for n in range(whole, (int(length.max()) + 7) // 8):
        active = active[length[active] > 8 * n]
        beyond = 64 - 8 * np.minimum(length[active] - 8 * n, 8)
        word = words[start[active] + 8 * n] & (np.uint64(0xFFFF_FFFF_FFFF_FFFF) >> beyond.astype(np.uint64))
        found[active] += word * FACTORS[n % WORDS]
    found ^= found >> np.uint64(32)
    found *= MIX
    return (found >> np.uint64(32)).astype(np.uint32).view(np.int32)


class _Part:
    """Some prints, sorted by packed key and sequence number."""

    def __init__(self, keys: np.ndarray, seqs: np.ndarray, prints: np.ndarray):
        self.keys, which = np.unique(keys, return_inverse=True)
        codes = intervals.encode(which, seqs)
        order = np.argsort(codes, kind="stable")
        self.codes, self.prints = codes[order], prints[order]

    def find(self, keys: np.ndarray, seqs: np.ndarray, found: np.ndarray, known: np.ndarray) -> None:
        """Fill in the prints that this part has."""
        left = np.flatnonzero(~known)
        if not len(self.keys) or not len(left):
            return
        group = np.minimum(np.searchsorted(self.keys, keys[left]), len(self.keys) - 1)
        codes = intervals.encode(group, seqs[left])
        at = np.minimum(np.searchsorted(self.codes, codes), len(self.codes) - 1)
        here = (self.keys[group] == keys[left]) & (self.codes[at] == codes)
        found[left[here]] = self.prints[at[here]]
        known[left[here]] = True


class Prints:
    """The prints of a bucket: of this batch and of earlier ones.

    Args:
        past: the files of earlier batches.
        keys_of: returns the packed keys of a table's rows.
    """

    def __init__(self, past: Past, keys_of: Callable[[pa.Table], np.ndarray]):
        self.past, self.keys_of = past, keys_of
        self.parts: list[_Part] = []
        self.files: Sequence[Callable[[], pa.Table]] | None = None
        self.kept: dict[int, _Part] = {}
        self.bounds: dict[int, tuple[int, int]] = {}  # the lowest and the highest number in a file that was read

    def add(self, keys: np.ndarray, seqs: np.ndarray, prints: np.ndarray) -> None:
        """Add the prints of new messages."""
        if len(keys):
            self.parts.append(_Part(keys, seqs, prints))

    def find(self, keys: np.ndarray, seqs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the prints of some messages, and which of them are known."""
        found, known = np.zeros(len(keys), dtype=np.int32), np.zeros(len(keys), dtype=bool)
        for part in reversed(self.parts):
            part.find(keys, seqs, found, known)
        if known.all():
            return found, known
        for tries_left in (2, 1, 0):
            if self.files is None:
                self.files = self.past.prints()
            try:
                self._find_in_files(keys, seqs, found, known)
                break
            except FileNotFoundError:
                if not tries_left:
                    raise
                self.files, self.kept, self.bounds = None, {}, {}
        return found, known

    def _find_in_files(self, keys: np.ndarray, seqs: np.ndarray, found: np.ndarray, known: np.ndarray) -> None:
        for number, load in enumerate(self.files or ()):
            left = seqs[~known]
            if not len(left):
                return
            lo, hi = self.bounds.get(number, (0, MOST))
            if lo > left.max() or hi < left.min():
                continue
            part = self.kept.get(number)
            if part is None:
                table = load()
                its = table["seq"].to_numpy()
                part = _Part(self.keys_of(table), its, table["print"].to_numpy())
                self.bounds[number] = (int(its.min(initial=MOST)), int(its.max(initial=0)))
                if sum(len(one.codes) for one in self.kept.values()) + len(part.codes) <= MOST_KEPT:
                    self.kept[number] = part
            part.find(keys, seqs, found, known)
