"""The troubleshooting page explains every error, and quotes real output."""

import builtins
import re

import pytest

from flashmqtt import errors, tls
from flashmqtt.flash import file, pinned
from tools.bootstrap import ROOT

PAGE = (ROOT / "firmware/TROUBLESHOOTING.md").read_text()
ERRORS = {
    name
    for module in (errors, file, pinned, tls)
    for name, value in vars(module).items()
    if isinstance(value, type) and issubclass(value, errors.FlashMqttError)
}
KINDS = {"FlashMqttError"}  # the base class, which is never raised itself
SOURCES = "".join(path.read_text() for place in ("firmware", "boards") for path in sorted((ROOT / place).rglob("*.py")))


def quoted(columns: slice) -> list[str]:
    """Return the texts in backticks in these columns of the tables."""
    rows = [line.split("|")[1:-1] for line in PAGE.splitlines() if line.startswith("| ")]
    return [phrase for row in rows for cell in row[columns] for phrase in re.findall(r"`([^`]+)`", cell)]


def test_every_error_is_explained():
    assert sorted(error for error in ERRORS - KINDS if f"`{error}`" not in PAGE) == []


def test_every_explained_error_exists():
    named = set(re.findall(r"`([A-Z][a-z]+[A-Z]\w+)`", PAGE))
    assert sorted(name for name in named - ERRORS if not hasattr(builtins, name)) == []


@pytest.mark.parametrize("line", quoted(slice(0, 1)))
def test_quoted_console_line_occurs_in_the_sources(line):
    for part in re.split(r":? ", re.sub(r"[0-9]+", "%d", line), maxsplit=1):
        assert part.rstrip(":") in SOURCES


@pytest.mark.parametrize("phrase", [phrase for phrase in quoted(slice(1, 2)) if " " in phrase and "make" not in phrase])
def test_quoted_error_text_occurs_in_the_sources(phrase):
    assert f'"{phrase}' in SOURCES
