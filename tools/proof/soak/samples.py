"""Figures over time: memory of every program, wear of every flash, backlog of every board.

There is one row for each sample and subject, so that a plot or a query needs no special case. Subjects are the boards, and the
host's programs ("collector", "sealer", "broker").

A board reports its heap itself, after a garbage collection, in its health messages. They are read from the readings table after
the soak, so they went through the whole chain.
"""

from __future__ import annotations

import os
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tools.journal.report import read_sector
from tools.pipeline.commits import Output
from tools.proof.board import HEAP, SECTOR_BYTES

HEAP_BYTES = int(HEAP.removesuffix("K")) * 1024
HEAD_BYTES = (
    64  # includes everything that changes when a sector is opened again: its sequence, and a CRC over the header
)
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Sample:
    """One figure of one subject at one moment.

    Attributes:
        at_s: seconds since the soak began.
        subject: a board's id, or a program of the host.
        life: which of its starts: the boot of a board, the process id of a program.
        name: "memory" (bytes), "erases_least", "erases_most" (of a sector), "waiting" (messages).
    """

    at_s: float
    subject: str
    life: int
    name: str
    value: float


SCHEMA = pa.schema(
    [
        pa.field("at_s", pa.float64()),
        pa.field("subject", pa.string()),
        pa.field("life", pa.int64()),
        pa.field("name", pa.string()),
        pa.field("value", pa.float64()),
    ]
)


def write(samples: list[Sample], path: Path) -> None:
    """Write samples as Parquet."""
    columns = list(zip(*map(astuple, samples), strict=True)) or [()] * len(fields(Sample))
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    pq.write_table(pa.table(arrays, schema=SCHEMA), path)


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process, 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES
    except (OSError, IndexError):
        return 0


def children_of(pid: int) -> list[int]:
    """Return the ids of a process's children."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


class Wear:
    """How often each sector of one flash was erased, from the headers of the journal.

    A sector that is blank at the moment, or whose header is being written, keeps its last count.
    """

    def __init__(self, image: Path):
        self._image = image
        self._heads: dict[int, bytes] = {}
        self.erases: dict[int, int] = {}
        self.cuts = 0  # power cuts of this board

    def look(self) -> None:
        """Read the headers that have changed."""
        try:
            content = self._image.read_bytes()
        except OSError:
            return
        for number in range(len(content) // SECTOR_BYTES):
            sector = content[number * SECTOR_BYTES : (number + 1) * SECTOR_BYTES]
            head = sector[:HEAD_BYTES]
            if head == self._heads.get(number):
                continue  # unchanged
            found = read_sector(number, sector)
            if found.fields:
                self.erases[number] = found.fields["erases"]
                self._heads[number] = head

    @property
    def least(self) -> int:
        """Erases of the sector with the fewest."""
        return min(self.erases.values(), default=0)

    @property
    def most(self) -> int:
        """Erases of the sector with the most."""
        return max(self.erases.values(), default=0)

    @property
    def spread(self) -> int:
        """The difference of the two."""
        return self.most - self.least


def heaps(tables: Path, began_us: int) -> list[Sample]:
    """Return the heap figures that the boards reported, from the readings table."""
    output = Output(str(tables))
    columns = ["device", "boot", "name", "value", "time"]
    found = []
    for name in output.files("readings"):
        table = pq.read_table(tables / name, columns=columns, partitioning=None)
        table = table.filter(pc.equal(table["name"], "heap_free"))
        at_us = table["time"].cast(pa.int64())
        for device, boot, value, us in zip(
            *(table[name].to_pylist() for name in ("device", "boot", "value")), at_us.to_pylist(), strict=True
        ):
            found.append(Sample((us - began_us) / 1e6, device, boot, "memory", HEAP_BYTES - value))
    return sorted(found, key=lambda sample: (sample.subject, sample.at_s))
