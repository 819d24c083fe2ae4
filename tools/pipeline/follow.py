"""A continuous run: wait for its end, and check delivery meanwhile, at an interval and on demand (SIGUSR1).

A check ("proof") reads only committed files and does not delay batches. If it fails, the error is printed, and the next
check tries again.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import report, verdict
from .metrics import Metrics
from .tables import source
from .tables.commits import Output
from .tables.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

LOOK_EVERY_S = 5.0
"""The interval at which the landing is searched for waiting segments."""

SIGNAL_S = 1.0
"""If a signal ends all processes of a run (systemd does so), this process may see the JVM's end first, and then the signal."""


@dataclass
class Proofs:
    """Checks of delivery during a stream.

    Attributes:
        expectations: returns what the fleet is compared with; called for each check, because "now" changes.
        every_s: the interval; 0 for checks on demand only.
        page: whether to write the report, too.
        asked: whether a check is requested.
    """

    output: Output
    landing: Storage
    expectations: Callable[[], verdict.Expectations]
    every_s: float
    page: bool
    metrics: Metrics | None = None
    asked: bool = False
    _look: float = 0.0
    _reported: tuple[int, str] | None = None

    def __post_init__(self) -> None:
        self._next = time.monotonic() + self.every_s
        if self.metrics and (latest := self.output.latest()):
            self.metrics.books(latest)

    def tick(self) -> None:
        """Do what is due. Called about once a second."""
        now = time.monotonic()
        if now >= self._look:
            self._look = now + LOOK_EVERY_S
            self.measure_lag()
        if self.asked or (self.every_s and now >= self._next):
            self.asked = False
            self._next = now + self.every_s
            self.prove()

    def prove(self) -> verdict.Verdict | None:
        """Compute and print the verdict; write the table of missing ranges and the report."""
        begun = time.monotonic()
        try:
            found = verdict.judge(self.output, self.expectations())
            if self.page and found.batch and self._reported != (found.batch, found.line):
                report.write(self.output, found)
                self._reported = found.batch, found.line
        except Exception as error:  # must not end the stream
            print(f"  proof failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            found = None
        if self.metrics:
            self.metrics.proof_seconds.observe(time.monotonic() - begun)
            self.metrics.proof(found)
        if found is not None:
            print(f"  {time.strftime('%H:%M:%S')} batch {found.batch}: {found.line}", flush=True)
        return found

    def measure_lag(self) -> None:
        """Set the metrics for the segments that wait in the landing."""
        if self.metrics is None:
            return
        with suppress(OSError, source.LandingError):  # the stream reports these errors
            latest = self.output.latest()
            read = latest.stream_read if latest else {}
            found = source.latest(self.landing)
            numbers = ((its, number) for its, names in found.items() for number in names)
            waiting = [found[its][number] for its, number in numbers if number > read.get(its, 0)]
            oldest = min((self.landing.modified_s(name) for name in waiting), default=None)
            self.metrics.waiting.set(len(waiting))
            self.metrics.lag.set(0 if oldest is None else max(0.0, time.time() - oldest))


def until_ended(query: StreamingQuery, proofs: Proofs | None = None) -> None:
    """Wait for the stream's end. Ctrl-C and SIGTERM are handled between two calls: inside a call they would break py4j.

    Raises:
        KeyboardInterrupt: it was ended by Ctrl-C or SIGTERM.
    """
    asked: list[int] = []

    def prove(*_: object) -> None:
        if proofs:
            proofs.asked = True

    handlers: dict[int, Callable[..., object]]
    handlers = dict.fromkeys((signal.SIGINT, signal.SIGTERM), lambda number, _: asked.append(number))
    if proofs:
        handlers[signal.SIGUSR1] = prove
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        while not query.awaitTermination(1):
            if asked:
                query.stop()
                raise KeyboardInterrupt
            if proofs:
                proofs.tick()
    except Exception:
        if not asked:
            time.sleep(SIGNAL_S)
        if asked:
            raise KeyboardInterrupt from None
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
