"""Convert SenML packs (RFC 8428, JSON) to columns, a batch of payloads at a time.

If most payloads are packs of one record with the same labels in the same order, and with plain values, a regular expression
checks that, and Arrow's CSV reader reads them in half of the time. Others go to its JSON reader, one line per payload, with a
fixed schema. That reader refuses a whole block for one bad row. Then the batch is halved until the blocks with bad payloads
are small; `orjson` reads their payloads one by one, and gives the reason. So a bad payload costs little time and does not
stop the batch. The number of rows after parsing is compared with the number before, so that a payload can't add rows to
others.

A pack's first record has the message's identity in our own labels: `life`, `boot`, `seq`, `up` (uptime, s); the device is
the base name up to its last "/". Boot messages add `first`, `cause`, `dropped`, `since`. Ranges in doubt are in
`doubt_first` and `doubt_last`. Numbers that the board gave up are in `refused_seqs` etc., as ranges ("5-8,12"). Unknown
labels are ignored, unless they end in "_" (§4.4: must be understood).
"""

import contextlib
import json
import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pyarrow.json as pj

from tools.pipeline.tables.files import is_valid, whole
from tools.pipeline.tables.schemas import EVENTS, GIVEN_UP, KEY, LARGEST, READINGS, SEQ

EVENT_LABELS = ("first", "cause", "dropped", "doubt_first", "doubt_last", "since")
INTEGERS = ("life", *(label for label in EVENT_LABELS if label != "cause"))
LISTS = tuple(f"{reason}_seqs" for reason in GIVEN_UP)
CORE = dict.fromkeys(("bn", "n", "u"), pa.string()) | dict.fromkeys(("boot", "seq", "life"), pa.int64())
CORE |= dict.fromkeys(("up", "v"), pa.float64())
"""The labels of nearly all packs, with their types."""
LABELS = CORE | dict.fromkeys(("bt", "bv", "bs", "bver", "t", "ut", "s"), pa.float64()) | {"vb": pa.bool_()}
LABELS |= dict.fromkeys(("bu", "vs", "vd", "cause", *LISTS), pa.string()) | dict.fromkeys(INTEGERS, pa.int64())
KINDS = {pa.float64(): "number", pa.int64(): "whole number of 64 bits", pa.string(): "text", pa.bool_(): "boolean"}
VERSION = 10
ABSOLUTE_S = 2.0**28  # §4.5.3: smaller times are relative to now
LATEST_S = 253_402_300_799.0  # the end of the year 9999
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9\-:./_]*")  # §4.5.1
REST_OF_NAME = re.compile(r"[A-Za-z0-9\-:./_]*")  # what follows the device
BASE64URL = re.compile(r"[A-Za-z0-9_-]*={0,2}")
RANGE = re.compile(r"[0-9]{1,10}(-[0-9]{1,10})?")
# What Arrow's reader accepts if it ignores unknown labels, but JSON or SenML forbid: a label that must be understood, NaN
# and infinity, numbers that become infinity, data after the pack. A valid text may contain these, too. Such payloads are
# read one by one.
STRICTLY = rb'_"|\\u005[fF]"|NaN|Inf|[0-9]{50}|[eE]\+?[0-9]{3}|\][ \t\r]*,[ \t\r]*"'
LABEL = re.compile(rb'"(\w+)":')
PLAIN = {pa.string(): r'"[^]["{}\\:,\x00-\x1f\x7f-\xff]*"', pa.int64(): "-?(0|[1-9][0-9]{0,17})"}
PLAIN[pa.float64()] = r"-?(0|[1-9][0-9]{0,15})(\.[0-9]+)?([eE][+-]?[0-9]{1,2})?"
"""Values that CSV readers and JSON readers read alike, after `TO_CSV` and without the marks."""
TO_CSV, MARKS = bytes.maketrans(b":", b","), b'[]{}"'
MOST_BRACKETS = 256  # Arrow's reader is recursive: a payload of many "[" would overflow its stack
LONGEST_REASON = 200
NOT_THE_MESSAGE = (MemoryError, ImportError, OSError)
"""Errors of the machine or of the installation: they stop the batch, and another attempt may succeed."""
SMALLEST_BLOCK = 32

# One row per message; one row per record. `row` is an index in the argument of `read`.
MESSAGES = pa.schema(
    [
        pa.field("row", pa.int64(), nullable=False),
        KEY[0],
        KEY[2],
        SEQ,
        pa.field("uptime", pa.float64()),
        pa.field("time_us", pa.int64()),
        *(EVENTS.field(name) for name in EVENT_LABELS),
        pa.field("life", pa.int64(), nullable=False),  # the board's number, 0 for none
        *[pa.field(label, pa.string()) for label in LISTS],
    ]
)
RECORDS = pa.schema(
    [
        MESSAGES.field("row"),
        *list(READINGS)[READINGS.names.index("index") : READINGS.names.index("time")],
        pa.field("time_us", pa.int64()),
    ]
)


class Packs(NamedTuple):
    """The contents of a batch of payloads: valid messages, their records (both sorted by `row`), and (row, reason)."""

    messages: pa.Table
    records: pa.Table
    bad: list[tuple[int, str]]


class BadPack(ValueError):
    """A payload is not a SenML pack with an identity. The text has the reason."""


def unreadable(error: Exception) -> str:
    """Return the reason for the quarantine of a message that raised an unexpected error."""
    text = f"reading it raised {type(error).__name__}, an error of the pipeline (please report it): {error}"
    return text.encode(errors="replace").decode()[:LONGEST_REASON]


def read(payloads: pa.Array) -> Packs:
    """Read a batch of payloads. A payload that raises an unexpected error is bad, and the others are read without it."""
    found = list(_read(payloads.cast(pa.binary()), np.arange(len(payloads), dtype=np.int64)))
    messages, records = (_together([one[n] for one in found], kind) for n, kind in enumerate((MESSAGES, RECORDS)))
    return Packs(messages, records, sorted(one for packs in found for one in packs.bad))


def _read(payloads: pa.Array, rows: np.ndarray, whole: bool = True) -> Iterator[Packs]:
    """Read some payloads. Halve them if the fast reader refuses one, or if one raises an error."""
    if not len(rows):
        return
    try:
        found = _read_block(payloads, rows, whole)
    except NOT_THE_MESSAGE:
        raise
    except Exception as error:
        found = [] if len(rows) > 1 else [_bad([(int(rows[0]), unreadable(error))])]
    yield from found
    if not found:
        half = len(rows) // 2
        yield from _read(payloads[:half], rows[:half], False)
        yield from _read(payloads[half:], rows[half:], False)


def _read_block(payloads: pa.Array, rows: np.ndarray, whole: bool) -> list[Packs]:
    """Read some payloads at once, suspicious ones one by one; return nothing if the reader refuses one of many.

    A whole batch is first read without the labels that are not in use, and refused for any unknown label.
    """
    if whole and (found := _read_alike(payloads, rows)):
        return found
    packs = _parse_block(payloads, CORE | _labels_in_use(payloads), unexpected="error") if whole else None
    if packs is not None and _all_finite(packs):
        return [_resolve(rows, packs)]
    brackets = pc.add(pc.count_substring(payloads, "["), pc.count_substring(payloads, "{"))
    suspicious = pc.or_(pc.greater(brackets, MOST_BRACKETS), pc.match_substring_regex(payloads, STRICTLY))
    slowly = suspicious.to_numpy(zero_copy_only=False)
    packs = _parse_block(payloads.filter(pc.invert(suspicious)), LABELS, unexpected="ignore")
    if packs is None and len(rows) > SMALLEST_BLOCK and not slowly.all():
        return []
    if packs is None:
        return [_read_one_by_one(payloads, rows)]
    return [_resolve(rows[~slowly], packs), _read_one_by_one(payloads.filter(suspicious), rows[slowly])]


def _read_alike(payloads: pa.Array, rows: np.ndarray) -> list[Packs]:
    """Read the payloads that have the first one's labels in its order, and then the others; nothing if these are many."""
    labels = [label.decode() for label in LABEL.findall(payloads[0].as_py() or b"")]
    kinds = [PLAIN.get(LABELS.get(label)) for label in labels]
    if None in kinds or len(set(labels)) < max(1, len(labels)):
        return []
    values = ",".join(f'"{label}":{kind}' for label, kind in zip(labels, kinds, strict=True))
    for some in (_sample(payloads), payloads):
        alike = pc.fill_null(pc.match_substring_regex(some, rf"^\[\{{{values}\}}\]$"), False)
        if 2 * alike.true_count < len(some):
            return []
    lines = pc.binary_join_element_wise(payloads.filter(alike), b"\n", b"").buffers()[2].to_pybytes()
    names = [name for label in labels for name in (f"{label} ", label)]
    table = pcsv.read_csv(
        pa.py_buffer(lines.translate(TO_CSV, MARKS)),
        read_options=pcsv.ReadOptions(use_threads=False, block_size=len(lines), column_names=names),
        parse_options=pcsv.ParseOptions(quote_char=False),
        convert_options=pcsv.ConvertOptions(column_types=LABELS, include_columns=labels, null_values=[]),
    )
    records = pa.StructArray.from_arrays([whole(column) for column in table.columns], labels)
    packs = pa.ListArray.from_arrays(pa.array(np.arange(len(records) + 1, dtype=np.int32)), records)
    which = alike.to_numpy(zero_copy_only=False)
    return [_resolve(rows[which], packs), *_read(payloads.filter(pc.invert(alike)), rows[~which])]


def _sample(payloads: pa.Array) -> pa.Array:
    return payloads.take(pa.array(range(0, len(payloads), max(1, len(payloads) // 16))))


def _bad(reasons: list[tuple[int, str]]) -> Packs:
    return Packs(MESSAGES.empty_table(), RECORDS.empty_table(), reasons)


def _together(parts: list[pa.Table], schema: pa.Schema) -> pa.Table:
    parts = [one for one in parts if one.num_rows]
    if not parts:
        return schema.empty_table()
    if len(parts) == 1:
        return parts[0]
    order = [(name, "ascending") for name in ("row", "index") if name in schema.names]
    return pa.concat_tables(parts).combine_chunks().sort_by(order)


def _labels_in_use(payloads: pa.Array) -> dict[str, pa.DataType]:
    """Return the optional labels in a sample of the payloads. Reading all unused columns would double the time."""
    sample = b"".join(payload or b"" for payload in _sample(payloads).to_pylist())
    return {label: kind for label, kind in LABELS.items() if f'"{label}"'.encode() in sample}


def _parse_block(payloads: pa.Array, fields: dict[str, pa.DataType], unexpected: str) -> pa.Array | None:
    """Return a list of records for each payload, or None if the reader refuses one of them."""
    try:
        text = payloads.cast(pa.string())  # the JSON reader accepts invalid UTF-8
    except pa.ArrowInvalid:
        return None
    lines = pc.binary_join_element_wise('{"p":', text, "}\n", "")
    joined = lines.buffers()[2]
    if np.count_nonzero(np.frombuffer(joined, np.uint8) == ord("\n")) != len(payloads):
        return None  # a line break inside a payload could add rows
    schema = pa.schema([("p", pa.list_(pa.struct(list(fields.items()))))])
    try:
        table = pj.read_json(
            pa.BufferReader(joined),
            read_options=pj.ReadOptions(use_threads=False, block_size=max(1 << 16, joined.size + 1)),
            parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unexpected),
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    # Each payload gives at least one row, because its line begins with our object. More rows are an error.
    if table.num_rows != len(payloads):
        return None
    return whole(table["p"])


def _all_finite(packs: pa.ListArray) -> bool:
    """Return whether all numbers are finite. Arrow's reader accepts NaN and infinity, which JSON does not have."""
    records = packs.flatten()
    for n, field in enumerate(records.type):
        if pa.types.is_floating(field.type):
            with np.errstate(invalid="ignore"):
                if not math.isfinite(pc.sum(pc.struct_field(records, n), min_count=0).as_py()):
                    return False
    return True


def _read_one_by_one(payloads: pa.Array, rows: np.ndarray) -> Packs:
    good_rows, good, bad = [], [], []
    for row, payload in zip(rows.tolist(), payloads.to_pylist(), strict=True):
        try:
            good.append(read_one(payload))
            good_rows.append(row)
        except BadPack as error:
            bad.append((row, str(error)))
    if not good:
        return _bad(bad)
    packs = pa.array(good, pa.list_(pa.struct(list(LABELS.items()))))
    messages, records, wrong = _resolve(np.array(good_rows, dtype=np.int64), packs)
    return Packs(messages, records, bad + wrong)


def read_one(payload: bytes) -> list[dict[str, Any]]:
    """Read one payload strictly; return its records with the known labels.

    Raises:
        BadPack: it is not a list of objects whose known labels have the right types.
    """
    try:
        pack = orjson.loads(payload)
    except orjson.JSONDecodeError as error:
        raise BadPack(f"not JSON: {error.msg}"[:LONGEST_REASON]) from None
    if not isinstance(pack, list):
        raise BadPack("not a pack: no array")
    if not all(isinstance(record, dict) for record in pack):
        raise BadPack("a record is not an object")
    with contextlib.suppress(RecursionError):  # deep values are in labels that nobody knows
        # As lists of pairs: in a dictionary, the last of two equal labels would count.
        for pairs in json.loads(payload, object_pairs_hook=list, parse_int=len, parse_float=len):
            known = [label for label, _ in pairs if label in LABELS]
            if len(known) > len(set(known)):
                raise BadPack(f"label {max(known, key=known.count)} is twice in a record")
    return [_record(record) for record in pack]


def _record(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record's known labels. Unknown labels are ignored."""
    for label in record:
        if label.endswith("_"):
            raise BadPack(f"label {label[:40]!r} must be understood")
    return {label: _typed(label, LABELS[label], value) for label, value in record.items() if label in LABELS}


def _typed(label: str, kind: pa.DataType, value: Any) -> Any:
    if value is None or (kind == pa.string() and isinstance(value, str)):
        return value
    if kind == pa.bool_() and isinstance(value, bool):
        return value
    if kind in (pa.float64(), pa.int64()) and isinstance(value, int | float) and not isinstance(value, bool):
        if kind == pa.float64():
            return float(value)
        if (isinstance(value, int) or value.is_integer()) and -(2**63) <= value < 2**63:
            return int(value)  # MicroPython may print a whole number as 1.0
    raise BadPack(f"{label} is not a {KINDS[kind]}")


def ranges(text: str) -> list[tuple[int, int]] | None:
    """Return the ranges in a text ("5-8,12,40-41"; "" for none), or None if it is not such a text."""
    found = []
    for one in text.split(",") if text else ():
        if not RANGE.fullmatch(one):
            return None
        first, _, last = one.partition("-")
        lo, hi = int(first), int(last or first)
        if not 1 <= lo <= hi <= LARGEST:
            return None
        found.append((lo, hi))
    return found


class _Fields:
    """The columns of a struct array by label; all null for a label that was not read."""

    def __init__(self, records: pa.StructArray):
        self.records = records
        self.names = {field.name: n for n, field in enumerate(records.type)}

    def has(self, label: str) -> bool:
        return label in self.names

    def __getitem__(self, label: str) -> pa.Array:
        if label in self.names:
            return pc.struct_field(self.records, self.names[label])
        return pa.nulls(len(self.records), LABELS[label])


def _resolve(rows: np.ndarray, packs: pa.ListArray) -> Packs:
    """Resolve base fields (§4.1), times and identities; return messages, records, and (row, reason) of bad packs."""
    reasons = _Reasons(len(packs))
    reasons.where(~is_valid(packs), "not a pack: no array")
    counts = pc.fill_null(pc.list_value_length(packs), 0).to_numpy()
    flat = packs.flatten()
    starts = np.concatenate(([0], np.cumsum(counts)))[:-1]
    reasons.where(counts == 0, "an empty pack")
    single = bool((counts == 1).all())
    parent = np.arange(len(packs)) if single else np.repeat(np.arange(len(packs)), counts)
    fields = _Fields(flat)
    if not len(flat):
        return _bad(reasons.listed(rows))
    heads = fields if single else _Fields(flat.take(pa.array(np.minimum(starts, len(flat) - 1))))
    if flat.null_count:
        reasons.where(_any(parent, ~is_valid(flat), len(packs)), "a record is not an object")

    def base(label: str) -> pa.Array:
        column = fields[label]
        if single or not fields.has(label):
            return column
        return _carried(column, starts[parent])

    # Identity.
    for label in ("bn", "boot", "seq"):
        reasons.where(~is_valid(heads[label]), f"no identity: {label} is missing")
    boot = pc.fill_null(heads["boot"], 0).to_numpy()
    seq = pc.fill_null(heads["seq"], 0).to_numpy()
    reasons.where((boot < 0) | (boot > LARGEST) | (seq < 1) | (seq > LARGEST), "boot or seq out of range")
    for label in INTEGERS:
        if heads.has(label):
            number = pc.fill_null(heads[label], 1).to_numpy()
            least = 0 if label in {"dropped", "life"} else 1
            reasons.where((number < least) | (number > LARGEST), f"{label} out of range")
    for label in LISTS:
        if heads.has(label):
            texts = pc.dictionary_encode(pc.fill_null(heads[label], ""))
            legible = np.array([ranges(one) is not None for one in texts.dictionary.to_pylist()], dtype=bool)
            reasons.where(~legible[texts.indices.to_numpy()], f"{label} is no list of ranges")
    up = pc.add(heads["up"], 0.0)  # -0.0 becomes 0.0: the two readers treat the sign of "-0" differently
    up_number = pc.fill_null(up, 0.0).to_numpy(zero_copy_only=False)
    with np.errstate(invalid="ignore"):
        reasons.where(~(np.abs(up_number) < ABSOLUTE_S), "uptime out of range")
    head_bn = pc.dictionary_encode(pc.fill_null(heads["bn"], ""))
    names = head_bn.dictionary.to_pylist()
    device_of = pa.array([name[: name.rfind("/")] if "/" in name else name for name in names], pa.string())
    device = device_of.take(head_bn.indices)
    reasons.where(pc.equal(device, "").to_numpy(zero_copy_only=False), "no identity: bn is empty")

    # Times: bt + t. From 2^28 s on they are absolute, else relative to the message's own time.
    version = fields["bver"]
    if version.null_count < len(version):
        wrong = pc.fill_null(pc.not_equal(version, float(VERSION)), False)
        newer = pc.and_(wrong, pc.invert(pc.fill_null(pc.less(version, float(VERSION)), False)))
        reasons.where(_any(parent, newer.to_numpy(zero_copy_only=False), len(packs)), "bver: a newer SenML")
    time, has_time = _sum(fields["t"], base("bt"))
    with np.errstate(invalid="ignore"):
        reasons.where(_any(parent, ~(np.abs(time) <= LATEST_S), len(packs)), "time out of range")
        absolute = has_time & (time >= ABSOLUTE_S) & (time <= LATEST_S)
        relative = np.where(absolute | ~(np.abs(time) < ABSOLUTE_S), 0.0, time)
        time_us = np.where(absolute, np.rint(np.where(absolute, time, 0.0) * 1e6), 0).astype(np.int64)
    moment = pa.array(time_us, mask=~absolute)
    first_of = np.minimum(starts, len(flat) - 1)
    # `up` is the uptime at the message's own time, which is `bt`, without the first record's `t`.
    own_us, dated = time_us[first_of], absolute[first_of]
    if heads.has("bt") and heads.has("t"):
        head_bt = pc.fill_null(heads["bt"], 0.0).to_numpy()
        with np.errstate(invalid="ignore"):
            is_time = (head_bt >= ABSOLUTE_S) & (head_bt <= LATEST_S)
        own_us = np.where(is_time, np.rint(np.where(is_time, head_bt, 0.0) * 1e6).astype(np.int64), own_us)
        dated |= is_time
    # A record's uptime differs from the message's uptime by the same amount as its time does.
    behind = np.where(absolute, (time_us - own_us[parent]) / 1e6, relative)
    uptime = pa.array(up_number[parent] + behind, mask=~is_valid(up)[parent] | (absolute & ~dated[parent]))

    # Values (§4.5.4): a base value or base sum without a value or sum is added to 0.
    is_head = np.zeros(len(flat), dtype=bool)
    heads_at = starts[counts > 0]
    is_head[heads_at] = ~is_valid(fields["n"])[heads_at]  # a first record without a name may have only the identity
    others = [is_valid(fields[label]) for label in ("vs", "vb", "vd") if fields.has(label)]
    several = sum((other.astype(np.int8) for other in others), is_valid(fields["v"]).astype(np.int8))
    reasons.where(_any(parent, several > 1, len(packs)), "several values in one record")
    alone = (several == 0) & ~(is_head & ~is_valid(fields["s"]))
    value, valued = _sum(fields["v"], base("bv"), is_valid(fields["v"]) | alone)
    total, summed = _sum(fields["s"], base("bs"), is_valid(fields["s"]) | (several > 0) | ~is_head)
    with np.errstate(invalid="ignore"):
        finite = np.isfinite(value) & np.isfinite(total)
    reasons.where(_any(parent, ~finite, len(packs)), "a value is not finite")
    is_reading = (several > 0) | valued | summed
    reasons.where(_any(parent, ~is_reading & ~is_head, len(packs)), "a record without a value")
    if fields.has("vd"):
        reasons.where(_any(parent, ~_decodable(fields["vd"]), len(packs)), "vd is not base64url")
    name, below = _names(base("bn"), fields["n"], device, parent)
    encoded = pc.dictionary_encode(pc.fill_null(name, ""))
    texts = encoded.dictionary.to_pylist()
    index = encoded.indices.to_numpy()
    allowed = np.array([bool(NAME.fullmatch(text)) for text in texts], dtype=bool)[index]
    if below is None or below.any():
        rest = np.array([bool(REST_OF_NAME.fullmatch(text)) for text in texts], dtype=bool)[index]
        allowed |= rest if below is None else rest & below
    reasons.where(_any(parent, is_reading & ~allowed, len(packs)), "a name that SenML forbids")
    unit = fields["u"]
    if fields.has("bu"):
        unit = pc.coalesce(unit, base("bu"))

    good = reasons.good()
    identity = [pa.array(rows), device, pa.array(boot), pa.array(seq), up, pa.array(own_us, mask=~dated)]
    labels = [
        *(heads[label] for label in EVENT_LABELS),
        pc.fill_null(heads["life"], 0),
        *(heads[label] for label in LISTS),
    ]
    messages = pa.table([*identity, *labels], schema=MESSAGES)
    place = [pa.array(rows[parent]), pa.array((np.arange(len(flat)) - starts[parent]).astype(np.int32)), name, unit]
    values = [pa.array(value, mask=~valued), fields["vs"], fields["vb"], fields["vd"], pa.array(total, mask=~summed)]
    records = pa.table([*place, *values, uptime, moment], schema=RECORDS)
    if not good.all():
        messages = messages.filter(pa.array(good))
    keep = is_reading & good[parent]
    if not keep.all():
        records = records.filter(pa.array(keep))
    return Packs(messages, records, reasons.listed(rows))


class _Reasons:
    """For each pack the first error."""

    def __init__(self, size: int):
        self.code = np.zeros(size, dtype=np.int16)
        self.texts = [""]

    def where(self, wrong: np.ndarray, text: str) -> None:
        if wrong.any():
            self.texts.append(text)
            self.code[wrong & (self.code == 0)] = len(self.texts) - 1

    def good(self) -> np.ndarray:
        return self.code == 0

    def listed(self, rows: np.ndarray) -> list[tuple[int, str]]:
        wrong = np.flatnonzero(self.code)
        return [(int(row), self.texts[code]) for row, code in zip(rows[wrong], self.code[wrong], strict=True)]


def _any(parent: np.ndarray, flags: np.ndarray, size: int) -> np.ndarray:
    """Return for each pack whether any of its records is flagged."""
    if not flags.any():
        return np.zeros(size, dtype=bool)
    return np.bincount(parent[flags], minlength=size).astype(bool)


def _carried(column: pa.Array, start: np.ndarray) -> pa.Array:
    """Copy a base field to the following records of its pack."""
    valid = is_valid(column)
    last = np.maximum.accumulate(np.where(valid, np.arange(len(column)), -1))
    return column.take(pa.array(np.maximum(last, 0), mask=last < start))


def _sum(one: pa.Array, other: pa.Array, wanted: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Add a field and its base field; return the sums (0 if both are missing), and which records have one.

    §4.5.3, §4.5.4: a missing one counts as 0. `wanted`: the records to which the base field applies.
    """
    valid = is_valid(one)
    total = one.to_numpy(zero_copy_only=False) if one.null_count == 0 else pc.fill_null(one, 0.0).to_numpy()
    total = total + 0.0  # -0.0 becomes 0.0, as in the uptime
    if other.null_count < len(other):
        base_valid = is_valid(other) if wanted is None else is_valid(other) & wanted
        with np.errstate(over="ignore"):
            total = total + np.where(base_valid, pc.fill_null(other, 0.0).to_numpy(), 0.0)
        valid = valid | base_valid
    return total, valid


def _decodable(column: pa.Array) -> np.ndarray:
    """Return which records have valid base64url (RFC 4648 §5) or nothing in a field. Padding is accepted."""
    encoded = pc.dictionary_encode(pc.fill_null(column, ""))
    good = [
        BASE64URL.fullmatch(text) is not None
        and len(text.rstrip("=")) % 4 != 1
        and (text[-1:] != "=" or len(text) % 4 == 0)
        for text in encoded.dictionary.to_pylist()
    ]
    return np.array(good, dtype=bool)[encoded.indices.to_numpy()]


def _names(bn: pa.Array, n: pa.Array, device: pa.Array, parent: np.ndarray) -> tuple[pa.Array, np.ndarray | None]:
    """Return each record's name: bn + n without "<device>/"; and which records had this prefix.

    The second value is None if all had it. Without the prefix, the name is bn + n.
    """
    encoded = pc.dictionary_encode(pc.fill_null(bn, ""))
    if all(text.endswith("/") and text.count("/") == 1 for text in encoded.dictionary.to_pylist()):
        plain = True
        if len(encoded.dictionary) > 1 and len(parent) != len(device):  # a pack whose bn changes halfway
            plain = bool(
                pc.all(pc.equal(pc.binary_join_element_wise(device.take(pa.array(parent)), "", "/"), bn)).as_py()
            )
        if plain:
            return pc.fill_null(n, "") if n.null_count else n, None
    full = pc.binary_join_element_wise(pc.fill_null(bn, ""), pc.fill_null(n, ""), "")
    prefix = pc.binary_join_element_wise(device.take(pa.array(parent)), "", "/")
    pairs = list(zip(full.to_pylist(), prefix.to_pylist(), strict=True))
    below = np.array([name.startswith(start) for name, start in pairs], dtype=bool)
    trimmed = [name[len(start) :] if name.startswith(start) else name for name, start in pairs]
    return pa.array(trimmed, pa.string()), below
