"""`python -m tools.pipeline.report --out DIR`: write an HTML page about a fleet, readable offline: values and delivery.

It is made without Spark, from the sums in the commits, the worst rows of the audit, and the points in series.py's file.
page.html, page.css and page.js are the template. The page has its figures as JSON (`id="facts"`), which the tests compare
with the tables. A small fleet's values are in the page (`id="series"`). A larger fleet's values are in scripts in `report/`,
which the page loads when it needs them, also from a disk.
"""

import datetime
import html
import sys
import time
from functools import reduce
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from tools.command import exit_status, named

from . import options, series, verdict
from .series import FOLDER
from .tables import schemas, summary
from .tables.books import Books, first
from .tables.commits import Output
from .tables.schemas import GIVEN_UP
from .tables.storage import retried
from .verdict import Verdict

NAME, TITLE = "report.html", "flashmqtt: values and delivery"
ERASES_RATED = 100_000
MOST_ROWS = 5_000
MOST_DEVICES = 40_000
"""The most devices listed on the page, worst first. Their bytes are limited, too."""
MOST_FLEET_BYTES = 2_500_000
MOST_NAMES_BYTES = 400_000
MOST_AUDIT_BYTES = 1_300_000
MOST_SERIES_BYTES = 2_000_000
"""The most bytes of values in the page. All these limits are for the encoded text, in which `<` has six bytes."""
MOST_SHOWN = 50
MOST_TEXT = 200
SMALL = 400
"""Up to this number of devices and of plots, the values are in the page."""
EMBEDDED_POINTS = 30_000
MOST_POINTS = 3_000_000
"""The most points of all plots in `report/`."""
IN_A_CHUNK = 24
"""Devices per file of `report/`."""
SUMS = ("published", "delivered", "resent", "replayed", "missing", *GIVEN_UP, "in_doubt", "unexplained", "late")
HEALTH = ("healthy", "late", "given up by the board", "in doubt", "silent", "missing", "twice")
MISSING = HEALTH.index("missing")
LATE_SHARE = 0.01
"""A device with more late messages than this has that health."""
UNPROVED = len(HEALTH)
"""The health of a device whose messages have no identity: there is no proof of their delivery."""


def devices(lives: pa.Table, silence: verdict.Silence) -> pa.Table:
    """Return the sums by device, with its health: the index in HEALTH of its worst problem."""
    sums = dict.fromkeys(("boots", *SUMS, "twice", "absent", "told_uptime", "reconnects"), "sum")
    limits = {"first_arrival": "min", "last_arrival": "max", "erases_first": "min", "erases": "max"}
    found = summary.grouped(lives, ["device"], sums | limits)
    late = pc.greater(found["late"], pc.multiply(pc.cast(found["delivered"], pa.float64()), LATE_SHARE))
    health = pc.case_when(
        pc.make_struct(
            pc.greater(pc.add(found["twice"], found["absent"]), 0),
            pc.greater(found["unexplained"], 0),
            pa.array(silence.of(found)),
            pc.greater(found["in_doubt"], 0),
            pc.greater(reduce(pc.add, [found[name] for name in GIVEN_UP]), 0),
            late,
        ),
        *(pa.scalar(code, pa.int32()) for code in reversed(range(len(HEALTH)))),
    ).combine_chunks()
    return found.append_column("health", health)


def collect(output: Output, found: Verdict, store: series.Store | None = None) -> dict[str, Any]:
    """Return all facts of the page except the values, as plain Python objects; update the values' file."""
    values = store or series.Store(output)
    return retried(lambda: _collected(Books(output, output.newest()), found, values))


def _collected(books: Books, found: Verdict, store: series.Store) -> dict[str, Any]:
    sums = books.commit.summary
    store.update(books.commit)
    by_device: dict[str, list[dict[str, Any]]] = {}
    for (device, _, _), row in found.adjusted.items():
        by_device.setdefault(device, []).append(row)
    none = devices(schemas.LIVES.empty_table(), found.silence)
    worst, own = none.select(SHOWN), dict.fromkeys(OWN, none)
    own_count = dict.fromkeys(OWN, 0)
    health = np.zeros(len(HEALTH) + 1, dtype=np.int64)
    order = [("health", "descending"), ("missing", "descending"), ("device", "ascending")]
    for lives in books.rows("lives", schemas.LIVES.names):
        some = devices(lives, found.silence)
        health += np.bincount(some["health"].to_numpy(), minlength=len(health))
        worst = first([worst, some.select(SHOWN)], order, MOST_DEVICES)
        for one in OWN:
            known = some.filter(some[one].is_valid())
            own_count[one] += known.num_rows
            own[one] = first([own[one], known], [(one, "descending"), ("device", "ascending")], MOST_SHOWN)
    listed = [_corrected(row, by_device) for row in worst.to_pylist()]
    by_name = {row["device"]: row for row in listed}
    sensors, has_days = 0, False
    for device, names, last_ms, has_day in store.sensors():
        sensors, has_days = sensors + len(names), has_days or has_day
        if device in by_name:
            by_name[device]["names"] = names
        elif len(listed) == health.sum() and len(by_name) < MOST_DEVICES:  # the audit does not have it
            by_name[device] = {"device": device, "health": UNPROVED, "names": names, "last_ms": last_ms}
            by_name[device] |= dict.fromkeys(("published", "delivered", "missing"), 0)
    owns = {row["device"]: row for table in own.values() for row in table.to_pylist()}
    totals = {**found.totals, "batches": books.commit.batch, "silent": found.silent}
    totals["devices"] += found.plain
    for name, plain in (("readings", "plain_readings"), ("resent", "plain_copies")):
        totals[name] += totals.get(plain, 0)
    span_us = (sums["last_arrival_us"] or 0) - (sums["first_arrival_us"] or 0)
    order = [("missing", "descending"), ("device", "ascending"), ("life", "ascending"), ("boot", "ascending")]
    columns = [*COLUMNS, "twice", "absent"]
    # All boots with problems come first; of the others, only the devices' newest boots are read.
    some_rows = first(books.rows("audit", columns, verdict.BAD), order, MOST_ROWS).to_pylist()
    some_rows += first(books.rows("audit", columns, ~verdict.BAD, settled=False), order, MOST_ROWS).to_pylist()
    rows = [found.adjusted.get((row["device"], row["life"], row["boot"]), row) for row in some_rows[:MOST_ROWS]]
    octaves = sorted(map(int, sums["octaves"]))
    ranges, all_ranges = _longest_ranges(books.output)
    return {
        "made_ms": time.time_ns() // 1_000_000,
        "version": str(books.commit.batch),
        "last_ms": (sums["last_arrival_us"] or 0) // 1000,
        "undated": sums.get("undated", 0),
        "totals": {**totals, "span_s": span_us / 1e6},
        "verdict": {"line": found.line, "status": found.status},
        "devices": list(by_name.values()),
        "health": health.tolist() if len(listed) < health.sum() else None,
        "sensors": sensors,
        "has_days": has_days,
        "chunks": 1 << (len(by_name) // IN_A_CHUNK).bit_length() if max(sensors, len(by_name)) > SMALL else 1,
        "over_time": {
            "step_s": sums["time"]["step_s"],
            "at": [int(at) for at in sums["time"]["messages"]],
            "messages": list(sums["time"]["messages"].values()),
        },
        "delays": {"octave": octaves, "messages": [sums["octaves"][str(one)] for one in octaves]},
        "causes": dict(sorted(sums["causes"].items())),
        "missing": ranges,
        "missing_ranges": all_ranges,
        "own": [_own(owns[device]) for device in sorted(owns)],
        "own_count": own_count,
        "quarantine": dict(sorted(sums["reasons"].items(), key=lambda item: (-item[1], item[0]))[:MOST_SHOWN]),
        "audit": [{name: _plain(row[name]) for name in columns} for row in rows],
    }


def _longest_ranges(output: Output) -> tuple[list[dict[str, Any]], int]:
    """Return the longest ranges of the table `missing`, and the number of all ranges."""
    order = [("messages", "descending"), ("device", "ascending"), ("lo", "ascending")]
    longest, count = verdict.MISSING.empty_table(), 0
    for batch in output.storage.batches(verdict.FILES["missing"], verdict.MISSING.names):
        count += batch.num_rows
        longest = first([longest, pa.Table.from_batches([batch]).cast(verdict.MISSING)], order, MOST_SHOWN)
    return longest.to_pylist(), count


def _corrected(row: dict[str, Any], adjusted: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return a device's row, corrected by the board's own counters."""
    row["last_ms"] = int(row.pop("last_arrival").timestamp() * 1000)
    boots = adjusted.get(row["device"])
    if boots and row["boots"] == len(boots):
        row |= {name: sum(one[name] for one in boots) for name in ("published", "missing", "unexplained")}
        row["health"] = max(row["health"] if row["health"] != MISSING else 0, MISSING if row["unexplained"] else 0)
    return row


def _own(row: dict[str, Any]) -> dict[str, Any]:
    """Return a board's own counters: erases, the days in which they happened, and reconnects.

    `years_left` are the years until the most worn sector reaches its rated erases, at the rate so far; None if unknown.
    """
    erases, days = row["erases"], row["told_uptime"] / 86_400
    seen = None if erases is None else erases - row["erases_first"]
    return {
        "device": row["device"],
        "erases": erases,
        "erases_seen": seen,
        "days": days,
        "reconnects": None if row["reconnects"] is None else int(row["reconnects"]),
        "years_left": (ERASES_RATED - erases) / (seen / days) / 365.25 if seen and days else None,
    }


def _plain(value: Any) -> Any:
    return value.isoformat(sep=" ", timespec="seconds") if isinstance(value, datetime.datetime) else value


OWN = ("erases", "reconnects")
SHOWN = ["device", "health", "boots", "published", "delivered", "missing", "unexplained", "last_arrival"]
COLUMNS = ["device", "boot", "life", "cause", "first_seq", "last_seq", "published", "delivered", "resent", "replayed"]
COLUMNS += ["missing", *GIVEN_UP, "in_doubt", "unexplained", "suspect", "reordered", "returns", "late"]
COLUMNS += ["delay_p50_ms", "delay_p99_ms"]
COLUMNS += ["last_arrival"]
TILES = ("devices", "boots", "published", "delivered", "missing", "unexplained", "readings")


def page(facts: dict[str, Any]) -> str:
    """Return the page."""
    facts = compact(facts)
    tiles = "".join(
        f'<div class="tile{" bad" if bad else ""}"><b id="total-{name.replace(" ", "-")}">{value:,}</b>{name}</div>'
        for name, value, bad in facts["tiles"]
    )
    here = Path(__file__)
    parts = {
        "title": TITLE,
        "style": here.with_name("page.css").read_text("utf-8"),
        "script": here.with_name("page.js").read_text("utf-8"),
        "verdict": html.escape(facts["verdict"]["line"]),
        "good": "bad" if facts["verdict"]["status"] else "good",
        "tiles": tiles,
        "series": _script("series", facts.pop("series")) if "series" in facts else "",
    }
    parts["facts"] = _script("facts", facts)
    return Template(here.with_name("page.html").read_text("utf-8")).substitute(parts)


def _script(name: str, value: Any) -> str:
    return f'<script type="application/json" id="{name}">{_json(value).decode()}</script>'


def _json(value: Any) -> bytes:
    """Return a value as JSON for the page."""
    return orjson.dumps(value, default=str).replace(b"<", rb"\u003c")


def compact(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts in the form that page.js needs: rows without column names, texts of limited length."""
    total = facts["totals"]
    short: dict[str, Any] = {"folder": FOLDER, "chunks": 1, "version": "", "has_days": False}
    short |= dict.fromkeys(("made_ms", "live", "sensors", "last_ms", "undated"), 0)
    short |= {"missing_ranges": len(facts["missing"]), "own_count": dict.fromkeys(OWN, 0)} | facts
    short["tiles"] = [(name, total[name], name in {"missing", "unexplained"} and total[name] > 0) for name in TILES]
    short["tiles"].insert(6, ("duplicates removed", total["resent"] + total["replayed"], False))
    short["tiles"] += [("in quarantine", total["quarantine"], total["quarantine"] > 0)]
    short["tiles"] += [("silent", total["silent"], total["silent"] > 0)]
    names: dict[tuple[str, ...], int] = {(): 0}
    rows = []
    room, names_room = MOST_FLEET_BYTES, MOST_NAMES_BYTES
    for one in short.pop("devices"):
        key = series.key_of(one["device"])
        own = tuple(_cut(name) for name in one.get("names", ()))
        if own not in names:
            names_room -= len(_json(own))
            if names_room > 0:
                names[own] = len(names)
        room -= len(_json(key)) + 50
        if room < 0:
            break
        last_ms = one.get("last_ms", 0)
        figures = (one["published"], one["delivered"], one["missing"], last_ms)
        rows.append([key, series.part_of(one["device"]), one["health"], names.get(own, 0), *figures])
    short |= {"fleet": rows, "names": list(names), "columns": COLUMNS, "erases_rated": ERASES_RATED}
    codes = [one["health"] for one in facts["devices"]]
    short["health"] = facts.get("health") or np.bincount(codes, minlength=len(HEALTH) + 1).tolist()
    for name in ("missing", "own"):
        short[name] = [one | {"device": _cut(one["device"])} for one in facts[name]]
    for name in ("causes", "quarantine"):
        short[name] = {_cut(text): count for text, count in facts[name].items()}
    room, short["audit"] = MOST_AUDIT_BYTES, []
    for row in facts["audit"]:
        line = [series.key_of(row["device"]), *(_cut(row.get(name)) for name in COLUMNS[1:])]
        room -= len(_json(line)) + 1
        if room < 0:
            break
        short["audit"].append(line)
    return short


def shortened(name: str) -> set[str]:
    """Return the other forms in which pages may have a long name."""
    return {series.key_of(name), _cut(name), name[: series.MOST_NAME]} - {name}


def _cut(value: Any) -> Any:
    return value[:MOST_TEXT] + "…" if isinstance(value, str) and len(value) > MOST_TEXT else value


def write(output: Output, found: Verdict) -> str:
    """Write the page into the output directory; return its path. A large fleet's values are written to `report/`."""
    store = series.Store(output)
    facts = collect(output, found, store)
    most = points_each(facts)
    if facts["chunks"] == 1:
        facts["series"] = store.chunk(0, 1, most)
        if len(_json(facts["series"])) > MOST_SERIES_BYTES:
            del facts["series"]
            facts["chunks"] = 2
    of = facts["chunks"]
    for number in range(of if of > 1 else 0):
        with output.storage.create(f"{FOLDER}/{of}/{number:05d}.js", sync=False) as file:
            file.write(chunk(store, number, of, most))
    for name_of_other in output.storage.list(FOLDER, recursive=True):  # of earlier pages with another number of parts
        if name_of_other.endswith(".js") and name_of_other.split("/")[0] != str(of):
            output.storage.delete(f"{FOLDER}/{name_of_other}")
    with output.storage.create(NAME) as file:
        file.write(page(facts).encode())
    return output.storage.path(NAME)


def points_each(facts: dict[str, Any]) -> int:
    """Return the most points of a plot: fewer if there are many plots."""
    room = EMBEDDED_POINTS if facts["chunks"] == 1 else MOST_POINTS
    return max(32, min(series.POINTS, room // max(1, facts["sensors"])))


def chunk(store: series.Store, number: int, of: int, most: int = series.POINTS) -> bytes:
    """Return a part of the values as a script, because a page from a disk can load only scripts."""
    return b"flashmqtt(%d,%b)\n" % (number, orjson.dumps([*store.chunk(number, of, most).items()]))


@named("report")
def main(argv: list[str] | None = None) -> int:
    """Write the page of an output directory."""
    parser = options.parser("report", __doc__)
    verdict.add_options(parser)
    given = parser.parse_args(argv)
    output = Output.existing(given.out)
    print(write(output, verdict.judge(output, verdict.expectations(given))))
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(main, stopped="stopped"))
