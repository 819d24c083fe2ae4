"""The units of tests that `make test` runs in one process, and the files that `host_tests/conftest.py` names for them."""

from host_tests.conftest import CASE_BY_CASE, LONG, WAITING, WITH_SPARK, unit_of
from tools.bootstrap import ROOT


def test_named_files_exist():
    assert [
        name
        for name in (*CASE_BY_CASE, *LONG, *WAITING, *WITH_SPARK)
        if not list(ROOT.glob(f"{name.partition('::')[0]}*"))
    ] == []


def test_tests_with_the_spark_fixture_form_one_unit(request):
    takers = {unit_of(item.nodeid) for item in request.session.items if "spark" in getattr(item, "fixturenames", ())}
    assert takers <= {WITH_SPARK[0]}


def test_micropython_twins_form_one_unit_and_long_cases_one_each():
    first, second = (f"host_tests/both/test_journal_powercut.py::test_{name}" for name in ("a", "b[x@y]"))
    assert unit_of(first) == first != unit_of(second)
    assert unit_of(first + "@micropython") == unit_of(second + "@micropython") != first
    assert unit_of("host_tests/both/test_aio.py::test_a") == "host_tests/both/test_aio.py"
