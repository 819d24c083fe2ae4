"""Generate the API reference from the docstrings: `python -m tools.deploy.reference --write`; without --write, check it.

The reference is `firmware/API.md`. It has every name that a program may use: the names in PUBLIC, in the order of their files.
The sources are parsed, not imported.

In docstrings `Args:`, `Attributes:`, `Returns:` and `Raises:` become lists, lines that are set in columns become code blocks,
and all other text is Markdown.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
FIRMWARE = ROOT / "firmware"
PAGE = FIRMWARE / "API.md"
WRITE = "python -m tools.deploy.reference --write"

INTRODUCTION = """\
Generated from the docstrings by `{}`; a test checks that it is current.

A name's ending gives the unit of a time (`_ms`, `_s`); sizes are in bytes. Protocol levels: 3 is MQTT 3.1, 4 is 3.1.1, 5 is
5.0. A § is a section, and `[MQTT-4.3.2-1]` a normative statement; both are of MQTT 3.1.1 if not stated otherwise. Any call
that stores may also raise a `StoreError` that its section does not list, because flash can fail at any time.
[When something is wrong](TROUBLESHOOTING.md) explains what to do about each error.
"""

SECTION = re.compile(r"(Args|Attributes|Handlers|Returns|Raises):(?:\s+(.*))?$")
ITEM = "\0"  # marks an item of a section until the item is complete
NEXT_ERROR = re.compile(r"[.;] (?=[A-Z]\w{5,}(?:, [A-Z]\w+)*: )")
COLUMNS = re.compile(r"\S {3,}\S")
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Shown:
    """The names of a file that the reference has.

    Attributes:
        title: the title of a group of files; "" continues the previous group.
        path: the file, relative to the repository's root.
        names: functions and classes; empty: all public ones.
        hidden: methods and functions that only the library itself calls.
        methods: include the methods of classes.
        constants: include public constants.
    """

    title: str
    path: str
    names: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    methods: bool = True
    constants: bool = False


PUBLIC = (
    Shown("The faces", "firmware/flashmqtt/client.py", ("Client",), ("put", "want", "note_refusal")),
    Shown("", "firmware/flashmqtt/aio.py", ("Client",)),
    Shown("", "firmware/flashmqtt/simple.py", ("MQTTClient", "MQTTException")),
    Shown("", "firmware/flashmqtt/robust.py", ("MQTTClient",)),
    Shown("", "firmware/flashmqtt/ssl_params.py", ("context",)),
    Shown("", "firmware/flashmqtt/mqtt_as.py", ("MQTTClient",)),
    Shown("Messages, MQTT 5, reconnecting, TLS", "firmware/flashmqtt/session/message.py", ("Message",)),
    Shown("", "firmware/flashmqtt/session/level5.py", ("Level5",), methods=False),
    Shown("", "firmware/flashmqtt/backoff.py", ("Backoff",)),
    Shown("", "firmware/flashmqtt/tls.py", ("context", "CertificateRefused")),
    Shown("Stores", "firmware/flashmqtt/journal/journal.py", ("Journal",), constants=True),
    Shown("", "firmware/flashmqtt/session/ram.py", ("RamStore",), methods=False),
    Shown("Regions of flash", "firmware/flashmqtt/flash/region.py", ()),
    Shown("", "firmware/flashmqtt/flash/block.py", ("BlockRegion",), methods=False),
    Shown(
        "",
        "firmware/flashmqtt/flash/pinned.py",
        ("pin", "open_or_pin", "PinnedFiles", "PinsLost", "PinsRefused"),
        methods=False,
    ),
    Shown("", "firmware/flashmqtt/flash/file.py", ("FileRegion", "StoreInUse"), methods=False),
    Shown("", "firmware/flashmqtt/flash/ram.py", ("RamRegion",), methods=False),
    Shown("A board", "boards/board.pyi", (), constants=True),
    Shown("The codec by itself", "firmware/flashmqtt/codec/encode.py", (), ("put_reason", "put_length", "outside")),
    Shown("", "firmware/flashmqtt/codec/subscribe.py", ()),
    Shown("", "firmware/flashmqtt/codec/decode.py", ("Decoder",), ("know_topic", "beyond")),
    Shown("", "firmware/flashmqtt/codec/topics.py", ()),
    Shown("", "firmware/flashmqtt/codec/properties.py", ("pack", "unpack", "check", "find"), constants=True),
    Shown("", "firmware/flashmqtt/codec/packets.py", (), constants=True),
    Shown("", "firmware/flashmqtt/codec/reasons.py", ("name", "check_code"), constants=True),
    Shown("Errors", "firmware/flashmqtt/errors.py", ()),
)


def module_name(path: str) -> str:
    """Return the name under which programs import a file."""
    return Path(path).with_suffix("").as_posix().removeprefix("firmware/").removeprefix("boards/").replace("/", ".")


def anchor(heading: str) -> str:
    """Return a heading's anchor on the page."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def type_of(annotation: ast.expr | None) -> str:
    """Return a type without quotes; "" for Any, None or no annotation."""
    text = ast.unparse(annotation).replace("'", "") if annotation else ""
    return "" if text in ("Any", "None") else text


def parameters(arguments: ast.arguments) -> Iterator[str]:
    """Yield each parameter but `self`, with its type and default value."""
    defaults = [None] * (len(arguments.args) - len(arguments.defaults)) + list(arguments.defaults)
    pairs = list(zip(arguments.args, defaults, strict=True))
    rest = f"*{arguments.vararg.arg}" if arguments.vararg else "*"
    star = [(ast.arg(rest), None)] if arguments.kwonlyargs or arguments.vararg else []
    for one, default in (*pairs, *star, *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)):
        if one.arg in ("self", "cls"):
            continue
        kind = type_of(one.annotation)
        text = f"{one.arg}: {kind}" if kind else one.arg
        if default is not None:
            text += f" = {ast.unparse(default)}" if kind else f"={ast.unparse(default)}"
        yield text
    if arguments.kwarg:
        yield f"**{arguments.kwarg.arg}"


def signature(function: Function, name: str) -> str:
    """Return a function's signature, with types."""
    returns = type_of(function.returns)
    shown = f"{name}({', '.join(parameters(function.args))})" + (f" -> {returns}" if returns else "")
    return f"await {shown}" if isinstance(function, ast.AsyncFunctionDef) else shown


def is_property(function: Function) -> bool:
    """Return whether a function is a property."""
    return any(isinstance(one, ast.Name) and one.id == "property" for one in function.decorator_list)


def is_setter(function: Function) -> bool:
    """Return whether a function is a property's setter."""
    return any(isinstance(one, ast.Attribute) and one.attr == "setter" for one in function.decorator_list)


def markdown(docstring: str) -> list[str]:
    """Return a docstring as Markdown."""
    if not docstring:
        return []
    result: list[str] = []
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(docstring)):
        lines = paragraph.splitlines()
        if result:
            result.append("")
        if not SECTION.match(lines[0]) and (
            all(line.startswith("    ") for line in lines)
            or (len(lines) > 1 and sum(bool(COLUMNS.search(line)) for line in lines) > len(lines) // 2)
        ):
            result += ["```text", *textwrap.dedent(paragraph).splitlines(), "```"]
            continue
        in_section = False
        for line in lines:
            found = SECTION.match(line)
            if found:
                if result and result[-1]:
                    result.append("")
                result += [
                    f"*{'Arguments' if found[1] == 'Args' else found[1]}*" + (f" {found[2]}" if found[2] else ""),
                    "",
                ]
                in_section = True
            elif in_section and line.startswith("        "):
                result[-1] += " " + line.strip()
            elif in_section and line.startswith("    "):
                result.append(ITEM + line.strip())
            elif line.startswith("    ") and result and result[-1]:
                result[-1] += " " + line.strip()
            else:
                result.append(line)
    return [item for line in result for item in listed(line)]


def listed(line: str) -> list[str]:
    """Return an item of a section as list items with the name as code; each of several errors becomes its own item."""
    if not line.startswith(ITEM):
        return [line]
    items = []
    for item in NEXT_ERROR.split(line.removeprefix(ITEM)):
        names, _, text = item.partition(": ")
        items.append(f"- `{names}`: {text}" + ("" if text.endswith(".") else "."))
    return items


def public_functions(body: list[ast.stmt], hidden: tuple[str, ...]) -> Iterator[Function]:
    """Yield the public functions or methods of a module or class."""
    for node in body:
        if isinstance(node, Function) and node.name[0] != "_" and node.name not in hidden and not is_setter(node):
            yield node


def members(node: ast.ClassDef, hidden: tuple[str, ...]) -> Iterator[str]:
    """Yield the lines for a class's attributes, properties and methods."""
    attributes = dict(documented_names(node.body))
    for name, text in attributes.items():
        yield from ["", f"#### `{name}`", "", *markdown(text)]
    for function in public_functions(node.body, hidden):
        heading = function.name if is_property(function) else signature(function, function.name)
        yield from ["", f"#### `{heading}`", "", *markdown(ast.get_docstring(function) or "")]


def documented_names(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    """Yield the annotated names that are followed by a docstring, with that docstring."""
    for node, after in pairwise(body):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            says = after.value if isinstance(after, ast.Expr) else None
            if isinstance(says, ast.Constant) and isinstance(says.value, str):
                yield node.target.id, says.value


def constants(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    """Yield the public constants of a module with their values."""
    for node in body:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and isinstance(node.value, ast.Constant)
        ):
            name = node.targets[0].id
            if name.isupper() and not name.startswith("_"):
                value = node.value.value
                yield name, f"0x{value:02X}" if isinstance(value, int) and "0x" in _source_of(node) else str(value)


def _source_of(node: ast.Assign) -> str:
    return _SOURCES.get(id(node), "")


_SOURCES: dict[int, str] = {}


def parsed(path: Path) -> ast.Module:
    """Parse a file; remember the source text of its constants."""
    text = path.read_text()
    tree = ast.parse(text)
    for node in tree.body:
        if isinstance(node, ast.Assign):
            _SOURCES[id(node)] = ast.get_source_segment(text, node.value) or ""
    return tree


def constructor(node: ast.ClassDef) -> str:
    """Return a class's constructor with its types, also if the types are in `if TYPE_CHECKING`."""
    typed = [inner for one in node.body if isinstance(one, ast.If) for inner in one.body]
    for function in (*node.body, *typed):
        if isinstance(function, ast.FunctionDef) and function.name == "__init__":
            return signature(function, node.name).partition(" -> ")[0]
    return f"{node.name}"


def wrapped(call: str) -> list[str]:
    """Return a call wrapped to the page's width."""
    return textwrap.wrap(call, 110, subsequent_indent=" " * (call.index("(") + 1), break_long_words=False)


def shown_file(shown: Shown) -> Iterator[str]:
    """Yield the reference's lines for one file."""
    tree = parsed(ROOT / shown.path)
    yield from ["", f"## `{module_name(shown.path)}`", "", *markdown(ast.get_docstring(tree) or "")]
    values = list(constants(tree.body)) if shown.constants else []
    if values:
        yield from ["", "*Constants* " + ", ".join(f"`{name}` {value}" for name, value in values)]
    for name, text in documented_names(tree.body) if shown.constants else ():
        yield from ["", f"### `{name}`", "", *markdown(text)]
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            if node.name.startswith("_") or (shown.names and node.name not in shown.names):
                continue
            made = constructor(node)
            yield from ["", f"### class `{node.name}`", ""]
            if "(" in made:
                yield from ["```text", *wrapped(made), "```", ""]
            yield from markdown(ast.get_docstring(node) or "")
            for function in node.body:
                if isinstance(function, ast.FunctionDef) and function.name == "__init__":
                    yield from ["", *markdown(ast.get_docstring(function) or "")]
            bases = [
                ast.unparse(base) for base in node.bases if not ast.unparse(base).endswith(("Exception", "Protocol"))
            ]
            if bases and shown.path.endswith("errors.py"):
                yield from ["", f"Is a `{bases[0]}`."]
            if shown.methods:
                yield from members(node, shown.hidden)
    for function in public_functions(tree.body, shown.hidden):
        if not shown.names or function.name in shown.names:
            heading = signature(function, function.name)
            yield from ["", f"### `{heading}`", "", *markdown(ast.get_docstring(function) or "")]


def page() -> str:
    """Return the reference."""
    lines = ["# API reference", "", *INTRODUCTION.format(WRITE).splitlines()]
    body: list[str] = []
    for shown in PUBLIC:
        if shown.title:
            lines += ["", f"**{shown.title}**", ""]
        heading = f"`{module_name(shown.path)}`"
        lines.append(f"- [{heading}](#{anchor(heading)})")
        body += shown_file(shown)
    return re.sub(r"\n{3,}", "\n\n", "\n".join([*lines, *body, ""]))


def unmentioned() -> Iterator[str]:
    """Yield each argument of a public function that is neither in its docstring nor in its class's."""
    for shown in PUBLIC:
        tree = parsed(ROOT / shown.path)
        about = ast.get_docstring(tree) or ""
        names = shown.names or [one.name for one in public_functions(tree.body, shown.hidden)]
        for node in tree.body:
            functions: list[tuple[str, Function]] = []
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                if shown.names and node.name not in shown.names:
                    continue
                made = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
                inside = [*made, *public_functions(node.body, shown.hidden)] if shown.methods else made
                functions = [(f"{ast.get_docstring(node)}\n{ast.get_docstring(one)}", one) for one in inside]
            elif isinstance(node, Function) and node.name in names:
                functions = [(f"{about}\n{ast.get_docstring(node)}", node)]
            for text, function in functions:
                given = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
                for argument in given:
                    word = argument.arg.strip("_")
                    if word not in ("self", "cls") and not re.search(rf"\b{re.escape(word)}", text):
                        yield f"{shown.path}: {function.name}: {argument.arg}"


def main() -> int:
    """Write or check the page; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.deploy.reference", description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true")
    if parser.parse_args().write:
        PAGE.write_text(page())
        return 0
    for missing in (found := list(unmentioned())):
        print(f"argument not documented: {missing}", file=sys.stderr)
    if not PAGE.exists() or PAGE.read_text() != page():
        print(f"{PAGE.relative_to(ROOT)} differs from the docstrings; to update it: {WRITE}", file=sys.stderr)
        return 1
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
