"""Prints: a 32-bit hash of each message's payload, to distinguish a copy from another message of the same identity.

The table `prints` has the print of every stored message. A message whose number was seen before is compared with its
original, whatever the original's age: with the prints of this batch, then with the table's files, newest first, until all
are found. So a batch without late copies reads no file, and a batch with recent copies reads the last file or two.

This module does not use Spark.
"""

import zlib
from collections.abc import Callable
from functools import partial

import numpy as np
import pyarrow as pa

from tools.pipeline.tables import intervals
from tools.pipeline.tables.commits import Output, bucket_of
from tools.pipeline.tables.files import whole
from tools.pipeline.tables.storage import retried

MOST = (1 << intervals.SEQ_BITS) - 1
MOST_KEPT = 1 << 22
"""The most prints from files that are kept in memory, 12 bytes each."""


class Past:
    """A bucket's files in the commits so far; none without an output. Used only if a batch has copies of earlier messages."""

    def __init__(self, output: Output | None = None, bucket: int = 0):
        self.output, self.bucket = output, bucket

    def files(self, table: str, columns: list[str]) -> list[Callable[[], pa.Table]]:
        """Return a table's files, newest first: each is a function that reads the file.

        It raises FileNotFoundError if a compaction has replaced the file: then request the list again.
        """
        if self.output is None:
            return []
        names = [name for name in self.output.files(table) if bucket_of(name) == self.bucket]
        return [partial(self.output.storage.table, name, columns) for name in reversed(names)]

    def kept_from_us(self) -> int:
        """Return the time (Unix time, µs) before which all rows were deleted for their age; 0 if none were."""
        day = self.output.kept_from() if self.output else None
        return int(np.datetime64(day, "us").astype(np.int64)) if day else 0


def of(payloads: pa.Array) -> np.ndarray:
    """Return the print of each payload, its CRC-32. A message is compared with only one other."""
    values = payloads.to_numpy(zero_copy_only=False)
    return np.fromiter(map(zlib.crc32, values), np.uint32, len(values)).view(np.int32)


def places(rows: pa.Table) -> np.ndarray:
    """Return a 64-bit hash of each row's position in its collector's log and its arrival.

    The arrival is included because a collector's numbers may begin again.
    """
    collector = encoded(rows["collector"])
    names = np.array([zlib.crc32(one.encode()) for one in collector.dictionary.to_pylist()], dtype=np.uint64)
    mixed = names[collector.indices.to_numpy()] if len(names) else np.zeros(len(rows), dtype=np.uint64)
    for column in (rows["segment"], rows["row"], rows["arrival"].cast(pa.int64())):
        mixed = (mixed ^ column.to_numpy().astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(32)
    return mixed


def encoded(column: pa.ChunkedArray) -> pa.DictionaryArray:
    """Return a column with few distinct texts as one dictionary array."""
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    return whole(column.unify_dictionaries())


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
        self.files: list[Callable[[], pa.Table]] | None = None
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
        retried(lambda: self._find_in_files(keys, seqs, found, known))
        return found, known

    def _find_in_files(self, keys: np.ndarray, seqs: np.ndarray, found: np.ndarray, known: np.ndarray) -> None:
        if self.files is None:
            self.files = self.past.files("prints", ["device", "life", "boot", "seq", "print"])
        for number, load in enumerate(self.files):
            left = seqs[~known]
            if not len(left):
                return
            lo, hi = self.bounds.get(number, (0, MOST))
            if lo > left.max() or hi < left.min():
                continue
            part = self.kept.get(number)
            if part is None:
                try:
                    table = load()
                except FileNotFoundError:
                    self.files, self.kept, self.bounds = None, {}, {}
                    raise
                its = table["seq"].to_numpy()
                part = _Part(self.keys_of(table), its, table["print"].to_numpy())
                self.bounds[number] = (int(its.min(initial=MOST)), int(its.max(initial=0)))
                if sum(len(one.codes) for one in self.kept.values()) + len(part.codes) <= MOST_KEPT:
                    self.kept[number] = part
            part.find(keys, seqs, found, known)
