"""The metrics of a continuous run for Prometheus: rows, lag, quarantine, missing, and the last verdict.

This module uses neither Spark nor the tables: the run sets the values.
"""

import math
import time
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from .tables.commits import Commit
from .verdict import Verdict

PREFIX = "flashmqtt_pipeline_"
PROOF_BUCKETS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


class Metrics:
    """A run's metrics, in a separate registry."""

    def __init__(self, out: str) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)

        def metric(kind: Any, name: str, text: str, **options: Any) -> Any:
            return kind(PREFIX + name, text, ["out"], registry=self.registry, **options).labels(out)

        gauge = partial(metric, Gauge)
        rows = Counter(PREFIX + "rows", "Rows that this run wrote, by table.", ["out", "table"], registry=self.registry)
        self._rows = {name: rows.labels(out, name) for name in ("readings", "events", "duplicates", "quarantine")}
        self.batches = metric(Counter, "batches", "Batches that this run committed.")
        self.waiting = gauge("waiting_segments", "Segments in the landing that are not in the tables yet.")
        self.lag = gauge("lag_seconds", "How long the oldest waiting segment has been sealed; 0 if none waits.")
        self.committed = gauge("last_commit_timestamp_seconds", "When the last batch was committed (Unix time).")
        arrival = "When the newest message in the tables arrived (Unix time)."
        self.arrival = gauge("last_arrival_timestamp_seconds", arrival)
        self.totals = {
            "delivered": gauge("delivered_messages", "Messages in the tables, each counted once, of all time."),
            "quarantine": gauge("quarantine_messages", "Messages in quarantine, of all time."),
            "missing": gauge("missing_messages", "Published messages that are not in the tables."),
            "unexplained": gauge("unexplained_messages", "Missing messages for which the board gave no reason."),
            "twice": gauge("twice_rows", "Surplus rows in the tables."),
            "devices": gauge("devices", "Devices with a message in the tables."),
        }
        self.silent = gauge("silent_devices", "Silent devices at the last check.")
        text = (
            "The last check: 0 if all messages are delivered once, 1 if not, -1 if it failed, NaN before the first one."
        )
        self.status = gauge("verdict", text)
        self.status.set(math.nan)
        self.proved = gauge("last_proof_timestamp_seconds", "When the last check was made (Unix time).")
        took = "How long a check took, with its report."
        self.proof_seconds = metric(Histogram, "proof_seconds", took, buckets=PROOF_BUCKETS)

    def committed_batch(self, commit: Commit) -> None:
        """Count a batch."""
        self.batches.inc()
        for table, counter in self._rows.items():
            counter.inc(commit.rows.get(table, 0))
        self.committed.set(time.time())
        self.books(commit)

    def books(self, commit: Commit) -> None:
        """Set the metrics from a commit's sums."""
        for name, one in self.totals.items():
            one.set(commit.summary["totals"][name])
        self.arrival.set((commit.summary["last_arrival_us"] or 0) / 1e6)

    def proof(self, found: Verdict | None) -> None:
        """Set the metrics from a check's verdict; None if the check failed."""
        self.status.set(-1 if found is None else found.status)
        self.proved.set(time.time())
        if found is not None:
            self.silent.set(found.silent)
            for name in ("missing", "unexplained"):
                self.totals[name].set(found.totals.get(name, 0))
