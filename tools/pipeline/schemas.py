"""Every schema of the pipeline, in one place: what the tables hold, column by column.

They are written once, as Arrow schemas, because the hot path is Arrow batches; `spark_schema` gives the same for
Spark. Changing a table means raising FORMAT: an output directory of another format is refused by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

FORMAT = 3

LARGEST = 2**31 - 1  # of a boot and of a sequence number
MOMENT = pa.timestamp("us", tz="UTC")

# A message's identity. `life` counts from 1 and goes up when a device's counters begin again (flash wiped, board replaced
# under the same id); see lives.py. It is 0 where the message carries none; see plain.py.
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
        pa.field("since", pa.int64()),  # where the life began in the board's numbers, if not at 1
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
        pa.field("cause", pa.string(), nullable=False),  # "resend", "replay" or "retained"
        pa.field("uptime", pa.float64()),
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
        # How often the device's newest message went back to an older life; where boards tell no life, also to an older boot,
        # or far back in its numbers: one board does so hardly ever, two under one id do it all the time.
        pa.field("returns", pa.int64(), nullable=False),
        pa.field("first_arrival", MOMENT, nullable=False),
        pa.field("last_arrival", MOMENT, nullable=False),
        # How many messages arrived how long after their uptime: arrival less uptime is `base_us` plus a step of
        # delays.py. The boot's clock offset, once known, turns it into a delay.
        pa.field("base_us", pa.int64(), nullable=False),
        pa.field("steps", pa.list_(pa.int32()), nullable=False),
        pa.field("counts", pa.list_(pa.int64()), nullable=False),
    ]
)

REASONS = ("refused", "expired", "dropped", "damaged", "in_doubt")
"""Why a number may be missing, as its board says. A number that has several reasons counts for the first of them."""
RANGE = pa.struct([pa.field("lo", pa.int64(), nullable=False), pa.field("hi", pa.int64(), nullable=False)])

# The audit: one row a boot, what it published and what became of it; then what the next batch goes on from.
AUDIT = pa.schema(
    [
        *KEY,
        pa.field("cause", pa.string()),
        pa.field("first_seq", pa.int64(), nullable=False),
        pa.field("last_seq", pa.int64(), nullable=False),
        pa.field("published", pa.int64(), nullable=False),
        pa.field("delivered", pa.int64(), nullable=False),
        pa.field("readings", pa.int64(), nullable=False),
        pa.field("resent", pa.int64(), nullable=False),
        pa.field("replayed", pa.int64(), nullable=False),
        pa.field("missing", pa.int64(), nullable=False),
        # Of the missing ones, each counted once: what the board says it gave up, what it calls in doubt, and the rest.
        *[pa.field(name, pa.int64(), nullable=False) for name in ("refused", "expired", "dropped", "damaged")],
        pa.field("in_doubt", pa.int64(), nullable=False),
        pa.field("unexplained", pa.int64(), nullable=False),
        # Gaps so long that no board can have lost all of it (lives.MOST_GAP): neither published nor missing.
        pa.field("suspect", pa.int64(), nullable=False),
        pa.field("missing_ranges", pa.list_(RANGE), nullable=False),
        pa.field("in_tables", pa.int64(), nullable=False),  # messages read back from the files after they were written
        pa.field("twice", pa.int64(), nullable=False),  # rows that were there already
        pa.field("absent", pa.int64(), nullable=False),  # messages that the state calls seen and no file holds
        pa.field("reordered", pa.int64(), nullable=False),
        pa.field("returns", pa.int64(), nullable=False),
        pa.field("late", pa.int64(), nullable=False),
        pa.field("delay_p50_ms", pa.float64()),
        pa.field("delay_p90_ms", pa.float64()),
        pa.field("delay_p99_ms", pa.float64()),
        pa.field(
            "delay_octaves", pa.list_(pa.struct([("octave", pa.int32()), ("messages", pa.int64())])), nullable=False
        ),
        pa.field("clock_jumps", pa.int64(), nullable=False),
        pa.field("dated_by", pa.string(), nullable=False),
        pa.field("open", pa.bool_(), nullable=False),
        pa.field("first_arrival", MOMENT, nullable=False),
        pa.field("last_arrival", MOMENT, nullable=False),
        # What the next batch goes on from.
        pa.field("begun", pa.int64()),  # the first number, as the boot message tells it
        pa.field("cause_seq", pa.int64()),
        pa.field("dropped_before", pa.int64()),
        pa.field("dropped_after", pa.int64()),
        pa.field(
            "ties",
            pa.list_(pa.struct([("seq", pa.int64()), ("offset_us", pa.int64()), ("uptime", pa.float64())])),
            nullable=False,
        ),
        pa.field("base_us", pa.int64(), nullable=False),
        pa.field("steps", pa.list_(pa.int32()), nullable=False),
        pa.field("counts", pa.list_(pa.int64()), nullable=False),
        # What the board told of itself in this boot: erases of its most worn sector, connections.
        pa.field("erases_first", pa.float64()),
        pa.field("erases", pa.float64()),
        pa.field("connects", pa.float64()),
        pa.field("told_uptime", pa.float64()),
    ]
)

# The same by device and life: sums, and what the report and the verdict ask of a device.
LIVES = pa.schema(
    [
        *KEY[:2],
        *[
            pa.field(name, pa.int64(), nullable=False)
            for name in (
                "boots",
                "published",
                "delivered",
                "resent",
                "replayed",
                "returns",
                "missing",
                "refused",
                "expired",
            )
        ],
        *[
            pa.field(name, pa.int64(), nullable=False)
            for name in ("dropped", "damaged", "in_doubt", "unexplained", "suspect", "late", "twice", "absent")
        ],
        pa.field("first_arrival", MOMENT, nullable=False),
        pa.field("last_arrival", MOMENT, nullable=False),
        pa.field("since", pa.int64()),  # the number that the life began with, where its board says that it was not 1
        # Numbers that the board calls in doubt, or says that it gave up and why: ranges, joined.
        *[pa.field(f"{name}_ranges", pa.list_(RANGE), nullable=False) for name in REASONS],
        pa.field("erases_first", pa.float64()),
        pa.field("erases", pa.float64()),
        pa.field("told_uptime", pa.float64(), nullable=False),
        pa.field("reconnects", pa.float64()),
    ]
)

INTERVALS = pa.schema([*KEY, pa.field("lo", pa.int64(), nullable=False), pa.field("hi", pa.int64(), nullable=False)])

# The payload of every message that was stored, in 32 bits: see prints.py.
PRINTS = pa.schema([*KEY, SEQ, pa.field("print", pa.int32(), nullable=False)])

# What a board says of numbers that it gave up: a reason, and a range of them in this life.
UNDELIVERED = pa.schema(
    [
        *KEY,
        SEQ,  # of the message that says so
        pa.field("reason", pa.string(), nullable=False),  # "refused", "expired", "dropped", "damaged"
        pa.field("lo", pa.int64(), nullable=False),
        pa.field("hi", pa.int64(), nullable=False),
    ]
)

# The lives of each device, what its board calls them (0: it says nothing), and its newest message, in the row of its life.
IDENTITIES = pa.schema(
    [
        *KEY[:2],
        pa.field("identity", pa.int64(), nullable=False),
        pa.field("boot", pa.int64()),
        pa.field("seq", pa.int64()),
        pa.field("arrival", MOMENT),
    ]
)

# What is held until its life is known. It counts as quarantine as long as it is (commits.py).
HELD = pa.schema(
    [
        KEY[0],
        *QUARANTINE,
        pa.field("identity", pa.int64(), nullable=False),
        KEY[2],
        SEQ,
        pa.field("first", pa.int64()),
        pa.field("print", pa.int32(), nullable=False),
    ]
)

TABLES = {
    "readings": READINGS,
    "events": EVENTS,
    "ties": TIES,
    "duplicates": DUPLICATES,
    "quarantine": QUARANTINE,
    "prints": PRINTS,
    "undelivered": UNDELIVERED,
}

AGING = ("readings", "prints", "duplicates", "quarantine")
"""The tables that a retention by age applies to: events and ties are few, and date what is kept."""

# What the devices brought whose messages carry no identity: see plain.py.
PLAIN = pa.schema(
    [
        KEY[0],
        pa.field("messages", pa.int64(), nullable=False),
        pa.field("readings", pa.int64(), nullable=False),
        pa.field("copies", pa.int64(), nullable=False),
        pa.field("first_arrival", MOMENT, nullable=False),
        pa.field("last_arrival", MOMENT, nullable=False),
    ]
)

STATE = {"intervals": INTERVALS, "identities": IDENTITIES, "held": HELD, "audit": AUDIT, "lives": LIVES, "plain": PLAIN}

# What a task gives back: the files that it wrote.
DONE = pa.schema(
    [
        pa.field("bucket", pa.int32(), nullable=False),
        pa.field("table", pa.string(), nullable=False),
        pa.field("file", pa.string(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("told", pa.string()),  # of table "summary": what the bucket adds to the fleet's sums, as JSON
    ]
)


def spark_schema(schema: pa.Schema) -> StructType:
    """Return the Spark schema of an Arrow schema."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)
