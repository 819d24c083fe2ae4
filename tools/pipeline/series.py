"""The values for the page's plots: a limited number of points per device and reading, in an SQLite file in the output.

The file is made from the table `readings`; an update adds the commits since the last update. You may delete the file at any
time: the next report makes it again.

A *point* represents one reading or several consecutive ones: (first, last) in milliseconds, their number, mean, lowest and
highest value. A series is one reading of one device. It has two sets of points: `all`, at most POINTS over all time, and
`day`, the newest 24 hours. A point covers a stretch of time: in `day` nine minutes, in `all` a length that doubles as time
passes. The lengths are powers of two, so points can be merged into longer stretches without the readings.
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

from . import intervals
from .commits import Commit, Output, bucket_of
from .ties import AHEAD_US, SET_SINCE_US, plausible

FORMAT = 2
FOLDER = "report"
NAME = "series.sqlite"
POINTS = 256
DAY_MS = 86_400_000
DAY_LEVEL = 19
"""A stretch of `day` is 2^19 ms."""
MOST_SERIES = 64
"""The most series of a device. Readings under further names are counted, not drawn."""
MOST_TEXT = 500
MOST_NAME = 2000
"""The most characters of a name, which the page shows in a tooltip."""
MOST_PENDING = 2_000_000
BEHIND_US = 400 * 86_400_000_000
"""A reading's own time is not used if it is more than 400 days before the arrival."""
ROWS = 131_072
GAP = 1.75
"""There is a gap if the next reading is later than this many usual intervals,"""
GAP_MS = 1000
"""and later than this: a board that reads every 40 ms pauses during flash operations, without a loss."""
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


POINT = np.dtype(
    [("series", "i8"), ("first", "i8"), ("last", "i8"), ("n", "u4"), ("mean", "f4"), ("lo", "f4"), ("hi", "f4")]
)
NO_POINTS = np.zeros(0, POINT)


def together(*some: np.ndarray) -> np.ndarray:
    """Return points as one array, sorted by series and time."""
    both = np.concatenate(some)
    return both[np.lexsort((both["first"], both["series"]))]


def joined(points: np.ndarray, level: np.ndarray) -> np.ndarray:
    """Merge points (sorted by series and time) into one for each stretch of 2^level ms; `level` is by series."""
    stretch = points["first"] >> level[points["series"]]
    begins = intervals.begins(points["series"], stretch)
    if begins.all():
        return points
    at = np.flatnonzero(begins)
    found = points[at]
    found["last"] = np.maximum.reduceat(points["last"], at)
    found["n"] = np.add.reduceat(points["n"], at)
    found["mean"] = np.add.reduceat(points["mean"].astype(np.float64) * points["n"], at) / found["n"]
    found["lo"] = np.minimum.reduceat(points["lo"], at)
    found["hi"] = np.maximum.reduceat(points["hi"], at)
    return found


def levels(points: np.ndarray, count: int, most: int = POINTS) -> np.ndarray:
    """Return for each of `count` series the lowest level at which it has at most `most` points."""
    first = np.full(count, np.iinfo(np.int64).max)
    last = np.full(count, np.iinfo(np.int64).min)
    np.minimum.at(first, points["series"], points["first"])
    np.maximum.at(last, points["series"], points["first"])
    span = np.where(last >= first, last - first, 0)
    return np.ceil(np.log2(np.maximum(span / (most - 1), 1.0))).astype(np.int64)


def packed(points: np.ndarray) -> bytes:
    """Return a series' points as bytes: the first byte of every point, then the second one, and so on."""
    return zlib.compress(points.view(np.uint8).reshape(len(points), POINT.itemsize).T.tobytes(), 1)


def unpacked(blob: bytes | None, series: int = 0) -> np.ndarray:
    """Return the points from the bytes of `packed`."""
    if not blob:
        return NO_POINTS
    found = np.frombuffer(zlib.decompress(blob), np.uint8).reshape(POINT.itemsize, -1).T.copy().view(POINT)[:, 0]
    found["series"] = series
    return found


def taken_ms(rows: pa.Table | pa.RecordBatch, now_us: int) -> np.ndarray:
    """Return when readings were taken, -1 if no clock is plausible.

    This is a reading's own time; else its uptime plus the clock offset of another reading of its boot in these rows; else
    its arrival.
    """
    arrival, time_us = (pc.fill_null(rows[name].cast(pa.int64()), 0).to_numpy() for name in ("arrival", "time"))
    latest = now_us + AHEAD_US
    arrival_ok = (arrival > SET_SINCE_US) & (arrival < latest)
    at = np.where(arrival_ok, arrival, latest)
    known = (time_us > np.maximum(SET_SINCE_US, np.where(arrival_ok, at - BEHIND_US, 0))) & (
        time_us < at + AHEAD_US * arrival_ok
    )
    found = np.where(known, time_us, np.where(arrival_ok, arrival, -1000))
    without_time = ~known & rows["uptime"].is_valid().to_numpy(zero_copy_only=False)
    if without_time.any() and known.any():
        uptime_us = (pc.fill_null(rows["uptime"], 0).to_numpy() * 1e6).astype(np.int64)
        tied = known & rows["uptime"].is_valid().to_numpy(zero_copy_only=False)
        boots = pa.array(np.arange(len(rows)))
        key = pa.table([rows["device"].cast(pa.string()), rows["life"], rows["boot"], boots], ["d", "l", "b", "row"])
        ties = key.filter(pa.array(tied)).group_by(["d", "l", "b"], use_threads=False).aggregate([("row", "max")])
        both = key.filter(pa.array(without_time)).join(ties, ["d", "l", "b"], join_type="inner", use_threads=False)
        row, tie = both["row"].to_numpy(), both["row_max"].to_numpy()
        dated = time_us[tie] - uptime_us[tie] + uptime_us[row]
        is_plausible = plausible(dated, at[row])
        found[row[is_plausible]] = dated[is_plausible]
    return found // 1000


def _texts(column: pa.Array) -> tuple[list[str], np.ndarray]:
    """Return a column's distinct texts, plus an empty one at the end, and for each row the index of its text."""
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
    """Points in memory that are not in the file yet: of one bucket, or as many as MOST_PENDING allows."""

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
        """Add some rows of the table `readings`."""
        ms = taken_ms(rows, self.now_us)
        (devices, device), (names, name) = _texts(rows["device"]), _texts(rows["name"])
        pairs, where = np.unique(device * len(names) + name, return_inverse=True)
        known = [self._series(devices[one // len(names)], names[one % len(names)]) for one in pairs.tolist()]
        series = np.array(known)[where]
        for which, column in ((series < 0, 0), (ms < 0, 1)):
            if which.any():
                for code, count in zip(*np.unique(device[which], return_counts=True), strict=True):
                    self.left_out.setdefault(devices[code], [0, 0])[column] += int(count)
        value = pc.coalesce(rows["value"], rows["flag"].cast(pa.float64()))
        kept = np.flatnonzero((series >= 0) & (ms >= 0))
        kept = kept[np.lexsort((ms[kept], series[kept]))]
        ends = kept[np.flatnonzero(np.append(np.diff(series[kept]) != 0, True))] if len(kept) else kept
        self._note_newest(rows, series, ms, value, ends)
        number = value.to_numpy(zero_copy_only=False)
        drawn = kept[np.isfinite(number[kept])]
        one = np.clip(number[drawn], -LARGEST, LARGEST).astype(np.float32)
        points = np.ones(len(drawn), POINT)
        points["series"] = series[drawn]
        points["first"] = points["last"] = ms[drawn]
        points["mean"] = points["lo"] = points["hi"] = one
        self._take(points)

    def _series(self, device: str, name: str) -> int:
        """Return the number of a reading's series; -1 if its device has too many."""
        own = self.devices.get(device)
        if own is None:
            own = self.devices[device] = {}
            for known in self.store.names(device):
                own[known] = len(self.keys)
                self.keys.append((device, known))
        if name not in own and len(own) < MOST_SERIES:
            own[name] = len(self.keys)
            self.keys.append((device, name))
        return own.get(name, -1)

    def _note_newest(self, rows: Any, series: np.ndarray, ms: np.ndarray, value: pa.Array, ends: np.ndarray) -> None:
        chosen = pa.array(ends)
        text = pc.coalesce(rows["text"].cast(pa.string()), rows["flag"].cast(pa.string()))
        columns = [value.take(chosen), rows["unit"].cast(pa.string()).take(chosen), text.take(chosen)]
        values = zip(*(column.to_pylist() for column in columns), strict=True)
        for which, at, (number, unit, words) in zip(series[ends].tolist(), ms[ends].tolist(), values, strict=True):
            before = self.newest.get(which)
            if before is None or before.ms <= at:
                self.newest[which] = Newest(at, number, unit, words[:MOST_TEXT] if words else words)

    def _take(self, points: np.ndarray) -> None:
        level = np.minimum(levels(points, len(self.keys)), DAY_LEVEL)
        self.pending.append(joined(points, level))
        self.rows += len(self.pending[-1])
        if self.rows > MOST_PENDING:
            whole = together(*self.pending)
            self.pending = [joined(whole, np.minimum(levels(whole, len(self.keys)), DAY_LEVEL))]
            self.rows = len(self.pending[0])
            if self.rows > MOST_PENDING // 2:
                self.write()

    def write(self) -> None:
        """Merge the collected points with those in the file."""
        whole = together(*self.pending)
        touched = np.unique(np.concatenate((whole["series"], np.array(list(self.newest), dtype=np.int64))))
        for at in range(0, len(touched), ROWS // POINTS):
            some = touched[at : at + ROWS // POINTS]
            lo, hi = np.searchsorted(whole["series"], (some[0], some[-1] + 1))
            new = whole[lo:hi]
            new["series"] = np.searchsorted(some, new["series"])
            self.store.join([self.keys[one] for one in some.tolist()], new, [self.newest[one] for one in some.tolist()])
        self.store.leave_out(self.left_out)
        self.clear()


class Store:
    """The file. Several processes may open it; the first one updates it."""

    def __init__(self, output: Output):
        self.output = output
        if output.storage.local:
            directory = Path(output.storage.path(FOLDER))
            directory.mkdir(parents=True, exist_ok=True)
        else:  # an object store can't have SQLite files: use a temporary file of this process
            self._temporary = tempfile.TemporaryDirectory(prefix="flashmqtt-series-")
            directory = Path(self._temporary.name)
        self.path = directory / NAME

        self._lock = threading.RLock()
        self._held: tuple[int, sqlite3.Connection] | None = None

    @contextlib.contextmanager
    def opened(self) -> Iterator[sqlite3.Connection]:
        """Yield the open file, one thread at a time. Make it again if it is missing, damaged or of another version."""
        with self._lock:
            held = self._held
            if held and not (self.path.exists() and self.path.stat().st_ino == held[0]):  # another process deleted it
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
            forget(self.output, self.path)  # the new file must not get the write-ahead log of a deleted one
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

    def join(self, keys: list[tuple[str, str]], new: np.ndarray, newest: list[Newest]) -> None:
        """Merge new points of some series with those in the file."""
        before, days, last = [new], [], []
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
            last.append(one)
        whole, day = together(*before), together(new, *days)
        level = levels(whole, len(keys))
        since = np.full(len(keys), np.iinfo(np.int64).min)
        np.maximum.at(since, whole["series"], whole["last"])
        is_long = level > DAY_LEVEL
        day = day[is_long[day["series"]] & (day["last"] > since[day["series"]] - DAY_MS)]
        day = joined(day, np.full(len(keys), DAY_LEVEL))
        whole = joined(whole, level)
        bounds, day_bounds = (np.searchsorted(one["series"], np.arange(len(keys) + 1)) for one in (whole, day))
        rows = []
        for n, ((device, name), one) in enumerate(zip(keys, last, strict=True)):
            points = packed(whole[bounds[n] : bounds[n + 1]])
            its_day = packed(day[day_bounds[n] : day_bounds[n + 1]]) if is_long[n] else None
            rows.append((part_of(device), device, name, one.unit, one.ms, one.value, one.text, points, its_day))
        if is_long.any():
            self.connection.execute("INSERT OR REPLACE INTO told VALUES ('has_days', '1')")
        self.connection.executemany("INSERT OR REPLACE INTO series VALUES (?,?,?,?,?,?,?,?,?)", rows)

    def leave_out(self, devices: dict[str, list[int]]) -> None:
        """Count the readings that are not drawn."""
        self.connection.executemany(
            "INSERT INTO left_out VALUES (?,?,?,?) ON CONFLICT DO UPDATE SET names=names+excluded.names,"
            " undated=undated+excluded.undated",
            [(part_of(device), device, *counts) for device, counts in devices.items()],
        )

    def update(self, commit: Commit, now_us: int | None = None) -> None:
        """Add the commits from the last update up to this one."""
        with self.opened() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                known = dict(connection.execute("SELECT key, value FROM told"))
                at = int(known.get("batch", 0))
                if at > commit.batch and at > (self.output.latest() or commit).batch:  # the tables were made again
                    at, known = 0, {}
                    connection.execute("DELETE FROM series")
                    connection.execute("DELETE FROM left_out")
                if at < commit.batch:
                    self._read(at, known, commit, now_us or time.time_ns() // 1000)
                    known = {"batch": str(commit.batch), "read": json.dumps(commit.read)}
                    known["until_us"] = str(commit.summary["last_arrival_us"] or 0)
                    connection.executemany("INSERT OR REPLACE INTO told VALUES (?,?)", known.items())
                connection.execute("COMMIT")
            except BaseException:
                connection.execute("ROLLBACK")
                raise

    def _read(self, at: int, known: dict[str, str], until: Commit, now_us: int) -> None:
        commits = [one for one in self.output.commits() if one.batch <= until.batch]
        merged = bool(at) and bool(commits) and commits[0].whole and commits[0].batch > at
        files = [name for one in commits if one.batch > at for name in one.files.get("readings", [])]
        where = None
        if merged:  # a compaction merged new rows with old ones; the new ones are of later segments
            read = json.loads(known["read"])
            where = pc.is_in(pc.field("collector"), pa.array(list(read), pa.string()))
            for collector, number in read.items():
                where &= (pc.field("collector") != collector) | (pc.field("segment") <= number)
            since = int(known["until_us"]) / 1e6 - 86_400
            day = datetime.datetime.fromtimestamp(since, datetime.UTC).strftime("%Y-%m-%d")
            files = [name for name in files if name.split("/day=", 1)[1][:10] >= day]
        gathered = _Gathered(self, now_us)
        storage = self.output.storage
        bucket = -1
        for name in sorted(files, key=lambda name: (bucket_of(name), name)):
            if bucket_of(name) != bucket:
                gathered.write()
                bucket = bucket_of(name)
            columns = COLUMNS + (["collector", "segment"] if merged else [])
            for rows in storage.batches(name, columns, read_dictionary=["device", "name", "unit"]):
                table = pa.Table.from_batches([rows])
                for some in (table if where is None else table.filter(~where)).to_batches():
                    gathered.add(some)
        gathered.write()

    def count(self) -> int:
        """Return the number of series."""
        with self.opened() as connection:
            return int(connection.execute("SELECT count(*) FROM series").fetchone()[0])

    def has_days(self) -> bool:
        """Return whether a series is so long that it has separate points of the newest day."""
        with self.opened() as connection:
            return connection.execute("SELECT 1 FROM told WHERE key='has_days'").fetchone() is not None

    def sensors(self) -> Iterator[tuple[str, list[str]]]:
        """Yield each device with the names of its series."""
        with self.opened() as connection:
            rows = connection.execute("SELECT device, name FROM series ORDER BY part, device, name")
            for device, group in itertools.groupby(rows, key=lambda row: row[0]):
                yield device, [name for _, name in group]

    def unproved(self, device: str) -> dict[str, Any]:
        """Return the page's values for a device that is not in the audit."""
        sql = "SELECT max(last_ms) FROM series WHERE part=? AND device=?"
        with self.opened() as connection:
            last_ms = connection.execute(sql, (part_of(device), device)).fetchone()[0]
        return {
            "device": device,
            "last_ms": last_ms,
            **dict.fromkeys(("boots", "published", "delivered", "missing"), 0),
        }

    def chunk(self, number: int, of: int, most: int = POINTS) -> dict[str, Any]:
        """Divide the devices into `of` parts (a power of two); return the series of part `number`, by the devices' keys."""
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
                one = found.setdefault(key_of(device), {"device": device[:MOST_NAME], "series": []})
                one["left_out"] = [names, undated]
        return found


def forget(output: Output, path: Path | None = None) -> None:
    """Delete the file. The next report makes it again."""
    path = path or Path(output.storage.path(FOLDER)) / NAME
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def part_of(device: str) -> int:
    """Return a device's part of the file: a number below PARTS."""
    return zlib.crc32(device.encode("utf-8", "surrogatepass")) >> 16


def key_of(device: str) -> str:
    """Return a device's key in the page: its name, or, if that is long, its beginning and a checksum."""
    if len(device) <= MOST_KEY:
        return device
    return f"{device[: MOST_KEY - 9]}…{zlib.crc32(device.encode('utf-8', 'surrogatepass')):08x}"


MOST_KEY = 100


def drawn(points: np.ndarray, most: int) -> dict[str, Any] | None:
    """Return a series' points in the form that page.js needs; None if there are none.

    `t`: the first times, as differences; `d`: the durations; `v`: means; `a` and `b`: lowest and highest values, if a point
    has several readings; `g`: the indices of the points after a gap; `u`: the usual interval.
    """
    if not len(points):
        return None
    if len(points) > most:
        points = joined(points, levels(points, 1, most))
    found: dict[str, Any] = {"t": np.diff(points["first"], prepend=0).tolist(), "v": _short(points["mean"])}
    if (points["n"] > 1).any():
        found["d"] = (points["last"] - points["first"]).tolist()
        found["a"], found["b"] = _short(points["lo"]), _short(points["hi"])
    usual, found["g"] = gaps(points)
    if usual:
        found["u"] = usual
    return found


def _short(values: np.ndarray) -> list[float]:
    return [float(f"{value:.6g}") for value in values.tolist()]


def gaps(points: np.ndarray) -> tuple[int, list[int]]:
    """Return a series' usual interval (0 if unknown), and the indices of the points after a gap."""
    if len(points) < 3:
        return 0, []
    between = points["first"][1:] - points["last"][:-1]
    several = points["n"] > 1
    inside = (points["last"] - points["first"])[several] / (points["n"][several] - 1)
    interval = np.concatenate((between, inside))
    weight = np.concatenate((np.ones(len(between)), points["n"][several] - 1))
    order = np.argsort(interval, kind="stable")
    reached = np.cumsum(weight[order])
    usual = max(1, int(interval[order][np.searchsorted(reached, 0.75 * reached[-1])]))
    return usual, (np.flatnonzero(between > max(GAP * usual, GAP_MS)) + 1).tolist()
