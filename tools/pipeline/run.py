"""`python -m tools.pipeline.run --landing DIR --out DIR`: convert segments to tables, then print the audit and the verdict.

Exit status: 0 if every published message is in the tables once and could be read, and no board is silent; 1 if not (the
last line lists all problems); 2 if the pipeline could not run (the text has the reason and what to do).
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tools.command import Failure, counted, exit_status, explained, filled, named, number, serve_metrics
from tools.landing import segments

from . import options, verdict
from .tables.commits import Commit, Output
from .tables.storage import Storage

STOPPED = "stopped; the batches printed above are in the tables, and the next run continues after them"
PRINTED = {"readings": "readings", "duplicates": "duplicates removed", "quarantine": "in quarantine"}


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """Read the command line, and the configuration file if there is one.

    Raises:
        Failure: the file does not exist, is no TOML, or has an unknown key.
    """
    parser = options.parser("run", __doc__, spark=True)
    parser.add_argument(
        "--config", type=Path, help="a TOML file with these options (Spark's in a table [conf]); flags override it"
    )
    parser.add_argument("--landing", help="the collector's landing folder: a path, s3a://, hdfs://")
    options.mapping(parser, "a TOML file that maps topics and JSON paths to readings")
    parser.add_argument("--checkpoint", help="Spark's checkpoint (default: OUT/checkpoint)")
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="a Spark setting")
    options.buckets(parser, "device buckets, fixed for an output directory", segments.BUCKETS)
    parser.add_argument("--segments-per-batch", type=number(int, 1), default=64, help="the most segments of a batch")
    options.seconds(parser, "--follow", 0.1, "do not end; look for new segments at this interval")
    parser.add_argument("--no-delta", action="store_true", help="do not update the tables' Delta logs")
    verdict.add_options(parser)
    text = "with --follow: print the verdict and write the report at this interval, and on SIGUSR1; 0: only then"
    options.seconds(parser, "--prove-every", 0, text, 600.0)
    parser.add_argument(
        "--metrics-port", type=number(int, 0, 65_535), default=0, help="a port for Prometheus metrics; 0: none"
    )
    parser.add_argument("--metrics-address", type=filled, default="127.0.0.1", metavar="A")
    parser.add_argument("--no-report", action="store_true", help="do not write the HTML page")
    given = parser.parse_args(argv)
    if given.config:
        flags = configuration(given.config, {name: one for name, one in vars(given).items() if name != "config"})
        given = parser.parse_args(flags + (sys.argv[1:] if argv is None else argv))
    for name in ("landing", "out"):
        if not getattr(given, name):
            raise Failure(f"--{name} is missing: give it, or put it into the file of --config")
    options.check_outside("--out", given.out, given.landing)
    if not all(one.find("=") > 0 for one in given.conf):
        raise Failure("--conf takes KEY=VALUE")
    return given


def configuration(path: Path, known: dict[str, Any]) -> list[str]:
    """Read a configuration file; return its values as flags, so that the same checks apply.

    `known` has the options; those that may be repeated have a list.
    """
    try:
        values = tomllib.loads(path.read_text("utf-8-sig"))
    except OSError as error:
        raise Failure(f"--config {explained(error)}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise Failure(f"{path}: {error}") from error
    flags = []
    for name, value in values.items():
        key = name.replace("_", "-")
        if key.replace("-", "_") not in known:
            raise Failure(f"{path}: unknown key {name!r}; known: {', '.join(sorted(known))}")
        if isinstance(value, dict):
            settings = dict(_settings(value))
            if misplaced := known.keys() & {setting.replace("-", "_") for setting in settings}:
                raise Failure(f"{path}: {min(misplaced)} is in the table [{name}]: put it before that line")
            flags += [f"--{key}={setting}={text}" for setting, text in settings.items()]
        elif isinstance(value, bool):
            flags += [f"--{key}"] * value
        elif isinstance(value, list) and not isinstance(known[key.replace("-", "_")], list):
            raise Failure(f"{path}: {name} has one value, not a list")
        else:
            flags += [f"--{key}={one}" for one in (value if isinstance(value, list) else [value])]
    return flags


def _settings(table: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the settings of a table. Without quotes, `spark.executor.memory` is a table `executor` in a table `spark`."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _settings(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


@named("pipeline")
def main(argv: list[str] | None = None) -> int:
    """Run the pipeline; return the exit status."""
    from . import follow, report, session, stream
    from .tables import source

    given = arguments(argv)
    verdict.expectations(given)
    output = Output(given.out)
    found = source.latest(Storage(given.landing))
    with output.locked():
        metrics = None
        if given.metrics_port:
            from .metrics import Metrics

            metrics = Metrics(given.out)
            serve_metrics(metrics.registry, given.metrics_port, given.metrics_address)
        count = counted(sum(map(len, found.values())), "segment")
        print(f"  {count} in {given.landing} so far; starting Spark, which takes ten seconds or more", flush=True)
        settings = dict(one.split("=", 1) for one in given.conf)
        with session.opened(given.master, output.storage, settings) as spark:

            def on_commit(commit: Commit) -> None:
                print_batch(commit)
                if metrics:
                    metrics.committed_batch(commit)

            checkpoint = given.checkpoint or f"{given.out.rstrip('/')}/checkpoint"
            where = (given.landing, given.out, checkpoint, given.buckets, given.segments_per_batch)
            job = stream.Job(spark, *where, on_commit, not given.no_delta, given.mapping)
            query = job.start(given.follow)
            proofs = None
            if given.follow:
                expected = partial(verdict.expectations, given, now=True)
                every = (given.prove_every, not given.no_report)
                proofs = follow.Proofs(output, Storage(given.landing), expected, *every, metrics)
            follow.until_ended(query, proofs)
            judged = verdict.judge(output, verdict.expectations(given))
            verdict.print_audit(judged)
            if not given.no_report and judged.batch:
                print(f"  report: {report.write(output, judged)}", flush=True)
            return judged.status


def print_batch(commit: Commit) -> None:
    """Print the number of rows that a batch wrote."""
    rows = [f"{commit.rows.get(table, 0):,} {what}" for table, what in PRINTED.items()]
    print(f"  batch {commit.batch}: {', '.join(rows)}", flush=True)


if __name__ == "__main__":
    sys.exit(exit_status(main, stopped=STOPPED))
