"""Name the repository's functions in a board's tracebacks. On a board, modules are joined, names short, lines without numbers.

    File "flashmqtt.client", line 1, in popitem    ->    File "flashmqtt.session.session", in Session.publish

If several functions of the file have the name, all are shown. Lines about users' files are not changed: they have line numbers.
The names are right only if the board has the files that this work tree builds, with the same `board.py`: all names in a user's
own `board.py` are kept in every module, so other names get other short ones.
"""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

from tools.deploy import build

_PLACE = re.compile(r'File "([\w.]+)", line \d+, in (\S+)')


@functools.cache
def program(board_file: Path | None):
    """Return a Pico W's modules and the same ones shrunk: without a `board_file`, few names of other boards differ."""
    files = build.sources("pico_w", board_file=board_file)
    paths = {build.module_name(path): file for path, file in files.items() if path.endswith(".mpy")}
    texts = {name: build.text_of(source) for name, source in paths.items()}
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


def explained(line: str, board_file: Path | None = None) -> str:
    """Return a board's output line with the repository's file and function.

    Args:
        line: the line.
        board_file: the user's own `board.py`, with which the board was deployed.
    """

    def place(found: re.Match[str]) -> str:
        texts, shrunk = program(board_file)
        functions = [
            f'File "{module}", in {function}'
            for module in shrunk.members.get(found[1], ())
            for function in ("<module>", *_functions(ast.parse(texts[module])))
            for last in [function.rpartition(".")[2]]
            if shrunk.names.get(last, last) == found[2]
        ]
        return " or ".join(dict.fromkeys(functions)) or found[0]

    return _PLACE.sub(place, line)
