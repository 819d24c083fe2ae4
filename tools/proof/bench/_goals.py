"""The goals of the figures, which are in goals.toml, and the text of a figure beside its goal."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

MET, MISSED = "met", "missed"


@dataclass(frozen=True)
class Goal:
    """A bound for one figure.

    Attributes:
        bound: the least or greatest number that meets the goal.
        least: True if the figure has to be at least the bound, False if at most.
    """

    bound: float
    least: bool = False

    @property
    def text(self) -> str:
        """Return the goal's text beside its figure."""
        return f"{'≥' if self.least else '≤'} {shown(self.bound)}" if self.bound or self.least else "0"

    def verdict(self, value: float) -> str:
        """Return "met", or by how much the goal was missed."""
        if (value >= self.bound) if self.least else (value <= self.bound):
            return MET
        if not self.bound:
            return f"{MISSED} by {shown(value)}"
        off = abs(value - self.bound) / self.bound
        if off < 0.01:
            return f"{MISSED} by less than 1%"
        return f"{MISSED} by {off:.0%}" if off < 1 else f"{MISSED}: {value / self.bound:.1f} times"


def shown(value: float) -> str:
    """Return a number's text: three digits, or all digits of an integer."""
    if isinstance(value, int) or abs(value) >= 100:
        return f"{round(value):,}"
    return (
        f"{value:.1f}"
        if abs(value) >= 10
        else f"{value:.2f}".rstrip("0").rstrip(".")
        if abs(value) >= 0.1
        else f"{value:.2g}"
    )


_BOUNDS = tomllib.loads(Path(__file__).with_name("goals.toml").read_text())
GOALS = {name: Goal(bound, kind == "at_least") for kind, some in _BOUNDS.items() for name, bound in some.items()}
