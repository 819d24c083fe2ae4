"""`python -m tools.pipeline.report --out DIR`: one HTML page about a fleet, whole in itself and readable offline.

It is made of the sums that go on from batch to batch and of the worst of the audit's rows, without Spark and without a look
at the readings; plotly draws it, and the audit's rows go along as a table to search. All figures stand in the page once
more as JSON (`id="facts"`), which is what the tests hold against the tables.
"""

from __future__ import annotations

import argparse
import datetime
import html
import json
import sys
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tools.command import ended

from . import schemas, verdict
from .books import Books, as_of_one_commit
from .commits import Output, OutputError
from .ledger import CONNECTS, WEAR
from .storage import StorageError
from .verdict import Verdict

ERASES_RATED = 100_000
MOST_ROWS = 5_000
MOST_DEVICES = 2_500
GIVEN_UP = ("refused", "expired", "dropped", "damaged")
SUMS = ("published", "delivered", "resent", "replayed", "missing", *GIVEN_UP, "in_doubt", "unexplained", "late")
HEALTH = ("healthy", "late", "given up by the board", "in doubt", "silent", "missing", "twice")
MISSING = HEALTH.index("missing")
COLOURS = ("#3b8f5a", "#d9b23c", "#d98c3c", "#8a6fc2", "#5b6b7a", "#c8423b", "#7d1f6b")


def devices(lives: pa.Table, silence: verdict.Silence, late_share: float = 0.01) -> pa.Table:
    """Return the sums by device, with its health: an index into HEALTH, the worst that is so."""
    sums = [(name, "sum") for name in ("boots", *SUMS, "twice", "absent", "told_uptime", "reconnects")]
    found = lives.group_by("device", use_threads=False).aggregate(
        [
            *sums,
            ("life", "max"),
            ("first_arrival", "min"),
            ("last_arrival", "max"),
            ("erases_first", "min"),
            ("erases", "max"),
        ]
    )
    names = {name: name.removesuffix("_sum") for name in found.column_names}
    names |= {name: name.removesuffix("_min").removesuffix("_max") for name in names if name.endswith(("_min", "_max"))}
    found = found.rename_columns([names[name] for name in found.column_names]).rename_columns({"life": "lives"})
    late = pc.greater(found["late"], pc.multiply(pc.cast(found["delivered"], pa.float64()), late_share))
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


def collect(output: Output, found: Verdict) -> dict[str, Any]:
    """Return all that the page shows, as plain values. Its size does not grow with the fleet."""
    told = as_of_one_commit(output, lambda books: _collected(books, found))
    if told is None:
        raise OutputError(f"{output.storage.uri} has no batches: run python -m tools.pipeline.run first")
    return told


def _collected(books: Books, found: Verdict) -> dict[str, Any]:
    summary = books.commit.summary
    by_device: dict[str, list[dict[str, Any]]] = {}
    for (device, _, _), row in found.adjusted.items():
        by_device.setdefault(device, []).append(row)
    worst, own = None, None
    for name in books.commit.state_files("lives"):
        storage = books.output.storage
        with storage.fs.open_input_file(storage.path(name)) as file:
            lives = pq.read_table(
                file, columns=[one for one in schemas.LIVES.names if one != "doubts"], use_threads=False
            )
        some = devices(lives, found.silence)
        worst = _first(worst, some, [("health", "descending"), ("missing", "descending"), ("device", "ascending")])
        tells = some.filter(pc.or_(some["erases"].is_valid(), some["reconnects"].is_valid()))
        own = _first(own, tells, [("erases", "descending"), ("reconnects", "descending"), ("device", "ascending")])
    totals = {**found.totals, "batches": books.commit.batch, "silent": found.silent}
    span_us = (summary["last_arrival_us"] or 0) - (summary["first_arrival_us"] or 0)
    order = [("missing", "descending"), ("device", "ascending"), ("life", "ascending"), ("boot", "ascending")]
    columns = [*COLUMNS, "twice", "absent"]
    # All boots with something amiss come first; of the others only the devices' newest are looked at.
    listed = books.worst("audit", columns, order, MOST_ROWS, verdict.BAD).to_pylist()
    listed += books.worst("audit", columns, order, MOST_ROWS, ~verdict.BAD, settled=False).to_pylist()
    rows = [found.adjusted.get((row["device"], row["life"], row["boot"]), row) for row in listed[:MOST_ROWS]]
    time = summary["time"]
    return {
        "totals": {**totals, "span_s": span_us / 1e6},
        "verdict": {"line": found.line, "status": found.status},
        "devices": [_corrected(row, by_device) for row in _plain_rows(worst)],
        "over_time": {
            "step_s": time["step_s"],
            "at": [int(at) for at in time["messages"]],
            "messages": list(time["messages"].values()),
        },
        "delays": {
            "octave": sorted(int(octave) for octave in summary["octaves"]),
            "messages": [summary["octaves"][key] for key in sorted(summary["octaves"], key=int)],
        },
        "causes": dict(sorted(summary["causes"].items())),
        "missing": _longest_ranges(books.output),
        "own": [_own(row) for row in sorted(_plain_rows(own), key=lambda row: row["device"])],
        "quarantine": dict(sorted(summary["reasons"].items(), key=lambda item: (-item[1], item[0]))[:50]),
        "audit": [{name: _plain(row[name]) for name in columns} for row in rows],
    }


def _first(found: pa.Table | None, more: pa.Table, order: list[tuple[str, str]]) -> pa.Table:
    """Return the first rows of two tables in an order."""
    both = more if found is None else pa.concat_tables([found, more])
    return both.sort_by(order).slice(0, MOST_DEVICES)


def _longest_ranges(output: Output) -> list[dict[str, Any]]:
    """Return the longest ranges of the table `missing`."""
    order = [("messages", "descending"), ("device", "ascending"), ("lo", "ascending")]
    longest = verdict.MISSING.empty_table()
    storage = output.storage
    with storage.fs.open_input_file(storage.path(verdict.FILES["missing"])) as file:
        for batch in pq.ParquetFile(file).iter_batches(use_threads=False):
            longest = pa.concat_tables([longest, pa.Table.from_batches([batch]).cast(verdict.MISSING)])
            longest = longest.sort_by(order).slice(0, MOST_ROWS)
    return longest.to_pylist()


def _corrected(row: dict[str, Any], adjusted: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return a device's row with what its own counter says put in."""
    for name in ("told_uptime", "reconnects", "erases_first", "erases"):
        del row[name]
    told = adjusted.get(row["device"])
    if told and row["boots"] == len(told):
        row |= {name: sum(one[name] for one in told) for name in ("published", "missing", "unexplained")}
        row["health"] = max(row["health"] if row["health"] != MISSING else 0, MISSING if row["unexplained"] else 0)
    return row


def _own(row: dict[str, Any]) -> dict[str, Any]:
    """Return what a board tells of itself: erases, the days they took, and reconnects."""
    erases, first = row["erases"], row["erases_first"]
    return {
        "device": row["device"],
        "erases": erases,
        "erases_seen": None if erases is None else erases - first,
        "days": row["told_uptime"] / 86_400,
        "reconnects": None if row["reconnects"] is None else int(row["reconnects"]),
    }


def _plain_rows(table: pa.Table | None) -> list[dict[str, Any]]:
    rows = table.to_pylist() if table is not None else []
    return [{key: _plain(value) for key, value in row.items()} for row in rows]


def _plain(value: Any) -> Any:
    return value.isoformat(sep=" ", timespec="seconds") if isinstance(value, datetime.datetime) else value


def years_left(own: dict[str, Any]) -> float | None:
    """Return in how many years a board's most worn sector reaches its rated erases, at the rate seen; None where unknown."""
    if not own["erases"] or not own["erases_seen"] or not own["days"]:
        return None
    return (ERASES_RATED - own["erases"]) / (own["erases_seen"] / own["days"]) / 365.25


def figures(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the plots by the id of their place in the page."""
    import plotly.graph_objects as go

    layout: dict[str, Any] = {
        "margin": {"l": 55, "r": 15, "t": 10, "b": 45},
        "height": 300,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": "#333"},
        "xaxis": {"gridcolor": "#e6e6e6", "zeroline": False},
        "yaxis": {"gridcolor": "#e6e6e6", "zeroline": False},
        "bargap": 0.08,
        "showlegend": False,
    }
    found = {}
    fleet = facts["devices"]
    width = max(1, min(50, round((len(fleet) * 2.5) ** 0.5)))
    dots = []
    for code, name in enumerate(HEALTH):
        own = [(n, one) for n, one in enumerate(fleet) if one["health"] == code]
        if own:
            dots.append(
                go.Scatter(
                    x=[n % width for n, _ in own],
                    y=[-(n // width) for n, _ in own],
                    mode="markers",
                    name=name,
                    marker={"symbol": "square", "size": max(6, min(22, 700 // width)), "color": COLOURS[code]},
                    text=[
                        f"{one['device']}: {name}<br>{one['delivered']:,} of {one['published']:,} delivered,"
                        f" {one['missing']:,} missing"
                        for _, one in own
                    ],
                    hoverinfo="text",
                )
            )
    bare = {"xaxis": {"visible": False}, "yaxis": {"visible": False}}
    found["fleet"] = go.Figure(dots, layout | bare | {"showlegend": True, "legend": {"orientation": "h"}})
    time = facts["over_time"]
    stamps = [at * 1000 for at in time["at"]]
    found["time"] = go.Figure(
        [
            go.Bar(
                x=stamps,
                y=time["messages"],
                marker_color="#3f6fb0",
                hovertemplate="%{x}<br>%{y:,} messages<extra></extra>",
            )
        ],
        layout
        | {
            "xaxis": layout["xaxis"] | {"type": "date"},
            "yaxis": layout["yaxis"] | {"title": f"messages in {time['step_s']} s"},
        },
    )
    delays = facts["delays"]
    labels = [_span(2.0**octave) + " to " + _span(2.0 ** (octave + 1)) for octave in delays["octave"]]
    found["delays"] = go.Figure(
        [
            go.Bar(
                x=labels,
                y=delays["messages"],
                marker_color="#3f6fb0",
                hovertemplate="%{x}<br>%{y:,} messages<extra></extra>",
            )
        ],
        layout | {"yaxis": layout["yaxis"] | {"title": "messages"}},
    )
    names = list(facts["causes"])
    found["causes"] = go.Figure([go.Bar(x=names, y=list(facts["causes"].values()), marker_color="#6b7a90")], layout)
    ranges = facts["missing"][:400]
    found["missing"] = go.Figure(
        [
            go.Bar(
                base=[one["lo"] for one in ranges],
                x=[one["messages"] for one in ranges],
                y=[one["device"] for one in ranges],
                orientation="h",
                marker_color=COLOURS[MISSING],
                text=[f"boot {one['boot']}: {one['lo']:,} to {one['hi']:,}" for one in ranges],
                textposition="none",
                hovertemplate="%{y}, %{text}<extra></extra>",
            )
        ],
        layout
        | {"xaxis": layout["xaxis"] | {"title": "sequence number"}, "yaxis": layout["yaxis"] | {"type": "category"}},
    )
    worn = [one for one in facts["own"] if one["erases"] is not None]
    life = [years_left(one) for one in worn]
    found["wear"] = go.Figure(
        [
            go.Bar(
                x=[one["device"] for one in worn],
                y=[one["erases"] for one in worn],
                marker_color="#b0703f",
                text=[f"{years:,.1f} years left" if years is not None else "no rate yet" for years in life],
                textposition="none",
                hovertemplate="%{x}: %{y:,} erases, %{text}<extra></extra>",
            )
        ],
        layout
        | {
            "yaxis": layout["yaxis"] | {"title": "erases of the most worn sector"},
            "xaxis": layout["xaxis"] | {"type": "category"},
        },
    )
    linked = [one for one in facts["own"] if one["reconnects"] is not None]
    found["reconnects"] = go.Figure(
        [go.Bar(x=[one["device"] for one in linked], y=[one["reconnects"] for one in linked], marker_color="#6b7a90")],
        layout | {"xaxis": layout["xaxis"] | {"type": "category"}},
    )
    return found


def _span(ms: float) -> str:
    for limit, unit, size in ((1000, "ms", 1), (60_000, "s", 1000), (3_600_000, "min", 60_000)):
        if ms < limit:
            return f"{ms / size:.3g} {unit}"
    return f"{ms / 3_600_000:.3g} h"


PLOTS = {
    "fleet": ("The fleet", "A square is a device, coloured by the worst that is so. Point at one for its figures."),
    "time": ("Delivery over time", "Messages by the time of their arrival."),
    "delays": ("Delay from capture to arrival", "Of messages whose boot knows the time."),
    "missing": ("Missing ranges", "Sequence numbers that never arrived, the longest first."),
    "causes": ("Boots by cause", "What the boards said of their resets."),
    "wear": ("Flash wear", f"Erases of the most worn sector; projected against {ERASES_RATED:,}."),
    "reconnects": ("Reconnects", "Connections beyond the first of each boot."),
}
EMPTY = {
    "missing": "Nothing is missing.",
    "delays": "No board knows the time, so delays are unknown.",
    "wear": f"No board publishes a reading named {WEAR}.",
    "reconnects": f"No board publishes a reading named {CONNECTS}.",
}
COLUMNS = ["device", "boot", "life", "cause", "first_seq", "last_seq", "published", "delivered", "resent", "replayed"]
COLUMNS += ["missing", *GIVEN_UP, "in_doubt", "unexplained", "suspect", "reordered", "returns", "late"]
COLUMNS += ["delay_p50_ms", "delay_p99_ms"]
COLUMNS += ["clock_jumps", "dated_by", "last_arrival"]
STYLE = """
body{font:15px/1.45 system-ui,sans-serif;color:#222;background:#f6f6f4;margin:0 auto;padding:1.5rem;max-width:76rem}
h1{font-size:1.5rem;margin:0 0 .2rem}h2{font-size:1.05rem;margin:0}p{margin:.2rem 0 .6rem;color:#666}
.tiles{display:flex;flex-wrap:wrap;gap:.7rem;margin:1rem 0}.tile{background:#fff;border:1px solid #ddd;border-radius:6px;
padding:.5rem .9rem;min-width:7rem}.tile b{display:block;font-size:1.3rem;font-variant-numeric:tabular-nums}
p.bad{color:#c8423b;font-weight:600}p.good{color:#3b8f5a;font-weight:600}
.bad b{color:#c8423b}.plots{display:grid;grid-template-columns:repeat(auto-fill,minmax(26rem,1fr));gap:.9rem;
align-items:start}
section{background:#fff;border:1px solid #ddd;border-radius:6px;padding:.8rem 1rem;min-width:0;overflow:hidden}
table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums;width:100%}
th,td{padding:.2rem .5rem;text-align:right;border-bottom:1px solid #eee;white-space:nowrap}
th{cursor:pointer;position:sticky;top:0;background:#fff}td:first-child,th:first-child{text-align:left}
.scroll{overflow:auto;max-height:34rem}input{font:inherit;padding:.3rem .6rem;width:20rem;max-width:100%;margin:.4rem 0}
"""
SCRIPT = """
const facts=JSON.parse(document.getElementById('facts').textContent),columns=facts.columns;
const body=document.querySelector('#audit tbody'),head=document.querySelector('#audit thead tr');
const told=document.getElementById('told');
let by=null,down=false;
function draw(){
  const wanted=document.getElementById('search').value.toLowerCase().split(/\\s+/).filter(Boolean);
  let rows=facts.audit.filter(row=>{const text=columns.map(name=>name+'='+row[name]).join(' ').toLowerCase();
    return wanted.every(word=>text.includes(word))});
  if(by!==null)rows.sort((a,b)=>(a[by]<b[by]?-1:a[by]>b[by]?1:0)*(down?-1:1));
  told.textContent=rows.length.toLocaleString('en')+' of '+facts.audit.length.toLocaleString('en')+' boots';
  body.replaceChildren(...rows.slice(0,500).map(row=>{const line=document.createElement('tr');
    line.append(...columns.map(name=>{const cell=document.createElement('td');const value=row[name];
      cell.textContent=value===null?'':typeof value==='number'?value.toLocaleString('en'):value;return cell}));return line}));
}
head.append(...columns.map(name=>{const cell=document.createElement('th');cell.textContent=name.replaceAll('_',' ');
  cell.onclick=()=>{down=by===name&&!down;by=name;draw()};return cell}));
document.getElementById('search').oninput=draw;draw();
"""


def page(facts: dict[str, Any], title: str) -> str:
    """Return the page."""
    from plotly.io import to_html
    from plotly.offline import get_plotlyjs

    total = facts["totals"]
    tiles = [
        ("devices", total["devices"], False),
        ("boots", total["boots"], False),
        ("published", total["published"], False),
        ("delivered", total["delivered"], False),
        ("missing", total["missing"], total["missing"] > 0),
        ("unexplained", total["unexplained"], total["unexplained"] > 0),
        ("duplicates removed", total["resent"] + total["replayed"], False),
        ("readings", total["readings"], False),
        ("in quarantine", total["quarantine"], total["quarantine"] > 0),
        ("silent", total["silent"], total["silent"] > 0),
    ]
    drawn = figures(facts)
    empty = {
        "missing": not facts["missing"],
        "delays": not facts["delays"]["octave"],
        "wear": not drawn["wear"].data[0].x,
        "reconnects": not drawn["reconnects"].data[0].x,
    }
    sections = []
    for name, (heading, text) in PLOTS.items():
        inside = (
            f"<p>{html.escape(EMPTY[name])}</p>"
            if empty.get(name)
            else to_html(
                drawn[name],
                full_html=False,
                include_plotlyjs=False,
                div_id=f"plot-{name}",
                config={"displaylogo": False},
            )
        )
        sections.append(f"<section><h2>{heading}</h2><p>{html.escape(text)}</p>{inside}</section>")
    if facts["quarantine"]:
        lines = "".join(
            f"<tr><td>{html.escape(reason)}</td><td>{count:,}</td></tr>"
            for reason, count in facts["quarantine"].items()
        )
        sections.append(
            f"<section><h2>Quarantine</h2><p>Messages that could not be read.</p><table>{lines}</table></section>"
        )
    told = json.dumps({**facts, "columns": COLUMNS}, default=str).replace("<", "\\u003c")
    shown = "".join(
        f'<div class="tile{" bad" if bad else ""}"><b id="total-{name.replace(" ", "-")}">{value:,}</b>{name}</div>'
        for name, value, bad in tiles
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{html.escape(title)}</title>
<link rel="icon" href="data:,"><style>{STYLE}</style>
<script>{get_plotlyjs()}</script></head><body>
<h1>{html.escape(title)}</h1><p>What was published, and what became of it.</p>
<p id="verdict" class="{"bad" if facts["verdict"]["status"] else "good"}">{html.escape(facts["verdict"]["line"])}</p>
<div class="tiles">{shown}</div>
<div class="plots">{"".join(sections)}</div>
<section style="margin-top:.9rem"><h2>The audit, boot by boot</h2>
<input id="search" placeholder="search: a device, cause=watchdog, life=2" aria-label="search"><p id="told"></p>
<div class="scroll"><table id="audit"><thead><tr></tr></thead><tbody></tbody></table></div></section>
<script type="application/json" id="facts">{told}</script><script>{SCRIPT}</script>
</body></html>
"""


def write(output: Output, found: Verdict, name: str = "report.html", title: str = "flashmqtt: delivery report") -> str:
    """Write the page into the output directory; return its path."""
    text = page(collect(output, found), title)
    with output.storage.create(name) as file:
        file.write(text.encode())
    return output.storage.path(name)


def main(argv: list[str] | None = None) -> int:
    """Write the page of an output directory."""
    parser = argparse.ArgumentParser(prog="python -m tools.pipeline.report", description=__doc__.split("\n")[0])
    parser.add_argument("--out", nargs="?", help="the output directory of the pipeline")
    verdict.add_options(parser)
    options = parser.parse_args(argv)
    if not options.out:
        print("report: --out is missing: say which tables, `make report OUT=tables`", file=sys.stderr)
        return 2
    try:
        output = Output(options.out)
        output.check_format()
        print(write(output, verdict.judge(output, verdict.expectations(options))))
    except (OutputError, StorageError, OSError, ValueError) as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(ended(main, stopped="stopped"))
