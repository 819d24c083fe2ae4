"""Which tests carry a mark, and what it says: pytest collects all tests, and none is run."""

from __future__ import annotations

import contextlib
import io

import pytest

from tools.bootstrap import ROOT

MICROPYTHON = "@micropython"  # how the name of a test's twin ends


class _Collected:
    """A pytest plugin that keeps what the marks of this name say."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.found: list[tuple[str, str]] = []
        self.stopped = False

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Take note of every collected item's marks."""
        for item in session.items:
            self.found += [(item.nodeid, said) for mark in item.iter_markers(self._name) for said in mark.args]

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Take note of Ctrl-C; pytest uses the same way out where a file can't be collected."""
        self.stopped = excinfo.type is KeyboardInterrupt


def collect(name: str) -> list[tuple[str, str]]:
    """Return (test, argument) for each argument of each mark of this name; a test's twin on MicroPython is one of its own.

    Raises:
        SystemExit: pytest could not collect; what it printed is shown.
        KeyboardInterrupt: Ctrl-C, which pytest takes for itself.
    """
    collected, printed = _Collected(name), io.StringIO()
    with contextlib.redirect_stdout(printed):
        status = pytest.main(["--collect-only", "-q", str(ROOT / "host_tests")], plugins=[collected])
    if collected.stopped:
        raise KeyboardInterrupt
    if status != pytest.ExitCode.OK:
        raise SystemExit(printed.getvalue()[-3000:])
    return collected.found
