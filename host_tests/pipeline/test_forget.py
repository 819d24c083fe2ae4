"""Forgetting devices: no file names them, and all other rows are as in a fleet without them."""

import base64
import functools
import gzip
import json
import os
import re
import shutil
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from host_tests.pipeline import engines, killed
from host_tests.pipeline.conftest import Landing, Local, once, rows_in, taken
from host_tests.pipeline.test_plain import Tables
from tools.landing import forget as landing_forget
from tools.landing import names as landing_names
from tools.landing import segments
from tools.landing.lock import LandingInUse
from tools.landing.seal import seal
from tools.landing.store import LandingStore
from tools.pipeline import byte_search, compact, forget, report, series, sink, stream, verdict
from tools.pipeline.batch import mapping, plain
from tools.pipeline.tables.books import Books
from tools.pipeline.tables.commits import Output, OutputError, name_of
from tools.pipeline.tables.delta import Delta
from tools.pipeline.tables.storage import Storage
from tools.proof import packets

Names = functools.partial(landing_names.Names, of=plain.devices_of)
GONE = "greenhouse-1"
LIKE_IT = "greenhouse-10"
DAY_US = 86_400_000_000


def publish(topic, payload, packet_id=7, qos=2):
    return packets.publish(topic, payload, qos, packet_id)


def fill(landing, without=()):
    """Land three segments of four devices, with some bad messages. Leave out some devices, but not their row numbers."""

    def message(device, *arguments, **more):
        landing.message(device, *arguments, **more)
        if device in without:
            landing.rows.pop()

    def raw(topic, payload):
        landing.raw(topic, payload)
        if segments.device_of(topic) in without:
            landing.rows.pop()

    for segment in range(3):
        for seq in range(1, 5):
            for device in (GONE, LIKE_IT, "cellar", "zz-b"):
                boot = segment + 1
                message(device, boot, segment * 4 + seq, value=seq, kind="boot" if seq == 1 else "readings")
        message("cellar", segment + 1, segment * 4 + 4, value=4, dup=True)
        message(GONE, segment + 1, segment * 4 + 4, value=4, dup=True)
        raw(f"flashmqtt/{GONE}/readings", b"{%d" % segment)
        raw("flashmqtt/cellar/readings", b'{"of": "greenhouse-10"}')
        message(GONE, segment + 1, 200_000_000 * (segment + 1), value=4)  # waits
        landing.seal()
        landing.arrival_us += DAY_US


def take(local, landing, out, first=1, last=3):
    output = Output(str(out))
    output.prepare(2)
    logs = Delta(output)
    logs.follow()
    directory = Storage(str(landing.directory))
    for number in range(first, last + 1):
        logs.committed(stream.run_batch(local, {"c": number}, directory, output, 2, "one", number))
    return output


def state_rows(output, kind):
    """Return the rows of a table of the state, in one order."""
    books = Books(output, output.latest())
    names = list(forget.schemas.STATE[kind].names)
    return sorted(repr(row) for batch in books.rows(kind, names) for row in batch.to_pylist())


def made_once(tmp_path_factory, name, without=()):
    """Return the folder of a fleet's landing and tables, and its landing; each test has a copy."""
    home = tmp_path_factory.mktemp(name)
    landing = Landing(home / "landing")
    landing.directory.mkdir()
    fill(landing, without)
    output = take(Local(), landing, home / "out")
    found = verdict.judge(output)
    if not without:
        report.write(output, found)
    return home, landing


@pytest.fixture(scope="module")
def fleet_made_once(tmp_path_factory):
    return made_once(tmp_path_factory, "fleet")


@pytest.fixture(scope="module")
def never(tmp_path_factory):
    """The same fleet without the device. Tests only read it."""
    home, _ = made_once(tmp_path_factory, "never", {GONE})
    return Output(str(home / "out"))


@pytest.fixture
def fleet(fleet_made_once, landing, tmp_path):
    home, filled = fleet_made_once
    shutil.copytree(home, tmp_path, dirs_exist_ok=True)
    vars(landing).update({**vars(filled), "directory": landing.directory, "rows": []})
    return Output(str(tmp_path / "out"))


def assert_same_as_never(output, never):
    for kind in ("audit", "lives", "intervals", "identities"):
        assert state_rows(output, kind) == state_rows(never, kind), kind
    for table in ("readings", "quarantine", "audit"):
        assert engines.truth(output, table) == engines.truth(never, table)
    one, other = output.latest().summary, never.latest().summary
    told = {name: (one[name], other[name]) for name in one if name != "topics" and one[name] != other[name]}
    assert not told
    assert verdict.judge(output).line == verdict.judge(never).line
    assert {table: rows_in(output, table) for table in forget.schemas.TABLES} == {
        table: rows_in(never, table) for table in forget.schemas.TABLES
    }


def bytes_in(directory):
    """Return the content of each file except the locks."""
    paths = (path for path in directory.rglob("*") if path.is_file() and path.suffix != ".lock")
    return {path: path.read_bytes() for path in paths}


def assert_name_is_gone(*directories):
    """Search without the code under test: plain bytes, and all values of all Parquet files as text."""
    for directory in directories:
        for path in directory.rglob("*"):
            if path.is_file():
                data = path.read_bytes().replace(LIKE_IT.encode(), b"")
                assert GONE.encode() not in data, path
                if ".parquet" in path.name:
                    values = repr(pq.ParquetFile(path).read().to_pylist()).replace(LIKE_IT, "")
                    assert GONE not in values, path


@pytest.mark.req("P4", "P7")
def test_forgotten_device_leaves_no_trace_and_other_devices_are_unchanged(local, fleet, never, landing, tmp_path):
    (tmp_path / "out" / "spark.log").write_text(f"a worker told of {GONE}")
    (tmp_path / "out" / "readings" / f".cut.parquet.{'0' * 8}.tmp").write_bytes(GONE.encode())
    done = forget.forget(str(landing.directory), str(tmp_path / "out"), [GONE])
    assert done.left == []
    assert (done.rows["readings"], done.rows["segments of c"], done.rows["lives"]) == (9, 21, 1)
    assert_name_is_gone(tmp_path / "out", landing.directory)
    assert_same_as_never(fleet, never)
    for table in engines.COLUMNS:
        assert engines.by_pandas(fleet, table) == engines.truth(never, table)
        assert (
            DeltaTable(engines.directory(fleet, table)).history()[0]["version"]
            == DeltaTable(engines.directory(fleet, table)).version()
        )
    assert (tmp_path / "out" / "report.html").exists()
    assert not (tmp_path / "out" / "spark.log").exists()


@pytest.mark.req("P3", "P7")
@pytest.mark.parametrize("device", ["plant", "batch=1", "bucket-0001"])
def test_device_named_as_a_file_or_the_collector_changes_no_other_rows(local, tmp_path, device):
    landing, out = Landing(tmp_path / "landing", "plant"), tmp_path / "out"
    landing.directory.mkdir()
    for seq in range(1, 4):
        landing.message(device, 1, seq)
        landing.raw("hall/temperature", b"21")
    taken(local, landing, out)
    done = forget.forget(str(landing.directory), str(out), [device], page=False)
    assert (done.left, done.weak, done.rows["readings"]) == ([], {device}, 3)
    rows = pq.read_table(landing.directory / "plant-000000001.parquet").to_pylist()
    assert [(row["collector"], row["topic"]) for row in rows] == [("plant", "hall/temperature")] * 3
    again = once(local, str(landing.directory), str(out), 2)  # as after a lost checkpoint
    assert again.rows == {"duplicates": 3}


@pytest.mark.req("P3", "P4")
def test_run_after_forget_recognises_segments_read_again(local, fleet, never, landing, tmp_path):
    forget.forget(str(landing.directory), str(tmp_path / "out"), [GONE])
    before = engines.truth(fleet, "readings")
    directory = Storage(str(landing.directory))
    stream.run_batch(local, {"c": 3}, directory, fleet, 2, "a stream whose checkpoint was lost", 0)
    assert engines.truth(fleet, "readings") == before
    assert fleet.latest().summary["totals"]["missing"] == never.latest().summary["totals"]["missing"]
    once(local, str(landing.directory), str(tmp_path / "again"), 4)
    again = Output(str(tmp_path / "again"))
    assert engines.truth(again, "readings") == before
    for seq in (13, 14):
        landing.message("cellar", 4, seq, value=1)
    landing.seal()
    stream.run_batch(local, {"c": 4}, directory, fleet, 2, "one", 4)
    assert len(engines.truth(fleet, "readings")) == len(before) + 2
    compact.compact(local, str(tmp_path / "out"))
    assert len(engines.truth(fleet, "readings")) == len(before) + 2
    assert engines.by_pandas(fleet, "readings") == engines.truth(fleet, "readings")


def test_forgotten_name_in_rows_of_another_device_becomes_asterisks(local, landing, tmp_path):
    landing.message("cellar", 1, 1, kind="boot")
    landing.raw(
        "flashmqtt/cellar/readings", b'[{"bn":"cellar/","boot":1,"seq":2,"n":"near","vs":"by greenhouse-1, left"}]'
    )
    landing.raw("flashmqtt/cellar/readings", b"not JSON: greenhouse-1")
    landing.seal()
    output = take(local, landing, tmp_path / "out", last=1)
    assert forget.forget(str(landing.directory), str(tmp_path / "out"), [GONE]).left == []
    assert_name_is_gone(tmp_path / "out", landing.directory)
    (name,) = output.files("readings")
    assert pq.read_table(tmp_path / "out" / name, partitioning=None)["text"].to_pylist() == ["by ************, left"]
    assert [row[2] for row in engines.truth(output, "quarantine")] == [b"not JSON: ************"]
    again = once(local, str(landing.directory), str(tmp_path / "again"), 2)
    assert again.rows == {name: rows for name, rows in output.latest().rows.items() if rows}


MAPPED = """
[[map]]
topic = "gateways/+/up"
path = "$.readings[*]"
device = "@.id"
name = "@.type"
value = "@.v"

[[map]]
topic = "sensors/up"
device = "$.id"
name = "t"
value = "$.v"

[[map]]
topic = "plants/{site}/{number}/t"
device = "{site}-{number}"
name = "t"
value = "$"
"""


@pytest.mark.req("P7")
def test_forgotten_mapped_device_does_not_return_on_replay(tmp_path):
    (tmp_path / "m.toml").write_text(MAPPED)
    tables = Tables(tmp_path, mapping.read(tmp_path / "m.toml"))
    landing = tables.landing
    both = {"readings": [{"id": one, "type": "co2", "v": n} for n, one in enumerate((GONE, "meter-2"), 417)]}
    landing.raw("gateways/g1/up", json.dumps(both).encode())
    landing.raw("gateways/g1/up", json.dumps({"readings": both["readings"][:1]}).encode())
    landing.raw("sensors/up", b'{"id": "greenhouse-1", "v": 1234}')
    landing.raw("sensors/up", b'{"id": "meter-2", "v": 1235}')
    landing.raw("plants/greenhouse/1/t", b"6")
    landing.raw("plants/greenhouse/2/t", b"7")
    tables.batch()
    done = forget.forget(str(landing.directory), str(tmp_path / "out"), [GONE])
    assert (done.left, done.rows["segments of c"], done.rows["readings"]) == ([], 3, 4)
    assert_name_is_gone(tmp_path / "out", landing.directory)
    left = sorted((row["device"], row["value"]) for row in tables.rows("readings"))
    assert left == [("greenhouse-2", 7.0), ("meter-2", 418.0), ("meter-2", 1235.0)]
    tables.stream = "the checkpoint was lost"
    tables.run({"c": 1})
    assert sorted((row["device"], row["value"]) for row in tables.rows("readings")) == left
    again = Output(str(tmp_path / "again"))
    again.prepare(2)
    stream.run_batch(Local(), {"c": 1}, Storage(str(landing.directory)), again, 2, "one", 1, mapping=tables.rules)
    tables.output = again
    assert sorted((row["device"], row["value"]) for row in tables.rows("readings")) == left


def land_mapped(tables):
    """Land messages of two devices that only a mapping names: from a payload, and joined from two levels of a topic."""
    tables.landing.raw("sensors/up", b'{"id": "greenhouse-1", "v": 1}')
    tables.landing.raw("sensors/up", b'{"id": "greenhouse-10", "v": 2}')
    tables.landing.raw("plants/greenhouse/1/t", b"3")
    tables.landing.raw("plants/greenhouse/10/t", b"4")
    tables.landing.raw("plants/greenhouse/1/t", b"no JSON")  # goes to quarantine: it belongs to its topic


@pytest.mark.req("P7")
@pytest.mark.parametrize("is_read", [True, False])
def test_messages_that_are_not_in_the_tables_are_deleted_by_their_mapping(tmp_path, is_read):
    (tmp_path / "m.toml").write_text(MAPPED)
    rules = mapping.read(tmp_path / "m.toml")
    tables = Tables(tmp_path, rules)
    land_mapped(tables)
    tables.batch() if is_read else tables.landing.seal()
    land_mapped(tables)
    tables.landing.seal()
    where = str(tables.landing.directory), str(tmp_path / "out"), [GONE]
    searched = forget.forget(*where, dry=True, rules=rules)
    assert {str(path) for path in tables.landing.directory.glob("*.parquet")} <= set(searched.left)
    done = forget.forget(*where, rules=rules)
    assert (done.left, done.rows["segments of c"]) == ([], 4)
    tables.run({"c": 2})
    left = sorted((row["device"], row["value"]) for row in tables.rows("readings"))
    assert left == [("greenhouse-10", 2.0)] * 2 + [("greenhouse-10", 4.0)] * 2
    assert forget.forget(*where, rules=rules).rows == {}


@pytest.mark.req("P7")
def test_shared_message_with_a_name_joined_of_parts_is_reported_with_its_other_devices(tmp_path):
    shared = '[[map]]\ntopic = "plants/{site}/{number}/t"\ndevice = "the-hub"\nname = "t"\nvalue = "$"\n'
    (tmp_path / "m.toml").write_text(MAPPED + shared)
    rules = mapping.read(tmp_path / "m.toml")
    tables = Tables(tmp_path, rules)
    tables.landing.raw("plants/greenhouse/1/t", b"3")
    tables.batch()
    where = str(tables.landing.directory), str(tmp_path / "out")
    done = forget.forget(*where, [GONE], rules=rules)
    assert done.left == [str(path) for path in tables.landing.directory.glob("*.parquet")]
    assert any(line.endswith("forget these devices, too: the-hub") for line in forget.lines(done, [GONE], False))
    done = forget.forget(*where, [GONE, "the-hub"], rules=rules)
    assert (done.left, done.shared, done.rows["segments of c"]) == ([], set(), 1)


@pytest.mark.req("P7")
def test_unread_messages_of_a_mapped_device_without_the_mapping_are_refused(tmp_path, capsys):
    (tmp_path / "m.toml").write_text(MAPPED)
    tables = Tables(tmp_path, mapping.read(tmp_path / "m.toml"))
    land_mapped(tables)
    tables.batch()
    land_mapped(tables)
    tables.landing.seal()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.parquet")}
    command = ["--landing", str(tables.landing.directory), "--out", str(tmp_path / "out"), "--device", GONE, "--yes"]
    assert forget.main(command) == 2
    assert (
        "forget: a mapping named greenhouse-1, and the landing has messages that are not in the tables"
        in capsys.readouterr().err
    )
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.parquet")} == before
    assert forget.main([*command, "--mapping", str(tmp_path / "none.toml")]) == 2
    assert "none.toml" in capsys.readouterr().err
    assert forget.main([*command, "--mapping", str(tmp_path / "m.toml")]) == 0


@pytest.mark.req("P7")
def test_held_messages_are_deleted_by_their_mapping(landing, tmp_path):
    (tmp_path / "m.toml").write_text(MAPPED)
    Output(str(tmp_path / "out")).prepare(2)
    store = LandingStore(landing.directory / "d.logs", "d")
    messages = [
        ("plants/greenhouse/1/t", b"3"),
        ("plants/greenhouse/10/t", b"4"),
        ("sensors/up", b'{"id":"greenhouse-1","v":1}'),
    ]
    for key, (topic, payload) in enumerate(messages, 1):
        packet = publish(topic, payload, key)
        store.hold(key, packet, len(packet))
    store.sync()
    store.close()
    rules = mapping.read(tmp_path / "m.toml")
    done = forget.forget(str(landing.directory), str(tmp_path / "out"), [GONE], rules=rules)
    assert (done.left, done.rows) == ([], {"held by the collector": 2})
    store = LandingStore(landing.directory / "d.logs", "d")
    assert [landing_forget.packet(*one) for one in store.packets_held()] == messages[1:2]
    store.close()


@pytest.mark.req("P7")
@pytest.mark.parametrize("name", ["home", "tv", "home/hall"])
@pytest.mark.parametrize("is_read", [True, False])
def test_forgetting_keeps_devices_whose_names_contain_the_name(tmp_path, name, is_read):
    tables = Tables(tmp_path)
    topics = ["home/temperature", "home/hall/door", "home/hall/lamp/power", "tv/power", "den/tv/power"]
    topics += ["flashmqtt/home/hall/attic/readings"]
    for topic in topics:
        tables.landing.raw(topic, b"1")
    tables.batch() if is_read else tables.landing.seal()
    done = forget.forget(str(tables.landing.directory), str(tmp_path / "out"), [name])
    assert (done.left, done.rows["segments of c"]) == ([], 1)
    (segment,) = tables.landing.directory.glob("*.parquet")
    left = set(pq.read_table(segment)["topic"].to_pylist())
    assert set(topics) - left == {{"home": topics[0], "tv": topics[3], "home/hall": topics[1]}[name]}


@pytest.mark.req("P7")
def test_sums_of_other_devices_without_an_identity_are_as_if_the_device_had_never_existed(tmp_path):
    sums = []
    for devices in (["attic", "cellar"], ["cellar"]):
        (own := tmp_path / str(len(devices))).mkdir()
        tables = Tables(own)
        for n, device in enumerate(("attic", "cellar") * 3):
            if device in devices:
                tables.landing.raw(f"{device}/t", b"%d" % n, arrival_us=1_790_000_000_000_000 + n)
        tables.batch()
        forget.forget(str(tables.landing.directory), tables.output.storage.uri, ["attic"], page=False)
        sums.append(tables.output.latest().summary)
    assert sums[0] == sums[1]
    assert sums[0]["totals"]["plain_messages"] == 3
    assert sums[0]["last_arrival_us"] - sums[0]["first_arrival_us"] == 4


@pytest.mark.req("P7")
def test_device_with_a_long_name_leaves_no_part_of_it_in_the_sums(tmp_path):
    tables = Tables(tmp_path)
    name = "attic-" * 50
    tables.landing.raw(f"{name}/t", b"1")
    tables.landing.message("board", 1, 1, kind="boot", cause=f"{'x' * 60} {name}")
    tables.batch()
    forget.forget(str(tables.landing.directory), str(tmp_path / "out"), [name])
    sums = tables.output.latest().summary
    assert "attic-" not in json.dumps([sums["causes"], sums["topics"]])
    assert sum(sums["causes"].values()) == 1


@pytest.mark.req("P5", "P7")
@pytest.mark.parametrize("name", ["pump", "temperature"])
@pytest.mark.parametrize("is_read", [True, False])
def test_forgetting_a_device_keeps_readings_of_its_name(tmp_path, name, is_read):
    def devices():
        return sorted((row["device"], row["name"], row["value"]) for row in tables.rows("readings"))

    tables = Tables(tmp_path)
    for n in range(2):
        tables.landing.raw("pump/power", b"1.5")
        tables.landing.raw("garden/pump", b"2")
        tables.landing.message("temperature", 1, n + 1)
        names = ("temperature", "pump", "house-1-pump", "at/temperature")
        for rest, reading in (("pump-", "speed"), *(("", one) for one in names)):
            pack = [{"bn": f"house-1/{rest}", "boot": 1, "seq": tables.landing.row, "n": reading, "v": n}]
            tables.landing.raw("flashmqtt/house-1/readings", json.dumps(pack).encode())
        tables.landing.raw("flashmqtt/house-1/temperature", b"[bad")
        tables.landing.raw("flashmqtt/temperature/readings", b"[bad")
    tables.batch()
    left = [row for row in devices() if row[0] != name]
    if not is_read:
        shutil.rmtree(tmp_path / "out")
        tables.output.prepare(2)
    assert forget.forget(str(tables.landing.directory), str(tmp_path / "out"), [name]).left == []
    if not is_read:
        tables.run({"c": 1})
    assert devices() == left
    tables.output = Output(str(tmp_path / "again"))
    tables.output.prepare(2)
    stream.run_batch(Local(), {"c": 1}, Storage(str(tables.landing.directory)), tables.output, 2, "one", 1)
    assert devices() == left
    topics = ["flashmqtt/house-1/temperature"] + ["flashmqtt/temperature/readings"] * (name == "pump")
    assert sorted({row["topic"] for row in tables.rows("quarantine")}) == topics


@pytest.mark.req("P7")
def test_topic_whose_readings_are_known_decides_for_its_other_messages(tmp_path):
    rules = MAPPED + '[[map]]\ntopic = "greenhouse-1/{device}/t"\nvalue = "$"\nname = "t"\n'
    rules += '[[map]]\ntopic = "beds/{device}/east/t"\nvalue = "$"\nname = "t"\n'
    (tmp_path / "m.toml").write_text(rules)
    tables = Tables(tmp_path, mapping.read(tmp_path / "m.toml"))
    for payload in (b"6", b"no number"):
        tables.landing.raw("greenhouse-1/meter-2/t", payload)  # a mapping says that it is of meter-2
        tables.landing.raw("beds/greenhouse-1/east/t", payload)
    tables.batch()
    assert forget.forget(str(tables.landing.directory), str(tmp_path / "out"), [GONE]).left == []
    assert_name_is_gone(tmp_path / "out", tables.landing.directory)
    assert [row["device"] for row in tables.rows("readings")] == ["meter-2"]
    assert [row["topic"] for row in tables.rows("quarantine")] == ["************/meter-2/t"]


def test_forget_seals_collector_logs_and_deletes_held_messages(local, fleet, landing, tmp_path):
    logs = landing.directory / "d.logs"
    store = LandingStore(logs, "d")
    store.land(
        publish(f"flashmqtt/{GONE}/readings", b"landed", 1, 1) + publish("flashmqtt/cellar/readings", b"x", 2, 1), 2
    )
    for key, device in ((7, GONE), (8, "cellar")):
        packet = publish(f"flashmqtt/{device}/readings", b"held", key)
        store.hold(key, packet, len(packet))
    store.sync()
    with pytest.raises(LandingInUse, match="in use by another collector; stop that one"):
        forget.forget(str(landing.directory), str(tmp_path / "out"), [GONE])
    store.close()
    (logs / "0000000001.damaged").write_bytes(b"greenhouse-1")
    done = forget.forget(str(landing.directory), str(tmp_path / "out"), [GONE])
    assert (done.left, done.rows["held by the collector"], done.rows["segments of d"]) == ([], 1, 1)
    assert_name_is_gone(tmp_path / "out", landing.directory)
    table = pq.read_table(landing.directory / "d-000000001.parquet")
    assert (table["topic"].to_pylist(), table["row"].to_pylist()) == (["flashmqtt/cellar/readings"], [2])
    store = LandingStore(logs, "d")
    assert (store.held(), store.number, store.stored) == ([8], 2, 2)
    store.discard(8)
    store.sync()
    store.close()
    assert forget.forget(str(landing.directory), str(tmp_path / "out"), [GONE]).rows == {}
    table = pq.read_table(landing.directory / "d-000000002.parquet")
    assert (table["payload"].to_pylist(), table["row"].to_pylist()) == ([b"held"], [3])


def test_damaged_log_with_messages_of_a_device_whose_name_no_search_can_find_is_deleted(landing, tmp_path):
    Output(str(tmp_path / "out")).prepare(2)
    for collector, devices in (("d", ("ab", "cellar")), ("e", ("cellar", "cabin"))):
        store = LandingStore(landing.directory / f"{collector}.logs", collector, shared=True)
        for number, device in enumerate(devices, 1):
            store.land(publish(f"flashmqtt/{device}/readings", b"x", number, 1), 1)
            store.sync()
        store.rotate()
        log = store.log_path(1)
        broken = bytearray(log.read_bytes())
        broken[-12] ^= 1  # in the last block
        log.write_bytes(broken)
        seal(log, landing.directory, salvage=True)
        store.close()
    assert forget.forget(str(landing.directory), str(tmp_path / "out"), ["ab"]).left == []
    assert [path.name for path in landing.directory.glob("*.logs/*.damaged")] == ["0000000001.damaged"]
    assert (landing.directory / "e.logs" / "0000000001.damaged").exists()


@pytest.mark.req("P3")
def test_forget_reaches_files_that_were_moved_to_another_disk_with_links_in_their_place(fleet, landing, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    moved = [*landing.directory.glob("*.parquet"), *map(Path, map(fleet.storage.path, fleet.files("readings")))]
    for number, path in enumerate(moved):
        there = disk / f"{number}.parquet"
        path.rename(there)
        path.symlink_to(there)
    assert forget.forget(str(landing.directory), fleet.storage.uri, [GONE]).left == []
    assert_name_is_gone(disk)
    assert all(path.exists() for path in landing.directory.glob("*.parquet"))


@pytest.mark.req("P5", "P7")
def test_forget_keeps_held_messages_of_other_devices_that_contain_the_name(landing, tmp_path):
    Output(str(tmp_path / "out")).prepare(2)
    store = LandingStore(landing.directory / "d.logs", "d")
    messages = [(GONE, b"1"), ("flashmqtt/cellar/readings", b'[{"bn":"cellar/","n":"near","vs":"greenhouse-1"}]')]
    messages += [("garden/greenhouse-1", b"2"), ("greenhouse-1/t", b"3")]
    for key, (topic, payload) in enumerate(messages, 1):
        packet = publish(topic, payload, key)
        store.hold(key, packet, len(packet))
    store.sync()
    store.close()
    done = forget.forget(str(landing.directory), str(tmp_path / "out"), [GONE])
    assert done.rows == {"held by the collector": 2}
    assert done.weak == {GONE}  # it is the name of a reading
    store = LandingStore(landing.directory / "d.logs", "d")
    assert [landing_forget.packet(*one) for one in store.packets_held()] == messages[1:3]
    store.close()


@pytest.mark.req("P7")
def test_forget_deletes_no_file_of_others_in_the_tables_folder(fleet, landing, tmp_path):
    """A database there loses the device's rows only; a file that is not the pipeline's is listed."""
    folder = Path(fleet.storage.root)
    to = folder / "readings.duckdb"
    database = sink.open_sink(str(to))
    sink.bring(fleet, database)
    database.close()
    sink.register(fleet, str(to), "flashmqtt")
    (folder / "notes.txt").write_text(f"{GONE} has a new battery")
    done = forget.forget(str(landing.directory), fleet.storage.uri, [GONE])
    assert done.rows[str(to)] > 0
    assert done.left == [f"{fleet.storage.uri}/notes.txt"]
    with duckdb.connect(str(to)) as database:
        devices = {device for (device,) in database.execute("SELECT device FROM readings").fetchall()}
    assert devices and GONE not in devices


@pytest.mark.req("P3", "P4", "P7")
@pytest.mark.timeout(900)
def test_forget_killed_after_every_change_is_completed_by_running_again(local, fleet, never, landing, tmp_path):
    before, others = engines.truth(fleet, "readings"), engines.truth(never, "readings")
    moments = 0
    for moment in killed.rerun_after_kills(killed.forgetting, tmp_path):
        moments = moment
        rows = engines.truth(fleet, "readings")
        assert [row for row in rows if row[0] != GONE] == others  # all tables are whole, at any moment
        assert len(rows) in {len(others), len(others) + 9}
        assert engines.by_polars(fleet, "readings") in (rows, before)
    assert moments > 30
    assert_same_as_never(fleet, never)
    assert_name_is_gone(tmp_path / "out", landing.directory)


def test_forget_removes_files_of_an_interrupted_attempt(local, fleet, never, landing, tmp_path, monkeypatch):
    made = []
    written = forget.rewrite

    def cut_off(*arguments):
        made.append(arguments[2])
        if len(made) == 5:
            raise KeyboardInterrupt
        return written(*arguments)

    monkeypatch.setattr(forget, "rewrite", cut_off)
    with pytest.raises(KeyboardInterrupt):
        forget.forget(str(landing.directory), str(tmp_path / "out"), [GONE])
    monkeypatch.undo()
    assert forget.forget(str(landing.directory), str(tmp_path / "out"), [GONE]).left == []
    assert not [name for name in made if (tmp_path / "out" / name).exists()]
    assert_same_as_never(fleet, never)


@pytest.mark.req("P3")
@pytest.mark.parametrize(
    ("lost", "text"),
    [
        ((2, 3), "commits are missing. Restore commits from a backup"),
        ((2,), "000000002.json is missing, and only it names the files of its batch: restore it"),
    ],
)
def test_forget_without_some_commits_is_refused_and_deletes_no_file(fleet, landing, tmp_path, lost, text):
    for number in lost:
        fleet.storage.delete(name_of(number))
    before = bytes_in(tmp_path)
    with pytest.raises(OutputError, match=re.escape(text)):
        forget.forget(str(landing.directory), str(tmp_path / "out"), [GONE])
    assert bytes_in(tmp_path) == before


def test_forgetting_an_unknown_device_changes_nothing(fleet, landing, tmp_path):
    before = [one.batch for one in fleet.commits()]
    done = forget.forget(str(landing.directory), str(tmp_path / "out"), ["nobody-at-all"])
    assert (done.rows, done.left, [one.batch for one in fleet.commits()]) == ({}, [], before)


def test_forget_reports_rows_left_in_a_database(fleet, landing, tmp_path, monkeypatch):
    rows = {"plain": [3, 0], "sticky": [2, 2]}
    monkeypatch.setattr(sink, "forget", lambda *_: {name: left.pop(0) for name, left in rows.items()})
    done = forget.forget(str(landing.directory), str(tmp_path / "out"), [GONE])
    assert (done.rows["plain"], done.left) == (3, ["sticky: 2 rows"])


def test_forget_deletes_from_registered_database_and_names_unreachable_one(fleet, landing, tmp_path):
    to = tmp_path / "readings.duckdb"
    database = sink.open_sink(str(to))
    sink.bring(fleet, database)
    database.close()
    sink.register(fleet, str(to), "flashmqtt")
    done = forget.forget(str(landing.directory), str(tmp_path / "out"), [GONE], [str(tmp_path)])
    assert done.left == []
    assert done.rows[str(to)] > 9
    assert_name_is_gone(tmp_path)
    database = sink.open_sink(str(to))
    assert sink.bring(fleet, database) == []
    database.close()
    sink.register(fleet, "postgresql://127.0.0.1:1/nobody", "flashmqtt")
    with pytest.raises(OutputError, match=r"databases of these tables: .*Run the same command again for the rest"):
        forget.forget(str(landing.directory), str(tmp_path / "out"), [GONE])


@pytest.mark.parametrize(
    ("gone", "page"),
    [
        *((gone, True) for gone in ("ab", "window", "version", "schemaString", "PRIMARY")),
        *((gone, False) for gone in ("ab", "null", "status")),
    ],
)
def test_device_whose_name_no_search_of_bytes_can_find_leaves_no_value_and_no_page(
    local, landing, tmp_path, gone, page
):
    """A name of two letters, or a word of the page, of Delta logs, of Parquet or of SQLite."""
    out = tmp_path / "out"
    for device in (gone, "cellar"):
        landing.message(device, 1, 1, kind="boot")
        landing.message(device, 1, 2, value=1234.5)
    landing.seal()
    output = take(local, landing, out, last=1)
    report.write(output, verdict.judge(output))
    with series.Store(output).opened() as points:
        assert [device for (device,) in points.execute("SELECT device FROM series ORDER BY device DESC")] == [
            *sorted((gone, "cellar"), reverse=True)
        ]
    done = forget.forget(str(landing.directory), str(out), [gone], page=page)
    assert (done.weak, done.left) == ({gone}, [])
    assert (out / "report.html").exists() == page
    with series.Store(output).opened() as points:
        assert points.execute("SELECT device FROM series").fetchall() == ([("cellar",)] if page else [])
    if page:
        text = (out / "report.html").read_text()
        facts, values = (json.loads(one) for one in re.findall(r'"application/json" id="\w+">(.*?)<', text))
        assert [row[0] for row in facts["fleet"]] == list(values) == ["cellar"]


@pytest.mark.req("P7")
@pytest.mark.parametrize("page", [True, False])
@pytest.mark.parametrize("length", [1500, 5000])
def test_long_names_are_deleted_and_kept_in_all_pages_of_the_plots_file(tmp_path, length, page):
    """SQLite divides a long text into pages that need not follow one another."""
    tables, out = Tables(tmp_path), tmp_path / "out"
    gone, kept = "attic-" * (length // 6), f"{'b' * (length // 2)}{GONE}{'c' * (length // 2)}"
    for device in (gone, kept, GONE):
        tables.landing.raw(f"{device}/t", b"1")
    tables.batch()
    report.write(tables.output, verdict.judge(tables.output))
    for device in (gone, GONE):
        assert forget.forget(str(tables.landing.directory), str(out), [device], page=page).left == []
        assert [path for path, content in bytes_in(out).items() if b"attic-attic-attic" in content] == []
    with series.Store(tables.output).opened() as points:
        assert points.execute("SELECT device FROM series").fetchall() == [(kept,)] * page


def test_forget_command_requires_yes_and_reports_remaining_files(fleet, landing, tmp_path, capsys):
    arguments = ["--landing", str(landing.directory), "--out", str(tmp_path / "out")]
    assert forget.main(arguments) == 2
    assert "--device is missing" in capsys.readouterr().err
    assert forget.main([*arguments, "--device", GONE]) == 2
    assert "nothing was deleted: give YES=1 (--yes), or search first with DRY=1" in capsys.readouterr().err
    assert forget.main([*arguments, "--device", GONE, "--dry-run", "--search", str(tmp_path / "none")]) == 2
    assert "none: no such folder" in capsys.readouterr().err
    assert forget.main([*arguments, "--device", GONE, "--dry-run"]) == 0
    assert "the names are in " in capsys.readouterr().out
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    assert forget.main([*arguments, "--devices", str(tmp_path / "latin"), "--yes"]) == 2
    assert f"forget: --devices {tmp_path}/latin: 'utf-8' codec can't decode byte 0xe9" in capsys.readouterr().err
    assert forget.main([*arguments, "--device", os.fsdecode(b"caf\xe9"), "--yes"]) == 2
    assert "forget: 'caf\\udce9' is not UTF-8, so no topic has it" in capsys.readouterr().err
    copy = tmp_path / "captures"
    copy.mkdir()
    (copy / "link.jsonl").write_text(f'{{"device": "{GONE}"}}')
    (tmp_path / "list").write_text(f"{GONE}\nzz-b\n")
    assert forget.main([*arguments, "--devices", str(tmp_path / "list"), "--yes", "--search", str(copy)]) == 1
    printed = capsys.readouterr().out
    assert "NOT forgotten: the names are still in 1 place" in printed
    assert f"{copy}/link.jsonl" in printed
    (copy / "link.jsonl").unlink()
    assert forget.main([*arguments, "--devices", str(tmp_path / "list"), "--yes", "--search", str(copy)]) == 0
    printed = capsys.readouterr().out
    assert f"forgotten: no remaining file contains {GONE}, zz-b" in printed
    assert "no row was deleted: there was none, or an earlier attempt deleted all" in printed
    assert "- the board: wipe it first" in printed
    assert "- files that were exported from the tables" in printed
    store = LandingStore(landing.directory / "d.logs", "d")
    assert forget.main([*arguments, "--device", GONE, "--yes"]) == 2
    store.close()
    assert capsys.readouterr().err.startswith(
        f"forget: {landing.directory} is in use by another collector; stop that one"
    )
    with fleet.locked():
        assert forget.main([*arguments, "--device", GONE, "--yes"]) == 2
    assert "another run or `forget` is active" in capsys.readouterr().err


def test_device_named_like_a_format_word_is_forgotten_without_byte_search(local, landing, tmp_path, capsys):
    landing.message("seq", 1, 1, kind="boot")
    landing.message("cellar", 1, 1, kind="boot")
    landing.seal()
    output = take(local, landing, tmp_path / "out", last=1)
    arguments = ["--landing", str(landing.directory), "--out", str(tmp_path / "out"), "--device", "seq", "--yes"]
    assert forget.main(arguments) == 0
    assert "seq: too short for a search of bytes, or a word of our own formats" in capsys.readouterr().out
    assert [row[0] for row in engines.truth(output, "audit")] == ["cellar"]
    assert pq.read_table(landing.directory / "c-000000001.parquet")["topic"].to_pylist() == ["flashmqtt/cellar/boot"]


# The names.


@pytest.mark.parametrize(
    "data",
    [
        b"xgreenhouse-1x",
        b'"greenhouse-1"',
        b"greenhouse-10 and greenhouse-1",
        b"greenhouse-1greenhouse-10",
        b"h\\u00fctte/1",
        b"h\\u00fctte\\/1",
        "hütte/1".encode(),
        b"h%C3%BCtte%2F1",
        base64.b64encode(b"xgreenhouse-1 and so on"),
        base64.b64encode(b"xygreenhouse-1 and so on"),
        base64.urlsafe_b64encode(b'{"bn":"greenhouse-1/"}'),
        b"a&amp;b&lt;c",
    ],
)
def test_name_is_found_in_every_encoding(data):
    names = Names([GONE, "hütte/1", "a&b<c"], [LIKE_IT])
    assert names.occur(data)
    assert not names.occur(names.without(data))
    assert len(names.without(data)) == len(data)


@pytest.mark.parametrize("data", [b"greenhouse-10", b"greenhouse-2", b"", b"greenhouse-", b"greenhouse-100"])
def test_name_inside_a_longer_kept_name_is_not_found(data):
    assert not Names([GONE], [LIKE_IT]).occur(data)
    assert Names([GONE]).occur(data) == data.startswith(b"greenhouse-1")


@pytest.mark.parametrize(
    ("topic", "own"),
    [
        ("flashmqtt/greenhouse-1/readings", True),
        ("flashmqtt/greenhouse-10/readings", False),
        ("greenhouse-1/temperature", True),
        ("flashmqtt/cellar/readings", False),
        ("cellar/left/temperature", False),
        ("cellar/shelf/temperature", True),
        ("shelf/readings", False),
        ("home/cellar/readings", False),
    ],
)
def test_topic_levels_decide_whose_message_it_is(topic, own):
    names = Names([GONE, "cellar/shelf", "home"], [LIKE_IT, "cellar", "cellar/left", "left"])
    assert names.own(topic) == own


@pytest.mark.req("P7")
@pytest.mark.parametrize(
    ("topic", "payload", "own"),
    [
        ("greenhouse-1/temperature", b"21.5", True),
        ("garden/greenhouse-1", b"21.5", False),
        ("garden/greenhouse-1", b'{"v": 1}', False),
        ("garden/greenhouse-1/temperature", b"21.5", False),
        ("tele/greenhouse-1/SENSOR", b'{"v": 1}', True),
        ("flashmqtt/garden/greenhouse-1", b"[]", False),
        ("flashmqtt-live/greenhouse-1/status", b"online", True),
        ("flashmqtt-live/garden/greenhouse-1", b"1", False),
        ("homeassistant/sensor/greenhouse-1/temperature/config", b"{}", True),
        ("homeassistant/sensor/garden/greenhouse-1/config", b"{}", False),
        ("sensors/json", b'{"id": "greenhouse-1"}', False),
    ],
)
def test_device_of_a_message_is_the_one_that_the_pipeline_reads(topic, payload, own):
    names = Names([GONE], [LIKE_IT, "cellar"])
    assert names.own(topic, payload) == own
    assert names.may_own(topic) >= own


@pytest.mark.req("P7")
def test_name_inside_a_reading_of_a_kept_device_is_not_masked():
    names = Names(["pump", "temperature"], ["garden"], texts={"pump-speed", "temperature"})
    text = b'{"n":"pump-speed","vs":"pump, temperature"}'
    assert names.without(text) == b'{"n":"pump-speed","vs":"****, temperature"}'
    assert names.weak == {"temperature"}


@pytest.mark.req("P7")
def test_text_that_repeats_a_name_a_thousand_times_takes_few_comparisons():
    compared = []

    class Data(bytes):
        def __getitem__(self, part):
            compared.append(part)
            return bytes(self)[part]

    text = "pump" * 1000
    names = Names(["pump"], ["garden"], texts={text, f"x-{text}"})
    data = Data(f'"{text}", "x-{text}", "pump"'.encode())
    assert list(names.places(data)) == [(len(data) - 5, len(data) - 1)]
    assert len(compared) < 100


@pytest.mark.req("P7")
def test_file_that_needs_too_much_memory_is_not_taken_for_a_damaged_one_without_the_name(tmp_path, monkeypatch):
    pq.write_table(pa.table({"a": ["pump"]}), tmp_path / "own.parquet", compression="zstd")

    def failing(*_, **__):
        raise pa.ArrowMemoryError("malloc of size 33554432 failed")

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", failing)
    with pytest.raises(MemoryError):
        byte_search.in_parquet(Storage(str(tmp_path)), "own.parquet", Names(["pump"], ["cellar"]))


@pytest.mark.req("P7")
def test_part_of_a_kept_text_in_a_compressed_page_is_not_a_name(tmp_path, monkeypatch):
    storage, names = Storage(str(tmp_path)), Names(["pump"], ["cellar"], texts={"pump-speed"})
    pq.write_table(pa.table({"a": ["pump-speed"]}), tmp_path / "kept.parquet")
    pq.write_table(pa.table({"a": ["pump"]}), tmp_path / "own.parquet")
    pq.write_table(pa.table({"a": ["x"]}, metadata={"by": "pump"}), tmp_path / "metadata.parquet")
    (tmp_path / "cut.parquet").write_bytes(b"PAR1pump")
    monkeypatch.setattr(byte_search, "in_stream", lambda *_: True)  # as if every page had such a part
    assert list(byte_search.search(storage, names)) == ["cut.parquet", "metadata.parquet", "own.parquet"]


@pytest.mark.req("P7")
def test_name_that_a_compressed_page_joins_of_parts_of_kept_names_is_not_found(tmp_path):
    storage, path = Storage(str(tmp_path)), tmp_path / "kept.parquet"
    kept = ["house/r1", "house/r2", "house/r3", "dev-23-1", "house/r0"]
    pq.write_table(pa.table({"device": kept}), path, compression="zstd", compression_level=1, write_statistics=False)
    assert b"dev-23-0" in path.read_bytes()  # zstd: "dev-23-", a reference to an earlier "1...house/r", "0"
    assert list(byte_search.search(storage, Names(["dev-23-0"], kept))) == []


@pytest.mark.req("P7")
def test_name_inside_a_kept_name_is_not_found_at_a_boundary_of_the_parts_that_are_read(tmp_path, monkeypatch):
    storage, names = Storage(str(tmp_path)), Names(["pump"], ["my-pump", "pump-speedy"])
    monkeypatch.setattr(byte_search, "CHUNK", 32)
    kept = b"my-pump pump-speedy " * 8
    for shift in range(32):
        (tmp_path / f"kept-{shift:02}").write_bytes(b"." * shift + kept)
        (tmp_path / f"own-{shift:02}").write_bytes(b"." * shift + b"pump " + kept)
        (tmp_path / f"tail-{shift:02}").write_bytes(b"." * shift + kept + b"pump")
    wanted = [f"{kind}-{shift:02}" for kind in ("own", "tail") for shift in range(32)]
    assert list(byte_search.search(storage, names)) == wanted


def test_search_finds_names_in_compressed_files_and_unused_dictionary_entries(tmp_path):
    storage, names = Storage(str(tmp_path)), Names([GONE])
    values = pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), ["cellar", GONE])
    pq.write_table(pa.table({"a": values}), tmp_path / "dictionary.parquet", compression="zstd")
    nested = pa.array([[{"b": GONE * 5}]], pa.list_(pa.struct([("b", pa.string())])))
    pq.write_table(pa.table({"a": nested}), tmp_path / "nested.parquet", compression="zstd", store_schema=False)
    pq.write_table(pa.table({"a": ["cellar"]}), tmp_path / "clean.parquet")
    (tmp_path / "log.gz").write_bytes(gzip.compress(b"x" * 1000 + GONE.encode()))
    (tmp_path / "split").write_bytes(b"x" * (byte_search.CHUNK - 5) + GONE.encode())
    (tmp_path / f"{GONE}.txt").write_bytes(b"")
    (tmp_path / "cut.parquet").write_bytes(b"PAR1")
    clean = (tmp_path / "clean.parquet").read_bytes()
    (tmp_path / "damaged.parquet").write_bytes(clean[:-28] + b"\xff" * 20 + clean[-8:])
    (tmp_path / "damaged-page.parquet").write_bytes(clean[:4] + b"\xff" * 20 + clean[24:])
    assert list(byte_search.search(storage, names)) == [
        "dictionary.parquet",
        f"{GONE}.txt",
        "log.gz",
        "nested.parquet",
        "split",
    ]


def test_forget_refuses_tables_with_a_damaged_file_which_may_have_the_device(fleet, landing, tmp_path, capsys):
    path = next((tmp_path / "out" / "events").glob("day=*/batch=3/*"))
    rows = pq.read_table(path, partitioning=None)
    pq.write_table(rows, path, compression="gzip", write_statistics=False)  # its bytes do not show the name
    path.write_bytes(path.read_bytes()[:-20])
    arguments = ["--landing", str(landing.directory), "--out", str(tmp_path / "out"), "--yes", "--device", GONE]
    assert forget.main(arguments) == 2
    assert capsys.readouterr().err.startswith(f"forget: {path} is damaged")


def test_forget_command_names_a_device_of_which_there_is_no_data(fleet, landing, tmp_path, capsys):
    arguments = ["--landing", str(landing.directory), "--out", str(tmp_path / "out"), "--yes", "--no-report"]
    before = [one.batch for one in fleet.commits()]
    wrong = GONE[:-1] + "2"
    text = "was found: it was deleted before, or the name is wrong"
    for dry in ([], ["--dry-run"], []):
        assert forget.main([*arguments, "--device", wrong, *dry]) == 0
        printed = capsys.readouterr()
        assert f"forget: no data of {wrong} {text}. Similar devices: {GONE}" in printed.err
        assert "no row was deleted" in printed.out if not dry else "no file contains the names" in printed.out
    assert forget.main([*arguments, "--device", "nobody-at-all"]) == 0
    assert capsys.readouterr().err == f"forget: no data of nobody-at-all {text}\n"
    assert [one.batch for one in fleet.commits()] == before
    # Of several devices, those that exist are deleted.
    assert forget.main([*arguments, "--device", GONE, "--device", wrong]) == 0
    printed = capsys.readouterr().err
    assert f"no data of {wrong} {text}" in printed and f"no data of {GONE}" not in printed
    assert_name_is_gone(tmp_path)
    assert forget.main([*arguments, "--device", GONE]) == 0
    assert f"no data of {GONE} {text}" in capsys.readouterr().err
