"""`python -m tools.pipeline.forget --landing L --out tables --device NAME`: delete all that is known of devices, and prove it.

It seals the collector's logs, takes the devices' rows out of the segments, and then out of tables, quarantine and state with one
commit, as a compaction does it; rows of other devices that mention a name keep their place, with asterisks for the name. The
Delta logs follow, and lose their history; databases that the tables went on to are told; verdict and report are made anew. At
the end every byte of every file that is left is searched for the names, compressed values, too.

Killed at any moment, the same command again does the rest: each step leaves tables that hold together. Neither a collector
nor a run may be at work. Exit status: 0 where nothing names the devices any more, 1 where something still does (it is listed),
2 where it could not be done.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tools.command import ended
from tools.landing import forget as landing_logs
from tools.landing import segments
from tools.landing.lock import LandingInUse
from tools.landing.log import LandingError
from tools.landing.names import Names
from tools.landing.store import LandingStore

from . import byte_search, report, schemas, sink, source, summary, verdict
from .commits import COMMITS, DELTA_LOG, FORMAT_FILE, Commit, Output, OutputError, bucket_of, name_of
from .compact import revision_of
from .delta import Delta
from .files import parquet_writer, table_of
from .mapping import OURS, device_and_name
from .storage import Storage, StorageError

KEPT = (COMMITS, FORMAT_FILE, "checkpoint", "sinks")
"""What is no page that can be made anew."""
OUT_OF_REACH = (
    "the broker: its retained messages, and what it keeps for sessions that are offline",
    "the board: wipe it first (make wipe JOURNAL=1), else what it publishes next brings it back",
    "a dashboard that serves tables of an object store: end it, its values live as long as its process",
    "other tables of the same landing, such as those of remake: run this with their OUT, too",
    "files that were exported from the tables, such as the sink's --csv: delete them; --search DIR finds them",
    "backups and snapshots of the disks, versions that an object store keeps, captured traffic, logs of other programs",
    "names in a form that is not looked for: encrypted, compressed inside a payload, or spelled in another way",
)


@dataclass
class Done:
    """What was deleted.

    Attributes:
        rows: by place.
        left: files that still name a device, or databases that still had rows.
    """

    rows: dict[str, int] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)

    def add(self, place: str, rows: int) -> None:
        """Count rows."""
        if rows:
            self.rows[place] = self.rows.get(place, 0) + rows


def forget(
    landing: str | None,
    out: str,
    devices: list[str],
    elsewhere: Iterable[str] = (),
    page: bool = True,
    dry: bool = False,
) -> Done:
    """Delete some devices; return what was deleted, and what still names them.

    Args:
        landing: the raw data; None where there is none any more.
        out: the output directory.
        devices: their names.
        elsewhere: more directories to search; nothing is deleted there.
        page: whether the report is made anew.
        dry: search only.

    Raises:
        OutputError, StorageError, LandingError: something can't be read or written, or is in use.
    """
    output = Output(out)
    output.check_format()
    raw = Storage(landing) if landing else None
    if raw and not raw.exists():
        raise source.LandingError(f"{raw.uri}: there is no such landing directory")
    done = Done()
    with contextlib.ExitStack() as stack:
        stack.enter_context(output.alone())
        stack.enter_context(output.alone("compaction"))
        stores: list[LandingStore] = []
        if raw and raw.local and not dry:
            stores = stack.enter_context(landing_logs.sealed(Path(raw.root)))
        names = Names(devices, _others(output, raw, stores, set(devices)), words())
        if not dry:
            if raw:
                _from_segments(raw, names, _places(output, names.devices), done)
                if raw.local:
                    done.add("held by the collector", landing_logs.drop(Path(raw.root), stores, names))
            delta = Delta(output)
            publish = delta.follow if delta.exist() else lambda: None
            publish()  # so that the logs have all other rows, before files go that they name
            _from_tables(output, names, done, publish)
            if delta.exist():
                publish()
                delta.forget_history()
            _delete_strays(output, names)
            for place, rows in _told_onward(output, devices):
                done.add(place, rows)
            if output.latest():
                found = verdict.judge(output)
                if page:
                    report.write(output, found)
        for storage in [output.storage, *([raw] if raw else []), *map(Storage, elsewhere)]:
            done.left += [f"{storage.uri}/{name}" for name in byte_search.search(storage, names)]
        if not dry:
            done.left += [f"{place}: {rows} rows" for place, rows in _told_onward(output, devices) if rows]
    return done


def words() -> bytes:
    """Return the words of our own formats: a device that is called so can't be told from them by its bytes."""
    every = [*schemas.TABLES.items(), *schemas.STATE.items(), ("segment", segments.SCHEMA)]
    told = [name for table, schema in every for name in (table, *schema.names)]
    told += [
        *Commit.__dataclass_fields__,
        *summary.TOTALS,
        *schemas.REASONS,
        COMMITS,
        DELTA_LOG,
        "flashmqtt",
        "checkpoint",
    ]
    return " ".join(told).encode()


def _told_onward(output: Output, devices: list[str]) -> list[tuple[str, int]]:
    """Have the rows that went on deleted; return how many they were, by place.

    Raises:
        OutputError: one of the places can't be reached.
    """
    try:
        return list(sink.forget(output, devices).items())
    except Exception as error:  # of any database's driver
        raise OutputError(
            f"where the tables went on to: {error}. All else is done: the same command again does the rest"
        ) from error


def _others(output: Output, landing: Storage | None, stores: list[LandingStore], devices: set[str]) -> set[str]:
    """Return the names of all other devices that tables, landing or logs know of."""
    found: set[str] = set()
    topics = landing_logs.topics_held(stores)
    storage = output.storage
    commit = output.latest()
    for kind in ("lives", "plain"):
        for name in commit.state_files(kind) if commit else []:
            found |= _distinct(storage, name, "device")
    for name in output.files("quarantine") + output.files("held"):
        topics |= _distinct(storage, name, "topic")
    if landing:
        for numbers in source.latest(landing).values():
            for name in numbers.values():
                topics |= _distinct(landing, name, "topic")
    theirs = [f"/{name}/" for name in devices]
    for topic in topics:
        if topic.startswith(OURS) or not any(one in f"/{topic}/" for one in theirs):
            found.add(segments.device_of(topic))
        if not topic.startswith(OURS):
            found.add(device_and_name(topic)[0])
    return found


def _places(output: Output, devices: set[str]) -> dict[tuple[str, int], set[tuple[int, int]]]:
    """Return where messages without an identity lie that gave readings of some devices and of no other.

    Only the tables know it: a mapping makes a device's name of a payload, or of several parts.

    Returns:
        Row and arrival (µs) in the collector's log, by collector and segment.
    """
    storage = output.storage
    files = output.files("readings") + output.files("duplicates")

    def places(name: str, own: bool) -> Iterator[tuple[str, int, int, int]]:
        columns = ["device", "life", "collector", "segment", "row", "arrival"]
        with storage.fs.open_input_file(storage.path(name)) as file:
            rows = pq.read_table(file, columns=columns, filters=pc.field("life") == 0, use_threads=False)
        mine = pc.is_in(rows["device"].cast(pa.string()), pa.array(sorted(devices), pa.string()))
        rows = rows.filter(mine if own else pc.invert(mine))
        numbers = [rows[one].cast(pa.int64()).to_pylist() for one in ("segment", "row", "arrival")]
        yield from zip(rows["collector"].to_pylist(), *numbers, strict=True)

    found = {place for name in files for place in places(name, True)}
    if found:
        found.difference_update(place for name in files for place in places(name, False))
    told: dict[tuple[str, int], set[tuple[int, int]]] = {}
    for collector, segment, row, arrival_us in found:
        told.setdefault((collector, segment), set()).add((row, arrival_us))
    return told


def _distinct(storage: Storage, name: str, column: str) -> set[str]:
    with storage.fs.open_input_file(storage.path(name)) as file:
        table = pq.read_table(file, columns=[column], read_dictionary=[column], use_threads=False)
    return {one for chunk in table[column].chunks for one in chunk.dictionary.to_pylist()}


def _from_segments(
    landing: Storage, names: Names, places: dict[tuple[str, int], set[tuple[int, int]]], done: Done
) -> None:
    """Take the devices' rows out of the segments, each under the name and with the age that it has: it has been read, or not."""
    for collector, numbers in sorted(source.latest(landing).items()):
        for number, name in sorted(numbers.items()):
            its_places = places.get((collector, number), set())
            if not its_places and not byte_search.in_file(landing, name, names):
                continue
            sealed_s = landing.modified_s(name)
            with landing.fs.open_input_file(landing.path(name)) as opened:
                file = pq.ParquetFile(opened)
                buckets = segments.buckets_in(file.schema_arrow.metadata)
                rows = file.read(columns=segments.SCHEMA.names, use_threads=False).sort_by("row")
            kept, gone = landing_logs.without(rows, names, its_places)
            if not gone.num_rows and not byte_search.in_file(landing, name, names):
                continue
            with landing.create(name) as stream:
                segments.write_rows(stream, kept.cast(segments.SCHEMA), buckets)
            if landing.local:
                os.utime(landing.path(name), (sealed_s, sealed_s))
            done.add(f"segments of {collector}", gone.num_rows)
    if landing.local:
        for path in Path(landing.root).glob(".*.tmp"):  # of a sealing that was cut off
            path.unlink(missing_ok=True)


def _from_tables(output: Output, names: Names, done: Done, publish: Callable[[], None]) -> None:
    """Put a commit without the devices in the place of all; where nothing names them, leave all as it is."""
    commits = output.commits()
    if not commits:
        return
    last = commits[-1]
    storage = output.storage
    old = {table: [name for commit in commits for name in commit.files.get(table, [])] for table in schemas.TABLES}
    new = replace(
        last,
        files={table: list(files) for table, files in old.items() if files},
        rows={table: sum(commit.rows.get(table, 0) for commit in commits) for table in schemas.TABLES},
        state={which: dict(files) for which, files in last.state.items()},
        kept_from=output.kept_from(),
        whole=True,
        revision=revision_of(commits) + 1,
        forgets=True,
    )
    less = summary.empty()
    changed = False
    for table, files in old.items():
        for name in files:
            if not byte_search.in_file(storage, name, names):
                continue
            changed = True
            made = name.rsplit("/", 1)[0] + f"/forget-{bucket_of(name):04d}-{uuid.uuid4().hex[:8]}.parquet"
            kept, gone = _rewritten(storage, name, made, schemas.TABLES[table], names, less, table)
            new.files[table].remove(name)
            if kept:
                new.files[table].append(made)
            new.rows[table] -= gone
            done.add(table, gone)
    for which, kinds in last.state.items():
        for key, name in kinds.items():
            if not byte_search.in_file(storage, name, names):
                continue
            changed = True
            kind, _, part = key.partition(".")
            ending = f"-{part}" if part else ""
            made = f"state/{kind}/{last.batch:09d}-bucket-{int(which):04d}-{uuid.uuid4().hex[:8]}{ending}.parquet"
            kept, gone = _rewritten(storage, name, made, schemas.STATE[kind], names, less, kind)
            if part and not kept:
                storage.delete(made)
                del new.state[which][key]
            else:
                new.state[which][key] = made
            done.add(kind, gone)
    new.summary = _summary(last.summary, less, names)
    told = any(names.occur(storage.read(name_of(commit.batch))) for commit in commits)
    if not changed and not told and new.summary == last.summary:
        return
    _first_and_last(storage, new)
    new.files = {table: files for table, files in new.files.items() if files}
    output.replace(new, [name for files in old.values() for name in files], publish)


def _rewritten(
    storage: Storage, name: str, made: str, schema: pa.Schema, names: Names, less: summary.Summary, table: str
) -> tuple[int, int]:
    """Write a table's file anew; count what the summary loses; return the rows that are kept and those that are gone."""
    kept_rows = gone_rows = 0
    dictionaries = table in schemas.TABLES
    with storage.fs.open_input_file(storage.path(name)) as opened, storage.create(made) as stream:
        writer = None
        file = pq.ParquetFile(opened)
        for group in range(file.num_row_groups):
            rows = file.read_row_group(group, columns=schema.names, use_threads=False).cast(schema)
            kept, gone = landing_logs.without(rows, names)
            _count(less, table, gone)
            kept_rows, gone_rows = kept_rows + kept.num_rows, gone_rows + gone.num_rows
            kept = kept.combine_chunks()
            if dictionaries:
                columns = [one.combine_chunks() for one in kept.columns]
                kept = table_of(columns, schema)
            if writer is None:
                writer = parquet_writer(stream, kept.schema)
            if kept.num_rows:
                writer.write_table(kept)
        if writer is None:
            writer = parquet_writer(stream, schema)
        writer.close()
    if dictionaries and not kept_rows:
        storage.delete(made)
    return kept_rows, gone_rows


def _count(less: summary.Summary, table: str, gone: pa.Table) -> None:
    """Count what the fleet's sums lose with some rows."""
    if not gone.num_rows:
        return
    if table == "audit":
        summary.add(less, summary.of(gone))
        less["totals"]["boots"] += gone.num_rows
    elif table == "lives":
        less["totals"]["devices"] += pc.count_distinct(gone["device"]).as_py()
    elif table in {"quarantine", "held"}:
        summary.add_reasons(less, gone["reason"])
    elif table == "readings":
        first = np.ones(gone.num_rows, dtype=bool)  # a row a message: its readings stand together
        seq, place = gone["seq"].to_numpy(), gone["row"].to_numpy()
        first[1:] = (seq[1:] != seq[:-1]) | (place[1:] != place[:-1])
        summary.add_arrivals(less, gone["arrival"].cast(pa.int64()).to_numpy()[first])


def _summary(before: summary.Summary, less: summary.Summary, names: Names) -> summary.Summary:
    """Return the fleet's sums without what is gone, and without texts that name the devices."""
    found: summary.Summary = summary.empty()
    summary.add(found, before)
    summary.take_away(found, less)
    for part in ("causes", "reasons", "topics"):
        texts: dict[str, int] = {}
        for text, count in found[part].items():
            if part == "topics" and names.own(text):
                continue
            told = names.without(text.encode()).decode()
            texts[told] = texts.get(told, 0) + count
        found[part] = texts
    return found


def _first_and_last(storage: Storage, commit: Commit) -> None:
    """Set the first and the last arrival of all devices that are left."""
    found = []
    for name in commit.state_files("lives"):
        with storage.fs.open_input_file(storage.path(name)) as file:
            rows = pq.read_table(file, columns=["first_arrival", "last_arrival"], use_threads=False)
        if rows.num_rows:
            found += [
                pc.min(rows["first_arrival"].cast(pa.int64())).as_py(),
                pc.max(rows["last_arrival"].cast(pa.int64())).as_py(),
            ]
    commit.summary["first_arrival_us"] = min(found, default=None)
    commit.summary["last_arrival_us"] = max(found, default=None)


def _delete_strays(output: Output, names: Names) -> None:
    """Delete what no commit names (no run is at work), temporaries, and pages that name a device."""
    storage = output.storage
    commits = output.commits()
    named = {name for commit in commits for files in commit.files.values() for name in files}
    named |= {name for commit in commits[-1:] for files in commit.state.values() for name in files.values()}
    if commits and commits[0].whole:
        stood_for = {name_of(number) for number in output.numbers() if number < commits[0].batch}
    else:
        stood_for = set()
    for name in storage.list("", recursive=True):
        top = name.split("/", 1)[0]
        of_tables = top in schemas.TABLES or top == "state"
        if name.rsplit("/", 1)[-1].startswith(".") and name.endswith(".tmp"):
            stray = True
        elif of_tables:
            stray = name.endswith(".parquet") and f"/{DELTA_LOG}/" not in name and name not in named
        elif top in KEPT:
            stray = name in stood_for
        else:
            stray = byte_search.in_file(storage, name, names)
        if stray:
            storage.delete(name)


def told(done: Done, devices: list[str], dry: bool) -> Iterator[str]:
    """Yield what there is to say, a line each."""
    for place, rows in done.rows.items():
        yield f"  {rows:,} rows deleted: {place}"
    if not dry and not done.rows:
        yield "  no row was deleted: nothing was known of them, or an earlier attempt deleted all"
    if dry:
        yield f"  {len(done.left):,} files name them:" if done.left else "  no file names them"
    elif done.left:
        yield f"  NOT forgotten: {len(done.left):,} places still name them:"
    else:
        yield f"  forgotten: no byte of any file that is left names {', '.join(map(verdict.shown, devices))}"
    yield from (f"    {place}" for place in done.left[:40])
    if not dry:
        yield "  out of reach of this command:"
        yield from (f"    - {one}" for one in OUT_OF_REACH)


def main(argv: list[str] | None = None) -> int:
    """Forget devices; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.pipeline.forget", description=__doc__.split("\n")[0])
    parser.add_argument("--landing", nargs="?", help="the raw data")
    parser.add_argument("--out", nargs="?", help="the output directory of the pipeline")
    parser.add_argument("--device", action="append", default=[], metavar="NAME", help="may be repeated")
    parser.add_argument("--devices", type=Path, metavar="FILE", help="more names, one a line")
    parser.add_argument(
        "--search", action="append", default=[], metavar="DIR", help="search these, too: captures, a copy"
    )
    parser.add_argument("--no-report", action="store_true", help="leave the HTML page out")
    parser.add_argument("--dry-run", action="store_true", help="only list the files that name them")
    parser.add_argument("--yes", action="store_true", help="don't ask")
    options = parser.parse_args(argv)
    try:
        devices = sorted(
            {*options.device, *(options.devices.read_text().split("\n") if options.devices else [])} - {""}
        )
        for name, given in (("--landing", options.landing), ("--out", options.out), ("--device", devices)):
            if not given:
                raise OutputError(f'{name} is missing: `make forget LANDING=landing OUT=tables DEVICE="NAME"`')
        if not options.dry_run and not options.yes and not _agreed(devices):
            raise OutputError("nothing was deleted: say --yes, or look first with --dry-run")
        begun = time.monotonic()
        done = forget(options.landing, options.out, devices, options.search, not options.no_report, options.dry_run)
    except LandingInUse:
        print(f"forget: a collector works in {options.landing}: stop it first", file=sys.stderr)
        return 2
    except (OutputError, StorageError, source.LandingError, LandingError, OSError, ValueError) as error:
        print(f"forget: {error}", file=sys.stderr)
        return 2
    for line in told(done, devices, options.dry_run):
        print(line)
    weak = Names(devices, (), words()).weak
    if weak:
        print(
            f"  {', '.join(map(verdict.shown, sorted(weak)))}: too short, or a word of our own formats, to be searched for in"
            " bytes: what was searched are the columns `device` and the topics"
        )
    print(f"  {time.monotonic() - begun:.1f} s", flush=True)
    return int(bool(done.left) and not options.dry_run)


def _agreed(devices: list[str]) -> bool:
    if not sys.stdin.isatty():
        return False
    print(
        f"All that is known of {', '.join(map(verdict.shown, devices))} will be deleted for good. Type yes to go on: ",
        end="",
    )
    return input().strip() == "yes"


if __name__ == "__main__":
    sys.exit(ended(main, stopped="stopped; the same command again does the rest"))
