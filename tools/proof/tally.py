"""Counts the verdicts of cases, for `faults` and `brokers`; keeps the details of those that failed."""

import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tqdm import tqdm

from tools.proof import counts

FAILING = counts.BUILD / "faults-failing"


class Tally:
    """Counts verdicts, and prints those with problems; appends their details to `log`, a new file in `directory`.

    With `shows` it prints the details of all.
    """

    def __init__(self, directory: Path = FAILING, shows: bool = False) -> None:
        self._shows = shows
        self.log = directory / f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.getpid()}.txt"
        self.counts: Counter = Counter()
        self.failing: list[str] = []

    def add(self, verdict: Any) -> None:
        """Count one verdict."""
        self.counts.update({"cases": 1, "violations": int(bool(verdict.problems)), **verdict.counts()})
        if self._shows:
            tqdm.write("\n  ".join([str(verdict.case), *verdict.details()]))
        if verdict.problems:
            self.failing.append(str(verdict.case))
            tqdm.write(f"FAILED {verdict.case}\n       " + "\n       ".join(verdict.problems))
            self.log.parent.mkdir(parents=True, exist_ok=True)
            with self.log.open("a") as log:
                now = f"{time.strftime('%H:%M:%SZ', time.gmtime())}, load average {os.getloadavg()[0]:.1f}"
                print(verdict.case, now, *verdict.problems, *verdict.details(), sep="\n    ", file=log)

    def status(self) -> int:
        """Return the exit status; print where the details of failing cases are."""
        if self.failing:
            print(f"details of the failing cases: {self.log}")
        return 1 if self.failing else 0
