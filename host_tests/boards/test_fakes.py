"""The fakes have the names, the signatures and the constants of the ports' own modules, as in the type stubs."""

import ast
import sys
from pathlib import Path

import pytest

from tools.bootstrap import ROOT

STUBS = Path(sys.executable).parent.parent
FAKES = ROOT / "tools" / "virtual_board" / "hardware"
PORTS = {"rp2": ("machine", "network", "rp2"), "esp32": ("machine", "network", "esp32")}
CASES = [(port, module) for port, modules in PORTS.items() for module in modules]
# Names that only one port has; the fake serves both.
ONLY = {
    "rp2": {"STAT_BEACON_TIMEOUT", "STAT_ASSOC_FAIL", "STAT_HANDSHAKE_TIMEOUT"},
    "esp32": {
        "STAT_IDLE",
        "STAT_CONNECTING",
        "STAT_GOT_IP",
        "STAT_NO_AP_FOUND",
        "STAT_WRONG_PASSWORD",
        "STAT_CONNECT_FAIL",
        "ALT",
    },
}
# Constants whose value differs from port to port; the fake has the rp2 port's.
VALUES_OF_RP2 = ("Pin.", "WLAN.PM_")
OURS = {"Simulated", "Memory32", "simulated", "TYPE_CHECKING"}


def _stub(port, module):
    folder = STUBS / f"stubs-{port}"
    if not folder.exists():
        pytest.skip("the stubs are not installed: run `make setup`")
    path = folder / f"{module}.pyi"
    return ast.parse((path if path.exists() else folder / module / "__init__.pyi").read_text())


def _members(tree):
    found = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            found.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.ClassDef):
            # A stub may have a class twice, for two families of chips.
            found.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.AnnAssign):
            found[node.target.id] = node
        elif isinstance(node, ast.Assign):
            found[node.targets[0].id] = node
    return found


def _arguments(function, in_class):
    """Return (positional names, keyword-only names, how many positional ones are required, takes anything)."""
    arguments = function.args
    names = [argument.arg for argument in arguments.posonlyargs + arguments.args]
    static = any(isinstance(mark, ast.Name) and mark.id == "staticmethod" for mark in function.decorator_list)
    if in_class and not static:
        names = names[1:]
    required = max(0, len(names) - len(arguments.defaults))
    return names, [argument.arg for argument in arguments.kwonlyargs], required, bool(arguments.vararg)


def _fits(fake, stubs, in_class):
    names, keywords, required, _ = _arguments(fake, in_class)
    overloads = [_arguments(stub, in_class) for stub in stubs]
    if any(anything for *_, anything in overloads):
        return True
    most = max(len(theirs) for theirs, *_ in overloads)
    least = min(needed for _, _, needed, _ in overloads)
    known = {name for theirs, theirs_keywords, *_ in overloads for name in theirs + theirs_keywords}
    return len(names) <= most and required <= least and set(keywords) <= known


def _differences(fake, stub, port, where="", in_class=False):
    theirs = _members(stub)
    for name, node in _members(fake).items():
        if name in OURS | ONLY[port] or (name.startswith("_") and name != "__init__"):
            continue
        if name not in theirs:
            yield f"{where}{name} is not in the stub"
        elif isinstance(node, ast.Assign):
            if port != "rp2" and f"{where}{name}".startswith(VALUES_OF_RP2):
                continue
            value = theirs[name].value if isinstance(theirs[name], ast.AnnAssign) else None
            if isinstance(value, ast.Constant | ast.UnaryOp) and ast.literal_eval(value) != ast.literal_eval(
                node.value
            ):
                yield f"{where}{name} is {ast.literal_eval(node.value)}, in the stub {ast.literal_eval(value)}"
        elif isinstance(node[0], ast.ClassDef):
            yield from _differences(node[0], theirs[name][0], port, f"{where}{name}.", True)
        elif not _fits(node[0], theirs[name], in_class):
            yield f"{where}{name}: its arguments are not the stub's"


@pytest.mark.parametrize(("port", "module"), CASES)
@pytest.mark.req("B1")
def test_fake_agrees_with_the_stub(port, module):
    fake = ast.parse((FAKES / f"{module}.py").read_text())
    assert list(_differences(fake, _stub(port, module), port)) == []


@pytest.mark.req("B1")
def test_comparison_finds_every_difference():
    stub = ast.parse(
        "A: Final[int] = 3\ndef f(x, y=1): ...\nclass C:\n    def g(self, *, timeout=5): ...\n    def k(self, a=1): ...\n"
    )
    fake = ast.parse(
        "A = 4\ndef f(x, y, z): ...\ndef h(): ...\nclass C:\n    def g(self, *, time=5): ...\n    def k(self, a): ...\n"
    )
    assert list(_differences(fake, stub, "rp2")) == [
        "A is 4, in the stub 3",
        "f: its arguments are not the stub's",
        "h is not in the stub",
        "C.g: its arguments are not the stub's",
        "C.k: its arguments are not the stub's",
    ]
