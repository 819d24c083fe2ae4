"""What a batch reads from the files of earlier batches: prints, quarantine, held messages. Without Spark."""

from collections import Counter

import pyarrow.parquet as pq
import pytest

from host_tests.pipeline.conftest import Landing, rows_in, taken
from tools.pipeline import compact, verdict
from tools.pipeline.batch import lives, prints
from tools.pipeline.tables import schemas
from tools.pipeline.tables.storage import Storage


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


def rows(output, table):
    """Return a table's committed rows; for quarantine, held messages too."""
    names = output.files(table) + (output.files("held") if table == "quarantine" else [])
    columns = schemas.TABLES[table].names
    found = []
    for name in names:
        with output.storage.fs.open_input_file(output.storage.path(name)) as file:
            found += pq.read_table(file, columns=columns).to_pylist()
    return found


def counted(output, table):
    return Counter(map(repr, rows(output, table)))


def odd_messages(landing):
    """Land messages that are stored, messages that are refused for each reason, and messages that are held."""
    landing.message("a", 1, 1, kind="boot", life=5)
    for seq in (2, 3):
        landing.message("a", 1, seq, life=5)
    landing.message("a", 1, 2, value=9, life=5)  # another payload
    landing.message("a", 1, 2_000_000_000, life=5)  # a jump
    landing.raw("flashmqtt/a/readings", b"{")
    landing.raw("flashmqtt/b/readings", landing.rows[0][4])
    landing.message("old", 1, 1, kind="boot")
    landing.message("old", 1, 2)
    landing.message("old", 1, 2, value=9)


@pytest.mark.req("P3", "P5")
def test_lost_checkpoint_duplicates_no_rows(local, landing, out):
    odd_messages(landing)
    output = taken(local, landing, out)
    before = {name: counted(output, name) for name in ("readings", "events", "quarantine", "prints", "ties")}
    told = verdict.judge(output)
    assert sum(before["quarantine"].values()) == told.totals["quarantine"] == rows_in(output, "quarantine") == 5
    assert output.files("held")
    landing.message("a", 1, 4, life=5)
    landing.message("old", 1, 3)
    landing.seal()
    for _ in range(2):  # each time as a new stream, which has read nothing yet
        output = taken(local, landing, out)
        assert counted(output, "quarantine") == before["quarantine"]
        assert not before["readings"] - counted(output, "readings")
        assert sum(counted(output, "readings").values()) == sum(before["readings"].values()) + 2
    found = verdict.judge(output)
    assert found.totals["quarantine"] == 5
    assert found.totals["twice"] == found.totals["absent"] == 0
    assert found.line == told.line


@pytest.mark.req("P5")
def test_quarantine_keeps_equal_payloads_when_the_numbers_begin_again(local, landing, out, tmp_path):
    (tmp_path / "anew").mkdir()
    anew = Landing(tmp_path / "anew")
    for logs, arrival_us in ((landing, None), (anew, landing.arrival_us + 60_000_000)):
        logs.raw("plug/status", b"offline?", arrival_us=arrival_us)
        logs.message("old", 1, 1, kind="boot")
        logs.message("old", 1, 2, value=len(logs.rows), up=7)
        logs.message("old", 1, 2, value=9)  # held: it may be of another life
        logs.seal()
        output = taken(local, logs, out)
    assert [row["payload"] for row in rows(output, "quarantine")].count(b"offline?") == 2
    assert sum(counted(output, "quarantine").values()) == rows_in(output, "quarantine") == 4


@pytest.mark.req("P3", "P4", "P5")
def test_lost_checkpoint_restores_no_rows_deleted_by_retention(local, landing, out):
    odd_messages(landing)
    landing.message("old", 1, 1, kind="boot", up=0.7)  # wiped
    landing.message("old", 1, 2, value=8)
    taken(local, landing, out)
    landing.message("a", 1, 4, life=5, arrival_us=landing.arrival_us + 40 * 86_400_000_000)
    landing.raw("flashmqtt/a/readings", b"}")
    landing.message("a", 1, 2, life=5)  # duplicates of rows that retention deletes next
    landing.message("old", 1, 1, kind="boot", up=0.7)
    landing.message("old", 1, 2, value=8)
    output = taken(local, landing, out)
    compact.compact(local, str(out), "2026-10-20")
    tables = ("readings", "events", "quarantine", "prints", "ties", "duplicates")
    before = {name: counted(output, name) for name in tables}
    told = verdict.judge(output)
    assert [row["seq"] for row in rows(output, "readings")] == [4]
    for _ in range(2):
        output = taken(local, landing, out)
        found = {name: counted(output, name) for name in tables}
        replayed = found.pop("duplicates") - before["duplicates"]
        assert found == {name: before[name] for name in found}
        assert replayed and all("'replay'" in row and "2026, 10, 31" in row for row in replayed)
    assert verdict.judge(output).line == told.line


@pytest.mark.req("P3")
def test_conflict_and_duplicate_are_recognised_after_compaction(local, landing, out):
    day_us = 86_400_000_000
    for seq in range(1, 6):
        landing.message("a", 1, seq, life=5, arrival_us=landing.arrival_us + 80 * day_us)
        output = taken(local, landing, out)
    compact.compact(local, str(out))
    landing.message("a", 1, 1, life=5)
    landing.message("a", 1, 1, value=2, life=5)
    output = taken(local, landing, out)
    assert [row["reason"] for row in rows(output, "quarantine")] == [lives.REUSED]
    causes = Counter(row["cause"] for row in rows(output, "duplicates") if row["segment"] == 6)
    assert causes == {"resend": 1}
    assert verdict.judge(output).line == f"{verdict.LOST} 1 in quarantine."


@pytest.mark.req("P3")
def test_held_messages_count_as_quarantine_until_their_life_is_known(local, landing, out):
    for seq in (1, 2, 3):
        landing.message("a", 1, seq, kind="boot" if seq == 1 else "readings")
    for seq in (2, 3):
        landing.message("a", 1, seq, value=7)  # wiped; the boot message is late
    output = taken(local, landing, out)
    assert verdict.judge(output).line == f"{verdict.LOST} 2 in quarantine."
    assert sum(output.latest().summary["reasons"].values()) == 2
    assert [row["reason"] for row in rows(output, "quarantine")] == [lives.REUSED] * 2
    landing.message("a", 1, 1, kind="boot", up=0.7)
    output = taken(local, landing, out)
    found = verdict.judge(output)
    assert (found.status, found.line) == (0, verdict.WHOLE)
    assert output.latest().summary["reasons"] == {}
    assert rows(output, "quarantine") == []
    assert {(row["life"], row["seq"], row["value"]) for row in rows(output, "readings")} == {
        (1, 2, 1.0),
        (1, 3, 1.0),
        (2, 2, 7.0),
        (2, 3, 7.0),
    }


@pytest.mark.req("P3")
def test_prints_are_searched_again_when_a_compaction_replaces_files(local, landing, out, monkeypatch):
    for seq in (1, 2):
        landing.message("a", 1, seq, life=5)
        taken(local, landing, out)
    listed = prints.Prints._find_in_files
    overtaken = []

    def find(self, *arguments):
        if not overtaken:
            overtaken.append(True)
            compact.compact(local, str(out))
        return listed(self, *arguments)

    monkeypatch.setattr(prints.Prints, "_find_in_files", find)
    landing.message("a", 1, 1, life=5)
    landing.message("a", 1, 2, life=5)
    output = taken(local, landing, out)
    assert overtaken
    assert rows(output, "quarantine") == []
    assert verdict.judge(output).line == verdict.WHOLE


def test_prints_beyond_the_cache_are_read_from_files(local, landing, out, monkeypatch):
    monkeypatch.setattr(prints, "MOST_KEPT", 4)
    for batch in range(4):
        for seq in range(1, 4):
            landing.message("a", 1, 3 * batch + seq, life=5)
        output = taken(local, landing, out)
    for seq in (11, 1, 5, 8, 3):
        landing.message("a", 1, seq, life=5)
        landing.message("a", 1, seq, value=2, life=5)
    output = taken(local, landing, out)
    assert [row["reason"] for row in rows(output, "quarantine")] == [lives.REUSED] * 5


def test_duplicates_within_a_batch_read_no_prints(local, landing, out, monkeypatch):
    read = []
    load = Storage.table
    monkeypatch.setattr(
        Storage,
        "table",
        lambda storage, name, *columns, **how: read.append(name) or load(storage, name, *columns, **how),
    )
    for batch in range(3):
        for seq in range(1, 4):
            landing.message("a", 1, 3 * batch + seq, life=5)
        landing.message("a", 1, 3 * batch + 3, life=5)
        landing.seal()
    taken(local, landing, out)
    assert [name for name in read if name.startswith("prints/")] == []
