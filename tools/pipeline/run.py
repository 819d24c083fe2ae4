"""`python -m tools.pipeline.run --landing DIR --out DIR`: segments to tables, the audit, and whether it is clean.

Exit status: 0 where every message that was published is in the tables once, 1 where one is missing or twice, 2 where the
pipeline could not run (the text says why and what to do).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import signal
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.command import ended
from tools.landing import segments

from .storage import Storage, StorageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from .commits import Commit


STOPPED = "stopped; batches that were told are in the tables, the next run goes on behind them"
TOLD = {"readings": "readings", "duplicates": "duplicates removed", "quarantine": "in quarantine"}


class ConfigurationError(Exception):
    """The command line or the configuration file can't be used; the text says why."""


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """Read the command line, and the configuration file that it may name.

    Raises:
        ConfigurationError: the file is not there, is no TOML, or has a key that is not known.
    """
    parser = argparse.ArgumentParser(prog="python -m tools.pipeline.run", description=__doc__.split("\n")[0])
    parser.add_argument(
        "--config", type=Path, help="a TOML file with these names (a table [conf] for Spark's); flags win"
    )
    parser.add_argument("--landing", help="where the collector seals its segments: a path, s3a://, hdfs://")
    parser.add_argument("--out", help="where the tables go: a path, s3a://, hdfs://")
    parser.add_argument("--checkpoint", help="Spark's checkpoint (default: OUT/checkpoint)")
    parser.add_argument("--expected", help="JSON of what the boards' own counters say they published")
    parser.add_argument("--master", help="Spark master (default: spark-submit's, or this machine)")
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="a Spark setting")
    parser.add_argument(
        "--buckets", type=int, default=segments.BUCKETS, help="device buckets, fixed for an output directory"
    )
    parser.add_argument("--segments-per-batch", type=int, default=64, help="most segments of a micro-batch")
    parser.add_argument(
        "--follow", type=float, metavar="SECONDS", help="go on for ever, looking for segments this often"
    )
    parser.add_argument(
        "--late-after", type=float, default=60.0, metavar="SECONDS", help="a delay that the audit calls late"
    )
    parser.add_argument("--no-report", action="store_true", help="leave the HTML page out")
    options = parser.parse_args(argv)
    if options.config:
        told = configuration(options.config, set(vars(options)) - {"config"})
        settings = [f"{key}={value}" for key, value in told.pop("conf", {}).items()]
        parser.set_defaults(**told)
        options = parser.parse_args(argv)
        options.conf = settings + options.conf
    for name in ("landing", "out"):
        if not getattr(options, name):
            raise ConfigurationError(f"--{name} is missing: give it, or put it into the file that --config names")
    if not all("=" in one for one in options.conf):
        raise ConfigurationError("--conf takes KEY=VALUE")
    for name, least in (("buckets", 1), ("segments_per_batch", 1), ("follow", 0.1), ("late_after", 0)):
        value = getattr(options, name)
        if value is not None and not (isinstance(value, int | float) and least <= value < math.inf):
            raise ConfigurationError(f"--{name.replace('_', '-')} has to be a number, at least {least}")
    return options


def configuration(path: Path, known: set[str]) -> dict[str, Any]:
    """Read a configuration file; return it by the names of the options."""
    try:
        told = tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"{path}: {error}") from error
    told = {key.replace("-", "_"): value for key, value in told.items()}
    unknown = sorted(set(told) - known)
    if unknown:
        raise ConfigurationError(f"{path}: unknown key {unknown[0]!r}; known: {', '.join(sorted(known))}")
    return told


def main(argv: list[str] | None = None) -> int:
    """Run the pipeline; return the exit status."""
    from pyspark.errors import PySparkException

    from . import commits, java, session, source

    named = (commits.OutputError, source.LandingError, StorageError)
    try:
        options = arguments(argv)
    except ConfigurationError as error:
        print(f"pipeline: {error}", file=sys.stderr)
        return 2
    with contextlib.ExitStack() as stack:
        try:
            settings = dict(one.split("=", 1) for one in options.conf)
            expected = json.loads(Path(options.expected).read_text()) if options.expected else None
            output = commits.Output(options.out)
            found = source.latest(Storage(options.landing))
            stack.enter_context(output.alone())
            log = session.log_file(output.storage)
            print(f"  {sum(map(len, found.values())):,} segments in {options.landing}; Spark starts", flush=True)
            spark = session.make(options.master, log, settings)
            stack.callback(spark.stop)
        except (*named, java.JavaNotFound, OSError, ValueError) as error:
            print(f"pipeline: {error}", file=sys.stderr)
            return 2
        try:
            return _run(spark, options, expected)
        except named as error:
            print(f"pipeline: {error}", file=sys.stderr)
            return 2
        except PySparkException as error:
            print(f"pipeline: {cause(error)}" + (f"\nThe whole story is in {log}" if log else ""), file=sys.stderr)
            return 2


def _run(spark: SparkSession, options: argparse.Namespace, expected: dict[str, Any] | None) -> int:
    from . import report, stream, verdict

    checkpoint = options.checkpoint or f"{options.out.rstrip('/')}/checkpoint"
    query = stream.start(
        spark,
        options.landing,
        options.out,
        checkpoint,
        options.buckets,
        options.segments_per_batch,
        options.follow,
        tell,
    )
    until_ended(query)
    status = verdict.judge(spark, options.out, expected, options.late_after)
    if not options.no_report:
        print(f"  report: {report.write(spark, options.out)}", flush=True)
    return status


def tell(commit: Commit) -> None:
    """Say what a batch brought."""
    rows = [f"{commit.rows.get(table, 0):,} {what}" for table, what in TOLD.items()]
    print(f"  batch {commit.batch}: {', '.join(rows)}", flush=True)


def until_ended(query: StreamingQuery) -> None:
    """Wait for the stream's end. Ctrl-C and SIGTERM end it between two calls: in the middle of one, py4j loses its place.

    Raises:
        KeyboardInterrupt: so it ended.
    """
    asked: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: asked.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        while not query.awaitTermination(1):
            if asked:
                query.stop()
                raise KeyboardInterrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def cause(error: Exception) -> str:
    """Return the last line of a Python failure inside Spark, or the beginning of Spark's own text."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith(("tools.", "pyarrow.lib.")) and ": " in line]
    return ours[-1].split(": ", 1)[1] if ours else (lines[0] if lines else repr(error))


if __name__ == "__main__":
    sys.exit(ended(main, stopped=STOPPED))
