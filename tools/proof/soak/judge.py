"""Does memory grow, is wear even, did every message arrive once? The figures and their bounds.

**Memory.** A straight line is fitted through the samples of the second half of a life. `growth` is the rise of the line, `noise`
the standard deviation of the samples around it. Memory is flat if it grows by at most FLAT_ERRORS standard errors of the growth,
or by at most a negligible amount: BOARD_BYTES of a board's heap (at one moment it holds a message or a packet more than at
another), HOST_SHARE of what a program of the host holds.
A board's life is a boot; the life of a program of the host is the time between two kills. The longest life is judged. For a
board, the largest lasting step is ignored: a module that is loaded on demand, once in a boot, takes 2 to 4 KB. A program's life
must be at least PROGRAM_S long: while a program warms up, its allocator takes memory in steps of megabytes, and within one minute
such a step looks like growth.
Boots are compared by their smallest samples, because only some boots load such a module. A board's flash outlives its boots, and
its growing content must not take more heap at each start. So the minimum of the later half of the boots must not be above the
minimum of the earlier half. About one boot in five loads a module: fewer than FEWEST_BOOTS could all have done so by chance.

**Wear.** Wear is even if the sectors with the most and the fewest erases differ by one erase, as in a ring. A power cut adds to
that: recovery erases the sector again that was erased ahead, because a sector that only looks blank can't be trusted. Which
sector that is, is random: CHANCE standard deviations are allowed in addition.

**Delivery** is judged by the pipeline's audit. This module checks what the audit does not: that the landing has no message twice
that was sent at QoS 2, and that no segment and no row is missing.
"""

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tools.landing.segments import find_segments
from tools.pipeline import verdict
from tools.proof.soak.samples import Sample, Wear

FLAT_ERRORS = 4.0
BOARD_BYTES = 512
HOST_SHARE = 0.03
FEWEST_SAMPLES = 8
FEWEST_BOOTS = 6
PROGRAM_S = 120.0
CHANCE = 4.0


@dataclass(frozen=True)
class Trend:
    """The trend of one subject's memory in the second half of a life, or from boot to boot.

    Attributes:
        subject: a board's id or a program's name.
        samples: how many the line was fitted through, or the boots.
        seconds: from the first to the last.
        level: mean bytes.
        growth: bytes, over these seconds, along the line; or the least of the later boots less the least of the earlier ones.
        noise: standard deviation around the line, in bytes.
        bound: the growth that is allowed.
        least_s: the shortest time that allows a verdict.
        boots: whether boots are compared.
    """

    subject: str
    samples: int
    seconds: float
    level: float
    growth: float
    noise: float
    bound: float
    least_s: float = 0.0
    boots: bool = False

    @property
    def is_conclusive(self) -> bool:
        """Whether there are enough samples, over a time that is long enough, for a verdict."""
        return self.samples >= FEWEST_SAMPLES and self.seconds >= self.least_s

    @property
    def flat(self) -> bool:
        """Whether the memory does not grow, or there is no verdict."""
        return not self.is_conclusive or self.growth <= self.bound

    def __str__(self) -> str:
        text = f"{self.subject:10} {self.level / 1024:8,.0f} KB"
        if not self.is_conclusive:
            return f"{text}, too few samples, or too short a life, to tell whether it grows"
        when = (
            f"from the earlier to the later of {self.samples} boots"
            if self.boots
            else f"in the last {self.seconds:,.0f} s"
        )
        return (
            f"{text}, {self.growth:+,.0f} B {when} (noise {self.noise:,.0f} B, bound "
            f"{self.bound:,.0f} B){'' if self.flat else '  NOT FLAT'}"
        )


def trend(subject: str, at_s: list[float], values: list[float], nothing: float, least_s: float = 0.0) -> Trend:
    """Fit a line through the second half of a series; growth of up to `nothing` bytes counts as none."""
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


def without_largest_step(values: list[float]) -> list[float]:
    """Return a board's series without its largest upward step in the second half, if the level stays up until the end."""
    half = len(values) // 2
    steps = [(after - before, n) for n, (before, after) in enumerate(pairwise(values), 1) if n > half]
    height, at = max(steps, default=(0.0, 0))
    if height <= BOARD_BYTES or min(values[at:]) < values[at - 1] + height / 2:
        return values
    return values[:at] + [value - height for value in values[at:]]


def from_boot_to_boot(subject: str, boots: list[list[Sample]]) -> Trend:
    """Compare the least heap of a board's later boots with that of its earlier ones."""
    least = [min(one.held for one in boot) for boot in boots]
    half = len(least) // 2
    growth = min(least[half:]) - min(least[:half])
    seconds = boots[-1][-1].at_s - boots[0][0].at_s
    mean, noise = float(np.mean(least)), float(np.std(least))
    return Trend(subject, len(least), seconds, mean, growth, noise, BOARD_BYTES, boots=True)


def memory(samples: list[Sample], boards: set[str]) -> list[Trend]:
    """Return the trend of each subject's memory; of a board, the worse of its longest boot's and from boot to boot."""
    lives: dict[str, dict[int, list[Sample]]] = defaultdict(lambda: defaultdict(list))
    for sample in samples:
        lives[sample.subject][sample.life].append(sample)
    found = []
    for subject, its in sorted(lives.items()):
        longest = max(its.values(), key=lambda life: life[-1].at_s - life[0].at_s)
        at_s, values = [one.at_s for one in longest], [one.held for one in longest]
        if subject not in boards:
            found.append(trend(subject, at_s, values, HOST_SHARE * float(np.mean(values)), PROGRAM_S))
            continue
        trends = [trend(subject, at_s, without_largest_step(values), BOARD_BYTES)]
        if len(its) >= 2 * FEWEST_BOOTS:
            trends.append(from_boot_to_boot(subject, list(its.values())))
        found.append(max(trends, key=lambda one: one.growth / one.bound if one.is_conclusive else -math.inf))
    return found


def even_spread(its: Wear) -> int:
    """Return the allowed difference between the erases of a flash's sectors."""
    return 1 + math.ceil(CHANCE * math.sqrt(its.cuts / max(1, len(its.erases))))


def uneven(wear: dict[str, Wear]) -> list[str]:
    """Return the boards whose flash wears unevenly."""
    return [board for board, its in wear.items() if its.spread > even_spread(its)]


def missing(tables: Path) -> int:
    """Return how many messages are missing according to the audit."""
    return pc.sum(pq.read_table(tables / verdict.FILES["missing"], columns=["messages"])["messages"]).as_py() or 0


@dataclass(frozen=True)
class Landing:
    """What the collector landed. A payload contains its message's identity: no two messages have the same bytes.

    Attributes:
        found: the payloads, by QoS; 0: those that the collector has marked as copies.
    """

    found: dict[int, Counter[bytes]]

    @property
    def messages(self) -> int:
        """How many messages there are."""
        return sum(payloads.total() for payloads in self.found.values())

    @property
    def distinct(self) -> int:
        """How many there are without repetitions."""
        return len(set().union(*self.found.values()))

    @property
    def again(self) -> dict[int, int]:
        """How many are there more than once, by the QoS they were delivered with."""
        return {qos: payloads.total() - len(payloads) for qos, payloads in self.found.items()}


def landing(directory: Path) -> Landing:
    """Read the messages in a collector's segments.

    Raises:
        AssertionError: a segment or a row is missing, or there twice; or a row of QoS 0, so a copy, has no DUP.
    """
    segments = find_segments(directory)
    found: dict[int, Counter[bytes]] = {0: Counter(), 1: Counter(), 2: Counter()}
    rows: list[int] = []
    for segment in segments:
        columns = pq.read_table(segment.path, columns=["row", "qos", "dup", "payload"]).to_pydict()
        rows += columns["row"]
        for qos, dup, payload in zip(columns["qos"], columns["dup"], columns["payload"], strict=True):
            assert qos or dup, f"{directory}: a copy is not marked as one: {payload[:60]!r}"
            found[qos][payload] += 1
    for what, numbers in (("segments", [segment.number for segment in segments]), ("rows", rows)):
        assert sorted(numbers) == list(range(1, len(numbers) + 1)), f"{directory}: the numbers of its {what} have gaps"
    return Landing(found)
