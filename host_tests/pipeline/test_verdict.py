"""The verdict at the end of a run, also while another run is active. Without Spark."""

import errno
import importlib
import json
import os
import re
import subprocess
import sys
import time

import pyarrow.parquet as pq
import pytest

from host_tests.pipeline.conftest import rows_in, taken
from tools.pipeline import stream, verdict
from tools.pipeline.batch import task
from tools.pipeline.tables import books, storage
from tools.pipeline.tables.commits import Output, OutputError
from tools.pipeline.tables.storage import Storage

pytestmark = pytest.mark.usefixtures("without_delta")
SECOND_US = 1_000_000
DAY_US = 86_400 * SECOND_US


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


def fill(landing, device="a", seqs=range(1, 6), boot=1, every_s=0.001):
    for seq in seqs:
        landing.message(device, boot, seq, arrival_us=landing.arrival_us + int(every_s * SECOND_US))


def missing(out):
    table = pq.read_table(out / verdict.FILES["missing"])
    return sorted(tuple(row.values()) for row in table.to_pylist())


@pytest.mark.req("P6")
def test_clean_run_is_reported_as_complete(local, landing, out, capsys):
    fill(landing)
    landing.seal()
    told = verdict.Expectations({"a": {"boots": [{"boot": 1, "first": 1, "last": 5}]}})
    found = verdict.judge(taken(local, landing, out), told)
    assert (found.status, found.line) == (0, verdict.WHOLE)
    verdict.print_audit(found)
    assert capsys.readouterr().out.splitlines()[-1].strip() == verdict.WHOLE
    assert json.loads((out / "verdict.json").read_text())["line"] == verdict.WHOLE


@pytest.mark.parametrize("kind", ["audit", "intervals"])
def test_missing_state_is_named_with_what_to_do(local, landing, out, capsys, kind):
    fill(landing)
    taken(local, landing, out)
    for path in out.glob(f"state/{kind}/*.parquet"):
        path.unlink()
    told = rf"{out}/state/{kind}/.*\.parquet is missing: restore it from a copy. .* made again from the landing"
    with pytest.raises(FileNotFoundError, match=told):
        taken(local, landing, out)
    if kind == "audit":
        assert verdict.main(["--out", str(out)]) == 2
        assert re.match(f"verdict: {told}", capsys.readouterr().err)


@pytest.mark.req("P4")
def test_read_only_tables_are_judged(local, landing, out, capsys, monkeypatch):
    fill(landing, seqs=[1, 2, 4])
    taken(local, landing, out)
    before = sorted(out.rglob("*"))

    def refused(storage, name, sync=True):
        raise PermissionError(errno.EROFS, os.strerror(errno.EROFS), f"{out}/{name}")

    monkeypatch.setattr(Storage, "create", refused)
    assert verdict.main(["--out", str(out)]) == 1
    printed = capsys.readouterr()
    assert printed.out.splitlines()[-1].strip() == f"{verdict.LOST} 1 missing."
    assert re.match(r"verdict: .*missing.parquet: Read-only file system: .*not stored\n$", printed.err)
    assert sorted(out.rglob("*")) == before


@pytest.mark.req("P4")
@pytest.mark.parametrize(
    "pattern", ["readings/*/*/*.parquet", "prints/*/*/*.parquet", "state/intervals/*", "commits/000000001.json"]
)
def test_missing_file_of_the_tables_is_a_problem(local, landing, out, pattern):
    for number in (1, 2):  # two commits of one stream, as `stream.run_batch` makes them
        fill(landing, seqs=range(5 * number - 4, 5 * number + 1))
        landing.seal()
        output = Output(str(out))
        output.prepare(2)
        stream.run_batch(local, {"c": number}, Storage(str(landing.directory)), output, 2, "s", number)
    assert verdict.judge(output).line == verdict.WHOLE
    gone = sorted(out.glob(pattern))[0]
    if "commits" not in pattern:  # a copy that ended early
        content = gone.read_bytes()
        for size in (0, 3, len(content) - 1):
            gone.write_bytes(content[:size])
            assert verdict.judge(output).problems == [
                f"1 file of the tables is missing or incomplete ({verdict.shown(str(gone.relative_to(out)))})"
            ]
        gone.write_bytes(content)
        assert verdict.judge(output).line == verdict.WHOLE
    gone.unlink()
    found = verdict.judge(output)
    assert found.status == 1
    assert found.line.startswith(
        f"{verdict.LOST} 1 file of the tables is missing or incomplete ({gone.relative_to(out)}"[:110]
    )


@pytest.mark.parametrize(
    "name", ["000000001.json~", "notes.txt", "1.json", "000000009.json.tmp", "copy/000000009.json"]
)
def test_foreign_file_beside_the_commits_is_ignored(local, landing, out, name):
    fill(landing)
    output = taken(local, landing, out)
    (out / "commits" / name).parent.mkdir(exist_ok=True)
    (out / "commits" / name).write_text("{")
    assert output.numbers() == [1]
    assert verdict.judge(output).line == verdict.WHOLE


@pytest.mark.req("P4")
@pytest.mark.parametrize("content", [b"", b"no Parquet"])
def test_damaged_file_of_the_state_is_named(local, landing, out, capsys, content):
    fill(landing)
    taken(local, landing, out)
    damaged = next(out.glob("state/audit/*.parquet"))
    damaged.write_bytes(content)
    assert verdict.main(["--out", str(out)]) == 2
    assert f"verdict: {damaged} is damaged: restore it from a copy." in capsys.readouterr().err


@pytest.mark.req("P3", "P4")
@pytest.mark.parametrize("kind", ["state/intervals", "state/identities", "state/audit", "prints", "readings"])
def test_flipped_bit_in_a_file_of_the_tables_is_named_and_changes_no_row(local, landing, out, kind):
    fill(landing, seqs=[seq for seq in range(1, 90) if seq % 7 and seq % 3])
    output = taken(local, landing, out)
    path = max(out.glob(f"{kind}/**/*.parquet"), key=lambda path: path.stat().st_size)
    name, good = str(path.relative_to(out)), path.read_bytes()
    rows, refused = output.storage.table(name), 0
    end = len(good) - 8 - int.from_bytes(good[-8:-4], "little")  # the footer has no checksum
    pages = range(4, end, end // 400 * 2 + 3)
    for at in pages:
        flipped = bytearray(good)
        flipped[at] ^= 1 << at % 8
        path.write_bytes(flipped)
        try:
            assert output.storage.table(name) == rows
        except storage.StorageError as error:
            assert str(error).startswith(f"{path} is damaged: restore it from a copy")
            refused += 1
    assert refused > len(pages) / 2


@pytest.mark.req("P3")
@pytest.mark.parametrize(
    ("command", "content"), [("report", b""), ("report", b"no Parquet"), ("sink", b"PAR1" * 4), ("compact", b"")]
)
def test_damaged_file_of_a_table_ends_a_command_with_its_name(local, landing, out, tmp_path, capsys, command, content):
    for number in (1, 2):
        fill(landing, seqs=range(5 * number - 4, 5 * number + 1))
        landing.seal()
        output = Output(str(out))
        output.prepare(2)
        stream.run_batch(local, {"c": number}, Storage(str(landing.directory)), output, 2, "s", number)
    damaged = sorted(out.glob("readings/**/*.parquet"))[-1]
    damaged.write_bytes(content)
    more = ["--to", str(tmp_path / "r.duckdb")] if command == "sink" else []
    main = importlib.import_module(f"tools.pipeline.{command}").main
    assert main(["--out", str(out), *more]) == 2
    assert f"{command}: {damaged} is damaged: restore it from a copy" in capsys.readouterr().err


@pytest.mark.req("P4")
def test_missing_messages_are_found_with_and_without_expectations(local, landing, out, capsys):
    landing.message("a", 1, 1, kind="boot")
    fill(landing, seqs=(2, 3, 5))
    landing.message("a", 2, 8, kind="boot")
    fill(landing, seqs=(9,), boot=2)
    output = taken(local, landing, out)
    found = verdict.judge(output)
    assert found.status == 1
    assert found.line == f"{verdict.LOST} 3 missing."
    verdict.print_audit(found)
    printed = capsys.readouterr().out
    assert [line.split() for line in printed.splitlines() if line.strip().startswith("a ")] == [
        ["a", "1", "7", "4", "0", "3", "0"],
        ["a", "2", "2", "2", "0", "0", "0"],
    ]
    assert missing(out) == [("a", 1, 1, 4, 4, 1), ("a", 1, 1, 6, 7, 2)]
    boots = [
        {"boot": 1, "first": 1, "last": 7},
        {"boot": 2, "first": 8, "last": 11},
        {"boot": 3, "first": 12, "last": 12},
    ]
    found = verdict.judge(output, verdict.Expectations({"a": {"boots": boots}}))
    assert found.line == f"{verdict.LOST} 6 missing."
    assert missing(out) == [("a", 1, 1, 4, 4, 1), ("a", 1, 1, 6, 7, 2), ("a", 1, 2, 10, 11, 2), ("a", 1, 3, 12, 12, 1)]
    found = verdict.judge(output, verdict.Expectations({"a": {"boots": boots[1:2]}}))
    assert found.unknown == [("a", 1, 4)]
    assert "1 boot that is not in the boards' counters" in found.line


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("{", "Expecting property name"),
        ("[]", "'list' object has no attribute 'items'"),
        ("3", "'int' object has no attribute 'items'"),
        ('{"a": {}}', "'boots'"),
        ('{"a": {"boots": "x"}}', "string indices must be integers"),
        ('{"a": {"boots": [{"boot": 1, "first": 1}]}}', "'last'"),
        ('{"a": {"boots": [{"boot": 1, "first": "1", "last": 2}]}}', "not supported between instances"),
        (
            '{"a": {"boots": [{"boot": 1, "first": 1, "last": 1e400}]}}',
            "'a' has the boot {'boot': 1, 'first': 1, 'last': inf}",
        ),
        ('{"a": {"boots": [{"boot": 1, "first": 1, "last": 2147483648}]}}', "'last': 2147483648}"),
        (
            '{"a": {"boots": [{"boot": 1.5, "first": 1, "last": 2}]}}',
            "'a' has the boot {'boot': 1.5, 'first': 1, 'last': 2}",
        ),
        (
            '{"a": {"boots": [{"boot": 1, "first": 1, "last": 5}, {"boot": 1, "first": 1, "last": 5}]}}',
            "'a' has boot 1 twice",
        ),
        ('{"a": {"boots": [{"boot": true, "first": 1, "last": 2}]}}', "'boot': True"),
        ("[" * 20_000, "recursion"),
        (
            '{"a": {"boots": [{"boot": 1, "first": 5, "last": 1}]}}',
            "'a' has the boot {'boot': 1, 'first': 5, 'last': 1}",
        ),
    ],
)
def test_counters_of_another_form_are_refused(local, landing, out, capsys, content, text):
    fill(landing)
    taken(local, landing, out)
    file = landing.directory / "expected.json"
    file.write_text(content)
    assert verdict.main(["--out", str(out), "--expected", str(file)]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"verdict: {file}: ") and text in printed and '{"DEVICE": {"boots": [{' in printed


@pytest.mark.parametrize("topic", ["", "$share/g", "a/#/b", "a#", "a+/b"])
def test_expected_topic_that_is_no_filter_is_refused(out, capsys, topic):
    with pytest.raises(SystemExit) as ended:
        verdict.main(["--out", str(out), "--expect-topic", topic])
    assert ended.value.code == 2
    assert "--expect-topic: " in capsys.readouterr().err


@pytest.mark.req("P6")
def test_audit_prints_reasons_of_quarantined_messages(local, landing, out, capsys):
    fill(landing)
    landing.raw("workshop/door", b"ajar")
    landing.raw("workshop/gate", b"ajar")
    landing.raw("flashmqtt/a/readings", b"{")
    verdict.print_audit(verdict.judge(taken(local, landing, out)))
    printed = capsys.readouterr().out.splitlines()
    (at,) = [n for n, line in enumerate(printed) if "could not be read" in line]
    assert printed[at - 1].split()[:6] == ["1", "device", "1", "boot", "5", "5"]
    assert printed[at : at + 2] == [
        "  3 messages could not be read: the table quarantine has them, with the reason:",
        "    2: neither a number, a boolean nor a SenML pack, and no mapping matches its topic",
    ]


@pytest.mark.req("P6")
def test_tables_before_the_first_batch_are_no_proof(local, landing, out):
    Output(str(out)).prepare(2)
    found = verdict.judge(Output(str(out)))
    assert found.status == 1
    assert found.line.startswith(
        f"{verdict.NOTHING} there is no batch yet. If a run has just begun, wait for its first"
    )
    assert "If not, the landing has no segment: a collector makes one a minute" in found.line
    assert found.line.endswith(" matches the published topics.")


@pytest.mark.req("P6")
def test_segments_without_a_message_are_no_proof(local, landing, out):
    found = verdict.judge(taken(local, landing, out))
    assert found.status == 1
    assert (
        found.line
        == f"{verdict.NOTHING} the collector's segments have no message, or only live ones, which are not counted."
    )


@pytest.mark.req("P6", "P5")
def test_landing_of_only_bad_payloads_is_reported_even_when_accepted(local, landing, out):
    for _ in range(3):
        landing.raw("flashmqtt/a/readings", b"{")
    output = taken(local, landing, out)
    told = "all 3 messages are in quarantine"
    found = verdict.judge(output)
    assert (found.status, found.line) == (1, f"{verdict.LOST} {told}.")
    found = verdict.judge(output, verdict.Expectations(accept=("quarantine",)))
    assert (found.status, found.line) == (0, f"{verdict.NONE_READ} (accepted: {told})")
    other = verdict.Expectations(accept=("quarantine",), topics=("flashmqtt/+/boot",))
    found = verdict.judge(output, other)
    assert found.status == 1
    assert found.line == f"{verdict.LOST} nothing matched the topic flashmqtt/+/boot. (accepted: {told})"


@pytest.mark.req("P6")
@pytest.mark.parametrize("accept", verdict.ACCEPTABLE)
def test_empty_collection_fails_with_every_accept_option(local, landing, out, accept):
    found = verdict.judge(taken(local, landing, out), verdict.Expectations(accept=(accept,)))
    assert (found.status, found.nothing) == (1, True)


@pytest.mark.req("P6", "P5")
def test_quarantined_message_fails_unless_accepted(local, landing, out):
    fill(landing)
    landing.raw("flashmqtt/a/readings", b"{")
    output = taken(local, landing, out)
    found = verdict.judge(output)
    assert (found.status, found.line) == (1, f"{verdict.LOST} 1 in quarantine.")
    found = verdict.judge(output, verdict.Expectations(accept=("quarantine",)))
    assert (found.status, found.line) == (0, f"{verdict.WHOLE} (accepted: 1 in quarantine)")
    assert output.latest().summary["reasons"] != {}


@pytest.mark.req("P4")
@pytest.mark.parametrize("reason", ["refused", "expired", "dropped", "damaged"])
def test_board_s_counters_keep_the_reasons_of_missing_numbers(local, landing, out, reason):
    landing.message("a", 1, 1)
    landing.message("a", 1, 4, **{f"{reason}_seqs": "2-3"})
    output = taken(local, landing, out)
    told = {"a": {"boots": [{"boot": 1, "first": 1, "last": 4}]}}
    assert verdict.judge(output, verdict.Expectations(told)).line == f"{verdict.LOST} 2 missing (2 {reason})."
    told["a"]["boots"][0]["last"] = 5
    found = verdict.judge(output, verdict.Expectations(told))
    assert found.line == f"{verdict.LOST} 3 missing (2 {reason}, 1 without a reason)."


@pytest.mark.req("P4")
def test_missing_numbers_show_reasons_and_given_up_ones_are_acceptable(local, landing, out):
    for seq in (1, 2, 6):
        landing.message("a", 1, seq)
    landing.message("a", 1, 7, refused_seqs="3", expired_seqs="4")
    output = taken(local, landing, out)
    accepting = verdict.Expectations(accept=("given-up",))
    found = verdict.judge(output, accepting)
    assert (found.status, found.line) == (
        1,
        f"{verdict.LOST} 3 missing (1 refused, 1 expired, 1 without a reason).",
    )
    landing.message("a", 1, 5)
    output = taken(local, landing, out)
    found = verdict.judge(output)
    assert (found.status, found.line) == (1, f"{verdict.LOST} 2 missing (1 refused, 1 expired).")
    found = verdict.judge(output, accepting)
    assert (found.status, found.line) == (
        0,
        f"{verdict.WHOLE} (accepted: 2 given up by their boards (1 refused, 1 expired))",
    )


@pytest.mark.req("P4")
def test_shared_ids_and_jumped_counters_are_named(local, landing, out):
    for seq in range(1, 6):
        landing.message("twins", 1, seq, life=11)
        landing.message("twins", 1, seq, life=22, up=seq / 7)
        landing.message("once", 1, seq, life=33)
    for seq in range(1, 3):  # wiped
        landing.message("once", 1, seq, life=44)
        landing.message("far", 1, 1_000_000_000 * (seq - 1) + 1, life=55)
    landing.message("far", 1, 1_000_000_002, life=55)
    found = verdict.judge(taken(local, landing, out))
    assert (found.status, found.line) == (
        1,
        f"{verdict.BUT} 1 jump of a counter (far); 1 id that two boards have (twins).",
    )


def test_no_board_is_silent_because_the_collectors_clock_was_ahead_for_a_message(local, landing, out):
    now_us = time.time_ns() // 1000
    for device, ahead_us in (("a", 30 * 86_400_000_000), ("b", 0)):
        landing.arrival_us = now_us - 600_000_000
        fill(landing, device, range(1, 11), every_s=60)
        landing.message(device, 1, 11, arrival_us=now_us + ahead_us)
    landing.seal()
    assert verdict.judge(taken(local, landing, out)).line == verdict.WHOLE


@pytest.mark.req("P6")
def test_silent_board_is_judged_by_its_own_interval(local, landing, out):
    begun = landing.arrival_us
    fill(landing, "often", range(1, 31), every_s=60)
    landing.arrival_us = begun
    fill(landing, "rarely", range(1, 4), every_s=3000)
    landing.arrival_us = begun
    fill(landing, "once", (1,))
    landing.arrival_us = begun
    fill(landing, "on", range(1, 200), every_s=60)  # the fleet publishes for three hours
    output = taken(local, landing, out)
    found = verdict.judge(output)
    assert (found.status, found.line) == (1, f"{verdict.BUT} 1 silent (often).")
    found = verdict.judge(output, verdict.Expectations(silent_after_s=7200))
    assert found.line == f"{verdict.BUT} 2 silent (once, often)."
    assert verdict.judge(output, verdict.Expectations(silent_after_s=0)).status == 0
    found = verdict.judge(output, verdict.Expectations(silent_after_s=7200, accept=("silent",)))
    assert (found.status, found.line) == (0, f"{verdict.WHOLE} (accepted: 2 silent (once, often))")
    found = verdict.judge(output, verdict.Expectations(as_of_s=begun / 1e6 + 365 * 86_400))
    assert found.line == f"{verdict.BUT} 3 silent (often, rarely, on)."  # one message gives no interval


@pytest.mark.req("P6")
def test_expected_topic_without_messages_is_named(local, landing, out):
    fill(landing)
    output = taken(local, landing, out)
    assert output.latest().summary["topics"] == {"flashmqtt/+/readings": 5}
    topics = ("flashmqtt/#", "plant2/#", "flashmqtt/a/readings", "flashmqtt/b/readings", "flashmqtt/+/health", "#")
    topics += ("flashmqtt/+/#", "flashmqtt/+/+/#", "+/+/+", "+/+/+/+")
    found = verdict.judge(output, verdict.Expectations(topics=topics))
    unmatched = [one for one in topics if f"nothing matched the topic {one}" in found.problems]
    assert unmatched == ["plant2/#", "flashmqtt/b/readings", "flashmqtt/+/health", "+/+/+/+"]
    assert found.status == 1
    assert found.line.startswith(verdict.BUT)


@pytest.mark.req("P6")
def test_topic_with_long_levels_is_matched_although_the_sums_cut_it(local, landing, out):
    landing.raw(f"{'x' * 300}/d/{'y' * 300}", b"1")
    landing.raw(f"plant/{'z' * 300}", b"1")
    output = taken(local, landing, out)
    assert max(map(len, output.latest().summary["topics"])) < 300
    topics = (f"{'x' * 300}/#", f"{'x' * 300}/+/{'y' * 300}", f"plant/{'z' * 300}", f"plant/{'y' * 300}")
    found = verdict.judge(output, verdict.Expectations(topics=topics))
    assert [one for one in topics if f"nothing matched the topic {one}" in found.problems] == [topics[3]]


@pytest.mark.req("P6")
def test_expected_topic_of_any_number_of_levels_is_matched(local, landing, out):
    for topic in ("home/hall/door", "zigbee/hall/lamp/state"):
        landing.raw(topic, b"1")
    landing.raw("gateways/g1/up", b'{"device": "m1"}')  # only a mapping could tell its device
    landing.message("a", 1, 1)
    output = taken(local, landing, out)
    fit = ("home/hall/door", "home/+/door", "zigbee/hall/lamp/state", "zigbee/+/+/state", "zigbee/hall/#", "zigbee/#")
    fit += (
        "gateways/g1/up",
        "gateways/g1/up/#",
        "+/+/+",
        "$share/collectors/flashmqtt/#",
        "$share/c/home/hall/door",
        "#",
    )
    other = (
        "home/kitchen/door",
        "zigbee/+/state",
        "zigbee/hall/+",
        "home/hall",
        "$share/c/plant/#",
        "flashmqtt/g1/readings",
    )
    found = verdict.judge(output, verdict.Expectations(topics=(*fit, *other)))
    assert [one for one in found.problems if "topic" in one] == [f"nothing matched the topic {one}" for one in other]


@pytest.mark.req("P6")
def test_expected_topic_is_matched_by_messages_in_quarantine(local, landing, out):
    for topic in ("flashmqtt/z/readings", "home/hall/door"):
        landing.raw(topic, b"{")
    landing.raw("home-2/hall/door", b"1")
    output = taken(local, landing, out)
    topics = ("flashmqtt/#", "flashmqtt/+/readings", "home/#", "home/+/door", "home/hall/door", "#", "flashmqtt/+/boot")
    found = verdict.judge(output, verdict.Expectations(topics=topics))
    assert [one for one in found.problems if "topic" in one] == ["nothing matched the topic flashmqtt/+/boot"]


@pytest.mark.parametrize(
    ("wanted", "topic", "fits"),
    [
        ("#", "a/b", True),
        ("a/#", "a/b/c", True),
        ("a/+/c", "a/+/c", True),
        ("a/x/c", "a/+/c", True),
        ("a/+", "a/+/c", False),
        ("a/+/c/d", "a/+/c", False),
        ("b/#", "a/+/c", False),
    ],
)
def test_topic_filter_matches_topics_with_device_wildcards(wanted, topic, fits):
    assert verdict.matches(wanted.split("/"), topic.split("/")) is fits


def test_audit_of_many_boots_shows_only_those_with_losses(local, landing, out, capsys):
    for device in range(60):
        fill(landing, f"d{device:02}", (1, 2, 3) if device % 20 else (1, 3))
    found = verdict.judge(taken(local, landing, out))
    assert [row["device"] for row in found.rows] == ["d00", "d20", "d40"]
    verdict.print_audit(found)
    printed = capsys.readouterr().out
    assert "60 devices" in printed
    assert "of 60 boots only those with losses are shown" in printed


def test_control_characters_in_a_device_name_are_escaped(capsys):
    row = dict.fromkeys(verdict.PRINTED, 0) | {"device": "a\n\x1b[2J" + "x" * 100, "life": 1, "boot": 1}
    verdict.print_audit(verdict.Verdict(1, {}, rows=[row]))
    line = capsys.readouterr().out.splitlines()[3]
    assert line.split()[0] == r"a\n\x1b[2J" + "x" * 53 + "…"


@pytest.mark.req("P3")
def test_row_written_twice_is_found_by_the_read_back(local, landing, out, monkeypatch):
    written = task._Writers.write_by_day

    def twice(self, table, rows):
        written(self, table, rows)
        if table == "readings":
            written(self, table, rows.slice(1, 2))

    fill(landing)
    landing.seal()
    monkeypatch.setattr(task._Writers, "write_by_day", twice)
    found = verdict.judge(taken(local, landing, out))
    assert found.line == f"{verdict.LOST} 2 rows twice in the tables."


@pytest.mark.req("P3")
def test_row_of_an_earlier_batch_written_again_is_found(local, landing, out, monkeypatch):
    fill(landing)
    output = taken(local, landing, out)
    old = pq.read_table(output.storage.path(output.files("readings")[0]), partitioning=None)
    written = task._Writers.write_by_day

    def again(self, table, rows):
        written(self, table, rows)
        if table == "readings" and rows.num_rows:
            written(self, table, old.slice(0, 1).cast(rows.schema))

    fill(landing, seqs=(6, 7))
    landing.seal()
    monkeypatch.setattr(task._Writers, "write_by_day", again)
    found = verdict.judge(taken(local, landing, out))
    assert found.line == f"{verdict.LOST} 1 row twice in the tables."


@pytest.mark.req("P3")
def test_message_not_written_is_found_by_the_read_back(local, landing, out, monkeypatch):
    written = task._Writers.write_by_day
    monkeypatch.setattr(
        task._Writers,
        "write_by_day",
        lambda self, table, rows: written(self, table, rows.slice(1) if table == "readings" else rows),
    )
    fill(landing)
    found = verdict.judge(taken(local, landing, out))
    assert found.line == f"{verdict.LOST} 1 that were processed are not in the tables."


@pytest.mark.req("P3")
def test_pack_split_between_two_reads_is_counted_once(local, landing, out, monkeypatch):
    monkeypatch.setattr(storage, "ROWS", 3)
    for seq in (1, 2, 3):
        records = ",".join(f'{{"n":"x{n}","v":{n}}}' for n in range(4))
        landing.raw("flashmqtt/a/readings", f'[{{"bn":"a/","boot":1,"seq":{seq},"up":{seq}}},{records}]'.encode())
    output = taken(local, landing, out)
    assert rows_in(output, "readings") == 12
    assert verdict.judge(output).line == verdict.WHOLE


@pytest.mark.req("P4")
def test_verdict_uses_the_new_state_when_a_run_deletes_the_old(local, landing, out, monkeypatch):
    fill(landing)
    output = taken(local, landing, out)
    told = books.Books.rows
    overtaken = []

    def rows(self, *arguments):
        if not overtaken:
            for number in (1, 2):  # two batches are committed now, and the state to be read is deleted
                fill(landing, seqs=(5 + number,))
                landing.seal()
                overtaken.append(number)
            taken(local, landing, out)
            taken(local, landing, out)
        return told(self, *arguments)

    monkeypatch.setattr(books.Books, "rows", rows)
    found = verdict.judge(output)
    assert (found.batch, found.line) == (3, verdict.WHOLE)
    assert found.totals["delivered"] == 7


def test_verdict_command_requires_tables_and_prints_the_verdict(local, landing, out, capsys):
    assert verdict.main(["--out", str(out)]) == 2
    assert "has no tables yet: run the pipeline first (make pipeline)" in capsys.readouterr().err
    fill(landing)
    taken(local, landing, out)
    assert verdict.main(["--out", str(out)]) == 0
    assert verdict.WHOLE in capsys.readouterr().out
    assert verdict.main(["--out", str(out), "--as-of", "now", "--silent-after", "60"]) == int(
        time.time() > landing.arrival_us / 1e6 + 60
    )
    (out / "format.json").write_text('{"format": 0, "buckets": 2}')
    with pytest.raises(OutputError, match="table format 0"):
        Output(str(out)).check_format()


def test_machine_whose_locale_has_only_ascii_gets_page_and_verdict(local, landing, out, tmp_path):
    fill(landing, "k\u00fcche")
    taken(local, landing, out)
    names = tmp_path / "names"
    names.write_text("k\u00fcche", "utf-8-sig")  # as editors on Windows write it
    ascii_only = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}

    def run(module, *more):
        command = [sys.executable, "-m", f"tools.pipeline.{module}", "--out", str(out), *more]
        ran = subprocess.run(command, capture_output=True, text=True, env=ascii_only, check=False)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    assert r"k\xfcche" in run("verdict")
    run("report")
    assert "\u203a</button>" in (out / "report.html").read_text("utf-8")
    files = run("forget", "--landing", str(landing.directory), "--devices", str(names), "--dry-run")
    assert "report.html" in files


@pytest.mark.req("P4")
def test_six_batches_give_the_same_totals_as_one(local, landing, out, tmp_path):
    for number in range(6):
        fill(landing, "a", range(number * 10 + 1, number * 10 + 9), boot=number // 2 + 1)
        fill(landing, "b", range(number * 5 + 1, number * 5 + 6))
        landing.arrival_us += DAY_US
        taken(local, landing, out)
    whole = taken(local, landing, tmp_path / "whole")
    one, many = whole.latest(), Output(str(out)).latest()
    # Each call is a new stream, so each batch but the first reads all earlier segments again: replays.
    ours = {**many.summary["totals"], "replayed": 0}
    assert ours == one.summary["totals"]
    assert many.summary["causes"] == one.summary["causes"]
    assert len({name.split("/")[1] for name in whole.files("readings")}) == 6
