"""Map a board's tracebacks to the repository: on a board, modules are joined, names are short, and a line has several statements.

    File "flashmqtt.client", line 1234, in popitem    ->    File "flashmqtt.session.session", line 210, in publish

A line number is that of the first statement of a group: the error is in this statement, or in one that `lines` put behind it.
The mapping is right only if the board has the files that this work tree builds.
"""

from __future__ import annotations

import ast
import functools
import re

from tools.deploy import build

_PLACE = re.compile(r'File "(?:/lib/|/)?([\w./]+?)(?:\.py)?", line (\d+)(?:, in (\S+))?')


@functools.cache
def _program(board: str):
    paths = {build.module_name(path): source for path, source in build.sources(board).items() if path.endswith(".mpy")}
    texts = {name: source.read_text() for name, source in paths.items()}
    return texts, build.shrunk(texts).lines


def _function(text: str, line: int) -> str:
    """Return the name of the innermost function around a line."""
    found = "<module>"
    for node in ast.walk(ast.parse(text)):  # outer ones come first
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.lineno <= line <= (node.end_lineno or 0):
            found = node.name
    return found


def explained(line: str, board: str = "pico_w") -> str:
    """Return a board's output line with the repository's file, line and function."""

    def place(found: re.Match[str]) -> str:
        texts, lines = _program(board)
        number = int(found[2])
        first, module = max(((at, name) for at, name in lines.get(found[1], ()) if at <= number), default=(0, ""))
        if not module:
            return found[0]
        number += 1 - first
        function = f", in {_function(texts[module], number)}" if found[3] else ""
        return f'File "{module}", line {number}{function}'

    return _PLACE.sub(place, line)
