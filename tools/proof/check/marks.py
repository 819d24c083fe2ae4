"""Which tests have a mark, and its arguments. pytest collects all tests and runs none."""

import contextlib
import functools
import io

import pytest

from tools.bootstrap import ROOT

MICROPYTHON = "@micropython"  # how the name of a test's twin ends


class _Collected:
    """A pytest plugin that keeps the tests."""

    items: list[pytest.Item]

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Keep every collected item."""
        self.items = list(session.items)

    @pytest.hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """End pytest at Ctrl-C, which it would show in many lines; it also calls this if a file can't be collected."""
        if excinfo.type is KeyboardInterrupt:
            raise excinfo.value


@functools.cache
def _items() -> list[pytest.Item]:
    """Return all tests."""
    collected, printed = _Collected(), io.StringIO()
    with contextlib.redirect_stdout(printed):
        status = pytest.main(["--collect-only", "-q", str(ROOT / "host_tests")], plugins=[collected])
    if status != pytest.ExitCode.OK:
        raise SystemExit(printed.getvalue()[-3000:])
    return collected.items


def collect(name: str) -> list[tuple[str, str]]:
    """Return (test, argument) for each argument of each mark with this name; a test's twin on MicroPython counts as another test.

    Raises:
        SystemExit: pytest could not collect; the text is its output.
        KeyboardInterrupt: Ctrl-C.
    """
    return [(item.nodeid, said) for item in _items() for mark in item.iter_markers(name) for said in mark.args]
