"""`python -m tools.pipeline.verdict --out DIR`: compute the verdict: whether all published messages are in the tables.

It reads the audit that each batch writes (ledger.py), without Spark, at any time, also during a continuous run. Exit status:
0 if every published message is in the tables once, all messages could be read, and no board is silent; 1 if not, with all
problems in the last line; 2 if there are no tables.
"""

import argparse
import datetime
import errno
import json
import re
import sys
import time
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from flashmqtt.codec.topics import check_filter
from flashmqtt.errors import InvalidTopic
from tools.command import Failure, counted, exit_status, explained, named, table

from . import options
from .batch import plain
from .batch.mapping import OURS
from .tables import schemas, summary
from .tables.books import Books, first
from .tables.commits import Output
from .tables.storage import retried

MOST_ROWS = 40
MOST_NAMED = 5
LONGEST_NAME = 60
LONGEST_REASON = 200
WHOLE = "Every published message is in the tables exactly once."
LOST = "NOT every published message is in the tables exactly once:"
BUT = "All known messages are in the tables exactly once, BUT:"
NOTHING = "NOTHING is in the tables:"
NONE_READ = "No message is in the tables: all collected messages are in quarantine."

NO_BATCH = (
    "there is no batch yet. If a run has just begun, wait for its first one. If not, the landing has no segment: a"
    " collector makes one a minute after a message has arrived (--segment-seconds), and when it ends. Check that one is"
    " running with this landing, and that its --topic matches the published topics"
)

SILENT_TIMES = 10
"""A board is silent if it has sent nothing for this many of its own mean intervals,"""
SILENT_LEAST_S = 600.0
"""and for at least this time."""
FEW = 3
"""The fewest messages for a mean interval."""

RETURNS = 3
"""If a device's newest message goes back to an older life, boot or number this often, two boards have the same id. With one
board it happens once or twice, because of delayed messages."""

READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)
ACCEPTABLE = ("quarantine", "silent", "given-up")
MISSING = pa.schema([*schemas.KEY, *schemas.RANGE, pa.field("messages", pa.int64(), nullable=False)])
FILES = {"missing": "missing/missing.parquet", "verdict": "verdict.json"}
BAD = (pc.field("missing") > 0) | (pc.field("twice") > 0) | (pc.field("absent") > 0)
"""Boots with problems. The statistics of a settled file show whether it has any; if not, it is not read."""
PRINTED = ("device", "life", "boot", "published", "delivered", "resent", "replayed", "missing", "twice", "absent")


@dataclass(frozen=True)
class Expectations:
    """What the fleet is compared with, in addition to its own sequence numbers.

    Attributes:
        boards: the boards' own counters: `{device: {"boots": [{"boot", "first", "last"}, ...]}}`.
        silent_after_s: a board that has sent nothing for this time is silent; None: by its mean interval; 0: no board is.
        as_of_s: the time at which silence is measured (Unix time); None: the newest arrival of any board, but not later than now.
        topics: filters that must have matched a message.
        accept: of ACCEPTABLE, problems that are reported but don't change the exit status.
    """

    boards: dict[str, Any] = field(default_factory=dict)
    silent_after_s: float | None = None
    as_of_s: float | None = None
    topics: tuple[str, ...] = ()
    accept: tuple[str, ...] = ()


@dataclass(frozen=True)
class Silence:
    """Decides whether a board is silent: compares its last arrival with its mean interval."""

    as_of_us: int = 0
    after_s: float | None = None

    def of(self, devices: pa.Table) -> np.ndarray:
        """Return which devices are silent; the table needs `delivered`, `first_arrival` and `last_arrival`."""
        messages = devices["delivered"].to_numpy()
        first, last = (devices[name].cast(pa.int64()).to_numpy() for name in ("first_arrival", "last_arrival"))
        quiet_s = (self.as_of_us - last) / 1e6
        if self.after_s is not None:
            return np.full(len(last), self.after_s > 0) & (quiet_s > self.after_s)
        interval_s = (last - first) / 1e6 / np.maximum(messages - 1, 1)
        return (messages >= FEW) & (quiet_s > np.maximum(SILENT_TIMES * interval_s, SILENT_LEAST_S))


@dataclass
class Verdict:
    """The verdict.

    Attributes:
        totals: sums over the fleet.
        problems: a text for each problem, for the last line.
        accepted: a text for each accepted problem.
        rows: the boots to print.
        adjusted: rows of the audit that the boards' own counters change, by (device, life, boot).
        unknown: boots that are not in their board's own counters: (device, boot, messages).
        reasons: the number of messages in quarantine by reason.
        plain: the number of devices without an identity, for which there is no proof of delivery.
    """

    batch: int
    totals: dict[str, int]
    problems: list[str] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    adjusted: dict[tuple[str, int, int], dict[str, Any]] = field(default_factory=dict)
    unknown: list[tuple[str, int, int]] = field(default_factory=list)
    reasons: dict[str, int] = field(default_factory=dict)
    plain: int = 0
    silent: int = 0
    silence: Silence = field(default_factory=Silence)
    lost: bool = False
    nothing: bool = False

    @property
    def status(self) -> int:
        """The exit status."""
        return int(bool(self.problems))

    @property
    def line(self) -> str:
        """The last line: all problems, or that there are none."""
        more = f" (accepted: {'; '.join(self.accepted)})" if self.accepted else ""
        if self.plain:
            messages = self.totals.get("plain_messages", 0)
            stored = f"all {messages:,} messages that the collector stored are" if messages != 1 else "its message is"
            right = not (self.totals.get("twice") or self.totals.get("absent"))
            head = f"{counted(self.plain, 'device')} without an identity: no proof of delivery"
            more = f" {head}; {stored} in the tables, once.{more}" if right else f" {head}.{more}"
        if not self.problems:
            whole = WHOLE if self.totals.get("delivered") else "" if self.plain else NONE_READ
            return (whole + more).strip()
        head = NOTHING if self.nothing else LOST if self.lost else BUT
        return f"{head} {'; '.join(self.problems)}.{more}"


def judge(output: Output, expected: Expectations | None = None, must_store: bool = True) -> Verdict:
    """Compute the verdict as of an output's newest commit; write `missing` and `verdict.json` into the output.

    Unless it must be stored, a read-only output is no error: a line says so.
    """
    wanted = expected or Expectations()

    def attempt() -> Verdict:
        commit = output.latest()
        books = Books(output, commit) if commit else None
        found = _judged(books, wanted) if books else Verdict(0, {}, [NO_BATCH], nothing=True)
        _store(output, found, must_store, books)
        return found

    return retried(attempt)


def _store(output: Output, found: Verdict, must_store: bool, books: Books | None) -> None:
    """Write the verdict, and the missing ranges of its commit."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    names = ("batch", "status", "line", "totals", "problems", "accepted", "silent")
    content = {name: getattr(found, name) for name in names} | {"at": now, "without_identity": found.plain}
    try:
        if books:
            _write_missing(books, found)
        output.storage.write_json(FILES["verdict"], content)
    except OSError as error:
        if must_store or error.errno not in READ_ONLY:
            raise
        print(f"verdict: {explained(error)}. The verdict is printed, but not stored", file=sys.stderr)


def _judged(books: Books, wanted: Expectations) -> Verdict:
    commit = books.commit
    found = Verdict(commit.batch, dict(commit.summary["totals"]))
    totals = found.totals
    if wanted.boards:
        _compare_with_counters(books, wanted.boards, found)
    given_up = {name: totals[name] for name in schemas.GIVEN_UP if totals[name]}
    left = totals["missing"] - sum(given_up.values())
    if given_up and not left and "given-up" in wanted.accept:
        found.accepted.append(f"{totals['missing']:,} given up by their boards ({_listed(given_up)})")
    elif totals["missing"]:
        reasons = given_up | {"in doubt": totals["in_doubt"], "without a reason": totals["unexplained"]}
        counts = {name: count for name, count in reasons.items() if count}
        split = f" ({_listed(counts)})" if len(counts) > 1 or given_up else ""
        found.problems.append(f"{totals['missing']:,} missing{split}")
    lost = {
        "twice": f"{counted(totals['twice'], 'row')} twice in the tables",
        "absent": f"{totals['absent']:,} that were processed are not in the tables",
    }
    found.problems += [text for name, text in lost.items() if totals[name]]
    if gone := books.output.missing_files():
        are = "is" if len(gone) == 1 else "are"
        found.problems.append(
            f"{counted(len(gone), 'file')} of the tables {are} missing or incomplete ({_named(gone)})"
        )
    if found.unknown:
        are = "boot that is" if len(found.unknown) == 1 else "boots that are"
        found.problems.append(f"{len(found.unknown)} {are} not in the boards' counters")
    found.lost = bool(found.problems)
    if totals["suspect"]:
        jumped = sorted(set(books.all("lives", ["device"], pc.field("suspect") > 0)["device"].to_pylist()))
        found.problems.append(f"{counted(totals['suspect'], 'jump')} of a counter ({_named(jumped)})")
    if shared := _shared(books):
        found.problems.append(f"{counted(len(shared), 'id')} that two boards have ({_named(shared)})")
    quarantine = totals["quarantine"]
    stored = totals["delivered"] + totals.get("plain_messages", 0)
    if quarantine:
        found.reasons = dict(commit.summary["reasons"])
        text = f"{quarantine:,} in quarantine" if stored else f"all {quarantine:,} messages are in quarantine"
        accepted = "quarantine" in wanted.accept
        (found.accepted if accepted else found.problems).append(text)
        found.lost |= not (accepted and stored)
    elif not stored:
        found.nothing = True
        found.problems.append("the collector's segments have no message, or only live ones, which are not counted")
    found.problems += [f"nothing matched the topic {topic}" for topic in wanted.topics if not _matched(books, topic)]
    # The collector's clock may have been ahead for a while: no board is silent because of an arrival in the future.
    newest_us = min(commit.summary["last_arrival_us"] or 0, time.time_ns() // 1000)
    as_of_us = newest_us if wanted.as_of_s is None else int(wanted.as_of_s * 1e6)
    found.silence = Silence(as_of_us, wanted.silent_after_s)
    others = plain.summed([books.all("plain", schemas.PLAIN.names)])
    found.plain = others.num_rows
    for name in ("messages", "readings", "copies"):  # of the present devices: others were deleted
        found.totals[f"plain_{name}"] = pc.sum(others[name]).as_py() or 0
    names, found.silent = _silent(books, found.silence, others)
    if found.silent:
        text = f"{found.silent:,} silent ({_named(names, found.silent)})"
        (found.accepted if "silent" in wanted.accept else found.problems).append(text)
    found.rows = _rows(books, found)
    return found


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())


def _named(names: list[str], count: int = 0) -> str:
    """Return the first names as a list for a sentence. `count`: the number of all names, if `names` has only a part."""
    more = max(count, len(names)) > min(len(names), MOST_NAMED)
    return ", ".join(map(shown, names[:MOST_NAMED])) + (", ..." if more else "")


def _shared(books: Books) -> list[str]:
    """Return the ids that two boards have."""
    returned = books.all("lives", ["device", "returns"], pc.field("returns") > 0)
    found = summary.grouped(returned, ["device"], {"returns": "sum"}).filter(pc.field("returns") >= RETURNS)
    return sorted(found["device"].to_pylist())


def _compare_with_counters(books: Books, boards: dict[str, Any], found: Verdict) -> None:
    """Correct the audit by the boards' own counters; find boots that the counters don't have."""
    names = [*schemas.AUDIT.names[: schemas.AUDIT.names.index("begun")]]
    where = pc.field("device").isin(list(boards)) & (pc.field("life") == 1)
    rows = {(row["device"], row["boot"]): row for row in books.all("audit", names, where).to_pylist()}
    for device, counters in boards.items():
        for boot in counters["boots"]:
            row = rows.pop((device, boot["boot"]), None)
            new = _by_counter(device, boot, row)
            for name in ("published", "missing", "unexplained"):
                found.totals[name] += new[name] - (row[name] if row else 0)
            if row is None:
                found.totals["boots"] += 1
            found.adjusted[device, 1, boot["boot"]] = new
    found.unknown += [(device, boot, row["in_tables"]) for (device, boot), row in sorted(rows.items())]


def _by_counter(device: str, boot: dict[str, int], row: dict[str, Any] | None) -> dict[str, Any]:
    """Return a boot's row of the audit, corrected by the first and the last number of the board's own counter."""
    first, last = boot["first"], boot["last"]
    if row is None:
        row = dict.fromkeys(schemas.AUDIT.names, 0) | {"device": device, "life": 1, "boot": boot["boot"]}
        row |= {"cause": None, "first_arrival": None, "last_arrival": None, "delay_octaves": [], "missing_ranges": []}
        row |= {"first_seq": first, "last_seq": first - 1}
        row |= dict.fromkeys(("delay_p50_ms", "delay_p90_ms", "delay_p99_ms"))
    ranges = [(one["lo"], one["hi"]) for one in row["missing_ranges"]]
    ranges += [(first, row["first_seq"] - 1), (row["last_seq"] + 1, last)]
    cut = [(max(lo, first), min(hi, last)) for lo, hi in sorted(ranges)]
    kept = [{"lo": lo, "hi": hi} for lo, hi in cut if lo <= hi]
    missing = sum(one["hi"] - one["lo"] + 1 for one in kept)
    return row | {
        "first_seq": first,
        "last_seq": last,
        "published": last - first + 1,
        "missing": missing,
        "unexplained": max(0, missing - sum(row[reason] for reason in schemas.REASONS)),
        "missing_ranges": kept,
        "open": False,
    }


def _write_missing(books: Books, found: Verdict) -> None:
    """Write the missing ranges as a table: device, life, boot, lo, hi, messages."""
    columns = ["device", "life", "boot", "missing_ranges"]
    with books.output.storage.create(FILES["missing"]) as stream, pq.ParquetWriter(stream, MISSING) as writer:
        for rows in books.rows("audit", columns, pc.field("missing") > 0):
            if found.adjusted:
                keys = zip(*(rows[name].to_pylist() for name in columns[:3]), strict=True)
                rows = rows.filter(pa.array([key not in found.adjusted for key in keys], pa.bool_()))
            writer.write_table(_ranges(rows))
        schema = pa.schema([schemas.AUDIT.field(name) for name in columns])
        writer.write_table(_ranges(pa.Table.from_pylist(list(found.adjusted.values()), schema)))


def _ranges(rows: pa.Table) -> pa.Table:
    """Return the missing ranges of some boots, one row each."""
    ranges = rows["missing_ranges"].combine_chunks()
    at = pc.list_parent_indices(ranges)
    lo, hi = (pc.struct_field(ranges.flatten(), name) for name in ("lo", "hi"))
    arrays = [*(rows[name].take(at) for name in rows.column_names[:3]), lo, hi, pc.add(pc.subtract(hi, lo), 1)]
    return pa.table(arrays, schema=MISSING)


def _matched(books: Books, topic: str) -> bool:
    """Return whether a message's topic matched a filter. Topics are counted without devices; devices are looked up.

    Where only a mapping tells the device, the levels of the topic that are not counted match any text.
    """
    levels = topic.split("/")
    levels = levels[2:] if levels[0] == "$share" else levels  # $share/<group>/<filter>
    cut = [summary.cut(level) for level in levels]
    named = ["[^/]*" if one == "+" else f"({re.escape(one)}|{re.escape(summary.cut(one))})" for one in levels]
    is_open = levels[-1] == "#"
    pattern = f"(?s)^{'/'.join(named[:-1])}(/.*)?$" if is_open else f"(?s)^{'/'.join(named)}$"
    for shape in books.commit.summary["topics"]:
        first, middle, last = shape.partition("/+/")
        possible = [[first, *["+"] * n, last] for n in range(1, len(cut) + 1)] if middle else [shape.split("/")]
        if not any(matches(cut, one) for one in possible):
            continue
        is_ours = f"{first}/" == OURS
        if not middle or cut == ["#"] or (is_ours and levels[1:-1] in ([], ["+"])):  # also for messages in quarantine
            return True
        is_known = is_ours
        begin = first.removesuffix(summary.ELLIPSIS) if first.endswith(summary.ELLIPSIS) else f"{first}/"
        for rows in books.rows("lives" if is_ours else "plain", ["device"]):
            topics = [pc.binary_join_element_wise(first, rows["device"], last, "/")]
            if not is_ours:  # a device without a mapping has all levels but the last one
                whole = pc.binary_join_element_wise(rows["device"], last, "/")
                topics.append(whole.filter(pc.starts_with(whole, begin)))
                is_known |= len(topics[1]) > 0
            if any(pc.any(pc.match_substring_regex(one, pattern)).as_py() for one in topics):
                return True
        if not is_known:
            return True
    return False


def matches(wanted: list[str], levels: list[str]) -> bool:
    """Return whether a topic filter (§4.7) matches a topic, in which `+` represents any text."""
    for n, one in enumerate(wanted):
        if one == "#":
            return True
        if n >= len(levels) or (one != "+" and one != levels[n] and levels[n] != "+"):
            return False
    return len(wanted) == len(levels)


def _silent(books: Books, silence: Silence, others: pa.Table) -> tuple[list[str], int]:
    """Return the longest silent boards, and the number of silent ones. `others`: the devices without an identity."""
    count = 0
    longest: list[tuple[datetime.datetime, str]] = []
    heard = others.select(["device", "first_arrival", "last_arrival"]).append_column("delivered", others["messages"])
    how = {"first_arrival": "min", "last_arrival": "max", "delivered": "sum"}
    lives = (summary.grouped(rows, ["device"], how) for rows in books.rows("lives", ["device", *how]))
    for devices in chain(lives, [heard]):
        silent = devices.filter(pa.array(silence.of(devices)))
        count += silent.num_rows
        some = silent.sort_by("last_arrival").slice(0, MOST_NAMED)
        longest += zip(some["last_arrival"].to_pylist(), some["device"].to_pylist(), strict=True)
    return [name for _, name in sorted(longest)[:MOST_NAMED]], count


def _rows(books: Books, found: Verdict) -> list[dict[str, Any]]:
    """Return the boots to print: all of a small fleet, those with problems of a larger one."""
    small = found.totals["boots"] <= MOST_ROWS
    order = [("device", "ascending"), ("life", "ascending"), ("boot", "ascending")]
    most = MOST_ROWS + len(found.adjusted)
    rows = first(books.rows("audit", list(PRINTED), None if small else BAD), order, most).to_pylist()
    of = {(row["device"], row["life"], row["boot"]): row for row in rows}
    of |= {key: row for key, row in found.adjusted.items() if small or row["missing"] or key in of}
    return [of[key] for key in sorted(of) if small or any(of[key][one] for one in ("missing", "twice", "absent"))][
        :MOST_ROWS
    ]


def shown(text: str, longest: int = LONGEST_NAME) -> str:
    """Return a text from a board so that it can be printed: shortened, without control characters."""
    name = text if len(text) <= longest else text[: longest - 1] + "…"
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in name)


def print_audit(found: Verdict) -> None:
    """Print the audit and the verdict for a person."""
    header = ("device", "boot", "published", "delivered", "duplicates removed", "missing", "twice in tables")
    lines: list[tuple[Any, ...]] = [header]

    def figures(row: dict[str, Any]) -> list[int]:
        counts = [row.get(name, 0) for name in ("published", "delivered", "missing", "twice")]
        return [*counts[:2], row.get("resent", 0) + row.get("replayed", 0), *counts[2:]]

    for row in found.rows:
        boot = f"{row['boot']}" if row["life"] == 1 else f"{row['boot']} (life {row['life']})"
        lines.append((shown(row["device"]), boot, *figures(row)))
    totals = found.totals
    boards = (counted(totals.get("devices", 0), "device"), counted(totals.get("boots", 0), "boot"))
    lines.append((*boards, *figures(totals)))
    first, rule, *boots, sums = table(lines, "<<>>>>>")
    if totals.get("boots") or not found.plain:
        print("\n  " + "\n  ".join([first, rule, *boots, rule, sums]))
    if len(found.rows) < totals.get("boots", 0):
        print(f"  (of {totals['boots']:,} boots only those with losses are shown, at most {MOST_ROWS})")
    if totals.get("quarantine"):
        count = totals["quarantine"]
        them = "it" if count == 1 else "them"
        print(f"  {counted(count, 'message')} could not be read: the table quarantine has {them}, with the reason:")
        for text, messages in sorted(found.reasons.items(), key=lambda one: (-one[1], one[0]))[:MOST_NAMED]:
            print(f"    {messages:,}: {shown(text, LONGEST_REASON)}")
    if found.plain:
        counts = zip(("messages", "readings", "copies"), ("message", "reading", "copy"), strict=True)
        sums = ", ".join(counted(totals.get(f"plain_{name}", 0), what) for name, what in counts)
        whose = "it" if found.plain == 1 else "they"
        print(
            f"  {counted(found.plain, 'device')} without an identity: {sums} removed; how many {whose} published is unknown"
        )
    print()
    for device, its_boot, messages in found.unknown[:MOST_ROWS]:
        print(
            f"  {shown(device)} boot {its_boot}: {counted(messages, 'message')} of a boot that is not in its board's counters"
        )
    print("  " + found.line, flush=True)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for `Expectations`."""
    parser.add_argument("--expected", help="a JSON file with the boards' own counters")
    text = "a board that has sent nothing for this time is silent; 0: no board is (default: 10 of its mean intervals)"
    options.seconds(parser, "--silent-after", 0, text)
    parser.add_argument(
        "--as-of",
        choices=("newest", "now"),
        help="measure silence at the newest arrival or now (default: newest; with --follow: now)",
    )
    parser.add_argument(
        "--expect-topic",
        type=_filter,
        action="append",
        default=[],
        metavar="FILTER",
        help="report a problem if no message matches it; may be repeated",
    )
    parser.add_argument(
        "--accept",
        action="append",
        default=[],
        choices=ACCEPTABLE,
        help="report this problem, but do not exit with status 1; may be repeated",
    )


def _filter(text: str) -> str:
    """Return a topic filter: argparse's `type`."""
    try:
        check_filter(text.encode())
    except InvalidTopic as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def expectations(given: argparse.Namespace, now: bool = False) -> Expectations:
    """Return the expectations from the options.

    Raises:
        OSError, Failure: the file of `--expected` can't be read.
    """
    boards = _counters(Path(given.expected)) if given.expected else {}
    as_of = time.time() if given.as_of == "now" or (now and given.as_of is None) else None
    return Expectations(boards, given.silent_after, as_of, tuple(given.expect_topic), tuple(given.accept))


def _counters(path: Path) -> dict[str, Any]:
    """Read the boards' own counters.

    Raises:
        OSError, Failure: the file can't be read, or has another form.
    """
    try:
        boards: dict[str, Any] = json.loads(path.read_bytes())
        for device, counters in boards.items():
            for boot in counters["boots"]:
                number, first, last = boot["boot"], boot["first"], boot["last"]
                plausible = 0 <= number <= schemas.LARGEST and 1 <= first <= last + 1 <= schemas.LARGEST + 1
                if not plausible or not all(type(one) is int for one in (number, first, last)):
                    raise ValueError(f"{device!r} has the boot {boot}")
            numbers = [boot["boot"] for boot in counters["boots"]]
            if len(numbers) > len(set(numbers)):
                raise ValueError(f"{device!r} has boot {max(numbers, key=numbers.count)} twice")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        form = '{"DEVICE": {"boots": [{"boot": 1, "first": 1, "last": 7}, ...]}, ...}'
        raise Failure(f"{path}: {error}. It has to be JSON of the form {form}") from error
    return boards


@named("verdict")
def main(argv: list[str] | None = None) -> int:
    """Compute and print the verdict; return the exit status."""
    parser = options.parser("verdict", __doc__)
    add_options(parser)
    given = parser.parse_args(argv)
    output = Output.existing(given.out)
    found = judge(output, expectations(given), must_store=False)
    print_audit(found)
    return found.status


if __name__ == "__main__":
    sys.exit(exit_status(main, stopped="stopped"))
