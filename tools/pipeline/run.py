"""`python -m tools.pipeline.run --landing DIR --out DIR`: convert segments to tables, then print the audit and the verdict.

Exit status: 0 if every published message is in the tables once and could be read, and no board is silent; 1 if not (the
last line lists all problems); 2 if the pipeline could not run (the text has the reason and what to do).
"""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from tools.command import ended, number
from tools.landing import segments

from . import mapping, verdict
from .commits import Output, OutputError
from .storage import Storage, StorageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .commits import Commit
    from .metrics import Metrics


STOPPED = "stopped; the batches printed above are in the tables, and the next run continues after them"
PRINTED = {"readings": "readings", "duplicates": "duplicates removed", "quarantine": "in quarantine"}


class ConfigurationError(Exception):
    """The command line or the configuration file can't be used. The text has the reason."""


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """Read the command line, and the configuration file if there is one.

    Raises:
        ConfigurationError: the file does not exist, is no TOML, or has an unknown key.
    """
    parser = argparse.ArgumentParser(prog="python -m tools.pipeline.run", description=__doc__.split("\n")[0])
    parser.add_argument(
        "--config", type=Path, help="a TOML file with these options (Spark's in a table [conf]); flags override it"
    )
    parser.add_argument("--landing", help="the collector's landing folder: a path, s3a://, hdfs://")
    parser.add_argument("--out", help="the folder for the tables: a path, s3a://, hdfs://")
    parser.add_argument("--mapping", help="a TOML file that maps topics and JSON paths to readings")
    parser.add_argument("--checkpoint", help="Spark's checkpoint (default: OUT/checkpoint)")
    parser.add_argument("--master", help="Spark master (default: spark-submit's, or this machine)")
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="a Spark setting")
    parser.add_argument(
        "--buckets", type=number(int, 1), default=segments.BUCKETS, help="device buckets, fixed for an output directory"
    )
    parser.add_argument("--segments-per-batch", type=number(int, 1), default=64, help="the most segments of a batch")
    parser.add_argument(
        "--follow",
        type=number(float, 0.1),
        metavar="SECONDS",
        help="do not end; look for new segments at this interval",
    )
    parser.add_argument(
        "--late-after", type=number(float, 0), default=60.0, metavar="SECONDS", help="a longer delay counts as late"
    )
    parser.add_argument("--no-delta", action="store_true", help="do not update the tables' Delta logs")
    verdict.add_options(parser)
    parser.add_argument(
        "--prove-every",
        type=number(float, 0),
        default=600.0,
        metavar="SECONDS",
        help="with --follow: print the verdict and write the report at this interval, and on SIGUSR1; 0: only then",
    )
    parser.add_argument(
        "--metrics-port",
        type=number(int, 0, 65_535),
        default=0,
        metavar="P",
        help="a port for Prometheus metrics; 0: none",
    )
    parser.add_argument("--metrics-address", default="127.0.0.1", metavar="A")
    parser.add_argument("--no-report", action="store_true", help="do not write the HTML page")
    options = parser.parse_args(argv)
    if options.config:
        flags = configuration(options.config, set(vars(options)) - {"config"})
        options = parser.parse_args(flags + (sys.argv[1:] if argv is None else argv))
    for name in ("landing", "out"):
        if not getattr(options, name):
            raise ConfigurationError(f"--{name} is missing: give it, or put it into the file of --config")
    if not all("=" in one for one in options.conf):
        raise ConfigurationError("--conf takes KEY=VALUE")
    return options


def configuration(path: Path, known: set[str]) -> list[str]:
    """Read a configuration file; return its values as flags, so that the same checks apply."""
    try:
        values = tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"{path}: {error}") from error
    flags = []
    for name, value in values.items():
        key = name.replace("_", "-")
        if key.replace("-", "_") not in known:
            raise ConfigurationError(f"{path}: unknown key {name!r}; known: {', '.join(sorted(known))}")
        if isinstance(value, dict):
            flags += [f"--{key}={setting}={text}" for setting, text in value.items()]
        elif isinstance(value, bool):
            flags += [f"--{key}"] * value
        else:
            flags += [f"--{key}={one}" for one in (value if isinstance(value, list) else [value])]
    return flags


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
            stack.enter_context(output.locked())
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
            print(f"  {count} in {options.landing}; starting Spark, which takes ten seconds or more", flush=True)
            spark = stack.enter_context(session.opened(options.master, log, settings))
        except (*named, ConfigurationError, mapping.MappingError, java.JavaNotFound, OSError, ValueError) as error:
            print(f"pipeline: {error}", file=sys.stderr)
            return 2
        try:
            return _run(spark, options, output, found, metrics, rules)
        except named as error:
            print(f"pipeline: {error}", file=sys.stderr)
            return 2
        except PySparkException as error:
            print(f"pipeline: {cause(error)}" + (f"\nMore details are in {log}" if log else ""), file=sys.stderr)
            return 2


def _run(
    spark: SparkSession,
    options: argparse.Namespace,
    output: Output,
    present: dict[str, dict[int, str]],
    metrics: Metrics | None,
    rules: mapping.Mapping,
) -> int:
    from . import follow, report, stream

    def on_commit(commit: Commit) -> None:
        print_batch(commit)
        if metrics:
            metrics.committed_batch(commit)

    checkpoint = options.checkpoint or f"{options.out.rstrip('/')}/checkpoint"
    job = stream.Job(
        spark,
        options.landing,
        options.out,
        checkpoint,
        options.buckets,
        options.segments_per_batch,
        on_commit,
        options.late_after,
        not options.no_delta,
        rules,
    )
    query = job.start(options.follow)
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
    if not options.follow:
        job.read_rest(present)
    found = verdict.judge(output, verdict.expectations(options))
    verdict.print_audit(found)
    if not options.no_report and found.batch:
        print(f"  report: {report.write(output, found)}", flush=True)
    return found.status


def print_batch(commit: Commit) -> None:
    """Print the number of rows that a batch wrote."""
    rows = [f"{commit.rows.get(table, 0):,} {what}" for table, what in PRINTED.items()]
    print(f"  batch {commit.batch}: {', '.join(rows)}", flush=True)


OURS = ("tools.", "pyarrow.lib.")
LONGEST_CAUSE = 2000


def cause(error: Exception) -> str:
    """Return the text of a Python error inside Spark, or the first line of Spark's own text.

    Spark's text contains the worker's traceback once or more. The error's own text begins at the first line after the last
    traceback that is not indented further than the traceback. It ends before the next empty line or Java frame.
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
            if not more.strip() or re.match(
                r"\s*(at |JVM stacktrace|Caused by|Traceback|\.\.\. |SQLSTATE: |=== )", more
            ):
                break
            text.append(more.strip())
        found = re.sub(r"( SQLSTATE: \w+)+$", "", " ".join(text))
    if found:
        kind, _, words = found.partition(": ")
        return (words if words and kind.startswith(OURS) else found)[:LONGEST_CAUSE]
    crashed = next((line.strip() for line in lines if "Python worker exited unexpectedly" in line), "")
    if crashed:
        return (
            "a Python worker was killed, probably because there was too little memory. Give it more"
            " (spark.executor.memoryOverhead on a cluster), or use fewer cores"
        )
    ours = [line.strip() for line in lines if line.strip().startswith(OURS) and ": " in line]
    if ours:
        return ours[-1].split(": ", 1)[1]
    return next((line.strip() for line in lines if line.strip()), repr(error))


if __name__ == "__main__":
    sys.exit(ended(main, stopped=STOPPED))
