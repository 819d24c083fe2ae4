"""What the last `make faults` counted: these runs take too long to repeat for every table."""

from __future__ import annotations

import json


def run(bench) -> None:
    """Report the figures of build/faults.json."""
    path = bench.root / "build" / "faults.json"
    if not path.exists():
        print("\nfaults: not counted on this machine yet; `make faults` does")
        return
    result = json.loads(path.read_text())
    for name in ("lost", "duplicates_qos2", "cases", "violations"):
        bench.figure(f"faults.{name}", result[name])
    rows = [[name, counts["cases"], counts["violations"]] for name, counts in result["suites"].items()]
    bench.table("Faults, from the last `make faults`", ["suite", "cases", "violations"], rows)
