"""The dating's and the full check's transforms on frames of a few rows, compared exactly."""

import datetime

import pytest

from tools.pipeline import check
from tools.pipeline.batch import dating
from tools.pipeline.tables import schemas


def frame(spark, table, *rows):
    schema = schemas.spark_schema(schemas.TABLES.get(table) or schemas.STATE[table])
    blank = dict.fromkeys(schema.names)
    key = {"device": "a", "life": 1, "boot": 1}
    return spark.createDataFrame([tuple({**blank, **key, **row}.values()) for row in rows], schema)


def at(seconds):
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)


ORIGIN = {"arrival": at(1_790_000_000), "collector": "c", "segment": 1, "row": 1}


def same(found, expected):
    from pyspark.testing import assertDataFrameEqual  # loads pandas

    assertDataFrameEqual(found, expected, checkRowOrder=True, rtol=0, atol=0, ignoreNullable=True)


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
def test_times_before_the_last_clock_set_are_replaced_by_uptime(spark):
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
    assert row.set_at == 5  # the last step is what a crystal drifts in a day
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
def test_check_counts_duplicate_rows(spark):
    readings = frame(spark, "readings", READING, READING, READING | {"index": 1}, READING | {"seq": 2})
    events = frame(spark, "events", {"seq": 3} | ORIGIN, {"seq": 2} | ORIGIN)
    rows = check.compared(readings, events, frame(spark, "audit")).select("boot", "in_tables", "twice")
    same(rows, spark.createDataFrame([(1, 3, 1)], rows.schema))
