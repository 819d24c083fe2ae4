"""Join several modules of a program into one: on a board each module costs 300 bytes of heap, plus its imported names.

    bundled = bundle(texts, {"p.host": ("p.one", "p.two")}, public)

The host's new text is the text of its members in the order of their imports: a member comes after the members that it imports,
and the host is last. Imports between members disappear, because the names are now in the same module. If two members define the
same global, one of them is renamed. A member with public names leaves a small module that imports them from the host, for other
programs; it uses memory only when a program imports it.

No line is lost: line n of a member is line n + first - 1 of the host; `Bundled.lines` has each member's first line.

The bundler resolves names that are imported at the top of a module, and attributes of imported modules. It refuses what it can't
resolve: a member that uses its own `globals()`, a cycle of imports, a member that is used as an object.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tools.deploy.source import GLOBAL, MEMBER, Scope, Source, parsed, reads_global_in_class

Symbol = tuple[str, str]  # (module that defines it, name there); for a module (name, "")


@dataclass(frozen=True)
class Bundled:
    """A program after bundling.

    Attributes:
        texts: absolute name -> text; without members that have no public names.
        lines: host -> the first line and the name of each module in it, in order.
    """

    texts: dict[str, str]
    lines: dict[str, list[tuple[int, str]]]


class Unbundled(ValueError):
    """Modules that can't be joined; the text says why."""


class _Program:
    """All modules, the host of each, and the new names of globals in their hosts."""

    def __init__(self, texts: Mapping[str, str], groups: Mapping[str, Sequence[str]]):
        self.modules = parsed(texts)
        self.host = {name: name for name in texts}
        self.members: dict[str, list[str]] = {name: [name] for name in texts}
        for host, names in groups.items():
            if host in texts:
                self._gather(host, [*(name for name in names if name in texts), host])
        self._links = {name: dict(self._linked(module)) for name, module in self.modules.items()}
        self.named: dict[tuple[str, Symbol], str] = {}  # (host, symbol) -> name in the host
        for host, members in self.members.items():
            if len(members) > 1:
                self._name(host)

    def _gather(self, host: str, names: list[str]) -> None:
        done: list[str] = []
        waiting: list[str] = []

        def take(name: str) -> None:
            if name in waiting:
                raise Unbundled(f"a cycle of imports: {' -> '.join([*waiting, name])}")
            if name in done:
                return
            waiting.append(name)
            for other in self._needed(self.modules[name]):
                if other in names:
                    take(other)
            waiting.pop()
            done.append(name)

        for name in names:
            if self.host[name] != name:
                raise Unbundled(f"{name} belongs to {self.host[name]} and {host}")
            take(name)
        for name in names:
            self.host[name] = host
            self.members.pop(name)
        self.members[host] = done

    def _needed(self, module: Source) -> list[str]:
        """Return the modules that a module imports while it is loaded."""
        found = []
        for node, scope in module.imports():
            if isinstance(node, ast.ImportFrom) and not scope.outer:
                origin = module.origin(node)
                names = (origin, *(f"{origin}.{alias.name}" for alias in node.names))
                found += [name for name in names if name in self.modules and name != module.name]
        return found

    def _linked(self, module: Source):
        """Yield the names that a module imports at its top and binds nowhere else, with their symbols."""
        for node in module.tree.body:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    name = alias.asname or alias.name
                    if "." not in name and module.bindings[name] == 1:
                        yield name, (alias.name, "")
            elif isinstance(node, ast.ImportFrom):
                origin = module.origin(node)
                for alias in node.names:
                    name = alias.asname or alias.name
                    if module.bindings[name] == 1:
                        of = f"{origin}.{alias.name}"
                        yield name, ((of, "") if of in self.modules else (origin, alias.name))

    def symbol(self, module: str, name: str) -> Symbol:
        """Return the symbol that a module's global refers to, through all imports."""
        while name and name in self._links.get(module, ()):
            module, name = self._links[module][name]
        return module, name

    def _name(self, host: str) -> None:
        """Give each global of a bundle a unique name."""
        members = [self.modules[name] for name in self.members[host]]
        taken: set[str] = set()
        for module in members:
            if module.looks_at_itself:
                raise Unbundled(f"{module.name} uses its own globals()")
            taken.update(
                place.name
                for place in module.places(self.modules)
                if place.kind == GLOBAL and not module.bindings[place.name]  # a builtin
            )
        for module in sorted(members, key=lambda one: one.name != host):  # the host's own names stay
            for word in module.bindings:
                symbol = self.symbol(module.name, word)
                if (host, symbol) in self.named or (not symbol[1] and self.host.get(symbol[0]) == host):
                    continue
                free = word
                while free in taken:
                    free = f"{free}_{module.name.rpartition('.')[2]}"
                taken.add(free)
                self.named[host, symbol] = free

    def name_in_host(self, module: str, name: str) -> str:
        """Return the name of a module's global in its host."""
        return self.named.get((self.host[module], self.symbol(module, name)), name)


def _reference(target: str, package: str) -> str:
    """Return a module's name for `from`: relative if the module is below the package."""
    if package and target.startswith(package + "."):
        return target[len(package) :]
    return "." if target == package else target


class _Editor:
    """Rewrites one module for its host."""

    def __init__(self, program: _Program, module: Source, imported: set[Symbol]):
        self._program = program
        self._module = module
        self._host = program.host[module.name]
        self._package = program.modules[self._host].package
        self._imported = imported  # what the host has imported already
        self._alone = len(program.members[self._host]) == 1

    def run(self) -> str:
        """Return the module's text."""
        program, module = self._program, self._module
        followed = set()
        places = module.places(program.modules)
        for place in places:
            if place.kind == MEMBER:
                assert isinstance(place.node, ast.Attribute)
                if place.name not in program.modules[place.module].bindings:
                    continue
                name = program.name_in_host(place.module, place.name)
                if program.host[place.module] == self._host and not self._alone:
                    module.replace(place.node, name)
                    followed.add(module.span(place.node.value))
                    continue
                if name != place.name:
                    module.rename(place, name)
                host = program.host[place.module]
                if host != place.module and isinstance(place.node.value, ast.Attribute):  # `import a.b` and `a.b.NAME`
                    if ast.unparse(place.node.value) != place.module:
                        raise Unbundled(f"{module.name}: {ast.unparse(place.node.value)}")
                    module.replace(place.node.value, host)
        for place in places:
            if reads_global_in_class(module, place) and program.name_in_host(module.name, place.name) != place.name:
                raise Unbundled(f"{module.name}: a class reads {place.name}, which has another name in {self._host}")
            if place.kind == GLOBAL and module.bindings[place.name]:
                symbol = program.symbol(module.name, place.name)
                if not symbol[1] and program.host.get(symbol[0]) == self._host and not self._alone:
                    if (place.start, place.end) not in followed:
                        raise Unbundled(f"{module.name}: the module {place.name} is used as an object")
                    continue
                name = program.name_in_host(module.name, place.name)
                if name != place.name:
                    module.rename(place, name)
        for name in module.handed_on(program.modules):
            if any(program.name_in_host(name, word) != word for word in program.modules[name].bindings):
                raise Unbundled(
                    f"{module.name} uses the module {name} as an object, and {name} has other names in {program.host[name]}"
                )
        for node, scope in module.imports(program.modules):
            self._edit_import(node, scope)
        return module.edited()

    def _edit_import(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        program, module = self._program, self._module
        at_top = node in module.tree.body and not self._alone
        lines: dict[str, list[str]] = {}  # the statement before the names -> the names
        for alias in node.names:
            name = alias.asname or alias.name
            if isinstance(node, ast.Import):
                of: Symbol = alias.name, ""
            else:
                origin = module.origin(node)
                of = f"{origin}.{alias.name}", ""
                if of[0] not in program.modules:
                    of = program.symbol(origin, alias.name) if origin in program.modules else (origin, alias.name)
            if at_top and module.bindings[name] == 1:
                symbol = program.symbol(module.name, name)
                if program.host.get(symbol[0]) == self._host or symbol in self._imported:
                    continue
                self._imported.add(symbol)
            bound = name if scope.outer else program.name_in_host(module.name, name)
            target = program.host.get(of[0], of[0])
            if isinstance(node, ast.Import):
                lines.setdefault("import ", []).append(
                    target + (f" as {bound}" if alias.asname or bound != name else "")
                )
                continue
            if not of[1]:  # a module
                parent, _, last = target.rpartition(".")
                asked = last
                before = parent
            elif of[0] in program.modules:
                asked = program.name_in_host(*of)
                before = target
            else:
                asked, before = of[1], of[0]
            before = _reference(before, self._package) if before in program.modules else before
            lines.setdefault(f"from {before} import ", []).append(asked + (f" as {bound}" if asked != bound else ""))
        text = "; ".join(before + ", ".join(names) for before, names in lines.items())
        module.replace(node, text or ("" if node in module.tree.body else "pass"))


def _left_behind(program: _Program, name: str, public: Collection[str], constants: Mapping[str, int]) -> str:
    """Return the text of the small module that replaces a member with public names."""
    host = program.host[name]
    module = program.modules[name]
    names = [word for word in module.bindings if word in public and program.symbol(name, word)[1]]
    pairs = [(program.name_in_host(name, word), word) for word in names]
    text = ", ".join(there + (f" as {here}" if there != here else "") for there, here in pairs)
    lines = [f"from {_reference(host, module.package)} import {text}"] if names else []
    lines += [f"{word} = {value}" for word, value in constants.items() if word in public and word not in names]
    return "\n".join([*lines, ""])


def bundle(
    texts: Mapping[str, str],
    groups: Mapping[str, Sequence[str]],
    public: Collection[str] = (),
    left: Mapping[str, Mapping[str, int]] | None = None,
    unchanged: Collection[str] = (),
) -> Bundled:
    """Return a program with some of its modules joined.

    Args:
        texts: absolute name -> text, of every module that uses another module's names.
        groups: host -> the modules to join with it. Modules that are not in the program are ignored.
        public: names that other programs may import.
        left: the modules from which they may import them -> the module's integer constants, which may be inlined already.
        unchanged: modules whose text stays.

    Raises:
        Unbundled: the modules can't be joined.
    """
    program = _Program(texts, groups)
    result: dict[str, str] = {}
    lines: dict[str, list[tuple[int, str]]] = {}
    for host, members in program.members.items():
        imported: set[Symbol] = set()
        pieces = []
        line = 1
        for name in members:
            text = texts[name] if name in unchanged else _Editor(program, program.modules[name], imported).run()
            text += "" if text.endswith("\n") or len(members) == 1 else "\n"
            pieces.append(text)
            lines.setdefault(host, []).append((line, name))
            line += text.count("\n")
        result[host] = "".join(pieces)
        for name in members:
            if name != host and left and name in left:
                result[name] = _left_behind(program, name, public, left[name])
    return Bundled(result, lines)
