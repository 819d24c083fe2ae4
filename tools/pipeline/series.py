"""The values that the page plots: per device and reading a bounded number of points, kept in an SQLite file beside the tables.

The file is derived from the table `readings` and goes on by what the commits since its last update brought. It may be
deleted at any time; the next report makes it again.

A *point* stands for one reading or for several that follow each other: (first, last) in milliseconds, how many, their mean,
lowest and highest value. Two sets of points are kept of a series: `all`, at most POINTS over all time, whose stretch doubles
as time goes on, and `day`, the newest 24 hours in stretches of nine minutes. Stretches are powers of two, so points of one
are joined to those of the next without a look at the readings.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
import sqlite3
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from .commits import Commit, Output, bucket_of
from .ties import AHEAD_US, SET_SINCE_US, plausible

FORMAT = 1
FOLDER = "report"
NAME = "series.sqlite"
POINTS = 256
DAY_MS = 86_400_000
DAY_LEVEL = 19
"""A stretch of the newest day is 2^19 ms."""
MOST_SERIES = 64
"""Of a device. What it sends under more names is counted, not drawn."""
MOST_TEXT = 500
MOST_NAME = 2000
"""Characters of a name, which a page shows in a tooltip."""
MOST_PENDING = 2_000_000
BEHIND_US = 400 * 86_400_000_000
"""A reading that came more than 400 days after the time it tells has a wrong clock."""
ROWS = 131_072
GAP = 1.75
"""Readings are missing where the next one came later than so many usual intervals,"""
GAP_MS = 1000
"""and later than this: a board that reads every 40 ms pauses for its flash, and misses nothing."""
LARGEST = 3.0e38
PARTS = 1 << 16

COLUMNS = ["device", "life", "boot", "name", "unit", "value", "text", "flag", "uptime", "time", "arrival"]
SCHEMA = """
CREATE TABLE IF NOT EXISTS told (key TEXT PRIMARY KEY, value TEXT);
CREATE TABLE IF NOT EXISTS series (
    part INTEGER, device TEXT, name TEXT, unit TEXT, last_ms INTEGER, value REAL, text TEXT, points BLOB, day BLOB,
    PRIMARY KEY (part, device, name));
CREATE TABLE IF NOT EXISTS left_out (
    part INTEGER, device TEXT, names INTEGER, undated INTEGER, PRIMARY KEY (part, device));
"""


class Points(NamedTuple):
    """Points of some series, as columns."""

    series: np.ndarray
    first: np.ndarray
    last: np.ndarray
    n: np.ndarray
    mean: np.ndarray
    lo: np.ndarray
    hi: np.ndarray

    def take(self, which: Any) -> Points:
        """Return some of them."""
        return Points(*[column[which] for column in self])


KINDS = (np.int64, np.int64, np.int64, np.uint32, np.float32, np.float32, np.float32)
NO_POINTS = Points(*[np.zeros(0, dtype=kind) for kind in KINDS])


def together(*some: Points) -> Points:
    """Return some points as one table, by series and time."""
    both = Points(*[np.concatenate(columns) for columns in zip(*some, strict=True)])
    return both.take(np.lexsort((both.first, both.series)))


def joined(points: Points, level: np.ndarray) -> Points:
    """Return points (by series and time) as one for each stretch of 2^level ms; `level` by series."""
    if not len(points.first):
        return points
    stretch = points.first >> level[points.series]
    begins = np.ones(len(stretch), dtype=bool)
    begins[1:] = (points.series[1:] != points.series[:-1]) | (stretch[1:] != stretch[:-1])
    at = np.flatnonzero(begins)
    if len(at) == len(stretch):
        return points
    n = np.add.reduceat(points.n, at, dtype=np.int64)
    mean = np.add.reduceat(points.mean.astype(np.float64) * points.n, at) / n
    return Points(
        points.series[at],
        points.first[at],
        np.maximum.reduceat(points.last, at),
        n.astype(np.uint32),
        mean.astype(np.float32),
        np.minimum.reduceat(points.lo, at),
        np.maximum.reduceat(points.hi, at),
    )


def levels(points: Points, count: int, most: int = POINTS) -> np.ndarray:
    """Return for each of `count` series the least level at which its points are at most `most`."""
    first = np.full(count, np.iinfo(np.int64).max)
    last = np.full(count, np.iinfo(np.int64).min)
    np.minimum.at(first, points.series, points.first)
    np.maximum.at(last, points.series, points.first)
    span = np.where(last >= first, last - first, 0)
    return np.ceil(np.log2(np.maximum(span / (most - 1), 1.0))).astype(np.int64)


def packed(points: Points) -> bytes:
    """Return one series' points as bytes."""
    several = points.n > 1
    parts = [np.diff(points.first, prepend=0), points.last - points.first, points.n, points.mean]
    parts += [points.lo[several], points.hi[several]]
    return zlib.compress(np.int64(len(points.n)).tobytes() + b"".join(part.tobytes() for part in parts), 1)


def unpacked(blob: bytes | None, series: int = 0) -> Points:
    """Return the points that `packed` made bytes of."""
    if not blob:
        return NO_POINTS
    whole = zlib.decompress(blob)
    count, at = int(np.frombuffer(whole, np.int64, 1)[0]), 8

    def column(kind: Any, size: int) -> np.ndarray:
        nonlocal at
        found = np.frombuffer(whole, kind, size, at)
        at += found.nbytes
        return found

    first = np.cumsum(column(np.int64, count))
    last = first + column(np.int64, count)
    n, mean = column(np.uint32, count), column(np.float32, count)
    several = n > 1
    lo, hi = mean.copy(), mean.copy()
    lo[several] = column(np.float32, int(several.sum()))
    hi[several] = column(np.float32, int(several.sum()))
    return Points(np.full(count, series), first, last, n, mean, lo, hi)


def taken_ms(rows: pa.Table | pa.RecordBatch, now_us: int) -> np.ndarray:
    """Return when readings were taken, -1 where no clock can be right.

    A reading's own time counts, else its uptime with the clock of another reading of its boot in these rows, else its arrival.
    """
    arrival, time_us = (pc.fill_null(rows[name].cast(pa.int64()), 0).to_numpy() for name in ("arrival", "time"))
    latest = now_us + AHEAD_US
    came = (arrival > SET_SINCE_US) & (arrival < latest)
    at = np.where(came, arrival, latest)
    told = (time_us > np.maximum(SET_SINCE_US, np.where(came, at - BEHIND_US, 0))) & (time_us < at + AHEAD_US * came)
    found = np.where(told, time_us, np.where(came, arrival, -1000))
    lacking = ~told & rows["uptime"].is_valid().to_numpy(zero_copy_only=False)
    if lacking.any() and told.any():
        uptime_us = (pc.fill_null(rows["uptime"], 0).to_numpy() * 1e6).astype(np.int64)
        tied = told & rows["uptime"].is_valid().to_numpy(zero_copy_only=False)
        boots = pa.array(np.arange(len(rows)))
        key = pa.table([rows["device"].cast(pa.string()), rows["life"], rows["boot"], boots], ["d", "l", "b", "row"])
        ties = key.filter(pa.array(tied)).group_by(["d", "l", "b"], use_threads=False).aggregate([("row", "max")])
        both = key.filter(pa.array(lacking)).join(ties, ["d", "l", "b"], join_type="inner", use_threads=False)
        row, tie = both["row"].to_numpy(), both["row_max"].to_numpy()
        dated = time_us[tie] - uptime_us[tie] + uptime_us[row]
        right = plausible(dated, at[row])
        found[row[right]] = dated[right]
    return found // 1000


def _texts(column: pa.Array) -> tuple[list[str], np.ndarray]:
    """Return a column's different texts, the last of them empty, and for each row which of them it has."""
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    codes = pc.fill_null(encoded.indices, len(encoded.dictionary)).to_numpy()
    return [*encoded.dictionary.to_pylist(), ""], codes.astype(np.int64)


class Newest(NamedTuple):
    """A series' newest reading."""

    ms: int
    value: float | None
    unit: str | None
    text: str | None


class _Gathered:
    """Readings on their way into the file: a bucket's, or as many as memory should hold."""

    def __init__(self, store: Store, now_us: int):
        self.store, self.now_us = store, now_us
        self.clear()

    def clear(self) -> None:
        self.devices: dict[str, dict[str, int]] = {}  # device -> name -> series
        self.keys: list[tuple[str, str]] = []
        self.newest: dict[int, Newest] = {}
        self.pending = [NO_POINTS]
        self.rows = 0
        self.left_out: dict[str, list[int]] = {}

    def add(self, rows: pa.RecordBatch) -> None:
        """Take some rows of the table `readings`."""
        ms = taken_ms(rows, self.now_us)
        (devices, device), (names, name) = _texts(rows["device"]), _texts(rows["name"])
        pairs, where = np.unique(device * len(names) + name, return_inverse=True)
        of_pair = np.array(
            [self._series(devices[one // len(names)], names[one % len(names)]) for one in pairs.tolist()]
        )
        series = of_pair[where]
        for which, column in ((series < 0, 0), (ms < 0, 1)):
            if which.any():
                for code, count in zip(*np.unique(device[which], return_counts=True), strict=True):
                    self.left_out.setdefault(devices[code], [0, 0])[column] += int(count)
        flag = rows["flag"]
        value = pc.coalesce(rows["value"], flag.cast(pa.float64()))
        kept = np.flatnonzero((series >= 0) & (ms >= 0))
        kept = kept[np.lexsort((ms[kept], series[kept]))]
        ends = kept[np.flatnonzero(np.append(np.diff(series[kept]) != 0, True))] if len(kept) else kept
        self._note_newest(rows, series, ms, value, ends)
        number = value.to_numpy(zero_copy_only=False)
        drawn = kept[np.isfinite(number[kept])]
        one = np.clip(number[drawn], -LARGEST, LARGEST).astype(np.float32)
        count = np.ones(len(drawn), dtype=np.uint32)
        self._take(Points(series[drawn], ms[drawn], ms[drawn], count, one, one, one))

    def _series(self, device: str, name: str) -> int:
        own = self.devices.get(device)
        if own is None:
            own = self.devices[device] = {}
            for known in self.store.names(device):
                self._new(own, device, known)
        found = own.get(name)
        if found is not None:
            return found
        return self._new(own, device, name) if len(own) < MOST_SERIES else -1

    def _new(self, own: dict[str, int], device: str, name: str) -> int:
        own[name] = len(self.keys)
        self.keys.append((device, name))
        return own[name]

    def _note_newest(self, rows: Any, series: np.ndarray, ms: np.ndarray, value: pa.Array, ends: np.ndarray) -> None:
        chosen = pa.array(ends)
        text = pc.coalesce(rows["text"].cast(pa.string()), rows["flag"].cast(pa.string()))
        columns = [value.take(chosen), rows["unit"].cast(pa.string()).take(chosen), text.take(chosen)]
        told = zip(*(column.to_pylist() for column in columns), strict=True)
        for which, at, (number, unit, words) in zip(series[ends].tolist(), ms[ends].tolist(), told, strict=True):
            before = self.newest.get(which)
            if before is None or before.ms <= at:
                self.newest[which] = Newest(at, number, unit, words[:MOST_TEXT] if words else words)

    def _take(self, points: Points) -> None:
        level = np.minimum(levels(points, len(self.keys)), DAY_LEVEL)
        self.pending.append(joined(points, level))
        self.rows += len(self.pending[-1].first)
        if self.rows > MOST_PENDING:
            whole = together(*self.pending)
            self.pending = [joined(whole, np.minimum(levels(whole, len(self.keys)), DAY_LEVEL))]
            self.rows = len(self.pending[0].first)
            if self.rows > MOST_PENDING // 2:
                self.write()

    def write(self) -> None:
        """Join what was gathered with what the file holds."""
        whole = together(*self.pending)
        touched = np.unique(np.concatenate((whole.series, np.array(list(self.newest), dtype=np.int64))))
        for at in range(0, len(touched), ROWS // POINTS):
            some = touched[at : at + ROWS // POINTS]
            lo, hi = np.searchsorted(whole.series, (some[0], some[-1] + 1))
            new = whole.take(slice(lo, hi))
            new = new._replace(series=np.searchsorted(some, new.series))
            self.store.join([self.keys[one] for one in some.tolist()], new, [self.newest[one] for one in some.tolist()])
        self.store.leave_out(self.left_out)
        self.clear()


class Store:
    """The file. Several processes may open it: whoever comes first brings it up to date."""

    def __init__(self, output: Output):
        self.output = output
        if output.storage.local:
            directory = Path(output.storage.path(FOLDER))
            directory.mkdir(parents=True, exist_ok=True)
        else:  # an object store holds no file that changes: this one lives as long as its process
            self._temporary = tempfile.TemporaryDirectory(prefix="flashmqtt-series-")
            directory = Path(self._temporary.name)
        self.path = directory / NAME

        self._lock = threading.RLock()
        self._held: tuple[int, sqlite3.Connection] | None = None

    @contextlib.contextmanager
    def opened(self) -> Iterator[sqlite3.Connection]:
        """Yield the open file, one thread at a time; make it where it is not there, damaged or of another version."""
        with self._lock:
            held = self._held
            if held and not (self.path.exists() and self.path.stat().st_ino == held[0]):  # it was deleted meanwhile
                held[1].close()
                held = None
            if held is None:
                connection = self._connect()
                held = self._held = self.path.stat().st_ino, connection
            self.connection = held[1]
            yield self.connection

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._held:
                self._held[1].close()
                self._held = None

    def _connect(self) -> sqlite3.Connection:
        if not self.path.exists():
            forget(self.output, self.path)  # no log of changes to a file that is gone must come into the new one
        for again in (False, True):
            connection = sqlite3.connect(self.path, timeout=600, isolation_level=None, check_same_thread=False)
            try:
                connection.execute("PRAGMA journal_mode=WAL")
                connection.execute("PRAGMA synchronous=NORMAL")
                if connection.execute("PRAGMA user_version").fetchone()[0] not in {0, FORMAT}:
                    raise sqlite3.DatabaseError("another version")
                connection.executescript(SCHEMA + f"PRAGMA user_version={FORMAT};")
                return connection
            except sqlite3.OperationalError:
                connection.close()
                raise
            except sqlite3.DatabaseError:
                connection.close()
                if again:
                    raise
                forget(self.output, self.path)
        raise AssertionError

    def names(self, device: str) -> list[str]:
        """Return the names of a device's series."""
        rows = self.connection.execute("SELECT name FROM series WHERE part=? AND device=?", (part_of(device), device))
        return [name for (name,) in rows]

    def join(self, keys: list[tuple[str, str]], new: Points, newest: list[Newest]) -> None:
        """Join new points with those that are kept, of some series."""
        before, days, told = [new], [], []
        for n, (device, name) in enumerate(keys):
            row = self.connection.execute(
                "SELECT last_ms, value, unit, text, points, day FROM series WHERE part=? AND device=? AND name=?",
                (part_of(device), device, name),
            ).fetchone()
            one = newest[n]
            if row:
                before.append(unpacked(row[4], n))
                days.append(unpacked(row[5] or row[4], n))
                old = Newest(*row[:4])
                one = one if one.ms >= old.ms else old
                one = one._replace(unit=one.unit if one.unit is not None else old.unit)
            told.append(one)
        whole, day = together(*before), together(new, *days)
        level = levels(whole, len(keys))
        since = np.full(len(keys), np.iinfo(np.int64).min)
        np.maximum.at(since, whole.series, whole.last)
        is_long = level > DAY_LEVEL
        day = day.take(is_long[day.series] & (day.last > since[day.series] - DAY_MS))
        day = joined(day, np.full(len(keys), DAY_LEVEL))
        whole = joined(whole, level)
        bounds, day_bounds = (np.searchsorted(one.series, np.arange(len(keys) + 1)) for one in (whole, day))
        rows = []
        for n, ((device, name), one) in enumerate(zip(keys, told, strict=True)):
            points = packed(whole.take(slice(bounds[n], bounds[n + 1])))
            its_day = packed(day.take(slice(day_bounds[n], day_bounds[n + 1]))) if is_long[n] else None
            rows.append((part_of(device), device, name, one.unit, one.ms, one.value, one.text, points, its_day))
        if is_long.any():
            self.connection.execute("INSERT OR REPLACE INTO told VALUES ('has_days', '1')")
        self.connection.executemany("INSERT OR REPLACE INTO series VALUES (?,?,?,?,?,?,?,?,?)", rows)

    def leave_out(self, devices: dict[str, list[int]]) -> None:
        """Count readings that are not drawn."""
        self.connection.executemany(
            "INSERT INTO left_out VALUES (?,?,?,?) ON CONFLICT DO UPDATE SET names=names+excluded.names,"
            " undated=undated+excluded.undated",
            [(part_of(device), device, *counts) for device, counts in devices.items()],
        )

    def update(self, commit: Commit, now_us: int | None = None) -> None:
        """Take what the commits up to this one brought since the last update."""
        with self.opened() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                told = dict(connection.execute("SELECT key, value FROM told"))
                at = int(told.get("batch", 0))
                if at > commit.batch and at > (self.output.latest() or commit).batch:  # the tables began anew
                    at, told = 0, {}
                    connection.execute("DELETE FROM series")
                    connection.execute("DELETE FROM left_out")
                if at < commit.batch:
                    self._read(at, told, commit, now_us or time.time_ns() // 1000)
                    told = {"batch": str(commit.batch), "read": json.dumps(commit.read)}
                    told["until_us"] = str(commit.summary["last_arrival_us"] or 0)
                    connection.executemany("INSERT OR REPLACE INTO told VALUES (?,?)", told.items())
                connection.execute("COMMIT")
            except BaseException:
                connection.execute("ROLLBACK")
                raise

    def _read(self, at: int, told: dict[str, str], until: Commit, now_us: int) -> None:
        commits = [one for one in self.output.commits() if one.batch <= until.batch]
        merged = bool(at) and bool(commits) and commits[0].whole and commits[0].batch > at
        files = [name for one in commits if one.batch > at for name in one.files.get("readings", [])]
        where = None
        if merged:  # a compaction joined new rows with old ones: the new ones are of later segments
            read = json.loads(told["read"])
            where = pc.is_in(pc.field("collector"), pa.array(list(read), pa.string()))
            for collector, number in read.items():
                where &= (pc.field("collector") != collector) | (pc.field("segment") <= number)
            since = int(told["until_us"]) / 1e6 - 86_400
            day = datetime.datetime.fromtimestamp(since, datetime.UTC).strftime("%Y-%m-%d")
            files = [name for name in files if name.split("/day=", 1)[1][:10] >= day]
        gathered = _Gathered(self, now_us)
        storage = self.output.storage
        bucket = -1
        for name in sorted(files, key=lambda name: (bucket_of(name), name)):
            if bucket_of(name) != bucket:
                gathered.write()
                bucket = bucket_of(name)
            with storage.fs.open_input_file(storage.path(name)) as file:
                opened = pq.ParquetFile(file, read_dictionary=["device", "name", "unit"])
                columns = COLUMNS + (["collector", "segment"] if merged else [])
                for rows in opened.iter_batches(ROWS, columns=columns, use_threads=False):
                    table = pa.Table.from_batches([rows])
                    for some in (table if where is None else table.filter(~where)).to_batches():
                        gathered.add(some)
        gathered.write()

    def count(self) -> int:
        """Return how many series there are."""
        with self.opened() as connection:
            return int(connection.execute("SELECT count(*) FROM series").fetchone()[0])

    def has_days(self) -> bool:
        """Return whether a series is so long that its newest day is kept apart."""
        with self.opened() as connection:
            return connection.execute("SELECT 1 FROM told WHERE key='has_days'").fetchone() is not None

    def sensors(self) -> Iterator[tuple[str, list[str]]]:
        """Yield the devices with the names of their series."""
        with self.opened() as connection:
            rows = connection.execute("SELECT device, name FROM series ORDER BY part, device, name")
            for device, group in itertools.groupby(rows, key=lambda row: row[0]):
                yield device, [name for _, name in group]

    def unproved(self, device: str) -> dict[str, Any]:
        """Return what a page says of a device that the audit does not know."""
        sql = "SELECT max(last_ms) FROM series WHERE part=? AND device=?"
        with self.opened() as connection:
            last_ms = connection.execute(sql, (part_of(device), device)).fetchone()[0]
        return {"device": device, "last_ms": last_ms, "boots": 0} | dict.fromkeys(
            ("published", "delivered", "missing"), 0
        )

    def chunk(self, number: int, of: int, most: int = POINTS) -> dict[str, Any]:
        """Return the series of one of `of` (a power of two) parts of the devices, by their keys."""
        bounds = PARTS * number // of, PARTS * (number + 1) // of - 1
        found: dict[str, Any] = {}
        with self.opened() as connection:
            for device, *row in connection.execute(
                "SELECT device, name, unit, last_ms, value, text, points, day FROM series WHERE part BETWEEN ? AND ?"
                " ORDER BY part, device, name",
                bounds,
            ):
                name, unit, last_ms, value, text, points, day = row
                one = found.setdefault(key_of(device), {"device": device[:MOST_NAME], "series": []})
                sets = [drawn(unpacked(blob), most) for blob in (points, day)]
                one["series"].append([name[:MOST_NAME], unit and unit[:MOST_TEXT], last_ms, value, text, *sets])
            for device, names, undated in connection.execute(
                "SELECT device, names, undated FROM left_out WHERE part BETWEEN ? AND ?", bounds
            ):
                found.setdefault(key_of(device), {"device": device[:MOST_NAME], "series": []})["left_out"] = [
                    names,
                    undated,
                ]
        return found


def forget(output: Output, path: Path | None = None) -> None:
    """Delete the file: it is made anew by the next report."""
    path = path or Path(output.storage.path(FOLDER)) / NAME
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def part_of(device: str) -> int:
    """Return where in the file a device's series are: a number below PARTS."""
    return zlib.crc32(device.encode("utf-8", "surrogatepass")) >> 16


def key_of(device: str) -> str:
    """Return how the page calls a device: by its name, or for a long one by its beginning and a checksum."""
    if len(device) <= MOST_KEY:
        return device
    return f"{device[: MOST_KEY - 9]}…{zlib.crc32(device.encode('utf-8', 'surrogatepass')):08x}"


MOST_KEY = 100


def drawn(points: Points, most: int) -> dict[str, Any] | None:
    """Return one series' points as the page takes them, None for none.

    `t`: when each began, as the difference to the one before; `d`: how long each is; `v`: means; `a` and `b`: lowest and
    highest, where points stand for several readings; `g`: the points before which readings are missing.
    """
    if not len(points.n):
        return None
    if len(points.n) > most:
        points = joined(points, levels(points, 1, most))
    found: dict[str, Any] = {"t": np.diff(points.first, prepend=0).tolist(), "v": _short(points.mean)}
    if (points.n > 1).any():
        found |= {"d": (points.last - points.first).tolist(), "a": _short(points.lo), "b": _short(points.hi)}
    usual, found["g"] = gaps(points)
    if usual:
        found["u"] = usual
    return found


def _short(values: np.ndarray) -> list[float]:
    return [float(f"{value:.6g}") for value in values.tolist()]


def gaps(points: Points) -> tuple[int, list[int]]:
    """Return a series' usual interval (0 where unknown), and the points before which readings are missing: those came later."""
    if len(points.n) < 3:
        return 0, []
    between = points.first[1:] - points.last[:-1]
    several = points.n > 1
    inside = (points.last - points.first)[several] / (points.n[several] - 1)
    interval = np.concatenate((between, inside))
    weight = np.concatenate((np.ones(len(between)), points.n[several] - 1))
    order = np.argsort(interval, kind="stable")
    reached = np.cumsum(weight[order])
    usual = max(1, int(interval[order][np.searchsorted(reached, 0.75 * reached[-1])]))
    return usual, (np.flatnonzero(between > max(GAP * usual, GAP_MS)) + 1).tolist()
