"""The values for the page's plots: a limited number of points per device and reading, in an SQLite file in the output.

The file is made from the table `readings`; an update adds the commits since the last update. A compaction updates the file
first, because it merges new rows with old ones. You may delete the file at any time: the next report makes it again.

A *point* represents one reading or several consecutive ones: (first, last) in milliseconds, their number, mean, lowest and
highest value. A series is one reading of one device. It has two sets of points: `all`, at most POINTS over all time, and
`day`, the newest 24 hours. A point covers a stretch of time: in `day` nine minutes, in `all` a length that doubles as time
passes. The lengths are powers of two, so points can be merged into longer stretches without the readings.
"""

import contextlib
import itertools
import json
import sqlite3
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tools.landing.durable import give

from .batch.state import pack
from .batch.ties import AHEAD_US, SET_SINCE_US, plausible
from .tables import intervals
from .tables.commits import Commit, Output, bucket_of
from .tables.storage import StorageError

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
BEHIND_US = 400 * 86_400_000_000
"""A reading's own time is not used if it is more than 400 days before the arrival."""
ROWS_AT_ONCE = 262_144
SERIES_AT_ONCE = 512
GAP = 1.75
"""There is a gap if the next reading is later than this many usual intervals,"""
GAP_MS = 1000
"""and later than this: a board that reads every 40 ms pauses during flash operations, without a loss."""
LARGEST = 3.0e38
MS_BITS = 43
"""Of a time in milliseconds, up to the year 2248."""
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


MERGE = """
INSERT INTO series VALUES (?,?,?,?,?,?,?,?,?) ON CONFLICT DO UPDATE SET points=excluded.points, day=excluded.day,
    unit=iif(excluded.last_ms >= last_ms, coalesce(excluded.unit, unit), unit), last_ms=max(last_ms, excluded.last_ms),
    value=iif(excluded.last_ms >= last_ms, excluded.value, value), text=iif(excluded.last_ms >= last_ms, excluded.text, text)"""
POINT = np.dtype(
    [("series", "i8"), ("first", "i8"), ("last", "i8"), ("n", "u4"), ("mean", "f4"), ("lo", "f4"), ("hi", "f4")]
)
NO_POINTS = np.zeros(0, POINT)


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


def _merged(new: np.ndarray, olds: list[np.ndarray], level: np.ndarray) -> np.ndarray:
    """Merge new points (sorted) and old ones as `joined` does. The new ones, which are many, are merged before the sort."""
    points = np.concatenate([joined(new, level), *olds])
    return joined(points[np.lexsort((points["first"], points["series"]))], level)


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


def taken_ms(rows: pa.RecordBatch, now_us: int) -> np.ndarray:
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
    has_uptime = rows["uptime"].is_valid().to_numpy(zero_copy_only=False)
    without_time = ~known & has_uptime
    if without_time.any() and known.any():
        uptime_us = (pc.fill_null(rows["uptime"], 0).to_numpy() * 1e6).astype(np.int64)
        key = pack(_texts(rows["device"])[1], rows["life"].to_numpy().astype(np.int64), rows["boot"].to_numpy())
        boots, boot = np.unique(key, return_inverse=True)
        tied = np.flatnonzero(known & has_uptime)
        last_tie = np.full(len(boots), -1)
        last_tie[boot[tied]] = tied
        row = np.flatnonzero(without_time & (last_tie[boot] >= 0))
        tie = last_tie[boot[row]]
        dated = time_us[tie] - uptime_us[tie] + uptime_us[row]
        is_plausible = plausible(dated, at[row])
        found[row[is_plausible]] = dated[is_plausible]
    return found // 1000


def _texts(column: pa.Array) -> tuple[list[str], np.ndarray]:
    """Return a column's distinct texts, plus an empty one at the end, and for each row the index of its text; null is empty."""
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    texts = [*encoded.dictionary.to_pylist(), ""]
    return texts, pc.fill_null(encoded.indices, texts.index("")).to_numpy().astype(np.int64)


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

    @contextlib.contextmanager
    def opened(self) -> Iterator[sqlite3.Connection]:
        """Yield the open file. Make it again if it is missing, damaged or of another version.

        Raises:
            StorageError: the file can't be read or written; or a part of it was damaged, and it was deleted.
        """
        try:
            with contextlib.closing(self._connect()) as connection:
                yield connection
        except sqlite3.OperationalError as error:
            raise StorageError(
                f"can't write {self.path}: {error}; free disk space, or change who may write to its folder"
            ) from error
        except (sqlite3.DatabaseError, zlib.error) as error:
            self.delete()
            raise StorageError(
                f"{self.path}: {error}. It was deleted: run the command again, which makes it again"
            ) from error

    def _connect(self) -> sqlite3.Connection:
        if not self.path.exists():
            self.delete()  # the new file must not get the write-ahead log of a deleted one
            with contextlib.suppress(OSError), self.path.open("ab") as file:  # SQLite reports the error
                give(file.fileno(), self.path.parent)
        connection = sqlite3.connect(self.path, timeout=600, isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.execute("PRAGMA secure_delete=ON")  # `forget` reads the rows, not what earlier ones have left
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version not in {0, FORMAT}:
                raise sqlite3.DatabaseError("another version")
            if not version:
                connection.executescript(SCHEMA + f"PRAGMA user_version={FORMAT};")
        except sqlite3.DatabaseError as error:
            connection.close()
            if isinstance(error, sqlite3.OperationalError):  # locked, or the disk is full
                raise
            self.delete()
            return self._connect()
        return connection

    def delete(self) -> None:
        """Delete the file. The next report makes it again."""
        for suffix in ("", "-wal", "-shm"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)

    def update(self, commit: Commit, now_us: int | None = None) -> None:
        """Add the commits from the last update up to this one."""
        with self.opened() as connection, connection:
            connection.execute("BEGIN IMMEDIATE")
            known = connection.execute("SELECT value FROM told WHERE key='batch'").fetchone()
            at = int(known[0]) if known else 0
            if at == commit.batch:  # a dashboard asks again and again: do not read the commits for nothing
                return
            commits = [one for one in self.output.commits() if one.batch <= commit.batch]
            made_again = at > commit.batch and at > (self.output.latest() or commit).batch
            if made_again or (commits and commits[0].whole and commits[0].batch > at):  # or new rows are among old ones
                at = 0
                connection.execute("DELETE FROM series")
                connection.execute("DELETE FROM left_out")
            if at < commit.batch:
                for rows in self._rows([one for one in commits if one.batch > at]):
                    _add(connection, rows, now_us or time.time_ns() // 1000)
                connection.execute("INSERT OR REPLACE INTO told VALUES ('batch',?)", (str(commit.batch),))

    def _rows(self, commits: list[Commit]) -> Iterator[pa.RecordBatch]:
        """Yield the readings of some commits."""
        files = [name for one in commits for name in one.files.get("readings", [])]
        some: list[pa.RecordBatch] = []
        for name in sorted(files, key=lambda name: (bucket_of(name), name)):
            for batch in self.output.storage.batches(name, COLUMNS, read_dictionary=["device", "name", "unit", "text"]):
                some.append(batch)
                if sum(map(len, some)) >= ROWS_AT_ONCE:
                    yield from _whole(some)
                    some = []
        if some:
            yield from _whole(some)

    def sensors(self) -> Iterator[tuple[str, list[str], int, bool]]:
        """Yield for each device the names of its series, its newest time, and whether it has points of the newest day."""
        sql = "SELECT device, json_group_array(name), max(last_ms), max(day IS NOT NULL) FROM series GROUP BY part, device"
        with self.opened() as connection:
            for device, names, last_ms, has_day in connection.execute(sql):
                yield device, sorted(json.loads(names)), last_ms, bool(has_day)

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


def follow(output: Output, commit: Commit) -> None:
    """Update an output's file, if there is one, up to a commit that a compaction will merge with others."""
    if output.storage.local and Path(output.storage.path(f"{FOLDER}/{NAME}")).exists():
        with contextlib.suppress(StorageError):  # the next report makes the file again
            Store(output).update(commit)


def _whole(some: list[pa.RecordBatch]) -> Any:
    """Return some batches as one, with one dictionary for each column of texts; none without rows."""
    return pa.Table.from_batches(some).unify_dictionaries().combine_chunks().to_batches()


def _add(connection: sqlite3.Connection, rows: pa.RecordBatch, now_us: int) -> None:
    """Add some rows of the table `readings`."""
    ms = taken_ms(rows, now_us)
    (devices, device), (names, name) = _texts(rows["device"]), _texts(rows["name"])
    code = device * len(names) + name
    run = intervals.begins(code)  # rows of a series are adjacent: one of each run is enough
    pairs, of_run = np.unique(code[run], return_inverse=True)
    series = of_run[np.cumsum(run) - 1]
    keys = [(devices[one // len(names)], names[one % len(names)]) for one in pairs.tolist()]
    chosen = _drawn_of(connection, keys)[series]
    left_out = np.stack([np.bincount(device[which], minlength=len(devices)) for which in (~chosen, ms < 0)], axis=1)
    connection.executemany(
        "INSERT INTO left_out VALUES (?,?,?,?) ON CONFLICT DO UPDATE SET names=names+excluded.names,"
        " undated=undated+excluded.undated",
        [(part_of(devices[n]), devices[n], *left_out[n].tolist()) for n in np.flatnonzero(left_out.any(axis=1))],
    )
    kept = np.flatnonzero(chosen & (ms >= 0))
    kept = kept[np.argsort((series[kept] << MS_BITS) + ms[kept], kind="stable")]  # mostly sorted: faster than `lexsort`
    ends = kept[np.append(intervals.begins(series[kept])[1:], True)] if len(kept) else kept
    number = pc.coalesce(rows["value"], rows["flag"].cast(pa.float64()))
    last = rows.select(["unit", "text", "flag"]).take(pa.array(ends))
    text = pc.coalesce(last["text"].cast(pa.string()), last["flag"].cast(pa.string()))
    columns = (pa.array(ms[ends]), number.take(pa.array(ends)), pc.utf8_slice_codeunits(text, 0, MOST_TEXT))
    newest = list(zip(*(one.to_pylist() for one in (last["unit"].cast(pa.string()), *columns)), strict=True))
    number = number.to_numpy(zero_copy_only=False)
    drawn = kept[np.isfinite(number[kept])]
    points = np.empty(len(drawn), POINT)
    points["n"] = 1
    points["series"] = np.searchsorted(series[ends], series[drawn])
    points["first"] = points["last"] = ms[drawn]
    points["mean"] = points["lo"] = points["hi"] = np.clip(number[drawn], -LARGEST, LARGEST)
    keys = [keys[one] for one in series[ends].tolist()]
    for at in range(0, len(keys), SERIES_AT_ONCE):
        some = slice(at, at + SERIES_AT_ONCE)
        new = points[slice(*np.searchsorted(points["series"], (some.start, some.stop)))]
        new["series"] -= at
        _join(connection, keys[some], new, newest[some])


def _drawn_of(connection: sqlite3.Connection, keys: list[tuple[str, str]]) -> np.ndarray:
    """Return which of some series, sorted by device, are drawn: a device has at most MOST_SERIES."""
    found: list[bool] = []
    for device, its in itertools.groupby(keys, key=lambda key: key[0]):
        rows = connection.execute("SELECT name FROM series WHERE part=? AND device=?", (part_of(device), device))
        known = {name for (name,) in rows}
        for _, name in its:
            if len(known) < MOST_SERIES:
                known.add(name)
            found.append(name in known)
    return np.array(found, dtype=bool)


def _join(
    connection: sqlite3.Connection, keys: list[tuple[str, str]], new: np.ndarray, newest: list[tuple[Any, ...]]
) -> None:
    """Merge new points of some series with those in the file. `newest`: each one's last reading: unit, time, value, text."""
    olds: list[np.ndarray] = []
    old_days: dict[int, bytes | None] = {}
    for n, (device, name) in enumerate(keys):
        sql = "SELECT points, day FROM series WHERE part=? AND device=? AND name=?"
        for points, day in connection.execute(sql, (part_of(device), device, name)):
            olds.append(unpacked(points, n))
            old_days[n] = day or points
    edge = intervals.begins(new["series"])
    edge |= np.append(edge, True)[1:]  # each series' first and last point
    level = levels(np.concatenate([new[edge], *olds]), len(keys))
    whole = _merged(new, olds, level)
    since = np.full(len(keys), np.iinfo(np.int64).min)
    np.maximum.at(since, whole["series"], whole["last"])
    is_long = level > DAY_LEVEL
    long_days = [unpacked(blob, n) for n, blob in old_days.items() if is_long[n]]
    day = _merged(new[is_long[new["series"]]], long_days, np.full(len(keys), DAY_LEVEL))
    day = day[day["last"] > since[day["series"]] - DAY_MS]
    bounds, day_bounds = (np.searchsorted(one["series"], np.arange(len(keys) + 1)) for one in (whole, day))
    rows = []
    for n, ((device, name), one) in enumerate(zip(keys, newest, strict=True)):
        points = packed(whole[bounds[n] : bounds[n + 1]])
        its_day = packed(day[day_bounds[n] : day_bounds[n + 1]]) if is_long[n] else None
        rows.append((part_of(device), device, name, *one, points, its_day))
    connection.executemany(MERGE, rows)


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
    """Return values with six digits."""
    exact = values.astype(np.float64)
    scale = 10.0 ** (5 - np.floor(np.log10(np.maximum(np.abs(exact), 1e-37))))
    return list((np.rint(exact * scale) / scale).tolist())


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
