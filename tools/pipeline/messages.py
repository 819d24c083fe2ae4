"""Rows of a segment to rows of the tables: parse, tell lives apart, drop duplicates, count.

Everything that needs to see a device's messages in order happens here. It is Arrow and numpy on a row group at a time, with
Python loops only over boot messages and bad payloads.

It does not know Spark nor files: a function from (state, rows) to (tables, state), tested as such.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tools.landing import segments

from . import delays, intervals, lives, schemas, senml
from .files import table_of
from .parts import ends
from .state import State, pack, unpack

TIE_TOLERANCE_US = 1_000_000
"""A clock that moves by more than this against the uptime has been set anew."""
EVENT_LABELS = ("first", "cause", "dropped", "doubt_first", "doubt_last")


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
        self.life = lives.lives_of(state, self.device, boot, seq, messages)
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
        beyond = self.life > lives.MOST_LIVES
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
        kept = ends((group[1:] != group[:-1]) | (np.abs(np.diff(offset)) > TIE_TOLERANCE_US))[: len(group)]
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


def _is_valid(column: pa.Array) -> np.ndarray:
    return column.is_valid().to_numpy(zero_copy_only=False)
