"""Mapping files: readings from topics and payloads, and mistakes named with their line."""

import itertools
import pickle
import re

import pytest

from tools.pipeline import run
from tools.pipeline.batch import mapping
from tools.pipeline.batch.mapping import Misfit, Reading


def rules(tmp_path, text):
    file = tmp_path / "mapping.toml"
    file.write_text(text, "utf-8")
    return pickle.loads(pickle.dumps(mapping.read(file)))  # as the executors get it


def taken(tmp_path, text, topic, payload):
    found = rules(tmp_path, text).of(topic)
    return None if found is None else mapping.readings(*found, payload)


def shown(readings):
    return [(one.device, one.name, one.unit, next(v for v in one[3:6] if v is not None)) for one in readings]


def test_all_fields_of_a_reading_are_mapped_from_topic_and_payload(tmp_path):
    text = """
[[map]]
topic = "plant/{hall}/+/{device}/{name}"
device = "{hall}-{device}"
value = "$.data.v"
unit = "$.data.unit"
time = "$.at"
time_unit = "ms"
"""
    payload = b'{"at": 1790000000500, "data": {"v": 21.5, "unit": "Cel"}}'
    assert taken(tmp_path, text, "plant/a/x/m1/temp", payload) == [
        Reading("a-m1", "temp", "Cel", 21.5, None, None, 1790000000500000)
    ]
    assert taken(tmp_path, text, "plant/a/m1/temp", payload) is None


def test_mapping_may_begin_with_a_byte_order_mark(tmp_path):
    text = '\ufeff[[map]]\ntopic = "{device}/\u00fc"\nvalue = "$"\nname = "v"\n'
    assert shown(taken(tmp_path, text, "d/\u00fc", b"1.5")) == [("d", "v", None, 1.5)]


def test_list_items_and_object_fields_become_separate_readings(tmp_path):
    text = """
[[map]]
topic = "gateway"
path = "$.sensors[*]"
device = "@.id"
name = "@.kind"
value = "@['val']"
time = "$.t"
"""
    items = b'[{"id": "a", "kind": "temp", "val": 1}, {"id": 7, "kind": "on", "val": true}]'
    payload = b'{"t": "2026-11-22T12:00:00Z", "sensors": ' + items + b"}"
    found = taken(tmp_path, text, "gateway", payload)
    assert shown(found) == [("a", "temp", None, 1.0), ("7", "on", None, True)]
    assert {one.time_us for one in found} == {1_795_348_800_000_000}
    text = '[[map]]\ntopic = "zigbee/{device}"\npath = "$.*"\n'
    payload = b'{"temperature": 21.5, "state": "ON", "update": {"installed": 1}, "color": [1], "none": null}'
    assert shown(taken(tmp_path, text, "zigbee/lamp", payload)) == [
        ("lamp", "temperature", None, 21.5),
        ("lamp", "state", None, "ON"),
    ]


def test_rules_with_one_topic_combine_and_the_first_match_wins(tmp_path):
    text = """
[[map]]
topic = "tele/{device}/SENSOR"
value = "$.AM2301.Temperature"
unit = "Cel"

[[map]]
topic = "tele/+/STATE"
ignore = true

[[map]]
topic = "tele/{device}/SENSOR"
value = "$.AM2301.Humidity"
unit = "%RH"

[[map]]
topic = "tele/#"
device = "other"
name = "text"
value = "$"
format = "text"
"""
    payload = b'{"AM2301": {"Temperature": 21.5, "Humidity": 40}}'
    assert shown(taken(tmp_path, text, "tele/d/SENSOR", payload)) == [
        ("d", "Temperature", "Cel", 21.5),
        ("d", "Humidity", "%RH", 40.0),
    ]
    assert shown(taken(tmp_path, text, "tele/d/SENSOR", b'{"AM2301": {"Humidity": 40}}')) == [
        ("d", "Humidity", "%RH", 40.0)
    ]
    assert taken(tmp_path, text, "tele/d/STATE", b"\xff") == []
    assert shown(taken(tmp_path, text, "tele/d/LWT", b"Online")) == [("other", "text", None, "Online")]
    assert shown(taken(tmp_path, text, "tele", b"x")) == [("other", "text", None, "x")]


@pytest.mark.parametrize(
    ("how", "payload", "value"),
    [("number", b'" 21.5 "', 21.5), ("number", b"3", 3.0), ("boolean", b'"ON"', True), ("boolean", b"0", False)],
)
def test_text_is_converted_to_number_or_boolean(tmp_path, how, payload, value):
    text = f'[[map]]\ntopic = "{{device}}/{{name}}"\nvalue = "$"\nas = "{how}"\n'
    assert shown(taken(tmp_path, text, "d/n", payload)) == [("d", "n", None, value)]


@pytest.mark.req("P5")
@pytest.mark.parametrize(
    ("more", "payload", "reason"),
    [
        ("", b"{", "not JSON"),
        ("", b"[" * 5000, "not JSON"),
        ('format = "text"', b"\xff", "not UTF-8"),
        ("", b'{"w": 1}', "nothing at $.v"),
        ("", b"7", "nothing at $.v"),
        ("", b'{"v": null}', "nothing at $.v"),
        ("", b'{"v": [1]}', "$.v is neither a number, a boolean nor a text"),
        ("", b'{"v": 1e999}', "not JSON"),
        ('as = "number"', b'{"v": "1 m"}', "$.v is no number: 1 m"),
        ('as = "number"', b'{"v": "1e999"}', "a value is not finite"),
        ('as = "boolean"', b'{"v": "maybe"}', "$.v is no boolean: maybe"),
        ('time = "$.t"', b'{"v": 1, "t": "noon"}', "time: noon is no ISO 8601 time"),
        ('time = "$.t"', b'{"v": 1, "t": "2026-11-22T12:00:00"}', "has no offset from UTC"),
        ('time = "$.t"', b'{"v": 1, "t": 1e300}', "time: 1e+300 is out of range"),
        ('time = "$.t"', b'{"v": 1, "t": true}', "time: $.t is no time"),
        ('name = "$.n"', b'{"v": 1}', "no name"),
        ('device = "$.n"', b'{"v": 1, "n": {}}', "device: $.n is no text"),
    ],
)
def test_misfit_names_its_reason(tmp_path, more, payload, reason):
    with pytest.raises(Misfit) as misfit:
        taken(tmp_path, f'[[map]]\ntopic = "{{device}}/x"\nvalue = "$.v"\n{more}\n', "d/x", payload)
    assert reason in str(misfit.value)


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("[[map]\n", 1, "Expected"),
        ("x = 1\n", 1, "unknown key 'x'; a mapping consists of tables [[map]]"),
        ("# nothing\n", 1, "there is no table [[map]]"),
        ("map = 3\n", 1, "there is no table [[map]]"),
        ('[[map]]\nvalue = "$"\n', 1, "there is no topic"),
        ('[[map]]\ntopic = "a"\ndevice = "d"\nname = "n"\n', 2, "neither a value nor a path"),
        (
            '[[map]]\ntopic = "{device}/x"\nvalue = "$.v"\n\n[[map]]\ntopic = "{device}/y"\nvalu = "$"\n',
            7,
            "unknown key 'valu'",
        ),
        ('[[map]]\ntopic = "{device}/x"\nvalue = 7\n', 3, "value = 7 has to be a non-empty text"),
        ('[[map]]\ntopic = "{device}/x"\nvalue = "v"\n', 3, "has to be a JSON path, which begins with $"),
        ('[[map]]\ntopic = "{device}/x"\n\nvalue = "$.a["\n', 4, "'$.a[' is no JSON path (RFC 9535)"),
        ('[[map]]\ntopic = "{device}/x"\nvalue = "$.a"\npath = "@.b"\n', 4, "has to begin with $"),
        ('[[map]]\ntopic = "{device}/x"\nvalue = "$.a"\nname = "{nme}"\n', 4, "there is no {nme}; known: device, key"),
        ('[[map]]\ntopic = "{device}/x"\nvalue = "$.a"\nunit = "{"\n', 4, "unbalanced braces"),
        ('[[map]]\ntopic = "{device}/#/x"\nvalue = "$.a"\n', 2, "# has to be the last level"),
        ('[[map]]\ntopic = "{device}/a+"\nvalue = "$.a"\n', 2, "+ and # have to be whole levels"),
        ('[[map]]\ntopic = "{device}/{device}"\nvalue = "$.a"\n', 2, "{device} is used twice or reserved"),
        ('[[map]]\ntopic = "{device}/{a-b}"\nvalue = "$.a"\n', 2, "{a-b} is no placeholder"),
        ('[[map]]\ntopic = "x/{name}"\nvalue = "$.a"\n', 2, "has no {device}"),
        ('[[map]]\ntopic = "{device}/x"\nvalue = "$"\n', 2, "there is no name"),
        ('[[map]]\ntopic = "{device}/x"\nvalue = "$.a"\nas = "colour"\n', 4, "has to be one of number, boolean"),
        ('[[map]]\ntopic = "{device}/x"\nignore = true\nvalue = "$"\n', 3, "ignore = true allows no other key"),
        ('[[map]]\ntopic = "{device}/x"\nignore = "yes"\n', 3, "has to be true or false"),
    ],
)
def test_mapping_mistake_is_named_with_its_line(tmp_path, text, line, reason):
    with pytest.raises(mapping.MappingError) as error:
        rules(tmp_path, text)
    assert reason in str(error.value)
    assert f"line {line}" in str(error.value)
    assert "mapping.toml" in str(error.value)


@pytest.mark.parametrize(
    ("pattern", "expression"),
    [
        ("{a}-{b}", "(?P<a>[^/]+)-(?P<b>[^/]+)"),
        ("a{a}-{b}-{c}", "a(?P<a>[^/]+)-(?P<b>[^/]+)-(?P<c>[^/]+)"),
        ("{a}{b}-", "(?P<a>[^/]+)(?P<b>[^/]+)-"),
        ("{a}--{b}a/+/{c}", "(?P<a>[^/]+)--(?P<b>[^/]+)a/[^/]*/(?P<c>[^/]+)"),
        ("{a}/#", "(?P<a>[^/]+)(/.*)?"),
        ("+/a", "[^/]*/a"),
        ("#", ".*"),
    ],
)
def test_placeholders_match_like_a_regular_expression(pattern, expression):
    made = mapping._pattern(pattern)
    for topic in map("".join, itertools.chain(*(itertools.product("a-/", repeat=n) for n in range(1, 8)))):
        match = re.fullmatch(expression, topic)
        assert mapping.matched(made, topic) == (match and match.groupdict()), topic


def test_long_topic_of_separators_is_matched_in_time(tmp_path):
    text = '[[map]]\ntopic = "{site}-{device}-{name}"\nvalue = "$"\n'
    assert taken(tmp_path, text, "-" * 65_000 + "/x", b"1") is None
    assert taken(tmp_path, text, "-" * 65_000, b"1")[0].name == "-"


@pytest.mark.parametrize("more", ["", 'time = "$..t"', 'device = "@..d"'])
def test_deeply_nested_payload_is_a_misfit(tmp_path, more):
    payload = b'{"v":' * 300 + b"1" + b"}" * 300
    text = f'[[map]]\ntopic = "{{device}}/x"\nvalue = "$..v"\n{more}\n'
    with pytest.raises(Misfit, match="recursion limit"):
        taken(tmp_path, text, "d/x", payload)


def test_mapping_mistake_ends_the_command(tmp_path, capsys):
    (tmp_path / "landing").mkdir()
    file = tmp_path / "m.toml"
    file.write_text('[[map]]\ntopic = "{device}"\nvalue = "x"\n')
    arguments = ["--landing", str(tmp_path / "landing"), "--out", str(tmp_path / "out"), "--mapping"]
    assert run.main([*arguments, str(file)]) == 2
    assert f"pipeline: {file}, line 3: value = 'x' has to be a JSON path" in capsys.readouterr().err
    assert run.main([*arguments, str(tmp_path / "none.toml")]) == 2
    assert "none.toml: No such file" in capsys.readouterr().err
