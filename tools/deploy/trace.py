"""Name the repository's functions in a board's tracebacks. On a board, modules are joined, names short, lines without numbers.

    File "flashmqtt.client", line 1, in popitem    ->    File "flashmqtt.session.session", in Session.publish

Where several functions of the file have the name, all are shown. Files of users have line numbers and stay.
The names are right only if the board has the files that this work tree builds.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator

from tools.deploy import build

_PLACE = re.compile(r'File "([\w.]+)", line \d+, in (\S+)')


@functools.cache
def _program():
    """Return a Pico W's modules and the same ones shrunk: other boards differ in `board` only."""
    paths = {build.module_name(path): file for path, file in build.sources("pico_w").items() if path.endswith(".mpy")}
    texts = {name: source.read_text() for name, source in paths.items()}
    return texts, build.shrunk(texts)


def _functions(node: ast.AST, around: str = "") -> Iterator[str]:
    """Yield the functions in a module, class or function, with the names of what is around them."""
    for inner in ast.iter_child_nodes(node):
        name = around
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{around}.{inner.name}".strip(".")
        if name != around and not isinstance(inner, ast.ClassDef):
            yield name
        yield from _functions(inner, name)


def explained(line: str) -> str:
    """Return a board's output line with the repository's file and function."""

    def place(found: re.Match[str]) -> str:
        texts, shrunk = _program()
        functions = [
            f'File "{module}", in {function}'
            for module in shrunk.members.get(found[1], ())
            for function in ("<module>", *_functions(ast.parse(texts[module])))
            for last in [function.rpartition(".")[2]]
            if shrunk.names.get(last, last) == found[2]
        ]
        return " or ".join(functions) or found[0]

    return _PLACE.sub(place, line)
