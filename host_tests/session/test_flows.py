"""The flow tables in firmware/DESIGN.md equal the tables in the code."""

from __future__ import annotations

import pytest

from host_tests.session import flows


@pytest.mark.req("Q1", "Q2", "Q4")
def test_design_document_shows_the_flow_tables_of_the_code():
    assert flows.is_current()


@pytest.mark.req("Q2")
def test_changed_flow_table_is_noticed(monkeypatch):
    changed = bytearray(flows.SENDER)
    changed[2 * 8 + 5] = 0
    monkeypatch.setattr(flows, "SENDER", bytes(changed))
    assert not flows.is_current()
