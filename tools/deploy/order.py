"""Puts the names that a module uses most first in its `.mpy`: there, the first 128 take one byte at each use, the others two.

mpy-cross numbers names in the order in which it meets them, and meets those of attributes also behind a `break`, where it emits
nothing. So the module's docstring becomes `while 1: break; self.name.name ...`, which costs four bytes.
"""

from __future__ import annotations

import ast
import functools
import keyword
from collections import Counter

from tools.deploy.source import FUNCTIONS, LOCAL, PARAMETER, Source

_SHORT = 126  # the file's name and "<module>" come before


@functools.lru_cache(maxsize=256)
def ordered(text: str) -> str:
    """Return a module's text with its most frequent names first; as it is where all names fit, or there is no docstring."""
    module = Source("", text, False)
    uses = used(module)
    first = module.tree.body[0] if module.tree.body else None
    if len(uses) <= _SHORT or not (isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)):
        return text
    most = sorted(uses, key=lambda name: (-uses[name], name))[:_SHORT]
    module.replace(first, "while 1: break; " + ".".join(["self", *most]))
    return module.edited()


def used(module: Source) -> Counter[str]:
    """Return how often each name stands in a module's bytecode, nearly: locals have numbers, and a parameter is named once."""
    uses: Counter[str] = Counter()
    for place in module.places():
        is_function = isinstance(place.node, FUNCTIONS)
        if place.kind == PARAMETER:
            uses[place.name] += is_function
        elif place.kind != LOCAL:
            uses[place.name] += 2 if is_function else 1  # a function's code has its name, too
    for node, scope in module.imports():
        for alias in node.names:
            uses[alias.name] += 1
            uses[alias.asname or alias.name] += not scope.outer
    return Counter({name: n for name, n in uses.items() if n and name.isidentifier() and not keyword.iskeyword(name)})
