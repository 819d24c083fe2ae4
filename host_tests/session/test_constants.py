"""Private copies of constants have the same values as the originals. (On a board such a copy costs nothing.)"""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from pathlib import Path

import pytest

FIRMWARE = Path(__file__).resolve().parents[2] / "firmware"
PACKAGES = ("flashmqtt", "app")  # not the examples, where each program has its own settings
NAME = re.compile(r"_?([A-Z][A-Z0-9_]*)")
# Constants whose meaning differs from that of their name in other modules: (name, path of the modules) -> meaning.
OTHERS = {
    ("AGAIN_MS", "app/clock"): "until the clock is set again; else a refused subscription's delay",
    ("CLOSED", "flashmqtt/session"): "a code of on_refused; else a connection's state",
    ("DONE", "flashmqtt/session/waiting"): "the state of a waiting message; else an action of the flows",
    ("DOUBLINGS", "flashmqtt/session/waiting"): "of a handler's delay; else of a refused subscription's",
    ("HEADER", "flashmqtt/handshake"): "of a TLS record; else of the journal's sectors",
    ("HEAD_BYTES", "flashmqtt/session/level5"): "read to find the properties; else of a PUBLISH up to its topic",
    ("HELD", "flashmqtt/journal"): "a kind of record; else a state of the flows",
    ("HOLD", "flashmqtt/session/long"): "a state of a long message; else an action of the flows",
    ("MAGIC", "flashmqtt/flash/pinned"): "of the file's header; else of the journal",
    ("MARK", "flashmqtt/session/expiry"): "a bit of a record's first byte; else an action of the flows",
    ("MESSAGE", "flashmqtt/journal"): "a kind of record; else an event of the connection",
    ("NONE", "flashmqtt/journal"): "a slot that is not there; else a state of the flows",
    ("PUBACK", "flashmqtt/codec/level5"): "the allowed reason codes; else the packet's type",
    ("PUBREL", "flashmqtt/codec/level5"): "the allowed reason codes; else the packet's type",
    ("PUBREL_COLUMN", "flashmqtt/session/inbound"): "of the flows of received messages; else of published ones",
    ("REFUSED", "flashmqtt/link"): "the errno; else an event of the connection",
    ("REFUSED", "flashmqtt/session/subscriptions"): "a SUBACK's code; else an event of the connection",
    ("TURN_MS", "app/application"): "the longest turn; else the period of the ticks",
}


def value_of(node: ast.expr) -> object:
    """Return the value of a literal or of arithmetic with literals, also inside const(); None for other expressions."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "const":
        node = node.args[0]
    if any(
        not isinstance(one, ast.Constant | ast.BinOp | ast.UnaryOp | ast.operator | ast.unaryop)
        for one in ast.walk(node)
    ):
        return None
    return eval(compile(ast.Expression(node), "", "eval"), {})


@functools.cache
def constants() -> dict[str, dict[str, object]]:
    """Return all constants of the modules: name without a leading underscore -> module -> value."""
    found: dict[str, dict[str, object]] = defaultdict(dict)
    for path in sorted(path for package in PACKAGES for path in (FIRMWARE / package).rglob("*.py")):
        module = path.relative_to(FIRMWARE).with_suffix("").as_posix()
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                name, value = NAME.fullmatch(node.targets[0].id), value_of(node.value)
                if name and value is not None:
                    found[name[1]][module] = value
    return found


def meaning(name: str, module: str) -> str:
    """Return the path in OTHERS that applies to a constant, or "" if the constant has the usual meaning of its name."""
    return next((path for other, path in OTHERS if other == name and f"{module}/".startswith(f"{path}/")), "")


@pytest.mark.req("Q1", "Q2")
def test_constants_of_one_name_and_meaning_have_one_value():
    values: dict[tuple[str, str], dict[object, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name, modules in constants().items():
        for module, value in modules.items():
            values[name, meaning(name, module)][value].append(module)
    assert {name: dict(found) for (name, _), found in values.items() if len(found) > 1} == {}


def test_constants_are_found_in_the_codec_the_session_and_the_journal():
    assert {"flashmqtt/codec/packets", "flashmqtt/session/session"} <= set(constants()["PUBREL"])
    assert len(constants()["NONE"]) > 4 and constants()["AGAIN_MS"]["app/clock"] == 6 * 3600 * 1000


@pytest.mark.parametrize(("name", "path"), OTHERS)
def test_constant_of_another_meaning_has_another_value(name, path):
    """With equal values the constant's line in OTHERS would be unnecessary."""
    own = {value for module, value in constants()[name].items() if meaning(name, module) == path}
    usual = {value for module, value in constants()[name].items() if not meaning(name, module)}
    assert own and usual and not own & usual
