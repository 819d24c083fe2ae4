"""What a run that follows tells Prometheus: rows, lag, quarantine, missing, and what the last proof came to.

It knows no Spark and no tables; the run sets the figures.
"""

from __future__ import annotations

import math
import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, start_http_server

from .commits import Commit
from .verdict import Verdict

PREFIX = "flashmqtt_pipeline_"
PROOF_BUCKETS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


class PortInUse(Exception):
    """The port for the figures is taken."""


class Metrics:
    """A run's figures, in a registry of their own."""

    def __init__(self, out: str) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(PREFIX + name, text, ["out"], registry=self.registry).labels(out)

        rows = Counter(PREFIX + "rows", "Rows that this run wrote, by table.", ["out", "table"], registry=self.registry)
        self._rows = {name: rows.labels(out, name) for name in ("readings", "events", "duplicates", "quarantine")}
        self.batches = Counter(
            PREFIX + "batches", "Batches that this run committed.", ["out"], registry=self.registry
        ).labels(out)
        self.waiting = gauge("waiting_segments", "Segments in the landing that are not in the tables yet.")
        self.lag = gauge("lag_seconds", "For how long the oldest of them has been sealed; 0 where none waits.")
        self.committed = gauge("last_commit_timestamp_seconds", "When the last batch was committed (Unix time).")
        self.arrival = gauge(
            "last_arrival_timestamp_seconds", "When the newest message in the tables arrived (Unix time)."
        )
        self.delivered = gauge("delivered_messages", "Messages in the tables, each once, of all time.")
        self.quarantine = gauge("quarantine_messages", "Messages in quarantine, of all time.")
        self.missing = gauge("missing_messages", "Messages known to be published that are not in the tables.")
        self.unexplained = gauge("unexplained_messages", "Of the missing ones, those that no board gives a reason for.")
        self.twice = gauge("twice_rows", "Rows that are in the tables more than once.")
        self.devices = gauge("devices", "Devices that were heard of.")
        self.silent = gauge("silent_devices", "Devices that are silent, by the last proof.")
        self.status = gauge(
            "verdict",
            "The last proof: 0 where all is delivered once, 1 where not, -1 where it failed, NaN before the first one.",
        )
        self.status.set(math.nan)
        self.proved = gauge("last_proof_timestamp_seconds", "When the last proof was made (Unix time).")
        self.proof_seconds = Histogram(
            PREFIX + "proof_seconds",
            "How long a proof took, with its report.",
            ["out"],
            registry=self.registry,
            buckets=PROOF_BUCKETS,
        ).labels(out)

    def serve(self, port: int, address: str) -> int:
        """Offer the figures at http://address:port/metrics; return the port.

        Raises:
            PortInUse: it is taken, or not allowed.
        """
        try:
            server, _ = start_http_server(port, address, registry=self.registry)
        except OSError as error:
            raise PortInUse(
                f"can't offer figures at {address}:{port}: {error.strerror}; name another --metrics-port, or 0 for none"
            ) from error
        return int(server.server_port)

    def committed_batch(self, commit: Commit) -> None:
        """Note a batch."""
        self.batches.inc()
        for table, counter in self._rows.items():
            counter.inc(commit.rows.get(table, 0))
        self.committed.set(time.time())
        self.books(commit)

    def books(self, commit: Commit) -> None:
        """Take over the sums that a commit has."""
        totals = commit.summary["totals"]
        self.delivered.set(totals["delivered"])
        self.quarantine.set(totals["quarantine"])
        self.missing.set(totals["missing"])
        self.unexplained.set(totals["unexplained"])
        self.twice.set(totals["twice"])
        self.devices.set(totals["devices"])
        self.arrival.set((commit.summary["last_arrival_us"] or 0) / 1e6)

    def proof(self, found: Verdict | None) -> None:
        """Note a proof; None for one that failed."""
        self.status.set(-1 if found is None else found.status)
        self.proved.set(time.time())
        if found is not None:
            self.silent.set(found.silent)
            self.missing.set(found.totals.get("missing", 0))
            self.unexplained.set(found.totals.get("unexplained", 0))
