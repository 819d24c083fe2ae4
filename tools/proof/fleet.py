"""Generate fleets: landings of any size, with duplicates, from known messages.

`python -m tools.proof.fleet --landing DIR` writes a landing for experiments. DuckDB makes a segment in one query,
fleet.sql, so the bench generates its eight million messages when it runs.

The boards of a fleet behave like ours: each boot begins with a boot message, sequence numbers continue over all boots,
and a retransmission has the same bytes and DUP. Everything random is a hash of device, message and seed.
"""

import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import duckdb
import pyarrow as pa

from tools.command import exit_status, folder, named, number, parser_of
from tools.landing import parquet, segments

SEGMENT = Path(__file__).with_suffix(".sql").read_text()


@dataclass
class Fleet:
    """A fleet's parameters."""

    devices: int = 1000
    interval_ms: int = 1000
    boot_every: int = 2000  # messages
    duplicates: float = 0.01
    seed: int = 1


def segment(fleet: Fleet, first: int, count: int, number: int = 1, before: int = 0) -> pa.Table:
    """Return the rows of messages `first` to `first + count - 1` (from 0) of every device; `before` rows came earlier."""
    values = asdict(fleet) | {"first": first, "count": count, "number": number, "before": before}
    with duckdb.connect() as connection:
        return connection.sql(SEGMENT, params=values).to_arrow_table().cast(parquet.SCHEMA)


def write(fleet: Fleet, landing: Path, messages: int, per_segment: int = 524_288, begin: int = 0) -> int:
    """Write segments with `messages` messages of a fleet, with duplicates, without losses; return the number of rows.

    Args:
        begin: how many messages each device has published before, to continue a landing. Segment numbers always continue.
    """
    landing.mkdir(parents=True, exist_ok=True)
    end = begin + messages // fleet.devices
    step = max(1, per_segment // fleet.devices)
    there = [segment for segment in segments.find_segments(landing) if segment.collector == "fleet"]
    number = max((segment.number for segment in there), default=0)
    total = 0
    for first in range(begin, end, step):
        number += 1
        before = (number << 32) if there else total  # a collector's row numbers must rise; gaps are allowed
        table = segment(fleet, first, min(step, end - first), number, before)
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
    options = parser.parse_args(argv)
    print(f"{write(Fleet(options.devices), options.landing, options.messages):,} rows in {options.landing}")
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(main, stopped="stopped"))
