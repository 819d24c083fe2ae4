"""All schemas of the pipeline: the columns of every table.

They are Arrow schemas, because the batches are Arrow; `spark_schema` converts them for Spark. If you change a table,
increase FORMAT: an output directory of another format is refused with that reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

FORMAT = 4

LARGEST = 2**31 - 1  # of a boot and of a sequence number
MOMENT = pa.timestamp("us", tz="UTC")

# A message's identity. `life` begins at 1 and rises by 1 each time that a device's counters begin again (flash wiped, or
# board replaced with the same id); see lives.py. It is 0 if the message has no identity; see plain.py.
KEY = [
    pa.field("device", pa.string(), nullable=False),
    pa.field("life", pa.int32(), nullable=False),
    pa.field("boot", pa.int64(), nullable=False),
]
SEQ = pa.field("seq", pa.int64(), nullable=False)

# The origin of a row: its position in the collector's log, where its payload can be found.
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
        pa.field("time", MOMENT),  # by the board's own clock, if it was set
        *ORIGIN,
    ]
)

EVENTS = pa.schema(
    [
        *KEY,
        SEQ,
        pa.field("first", pa.int64()),  # sequence number of the boot's first message
        pa.field("cause", pa.string()),  # of the reset
        pa.field("dropped", pa.int64()),  # dropped by policy so far, in the device's life
        pa.field("doubt_first", pa.int64()),  # a range of messages that the board reported as in doubt
        pa.field("doubt_last", pa.int64()),
        pa.field("since", pa.int64()),  # the life's first number, if it is not 1
        pa.field("uptime", pa.float64()),
        pa.field("time", MOMENT),
        *ORIGIN,
    ]
)

TIES = pa.schema(
    [
        *KEY,
        SEQ,
        pa.field("offset_us", pa.int64(), nullable=False),  # the board's clock minus its uptime
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

_COUNTS = [
    pa.field("delivered", pa.int64(), nullable=False),  # distinct messages
    pa.field("readings", pa.int64(), nullable=False),
    pa.field("resent", pa.int64(), nullable=False),
    pa.field("replayed", pa.int64(), nullable=False),
    pa.field("reordered", pa.int64(), nullable=False),
    # How often the device's newest message went back to an older life; for boards without a life, also to an older boot
    # or far back in its numbers. This is rare for one board, and frequent for two boards with the same id.
    pa.field("returns", pa.int64(), nullable=False),
]
_ARRIVALS = [
    pa.field("first_arrival", MOMENT, nullable=False),
    pa.field("last_arrival", MOMENT, nullable=False),
]
_DELAYS = [
    # A histogram of arrival minus uptime, which is `base_us` plus a step of delays.py. With the boot's clock offset it
    # becomes a histogram of delays.
    pa.field("base_us", pa.int64(), nullable=False),
    pa.field("steps", pa.list_(pa.int32()), nullable=False),
    pa.field("counts", pa.list_(pa.int64()), nullable=False),
]
TALLY = pa.schema([*KEY, *_COUNTS, *_ARRIVALS, *_DELAYS])

REASONS = ("refused", "expired", "dropped", "damaged", "in_doubt")
"""The reasons that a board gives for a missing number. A number with several reasons counts for the first one."""
RANGE = pa.struct([pa.field("lo", pa.int64(), nullable=False), pa.field("hi", pa.int64(), nullable=False)])

# The audit: one row per boot. First what it published and what was delivered, then values that the next batch needs.
AUDIT = pa.schema(
    [
        *KEY,
        pa.field("cause", pa.string()),
        pa.field("first_seq", pa.int64(), nullable=False),
        pa.field("last_seq", pa.int64(), nullable=False),
        pa.field("published", pa.int64(), nullable=False),
        *_COUNTS,
        pa.field("missing", pa.int64(), nullable=False),
        # The missing numbers, each counted once: those that the board gave up, those in doubt, and the rest.
        *[pa.field(name, pa.int64(), nullable=False) for name in REASONS],
        pa.field("unexplained", pa.int64(), nullable=False),
        # Gaps that are too long for a loss (lives.MOST_GAP): their numbers count neither as published nor as missing.
        pa.field("suspect", pa.int64(), nullable=False),
        pa.field("missing_ranges", pa.list_(RANGE), nullable=False),
        pa.field("in_tables", pa.int64(), nullable=False),  # messages read back from the files after they were written
        pa.field("twice", pa.int64(), nullable=False),  # surplus rows
        pa.field("absent", pa.int64(), nullable=False),  # messages that the state has, but no file
        pa.field("late", pa.int64(), nullable=False),
        pa.field("delay_p50_ms", pa.float64()),
        pa.field("delay_p90_ms", pa.float64()),
        pa.field("delay_p99_ms", pa.float64()),
        pa.field(
            "delay_octaves", pa.list_(pa.struct([("octave", pa.int32()), ("messages", pa.int64())])), nullable=False
        ),
        pa.field("open", pa.bool_(), nullable=False),
        *_ARRIVALS,
        # Values that the next batch needs.
        pa.field("begun", pa.int64()),  # the first number, from the boot message
        pa.field("cause_seq", pa.int64()),
        pa.field("dropped_before", pa.int64()),
        pa.field("dropped_after", pa.int64()),
        pa.field("tied_seq", pa.int64()),  # of the boot's last tie, whose offset is used for the delays
        pa.field("offset_us", pa.int64()),
        *_DELAYS,
        # The board's own counters in this boot: erases of its most worn sector, connections.
        pa.field("erases_first", pa.float64()),
        pa.field("erases", pa.float64()),
        pa.field("connects", pa.float64()),
        pa.field("told_uptime", pa.float64()),
    ]
)

_OF_A_BOOT = (
    *("published", "delivered", "resent", "replayed", "returns", "missing"),
    *(*REASONS, "unexplained", "suspect", "late", "twice", "absent"),
)
# The same by device and life: sums, and values for the report and the verdict.
LIVES = pa.schema(
    [
        *KEY[:2],
        *[pa.field(name, pa.int64(), nullable=False) for name in ("boots", *_OF_A_BOOT)],
        *_ARRIVALS,
        pa.field("since", pa.int64()),  # the life's first number, if the board reported another one than 1
        # Numbers that the board reported as given up or in doubt, by reason: disjoint ranges.
        *[pa.field(f"{name}_ranges", pa.list_(RANGE), nullable=False) for name in REASONS],
        pa.field("erases_first", pa.float64()),
        pa.field("erases", pa.float64()),
        pa.field("told_uptime", pa.float64(), nullable=False),
        pa.field("reconnects", pa.float64()),
    ]
)

INTERVALS = pa.schema([*KEY, pa.field("lo", pa.int64(), nullable=False), pa.field("hi", pa.int64(), nullable=False)])

# A 32-bit hash of every stored message's payload: see prints.py.
PRINTS = pa.schema([*KEY, SEQ, pa.field("print", pa.int32(), nullable=False)])

# The numbers that a board gave up: a reason, and a range of numbers of this life.
UNDELIVERED = pa.schema(
    [
        *KEY,
        SEQ,  # of the message that reported them
        pa.field("reason", pa.string(), nullable=False),  # "refused", "expired", "dropped", "damaged"
        pa.field("lo", pa.int64(), nullable=False),
        pa.field("hi", pa.int64(), nullable=False),
    ]
)

# The lives of each device, the boards' numbers for them (0: none), and each device's newest message, in its life's row.
IDENTITIES = pa.schema(
    [
        *KEY[:2],
        pa.field("identity", pa.int64(), nullable=False),
        pa.field("boot", pa.int64()),
        pa.field("seq", pa.int64()),
        pa.field("arrival", MOMENT),
    ]
)

# The messages that are held until their life is known. Meanwhile they count as quarantine (commits.py).
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
"""The tables with a retention by age. Events and ties are kept: they are few, and date the readings."""

# The sums by device for messages without an identity: see plain.py.
PLAIN = pa.schema(
    [
        KEY[0],
        pa.field("messages", pa.int64(), nullable=False),
        pa.field("readings", pa.int64(), nullable=False),
        pa.field("copies", pa.int64(), nullable=False),
        *_ARRIVALS,
    ]
)

STATE = {"intervals": INTERVALS, "identities": IDENTITIES, "held": HELD, "audit": AUDIT, "lives": LIVES, "plain": PLAIN}

# A task's result: the files that it wrote.
DONE = pa.schema(
    [
        pa.field("bucket", pa.int32(), nullable=False),
        pa.field("table", pa.string(), nullable=False),
        pa.field("file", pa.string(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("summary", pa.string()),  # of table "summary": the bucket's addition to the fleet's sums, as JSON
    ]
)


def spark_schema(schema: pa.Schema) -> StructType:
    """Return the Spark schema of an Arrow schema."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)
