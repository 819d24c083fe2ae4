"""SenML packs carry the identity of the message in their first record (RFC 8428)."""

from json import loads

import pytest

from app.senml import pack, seconds


def test_first_record_carries_identity_and_reading():
    records = loads(pack("dev-1", 3, 117, 12345, [{"n": "load", "v": 0.5, "u": "/"}, {"n": "memory", "v": 7}]))
    assert records == [
        {"bn": "dev-1/", "boot": 3, "seq": 117, "up": 12.345, "n": "load", "v": 0.5, "u": "/"},
        {"n": "memory", "v": 7},
    ]


def test_base_time_is_present_only_when_the_clock_is_set():
    assert "bt" not in loads(pack("d", 1, 1, 0, [{"n": "a", "v": 1}]))[0]
    assert b'"bt":1700000000.042,' in pack("d", 1, 1, 0, [{"n": "a", "v": 1}], unix_ms=1700000000042)


def test_time_keeps_milliseconds_with_single_precision_floats():
    # 100 days of uptime; a single-precision float would give 8640000.0 or 8640001.0
    assert seconds(8640000123) == "8640000.123"
    assert b'"up":8640000.123,' in pack("d", 1, 1, 8640000123, [{"n": "a", "v": 1}])


def test_pack_without_records_still_has_an_identity():
    assert loads(pack("d", 1, 9, 0, [])) == [{"bn": "d/", "boot": 1, "seq": 9, "up": 0}]


def test_labels_are_in_the_first_record():
    labels = {"first": 12, "cause": "watchdog", "dropped": 0}
    records = loads(pack("d", 4, 12, 5, [{"n": "a", "v": 1}, {"n": "b", "v": 2}], labels=labels))
    assert records[0] == {
        "bn": "d/",
        "boot": 4,
        "seq": 12,
        "up": 0.005,
        "first": 12,
        "cause": "watchdog",
        "dropped": 0,
        "n": "a",
        "v": 1,
    }
    assert records[1] == {"n": "b", "v": 2}
    assert loads(pack("d", 4, 12, 5, [], labels=labels))[0]["cause"] == "watchdog"


@pytest.mark.parametrize("text", ['quote "', "back\\slash", "Grüße ✓", "line\nbreak"])
def test_any_text_is_encoded_without_loss(text):
    assert loads(pack("d", 1, 1, 0, [{"n": "a", "vs": text}]))[0]["vs"] == text
    assert loads(pack(text, 1, 1, 0, []))[0]["bn"] == text + "/"


def test_life_is_in_the_first_record_when_given():
    assert loads(pack("d", 2, 9, 0, [{"n": "a", "v": 1}, {"n": "b", "v": 1}], life=77)) == [
        {"bn": "d/", "boot": 2, "seq": 9, "up": 0, "life": 77, "n": "a", "v": 1},
        {"n": "b", "v": 1},
    ]
    assert b"life" not in pack("d", 2, 9, 0, [])
