"""Segments to tables through Spark: exactly once, restarts, replays."""

import dataclasses
import json
import os
import re
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException

from host_tests.pipeline.conftest import once, rows_in, taken
from host_tests.waiting import until
from tools.landing import parquet
from tools.pipeline import archive, check, compact, session, stream, verdict
from tools.pipeline.tables import schemas, source
from tools.pipeline.tables.commits import Commit, Output, OutputError
from tools.pipeline.tables.source import LandingError
from tools.pipeline.tables.storage import Storage, StorageError


def go(spark, landing, out, checkpoint=None, buckets=2, **more):
    job = stream.Job(spark, str(landing.directory), str(out), str(checkpoint or out / "checkpoint"), buckets, **more)
    job.start().awaitTermination()
    return Output(str(out))


def batches(output):
    return [commit.batch for commit in output.commits()]


def rows_of(output, table):
    """Return a table's committed rows, read without Spark: it would take half a second each time."""
    return [
        row
        for name in output.files(table)
        for row in pq.read_table(output.storage.path(name), partitioning=None).to_pylist()
    ]


def keys(output):
    return sorted((row["device"], row["boot"], row["seq"], row["value"]) for row in rows_of(output, "readings"))


def five_messages(landing):
    for seq in range(1, 6):
        landing.message("a", 1, seq, value=seq)


@pytest.fixture
def five(landing):
    """A landing of five messages, sealed."""
    five_messages(landing)
    landing.seal()
    return landing


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


@pytest.mark.req("P2", "P3", "P5")
def test_duplicates_are_removed_and_bad_payloads_quarantined(spark, landing, out):
    five_messages(landing)
    landing.message("a", 1, 3, value=3, dup=True)
    landing.raw("flashmqtt/a/readings", b"{")
    landing.message("b", 1, 1)
    landing.raw("flashmqtt/b/readings", landing.rows[0][4])
    landing.seal()
    landing.message("a", 1, 5, value=5, dup=True)
    landing.message("a", 1, 6, value=6)
    landing.seal()
    output = go(spark, landing, out, segments_per_batch=1)
    assert batches(output) == [1, 2]
    readings = output.read(spark, "readings").select("device", "boot", "seq", "value").collect()
    assert sorted(map(tuple, readings)) == [("a", 1, seq, float(seq)) for seq in range(1, 7)] + [("b", 1, 1, 1.0)]
    quarantine = output.read(spark, "quarantine").select("reason", "topic", "payload", "row").orderBy("row").collect()
    assert [(row.reason.split(":")[0], row.topic, row.row) for row in quarantine] == [
        ("not JSON", "flashmqtt/a/readings", 7),
        ("another device than the topic's", "flashmqtt/b/readings", 9),
    ]
    assert quarantine[0].payload == b"{"
    duplicates = output.read(spark, "duplicates").select("seq", "cause").orderBy("seq").collect()
    assert [tuple(row) for row in duplicates] == [(3, "resend"), (5, "resend")]


@pytest.mark.req("P3")
def test_replayed_landing_adds_nothing_and_is_counted_as_replay(spark, five, tmp_path, out):
    output = go(spark, five, out)
    assert batches(go(spark, five, out)) == [1]
    go(spark, five, out, tmp_path / "another")
    assert batches(output) == [1, 2]
    assert len(keys(output)) == 5
    assert [row["cause"] for row in rows_of(output, "duplicates")] == ["replay"] * 5


@pytest.mark.req("P2", "P3")
def test_continuous_run_reads_segments_whatever_their_files_times_are(spark, landing, tmp_path, out):
    """A clock that is years ahead or behind for a while, or files that were restored with their times."""
    commits = []
    job = stream.Job(spark, str(landing.directory), str(out), str(tmp_path / "checkpoint"), 2, on_commit=commits.append)
    query = job.start(0.2)
    try:
        # A trigger with an interval would wait by the host's clock: for years if that is set back by years.
        assert query._jsq.streamingQuery().trigger().intervalMs() == 0
        for seq, days in enumerate((0, 400, 0, -400, 40_000, 1), 1):
            landing.message("a", 1, seq)
            time_s = landing.seal().stat().st_mtime + days * 86_400
            os.utime(landing.directory / parquet.file_name("c", seq), (time_s, time_s))
            until(lambda seq=seq: len(commits) == seq, lambda seq=seq: f"segment {seq} was not read", 30)
    finally:
        query.stop()
    assert [commit.rows["readings"] for commit in commits] == [1] * 6


@pytest.mark.req("P3")
def test_committed_batch_that_spark_repeats_is_skipped(spark, five, out):
    output = go(spark, five, out)
    for name in (out / "checkpoint" / "commits").iterdir():
        name.unlink()  # as if the driver had died before Spark noted the batch
    assert batches(go(spark, five, out)) == [1]
    assert len(keys(output)) == 5


@pytest.mark.req("P3")
def test_batch_interrupted_before_its_commit_is_repeated(spark, five, out):
    output = go(spark, five, out)
    before = keys(output)
    for name in [*(out / "checkpoint" / "commits").iterdir(), *(out / "commits").iterdir()]:
        name.unlink()  # as if it had died before our own commit: files without a commit remain
    go(spark, five, out)
    assert batches(output) == [1]
    assert keys(output) == before
    assert len(list((out / "readings").rglob("*.parquet"))) == len(output.commit(1).files["readings"])


CHECKPOINT = {
    "metadata": '{"id":"572b0135"}',
    "flashmqtt.json": '{"stream": "ea90", "out": "OUT"}',
    "offsets/0": 'v1\n{"batchWatermarkMs":0}\n{"logOffset":0}',
    "commits/0": 'v1\n{"nextBatchWatermarkMs":0}',
    "sources/0/0": 'v1\n{"path":"file:///c-000000001.parquet","timestamp":1,"batchId":0}',
}


@pytest.mark.req("P3", "P8")
@pytest.mark.parametrize("name", CHECKPOINT)
def test_damaged_file_of_the_checkpoint_is_named_with_what_to_do(local, five, out, name):
    once(local, str(five.directory), str(out), 2)
    checkpoint = Storage(str(out / "checkpoint"))
    for one, text in CHECKPOINT.items():
        checkpoint.write_json(one, None)
        (out / "checkpoint" / one).write_text(text.replace("OUT", str(out)))
    source.check_checkpoint(checkpoint)
    assert Output(str(out)).stream_id(checkpoint) == "ea90"
    (out / "checkpoint" / ".offsets.crc").write_bytes(b"")
    whole = (out / "checkpoint" / name).read_text()
    for damaged in ("", whole[:-1], "{}", "[]", "\0" * len(whole)):
        (out / "checkpoint" / name).write_text(damaged)
        with pytest.raises((LandingError, OutputError)) as raised:
            stream.Job(None, str(five.directory), str(out), str(out / "checkpoint"), 2).start()
        assert str(raised.value) == (
            f"{out}/checkpoint/{name} is damaged: delete the whole checkpoint {out}/checkpoint, and start the pipeline again. It"
            " then reads the whole landing, and recognises messages that are in the tables"
        )


@pytest.mark.req("P3", "P8")
@pytest.mark.parametrize("tables", ["of an older backup", "deleted", "of another stream"])
def test_tables_that_lack_batches_of_the_checkpoint_are_refused(local, five, tmp_path, out, tables):
    """Spark would not name the segments of these batches again, so the verdict would not notice them."""
    checkpoint, output = Storage(str(tmp_path / "checkpoint")), Output(str(out))
    output.prepare(2)
    stream_id = output.stream_id(checkpoint)
    (tmp_path / "checkpoint" / "commits").mkdir()
    for batch in range(2):
        if batch == 0 and tables != "deleted":
            of = stream_id if tables == "of an older backup" else "another"
            stream.run_batch(local, {"c": 1}, Storage(str(five.directory)), output, 2, of, batch)
            assert output.stream_id(checkpoint) == stream_id
        (tmp_path / "checkpoint" / "commits" / str(batch)).write_text(CHECKPOINT["commits/0"])
    if tables == "of another stream":  # it has read the whole landing itself
        assert output.stream_id(checkpoint) == stream_id
    else:
        with pytest.raises(OutputError, match=r"has batches that .*/out lacks: .* Delete the checkpoint, too; then"):
            output.stream_id(checkpoint)


@pytest.mark.req("P3", "P8")
@pytest.mark.parametrize(
    "damaged",
    [
        *("", "{", '{"batch": 1', "[1]", '{"batch": 1, "unknown": 2}', "\0\0"),
        '{"batch": 1, "stream": "s", "stream_batch": 0, "summary": null}',
    ],
)
def test_damaged_commit_or_format_is_named_with_what_to_do(local, five, out, damaged):
    commit = once(local, str(five.directory), str(out), 2)
    path = out / "commits" / "000000001.json"
    path.write_text(damaged)
    with pytest.raises(
        OutputError, match=r"commits/000000001.json is damaged, .*: restore it from a backup. If there is none"
    ):
        Output(str(out)).latest()
    assert commit.batch == 1
    (out / "format.json").write_text(damaged.replace("unknown", "format"))
    with pytest.raises(OutputError, match=r"format.json is damaged: restore it|has table format (None|2)"):
        Output(str(out)).prepare(2)
    path.unlink()
    (out / "format.json").write_text("")
    with pytest.raises(OutputError, match=r"format.json is damaged: delete it: there are no tables yet"):
        Output(str(out)).prepare(2)


@pytest.mark.req("P3")
@pytest.mark.parametrize("part", ["state", "read", "files", "rows", "summary"])
def test_commit_that_lacks_a_part_is_damaged(local, five, out, part):
    once(local, str(five.directory), str(out), 2)
    path = out / "commits" / "000000001.json"
    commit = json.loads(path.read_text())
    lacking = {key: value for key, value in commit.items() if key != part}
    for changed in (lacking, commit | {part: {}}, commit | {part: dict.fromkeys(commit[part])}):
        path.write_text(json.dumps(changed))
        with pytest.raises(OutputError, match=r"commits/000000001.json is damaged"):
            Output(str(out)).latest()


@pytest.mark.req("P3")
def test_commit_of_an_earlier_version_without_a_checksum_is_read(local, five, out):
    commit = once(local, str(five.directory), str(out), 2)
    path = out / "commits" / "000000001.json"
    found = json.loads(path.read_text())
    del found["crc"]
    path.write_text(json.dumps(found))
    assert Output(str(out)).latest() == commit


@pytest.mark.req("P3")
def test_commit_of_a_newer_pipeline_is_refused_and_not_called_damaged(out):
    output = Output(str(out))
    output.prepare(4)
    storage = output.storage
    storage.write_json("commits/000000001.json", {"batch": 1, "stream": "s", "stream_batch": 0, "invented": 1})
    with pytest.raises(OutputError, match=r"commits/000000001.json was written by a newer version .* know invented;"):
        output.commit(1)


@pytest.mark.req("P5")
@pytest.mark.parametrize("checkpoint", ["one", "a new one"])
def test_segments_lost_after_the_last_one_read_are_reported(local, landing, out, checkpoint):
    output, directory = Output(str(out)), Storage(str(landing.directory))
    output.prepare(2)
    paths = []
    for seq in range(1, 5):
        landing.message("a", 1, seq)
        paths.append(landing.seal())
    stream.run_batch(local, {"c": 2}, directory, output, 2, "one", 0)
    for lost in paths[:3]:  # the first two are retired, the third was never read
        lost.unlink()
    with pytest.raises(LandingError) as raised:
        stream.run_batch(local, {"c": 4}, directory, output, 2, checkpoint, 1)
    assert str(raised.value) == (
        "segment c-000000003.parquet is missing from the landing: restore what is missing. If it is lost, make an empty segment"
        f" for each number (python -m tools.landing.parquet --landing {directory.uri} --collector c --number 3); the audit then"
        " lists the messages as missing"
    )
    parquet.write_segment(landing.directory, "c", 3, parquet.SCHEMA.empty_table())
    stream.run_batch(local, {"c": 4}, directory, output, 2, checkpoint, 1)
    assert verdict.judge(output).totals["missing"] == 1


@pytest.mark.req("P3")
def test_first_segments_lost_before_the_first_run_are_reported(local, landing, out):
    for value in (b"1", b"2", b"3"):
        landing.raw("x/temperature", value)
        last = landing.seal()
        if value != b"3":
            last.unlink()
    output, directory = Output(str(out)), Storage(str(landing.directory))
    output.prepare(2)
    with pytest.raises(LandingError, match=r"segment b-000000001\.parquet is missing from the landing: restore"):
        stream.run_batch(local, {"b": 1}, directory, output, 2, "one", 0)
    with pytest.raises(
        LandingError, match=r"2 segments from c-000000001\.parquet on are missing .* --number 1 --count 2\)"
    ):
        stream.run_batch(local, {"c": 3}, directory, output, 2, "one", 0)
    assert parquet.main(["--landing", directory.uri, "--collector", "c", "--number", "1", "--count", "2"]) == 0
    commit = stream.run_batch(local, {"c": 3}, directory, output, 2, "one", 0)
    assert commit.rows["readings"] == 1


def test_missing_segment_is_named_and_read_once_it_is_restored(spark, five, tmp_path, out):
    five.message("a", 1, 6)
    gone = five.seal()
    five.message("a", 1, 7)
    five.seal()
    elsewhere = gone.rename(tmp_path / gone.name)
    with pytest.raises(PySparkException) as raised:
        go(spark, five, out)
    told = session.cause(raised.value)
    assert told.startswith("segment c-000000002.parquet is missing from the landing: restore what is missing")
    assert told.endswith("the audit then lists the messages as missing")
    elsewhere.rename(gone)
    output = go(spark, five, out)
    assert [seq for _, _, seq, _ in keys(output)] == [1, 2, 3, 4, 5, 6, 7]
    assert rows_in(output, "duplicates") == 0


@pytest.mark.req("P3")
def test_batch_committed_by_another_run_is_not_replaced(spark, five, out, tmp_path):
    output = go(spark, five, out)
    files = sorted(path for path in out.rglob("*.parquet"))
    with pytest.raises(OutputError, match=r"batch 1 .* by another run"):
        output.write(Commit(1, "another", 0))
    assert sorted(path for path in out.rglob("*.parquet")) == files
    assert output.commit(1).stream != "another"


@pytest.mark.req("P3")
def test_restarted_segment_numbers_are_refused_until_the_checkpoint_is_deleted(spark, landing, out):
    for seq in (1, 2, 3):
        landing.message("a", 1, seq)
        landing.seal()
    go(spark, landing, out)
    for path in landing.directory.iterdir():
        path.unlink()  # all rows are in the tables; but the logs are deleted too, and with them the number of the next segment
    landing.number = landing.row = 0
    landing.message("a", 1, 4)
    landing.seal()
    with pytest.raises(LandingError, match=r"c-000000001.parquet is its collector's newest.*delete .*out/checkpoint"):
        go(spark, landing, out)
    shutil.rmtree(out / "checkpoint")
    output = go(spark, landing, out)
    assert [seq for _, _, seq, _ in keys(output)] == [1, 2, 3, 4]
    for seq in (5, 6):
        landing.message("a", 1, seq)
        landing.seal()
    left = compact.retired(Storage(str(landing.directory)), output.latest())
    assert left == []  # the new segment 2 is not yet read


def test_damaged_segment_is_named_and_its_batch_not_committed(spark, landing, out):
    five_messages(landing)
    path = landing.seal()
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(PySparkException) as raised:
        go(spark, landing, out)
    assert session.cause(raised.value).startswith("c-000000001.parquet: ")
    assert "restore it, or remove it from the landing" in session.cause(raised.value)
    assert Output(str(out)).commits() == []


def test_segment_that_cannot_be_opened_is_not_called_damaged(local, five, out):
    """Its remedy would be to remove the segment, but only another mode, or a disk that is mounted again, is needed."""
    directory, output = Storage(str(five.directory)), Output(str(out))
    output.prepare(2)
    path = five.directory / "c-000000001.parquet"
    path.unlink()
    path.symlink_to(path.name)
    with pytest.raises(OSError, match="levels of symbolic links"):
        stream.run_batch(local, {"c": 1}, directory, output, 2, "one", 0, found={"c": {1: path.name}})


def test_write_error_in_a_worker_is_reported_with_its_own_message(spark, five, out):
    out.mkdir()
    (out / "readings").write_text("in the way")
    with pytest.raises(PySparkException) as raised:
        go(spark, five, out)
    assert re.match(r"(FileExists|NotADirectory)Error: .*readings", session.cause(raised.value))


def test_folder_may_be_a_url(tmp_path):
    folder = tmp_path / "a b[c]"
    for uri in (str(folder), folder.as_uri()):
        storage = Storage(uri)
        assert (storage.path("x"), storage.address("x")) == (f"{folder}/x", f"file://{folder}/x")


@pytest.mark.parametrize("name", ["a b", "a[b]", "a{b,c}", "a\\b", "a*?[^]-"])
def test_paths_may_contain_spaces_and_the_characters_of_patterns(spark, five, tmp_path, name):
    five.directory = five.directory.rename(tmp_path / f"landing {name}")
    output = go(spark, five, tmp_path / f"the {name}", publish="\\" not in name)  # deltalake takes it for a slash
    assert output.read(spark, "readings").count() == 5
    assert (tmp_path / f"the {name}" / "checkpoint" / "commits").exists()
    assert not [*tmp_path.glob("*%20*")]


@pytest.mark.parametrize("other", ["{out}", "./out", "x/../out", "file://{out}"])
def test_checkpoint_belongs_to_its_output_in_any_spelling_of_the_path(tmp_path, monkeypatch, out, other):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x").mkdir()
    checkpoint = Storage(str(out / "checkpoint"))
    stream_id = Output("out").stream_id(checkpoint)
    assert Output(other.format(out=out)).stream_id(checkpoint) == stream_id
    with pytest.raises(OutputError, match="belongs to out, not to x: give that --out"):
        Output("x").stream_id(checkpoint)
    Output("out").write(Commit(1, stream_id, 0))
    out.rename("moved")
    assert Output("moved").stream_id(Storage("moved/checkpoint")) == stream_id
    with pytest.raises(OutputError, match="belongs to out, not to x: give that --out"):
        Output("x").stream_id(Storage("moved/checkpoint"))


def test_wrong_buckets_checkpoint_format_or_landing_is_refused(spark, five, tmp_path, out):
    go(spark, five, out)
    with pytest.raises(OutputError, match="made with 2 buckets"):
        go(spark, five, out, buckets=4)
    with pytest.raises(OutputError, match="belongs to"):
        go(spark, five, tmp_path / "elsewhere", out / "checkpoint")
    (out / "format.json").write_text('{"format": 0, "buckets": 8}')
    with pytest.raises(OutputError, match="table format 0"):
        go(spark, five, out)
    five.directory = tmp_path / "nowhere"
    with pytest.raises(LandingError, match="no such landing"):
        go(spark, five, tmp_path / "new")


def damaged(local, landing, out, how):
    """Return the output of a landing, and its largest file of readings, which is damaged."""
    for device in "bcd":
        landing.message(device, 1, 1)
    taken(local, landing, out)
    path = max(out.glob("readings/**/*.parquet"), key=lambda path: path.stat().st_size)
    content = bytearray(path.read_bytes())
    column = schemas.READINGS.names.index("value" if "other" in how else "seq")
    page = pq.read_metadata(path).row_group(0).column(column)
    content[page.data_page_offset + page.total_compressed_size - 1] ^= 0x10  # the last byte of its page
    other = next(one for one in out.glob("readings/**/*.parquet") if one != path).read_bytes()
    path.write_bytes({"truncated": content[:-20], "empty": b"", "swapped": other}.get(how, content))
    return Output(str(out)), path


@pytest.mark.req("P4")
@pytest.mark.parametrize("how", ["a flipped bit", "a flipped bit of another column", "truncated", "empty", "swapped"])
def test_full_check_reads_no_damaged_file(local, five, out, how):
    output, path = damaged(local, five, out, how)
    names = iter([pa.record_batch([output.files("readings")], ["name"])])
    with pytest.raises(StorageError, match=f"^{path} is damaged"):
        list(check._read(output.storage, names))


@pytest.mark.req("P4")
def test_full_check_names_a_damaged_file_that_spark_would_read(spark, local, five, out, capsys):
    _, path = damaged(local, five, out, "a flipped bit of another column")
    assert check.main(["--out", str(out)]) == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"check: {path} is damaged")
    assert "Traceback" not in said.err


@pytest.mark.req("P3")
@pytest.mark.parametrize("kind", ["readings", "prints", "intervals", "audit"])
def test_file_that_was_replaced_by_another_one_of_its_kind_is_damaged(local, five, out, kind):
    for device in "bcd":
        five.message(device, 1, 1)
    five.seal()
    once(local, str(five.directory), str(out), 2)
    storage = Storage(str(out))
    one, other = Output(str(out)).files(kind)
    shutil.copy(storage.path(one), storage.path(other))
    with pytest.raises(StorageError, match=rf"{other} is damaged: .*\(it has the content of {one}\)"):
        storage.table(other)
    five.message("a", 1, 6)
    five.message("b", 1, 1, value=2.0)
    five.seal()
    if kind in ("intervals", "audit"):
        with pytest.raises(StorageError, match=f"{other} is damaged"):
            once(local, str(five.directory), str(out), 2)


@pytest.mark.req("P3", "P4")
def test_full_check_agrees_with_the_audit_finds_damaged_rows_and_keeps_an_existing_session(spark, five, out, capsys):
    five.message("b", 1, 1)
    five.seal()
    output = go(spark, five, out)
    assert verdict.judge(output).line == verdict.WHOLE
    capsys.readouterr()
    assert check.main(["--out", str(out)]) == 0
    assert "6 messages of 2 boots: tables and audit agree" in capsys.readouterr().out
    commit = output.latest()
    (name,) = commit.files["readings"]
    table = pq.read_table(output.storage.path(name), partitioning=None)
    pq.write_table(pa.concat_tables([table.slice(0, 3), table.slice(0, 1), table.slice(5)]), output.storage.path(name))
    found = check.full_check(spark, str(out))
    assert (found.boots, found.messages, found.agrees) == (2, 4, False)
    assert (found.twice, found.absent, found.strange) == (1, 2, 0)
    assert [(row.device, row.twice, row.absent) for row in found.rows] == [("a", 1, 2)]
    at = table.schema.get_field_index("device")
    foreign = table.slice(0, 1).set_column(
        at, table.schema.field(at), pa.array(["z"]).cast(table.schema.field(at).type)
    )
    pq.write_table(pa.concat_tables([table, foreign]), output.storage.path(name))
    output._put(dataclasses.replace(commit, kept_from="2020-01-01"))
    found = check.full_check(spark, str(out))
    assert (found.twice, found.absent, found.strange) == (0, 0, 1)


@pytest.mark.req("P3")
def test_compaction_keeps_every_row_and_the_stream_continues(spark, landing, out):
    five_messages(landing)
    landing.raw("flashmqtt/a/readings", b"{")
    landing.seal()
    landing.message("a", 1, 5, value=5, dup=True)
    landing.message("b", 1, 1, kind="boot")
    landing.seal()
    output = go(spark, landing, out, segments_per_batch=1)
    tables = ("readings", "quarantine", "duplicates", "events", "audit")
    before = {table: len(rows_of(output, table)) for table in tables}
    rows = keys(output)
    assert compact.compact(spark, str(out)).whole
    assert batches(output) == [2]
    assert {table: len(rows_of(output, table)) for table in tables} == before
    assert keys(output) == rows
    assert len(list((out / "readings").rglob("*.parquet"))) == len(output.files("readings"))
    assert compact.compact(spark, str(out)) is None
    (old,) = compact.retired(Storage(str(landing.directory)), output.latest())
    (landing.directory / old.path).unlink()
    landing.message("a", 1, 4, value=4, dup=True)
    landing.message("a", 1, 6, value=6)
    landing.seal()
    go(spark, landing, out, segments_per_batch=1)
    assert batches(output) == [2, 3]
    assert keys(output) == sorted([*rows, ("a", 1, 6, 6.0)])


def test_landing_of_the_archive_gives_readings(local, tmp_path):
    archive.write_landing(tmp_path / "landing")
    commit = once(local, str(tmp_path / "landing"), str(tmp_path / "out"), 2)
    assert commit.rows == {"readings": 10}
