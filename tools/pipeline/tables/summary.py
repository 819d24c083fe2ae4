"""The fleet's sums over all boots. Each batch adds its differences.

All values are integers, so that they can be subtracted exactly when a boot's row changes. The size depends neither on the
fleet nor on time: the steps of the histogram of arrivals become longer, rare texts are counted together, and long texts are
cut.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from . import intervals
from .files import whole

STEPS = (1, 10, 60, 600, 3600, 21_600, 86_400, 604_800, 2_419_200)
MOST_STEPS = 400
MOST_TEXTS = 50
LONGEST_TEXT = 120  # characters; the longest reason of our own has 106
ELLIPSIS = "…"
OTHERS = "(others)"
FIRST_US, LAST_US = 1_577_836_800_000_000, 4_102_444_800_000_000
"""An arrival before 2020 or after 2100 is from a clock that was not set. It is counted as undated."""

TOTALS = (
    *("published", "delivered", "readings", "resent", "replayed", "missing", "refused", "expired"),
    *("dropped", "damaged", "in_doubt", "unexplained", "suspect"),
    *("late", "reordered", "returns", "in_tables", "twice", "absent"),
)
PLAIN = ("plain_messages", "plain_readings", "plain_copies")
"""For messages without an identity: messages, their readings, and removed copies."""

Summary = dict[str, Any]


def grouped(table: pa.Table, keys: list[str], how: dict[str, str]) -> pa.Table:
    """Return a row for each combination of the key columns; `how` has the aggregation of each other column."""
    found = table.group_by(keys, use_threads=False).aggregate(list(how.items()))
    return found.select([*keys, *(f"{name}_{what}" for name, what in how.items())]).rename_columns([*keys, *how])


def empty() -> Summary:
    """Return an empty summary."""
    return {
        "totals": dict.fromkeys((*TOTALS, *PLAIN, "boots", "devices", "quarantine"), 0),
        "octaves": {},
        "causes": {},
        "reasons": {},
        "topics": {},  # without the device: flashmqtt/+/readings
        "time": {"step_s": STEPS[0], "messages": {}},
        "undated": 0,  # messages with an implausible arrival
        "first_arrival_us": None,
        "last_arrival_us": None,
    }


def of(audit: pa.Table) -> Summary:
    """Return the sums of some rows of the audit, without boots and devices, which the caller counts."""
    found = empty()
    for name in TOTALS:
        found["totals"][name] = pc.sum(audit[name]).as_py() or 0
    flat = whole(audit["delay_octaves"]).flatten()
    octave = pc.struct_field(flat, "octave").to_numpy()
    if len(octave):
        counts = np.bincount(octave, weights=pc.struct_field(flat, "messages").to_numpy())
        found["octaves"] = {str(n): int(count) for n, count in enumerate(counts) if count}
    # "not told" is a key in stored commits: with another one, the rows counted under it could not be subtracted.
    has_cause = pc.not_equal(audit["cause"], "")
    found["causes"] = counts_of(pc.fill_null(pc.if_else(has_cause, audit["cause"], "not told"), "not told"))
    found["first_arrival_us"] = pc.min(audit["first_arrival"].cast(pa.int64())).as_py()
    found["last_arrival_us"] = pc.max(audit["last_arrival"].cast(pa.int64())).as_py()
    return found


def add(into: Summary, more: Summary, sign: int = 1) -> None:
    """Add to a summary. With the sign -1, subtract; the first and the last arrival stay, because they would need all rows."""
    for name, value in more["totals"].items():
        into["totals"][name] = into["totals"].get(name, 0) + sign * value
    for part in ("octaves", "causes", "reasons", "topics"):
        into[part] = _bounded(sum_of(into[part], more[part], sign), part)
    for name, choose in (("first_arrival_us", min), ("last_arrival_us", max)) if sign > 0 else ():
        known = [one[name] for one in (into, more) if one[name] is not None]
        into[name] = choose(known) if known else None
    into["time"] = _joined(into["time"], more["time"], sign)
    into["undated"] = into.get("undated", 0) + sign * more.get("undated", 0)


def add_arrivals(into: Summary, readings: pa.Table) -> None:
    """Count the arrivals of some readings' messages. A message's readings are adjacent."""
    begins = intervals.begins(readings["seq"].to_numpy(), readings["row"].to_numpy())
    arrival_us = readings["arrival"].cast(pa.int64()).to_numpy()[begins]
    dated = arrival_us[(arrival_us > FIRST_US) & (arrival_us < LAST_US)]
    into["undated"] = into.get("undated", 0) + len(arrival_us) - len(dated)
    arrival_us = dated
    if not len(arrival_us):
        return
    first, last = int(arrival_us.min()) // 1_000_000, int(arrival_us.max()) // 1_000_000
    step_s = _step(last - first)
    at, counts = np.unique(arrival_us // (step_s * 1_000_000) * step_s, return_counts=True)
    known = {"step_s": step_s, "messages": dict(zip(map(str, at.tolist()), counts.tolist(), strict=True))}
    into["time"] = _joined(into["time"], known)


def add_reasons(into: Summary, counts: dict[str, int]) -> None:
    """Count messages in quarantine, by reason."""
    into["reasons"] = _bounded(sum_of(into["reasons"], counts), "reasons")
    into["totals"]["quarantine"] += sum(counts.values())


def counts_of(texts: pa.ChunkedArray) -> dict[str, int]:
    """Return how often each text occurs in a column."""
    return {one["values"]: one["counts"] for one in pc.value_counts(texts.cast(pa.string())).to_pylist()}


def add_topics(into: Summary, topic: pa.DictionaryArray) -> None:
    """Count messages by the shape of their topics."""
    shapes = pc.replace_substring_regex(topic.dictionary, r"(?s)^([^/]*)/.*/([^/]*)$", r"\1/+/\2")
    counts = np.bincount(topic.indices.to_numpy(), minlength=len(shapes))
    found = grouped(pa.table({"shape": shapes, "messages": counts}), ["shape"], {"messages": "sum"})
    into["topics"] = _bounded(sum_of(into["topics"], dict(zip(*found.to_pydict().values(), strict=True))), "topics")


def sum_of(one: dict[str, int], other: dict[str, int], sign: int = 1) -> dict[str, int]:
    """Return the sums of two counts by text, or, with the sign -1, their differences; without those that are 0."""
    found = {key: one.get(key, 0) + sign * other.get(key, 0) for key in {**one, **other}}
    return {key: value for key, value in found.items() if value}


def cut(text: str) -> str:
    """Return a text, cut if it is long: a board may send a cause of 250 KB."""
    return text if len(text) <= LONGEST_TEXT else text[:LONGEST_TEXT] + ELLIPSIS


def _bounded(counts: dict[str, int], part: str) -> dict[str, int]:
    """Cut long texts, keep the most frequent ones, and count the others as OTHERS.

    OTHERS does not decrease if a row is subtracted later.
    """
    if part == "octaves":
        return counts
    if any(len(text) > LONGEST_TEXT for text in counts):
        shortened: dict[str, int] = {}
        for text, count in counts.items():
            # Of a topic each level, so that it still matches a filter that is cut in the same way.
            short = "/".join(map(cut, text.split("/"))) if part == "topics" else cut(text)
            shortened[short] = shortened.get(short, 0) + count
        counts = {text: count for text, count in shortened.items() if count}
    if len(counts) <= 4 * MOST_TEXTS:
        return counts
    ranked = sorted(counts.items(), key=lambda item: (item[0] == OTHERS, -abs(item[1]), item[0]))
    kept = dict(ranked[: 2 * MOST_TEXTS])
    kept[OTHERS] = kept.get(OTHERS, 0) + sum(count for _, count in ranked[2 * MOST_TEXTS :])
    return kept


def _step(span_s: float) -> int:
    return next((step for step in STEPS if span_s / step <= MOST_STEPS), STEPS[-1])


def _joined(one: dict[str, Any], other: dict[str, Any], sign: int = 1) -> dict[str, Any]:
    """Add two histograms by time, or subtract one; increase the step until there are at most MOST_STEPS steps."""
    at = [int(key) for part in (one, other) for key in part["messages"]]
    if not at:
        return one
    step_s = max(one["step_s"], other["step_s"], _step(max(at) - min(at)))
    messages: dict[str, int] = {}
    for part, times in ((one, 1), (other, sign)):
        for key, count in part["messages"].items():
            place = str(int(key) // step_s * step_s)
            messages[place] = messages.get(place, 0) + times * count
    return {
        "step_s": step_s,
        "messages": {key: messages[key] for key in sorted(messages, key=int) if messages[key] > 0},
    }
