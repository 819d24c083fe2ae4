"""Generate the API reference from the docstrings: `python -m host_tests.docs.reference --write`; without --write, check it.

The reference is `firmware/API.md`. It lists every name that a program may use: the names in PUBLIC, in the order of their files.
griffe reads the sources without importing them.

In docstrings `Args:`, `Attributes:`, `Returns:` and `Raises:` become lists, lines that are set in columns become code blocks,
and all other text is Markdown.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import griffe

from tools.bootstrap import ROOT

FIRMWARE = ROOT / "firmware"
PAGE = FIRMWARE / "API.md"
WRITE = "python -m host_tests.docs.reference --write"

INTRODUCTION = """\
Generated from the docstrings by `{}`; a test checks that it is current.

A name's ending gives the unit of a time (`_ms`, `_s`); sizes are in bytes. Protocol levels: 3 is MQTT 3.1, 4 is 3.1.1, 5 is
5.0. A § is a section, and `[MQTT-4.3.2-1]` a normative statement; both are of MQTT 3.1.1 if not stated otherwise. Any call
that stores may also raise a `StoreError` that its section does not list, because flash can fail at any time.
[When something is wrong](TROUBLESHOOTING.md) explains what to do about each error.
"""

SECTION = re.compile(r"(Args|Attributes|Handlers|Calls in a handler|Returns|Raises):(?:\s+(.*))?$")
ITEM = "\0"  # marks an item of a section until the item is complete
NEXT_ERROR = re.compile(r"[.;] (?=[A-Z]\w{5,}(?:, [A-Z]\w+)*: )")
COLUMNS = re.compile(r"\S {3,}\S")
STARS = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}


@dataclass(frozen=True)
class Shown:
    """The names of a file that the reference lists.

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
    Shown(
        "The faces",
        "firmware/flashmqtt/client.py",
        ("Client",),
        ("put", "want", "note_refusal", "disconnect_properties", "stopped", "load_waiting", "call", "run", "check"),
    ),
    Shown("", "firmware/flashmqtt/aio.py", ("Client",), ("call",)),
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
    Shown("", "firmware/flashmqtt/codec/decode.py", ("Decoder",)),
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


@cache
def parsed(path: str) -> griffe.Module:
    """Return a file's names, with their docstrings."""
    text = (ROOT / path).read_text()
    lines = griffe.LinesCollection()
    lines[ROOT / path] = text.splitlines()
    return griffe.visit(module_name(path), ROOT / path, text, lines_collection=lines)


def documented(what: griffe.Object) -> str:
    """Return a docstring, "" if there is none."""
    return what.docstring.value if what.docstring else ""


def type_of(annotation: object) -> str:
    """Return a type; "" for Any, None or no annotation."""
    text = str(annotation or "")
    return "" if text in ("Any", "None") else text


def parameters(function: griffe.Function) -> Iterator[str]:
    """Yield each parameter except `self`, with its type and default value."""
    star = False
    for one in function.parameters:
        if one.name in ("self", "cls"):
            continue
        if one.kind in STARS:
            star = True
            yield STARS[one.kind] + one.name
            continue
        if one.kind is griffe.ParameterKind.keyword_only and not star:
            star = True
            yield "*"
        kind = type_of(one.annotation)
        text = f"{one.name}: {kind}" if kind else one.name
        if one.default is not None:
            text += f" = {one.default}" if kind else f"={one.default}"
        yield text


def signature(function: griffe.Function, name: str) -> str:
    """Return a function's signature, with types."""
    returns = type_of(function.returns)
    shown = f"{name}({', '.join(parameters(function))})" + (f" -> {returns}" if returns else "")
    return f"await {shown}" if "async" in function.labels else shown


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


def public_functions(parent: griffe.Object, hidden: tuple[str, ...]) -> Iterator[griffe.Function]:
    """Yield the public functions or methods of a module or class."""
    for one in parent.members.values():
        if isinstance(one, griffe.Function) and one.name[0] != "_" and one.name not in hidden:
            yield one


def attributes(parent: griffe.Object) -> Iterator[griffe.Attribute]:
    """Yield the names that a module or class sets."""
    for one in parent.members.values():
        if isinstance(one, griffe.Attribute):
            yield one


def members(parent: griffe.Object, hidden: tuple[str, ...]) -> Iterator[str]:
    """Yield the lines for a class's attributes, properties and methods."""
    for one in attributes(parent):
        if one.docstring:
            yield from ["", f"#### `{one.name}`", "", *markdown(documented(one))]
    for function in public_functions(parent, hidden):
        yield from ["", f"#### `{signature(function, function.name)}`", "", *markdown(documented(function))]


def constants(module: griffe.Module) -> Iterator[str]:
    """Yield the public constants of a module with their values."""
    for one in attributes(module):
        number = re.search(r" = (0x\w+|\d+)\b", one.source)
        if number and one.name.isupper() and one.name[0] != "_":
            yield f"`{one.name}` " + (f"0x{int(number[1], 16):02X}" if "x" in number[1] else number[1])


def constructor(kind: griffe.Class) -> griffe.Function | None:
    """Return a class's constructor; if `if TYPE_CHECKING` defines one with types, return that one."""
    found = kind.members.get("__init__")
    return found if isinstance(found, griffe.Function) else None


def wrapped(call: str) -> list[str]:
    """Return a call wrapped to the page's width."""
    return textwrap.wrap(call, 110, subsequent_indent=" " * (call.index("(") + 1), break_long_words=False)


def classes(shown: Shown) -> Iterator[griffe.Class]:
    """Yield the classes of a file that the reference lists."""
    for one in parsed(shown.path).members.values():
        if isinstance(one, griffe.Class) and one.name[0] != "_" and (not shown.names or one.name in shown.names):
            yield one


def shown_file(shown: Shown) -> Iterator[str]:
    """Yield the reference's lines for one file."""
    module = parsed(shown.path)
    yield from ["", f"## `{module_name(shown.path)}`", "", *markdown(documented(module))]
    if shown.constants:
        values = list(constants(module))
        if values:
            yield from ["", "*Constants* " + ", ".join(values)]
        for one in attributes(module):
            if one.docstring:
                yield from ["", f"### `{one.name}`", "", *markdown(documented(one))]
    for kind in classes(shown):
        yield from ["", f"### class `{kind.name}`", ""]
        made = constructor(kind)
        if made:
            call = signature(made, kind.name).partition(" -> ")[0]
            yield from ["```text", *wrapped(call), "```", ""]
        yield from markdown(documented(kind))
        if made:
            yield from ["", *markdown(documented(made))]
        bases = [base for base in map(str, kind.bases) if not base.endswith(("Exception", "Protocol"))]
        if bases and shown.path.endswith("errors.py"):
            yield from ["", f"Is a `{bases[0]}`."]
        if shown.methods:
            yield from members(kind, shown.hidden)
    for function in public_functions(module, shown.hidden):
        if not shown.names or function.name in shown.names:
            yield from ["", f"### `{signature(function, function.name)}`", "", *markdown(documented(function))]


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
        module = parsed(shown.path)
        about = [(documented(module), one) for one in public_functions(module, shown.hidden)]
        functions = [(text, one) for text, one in about if not shown.names or one.name in shown.names]
        for kind in classes(shown):
            inside = list(public_functions(kind, shown.hidden)) if shown.methods else []
            made = constructor(kind)
            functions += [(documented(kind), one) for one in ([made, *inside] if made and made.runtime else inside)]
        for text, function in functions:
            for argument in function.parameters:
                word = argument.name.strip("_")
                if word not in ("self", "cls") and not re.search(
                    rf"\b{re.escape(word)}", f"{text}\n{documented(function)}"
                ):
                    yield f"{shown.path}: {function.name}: {argument.name}"


def main() -> int:
    """Write or check the page; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m host_tests.docs.reference", description=__doc__.splitlines()[0])
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
