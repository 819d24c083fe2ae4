"""The options that several commands of the pipeline have."""

from __future__ import annotations

import argparse

from tools.command import number, parser_of


def parser(command: str, description: str | None, spark: bool = False) -> argparse.ArgumentParser:
    """Return a command's parser with `--out`, and with `--master` if the command uses Spark."""
    made = parser_of(f"tools.pipeline.{command}", description)
    made.add_argument("--out", nargs="?", help="the folder of the tables: a path, s3a://, hdfs://")
    if spark:
        made.add_argument("--master", help="Spark master (default: spark-submit's, or this machine)")
    return made


def seconds(made: argparse.ArgumentParser, name: str, least: float, help: str, default: float | None = None) -> None:
    """Add an option for a number of seconds."""
    made.add_argument(name, type=number(float, least), default=default, metavar="SECONDS", help=help)
