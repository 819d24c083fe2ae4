"""Generate fleets: landings of any size, with duplicates, from known messages.

`python -m tools.proof.fleet --landing DIR` writes a landing for experiments. All work is done with numpy and Arrow
(a million messages in about two seconds), so the bench generates its eight million messages when it runs.

The boards of a fleet behave like ours: each boot begins with a boot message, sequence numbers continue over all boots,
and a retransmission has the same bytes and DUP.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tools.command import ended, folder, named, number, parser_of
from tools.landing import parquet, segments

BEGIN_US = 1_790_000_000_000_000  # in September 2026
LIVES = (1 << 30) - 1  # a board's life is 1 to this


@dataclass
class Messages:
    """Published messages: parallel arrays, sorted by device, then by sequence number."""

    device: np.ndarray
    boot: np.ndarray
    seq: np.ndarray
    up_ms: np.ndarray
    captured_us: np.ndarray
    is_boot: np.ndarray

    def __len__(self) -> int:
        return len(self.device)


@dataclass
class Delivery:
    """The arrivals in order: which message, when, and whether it is a copy."""

    message: np.ndarray
    arrival_us: np.ndarray
    dup: np.ndarray


@dataclass
class Fleet:
    """A fleet's parameters."""

    devices: int = 1000
    interval_ms: int = 1000
    boot_every: int = 2000  # messages
    duplicates: float = 0.01
    seed: int = 1
    names: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.names = [f"board-{number:05d}" for number in range(self.devices)]


def publish(fleet: Fleet, first: int, count: int) -> Messages:
    """Return messages `first` to `first + count - 1` (from 0) of every device."""
    device = np.repeat(np.arange(fleet.devices), count)
    ordinal = np.tile(np.arange(first, first + count), fleet.devices)
    boot = ordinal // fleet.boot_every + 1
    in_boot = ordinal % fleet.boot_every
    up_ms = 500 + in_boot * fleet.interval_ms + device % 977
    captured = BEGIN_US + (ordinal * fleet.interval_ms + (device * 7919) % fleet.interval_ms) * 1000
    return Messages(device, boot, ordinal + 1, up_ms, captured, in_boot == 0)


def in_order(device: np.ndarray, arrival_us: np.ndarray) -> np.ndarray:
    """Return the arrivals, changed so that no message arrives before its device's previous one."""
    if not len(device):
        return arrival_us
    begins = np.concatenate(([True], device[1:] != device[:-1]))
    since = arrival_us - arrival_us.min()
    step = int(since.max()) + 1  # the offset between two devices: longer than the whole slice
    if step * int(begins.sum()) >= 1 << 63:
        raise OverflowError(f"{begins.sum()} devices over {step / 1e6:.0f} s: write the fleet in shorter slices")
    base = (np.cumsum(begins) - 1) * step
    return np.maximum.accumulate(since + base) - base + arrival_us.min()


def deliver(fleet: Fleet, messages: Messages, rng: np.random.Generator) -> Delivery:
    """Return the arrivals of all messages, each device's in order, and of some copies a little later."""
    delay = (rng.lognormal(3.5, 1.0, len(messages)) * 1000).astype(np.int64)
    arrival = messages.captured_us + delay
    arrival = in_order(messages.device, arrival)
    again = np.flatnonzero(rng.random(len(messages)) < fleet.duplicates)
    late = arrival[again] + (rng.random(len(again)) * 3e6).astype(np.int64)
    message = np.concatenate((np.arange(len(messages)), again))
    when = np.concatenate((arrival, late))
    dup = np.concatenate((np.zeros(len(messages), dtype=bool), np.ones(len(again), dtype=bool)))
    order = np.argsort(when, kind="stable")
    return Delivery(message[order], when[order], dup[order])


def payloads(fleet: Fleet, messages: Messages, rng: np.random.Generator) -> pa.Array:
    """Return the messages' payloads: SenML packs of one record."""

    def text(numbers: np.ndarray) -> pa.Array:
        return pc.cast(pa.array(numbers), pa.string())

    name = pa.array(fleet.names).take(pa.array(messages.device))
    value = text(np.round(rng.random(len(messages)) * 100, 2))
    clock = text(np.round(messages.captured_us / 1e6, 3))
    record = pc.if_else(
        pa.array(messages.is_boot),
        ',"n":"cause","vs":"power"',
        pc.binary_join_element_wise(',"n":"load1","u":"/","v":', value, ""),
    )
    life = text((messages.device + 1) * 1_000_003 % LIVES + 1)
    parts = ['[{"bn":"', name, '/","life":', life, ',"boot":', text(messages.boot), ',"seq":', text(messages.seq)]
    parts += [',"up":', text(messages.up_ms / 1000), ',"bt":', clock, record, "}]", ""]
    return pc.binary_join_element_wise(*parts).cast(pa.binary())


def rows(
    fleet: Fleet, messages: Messages, delivery: Delivery, text: pa.Array, collector: str, number: int, before: int
) -> pa.Table:
    """Return a segment's rows."""
    count = len(delivery.message)
    which = pa.array(delivery.message)
    readings = pa.array([f"flashmqtt/{name}/readings" for name in fleet.names])
    boots = pa.array([f"flashmqtt/{name}/boot" for name in fleet.names])
    device = pa.array(messages.device[delivery.message])
    topic = pc.if_else(pa.array(messages.is_boot[delivery.message]), boots.take(device), readings.take(device))
    return pa.table(
        [
            pa.repeat(pa.scalar(collector), count),
            pa.repeat(pa.scalar(number, pa.int64()), count),
            pa.array(np.arange(before + 1, before + count + 1)),
            pa.array(delivery.arrival_us).cast(pa.timestamp("us", tz="UTC")),
            topic,
            pa.repeat(pa.scalar(1, pa.int8()), count),
            pa.array(delivery.dup),
            pa.repeat(pa.scalar(False), count),
            pa.nulls(count, pa.binary()),
            text.take(which),
        ],
        schema=parquet.SCHEMA,
    )


def write(fleet: Fleet, landing: Path, messages: int, per_segment: int = 524_288, begin: int = 0) -> int:
    """Write segments with `messages` messages of a fleet, with duplicates, without losses; return the number of rows.

    Args:
        begin: how many messages each device has published before, to continue a landing. Segment numbers always continue.
    """
    landing.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng([fleet.seed, begin])
    end = begin + messages // fleet.devices
    step = max(1, per_segment // fleet.devices)
    there = [segment for segment in segments.find_segments(landing) if segment.collector == "fleet"]
    number = max((segment.number for segment in there), default=0)
    total = 0
    for first in range(begin, end, step):
        number += 1
        some = publish(fleet, first, min(step, end - first))
        before = (number << 32) if there else total  # a collector's row numbers must rise; gaps are allowed
        table = rows(fleet, some, deliver(fleet, some, rng), payloads(fleet, some, rng), "fleet", number, before)
        parquet.write_segment(landing, "fleet", number, table, segments.BUCKETS, sync=False)
        total += table.num_rows
    return total


@named("fleet")
def main(argv: list[str] | None = None) -> int:
    """Write a landing."""
    parser = parser_of("tools.proof.fleet", __doc__)
    parser.add_argument("--landing", type=folder, required=True)
    parser.add_argument("--devices", type=number(int, 1, 10_000_000), default=1000)
    parser.add_argument("--messages", type=number(int, 1, 10**9), default=500_000)
    parser.add_argument(
        "--interval", type=number(float, 0.001, 1e6), default=1.0, metavar="SECONDS", help="between a device's messages"
    )
    options = parser.parse_args(argv)
    fleet = Fleet(options.devices, round(1000 * options.interval))
    print(f"{write(fleet, options.landing, options.messages):,} rows in {options.landing}")
    return 0


if __name__ == "__main__":
    sys.exit(ended(main, stopped="stopped"))
