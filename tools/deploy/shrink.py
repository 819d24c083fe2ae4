"""Make a program's modules smaller for a board. The behaviour stays.

    packed = shrink({"flashmqtt.codec.packets": text, ...}, public={"Client", ...}, groups={"flashmqtt.client": (...)})

There are five steps over all modules:

1. Remove code that only CPython runs: handlers that are marked (`except ImportError:  # CPython`), with their `try`; and the
   blocks of `if TYPE_CHECKING:`, whose names no other module can import from there.
2. Replace integer constants (`PUBLISH = 3`, `_PAGE = const(256)`) by their values, in every module that imports them, and also
   private strings and bytes; and `bytes((STATE, 1))` by its value. Remove their definitions, except the public ones of `kept`
   modules. (mpy-cross itself replaces only constants with an underscore, within one module.)
3. Join modules that are always loaded together: on a board each module costs 300 bytes of heap, plus its imported names. The
   host's new text is the text of its members, each after the members that it imports, and the host last. In place of a
   member with public names there is a small module that imports them from the host.
4. Shorten internal names: a board's heap has each distinct name once, with 17 bytes on average. A name is replaced in all
   modules at once, wherever the word is, so scopes need no analysis. It stays if the word may mean something else: if it is
   also a string (`getattr`), a keyword of a call, imported from a foreign module, or in `public`. Before that, parameters are
   renamed function by function. At the end, the most frequent names get the short numbers, and the `hot` ones are numbered one
   after the other.
5. Write statements so that they take fewer bytes: classes without a body with `type`, because such a class needs no code of its
   own, which takes 10 bytes, and no dictionary; `a <= b < c` in two parts; `is not` as `not ... is`; `self.n += 1` as an
   assignment; and one import for all names of a module.

A name in several meanings is not resolved: a constant that is bound twice stays, and modules that define the same global can't
be joined.
`host_tests/deploy/test_shrink.py` runs the tests against the result.
"""

from __future__ import annotations

import ast
import builtins
import functools
import itertools
import keyword
import operator
import re
import string
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_CPYTHON = re.compile(r"# CPython$")
# A comment or a string (group 1), or a word, perhaps with a dot.
_TOKEN = re.compile(
    r"""(\#[^\n]* | \"{3}(?:\\.|[^\\])*?\"{3} | \'{3}(?:\\.|[^\\])*?\'{3} | "(?:\\.|[^"\\])*" | '(?:\\.|[^'\\])*')
    | (\.?)(\w+)""",
    re.DOTALL | re.VERBOSE,
)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_BINDING = {*_DEFINITIONS, ast.ImportFrom, ast.Import, ast.Name, ast.arg, ast.ExceptHandler, ast.Global, ast.Nonlocal}
_LOOKING_GLASS = {"globals", "locals", "vars", "eval", "exec"}
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
# MicroPython's "static qstrs": a .mpy file refers to them by number, and they take no heap. They are the same in every
# MicroPython that loads .mpy version 6. They serve as short names: the first ones for globals and parameters, the others for
# attributes, because no program is likely to give such a name to an attribute of its own in a class that derives from ours.
_FOR_GLOBALS = """
abs all any append args bytearray bytes callable chr clear copy count dict dir divmod end endswith extend find format from_bytes
get getattr hasattr hash id index insert items iter join key keys len list lower main map next open ord pop pow print range remove
replace repr reverse round self sep set setattr sort sorted split start startswith step stop str strip sum to_bytes tuple update
upper value values zip
"""
_FOR_ATTRIBUTES = """
isalpha isdigit isinstance islower isspace issubclass isupper lstrip popitem rfind rindex rsplit rstrip setdefault ArithmeticError
AssertionError AttributeError BaseException EOFError Ellipsis GeneratorExit ImportError IndentationError IndexError KeyError
KeyboardInterrupt LookupError MemoryError NameError NoneType NotImplementedError OSError OverflowError RuntimeError StopIteration
SyntaxError SystemExit TypeError ValueError ZeroDivisionError
"""
# More static ones. MicroPython looks them up by name.
_FOR_NOTHING = "close read readinto readline send throw write"
_FIRST = 126  # names with short numbers; the first two are the file's name and "<module>"
Imported = tuple[str, str]  # (module, name there)
_Known = int | str | bytes  # a constant's value


class Unjoined(ValueError):
    """Modules that can't be joined; the text says why."""


@dataclass(frozen=True)
class Shrunk:
    """A shrunk program.

    Attributes:
        texts: absolute name -> text.
        members: module -> the modules in it.
        names: name -> short name.
    """

    texts: dict[str, str]
    members: dict[str, list[str]]
    names: dict[str, str]


class _Module:
    """One module.

    Attributes:
        package: the package to which its relative imports refer.
        constants: names that have one known value wherever they are in the module: integers, and private strings and bytes.
    """

    def __init__(self, name: str, text: str, is_package: bool):
        self.name, self.text, self.content = name, text, text.encode()
        self._starts = [0, *itertools.accumulate(map(len, self.content.splitlines(True)))]
        self.package = name if is_package else name.rpartition(".")[0]
        self.tree = ast.parse(text, name)
        self.nodes = [*ast.walk(self.tree)]
        self.constants: dict[str, _Known] = {}

    @functools.cached_property
    def bound(self) -> Mapping[str, list[ast.expr | Imported | None]]:
        """Name -> what binds it, once for each place in any scope.

        That is the value's expression if it is a simple assignment at the top, what is imported, or None for all else.
        """
        found: defaultdict[str, list[ast.expr | Imported | None]] = defaultdict(list)
        for node in self.nodes:
            for bound, what in self._bindings(node) if type(node) in _BINDING else ():
                found[bound].append(what)
        for target, assigned in self.assignments():
            if len(found[target]) == 1:
                found[target] = [assigned.value]
        return found

    def _bindings(self, node: ast.AST) -> Iterator[tuple[str, Imported | None]]:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, (self.origin(node), alias.name)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.asname or alias.name.partition(".")[0], None
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id, None
        elif isinstance(node, ast.arg):
            yield node.arg, None
        elif isinstance(node, (*_DEFINITIONS, ast.ExceptHandler)) and node.name:
            yield node.name, None
        elif isinstance(node, ast.Global | ast.Nonlocal):
            for name in node.names:
                yield name, None

    def assignments(self) -> Iterator[tuple[str, ast.Assign]]:
        """Yield each `NAME = value` at the top."""
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                yield node.targets[0].id, node

    def imports(self) -> Iterator[tuple[ast.Import | ast.ImportFrom, ast.alias, str, str]]:
        """Yield each import's statement and alias, the module (of `import`: "") and the name there (of `import`: the module)."""
        for node in self.nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                for alias in node.names:
                    yield node, alias, self.origin(node) if isinstance(node, ast.ImportFrom) else "", alias.name

    def origin(self, node: ast.ImportFrom) -> str:
        """Return the absolute name of the module in a `from ... import`."""
        if not node.level:
            return node.module or ""
        base = self.package.split(".")
        base = base[: len(base) - node.level + 1]
        return ".".join([*base, *([node.module] if node.module else [])])

    def bound_in(self, body: Iterable[ast.AST]) -> dict[str, Imported | None]:
        """Return the names that a body binds, without those in its functions and classes: name -> what is imported, or None."""
        left = [*body]
        found: dict[str, Imported | None] = {}
        while left:
            node = left.pop()
            if type(node) in _BINDING:
                found.update(self._bindings(node))
            left += () if isinstance(node, (*_DEFINITIONS, ast.Lambda)) else ast.iter_child_nodes(node)
        return found

    @functools.cached_property
    def globals(self) -> dict[str, Imported | None]:
        """The names that are bound at the top."""
        return self.bound_in(self.tree.body)

    def strings(self) -> set[str]:
        """Return its strings, and the names in its f-strings."""
        found = {node.value for node in self.nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
        formatted = [inner for node in self.nodes if isinstance(node, ast.JoinedStr) for inner in ast.walk(node)]
        found.update(inner.id for inner in formatted if isinstance(inner, ast.Name))
        return found.union(inner.attr for inner in formatted if isinstance(inner, ast.Attribute))

    def words(self) -> set[str]:
        """Return every name in the code, and every word in its strings except docstrings."""
        docstrings = {id(node.value) for node in self.nodes if isinstance(node, ast.Expr)}
        fields = (value for node in self.nodes if id(node) not in docstrings for value in vars(node).values())
        texts = (text for field in fields for text in (field if isinstance(field, list) else [field]))
        return {word for text in texts if isinstance(text, str) for word in re.findall(r"\w+", text)}

    def plain_words(self) -> set[str]:
        """Return every name in the code that is not an attribute."""
        names = {node.id for node in self.nodes if isinstance(node, ast.Name)} | {*self.globals}
        for node in self.nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                names |= {arg.arg for arg in ast.walk(node.args) if isinstance(arg, ast.arg)}
                names.update(self.bound_in(node.body if isinstance(node.body, list) else ()))
        return names.union(name for _, _, _, name in self.imports())

    def nothing(self, node: ast.AST) -> str:
        """Return what replaces a statement: nothing at the top, where no block can become empty."""
        return "" if node in self.tree.body else "pass"

    def span(self, node: Any) -> tuple[int, int]:
        """Return a node's start and end in the encoded text."""
        return self._starts[node.lineno - 1] + node.col_offset, self._starts[node.end_lineno - 1] + node.end_col_offset

    def edited(self, edits: Iterable[tuple[Any, str]]) -> str:
        """Return the text with nodes replaced; of two nested nodes only the outer one is."""
        pieces, at = [], 0
        for node, text in sorted(edits, key=lambda edit: (self.span(edit[0])[0], -self.span(edit[0])[1])):
            start, end = self.span(node)
            if start >= at:
                pieces += [self.content[at:start], text.encode()]
                at = end
        return b"".join([*pieces, self.content[at:]]).decode()


def _parsed(texts: Mapping[str, str], before: Mapping[str, _Module] | None = None) -> dict[str, _Module]:
    """Parse a program's modules: absolute name -> module. A package's `__init__` is under the package's name.

    Args:
        before: the modules before the last step; those with the same text are returned again.
    """
    packages = {name.rpartition(".")[0] for name in texts}
    found = {}
    for name, text in texts.items():
        old = before.get(name) if before else None
        same = old and old.text == text and (old.package == name) == (name in packages)
        found[name] = old if old and same else _Module(name, text, name in packages)
    return found


def _for_boards(name: str, text: str) -> str:
    """Return a module without handlers that are marked for CPython only, and without what is there for type checks only."""
    if "# CPython" not in text and "TYPE_CHECKING" not in text:
        return text
    lines = text.splitlines(True)
    nodes = [*ast.walk(ast.parse(text, name))]
    for block in nodes:
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING" and not block.orelse:
            lines[block.lineno - 1 : block.end_lineno] = [""] * ((block.end_lineno or 0) - block.lineno + 1)
    for node in nodes:
        if not isinstance(node, ast.Try) or node.orelse or node.finalbody:
            continue
        if all(_CPYTHON.search(lines[handler.lineno - 1]) for handler in node.handlers):
            indent = node.body[0].col_offset - node.col_offset
            first, last = node.body[0].lineno, node.body[-1].end_lineno or 0
            for i in range(node.lineno - 1, node.end_lineno or 0):
                inside = first <= i + 1 <= last
                lines[i] = lines[i][indent:] if inside and lines[i].strip() else ""
    return "".join(lines)


# --- constants ---


def _find_constants(modules: Mapping[str, _Module], unchanged: Collection[str]) -> None:
    """Fill the `constants` of every module that may change. A constant may depend on others, also of other modules."""
    fixed = {  # `module.NAME = ...`: not a constant; and Python before 3.12 gives no positions inside an f-string
        *(_stored(node) for module in modules.values() for node in module.nodes),
        *(name for module in modules.values() for name in module.strings()),
    }
    changing = [module for name, module in modules.items() if name not in unchanged]
    found = True
    while found:
        found = False
        for module in changing:
            for name, bound in module.bound.items():
                if name not in module.constants and name not in fixed:
                    values = {_value(modules, module, what) for what in bound}
                    value = values.pop() if len(values) == 1 else None
                    if type(value) is int or (value is not None and re.match("_[^_]", name)):
                        module.constants[name] = value
                        found = True


def _stored(node: ast.AST) -> str:
    """Return the name of the attribute that a node sets or deletes, or ""."""
    return node.attr if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load) else ""


def _value(modules: Mapping[str, _Module], module: _Module, what: ast.expr | Imported | None) -> _Known | None:
    """Return the constant value of what binds a name, or None."""
    if isinstance(what, tuple):
        return modules[what[0]].constants.get(what[1]) if what[0] in modules else None
    if isinstance(what, ast.Constant):
        return what.value if isinstance(what.value, _Known) and not isinstance(what.value, bool) else None
    if isinstance(what, ast.Name):
        return module.constants.get(what.id)
    if isinstance(what, ast.Call) and isinstance(what.func, ast.Name) and what.func.id == "const":
        return _value(modules, module, what.args[0])
    if isinstance(what, ast.Call) and isinstance(what.func, ast.Name) and what.func.id == "bytes":
        items = what.args[0].elts if what.args and isinstance(what.args[0], ast.Tuple) else []
        numbers = [_value(modules, module, item) for item in items]
        known = [number for number in numbers if type(number) is int and 0 <= number < 256]
        return bytes(known) if numbers and len(known) == len(numbers) else None
    parts: list[ast.expr] = []
    if isinstance(what, ast.UnaryOp):
        parts = [what.operand]
    elif isinstance(what, ast.BinOp):
        parts = [what.left, what.right]
    values = [value for part in parts if type(value := _value(modules, module, part)) is int]
    act = _OPERATORS.get(type(getattr(what, "op", None)))
    return act(*values) if act and len(values) == len(parts) else None


def _inlined(modules: Mapping[str, _Module], kept: Collection[str], asked: set[str], unchanged: Collection[str]):
    """Return the modules' texts with constants replaced by their values; `asked` are names whose definitions stay."""
    _find_constants(modules, unchanged)
    attributes = (node.attr for module in modules.values() for node in module.nodes if isinstance(node, ast.Attribute))
    asked = asked.union(attributes)
    texts = {}
    for module in modules.values():
        known = module.constants
        edits: list[tuple[Any, str]] = []
        for node in module.nodes:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in known:
                edits.append((node, f"({value!r})" if str(value := known[node.id]).startswith("-") else repr(value)))
            elif isinstance(node, ast.Call) and type(table := _value(modules, module, node)) is bytes:
                edits.append((node, repr(table)))
            elif isinstance(node, ast.ImportFrom):
                left = [alias for alias in node.names if (alias.asname or alias.name) not in known]
                if len(left) < len(node.names):
                    before = f"from {'.' * node.level}{node.module or ''} import "
                    edits.append((node, before + ", ".join(map(ast.unparse, left)) if left else module.nothing(node)))
        looks = not _LOOKING_GLASS.isdisjoint(node.id for node in module.nodes if isinstance(node, ast.Name))
        for name, assigned in module.assignments():
            if name in known:
                stays = looks or name in asked or (module.name in kept and not name.startswith("_"))
                edits.append((assigned.value, repr(known[name])) if stays else (assigned, ""))
        texts[module.name] = module.text if module.name in unchanged else module.edited(edits)
    return texts


# --- modules that are loaded together ---


class _Joiner:
    """Joins the members of each group.

    Args:
        modules: the program.
        groups: host -> the other members.
    """

    def __init__(self, modules: dict[str, _Module], groups: Mapping[str, Sequence[str]]):
        self._modules = modules
        self._members = {name: [name] for name in modules}
        self._host = {name: name for name in modules}
        for host, names in groups.items():
            if host in modules:
                members = [*(name for name in names if name in modules), host]
                for name in members:
                    self._host[name] = host
                    del self._members[name]
                self._members[host] = self._in_order(members)

    def _in_order(self, members: list[str]) -> list[str]:
        """Sort the members of a group by their imports."""
        done: list[str] = []
        waiting: list[str] = []

        def take(name: str) -> None:
            if name in waiting:
                raise Unjoined(f"a cycle of imports: {' -> '.join([*waiting, name])}")
            if name not in members or name in done:
                return
            waiting.append(name)
            module = self._modules[name]
            for node, alias, origin, _ in module.imports():
                if node in module.tree.body and origin != name:
                    take(origin)
                    take(f"{origin}.{alias.name}")
            done.append(waiting.pop())

        for name in members:
            take(name)
        return done

    def joined(self, unchanged: Collection[str]) -> tuple[dict[str, str], dict[str, list[str]]]:
        """Return the new texts, and the members of each host."""
        texts: dict[str, str] = {}
        for host, members in self._members.items():
            texts[host] = ""
            imported: dict[str, Imported] = {}  # global -> what the host has imported under this name
            for name in members:
                if len(members) > 1 and texts[host] and not texts[host].endswith("\n"):
                    texts[host] += "\n"
                module = self._modules[name]
                texts[host] += module.text if name in unchanged else self._edited(module, imported)
            if len(members) > 1:
                self._check_globals(members, {word: origin for word, (origin, _) in imported.items()})
        return texts, self._members

    def _check_globals(self, members: list[str], bound: dict[str, str]) -> None:
        for name in members:
            for word, imported in self._modules[name].globals.items():
                if not imported and bound.setdefault(word, name) != name:
                    raise Unjoined(f"{word} is a global of {bound[word]} and of {name}")

    def _edited(self, module: _Module, imported: dict[str, Imported]) -> str:
        """Return a module's text with its imports changed."""
        host = self._host[module.name]
        package = self._modules[host].package
        read = {node.id for node in module.nodes if isinstance(node, ast.Name)}
        lines: defaultdict[ast.AST, defaultdict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        for node, alias, origin, name in module.imports():
            bound = alias.asname or name
            place = lines[node]  # the statement before the names -> the names
            if not origin:
                if self._host.get(name, name) != name:
                    raise Unjoined(f"{module.name}: the module {name} is used as an object")
                place["import "].append(ast.unparse(alias))
                continue
            target = f"{origin}.{name}" if f"{origin}.{name}" in self._modules else origin
            there = self._host.get(target, target)
            if name == "const" and origin in self._modules and "const" not in read:
                continue  # every use was replaced
            joined = len(self._members[host]) > 1
            if joined and there == host:
                if target != origin:
                    raise Unjoined(f"{module.name}: the module {target} is used as an object")
                if bound != name:
                    place[f"{bound} = "].append(name)
                continue
            if target != origin:
                there, _, name = there.rpartition(".")
            if package and there in self._modules and (there == package or there.startswith(f"{package}.")):
                there = there[len(package) :] or "."
            if joined and node in module.tree.body:
                if imported.get(bound) == (there, name):
                    continue
                if bound in imported:
                    raise Unjoined(f"{bound} is imported from {imported[bound][0]} and, in {module.name}, from {there}")
                imported[bound] = there, name
            place[f"from {there} import "].append(name if name == bound else f"{name} as {bound}")
        new = {
            node: "; ".join(before + ", ".join(names) for before, names in place.items())
            for node, place in lines.items()
        }
        return module.edited((node, text or module.nothing(node)) for node, text in new.items())

    def left_behind(self, name: str, public: Collection[str], constants: Mapping[str, _Known]) -> dict[str, str]:
        """Return the small module that replaces a member: name -> text; nothing if the module is no member of another one."""
        if self._host[name] == name:
            return {}
        names = sorted(self._modules[name].globals.keys() & public)
        lines = [f"from {self._host[name]} import {', '.join(names)}"] if names else []
        lines += [f"{word} = {value!r}" for word, value in constants.items() if word in public and word not in names]
        return {name: "\n".join([*lines, ""])}


# --- names ---


def _short_names(
    modules: Mapping[str, _Module], public: Collection[str], outer: Collection[str], hot: Sequence[str]
) -> dict[str, str]:
    """Return name -> short name. Two names may have the same one if no module, and no object, can have both, and neither is hot.

    A global is in the modules that have its word, and an attribute in the families of classes that bind it: classes that derive
    from each other. An attribute that code sets from outside, or that a class with `getattr` in its `__getattr__` has, may be on
    any object.
    """
    stays = {*public, *dir(builtins), *f"{_FOR_GLOBALS} {_FOR_ATTRIBUTES} {_FOR_NOTHING}".split()}
    defined: set[str] = set()
    homes: defaultdict[str, set[str]] = defaultdict(set)  # word -> modules and families that have it
    packages = {name.partition(".")[0] for name in modules}
    for module in modules.values():
        stays.update(module.strings(), module.name.split("."))
        foreign: set[str] = set()
        for _, alias, origin, name in module.imports():
            if (origin or name).partition(".")[0] not in packages:
                stays.update(name.split("."), origin.split("."))
                foreign.add((alias.asname or name).partition(".")[0])
        stays.update(node.arg or "" for node in module.nodes if isinstance(node, ast.keyword))
        stays.update(node.attr for node in module.nodes if isinstance(node, ast.Attribute) and _root(node) in foreign)
        for word in module.plain_words():
            homes[word].add(module.name)
        if module.name not in outer:
            defined |= _defined(module)
    families = _families(modules)
    anywhere = {_stored(node) for module in modules.values() for node in module.nodes if _root(node) != "self"}
    for module, node, family in families:
        bound = {*module.bound_in(node.body), *(_stored(one) for one in ast.walk(node) if _root(one) == "self")}
        if "__getattr__" in bound and any(isinstance(one, ast.Name) and one.id == "getattr" for one in ast.walk(node)):
            anywhere |= bound
        for name in bound | _read_in(node):
            homes[name].add(family)
    everywhere = {family for _, _, family in families}
    for name in anywhere:
        homes[name].update(everywhere)
    open_families = {family for _, node, family in families if node.name in public}
    used: defaultdict[str, set[str]] = defaultdict(set)  # module or family -> words and short names
    for word, places in homes.items():
        for place in places:
            used[place].add(word)
    numbered_late = [*map("".join, itertools.product(string.ascii_uppercase, string.ascii_letters + string.digits))]
    for_attributes = [*_FOR_ATTRIBUTES.split(), *numbered_late]
    for_globals = [*_FOR_GLOBALS.split(), *string.ascii_letters, *for_attributes]
    names = [name for name in defined - stays if len(name) > 2 and not (name.startswith("__") and name.endswith("__"))]
    short: dict[str, str] = {}
    order = [name for name in hot if name in names] + sorted(names, key=lambda name: (-len(homes[name]), name))
    for name in dict.fromkeys(order):
        choice = for_attributes if homes[name] & open_families else for_globals
        if name in hot:
            choice = [one for one in numbered_late if one not in short.values()]
        short[name] = next(one for one in choice if not any(one in used[home] for home in homes[name]))
        for home in homes[name]:
            used[home].add(short[name])
    return short


def _with_short_parameters(
    module: _Module, keywords: Iterable[str], public: Collection[str], asked: Collection[str]
) -> str:
    """Return a module's text with short names for parameters: the first ones of all functions have the same names.

    A function and the ones in it are renamed together. Public functions keep their public parameters, and those that the
    unchanged modules may use (`asked`) keep all: they may be called with `**settings`.
    """
    stays = {*keywords, *module.globals, *module.strings(), "self"}
    stays.update(*((alias.asname or "", *name.split(".")) for _, alias, _, name in module.imports()))
    edits: list[tuple[Any, str]] = []
    left: list[tuple[Any, str]] = [(module.tree, "")]
    while left:
        node, around = left.pop()
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            around = node.name if isinstance(node, ast.ClassDef) else around
            left += [(child, around) for child in ast.iter_child_nodes(node)]
            continue
        name = around if node.name.startswith("__") else node.name
        start, end = module.span(node)
        text = module.content[start:end].decode()
        words = {*re.findall(r"\w+", text)}
        free = [word for word in _FOR_GLOBALS.split() if word not in words]
        inner = [*ast.walk(node)]
        if name not in asked and not any(isinstance(one, ast.ClassDef) for one in inner):
            fixed = stays.union(public) if name in public else stays
            found = dict.fromkeys(one.arg for one in inner if isinstance(one, ast.arg) and one.arg not in fixed)
            edits.append((node, _replaced(text, dict(zip(found, free, strict=False)), attributes=False)))
    return module.edited(edits)


def _replaced(text: str, names: Mapping[str, str], attributes: bool = True) -> str:
    """Return a text with other names, also of attributes; comments and strings stay."""

    def word(found: re.Match[str]) -> str:
        return found[1] or found[2] + (names.get(found[3], found[3]) if attributes or not found[2] else found[3])

    return _TOKEN.sub(word, text)


def _with_short_statements(module: _Module) -> str:
    """Return a module's text with statements of the same meaning that take fewer bytes."""
    edits: list[tuple[Any, str]] = []
    imports: defaultdict[tuple[int, str | None], list[ast.ImportFrom]] = defaultdict(list)
    # Python before 3.12 gives no positions inside an f-string.
    formatted = {inner for node in module.nodes if isinstance(node, ast.JoinedStr) for inner in ast.walk(node)}
    for node in module.nodes:
        if node in formatted:
            continue
        if isinstance(node, ast.ClassDef) and node.bases and not node.keywords and not node.decorator_list:
            if _are_idle(node.body) and "type" not in module.bound:
                bases = ", ".join(map(ast.unparse, node.bases))
                edits.append((node, f'{node.name} = type("{node.name}", ({bases},), {{}})'))
        elif isinstance(node, ast.Compare) and (shorter := _shorter(node)):
            edits.append((node, shorter))
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Attribute):
            if isinstance(node.target.value, ast.Name) and type(getattr(node.value, "value", None)) is int:
                now = ast.BinOp(node.target, node.op, node.value)
                edits.append((node, f"{ast.unparse(node.target)} = {ast.unparse(now)}"))
        elif isinstance(node, ast.ImportFrom) and node in module.tree.body and node.names[0].name != "*":
            imports[node.level, node.module].append(node)
    for (level, name), (first, *others) in imports.items():
        if others:
            names = ", ".join(ast.unparse(alias) for node in (first, *others) for alias in node.names)
            edits += [(first, f"from {'.' * level}{name or ''} import {names}"), *((node, "") for node in others)]
    return module.edited(edits)


def _shorter(node: ast.Compare) -> str:
    """Return the shorter text of a comparison, or "".

    MicroPython has no operation for `is not`, but can jump if something is not so. And a chain of comparisons moves its values
    around on the stack, which takes longer than to load one that is in the middle again.
    """
    first, *others = node.comparators
    if not others and isinstance(node.ops[0], ast.IsNot | ast.NotIn):
        opposite = ast.Is() if isinstance(node.ops[0], ast.IsNot) else ast.In()
        return f"not {ast.unparse(ast.Compare(node.left, [opposite], [first]))}"
    middle = first.value if isinstance(first, ast.Attribute) else first
    if len(others) != 1 or not isinstance(middle, ast.Name | ast.Constant):
        return ""
    parts = ast.Compare(node.left, node.ops[:1], [first]), ast.Compare(first, node.ops[1:], others)
    return f"({' and '.join(map(ast.unparse, parts))})"


def _are_idle(body: Iterable[ast.stmt]) -> bool:
    """Return whether statements are docstrings and `pass` only."""
    return all(
        isinstance(one, ast.Pass) or (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)) for one in body
    )


def is_idle(text: str) -> bool:
    """Return whether a module has no code."""
    return _are_idle(ast.parse(text).body)


def _ordered(module: _Module, hot: Mapping[str, Sequence[str]]) -> str:
    """Return a module's text with its most frequent names first: in a `.mpy`, each use of these takes one byte, of others two.

    A module with hot names has these first, used or not: a board numbers them one after the other when it loads the module.
    MicroPython caches where it last found a name. The cache has 64 places, and a name's number determines its place: names
    with the same place make each other slow.

    mpy-cross numbers names in the order of their first use. It also numbers attributes behind a `break`, for which it emits no
    code. So the docstring is replaced by `while 1: break; self.name.name ...`, which costs four bytes.
    """
    uses: Counter[str] = Counter()
    for node in module.nodes:
        if isinstance(node, ast.Attribute):
            uses[node.attr] += 1
        elif isinstance(node, ast.Name):  # locals have no number
            uses[node.id] += node.id not in module.bound or node.id in module.globals
        elif isinstance(node, _DEFINITIONS):
            uses[node.name] += 2  # its own code has the name, too
        elif isinstance(node, ast.alias):
            uses[node.name] += 1
        elif isinstance(node, ast.arg | ast.keyword) and node.arg:
            uses[node.arg] += 1
    names = [name for name, n in uses.most_common() if n and name.isidentifier() and not keyword.iskeyword(name)]
    first = module.tree.body[0] if module.tree.body else None
    names = [*dict.fromkeys([*hot.get(module.name, ()), *names])]
    if (len(names) <= _FIRST and module.name not in hot) or not (
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    ):
        return module.text
    return module.edited([(first, f"while 1: break; {'.'.join(['self', *names[:_FIRST]])}")])


def _root(node: ast.AST) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _read_in(node: ast.ClassDef) -> set[str]:
    """Return the names that a class's body reads, such as globals: they must not be taken for its attributes."""
    inner: list[ast.AST] = [*node.body]
    found: set[str] = set()
    while inner:
        one = inner.pop()
        if isinstance(one, _DEFINITIONS):
            inner += one.decorator_list
            inner += one.bases if isinstance(one, ast.ClassDef) else [one.args]
        else:
            found |= {one.id} if isinstance(one, ast.Name) else set()
            inner += ast.iter_child_nodes(one)
    return found


def _defined(module: _Module) -> set[str]:
    """Return the names of globals, functions, classes and attributes. A local costs nothing on a board."""
    found = {*module.globals}
    for node in module.nodes:
        if isinstance(node, _DEFINITIONS):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found.update(module.bound_in(node.body))
        found.add(_stored(node))
    return found


def _families(modules: Mapping[str, _Module]) -> list[tuple[_Module, ast.ClassDef, str]]:
    """Return each class with its family's name. A base class is found by its name."""
    classes = [(module, node) for module in modules.values() for node in module.nodes if isinstance(node, ast.ClassDef)]
    head: dict[ast.AST, ast.AST] = {node: node for _, node in classes}

    def find(node: ast.AST) -> ast.AST:
        while head[node] != node:
            node = head[node]
        return node

    for module, node in classes:
        known = {alias.asname: name for _, alias, _, name in module.imports() if alias.asname}
        for base in node.bases:
            word = base.attr if isinstance(base, ast.Attribute) else base.id if isinstance(base, ast.Name) else ""
            for _, other in classes:
                if other.name == known.get(word, word):
                    head[find(node)] = find(other)
    return [(module, node, f"family {id(find(node))}") for module, node in classes]


def shrink(
    sources: Mapping[str, str],
    kept: Collection[str] = (),
    public: Collection[str] = (),
    groups: Mapping[str, Sequence[str]] | None = None,
    outer: Collection[str] = (),
    known: Mapping[str, Mapping[str, int]] | None = None,
    unchanged: Collection[str] = (),
    hot: Mapping[str, Sequence[str]] | None = None,
) -> Shrunk:
    """Return a program's modules, shrunk.

    Args:
        sources: absolute name -> text, of every module that may use another module's names. A package's `__init__` is under the
            package's name.
        kept: modules whose public constants stay, for programs that are not in `sources`.
        public: names that such programs use.
        groups: host -> modules to join with it. Modules that are not in the program are ignored.
        outer: modules that only use the others; their own names stay.
        known: module -> globals with a known value on boards.
        unchanged: modules whose text stays. Every name in them stays in the others, too; and a module that is joined with another
            one, and that they may import, leaves a small module as if it were in `kept`.
        hot: module with a docstring -> the names that a running program uses most often.

    Raises:
        Unjoined: modules of a group can't be joined.
    """
    groups = groups or {}
    outer = {*outer, *unchanged}
    modules = _parsed({name: text if name in outer else _for_boards(name, text) for name, text in sources.items()})
    for name, values in (known or {}).items():
        if name in modules:
            modules[name].constants.update(values)
    asked: set[str] = set()  # what the unchanged modules may use
    for name in unchanged:
        asked |= modules[name].words()
        for _, _, origin, imported in modules[name].imports():
            asked.update(modules[origin].globals if imported == "*" and origin in modules else ())
    away = {member for members in groups.values() for member in members}
    inlined = _inlined(modules, [name for name in kept if name not in away], asked, unchanged)
    public = {*public, *asked}
    now = _parsed(inlined, modules)
    joiner = _Joiner(now, groups)
    texts, members = joiner.joined(unchanged)
    for name in sorted(away.intersection(modules)):
        if name in kept or name.rpartition(".")[2] in asked:
            texts |= joiner.left_behind(name, public, modules[name].constants)
    now = _parsed(texts, now)
    keywords = {node.arg or "" for module in now.values() for node in module.nodes if isinstance(node, ast.keyword)}
    for name in now.keys() - outer:
        texts[name] = _with_short_parameters(now[name], keywords, public, asked)
    now = _parsed(texts, now)
    hot = hot or {}
    names = _short_names(now, public, outer, [word for words in hot.values() for word in words])
    first = {name: [names.get(word, word) for word in words] for name, words in hot.items()}
    steps = (
        lambda module: _replaced(module.text, names),
        _with_short_statements,
        lambda module: _ordered(module, first),
    )
    for step in steps:
        now = _parsed(texts, now)
        texts = {name: module.text if name in unchanged else step(module) for name, module in now.items()}
    return Shrunk(texts, members, names)
