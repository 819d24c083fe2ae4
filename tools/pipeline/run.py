"""`python -m tools.pipeline.run --landing DIR --out DIR`: segments to tables, the audit, and whether it is clean.

Exit status: 0 where every message that was published is in the tables once, could be read, and every board still talks; 1
where not (the last line says all that is wrong), 2 where the pipeline could not run (the text says why and what to do).
"""

from __future__ import annotations

import argparse
import contextlib
import math
import re
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.command import ended
from tools.landing import segments

from . import mapping, verdict
from .commits import Output, OutputError
from .storage import Storage, StorageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .commits import Commit
    from .metrics import Metrics


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
    parser.add_argument("--mapping", help="a TOML file: which topics and JSON paths give which readings")
    parser.add_argument("--checkpoint", help="Spark's checkpoint (default: OUT/checkpoint)")
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
    parser.add_argument("--no-delta", action="store_true", help="leave the Delta logs beside the tables as they are")
    verdict.add_options(parser)
    parser.add_argument(
        "--prove-every",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="with --follow: audit, missing ranges and report at this interval (and on SIGUSR1); 0: on demand only",
    )
    parser.add_argument("--metrics-port", type=int, default=0, metavar="P", help="figures for Prometheus; 0: none")
    parser.add_argument("--metrics-address", default="127.0.0.1", metavar="A")
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
    for name, least in (
        ("buckets", 1),
        ("segments_per_batch", 1),
        ("follow", 0.1),
        ("late_after", 0),
        ("silent_after", 0),
        ("prove_every", 0),
    ):
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

    from . import java, session, source

    named = (OutputError, source.LandingError, StorageError)
    try:
        options = arguments(argv)
    except ConfigurationError as error:
        print(f"pipeline: {error}", file=sys.stderr)
        return 2
    with contextlib.ExitStack() as stack:
        try:
            settings = dict(one.split("=", 1) for one in options.conf)
            verdict.expectations(options)
            rules = mapping.read(options.mapping) if options.mapping else mapping.Mapping()
            output = Output(options.out)
            found = source.latest(Storage(options.landing))
            stack.enter_context(output.alone())
            log = session.log_file(output.storage)
            metrics = None
            if options.metrics_port:
                from .metrics import Metrics, PortInUse

                metrics = Metrics(options.out)
                try:
                    metrics.serve(options.metrics_port, options.metrics_address)
                except PortInUse as error:
                    raise ConfigurationError(str(error)) from error
            count = verdict.counted(sum(map(len, found.values())), "segment")
            print(f"  {count} in {options.landing}; Spark starts, which takes ten seconds or more", flush=True)
            spark = stack.enter_context(session.opened(options.master, log, settings))
        except (*named, ConfigurationError, mapping.MappingError, java.JavaNotFound, OSError, ValueError) as error:
            print(f"pipeline: {error}", file=sys.stderr)
            return 2
        try:
            return _run(spark, options, output, metrics, rules)
        except named as error:
            print(f"pipeline: {error}", file=sys.stderr)
            return 2
        except PySparkException as error:
            print(f"pipeline: {cause(error)}" + (f"\nThe whole story is in {log}" if log else ""), file=sys.stderr)
            return 2


def _run(
    spark: SparkSession,
    options: argparse.Namespace,
    output: Output,
    metrics: Metrics | None,
    rules: mapping.Mapping,
) -> int:
    from . import follow, report, stream

    def told(commit: Commit) -> None:
        tell(commit)
        if metrics:
            metrics.committed_batch(commit)

    checkpoint = options.checkpoint or f"{options.out.rstrip('/')}/checkpoint"
    query = stream.start(
        spark,
        options.landing,
        options.out,
        checkpoint,
        options.buckets,
        options.segments_per_batch,
        options.follow,
        told,
        options.late_after,
        not options.no_delta,
        rules,
    )
    proofs = None
    if options.follow:
        proofs = follow.Proofs(
            output,
            Storage(options.landing),
            lambda: verdict.expectations(options, now=True),
            options.prove_every,
            not options.no_report,
            metrics,
        )
    follow.until_ended(query, proofs)
    found = verdict.judge(output, verdict.expectations(options))
    verdict.print_audit(found)
    if not options.no_report and found.batch:
        print(f"  report: {report.write(output, found)}", flush=True)
    return found.status


def tell(commit: Commit) -> None:
    """Say what a batch brought."""
    rows = [f"{commit.rows.get(table, 0):,} {what}" for table, what in TOLD.items()]
    print(f"  batch {commit.batch}: {', '.join(rows)}", flush=True)


OURS = ("tools.", "pyarrow.lib.")
LONGEST_CAUSE = 2000


def cause(error: Exception) -> str:
    """Return the words of a Python failure inside Spark, or the beginning of Spark's own text.

    Spark gives a worker's failure as its traceback within texts of its own, once or more: the last line of the last
    traceback that is at the margin begins the failure's own text, which goes on to the next empty line or Java frame.
    """
    lines = [line.rstrip() for line in str(error).splitlines()]
    found = ""
    for n, line in enumerate(lines):
        if "Traceback (most recent call last)" not in line:
            continue
        begins = line.strip().startswith("Traceback")
        margin = len(line) - len(line.lstrip()) if begins else 0
        at = next(
            (
                k
                for k in range(n + 1, len(lines))
                if not lines[k].strip() or len(lines[k]) - len(lines[k].lstrip()) <= margin
            ),
            None,
        )
        if at is None or not re.match(r"\s*[A-Za-z_][\w.]*(: |$)", lines[at]):
            continue
        text = [lines[at].strip()]
        for more in lines[at + 1 :]:
            if not more.strip() or re.match(r"\s*(at |JVM stacktrace|Caused by|Traceback|\.\.\. )", more):
                break
            text.append(more.strip())
        found = " ".join(text)
    if found:
        kind, _, words = found.partition(": ")
        return (words if words and kind.startswith(OURS) else found)[:LONGEST_CAUSE]
    crashed = next((line.strip() for line in lines if "Python worker exited unexpectedly" in line), "")
    if crashed:
        return (
            "a Python worker ended without a word: killed, perhaps for want of memory. Give it more"
            " (spark.executor.memoryOverhead on a cluster), or fewer cores"
        )
    ours = [line.strip() for line in lines if line.strip().startswith(OURS) and ": " in line]
    if ours:
        return ours[-1].split(": ", 1)[1]
    return next((line.strip() for line in lines if line.strip()), repr(error))


if __name__ == "__main__":
    sys.exit(ended(main, stopped=STOPPED))
