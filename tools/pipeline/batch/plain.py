"""Messages without an identity: plain numbers and booleans, and the payloads of a mapping.

The number of published messages is unknown, so there is no proof of their delivery. A message is identified by its position in
the collector's log: a reading's `seq` is its row there; `life` and `boot` are 0. A message is in the tables once for each time
that the collector stored it. Copies that the collector recognised (segments.py), retained messages (RETAIN) and rows of a
log that is read again go to the duplicates. No message depends on another. So the result does not depend on how the
messages are divided into batches.

This module uses neither Spark nor files.
"""

import re
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tools.landing import segments
from tools.pipeline.tables import intervals, schemas, summary
from tools.pipeline.tables.files import table_of, whole

from .mapping import BOOLEANS, NO_READINGS, NOT_FINITE, NUMBER, OURS, Mapping, Misfit, Rule, device_and_name, readings
from .senml import NOT_THE_MESSAGE, unreadable
from .state import State

SCALAR = rf"^[ \t\r\n]*({NUMBER.pattern}|{'|'.join(BOOLEANS)})[ \t\r\n]*$"
DISCOVERY = "homeassistant/"
"""The topics of Home Assistant's discovery: homeassistant/<component>/<device>/..."""
Match = tuple[tuple[Rule, ...], dict[str, str]]
FORGOTTEN = re.compile(r"\*{4,}")
"""What `forget` writes instead of a device's name in messages of several devices. It is not a device."""
ONLY_ASTERISKS = "mapping: the device's name has only asterisks, as `forget` writes for a name: choose another one"
NO_MAPPING = "neither a number, a boolean nor a SenML pack, and no mapping matches its topic"
RETAINED, RESENT, REPLAYED = "retained", "resend", "replay"
ITEMS = pa.schema([pa.field("row", pa.int64()), *[schemas.READINGS.field(name) for name in ("device", "index", "name")],
                   *[schemas.READINGS.field(name) for name in ("unit", "value", "text", "flag", "time")]])  # fmt: skip


def devices_of(topic: str, payload: bytes | None) -> set[str]:
    """Return the possible devices of a message. There are two where only a mapping could tell, or without its payload."""
    levels = topic.split("/")
    if topic.startswith(DISCOVERY):
        return {levels[2]} if len(levels) > 3 else set()
    if topic.startswith((OURS, *NO_READINGS)):
        return {segments.device_of(topic)}
    device, _ = device_and_name(topic)
    return {device} if is_scalar(payload) else {device, segments.device_of(topic)}


def mapped_devices(mapping: Mapping, topic: str, payload: bytes) -> set[str]:
    """Return the devices of a message's readings; empty if no rule of the mapping applies, or the message does not fit it."""
    match = mapping.of(topic)
    if match is None:
        return set()
    try:
        return {one.device for one in readings(*match, payload) if not FORGOTTEN.fullmatch(one.device)}
    except NOT_THE_MESSAGE:
        raise
    except Exception:  # the message goes to quarantine
        return set()


def is_scalar(payload: bytes | None) -> bool:
    """Return whether a payload is one number or boolean."""
    return payload is not None and re.match(SCALAR.encode(), payload) is not None


def looks_like_pack(payload: pa.Array) -> np.ndarray:
    """Return which payloads begin like a SenML pack."""
    return np.asarray(pc.match_substring_regex(payload, rb"^[ \t\r\n]*\[").to_numpy(zero_copy_only=False))


class Plain:
    """The messages of some rows that this module handles.

    Attributes:
        handled: which rows.
        bad: (row, reason) of the messages for quarantine.
    """

    def __init__(self, topic: pa.DictionaryArray, payload: pa.Array, mapping: Mapping):
        topics = topic.dictionary.to_pylist()
        self.topic, self.payload = topic, payload
        self.handled = np.zeros(len(payload), dtype=bool)
        self.bad: list[tuple[int, str]] = []
        self.parts: list[pa.Table] = []
        rules = [mapping.of(text) for text in topics]
        other = np.array([not text.startswith(OURS) for text in topics], dtype=bool)
        mapped = np.array([rule is not None for rule in rules], dtype=bool)
        if not (other | mapped).any():
            return
        index = topic.indices.to_numpy()
        ignored = np.array([text.startswith(NO_READINGS) for text in topics], dtype=bool)
        self.handled |= (ignored & ~mapped)[index]
        if mapped.any():
            at = np.flatnonzero(mapped[index])
            self._apply_mapping(at, [rule for n in index[at].tolist() if (rule := rules[n])])
        if (other & ~ignored & ~mapped).any():
            self._read_scalars(np.flatnonzero((other & ~ignored & ~mapped)[index]))

    def _apply_mapping(self, at: np.ndarray, rules: list[Match]) -> None:
        self.handled[at] = True
        found: list[tuple[object, ...]] = []
        for row, match, payload in zip(at.tolist(), rules, self.payload.take(pa.array(at)).to_pylist(), strict=True):
            try:
                own = readings(*match, payload)
            except Misfit as misfit:
                self.bad.append((row, f"mapping: {misfit}"))
                continue
            except NOT_THE_MESSAGE:
                raise
            except Exception as error:
                self.bad.append((row, unreadable(error)))
                continue
            kept = [(n, one) for n, one in enumerate(own) if not FORGOTTEN.fullmatch(one.device)]
            if own and not kept:  # not by `forget`, which deletes a message without other devices
                self.bad.append((row, ONLY_ASTERISKS))
            found += [(row, one.device, n, one.name, *one[2:]) for n, one in kept]
        if found:
            columns = zip(zip(*found, strict=True), ITEMS, strict=True)
            self.parts.append(pa.table([pa.array(column, kind.type) for column, kind in columns], schema=ITEMS))

    def _read_scalars(self, at: np.ndarray) -> None:
        payload = self.payload.take(pa.array(at))
        is_scalar = pc.match_substring_regex(payload, SCALAR).to_numpy(zero_copy_only=False)
        unknown = at[~is_scalar & ~looks_like_pack(payload)]
        self.bad += [(row, NO_MAPPING) for row in unknown.tolist()]
        self.handled[unknown] = True
        at = at[is_scalar]
        if not len(at):
            return
        self.handled[at] = True
        text = pc.utf8_trim(payload.filter(pa.array(is_scalar)).cast(pa.string()), " \t\r\n")
        distinct = text.dictionary_encode()
        texts = distinct.dictionary.to_pylist()
        flag = pa.array([BOOLEANS.get(one) for one in texts], pa.bool_()).take(distinct.indices)
        # Python parses all numbers of JSON; Arrow refuses some.
        numbers = [None if one in BOOLEANS else float(one) for one in texts]
        value = pa.array(numbers, pa.float64()).take(distinct.indices)
        infinite = pc.fill_null(pc.is_inf(value), False).to_numpy(zero_copy_only=False)
        self.bad += [(row, NOT_FINITE) for row in at[infinite].tolist()]
        topics = self.topic.indices.to_numpy()[at]
        named = [device_and_name(one) for one in self.topic.dictionary.to_pylist()]
        device, name = (pa.array(column, pa.string()).take(pa.array(topics)) for column in zip(*named, strict=True))
        count = len(at)
        arrays = [pa.array(at), device, pa.array(np.zeros(count, dtype=np.int32)), name, pa.nulls(count, pa.string())]
        arrays += [value, pa.nulls(count, pa.string()), flag, pa.nulls(count, schemas.MOMENT)]
        self.parts.append(pa.table(arrays, schema=ITEMS).filter(pa.array(~infinite)))

    def tables(self, state: State, rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        """Yield the readings (`plain`), the duplicates, and the sums by device (`sums`)."""
        items = pa.concat_tables([*self.parts, ITEMS.empty_table()]).combine_chunks()
        items = items.sort_by([("row", "ascending"), ("index", "ascending")])
        if not items.num_rows:
            return
        row = items["row"].to_numpy()
        first = intervals.begins(row)
        cause = self._causes(state, rows, row[first])
        copy = np.array([one is not None for one in cause], dtype=bool)[np.cumsum(first) - 1]
        new = items.filter(pa.array(~copy))
        if new.num_rows:
            columns = {name: whole(new[name]) for name in ITEMS.names[2:]}
            yield "plain", _filled(rows, new, columns, schemas.READINGS)
        if copy.any():
            heads = items.filter(pa.array(copy & first))
            causes = pa.array([one for one in cause if one is not None], pa.string())
            yield "duplicates", _filled(rows, heads, {"cause": causes}, schemas.DUPLICATES)
        yield "sums", _sums_by_device(rows, items, copy, first)

    def _causes(self, state: State, rows: pa.Table, at: np.ndarray) -> list[str | None]:
        """Return for each message why it is a copy; None if it is new."""
        some = rows.take(pa.array(at))
        marked = pc.and_(pc.equal(some["qos"], 0), some["dup"]).to_numpy()
        retained = some["retain"].to_numpy()
        again = (state.has("plain", some) | marked | retained) if state.again else np.zeros(len(at), dtype=bool)
        codes = np.select([again, marked, retained], [1, 2, 3])
        return [(None, REPLAYED, RESENT, RETAINED)[n] for n in codes.tolist()]


def _filled(rows: pa.Table, items: pa.Table, columns: dict[str, pa.Array], schema: pa.Schema) -> pa.Table:
    """Return a table of some items: its key, its origin, the given columns, and nulls."""
    at, count = whole(items["row"]), len(items)
    columns |= {one.name: rows[one.name].take(at).combine_chunks() for one in schemas.ORIGIN}
    columns |= {"device": whole(items["device"]), "seq": columns["row"]}
    columns |= {"life": pa.array(np.zeros(count, np.int32)), "boot": pa.array(np.zeros(count, np.int64))}
    arrays = [columns[one.name] if one.name in columns else pa.nulls(count, one.type) for one in schema]
    return table_of(arrays, schema)


def _sums_by_device(rows: pa.Table, items: pa.Table, copy: np.ndarray, first: np.ndarray) -> pa.Table:
    """Return the sums by device. A message counts for the device of its first reading."""
    arrival = rows["arrival"].take(whole(items["row"])).combine_chunks()
    each = [(first & ~copy), ~copy, (first & copy)]
    columns = [whole(items["device"]), *[pa.array(one.astype(np.int64)) for one in each], arrival, arrival]
    return summed([pa.table(columns, schema=schemas.PLAIN)])


def summed(tables: list[pa.Table]) -> pa.Table:
    """Return the sums by device over several such tables."""
    table = pa.concat_tables([schemas.PLAIN.empty_table(), *(one.cast(schemas.PLAIN) for one in tables)])
    how = dict.fromkeys(("messages", "readings", "copies"), "sum")
    found = summary.grouped(table, ["device"], how | {"first_arrival": "min", "last_arrival": "max"})
    return found.cast(schemas.PLAIN)
