"""Memory over time of every board and of the host's programs ("collector", "broker"), and the wear of every flash.

A board reports its heap itself, after a garbage collection, in its health messages. They are read from the readings table after
the soak, so they went through the whole chain.
"""

from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tools.flashsim.nor import SECTOR_BYTES
from tools.journal.report import read_sector
from tools.pipeline.tables.commits import Output
from tools.proof.board import HEAP

HEAP_BYTES = int(HEAP.removesuffix("K")) * 1024
HEAD_BYTES = 64
"""Includes everything that changes when a sector is opened again: its sequence, and a CRC over the header."""


@dataclass(frozen=True)
class Sample:
    """The memory of one subject at one moment.

    Attributes:
        at_s: seconds since the soak began.
        subject: a board's id, or a program of the host.
        life: which of its starts: the boot of a board, the process id of a program.
        held: bytes.
    """

    at_s: float
    subject: str
    life: int
    held: float


def write(samples: list[Sample], path: Path) -> None:
    """Write samples as Parquet."""
    pq.write_table(pa.Table.from_pylist([asdict(sample) for sample in samples]), path)


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
    def spread(self) -> int:
        """The difference between the sectors with the most and the fewest erases."""
        return max(self.erases.values(), default=0) - min(self.erases.values(), default=0)


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
            found.append(Sample((us - began_us) / 1e6, device, boot, HEAP_BYTES - value))
    return sorted(found, key=lambda sample: (sample.subject, sample.at_s))
