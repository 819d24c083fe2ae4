"""Generated fleets: any number of devices, messages in order, and landings written in parts."""

import duckdb
import pytest

from host_tests.pipeline.conftest import once
from tools.pipeline import verdict
from tools.pipeline.tables.commits import Output
from tools.proof import fleet


@pytest.mark.parametrize("devices", [2047, 2048, 60_000])
def test_messages_of_each_device_arrive_in_order(devices):
    landed = fleet.segment(fleet.Fleet(devices=devices, duplicates=0.0), 7, 3)
    (found,) = duckdb.sql(
        """SELECT count(*), min(late_s), max(late_s), count_if(arrival < before), bool_and(seq > 7 AND seq <= 10) FROM
        (SELECT *, epoch(arrival) - bt AS late_s, lag(arrival) OVER (PARTITION BY topic ORDER BY seq) AS before FROM
         (SELECT topic, arrival, (decode(payload) -> '$[0].seq')::INT AS seq, (decode(payload) -> '$[0].bt')::DOUBLE AS bt
          FROM landed))"""
    ).fetchall()
    assert found[0] == landed.num_rows == 3 * devices
    assert 0 < found[1] < found[2] < 60
    assert found[3:] == (0, True)


def test_copies_have_the_same_bytes_and_come_later():
    landed = fleet.segment(fleet.Fleet(devices=100, duplicates=0.1), 0, 100)
    (copies,) = duckdb.sql(
        "SELECT count(*), bool_and(copy.arrival > first.arrival) FROM landed AS first JOIN landed AS copy USING (topic, payload) "
        "WHERE copy.dup AND NOT first.dup"
    ).fetchall()
    assert copies == (landed.num_rows - 10_000, True)
    assert 800 < copies[0] < 1200


def test_landing_written_in_three_parts_has_no_gaps(local, tmp_path):
    made = fleet.Fleet(devices=30, boot_every=10)
    for begin in (0, 20, 40):
        fleet.write(made, tmp_path / "days", 600, begin=begin)
    once(local, str(tmp_path / "days"), str(tmp_path / "out"), 2)
    found = verdict.judge(Output(str(tmp_path / "out")))
    assert found.line == verdict.WHOLE
    assert (found.totals["delivered"], found.totals["boots"]) == (1800, 180)
