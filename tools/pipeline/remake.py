"""`python -m tools.pipeline.remake --landing DIR --out OLD --to NEW`: the tables once more, from the raw data that was kept.

After a later version that reads payloads in another way, with another number of buckets, or where an output is in doubt. It
first says whether the raw data goes back to the beginning: what was retired can't be made again, and then nothing is made
unless `--partly` says that the rest will do. The new tables lie beside the old ones, which stay as they are; at the end the
sums of both are held against each other. Exit status: 0 where they agree, 1 where they differ, 2 where it could not run.
"""

from __future__ import annotations

import argparse
import contextlib
import sys

from tools.command import ended, number
from tools.landing import segments

from . import mapping, source, verdict
from .commits import Output, OutputError
from .storage import Storage, StorageError

COMPARED = (
    *("boots", "devices", "published", "delivered", "readings", "missing", "quarantine"),
    *("plain_messages", "plain_readings"),
)


def lacking(landing: Storage, read: dict[str, int]) -> dict[str, list[int]]:
    """Return the segments that the tables were made of and that are not in the landing: collector -> numbers."""
    found = source.latest(landing)
    gone = {}
    for collector, last in sorted(read.items()):
        there = found.get(collector, {})
        numbers = [number for number in range(1, last + 1) if number not in there]
        if numbers:
            gone[collector] = numbers
    return gone


def told(gone: dict[str, list[int]]) -> str:
    """Return in words what is lacking."""
    return "; ".join(
        f"{len(numbers):,} of {collector}, from {segments.file_name(collector, numbers[0])} to"
        f" {segments.file_name(collector, numbers[-1])}"
        for collector, numbers in gone.items()
    )


def differences(old: dict[str, int], new: dict[str, int]) -> list[str]:
    """Return where the sums of two outputs differ."""
    return [
        f"{name}: {old.get(name, 0):,} were, {new.get(name, 0):,} are"
        for name in COMPARED
        if old.get(name, 0) != new.get(name, 0)
    ]


def main(argv: list[str] | None = None) -> int:
    """Make the tables again; return the exit status."""
    from pyspark.errors import PySparkException

    from . import java, session, stream
    from .run import cause, tell

    parser = argparse.ArgumentParser(prog="python -m tools.pipeline.remake", description=__doc__.split("\n")[0])
    parser.add_argument("--landing", required=True, help="the raw data")
    parser.add_argument("--out", required=True, help="the tables as they are")
    parser.add_argument("--to", required=True, help="where the new ones go")
    parser.add_argument(
        "--buckets", type=number(int, 1), help="device buckets (default: as many as the old tables have)"
    )
    parser.add_argument("--mapping", help="the mapping file that the old tables were made with, or a new one")
    parser.add_argument("--segments-per-batch", type=number(int, 1), default=stream.SEGMENTS_PER_BATCH)
    parser.add_argument("--partly", action="store_true", help="make what can be made, though raw data was retired")
    parser.add_argument("--master", help="Spark master (default: spark-submit's, or this machine)")
    options = parser.parse_args(argv)
    with contextlib.ExitStack() as stack:
        try:
            rules = mapping.read(options.mapping) if options.mapping else mapping.Mapping()
            old, new, landing = Output(options.out), Output(options.to), Storage(options.landing)
            buckets = options.buckets or old.check_format()
            before = old.latest()
            if before is None:
                raise OutputError(f"{options.out} has no batches: run the pipeline first (make pipeline)")
            gone = lacking(landing, before.read)
            if gone and not options.partly:
                raise OutputError(
                    f"the raw data does not go back to the beginning: {told(gone)} are not in {landing.uri}. Bring them back,"
                    " or make the tables of the rest only: --partly"
                )
            if new.latest() is not None:
                raise OutputError(f"{options.to} has tables already: give another --to")
            stack.enter_context(new.alone())
            spark = stack.enter_context(session.opened(options.master, session.log_file(new.storage)))
            query = stream.start(
                spark,
                options.landing,
                options.to,
                f"{options.to.rstrip('/')}/checkpoint",
                buckets,
                options.segments_per_batch,
                told=tell,
                mapping=rules,
            )
            query.awaitTermination()
        except (OutputError, StorageError, source.LandingError, mapping.MappingError, java.JavaNotFound) as error:
            print(f"remake: {error}", file=sys.stderr)
            return 2
        except PySparkException as error:
            print(f"remake: {cause(error)}", file=sys.stderr)
            return 2
    found = verdict.judge(new)
    print(f"  {found.line}")
    differ = differences(before.summary["totals"], found.totals)
    for line in differ:
        print(f"  {line}")
    if gone:
        print(f"  made without {told(gone)}")
    if not differ:
        print(f"  {options.to} holds what {options.out} holds: put it in its place, with its checkpoint")
    return int(bool(differ))


if __name__ == "__main__":
    sys.exit(ended(main, stopped="stopped"))
