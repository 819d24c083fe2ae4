"""`python -m tools.pipeline.report --out DIR`: one HTML page about a fleet, whole in itself and readable offline.

Spark reduces the tables to what a page can show (`collect`), plotly draws it, and the audit's rows go along as a table to
search. All figures stand in the page once more as JSON (`id="facts"`), which is what the tests hold against the tables.
"""

from __future__ import annotations

import argparse
import html
import json
import sys
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from tools.command import ended

from . import audit
from .commits import Output

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Readings of a board's health message (firmware/app/health.py).
WEAR = "wear"  # erases of its most worn sector
CONNECTS = "connects"  # connections since the boot
MOST_COUNTED = 1 << 31  # a board's counter says no more; another reading may have the same name
ERASES_RATED = 100_000
STEPS = (1, 10, 60, 600, 3600, 21_600, 86_400)
MOST_STEPS = 400
MOST_ROWS = 5_000
MOST_DEVICES = 2_500
SUMS = ("published", "delivered", "resent", "replayed", "missing", "dropped", "in_doubt", "unexplained", "late")
HEALTH = ("healthy", "late", "dropped by policy", "in doubt", "missing", "twice")
COLOURS = ("#3b8f5a", "#d9b23c", "#d98c3c", "#8a6fc2", "#c8423b", "#7d1f6b")


def devices(audited: DataFrame, late_share: float = 0.01) -> DataFrame:
    """Return the audit by device, with its health: an index into HEALTH, the worst that is so."""
    return (
        audited.groupBy("device")
        .agg(
            F.count("*").alias("boots"),
            F.max("life").alias("lives"),
            *[F.sum(name).alias(name) for name in SUMS],
            F.max("last_arrival").alias("last_arrival"),
        )
        .withColumn(
            "health",
            F.when(F.col("unexplained") > 0, 4)
            .when(F.col("in_doubt") > 0, 3)
            .when(F.col("dropped") > 0, 2)
            .when(F.col("late") > late_share * F.col("delivered"), 1)
            .otherwise(0),
        )
    )


def over_time(readings: DataFrame, step_s: int) -> DataFrame:
    """Return how many messages arrived in each stretch of time: at (epoch seconds), messages, readings."""
    at = (F.floor(F.unix_micros("arrival") / (step_s * 1_000_000)) * step_s).alias("at")
    return (
        readings.groupBy(at)
        .agg(F.count_if(F.col("index") == 0).alias("messages"), F.count("*").alias("readings"))
        .orderBy("at")
    )


def delay_histogram(audited: DataFrame) -> DataFrame:
    """Return how many messages were how long on their way: octave (log2 of ms), messages."""
    return (
        audited.select(F.inline("delay_octaves"))
        .groupBy("octave")
        .agg(F.sum("messages").alias("messages"))
        .orderBy("octave")
    )


def own_figures(readings: DataFrame) -> DataFrame:
    """Return what boards tell of themselves: per device erases, the days they took, and reconnects."""
    told = (
        readings.where(F.col("name").isin(WEAR, CONNECTS) & F.col("value").between(0, MOST_COUNTED))
        .groupBy(audit.BOOT)
        .agg(
            F.min(F.when(F.col("name") == WEAR, F.col("value"))).alias("erases_first"),
            F.max(F.when(F.col("name") == WEAR, F.col("value"))).alias("erases"),
            F.max(F.when(F.col("name") == CONNECTS, F.col("value"))).alias("connects"),
            F.max("uptime").alias("uptime"),
        )
    )
    return told.groupBy("device").agg(
        F.max("erases").alias("erases"),
        (F.max("erases") - F.min("erases_first")).alias("erases_seen"),
        (F.sum("uptime") / 86_400).alias("days"),
        F.sum(F.greatest(F.col("connects") - 1, F.lit(0))).cast("long").alias("reconnects"),
    )


def collect(spark: SparkSession, out: str) -> dict[str, Any]:
    """Return all that the page shows, as plain values."""
    from . import session

    output = Output(out)
    audited = spark.read.parquet(output.storage.address("audit"))
    readings = output.read(spark, "readings")
    rows = {table: output.rows(table) for table in ("readings", "quarantine", "tally")}
    with session.small_frames(spark, rows["readings"] < session.SMALL_ROWS):
        total = audited.agg(
            F.countDistinct("device").alias("devices"),
            F.count("*").alias("boots"),
            *[F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in (*SUMS, "reordered", "clock_jumps")],
            (F.unix_micros(F.max("last_arrival")) - F.unix_micros(F.min("first_arrival"))).alias("span_us"),
        ).collect()[0]
        span_s = (total.span_us or 0) / 1e6
        step_s = next((step for step in STEPS if span_s / step <= MOST_STEPS), STEPS[-1])
        health = devices(audited).orderBy(F.desc("health"), F.desc("missing"), "device").limit(MOST_DEVICES).collect()
        time = over_time(readings, step_s).collect()
        histogram = delay_histogram(audited).collect()
        causes = (
            audited.groupBy(F.coalesce("cause", F.lit("not told")).alias("cause")).count().orderBy("cause").collect()
        )
        ranges = audit.missing(audited).orderBy(F.desc("messages"), "device", "lo").limit(MOST_ROWS).collect()
        own = own_figures(readings).orderBy("device").collect()
        reasons = (
            output.read(spark, "quarantine")
            .groupBy("reason")
            .count()
            .orderBy(F.desc("count"), "reason")
            .limit(50)
            .collect()
        )
        worst = audited.orderBy(F.desc("missing"), *audit.BOOT).limit(MOST_ROWS).collect()
    return {
        "totals": {
            **{key: value for key, value in total.asDict().items() if key != "span_us"},
            **rows,
            "span_s": span_s,
        },
        "devices": [_plain(row) for row in health],
        "over_time": {"step_s": step_s, "at": [r.at for r in time], "messages": [r.messages for r in time]},
        "delays": {"octave": [r.octave for r in histogram], "messages": [r.messages for r in histogram]},
        "causes": {row.cause: row["count"] for row in causes},
        "missing": [_plain(row) for row in ranges],
        "own": [_plain(row) for row in own],
        "quarantine": {row.reason: row["count"] for row in reasons},
        "audit": [_plain(row) for row in worst],
    }


def _plain(row: Any) -> dict[str, Any]:
    found = row.asDict()
    for key, value in found.items():
        if hasattr(value, "isoformat"):
            found[key] = value.isoformat(sep=" ", timespec="seconds")
    for name in ("missing_ranges", "delay_octaves"):
        found.pop(name, None)
    return found


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
                marker_color=COLOURS[4],
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
COLUMNS += ["missing", "dropped", "in_doubt", "unexplained", "reordered", "late", "delay_p50_ms", "delay_p99_ms"]
COLUMNS += ["clock_jumps", "dated_by", "last_arrival"]
STYLE = """
body{font:15px/1.45 system-ui,sans-serif;color:#222;background:#f6f6f4;margin:0 auto;padding:1.5rem;max-width:76rem}
h1{font-size:1.5rem;margin:0 0 .2rem}h2{font-size:1.05rem;margin:0}p{margin:.2rem 0 .6rem;color:#666}
.tiles{display:flex;flex-wrap:wrap;gap:.7rem;margin:1rem 0}.tile{background:#fff;border:1px solid #ddd;border-radius:6px;
padding:.5rem .9rem;min-width:7rem}.tile b{display:block;font-size:1.3rem;font-variant-numeric:tabular-nums}
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
<div class="tiles">{shown}</div>
<div class="plots">{"".join(sections)}</div>
<section style="margin-top:.9rem"><h2>The audit, boot by boot</h2>
<input id="search" placeholder="search: a device, cause=watchdog, life=2" aria-label="search"><p id="told"></p>
<div class="scroll"><table id="audit"><thead><tr></tr></thead><tbody></tbody></table></div></section>
<script type="application/json" id="facts">{told}</script><script>{SCRIPT}</script>
</body></html>
"""


def write(spark: SparkSession, out: str, name: str = "report.html", title: str = "flashmqtt: delivery report") -> str:
    """Write the page into the output directory; return its path."""
    storage = Output(out).storage
    with storage.create(name) as file:
        file.write(page(collect(spark, out), title).encode())
    return storage.path(name)


def main() -> int:
    """Write the page of an output directory."""
    from . import session

    parser = argparse.ArgumentParser(prog="python -m tools.pipeline.report", description=__doc__.split("\n")[0])
    parser.add_argument("--out", nargs="?", help="the output directory of the pipeline")
    parser.add_argument("--master", help="Spark master (default: spark-submit's, or this machine)")
    options = parser.parse_args()
    if not options.out:
        print("report: --out is missing: say which tables, `make report OUT=tables`", file=sys.stderr)
        return 2
    output = Output(options.out)
    if not output.storage.exists("audit"):
        print(f"report: {options.out} has no audit yet: run python -m tools.pipeline.run first", file=sys.stderr)
        return 2
    spark = session.make(options.master, session.log_file(output.storage))
    try:
        print(write(spark, options.out))
    finally:
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(ended(main, stopped="stopped"))
