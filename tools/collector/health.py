"""A collector's metrics for Prometheus, and its log lines for people.

This module knows no MQTT and no files; the collector sets the metrics.
"""

import math
import sys
import time
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

PREFIX = "flashmqtt_collector_"
GROUP_BUCKETS = (1, 3, 10, 30, 100, 300, 1000, 3000, 10000, 30000)
SECONDS_BUCKETS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


class Health:
    """One collector's metrics, in their own registry."""

    def __init__(self, client_id: str, quiet: bool = False) -> None:
        self._quiet = quiet
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)

        def metric(kind: Any, name: str, text: str, **options: Any) -> Any:
            return kind(PREFIX + name, text, ["collector"], registry=self.registry, **options).labels(client_id)

        counter, gauge, histogram = (partial(metric, kind) for kind in (Counter, Gauge, Histogram))
        self.messages = counter("messages", "Messages that became rows: durable, and acknowledged next.")
        self.oversize = counter("oversize", "Messages longer than --packet-bytes: stored as descriptions, or dropped.")
        self.copies = counter("copies", "Resent QoS 1 messages that were stored already: marked as copies.")
        self.received_bytes = counter("received_bytes", "Bytes received from the broker.")
        self.connects = counter("connects", "Network connections that the broker accepted.")
        self.failed_connects = counter("failed_connects", "Attempts to connect that failed.")
        self.lost_sessions = counter(
            "lost_sessions", "Times that the broker had forgotten the session and its queued messages."
        )
        self.stalls = counter("stalls", "Times that the landing could not be written (disk full, ...).")
        self.segments = counter("segments", "Segments sealed.")
        self.sealed_rows = counter("sealed_rows", "Rows in sealed segments.")
        self.seal_failures = counter("seal_failures", "Failed attempts to seal a segment; each is retried.")
        self.torn_bytes = counter("torn_bytes", "Bytes of torn, never acknowledged blocks, cut off at the start.")
        self.connected = gauge("connected", "1 while connected to the broker.")
        self.stalled = gauge("stalled", "1 while the landing can't be written; nothing is acknowledged then.")
        self.unsealed_rows = gauge("unsealed_rows", "Rows that are durable in a log but not yet in a segment.")
        self.unsealed_logs = gauge("unsealed_logs", "Closed logs that wait to be sealed.")
        self.held = gauge("held_messages", "QoS 2 messages that wait for their PUBREL.")
        self.free_bytes = gauge("landing_free_bytes", "Free bytes on the landing's disk.")
        self.last_arrival = gauge(
            "last_arrival_timestamp_seconds", "When the last message arrived (Unix time); NaN before the first."
        )
        self.last_arrival.set(math.nan)
        self.group = histogram("group_messages", "Messages that one sync made durable.", buckets=GROUP_BUCKETS)
        text = "How long one write and sync of the log took."
        self.sync_seconds = histogram("sync_seconds", text, buckets=SECONDS_BUCKETS)
        self.seal_seconds = histogram("seal_seconds", "How long one segment took to seal.", buckets=SECONDS_BUCKETS)

    def log(self, text: str) -> None:
        """Print one log line, unless the collector is quiet."""
        if not self._quiet:
            print(f"{time.strftime('%H:%M:%S')} collector: {text}", file=sys.stderr, flush=True)
