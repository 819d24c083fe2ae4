"""Messages that carry no identity of ours: plain numbers and booleans, and whatever a mapping reads.

Nothing tells how many of them there should be, so there is no proof of their delivery. What is known is where the collector
put each: a reading's `seq` is its row in the collector's log, `life` and `boot` are 0. A message is in the tables once for each
time that the collector landed it; a copy that it knew to be one (segments.py), one that the broker had kept (RETAIN), and a log
that is read again give duplicates. No message depends on another, so neither does the result on how they fell into batches.

It does not know Spark nor files.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from . import schemas
from .files import table_of
from .mapping import BOOLEANS, NO_READINGS, NOT_FINITE, NUMBER, OURS, Mapping, Misfit, Rule, device_and_name, readings
from .prints import of as prints_of
from .state import State

SCALAR = rf"^[ \t\r\n]*({NUMBER.pattern}|{'|'.join(BOOLEANS)})[ \t\r\n]*$"
Taker = tuple[tuple[Rule, ...], dict[str, str]]
FORGOTTEN = re.compile(r"\*{4,}")
"""What `forget` puts in the place of a device's name, in messages of several devices: it is none."""
NO_MAPPING = "neither a number, a boolean nor a SenML pack, and no mapping takes its topic"
RETAINED, RESENT, REPLAYED = "retained", "resend", "replay"
ITEMS = pa.schema([pa.field("row", pa.int64()), *[schemas.READINGS.field(name) for name in ("device", "index", "name")],
                   *[schemas.READINGS.field(name) for name in ("unit", "value", "text", "flag", "time")]])  # fmt: skip


class Plain:
    """The messages of some rows that are taken here.

    Attributes:
        taken: which rows.
        bad: those that do not fit: (row, reason).
    """

    def __init__(self, topic: pa.DictionaryArray, payload: pa.Array, mapping: Mapping):
        topics = topic.dictionary
        self.topic, self.payload = topic, payload
        self.taken = np.zeros(len(payload), dtype=bool)
        self.bad: list[tuple[int, str]] = []
        self.parts: list[pa.Table] = []
        texts = topics.to_pylist() if mapping.rules else []
        rules = [mapping.of(text) for text in texts]
        other = pc.invert(pc.starts_with(topics, OURS)).to_numpy(zero_copy_only=False)
        mapped = (
            np.array([rule is not None for rule in rules], dtype=bool) if rules else np.zeros(len(topics), dtype=bool)
        )
        if not (other | mapped).any():
            return
        index = topic.indices.to_numpy()
        idle = np.zeros(len(topics), dtype=bool)
        for beginning in NO_READINGS:
            idle |= pc.starts_with(topics, beginning).to_numpy(zero_copy_only=False)
        self.taken |= (idle & ~mapped)[index]
        if mapped.any():
            at = np.flatnonzero(mapped[index])
            self._map(at, [rule for n in index[at].tolist() if (rule := rules[n])])
        if (other & ~idle & ~mapped).any():
            self._take_scalars(np.flatnonzero((other & ~idle & ~mapped)[index]))

    def _map(self, at: np.ndarray, rules: list[Taker]) -> None:
        self.taken[at] = True
        found: list[tuple[object, ...]] = []
        for row, told, payload in zip(at.tolist(), rules, self.payload.take(pa.array(at)).to_pylist(), strict=True):
            try:
                own = readings(*told, payload)
            except Misfit as misfit:
                self.bad.append((row, f"mapping: {misfit}"))
                continue
            found += [
                (row, one.device, n, one.name, *one[2:])
                for n, one in enumerate(own)
                if not FORGOTTEN.fullmatch(one.device)
            ]
        if found:
            columns = zip(*found, strict=True)
            arrays = [
                pa.array(column, pa.int64()).cast(kind.type)
                if kind.type == schemas.MOMENT
                else pa.array(column, kind.type)
                for column, kind in zip(columns, ITEMS, strict=True)
            ]
            self.parts.append(pa.table(arrays, schema=ITEMS))

    def _take_scalars(self, at: np.ndarray) -> None:
        payload = self.payload.take(pa.array(at))
        is_scalar = pc.match_substring_regex(payload, SCALAR).to_numpy(zero_copy_only=False)
        lost = at[~is_scalar & ~pc.match_substring_regex(payload, rb"^[ \t\r\n]*\[").to_numpy(zero_copy_only=False)]
        self.bad += [(row, NO_MAPPING) for row in lost.tolist()]
        self.taken[lost] = True
        at = at[is_scalar]
        if not len(at):
            return
        self.taken[at] = True
        text = pc.utf8_trim(payload.filter(pa.array(is_scalar)).cast(pa.string()), " \t\r\n")
        boolean = pc.is_in(text, value_set=pa.array(list(BOOLEANS)))
        # Python's reading of a number is JSON's; Arrow's refuses some.
        distinct = text.dictionary_encode()
        numbers = [None if one in BOOLEANS else float(one) for one in distinct.dictionary.to_pylist()]
        value = pa.array(numbers, pa.float64()).take(distinct.indices)
        infinite = pc.fill_null(pc.is_inf(value), False).to_numpy(zero_copy_only=False)
        self.bad += [(row, NOT_FINITE) for row in at[infinite].tolist()]
        topics = self.topic.indices.to_numpy()[at]
        named = [device_and_name(one) for one in self.topic.dictionary.to_pylist()]
        device, name = (pa.array(column, pa.string()).take(pa.array(topics)) for column in zip(*named, strict=True))
        flag = pc.if_else(
            boolean, pc.is_in(text, value_set=pa.array([one for one, value in BOOLEANS.items() if value])), None
        )
        count = len(at)
        arrays = [pa.array(at), device, pa.array(np.zeros(count, dtype=np.int32)), name, pa.nulls(count, pa.string())]
        arrays += [value, pa.nulls(count, pa.string()), flag, pa.nulls(count, schemas.MOMENT)]
        self.parts.append(pa.table(arrays, schema=ITEMS).filter(pa.array(~infinite)))

    def tables(self, state: State, rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        """Yield the readings (`plain`), the duplicates, and what each device brought (`met`)."""
        items = pa.concat_tables([*self.parts, ITEMS.empty_table()]).combine_chunks()
        items = items.sort_by([("row", "ascending"), ("index", "ascending")])
        if not items.num_rows:
            return
        row = items["row"].to_numpy()
        first = np.ones(len(row), dtype=bool)
        first[1:] = row[1:] != row[:-1]
        cause = self._causes(state, rows, row[first])
        copy = np.array([one is not None for one in cause], dtype=bool)[np.cumsum(first) - 1]
        new = items.filter(pa.array(~copy))
        if new.num_rows:
            yield "plain", _readings(rows, new)
        if copy.any():
            heads = items.filter(pa.array(copy & first))
            yield "duplicates", _duplicates(rows, heads, [one for one in cause if one is not None])
        yield "met", _met(rows, items, copy, first)

    def _causes(self, state: State, rows: pa.Table, at: np.ndarray) -> list[str | None]:
        """Return for each message why it is a copy; None where it is new."""
        some = rows.take(pa.array(at))
        marked = pc.and_(pc.equal(some["qos"], 0), some["dup"]).to_numpy()
        retained = some["retain"].to_numpy()
        again = state.read_before(some["collector"], some["segment"], some["row"])
        if again.any():
            where = np.flatnonzero(again)
            known = state.is_in_readings(places(some.take(pa.array(where))))
            again[where] = known | marked[where] | retained[where]
            for n in where[~again[where]].tolist():
                one = {name: some[name][n].as_py() for name in ("collector", "segment", "row")}
                its_print = int(prints_of(some["payload"].combine_chunks()[n : n + 1])[0])
                again[n] = state.is_in_quarantine((one["collector"], one["segment"], one["row"]), its_print)
        told = np.select([again, marked, retained], [1, 2, 3])
        return [(None, REPLAYED, RESENT, RETAINED)[n] for n in told.tolist()]


def places(rows: pa.Table) -> np.ndarray:
    """Return 64 bits for each row's place in its collector's log, with its moment: numbers may begin anew, moments do not."""
    collector = rows["collector"].combine_chunks()
    if not pa.types.is_dictionary(collector.type):
        collector = collector.dictionary_encode()
    if isinstance(collector, pa.ChunkedArray):
        collector = collector.unify_dictionaries().combine_chunks()
    names = np.array([zlib.crc32(one.encode()) for one in collector.dictionary.to_pylist()], dtype=np.uint64)
    mixed = names[collector.indices.to_numpy()] if len(names) else np.zeros(len(rows), dtype=np.uint64)
    for column in (rows["segment"], rows["row"], rows["arrival"].cast(pa.int64())):
        mixed = (mixed ^ column.to_numpy().astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(32)
    return mixed


def _origin(rows: pa.Table, at: pa.Array) -> list[pa.Array]:
    return [rows[field.name].take(at).combine_chunks() for field in schemas.ORIGIN]


def _key(rows: pa.Table, items: pa.Table) -> list[pa.Array]:
    count = len(items)
    return [
        items["device"].combine_chunks(),
        pa.array(np.zeros(count, dtype=np.int32)),
        pa.array(np.zeros(count, dtype=np.int64)),
        rows["row"].take(items["row"].combine_chunks()).combine_chunks(),
    ]


def _readings(rows: pa.Table, items: pa.Table) -> pa.Table:
    count = len(items)
    index, name, unit, value, text, flag, time = (items[one].combine_chunks() for one in ITEMS.names[2:])
    columns = [*_key(rows, items), index, name, unit, value, text, flag, pa.nulls(count, pa.string())]
    columns += [pa.nulls(count, pa.float64()), pa.nulls(count, pa.float64()), time]
    return table_of([*columns, *_origin(rows, items["row"].combine_chunks())], schemas.READINGS)


def _duplicates(rows: pa.Table, items: pa.Table, causes: list[str]) -> pa.Table:
    columns = [*_key(rows, items), pa.array(causes, pa.string()), pa.nulls(len(items), pa.float64())]
    return table_of([*columns, *_origin(rows, items["row"].combine_chunks())], schemas.DUPLICATES)


def _met(rows: pa.Table, items: pa.Table, copy: np.ndarray, first: np.ndarray) -> pa.Table:
    """Return what each device brought. A message counts for the device of its first reading."""
    arrival = rows["arrival"].take(items["row"].combine_chunks()).combine_chunks()
    each = [(first & ~copy), ~copy, (first & copy)]
    columns = [items["device"].combine_chunks(), *[pa.array(one.astype(np.int64)) for one in each], arrival, arrival]
    return summed([pa.table(columns, schema=schemas.PLAIN)])


def summed(tables: list[pa.Table]) -> pa.Table:
    """Return what each device brought, over some tables of that."""
    how = {"messages": "sum", "readings": "sum", "copies": "sum", "first_arrival": "min", "last_arrival": "max"}
    table = pa.concat_tables([schemas.PLAIN.empty_table(), *(one.cast(schemas.PLAIN) for one in tables)])
    found = table.group_by("device", use_threads=False).aggregate(list(how.items()))
    return found.select(["device", *(f"{name}_{what}" for name, what in how.items())]).rename_columns(schemas.PLAIN.names).cast(
        schemas.PLAIN
    )  # fmt: skip
