"""The table of the results: printed, and written into a page between two marks."""

import platform
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from tools.proof.brokers.judge import Verdict
from tools.proof.brokers.kinds import KINDS
from tools.proof.brokers.scenarios import SCENARIOS

BEGIN, END = "<!-- brokers -->", "<!-- /brokers -->"


@dataclass
class Results:
    """The results of the cases.

    Attributes:
        verdicts: by broker and scenario.
        versions: of the installed brokers.
        not_run: descriptions of what was not run, with the reason.
    """

    verdicts: dict[tuple[str, str], list[Verdict]] = field(default_factory=lambda: defaultdict(list))
    versions: dict[str, str] = field(default_factory=dict)
    not_run: list[str] = field(default_factory=list)

    @property
    def cases(self) -> int:
        """How many cases there are."""
        return sum(map(len, self.verdicts.values()))


def _cell(verdicts: list[Verdict], notes: dict[str, int]) -> str:
    """Return the result of a scenario with one broker; a broker's deviation is a numbered note."""
    if not verdicts:
        return "not run"
    failed = sum(bool(verdict.problems) for verdict in verdicts)
    found = sorted({notes.setdefault(_without_numbers(text), len(notes) + 1) for v in verdicts for text in v.theirs})
    limits = ", ".join(dict.fromkeys(text for verdict in verdicts for text in verdict.limits)) or "ok"
    text = f"**{failed} of {len(verdicts)} failed**" if failed else limits
    return text + (f" ({', '.join(map(str, found))})" if found else "")


def _without_numbers(text: str) -> str:
    """Return a deviation without the numbers of its messages."""
    head, _, tail = text.rpartition(": ")
    return head if head and tail[:1].isdigit() else text


def table(results: Results) -> str:
    """Return the table, with the notes on what the brokers do, in Markdown."""
    names = list(results.versions)
    notes: dict[str, int] = {}
    head = [f"{name} {results.versions[name]} ({KINDS[name].source})" for name in names]
    lines = ["| | " + " | ".join(head) + " |", "|---|" + "---|" * len(names)]
    lines.append("| levels | " + " | ".join(", ".join(map(str, KINDS[name].levels)) for name in names) + " |")
    for scenario in SCENARIOS.values():
        cells = [_cell(results.verdicts.get((name, scenario.name), []), notes) for name in names]
        if any(cell != "not run" for cell in cells):
            lines.append(f"| {scenario.title} | " + " | ".join(cells) + " |")
    if notes:
        lines += ["", "What the broker does, seen on the wire (in: to the board; out: from it):", ""]
        for text, number in notes.items():
            where: dict[str, set[int]] = defaultdict(set)
            for (broker, _), verdicts in results.verdicts.items():
                where[broker] |= {one.case.level for one in verdicts if text in map(_without_numbers, one.theirs)}
            seen_at = "; ".join(
                f"{broker} at level {', '.join(map(str, sorted(levels)))}" for broker, levels in where.items() if levels
            )
            lines.append(f"{number}. {text} ({seen_at})")
    return "\n".join(lines)


def write(path: Path, results: Results) -> None:
    """Replace the table of a page."""
    text = path.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    machine = f"{results.cases} cases on {time.strftime('%Y-%m-%d')}, Python {platform.python_version()}, {platform.machine()}."
    not_run = "".join(f"\n- not run: {reason}" for reason in results.not_run)
    path.write_text(f"{before}{BEGIN}\n{table(results)}\n\n{machine}\n{not_run}\n{END}{after}")
