"""`python -m tools.pipeline.forget --landing L --out tables --device NAME`: delete all data of devices, and verify it.

It seals the collector's logs and deletes the devices' rows from the segments. Then it deletes them from tables, quarantine
and state with one commit, like a compaction. Rows of other devices that contain a name stay, with asterisks for the name.
Then it updates the Delta logs and deletes their history, deletes the rows from the databases that `sink` fills, and makes
verdict and report again. At the end it searches all bytes and all compressed values of the remaining files for the names.

If it is killed, start the same command again: it continues, and the tables are consistent after each step. The collector
and the run must be stopped. Exit status: 0 if no file contains a name, 1 if a file still does (it is listed), 2 if the
command failed.
"""

import contextlib
import difflib
import json
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from tools.command import counted, exit_status, named
from tools.landing import forget as landing_logs
from tools.landing import parquet, segments
from tools.landing.names import Names
from tools.landing.store import LandingStore

from . import byte_search, options, report, series, sink, verdict
from .batch import plain, prints, senml
from .batch.mapping import NO_MAPPING, OURS, Mapping
from .tables import schemas, source, summary
from .tables.books import Books
from .tables.commits import COMMITS, DELTA_LOG, TEMPORARY, Commit, Output, OutputError, batch_of, bucket_of, name_of
from .tables.delta import Delta
from .tables.files import rewrite
from .tables.storage import Storage

MESSAGE = ["topic", "payload", "collector", "segment", "row", "arrival"]
MADE_AGAIN = (report.NAME, series.FOLDER, *{name.split("/", 1)[0] for name in verdict.FILES.values()}, "spark.log")
"""Pages and the like. No other file that contains a name is deleted as a whole: it is not ours, or can't be made again."""
WORDS_OF_LIBRARIES = """null true false PAR1 ARROW:schema parquet-cpp-arrow version list element SQLite autoindex indexsqlite
protocol minReaderVersion minWriterVersion metaData metadata description format provider options schemaString fields nullable
partitionColumns configuration createdTime struct array elementType containsNull string integer long double boolean binary
timestamp date path partitionValues size modificationTime dataChange stats numRecords minValues maxValues nullCount tags txn
deletionVector baseRowId defaultRowCommitVersion clusteringProvider appId lastUpdated commitInfo operation remove
operationParameters mode partitionBy location engineInfo clientVersion delta-rs checkpointInterval Append CREATE TABLE WRITE
Ignore ErrorIfExists sizeInBytes numOfAddFiles flashmqttBatch deletionTimestamp extendedFileMetadata"""
"""The words of JSON, Parquet, SQLite and Delta logs in our files."""
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
        weak: names that a search of bytes can't find.
        shared: the other devices of the messages that a mapping still gives to a deleted device.
        seen: the devices of which there was data.
        others: the names of the other devices.
    """

    rows: dict[str, int] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    weak: set[str] = field(default_factory=set)
    shared: set[str] = field(default_factory=set)
    seen: set[str] = field(default_factory=set)
    others: set[str] = field(default_factory=set)

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
    rules: Mapping = NO_MAPPING,
) -> Done:
    """Delete devices; return what was deleted, and where their names still are.

    Args:
        landing: the raw data; None if it does not exist any more.
        out: the output directory.
        devices: their names.
        elsewhere: more directories to search; nothing is deleted there.
        page: whether to write the report again.
        dry: only search.
        rules: the tables' mapping. It tells the device of messages that are not in the tables.

    Raises:
        OutputError, StorageError, LandingError: something can't be read or written, or is in use; or there are no rules, but
            they are needed.
    """
    output = Output.existing(out)
    raw = Storage(landing) if landing else None
    if raw and not raw.exists():
        raise source.LandingError(f"{raw.uri}: there is no such landing directory")
    done = Done()
    with contextlib.ExitStack() as stack:
        stack.enter_context(output.locked())
        stack.enter_context(output.locked("compaction"))
        _check_commits(output)
        stores: list[LandingStore] = []
        if raw and raw.local and not dry:
            stores = stack.enter_context(landing_logs.sealed(Path(raw.root)))
        places = _plain_places(output, set(devices))
        if raw and not rules.rules:
            _check_unread(output, raw, stores, set(devices), places)
        others = _others(output, raw, stores, set(devices), places, rules)
        words = format_words(output, raw, stores)
        names = Names(devices, others.devices, words, others.texts, others.topics, of=plain.devices_of)
        done.weak = names.weak
        done.others = others.devices - names.devices
        done.seen = others.seen | (others.devices & names.devices)
        if not dry:
            if raw:
                _clean_segments(raw, names, places, done, rules)
                if raw.local:

                    def own(topic: str, payload: bytes) -> bool:
                        found = plain.mapped_devices(rules, topic, payload)
                        return found <= names.devices if found else names.own(topic, payload)

                    done.add("held by the collector", landing_logs.drop(Path(raw.root), stores, names, own))
            delta = Delta(output)
            publish = delta.follow if delta.exist() else lambda: None
            publish()  # first: the logs must have all other rows before files are deleted that they name
            if names.weak or done.seen:  # the pages have shortened names, too, and no search may find such a name
                for name in (
                    report.NAME,
                    *(f"{series.FOLDER}/{one}" for one in output.storage.list(series.FOLDER, True)),
                ):
                    with contextlib.suppress(FileNotFoundError):
                        output.storage.delete(name)
            _clean_tables(output, names, done, publish)
            if delta.exist():
                publish()
                delta.forget_history()
            _delete_unnamed(output, names)
            for place, rows in _forget_in_databases(output, devices, names):
                done.add(place, rows)
            if output.latest():
                found = verdict.judge(output)
                if page:
                    report.write(output, found)
        for storage in [output.storage, *([raw] if raw else []), *map(Storage, elsewhere)]:
            done.left += [f"{storage.uri}/{name}" for name in byte_search.search(storage, names)]
        if raw:  # a name that a mapping joins of several parts is not in the bytes
            for name in _segments(raw):
                its = [found for _, found in _mapped(raw, name, rules) if found & names.devices]
                if its and (place := f"{raw.uri}/{name}") not in done.left:
                    done.left.append(place)
                done.shared |= set().union(*its) - names.devices
        if not dry:
            done.left += [
                f"{place}: {counted(rows, 'row')}"
                for place, rows in _forget_in_databases(output, devices, names)
                if rows
            ]
    return done


def _check_commits(output: Output) -> None:
    """Check that all commits are there: all files that no commit names will be deleted.

    Raises:
        OutputError: a commit is missing, or a file of the tables is of a batch behind the next one.
    """
    output.checked_commits()
    newest = max(output.numbers(), default=0)
    for table in schemas.TABLES:
        for name in output.storage.list(table, recursive=True):
            if batch_of(f"{table}/{name}") > newest + 1:
                raise OutputError(
                    f"{output.storage.uri}/{table}/{name} is of a later batch than the newest commit, {newest}: commits are"
                    f" missing. Restore {COMMITS} from a backup. If there is none, delete this folder, make the tables again from"
                    " the landing, and forget then. Nothing was deleted"
                )


def format_words(output: Output, landing: Storage | None, stores: list[LandingStore]) -> bytes:
    """Return the words of our own formats, and the names of our files and of the collectors.

    A search of bytes can't distinguish a device of such a name from them, and they must not be masked.
    """
    every = [*schemas.TABLES.items(), *schemas.STATE.items(), ("segment", parquet.SCHEMA)]
    found = [name for table, schema in every for name in (table, *schema.names)]
    for commit in output.commits():
        found += [name_of(commit.batch), *commit.named, *commit.named_states, *commit.read]
    found += [*(_segments(landing) if landing else ()), *(store.collector for store in stores)]
    found += [
        *Commit.__dataclass_fields__,
        *schemas.REASONS,
        *senml.LABELS,
        COMMITS,
        DELTA_LOG,
        "flashmqtt",
        "checkpoint",
        series.SCHEMA,
        *(Path(report.__file__).with_name(f"page.{kind}").read_text("utf-8") for kind in ("html", "css", "js")),
        json.dumps([summary.empty(), vars(verdict.Verdict(0, {}))], default=vars),
        *(verdict.WHOLE, verdict.LOST, plain.NO_MAPPING),
        WORDS_OF_LIBRARIES,
    ]
    return " ".join(found).encode()


def _forget_in_databases(output: Output, devices: list[str], names: Names) -> list[tuple[str, int]]:
    """Delete the devices' rows from the databases that `sink` fills; return the number of rows by database.

    Raises:
        OutputError: a database can't be reached.
    """
    try:
        return list(sink.forget(output, devices, names).items())
    except Exception as error:  # of any database's driver
        raise OutputError(
            f"databases of these tables: {error}. Everything else is done. Run the same command again for the rest"
        ) from error


@dataclass
class Others:
    """What is known about the messages of the other devices.

    Attributes:
        devices: their names.
        texts: names of their readings, and topics, that contain the name of a device that is to be deleted.
        topics: for topics of messages without an identity that are in the tables: whether these are only the deleted devices'.
        seen: the devices to be deleted that a topic names.
    """

    devices: set[str] = field(default_factory=set)
    texts: set[str] = field(default_factory=set)
    topics: dict[str, bool] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)


class Places(NamedTuple):
    """The places (prints.places) of messages without an identity that gave readings.

    Attributes:
        own: of the messages that gave readings only of the devices to be deleted.
        others: of all other ones.
        segments: collector and number of the segments that have readings of the devices.
    """

    own: np.ndarray
    others: np.ndarray
    segments: set[tuple[str, int]]


def _others(
    output: Output,
    landing: Storage | None,
    stores: list[LandingStore],
    devices: set[str],
    places: Places,
    rules: Mapping,
) -> Others:
    """Return what tables, landing and logs have of the other devices."""
    found, storage, rough = Others(), output.storage, Names(devices, of=plain.devices_of)
    for name in output.files("lives") + output.files("plain"):
        found.devices |= _distinct(storage, name, "device")
    for name in output.files("readings"):
        if _contain(_distinct(storage, name, "name"), devices):
            rows = storage.table(name, ["device", "name"])
            found.texts |= set(rows.filter(pc.invert(_mine(rows, devices)))["name"].unique().to_pylist()) - {None}
    shapes: set[tuple[str, bool]] = set()
    for topic, payload in landing_logs.messages_held(stores):
        shapes.add((topic, plain.is_scalar(payload)))
        found.texts |= _texts_of(topic, payload, devices)
        found.devices |= plain.mapped_devices(rules, topic, payload)
    files = [(storage, name) for name in output.files("quarantine") + output.files("held")]
    if landing:
        for name in _segments(landing):
            files.append((landing, name))
            found.devices |= set().union(*(its for _, its in _mapped(landing, name, rules)))
    for where, name in files:
        topics = _distinct(where, name, "topic")
        if _contain(topics, devices) or byte_search.in_file(where, name, rough):
            shapes |= _shapes(where, name, devices, places if where is landing else None, found)
        shapes |= {(topic, False) for topic in topics if not _contain([topic], devices)}
    in_tables = set(found.devices)
    for topic, is_scalar in shapes:
        possible = plain.devices_of(topic, b"0" if is_scalar else None)
        found.seen |= possible & devices
        if possible & devices or (topic in found.topics and not possible <= in_tables):
            continue  # in the second case a mapping gave these messages another device
        found.devices |= possible
        if is_scalar:
            found.texts |= {topic, topic.rpartition("/")[2]}
        elif topic.startswith(OURS):
            found.texts.add(topic)
    found.texts = {text for text in found.texts if _contain([text], devices)}
    named = [name for name in found.devices | found.texts if _contain([name], devices)]
    found.texts |= {short for name in named for short in report.shortened(name)}
    return found


def _contain(texts: Iterable[str | None], devices: set[str]) -> bool:
    return any(device in text for text in texts if text for device in devices)


def _mine(rows: pa.Table, devices: set[str]) -> pa.ChunkedArray:
    return pc.is_in(rows["device"].cast(pa.string()), pa.array(sorted(devices), pa.string()))


def _shapes(
    storage: Storage, name: str, devices: set[str], places: Places | None, found: Others
) -> set[tuple[str, bool]]:
    """Return the topics of a file that contain a device's name, and whether a payload is one number or boolean.

    Messages that are known to be the devices' are left out. Add to `found` what the file has of other devices' readings.
    """
    rows = storage.table(name, MESSAGE)
    own, others = _known(rows, places) if places else (np.zeros(rows.num_rows, dtype=bool),) * 2
    named = {topic: _contain([topic], devices) for topic in rows["topic"].unique().to_pylist()}
    shapes = set()
    pairs = zip(rows["topic"].to_pylist(), rows["payload"].to_pylist(), own.tolist(), others.tolist(), strict=True)
    for topic, payload, is_own, is_others in pairs:
        if is_others:
            found.topics[topic] = False
        elif is_own and any(f"/{device}/" in f"/{topic}/" for device in devices):
            found.topics.setdefault(topic, True)
        if not is_own:
            found.texts |= _texts_of(topic, payload, devices)
            if named[topic]:
                shapes.add((topic, plain.is_scalar(payload)))
    return shapes


def _known(rows: pa.Table, places: Places) -> tuple[np.ndarray, np.ndarray]:
    """Return for each row whether its readings in the tables are only the devices', and whether some are of other devices."""
    at = prints.places(rows)
    return np.isin(at, places.own), np.isin(at, places.others)


def _segments(landing: Storage) -> list[str]:
    return [name for names in source.latest(landing).values() for name in names.values()]


def _mapped(landing: Storage, name: str, rules: Mapping) -> Iterator[tuple[int, set[str]]]:
    """Yield the index and the devices of each message of a segment, in landing order, that fits a mapping."""
    if not rules.rules:
        return
    rows = landing.table(name, ["topic", "payload", "row"]).sort_by("row")
    topics = [topic for topic in rows["topic"].unique().to_pylist() if rules.of(topic)]
    at = np.flatnonzero(pc.is_in(rows["topic"], pa.array(topics, pa.string())).to_numpy())
    some = rows.take(pa.array(at))
    for n, topic, payload in zip(at.tolist(), some["topic"].to_pylist(), some["payload"].to_pylist(), strict=True):
        if devices := plain.mapped_devices(rules, topic, payload):
            yield n, devices


def _check_unread(
    output: Output, landing: Storage, stores: list[LandingStore], devices: set[str], places: Places
) -> None:
    """Check that the tables have all messages, if a mapping named the devices: without it, only the tables have the names.

    Raises:
        OutputError: some messages are not in the tables.
    """
    commit, found = output.latest(), source.latest(landing)
    if not commit:
        return
    unread = any(number > commit.read.get(its, 0) for its, numbers in found.items() for number in numbers)
    if not unread and not landing_logs.messages_held(stores):
        return
    for collector, number in sorted(places.segments):
        name = found.get(collector, {}).get(number)
        if name is None:
            continue
        rows = landing.table(name, MESSAGE)
        rows = rows.filter(pa.array(_known(rows, places)[0]))
        for topic, payload in zip(rows["topic"].to_pylist(), rows["payload"].to_pylist(), strict=True):
            if not plain.devices_of(topic, payload) & devices:
                raise OutputError(
                    f"a mapping named {', '.join(map(verdict.shown, sorted(devices)))}, and the landing has messages that are"
                    " not in the tables: give the mapping (--mapping FILE), so that they are recognised. Nothing was deleted"
                )


def _texts_of(topic: str, payload: bytes, devices: set[str]) -> set[str]:
    """Return the names of a SenML pack's readings, and its base names, if a device's name may occur in them."""
    owner = segments.device_of(topic)
    # Most payloads have only their owner.
    rest = payload.replace(owner.encode(), b"") if _contain([owner], devices) else payload
    if owner in devices or not any(device.encode() in rest for device in devices):
        return set()
    try:
        records = orjson.loads(payload)
    except orjson.JSONDecodeError:
        return set()
    found, base = set(), ""
    for record in records if isinstance(records, list) else []:
        if not isinstance(record, dict):
            break
        base, name = record.get("bn", base), record.get("n", "")
        if isinstance(base, str) and isinstance(name, str) and base.rpartition("/")[0] == owner:
            found |= {base, name, base.rpartition("/")[2] + name}
    return found


def _plain_places(output: Output, devices: set[str]) -> Places:
    """Return the places of the messages without an identity that gave readings only of these devices, and of the others.

    Only the tables have this information: a mapping may take a device's name from the payload, or join several parts.
    """
    storage = output.storage
    own, others, its_segments = [], [], set()
    for name in output.files("readings") + output.files("duplicates"):
        rows = storage.table(name, ["device", "life", *MESSAGE[2:]], filters=pc.field("life") == 0)
        mine = _mine(rows, devices)
        deleted = rows.filter(mine)
        own.append(np.unique(prints.places(deleted)))
        its_segments |= set(zip(deleted["collector"].to_pylist(), deleted["segment"].to_pylist(), strict=True))
        others.append(np.unique(prints.places(rows.filter(pc.invert(mine)))))
    empty = np.zeros(0, dtype=np.uint64)
    of_others = np.unique(np.concatenate([empty, *others]))
    return Places(np.setdiff1d(np.concatenate([empty, *own]), of_others), of_others, its_segments)


def _distinct(storage: Storage, name: str, column: str) -> set[str]:
    table = storage.table(name, [column], read_dictionary=[column])
    return {one for chunk in table[column].chunks for one in chunk.dictionary.to_pylist()}


def _clean_segments(landing: Storage, names: Names, places: Places, done: Done, rules: Mapping) -> None:
    """Delete the devices' rows from the segments. Names and file times stay: they show which segments have been read."""
    for collector, numbers in sorted(source.latest(landing).items()):
        for number, name in sorted(numbers.items()):
            may_own = any(map(names.may_own, _distinct(landing, name, "topic")))
            is_named = byte_search.in_file(landing, name, names)
            if not (is_named or may_own or (collector, number) in places.segments or rules.rules):
                continue
            sealed_s = landing.modified_s(name)
            rows = landing.table(name, parquet.SCHEMA.names).sort_by("row")
            buckets, _ = parquet.layout_of(rows.schema.metadata)
            own, others = _known(rows, places)
            known = own | others
            for n, devices in _mapped(landing, name, rules):
                if not known[n]:
                    own[n], others[n] = devices <= names.devices, not devices <= names.devices
            kept, gone = landing_logs.without(rows, names, own, others)
            if not gone.num_rows and not is_named:
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
    new = replace(output.whole(commits), forgets=True)
    old = new.files
    removed = summary.empty()

    def cleaned(table: str, name: str, made: str, keep_empty: bool) -> str | None:
        """Return the file without the devices: the same one if it has none, None if no row is left."""
        is_owned = False
        if table in {"quarantine", "held"}:
            rows = storage.table(name, ["topic", "payload"])
            is_owned = any(map(names.own, rows["topic"].to_pylist(), rows["payload"].to_pylist()))
        if not is_owned and not byte_search.in_file(storage, name, names, whole=True):
            return name
        before = sum(done.rows.values())

        def without(rows: pa.Table) -> pa.Table:
            kept, gone = landing_logs.without(rows, names)
            _count_removed(removed, table, gone)
            done.add(table, gone.num_rows)
            return kept

        left = rewrite(storage, [name], made, schemas.TABLES.get(table) or schemas.STATE[table], without)
        if table in new.rows:
            new.rows[table] -= sum(done.rows.values()) - before
        if left or keep_empty:
            return made
        storage.delete(made)
        return None

    new.files, new.state = {}, {}
    for table, files in old.items():
        for name in files:
            made = name.rsplit("/", 1)[0] + f"/forget-{bucket_of(name):04d}-{uuid.uuid4().hex[:8]}.parquet"
            if kept := cleaned(table, name, made, False):
                new.files.setdefault(table, []).append(kept)
    for which, kinds in last.state.items():
        for key, name in kinds.items():
            kind, _, part = key.partition(".")
            ending = f"-{part}" if part else ""
            made = f"state/{kind}/{last.batch:09d}-bucket-{int(which):04d}-{uuid.uuid4().hex[:8]}{ending}.parquet"
            if kept := cleaned(kind, name, made, not part):
                new.state.setdefault(which, {})[key] = kept
    new.summary = _summary(last.summary, removed, names)
    in_commits = any(names.occur(storage.read(name_of(commit.batch))) for commit in commits)
    changed = new.files != {table: files for table, files in old.items() if files} or new.state != last.state
    if not changed and not in_commits and new.summary == last.summary:
        return
    books, columns = Books(output, new), ["first_arrival", "last_arrival"]
    arrivals = pa.concat_tables([books.all(kind, columns) for kind in ("lives", "plain")])  # of all remaining devices
    new.summary["first_arrival_us"] = pc.min(arrivals["first_arrival"].cast(pa.int64())).as_py()
    new.summary["last_arrival_us"] = pc.max(arrivals["last_arrival"].cast(pa.int64())).as_py()
    output.replace(new, {name for files in old.values() for name in files}, publish)


def _count_removed(removed: summary.Summary, table: str, gone: pa.Table) -> None:
    """Add to `removed` what the fleet's sums lose with the deleted rows `gone`."""
    if not gone.num_rows:
        return
    if table == "audit":
        summary.add(removed, summary.of(gone))
        removed["totals"]["boots"] += gone.num_rows
    elif table == "lives":
        removed["totals"]["devices"] += pc.count_distinct(gone["device"]).as_py()
    elif table == "plain":
        for name in summary.PLAIN:
            removed["totals"][name] += pc.sum(gone[name.removeprefix("plain_")]).as_py()
    elif table in {"quarantine", "held"}:
        summary.add_reasons(removed, summary.counts_of(gone["reason"]))
    elif table == "readings":
        summary.add_arrivals(removed, gone)


def _summary(before: summary.Summary, removed: summary.Summary, names: Names) -> summary.Summary:
    """Return the fleet's sums without the removed rows, and without texts that contain a name."""
    found: summary.Summary = summary.empty()
    summary.add(found, before)
    summary.add(found, removed, -1)
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


def _delete_unnamed(output: Output, names: Names) -> None:
    """Delete files that no commit names (no run is active), temporary files, and pages that contain a name."""
    storage = output.storage
    commits = output.commits()
    named = set().union(*(commit.named for commit in commits), commits[-1].named_states if commits else ())
    named |= {name_of(commit.batch) for commit in commits}
    for name in storage.list("", recursive=True):
        top, is_log = name.split("/", 1)[0], f"/{DELTA_LOG}/" in name
        if TEMPORARY.search(name):
            unnamed = True
        elif top in (*schemas.TABLES, "state", COMMITS):
            unnamed = name not in named and not is_log and name.endswith((".parquet", ".json"))
        else:
            unnamed = top in MADE_AGAIN and byte_search.in_file(storage, name, names)
        if unnamed:
            storage.delete(name)


def lines(done: Done, devices: list[str], dry: bool) -> Iterator[str]:
    """Yield the lines to print."""
    for place, rows in done.rows.items():
        yield f"  {counted(rows, 'row')} deleted: {place}"
    if not dry and not done.rows:
        yield "  no row was deleted: there was none, or an earlier attempt deleted all"
    if dry:
        yield f"  the names are in {counted(len(done.left), 'file')}:" if done.left else "  no file contains the names"
    elif done.left:
        yield f"  NOT forgotten: the names are still in {counted(len(done.left), 'place')}:"
    else:
        yield f"  forgotten: no remaining file contains {', '.join(map(verdict.shown, devices))}"
    yield from (f"    {place}" for place in done.left[:40])
    if done.shared and not dry:
        others = ", ".join(map(verdict.shown, sorted(done.shared)))
        yield "  some of these messages have readings of other devices, too, and the name can't be masked in them"
        yield f"  to delete them, forget these devices, too: {others}"
    if not dry:
        yield "  this command can't reach:"
        yield from (f"    - {one}" for one in OUT_OF_REACH)


@named("forget")
def main(argv: list[str] | None = None) -> int:
    """Forget devices; return the exit status."""
    parser = options.parser("forget", __doc__)
    parser.add_argument("--landing", nargs="?", help="the raw data")
    parser.add_argument("--device", action="append", default=[], metavar="NAME", help="may be repeated")
    parser.add_argument("--devices", type=Path, metavar="FILE", help="a file with more names, one per line")
    parser.add_argument(
        "--search", action="append", default=[], metavar="DIR", help="also search this folder: captures, a copy"
    )
    options.mapping(parser, "the tables' mapping, for messages that are not in the tables")
    parser.add_argument("--no-report", action="store_true", help="do not write the HTML page")
    parser.add_argument("--dry-run", action="store_true", help="only list the files that contain the names")
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    given = parser.parse_args(argv)
    devices = _devices(given.device, given.devices)
    for name, value in (("--landing", given.landing), ("--out", given.out), ("--device", devices)):
        if not value:
            raise OutputError(f'{name} is missing: `make forget LANDING=landing OUT=tables DEVICE="NAME"`')
    for place in given.search:
        if not Storage(place).exists(""):
            raise OutputError(f"--search {place}: no such folder")
    if not given.dry_run and not given.yes and not _confirmed(devices):
        raise OutputError("nothing was deleted: give YES=1 (--yes), or search first with DRY=1 (--dry-run)")
    begun = time.monotonic()
    done = forget(given.landing, given.out, devices, given.search, not given.no_report, given.dry_run, given.mapping)
    for line in lines(done, devices, given.dry_run):
        print(line)
    if done.weak:
        print(
            f"  {', '.join(map(verdict.shown, sorted(done.weak)))}: too short for a search of bytes, or a word of our own"
            " formats, or the name of another device's reading: only the columns `device` and the topics were searched"
        )
    print(f"  {time.monotonic() - begun:.1f} s", flush=True)
    if done.left and not given.dry_run:
        return 1
    for name in devices:
        if name in done.seen:
            continue
        similar = ", ".join(map(verdict.shown, difflib.get_close_matches(name, done.others | done.seen)))
        text = f"forget: no data of {verdict.shown(name)} was found: it was deleted before, or the name is wrong"
        print(f"{text}. Similar devices: {similar}" if similar else text, file=sys.stderr)
    return 0


def _devices(names: list[str], file: Path | None) -> list[str]:
    """Return the names of the devices from the options.

    Raises:
        OSError, OutputError: the file can't be read, or a name is not UTF-8.
    """
    try:
        found = sorted({*names, *(file.read_text("utf-8-sig").split("\n") if file else [])} - {""})
    except UnicodeDecodeError as error:
        raise OutputError(f"--devices {file}: {error}") from error
    for name in found:
        if name != name.encode(errors="replace").decode():
            raise OutputError(f"{name!r} is not UTF-8, so no topic has it")
    return found


def _confirmed(devices: list[str]) -> bool:
    if not sys.stdin.isatty():
        return False
    print(
        f"All data of {', '.join(map(verdict.shown, devices))} will be deleted permanently. Type yes to continue: ",
        end="",
    )
    return input().strip() == "yes"


if __name__ == "__main__":
    sys.exit(exit_status(main, stopped="stopped; run the same command again for the rest"))
