"""Messages without an identity: each becomes a reading once, and there is no proof of delivery."""

import itertools
import re
import shutil
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from host_tests.pipeline.conftest import Landing, Local
from host_tests.pipeline.test_task import work
from tools.landing import parquet, segments
from tools.pipeline import check, stream, verdict
from tools.pipeline.batch import mapping, plain, task
from tools.pipeline.batch.messages import process
from tools.pipeline.batch.state import State
from tools.pipeline.tables import schemas
from tools.pipeline.tables.commits import Output
from tools.pipeline.tables.storage import Storage

JSON = mapping.Mapping(
    tuple(
        mapping._rule(mapping.MappingError, table)
        for table in ({"topic": "json/{device}", "path": "$.*"}, {"topic": "noise/#", "ignore": True})
    )
)


def value(row):
    return next((row[name] for name in ("value", "text", "flag") if row[name] is not None), None)


def readings_of(landing, rules=JSON, state=None):
    tables = {}
    for name, found in process(state or State(), landing.table(), rules):
        tables.setdefault(name, []).extend(found.to_pylist())
    return tables


@pytest.mark.parametrize(
    ("payload", "wanted"),
    [
        *[
            (text, float(text))
            for text in (b"21.5", b"0", b"-3", b"1e-05", b".5", b"5.", b" 40\r\n", b"1E3", b"-0.0", b"007")
        ],
        *[(b"true", True), (b"False", False), (b"True", True), (b"online", True), (b"offline", False)],
    ],
)
def test_number_or_boolean_is_a_reading(landing, payload, wanted):
    landing.raw("greenhouse-1/temperature", payload)
    (row,) = readings_of(landing)["plain"]
    assert (row["device"], row["name"], value(row)) == ("greenhouse-1", "temperature", wanted)
    assert (row["life"], row["boot"], row["seq"], row["index"]) == (0, 0, row["row"], 0)


@pytest.mark.req("P5")
@pytest.mark.parametrize(
    ("topic", "payload", "reason"),
    [
        ("d/x", b"", plain.NO_MAPPING),
        ("d/x", b"ON", plain.NO_MAPPING),
        ("d/x", b"nan", plain.NO_MAPPING),
        ("d/x", b"21,5", plain.NO_MAPPING),
        ("d/x", b"1\n2", plain.NO_MAPPING),
        ("d/x", b"\xff", plain.NO_MAPPING),
        ("d/x", b"1e999", "a value is not finite"),
        ("d/x", b"[1]", "a record is not an object"),
        ("flashmqtt/d/x", b"21.5", "not a pack"),
        ("json/d", b"21.5", "mapping: nothing at $.*"),
    ],
)
def test_payload_that_is_not_a_reading_goes_to_quarantine(landing, topic, payload, reason):
    landing.raw(topic, payload)
    tables = readings_of(landing)
    assert [reason in row["reason"] for row in tables.pop("quarantine")] == [True]
    assert tables == {}


def test_topic_without_its_last_level_is_the_device():
    shapes = {
        "greenhouse-1/t": ("greenhouse-1", "t"),
        "home/hall/t": ("home/hall", "t"),
        "t": ("t", None),
        "/t": ("/t", None),
    }
    assert {topic: mapping.device_and_name(topic) for topic in shapes} == shapes


def test_ignored_topics_leave_no_rows(landing):
    landing.raw("noise/1", b"21.5")
    landing.raw("flashmqtt-live/d/readings", b'[{"bn":"d/","n":"x","v":1}]')
    landing.raw("flashmqtt-commands/d", b'{"id": "1"}')
    landing.raw("homeassistant/sensor/d/x/config", b"{}")
    assert readings_of(landing) == {}


ROW = st.sampled_from(
    [
        ("greenhouse-1/temperature", b"21.5"),
        ("greenhouse-1/temperature", b"True"),
        ("greenhouse-1/temperature", b"x"),
        ("json/k", b'{"a": 1, "b": "t"}'),
        ("json/k", b"{}"),
        ("noise/1", b"7"),
        ("flashmqtt/a/readings", 1),
        ("flashmqtt/a/readings", 2),
        ("flashmqtt/a/readings", b"21.5"),
    ]
)
KIND = st.sampled_from([{}, {}, {}, {"dup": True}, {"dup": True, "qos": 0}, {"retain": True}])


def fill(landing, history):
    for (topic, payload), marks in history:
        if isinstance(payload, int):
            landing.message("a", 1, payload, **({"dup": marks["dup"]} if "dup" in marks else {}))
        else:
            landing.raw(topic, payload, **marks)
    rows, landing.rows = landing.rows, []
    return rows


def without_place(tables):
    """Return the rows of all tables except counts, sorted, without the segment number, which depends on the split."""
    left = {name: rows for name, rows in tables.items() if name not in ("tally", "sums", "prints")}
    return {
        name: sorted(str({key: one for key, one in row.items() if key != "segment"}) for row in rows)
        for name, rows in left.items()
    }


def met(tables):
    found = {}
    for row in tables["sums"]:
        sums = found.setdefault(row["device"], [0, 0, 0])
        for n, name in enumerate(("messages", "readings", "copies")):
            sums[n] += row[name]
    return found


@pytest.mark.req("P3")
@settings(max_examples=120, deadline=None)
@given(st.lists(st.tuples(ROW, KIND), min_size=1, max_size=8), st.sets(st.integers(1, 7)), st.booleans())
def test_tables_are_the_same_for_any_split_into_batches(tmp_path_factory, history, cuts, reload):
    landing = Landing(tmp_path_factory.getbasetemp())
    rows = fill(landing, history)
    whole, _ = work(landing, rows, [(0, len(rows))], mapping=JSON)
    edges = sorted({0, len(rows), *(cut for cut in cuts if cut < len(rows))})
    landing.number = 0
    split, _ = work(landing, rows, list(itertools.pairwise(edges)), reload, JSON)
    assert without_place(split) == without_place(whole)
    assert met(split) == met(whole)


@pytest.mark.req("P3")
def test_order_of_messages_changes_no_reading(tmp_path):
    history = [
        (("greenhouse-1/t", b"21.5"), {}),
        (("json/k", b'{"a": 1}'), {}),
        (("flashmqtt/a/readings", 1), {}),
        (("x", b"?"), {}),
    ]
    seen = set()
    for order in itertools.permutations(history):
        landing = Landing(tmp_path)
        tables, _ = work(landing, fill(landing, order), [(0, 2), (2, 4)], True, JSON)
        told = [(row["device"], row["name"], value(row)) for row in tables["plain"] + tables["readings"]]
        seen.add((tuple(sorted(told)), tuple(row["reason"] for row in tables["quarantine"])))
    assert len(seen) == 1


@pytest.mark.req("P3")
def test_only_marked_resends_and_retained_copies_are_duplicates(landing):
    landing.raw("d/t", b"21.5")
    landing.raw("d/t", b"21.5")  # the same value once more
    landing.raw("d/t", b"21.5", dup=True)  # not a known duplicate: the first sending never arrived
    landing.raw("d/t", b"21.5", dup=True, qos=0)
    landing.raw("d/t", b"21.5", retain=True)
    tables = readings_of(landing)
    assert [row["row"] for row in tables["plain"]] == [1, 2, 3]
    assert [(row["row"], row["cause"]) for row in tables["duplicates"]] == [(4, "resend"), (5, "retained")]
    (row,) = tables["sums"]
    assert (row["messages"], row["readings"], row["copies"]) == (3, 3, 2)


class Tables:
    """An output that is filled by batches of one segment each."""

    def __init__(self, tmp_path, rules=JSON):
        self.landing = Landing(tmp_path / "landing")
        self.landing.directory.mkdir(exist_ok=True)
        self.output = Output(str(tmp_path / "out"))
        self.output.prepare(2)
        self.rules, self.stream = rules, "one"

    def batch(self):
        self.landing.seal()
        return self.run({"c": self.landing.number})

    def run(self, end):
        directory = Storage(str(self.landing.directory))
        number = self.landing.number
        return stream.run_batch(Local(), end, directory, self.output, 2, self.stream, number, mapping=self.rules)

    def rows(self, table):
        schema = schemas.TABLES.get(table) or schemas.STATE[table]
        files = [self.output.storage.path(name) for name in self.output.files(table)]
        return [row for file in files for row in pq.read_table(file, schema=schema, partitioning=None).to_pylist()]

    def judge(self):
        return verdict.judge(self.output)


@pytest.mark.req("P3")
def test_replay_adds_no_reading_and_reused_segment_number_does(tmp_path):
    tables = Tables(tmp_path)
    for topic, payload in (("d/t", b"1"), ("d/t", b"2"), ("d/u", b"bad"), ("json/k", b'{"a": 3}')):
        tables.landing.raw(topic, payload)
    tables.batch()
    before = tables.rows("readings"), tables.rows("quarantine")
    tables.stream = "the checkpoint was lost"
    tables.run({"c": 1})
    assert (tables.rows("readings"), tables.rows("quarantine")) == before
    assert {row["cause"] for row in tables.rows("duplicates")} == {"replay"}
    assert tables.judge().totals["plain_messages"] == 3
    # The collector's logs and segments were deleted: other messages under the same numbers.
    segment = next(tables.landing.directory.glob("*.parquet"))
    segment.unlink()
    tables.landing.number = tables.landing.row = 0
    tables.landing.raw("d/t", b"1")
    tables.landing.seal()
    tables.stream = "another one"
    tables.run({"c": 1})
    assert sorted(value(row) for row in tables.rows("readings")) == [1, 1, 2, 3]
    assert tables.judge().totals["plain_messages"] == 4


@pytest.mark.req("P3", "P5")
@pytest.mark.parametrize("name", ["c-000000002.parquet", "d-000000001.parquet"])
def test_copy_of_a_segment_under_another_name_is_refused_because_it_may_replace_one(tmp_path, name):
    tables = Tables(tmp_path)
    tables.landing.raw("d/t", b"1")
    path = tables.landing.seal()
    shutil.copy(path, path.with_name(name))
    with pytest.raises(segments.SegmentError, match=rf"{name}: it has the rows of another segment .*'c'.*1"):
        tables.run({"c": 2} if name.startswith("c") else {"c": 1, "d": 1})
    assert tables.rows("readings") == []


@pytest.mark.req("P3")
def test_replay_with_another_mapping_moves_no_message(tmp_path):
    old, new = (
        mapping.Mapping((mapping._rule(mapping.MappingError, {"topic": "json/{device}", "value": path}),))
        for path in ("$.a", "$.b")
    )
    tables = Tables(tmp_path, old)
    for payload in (b'{"a": 3}', b'{"b": 4}', b'{"a": 5, "b": 6}'):
        tables.landing.raw("json/k", payload)
    tables.batch()
    before = tables.rows("readings"), tables.rows("quarantine")
    assert tuple(map(len, before)) == (2, 1)
    tables.stream, tables.rules = "the checkpoint was lost", new
    tables.run({"c": 1})
    assert (tables.rows("readings"), tables.rows("quarantine")) == before
    assert tables.judge().problems == ["1 in quarantine"]


def rules_of(**keys):
    return mapping.Mapping((mapping._rule(mapping.MappingError, keys),))


OF_BOARDS = {
    "none": JSON,
    "readings": rules_of(topic="flashmqtt/{device}/+", path="$[*]", name="@.n", value="@.v"),
    "misfits": rules_of(topic="flashmqtt/{device}/+", value="$.none"),
    "ignored": rules_of(topic="flashmqtt/#", ignore=True),
}


@pytest.mark.req("P3")
@pytest.mark.parametrize(("old", "new"), list(itertools.permutations(OF_BOARDS, 2)))
def test_replay_with_a_new_mapping_of_a_boards_topic_stores_no_message_again(tmp_path, old, new):
    tables = Tables(tmp_path, OF_BOARDS[old])
    for seq in (1, 2, 2):
        tables.landing.message("a", 1, seq)
    tables.landing.message("a", 1, 4, dropped=0)
    tables.landing.message("a", 2, 5, kind="boot")
    tables.landing.message("b", 1, 1)
    tables.landing.message("b", 1, 1 << 25)  # held: a jump
    tables.batch()
    stored = {table: tables.rows(table) for table in ("readings", "events", "quarantine", "held", "duplicates")}
    assert any(stored.values()) == (old != "ignored")
    tables.stream, tables.rules = "the checkpoint was lost", OF_BOARDS[new]
    tables.run({"c": 1})
    if old != "ignored":  # these messages were not stored
        assert {table: tables.rows(table) for table in stored} == stored


@pytest.mark.req("P4")
def test_verdict_counts_devices_without_proof_of_delivery(tmp_path):
    tables = Tables(tmp_path)
    for n in range(20):  # a device's topics lie in several buckets
        tables.landing.raw(f"greenhouse-1/sensor{n}", b"21.5")
    tables.landing.raw("json/k", b'{"a": 1, "b": 2}')
    tables.batch()
    found = tables.judge()
    told = (
        "2 devices without an identity: no proof of delivery; all 21 messages that the collector stored are in the"
        " tables, once."
    )
    assert found.line == told
    assert found.status == 0
    assert tables.output.storage.read_json("verdict.json")["without_identity"] == 2
    assert {row["device"]: row["readings"] for row in plain.summed([]).to_pylist()} == {}
    tables.landing.message("a", 1, 1)
    tables.batch()
    assert tables.judge().line == f"{verdict.WHOLE} {told}"
    tables.landing.message("a", 1, 3)
    tables.batch()
    found = tables.judge()
    assert found.line == f"NOT every published message is in the tables exactly once: 1 missing. {told}"
    assert found.status == 1


@pytest.mark.req("P4")
def test_audit_prints_counts_of_devices_without_an_identity(tmp_path, capsys):
    tables = Tables(tmp_path)
    tables.landing.raw("d/t", b"1")
    tables.landing.raw("d/t", b"1", dup=True, qos=0)
    tables.batch()
    verdict.print_audit(tables.judge())
    said = capsys.readouterr().out
    assert (
        "1 device without an identity: 1 message, 1 reading, 1 copy removed; how many it published is unknown" in said
    )
    assert "NOTHING" not in said and "duplicates removed" not in said


@pytest.mark.req("P4")
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda found: found.slice(1), "1 that were processed are not in the tables"),
        (lambda found: pa.concat_tables([found, found.slice(0, 1)]), "1 row twice in the tables"),
    ],
)
def test_missing_or_duplicate_row_is_found(tmp_path, monkeypatch, change, problem):
    real = task._Writers.write_by_day

    def spoilt(self, table, rows):
        real(self, table, change(rows) if table == "readings" else rows)

    monkeypatch.setattr(task._Writers, "write_by_day", spoilt)
    tables = Tables(tmp_path)
    for n in range(3):
        tables.landing.raw("d/t", b"%d" % n)
    tables.batch()
    found = tables.judge()
    assert problem in found.line
    assert "all 3 messages" not in found.line


def test_silent_device_without_an_identity_is_named(tmp_path):
    tables = Tables(tmp_path)
    for _ in range(10):
        tables.landing.raw("still/t", b"1")
        tables.landing.raw("talks/t", b"1")
    tables.landing.raw("talks/u", b"1", arrival_us=tables.landing.arrival_us + 3_600_000_000)
    tables.batch()
    assert "1 silent (still)" in tables.judge().line


def test_full_check_counts_readings_without_an_identity(spark, tmp_path):
    tables = Tables(tmp_path)
    for n in range(3):
        tables.landing.raw("d/t", b"%d" % n)
    tables.landing.raw("json/k", b'{"a": 1, "b": 2}')
    tables.landing.message("a", 1, 1)
    commit = tables.batch()
    found = check.full_check(spark, tables.output.storage.uri)
    assert found.agrees
    assert found.plain == 5
    # The same files once more, under other names.
    for file in list(commit.files["readings"]):
        name = file.replace(".parquet", "-again.parquet")
        pq.write_table(tables.output.storage.table(file).replace_schema_metadata(), tables.output.storage.path(name))
        commit.files["readings"].append(name)
    tables.output.storage.write_json(f"commits/{commit.batch:09d}.json", asdict(commit))
    found = check.full_check(spark, tables.output.storage.uri)
    assert (found.agrees, found.twice, found.plain) == (False, 6, 5)


def test_message_whose_only_device_is_asterisks_goes_to_quarantine(landing):
    table = {"topic": "all", "path": "$[*]", "device": "@.d", "name": "t", "value": "@.v"}
    rules = mapping.Mapping((mapping._rule(mapping.MappingError, table),))
    landing.raw("all", b'[{"d":"****","v":1},{"d":"******","v":2}]')
    landing.raw("all", b'[{"d":"****","v":3},{"d":"pump","v":4}]')  # as `forget` leaves it
    tables = readings_of(landing, rules)
    assert [(row["row"], row["reason"]) for row in tables["quarantine"]] == [(1, plain.ONLY_ASTERISKS)]
    assert [(row["row"], row["device"], value(row)) for row in tables["plain"]] == [(2, "pump", 4.0)]


def test_topics_of_our_boards_skip_plain_and_mapped_parsing(landing, monkeypatch):
    """The hot path: no payload is tried as a number or mapped where all topics are our boards'."""
    monkeypatch.setattr(plain.Plain, "_read_scalars", lambda *_: pytest.fail("looked at"))
    monkeypatch.setattr(plain.Plain, "_apply_mapping", lambda *_: pytest.fail("looked at"))
    landing.message("a", 1, 1)
    assert set(readings_of(landing)) == {"readings", "prints", "tally"}


README = Path(plain.__file__).parents[1] / "README.md"


def test_mapping_in_the_readme_gives_the_readings_shown_there(tmp_path):
    (shown,) = re.findall(r"```toml\n(\[\[map\]\].*?)```", README.read_text(), re.DOTALL)
    (tmp_path / "mapping.toml").write_text(shown)
    rules = mapping.read(tmp_path / "mapping.toml")
    landing = Landing(tmp_path)
    says = re.findall(r"^\| `([^`]+)` \| `([^`]+)` \| (.+) \|$", README.read_text(), re.MULTILINE)
    assert len(says) >= 4
    for topic, payload, wanted in says:
        landing.rows = []
        landing.raw(topic, payload.encode())
        found = [
            f"{row['device']} {row['name']} {value(row)}" + (f" {row['unit']}" if row["unit"] else "")
            for row in readings_of(landing, rules).get("plain", [])
        ]
        assert "; ".join(found) == (wanted if wanted != "nothing" else ""), topic


def test_mapping_of_all_topics_also_maps_topics_of_our_boards(landing):
    landing.raw("flashmqtt/d/x", b'{"a": 1}')
    every = mapping.Mapping((mapping._rule(mapping.MappingError, {"topic": "#", "device": "d", "path": "$.*"}),))
    assert [row["name"] for row in readings_of(landing, every)["plain"]] == ["a"]
    assert parquet.SCHEMA.names[-1] == "payload"
