"""The counts of the last long runs: power cuts, link faults, a hostile broker, the collector's kills, the soak.

These runs take minutes to hours, so this area does not repeat them. Each run writes its counts to `build`; this area shows them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tools.proof import counts

if TYPE_CHECKING:
    from tools.proof.bench.__main__ import Bench

# For each run: its command, and the counts to show, in this order. Counts that are not in its file are left out.
RUNS = {
    "powercut": ("make powercut", ("cuts", "violations", "adversary_chains")),
    "faults": ("make faults", ("cases", "lost", "duplicates_qos2", "violations")),
    "hostile": ("make hostile", ("cases", "failing")),
    "brokers": ("make brokers", ("scenarios", "failed")),
    "collector_kills": ("make collector-kills", ("kills", "published", "missing", "repeated")),
    "soak": (
        "make soak",
        (
            "minutes",
            "boards",
            "published",
            "power_cuts",
            "link_cuts",
            "broker_kills",
            "collector_kills",
            "missing",
            "repeated",
        ),
    ),
}


def run(bench: Bench) -> None:
    """Print the counts and record them as figures."""
    rows: list[list[object]] = []
    for name, (command, keys) in RUNS.items():
        counted = counts.read(name)
        if counted is None:
            rows.append([command, "not run on this machine yet"])
            continue
        told = []
        for key in keys:
            value = counted.get(key)
            if isinstance(value, list):
                value = len(value)
            if value is None:
                continue
            bench.figure(f"{name}.{key}", value)
            told.append(f"{value:,} {key.replace('_', ' ')}")
        if counted.get("short"):
            told.append("short form")
        rows.append([command, ", ".join(told)])
        for suite, those in counted.get("suites", {}).items():
            rows.append([f"  {suite}", f"{those['cases']:,} cases, {those.get('violations', 0)} violations"])
    bench.table("proofs: what the last long runs counted", ["command", ""], rows)
