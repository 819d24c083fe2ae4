"""Shorten a program's internal names: a board's heap has each distinct name once, with 17 bytes on average.

A name is internal if the program defines it and no other code uses it: it is not in `public`, not in a string (`getattr`), and
not an attribute of a foreign module or object. There are three kinds. The same short name may be used for each kind, and for
many names of one kind, with these limits:

- Globals: two globals of one module, defined or imported, stay different.
- Attributes: two attributes of one object stay different. An object has the names of its class, of base and derived classes, and
  names that are set from outside. A name in `other.name = ...` may be on any object; so may the names of a class that delegates
  (`__getattr__` with `getattr`). Programs may set their own attributes on objects of public classes and may derive from these
  classes; for them only short names are used that no program is likely to use.
- Parameters: the first parameter of every function has the same name, and so on. Parameters that a call names (`f(name=...)`)
  keep their names, and so do public parameters of public functions.
"""

from __future__ import annotations

import ast
import string
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from tools.deploy.source import (
    ATTRIBUTE,
    FUNCTIONS,
    GLOBAL,
    KEYWORD,
    MEMBER,
    PARAMETER,
    Place,
    Scope,
    Source,
    arguments_of,
    bound_in,
    children,
    own,
    parsed,
    reads_global_in_class,
    words,
)

_MOST_PARAMETERS = 12  # that get short names, of a function and the functions around it
# MicroPython's "static qstrs": a .mpy file refers to them by number, and they take no heap. They are the same in every
# MicroPython that loads .mpy version 6. The ones that a program uses stay; the others serve as short names.
_FREE_NAMES = """
abs all any append args bool builtins bytearray bytecode bytes callable chr classmethod clear close const copy count dict dir
divmod end endswith eval exec extend find format from_bytes get getattr globals hasattr hash id index insert int isalpha
isdigit isinstance islower isspace issubclass isupper items iter join key keys len list little locals lower lstrip main map
micropython next object open ord pop popitem pow print range read readinto readline remove replace repr reverse rfind rindex
round rsplit rstrip self send sep set setattr setdefault sort sorted split start startswith staticmethod step stop str strip
sum super throw to_bytes tuple type update upper value values write zip
"""
# Not as short names: the compiler or a built-in function looks these up by name.
_LOOKED_UP_NAMES = """
bool builtins bytecode classmethod close const eval exec globals int little locals micropython object read readinto readline self
send staticmethod super throw type write
"""
# Short names for attributes of public classes: names that no program is likely to give to an attribute.
_UNLIKELY_NAMES = """
isalpha isdigit isinstance islower isspace issubclass isupper lstrip popitem rfind rindex rsplit rstrip setdefault ArithmeticError
AssertionError AttributeError BaseException EOFError Ellipsis GeneratorExit ImportError IndentationError IndexError KeyError
KeyboardInterrupt LookupError MemoryError NameError NoneType NotImplementedError OSError OverflowError RuntimeError StopIteration
SyntaxError SystemExit TypeError ValueError ZeroDivisionError
"""
_FREE = frozenset([*_FREE_NAMES.split(), *_UNLIKELY_NAMES.split()])
_UNLIKELY = frozenset(_UNLIKELY_NAMES.split())
_LOOKED_UP = frozenset(_LOOKED_UP_NAMES.split())


@dataclass
class _Attribute:
    """An attribute's name: the families of classes that have it."""

    families: set[str] = field(default_factory=set)
    set_from_outside: bool = False


class Names:
    """The short names of a program.

    Args:
        texts: absolute name -> text, of every module.
        public: names that stay.
        outer: modules that only use the others; their own globals and parameters stay.
        asked: names in modules that are not renamed. They are in `public`, too. None of them becomes a short name, and a function
            or class with such a name keeps its parameters: it may be called with `**settings`.
    """

    def __init__(
        self,
        texts: Mapping[str, str],
        public: Collection[str] = (),
        outer: Collection[str] = (),
        asked: Collection[str] = (),
    ):
        self._modules = parsed(texts)
        self._inner = {name: module for name, module in self._modules.items() if name not in outer}
        self._public = public
        self._places = {name: module.places(texts) for name, module in self._modules.items()}
        self._uses: Counter[str] = Counter()
        self._stays: set[str] = {*public, *_FREE}
        self._keywords: set[str] = set()
        self._called: frozenset[str] = frozenset(asked)
        self._taken: set[str] = {*asked}
        self._links: dict[str, dict[str, tuple[str, str]]] = {}
        self._asked: set[str] = set()  # attributes of objects other than self
        handed_on: set[str] = set()
        for name, module in self._modules.items():
            self._read(name, module)
            for other in module.handed_on(texts):
                handed_on.update(self._modules[other].bindings)
        self._stays |= handed_on & self._asked
        shorts = [short for short, _ in zip(self._shorts(), range(2000), strict=False)]
        self._for_parameters = shorts[:_MOST_PARAMETERS]
        unlikely = [*sorted(_UNLIKELY - self._taken), *(f"_{short}" for short in shorts if len(short) < 3)]
        unlikely = [short for short in unlikely if short not in self._taken]
        self.attributes = dict(self._shorten_attributes(shorts, unlikely))
        self.globals = dict(self._shorten_globals(shorts[_MOST_PARAMETERS:]))

    def _read(self, name: str, module: Source) -> None:
        for node in module.nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                self._stays.add(node.value)
            elif isinstance(node, ast.JoinedStr):
                self._stays.update(words(node))
        for place in self._places[name]:
            self._uses[place.name] += 1
            self._taken.add(place.name)
            if reads_global_in_class(module, place):
                self._stays.add(place.name)
            if place.kind == KEYWORD:
                self._keywords.add(place.name)
            elif isinstance(place.node, ast.Attribute) and place.kind == ATTRIBUTE and not _of_self(place.node):
                self._asked.add(place.name)
        links = self._links[name] = {}
        for node, scope in module.imports():
            for alias in node.names:
                self._taken.update((alias.asname or "", *alias.name.split(".")))
                of = module.origin(node) if isinstance(node, ast.ImportFrom) else ""
                if of in self._modules and not scope.outer and module.bindings[alias.asname or alias.name] == 1:
                    links[alias.asname or alias.name] = of, alias.name
                if of not in self._modules:
                    self._stays.update(alias.name.split("."))
        for part in name.split("."):
            self._stays.add(part)

    def _shorts(self) -> Iterator[str]:
        yield from sorted(_FREE - _LOOKED_UP - _UNLIKELY - self._taken)
        first = string.ascii_uppercase + string.ascii_lowercase + "_"
        reserved = {"_", "as", "if", "in", "is", "or"}
        names = [*first, *(a + b for a in first for b in first + string.digits)]
        yield from (name for name in names if name not in self._taken and name not in reserved)

    def _may_change(self, name: str) -> bool:
        return name not in self._stays and not (name.startswith("__") and name.endswith("__"))

    # --- attributes ---

    def _shorten_attributes(self, shorts: list[str], unlikely: list[str]) -> Iterator[tuple[str, str]]:
        family = _Families(self._modules)
        found: defaultdict[str, _Attribute] = defaultdict(_Attribute)
        ours: set[str] = set()
        for name, module in self._modules.items():
            foreign = self._foreign(module)
            for place in self._places[name]:
                if place.kind != ATTRIBUTE:
                    continue
                attribute = found[place.name]
                node = place.node
                if not isinstance(node, ast.Attribute):  # bound in a class's body
                    attribute.families.add(family.of(module, place.scope.node))
                elif isinstance(node.ctx, ast.Load):
                    if _root(node) in foreign:  # `asyncio.core._io_queue`
                        self._stays.add(place.name)
                    continue
                elif _of_self(node) and (at := _class_around(place)):
                    attribute.families.add(family.of(module, at))
                else:
                    attribute.set_from_outside = True
                if name in self._inner:
                    ours.add(place.name)
        everyone = family.all()
        for attribute in found.values():
            if attribute.set_from_outside or attribute.families & family.delegating:
                attribute.families = everyone
        open_families = family.named(self._public)
        used: defaultdict[str, set[str]] = defaultdict(set)
        for name in sorted(ours, key=lambda one: (-self._uses[one], one)):
            if not self._may_change(name):
                continue
            where = found[name].families or everyone
            choice = unlikely if where & open_families else shorts
            short = next(one for one in choice if not any(one in used[family] for family in where))
            if _is_shorter(short, name):
                yield name, short
                for one in where:
                    used[one].add(short)

    def _foreign(self, module: Source) -> set[str]:
        """Return the names that a module imports from foreign modules."""
        found = set()
        packages = {name.partition(".")[0] for name in self._modules}
        for node, _ in module.imports():
            for alias in node.names:
                of = module.origin(node) if isinstance(node, ast.ImportFrom) else alias.name
                if of.partition(".")[0] not in packages:
                    found.add(alias.asname or alias.name.partition(".")[0])
        return found

    # --- globals ---

    def symbol(self, module: str, name: str) -> tuple[str, str]:
        """Return the module that defines a module's global, and the global's name there."""
        while name in self._links.get(module, ()):
            module, name = self._links[module][name]
        return module, name

    def _shorten_globals(self, shorts: list[str]) -> Iterator[tuple[tuple[str, str], str]]:
        places: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        uses: Counter[tuple[str, str]] = Counter()
        stays: set[tuple[str, str]] = set()
        for name, module in self._modules.items():
            imported = _imported(module)
            for word in module.bindings:
                symbol = self.symbol(name, word)
                places[symbol].add(name)
                uses[symbol] += self._uses[word]
                external = word not in self._links[name] and word in imported
                if module.looks_at_itself or symbol[0] not in self._inner or external or not self._may_change(word):
                    stays.add(symbol)
        used: defaultdict[str, set[str]] = defaultdict(set)
        for symbol in sorted(places, key=lambda one: (-uses[one], one)):
            if symbol in stays or symbol[0] not in self._modules:
                continue
            where = places[symbol]
            short = next(one for one in shorts if not any(one in used[module] for module in where))
            if _is_shorter(short, symbol[1]):
                yield symbol, short
                for one in where:
                    used[one].add(short)

    def global_name(self, module: str, name: str) -> str:
        """Return the new name of a module's global."""
        return self.globals.get(self.symbol(module, name), name)

    # --- parameters ---

    def _parameters(self, module: Source, place: Place) -> dict[str, str]:
        """Return the short names of the parameters at a place, by their old names."""
        node = place.node if isinstance(place.node, FUNCTIONS) else place.scope.node
        if id(node) not in self._known:
            self._known[id(node)] = self._shorten_parameters(module, node)
        return self._known[id(node)]

    _known: dict[int, dict[str, str]]

    def _shorten_parameters(self, module: Source, node) -> dict[str, str]:
        around = self._around[id(node)]
        if node.args.kwarg or any(getattr(one, "name", "") in self._called for one in (node, *around)):
            return {}
        before = sum(len(arguments_of(one)) for one in around if isinstance(one, FUNCTIONS))
        internal = self._is_internal(module, node, around)
        body = [node.body] if isinstance(node, ast.Lambda) else node.body
        kinds = (ast.Import, ast.ImportFrom, *FUNCTIONS, ast.ClassDef)
        again = set(bound_in(one for one in own(body) if isinstance(one, kinds) and not isinstance(one, ast.Lambda)))
        result = {}
        for i, argument in enumerate(one.arg for one in arguments_of(node) if one.arg != "self"):
            fixed = argument in self._keywords | _FREE | again or (not internal and argument in self._stays)
            if not fixed and before + i < _MOST_PARAMETERS:
                result[argument] = self._for_parameters[before + i]
        return result

    def _is_internal(self, module: Source, node, around: list[ast.AST]) -> bool:
        """Return whether other programs can't call a function by its name."""
        if isinstance(node, ast.Lambda) or (around and isinstance(around[-1], FUNCTIONS)):
            return True
        if around and isinstance(around[-1], ast.ClassDef):
            if node.name.startswith("__"):
                return len(around) == 1 and (module.name, around[-1].name) in self.globals
            return node.name in self.attributes
        return (module.name, node.name) in self.globals

    # --- renaming ---

    def renamed(self, name: str) -> str:
        """Return a module's text with the short names."""
        module = self._modules[name]
        inner = name in self._inner
        self._known = {}
        self._around = dict(_surroundings(module.tree))
        for place in self._places[name]:
            short = place.name
            if place.kind == ATTRIBUTE:
                short = self.attributes.get(short, short)
            elif place.kind == MEMBER and short in self._modules[place.module].bindings:
                short = self.global_name(place.module, short)
            elif place.kind == GLOBAL and module.bindings[short]:
                short = self.global_name(name, short)
            elif place.kind == PARAMETER and inner:
                short = self._parameters(module, place).get(short, short)
            if short != place.name:
                module.rename(place, short)
        for node, scope in module.imports():
            origin = module.origin(node) if isinstance(node, ast.ImportFrom) else ""
            parts = []
            for alias in node.names:
                there = self.global_name(origin, alias.name) if origin in self._modules else alias.name
                here = alias.asname or alias.name
                here = here if scope.outer or "." in here else self.global_name(name, here)
                parts.append(there + (f" as {here}" if there != here else ""))
            before = f"from {'.' * node.level}{node.module or ''} " if isinstance(node, ast.ImportFrom) else ""
            module.replace(node, f"{before}import {', '.join(parts)}")
        return module.edited()


class _Families:
    """Families of classes: sets that are connected by inheritance. A base class is found by its name."""

    def __init__(self, modules: Mapping[str, Source]):
        self._head: dict[str, str] = {}
        by_name: defaultdict[str, list[str]] = defaultdict(list)
        classes = []
        aliases: dict[str, dict[str, str]] = {}
        for module in modules.values():
            aliases[module.name] = {
                alias.asname: alias.name
                for node, _ in module.imports()
                if isinstance(node, ast.ImportFrom)
                for alias in node.names
                if alias.asname
            }
            for node in module.nodes:
                if isinstance(node, ast.ClassDef):
                    key = self._key(module, node)
                    self._head[key] = key
                    by_name[node.name].append(key)
                    classes.append((module, node, key))
        for module, node, key in classes:
            for base in node.bases:
                word = base.attr if isinstance(base, ast.Attribute) else base.id if isinstance(base, ast.Name) else ""
                for other in by_name[aliases[module.name].get(word, word)]:
                    self._head[self._find(key)] = self._find(other)
        self._names = by_name
        self.delegating = {self._find(key) for _, node, key in classes if _delegates(node)}

    @staticmethod
    def _key(module: Source, node) -> str:
        return f"{module.name}:{node.lineno}"

    def _find(self, key: str) -> str:
        while self._head[key] != key:
            key = self._head[key]
        return key

    def of(self, module: Source, node) -> str:
        """Return the family of a class."""
        return self._find(self._key(module, node))

    def named(self, names: Collection[str]) -> set[str]:
        """Return the families of classes with these names."""
        return {self._find(key) for name, keys in self._names.items() if name in names for key in keys}

    def all(self) -> set[str]:
        """Return every family."""
        return {self._find(key) for key in self._head} | {""}


def _delegates(node: ast.ClassDef) -> bool:
    """Return whether a class looks up missing attributes on another object."""
    return any(
        isinstance(one, ast.FunctionDef)
        and one.name == "__getattr__"
        and any(isinstance(call, ast.Name) and call.id == "getattr" for call in ast.walk(one))
        for one in node.body
    )


def _class_around(place: Place) -> ast.AST | None:
    """Return the class around a name."""
    at: Scope | None = place.scope
    while at:
        if isinstance(at.node, ast.ClassDef):
            return at.node
        at = at.outer
    return None


def _surroundings(tree: ast.AST) -> Iterator[tuple[int, list[ast.AST]]]:
    """Yield each function's id with the classes and functions around it."""
    left: list[tuple[ast.AST, tuple[ast.AST, ...]]] = [(tree, ())]
    while left:
        node, around = left.pop()
        if isinstance(node, FUNCTIONS):
            yield id(node), list(around)
        inner = (*around, node) if isinstance(node, (*FUNCTIONS, ast.ClassDef)) else around
        left += [(child, inner) for child in children(node)]


def _is_shorter(short: str, name: str) -> bool:
    return short in _FREE or len(short) < len(name)


def _imported(module: Source) -> set[str]:
    """Return the globals that a module imports without renaming them."""
    return {
        alias.name.partition(".")[0]
        for node, scope in module.imports()
        if not scope.outer
        for alias in node.names
        if not alias.asname
    }


def _of_self(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id == "self"


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
