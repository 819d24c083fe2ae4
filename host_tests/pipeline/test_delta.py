"""Other engines read exactly the committed rows from the Delta logs, also after a run was killed."""

import json
import resource
import shutil

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable

from host_tests.pipeline import engines, killed
from tools.pipeline import compact, stream
from tools.pipeline.tables import delta
from tools.pipeline.tables.commits import Output, OutputError
from tools.pipeline.tables.delta import Delta
from tools.pipeline.tables.storage import Storage

DAY_US = 86_400_000_000
OLD = {1, 2}


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


class Batches:
    """A landing that brings batches, each published as the stream does it."""

    def __init__(self, local, landing, out):
        self.local, self.landing, self.out = local, landing, out
        self.output = Output(str(out))
        self.output.prepare(2)
        self.delta = Delta(self.output)
        self.seq = 0

    def commit(self):
        self.seq += 1
        for device in "ad":
            self.landing.message(device, 1, self.seq, value=self.seq)
        self.landing.raw("flashmqtt/a/readings", b"{%d" % self.seq)
        self.landing.seal()
        directory = Storage(str(self.landing.directory))
        end = {"c": self.landing.number}
        return stream.run_batch(self.local, end, directory, self.output, 2, "one", self.landing.number)

    def take(self, count=1, days=0):
        for _ in range(count):
            self.delta.committed(self.commit())
            self.landing.arrival_us += days * DAY_US


@pytest.fixture
def batches(local, landing, out):
    return Batches(local, landing, out)


def same(output, spark=None, tables=tuple(engines.COLUMNS)):
    """Compare every engine's rows with those of the commits."""
    for table in tables:
        expected = engines.truth(output, table)
        for name, read in engines.ENGINES.items():
            if spark is not None or name != "Spark":
                assert read(output, table, spark) == expected, (table, name)


def versions(output):
    return {name: DeltaTable(engines.directory(output, name)).version() for name in delta.DIRECTORIES}


def actions(output, table, version=None):
    directory = engines.directory(output, table)
    version = DeltaTable(directory).version() if version is None else version
    with open(f"{directory}/_delta_log/{version:020d}.json") as file:
        return [json.loads(line) for line in file]


@pytest.mark.req("P3", "P7")
def test_every_engine_reads_exactly_the_committed_rows(spark, batches, out):
    batches.take(3)
    (name, *_) = batches.output.files("readings")
    stray = out / "readings" / name.split("/")[1] / "batch=9" / "bucket-0000-cutoff.parquet"
    stray.parent.mkdir()
    shutil.copy(out / name, stray)  # as an interrupted attempt leaves it
    same(batches.output, spark)
    assert len(engines.truth(batches.output, "readings")) == 6


def test_rows_have_their_day_and_batch(batches):
    batches.take(2, days=1)
    frame = DeltaTable(engines.directory(batches.output, "readings")).to_pandas()
    assert sorted(zip(frame["batch"], frame["day"].astype(str), frame["seq"], strict=True))[::2] == [
        (1, "2026-09-21", 1),
        (2, "2026-09-22", 2),
    ]


@pytest.mark.req("P3")
def test_publishing_again_changes_nothing(batches):
    batches.take(2)
    before = versions(batches.output)
    Delta(batches.output).follow()
    Delta(batches.output).committed(batches.output.latest())
    batches.delta.committed(batches.output.latest())
    assert versions(batches.output) == before
    (one,) = {
        DeltaTable(engines.directory(batches.output, name)).transaction_version(delta.BATCH)
        for name in ("readings", "audit")
    }
    assert one == 2


def test_deleted_log_is_created_again(batches, out):
    batches.take(2)
    shutil.rmtree(out / "readings" / "_delta_log")
    batches.take(1)
    Delta(batches.output).follow()
    same(batches.output)


def test_output_without_delta_logs_is_published_completely(local, batches, out):
    for _ in range(3):
        batches.commit()
    assert not Delta(batches.output).exist()
    compact.compact(local, str(out))
    assert not Delta(batches.output).exist()  # Delta was not requested so far
    Delta(batches.output).follow()
    same(batches.output)


@pytest.mark.req("P3", "P7")
def test_compaction_is_no_data_change_and_retention_is_one(local, batches, out):
    batches.take(2)
    batches.landing.arrival_us += 3 * DAY_US
    batches.take(2)
    compact.compact(local, str(out))
    same(batches.output)
    found = actions(batches.output, "readings")
    changes = {kind: {one[kind]["dataChange"] for one in found if kind in one} for kind in ("add", "remove")}
    assert changes == {"add": {False}, "remove": {False}}
    last = str(max(map(compact.day_of, batches.output.files("readings"))))
    compact.compact(None, str(out), keep_from=last)
    same(batches.output)
    found = actions(batches.output, "readings")
    assert {one["remove"]["dataChange"] for one in found if "remove" in one} == {True}
    assert not [one for one in found if "add" in one]
    batches.take(1)  # by a stream that continued meanwhile
    same(batches.output)


@pytest.mark.req("P3")
def test_concurrent_publishers_give_the_same_tables(local, batches, out, monkeypatch):
    batches.take(1)
    commit = batches.commit()
    opened = Delta._open
    asked = []

    def open_and_be_overtaken(self, table):
        found = opened(self, table)
        if table == "readings" and not asked:
            asked.append(table)
            Delta(batches.output).follow()  # as a compaction does it
        return found

    monkeypatch.setattr(Delta, "_open", open_and_be_overtaken)
    batches.delta.committed(commit)
    assert asked
    same(batches.output)
    assert len(DeltaTable(engines.directory(batches.output, "readings")).file_uris()) == 4


def test_commits_are_listed_once_unless_another_process_changes_a_log(batches, monkeypatch):
    open_log, list_commits = Delta._open, Output.commits
    opened, listed, others = [], [], []

    def commits(self):
        listed.append(len(opened))
        if len(listed) == 1:
            raise FileNotFoundError("a compaction deleted it")
        return list_commits(self)

    def open_and_be_overtaken(self, table):
        found = open_log(self, table)
        opened.append(table)
        if others:
            others.pop().follow()
        return found

    batches.commit()
    monkeypatch.setattr(Output, "commits", commits)
    monkeypatch.setattr(Delta, "_open", open_and_be_overtaken)
    logs = len(delta.DIRECTORIES)
    Delta(batches.output).follow()
    assert listed == [logs, 2 * logs]
    batches.commit()
    del opened[:]
    others.append(Delta(batches.output))
    Delta(batches.output).follow()
    assert listed[2:] == [1 + logs, 2 * logs, 3 * logs]
    monkeypatch.undo()
    same(batches.output)


@pytest.mark.parametrize("last_us", [1_790_000_000_003_000, 253_402_300_799_999_999], ids=["2026", "end of 9999"])
def test_log_statistics_bound_arrivals_and_name_no_device(batches, last_us):
    batches.landing.arrival_us = last_us - 3000
    batches.take(1)
    (one, *_) = [one["add"] for one in actions(batches.output, "readings") if "add" in one]
    stats = json.loads(one["stats"])
    assert (stats["numRecords"], sorted(stats["minValues"])) == (1, ["arrival"])
    assert stats["minValues"]["arrival"] <= stats["maxValues"]["arrival"]
    found = DeltaTable(engines.directory(batches.output, "readings")).to_pyarrow_dataset()
    exact = pa.scalar(batches.landing.arrival_us - 2000, pa.timestamp("us", tz="UTC"))
    assert found.to_table(filter=ds.field("arrival") == exact).num_rows == 1  # not pruned by rounded bounds


def test_log_with_another_schema_is_refused(batches, out):
    batches.take(1)
    log = out / "events" / "_delta_log"
    shutil.rmtree(log)
    shutil.copytree(out / "quarantine" / "_delta_log", log)
    with pytest.raises(OutputError, match=r"events/_delta_log can't be updated: it has another schema"):
        Delta(batches.output).follow()


@pytest.mark.parametrize("content", ["{{{", '{"add": {"path": "x'])
def test_damaged_log_is_named_in_one_line_without_a_librarys_traceback(batches, out, content):
    batches.take(1)
    next((out / "events" / "_delta_log").glob("*.json")).write_text(content)
    pattern = r"^the Delta log \S*events/_delta_log can't be updated: .*Delete that log, .*$"
    with pytest.raises(OutputError, match=pattern) as raised:
        Delta(batches.output).follow()
    assert "0: " not in str(raised.value)


def test_log_that_the_disk_refuses_is_reported_with_the_cause(batches, out):
    batches.take(1)
    shutil.rmtree(out / "events" / "_delta_log")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        with pytest.raises(OutputError) as raised:
            Delta(batches.output).follow()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    told = str(raised.value)
    assert "events/_delta_log can't be updated: " in told and ": File too large" in told
    assert told.isprintable()


@pytest.mark.req("P7")
def test_deleted_files_of_a_table_are_reported_as_missing(batches, out):
    batches.take(1)
    shutil.rmtree(out / "readings")
    with pytest.raises(
        OutputError, match=r"readings/.*parquet is missing, with (\d+) of the \1 files of the table readings"
    ):
        Delta(batches.output).follow()


@pytest.mark.req("P3", "P7")
def test_stream_publishes_after_a_kill_between_commit_and_publication(spark, batches, landing, out, monkeypatch):
    monkeypatch.setattr(Delta, "committed", lambda *_: None)  # as if killed before it
    for seq in (1, 2):
        landing.message("a", 1, seq)
        landing.seal()
    checkpoint = str(out / "checkpoint")
    stream.Job(spark, str(landing.directory), str(out), checkpoint, 2, 1).start().awaitTermination()
    assert len(batches.output.files("readings")) == 2
    assert not Delta(batches.output).exist()
    monkeypatch.undo()
    stream.Job(spark, str(landing.directory), str(out), checkpoint, 2).start().awaitTermination()
    same(batches.output, spark)
    landing.message("a", 1, 3)
    landing.seal()
    stream.Job(spark, str(landing.directory), str(out), checkpoint, 2).start().awaitTermination()
    same(batches.output, spark)
    assert DeltaTable(engines.directory(batches.output, "readings")).version() == 2


@pytest.mark.req("P3", "P7")
@pytest.mark.timeout(900)
def test_kill_after_every_file_change_leaves_whole_batches_readable(tmp_path):
    """Batches, compactions and retention, killed with -9 after each call that changes a file, from the commit on.

    Without Spark: it has no Delta reader here, and gets the same list of files as DuckDB.
    """
    output = Output(str(tmp_path / "out"))
    moments, log, read = 0, set(), []
    for moments in killed.rerun_after_kills(killed.publishing, tmp_path):
        if not DeltaTable.is_deltatable(engines.directory(output, "readings")):
            continue
        before, log = log, {path for path in (tmp_path / "out" / "readings").rglob("*") if path.is_file()}
        if log != before:  # else engines read the same again
            read = [engine(output, "readings") for name, engine in engines.ENGINES.items() if name != "Spark"]
        assert all(rows == read[0] for rows in read), moments
        seqs = [row[3] for row in read[0]]
        assert all(seqs.count(seq) == 2 for seq in seqs), moments  # both devices' readings of a batch, or none
        committed = {row[3] for row in engines.truth(output, "readings")}
        assert committed - {max(committed)} <= set(seqs) <= committed | OLD, (
            moments
        )  # behind by a batch, or by the retention
    assert moments > 40
    same(output)
    assert {row[3] for row in engines.truth(output, "readings")} == {3, 4}
