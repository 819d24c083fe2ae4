"""The options that several commands of the pipeline have."""

import argparse
from pathlib import Path

from tools.command import Failure, number, parser_of
from tools.landing.segments import MOST_BUCKETS

from .batch.mapping import NO_MAPPING, read

MOST_S, MOST_DAYS = 10**9, 100_000


def parser(command: str, description: str | None, spark: bool = False) -> argparse.ArgumentParser:
    """Return a command's parser with `--out`, and with `--master` if the command uses Spark."""
    made = parser_of(f"tools.pipeline.{command}", description)
    made.add_argument("--out", nargs="?", help="the folder of the tables: a path, s3a://, hdfs://")
    if spark:
        made.add_argument("--master", help="Spark master (default: spark-submit's, or this machine)")
    return made


def seconds(made: argparse.ArgumentParser, name: str, least: float, help: str, default: float | None = None) -> None:
    """Add an option for a number of seconds."""
    made.add_argument(name, type=number(float, least, MOST_S), default=default, metavar="SECONDS", help=help)


def days(made: argparse.ArgumentParser, name: str, help: str) -> None:
    """Add an option for a number of days."""
    made.add_argument(name, type=number(int, 1, MOST_DAYS), metavar="N", help=help)


def mapping(made: argparse.ArgumentParser, help: str) -> None:
    """Add the option for a mapping file; its value is the mapping."""
    made.add_argument("--mapping", type=read, default=NO_MAPPING, metavar="FILE", help=help)


def buckets(made: argparse.ArgumentParser, help: str, default: int | None = None) -> None:
    """Add the option for the number of buckets."""
    made.add_argument("--buckets", type=number(int, 1, MOST_BUCKETS), default=default, help=help)


def check_outside(name: str, out: str, landing: str) -> None:
    """Check that new tables are not in the landing.

    Raises:
        Failure: they are.
    """
    inner, outer = (one.removeprefix("file://") for one in (out, landing))
    if "://" not in inner + outer and Path(inner).resolve().is_relative_to(Path(outer).resolve()):
        raise Failure(f"{name} {out} is in the landing {landing}: give a folder outside of it")
