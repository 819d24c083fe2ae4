"""A bucket's state between batches: the numbers that were seen, as intervals; its devices' lives; each device's newest
message; and held messages.

It is loaded from the files of the last commit. Each batch that changes it writes new files.
"""

from collections import Counter
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tools.command import Failure
from tools.pipeline.tables import intervals, schemas
from tools.pipeline.tables.files import whole
from tools.pipeline.tables.storage import retried

from .lives import LIFE_BITS, Message
from .prints import Past, Prints, places

BOOT_BITS = 31
MOST_DEVICES = 1 << (63 - BOOT_BITS - LIFE_BITS)
"""Of a bucket: see `pack`."""
LOG = ["collector", "segment", "row"]


class State:
    """A bucket's state. Devices are numbered in the order in which they were first seen."""

    def __init__(self, past: Past | None = None) -> None:
        self.devices: list[str] = []
        self.number: dict[str, int] = {}
        # Packed (device, life, boot), sorted: the index of a key is the number of its interval group.
        self.keys = np.zeros(0, dtype=np.int64)
        self.seen = intervals.EMPTY
        self.lives = np.zeros(0, dtype=np.int64)  # packed (device, life), sorted
        self.identities = np.zeros(0, dtype=np.int64)  # of each life: the board's number for it, 0 for none
        self.fronts = np.zeros((4, 0), dtype=np.int64)  # of each device's newest message: arrival, life, boot, seq
        self.held: dict[int, list[Message]] = {}  # by device, oldest first
        self.past = past or Past()
        self.prints = Prints(self.past, self.keys_of)
        self.read: dict[str, int] = {}  # the last segment of each collector that earlier batches read
        self.again = False  # see `begin`
        # By kind (see `has`), the places (`prints.places`) of earlier batches' rows, if needed.
        self.earlier: dict[str, np.ndarray] = {}

    @cached_property
    def kept_from_us(self) -> int:
        """The time before which all rows were deleted for their age. Used only for rows that were read before."""
        return self.past.kept_from_us()

    def has(self, kind: str, rows: pa.Table) -> np.ndarray:
        """Return which rows of a log earlier batches have written to a table. Used only for rows that were read before.

        `kind` is the table's name; or `plain`: the readings of messages without an identity; or `packs`: the messages with one,
        stored in an earlier batch or held.
        """
        if not rows.num_rows:
            return np.zeros(0, dtype=bool)
        tables = {"plain": ["readings"], "packs": ["readings", "events", "duplicates"]}.get(kind, [kind])
        columns = [*LOG, "arrival", *["life"] * (tables != [kind])]

        def find() -> list[np.ndarray]:
            found = (load() for table in tables for load in self.past.files(table, columns))
            return [
                places(one if tables == [kind] else one.filter(pc.equal(pc.greater(one["life"], 0), kind == "packs")))
                for one in found
            ]

        if kind not in self.earlier:
            held = [places(self.held_table())] * (kind == "packs")
            self.earlier[kind] = np.unique(np.concatenate([np.zeros(0, np.uint64), *held, *retried(find)]))
        its, earlier = places(rows), self.earlier[kind]
        # By bisection: `isin` would sort all rows of earlier batches for each row group.
        there: np.ndarray = np.searchsorted(earlier, its, "right") > np.searchsorted(earlier, its)
        return there

    def begin(self, rows: pa.Table) -> None:
        """Note whether an earlier batch has read these rows of a segment: it has then read the whole segment."""
        collector, segment = (rows[name][:1].to_pylist() for name in LOG[:2])
        self.again = any(its <= self.read.get(name, -1) for name, its in zip(collector, segment, strict=True))

    # Devices and groups.

    def device_numbers(self, names: pa.Array) -> np.ndarray:
        """Return the number of each device. A new device gets the next number.

        Raises:
            Failure: there are too many devices.
        """
        encoded = pc.dictionary_encode(names)
        numbers = []
        for name in encoded.dictionary.to_pylist():
            number = self.number.get(name)
            if number is None:
                number = self.number[name] = len(self.devices)
                if number >= MOST_DEVICES:
                    raise Failure(
                        f"a bucket has more than {MOST_DEVICES:,} devices: make the tables with more buckets (remake --buckets)"
                    )
                self.devices.append(name)
            numbers.append(number)
        return np.array(numbers, dtype=np.int64)[encoded.indices.to_numpy()]

    def names_of(self, devices: np.ndarray) -> pa.Array:
        """Return the names of devices by their numbers."""
        return pa.array(self.devices, pa.string()).take(pa.array(devices))

    def groups(self, keys: np.ndarray) -> np.ndarray:
        """Return the interval group of each packed key. A new key gets a new group."""
        distinct, inverse = np.unique(keys, return_inverse=True)
        known = np.union1d(self.keys, distinct)
        if len(known) != len(self.keys):
            moved = np.searchsorted(known, self.keys)
            self.seen = self.seen.moved(moved)
            self.keys = known
        return np.searchsorted(self.keys, distinct)[inverse]

    def spans(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the lowest and the highest sequence number seen of each key."""
        groups = np.arange(len(self.keys))
        first = np.searchsorted(self.seen.lo, groups << intervals.SEQ_BITS)
        last = np.searchsorted(self.seen.lo, (groups + 1) << intervals.SEQ_BITS) - 1
        return intervals.seq_of(self.seen.lo[first]), intervals.seq_of(self.seen.hi[last])

    def keys_of(self, table: pa.Table) -> np.ndarray:
        """Return the packed keys of a table's rows."""
        device = self.device_numbers(whole(table["device"]))
        life = table["life"].to_numpy().astype(np.int64)
        return np.asarray(pack(device, life, table["boot"].to_numpy()), dtype=np.int64)

    # Lives.

    def lives_of(self, device: int) -> list[tuple[int, int]]:
        """Return the lives of a device: (number, identity)."""
        a, b = np.searchsorted(self.lives, [device << LIFE_BITS, (device + 1) << LIFE_BITS])
        numbers = self.lives[a:b] & ((1 << LIFE_BITS) - 1)
        return list(zip(numbers.tolist(), self.identities[a:b].tolist(), strict=True))

    def add_lives(self, device: np.ndarray, life: np.ndarray, identity: np.ndarray) -> None:
        """Add lives."""
        lives = np.concatenate((self.lives, (device << LIFE_BITS) | life))
        order = np.argsort(lives, kind="stable")
        self.lives, self.identities = lives[order], np.concatenate((self.identities, identity))[order]

    def extend_fronts(self) -> None:
        """Add an empty entry to `fronts` for each new device."""
        lacking = len(self.devices) - self.fronts.shape[1]
        if lacking > 0:
            self.fronts = np.concatenate((self.fronts, np.zeros((4, lacking), dtype=np.int64)), axis=1)

    # To and from tables.

    def load_intervals(self, table: pa.Table) -> None:
        """Load the intervals of earlier batches."""
        group = self.groups(self.keys_of(table))
        lo, hi = intervals.encode(group, table["lo"].to_numpy()), intervals.encode(group, table["hi"].to_numpy())
        order = np.argsort(lo)
        self.seen = intervals.Intervals(lo[order], hi[order])

    def intervals_table(self) -> pa.Table:
        """Return the intervals as a table."""
        device, life, boot = unpack(self.keys[intervals.group_of(self.seen.lo)])
        columns = [self.names_of(device), pa.array(life.astype(np.int32)), pa.array(boot)]
        columns += [pa.array(intervals.seq_of(one)) for one in self.seen]
        return pa.table(columns, schema=schemas.INTERVALS)

    def load_lives(self, table: pa.Table) -> None:
        """Load the lives of earlier batches."""
        device = self.device_numbers(whole(table["device"]))
        life = table["life"].to_numpy().astype(np.int64)
        self.add_lives(device, life, table["identity"].to_numpy())
        self.extend_fronts()
        arrival = pc.fill_null(table["arrival"].cast(pa.int64()), 0).to_numpy()
        is_front = arrival > 0
        boot, seq = (pc.fill_null(table[name], 0).to_numpy() for name in ("boot", "seq"))
        self.fronts[:, device[is_front]] = np.stack([one[is_front] for one in (arrival, life, boot, seq)])

    def lives_table(self) -> pa.Table:
        """Return the lives as a table, each device's newest message in the row of its life."""
        self.extend_fronts()
        device, life = self.lives >> LIFE_BITS, self.lives & ((1 << LIFE_BITS) - 1)
        arrival, its_life, boot, seq = self.fronts[:, device]
        other = (its_life != life) | (arrival == 0)
        columns = [self.names_of(device), pa.array(life.astype(np.int32)), pa.array(self.identities)]
        columns += [pa.array(boot, mask=other), pa.array(seq, mask=other)]
        columns += [pa.array(arrival, mask=other).cast(schemas.MOMENT)]
        return pa.table(columns, schema=schemas.IDENTITIES)

    def held_reasons(self) -> Counter[str]:
        """Return the number of held messages by reason."""
        return Counter(one.reason for held in self.held.values() for one in held)

    def load_held(self, table: pa.Table) -> None:
        """Load the held messages of earlier batches."""
        device = self.device_numbers(whole(table["device"])).tolist()
        table = table.append_column("arrival_us", table["arrival"].cast(pa.int64()))
        rows = zip(*[table[name].to_pylist() for name in Message._fields[:-1]], strict=True)
        for number, row in zip(device, rows, strict=True):
            self.held.setdefault(number, []).append(Message(*row))

    def held_table(self) -> pa.Table:
        """Return the held messages as a table."""
        rows = [(self.devices[device], *one) for device, held in self.held.items() for one in held]
        columns = list(zip(*rows, strict=True)) or [()] * (1 + len(Message._fields))
        by_name = dict(zip(("device", *Message._fields), columns, strict=True))
        by_name["arrival"] = by_name.pop("arrival_us")
        return pa.table([pa.array(by_name[field.name], field.type) for field in schemas.HELD], schema=schemas.HELD)


def pack(device: Any, life: Any, boot: Any) -> Any:
    """Return (device, life, boot) as one sortable number."""
    return (((device << LIFE_BITS) + life) << BOOT_BITS) + boot


def unpack(key: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the device, life and boot of packed keys."""
    boot = key & ((1 << BOOT_BITS) - 1)
    life = (key >> BOOT_BITS) & ((1 << LIFE_BITS) - 1)
    return key >> (BOOT_BITS + LIFE_BITS), life, boot
