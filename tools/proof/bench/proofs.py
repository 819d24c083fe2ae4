"""The counts of the last long runs: power cuts, link faults, a hostile broker, real brokers, the soak.

These runs take minutes to hours, so this area does not repeat them. Each run writes its counts to `build`; this area shows them.
"""

from tools.proof import counts
from tools.proof.bench.figures import Bench

# For each run, the counts to show, in this order. Counts that are not in its file are left out.
RUNS = {
    "powercut": "cuts violations adversary_chains",
    "faults": "cases lost duplicates_qos2",
    "hostile": "cases failing",
    "brokers": "scenarios failed",
    "soak": "minutes published missing repeated",
}


def run(bench: Bench) -> None:
    """Record the counts as figures."""
    for name, keys in RUNS.items():
        counted = counts.read(name)
        if not counted or counted.get("short"):
            how = "run in its short form" if counted else "not run on this machine yet"
            bench.progress(f"make {name.replace('_', '-')}: {how}")
        for key in filter(counted.__contains__, keys.split()):
            value = counted[key]
            bench.figure(f"{name}.{key}", len(value) if isinstance(value, list) else value)
