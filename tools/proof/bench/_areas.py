"""The areas that are measured, and the file of the committed results."""

from __future__ import annotations

from pathlib import Path

RESULTS = Path(__file__).parent / "results.json"
# The areas in the order in which they are measured, the cheap ones first, with the beginnings of their figures' names.
AREAS = {
    "proofs": ("powercut.", "faults.", "hostile.", "soak.", "collector_kills.", "brokers."),
    "size": ("size.",),
    "codec": ("codec.",),
    "journal": ("journal.",),
    "wakes": ("wakes.",),
    "deploy": ("first_reading_s",),
    "chip": ("chip.", "proxy32.", "proxy64."),
    "session": ("session.",),
    "collector": ("collector.",),
    "pipeline": ("pipeline.",),
    "scale": ("scale.",),
}
