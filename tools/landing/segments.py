"""Segments' file names, and the device bucket of a row.

A landing directory contains `<collector>-<number>.parquet`: numbers begin at 1, without gaps, with nine digits so that
names sort. A file with such a name is complete and durable, and never changes. Readers ignore temporary files
(`.name.tmp`). What such a file contains: `parquet`.

This module loads no Parquet library, so neither does the collector, which only names and lists segments.
"""

import os
import re
import zlib
from typing import NamedTuple

from tools.command import Failure

BUCKETS = 8
"""Device buckets of a landing, and tasks of a micro-batch. A power of two, so that it can be doubled later."""
MOST_BUCKETS = 9999
"""Their numbers have four digits in the names of the tables' files."""

NAME = re.compile(r"(?P<collector>[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?)-(?P<number>[0-9]{9,18})\.parquet")
COLLECTOR_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,198}[A-Za-z0-9_])?")  # a file name has at most 255 bytes


class SegmentError(Failure):
    """A segment or its name violates this format."""


class Segment(NamedTuple):
    """A sealed segment: its collector, number and path."""

    collector: str
    number: int
    path: str


def file_name(collector: str, number: int) -> str:
    """Return the name of a segment's file."""
    if not COLLECTOR_NAME.fullmatch(collector):
        raise SegmentError(
            f"collector name {collector!r}: use letters, digits, '_', '-' and '.', beginning with a letter or digit and"
            " ending with one or with '_', at most 200"
        )
    if number < 1:
        raise SegmentError(f"segment number {number}: numbers begin at 1")
    return f"{collector}-{number:09d}.parquet"


def parse_name(name: str) -> tuple[str, int] | None:
    """Return (collector, number) of a sealed segment's file name, None for any other name."""
    match = NAME.fullmatch(name)
    return (match["collector"], int(match["number"])) if match else None


def device_of(topic: str) -> str:
    """Return the device in a topic `<prefix>/<device>/<kind>`; for any other topic the whole topic."""
    first, last = topic.find("/"), topic.rfind("/")
    return topic[first + 1 : last] if 0 <= first < last else topic


def bucket_of(topic: str, buckets: int = BUCKETS) -> int:
    """Return the bucket of a topic's device; it does not depend on machine or Python version."""
    return zlib.crc32(device_of(topic).encode()) % buckets


def find_segments(directory: str | os.PathLike[str]) -> list[Segment]:
    """Return the sealed segments of a local landing directory, sorted by collector and number."""
    found = []
    for entry in os.scandir(directory):
        name = parse_name(entry.name)
        if name:
            found.append(Segment(name[0], name[1], entry.path))
    return sorted(found)
