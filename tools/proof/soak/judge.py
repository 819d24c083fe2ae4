"""Is memory flat, is wear even, did everything arrive once? Figures and their bounds.

**Memory.** Over the second half of a life a straight line is laid through the samples. What the line rises by is the
`growth`; what the samples scatter around it, the `noise`. Flat is what grows by no more than FLAT_ERRORS standard
errors of that growth, or by no more than is nothing anyway: BOARD_BYTES of a board's heap (a message or a packet
more is in the works at one moment than at another), HOST_SHARE of what a program of the host holds.
A board's life here is the whole soak, as its flash outlives its boots and the heap is to be the same after each of them; a
program's of the host is the longest between two kills, and has to be long enough (PROGRAM_S): what an allocator takes in steps
of megabytes while a program warms up is no growth, and in a minute one such step looks like it.

**Wear.** Even is a flash whose most and least erased sectors are one erase apart, as a ring's are. A power cut adds to that: the
sector that was erased ahead is erased again by the recovery, which trusts no sector that merely looks blank. Where in the ring
that is, is chance: so many standard deviations of it (CHANCE) are allowed on top.

**Delivery** is the pipeline's audit; here only what it does not look at: that the landing itself holds nothing twice that was
sent at QoS 2.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tools.landing.segments import find_segments
from tools.pipeline import verdict
from tools.proof.soak.samples import Sample, Wear

FLAT_ERRORS = 4.0
BOARD_BYTES = 512
HOST_SHARE = 0.03
FEWEST_SAMPLES = 8
PROGRAM_S = 120.0
CHANCE = 4.0


@dataclass(frozen=True)
class Trend:
    """What the memory of one subject did in the second half of a life.

    Attributes:
        subject: a board's id or a program's name.
        samples: how many the line was laid through.
        seconds: how long they took.
        level: mean bytes.
        growth: bytes, over these seconds, along the line.
        noise: standard deviation around the line, in bytes.
        bound: what growth is allowed.
        least_s: in how many seconds it can be told.
    """

    subject: str
    samples: int
    seconds: float
    level: float
    growth: float
    noise: float
    bound: float
    least_s: float = 0.0

    @property
    def told(self) -> bool:
        """Whether there were enough samples, over a time that is long enough, to tell anything."""
        return self.samples >= FEWEST_SAMPLES and self.seconds >= self.least_s

    @property
    def flat(self) -> bool:
        """Whether the memory does not grow, as far as can be told."""
        return not self.told or self.growth <= self.bound

    def __str__(self) -> str:
        text = f"{self.subject:10} {self.level / 1024:8,.0f} KB"
        if not self.told:
            return f"{text}, too few samples, or too short a life, to tell whether it grows"
        return (
            f"{text}, {self.growth:+,.0f} B in the last {self.seconds:,.0f} s (noise {self.noise:,.0f} B, bound "
            f"{self.bound:,.0f} B){'' if self.flat else '  NOT FLAT'}"
        )


def trend(subject: str, at_s: list[float], values: list[float], nothing: float, least_s: float = 0.0) -> Trend:
    """Lay a line through the second half of a series; growth of up to `nothing` bytes counts as none."""
    x, y = np.array(at_s), np.array(values)
    half = x >= (x[0] + x[-1]) / 2 if len(x) else np.zeros(0, dtype=bool)
    x, y = x[half], y[half]
    if len(x) < FEWEST_SAMPLES:
        return Trend(subject, len(x), 0.0, float(y.mean()) if len(y) else 0.0, 0.0, 0.0, 0.0)
    seconds = float(x[-1] - x[0])
    slope, start = np.polyfit(x - x[0], y, 1)
    noise = float(np.std(y - (start + slope * (x - x[0])), ddof=2))
    error = seconds * noise / float(np.sqrt(np.sum((x - x.mean()) ** 2)))
    level = float(y.mean())
    bound = max(FLAT_ERRORS * error, nothing)
    return Trend(subject, len(x), seconds, level, float(slope) * seconds, noise, bound, least_s)


def memory(samples: list[Sample], boards: set[str]) -> list[Trend]:
    """Return the trend of each subject's memory."""
    lives: dict[str, dict[int, list[Sample]]] = defaultdict(lambda: defaultdict(list))
    for sample in samples:
        if sample.name == "memory":
            lives[sample.subject][0 if sample.subject in boards else sample.life].append(sample)
    found = []
    for subject, its in sorted(lives.items()):
        longest = max(its.values(), key=lambda life: life[-1].at_s - life[0].at_s)
        values = [one.value for one in longest]
        nothing = BOARD_BYTES if subject in boards else HOST_SHARE * float(np.mean(values))
        least_s = 0.0 if subject in boards else PROGRAM_S
        found.append(trend(subject, [one.at_s for one in longest], values, nothing, least_s))
    return found


def even_spread(its: Wear) -> int:
    """Return how far the erases of a flash's sectors may be apart."""
    return 1 + math.ceil(CHANCE * math.sqrt(its.cuts / max(1, len(its.erases))))


def uneven(wear: dict[str, Wear]) -> list[str]:
    """Return the boards whose flash wears unevenly."""
    return [board for board, its in wear.items() if its.spread > even_spread(its)]


def missing(tables: Path) -> int:
    """Return how many messages the audit misses."""
    return pc.sum(pq.read_table(tables / verdict.FILES["missing"], columns=["messages"])["messages"]).as_py() or 0


@dataclass(frozen=True)
class Landing:
    """What the collector landed.

    Attributes:
        messages: how many there are; distinct: without repetitions.
        again: those that are there more than once, by the QoS they were delivered with.
    """

    messages: int
    distinct: int
    again: dict[int, int]


def landing(directory: Path) -> Landing:
    """Count what is in the segments. A message's payload bears its identity: two messages are never the same bytes."""
    tables = [pq.read_table(segment.path, columns=["qos", "payload"]) for segment in find_segments(directory)]
    if not tables:
        return Landing(0, 0, {1: 0, 2: 0})
    table = pa.concat_tables(tables)
    again = {}
    for qos in (1, 2):
        payloads = table.filter(pc.equal(table["qos"], qos))["payload"]
        again[qos] = len(payloads) - pc.count_distinct(payloads).as_py()
    return Landing(len(table), pc.count_distinct(table["payload"]).as_py(), again)
