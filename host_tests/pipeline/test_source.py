"""Which segments a run reads, and which it misses. Without Spark."""

import os
import threading

import pytest

from host_tests.pipeline.conftest import Landing, once
from tools.landing import parquet, segments
from tools.landing.log import Header, LandingLog
from tools.pipeline import stream
from tools.pipeline.batch import task
from tools.pipeline.tables import source
from tools.pipeline.tables.commits import Output
from tools.pipeline.tables.storage import Storage, StorageError


def three_segments(landing):
    """Seal three segments with a message each; return what the pipeline lists."""
    for seq in range(1, 4):
        landing.message("a", 1, seq)
        landing.seal()
    return source.latest(Storage(str(landing.directory)))


def open_log(landing, number):
    """Make the collector's open log."""
    folder = landing.directory / "c.logs"
    folder.mkdir()
    LandingLog.create(folder, Header("c", number, 1, number - 1, 0), []).close()


@pytest.mark.req("P4")
def test_missing_last_segment_is_noticed_by_the_number_of_the_log(landing, tmp_path):
    three_segments(landing)
    open_log(landing, 4)
    directory = Storage(str(landing.directory))
    assert source.sealed(directory) == {"c": 3}
    source.check_last(directory, source.latest(directory), {"c": 3}, {})
    (landing.directory / parquet.file_name("c", 3)).unlink()
    with pytest.raises(
        source.LandingError, match=r"c-000000003\.parquet is missing from the landing: restore what is missing"
    ):
        source.check_last(directory, source.latest(directory), source.sealed(directory), {"c": 2})
    source.check_last(directory, source.latest(directory), source.sealed(directory), {"c": 3})  # read, then deleted


@pytest.mark.req("P4")
@pytest.mark.parametrize("again", [2, 3, 5])
def test_collector_whose_numbers_began_again_is_noticed(landing, local, tmp_path, again):
    found = three_segments(landing)
    out, checkpoint, commits = str(tmp_path / "out"), str(tmp_path / "checkpoint"), []
    Output(out).prepare(2)
    job = stream.Job(local, str(landing.directory), out, checkpoint, 2, 2, commits.append, publish=False)
    job._run({"c": 3}, 0, found)
    job._before(found)  # the landing that was read
    for path in landing.directory.glob("*.parquet"):
        path.unlink()
    landing.number = landing.row = 0
    for seq in range(4, 4 + again):
        landing.message("a", 1, seq)
        landing.seal()
    number = min(again, 3)
    with pytest.raises(source.LandingError, match=rf"c-00000000{number}\.parquet is .* the numbers began again"):
        job._before(source.latest(Storage(str(landing.directory))))


@pytest.mark.req("P3")
def test_landing_of_another_collector_of_the_same_name_is_noticed(landing, tmp_path):
    """They worked at the same time: some messages of the other one arrived later, not all."""
    landing.message("a", 1, 1)
    landing.seal()
    directory, checkpoint = Storage(str(landing.directory)), Storage(str(tmp_path / "checkpoint"))
    _, last_us = source.arrivals_us(directory, "c-000000001.parquet")
    other = Landing(tmp_path / "other")
    other.directory.mkdir()
    other.message("b", 1, 1, arrival_us=last_us - 1)
    other.message("b", 1, 2, arrival_us=last_us + 1)
    other.seal()
    found = source.latest(Storage(str(other.directory)))
    with pytest.raises(
        source.LandingError, match="is not the segment that was read: it has messages that arrived later"
    ):
        source.check_numbers(Storage(str(other.directory)), found, {"c": 1}, {"c": last_us}, checkpoint)


@pytest.mark.req("P4")
@pytest.mark.parametrize("rows", [0, 1])
def test_segment_from_which_messages_were_removed_is_the_one_that_was_read(landing, local, tmp_path, rows):
    landing.message("a", 1, 1)
    landing.message("b", 1, 1)
    path = landing.seal()
    directory, checkpoint = Storage(str(landing.directory)), Storage(str(tmp_path / "checkpoint"))
    found = source.latest(directory)
    _, last_us = source.arrivals_us(directory, path.name)
    path.unlink()
    landing.number = 0
    if rows:
        landing.message("b", 1, 1, arrival_us=last_us)
    landing.seal()
    source.check_numbers(directory, found, {"c": 1}, {"c": last_us}, checkpoint)
    path.write_bytes(b"damaged")
    source.check_numbers(directory, found, {"c": 1}, {"c": last_us}, checkpoint)
    path.unlink()
    path.symlink_to(path.name)  # stands for one that this user may not read: nothing is known about it
    with pytest.raises(OSError, match="levels of symbolic links"):
        source.check_numbers(directory, found, {"c": 1}, {"c": last_us}, checkpoint)


@pytest.mark.req("P4")
def test_footers_of_a_batchs_segments_are_read_at_the_same_time(landing, local, tmp_path, monkeypatch):
    three_segments(landing)
    read, together = source.arrivals_us, threading.Barrier(3, timeout=60)
    monkeypatch.setattr(source, "arrivals_us", lambda *which: together.wait() >= 0 and read(*which))
    assert once(local, str(landing.directory), str(tmp_path / "out"), 2).stream_read == {"c": 3}


def test_log_that_is_not_sealed_yet_misses_no_segment(landing):
    three_segments(landing)
    open_log(landing, 4)
    LandingLog.create(landing.directory / "c.logs", Header("c", 5, 1, 4, 0), []).close()
    assert source.sealed(Storage(str(landing.directory))) == {"c": 3}


@pytest.mark.req("P2", "P4")
def test_flipped_bit_in_a_segment_changes_no_row_silently(landing):
    for seq in range(1, 9):
        landing.message("a", 1, seq, value=seq / 7)
        landing.message("b", 1, seq, value=seq / 9)
    path = landing.seal()
    directory, good = Storage(str(landing.directory)), path.read_bytes()

    def rows():
        found = [task._rows(directory, path.name, bucket, 2) for bucket in (0, 1)]
        return [table.to_pylist() for tables in found for table in tables]

    expected, refused = rows(), 0
    assert sum(map(len, expected)) == 16
    footer_bytes = int.from_bytes(good[-8:-4], "little")
    pages = range(0, len(good) - 8 - footer_bytes, 3)  # Parquet has no checksum for the footer
    for at in pages:
        flipped = bytearray(good)
        flipped[at] ^= 1 << at % 8
        path.write_bytes(flipped)
        try:
            assert rows() == expected
        except segments.SegmentError as error:
            assert str(error).startswith(path.name)
            refused += 1
    assert refused > len(pages) / 2


@pytest.mark.parametrize(
    "name", ["c.logs/\u00b2.log", "c.logs/7.log", "c-99999999999999999999.parquet", "7.parquet", "c.logs/x.log"]
)
def test_foreign_file_in_the_landing_is_ignored(landing, name):
    found = three_segments(landing)
    open_log(landing, 4)
    (landing.directory / name).write_bytes(b"mine")
    directory = Storage(str(landing.directory))
    assert source.sealed(directory) == {"c": 3}
    assert source.latest(directory) == found
    assert [one.number for one in segments.find_segments(landing.directory)] == [1, 2, 3]


def test_folder_with_a_name_that_is_not_utf_8_is_named(landing):
    three_segments(landing)
    (landing.directory / os.fsdecode(b"\xff.txt")).write_bytes(b"mine")
    with pytest.raises(StorageError, match=rf"^{landing.directory}: the name of a file in it is not UTF-8"):
        source.latest(Storage(str(landing.directory)))


def test_landing_without_logs_has_no_known_last_segment(landing):
    three_segments(landing)
    assert source.sealed(Storage(str(landing.directory))) == {}
