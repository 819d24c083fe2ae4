"""What the audit comes to: made, written beside the tables, held against the tables themselves, and printed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import audit, session
from .commits import Output

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MOST_ROWS = 40
LONGEST_NAME = 60
WHOLE = "Every message that was published is in the tables, once."
LOST = "NOT every message that was published is in the tables once."


def audited(
    spark: SparkSession, out: str, expected: dict[str, Any] | None = None, late_after_s: float = 60.0
) -> DataFrame:
    """Make the audit and write it beside the tables, with the missing ranges; return it."""
    output = Output(out)
    tables = [output.read(spark, name) for name in ("tally", "intervals", "events", "ties")]
    boots = audit.extents(audit.per_boot(audit.facts(*tables, audit.expected_facts(spark, expected))))
    found = audit.audit(boots, late_after_s)
    address = {name: output.storage.address(name) for name in ("audit", "missing")}
    tallied = output.rows("tally")
    with session.small_frames(spark, tallied < session.SMALL_ROWS):
        found.coalesce(1).write.mode("overwrite").parquet(address["audit"])
        found = spark.read.schema(found.schema).parquet(address["audit"])
        audit.missing(found).coalesce(1).write.mode("overwrite").parquet(address["missing"])
    return found


def judge(spark: SparkSession, out: str, expected: dict[str, Any] | None, late_after_s: float = 60.0) -> int:
    """Make the audit, hold it against the tables themselves, print it, and return the exit status."""
    output = Output(out)
    found = audited(spark, out, expected, late_after_s)
    inside = audit.check(output.read(spark, "readings"), output.read(spark, "events"))
    readings = output.rows("readings")
    with session.small_frames(spark, readings < session.SMALL_ROWS):
        rows = found.join(inside, audit.BOOT, "full").orderBy(audit.BOOT).collect()
    print_audit(rows, output.rows("quarantine"))
    unknown = [row for row in rows if row.published is None]
    for row in unknown[:MOST_ROWS]:
        print(
            f"  {_shown(row.device)} boot {row.boot}: {row.in_tables} messages of a boot that its board knows nothing of"
        )
    missing = sum(row.missing or 0 for row in rows)
    twice = sum(row.twice or 0 for row in rows)
    absent = sum(max(0, (row.published or 0) - (row.missing or 0) - (row.in_tables or 0)) for row in rows)
    bad = bool(missing or twice or absent or unknown)
    print("  " + (LOST if bad else WHOLE), flush=True)
    return int(bad)


def _shown(device: str) -> str:
    """Return a device's name as it may stand on a terminal: boards choose them."""
    name = device if len(device) <= LONGEST_NAME else device[: LONGEST_NAME - 1] + "…"
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in name)


def print_audit(rows: list[Any], quarantined: int) -> None:
    """Print the audit for a person."""
    header = ("device", "boot", "published", "delivered", "duplicates removed", "missing", "twice in tables")
    lines: list[tuple[str, ...]] = [header]
    shown = rows if len(rows) <= MOST_ROWS else [row for row in rows if row.missing or row.twice][:MOST_ROWS]
    for row in shown:
        boot = f"{row.boot}" if row.life == 1 else f"{row.boot} (life {row.life})"
        numbers = (row.published, row.delivered, (row.resent or 0) + (row.replayed or 0), row.missing, row.twice)
        lines.append((_shown(row.device), boot, *[f"{number or 0:,}" for number in numbers]))
    totals = [
        sum(value or 0 for value in column)
        for column in zip(
            *[(r.published, r.delivered, (r.resent or 0) + (r.replayed or 0), r.missing, r.twice) for r in rows],
            strict=True,
        )
    ] or [0] * 5
    lines.append(
        (f"{len({row.device for row in rows})} devices", f"{len(rows)} boots", *[f"{total:,}" for total in totals])
    )
    widths = [max(len(line[n]) for line in lines) for n in range(len(header))]
    print()
    for n, line in enumerate(lines):
        if n in {1, len(lines) - 1}:
            print("  " + "  ".join("-" * width for width in widths))
        print(
            "  "
            + "  ".join(
                text.ljust(w) if k < 2 else text.rjust(w) for k, (text, w) in enumerate(zip(line, widths, strict=True))
            )
        )
    if len(shown) < len(rows):
        print(f"  (of {len(rows):,} boots only those with losses are shown, at most {MOST_ROWS})")
    if quarantined:
        print(f"  {quarantined:,} messages could not be read: they are in the table quarantine, with the reason")
    print(flush=True)
