"""Order a module's names by frequency: in a `.mpy`, each use of the first 128 names takes one byte, of the others two.

mpy-cross numbers names in the order of their first use. It also numbers attributes behind a `break`, for which it emits no code.
So the module's docstring is replaced by `while 1: break; self.name.name ...`, which costs four bytes.
"""

from __future__ import annotations

import ast
import functools
import keyword
from collections import Counter

from tools.deploy.source import FUNCTIONS, LOCAL, PARAMETER, Source, collector_off

_SHORT = 126  # the first two numbers are the file's name and "<module>"


@functools.lru_cache(maxsize=256)
@collector_off()
def ordered(text: str) -> str:
    """Return a module's text with its most frequent names first; unchanged if all names fit or there is no docstring."""
    module = Source("", text, False)
    uses = used(module)
    first = module.tree.body[0] if module.tree.body else None
    if len(uses) <= _SHORT or not (isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)):
        return text
    most = sorted(uses, key=lambda name: (-uses[name], name))[:_SHORT]
    module.replace(first, "while 1: break; " + ".".join(["self", *most]))
    return module.edited()


def used(module: Source) -> Counter[str]:
    """Return approximately how often each name is in a module's bytecode. Locals are not: the bytecode numbers them."""
    uses: Counter[str] = Counter()
    for place in module.places():
        is_function = isinstance(place.node, FUNCTIONS)
        if place.kind == PARAMETER:
            uses[place.name] += is_function
        elif place.kind != LOCAL:
            uses[place.name] += 2 if is_function else 1  # the function's own code has its name, too
    for node, scope in module.imports():
        for alias in node.names:
            uses[alias.name] += 1
            uses[alias.asname or alias.name] += not scope.outer
    return Counter({name: n for name, n in uses.items() if n and name.isidentifier() and not keyword.iskeyword(name)})
