"""`python -m tools.pipeline.forget --landing L --out tables --device NAME`: delete all data of devices, and verify it.

It seals the collector's logs and deletes the devices' rows from the segments. Then it deletes them from tables, quarantine
and state with one commit, like a compaction. Rows of other devices that contain a name stay, with asterisks for the name.
Then it updates the Delta logs and deletes their history, deletes the rows from the databases that `sink` fills, and makes
verdict and report again. At the end it searches all bytes and all compressed values of the remaining files for the names.

If it is killed, start the same command again: it continues, and the tables are consistent after each step. The collector
and the run must be stopped. Exit status: 0 if no file contains a name, 1 if a file still does (it is listed), 2 if the
command failed.
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
from tools.landing import parquet, segments
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
"""These can't be made again, unlike pages, so they are never deleted as a whole."""
OUT_OF_REACH = (
    "the broker: its retained messages, and its queues for offline sessions",
    "the board: wipe it first (make wipe JOURNAL=1), or its next message brings the device back",
    "a dashboard that serves tables of an object store: stop it, its process keeps the values in memory",
    "other tables of the same landing, such as those of remake: run this command with their OUT, too",
    "files that were exported from the tables, such as the sink's --csv: delete them; --search DIR finds them",
    "backups and snapshots of disks, old versions in an object store, captured traffic, logs of other programs",
    "names in a form that is not searched: encrypted, compressed inside a payload, or spelled in another way",
)


@dataclass
class Done:
    """What was deleted.

    Attributes:
        rows: the number of deleted rows by place.
        left: files that still contain a name, or databases that still had rows.
    """

    rows: dict[str, int] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)

    def add(self, place: str, rows: int) -> None:
        """Add to the number of deleted rows."""
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
    """Delete devices; return what was deleted, and where their names still are.

    Args:
        landing: the raw data; None if it does not exist any more.
        out: the output directory.
        devices: their names.
        elsewhere: more directories to search; nothing is deleted there.
        page: whether to write the report again.
        dry: only search.

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
        stack.enter_context(output.locked())
        stack.enter_context(output.locked("compaction"))
        stores: list[LandingStore] = []
        if raw and raw.local and not dry:
            stores = stack.enter_context(landing_logs.sealed(Path(raw.root)))
        names = Names(devices, _other_devices(output, raw, stores, set(devices)), format_words())
        if not dry:
            if raw:
                _clean_segments(raw, names, _plain_positions(output, names.devices), done)
                if raw.local:
                    done.add("held by the collector", landing_logs.drop(Path(raw.root), stores, names))
            delta = Delta(output)
            publish = delta.follow if delta.exist() else lambda: None
            publish()  # first: the logs must have all other rows before files are deleted that they name
            _clean_tables(output, names, done, publish)
            if delta.exist():
                publish()
                delta.forget_history()
            _delete_unnamed(output, names)
            for place, rows in _forget_in_databases(output, devices):
                done.add(place, rows)
            if output.latest():
                found = verdict.judge(output)
                if page:
                    report.write(output, found)
        for storage in [output.storage, *([raw] if raw else []), *map(Storage, elsewhere)]:
            done.left += [f"{storage.uri}/{name}" for name in byte_search.search(storage, names)]
        if not dry:
            done.left += [f"{place}: {rows} rows" for place, rows in _forget_in_databases(output, devices) if rows]
    return done


def format_words() -> bytes:
    """Return the words of our own formats. A search of bytes can't distinguish a device of such a name from them."""
    every = [*schemas.TABLES.items(), *schemas.STATE.items(), ("segment", parquet.SCHEMA)]
    found = [name for table, schema in every for name in (table, *schema.names)]
    found += [
        *Commit.__dataclass_fields__,
        *summary.TOTALS,
        *schemas.REASONS,
        COMMITS,
        DELTA_LOG,
        "flashmqtt",
        "checkpoint",
    ]
    return " ".join(found).encode()


def _forget_in_databases(output: Output, devices: list[str]) -> list[tuple[str, int]]:
    """Delete the devices' rows from the databases that `sink` fills; return the number of rows by database.

    Raises:
        OutputError: a database can't be reached.
    """
    try:
        return list(sink.forget(output, devices).items())
    except Exception as error:  # of any database's driver
        raise OutputError(
            f"databases of these tables: {error}. Everything else is done. Run the same command again for the rest"
        ) from error


def _other_devices(output: Output, landing: Storage | None, stores: list[LandingStore], devices: set[str]) -> set[str]:
    """Return the names of all other devices in tables, landing or logs."""
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


def _plain_positions(output: Output, devices: set[str]) -> dict[tuple[str, int], set[tuple[int, int]]]:
    """Return the positions of messages without an identity that gave readings only of these devices.

    Only the tables have this information: a mapping may take a device's name from the payload, or join several parts.

    Returns:
        For each collector and segment, pairs of row and arrival (µs).
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
    by_segment: dict[tuple[str, int], set[tuple[int, int]]] = {}
    for collector, segment, row, arrival_us in found:
        by_segment.setdefault((collector, segment), set()).add((row, arrival_us))
    return by_segment


def _distinct(storage: Storage, name: str, column: str) -> set[str]:
    with storage.fs.open_input_file(storage.path(name)) as file:
        table = pq.read_table(file, columns=[column], read_dictionary=[column], use_threads=False)
    return {one for chunk in table[column].chunks for one in chunk.dictionary.to_pylist()}


def _clean_segments(
    landing: Storage, names: Names, places: dict[tuple[str, int], set[tuple[int, int]]], done: Done
) -> None:
    """Delete the devices' rows from the segments. Names and file times stay: they show which segments have been read."""
    for collector, numbers in sorted(source.latest(landing).items()):
        for number, name in sorted(numbers.items()):
            its_places = places.get((collector, number), set())
            if not its_places and not byte_search.in_file(landing, name, names):
                continue
            sealed_s = landing.modified_s(name)
            with landing.fs.open_input_file(landing.path(name)) as opened:
                file = pq.ParquetFile(opened)
                buckets = parquet.buckets_in(file.schema_arrow.metadata)
                rows = file.read(columns=parquet.SCHEMA.names, use_threads=False).sort_by("row")
            kept, gone = landing_logs.without(rows, names, its_places)
            if not gone.num_rows and not byte_search.in_file(landing, name, names):
                continue
            with landing.create(name) as stream:
                parquet.write_rows(stream, kept.cast(parquet.SCHEMA), buckets)
            if landing.local:
                os.utime(landing.path(name), (sealed_s, sealed_s))
            done.add(f"segments of {collector}", gone.num_rows)
    if landing.local:
        for path in Path(landing.root).glob(".*.tmp"):  # of an interrupted sealing
            path.unlink(missing_ok=True)


def _clean_tables(output: Output, names: Names, done: Done, publish: Callable[[], None]) -> None:
    """Replace all commits by one without the devices' rows. Do nothing if no file contains their names."""
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
    removed = summary.empty()
    changed = False
    for table, files in old.items():
        for name in files:
            if not byte_search.in_file(storage, name, names):
                continue
            changed = True
            made = name.rsplit("/", 1)[0] + f"/forget-{bucket_of(name):04d}-{uuid.uuid4().hex[:8]}.parquet"
            kept, gone = _rewrite(storage, name, made, schemas.TABLES[table], names, removed, table)
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
            kept, gone = _rewrite(storage, name, made, schemas.STATE[kind], names, removed, kind)
            if part and not kept:
                storage.delete(made)
                del new.state[which][key]
            else:
                new.state[which][key] = made
            done.add(kind, gone)
    new.summary = _summary(last.summary, removed, names)
    in_commits = any(names.occur(storage.read(name_of(commit.batch))) for commit in commits)
    if not changed and not in_commits and new.summary == last.summary:
        return
    _set_first_and_last(storage, new)
    new.files = {table: files for table, files in new.files.items() if files}
    output.replace(new, [name for files in old.values() for name in files], publish)


def _rewrite(
    storage: Storage, name: str, made: str, schema: pa.Schema, names: Names, removed: summary.Summary, table: str
) -> tuple[int, int]:
    """Write a table's file again without the devices; return how many rows were kept, and how many were deleted.

    Add what the summary must lose to `removed`.
    """
    kept_rows = gone_rows = 0
    dictionaries = table in schemas.TABLES
    with storage.fs.open_input_file(storage.path(name)) as opened, storage.create(made) as stream:
        writer = None
        file = pq.ParquetFile(opened)
        for group in range(file.num_row_groups):
            rows = file.read_row_group(group, columns=schema.names, use_threads=False).cast(schema)
            kept, gone = landing_logs.without(rows, names)
            _count_removed(removed, table, gone)
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


def _count_removed(removed: summary.Summary, table: str, gone: pa.Table) -> None:
    """Add to `removed` what the fleet's sums lose with the deleted rows `gone`."""
    if not gone.num_rows:
        return
    if table == "audit":
        summary.add(removed, summary.of(gone))
        removed["totals"]["boots"] += gone.num_rows
    elif table == "lives":
        removed["totals"]["devices"] += pc.count_distinct(gone["device"]).as_py()
    elif table in {"quarantine", "held"}:
        summary.add_reasons(removed, gone["reason"])
    elif table == "readings":
        first = np.ones(gone.num_rows, dtype=bool)  # the first row of each message: a message's readings are adjacent
        seq, place = gone["seq"].to_numpy(), gone["row"].to_numpy()
        first[1:] = (seq[1:] != seq[:-1]) | (place[1:] != place[:-1])
        summary.add_arrivals(removed, gone["arrival"].cast(pa.int64()).to_numpy()[first])


def _summary(before: summary.Summary, removed: summary.Summary, names: Names) -> summary.Summary:
    """Return the fleet's sums without the removed rows, and without texts that contain a name."""
    found: summary.Summary = summary.empty()
    summary.add(found, before)
    summary.take_away(found, removed)
    for part in ("causes", "reasons", "topics"):
        texts: dict[str, int] = {}
        for text, count in found[part].items():
            if part == "topics" and names.own(text):
                continue
            cleaned = names.without(text.encode()).decode()
            if summary.ELLIPSIS in text:  # a part of a name may be where the text was cut
                cleaned = summary.OTHERS
            texts[cleaned] = texts.get(cleaned, 0) + count
        found[part] = texts
    return found


def _set_first_and_last(storage: Storage, commit: Commit) -> None:
    """Set the first and the last arrival of all remaining devices."""
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


def _delete_unnamed(output: Output, names: Names) -> None:
    """Delete files that no commit names (no run is active), temporary files, and pages that contain a name."""
    storage = output.storage
    commits = output.commits()
    named = {name for commit in commits for files in commit.files.values() for name in files}
    named |= {name for commit in commits[-1:] for files in commit.state.values() for name in files.values()}
    if commits and commits[0].whole:
        replaced = {name_of(number) for number in output.numbers() if number < commits[0].batch}
    else:
        replaced = set()
    for name in storage.list("", recursive=True):
        top = name.split("/", 1)[0]
        of_tables = top in schemas.TABLES or top == "state"
        if name.rsplit("/", 1)[-1].startswith(".") and name.endswith(".tmp"):
            unnamed = True
        elif of_tables:
            unnamed = name.endswith(".parquet") and f"/{DELTA_LOG}/" not in name and name not in named
        elif top in KEPT:
            unnamed = name in replaced
        else:
            unnamed = byte_search.in_file(storage, name, names)
        if unnamed:
            storage.delete(name)


def lines(done: Done, devices: list[str], dry: bool) -> Iterator[str]:
    """Yield the lines to print."""
    for place, rows in done.rows.items():
        yield f"  {rows:,} rows deleted: {place}"
    if not dry and not done.rows:
        yield "  no row was deleted: there was none, or an earlier attempt deleted all"
    if dry:
        yield f"  {len(done.left):,} files contain the names:" if done.left else "  no file contains the names"
    elif done.left:
        yield f"  NOT forgotten: {len(done.left):,} places still contain the names:"
    else:
        yield f"  forgotten: no remaining file contains {', '.join(map(verdict.shown, devices))}"
    yield from (f"    {place}" for place in done.left[:40])
    if not dry:
        yield "  this command can't reach:"
        yield from (f"    - {one}" for one in OUT_OF_REACH)


def main(argv: list[str] | None = None) -> int:
    """Forget devices; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.pipeline.forget", description=__doc__.split("\n")[0])
    parser.add_argument("--landing", nargs="?", help="the raw data")
    parser.add_argument("--out", nargs="?", help="the output directory of the pipeline")
    parser.add_argument("--device", action="append", default=[], metavar="NAME", help="may be repeated")
    parser.add_argument("--devices", type=Path, metavar="FILE", help="a file with more names, one per line")
    parser.add_argument(
        "--search", action="append", default=[], metavar="DIR", help="also search this folder: captures, a copy"
    )
    parser.add_argument("--no-report", action="store_true", help="do not write the HTML page")
    parser.add_argument("--dry-run", action="store_true", help="only list the files that contain the names")
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    options = parser.parse_args(argv)
    try:
        devices = sorted(
            {*options.device, *(options.devices.read_text().split("\n") if options.devices else [])} - {""}
        )
        for name, given in (("--landing", options.landing), ("--out", options.out), ("--device", devices)):
            if not given:
                raise OutputError(f'{name} is missing: `make forget LANDING=landing OUT=tables DEVICE="NAME"`')
        if not options.dry_run and not options.yes and not _confirmed(devices):
            raise OutputError("nothing was deleted: give --yes, or search first with --dry-run")
        begun = time.monotonic()
        done = forget(options.landing, options.out, devices, options.search, not options.no_report, options.dry_run)
    except LandingInUse:
        print(f"forget: a collector is running in {options.landing}: stop it first", file=sys.stderr)
        return 2
    except (OutputError, StorageError, source.LandingError, LandingError, OSError, ValueError) as error:
        print(f"forget: {error}", file=sys.stderr)
        return 2
    for line in lines(done, devices, options.dry_run):
        print(line)
    weak = Names(devices, (), format_words()).weak
    if weak:
        print(
            f"  {', '.join(map(verdict.shown, sorted(weak)))}: too short for a search of bytes, or a word of our own formats:"
            " only the columns `device` and the topics were searched"
        )
    print(f"  {time.monotonic() - begun:.1f} s", flush=True)
    return int(bool(done.left) and not options.dry_run)


def _confirmed(devices: list[str]) -> bool:
    if not sys.stdin.isatty():
        return False
    print(
        f"All data of {', '.join(map(verdict.shown, devices))} will be deleted permanently. Type yes to continue: ",
        end="",
    )
    return input().strip() == "yes"


if __name__ == "__main__":
    sys.exit(ended(main, stopped="stopped; run the same command again for the rest"))
