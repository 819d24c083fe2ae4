"""SenML packs: the rules of RFC 8428, and the refusal of bad payloads."""

import json

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from host_tests.pipeline.planted import write_pack
from tools.pipeline.batch import senml

HEAD = {"bn": "dev/", "boot": 1, "seq": 7, "up": 2.5}
T = 1_800_000_000.0


def read(*payloads):
    return senml.read(pa.array([p if isinstance(p, bytes) else write_pack(p) for p in payloads], pa.binary()))


def records(*payloads):
    packs = read(*payloads)
    assert packs.bad == []
    return packs.records.to_pylist()


def test_one_record_gives_one_reading():
    packs = read([HEAD | {"n": "load1", "u": "/", "v": 0.42}])
    message = {"row": 0, "device": "dev", "life": 0, "boot": 1, "seq": 7, "uptime": 2.5}
    assert {key: value for key, value in packs.messages.to_pylist()[0].items() if value is not None} == message
    reading = {"row": 0, "index": 0, "name": "load1", "unit": "/", "value": 0.42, "uptime": 2.5}
    assert {key: value for key, value in packs.records.to_pylist()[0].items() if value is not None} == reading


def test_base_fields_apply_to_following_records_of_their_pack_only():
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


def test_time_below_2_to_the_28_is_relative_to_the_uptime():
    (one, two) = records([HEAD | {"n": "a", "v": 1, "t": -2}, {"n": "b", "v": 1, "t": 2.0**28 - 1e9}])
    assert (one["time_us"], one["uptime"]) == (None, 0.5)
    assert two["time_us"] is None


def test_each_value_type_has_its_column():
    found = records([HEAD | {"n": "a", "vs": "x"}, {"n": "b", "vb": False}, {"n": "c", "vd": "AQ"}, {"n": "d", "s": 3}])
    assert [(one["text"], one["flag"], one["blob"], one["sum"]) for one in found] == [
        ("x", None, None, None),
        (None, False, None, None),
        (None, None, "AQ", None),
        (None, None, None, 3),
    ]


def test_base_value_and_base_sum_count_without_the_field():
    found = records(
        [HEAD | {"bs": 10, "bv": 100, "n": "a", "s": 1}, {"n": "b", "v": 2}, {"n": "c"}, {"n": "d", "vb": True}]
    )
    assert [(one["value"], one["sum"], one["flag"]) for one in found] == [
        (100, 11, None),
        (102, 10, None),
        (100, 10, None),
        (None, 10, True),
    ]


def test_first_record_may_contain_only_the_identity():
    assert records([HEAD]) == []
    assert [one["name"] for one in records([HEAD | {"bv": 10, "bs": 1}, {"n": "a", "v": 1}])] == ["a"]


@pytest.mark.req("P4")
def test_relative_time_of_the_first_record_does_not_move_the_message():
    """`up` belongs to `bt`: otherwise each pack would tie the uptime to another time, which looks like clock jumps."""
    packs = read([HEAD | {"bt": T, "n": "a", "v": 1, "t": -5}, {"n": "b", "v": 1, "t": 2}])
    assert packs.messages["time_us"].to_pylist() == [int(T * 1e6)]
    assert packs.records["time_us"].to_pylist() == [int(T * 1e6) - 5_000_000, int(T * 1e6) + 2_000_000]
    assert packs.records["uptime"].to_pylist() == [-2.5, 4.5]
    packs = read(
        [HEAD | {"n": "a", "v": 1, "t": T}, {"n": "b", "v": 1, "t": T + 3}]
    )  # without bt, the first record's time counts
    assert packs.messages["time_us"].to_pylist() == [int(T * 1e6)]
    assert packs.records["uptime"].to_pylist() == [2.5, 5.5]


def test_name_after_the_device_may_start_with_underscore_or_be_missing():
    assert [one["name"] or "" for one in records([HEAD | {"n": "_x", "v": 1}, {"v": 2}])] == ["_x", ""]
    assert "forbids" in read([HEAD | {"bn": "_dev/", "n": "x", "v": 1}, {"bn": "_other/", "n": "y", "v": 1}]).bad[0][1]


def test_name_is_the_base_name_without_the_device():
    found = records(
        [{"bn": "site/dev/room-", "boot": 1, "seq": 1, "n": "temp", "v": 1}, {"bn": "site/dev/", "n": "x", "v": 1}],
        [{"bn": "site/dev/", "boot": 1, "seq": 2, "n": "temp", "v": 1}, {"bn": "other/", "n": "y", "v": 1}],
    )
    assert [one["name"] for one in found] == ["room-temp", "x", "temp", "other/y"]
    assert read([{"bn": "site/dev/room-", "boot": 1, "seq": 1}]).messages["device"].to_pylist() == ["site/dev"]


def test_boot_and_seq_written_as_floats_become_integers():
    packs = read(b'[{"bn":"d/","boot":1.0,"seq":2.0,"n":"x","v":1}]')
    assert packs.messages.select(["boot", "seq"]).to_pylist() == [{"boot": 1, "seq": 2}]


@pytest.mark.req("P5")
@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not valid UTF-8"),
        (b'[{"bn":"\xff/","boot":1,"seq":1}]', "not valid UTF-8"),
        (b"null", "no array"),
        (b"{}", "no array"),
        (b"[]", "an empty pack"),
        (b"[null]", "a record is not an object"),
        (b'[{"bn":"d/","boot":1,"seq":1},null]', "a record is not an object"),
        (b"[" * 100_000, "depth limit exceeded"),
        (b'[{"bn":"d/","boot":1,"seq":1,"zz":' + b"[" * 50_000 + b"]" * 50_000 + b"}]", "depth limit exceeded"),
        (b'[]},{"p":[]', "unexpected content after document"),
        (b'[]}\n{"p":[]', "unexpected content after document"),
        (b'[{"bn":"d/","boot":1,"seq":1}]}{"p":[]', "not JSON: unexpected content after document"),
        (b'[{"bn":"d/","boot":1,"seq":1,"v":NaN,"n":"x"}]', "not JSON"),
        (b'[{"bn":"d/","boot":1,"seq":1,"v":1e999,"n":"x"}]', "infinity"),
        (b'[{"bn":"d/","boot":1,"seq":1,"v":"1","n":"x"}]', "v is not a number"),
        (b'[{"bn":"d/","boot":1,"seq":1,"v":true,"n":"x"}]', "v is not a number"),
        (b'[{"bn":"\\ud800/","boot":1,"seq":1}]', "surrogate"),
        (b'[{"bn":"d/","boot":1,"seq":1,"v":1e308,"bv":1e308,"n":"x"}]', "a value is not finite"),
        (b'[{"bn":"d/","boot":true,"seq":1}]', "boot is not a whole number of 64 bits"),
        (b'[{"bn":"d/","boot":1,"seq":1,"n":1,"v":1}]', "n is not a text"),
        (b'[{"bn":"d/","boot":1,"seq":1,"n":"x","vb":1}]', "vb is not a boolean"),
        (b'[{"bn":"d/","boot":1,"seq":1e30}]', "seq is not"),
        (b'[{"bn":"d/","boot":1,"seq":' + b"1" * 400 + b"}]", "infinity"),
        (b'[{"bn":"d/","boot":-9223372036854775808,"seq":1}]', "out of range"),
        (b'[{"bn":"d/","boot":1,"seq":4294967296}]', "out of range"),
        (b'[{"bn":"d/","boot":-1,"seq":1}]', "out of range"),
        (b'[{"bn":"d/","boot":1,"seq":0}]', "out of range"),
        (b'[{"bn":"d/","boot":1,"seq":1,"up":1e300}]', "uptime out of range"),
        (b'[{"bn":"d/","boot":1,"seq":1,"bt":1e300}]', "time out of range"),
        (b'[{"bn":"d/","boot":1,"boot":2,"seq":1}]', "label boot is twice"),
        (b'[{"bn":"d/","seq":1}]', "boot is missing"),
        (b'[{"bn":"d/","boot":1,"seq":1,"first":-4}]', "first out of range"),
        (b'[{"bn":"d/","boot":1,"seq":1,"doubt_last":9e18}]', "doubt_last out of range"),
        (b'[{"boot":1,"seq":1}]', "bn is missing"),
        (b'[{"bn":"/","boot":1,"seq":1}]', "bn is empty"),
        (b'[{"bn":"d/","boot":1,"seq":1,"bver":11}]', "bver"),
        (b'[{"bn":"d/","boot":1,"seq":1,"lock_":1}]', "must be understood"),
        (b'[{"bn":"d/","boot":1,"seq":1,"n":"a b","v":1}]', "forbids"),
        (b'[{"bn":"d/","boot":1,"seq":1,"n":"a","v":1,"vs":"x"}]', "several values"),
        (b'[{"bn":"d/","boot":1,"seq":1,"n":"a"}]', "a record without a value"),
        (b'[{"bn":"d/","boot":1,"seq":1},{"n":"a","u":"V"}]', "a record without a value"),
        (b'[{"bn":"d/","boot":1,"seq":1},{"bt":1.8e9}]', "a record without a value"),
        (b'[{"bn":"d/","boot":1,"seq":1,"n":"a","vd":"a b"}]', "vd is not base64url"),
        (b'[{"bn":"d/","boot":1,"seq":1,"n":"a","vd":"AAAAA"}]', "vd is not base64url"),
        (b'[{"bn":"d/","boot":1,"seq":1,"n":"a","vd":"+/8="}]', "vd is not base64url"),
        (b'[{"bn":"d/","boot":1,"seq":1,"life":-1}]', "life out of range"),
        (b'[{"bn":"d/","boot":1,"seq":1,"refused_seqs":"5-"}]', "refused_seqs is no list of ranges"),
        (b'[{"bn":"d/","boot":1,"seq":1,"dropped_seqs":"7-5"}]', "dropped_seqs is no list of ranges"),
        (b'[{"bn":"d/","boot":1,"seq":1,"n":"a","v":' + b"9" * 5000 + b"}]", "infinity"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_bad_payload_is_refused_with_a_reason_and_others_are_read(payload, reason):
    good = [write_pack([HEAD | {"seq": seq, "n": "x", "v": seq}]) for seq in range(1, 101)]
    packs = read(*good[:50], payload, *good[50:])
    assert [row for row, _ in packs.bad] == [50]
    assert reason in packs.bad[0][1]
    assert packs.messages["seq"].to_pylist() == list(range(1, 101))
    assert packs.records["value"].to_pylist() == list(range(1, 101))
    assert packs.messages["row"].to_pylist() == packs.records["row"].to_pylist() == [n for n in range(101) if n != 50]


UNKNOWN = b'[{"bn":"d/","boot":1,"seq":8,"up":1,"zz":3,"n":"a","v":1}]'
USUAL = b'[{"bn":"d/","boot":1,"seq":9,"up":1,"n":"a","v":1}]'
EVERY_LABEL = (
    b'[{"bn":"d/","boot":1,"seq":9,"up":1,"bt":1,"bu":"x","bv":1,"bs":2,"bver":10,"t":1,"ut":3,"s":1,"vd":"AA"}]'
)


@pytest.mark.req("P3", "P5")
@pytest.mark.parametrize(
    "payload",
    [
        b'[{"bn":"d/","boot":1,"seq":1,"n":"a","v":1,"zz":NaN}]',
        b'[{"bn":"d/","boot":1,"seq":1,"up":2},{"n":"a","v":1,"up":Infinity}]',
        b'[{"bn":"d/","boot":1,"seq":1,"up":2,"n":"a","v":1,"s":-Infinity}]',
        b'[{"bn":"d/","boot":1,"seq":1,"up":2,"n":"a","v":1e400}]',
        b'[{"bn":"d/","boot":1,"seq":1,"up":Infinity,"n":"a","v":1}]',
        b'[{"bn":"d/","boot":1,"seq":1,"up":2,"n":"a","v":1}],"q":1',
        b'[{"bn":"d/","boot":1,"seq":1,"up":2,"n":"a","v":1}] , "q":[1]',
        b'[{"bn":"d/","boot":1,"seq":1,"up":2,"n":"a","v":-0,"s":-0.0}]',
        b'[{"bn":"d/","boot":1,"seq":1,"up":2,"v":1}]',
        b'[{"bn":"d/","boot":1,"seq":1,"up":-0,"n":"a","v":1}]',
        b'[{"bn":"d/","boot":1,"seq":1,"n":"a","v":1,"zz":1,"zz":{"v":1,"v":2}}]',
        b'[{"bn":"d/","boot":1,"seq":1,"n":"a","v":1,"zz":' + b"1" * 5000 + b"}]",
        b'[{"bn":"d/","boot":1,"seq":1,"n":"a","v":1,"lock\\u005f":1}]',
        b'[{"bn":"d/","boot":1,"seq":1},{"n":"a","v":1,"boot":-9223372036854775808}]',
        b'[{"bn":"d/","boot":1,"seq":1,"up":2,"n":"Inf_NaN","vs":"],\\"a_\\":"}]',
    ],
)
def test_result_of_a_payload_does_not_depend_on_its_batch(payload):
    """There are three readers of payloads: one of plain values, one of any labels, and, where that refuses one, a strict one."""
    check_in_batches(payload)


@pytest.mark.req("P3", "P5")
@pytest.mark.parametrize("label", [b"seq", b"up", b"v", b"n"])
def test_value_of_an_unusual_form_gives_the_same_among_usual_ones(label):
    numbers = (
        b"01 1. .5 +1 -0 -0.0 1.0 1e2 1E+2 1e-2 1e99 1e100 1e400 0x1F 1_0 NaN inf 123456789012345678901 null true -"
    )
    texts = rb'"" "a,b" "a:b" "a]" "{a" "a\"b" "\u0061" "a\t" "a" a "1" "null" "NaN"' + b' "\xc3\xa9" "\xff" "a\x01"'
    usual = {b"bn": b'"d/"', b"boot": b"1", b"seq": b"1", b"up": b"2", b"n": b'"a"', b"v": b"1"}
    for value in [*numbers.split(b" "), *texts.split(b" "), b"", b" 1", b'"a b"', b'"a\nb"', b'1}]\n[{"v":2']:
        check_in_batches(b"[{%b}]" % b",".join(b'"%b":%b' % one for one in (usual | {label: value}).items()))


def check_in_batches(payload):
    def becomes(*others):
        packs = read(payload, *others)
        mine = [[one for one in part.to_pylist() if one["row"] == 0] for part in (packs.messages, packs.records)]
        return repr(mine), dict(packs.bad).get(0)

    alone = becomes()
    for others in ([UNKNOWN], [EVERY_LABEL], [b"{"], [UNKNOWN, b"{"], [b"{"] * 40, [USUAL] * 3):
        assert becomes(*others) == alone


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
@example([b'[{"bn": "dev/", "boot": 1, "seq": 7, "up": 2.5}, {}]', b"[]"])
@settings(max_examples=60, deadline=None)
@given(st.lists(PAYLOADS, max_size=12))
def test_any_payload_gives_the_same_alone_and_in_a_batch(payloads):
    packs = read(*payloads)
    bad = [row for row, _ in packs.bad]
    assert sorted(bad + packs.messages["row"].to_pylist()) == list(range(len(payloads)))
    for row, payload in enumerate(payloads):
        alone = read(payload)
        assert (row in bad) == bool(alone.bad)
        mine = [{**one, "row": 0} for one in packs.records.to_pylist() if one["row"] == row]
        assert mine == alone.records.to_pylist()


# RFC 8428 §5.1.1 to §5.1.8; a pack without a time is read at time 0.
OW = "urn:dev:ow:10e2073a01080063"
PLACE = [
    {"bn": OW, "bt": 1.320067464e09, "bu": "%RH", "v": 20},
    {"u": "lon", "v": 24.30621},
    {"u": "lat", "v": 60.07965},
    {"t": 60, "v": 20.3},
    {"u": "lon", "t": 60, "v": 24.30622},
    {"u": "lat", "t": 60, "v": 60.07965},
    {"t": 120, "v": 20.7},
    {"u": "lon", "t": 120, "v": 24.30623},
    {"u": "lat", "t": 120, "v": 60.07966},
    {"u": "%EL", "t": 150, "v": 98},
    {"t": 180, "v": 21.2},
    {"u": "lon", "t": 180, "v": 24.30628},
    {"u": "lat", "t": 180, "v": 60.07967},
]
EXAMPLES = {
    "single data point": [{"n": OW, "u": "Cel", "v": 23.1}],
    "multiple data points, now": [
        {"bn": f"{OW}:", "n": "voltage", "u": "V", "v": 120.1},
        {"n": "current", "u": "A", "v": 1.2},
    ],
    "multiple data points, timed": [
        {
            "bn": "urn:dev:ow:10e2073a0108006:",
            "bt": 1.276020076001e09,
            "bu": "A",
            "bver": 5,
            "n": "voltage",
            "u": "V",
            "v": 120.1,
        },
        *[{"n": "current", "t": t, "v": v} for t, v in ((-5, 1.2), (-4, 1.3), (-3, 1.4), (-2, 1.5), (-1, 1.6))],
        {"n": "current", "v": 1.7},
    ],
    "multiple measurements": PLACE,
    "resolved data": [
        {"n": OW, "u": one.get("u", "%RH"), "t": 1.320067464e09 + one.get("t", 0), "v": one["v"]} for one in PLACE
    ],
    "multiple data types": [
        {"bn": f"{OW}:", "n": "temp", "u": "Cel", "v": 23.1},
        {"n": "label", "vs": "Machine Room"},
        {"n": "open", "vb": False},
        {"n": "nfc-reader", "vd": "aGkgCg"},
    ],
    "collection of resources": [
        {"bn": "2001:db8::2/", "bt": 1.320078429e09, "n": "temperature", "u": "Cel", "v": 25.2},
        {"n": "humidity", "u": "%RH", "v": 30},
        {"bn": "2001:db8::1/", "n": "temperature", "u": "Cel", "v": 12.3},
        {"n": "humidity", "u": "%RH", "v": 67},
    ],
    "setting an actuator": [
        {"bt": 1.320078429e09, "bu": "W", "n": f"{OW}:blinds", "v": 1},
        {"n": f"{OW}:light", "vs": "off", "t": 10},
    ],
}


def resolved(pack):
    """Resolve a pack by §4.1, §4.5 and §4.6, one record after the other; relative times stay relative."""
    bases = {"bn": "", "bt": 0, "bu": None, "bv": None, "bs": None}
    found = []
    for record in pack:
        bases |= {label: value for label, value in record.items() if label in bases}
        one = {"n": bases["bn"] + record.get("n", ""), "t": bases["bt"] + record.get("t", 0)}
        one["u"] = record.get("u", bases["bu"])
        kinds = [label for label in ("v", "vs", "vb", "vd") if label in record]
        assert len(kinds) <= 1
        one |= {label: record[label] for label in kinds}
        if bases["bv"] is not None and kinds in ([], ["v"]):
            one["v"] = bases["bv"] + record.get("v", 0)
        if bases["bs"] is not None or "s" in record:
            one["s"] = (bases["bs"] or 0) + record.get("s", 0)
        if set(one) & {"v", "vs", "vb", "vd", "s"}:
            found.append(one)
    return found


def assert_resolved(pack):
    """Compare the pipeline's records of a pack with the resolver's; the first record also gets an identity."""
    head = {"boot": 1, "seq": 1, "up": 1000.0}
    if "bn" not in pack[0]:  # an identity needs one
        head |= {"bn": pack[0]["n"][:10], "n": pack[0]["n"][10:]}
        pack = [pack[0] | head, *[{"bn": "", **one} for one in pack[1:]]]
        head = {}
    packs = read([pack[0] | head, *pack[1:]])
    assert packs.bad == []
    device = packs.messages["device"][0].as_py() + "/"
    expected = resolved(pack)
    found = packs.records.to_pylist()
    assert len(found) == len(expected)
    for one, told in zip(found, expected, strict=True):
        name = told["n"].removeprefix(device)
        assert (one["name"] or "", one["unit"]) == (name, told["u"])
        values = {"value": "v", "text": "vs", "flag": "vb", "blob": "vd", "sum": "s"}
        assert {name: one[name] for name in values} == {
            name: pytest.approx(told[label]) if label in {"v", "s"} and label in told else told.get(label)
            for name, label in values.items()
        }
        if told["t"] >= 2**28:
            assert one["time_us"] == round(told["t"] * 1e6)
        else:
            assert one["time_us"] is None
            assert one["uptime"] == pytest.approx(1000 + told["t"])


@pytest.mark.req("P3")
@pytest.mark.parametrize("name", EXAMPLES)
def test_rfc_8428_example_resolves_as_specified(name):
    assert_resolved(EXAMPLES[name])
    if name == "multiple measurements":
        assert resolved(PLACE) == resolved(EXAMPLES["resolved data"])


VALUES = st.sampled_from(
    [{"v": 1.5}, {"v": -3}, {"vs": "x"}, {"vb": True}, {"vd": "AQ"}, {"s": 2}, {"v": 1, "s": 2}, {}]
)
TIMES = st.sampled_from(
    [{}, {"t": -5}, {"t": 5.25}, {"t": T}, {"bt": T}, {"bt": T, "t": -2}, {"bt": 10, "t": 1}, {"bt": 0}]
)
BASES = st.sampled_from(
    [
        {},
        {},
        {"bv": 10},
        {"bs": 100},
        {"bv": 1, "bs": 2},
        {"bu": "K"},
        {"u": "V"},
        {"bn": "dev/a-"},
        {"bn": "o/"},
        {"bv": 0},
    ]
)


@pytest.mark.req("P3")
@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(VALUES, TIMES, BASES), min_size=1, max_size=5))
def test_generated_pack_resolves_like_the_reference_resolver(parts):
    pack = [{"n": f"n{place}", **value, **time, **base} for place, (value, time, base) in enumerate(parts)]
    pack[0] = {"bn": "dev/", **pack[0]}
    if len(resolved(pack)) < len(pack):
        bad = read([HEAD | pack[0], *pack[1:]]).bad
        assert [reason for _, reason in bad] == ["a record without a value"]
    else:
        assert_resolved(pack)
