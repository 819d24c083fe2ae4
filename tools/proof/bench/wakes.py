"""The costs of a sleeping board's wake: bytes on the wire, page programs, erases (half of the wakes have no network)."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tools.proof.chain import ABSENCE
from tools.proof.wakes import figures, sleep_and_wake

if TYPE_CHECKING:
    from tools.proof.bench.__main__ import Bench

WAKES = 60


def run(bench: Bench) -> None:
    """Measure."""
    with tempfile.TemporaryDirectory() as scratch:
        result = asyncio.run(sleep_and_wake(WAKES, Path(scratch)))
    if result.missing or result.repeated:
        raise RuntimeError(f"{result.missing} messages are missing, {result.repeated} came twice")
    costs = figures(result)
    messages = result.messages / WAKES
    bench.table(
        f"{WAKES} wakes, {result.faults[ABSENCE]} of them without a network; {messages:.1f} messages a wake, "
        "none lost, none twice",
        ["a wake's", "cost"],
        [
            ["bytes to the broker (median)", costs["bytes_up"]],
            ["bytes from the broker (median)", costs["bytes_down"]],
            ["page programs (mean)", costs["programs"]],
            ["sector erases (mean)", costs["erases"]],
        ],
    )
    for name, value in costs.items():
        bench.figure(f"wakes.{name}", value)
    bench.figure("wakes.messages", messages)
