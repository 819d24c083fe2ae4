"""The soak as one HTML page that needs no other file and no network: memory, wear and backlog over time."""

from __future__ import annotations

import html
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from tools.proof.soak.samples import Sample

KILLS = {"broker kill": "#c8423b", "collector kill": "#3f6fb0"}
SHADES = ("#3f6fb0", "#b0703f", "#3b8f5a", "#8a6fc2", "#c8423b", "#6b7a90", "#d9b23c", "#7d1f6b", "#4fa3a5", "#a05195")
MOST_POINTS = 1500
STYLE = """
body{font:15px/1.45 system-ui,sans-serif;color:#222;background:#f6f6f4;margin:0 auto;padding:1.5rem;max-width:76rem}
h1{font-size:1.5rem;margin:0 0 .2rem}h2{font-size:1.05rem;margin:0}p{margin:.2rem 0 .6rem;color:#666}
.plots{display:grid;grid-template-columns:repeat(auto-fill,minmax(26rem,1fr));gap:.9rem;align-items:start}
section{background:#fff;border:1px solid #ddd;border-radius:6px;padding:.8rem 1rem;min-width:0;overflow:hidden}
pre{overflow:auto;font-size:13px}
"""
PLAIN = {"displayModeBar": False, "responsive": True}


def _layout(unit: str, from_zero: bool = True) -> dict[str, Any]:
    grid = {"gridcolor": "#e6e6e6", "zeroline": False}
    return {
        "margin": {"l": 65, "r": 15, "t": 10, "b": 45},
        "height": 320,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": "#333"},
        "xaxis": grid | {"title": "seconds since the start"},
        "yaxis": grid | {"title": unit, "rangemode": "tozero" if from_zero else "normal"},
        "legend": {"orientation": "h", "y": -0.25},
    }


def _series(samples: Sequence[Sample], name: str) -> dict[str, list[Sample]]:
    found: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        if sample.name == name:
            found[sample.subject].append(sample)
    return {subject: its[:: 1 + len(its) // MOST_POINTS] for subject, its in sorted(found.items())}


def _lines(series: dict[str, list[Sample]], scale: float, dash: str = "solid", legend: bool = True) -> list[Any]:
    import plotly.graph_objects as go

    drawn = []
    for number, (subject, its) in enumerate(series.items()):
        x: list[float | None] = []
        y: list[float | None] = []
        for before, sample in zip([None, *its], its, strict=False):
            if before is not None and before.life != sample.life:  # another start: no line between the two
                x.append(None)
                y.append(None)
            x.append(round(sample.at_s, 2))
            y.append(sample.value / scale)
        drawn.append(
            go.Scatter(
                x=x,
                y=y,
                mode="lines+markers" if len(its) < 200 else "lines",
                name=subject,
                legendgroup=subject,
                showlegend=legend,
                line={"color": SHADES[number % len(SHADES)], "width": 1.5, "dash": dash},
                marker={"size": 3},
            )
        )
    return drawn


def figures(samples: Sequence[Sample], boards: set[str], moments: Sequence[tuple[float, str]]) -> dict[str, Any]:
    """Return the plots by their headings."""
    import plotly.graph_objects as go

    held = _series(samples, "memory")
    heaps = {subject: its for subject, its in held.items() if subject in boards}
    host = {subject: its for subject, its in held.items() if subject not in boards}
    wear = _lines(_series(samples, "erases_most"), 1) + _lines(_series(samples, "erases_least"), 1, "dot", False)
    drawn = {
        "Heap of the boards": go.Figure(_lines(heaps, 1024), _layout("KB in use", from_zero=False)),
        "Memory of the host's programs": go.Figure(_lines(host, 1 << 20), _layout("MB resident")),
        "Flash wear": go.Figure(wear, _layout("erases of a sector")),
        "Messages that wait": go.Figure(_lines(_series(samples, "waiting"), 1), _layout("messages")),
    }
    for name in ("Memory of the host's programs", "Messages that wait"):
        for at, kind in moments:
            if kind in KILLS:
                drawn[name].add_vline(x=at, line={"color": KILLS[kind], "width": 1, "dash": "dot"})
    return drawn


TEXTS = {
    "Heap of the boards": "As each board reports it after a garbage collection; a line is one boot.",
    "Memory of the host's programs": "A line is one process. Red: the broker was killed; blue: the collector.",
    "Flash wear": "Each board's sector with the most erases (line) and with the fewest (dots), from the headers of its journal.",
    "Messages that wait": "Stored in a board's flash and not yet sent.",
}


def page(title: str, lines: Sequence[str], drawn: dict[str, Any]) -> str:
    """Return the page: the lines that were printed, and the plots."""
    from plotly.io import to_html
    from plotly.offline import get_plotlyjs

    sections = "".join(
        f"<section><h2>{heading}</h2><p>{html.escape(TEXTS[heading])}</p>"
        + to_html(figure, full_html=False, include_plotlyjs=False, config=PLAIN)
        + "</section>"
        for heading, figure in drawn.items()
    )
    told = html.escape("\n".join(lines))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{html.escape(title)}</title>
<link rel="icon" href="data:,"><style>{STYLE}</style>
<script>{get_plotlyjs()}</script></head><body>
<h1>{html.escape(title)}</h1>
<section><pre>{told}</pre></section>
<div class="plots" style="margin-top:.9rem">{sections}</div>
</body></html>
"""
