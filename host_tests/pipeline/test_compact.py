"""Compaction, retention and remaking the tables. Only one test needs Spark."""

import contextlib
import datetime
import os
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from host_tests.pipeline.conftest import rows_in
from tools.command import Failure
from tools.pipeline import compact, remake, report, session, stream, verdict
from tools.pipeline.batch import ledger, task
from tools.pipeline.tables import commits
from tools.pipeline.tables.commits import Output
from tools.pipeline.tables.storage import Storage

DAY_US = 86_400_000_000
BEGIN = datetime.datetime.fromtimestamp(1_790_000_000, datetime.UTC).date()


def day(number):
    return str(BEGIN + datetime.timedelta(days=number))


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


class Days:
    """A landing that brings a batch a day, of one stream."""

    def __init__(self, local, landing, out):
        self.local, self.landing, self.out = local, landing, out
        self.output = Output(str(out))
        self.output.prepare(2)
        self.seq = 0

    def take(self, days=1, batches=1):
        for _ in range(days):
            for _ in range(batches):
                for device in "ab":
                    self.landing.message(device, 1, self.seq + 1, arrival_us=self.landing.arrival_us)
                self.seq += 1
                self.landing.seal()
                end = {"c": self.landing.number}
                directory = Storage(str(self.landing.directory))
                stream.run_batch(self.local, end, directory, self.output, 2, "one stream", self.landing.number)
            self.landing.arrival_us += DAY_US

    def readings(self):
        paths = [self.output.storage.path(name) for name in self.output.files("readings")]
        return sorted(
            (row["device"], row["seq"])
            for path in paths
            for row in pq.read_table(path, columns=["device", "seq"], partitioning=None).to_pylist()
        )


@pytest.fixture
def days(local, landing, out):
    return Days(local, landing, out)


@pytest.mark.req("P3", "P7")
def test_compaction_merges_small_files_and_keeps_compacted_ones(local, days, out):
    days.take(days=3, batches=3)
    before = days.readings()
    assert len(before) == 18
    assert len(days.output.files("readings")) == 9 * len({*map(compact.bucket_of, days.output.files("readings"))})
    assert compact.compact(local, str(out)).whole
    assert days.readings() == before
    old = set(days.output.files("readings"))
    assert {compact.day_of(name) for name in old} == {day(0), day(1), day(2)}
    days.take(days=1, batches=2)
    compact.compact(local, str(out))
    new = set(days.output.files("readings"))
    assert old < new
    assert {compact.day_of(name) for name in new - old} == {day(3)}
    assert len(days.readings()) == 22
    assert {path.name for path in (out / "readings").rglob("*.parquet")} == {name.split("/")[-1] for name in new}
    assert compact.compact(local, str(out)) is None
    assert rows_in(days.output, "readings") == 22
    assert verdict.judge(days.output).line == verdict.WHOLE


@pytest.mark.req("P3")
def test_compaction_while_commits_are_read_gives_the_new_commit(local, days, out, monkeypatch):
    days.take(3)
    whole = days.readings()
    read = Storage.read

    def read_and_compact(storage, name):
        content = read(storage, name)
        if name == commits.name_of(3) and len(days.output.numbers()) > 1:
            monkeypatch.undo()
            compact.compact(local, str(out))
        return content

    monkeypatch.setattr(Storage, "read", read_and_compact)
    assert [commit.whole for commit in days.output.commits()] == [True]
    assert days.readings() == whole


def test_commit_deletes_temporary_files_of_interrupted_attempts_in_its_directories(days, out):
    days.take(days=1)
    row = out / "readings" / f"day={day(1)}" / "batch=2" / ".bucket-0000-cutoff.parquet.tmp"
    state = out / "state" / "audit" / ".000000002-bucket-0000-cutoff.parquet.tmp"
    for path in (row, state):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"PAR1")
    days.take(days=1)
    assert any(name.startswith(f"readings/day={day(1)}/batch=2/") for name in days.output.files("readings"))
    assert not row.exists() and not state.exists()


def test_start_of_a_run_deletes_the_temporary_files_of_killed_commands(days, out):
    days.take(days=1)
    names = [
        f"{where}.{name}.0badcafe.tmp"
        for where in ("", "commits/", "report/2/", "sinks/")
        for name in ("x.json", "y.html")
    ]
    names += ["verdict.json.tmp", "commits/notes.tmp", ".settings.tmp", ".note.tmp"]  # other programs'
    for n, name in enumerate(names):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_bytes(b"{")
        age_s = 60 if n % 2 else 2 * commits.KILLED_S  # the younger ones may be of a running command
        os.utime(out / name, (time.time() - age_s,) * 2)
    days.output.prepare(2)
    assert [name for name in names if not (out / name).exists()] == names[:8:2]


def test_run_can_start_while_another_command_completes_a_file(days, out, monkeypatch):
    days.take(days=1)
    temporary = out / ".verdict.json.0badcafe.tmp"
    temporary.write_bytes(b"{")
    there = Storage.list

    def completed(storage, *arguments, **named):
        found = there(storage, *arguments, **named)
        temporary.unlink(missing_ok=True)
        return found

    monkeypatch.setattr(Storage, "list", completed)
    days.output.prepare(2)


def test_orphans_exclude_files_of_the_batch_in_progress(local, days, out):
    days.take(days=2)
    (name, *_) = days.output.files("readings")
    for batch in (1, 2, 3):  # the third is under way
        path = out / "readings" / f"day={day(9)}" / f"batch={batch}" / "bucket-0000-cutoff.parquet"
        path.parent.mkdir(parents=True)
        path.write_bytes((out / name).read_bytes())
    assert len(compact.orphans(days.output)) == 2


@pytest.mark.req("P3", "P7")
@pytest.mark.parametrize("lost", [1, 2])
def test_compaction_is_refused_while_a_commit_is_missing_and_deletes_no_row(days, out, capsys, lost):
    days.take(days=2, batches=2)
    path = out / commits.name_of(lost)
    content = path.read_bytes()
    path.unlink()
    assert compact.main(["--out", str(out)]) == 2
    assert f"{path} is missing, and only it names the files of its batch: restore it" in capsys.readouterr().err
    path.write_bytes(content)
    assert len(days.readings()) == 8
    assert verdict.judge(days.output).line == verdict.WHOLE


@pytest.mark.req("P4", "P7")
def test_retention_deletes_old_days_and_keeps_the_audit(local, days, out):
    days.take(days=5)
    compact.compact(local, str(out))
    merged = compact.compact(None, str(out), keep_from=day(3))
    assert {compact.day_of(name) for name in days.output.files("readings")} == {day(3), day(4)}
    assert (merged.kept_from, rows_in(days.output, "readings")) == (day(3), 4)
    assert not (out / "readings" / f"day={day(0)}").exists() or not list(
        (out / "readings" / f"day={day(0)}").rglob("*.parquet")
    )
    found = verdict.judge(days.output)
    assert (found.line, found.totals["delivered"]) == (verdict.WHOLE, 10)
    days.take(days=1)
    assert verdict.judge(days.output).totals["delivered"] == 12
    assert days.output.kept_from() == day(3)
    assert compact.compact(None, str(out), keep_from=day(1)).kept_from == day(3)


class Later(datetime.datetime):
    """A clock in the future."""

    @classmethod
    def now(cls, zone=None):
        return datetime.datetime(2090, 1, 1, tzinfo=zone)


@pytest.mark.req("P5", "P7")
def test_clock_in_the_future_deletes_no_new_message_in_quarantine_either(local, landing, out, monkeypatch):
    landing.raw("flashmqtt/a/readings", b"{")
    landing.seal()
    output = Output(str(out))
    output.prepare(2)
    stream.run_batch(local, {"c": 1}, Storage(str(landing.directory)), output, 2, "s", 0)
    monkeypatch.setattr(compact.datetime, "datetime", Later)
    assert compact.main(["--out", str(out), "--keep-days", "1"]) == 0
    assert rows_in(output, "quarantine") == 1


@pytest.mark.req("P3", "P7")
def test_clock_in_the_future_deletes_only_what_is_old_beside_the_newest_message(days, out, capsys):
    days.take(days=5)
    landing = str(days.landing.directory)
    ages = ["--keep-days", "2", "--retire", landing, "--keep-raw-days", "1000"]
    with pytest.MonkeyPatch.context() as future:
        future.setattr(compact.datetime, "datetime", Later)
        assert compact.main(["--out", str(out), *ages]) == 0
    assert "0 segments retired" in capsys.readouterr().out
    assert {compact.day_of(name) for name in days.output.files("readings")} == {day(2), day(3), day(4)}


@pytest.mark.req("P3", "P7")
def test_no_segment_is_retired_while_a_file_of_the_tables_is_missing(days, out, capsys):
    days.take(days=3)
    path = out / days.output.files("readings")[0]
    content = path.read_bytes()
    arguments = ["--out", str(out), "--retire", str(days.landing.directory)]
    path.write_bytes(content[:-1])
    assert compact.main(arguments) == 2
    assert f"{path} is missing or incomplete (1 file in all), so no segment is deleted" in capsys.readouterr().err
    assert len(list(days.landing.directory.iterdir())) == 3
    path.write_bytes(content)
    assert compact.main(arguments) == 0
    assert len(list(days.landing.directory.iterdir())) == 1


def test_segments_are_retired_by_age_and_remake_then_refuses(local, days, out, capsys):
    days.take(days=4)
    for number in (1, 2):
        path = days.landing.directory / f"c-{number:09d}.parquet"
        os.utime(path, (1_000_000, 1_000_000))
    arguments = ["--out", str(out), "--retire", str(days.landing.directory), "--keep-raw-days", "30"]
    assert compact.main([*arguments, "--dry-run"]) == 0
    assert "2 segments retired" in capsys.readouterr().out
    assert len(list(days.landing.directory.iterdir())) == 4
    assert compact.main(arguments) == 0
    assert "2 segments retired" in capsys.readouterr().out
    landing = Storage(str(days.landing.directory))
    assert [one.number for one in compact.retired(landing, days.output.latest())] == [3]  # the last one stays
    assert "the tables can't be made again from the segments up to c-000000003.parquet" in compact.lost_by(
        compact.retired(landing, days.output.latest())
    )
    gone = remake.lacking(landing, days.output.latest().read)
    assert gone == "2 of c, from c-000000001.parquet to c-000000002.parquet"
    assert remake.main(["--landing", landing.uri, "--out", str(out), "--to", str(out.parent / "new")]) == 2
    assert "the raw data is incomplete: 2 of c" in capsys.readouterr().err


def test_no_segment_is_retired_while_a_remake_reads_them(days, out, capsys, monkeypatch):
    days.take(days=3)
    landing = str(days.landing.directory)
    statuses = []

    @contextlib.contextmanager
    def compacted(*_):
        statuses.append(compact.main(["--out", str(out), "--retire", landing]))
        raise Failure("no Spark here")
        yield

    monkeypatch.setattr(session, "opened", compacted)
    assert remake.main(["--landing", landing, "--out", str(out), "--to", str(out.parent / "new")]) == 2
    assert statuses == [2]
    assert f"compact: another compaction, `remake` or `forget` is active in {out}: wait" in capsys.readouterr().err
    assert len(list(days.landing.directory.iterdir())) == 3


def test_remake_makes_no_file_in_tables_that_can_only_be_read(days, out, capsys, monkeypatch):
    days.take()
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert remake.main(["--landing", str(days.landing.directory), "--out", str(out), "--to", str(out)]) == 2
    assert "has tables already" in capsys.readouterr().err
    assert not list(out.glob("*.lock"))


def test_remake_from_raw_data_gives_the_same_sums(spark, days, out, capsys):
    """The only test here with Spark: compact, then remake the tables from the raw data."""
    days.take(days=2, batches=2)
    assert compact.main(["--out", str(out)]) == 0
    assert "files before, " in capsys.readouterr().out
    new = out.parent / "new"
    assert (
        remake.main(["--landing", str(days.landing.directory), "--out", str(out), "--to", str(new), "--buckets", "4"])
        == 0
    )
    printed = capsys.readouterr().out
    assert verdict.WHOLE in printed
    assert f"{new} has the same sums as {out}" in printed
    assert Output(str(new)).check_format() == 4
    assert remake.main(["--landing", str(days.landing.directory), "--out", str(out), "--to", str(new)]) == 2
    assert "has tables already: give another --to, or, if a remake that was killed" in capsys.readouterr().err
    days.landing.message("a", 1, days.seq + 1)
    days.landing.seal()
    newer = ["--landing", str(days.landing.directory), "--out", str(out), "--to", str(out.parent / "newer")]
    assert remake.main(newer) == 1
    assert f"{out} has not read all segments yet, so its sums are smaller: run the pipeline" in capsys.readouterr().out


def test_batch_of_many_days_is_split_by_day_with_few_open_files(landing, out, monkeypatch):
    monkeypatch.setattr(task, "MOST_OPEN", 3)
    for number in range(40):
        for device in "ab":
            landing.message(device, 1, number + 1, arrival_us=landing.arrival_us + (number * 7 % 5) * DAY_US)
    landing.seal()
    storage = Storage(str(out))
    done = task.run(storage, Storage(str(landing.directory)), 0, 1, 1, {}, {}, ["c-000000001.parquet"])
    files = [file for table, file, _ in done.files if table == "readings"]
    assert len(files) == len(set(files))
    rows = pa.concat_tables([pq.read_table(storage.path(name), partitioning=None) for name in files])
    assert rows.num_rows == 80
    for name in files:
        arrival = pq.read_table(storage.path(name), partitioning=None)["arrival"].to_pylist()
        assert {str(one.date()) for one in arrival} == {compact.day_of(name)}


@pytest.mark.req("P7")
def test_page_and_verdict_read_no_settled_file_of_healthy_boots(local, landing, out, monkeypatch):
    monkeypatch.setattr(ledger, "SETTLED_ROWS", 4)
    monkeypatch.setattr(ledger, "FULL_ROWS", 4)
    output = Output(str(out))
    output.prepare(2)
    seq = 0
    for number in range(1, 30):
        seq += 2 if number == 7 else 1  # one is lost in boot 6
        for device in "ab":
            landing.message(device, number, seq)
        landing.seal()
        stream.run_batch(local, {"c": number}, Storage(str(landing.directory)), output, 1, "s", number)
    settled = [
        name for name in output.latest().state_files("audit") if name not in output.latest().state_files("audit", False)
    ]
    assert len(settled) > 5
    assert verdict.judge(output).line == f"{verdict.LOST} 2 missing."
    (bad,) = [name for name in settled if 6 in pq.read_table(output.storage.path(name))["boot"].to_pylist()]
    for name in settled:
        if name != bad:
            path = out / name
            size = path.stat().st_size
            footer = int.from_bytes(path.read_bytes()[-8:-4], "little") + 8
            path.write_bytes(b"PAR1" + b"\0" * (size - footer - 4) + path.read_bytes()[-footer:])  # bounds without rows
    found = verdict.judge(output)
    assert found.line == f"{verdict.LOST} 2 missing."
    facts = report.collect(output, found)
    assert [(row["device"], row["boot"]) for row in facts["audit"][:2]] == [("a", 6), ("b", 6)]
    assert facts["totals"]["boots"] == 58
