"""SenML packs: what RFC 8428 says, and what no payload may do."""

import json

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tools.pipeline import senml

HEAD = {"bn": "dev/", "boot": 1, "seq": 7, "up": 2.5}
T = 1_800_000_000.0


def read(*payloads):
    return senml.read(pa.array([p if isinstance(p, bytes) else senml.write(p) for p in payloads], pa.binary()))


def records(*payloads):
    packs = read(*payloads)
    assert packs.bad == []
    return packs.records.to_pylist()


def test_one_record_gives_one_reading():
    packs = read([HEAD | {"n": "load1", "u": "/", "v": 0.42}])
    message = {"row": 0, "device": "dev", "boot": 1, "seq": 7, "uptime": 2.5}
    assert {key: value for key, value in packs.messages.to_pylist()[0].items() if value is not None} == message
    reading = {"row": 0, "index": 0, "name": "load1", "unit": "/", "value": 0.42, "uptime": 2.5}
    assert {key: value for key, value in packs.records.to_pylist()[0].items() if value is not None} == reading


def test_base_fields_carry_to_the_records_behind_them_and_not_into_the_next_pack():
    pack = [
        HEAD | {"bt": T, "bu": "Cel", "bv": 20, "n": "a", "v": 1},
        {"n": "b", "v": 2, "t": 5, "u": "K"},
        {"n": "c", "bv": 100, "v": 3},
        {"n": "d", "v": 4, "t": -1.5},
    ]
    found = records(pack, [HEAD | {"n": "e", "v": 5}])
    assert [one["value"] for one in found] == [21, 22, 103, 104, 5]
    assert [one["unit"] for one in found] == ["Cel", "K", "Cel", "Cel", None]
    start = int(T * 1e6)
    assert [one["time_us"] for one in found] == [start, start + 5_000_000, start, start - 1_500_000, None]


def test_time_below_2_to_the_28_is_relative_and_moves_the_uptime():
    (one, two) = records([HEAD | {"n": "a", "v": 1, "t": -2}, {"n": "b", "v": 1, "t": 2.0**28 - 1e9}])
    assert (one["time_us"], one["uptime"]) == (None, 0.5)
    assert two["time_us"] is None


def test_every_kind_of_value_has_its_column():
    found = records([HEAD | {"n": "a", "vs": "x"}, {"n": "b", "vb": False}, {"n": "c", "vd": "AQ"}, {"n": "d", "s": 3}])
    assert [(one["text"], one["flag"], one["blob"], one["sum"]) for one in found] == [
        ("x", None, None, None),
        (None, False, None, None),
        (None, None, "AQ", None),
        (None, None, None, 3),
    ]


def test_base_sum_is_added_and_a_lone_base_value_is_no_measurement():
    (one,) = records([HEAD | {"bs": 10, "n": "a", "s": 1}])
    assert one["sum"] == 11
    assert records([HEAD | {"bv": 10, "n": "a"}]) == []


def test_name_is_what_the_base_name_leaves_behind_the_device():
    found = records(
        [{"bn": "site/dev/room-", "boot": 1, "seq": 1, "n": "temp", "v": 1}, {"bn": "site/dev/", "n": "x", "v": 1}],
        [{"bn": "site/dev/", "boot": 1, "seq": 2, "n": "temp", "v": 1}, {"bn": "other/", "n": "y", "v": 1}],
    )
    assert [one["name"] for one in found] == ["room-temp", "x", "temp", "other/y"]
    assert read([{"bn": "site/dev/room-", "boot": 1, "seq": 1}]).messages["device"].to_pylist() == ["site/dev"]


def test_whole_numbers_that_came_as_floats_are_whole_numbers():
    packs = read(b'[{"bn":"d/","boot":1.0,"seq":2.0,"n":"x","v":1}]')
    assert packs.messages.select(["boot", "seq"]).to_pylist() == [{"boot": 1, "seq": 2}]


@pytest.mark.req("P5")
@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not UTF-8"),
        (b'[{"bn":"\xff/","boot":1,"seq":1}]', "not UTF-8"),
        (b"null", "no array"),
        (b"{}", "no array"),
        (b"[]", "an empty pack"),
        (b"[null]", "a record is not an object"),
        (b'[{"bn":"d/","boot":1,"seq":1},null]', "a record is not an object"),
        (b"[" * 100_000, "nested too deeply"),
        (b'[{"bn":"d/","boot":1,"seq":1,"zz":' + b"[" * 50_000 + b"]" * 50_000 + b"}]", "nested too deeply"),
        (b'[]},{"p":[]', "Extra data"),
        (b'[]}\n{"p":[]', "Extra data"),
        (b'[{"bn":"d/","boot":1,"seq":1,"v":NaN,"n":"x"}]', "not finite"),
        (b'[{"bn":"d/","boot":1,"seq":1,"v":1e999,"n":"x"}]', "not finite"),
        (b'[{"bn":"d/","boot":1,"seq":1,"v":"1","n":"x"}]', "v is not a number"),
        (b'[{"bn":"d/","boot":1,"seq":1,"v":true,"n":"x"}]', "v is not a number"),
        (b'[{"bn":"\\ud800/","boot":1,"seq":1}]', "bn is not a string"),
        (b'[{"bn":"d/","boot":1,"seq":1e30}]', "seq is not"),
        (b'[{"bn":"d/","boot":1,"seq":4294967296}]', "out of range"),
        (b'[{"bn":"d/","boot":-1,"seq":1}]', "out of range"),
        (b'[{"bn":"d/","boot":1,"seq":0}]', "out of range"),
        (b'[{"bn":"d/","boot":1,"seq":1,"up":1e300}]', "uptime out of range"),
        (b'[{"bn":"d/","boot":1,"seq":1,"bt":1e300}]', "time out of range"),
        (b'[{"bn":"d/","boot":1,"boot":2,"seq":1}]', "twice"),
        (b'[{"bn":"d/","seq":1}]', "boot is missing"),
        (b'[{"bn":"d/","boot":1,"seq":1,"first":-4}]', "first out of range"),
        (b'[{"bn":"d/","boot":1,"seq":1,"doubt_last":9e18}]', "doubt_last out of range"),
        (b'[{"boot":1,"seq":1}]', "bn is missing"),
        (b'[{"bn":"/","boot":1,"seq":1}]', "bn is empty"),
        (b'[{"bn":"d/","boot":1,"seq":1,"bver":11}]', "bver"),
        (b'[{"bn":"d/","boot":1,"seq":1,"lock_":1}]', "must be understood"),
        (b'[{"bn":"d/","boot":1,"seq":1,"n":"a b","v":1}]', "forbids"),
        (b'[{"bn":"d/","boot":1,"seq":1,"n":"a","v":1,"vs":"x"}]', "several values"),
        (b'[{"bn":"d/","boot":1,"seq":1,"n":"a","v":' + b"9" * 5000 + b"}]", ""),
    ],
)
def test_bad_payload_is_named_and_its_neighbours_are_read(payload, reason):
    good = [senml.write([HEAD | {"seq": seq, "n": "x", "v": seq}]) for seq in range(1, 101)]
    packs = read(*good[:50], payload, *good[50:])
    assert [row for row, _ in packs.bad] == [50]
    assert reason in packs.bad[0][1]
    assert packs.messages["seq"].to_pylist() == list(range(1, 101))
    assert packs.records["value"].to_pylist() == list(range(1, 101))
    assert packs.messages["row"].to_pylist() == packs.records["row"].to_pylist() == [n for n in range(101) if n != 50]


NUMBERS = st.one_of(st.integers(-(2**60), 2**60), st.floats(), st.booleans(), st.none(), st.text(max_size=3))
PAYLOADS = st.one_of(
    st.binary(max_size=40),
    st.lists(
        st.dictionaries(st.sampled_from([*senml.LABELS, "x", "y_"]), NUMBERS, max_size=5)
        | st.builds(
            lambda more: HEAD | more, st.dictionaries(st.sampled_from(list(senml.LABELS)), NUMBERS, max_size=3)
        ),
        max_size=3,
    ).map(lambda pack: json.dumps(pack).encode()),
)


@pytest.mark.req("P5")
@settings(max_examples=60, deadline=None)
@given(st.lists(PAYLOADS, max_size=12))
def test_any_payloads_come_out_as_rows_or_as_reasons_the_same_alone_as_in_company(payloads):
    packs = read(*payloads)
    bad = [row for row, _ in packs.bad]
    assert sorted(bad + packs.messages["row"].to_pylist()) == list(range(len(payloads)))
    for row, payload in enumerate(payloads):
        alone = read(payload)
        assert (row in bad) == bool(alone.bad)
        mine = [{**one, "row": 0} for one in packs.records.to_pylist() if one["row"] == row]
        assert mine == alone.records.to_pylist()
