"""Make a program's modules smaller for a board. The behaviour stays; no line is removed, so tracebacks can be mapped back.

    packed = shrink({"flashmqtt.codec.packets": text, ...}, public={"Client", ...}, groups={"flashmqtt.client": (...)})

There are four steps over all modules. Each edits the text at positions that Python's parser gives:

1. Remove code that only CPython runs: handlers that are marked (`except ImportError:  # CPython`), with their `try`.
2. Replace integer constants (`PUBLISH = 3`, `_PAGE = const(256)`) by their values, in every module that imports them. Remove
   definitions and imports that are no longer needed. The public constants of `kept` stay, because other programs may import
   them. (mpy-cross itself replaces only constants with an underscore, within one module.)
3. Join modules that are always loaded together: see `bundle`.
4. Shorten internal names: see `names`.

It does not change what it can't analyse: names that are assigned twice or by another module, names that are also in strings
(`getattr`), modules that use `globals()`, modules that users wrote. It knows nothing about flashmqtt.
`host_tests/deploy/test_shrink.py` runs the tests against the result.
"""

from __future__ import annotations

import ast
import operator
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tools.deploy.bundle import bundle
from tools.deploy.names import Names
from tools.deploy.source import (
    COMPREHENSIONS,
    FUNCTIONS,
    Source,
    bound_in,
    children,
    collector_off,
    comprehension_parts,
    own,
    parsed,
    tree_of,
    words,
)

_CPYTHON = re.compile(r"# CPython$")
_OPERATORS: dict[type, Callable[..., int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
    ast.BitXor: operator.xor,
    ast.USub: operator.neg,
    ast.Invert: operator.invert,
}


class _Program:
    """All modules, with what is known about the whole program."""

    def __init__(self, sources: Mapping[str, str], known: Mapping[str, Mapping[str, int]]):
        self.modules = parsed(sources)
        self.untouchable: set[str] = set()  # names that are not replaced
        self.asked: set[str] = set()  # names that are looked up dynamically: their definitions stay
        self.definitions: list[tuple[Source, ast.Assign, str]] = []
        for module in self.modules.values():
            for node in module.nodes:
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
                    self.untouchable.add(node.attr)  # `module.NAME = ...`: not a constant
                elif isinstance(node, ast.JoinedStr):  # Python before 3.12 gives no positions inside an f-string
                    self.untouchable.update(words(node))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    self.asked.add(node.value)  # for getattr
        for name, values in known.items():
            if name in self.modules:
                self.modules[name].constants.update(values)

    def asked_by(self, names: Collection[str]) -> set[str]:
        """Return the names by which these modules may ask for anything: their words, and what `from x import *` gives them."""
        found: set[str] = set()
        for name in names:
            found |= self.modules[name].words()
            for node in self.modules[name].nodes:
                if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
                    origin = self.modules.get(self.modules[name].origin(node))
                    found |= set(origin.bindings) if origin else set()
        return found

    def find_constants(self) -> None:
        """Fill every module's `constants`. A constant may depend on others, also of other modules."""
        found = True
        while found:
            found = False
            for module in self.modules.values():
                for name, value in self._evaluated(module):
                    module.constants[name] = value
                    found = True

    def _evaluated(self, module: Source) -> Iterator[tuple[str, int]]:
        for node in module.tree.body:
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
                if name not in module.constants and module.bindings[name] == 1 and name not in self.untouchable:
                    value = self.value(module, node.value)
                    if value is not None:
                        yield name, value
            elif isinstance(node, ast.ImportFrom):
                origin = self.modules.get(module.origin(node))
                for alias in node.names:
                    name = alias.asname or alias.name
                    known = name in module.constants or name in self.untouchable
                    if origin and not known and module.bindings[name] == 1 and alias.name in origin.constants:
                        yield name, origin.constants[alias.name]

    def value(self, module: Source, node: ast.expr) -> int | None:
        """Return the constant value of an expression at a module's top, or None."""
        if isinstance(node, ast.Constant):
            return node.value if type(node.value) is int else None
        if isinstance(node, ast.Name):
            return module.constants.get(node.id)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "const":
            return self.value(module, node.args[0])
        if isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATORS:
            operand = self.value(module, node.operand)
            return None if operand is None else _OPERATORS[type(node.op)](operand)
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            left, right = self.value(module, node.left), self.value(module, node.right)
            return None if left is None or right is None else _OPERATORS[type(node.op)](left, right)
        return None


class _Inliner(ast.NodeVisitor):
    """Replaces a module's constants by their values, and removes imports that are then unused."""

    def __init__(self, program: _Program, module: Source, wanted: Mapping[str, set[str]]):
        self._program = program
        self._module = module
        self._wanted = wanted  # what other modules import of each module
        # For each function, class or comprehension: its node, and the names bound there -> value or None.
        self._scopes: list[tuple[ast.AST, dict[str, int | None]]] = []
        self._modules: list[dict[str, str]] = [{}]  # for each scope: name -> the program's module
        self._uses: Counter[str] = Counter()
        self._used_before: Counter[str] = Counter(
            node.id for node in module.nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        )

    def run(self) -> None:
        """Add all edits to the module."""
        for node in self._module.tree.body:
            self.visit(node)
        for node in self._module.tree.body:
            if isinstance(node, ast.ImportFrom):
                self._thin(node, self._module.constants, "", self._no_longer_used)

    def _no_longer_used(self, name: str) -> bool:
        return bool(self._used_before[name]) and not self._uses[name] and name not in self._wanted[self._module.name]

    def _thin(self, node: ast.ImportFrom, constants: Mapping[str, int | None], nothing: str, also=lambda name: False):
        """Remove names from an import that became numbers or are no longer used."""
        left = [
            alias
            for alias in node.names
            if constants.get(alias.asname or alias.name) is None and not also(alias.asname or alias.name)
        ]
        if len(left) < len(node.names):
            names = ", ".join(alias.name + (f" as {alias.asname}" if alias.asname else "") for alias in left)
            self._module.replace(
                node, f"from {'.' * node.level}{node.module or ''} import {names}" if left else nothing
            )

    def _number(self, name: str) -> int | None:
        innermost = True
        for node, scope in reversed(self._scopes):
            is_class = isinstance(node, ast.ClassDef)
            if name in scope and is_class and innermost:
                self._program.asked.add(name)  # `A = A` in a class reads the global
            if name in scope and (innermost or not is_class):
                return scope[name]
            innermost = False
        return self._module.constants.get(name)

    def visit(self, node: ast.AST) -> None:
        """Visit a node; functions and comprehensions get a new scope."""
        if isinstance(node, FUNCTIONS):
            self._visit_function(node)
        elif isinstance(node, COMPREHENSIONS):
            self._visit_comprehension(node)
        else:
            super().visit(node)

    def generic_visit(self, node: ast.AST) -> None:
        """Visit the nodes below a node."""
        for child in children(node):
            self.visit(child)

    def visit_Assign(self, node: ast.Assign) -> None:
        target = node.targets[0]
        if not self._scopes and isinstance(target, ast.Name) and target.id in self._module.constants:
            self._program.definitions.append((self._module, node, target.id))
            return
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            value = self._number(node.id)
            if value is None:
                self._uses[node.id] += 1
            else:
                self._module.replace(node, str(value) if value >= 0 else f"({value})")

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.ctx, ast.Load):
            name = node.value.id if isinstance(node.value, ast.Name) else ""
            origin = next((scope[name] for scope in reversed(self._modules) if name in scope), "")
            value = self._program.modules[origin].constants.get(node.attr) if origin else None
            if value is not None:
                self._module.replace(node, str(value) if value >= 0 else f"({value})")
                return
            self._program.asked.add(node.attr)
        self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.name in self._program.modules and (alias.asname or "." not in alias.name):
                self._modules[-1][alias.asname or alias.name] = alias.name

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        origin = self._module.origin(node)
        for alias in node.names:
            if f"{origin}.{alias.name}" in self._program.modules:
                self._modules[-1][alias.asname or alias.name] = f"{origin}.{alias.name}"
        if self._scopes:
            self._thin(node, self._scopes[-1][1], "pass")

    def _enter(self, node: ast.AST, bound: Counter[str], body: Iterable[ast.AST]) -> None:
        scope: dict[str, int | None] = dict.fromkeys(bound)
        for inner in own(body):
            if isinstance(inner, ast.ImportFrom) and (origin := self._program.modules.get(self._module.origin(inner))):
                for alias in inner.names:
                    name = alias.asname or alias.name
                    if bound[name] == 1 and alias.name in origin.constants:
                        scope[name] = origin.constants[alias.name]
            elif isinstance(inner, ast.Global):
                for name in inner.names:
                    scope.pop(name, None)
        self._scopes.append((node, scope))
        self._modules.append({})
        for inner in body:
            self.visit(inner)
        self._modules.pop()
        self._scopes.pop()

    def _visit_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> None:
        parameters = [argument.arg for argument in ast.walk(node.args) if isinstance(argument, ast.arg)]
        for outside in (*getattr(node, "decorator_list", ()), node.args):
            self.visit(outside)
        body = [node.body] if isinstance(node, ast.Lambda) else node.body
        self._enter(node, Counter(parameters) + Counter(bound_in(body)), body)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for outside in (*node.decorator_list, *node.bases):
            self.visit(outside)
        self._enter(node, Counter(bound_in(node.body)), node.body)

    def _visit_comprehension(self, node: ast.AST) -> None:
        outside, inside = comprehension_parts(node)
        for one in outside:
            self.visit(one)
        self._enter(node, Counter(bound_in(inside)), inside)

    def visit_arg(self, node: ast.arg) -> None:
        """Skip annotations: they cost nothing on a board."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value:
            self.visit(node.value)
        self.visit(node.target)


def _inlined(program: _Program, kept: Collection[str], unchanged: Collection[str]) -> dict[str, str]:
    program.find_constants()
    wanted: defaultdict[str, set[str]] = defaultdict(set)
    for module in program.modules.values():
        for node in module.nodes:
            if isinstance(node, ast.ImportFrom):
                wanted[module.origin(node)].update(alias.name for alias in node.names)
    for module in program.modules.values():
        if module.name not in unchanged:
            _Inliner(program, module, wanted).run()
    for module, node, name in program.definitions:
        public = module.name in kept and not name.startswith("_")
        if public or module.looks_at_itself or name in program.asked:
            module.replace(node.value, str(module.constants[name]))
        else:
            module.replace(node, "")
    return {name: module.edited() for name, module in program.modules.items()}


def _for_boards(text: str) -> str:
    """Return a module without code that only CPython or a type checker uses."""
    lines = text.splitlines(True)
    for node in tree_of(text)[1]:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and not node.orelse:
            for i in range(node.lineno - 1, node.end_lineno or 0):
                lines[i] = "\n"
        if not isinstance(node, ast.Try) or node.orelse or node.finalbody:
            continue
        if all(_CPYTHON.search(lines[handler.lineno - 1]) for handler in node.handlers):
            indent = node.body[0].col_offset - node.col_offset
            first, last = node.body[0].lineno, node.body[-1].end_lineno or 0
            for i in range(node.lineno - 1, node.end_lineno or 0):
                inside = first <= i + 1 <= last
                lines[i] = lines[i][indent:] if inside and lines[i].strip() else "\n"
    return "".join(lines)


@dataclass(frozen=True)
class Shrunk:
    """A shrunk program.

    Attributes:
        texts: absolute name -> text.
        lines: module -> the first line and the name of each module in it.
        names: the short names.
    """

    texts: dict[str, str]
    lines: dict[str, list[tuple[int, str]]]
    names: Names


@collector_off()
def shrink(
    sources: Mapping[str, str],
    kept: Collection[str] = (),
    public: Collection[str] = (),
    groups: Mapping[str, Sequence[str]] | None = None,
    outer: Collection[str] = (),
    known: Mapping[str, Mapping[str, int]] | None = None,
    unchanged: Collection[str] = (),
) -> Shrunk:
    """Return a program's modules, shrunk.

    Args:
        sources: absolute name -> text, of every module that may use another module's names. A package's `__init__` is under the
            package's name.
        kept: modules whose public constants stay, for programs that are not in `sources`.
        public: names that such programs use.
        groups: host -> modules to join with it.
        outer: modules that only use the others; their own globals and parameters stay.
        known: module -> globals with a known value on boards.
        unchanged: modules whose text stays. Every name in them stays in the others, too; and a module that is joined with another
            one, and that they may import, leaves a small module as if it were in `kept`.
    """
    outer = {*outer, *unchanged}
    program = _Program(
        {name: text if name in outer else _for_boards(text) for name, text in sources.items()}, known or {}
    )
    asked = program.asked_by(unchanged)
    program.asked |= asked
    away = {member for members in (groups or {}).values() for member in members}
    inlined = _inlined(program, [name for name in kept if name not in away], unchanged)
    left = {*kept, *(name for name in away if name.rpartition(".")[2] in asked)}
    constants = {name: program.modules[name].constants for name in sorted(left) if name in program.modules}
    bundled = bundle(inlined, groups or {}, {*public, *asked}, constants, unchanged)
    names = Names(bundled.texts, {*public, *asked}, outer, asked)
    texts = {name: text if name in unchanged else names.renamed(name) for name, text in bundled.texts.items()}
    return Shrunk(texts, bundled.lines, names)
