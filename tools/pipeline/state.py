"""What a bucket remembers from batch to batch: which messages were seen, as intervals, and which boots began a life.

It is loaded from the files of the last commit and written anew by each batch that changes it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from . import intervals, schemas

LIFE_BITS, BOOT_BITS = 10, 31


class State:
    """What a bucket remembers: intervals and boots by device and life, and how far each collector's log was read."""

    def __init__(self) -> None:
        self.devices: list[str] = []
        self.number: dict[str, int] = {}
        self.keys = np.zeros(
            0, dtype=np.int64
        )  # packed (device, life, boot), sorted: an interval group's number is its place
        self.seen = intervals.EMPTY
        self.life: dict[int, int] = {}  # device -> life, where it is not 1
        self.boots: dict[
            int, dict[tuple[int, int], tuple[int, float | None]]
        ] = {}  # device -> (life, boot) -> (seq, up)
        self.read: dict[str, tuple[int, int]] = {}  # collector -> (segment, row)
        self.reading: dict[str, tuple[int, int]] = {}  # the same, with the segment that is being read

    def settle(self) -> None:
        """A segment is at its end: its rows have been read (a bucket's row groups in it are in no order of rows)."""
        self.read |= self.reading

    # Devices and groups.

    def device_numbers(self, names: pa.Array) -> np.ndarray:
        """Return the number of each device, giving new ones to new devices."""
        encoded = pc.dictionary_encode(names)
        numbers = []
        for name in encoded.dictionary.to_pylist():
            number = self.number.get(name)
            if number is None:
                number = self.number[name] = len(self.devices)
                self.devices.append(name)
            numbers.append(number)
        return np.array(numbers, dtype=np.int64)[encoded.indices.to_numpy()]

    def groups(self, keys: np.ndarray) -> np.ndarray:
        """Return the interval group of each packed key, making groups for new keys."""
        distinct, inverse = np.unique(keys, return_inverse=True)
        known = np.union1d(self.keys, distinct)
        if len(known) != len(self.keys):
            moved = np.searchsorted(known, self.keys)
            for_lo = moved[intervals.group_of(self.seen.lo)] if len(self.seen.lo) else self.seen.lo
            self.seen = intervals.Intervals(
                intervals.encode(for_lo, intervals.seq_of(self.seen.lo)),
                intervals.encode(for_lo, intervals.seq_of(self.seen.hi)),
            )
            self.keys = known
        return np.searchsorted(self.keys, distinct)[inverse]

    def extent(self, device: int, life: int, boots: range) -> tuple[int, int] | None:
        """Return the lowest and highest sequence number seen in some boots of a life, None where there is none."""
        first = np.searchsorted(self.keys, pack(device, life, boots.start))
        last = np.searchsorted(self.keys, pack(device, life, boots.stop))
        a, b = np.searchsorted(self.seen.lo, [first << intervals.SEQ_BITS, last << intervals.SEQ_BITS])
        if a == b:
            return None
        return int(intervals.seq_of(self.seen.lo[a:b]).min()), int(intervals.seq_of(self.seen.hi[a:b]).max())

    # To and from tables.

    def load_intervals(self, table: pa.Table) -> None:
        """Take over the intervals of an earlier batch."""
        if not table.num_rows:
            return
        device = self.device_numbers(table["device"].combine_chunks())
        life = table["life"].to_numpy()
        boot = table["boot"].to_numpy()
        group = self.groups(pack(device, life, boot))
        lo, hi = intervals.encode(group, table["lo"].to_numpy()), intervals.encode(group, table["hi"].to_numpy())
        order = np.argsort(lo)
        self.seen = intervals.Intervals(lo[order], hi[order])
        later = life > 1
        for number, which in zip(device[later].tolist(), life[later].tolist(), strict=True):
            self.life[number] = max(which, self.life.get(number, 1))

    def intervals_table(self) -> pa.Table:
        """Return the intervals as a table."""
        key = self.keys[intervals.group_of(self.seen.lo)] if len(self.keys) else self.keys
        device, life, boot = unpack(key)
        names = pa.array(self.devices, pa.string()).take(pa.array(device))
        columns = [names, pa.array(life.astype(np.int32)), pa.array(boot)]
        columns += [pa.array(intervals.seq_of(self.seen.lo)), pa.array(intervals.seq_of(self.seen.hi))]
        return pa.table(columns, schema=schemas.INTERVALS)

    def load_boots(self, table: pa.Table) -> None:
        """Take over the boots of an earlier batch."""
        if not table.num_rows:
            return
        device = self.device_numbers(table["device"].combine_chunks()).tolist()
        rest = [table[name].to_pylist() for name in ("life", "boot", "seq", "uptime")]
        for number, life, boot, seq, uptime in zip(device, *rest, strict=True):
            self.boots.setdefault(number, {})[life, boot] = (seq, uptime)
            if life > self.life.get(number, 1):
                self.life[number] = life

    def boots_table(self) -> pa.Table:
        """Return the boots as a table."""
        rows = [
            (self.devices[device], life, boot, seq, uptime)
            for device, boots in self.boots.items()
            for (life, boot), (seq, uptime) in boots.items()
        ]
        columns = list(zip(*rows, strict=True)) or [()] * len(schemas.BOOTS)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, schemas.BOOTS, strict=True)]
        return pa.table(arrays, schema=schemas.BOOTS)


def pack(device: Any, life: Any, boot: Any) -> Any:
    """Return (device, life, boot) as one sortable number."""
    return (((device << LIFE_BITS) + life) << BOOT_BITS) + boot


def unpack(key: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the device, life and boot of packed keys."""
    boot = key & ((1 << BOOT_BITS) - 1)
    life = (key >> BOOT_BITS) & ((1 << LIFE_BITS) - 1)
    return key >> (BOOT_BITS + LIFE_BITS), life, boot
