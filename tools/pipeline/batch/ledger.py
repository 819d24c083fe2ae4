"""The delivery audit, one row per boot. A batch recomputes only the rows of the boots that it changes.

A sequence number is the message's ordinal in the device's life, without gaps between boots. So a boot's last number is the
one before the next boot's first, a gap is a loss, and late data closes the gap. Only the end of a device's newest boot is
open: whether more was published after its last message is unknown until the next message arrives.

A boot's row depends on its own messages, on the first number of the next boot, and on the ranges that the board reported
as in doubt or given up. So a batch recomputes the rows of the boots that it has messages of, of the boots before them, and
of the boots in a newly reported range. The rows of each device's newest boots are in one file, which each batch rewrites.
Rows of older boots are *settled*, in files of some thousand rows; a late message moves its boot's row out of such a file.
The fleet's sums change by the difference between a boot's new row and its old one.

This module uses neither Spark nor files. Its functions map (state, old rows, the batch's tables) to new rows.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tools.pipeline.tables import delays, intervals, schemas, summary
from tools.pipeline.tables.files import whole
from tools.pipeline.tables.parts import merge_tallies

from .lives import MOST_GAP
from .prints import encoded
from .state import BOOT_BITS, State, pack

NEWEST = 2
"""The boots of a device in the file that each batch rewrites: the open one and its predecessor."""
SETTLED_ROWS = 1024
"""A settled file is written when a bucket has this many rows of older boots; until then each batch rewrites them."""
FULL_ROWS = 16_384
"""A settled file of this size is not merged with others any more."""

WEAR = "wear"  # erases of a board's newest sector, in its health message (firmware/app/health.py)
CONNECTS = "connects"  # connections since the boot
MOST_COUNTED = 1 << 31  # a larger value is no counter of a board: another reading may have the same name

Spans = tuple[np.ndarray, np.ndarray]
"""The lowest and the highest number seen of each boot: see `State.spans`."""
REPORTED = {
    **dict.fromkeys(("begun", "dropped_before", "erases_first"), "min"),
    **dict.fromkeys(("dropped_after", "erases", "connects", "told_uptime"), "max"),
    **dict.fromkeys(
        ("cause", "cause_seq"), "first"
    ),  # the cause is from the message with the lowest number that has one
    **dict.fromkeys(("offset_us", "tied_seq"), "last"),  # the clock minus the uptime is from the last tie
}
"""The columns of the audit that are from the boards' messages, and how several messages give one value."""


@dataclass
class Batch:
    """A batch's input for a bucket's audit, collected from the tables of `messages.process`."""

    tallies: list[pa.Table] = field(default_factory=list)
    events: list[pa.Table] = field(default_factory=list)
    ties: list[pa.Table] = field(default_factory=list)
    counters: list[pa.Table] = field(default_factory=list)
    given_up: list[pa.Table] = field(default_factory=list)
    checked: dict[int, tuple[int, int]] = field(default_factory=dict)  # packed key -> messages in the files, rows twice

    def take(self, table: str, rows: pa.Table) -> None:
        """Collect what the audit needs from some rows of a table."""
        if table == "tally":
            self.tallies.append(rows)
        elif table == "ties":
            self.ties.append(rows)
        elif table == "undelivered":
            self.given_up.append(rows.select(schemas.UNDELIVERED.names))
        elif table == "events":
            labels = ("first", "cause", "dropped", "doubt_first", "since")
            self.events.append(rows.filter(reduce(pc.or_, [rows[name].is_valid() for name in labels])))
        elif table == "readings":
            names = encoded(rows["name"])
            wanted = [n for n, name in enumerate(names.dictionary.to_pylist()) if name in {WEAR, CONNECTS}]
            if not wanted:
                return
            at = np.flatnonzero(np.isin(pc.fill_null(names.indices, -1).to_numpy(), wanted))
            chosen = rows.select(["device", "life", "boot", "name", "value", "uptime"]).take(pa.array(at))
            value = chosen["value"]
            plausible = pc.and_kleene(pc.greater_equal(value, 0), pc.less_equal(value, MOST_COUNTED))
            self.counters.append(chosen.filter(plausible))


@dataclass
class Kept:
    """A bucket's audit in its files. `settled` has the keys of settled files; `load` reads one, only for a late message."""

    newest: pa.Table
    lives: pa.Table
    settled: list[str] = field(default_factory=list)
    load: Callable[[str, list[str]], pa.Table] = lambda name, columns: schemas.AUDIT.empty_table()


@dataclass
class Update:
    """A bucket's audit after a batch."""

    newest: pa.Table
    lives: pa.Table
    settled: dict[str, pa.Table | None]  # the new rows of changed settled files; None if no row is left
    spilled: pa.Table | None  # rows for a new settled file
    summary: dict[str, Any]  # what the batch adds to the fleet's sums


def update(state: State, known: np.ndarray, kept: Kept, batch: Batch) -> Update:
    """Add a batch to a bucket's audit.

    Args:
        state: the bucket's state, including the batch.
        known: the packed keys of the boots before the batch.
        kept: the audit before the batch.
        batch: the batch's input.
    """
    tallies = [one.cast(schemas.TALLY) for one in batch.tallies]
    events = _concatenated(batch.events, schemas.EVENTS)
    event_keys = state.keys_of(events)
    reported = _Reported(state, kept.lives, events, event_keys, _concatenated(batch.given_up, schemas.UNDELIVERED))
    changed = np.unique(np.concatenate([state.keys_of(one) for one in tallies] or [np.zeros(0, np.int64)]))
    spans = state.spans()
    wanted = _affected(state, spans, known, np.searchsorted(state.keys, changed), reported.new)
    after = wanted + 1
    after = after[after < len(state.keys)]
    context = np.setdiff1d(after[np.isin(after - 1, wanted)], wanted)
    context = context[_same_life(state.keys, context, context - 1)]

    old, old_keys = kept.newest, state.keys_of(kept.newest)
    settled: dict[str, pa.Table | None] = {}
    needed = state.keys[np.concatenate((wanted, context))]
    if len(kept.settled):
        lacking = np.setdiff1d(needed[np.isin(needed, known)], old_keys)
        for name in kept.settled if len(lacking) else ():
            found = np.isin(state.keys_of(kept.load(name, ["device", "life", "boot"])), lacking)
            if found.any():
                rows = kept.load(name, schemas.AUDIT.names)
                settled[name] = rows.filter(pa.array(~found)) if not found.all() else None
                old = pa.concat_tables([old, rows.filter(pa.array(found))])
        old_keys = state.keys_of(old)
    order = np.argsort(old_keys, kind="stable")
    old, old_keys = old.take(pa.array(order)), old_keys[order]

    again = np.isin(old_keys, state.keys[wanted])
    before = old.filter(pa.array(again))
    rest, rest_keys = old.filter(pa.array(~again)), old_keys[~again]
    made = schemas.AUDIT.empty_table()
    if len(wanted):
        tally = merge_tallies(state.keys_of, [before.select(schemas.TALLY.names), *tallies]).cast(schemas.TALLY)
        prior = before.take(_places(old_keys[again], state.keys[wanted]))
        made = _rows(state, spans, wanted, tally, prior, rest, rest_keys, events, reported, batch)
    lives, devices = _lives(state, kept.lives, before, made, reported)
    sums = summary.of(made)
    summary.add(sums, summary.of(before), -1)
    sums["totals"]["boots"] = len(wanted) - before.num_rows
    sums["totals"]["devices"] = devices

    both = pa.concat_tables([rest, made])
    all_keys = np.concatenate((rest_keys, state.keys[wanted]))
    order = np.argsort(all_keys, kind="stable")
    both, all_keys = both.take(pa.array(order)), all_keys[order]
    old_boots = _older(all_keys)
    spilled = None
    if np.count_nonzero(old_boots) >= SETTLED_ROWS:
        spilled, both = both.filter(pa.array(old_boots)), both.filter(pa.array(~old_boots))
        spilled = _merged_with_smaller(spilled, kept, settled)
    return Update(both, lives, settled, spilled, sums)


def _merged_with_smaller(spilled: pa.Table, kept: Kept, settled: dict[str, pa.Table | None]) -> pa.Table:
    """Return rows for a settled file, merged with those of the newest files that are not larger; these are deleted.

    So there are few small files, and a row is rewritten only each time that its file's size doubles.
    """
    for name in reversed(kept.settled):
        if spilled.num_rows >= FULL_ROWS:
            break
        rows = settled[name] if name in settled else kept.load(name, ["boot"])
        if rows is None:
            continue
        if rows.num_rows >= FULL_ROWS or rows.num_rows > spilled.num_rows:
            break
        if name not in settled:
            rows = kept.load(name, schemas.AUDIT.names)
        spilled = pa.concat_tables([rows, spilled])
        settled[name] = None
    return spilled


def _same_life(keys: np.ndarray, some: np.ndarray, others: np.ndarray) -> np.ndarray:
    return (keys[some] >> BOOT_BITS) == (keys[others] >> BOOT_BITS)


def _affected(
    state: State, spans: Spans, known: np.ndarray, changed: np.ndarray, windows: intervals.Intervals
) -> np.ndarray:
    """Return the indices in `state.keys` of the boots whose rows a batch changes."""
    before = changed[changed > 0] - 1
    before = before[_same_life(state.keys, before, before + 1)]
    # A new boot before the first one of its life: the numbers from 1 on belong to it now.
    after = changed[(changed + 1 < len(state.keys)) & ~np.isin(state.keys[changed], known)] + 1
    after = after[_same_life(state.keys, after, after - 1)]
    lo, hi = windows
    life = intervals.group_of(lo)
    a, b = (np.searchsorted(state.keys, one << BOOT_BITS) for one in (life, life + 1))
    lowest = intervals.encode(state.keys >> BOOT_BITS, spans[0])
    # One more boot on each side: a boot may have begun before its lowest number that arrived.
    begins = np.maximum(np.searchsorted(lowest, lo, side="right") - 2, a)
    ends = np.minimum(np.searchsorted(lowest, hi, side="right") + 1, b)
    some, size = begins < ends, len(state.keys) + 1
    covered = np.bincount(begins[some], minlength=size) - np.bincount(ends[some], minlength=size)
    return np.unique(np.concatenate([changed, before, after, np.flatnonzero(np.cumsum(covered) > 0)]))


def _older(keys: np.ndarray) -> np.ndarray:
    """Return which of the sorted keys are not of their device's newest boots."""
    life = keys >> BOOT_BITS
    same = np.zeros(len(keys), dtype=bool)
    same[:-NEWEST] = life[NEWEST:] == life[:-NEWEST]
    return same


def _concatenated(tables: list[pa.Table], schema: pa.Schema) -> pa.Table:
    return pa.concat_tables([one.cast(schema) for one in tables]) if tables else schema.empty_table()


class _Reported:
    """What the boards of a bucket reported about their sequence numbers so far. A group of the intervals is a packed life.

    Attributes:
        ranges: the numbers of each of schemas.REASONS.
        since: by packed life its first number, if it is not 1.
        new: the ranges that this batch reported, for any reason, not joined.
    """

    def __init__(self, state: State, lives: pa.Table, events: pa.Table, event_keys: np.ndarray, given_up: pa.Table):
        of_row, some = _life_keys(state, lives), lives.filter(lives["since"].is_valid())
        self.since = dict(zip(_life_keys(state, some).tolist(), some["since"].to_pylist(), strict=True))
        new = [self._first_numbers(events, event_keys >> BOOT_BITS)]
        self.ranges: dict[str, intervals.Intervals] = {}
        given = _codes(_life_keys(state, given_up), given_up["lo"], given_up["hi"])
        for reason in schemas.REASONS:
            column = whole(lives[f"{reason}_ranges"])
            of_range = np.repeat(of_row, pc.list_value_length(column).to_numpy())
            lo, hi = (pc.struct_field(column.flatten(), name) for name in ("lo", "hi"))
            known = intervals.EMPTY.joined(_codes(of_range, lo, hi))
            if reason == "in_doubt":
                found = _codes(event_keys >> BOOT_BITS, events["doubt_first"], events["doubt_last"])
            else:
                here = pc.equal(given_up["reason"], reason).to_numpy()
                found = intervals.Intervals(given.lo[here], given.hi[here])
            outside = ~known.covers(*found)  # a board repeats a report until it is acknowledged
            new.append(intervals.Intervals(found.lo[outside], found.hi[outside]))
            self.ranges[reason] = known.joined(new[-1])
        self.new = intervals.Intervals(*(np.concatenate(part) for part in zip(*new, strict=True)))

    def _first_numbers(self, events: pa.Table, life: np.ndarray) -> intervals.Intervals:
        """Note the lives' first numbers; return the number 1 of each life with a new one."""
        at = np.flatnonzero(events["since"].is_valid().to_numpy())
        changed = []
        for key, since in zip(life[at].tolist(), events["since"].take(pa.array(at)).to_pylist(), strict=True):
            if self.since.get(key) != since:
                self.since[key] = max(since, self.since.get(key, 1))
                changed.append(key)
        codes = intervals.encode(np.array(changed, dtype=np.int64), np.ones(len(changed), dtype=np.int64))
        return intervals.Intervals(codes, codes)

    def explain(self, life: np.ndarray, lo: np.ndarray, hi: np.ndarray) -> np.ndarray:
        """Return for each range of missing numbers the count by reason. A number with several reasons has the first."""
        found = np.zeros((len(life), len(self.ranges) + 1), dtype=np.int64)
        union = intervals.EMPTY
        for n, own in enumerate(self.ranges.values(), 1):
            union = union.joined(own)
            found[:, n] = union.members(intervals.encode(life, lo), intervals.encode(life, hi))
        return np.diff(found, axis=1)

    def column(self, reason: str, life: np.ndarray) -> pa.Array:
        """Return the ranges of some lives as a column of lists."""
        own = self.ranges[reason]
        a, b = (np.searchsorted(own.lo, one << intervals.SEQ_BITS) for one in (life, life + 1))
        at = np.concatenate([np.zeros(0, np.int64), *map(np.arange, a[b > a], b[b > a])])
        numbers = [pa.array(intervals.seq_of(one[at])) for one in own]
        offsets = np.concatenate(([0], np.cumsum(b - a))).astype(np.int32)
        return pa.ListArray.from_arrays(
            pa.array(offsets), pa.StructArray.from_arrays(numbers, fields=list(schemas.RANGE))
        )


def _codes(life: np.ndarray, lo: pa.Array, hi: pa.Array) -> intervals.Intervals:
    """Return ranges of numbers of packed lives as codes, as they are; without those that are null or empty."""
    at = np.flatnonzero(pc.fill_null(pc.less_equal(lo, hi), False).to_numpy(zero_copy_only=False))
    first, last = (one.take(pa.array(at)).to_numpy() for one in (lo, hi))
    return intervals.Intervals(intervals.encode(life[at], first), intervals.encode(life[at], last))


def _life_keys(state: State, lives: pa.Table) -> np.ndarray:
    device = state.device_numbers(whole(lives["device"]))
    return np.asarray(pack(device, lives["life"].to_numpy().astype(np.int64), 0) >> BOOT_BITS, dtype=np.int64)


def _places(keys: np.ndarray, wanted: np.ndarray) -> pa.Array:
    """Return the index of each wanted key in sorted keys, null if it is not there."""
    at = np.searchsorted(keys, wanted)
    there = np.append(keys, -1)[at] == wanted
    return pa.array(at, mask=~there)


def _rows(
    state: State,
    spans: Spans,
    wanted: np.ndarray,
    tally: pa.Table,
    prior: pa.Table,
    rest: pa.Table,
    rest_keys: np.ndarray,
    events: pa.Table,
    reported: _Reported,
    batch: Batch,
) -> pa.Table:
    """Return the audit's rows of the boots at the indices `wanted` of `state.keys`, in this order.

    `tally` and `prior` have a row for each of these boots: its tally, and its old row of the audit, null if it is new.
    """
    keys = state.keys[wanted]
    found = _reports(state, keys, prior, events, batch)
    reports = {name: _numbers(found, name) for name in ("begun", "dropped_before", "dropped_after", "offset_us")}

    # The next boot's values: from its new row, if it is recomputed, too; else from its old row.
    begun = np.concatenate((reports["begun"], _numbers(rest, "begun")))
    dropped = np.concatenate((reports["dropped_before"], _numbers(rest, "dropped_before")))
    of = np.concatenate((keys, rest_keys))
    order = np.argsort(of, kind="stable")
    of, begun, dropped = of[order], begun[order], dropped[order]
    follows = wanted + 1 < len(state.keys)
    follows[follows] = _same_life(state.keys, wanted[follows], wanted[follows] + 1)
    next_at = np.minimum(wanted + 1, len(state.keys) - 1)
    place = np.minimum(np.searchsorted(of, state.keys[next_at]), len(of) - 1)
    next_first = np.where(follows, np.fmin(begun[place], spans[0][next_at]), np.nan)
    next_dropped = np.where(follows, dropped[place], np.nan)

    lowest, highest = (one[wanted] for one in spans)
    first = np.fmin(reports["begun"], lowest).astype(np.int64)
    opens = wanted == 0
    opens[~opens] = ~_same_life(state.keys, wanted[~opens], wanted[~opens] - 1)
    since = np.array([reported.since.get(key, 1) for key in (keys[opens] >> BOOT_BITS).tolist()], dtype=np.int64)
    first[opens] = np.minimum(first[opens], since)  # numbers begin at 1: those below the first that arrived were lost
    last = np.fmax(np.fmax(next_first - 1, highest), first - 1).astype(np.int64)
    place_of, lo, hi = _gaps(state, wanted, first, last)
    size = hi - lo + 1
    far = size > MOST_GAP
    suspect = np.bincount(place_of[far], minlength=len(keys))
    unreal = np.bincount(place_of[far], weights=size[far], minlength=len(keys)).astype(np.int64)
    place_of, lo, hi, size = place_of[~far], lo[~far], hi[~far], size[~far]
    missing = np.bincount(place_of, weights=size, minlength=len(keys)).astype(np.int64)
    reasons = np.zeros((len(keys), len(schemas.REASONS)), dtype=np.int64)
    np.add.at(reasons, place_of, reported.explain(keys[place_of] >> BOOT_BITS, lo, hi))
    explained = dict(zip(schemas.REASONS, reasons.T, strict=True))
    # The board's counter of dropped messages, minus those with known numbers, explains as many more missing ones.
    declared = np.where(np.isnan(next_dropped), reports["dropped_after"], next_dropped) - reports["dropped_before"]
    declared = np.nan_to_num(np.fmax(declared, 0)).astype(np.int64)
    unnamed = declared - explained["refused"] - explained["expired"] - explained["dropped"]
    unexplained = missing - reasons.sum(axis=1)
    explained["dropped"] = explained["dropped"] + np.clip(unnamed, 0, unexplained)
    unexplained = missing - sum(explained.values())

    checked = np.array([batch.checked.get(key, (0, 0)) for key in keys.tolist()], dtype=np.int64).reshape(-1, 2)
    in_tables, twice = (
        one + np.nan_to_num(_numbers(prior, name)).astype(np.int64)
        for one, name in zip(checked.T, ("in_tables", "twice"), strict=True)
    )
    published = last - first + 1 - unreal
    ranges = pa.StructArray.from_arrays([pa.array(lo), pa.array(hi)], fields=list(schemas.RANGE))
    offsets = np.searchsorted(place_of, np.arange(len(keys) + 1)).astype(np.int32)
    steps, counts = (whole(tally[name]) for name in ("steps", "counts"))
    columns: dict[str, Any] = {name: tally[name] for name in schemas.TALLY.names}
    columns |= delays.figures(tally["base_us"].to_numpy(), steps, counts, reports["offset_us"])
    columns |= {
        "first_seq": first,
        "last_seq": last,
        "published": published,
        "missing": missing,
        **explained,
        "unexplained": unexplained,
        "suspect": suspect,
        "missing_ranges": pa.ListArray.from_arrays(pa.array(offsets), ranges),
        "in_tables": in_tables,
        "twice": twice,
        "absent": np.maximum(0, published - missing - in_tables),
        "open": ~follows,
        **{name: found[name] for name in REPORTED},
    }
    arrays = [_cast(columns[one.name], one.type) for one in schemas.AUDIT]
    return pa.table(arrays, schema=schemas.AUDIT)


def _cast(column: Any, kind: pa.DataType) -> pa.Array:
    """Return a column as this type; in an array of floats, NaN is null."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if isinstance(column, np.ndarray):
        column = pa.array(column, from_pandas=True)
    return column if column.type == kind else column.cast(kind)


def _numbers(table: pa.Table, name: str) -> np.ndarray:
    """Return a column as floats, null as NaN."""
    column = whole(table[name])
    return pc.fill_null(column.cast(pa.float64(), safe=False), np.nan).to_numpy(zero_copy_only=False)


def _gaps(
    state: State, places: np.ndarray, first: np.ndarray, last: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the ranges between each boot's `first` and `last` that were not seen: (index of the boot, lo, hi), in order."""
    a = np.searchsorted(state.seen.lo, places << intervals.SEQ_BITS)
    b = np.searchsorted(state.seen.lo, (places + 1) << intervals.SEQ_BITS)
    count = b - a
    of = np.repeat(np.arange(len(places)), count + 1)
    ends_at = np.cumsum(count + 1)
    begins_at = ends_at - (count + 1)
    lo, hi = np.empty(len(of), dtype=np.int64), np.empty(len(of), dtype=np.int64)
    within = np.ones(len(of), dtype=bool)
    within[begins_at] = False
    source = np.repeat(a - begins_at, count + 1) + np.arange(len(of)) - 1
    lo[within] = intervals.seq_of(state.seen.hi[source[within]]) + 1
    lo[begins_at] = first
    within[:] = True
    within[ends_at - 1] = False
    hi[within] = intervals.seq_of(state.seen.lo[source[within] + 1]) - 1
    hi[ends_at - 1] = last
    real = lo <= hi
    return of[real], lo[real], hi[real]


def _reports(state: State, keys: np.ndarray, prior: pa.Table, events: pa.Table, batch: Batch) -> pa.Table:
    """Return what the boards reported in some boots, in earlier batches and in this one: a row for each key, in this order."""
    ties, caused = _concatenated(batch.ties, schemas.TIES), events.filter(events["cause"].is_valid())
    parts = [
        {"key": keys} | {name: prior[name] for name, how in REPORTED.items() if how == one}
        for one in ("min", "max", "first", "last")
    ]
    dropped = dict.fromkeys(("dropped_before", "dropped_after"), events["dropped"])
    parts += [
        {"key": state.keys_of(events), "begun": events["first"], **dropped},
        {"key": state.keys_of(caused), "cause_seq": caused["seq"], "cause": caused["cause"]},
        {"key": state.keys_of(ties), "tied_seq": ties["seq"], "offset_us": ties["offset_us"]},
    ]
    for table in batch.counters:
        is_wear, value = pc.equal(table["name"].cast(pa.string()), WEAR), table["value"]
        part = dict.fromkeys(("erases_first", "erases"), pc.if_else(is_wear, value, None))
        part |= {"connects": pc.if_else(is_wear, None, value), "told_uptime": table["uptime"]}
        parts.append(part | {"key": state.keys_of(table)})
    table = pa.concat_tables(map(pa.table, parts), promote_options="default")
    table = table.sort_by([("cause_seq", "ascending"), ("tied_seq", "ascending")])  # no row has both
    return summary.grouped(table, ["key"], REPORTED).sort_by("key")


LIFE_SUMS = [one.name for one in schemas.LIVES if one.type == pa.int64() and not one.nullable and one.name != "boots"]
LIFE_COLUMNS = {
    **dict.fromkeys((*LIFE_SUMS, "boots", "told_uptime", "reconnects"), "sum"),
    "first_arrival": "min",
    "last_arrival": "max",
    "erases_first": "min",
    "erases": "max",
}


def _lives(
    state: State, lives: pa.Table, before: pa.Table, made: pa.Table, reported: _Reported
) -> tuple[pa.Table, int]:
    """Return the rows by device and life, and the number of new devices. Sums change by the differences of the rows."""
    names = ["device", "life", *LIFE_COLUMNS]
    parts = [pa.table({name: lives[name] for name in names})]
    for rows, sign in ((made, 1), (before, -1)):
        part = {name: pc.multiply(rows[name], sign) for name in LIFE_SUMS}
        part |= {"device": rows["device"], "life": rows["life"], "boots": pa.array(np.full(len(rows), sign))}
        part["told_uptime"] = pc.multiply(pc.fill_null(rows["told_uptime"], 0.0), float(sign))
        reconnects = pc.max_element_wise(pc.subtract(rows["connects"], 1.0), 0.0, skip_nulls=False)
        part["reconnects"] = pc.multiply(reconnects, float(sign))
        for name in ("first_arrival", "last_arrival", "erases_first", "erases"):
            part[name] = rows[name] if sign > 0 else pa.nulls(len(rows), rows[name].type)
        parts.append(pa.table({name: part[name] for name in names}))
    found = summary.grouped(pa.concat_tables(parts), ["device", "life"], LIFE_COLUMNS)
    keys = _life_keys(state, found)
    columns: dict[str, Any] = {name: found[name] for name in names}
    columns |= {f"{reason}_ranges": reported.column(reason, keys) for reason in reported.ranges}
    columns["since"] = pa.array([reported.since.get(key) for key in keys.tolist()], pa.int64())
    devices = pc.count_distinct(found["device"]).as_py() - pc.count_distinct(lives["device"]).as_py()
    return pa.table([_cast(columns[one.name], one.type) for one in schemas.LIVES], schema=schemas.LIVES), devices
