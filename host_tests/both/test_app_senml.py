"""SenML packs carry the identity of the message in their first record (RFC 8428)."""

from json import loads

import pytest

from app.senml import pack


def test_first_record_carries_identity_and_reading():
    records = loads(pack("dev-1", 3, 117, 12345, [{"n": "load", "v": 0.5, "u": "/"}, {"n": "memory", "v": 7}]))
    assert records == [
        {"bn": "dev-1/", "boot": 3, "seq": 117, "up": 12.345, "n": "load", "v": 0.5, "u": "/"},
        {"n": "memory", "v": 7},
    ]


def test_base_time_is_there_only_when_the_clock_is_set():
    assert "bt" not in loads(pack("d", 1, 1, 0, [{"n": "a", "v": 1}]))[0]
    assert loads(pack("d", 1, 1, 0, [{"n": "a", "v": 1}], base_time=1700000000))[0]["bt"] == 1700000000


def test_a_pack_without_records_still_has_an_identity():
    assert loads(pack("d", 1, 9, 0, [])) == [{"bn": "d/", "boot": 1, "seq": 9, "up": 0}]


@pytest.mark.parametrize("text", ['quote "', "back\\slash", "Grüße ✓", "line\nbreak"])
def test_any_text_survives(text):
    assert loads(pack("d", 1, 1, 0, [{"n": "a", "vs": text}]))[0]["vs"] == text
