"""A module of a program that is shrunk: its text, its syntax tree, the meaning of its names, and the edits.

Every edit replaces the text of a node and keeps its number of lines. `places` classifies names: globals, attributes, parameters,
keywords of calls, locals. This module handles one module at a time; `shrink`, `bundle` and `names` handle the whole program.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import gc
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
SCOPES = (*FUNCTIONS, ast.ClassDef, *COMPREHENSIONS)
_SCOPES = frozenset(SCOPES)
# Tuples, because `isinstance` with `A | B` takes twice as long, and these are used a million times.
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_IMPORTS = (ast.Import, ast.ImportFrom)
_BINDS = (ast.Store, ast.Del)
# Fields of nodes that are strings, numbers, Load, Store, Del or operators.
_PLAIN_FIELDS = frozenset(
    ("arg", "attr", "ctx", "id", "is_async", "level", "module", "op", "ops", "simple", "type_comment")
)
# A node of another kind has no name and no scope of its own.
_NAMED = frozenset((ast.Name, ast.Attribute, *_DEFINITIONS, ast.Lambda, ast.ExceptHandler, ast.Global, ast.keyword))
_SPECIAL = frozenset((*SCOPES, ast.AnnAssign, ast.JoinedStr))
LOOKING_GLASS = ("globals", "locals", "vars", "eval", "exec")

GLOBAL, ATTRIBUTE, MEMBER, PARAMETER, KEYWORD, LOCAL = "global", "attribute", "member", "parameter", "keyword", "local"


@dataclass(eq=False)
class Scope:
    """A module, class, function or comprehension.

    Attributes:
        node: its node in the syntax tree.
        outer: the enclosing scope; None for the module.
        bound: the names that it binds, with the number of places.
        parameters: the names that are parameters.
        declared: names that it declares global.
        modules: names that it binds to modules by imports -> the modules' absolute names.
    """

    node: ast.AST
    outer: Scope | None
    bound: Counter[str]
    parameters: tuple[str, ...] = ()
    declared: set[str] = field(default_factory=set)
    modules: dict[str, str] = field(default_factory=dict)

    @property
    def is_class(self) -> bool:
        """Return whether the scope is a class's body."""
        return isinstance(self.node, ast.ClassDef)


@dataclass(frozen=True)
class Place:
    """An occurrence of a name.

    Attributes:
        start, end: the position in the encoded text.
        name: the name as written.
        kind: GLOBAL; ATTRIBUTE of an object or a class; MEMBER, an attribute that is another module's global; PARAMETER;
            KEYWORD of a call; LOCAL.
        scope: for a PARAMETER the scope that binds it, else the scope around it.
        node: the node that it belongs to.
        module: for a MEMBER, the module of the global.
    """

    start: int
    end: int
    name: str
    kind: str
    scope: Scope
    node: ast.AST
    module: str = ""


class Source:
    """One module. `edited` applies its edits.

    Attributes:
        package: the package to which its relative imports refer.
        nodes: all nodes of its syntax tree.
        bindings: its globals, with the number of places that bind them.
        constants: globals that are known integers; `shrink` fills it.
    """

    def __init__(self, name: str, text: str, is_package: bool):
        self.name = name
        self.text = text
        self.package = name if is_package else name.rpartition(".")[0]
        self.tree, self.nodes = tree_of(text)
        self.bindings = Counter(bound_in(self.tree.body))
        self.bindings.update(  # functions that assign a global
            name for node in self.nodes if isinstance(node, ast.Global) for name in node.names
        )
        self.constants: dict[str, int] = {}
        self.edits: list[tuple[int, int, str]] = []
        self._content = text.encode()
        starts = itertools.accumulate((len(line) for line in self._content.splitlines(True)), initial=0)
        self._starts = list(starts)
        self.looks_at_itself = any(isinstance(node, ast.Name) and node.id in LOOKING_GLASS for node in self.nodes)

    def origin(self, node: ast.ImportFrom) -> str:
        """Return the absolute name of the module in a `from ... import`."""
        if not node.level:
            return node.module or ""
        base = self.package.split(".")
        base = base[: len(base) - node.level + 1]
        return ".".join([*base, *([node.module] if node.module else [])])

    def span(self, node) -> tuple[int, int]:
        """Return a node's start and end in the encoded text."""
        return self._starts[node.lineno - 1] + node.col_offset, self._starts[node.end_lineno - 1] + node.end_col_offset

    def replace(self, node, text: str) -> None:
        """Replace a node by a text; the number of lines stays."""
        start, end = self.span(node)
        self.edits.append((start, end, text + "\n" * (node.end_lineno - node.lineno)))

    def rename(self, place: Place, name: str) -> None:
        """Replace the name at a place."""
        self.edits.append((place.start, place.end, name))

    def edited(self) -> str:
        """Return the text with all edits applied. Of two nested edits only the outer one applies."""
        content = self._content
        pieces, at = [], 0
        for start, end, text in sorted(self.edits, key=lambda edit: (edit[0], -edit[1])):
            if start >= at:
                pieces += [content[at:start], text.encode()]
                at = end
        return b"".join([*pieces, content[at:]]).decode()

    def words(self) -> set[str]:
        """Return every name in the code, and every word in its strings except docstrings."""
        left_out = {id(node.value) for node in self.nodes if isinstance(node, ast.Expr)}
        nodes = [node for node in self.nodes if not (id(node) in left_out and isinstance(node, ast.Constant))]
        fields = (value for node in nodes for value in vars(node).values())
        texts = (text for field in fields for text in (field if isinstance(field, list) else [field]))
        return {word for text in texts if isinstance(text, str) for word in re.findall(r"\w+", text)}

    # --- the meaning of names ---

    def imports(self, modules: Iterable[str] = ()) -> Iterator[tuple[ast.Import | ast.ImportFrom, Scope]]:
        """Yield each import with the scope that gets its names."""
        self._modules = set(modules)
        yield from self._imports

    def places(self, modules: Iterable[str] = ()) -> list[Place]:
        """Return every occurrence of a name, except in imports, annotations and f-strings.

        Args:
            modules: the program's modules; an attribute of one of them is a MEMBER.
        """
        self._modules = set(modules)
        return [place for node, scope in self._walked if type(node) in _NAMED for place in self._places_of(node, scope)]

    def handed_on(self, modules: Iterable[str]) -> set[str]:
        """Return the program's modules that the code uses as objects, so that their attributes are unknown."""
        followed: set[ast.AST] = set()
        found = set()
        self._modules = set(modules)
        for node, scope in self._walked:
            if isinstance(node, ast.Attribute) and self._module_of(node.value, scope):
                followed.update(ast.walk(node.value))
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node not in followed:
                found.add(self._package_of(node, scope))
        return found & self._modules

    @functools.cached_property
    def _walked(self) -> list[tuple[ast.AST, Scope]]:
        """Every node with its scope; cached for all steps over a program."""
        top = Scope(self.tree, None, self.bindings)
        self._note_modules(top, self.tree.body)
        found: list[tuple[ast.AST, Scope]] = []
        for node in self.tree.body:
            self._visit(node, top, found)
        return found

    @functools.cached_property
    def _imports(self) -> list[tuple[ast.Import | ast.ImportFrom, Scope]]:
        return [(node, scope) for node, scope in self._walked if isinstance(node, _IMPORTS)]

    def _note_modules(self, scope: Scope, body: Iterable[ast.AST]) -> None:
        for node in own(body):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.asname or "." not in alias.name:
                        scope.modules[alias.asname or alias.name] = alias.name
                    else:
                        scope.modules.setdefault(alias.name.partition(".")[0], alias.name.partition(".")[0])
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    scope.modules[alias.asname or alias.name] = f"{self.origin(node)}.{alias.name}"
            elif isinstance(node, ast.Global):
                scope.declared.update(node.names)

    def _visit(self, node: ast.AST, scope: Scope, found: list[tuple[ast.AST, Scope]]) -> None:
        """Append a node and all nodes below it, each with its scope."""
        found.append((node, scope))
        if type(node) not in _SPECIAL:
            for child in children(node):
                self._visit(child, scope, found)
            return
        outside: list[ast.AST] = []
        inside: list[ast.AST] = []
        if isinstance(node, FUNCTIONS):
            outside = [*getattr(node, "decorator_list", ()), *node.args.defaults]
            outside += [default for default in node.args.kw_defaults if default]
            inside = [node.body] if isinstance(node, ast.Lambda) else list(node.body)
            parameters = tuple(argument.arg for argument in arguments_of(node))
            inner = Scope(node, scope, Counter(parameters) + Counter(bound_in(inside)), parameters)
        elif isinstance(node, ast.ClassDef):
            outside = [*node.decorator_list, *node.bases, *(keyword.value for keyword in node.keywords)]
            inside = list(node.body)
            inner = Scope(node, scope, Counter(bound_in(inside)))
        elif isinstance(node, COMPREHENSIONS):
            outside, inside = comprehension_parts(node)
            inner = Scope(node, scope, Counter(bound_in(inside)))
        elif isinstance(node, ast.AnnAssign):
            outside = [node.target, *([node.value] if node.value else [])]
        for child in outside:
            self._visit(child, scope, found)
        if inside:
            self._note_modules(inner, inside)
            if not isinstance(node, COMPREHENSIONS):
                inner.bound.subtract({name: inner.bound[name] for name in inner.declared})
            for child in inside:
                self._visit(child, inner, found)

    def _places_of(self, node: ast.AST, scope: Scope) -> Iterator[Place]:
        if isinstance(node, ast.Name):
            kind, owner = resolved(node.id, scope)
            yield Place(*self.span(node), node.id, kind, owner, node)
        elif isinstance(node, ast.Attribute):
            _, end = self.span(node)
            of = self._module_of(node.value, scope)
            yield Place(end - len(node.attr.encode()), end, node.attr, MEMBER if of else ATTRIBUTE, scope, node, of)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield self._word(node, rb"(?:async\s+)?(?:def|class)\s+", node.name, scope)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            start = self.span(node.type)[1] if node.type else self.span(node)[0]
            yield self._word(node, rb"\)*\s+as\s+", node.name, scope, start)
        elif isinstance(node, ast.Global):
            start, end = self.span(node)
            for name in node.names:
                found = re.search(rb"\b" + name.encode() + rb"\b", self._content[start:end])
                assert found
                yield Place(start + found.start(), start + found.end(), name, GLOBAL, scope, node)
        elif isinstance(node, ast.keyword) and node.arg:
            start = self.span(node)[0]
            yield Place(start, start + len(node.arg.encode()), node.arg, KEYWORD, scope, node)
        if isinstance(node, FUNCTIONS):
            for argument in arguments_of(node):
                start = self.span(argument)[0]
                yield Place(start, start + len(argument.arg.encode()), argument.arg, PARAMETER, scope, node)

    def _word(self, node, before: bytes, name: str, scope: Scope, start: int | None = None) -> Place:
        start = self.span(node)[0] if start is None else start
        found = re.compile(before).match(self._content, start)
        assert found, (self.name, node.lineno)
        kind, owner = resolved(name, scope)
        return Place(found.end(), found.end() + len(name.encode()), name, kind, owner, node)

    def _module_of(self, node: ast.expr, scope: Scope) -> str:
        """Return the program's module that an expression refers to, or ""."""
        if isinstance(node, ast.Attribute):
            found = self._package_of(node.value, scope)
            found = f"{found}.{node.attr}" if found else ""
        else:
            found = self._package_of(node, scope)
        return found if found in self._modules else ""

    def _package_of(self, node: ast.expr, scope: Scope) -> str:
        if isinstance(node, ast.Attribute):
            found = self._package_of(node.value, scope)
            return f"{found}.{node.attr}" if found else ""
        if isinstance(node, ast.Name):
            at: Scope | None = scope
            while at:
                if at.bound[node.id] or not at.outer:
                    return at.modules.get(node.id, "")
                at = at.outer
        return ""


@contextlib.contextmanager
def collector_off() -> Iterator[None]:
    """Switch the garbage collector off. It takes a third of the time, to look at syntax trees that are all kept."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@functools.lru_cache(maxsize=256)
def tree_of(text: str) -> tuple[ast.Module, list[ast.AST]]:
    """Return a module's syntax tree and all its nodes. Nobody changes them: they are shared."""
    tree = ast.parse(text)
    nodes: list[Any] = []
    left: list[Any] = [tree]
    while left:
        node = left.pop()
        nodes.append(node)
        node.below = _below(node)
        left += node.below
    return tree, nodes


def arguments_of(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> list[ast.arg]:
    """Return a function's parameters."""
    found = node.args
    rest = [one for one in (found.vararg, found.kwarg) if one]
    return [*found.posonlyargs, *found.args, *found.kwonlyargs, *rest]


def resolved(name: str, scope: Scope) -> tuple[str, Scope]:
    """Return the kind of a name in a scope, and the scope that binds it."""
    at = scope
    while at.outer:
        if name in at.declared:
            break
        if at.bound[name] > 0 and (at is scope or not at.is_class):
            return (ATTRIBUTE if at.is_class else PARAMETER if name in at.parameters else LOCAL), at
        at = at.outer
    while at.outer:
        at = at.outer
    return GLOBAL, at


def reads_global_in_class(module: Source, place: Place) -> bool:
    """Return whether a class's body may read a global or builtin at a place, because the class binds the name, too (`A = A`)."""
    reads = place.kind == ATTRIBUTE and isinstance(place.node, ast.Name) and isinstance(place.node.ctx, ast.Load)
    return reads and (module.bindings[place.name] > 0 or hasattr(builtins, place.name))


def children(node: Any) -> list[ast.AST]:
    """Return the nodes directly below a node of a `tree_of`, without Load, Store, Del and operators."""
    return node.below


def comprehension_parts(node: Any) -> tuple[list[ast.AST], list[ast.AST]]:
    """Return what a comprehension evaluates in the scope around it, which is its first iterable, and what in its own scope."""
    first = node.generators[0]
    inside = [part for part in children(node) if part is not first]
    return [first.iter], [first.target, *first.ifs, *inside]


def _below(node: ast.AST) -> list[ast.AST]:
    """Return the nodes directly below a node. `ast.iter_child_nodes` takes several times as long."""
    found: list[ast.AST] = []
    for name in _fields_below(type(node).__name__):
        value = getattr(node, name, None)
        if isinstance(value, list):
            found += [one for one in value if isinstance(one, ast.AST)]
        elif isinstance(value, ast.AST):
            found.append(value)
    return found


@functools.cache
def _fields_below(kind: str) -> tuple[str, ...]:
    """Return the fields of a kind of node in which `children` finds nodes."""
    return () if kind == "Constant" else tuple(name for name in getattr(ast, kind)._fields if name not in _PLAIN_FIELDS)


def bound_in(body: Iterable[ast.AST]) -> list[str]:
    """Return the names that statements bind in their scope, once for each place."""
    found = []
    for node in own(body):
        if isinstance(node, ast.Name):  # the most frequent kind
            if isinstance(node.ctx, _BINDS):
                found.append(node.id)
        elif isinstance(node, _DEFINITIONS):
            found.append(node.name)
        elif isinstance(node, _IMPORTS):
            found += [alias.asname or alias.name.partition(".")[0] for alias in node.names]
        elif isinstance(node, ast.ExceptHandler) and node.name:
            found.append(node.name)
    return found


def own(body: Iterable[ast.AST]) -> list[ast.AST]:
    """Return all nodes of a scope, without nested scopes."""
    found = []
    left = [*body][::-1]
    while left:
        node = left.pop()
        found.append(node)
        if type(node) not in _SCOPES:
            left += children(node)[::-1]
    return found


def words(tree: ast.AST) -> Iterator[str]:
    """Yield every name in a piece of code."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr


def parsed(texts: Mapping[str, str]) -> dict[str, Source]:
    """Parse a program's modules: absolute name -> source. A package's `__init__` is under the package's name."""
    packages = {name.rpartition(".")[0] for name in texts}
    return {name: Source(name, text, name in packages) for name, text in texts.items()}
