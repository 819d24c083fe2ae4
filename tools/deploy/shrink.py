"""Makes a program's modules smaller for a board; they mean the same, and no line moves, so tracebacks stay true.

    smaller = shrink({"flashmqtt.codec.packets": source, ...}, kept=("flashmqtt.codec.properties",))

Two steps over all modules together, each an edit of the text at the places that Python's own parser names:

1. A module's integer constants (`PUBLISH = 3`, `_PAGE = const(256)`) stand where their names stood, in every module that
   imports them. The definitions go, and the imports that nothing needs any more; but not the public ones of `kept`, which
   programs outside may import. (mpy-cross does this for names with an underscore, inside one module.)
2. Private names (`_like_this`) become short ones, and two that never meet become the same one: a board keeps each distinct
   name in its heap once, for 17 bytes on average. Which names meet is decided on the safe side: see `_Names`.

What it can't see through, it leaves alone: names assigned twice or from elsewhere, names that are also written as texts
(`getattr`), modules that look into `globals()`. It knows no flashmqtt; that the result behaves as before is shown by
running the tests against it (`host_tests/deploy/test_shrink.py`).
"""

from __future__ import annotations

import ast
import io
import itertools
import operator
import re
import string
import tokenize
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

_PRIVATE = re.compile(r"_[A-Za-z]\w*")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_SCOPES = (*_FUNCTIONS, ast.ClassDef, *_COMPREHENSIONS)
_LOOKING_GLASS = ("globals", "locals", "vars", "eval", "exec")
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


class _Module:
    """One module: its text, its tree, what it binds at its top, and the edits that are wanted."""

    def __init__(self, name: str, source: str, is_package: bool):
        self.name = name
        self.source = source
        self.package = name if is_package else name.rpartition(".")[0]
        self.tree = ast.parse(source)
        self.bindings = Counter(_bound_in(self.tree.body))
        self.bindings.update(  # functions that assign a global
            name for node in ast.walk(self.tree) if isinstance(node, ast.Global) for name in node.names
        )
        self.constants: dict[str, int] = {}
        self.edits: list[tuple[int, int, str]] = []
        starts = itertools.accumulate((len(line) for line in source.encode().splitlines(True)), initial=0)
        self._starts = list(starts)
        self.looks_at_itself = any(
            isinstance(node, ast.Name) and node.id in _LOOKING_GLASS for node in ast.walk(self.tree)
        )

    def origin(self, node: ast.ImportFrom) -> str:
        """Return the absolute name of the module that a `from ... import` names."""
        if not node.level:
            return node.module or ""
        base = self.package.split(".")
        base = base[: len(base) - node.level + 1]
        return ".".join([*base, *([node.module] if node.module else [])])

    def span(self, node: ast.stmt | ast.expr) -> tuple[int, int]:
        """Return where a node lies in the encoded source."""
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._starts[node.lineno - 1] + node.col_offset, self._starts[node.end_lineno - 1] + node.end_col_offset

    def replace(self, node: ast.stmt | ast.expr, text: str) -> None:
        """Put a text in a node's place, which keeps its lines."""
        start, end = self.span(node)
        self.edits.append((start, end, text + "\n" * ((node.end_lineno or node.lineno) - node.lineno)))

    def edited(self) -> str:
        """Return the source with all edits made; of two, one inside the other, the outer one counts."""
        content = self.source.encode()
        pieces, at = [], 0
        for start, end, text in sorted(self.edits, key=lambda edit: (edit[0], -edit[1])):
            if start >= at:
                pieces += [content[at:start], text.encode()]
                at = end
        return b"".join([*pieces, content[at:]]).decode()


def _bound_in(body: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the names that statements bind in their own scope, once for each place."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name.partition(".")[0]
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            yield node.id
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield node.name
        if not isinstance(node, _SCOPES):
            yield from _bound_in(ast.iter_child_nodes(node))


class _Program:
    """All modules, and what is known of them together."""

    def __init__(self, sources: Mapping[str, str]):
        packages = {name.rpartition(".")[0] for name in sources}
        self.modules = {name: _Module(name, source, name in packages) for name, source in sources.items()}
        self.untouchable: set[str] = set()
        self.asked: set[str] = set()  # in a way that can't be followed: their definitions stay
        self.definitions: list[tuple[_Module, ast.Assign, str]] = []
        for module in self.modules.values():
            for node in ast.walk(module.tree):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
                    self.untouchable.add(node.attr)  # `module.NAME = ...` from outside: no constant, then
                elif isinstance(node, ast.JoinedStr):  # before Python 3.12, places inside an f-string are not told
                    self.untouchable.update(_words(node))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    self.asked.add(node.value)  # for getattr

    def find_constants(self) -> None:
        """Fill every module's `constants`; one may be made of others, of other modules too."""
        found = True
        while found:
            found = False
            for module in self.modules.values():
                for name, value in self._evaluated(module):
                    module.constants[name] = value
                    found = True

    def _evaluated(self, module: _Module) -> Iterator[tuple[str, int]]:
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

    def value(self, module: _Module, node: ast.expr) -> int | None:
        """Return the integer that an expression at a module's top always is."""
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
    """Puts a module's constants in the place of their names, and takes away what is not needed then."""

    def __init__(self, program: _Program, module: _Module, wanted: Mapping[str, set[str]]):
        self._program = program
        self._module = module
        self._wanted = wanted  # what other modules import of each module
        self._scopes: list[dict[str, int | None]] = []  # of functions and classes: a name bound there, and its value
        self._modules: list[dict[str, str]] = [{}]  # names of our own modules, by scope
        self._uses: Counter[str] = Counter()
        self._used_before: Counter[str] = Counter(
            node.id for node in ast.walk(module.tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        )

    def run(self) -> None:
        """Note all edits in the module."""
        for node in self._module.tree.body:
            self.visit(node)
        for node in self._module.tree.body:
            if isinstance(node, ast.ImportFrom):
                self._thin(node, self._module.constants, "", self._no_longer_used)

    def _no_longer_used(self, name: str) -> bool:
        return bool(self._used_before[name]) and not self._uses[name] and name not in self._wanted[self._module.name]

    def _thin(self, node: ast.ImportFrom, constants: Mapping[str, int | None], nothing: str, also=lambda name: False):
        """Leave out of an import what became a number, or is not used any more."""
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
        for scope in reversed(self._scopes):
            if name in scope:
                return scope[name]
        return self._module.constants.get(name)

    def visit(self, node: ast.AST) -> None:
        """Visit a node, in a scope of its own where it makes one."""
        if isinstance(node, _FUNCTIONS):
            self._visit_function(node)
        elif isinstance(node, _COMPREHENSIONS):
            self._visit_comprehension(node)
        else:
            super().visit(node)

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
            self._thin(node, self._scopes[-1], "pass")

    def _enter(self, node: ast.AST, bound: Counter[str], body: Iterable[ast.AST]) -> None:
        scope: dict[str, int | None] = dict.fromkeys(bound)
        for inner in _own(body):
            if isinstance(inner, ast.ImportFrom) and (origin := self._program.modules.get(self._module.origin(inner))):
                for alias in inner.names:
                    name = alias.asname or alias.name
                    if bound[name] == 1 and alias.name in origin.constants:
                        scope[name] = origin.constants[alias.name]
            elif isinstance(inner, ast.Global):
                for name in inner.names:
                    scope.pop(name, None)
        self._scopes.append(scope)
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
        self._enter(node, Counter(parameters) + Counter(_bound_in(body)), body)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for outside in (*node.decorator_list, *node.bases):
            self.visit(outside)
        # A class's own names are not seen in its methods, but an outer name hidden by one of them is left alone there too.
        self._enter(node, Counter(_bound_in(node.body)), node.body)

    def _visit_comprehension(self, node: ast.AST) -> None:
        self._enter(node, Counter(_bound_in(ast.iter_child_nodes(node))), list(ast.iter_child_nodes(node)))

    def visit_arg(self, node: ast.arg) -> None:
        """Annotations cost nothing on a board: leave them."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value:
            self.visit(node.value)
        self.visit(node.target)


def _own(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield all nodes of a scope, without those of the scopes inside it."""
    for node in body:
        yield node
        if not isinstance(node, _SCOPES):
            yield from _own(ast.iter_child_nodes(node))


def _words(tree: ast.AST) -> Iterator[str]:
    """Yield every name in a piece of code."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr


def _inlined(sources: Mapping[str, str], kept: Collection[str]) -> dict[str, str]:
    program = _Program(sources)
    program.find_constants()
    wanted: defaultdict[str, set[str]] = defaultdict(set)
    for module in program.modules.values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ImportFrom):
                wanted[module.origin(node)].update(alias.name for alias in node.names)
    for module in program.modules.values():
        _Inliner(program, module, wanted).run()
    for module, node, name in program.definitions:
        public = module.name in kept and not name.startswith("_")
        if public or module.looks_at_itself or name in program.asked:
            module.replace(node.value, str(module.constants[name]))
        else:
            module.replace(node, "")
    return {name: module.edited() for name, module in program.modules.items()}


class _Names:
    """The private names of a program, and short ones for them.

    Two names meet, and so stay different, where they stand in one module, or in two modules that are one family: a class of one
    is derived from a class of the other, however far up, since an object has the names of both. A name that is set on an
    object from outside (`other._name = ...`) meets every name that is an attribute anywhere.
    """

    def __init__(self, sources: Mapping[str, str]):
        self._sources = sources
        self._tokens = {name: Counter(_identifiers(source)) for name, source in sources.items()}
        trees = {name: ast.parse(source) for name, source in sources.items()}
        self._family = _families(trees)
        every = Counter[str]()
        for tokens in self._tokens.values():
            every.update(tokens)
        bound, texts, foreign = set(), set(), set(sources)
        asked, given = set(), set()  # as attributes
        self._everywhere: set[str] = set()
        for tree in trees.values():
            inside, outside = _imported(tree, sources)
            for node in ast.walk(tree):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    texts.add(node.value)
                elif isinstance(node, ast.Attribute):
                    if _root(node) in outside:  # `asyncio.core._io_queue`
                        foreign.add(node.attr)
                    elif isinstance(node.ctx, ast.Load):
                        if _root(node) not in inside:
                            asked.add(node.attr)
                    else:
                        given.add(node.attr)
                        if not (isinstance(node.value, ast.Name) and node.value.id == "self"):
                            self._everywhere.add(node.attr)
                elif isinstance(node, ast.ClassDef):
                    given.update(_bound_in(node.body))
                elif isinstance(node, ast.arg):
                    bound.add(node.arg)
                elif isinstance(node, ast.JoinedStr):
                    texts.update(_words(node))
            bound.update(_bound_anywhere(tree))
        foreign |= asked - given
        for name in sources:
            foreign.update(name.split("."))
        self.taken = set(every)
        self.renamed = sorted(
            (name for name in every if _PRIVATE.fullmatch(name) and name in (bound | given) - texts - foreign),
            key=lambda name: (-every[name], name),
        )

    def short(self) -> dict[str, str]:
        """Return name -> short name."""
        places: dict[str, set[str]] = defaultdict(set)
        for module, tokens in self._tokens.items():
            for name in tokens:
                places[name].add(self._family[module])
        families = set(self._family.values())
        result: dict[str, str] = {}
        used: dict[str, set[str]] = defaultdict(set)  # family -> short names in it
        for name in self.renamed:
            where = families if name in self._everywhere else places[name]
            short = next(
                short for short in _shorts() if short not in self.taken and not any(short in used[one] for one in where)
            )
            if len(short) < len(name):
                result[name] = short
                for one in where:
                    used[one].add(short)
        return result


def _imported(tree: ast.Module, sources: Collection[str]) -> tuple[set[str], set[str]]:
    """Return the names that stand for modules, or parts of modules, of ours, and those for others'."""
    ours = {name.partition(".")[0] for name in sources}
    names: tuple[set[str], set[str]] = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                names[first not in ours].add(alias.asname or first)
        elif isinstance(node, ast.ImportFrom):
            of_others = not node.level and (node.module or "").partition(".")[0] not in ours
            names[of_others].update(alias.asname or alias.name for alias in node.names)
    return names


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _bound_anywhere(tree: ast.Module) -> set[str]:
    found = set(_bound_in(tree.body))
    for node in ast.walk(tree):
        if isinstance(node, _SCOPES):
            body = node.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) else [node]
            found.update(_bound_in(body))
    return found


def _families(trees: Mapping[str, ast.Module]) -> dict[str, str]:
    """Return module -> a name for all modules that are bound together by inheritance; a base is known by its class's name."""
    defined: dict[str, list[str]] = defaultdict(list)
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                defined[node.name].append(name)
    family = {name: name for name in trees}

    def head(name: str) -> str:
        while family[name] != name:
            name = family[name]
        return name

    for name, tree in trees.items():
        aliases = {
            alias.asname: alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
            if alias.asname
        }
        for node in ast.walk(tree):
            for base in node.bases if isinstance(node, ast.ClassDef) else ():
                word = base.attr if isinstance(base, ast.Attribute) else base.id if isinstance(base, ast.Name) else ""
                for other in defined[aliases.get(word, word)]:
                    family[head(name)] = head(other)
    return {name: head(name) for name in trees}


def _shorts() -> Iterator[str]:
    letters = string.ascii_letters
    yield from ("_" + letter for letter in letters)
    yield from ("_" + first + second for first in letters for second in letters + string.digits)


def _identifiers(source: str) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME:
            yield token.string


def _renamed(source: str, names: Mapping[str, str]) -> str:
    lines = source.splitlines(True)
    for token in reversed(list(tokenize.generate_tokens(io.StringIO(source).readline))):
        if token.type == tokenize.NAME and token.string in names:
            row, column = token.start[0] - 1, token.start[1]
            lines[row] = lines[row][:column] + names[token.string] + lines[row][column + len(token.string) :]
    return "".join(lines)


def shrink(sources: Mapping[str, str], kept: Collection[str] = ()) -> dict[str, str]:
    """Return the modules, made smaller: absolute name -> source, a package's own source under the package's name.

    Args:
        sources: every module of the program that may use another one's names.
        kept: modules whose public constants stay, for programs that are not among the sources.
    """
    inlined = _inlined(sources, kept)
    names = _Names(inlined).short()
    return {name: _renamed(source, names) for name, source in inlined.items()}
