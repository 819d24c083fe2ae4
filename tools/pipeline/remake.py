"""`python -m tools.pipeline.remake --landing DIR --out OLD --to NEW`: make the tables again, from the raw data.

Use it for a later version that reads payloads in another way, for another number of buckets, or if an output may be wrong.
First it checks that the raw data is complete: tables can't be made again from retired segments. If segments are missing,
it makes nothing. The new tables are in another folder; the old ones are not changed. At the end it compares the sums of both.
After a kill, delete the new tables and start it again. Exit status: 0 if they agree, 1 if they differ, 2 if it could not run.
"""

import contextlib
import os
import sys

from tools.command import Failure, exit_status, filled, named
from tools.landing import segments

from . import options, verdict
from .tables import source
from .tables.commits import Output
from .tables.storage import Storage

COMPARED = (
    *("boots", "devices", "published", "delivered", "readings", "missing", "quarantine"),
    *("plain_messages", "plain_readings"),
)


def lacking(landing: Storage, read: dict[str, int]) -> str:
    """Return a text that lists the segments that are in the tables but not in the landing."""
    found = source.latest(landing)
    gone = [(its, [n for n in range(1, last + 1) if n not in found.get(its, {})]) for its, last in sorted(read.items())]
    return "; ".join(
        f"{len(numbers):,} of {its}, from {segments.file_name(its, numbers[0])} to {segments.file_name(its, numbers[-1])}"
        for its, numbers in gone
        if numbers
    )


def differences(old: dict[str, int], new: dict[str, int]) -> list[str]:
    """Return a text for each sum that differs between two outputs."""
    return [
        f"{name}: {old.get(name, 0):,} before, {new.get(name, 0):,} now"
        for name in COMPARED
        if old.get(name, 0) != new.get(name, 0)
    ]


@named("remake")
def main(argv: list[str] | None = None) -> int:
    """Make the tables again; return the exit status."""
    from . import session, stream
    from .run import print_batch

    parser = options.parser("remake", __doc__, spark=True)
    parser.add_argument("--landing", required=True, help="the raw data")
    parser.add_argument("--to", type=filled, required=True, help="the folder for the new tables")
    options.buckets(parser, "device buckets (default: as many as the old tables have)")
    options.mapping(parser, "the mapping file that the old tables were made with, or a new one")
    given = parser.parse_args(argv)
    options.check_outside("--to", given.to, given.landing)
    old, new, landing = Output(given.out), Output(given.to), Storage(given.landing)
    buckets = given.buckets or old.check_format()
    with contextlib.ExitStack() as stack:
        if os.access(old.storage.root, os.W_OK):  # else nobody compacts them from here
            stack.enter_context(old.locked("compaction"))  # which deletes segments
        before = old.newest()
        if gone := lacking(landing, before.read):
            raise Failure(f"the raw data is incomplete: {gone} are not in {landing.uri}. Restore them")
        if new.latest() is not None:
            raise Failure(
                f"{given.to} has tables already: give another --to, or, if a remake that was killed made them, delete them"
            )
        stack.enter_context(new.locked())
        spark = stack.enter_context(session.opened(given.master, new.storage))
        where = (given.landing, given.to, f"{given.to.rstrip('/')}/checkpoint", buckets)
        job = stream.Job(spark, *where, on_commit=print_batch, mapping=given.mapping)
        job.start().awaitTermination()
    found = verdict.judge(new)
    print(f"  {found.line}")
    differ = differences(before.summary["totals"], found.totals)
    for line in differ:
        print(f"  {line}")
    if differ and new.newest().read != before.read:
        print(
            f"  {given.out} has not read all segments yet, so its sums are smaller: run the pipeline, then remake anew"
        )
    if differ and given.mapping.rules:
        print("  a new mapping may make other sums: check that these are what you expect")
    if not differ:
        print(f"  {given.to} has the same sums as {given.out}, and can replace it, together with its checkpoint")
    return int(bool(differ))


if __name__ == "__main__":
    sys.exit(exit_status(main, stopped="stopped"))
