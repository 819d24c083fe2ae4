"""The ledger of sizes: a module that grows is named, an unchanged one is not."""

import json
import sys

import pytest

from tools.proof.check import size


@pytest.mark.req("B2")
def test_only_modules_that_grow_are_named():
    ledger = {"mpy_bytes": {"a": 1000, "b": 5000}, "programs": {"p": {"heap_64": 50000}}}
    small = {"mpy_bytes": {"a": 1060, "b": 5100}, "programs": {"p": {"heap_64": 52000}}}
    assert size.complaints(small, ledger) == []
    large = {"mpy_bytes": {"a": 1200, "b": 5000, "c": 7}, "programs": {"p": {"heap_64": 60000, "heap_32": 1}}}
    assert size.complaints(large, ledger) == [
        "a grew from 1000 to 1200 bytes",
        "c is new: 7 bytes",
        "p: heap_64 grew from 50000 to 60000 bytes",
    ]


@pytest.mark.req("B2")
def test_figures_of_a_32_bit_micropython_stay_in_the_ledger_if_there_is_none():
    ledger = {"mpy_bytes": {"a": 1}, "programs": {"p": {"heap_64": 2, "heap_32": 1}, "gone": {}}, "running_free_32": 3}
    now = {"mpy_bytes": {"a": 5}, "programs": {"p": {"heap_64": 6}, "new": {"heap_64": 7}}}
    assert size.with_unmeasured(now, ledger) == {
        "mpy_bytes": {"a": 5},
        "programs": {"p": {"heap_64": 6, "heap_32": 1}, "new": {"heap_64": 7}},
        "running_free_32": 3,
    }
    measured = {"mpy_bytes": {}, "programs": {"p": {"heap_64": 6, "heap_32": 4}}, "running_free_32": 8}
    assert size.with_unmeasured(measured, ledger) == measured


@pytest.mark.req("B2")
def test_growth_is_the_last_that_is_printed_and_says_what_to_do(tmp_path, monkeypatch, capfd):
    now = {"mpy_bytes": {"app.sensors.soil": 227}, "programs": {}}
    ledger = tmp_path / "ledger.json"
    ledger.write_text('{"mpy_bytes": {}, "programs": {}}')
    monkeypatch.setattr(size, "LEDGER", ledger)
    monkeypatch.setattr(size, "measured", lambda interpreter32: now)
    monkeypatch.setattr(sys, "argv", ["size"])
    assert size.main() == 1
    printed = capfd.readouterr()
    assert printed.err.splitlines()[0] == "size: app.sensors.soil is new: 227 bytes"
    assert printed.err.splitlines()[-1].endswith("tools.proof.check.size --write")


@pytest.mark.req("B2")
def test_ledger_keeps_total_size_and_free_heap_within_bounds():
    ledger = json.loads(size.LEDGER.read_text())
    assert set(ledger["programs"]) == set(size.PROGRAMS)
    # Modules that only some programs load are in this sum: `mqtt_as`, `robust`, `sock`, `ssl_params` and `client_log`, 8.7 KB.
    assert sum(ledger["mpy_bytes"].values()) < 136_000
    # The goal, size.FREE_WANTED, is missed with the second journal, and `make size` says so; at least this much must be free.
    # (99,000 before the application printed text messages: `client_log` and its handlers take 4.8 KB. 94,000 before it kept and
    # reported failed sensors and refused readings, and before the session kept doubt and refusals over a reset: 2 KB.)
    assert ledger["running_free_32"] >= 91_500
    assert ledger["running_free_32_without_log"] >= 96_300
