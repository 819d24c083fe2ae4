"""Every schema of the pipeline, in one place: what the tables hold, column by column.

They are written once, as Arrow schemas, because the hot path is Arrow batches; `spark_schema` gives the same for
Spark. Changing a table means raising FORMAT: an output directory of another format is refused by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

FORMAT = 2

MOMENT = pa.timestamp("us", tz="UTC")

# A message's identity. `life` is not the device's: it begins at 1 and goes up when a device's counters start again
# (flash wiped, board replaced under the same id); see lives.py.
KEY = [
    pa.field("device", pa.string(), nullable=False),
    pa.field("life", pa.int32(), nullable=False),
    pa.field("boot", pa.int64(), nullable=False),
]
SEQ = pa.field("seq", pa.int64(), nullable=False)

# Where a row came from: enough to find the payload again.
ORIGIN = [
    pa.field("arrival", MOMENT, nullable=False),
    pa.field("collector", pa.string(), nullable=False),
    pa.field("segment", pa.int64(), nullable=False),
    pa.field("row", pa.int64(), nullable=False),
]

READINGS = pa.schema(
    [
        *KEY,
        SEQ,
        pa.field("index", pa.int32(), nullable=False),  # the record's place in its pack
        pa.field("name", pa.string()),
        pa.field("unit", pa.string()),
        pa.field("value", pa.float64()),
        pa.field("text", pa.string()),
        pa.field("flag", pa.bool_()),
        pa.field("blob", pa.string()),  # SenML "vd": base64url, as sent
        pa.field("sum", pa.float64()),
        pa.field("uptime", pa.float64()),  # seconds since the boot
        pa.field("time", MOMENT),  # by the board's own clock, where it had one
        *ORIGIN,
    ]
)

EVENTS = pa.schema(
    [
        *KEY,
        SEQ,
        pa.field("first", pa.int64()),  # sequence number of the boot's first message
        pa.field("cause", pa.string()),  # of the reset
        pa.field("dropped", pa.int64()),  # dropped by policy so far, over the device's life
        pa.field("doubt_first", pa.int64()),  # a window of messages that the board calls in doubt
        pa.field("doubt_last", pa.int64()),
        pa.field("uptime", pa.float64()),
        pa.field("time", MOMENT),
        *ORIGIN,
    ]
)

TIES = pa.schema(
    [
        *KEY,
        SEQ,
        pa.field("offset_us", pa.int64(), nullable=False),  # the board's clock less its uptime
        pa.field("uptime", pa.float64(), nullable=False),
        pa.field("arrival", MOMENT, nullable=False),
    ]
)

DUPLICATES = pa.schema(
    [
        *KEY,
        SEQ,
        pa.field("cause", pa.string(), nullable=False),  # "resend" or "replay"
        pa.field("uptime", pa.float64()),
        pa.field("compared", pa.bool_(), nullable=False),  # with the message that it repeats
        *ORIGIN,
    ]
)

QUARANTINE = pa.schema(
    [
        pa.field("reason", pa.string(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("payload", pa.binary()),
        *ORIGIN,
    ]
)

TALLY = pa.schema(
    [
        *KEY,
        pa.field("delivered", pa.int64(), nullable=False),  # messages, each once
        pa.field("readings", pa.int64(), nullable=False),
        pa.field("resent", pa.int64(), nullable=False),
        pa.field("replayed", pa.int64(), nullable=False),
        pa.field("reordered", pa.int64(), nullable=False),
        pa.field("first_arrival", MOMENT, nullable=False),
        pa.field("last_arrival", MOMENT, nullable=False),
        # How many messages arrived how long after their uptime: arrival less uptime is `base_us` plus a step of
        # delays.py. The boot's clock offset, once known, turns it into a delay.
        pa.field("base_us", pa.int64(), nullable=False),
        pa.field("steps", pa.list_(pa.int32()), nullable=False),
        pa.field("counts", pa.list_(pa.int64()), nullable=False),
    ]
)

INTERVALS = pa.schema([*KEY, pa.field("lo", pa.int64(), nullable=False), pa.field("hi", pa.int64(), nullable=False)])

# One row per boot message that was believed: what tells a new life from an old one. `seq`: the boot's first message.
BOOTS = pa.schema([*KEY, SEQ, pa.field("uptime", pa.float64())])

TABLES = {
    "readings": READINGS,
    "events": EVENTS,
    "ties": TIES,
    "duplicates": DUPLICATES,
    "quarantine": QUARANTINE,
    "tally": TALLY,
}

STATE = {"intervals": INTERVALS, "boots": BOOTS}

# What a task gives back: the files that it wrote.
DONE = pa.schema(
    [
        pa.field("bucket", pa.int32(), nullable=False),
        pa.field("table", pa.string(), nullable=False),
        pa.field("file", pa.string(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
    ]
)


def spark_schema(schema: pa.Schema) -> StructType:
    """Return the Spark schema of an Arrow schema."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)
