"""All schemas of the pipeline: the columns of every table.

They are Arrow schemas, because the batches are Arrow; `spark_schema` converts them for Spark. If you change a table,
increase FORMAT: an output directory of another format is refused with that reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

import tools.landing.arrow  # noqa: F401 - before the first conversion

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

FORMAT = 4

LARGEST = 2**31 - 1  # of a boot and of a sequence number
MOMENT = pa.timestamp("us", tz="UTC")
INT32, INT64, FLOAT, TEXT = pa.int32(), pa.int64(), pa.float64(), pa.string()


def _always(kind: pa.DataType, *names: str) -> list[pa.Field]:
    """Return columns of one type that every row has."""
    return [pa.field(name, kind, nullable=False) for name in names]


def _maybe(kind: pa.DataType, *names: str) -> list[pa.Field]:
    """Return columns of one type that may be null."""
    return [pa.field(name, kind) for name in names]


# A message's identity. `life` begins at 1 and rises by 1 each time that a device's counters begin again (flash wiped, or
# board replaced with the same id); see lives.py. It is 0 if the message has no identity; see plain.py.
KEY = [*_always(TEXT, "device"), *_always(INT32, "life"), *_always(INT64, "boot")]
SEQ = pa.field("seq", INT64, nullable=False)

# The origin of a row: its position in the collector's log, where its payload can be found.
ORIGIN = [*_always(MOMENT, "arrival"), *_always(TEXT, "collector"), *_always(INT64, "segment", "row")]

READINGS = pa.schema(
    [
        *KEY,
        SEQ,
        *_always(INT32, "index"),  # the record's place in its pack
        *_maybe(TEXT, "name", "unit"),
        *_maybe(FLOAT, "value"),
        *_maybe(TEXT, "text"),
        *_maybe(pa.bool_(), "flag"),
        *_maybe(TEXT, "blob"),  # SenML "vd": base64url, as sent
        *_maybe(FLOAT, "sum", "uptime"),  # the uptime in seconds since the boot
        *_maybe(MOMENT, "time"),  # by the board's own clock, if it was set
        *ORIGIN,
    ]
)

EVENTS = pa.schema(
    [
        *KEY,
        SEQ,
        *_maybe(INT64, "first"),  # sequence number of the boot's first message
        *_maybe(TEXT, "cause"),  # of the reset
        *_maybe(INT64, "dropped"),  # dropped by policy so far, in the device's life
        *_maybe(INT64, "doubt_first", "doubt_last"),  # a range of messages that the board reported as in doubt
        *_maybe(INT64, "since"),  # the life's first number, if it is not 1
        *_maybe(FLOAT, "uptime"),
        *_maybe(MOMENT, "time"),
        *ORIGIN,
    ]
)

# `offset_us` is the board's clock minus its uptime.
TIES = pa.schema([*KEY, SEQ, *_always(INT64, "offset_us"), *_always(FLOAT, "uptime"), ORIGIN[0]])

# The cause is "resend", "replay" or "retained".
DUPLICATES = pa.schema([*KEY, SEQ, *_always(TEXT, "cause"), *_maybe(FLOAT, "uptime"), *ORIGIN])

QUARANTINE = pa.schema([*_always(TEXT, "reason", "topic"), *_maybe(pa.binary(), "payload"), *ORIGIN])

# `delivered` counts distinct messages. `returns`: how often the device's newest message went back to an older life; for
# boards without a life, also to an older boot or far back in its numbers. This is rare for one board, and frequent for two
# boards with the same id.
_COUNTS = _always(INT64, "delivered", "readings", "resent", "replayed", "reordered", "returns")
_ARRIVALS = _always(MOMENT, "first_arrival", "last_arrival")
# A histogram of arrival minus uptime, which is `base_us` plus a step of delays.py. With the boot's clock offset it becomes a
# histogram of delays.
_DELAYS = [
    *_always(INT64, "base_us"),
    *_always(pa.list_(INT32), "steps"),
    *_always(pa.list_(INT64), "counts"),
]
TALLY = pa.schema([*KEY, *_COUNTS, *_ARRIVALS, *_DELAYS])

GIVEN_UP = ("refused", "expired", "dropped", "damaged")
"""The reasons of the numbers that a board gave up."""
REASONS = (*GIVEN_UP, "in_doubt")
"""The reasons that a board gives for a missing number. A number with several reasons counts for the first one."""
RANGE = pa.struct(_always(INT64, "lo", "hi"))

# The audit: one row per boot. First what it published and what was delivered, then values that the next batch needs.
AUDIT = pa.schema(
    [
        *KEY,
        *_maybe(TEXT, "cause"),
        *_always(INT64, "first_seq", "last_seq", "published"),
        *_COUNTS,
        # The missing numbers, each counted once: those that the board gave up, those in doubt, and the rest.
        *_always(INT64, "missing", *REASONS, "unexplained"),
        # Gaps that are too long for a loss (lives.MOST_GAP): their numbers count neither as published nor as missing.
        *_always(INT64, "suspect"),
        *_always(pa.list_(RANGE), "missing_ranges"),
        # Messages read back from the files after they were written; surplus rows; messages that the state has, but no file.
        *_always(INT64, "in_tables", "twice", "absent"),
        *_always(INT64, "late"),
        *_maybe(FLOAT, "delay_p50_ms", "delay_p90_ms", "delay_p99_ms"),
        *_always(pa.list_(pa.struct([("octave", INT32), ("messages", INT64)])), "delay_octaves"),
        *_always(pa.bool_(), "open"),
        *_ARRIVALS,
        # Values that the next batch needs: the first number, from the boot message; the number of the message with the
        # cause; the boot's last tie, whose offset is used for the delays.
        *_maybe(INT64, "begun", "cause_seq", "dropped_before", "dropped_after", "tied_seq", "offset_us"),
        *_DELAYS,
        # The board's own counters in this boot: erases of its most worn sector, connections.
        *_maybe(FLOAT, "erases_first", "erases", "connects", "told_uptime"),
    ]
)

# The same by device and life: sums, and values for the report and the verdict.
LIVES = pa.schema(
    [
        *KEY[:2],
        *_always(INT64, "boots", "published", "delivered", "resent", "replayed", "returns", "missing", *REASONS),
        *_always(INT64, "unexplained", "suspect", "late", "twice", "absent"),
        *_ARRIVALS,
        *_maybe(INT64, "since"),  # the life's first number, if the board reported another one than 1
        # Numbers that the board reported as given up or in doubt, by reason: disjoint ranges.
        *_always(pa.list_(RANGE), *(f"{name}_ranges" for name in REASONS)),
        *_maybe(FLOAT, "erases_first", "erases"),
        *_always(FLOAT, "told_uptime"),
        *_maybe(FLOAT, "reconnects"),
    ]
)

INTERVALS = pa.schema([*KEY, *RANGE])

# A 32-bit hash of every stored message's payload: see prints.py.
PRINTS = pa.schema([*KEY, SEQ, *_always(INT32, "print")])

# The numbers that a board gave up: the message that reported them, a reason ("refused", "expired", "dropped", "damaged"),
# and a range of numbers of this life.
UNDELIVERED = pa.schema([*KEY, SEQ, *_always(TEXT, "reason"), *RANGE])

# The lives of each device, the boards' numbers for them (0: none), and each device's newest message, in its life's row.
IDENTITIES = pa.schema(
    [*KEY[:2], *_always(INT64, "identity"), *_maybe(INT64, "boot", "seq"), *_maybe(MOMENT, "arrival")]
)

# The messages that are held until their life is known. Meanwhile they count as quarantine (commits.py).
HELD = pa.schema(
    [KEY[0], *QUARANTINE, *_always(INT64, "identity"), KEY[2], SEQ, *_maybe(INT64, "first"), *_always(INT32, "print")]
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
PLAIN = pa.schema([KEY[0], *_always(INT64, "messages", "readings", "copies"), *_ARRIVALS])

STATE = {"intervals": INTERVALS, "identities": IDENTITIES, "held": HELD, "audit": AUDIT, "lives": LIVES, "plain": PLAIN}


def spark_schema(schema: pa.Schema) -> StructType:
    """Return the Spark schema of an Arrow schema."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)
