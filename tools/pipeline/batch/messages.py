"""Convert rows of a segment to rows of the tables: parse, assign to a life, compare, count.

It processes a row group at a time with Arrow and numpy; Python loops are only for bad payloads and for devices whose lives
are not obvious (placing.py). The result does not depend on how the rows are divided into batches: the tests compare every
division of small histories with a single batch.

This module uses neither Spark nor files: it maps (state, rows) to (tables, state).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tools.landing import segments
from tools.pipeline.tables import intervals, parts, schemas
from tools.pipeline.tables.files import is_valid, table_of, whole

from . import lives, placing, plain, prints, senml, ties
from .mapping import NO_MAPPING, Mapping
from .senml import EVENT_LABELS
from .state import State, pack, unpack

WITH_DAY = {name: schemas.TABLES[name].append(schemas.ORIGIN[0]) for name in ("prints", "undelivered")}
"""Tables whose files are sorted by day of arrival, although the arrival is no column of theirs."""
FAR_BACK = 1000
"""No board's newest message has a number that is this much lower than its previous one."""


def process(state: State, rows: pa.Table, mapping: Mapping = NO_MAPPING) -> Iterator[tuple[str, pa.Table]]:
    """Add some rows of a segment, in landing order, to the state; yield (table name, rows to write)."""
    state.begin(rows)
    if state.again:
        rows = _without_done(state, rows, mapping)
    if not rows.num_rows:
        return
    payload = whole(rows["payload"])
    topic = prints.encoded(rows["topic"])
    others = plain.Plain(topic, payload, mapping)
    if others.handled.any():
        yield from others.tables(state, rows)
        if others.bad:
            yield from _quarantine(state, rows, topic, payload, others.bad)
        rows = rows.filter(pa.array(~others.handled))
    if rows.num_rows:
        yield from _process_packs(state, rows)


def _process_packs(state: State, rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Process messages that must be SenML packs with an identity."""
    topic, payload = prints.encoded(rows["topic"]), whole(rows["payload"])
    packs, bad = _read(payload, topic)
    messages = packs.messages

    # Payload and topic must have the same device.
    topics = topic.dictionary.to_pylist()
    of_topic = pa.array([segments.device_of(text) for text in topics], pa.string())
    place = whole(messages["row"])
    device_name = whole(messages["device"])
    expected = of_topic.take(topic.indices.take(place))
    agree = pc.equal(expected, device_name).to_numpy(zero_copy_only=False)
    if not agree.all():
        bad += [(row, "another device than the topic's") for row in place.to_numpy()[~agree].tolist()]
        messages = messages.filter(pa.array(agree))
    if messages.num_rows:
        own = payload if messages.num_rows == len(payload) else payload.take(whole(messages["row"]))
        batch = _Batch(state, rows, topic, payload, messages, packs.records, prints.of(own))
        bad += batch.bad
        yield from batch.tables()
        yield from batch.overflowed()
    if bad:
        yield from _quarantine(state, rows, topic, payload, bad)


def _without_done(state: State, rows: pa.Table, mapping: Mapping) -> pa.Table:
    """Return rows that were read before, without those that are in quarantine, or were deleted for their age.

    A message in quarantine must not be held again: it would displace another one. The originals of deleted messages do not
    exist any more, so these and their copies would be processed as reused identities, or as a new life. If a changed mapping
    gives a message an identity or takes it away, its rows in the tables are not found by what it is now.
    """
    origin = rows.select([field.name for field in schemas.ORIGIN])
    done = state.has("quarantine", origin)
    payload = whole(rows["payload"])
    is_plain = plain.Plain(prints.encoded(rows["topic"]), payload, mapping).handled
    was_plain, may_be_pack = state.has("plain", origin), is_plain & plain.looks_like_pack(payload)
    done |= ~is_plain & was_plain
    left = np.flatnonzero(may_be_pack & ~was_plain & ~done)
    done[left] = state.has("packs", origin.take(pa.array(left)))
    if state.kept_from_us:
        done |= origin["arrival"].cast(pa.int64()).to_numpy() < state.kept_from_us
        done |= state.has("duplicates", origin)
    return rows.filter(pa.array(~done))


def _quarantine(
    state: State, rows: pa.Table, topic: pa.DictionaryArray, payload: pa.Array, bad: list[tuple[int, str]]
) -> Iterator[tuple[str, pa.Table]]:
    """Yield the rows for quarantine, except those whose readings are in the tables."""
    bad.sort()
    at = pa.array([row for row, _ in bad], pa.int64())
    reasons = pa.array([reason for _, reason in bad], pa.string())
    origin = [whole(rows[field.name]).take(at) for field in schemas.ORIGIN]
    columns = [reasons, topic.dictionary.take(topic.indices.take(at)), payload.take(at), *origin]
    table = table_of(columns, schemas.QUARANTINE)
    if state.again:  # with another mapping: the message is in the tables
        table = table.filter(pa.array(~state.has("plain", table)))
    yield "quarantine", table


def _read(payload: pa.Array, topic: pa.DictionaryArray) -> tuple[senml.Packs, list[tuple[int, str]]]:
    """Read the payloads; boot messages separately from readings, because they have other labels."""
    boot_topics = np.array([text.endswith("/boot") for text in topic.dictionary.to_pylist()], dtype=bool)
    if not boot_topics.any():
        packs = senml.read(payload)
        return packs, packs.bad
    is_boot = boot_topics[topic.indices.to_numpy()]
    messages, records, bad = [], [], []
    for which, are_boots in ((~is_boot, False), (is_boot, True)):
        at = np.flatnonzero(which)
        packs = senml.read(payload.take(pa.array(at)))
        found, readings = _as_boot_messages(packs) if are_boots else packs[:2]
        messages.append(_moved(found, at))
        records.append(_moved(readings, at))
        bad += [(int(at[row]), reason) for row, reason in packs.bad]
    return senml.Packs(_by_row(pa.concat_tables(messages)), pa.concat_tables(records), bad), bad


def _by_row(table: pa.Table) -> pa.Table:
    """Return a table sorted by its column `row`. Columns of nulls are not sorted: most labels are in no message."""
    order = pa.array(np.argsort(table["row"].to_numpy(), kind="stable"))
    columns = [
        pa.nulls(len(table), column.type) if column.null_count == len(table) else column.take(order)
        for column in table.columns
    ]
    return pa.table(columns, schema=table.schema)


def _moved(table: pa.Table, at: np.ndarray) -> pa.Table:
    """Return a table with its column `row`, which has indices of `at`, replaced by the elements of `at`."""
    return table.set_column(0, table.schema.field(0), pa.array(at[table["row"].to_numpy()]))


def _as_boot_messages(packs: senml.Packs) -> tuple[pa.Table, pa.Table]:
    """Fill boot messages' labels from records of these names. The default of `first` is the message's own number.

    Such records describe the message, so they are no readings.
    """
    messages = packs.messages
    for label in EVENT_LABELS:
        column = whole(messages[label])
        named = packs.records.filter(pc.equal(packs.records["name"], label))
        if named.num_rows:
            values = whole(named["text" if label == "cause" else "value"])
            if label != "cause":
                values = pc.if_else(
                    pc.and_(pc.greater_equal(values, 0), pc.less_equal(values, senml.LARGEST)), values, None
                )
            place = pc.index_in(whole(messages["row"]), whole(named["row"]))
            column = pc.coalesce(column, values.take(place).cast(column.type, safe=False))
        if label == "first":
            column = pc.coalesce(column, whole(messages["seq"]))
            column = pc.max_element_wise(column, 1)
        messages = messages.set_column(messages.schema.get_field_index(label), messages.schema.field(label), column)
    is_label = pc.is_in(packs.records["name"], value_set=pa.array(EVENT_LABELS))
    return messages, packs.records.filter(pc.invert(is_label))


class _Batch:
    """The messages of a batch that have an identity, and the result for each.

    Attributes:
        bad: (row, reason) of the messages for quarantine.
    """

    def __init__(
        self,
        state: State,
        rows: pa.Table,
        topic: pa.DictionaryArray,
        payload: pa.Array,
        messages: pa.Table,
        records: pa.Table,
        printed: np.ndarray,
    ):
        self.state, self.messages, self.records, self.printed = state, messages, records, printed
        self.topic, self.payload = topic, payload
        self.own_rows = len(rows)  # higher places are of messages that were held
        self.place = messages["row"].to_numpy()
        self.device = state.device_numbers(whole(messages["device"]))
        self.origin = {field.name: whole(rows[field.name]) for field in schemas.ORIGIN}
        self.origin["collector"] = prints.encoded(rows["collector"])
        if len(self.place) < len(rows):
            self.origin = {name: column.take(pa.array(self.place)) for name, column in self.origin.items()}
        life, boot, seq = (messages[name].to_numpy() for name in ("life", "boot", "seq"))
        arrived = placing.Messages(self.device, life, boot, seq)
        placed = placing.place(state, arrived)
        if len(placed.left):
            placing.place_one_by_one(state, arrived, placed, self._whole(placed.left))
        self.life = placed.life
        self.bad = [(int(self.place[at]), reason) for at, reason in placed.refused]
        self.no_room = [one for one in placed.overflowed if one.place < 0]
        self.bad += [(int(self.place[one.place]), one.reason) for one in placed.overflowed if one.place >= 0]
        if not placed.life.all() or placed.released:
            self._apply_placing(placed)
        self._compare()

    def _whole(self, at: np.ndarray) -> Iterator[lives.Message]:
        """Yield the messages at some indices."""
        index, place = pa.array(at), pa.array(self.place[at])
        columns = [self.messages[name].take(index) for name in ("life", "boot", "seq", "first")]
        columns += [
            pa.array(self.printed[at]),
            *(self.origin[name].take(index) for name in ("collector", "segment", "row")),
        ]
        columns += [
            self.topic.take(place),
            self.payload.take(place),
            self.origin["arrival"].take(index).cast(pa.int64()),
        ]
        for *fields, n in zip(*(one.to_pylist() for one in columns), at.tolist(), strict=True):
            yield lives.Message._make((*fields, "", n))

    def _apply_placing(self, placed: placing.Placed) -> None:
        """Remove messages without a life, hold those that wait for one, and add held ones that have one now."""
        state = self.state
        for device, one in placed.held:
            state.held.setdefault(device, []).append(one._replace(place=-1))
        # A released message is sorted directly after the message that released it.
        order = self.place.astype(np.float64)
        found: list[tuple[lives.Message, int, float]] = []
        for n, (behind, what, life) in enumerate(placed.released, 1):
            moment = self.place[behind] + n / (len(placed.released) + 1)
            if what.place < 0:
                found.append((what, life, moment))
            else:
                self.life[what.place], order[what.place] = life, moment
        kept = np.flatnonzero(self.life > 0)
        self._choose(kept)
        order = order[kept]
        if found:
            order = np.concatenate((order, self._add_released(found)))
        self._choose(np.argsort(order, kind="stable"))

    def _choose(self, at: np.ndarray) -> None:
        """Keep some of the messages, in this order."""
        index = pa.array(at)
        self.messages = self.messages.take(index)
        self.origin = {name: column.take(index) for name, column in self.origin.items()}
        self.place, self.device, self.life, self.printed = (
            one[at] for one in (self.place, self.device, self.life, self.printed)
        )

    def _add_released(self, found: list[tuple[lives.Message, int, float]]) -> np.ndarray:
        """Add messages that were held; return their positions among the others.

        An older version of the pipeline may have held a message that can't be read any more: it goes to quarantine.
        """
        what = [one for one, _, _ in found]
        payload = pa.array([one.payload for one in what], pa.binary())
        packs, bad = _read(payload, pa.array([one.topic for one in what], pa.string()).dictionary_encode())
        self.no_room += [what[row]._replace(reason=reason) for row, reason in bad]
        left = packs.messages["row"].to_numpy()
        at = np.arange(self.own_rows, self.own_rows + len(what))
        messages = _moved(packs.messages, at)
        self.messages = pa.concat_tables([self.messages, messages]).combine_chunks()
        self.records = pa.concat_tables([self.records, _moved(packs.records, at)]).combine_chunks()
        self.place = np.concatenate((self.place, at[left]))
        self.device = np.concatenate((self.device, self.state.device_numbers(whole(messages["device"]))))
        self.life = np.concatenate((self.life, np.array([life for _, life, _ in found], dtype=np.int64)[left]))
        self.printed = np.concatenate((self.printed, prints.of(payload)[left]))
        values = zip(*(one.origin for one in what), strict=True)
        for field, its in zip(schemas.ORIGIN, values, strict=True):
            more = pa.array(its, field.type).take(pa.array(left))
            both = pa.concat_arrays([self.origin[field.name].cast(field.type), more])
            self.origin[field.name] = both.dictionary_encode() if field.name == "collector" else both
        return np.array([moment for _, _, moment in found])[left]

    def _compare(self) -> None:
        """Sort the messages by identity, copies by arrival; distinguish new ones, copies, and others with a used identity.

        `new`, `copy` and the other arrays that are set here are in this order.
        """
        state, messages = self.state, self.messages
        boot, seq = messages["boot"].to_numpy(), messages["seq"].to_numpy()
        self.uptime = whole(messages["uptime"])
        keys = pack(self.device, self.life, boot)
        codes = intervals.encode(state.groups(keys), seq)
        order = self.order = np.argsort(codes, kind="stable")
        codes, keys, printed = codes[order], keys[order], self.printed[order]
        self.group, self.seq = intervals.group_of(codes), seq[order]
        first, known = intervals.begins(codes), state.seen.contains(codes)
        new = self.new = first & ~known
        # The others are compared with the first one of this batch, or with that of an earlier batch.
        at = np.flatnonzero(~new)
        original = printed[np.flatnonzero(first)[np.cumsum(first)[at] - 1]]
        there, earlier = np.ones(len(at), dtype=bool), known[at]
        if earlier.any():
            original[earlier], there[earlier] = state.prints.find(keys[at[earlier]], self.seq[at[earlier]])
        same = there & (original == printed[at])
        self.copy = np.zeros(len(order), dtype=bool)
        self.copy[at[same]] = True
        for wrong, reason in ((~there, lives.NOT_COMPARED), (there & ~same, lives.REUSED)):
            self.bad += [(int(row), reason) for row in self.place[order[at[wrong]]]]
        self.arrival_us = self.origin["arrival"].cast(pa.int64()).to_numpy()[order]
        self.reordered = new & (self._overtaken(codes, order) | (codes < self._highest(codes)))
        state.seen = state.seen.union(codes[new])
        state.prints.add(keys[new], self.seq[new], printed[new])
        self.returned = self._returned(boot, seq)

    def _returned(self, boot: np.ndarray, seq: np.ndarray) -> np.ndarray:
        """Return for each message, in identity order, whether its device went back with it; update the newest messages.

        A device's newest message is the one that arrived last, copies excluded.
        """
        state = self.state
        state.extend_fronts()
        position = np.empty(len(self.order), dtype=np.int64)
        position[self.order] = np.arange(len(self.order))
        at = np.sort(self.order[self.new])
        at = at[np.argsort(self.device[at], kind="stable")]
        device = self.device[at]
        begins = intervals.begins(device)
        arrival = self.arrival_us[position[at]]
        latest = np.maximum(arrival, state.fronts[0][device])
        newest = arrival == latest  # all of them, if times of arrival only rise, as usual
        if not ((latest[1:] >= latest[:-1]) | begins[1:]).all():
            # Ranks, increased from device to device, so that a maximum from the left stays in its device.
            rank = np.unique(latest, return_inverse=True)[1] + np.cumsum(begins) * len(latest)
            newest &= rank == np.maximum.accumulate(rank)
        at, device, arrival = at[newest], device[newest], arrival[newest]
        begins = intervals.begins(device)
        returned = np.zeros(len(self.order), dtype=bool)
        if not len(at):
            return returned
        first = np.flatnonzero(begins)
        before = state.fronts[:, device[first]]
        now = np.stack((arrival, self.life[at], boot[at], seq[at]))
        last = np.roll(now, 1, axis=1)
        last[:, first] = before
        back = now[1] < last[1]
        # Two boards never have the same random life. So with a life, an older boot's message is only a delayed one.
        without_life = self.messages["life"].to_numpy()[at] == 0
        back |= without_life & (now[1] == last[1]) & ((now[2] < last[2]) | (now[3] < last[3] - FAR_BACK))
        back[first[before[0] == 0]] = False  # there was no message of these devices before
        returned[position[at[back]]] = True
        ends = np.append(first[1:] - 1, len(at) - 1)
        state.fronts[:, device[ends]] = now[:, ends]
        return returned

    def overflowed(self) -> Iterator[tuple[str, pa.Table]]:
        """Yield the held messages that go to quarantine because there are too many."""
        if not self.no_room:
            return
        rows = [(one.reason, one.topic, one.payload, *one.origin) for one in self.no_room]
        columns = zip(zip(*rows, strict=True), schemas.QUARANTINE, strict=True)
        yield "quarantine", table_of([pa.array(column, kind.type) for column, kind in columns], schemas.QUARANTINE)

    def _highest(self, codes: np.ndarray) -> np.ndarray:
        """Return for each message the highest code of its group before this batch, 0 if there is none."""
        seen = self.state.seen
        if not len(seen.hi):
            return np.zeros(len(codes), dtype=np.int64)
        above = (intervals.group_of(codes) + 1) << intervals.SEQ_BITS
        at = np.searchsorted(seen.lo, above) - 1
        highest = seen.hi[np.maximum(at, 0)]
        return np.where((at >= 0) & (intervals.group_of(highest) == intervals.group_of(codes)), highest, 0)

    @staticmethod
    def _overtaken(codes: np.ndarray, order: np.ndarray) -> np.ndarray:
        """Return for each message, in identity order, whether one of its group with a higher number arrived before it."""
        # Positions of arrival, increased from group to group, so that a minimum from the right stays in its group.
        place = order + intervals.group_of(codes) * len(order)
        later = np.minimum.accumulate(place[::-1])[::-1]
        return np.concatenate((later[1:] < place[:-1], [False]))

    def tables(self) -> Iterator[tuple[str, pa.Table]]:
        """Yield the tables to write."""
        if not len(self.place):
            return
        order, new, records = self.order, self.new, self.records
        chosen = order[new]
        self.records_of = np.bincount(records["row"].to_numpy(), minlength=int(self.place.max()) + 1)  # by `place`
        yield "readings", self._readings(records, chosen)
        yield "prints", self._prints(chosen)
        yield from self._undelivered(chosen)
        events = self._events(chosen)
        if events.num_rows:
            yield "events", events
        tied = self._ties(chosen)
        if tied.num_rows:
            yield "ties", tied
        if self.copy.any():
            yield "duplicates", self._duplicates()
        if (new | self.copy).any():
            yield "tally", self._tally()

    def _key(self, messages: np.ndarray) -> list[pa.Array]:
        """Return the key columns and seq of some messages."""
        table = self.messages
        at = pa.array(messages)
        names = pa.array(self.state.devices, pa.string())
        return [
            pa.DictionaryArray.from_arrays(pa.array(self.device[messages].astype(np.int32)), names),
            pa.array(self.life[messages].astype(np.int32)),
            whole(table["boot"]).take(at),
            whole(table["seq"]).take(at),
        ]

    def _origin(self, messages: np.ndarray) -> list[pa.Array]:
        """Return the origin columns of some messages."""
        return [column.take(pa.array(messages)) for column in self.origin.values()]

    def _readings(self, records: pa.Table, chosen: np.ndarray) -> pa.Table:
        # Records are sorted by message (`row`); find those of the chosen messages, in the order of `chosen`.
        row = records["row"].to_numpy()
        if (np.diff(row) < 0).any():
            records = records.sort_by([("row", "ascending"), ("index", "ascending")])
        counts = self.records_of[self.place[chosen]]
        begins = np.cumsum(self.records_of)[self.place[chosen]] - counts
        of_message = np.repeat(chosen, counts)
        at = np.arange(len(of_message)) + np.repeat(begins - np.cumsum(counts) + counts, counts)
        where = pa.array(at)
        columns = [whole(records[name]).take(where) for name in records.schema.names[1:]]
        moment = columns[-1].cast(schemas.MOMENT)
        return table_of([*self._key(of_message), *columns[:-1], moment, *self._origin(of_message)], schemas.READINGS)

    def _events(self, chosen: np.ndarray) -> pa.Table:
        """Return the messages with event labels or without readings. So every message is in `readings` or in `events`."""
        table = self.messages
        is_event = self.records_of[self.place] == 0
        for label in EVENT_LABELS:
            if table[label].null_count < table.num_rows:
                is_event |= table[label].is_valid().to_numpy()
        events = chosen[is_event[chosen]]
        at = pa.array(events)
        columns = [whole(table[label]).take(at) for label in EVENT_LABELS]
        columns += [self.uptime.take(at), whole(table["time_us"]).take(at).cast(schemas.MOMENT)]
        return table_of([*self._key(events), *columns, *self._origin(events)], schemas.EVENTS)

    def _ties(self, chosen: np.ndarray) -> pa.Table:
        time = whole(self.messages["time_us"])
        if time.null_count == len(time):
            return schemas.TIES.empty_table()
        clock_us, uptime = pc.fill_null(time, 0).to_numpy()[chosen], pc.fill_null(self.uptime, 0.0).to_numpy()[chosen]
        tied = is_valid(self.uptime)[chosen] & ties.plausible(clock_us, self.arrival_us[self.new])
        at = np.flatnonzero(tied)
        group, seq = self.group[self.new][at], self.seq[self.new][at]
        offset = clock_us[at] - np.rint(uptime[at] * 1e6).astype(np.int64)
        # If these rows have all numbers between two ties, no other batch has a tie between them.
        apart = (np.diff(group) != 0) | (np.diff(seq) != np.diff(at))
        kept = ties.kept(offset, uptime[at], apart)
        messages, offset = chosen[at[kept]], offset[kept]
        uptime, arrival = (column.take(pa.array(messages)) for column in (self.uptime, self.origin["arrival"]))
        return table_of([*self._key(messages), pa.array(offset), uptime, arrival], schemas.TIES)

    def _duplicates(self) -> pa.Table:
        which = self.order[self.copy]
        origin = self._origin(which)
        replay = self._replayed(which)
        cause = pa.array(np.where(replay, "replay", "resend").tolist(), pa.string())
        uptime = self.uptime.take(pa.array(which))
        return table_of([*self._key(which), cause, uptime, *origin], schemas.DUPLICATES)

    def _prints(self, chosen: np.ndarray) -> pa.Table:
        arrival = self.origin["arrival"].take(pa.array(chosen))
        return table_of([*self._key(chosen), pa.array(self.printed[chosen]), arrival], WITH_DAY["prints"])

    def _undelivered(self, chosen: np.ndarray) -> Iterator[tuple[str, pa.Table]]:
        """Yield the numbers that the boards gave up, with the reasons."""
        rows = []
        for reason in schemas.GIVEN_UP:
            label = whole(self.messages[f"{reason}_seqs"])
            if label.null_count == len(label):
                continue
            with_label = chosen[is_valid(label)[chosen]]
            for at, text in zip(with_label.tolist(), label.take(pa.array(with_label)).to_pylist(), strict=True):
                rows += [(at, reason, lo, hi) for lo, hi in senml.ranges(text) or ()]
        if rows:
            places, reasons, lows, highs = zip(*rows, strict=True)
            messages = np.array(places)
            columns = [*self._key(messages), pa.array(reasons, pa.string()), pa.array(lows), pa.array(highs)]
            columns.append(self.origin["arrival"].take(pa.array(messages)))
            yield "undelivered", table_of(columns, WITH_DAY["undelivered"])

    def _replayed(self, messages: np.ndarray) -> np.ndarray:
        """Return for each message whether the same row of a collector's log was read before."""
        was_held = self.place[messages] >= self.own_rows
        return self.state.again & ~was_held

    def _tally(self) -> pa.Table:
        # Messages for quarantine are not counted for a boot.
        counted = self.new | self.copy
        order, new, copy, reordered, returned, group, arrival_us = (
            one if counted.all() else one[counted]
            for one in (self.order, self.new, self.copy, self.reordered, self.returned, self.group, self.arrival_us)
        )
        replay = np.zeros(len(order), dtype=bool)
        replay[copy] = self._replayed(order[copy])
        readings = np.where(new, self.records_of[self.place[order]], 0)
        counts = [new, readings, copy & ~replay, replay, reordered, returned]
        up_us = np.rint(pc.fill_null(self.uptime, 0.0).to_numpy() * 1e6).astype(np.int64)
        delayed = new & is_valid(self.uptime)[order]
        base = np.where(delayed, arrival_us - up_us[order], parts.NO_BASE)
        row = np.flatnonzero(delayed)
        groups, of = np.unique(group, return_inverse=True)
        device, life, boot = unpack(self.state.keys[groups])
        key = [self.state.names_of(device), pa.array(life.astype(np.int32)), pa.array(boot)]
        each = np.ones(len(row), dtype=np.int64)
        return parts.tally(key, of, counts, (arrival_us, arrival_us), base, row, 0 * each, each)
