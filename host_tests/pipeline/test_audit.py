"""The audit's and the dating's transforms on frames of a few rows, compared exactly."""

import datetime
import random
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from pyspark.testing import assertDataFrameEqual

from host_tests.pipeline.planted import fleet
from tools.pipeline import audit, dating, delays, schemas, session, verdict
from tools.pipeline.messages import process
from tools.pipeline.parts import merge_ties
from tools.pipeline.state import State


@pytest.fixture(autouse=True)
def small(spark):
    with session.small_frames(spark):
        yield


def frame(spark, table, *rows):
    schema = schemas.spark_schema(schemas.TABLES.get(table) or schemas.STATE[table])
    blank = dict.fromkeys(schema.names)
    key = {"device": "a", "life": 1, "boot": 1}
    return spark.createDataFrame([tuple({**blank, **key, **row}.values()) for row in rows], schema)


def at(seconds):
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)


ORIGIN = {"arrival": at(1_790_000_000), "collector": "c", "segment": 1, "row": 1}
TALLY = dict.fromkeys(("readings", "resent", "replayed", "reordered"), 0) | {
    "first_arrival": at(1_790_000_000),
    "last_arrival": at(1_790_000_000),
    "base_us": 1_790_000_000_000_000,
    "steps": [0],
    "counts": [1],
}


def audited(spark, expected=None, intervals=(), tally=(), events=(), ties=()):
    tables = [
        frame(spark, "tally", *[TALLY | one for one in tally]),
        frame(spark, "intervals", *intervals),
        frame(spark, "events", *[ORIGIN | one for one in events]),
        frame(spark, "ties", *[{"arrival": at(1_790_000_500)} | one for one in ties]),
    ]
    fact = audit.facts(*tables, audit.expected_facts(spark, expected))
    return audit.audit(audit.extents(audit.per_boot(fact)))


def same(found, expected):
    assertDataFrameEqual(found, expected, checkRowOrder=True, rtol=0, atol=0, ignoreNullable=True)


@pytest.mark.req("P4")
def test_boots_end_where_the_next_begins_and_holes_are_losses(spark):
    found = audited(
        spark,
        intervals=[{"lo": 1, "hi": 3}, {"lo": 6, "hi": 8}, {"boot": 3, "lo": 12, "hi": 20}],
        events=[{"seq": 1, "first": 1, "cause": "power"}, {"boot": 3, "seq": 11, "first": 11, "cause": "watchdog"}],
    )
    rows = found.select("boot", "cause", "first_seq", "last_seq", "published", "missing", "unexplained", "open")
    expected = [(1, "power", 1, 10, 10, 4, 4, False), (3, "watchdog", 11, 20, 10, 1, 1, True)]
    same(rows.orderBy("boot"), spark.createDataFrame(expected, rows.schema))
    ranges = audit.missing(found).select("boot", "lo", "hi", "messages").orderBy("lo")
    same(ranges, spark.createDataFrame([(1, 4, 5, 2), (1, 9, 10, 2), (3, 11, 11, 1)], ranges.schema))


@pytest.mark.req("P4")
def test_boards_own_counters_win_and_show_what_never_came(spark):
    told = {"a": {"boots": [{"boot": 1, "first": 1, "last": 5}, {"boot": 2, "first": 6, "last": 6}]}}
    rows = (
        audited(spark, told, intervals=[{"lo": 2, "hi": 5}])
        .select("boot", "published", "missing", "open")
        .orderBy("boot")
    )
    same(rows, spark.createDataFrame([(1, 5, 1, False), (2, 1, 1, False)], rows.schema))


@pytest.mark.req("P4")
def test_losses_are_split_into_dropped_in_doubt_and_unexplained(spark):
    found = audited(
        spark,
        intervals=[{"lo": 1, "hi": 4}, {"lo": 15, "hi": 20}, {"boot": 2, "lo": 21, "hi": 30}],
        events=[
            {"seq": 1, "first": 1, "dropped": 2},
            {"seq": 20, "dropped": 5},
            {"boot": 2, "seq": 21, "first": 21, "dropped": 5, "doubt_first": 9, "doubt_last": 11},
            {"boot": 2, "seq": 22, "doubt_first": 10, "doubt_last": 11},  # windows may overlap: the same messages again
            {"boot": 2, "seq": 23, "doubt_first": 9, "doubt_last": 9},
        ],
    )
    rows = found.select("boot", "missing", "dropped", "in_doubt", "unexplained").orderBy("boot")
    same(rows, spark.createDataFrame([(1, 10, 3, 3, 4), (2, 0, 0, 0, 0)], rows.schema))


@pytest.mark.req("P4")
def test_delays_need_a_clock_and_are_right_to_a_step(spark):
    steps = [int(step) for step in delays.steps(np.array([0, 10_000, 100_000_000]))]
    tally = [{"delivered": 100, "base_us": 1_790_000_000_100_000, "steps": steps, "counts": [60, 35, 5]}]
    rows = audited(spark, intervals=[{"lo": 1, "hi": 100}], tally=tally).select("delay_p50_ms", "late", "dated_by")
    assert [tuple(row) for row in rows.collect()] == [(None, 0, "arrival")]
    tie = {"seq": 1, "offset_us": 1_790_000_000_000_000, "uptime": 1.0}
    found = audited(spark, intervals=[{"lo": 1, "hi": 100}], tally=tally, ties=[tie]).collect()[0]
    assert found.delay_p50_ms == 100.0
    assert found.delay_p90_ms == pytest.approx(110, rel=0.01)
    assert found.delay_p99_ms == pytest.approx(100_100, rel=0.03)
    assert (found.late, found.dated_by) == (5, "clock")


@pytest.mark.parametrize("seed", range(20))
def test_percentiles_of_weighted_values_are_those_of_the_values_written_out(seed):
    rng = np.random.default_rng(seed)
    boots = 5
    boot = np.sort(rng.integers(0, boots, 12))
    value = rng.integers(0, 50, 12).astype(float)
    order = np.lexsort((value, boot))
    value, weight = value[order], rng.integers(1, 5, 12)
    for share in (0.01, 0.5, 0.6, 0.99, 1.0):
        found = delays.percentile(boot, value, weight, boots, share)
        for n in range(boots):
            written = np.repeat(value[boot == n], weight[boot == n])
            if len(written):
                assert found[n] == np.quantile(written, share, method="inverted_cdf")
            else:
                assert np.isnan(found[n])


@pytest.mark.req("P4")
def test_generated_fleets_come_out_of_the_audit_as_they_were_planted(spark, landing):
    tables = {name: [] for name in ("tally", "events", "ties", "intervals")}
    planted = {}
    for seed in range(100, 108):
        state = State()
        messages, truth = fleet(seed)
        for m in messages:
            landing.raw(f"flashmqtt/{m.device}/{m.kind}", m.payload, m.dup)
        rows, landing.rows = landing.rows, []
        cuts = sorted({0, len(rows), *random.Random(seed).sample(range(len(rows)), 3)})
        for begin, end in pairwise(cuts):  # a batch each: what overtakes another may come a batch earlier
            landing.rows = rows[begin:end]
            landing.number += 1
            for name, found in process(state, landing.table()):
                if name in tables:
                    told = merge_ties([found]) if name == "ties" else found
                    tables[name].append(told.cast(schemas.TABLES[name]))
            state.settle()
        tables["intervals"].append(state.intervals_table())
        landing.rows = []
        for key, first in truth.first.items():
            last, lost = truth.last[key], truth.missing[key]
            told = (last - first + 1, truth.delivered[key], truth.resent[key], truth.reordered[key], len(lost))
            planted[key] = (first, last, *told, truth.jumps[key])
    frames = []
    for name, parts in tables.items():
        kind = schemas.spark_schema(schemas.TABLES.get(name) or schemas.STATE[name])
        rows = [row for part in parts for row in part.to_pylist()]
        frames.append(spark.createDataFrame([tuple(row.values()) for row in rows], kind))
    found = audit.audit(audit.extents(audit.per_boot(audit.facts(*frames, audit.expected_facts(spark, None)))))
    names = ("first_seq", "last_seq", "published", "delivered", "resent", "reordered", "missing", "clock_jumps")
    result = {(r.device, r.life, r.boot): tuple(r[name] for name in names) for r in found.collect()}
    assert result == planted
    assert sum(told[-1] for told in planted.values()) > 20


READING = {"seq": 1, "index": 0, "name": "x", "value": 1.0} | ORIGIN | {"arrival": at(1_790_001_000)}


@pytest.mark.req("P4")
def test_tie_dates_all_readings_of_its_boot_and_no_others(spark):
    ties = frame(
        spark, "ties", {"seq": 3, "offset_us": 1_790_000_000_000_000, "uptime": 30.0, "arrival": at(1_790_000_500)}
    )
    readings = frame(
        spark,
        "readings",
        READING | {"seq": 1, "uptime": 10.5},
        READING | {"seq": 3, "uptime": 30.0, "time": at(1_790_000_031)},
        READING | {"seq": 4},
        READING | {"seq": 1, "boot": 2, "uptime": 1.0},
    )
    found = (
        dating.dated(readings, dating.clocks(ties)).select("boot", "seq", "taken", "dated_by").orderBy("boot", "seq")
    )
    expected = [
        (1, 1, at(1_790_000_010.5), "uptime"),
        (1, 3, at(1_790_000_031), "clock"),
        (1, 4, at(1_790_001_000), "arrival"),
        (2, 1, at(1_790_001_000), "arrival"),
    ]
    same(found, spark.createDataFrame(expected, found.schema))


@pytest.mark.req("P4")
def test_what_a_clock_said_before_it_was_set_for_the_last_time_does_not_count(spark):
    offset = 1_790_000_000_000_000
    arrival = {"arrival": at(1_790_000_900)}
    ties = frame(
        spark,
        "ties",
        {"seq": 1, "offset_us": 946_684_800_000_000, "uptime": 1.0} | arrival,  # the year 2000: never set
        {"seq": 2, "offset_us": offset - 600_000_000, "uptime": 2.0} | arrival,
        {"seq": 5, "offset_us": offset, "uptime": 5.0} | arrival,
        {"seq": 900, "offset_us": offset + 1_300_000, "uptime": 100_000.0} | arrival | {"arrival": at(1_790_200_000)},
    )
    clock = dating.clocks(ties)
    row = clock.collect()[0]
    assert (row.set_at, row.clock_jumps) == (5, 1)  # the last step is what a crystal drifts in a day
    readings = frame(
        spark,
        "readings",
        READING | {"seq": 1, "uptime": 1.0, "time": at(946_684_801)},
        READING | {"seq": 2, "uptime": 2.0, "time": at(1_789_999_402)},
        READING | {"seq": 5, "uptime": 5.0, "time": at(1_790_000_005)},
    )
    found = dating.dated(readings, clock).select("seq", "taken", "dated_by").orderBy("seq")
    expected = [(1, at(1_790_000_002.3), "uptime"), (2, at(1_790_000_003.3), "uptime"), (5, at(1_790_000_005), "clock")]
    same(found, spark.createDataFrame(expected, found.schema))


@pytest.mark.req("P3")
def test_check_sees_rows_that_are_there_twice(spark):
    readings = frame(spark, "readings", READING, READING, READING | {"index": 1}, READING | {"seq": 2})
    events = frame(spark, "events", {"seq": 3} | ORIGIN, {"seq": 2} | ORIGIN)
    rows = audit.check(readings, events).select("boot", "in_tables", "twice")
    same(rows, spark.createDataFrame([(1, 3, 1)], rows.schema))


def test_device_writes_nothing_but_its_name_on_the_terminal(capsys):
    row = SimpleNamespace(
        device="a\n\x1b[2J" + "x" * 100,
        life=1,
        boot=1,
        published=1,
        delivered=1,
        resent=0,
        replayed=0,
        missing=0,
        twice=0,
    )
    verdict.print_audit([row], 0)
    line = capsys.readouterr().out.splitlines()[3]
    assert line.split()[0] == r"a\n\x1b[2J" + "x" * 53 + "…"
