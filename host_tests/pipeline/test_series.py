"""The points that the page plots: a bounded number for any order and any clocks, each reading once."""

import itertools
import json

import numpy as np
import pytest

from host_tests.pipeline.conftest import once
from tools.pipeline import compact, series
from tools.pipeline.tables.commits import Output
from tools.pipeline.tables.storage import StorageError

START_S = 1_790_000_000

pytestmark = pytest.mark.usefixtures("without_delta")


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


SEQ = itertools.count(1)


def publish(landing, at_s, value=None, seq=SEQ, name="t", device="a", **labels):
    """Land a message that was captured and arrived at a time; `labels` may set other times."""
    head = {"bn": f"{device}/", "boot": 1, "seq": next(seq), "bt": at_s, "n": name, "v": value, **labels}
    told = json.dumps([{key: one for key, one in head.items() if one is not None}]).encode()
    landing.raw(f"flashmqtt/{device}/readings", told, arrival_us=labels.pop("arrival_us", int((at_s + 0.1) * 1e6)))


def taken(local, landing, out):
    """Process the landing; return the updated store."""
    landing.seal()
    once(local, str(landing.directory), str(out), 2)
    return updated(out)


def updated(out):
    output = Output(str(out))
    store = series.Store(output)
    store.update(output.latest())
    return store


def plots(store, device="a"):
    """Return a device's plots: name -> (the points of all time, of the newest day)."""
    return {name: sets for name, *_, _, whole, day in store.chunk(0, 1)[device]["series"] for sets in [(whole, day)]}


def times(told):
    return np.cumsum(told["t"])


@pytest.mark.req("P9")
@pytest.mark.parametrize("step_s", [1, 60, 3600])
def test_points_are_bounded_and_the_same_for_any_batch_split(local, landing, out, tmp_path, step_s):
    from host_tests.pipeline.conftest import Landing

    whole = Landing(tmp_path / "whole")
    whole.directory.mkdir()
    seqs = itertools.count(1), itertools.count(1)
    rng = np.random.default_rng(step_s)
    order = np.concatenate([rng.permutation(np.arange(n, n + 150)) for n in range(0, 900, 150)])
    for count, n in enumerate(order.tolist()):
        for one, seq in zip((landing, whole), seqs, strict=True):
            publish(one, START_S + n * step_s, float(n % 50), seq)
        if count % 300 == 299:
            store = taken(local, landing, out)
    once = taken(local, whole, tmp_path / "once")
    piecewise, at_once = plots(store)["t"], plots(once)["t"]
    assert [one is None for one in piecewise] == [one is None for one in at_once]
    for part, other in zip(piecewise, at_once, strict=True):
        if part is not None:
            assert {key: part[key] for key in "tdabgu" if key in part} == {
                key: other[key] for key in "tdabgu" if key in other
            }
            assert part["v"] == pytest.approx(other["v"], rel=1e-5)
            assert len(part["t"]) <= series.POINTS
    assert (piecewise[1] is not None) == (step_s == 3600)
    points = series.unpacked(packed_points(store))
    assert points["n"].sum() == 900
    assert (points["lo"].min(), points["hi"].max()) == (0, 49)


def packed_points(store, name="t"):
    with store.opened() as connection:
        return connection.execute("SELECT points FROM series WHERE name=?", (name,)).fetchone()[0]


@pytest.mark.req("P9")
def test_missing_readings_are_marked_as_a_gap(local, landing, out):
    for n in [*range(30), *range(45, 60), *range(62, 90)]:
        publish(landing, START_S + n * 60, 1.0)
    told, _ = plots(taken(local, landing, out))["t"]
    assert told["u"] == 60_000
    assert told["g"] == [30, 45]
    for n in range(30, 45):  # they arrive late
        publish(landing, START_S + n * 60, 1.0)
    told, _ = plots(taken(local, landing, out))["t"]
    assert told["g"] == [60]


@pytest.mark.req("P9")
def test_pause_shorter_than_a_second_is_no_gap(local, landing, out):
    at = START_S
    for n in range(60):
        at += 0.26 if n % 7 == 0 else 2.0 if n == 33 else 0.04
        publish(landing, at, 1.0)
    told, _ = plots(taken(local, landing, out))["t"]
    assert told["g"] == [33]


@pytest.mark.req("P9")
@pytest.mark.parametrize("wrong_s", [0, 946_684_800, 1_600_000_000, 4_294_967_295])
def test_wrong_clock_does_not_flatten_a_plot(local, landing, out, wrong_s):
    for n in range(20):
        publish(landing, START_S + n * 60, 1.0, bt=wrong_s if n == 7 else START_S + n * 60)
    publish(landing, START_S + 1200, 1.0, bt=None, arrival_us=wrong_s * 1_000_000)  # the collector's
    publish(landing, START_S + 1260, 2.0)
    store = taken(local, landing, out)
    at = times(plots(store)["t"][0])
    if wrong_s == 1_600_000_000:  # a collector that is years behind can't be told from messages of that time
        return
    assert START_S * 1000 <= at[0] <= at[-1] <= (START_S + 1300) * 1000
    assert store.chunk(0, 1)["a"]["left_out"] == [0, 1]


def test_reading_without_a_time_is_dated_by_uptime(local, landing, out):
    for n in range(10):
        publish(landing, START_S + n * 60, 1.0, up=n * 60.0, bt=None if n < 5 else START_S + n * 60)
    at = times(plots(taken(local, landing, out))["t"][0])
    assert at.tolist() == [(START_S + n * 60) * 1000 for n in range(10)]


def test_newest_value_unit_and_text_are_kept(local, landing, out):
    publish(landing, START_S, 20.5, u="Cel")
    publish(landing, START_S + 60, None, name="door", vb=True)
    publish(landing, START_S + 60, None, name="state", vs="watering")
    taken(local, landing, out)
    publish(landing, START_S + 120, 21.5)
    publish(landing, START_S - 600, 3.0)  # older, but came later
    told = {one[0]: one[1:5] for one in taken(local, landing, out).chunk(0, 1)["a"]["series"]}
    assert told == {
        "t": ["Cel", (START_S + 120) * 1000, 21.5, None],
        "door": [None, (START_S + 60) * 1000, 1.0, "true"],
        "state": [None, (START_S + 60) * 1000, None, "watering"],
    }


@pytest.mark.req("P9")
def test_readings_without_a_name_and_with_an_empty_one_share_a_plot(local, landing, out):
    for n in range(10):
        at_s = START_S + 60 * n
        if n % 2:
            landing.raw("a", str(n).encode(), arrival_us=at_s * 1_000_000)
        else:
            publish(landing, at_s, float(n), name=None)
    whole, _ = plots(taken(local, landing, out))[""]
    assert whole["v"] == list(map(float, range(10)))


def test_number_of_series_of_a_device_is_limited(local, landing, out):
    for n in range(series.MOST_SERIES + 40):
        publish(landing, START_S + n, 1.0, name=f"n{n}")
    told = taken(local, landing, out).chunk(0, 1)["a"]
    assert len(told["series"]) == series.MOST_SERIES
    assert told["left_out"] == [40, 0]


@pytest.mark.req("P9")
@pytest.mark.parametrize("ahead_days", [0, 30])  # the collector's clock, for a message
def test_compaction_between_updates_neither_loses_nor_repeats_readings(local, landing, out, ahead_days):
    for n in range(10):
        publish(landing, START_S + n, 1.0)
    publish(landing, START_S, 1.0, name="other", device="b", arrival_us=int((START_S + ahead_days * 86_400) * 1e6))
    taken(local, landing, out)
    for batch in range(2):
        for n in range(10):
            publish(landing, START_S + 10 * (batch + 1) + n, 1.0)
        landing.seal()
        once(local, str(landing.directory), str(out), 2)
    compact.compact(local, str(out))
    points = series.unpacked(packed_points(updated(out)))
    assert points["n"].tolist() == [1] * 30


@pytest.mark.req("P9")
@pytest.mark.parametrize("case", ["a held message", "numbers that began again"])
@pytest.mark.parametrize("follows", [True, False])
def test_new_readings_of_earlier_segments_are_drawn_after_a_compaction(local, landing, out, monkeypatch, case, follows):
    if not follows:  # the file was not there
        monkeypatch.setattr(compact.series, "follow", lambda *_: None)
    for n, boot in enumerate((5, 6)):
        publish(landing, START_S + n, 1.0, seq=itertools.count(100 * (n + 1)), boot=boot)
    if case == "a held message":  # of an earlier life, which begins in the next batch
        publish(landing, START_S + 2, 1.0, seq=itertools.count(150), boot=3)
        more = {"seq": itertools.count(140), "boot": 1, "first": 140}
    else:
        publish(landing, START_S + 2, 1.0, seq=itertools.count(201), boot=6)
        more = {"seq": itertools.count(202), "boot": 6}
    taken(local, landing, out)
    if case != "a held message":
        (landing.directory / "c-000000001.parquet").unlink()
        landing.number = landing.row = 0
    publish(landing, START_S + 3, 1.0, **more)
    landing.seal()
    once(local, str(landing.directory), str(out), 2)
    compact.compact(local, str(out))
    store = updated(out)
    with store.opened() as connection:
        assert connection.execute("SELECT value FROM told WHERE key='batch'").fetchone() == ("2",)
    assert series.unpacked(packed_points(store))["n"].tolist() == [1] * 4


@pytest.mark.parametrize("what", ["deleted", "deleted without its log", "damaged", "of another version"])
def test_missing_or_unusable_series_file_is_created_again(local, landing, out, what):
    for n in range(10):
        publish(landing, START_S + n, 1.0)
    store = taken(local, landing, out)
    before = store.chunk(0, 1)
    if what == "deleted":
        store.delete()
    elif what == "deleted without its log":
        log = store.path.with_name(store.path.name + "-wal")
        with store.opened() as connection:
            connection.execute("DELETE FROM series")
            kept = log.read_bytes()
        assert kept
        store.path.unlink()
        log.write_bytes(kept)
    elif what == "damaged":
        store.path.write_bytes(b"SQLite format 3\0" + bytes(5000))
    else:
        with store.opened() as connection:
            connection.execute("PRAGMA user_version=99")
    store.update(store.output.latest())
    assert store.chunk(0, 1) == before


@pytest.mark.req("P9")
@pytest.mark.parametrize("part", ["page", "points"])
def test_series_file_with_a_damaged_part_is_deleted_and_created_again(local, landing, out, part):
    for n in range(100):
        publish(landing, START_S + n, 1.0, name=f"n{n % 60}-{'x' * 300}")
    store = taken(local, landing, out)
    before = store.chunk(0, 1)
    assert len(before["a"]["series"]) == 60
    with store.opened() as connection:
        if part == "points":
            connection.execute("UPDATE series SET points=x'1234'")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    if part == "page":
        whole = bytearray(store.path.read_bytes())
        whole[-8192:] = bytes(8192)
        store.path.write_bytes(whole)
    with pytest.raises(StorageError, match="run the command again"):
        store.chunk(0, 1)
    assert updated(out).chunk(0, 1) == before


def test_huge_values_become_finite_points(local, landing, out):
    for n, value in enumerate((1e308, -1e308, 1.0)):
        publish(landing, START_S + n, value)
    told, _ = plots(taken(local, landing, out))["t"]
    assert np.isfinite(told["v"]).all()


def test_keys_of_long_names_are_short_and_unique():
    names = ["x" * 5000, "x" * 5001, "short"]
    keys = [series.key_of(name) for name in names]
    assert len(set(keys)) == 3
    assert max(map(len, keys)) <= series.MOST_KEY
