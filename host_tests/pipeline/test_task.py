"""A task's work on its bucket, without Spark: generated fleets with planted faults, whole and split into batches."""

import gc
import random
import resource
import sys
from collections import Counter
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from host_tests.pipeline.conftest import Landing, once
from host_tests.pipeline.planted import fleet, write_pack
from tools.landing import parquet, segments
from tools.pipeline.batch import lives, senml, task, ties
from tools.pipeline.batch.messages import EVENT_LABELS, NO_MAPPING, process
from tools.pipeline.batch.state import State
from tools.pipeline.tables import schemas
from tools.pipeline.tables.parts import merge_tallies
from tools.pipeline.tables.storage import Storage

KEY = ("device", "life", "boot")
YIELDED = {**schemas.TABLES, "plain": schemas.READINGS, "tally": schemas.TALLY, "sums": schemas.PLAIN}
"""The tables that `process` yields rows of."""


class Written:
    """The tables that earlier batches wrote."""

    def __init__(self):
        self.tables = {"prints": [], "quarantine": [], "plain": []}

    def take(self, name, table):
        if name in self.tables:
            self.tables[name].append(table)

    def files(self, table, columns):
        tables = self.tables.get({"readings": "plain"}.get(table, table), [])
        return [lambda table=table: table for table in reversed(tables)]

    def kept_from_us(self):
        return 0


def reloaded(kept, past):
    """Return the state as the next batch loads it."""
    state = State(past)
    state.load_intervals(kept.intervals_table())
    state.load_lives(kept.lives_table())
    state.load_held(kept.held_table())
    return state


def work(landing, rows, chunks, reload=False, mapping=NO_MAPPING):
    """Take rows through a bucket in chunks; return the rows of all tables, and the state at the end."""
    parts = [rows[begin:end] for begin, end in chunks]
    return work_parts(landing, parts, range(landing.number + 1, landing.number + 1 + len(parts)), reload, mapping)


def work_parts(landing, parts, numbers, reload=False, mapping=NO_MAPPING):
    """Take parts of a landing through a bucket, each as the segment of its number."""
    past = Written()
    state = State(past)
    tables = {name: [] for name in YIELDED}
    for landing.rows, landing.number in zip(parts, numbers, strict=True):
        written = Written() if reload else past
        for name, found in process(state, landing.table(), mapping):
            found = found.select(YIELDED[name].names).cast(YIELDED[name])
            tables[name] += found.to_pylist()
            written.take(name, found)
        if reload:
            past.tables = {name: past.tables[name] + written.tables[name] for name in past.tables}
            read = max(landing.number, state.read.get(landing.collector, 0))
            state = reloaded(state, past)
            state.read = {landing.collector: read}
    tables["quarantine"] += (
        state.held_table().select(schemas.QUARANTINE.names).to_pylist()
    )  # as commits.Output reads it
    return tables, state


def rows_of(landing, messages):
    for m in messages:
        landing.raw(f"flashmqtt/{m.device}/{m.kind}", m.payload, m.dup)
    rows, landing.rows = landing.rows, []
    return rows


def counted(tables, what):
    total = Counter()
    for row in tables["tally"]:
        total[tuple(row[name] for name in KEY)] += row[what]
    return +total


def intervals(state):
    found = {}
    for row in state.intervals_table().to_pylist():
        found.setdefault(tuple(row[name] for name in KEY), set()).update(range(row["lo"], row["hi"] + 1))
    return found


@pytest.mark.req("P3", "P4", "P5")
@pytest.mark.parametrize("seed", range(16))
def test_counts_equal_the_planted_faults(landing, seed):
    messages, truth = fleet(seed)
    rows = rows_of(landing, messages)
    rng = random.Random(seed)
    cuts = sorted({0, len(rows), *(rng.randrange(len(rows)) for _ in range(rng.randrange(6)))})
    tables, state = work(landing, rows, list(pairwise(cuts)), reload=seed % 2 == 0)
    in_tables = [(*(row[name] for name in KEY), row["seq"]) for row in tables["readings"] + tables["events"]]
    assert len(in_tables) == len(set(in_tables))
    assert set(in_tables) == truth.messages
    assert len(tables["quarantine"]) == truth.bad
    assert counted(tables, "delivered") == truth.delivered
    assert counted(tables, "resent") == +truth.resent
    assert counted(tables, "replayed") == Counter()
    assert counted(tables, "reordered") == +truth.reordered
    assert sum(row["cause"] == "resend" for row in tables["duplicates"]) == sum(truth.resent.values())
    for key, seen in intervals(state).items():
        assert set(range(truth.first[key], truth.last[key] + 1)) - seen == truth.missing[key]


@pytest.mark.req("P3", "P4")
@pytest.mark.parametrize("seed", range(0, 40, 4))
def test_replay_of_the_whole_landing_adds_nothing_and_is_counted(landing, seed):
    messages, truth = fleet(seed)
    rows = rows_of(landing, messages)
    half = len(rows) // 2
    tables, _ = work_parts(landing, (rows[:half], rows[half:]) * 2, (1, 2, 1, 2), reload=True)
    in_tables = [(*(row[name] for name in KEY), row["seq"]) for row in tables["readings"] + tables["events"]]
    assert len(in_tables) == len(set(in_tables))
    assert set(in_tables) == truth.messages
    assert counted(tables, "resent") == +truth.resent
    # Where two lives have the same boot and number, a replay goes to the newer: so compared by device.
    replayed, planted = Counter(), Counter()
    for key, count in counted(tables, "replayed").items():
        replayed[key[0]] += count
    for key, count in (truth.delivered + truth.resent).items():
        planted[key[0]] += count
    assert replayed == planted


def test_late_message_closes_its_gap(landing):
    for seq in (1, 2, 4):
        landing.message("a", 1, seq)
    landing.message("a", 1, 3)
    tables, state = work(landing, landing.rows, [(0, 3), (3, 4)])
    assert intervals(state) == {("a", 1, 1): {1, 2, 3, 4}}
    assert counted(tables, "reordered") == {("a", 1, 1): 1}


def test_another_message_under_a_used_identity_goes_to_quarantine(landing):
    landing.message("a", 1, 1, up=1.0)
    landing.message("a", 1, 1, up=2.0)
    tables, _ = work(landing, landing.rows, [(0, 2)])
    assert [row["reason"].split(":")[0] for row in tables["quarantine"]] == ["identity reused"]
    assert len(tables["readings"]) == 1
    assert tables["duplicates"] == []


def test_two_boards_with_one_id_are_two_lives(landing):
    landing.message("a", 5, 100, kind="boot")
    landing.message("a", 5, 101)
    landing.message("a", 7, 1, kind="boot")  # the other one
    landing.message("a", 5, 102)
    landing.message("a", 7, 2)
    landing.message("a", 5, 103)
    tables, state = work(landing, landing.rows, [(0, 4), (4, 6)], reload=True)
    assert intervals(state) == {("a", 1, 5): {100, 101, 102, 103}, ("a", 2, 7): {1, 2}}
    assert len(tables["readings"]) == 4


@pytest.mark.req("P5")
def test_device_with_too_many_lives_is_quarantined_and_others_continue(landing, monkeypatch):
    monkeypatch.setattr(lives, "MOST_LIVES", 3)
    for start in range(5):
        landing.message("a", 1, 1, kind="boot", up=start + 0.5)
        landing.message("a", 1, 2, up=start + 1.5)
    landing.message("b", 1, 1)
    tables, state = work(landing, landing.rows, [(0, 2), (2, 4), (4, 7), (7, 8), (8, 11)], reload=True)
    assert intervals(state) == {("a", life, 1): {1, 2} for life in (1, 2, 3)} | {("b", 1, 1): {1}}
    assert [(row["reason"], row["row"]) for row in tables["quarantine"]] == [
        ("its device's counters began again too often: it shares its id or does not keep its store", row)
        for row in (7, 8, 9, 10)
    ]
    assert tables["duplicates"] == []


def test_boot_message_in_labels_or_in_records_gives_the_same_event(landing):
    landing.message("a", 2, 9, kind="boot", cause="watchdog", first=9, dropped=3)
    landing.raw(
        "flashmqtt/b/boot",
        b'[{"bn":"b/","boot":2,"seq":9,"n":"cause","vs":"watchdog"},{"n":"dropped","v":3},{"n":"heap","v":7}]',
    )
    tables, _ = work(landing, landing.rows, [(0, 2)])
    told = [{name: row[name] for name in ("first", "cause", "dropped")} for row in tables["events"]]
    assert told == [{"first": 9, "cause": "watchdog", "dropped": 3}] * 2
    assert [row["name"] for row in tables["readings"]] == ["heap"]


def test_each_clock_setting_gives_ties(landing):
    times = {1: None, 2: None, 3: 1000, 4: 1000, 5: 5000, 6: 5000}
    for seq, offset in times.items():
        labels = {} if offset is None else {"bt": 1_790_000_000 + offset + seq}
        landing.message("a", 1, seq, up=float(seq), **labels)
    tables, _ = work(landing, landing.rows, [(0, 6)])
    ties = [(row["seq"], row["offset_us"]) for row in tables["ties"]]
    assert ties == [(seq, 1_790_001_000_000_000) for seq in (3, 4)] + [(seq, 1_790_005_000_000_000) for seq in (5, 6)]


@pytest.mark.req("P4")
def test_readings_taken_before_their_message_make_no_clock_jump(landing):
    rng = random.Random(1)
    for seq in range(1, 40):
        landing.message("a", 1, seq, up=float(seq), bt=1_790_000_000 + seq, t=-rng.randint(0, 9))
    tables, _ = work(landing, landing.rows, [(0, 10), (10, 39)])
    assert {row["offset_us"] for row in tables["ties"]} == {1_790_000_000_000_000}
    offsets = {row["time"].timestamp() - row["uptime"] for row in tables["readings"]}
    assert offsets == {1_790_000_000}


def test_empty_landing_gives_empty_tables(landing):
    tables, state = work(landing, [], [(0, 0)])
    assert all(rows == [] for rows in tables.values())
    assert state.intervals_table().num_rows == 0
    assert pa.types.is_string(state.lives_table()["device"].type)


def test_several_row_groups_in_a_bucket_are_not_a_replay(landing, tmp_path):
    for seq in (1, 2):
        for device in ("a", "b", "c", "d", "e"):
            landing.message(device, 1, seq)
        landing.message("a", 1, 1, up=0.1, dup=True)
    landing.seal()  # laid out for eight buckets, read as one
    out, directory = Storage(str(tmp_path / "out")), Storage(str(landing.directory))
    done = task.run(out, directory, 0, 1, 1, {}, {}, ["c-000000001.parquet"])
    rows = {table: rows for table, _, rows in done.files}
    assert (rows["readings"], rows["duplicates"]) == (10, 2)
    (file,) = [file for table, file, _ in done.files if table == "duplicates"]
    assert pq.read_table(out.path(file))["cause"].to_pylist() == ["resend"] * 2


@pytest.mark.req("P4")
def test_segments_are_read_in_order_of_number_not_of_time(local, landing, tmp_path):
    """A QoS 2 message that was held for long lands with its older time of arrival; and a clock may be set back."""
    landing.message("a", 1, 1)
    landing.message("a", 1, 2)
    landing.seal()
    landing.message("a", 1, 3, arrival_us=landing.arrival_us - 3_600_000_000)
    landing.seal()
    commit = once(local, str(landing.directory), str(tmp_path / "out"), 1)
    out = Storage(str(tmp_path / "out"))
    assert pq.read_table(out.path(commit.files["readings"][0]))["seq"].to_pylist() == [1, 2, 3]
    assert pq.read_table(out.path(commit.state["0"]["audit"]))["reordered"].to_pylist() == [0]


def with_column(path, name, values, kind):
    """Write a segment again, with another content of one column."""
    rows = pq.read_table(path)
    pq.write_table(rows.set_column(rows.schema.get_field_index(name), name, pa.array(values, kind)), path)


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-50]), "damaged"),
        (lambda path: path.write_bytes(b""), "damaged"),
        (lambda path: pq.write_table(pq.read_table(path).drop(["topic"]), path), "without the column 'topic'"),
        (lambda path: with_column(path, "topic", [None], pa.string()), "'topic' with null values"),
        (lambda path: with_column(path, "arrival", [None], schemas.MOMENT), "'arrival' with null values"),
        (lambda path: with_column(path, "arrival", [2**62], schemas.MOMENT), "date value out of range"),
        (lambda path: with_column(path, "dup", ["no"], pa.string()), "damaged"),
        (lambda path: with_column(path, "payload", [[1]], pa.list_(pa.int8())), "damaged"),
        (lambda path: with_column(path, "segment", [2], pa.int64()), "rows of another segment .*'c'.*2"),
        (lambda path: with_column(path, "collector", ["d"], pa.string()), "rows of another segment .*'d'.*1"),
    ],
)
def test_damaged_or_foreign_segment_file_is_named(landing, tmp_path, spoil, text):
    landing.message("a", 1, 1)
    spoil(landing.seal())
    out, directory = Storage(str(tmp_path / "out")), Storage(str(landing.directory))
    with pytest.raises(segments.SegmentError, match=text) as raised:
        task.run(out, directory, 0, 1, 1, {}, {}, ["c-000000001.parquet"])
    assert "c-000000001.parquet" in str(raised.value)
    assert out.list("readings", recursive=True) == []


def test_segment_of_another_writer_may_have_other_types_and_another_order(local, landing, tmp_path):
    landing.message("a", 1, 1)
    path = landing.seal()
    rows = pq.read_table(path)
    others = {"payload": pa.large_binary(), "segment": pa.int32(), "arrival": pa.timestamp("us")}
    fields = [field.with_type(others.get(field.name, field.type)) for field in reversed(rows.schema)]
    pq.write_table(rows.select([field.name for field in fields]).cast(pa.schema(fields)), path)
    commit = once(local, str(landing.directory), str(tmp_path / "out"), 2)
    assert (commit.rows, commit.last_arrival_us) == ({"readings": 1, "prints": 1}, {})


@pytest.mark.parametrize("last", ["readings", "prints", "state/lives"])
def test_full_disk_is_one_error_with_the_file_and_leaves_no_temporary_file(local, landing, tmp_path, monkeypatch, last):
    """Python would print a traceback for each file that is left open."""
    for device in "ad":
        landing.message(device, 1, 1)
    for n in range(3000):  # more than a buffer of a file, so that also a write fails, not only the end of a file
        landing.raw("d/t", b"%d.%d" % (n, n * n))
    landing.seal()
    ignored = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    written = Storage.create

    def create(storage, name, **more):
        if name.startswith(last):
            resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
        return written(storage, name, **more)

    monkeypatch.setattr(Storage, "create", create)
    try:
        with pytest.raises(OSError, match=f"File too large: '{tmp_path}/out/"):
            once(local, str(landing.directory), str(tmp_path / "out"), 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    gc.collect()
    assert ignored == []
    assert not list(tmp_path.rglob(".*.tmp"))


def test_lost_segment_can_be_replaced_by_an_empty_one(landing, tmp_path):
    path = parquet.write_segment(landing.directory, "c", 1, parquet.SCHEMA.empty_table())
    done = task.run(Storage(str(tmp_path)), Storage(str(landing.directory)), 0, 8, 1, {}, {}, [path.name])
    assert done.files == []
    assert done.state.keys() == schemas.STATE.keys() - {"held", "plain"}


ODD = st.one_of(
    st.integers(-3, 3), st.integers(-(2**60), 2**60), st.floats(), st.text(max_size=3), st.booleans(), st.none()
)
NAMES = st.sampled_from([*EVENT_LABELS, "x"])
RECORDS = st.builds(
    lambda name, label, value: {"n": name, label: value}, NAMES, st.sampled_from(["v", "vs", "vb"]), ODD
)
HEADS = st.builds(
    lambda boot, seq, labels: {"bn": "d/", "boot": boot, "seq": seq} | labels,
    st.integers(0, 3),
    st.integers(1, 6),
    st.dictionaries(st.sampled_from([*senml.LABELS]), ODD, max_size=3),
)
PACKS = st.builds(lambda head, records: write_pack([head, *records]), HEADS, st.lists(RECORDS, max_size=3))


@pytest.mark.req("P5")
@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["boot", "readings", "health"]), PACKS | st.binary(max_size=9)), max_size=12))
def test_any_payload_is_stored_duplicate_or_quarantined(messages):
    landing = Landing(None)
    for kind, payload in messages:
        landing.raw(f"flashmqtt/d/{kind}", payload)
    tables, state = work(landing, landing.rows, [(0, len(messages))], reload=True)
    seen = {(row["life"], row["boot"], row["seq"]) for row in tables["readings"] + tables["events"]}
    assert len(seen) + len(tables["duplicates"]) + len(tables["quarantine"]) == len(messages)
    assert sum(len(held) for held in intervals(state).values()) == len(seen)


def test_tallies_are_merged_to_one_row_per_boot(landing):
    state = State()
    parts = []
    for part in range(3):
        for seq in range(1, 30):
            for device in ("a", "b"):
                landing.message(device, 1 + part // 2, part * 29 + seq)
        landing.message("a", 1, 1, up=0.1, dup=True)
        landing.number += 1
        parts += [found for name, found in process(state, landing.table()) if name == "tally"]
        landing.rows = []
    merged = merge_tallies(state.keys_of, parts).cast(schemas.TALLY).to_pylist()
    raw = [row for part in parts for row in part.cast(schemas.TALLY).to_pylist()]
    assert [(row["device"], row["boot"]) for row in merged] == [("a", 1), ("a", 2), ("b", 1), ("b", 2)]
    for row in merged:
        own = [one for one in raw if (one["device"], one["boot"]) == (row["device"], row["boot"])]
        for name in ("delivered", "readings", "resent", "replayed", "reordered"):
            assert row[name] == sum(one[name] for one in own)
        assert sum(row["counts"]) == row["delivered"]
        assert row["base_us"] == min(one["base_us"] for one in own if one["counts"])
        assert row["last_arrival"] == max(one["last_arrival"] for one in own)


def test_ties_are_merged_to_first_and_last_of_each_clock(landing):
    state = State()
    parts = []
    offsets = {1: 1000, 2: 1000.004, 3: 1000, 4: 5000, 5: 5000, 6: 5000}
    for device in ("b", "a"):
        for seq, offset in offsets.items():
            landing.message(device, 1, seq, up=float(seq), bt=round(1_790_000_000 + offset + seq, 3))
            landing.number += 1
            parts += [found for name, found in process(state, landing.table()) if name == "ties"]
            landing.rows = []
    assert sum(part.num_rows for part in parts) == 12
    merged = ties.merge(state, State().keys, State().seen, parts).to_pylist()
    assert [(row["device"], row["seq"]) for row in merged] == [(name, seq) for name in "ba" for seq in (1, 3, 4, 6)]
