"""One task's work: the new rows of one device bucket, from segments to tables, and the bucket's state.

Everything that needs to see a device's messages in order happens here, in one process per bucket and batch: parse,
tell lives apart, drop duplicates, count. It is Arrow and numpy on a row group at a time (memory follows the row group,
not the batch), with Python loops only over boot messages and bad payloads. What it writes has names of its own for
each attempt; nothing counts until the driver has put those names into the batch's commit (commits.py).

It does not know Spark: a function from (state, segments) to (tables, state), tested as such.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tools.landing import segments

from . import delays, intervals, schemas, senml
from .storage import Storage

LIFE_BITS, BOOT_BITS = 10, 31
MOST_LIVES = (1 << LIFE_BITS) - 2
"""A device that begins anew more often has another's id, or no memory: what it says then can't be told apart."""
TIE_TOLERANCE_US = 1_000_000
"""A clock that moves by more than this against the uptime has been set anew."""
SAME_TIE_US = 10_000
"""Ties of a boot that lie closer together than this say the same: clock and uptime are told in milliseconds."""
EVENT_LABELS = ("first", "cause", "dropped", "doubt_first", "doubt_last")


GOING_ON = ("seq", "arrival", "time", "segment", "row", "lo", "hi")
DICTIONARY = pa.dictionary(pa.int32(), pa.string())


class Done(NamedTuple):
    """A file that a task wrote."""

    bucket: int
    table: str
    file: str
    rows: int


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


def table_of(columns: list[pa.Array], schema: pa.Schema) -> pa.Table:
    """Return a table that is written as `schema`, with its texts as dictionaries: that is how Parquet keeps them anyway."""
    fields = [field.with_type(DICTIONARY) if pa.types.is_string(field.type) else field for field in schema]
    for n, (column, field) in enumerate(zip(columns, fields, strict=True)):
        if field.type == DICTIONARY and column.type != DICTIONARY:
            columns[n] = column.dictionary_encode() if pa.types.is_string(column.type) else column.cast(DICTIONARY)
    return pa.table(columns, schema=pa.schema(fields))


def parquet_writer(stream: Any, schema: pa.Schema) -> pq.ParquetWriter:
    """Return a writer of a table's rows.

    Numbers that go on from row to row are kept as their differences: of a reading's 13 bytes that takes 3, and of the
    time to write it a quarter.
    """
    return pq.ParquetWriter(
        stream,
        schema,
        compression="zstd",
        compression_level=1,
        use_dictionary=[field.name for field in schema if field.type in {DICTIONARY, pa.string()}],
        column_encoding={name: "DELTA_BINARY_PACKED" for name in GOING_ON if name in schema.names},
        write_statistics=[name for name in ("device", "boot", "seq", "arrival") if name in schema.names],
        store_schema=False,
    )


def process(state: State, rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Take some rows of a segment, in landing order, into the state; yield (table name, rows to write)."""
    arrival = rows["arrival"].combine_chunks()
    payload = rows["payload"].combine_chunks()
    topic = _encoded(rows["topic"])
    packs, bad = _read(payload, topic)
    messages = packs.messages

    # The device in the payload must be the topic's.
    topics = topic.dictionary.to_pylist()
    of_topic = pa.array([segments.device_of(text) for text in topics], pa.string())
    place = messages["row"].combine_chunks()
    device_name = messages["device"].combine_chunks()
    expected = of_topic.take(topic.indices.take(place))
    agree = pc.equal(expected, device_name).to_numpy(zero_copy_only=False)
    if not agree.all():
        bad += [(row, "another device than the topic's") for row in place.to_numpy()[~agree].tolist()]
        messages = messages.filter(pa.array(agree))
        place = messages["row"].combine_chunks()
        device_name = messages["device"].combine_chunks()

    if messages.num_rows:
        origin = {"arrival": arrival, "collector": _encoded(rows["collector"])}
        origin |= {name: rows[name].combine_chunks() for name in ("segment", "row")}
        new = _Messages(state, messages, place, device_name, origin)
        bad += new.refused
        yield from new.tables(packs.records)
    if bad:
        bad.sort()
        at = pa.array([row for row, _ in bad], pa.int64())
        reasons = pa.array([reason for _, reason in bad], pa.string())
        columns = [reasons, topic.dictionary.take(topic.indices.take(at)), payload.take(at)]
        columns += [rows[field.name].combine_chunks().take(at) for field in schemas.ORIGIN]
        yield "quarantine", table_of(columns, schemas.QUARANTINE)
    _note_progress(state, rows)


def _read(payload: pa.Array, topic: pa.DictionaryArray) -> tuple[senml.Packs, list[tuple[int, str]]]:
    """Read the payloads; boot messages apart from readings, because they have other labels."""
    boot_topics = np.array([text.endswith("/boot") for text in topic.dictionary.to_pylist()], dtype=bool)
    if not boot_topics.any():
        packs = senml.read(payload)
        return packs, packs.bad
    is_boot = boot_topics[topic.indices.to_numpy()]
    messages, records, bad = [], [], []
    for which, told in ((~is_boot, False), (is_boot, True)):
        at = np.flatnonzero(which)
        packs = senml.read(payload.take(pa.array(at)))
        found, readings = _as_boot_messages(packs) if told else packs[:2]
        messages.append(_moved(found, at))
        records.append(_moved(readings, at))
        bad += [(int(at[row]), reason) for row, reason in packs.bad]
    together = pa.concat_tables(messages).sort_by("row")
    return senml.Packs(together, pa.concat_tables(records), bad), bad


def _moved(table: pa.Table, at: np.ndarray) -> pa.Table:
    """Return a table whose `row` is a place in `at` with the places themselves."""
    return table.set_column(0, table.schema.field(0), pa.array(at[table["row"].to_numpy()]))


def _as_boot_messages(packs: senml.Packs) -> tuple[pa.Table, pa.Table]:
    """Fill a boot message's labels from records of those names; its own sequence number is the boot's first.

    Such records tell of the message, so they are no readings.
    """
    messages = packs.messages
    for label in EVENT_LABELS:
        column = messages[label].combine_chunks()
        named = packs.records.filter(pc.equal(packs.records["name"], label))
        if named.num_rows:
            values = named["text" if label == "cause" else "value"].combine_chunks()
            if label != "cause":
                values = pc.if_else(
                    pc.and_(pc.greater_equal(values, 0), pc.less_equal(values, senml.LARGEST)), values, None
                )
            place = pc.index_in(messages["row"].combine_chunks(), named["row"].combine_chunks())
            column = pc.coalesce(column, values.take(place).cast(column.type, safe=False))
        if label == "first":
            column = pc.coalesce(column, messages["seq"].combine_chunks())
            column = pc.max_element_wise(column, 1)
        messages = messages.set_column(messages.schema.get_field_index(label), messages.schema.field(label), column)
    told = pc.is_in(packs.records["name"], value_set=pa.array(EVENT_LABELS))
    return messages, packs.records.filter(pc.invert(told))


def _note_progress(state: State, rows: pa.Table) -> None:
    """Note how far the collectors' logs have been read."""
    collector = _encoded(rows["collector"])
    segment, row = rows["segment"].to_numpy(), rows["row"].to_numpy()
    for number, name in enumerate(collector.dictionary.to_pylist()):
        own = np.flatnonzero(collector.indices.to_numpy() == number)
        if not len(own):
            continue
        last = segment[own].max()
        reached = (int(last), int(row[own][segment[own] == last].max()))
        state.reading[name] = max(state.read.get(name, (0, -1)), state.reading.get(name, (0, -1)), reached)


def _encoded(column: pa.ChunkedArray) -> pa.DictionaryArray:
    """Return a column of few different texts as one dictionary array."""
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    return column.unify_dictionaries().combine_chunks()


class _Messages:
    """The messages of a batch that have an identity, sorted by it, and what became of each."""

    def __init__(
        self, state: State, messages: pa.Table, place: pa.Array, device_name: pa.Array, origin: dict[str, pa.Array]
    ):
        self.state = state
        self.origin = origin
        self.messages = messages
        self.place = place.to_numpy()
        self.device = state.device_numbers(device_name)
        boot = messages["boot"].to_numpy()
        seq = messages["seq"].to_numpy()
        self.life = _lives(state, self.device, boot, seq, messages)
        self._keep_replays(boot, seq)
        self.refused = self._refuse_lives_beyond_the_last()
        boot = self.messages["boot"].to_numpy()
        seq = self.messages["seq"].to_numpy()
        self.uptime = self.messages["uptime"].combine_chunks()
        group = state.groups(pack(self.device, self.life, boot))
        codes = intervals.encode(group, seq)

        # Sorted by identity, a message's copies stand together, first come first.
        order = np.argsort(codes, kind="stable")
        codes = codes[order]
        self.order, self.codes = order, codes
        first = np.ones(len(codes), dtype=bool)
        first[1:] = codes[1:] != codes[:-1]
        known = state.seen.contains(codes)
        new = first & ~known
        highest_before = self._highest(codes)
        self.arrival_us = origin["arrival"].cast(pa.int64()).to_numpy()[self.place[order]]

        # A copy has its original's uptime; another message under the same identity has not.
        up = pc.fill_null(self.uptime, -1.0).to_numpy()[order]
        original = np.maximum.accumulate(np.where(first, np.arange(len(codes)), 0))
        compared = ~first & ~known
        reused = compared & (up != up[original])
        self.refused += [
            (int(row), "identity reused: another message has this device, boot and seq")
            for row in self.place[order[reused]]
        ]
        self.copy = ~new & ~reused
        self.compared = compared
        self.new = new
        self.reordered = new & (self._overtaken(codes, order) | (codes < highest_before))
        state.seen = state.seen.union(codes[new])
        self.group = intervals.group_of(codes)

    def _keep_replays(self, boot: np.ndarray, seq: np.ndarray) -> None:
        """Give a replayed row to the life that has it already, whatever life is in force now."""
        state, device = self.state, self.device
        if not state.life:
            return
        for at in np.flatnonzero(self._replayed(np.arange(len(device)))).tolist():
            for one in range(state.life.get(int(device[at]), 1), 0, -1):
                key = pack(int(device[at]), one, int(boot[at]))
                place = np.searchsorted(state.keys, key)
                if place < len(state.keys) and state.keys[place] == key:
                    code = intervals.encode(np.array([place]), seq[at : at + 1])
                    if state.seen.contains(code)[0]:
                        self.life[at] = one
                        break

    def _refuse_lives_beyond_the_last(self) -> list[tuple[int, str]]:
        """Leave out the messages of a device that began anew too often; return their rows, with the reason."""
        beyond = self.life > MOST_LIVES
        refused = self.place[beyond].tolist()
        if refused:
            self.messages = self.messages.filter(pa.array(~beyond))
            self.place, self.device, self.life = self.place[~beyond], self.device[~beyond], self.life[~beyond]
        return [(row, "its device's counters began again too often: the id is not its own") for row in refused]

    def _highest(self, codes: np.ndarray) -> np.ndarray:
        """Return for each message the highest code of its group before this batch, 0 where there is none."""
        seen = self.state.seen
        if not len(seen.hi):
            return np.zeros(len(codes), dtype=np.int64)
        above = (intervals.group_of(codes) + 1) << intervals.SEQ_BITS
        at = np.searchsorted(seen.lo, above) - 1
        highest = seen.hi[np.maximum(at, 0)]
        return np.where((at >= 0) & (intervals.group_of(highest) == intervals.group_of(codes)), highest, 0)

    @staticmethod
    def _overtaken(codes: np.ndarray, order: np.ndarray) -> np.ndarray:
        """Return for each message, in identity order, whether a higher one of its group came before it."""
        # Arrival places made larger from group to group, so that a minimum from the right never crosses groups.
        place = order + intervals.group_of(codes) * len(order)
        later = np.minimum.accumulate(place[::-1])[::-1]
        return np.concatenate((later[1:] < place[:-1], [False]))

    def tables(self, records: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        """Yield what is to be written."""
        if not len(self.place):
            return
        order, new = self.order, self.new
        chosen = order[new]
        yield "readings", self._readings(records, chosen)
        events = self._events(chosen, records)
        if events.num_rows:
            yield "events", events
        ties = self._ties(chosen)
        if ties.num_rows:
            yield "ties", ties
        if self.copy.any():
            yield "duplicates", self._duplicates()
        yield "tally", self._tally(records)

    def _key(self, messages: np.ndarray) -> list[pa.Array]:
        """Return the key columns and seq of some messages."""
        table = self.messages
        at = pa.array(messages)
        names = pa.array(self.state.devices, pa.string())
        return [
            pa.DictionaryArray.from_arrays(pa.array(self.device[messages].astype(np.int32)), names),
            pa.array(self.life[messages].astype(np.int32)),
            table["boot"].combine_chunks().take(at),
            table["seq"].combine_chunks().take(at),
        ]

    def _origin(self, messages: np.ndarray) -> list[pa.Array]:
        """Return the origin columns of some messages."""
        at = pa.array(self.place[messages])
        return [self.origin[field.name].take(at) for field in schemas.ORIGIN]

    def _readings(self, records: pa.Table, chosen: np.ndarray) -> pa.Table:
        # Records stand in message order (by `row`); find those of the chosen messages, in the order of the choice.
        row = records["row"].to_numpy()
        begins = np.searchsorted(row, self.place)
        if len(row) == len(self.place) and np.array_equal(row, self.place):
            of_message, at = chosen, chosen
        else:
            if len(row) and (np.diff(row) < 0).any():
                records = records.sort_by([("row", "ascending"), ("index", "ascending")])
                row = records["row"].to_numpy()
                begins = np.searchsorted(row, self.place)
            counts = np.searchsorted(row, self.place, side="right") - begins
            chosen_counts = counts[chosen]
            of_message = np.repeat(chosen, chosen_counts)
            ends = np.cumsum(chosen_counts)
            within = np.arange(len(of_message)) - np.repeat(ends - chosen_counts, chosen_counts)
            at = begins[of_message] + within
        where = pa.array(at)
        columns = [records[name].combine_chunks().take(where) for name in records.schema.names[1:]]
        moment = columns[-1].cast(schemas.MOMENT)
        return table_of([*self._key(of_message), *columns[:-1], moment, *self._origin(of_message)], schemas.READINGS)

    def _events(self, chosen: np.ndarray, records: pa.Table) -> pa.Table:
        """Return the messages that tell of more than readings, or of none: so every message is in one of the two tables."""
        table = self.messages
        told = np.bincount(records["row"].to_numpy(), minlength=int(self.place.max()) + 1)[self.place] == 0
        for label in EVENT_LABELS:
            if table[label].null_count < table.num_rows:
                told |= table[label].is_valid().to_numpy()
        events = chosen[told[chosen]]
        at = pa.array(events)
        columns = [table[label].combine_chunks().take(at) for label in EVENT_LABELS]
        columns += [self.uptime.take(at), table["time_us"].combine_chunks().take(at).cast(schemas.MOMENT)]
        return table_of([*self._key(events), *columns, *self._origin(events)], schemas.EVENTS)

    def _ties(self, chosen: np.ndarray) -> pa.Table:
        time = self.messages["time_us"].combine_chunks()
        if time.null_count == len(time):
            return schemas.TIES.empty_table()
        tied = pc.and_(time.is_valid(), self.uptime.is_valid()).to_numpy(zero_copy_only=False)
        messages = chosen[tied[chosen]]
        clock = pc.fill_null(time, 0).to_numpy()[messages]
        offset = clock - np.rint(pc.fill_null(self.uptime, 0.0).to_numpy()[messages] * 1e6).astype(np.int64)
        # The first and the last of each stretch in which a boot's clock was not set: so that a message which comes late
        # and tells of another time splits it.
        group = self.group[self.new][tied[chosen]]
        kept = _ends((group[1:] != group[:-1]) | (np.abs(np.diff(offset)) > TIE_TOLERANCE_US))[: len(group)]
        messages, offset = messages[kept], offset[kept]
        arrival = self.origin["arrival"].take(pa.array(self.place[messages]))
        uptime = self.uptime.take(pa.array(messages))
        return table_of([*self._key(messages), pa.array(offset), uptime, arrival], schemas.TIES)

    def _duplicates(self) -> pa.Table:
        which = self.order[self.copy]
        origin = self._origin(which)
        replay = self._replayed(which)
        cause = pa.array(np.where(replay, "replay", "resend").tolist(), pa.string())
        uptime = self.uptime.take(pa.array(which))
        compared = pa.array(self.compared[self.copy])
        return table_of([*self._key(which), cause, uptime, compared, *origin], schemas.DUPLICATES)

    def _replayed(self, messages: np.ndarray) -> np.ndarray:
        """Return for each message whether this very row of a collector's log was read before."""
        _, encoded, segment, row = self._origin(messages)
        read = [self.state.read.get(name, (0, -1)) for name in encoded.dictionary.to_pylist()]
        read_segment = np.array([one for one, _ in read], dtype=np.int64)[encoded.indices.to_numpy()]
        read_row = np.array([one for _, one in read], dtype=np.int64)[encoded.indices.to_numpy()]
        segment, row = segment.to_numpy(), row.to_numpy()
        return (segment < read_segment) | ((segment == read_segment) & (row <= read_row))

    def _tally(self, records: pa.Table) -> pa.Table:
        order, new = self.order, self.new
        replay = np.zeros(len(order), dtype=bool)
        replay[self.copy] = self._replayed(order[self.copy])
        groups, inverse = np.unique(self.group, return_inverse=True)
        size = len(groups)

        def count(flags: np.ndarray) -> np.ndarray:
            return np.bincount(inverse[flags], minlength=size)

        row = records["row"].to_numpy()
        per_row = np.bincount(row, minlength=int(self.place.max()) + 1)
        readings = np.bincount(inverse[new], weights=per_row[self.place[order[new]]], minlength=size).astype(np.int64)
        starts = np.searchsorted(inverse, np.arange(size))
        first_arrival = np.minimum.reduceat(self.arrival_us, starts)
        last_arrival = np.maximum.reduceat(self.arrival_us, starts)
        # Arrival less uptime (or less the board's own time, where it tells no uptime).
        time_us = pc.fill_null(self.messages["time_us"], 0).to_numpy()
        up_us = np.rint(pc.fill_null(self.uptime, 0.0).to_numpy() * 1e6).astype(np.int64)
        moment = np.where(_is_valid(self.uptime), up_us, time_us)[order]
        lag = self.arrival_us - moment
        far = np.iinfo(np.int64).max
        base = np.minimum.reduceat(np.where(new, lag, far), starts)
        base = np.where(base == far, 0, base)
        step = delays.steps((lag - base[inverse])[new])
        pairs, counts = np.unique(inverse[new] * 4096 + step, return_counts=True)
        offsets = np.searchsorted(pairs, np.arange(size + 1) * 4096).astype(np.int32)
        device, life, boot = unpack(self.state.keys[groups])
        return table_of(
            [
                pa.array(self.state.devices, pa.string()).take(pa.array(device)),
                pa.array(life.astype(np.int32)),
                pa.array(boot),
                pa.array(count(new)),
                pa.array(readings),
                pa.array(count(self.copy & ~replay)),
                pa.array(count(replay)),
                pa.array(count(self.reordered)),
                pa.array(first_arrival).cast(schemas.MOMENT),
                pa.array(last_arrival).cast(schemas.MOMENT),
                pa.array(base),
                pa.ListArray.from_arrays(pa.array(offsets), pa.array((pairs % 4096).astype(np.int32))),
                pa.ListArray.from_arrays(pa.array(offsets), pa.array(counts)),
            ],
            schemas.TALLY,
        )


def merge_tallies(tallies: list[pa.Table]) -> pa.Table:
    """Return the tallies of a batch's parts as one row per boot: an audit's cost goes by rows and steps.

    The delays are counted anew from the smallest base of each boot, a step's at its middle.
    """
    table = pa.concat_tables([one.cast(schemas.TALLY) for one in tallies]).combine_chunks()
    device = pc.dictionary_encode(table["device"].combine_chunks())
    key = pack(
        device.indices.to_numpy().astype(np.int64), table["life"].to_numpy().astype(np.int64), table["boot"].to_numpy()
    )
    groups, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    starts = np.searchsorted(inverse[order], np.arange(len(groups)))
    sums = {
        name: np.add.reduceat(table[name].to_numpy()[order], starts)
        for name in ("delivered", "readings", "resent", "replayed", "reordered")
    }
    arrivals = {name: table[name].cast(pa.int64()).to_numpy()[order] for name in ("first_arrival", "last_arrival")}
    steps = table["steps"].combine_chunks()
    lengths = pc.list_value_length(steps).to_numpy()
    # A part without a new message has no delays, and its base means nothing.
    own_base = np.where(lengths > 0, table["base_us"].to_numpy(), np.iinfo(np.int64).max)
    base = np.minimum.reduceat(own_base[order], starts)
    base = np.where(base == np.iinfo(np.int64).max, 0, base)
    of_row = np.repeat(np.arange(len(table)), lengths)
    behind = own_base[of_row] - base[inverse[of_row]] + delays.middles_us(steps.flatten().to_numpy())
    pairs, place = np.unique(inverse[of_row] * 4096 + delays.steps(behind), return_inverse=True)
    counts = np.zeros(len(pairs), dtype=np.int64)
    np.add.at(counts, place, table["counts"].combine_chunks().flatten().to_numpy())
    offsets = pa.array(np.searchsorted(pairs, np.arange(len(groups) + 1) * 4096).astype(np.int32))
    merged = table.take(pa.array(first))
    columns = [merged[name].combine_chunks() for name in ("device", "life", "boot")]
    columns += [pa.array(one) for one in sums.values()]
    columns += [pa.array(np.minimum.reduceat(arrivals["first_arrival"], starts)).cast(schemas.MOMENT)]
    columns += [pa.array(np.maximum.reduceat(arrivals["last_arrival"], starts)).cast(schemas.MOMENT), pa.array(base)]
    columns += [pa.ListArray.from_arrays(offsets, pa.array((pairs % 4096).astype(np.int32)))]
    columns += [pa.ListArray.from_arrays(offsets, pa.array(counts))]
    return table_of(columns, schemas.TALLY)


def merge_ties(ties: list[pa.Table]) -> pa.Table:
    """Return the ties of a batch's parts without those between two that say the same in their boot."""
    table = pa.concat_tables([one.cast(schemas.TIES) for one in ties]).combine_chunks()
    table = table.sort_by([(name, "ascending") for name in ("device", "life", "boot", "seq")])
    same = np.ones(len(table) - 1, dtype=bool)
    for name in ("device", "life", "boot"):
        column = table[name].combine_chunks()
        same &= pc.equal(column[1:], column[:-1]).to_numpy(zero_copy_only=False)
    same &= np.abs(np.diff(table["offset_us"].to_numpy())) <= SAME_TIE_US
    table = table.filter(pa.array(_ends(~same)))
    return table_of([column.combine_chunks() for column in table.columns], schemas.TIES)


def _ends(breaks: np.ndarray) -> np.ndarray:
    """Return which rows begin or end a stretch, given between which neighbours there is a break."""
    return np.concatenate(([True], breaks)) | np.concatenate((breaks, [True]))


def _is_valid(column: pa.Array) -> np.ndarray:
    return column.is_valid().to_numpy(zero_copy_only=False)


def _lives(state: State, device: np.ndarray, boot: np.ndarray, seq: np.ndarray, messages: pa.Table) -> np.ndarray:
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


def run(
    storage: Storage,
    landing: Storage,
    bucket: int,
    buckets: int,
    batch: int,
    state_files: dict[str, str],
    read: dict[str, tuple[int, int]],
    paths: Iterable[str],
) -> list[Done]:
    """Do one bucket's part of a batch; return the files written. Attempts don't see each other's files."""
    state = State()
    state.read = dict(read)
    if "intervals" in state_files:
        state.load_intervals(_load(storage, state_files["intervals"], schemas.INTERVALS))
    if "boots" in state_files:
        state.load_boots(_load(storage, state_files["boots"], schemas.BOOTS))
    attempt = uuid.uuid4().hex[:8]
    name = f"bucket-{bucket:04d}-{attempt}.parquet"
    gathered: dict[str, list[pa.Table]] = {"tally": [], "ties": []}
    with _Writers(storage, bucket, batch, name) as writers:
        for segment in _in_order(landing, paths, bucket, buckets):
            for rows in segment:
                for table, found in process(state, rows):
                    if table in gathered:
                        gathered[table].append(found)
                    else:
                        writers.write(table, found)
            state.settle()
        for table, merge in (("tally", merge_tallies), ("ties", merge_ties)):
            if gathered[table]:
                writers.write(table, merge(gathered[table]))
        if writers.wrote_any or not state_files:
            writers.write("state/intervals", state.intervals_table())
            writers.write("state/boots", state.boots_table())
    return writers.done


def _load(storage: Storage, name: str, schema: pa.Schema) -> pa.Table:
    with storage.fs.open_input_file(storage.path(name)) as file:
        return pq.read_table(file, columns=schema.names, use_threads=False)


def _in_order(landing: Storage, paths: Iterable[str], bucket: int, buckets: int) -> Iterator[Iterator[pa.Table]]:
    """Yield a bucket's rows segment by segment: in landing order, and between collectors by when a segment begins.

    Raises:
        SegmentError: a file under a segment's name is not one.
    """
    begun: dict[str, float] = {}
    files = []
    for (collector, _), path in sorted((segments.parse_name(path) or ("", 0), path) for path in paths):
        with _opened(landing, path) as source:
            meta = pq.read_metadata(source)
            segments.check_columns(meta.schema.names)
        index = meta.schema.names.index("arrival")
        statistics = [meta.row_group(n).column(index).statistics for n in range(meta.num_row_groups)]
        begins = [one.min.timestamp() for one in statistics if one is not None and one.has_min_max]
        # Never before the segment in front of it: a clock may have been set back, and a message that was held for long
        # lands with its own time of arrival.
        begun[collector] = max(min(begins, default=0.0), begun.get(collector, 0.0))
        files.append((begun[collector], path))
    for _, path in sorted(files):
        with _opened(landing, path) as source:
            file = pq.ParquetFile(source, read_dictionary=["collector", "topic"])
            yield segments.read_bucket(file, bucket, buckets)


@contextmanager
def _opened(landing: Storage, path: str) -> Iterator[Any]:
    try:
        with landing.fs.open_input_file(landing.path(path)) as source:
            yield source
    except (pa.ArrowInvalid, segments.SegmentError, OSError) as error:
        raise segments.SegmentError(
            f"{path}: {error}. A segment has its name only once it is whole, so this file was damaged or written by something"
            " else: restore it, or take it out of the landing"
        ) from error


class _Writers:
    """The Parquet files of one attempt, opened when there is something to write, named when all is written."""

    def __init__(self, storage: Storage, bucket: int, batch: int, name: str):
        self.storage, self.bucket, self.batch, self.name = storage, bucket, batch, name
        self.open: dict[str, tuple[Any, pq.ParquetWriter, int]] = {}
        self.done: list[Done] = []
        self.wrote_any = False

    def __enter__(self) -> _Writers:
        return self

    def write(self, table: str, rows: pa.Table) -> None:
        self.wrote_any = True
        if table not in self.open:
            file = f"{table}/batch={self.batch}/{self.name}"
            context = self.storage.create(file)
            stream = context.__enter__()
            writer = parquet_writer(stream, rows.schema)
            self.open[table] = (context, writer, 0)
        context, writer, count = self.open[table]
        writer.write_table(rows)
        self.open[table] = (context, writer, count + rows.num_rows)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        for table, (context, writer, count) in self.open.items():
            if kind is None:
                writer.close()
            context.__exit__(kind, error, trace)
            if kind is None:
                self.done.append(Done(self.bucket, table, f"{table}/batch={self.batch}/{self.name}", count))
