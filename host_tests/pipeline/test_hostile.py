"""Hostile payloads: none stops a batch, and what becomes of a message depends neither on its block nor on its neighbours."""

import itertools
import random
from unittest.mock import Mock

import pyarrow as pa
import pytest

from host_tests.pipeline.conftest import Landing
from host_tests.pipeline.test_ledger import Books
from tools.pipeline.batch import mapping, plain, senml
from tools.pipeline.batch.messages import EVENT_LABELS, NO_MAPPING, process
from tools.pipeline.batch.state import State

DIGITS = ("1" * 40, "-" + "1" * 309, "1" * 400, "1" * 4300, "1" * 4301, "1." + "1" * 5000, "0." + "0" * 400 + "1")
NUMBERS = (
    *("0", "-0", "-0.0", "1", "-1", "1.0", "1.5", "1e2", "1E308", "-1e308", "1e309", "-1e400", "1e-400"),
    *("2147483647", "2147483648", "4294967296", "9007199254740993", "268435455.5", "268435456", "253402300800"),
    *("9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809"),
    *("18446744073709551615", "18446744073709551616", "NaN", "Infinity", "-Infinity", "Inf", "01", ".5", "1.", "+1"),
)
TEXTS = (
    *('""', '"x"', '"/"', '"a/b"', '"5-8,12"', '"5-"', '"0-1"', '"99999999999"', '"YQ"', '"YQ=="', '"="', '"\\u0000"'),
    *('"\\ud800"', '"\\udc00"', '"\\ud83d\\ude00"', '"é"', '"1"', '"NaN"', '"],\\"a_\\":"', '"\\u007f"', '"\n"'),
    *(f'"{"x" * 5000}"', '"2026-01-01T00:00:00Z"', '"0001-01-01T00:00:00+23:59"', '"9999-12-31T23:59:59-23:59"'),
)
OTHERS = (
    *("null", "true", "false", "[]", "{}", "[1]", '{"v":1,"v":2}', '{"x_":1}', "[null,[{}]]", "nul", ""),
    *("[" * deep + "]" * deep for deep in (100, 250, 300, 900, 5000)),
    *('{"a":' * deep + "1" + "}" * deep for deep in (100, 250, 300, 900)),
)
VALUES = (*DIGITS, *NUMBERS, *TEXTS, *OTHERS)
ESCAPED = ("\\u0076", "zz\\u005f", "zz\\u005F", "zz\\\\u005f", "zz\\u0000", "\\ud800", "")
LABELS = (*senml.LABELS, "zz", "zz_", "_", "p", *ESCAPED)


def hostile_packs():
    """Yield packs of the device DEVICE with a hostile value at each label, in both records and in a label's record."""
    for label, value in itertools.product(LABELS, VALUES):
        yield f'[{{"bn":"DEVICE/","boot":1,"seq":1,"{label}":{value},"n":"x","vb":true}}]'
        yield f'[{{"bn":"DEVICE/","boot":1,"seq":1}},{{"n":"x","{label}":{value}}}]'
    for label, name, value in itertools.product(("v", "s", "vs", "t"), EVENT_LABELS, VALUES):
        yield f'[{{"bn":"DEVICE/","boot":1,"seq":1,"bt":1.8e9,"n":"{name}","{label}":{value}}}]'


def outcomes(rows, mapped=NO_MAPPING):
    """Return for each row number what becomes of the message: readings, an event, or one row in quarantine."""
    landing = Landing(None)
    landing.rows = rows
    state, found = State(), {}
    for table, part in process(state, landing.table(), mapped):
        if table in ("readings", "plain", "events", "quarantine"):
            for row in part.drop_columns(["collector", "segment", "arrival"]).to_pylist():
                found.setdefault(row["row"], {}).setdefault(table, []).append(repr(row))
    for held in state.held.values():
        for one in held:
            found.setdefault(one.row, {}).setdefault("held", []).append(one.reason)
    return found


def landed(messages):
    landing = Landing(None)
    for topic, payload in messages:
        landing.raw(topic, payload)
    return landing.rows


def hostile_rows(share):
    """Return a seeded share of all hostile packs, each of a device of its own, as readings or as boot messages."""
    rng = random.Random(11)
    chosen = [text for text in hostile_packs() if rng.random() < share]
    return landed(
        (f"flashmqtt/d{n}/{rng.choice(('readings', 'boot'))}", text.replace("DEVICE", f"d{n}").encode())
        for n, text in enumerate(chosen)
    )


@pytest.mark.req("P5")
def test_hostile_value_at_any_label_gives_readings_or_one_row_in_quarantine():
    rows = hostile_rows(0.3)
    found = outcomes(rows)
    assert sorted(found) == [row[0] for row in rows]
    for place, becomes in found.items():
        in_quarantine = len(becomes.get("quarantine", ()))
        assert in_quarantine == (0 if "readings" in becomes or "events" in becomes else 1), (rows[place - 1], becomes)
    assert sum("quarantine" in one for one in found.values()) > len(rows) / 4
    assert sum("quarantine" not in one for one in found.values()) > len(rows) / 10
    Books(Landing(None)).take(rows)  # the audit, too, continues


@pytest.mark.req("P5")
def test_hostile_message_becomes_the_same_alone_and_in_a_block():
    rows = hostile_rows(0.02)
    assert len(rows) > 100
    whole = outcomes(rows)
    good = landed([("flashmqtt/g/readings", b'[{"bn":"g/","boot":1,"seq":1,"n":"x","v":1}]')])
    for row in rows:
        assert outcomes([row]) == {row[0]: whole[row[0]]}, row
    for row in rows[::5]:  # a good neighbour: the first reader accepts the block
        assert outcomes([row, (0, *good[0][1:])])[row[0]] == whole[row[0]], row


MAPPING = mapping.Mapping(
    tuple(
        mapping._rule(mapping.MappingError, table)
        for table in (
            {"topic": "a/{device}", "path": "$.*"},
            {"topic": "b/{device}", "name": "x", "value": "$.x", "time": "$.t", "time_unit": "ns"},
            {"topic": "c/{device}", "name": "x", "value": "$.x", "as": "number", "unit": "$.u"},
            {"topic": "d/{device}", "name": "x", "value": "$.x", "as": "boolean", "device": "$.t"},
            {"topic": "e/{device}", "name": "x", "value": "$", "format": "text", "as": "number"},
            {"topic": "f/{device}", "name": "$.t", "value": "$..x"},
        )
    )
)


@pytest.mark.req("P5")
def test_hostile_value_in_a_plain_or_mapped_message_gives_readings_or_one_row_in_quarantine():
    messages = [(f"{topic}/d", f'{{"x":1,"{key}":{value}}}') for topic in "abcdf" for key in "xtu" for value in VALUES]
    messages += [(f"{topic}/d", value) for topic in ("e", "plain") for value in VALUES]
    messages += [("e/d", value.strip('"')) for value in VALUES] + [("e/d", "١٢"), ("e/d", "1" * 400), ("plain/d", "١٢")]
    rows = landed((topic, text.encode()) for topic, text in messages)
    found = outcomes(rows, MAPPING)
    assert sorted(found) == [row[0] for row in rows]
    for place, becomes in found.items():
        in_quarantine = len(becomes.get("quarantine", ()))
        assert in_quarantine == (0 if "plain" in becomes else 1), (rows[place - 1], becomes)
    for row in random.Random(12).sample(rows, 200):
        assert outcomes([row], MAPPING) == {row[0]: found[row[0]]}, row


@pytest.mark.req("P5")
def test_message_that_raises_an_unexpected_error_goes_to_quarantine_alone(monkeypatch):
    payloads = [b'[{"bn":"d/","boot":1,"seq":%d,"n":"x","v":1}]' % seq for seq in range(1, 101)]
    payloads[41] = payloads[41].replace(b'"x"', b'"cursed"')
    resolve = senml._resolve

    def fails(rows, packs):
        if "cursed" in str(packs.to_pylist()):
            raise ZeroDivisionError("unforeseen")
        return resolve(rows, packs)

    monkeypatch.setattr(senml, "_resolve", fails)
    packs = senml.read(pa.array(payloads, pa.binary()))
    assert packs.messages["row"].to_pylist() == packs.records["row"].to_pylist() == [n for n in range(100) if n != 41]
    assert packs.messages["seq"].to_pylist() == [n for n in range(1, 101) if n != 42]
    ((row, reason),) = packs.bad
    assert row == 41
    assert "ZeroDivisionError" in reason and "unforeseen" in reason and "report" in reason

    monkeypatch.setattr(senml, "_resolve", Mock(side_effect=MemoryError))
    with pytest.raises(MemoryError):
        senml.read(pa.array(payloads, pa.binary()))


@pytest.mark.req("P5")
@pytest.mark.parametrize("error", [ZeroDivisionError("unforeseen"), ModuleNotFoundError("jsonpath")])
def test_mapped_message_that_raises_an_unexpected_error_goes_to_quarantine_alone(monkeypatch, error):
    def fails(rules, words, payload):
        if payload == b'{"x":2}':
            raise error
        return mapping.readings(rules, words, payload)

    monkeypatch.setattr(plain, "readings", fails)
    rows = landed([("a/d", b'{"x":%d}' % n) for n in range(1, 4)])
    if isinstance(error, ImportError):  # not the message's fault
        with pytest.raises(ImportError):
            outcomes(rows, MAPPING)
    else:
        found = outcomes(rows, MAPPING)
        assert {place: list(tables) for place, tables in found.items()} == {
            1: ["plain"],
            2: ["quarantine"],
            3: ["plain"],
        }
        assert "ZeroDivisionError: unforeseen" not in found[1]["plain"][0]
        assert "ZeroDivisionError" in found[2]["quarantine"][0]


@pytest.mark.req("P5")
def test_held_message_that_can_not_be_read_any_more_goes_to_quarantine(landing):
    landing.message("a", 5, 100, kind="boot")
    landing.message("a", 6, 200)
    for seq in (150, 151):
        landing.message("a", 3, seq)
    state = State()
    list(process(state, landing.table()))
    ((device, held),) = state.held.items()
    assert [one.seq for one in held] == [150, 151]
    state.held[device][0] = held[0]._replace(payload=b"[")  # as if an older version had been able to read it
    landing.number, landing.rows = landing.number + 1, []
    landing.message("a", 1, 140, kind="boot", first=140)
    found = {}
    for table, part in process(state, landing.table()):
        found.setdefault(table, []).extend(part.to_pylist())
    assert [one["reason"] for one in found["quarantine"]] == ["not JSON: unexpected end of data"]
    assert [(one["boot"], one["seq"]) for one in found["readings"]] == [(3, 151)]
    assert state.held == {}
