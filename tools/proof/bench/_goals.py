"""The goals of the figures. They come from measurements of the peers, and were set before the first line was written.

A figure without a goal is only reported. A goal is never changed to fit a figure; a missed goal is shown.
"""

from __future__ import annotations

from dataclasses import dataclass

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


GOALS = {
    "codec.encode_qos0.ratio_umqtt_simple": Goal(0.6),
    "codec.encode_qos1.ratio_umqtt_simple": Goal(1.0),
    "codec.decode_qos0.ratio_umqtt_simple": Goal(0.6),
    "codec.decode_qos1.ratio_umqtt_simple": Goal(0.8),
    "codec.alloc_bytes.encode_qos0": Goal(0),
    "codec.alloc_bytes.encode_qos1": Goal(0),
    "codec.alloc_bytes.decode_qos0": Goal(0),
    "codec.alloc_bytes.decode_qos1": Goal(0),
    "size.mpy_bytes": Goal(24_000),
    "size.heap_import_bytes": Goal(24_000),
    "ledger.client_and_journal.heap_32": Goal(24_000),
    "size.publisher.mpy_bytes": Goal(20_000),
    "size.publisher.heap_32": Goal(24_000),
    "size.publisher.frozen_heap_32": Goal(6_000),
    "size.client.mpy_bytes": Goal(26_000),
    "size.client.heap_32": Goal(32_000),
    "size.client.frozen_heap_32": Goal(8_000),
    "size.aio_ram.heap_32": Goal(15_000),
    "chip.publish_qos0_ms": Goal(0.27),
    "chip.publish_qos1_ram_ms": Goal(0.9),
    "chip.append_100_ms": Goal(1.5),
    "chip.publish_qos1_journal_ms": Goal(5),
    "chip.publish_qos2_journal_ms": Goal(10),
    "chip.sector_change_ms": Goal(30),
    "chip.sector_change_full_ms": Goal(50),
    "chip.mount_64_ms": Goal(400),
    "chip.import_ms": Goal(300),
    "journal.qos1.programs": Goal(1.1),
    "journal.qos1.erases": Goal(0.035),
    "journal.qos2.programs": Goal(2.1),
    "journal.heap_growth_bytes": Goal(0),
    "journal.wear_spread": Goal(1),
    "powercut.violations": Goal(0),
    "brokers.failed": Goal(0),
    "session.qos1_20ms.per_s": Goal(650, least=True),
    "session.qos1_50ms.per_s": Goal(270, least=True),
    "session.qos1_50ms.ratio_umqtt_simple": Goal(14, least=True),
    "session.qos2_50ms.per_s": Goal(130, least=True),
    "session.publish_qos0.cpu_ratio_umqtt_simple": Goal(0.6),
    "session.publish_qos1.cpu_ratio_umqtt_simple": Goal(1.0),
    "session.receive_qos0.cpu_ratio_umqtt_simple": Goal(0.6),
    "session.receive_qos1.cpu_ratio_umqtt_simple": Goal(0.8),
    "session.receive_qos0.per_s": Goal(50_000, least=True),
    "session.receive_qos0_asyncio.per_s": Goal(10_000, least=True),
    "session.publish_qos0.heap_bytes": Goal(0),
    "session.publish_qos1.heap_bytes": Goal(0),
    "session.publish_qos0.writes": Goal(1),
    "session.publish_qos1.writes": Goal(1),
    "session.inbound_qos2_burst": Goal(100, least=True),
    "first_reading_s": Goal(10),
    "session.resume_s": Goal(1.0),
    "session.silent_link_keepalives": Goal(1.5),
    "faults.lost": Goal(0),
    "faults.duplicates_qos2": Goal(0),
    "hostile.failing": Goal(0),
    "soak.missing": Goal(0),
    "soak.repeated": Goal(0),
    "pipeline.batch_8m.rows_per_s": Goal(550_000, least=True),
    "pipeline.whole_8m.cpu_ratio_duckdb": Goal(1.5),
    "pipeline.peak_bytes": Goal(2e9),
    "pipeline.one_more_day.ratio_100_to_1": Goal(1.2),
    "pipeline.audit_us_per_changed_boot": Goal(150),
    "pipeline.stream.rows_per_s": Goal(250_000, least=True),
    "pipeline.start_s": Goal(10),
    "scale.fleet.peak_bytes": Goal(2e9),
    "scale.one_device.peak_bytes": Goal(2e9),
    "scale.year.peak_bytes": Goal(2e9),
    "collector.qos1.per_s": Goal(60_000, least=True),
    "collector.qos1.ratio_paho": Goal(2, least=True),
}
