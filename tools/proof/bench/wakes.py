"""The costs of a sleeping board's wake: bytes on the wire, page programs, erases (half of the wakes have no network)."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tools.proof.wakes import figures, sleep_and_wake

if TYPE_CHECKING:
    from tools.proof.bench.__main__ import Bench

WAKES = 60


def run(bench: Bench) -> None:
    """Measure."""
    with tempfile.TemporaryDirectory() as scratch:
        result = asyncio.run(sleep_and_wake(WAKES, Path(scratch), 1))
    if result.missing or result.repeated:
        raise RuntimeError(f"{result.missing} messages are missing, {result.repeated} came twice")
    for name, value in figures(result).items():
        bench.figure(f"wakes.{name}", value)
    bench.figure("wakes.messages", result.messages / WAKES)
