"""Read back what a batch wrote, and check that every new message of the state is in the files exactly once.

It reads the files under their final names and does not use the batch's counts: it compares the numbers in the files with
the intervals before and after the batch. So the cost depends on the new rows only. By induction, the whole tables are
correct if every batch was. `python -m tools.pipeline.check` reads everything instead.
"""

from collections.abc import Iterable, Iterator
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tools.pipeline.tables import intervals, schemas
from tools.pipeline.tables.storage import Storage

from .prints import places
from .state import State, pack


def read_back(
    storage: Storage,
    files: dict[str, list[str]],
    state: State,
    known: np.ndarray,
    before: intervals.Intervals,
    with_plain: bool = False,
) -> tuple[dict[int, tuple[int, int]], tuple[int, int]]:
    """Return for each boot, by packed key: its messages in the files, and the surplus rows.

    Return also the number of rows without an identity, and of distinct ones.

    Args:
        storage: where the files are.
        files: the files of the tables `readings` and `events`.
        state: the bucket's state, including the batch.
        known: the keys before the batch; a group of `before` is an index into them.
        before: the intervals before the batch.
        with_plain: whether there are readings without an identity.
    """
    earlier = before.moved(np.searchsorted(state.keys, known))
    size = len(state.keys)
    twice = np.zeros(size, dtype=np.int64)
    plain: list[np.ndarray] = []
    found = [_distinct(_codes(storage, names, state, plain, with_plain), earlier, twice) for names in files.values()]
    total = reduce(intervals.Intervals.joined, found)
    count = np.zeros(size, dtype=np.int64)
    np.add.at(count, intervals.group_of(total.lo), total.hi - total.lo + 1)
    here = np.flatnonzero(count + twice)
    checked = dict(
        zip(state.keys[here].tolist(), zip(count[here].tolist(), twice[here].tolist(), strict=True), strict=True)
    )
    rows = sum(map(len, plain))
    return checked, (rows, len(np.unique(np.concatenate(plain))) if rows else 0)


def _codes(
    storage: Storage, names: Iterable[str], state: State, plain: list[np.ndarray], with_plain: bool
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the rows of some files in batches: their codes, and their indices in the pack.

    For readings without an identity, one number per row is added to `plain` instead.
    """
    for name in names:
        columns = ["device", "life", "boot", "seq"]
        if name.startswith("readings/"):
            columns.append("index")
            if with_plain:
                columns += [field.name for field in schemas.ORIGIN]
        for batch in storage.batches(name, columns, read_dictionary=["device"]):
            without = batch.column(1).to_numpy() == 0 if with_plain else None
            if without is not None and without.any():
                own = pa.array(without)
                index = batch.column(4).to_numpy()[without].astype(np.uint64)
                rows = pa.Table.from_batches([batch]).filter(own)
                plain.append(places(rows) * np.uint64(0x100000001B3) + index)
                batch = batch.filter(pc.invert(own))
                if not batch.num_rows:
                    continue
            device = batch.column(0)
            index = device.indices.to_numpy()
            life, boot, seq = (batch.column(n).to_numpy() for n in (1, 2, 3))
            begins = np.flatnonzero(intervals.begins(index, life, boot))
            numbers = state.device_numbers(device.dictionary)
            keys = pack(numbers[index[begins]], life[begins].astype(np.int64), boot[begins])
            groups = np.repeat(np.searchsorted(state.keys, keys), np.diff(np.concatenate((begins, [len(seq)]))))
            place = batch.column(4).to_numpy() if len(columns) > 4 else np.zeros(len(seq), dtype=np.int32)
            yield intervals.encode(groups, seq), place


def _distinct(
    parts: Iterator[tuple[np.ndarray, np.ndarray]], earlier: intervals.Intervals, twice: np.ndarray
) -> intervals.Intervals:
    """Return the messages in some rows; count in `twice` the surplus rows, of this batch or of an earlier one."""
    found = intervals.EMPTY
    last_row = (-1, -1)  # the next part may continue its message
    for codes, place in parts:
        if not (np.diff(codes) > 0).all():
            order = np.lexsort((place, codes))
            codes, place = codes[order], place[order]
        same = codes[1:] == codes[:-1]
        again = np.concatenate(([False], same & (place[1:] == place[:-1])))
        first = np.concatenate(([True], ~same))
        continues = codes[0] == last_row[0] and place[0] > last_row[1]
        repeated = found.contains(codes) & ~(continues & (codes == last_row[0])) | earlier.contains(codes)
        np.add.at(twice, intervals.group_of(codes[again | repeated]), 1)
        last_row = int(codes[-1]), int(place[-1])
        new = first & ~found.contains(codes) & ~earlier.contains(codes)
        found = found.union(codes[new])
    return found
