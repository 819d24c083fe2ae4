"""`python -m tools.pipeline.run --landing DIR --out DIR`: segments to tables, the audit, and whether it is clean.

Exit status: 0 where every message that was published is in the tables once, 1 where one is missing or twice, 2 where the
pipeline could not run (the text says why and what to do).
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.landing import segments

from .storage import Storage, StorageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
    if options.buckets < 1 or options.segments_per_batch < 1:
        raise ConfigurationError("--buckets and --segments-per-batch have to be at least 1")
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

    try:
        options = arguments(argv)
    except ConfigurationError as error:
        print(f"pipeline: {error}", file=sys.stderr)
        return 2
    settings = dict(one.split("=", 1) for one in options.conf)
    expected = None
    try:
        if options.expected:
            expected = json.loads(Path(options.expected).read_text())
        out = Storage(options.out)
        source.latest(Storage(options.landing))
        log = session.log_file(out)
        spark = session.make(options.master, log, settings)
    except (StorageError, source.LandingError, java.JavaNotFound, OSError, ValueError) as error:
        print(f"pipeline: {error}", file=sys.stderr)
        return 2
    try:
        return _run(spark, options, expected)
    except (commits.OutputError, source.LandingError, StorageError) as error:
        print(f"pipeline: {error}", file=sys.stderr)
        return 2
    except PySparkException as error:
        print(f"pipeline: {cause(error)}" + (f"\nThe whole story is in {log}" if log else ""), file=sys.stderr)
        return 2
    finally:
        spark.stop()


def _run(spark: SparkSession, options: argparse.Namespace, expected: dict[str, Any] | None) -> int:
    from . import report, stream, verdict

    checkpoint = options.checkpoint or f"{options.out.rstrip('/')}/checkpoint"
    query = stream.start(
        spark, options.landing, options.out, checkpoint, options.buckets, options.segments_per_batch, options.follow
    )
    try:
        query.awaitTermination()
    except KeyboardInterrupt:
        query.stop()
        raise
    status = verdict.judge(spark, options.out, expected, options.late_after)
    if not options.no_report:
        print(f"  report: {report.write(spark, options.out)}", flush=True)
    return status


def cause(error: Exception) -> str:
    """Return the last line of a Python failure inside Spark, or the beginning of Spark's own text."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith(("tools.", "pyarrow.lib.")) and ": " in line]
    return ours[-1].split(": ", 1)[1] if ours else (lines[0] if lines else repr(error))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
