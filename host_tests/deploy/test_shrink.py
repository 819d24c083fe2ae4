"""Modules made smaller for a board: each rule alone, and all of `host_tests/both` against the packed library."""

import ast
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tools.bootstrap import ROOT
from tools.children import micropython
from tools.deploy import build, trace
from tools.deploy.shrink import Shrunk, Unjoined
from tools.deploy.shrink import shrink as shrunk
from tools.deploy.trace import explained

BOTH = ROOT / "host_tests" / "both"
# Beside the library and the application: the other modules of ours that the tests import.
BESIDES = (
    *(
        "__init__.py",
        "flashsim/*.py",
        "journal/__init__.py",
        "journal/layout.py",
        "proof/__init__.py",
        "proof/fuzz/__init__.py",
        "proof/fuzz/cases.py",
        "proof/packets.py",
        "proof/powercut/*.py",
    ),
    *("virtual_board/__init__.py", "virtual_board/hardware/*.py"),
)
# It disables the machine code and needs the other implementation, which a packed library does not have.
LEFT_OUT = "test_codec_without_native.py"
TESTS = sorted(path.stem for path in BOTH.glob("test_*.py") if path.name != LEFT_OUT)
# Their parameters are seeds, sizes, positions and scripts. On the packed library each test runs with the first, middle and last
# of them: a wrong name fails with any parameters that reach its line. `host_tests/both` runs all parameters on the source.
FEW = ("test_journal", "test_flashsim", "test_long_messages", "test_pinned", "test_session_random")


def words(sources: dict[str, str]) -> set[str]:
    return {word for text in sources.values() for word in re.findall(r"\w+", text)}


def shrink(sources: dict[str, str], kept: tuple[str, ...] = ()) -> dict[str, str]:
    """Shrink a program whose public names are all used from outside."""
    public = {word for word in words(sources) if not word.startswith("_")}
    return shrunk(sources, kept, public).texts


def lines(source: str) -> list[str]:
    """Return the lines that are not empty."""
    return [line.rstrip() for line in source.splitlines() if line.strip()]


@pytest.mark.req("B2")
def test_constants_are_inlined():
    result = shrink(
        {
            "p": "",
            "p.names": "from micropython import const\nA = 3\n_B = const(A << 2)\nLOW = const(-1)\nTEXT = 'x'\n",
            "p.use": "from . import names\nfrom .names import A, LOW as L, TEXT\n"
            "def f(x, y=A):\n    return x == A and L ** 2 == names.A\n",
            "p.late": "def f():\n    from p.names import A\n    return A\n",
        }
    )
    assert lines(result["p.names"]) == ["from micropython import const", "A = 3", "TEXT = 'x'"]
    assert lines(result["p.use"]) == [
        "from . import names",
        "from .names import TEXT",
        "def f(x, y=3):",
        "    return x == 3 and (-1) ** 2 == names.A",
    ]
    assert lines(result["p.late"]) == ["def f():", "    pass", "    return 3"]


@pytest.mark.req("B2")
@pytest.mark.parametrize(
    "module",
    [
        "A = 1\nA = 2\nprint(A)\n",
        "A = 1\ndef f():\n    global A\n    A = 2\n",
        "try:\n    A = 1\nexcept OSError:\n    A = 2\nprint(A)\n",
        "A = 1\nprint(globals(), 1)\n",
        "A = 1\nprint(f'{A}')\n",
        "def f(A):\n    return A\n",
        "A = 1\ndef f(A):\n    return A\n",
        "A = 1\ndef f():\n    A = 5\n    def g():\n        nonlocal A\n        A = 6\n    return A\n",
        "A = 1\ndef f(x):\n    return [A := y for y in x], A\n",
        "A = 1\nprint([A for A in range(3)])\n",
        "A = 1\nclass B:\n    A = A\n",
        "A = 'text'\nprint(A)\n",
        "A = True\nprint(A)\n",
    ],
)
def test_names_that_are_no_constants_stay(module):
    assert shrink({"m": module}) == {"m": module}


@pytest.mark.req("B2")
def test_constant_set_by_another_module_is_not_inlined():
    sources = {"a": "A = 1\nprint(A)\n", "b": "import a\na.A = 2\n"}
    assert shrink(sources) == sources


@pytest.mark.req("B2")
@pytest.mark.parametrize(
    ("use", "value"),
    [("def f(it):\n    return it.A\n", "1"), ("import a.b\nprint(a.b.A)\n", "1"), ("getattr(x, 'A')\n", "A")],
)
def test_definition_stays_where_it_may_be_used_by_name(use, value):
    sources = {"a": "", "a.b": "A = 1\nprint(A)\n", "c": use}
    assert shrink(sources) == {**sources, "a.b": f"A = 1\nprint({value})\n"}


@pytest.mark.req("B2")
def test_table_of_constants_is_a_literal_unless_it_is_no_table():
    text = """
STATE = 2
TABLE = bytes((STATE << 4 | 1, 0))
EMPTY = bytes(3)
LATER = bytes((STATE, len(TABLE)))
WRONG = bytes((256,))
"""
    expected = [r"TABLE = b'!\x00'", "EMPTY = bytes(3)", "LATER = bytes((2, len(TABLE)))", "WRONG = bytes((256,))"]
    assert lines(shrink({"m": text})["m"]) == expected


@pytest.mark.req("B2")
def test_private_strings_and_bytes_are_inlined():
    module = "_A = 'text'\n_B = b'\\0'\n_C = -1\n__version__ = '1'\nprint(_A, _B, _C)\n"
    assert lines(shrink({"m": module})["m"]) == ["__version__ = '1'", r"print('text', b'\x00', (-1))"]


@pytest.mark.req("B2")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("not 0 < n.a <= x", "not (0 < n.a and n.a <= x)"),
        ("0 <= n.a[1] < x", "0 <= n.a[1] < x"),
        ("x is not None or x not in (1, 2)", "not x is None or not x in (1, 2)"),
        ("x == (n.a is not None)", "x == (not n.a is None)"),
        ("not n.a is not None", "not not n.a is None"),
        ("f'{0 < x < 3}'", "f'{0 < x < 3}'"),
    ],
)
def test_comparison_takes_fewer_bytes_and_means_the_same(before, after):
    before, after = (f"def f(n, x):\n    n.a += 1\n    n.a += x\n    return {text}\n" for text in (before, after))
    assert shrink({"m": before})["m"] == after.replace("n.a += 1", "n.a = n.a + 1")


@pytest.mark.req("B2")
def test_names_of_a_module_are_imported_at_once():
    module = "from a import b\nfrom a import *\nfrom a import c as d\ndef f():\n    from a import e\n"
    assert lines(shrink({"m": module})["m"]) == [
        "from a import b, c as d",
        "from a import *",
        "def f():",
        "    from a import e",
    ]


@pytest.mark.req("B2")
def test_kept_modules_keep_their_public_constants():
    assert shrink({"m": "A = 1 << 4\n_B = 2\nprint(A, _B)\n"}, kept=("m",))["m"] == "A = 16\n\nprint(16, 2)\n"


@pytest.mark.req("B2")
def test_import_of_several_lines_is_shortened():
    result = shrink({"a": "A = 1\ndef b(): pass\n", "m": "from a import (\n    A,\n    b,\n)\nb(A)\n"})
    assert lines(result["m"]) == ["from a import b", "b(1)"]


def attributes(text: str) -> list[str]:
    return [node.attr for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)]


@pytest.mark.req("B2")
@pytest.mark.parametrize(
    "module",
    [
        "ADDRESS = 64\nclass Chip:\n    ADDRESS = ADDRESS\nfound = Chip.ADDRESS\n",
        "LABEL = 'rain'\nclass Chip:\n    LABEL = LABEL\nfound = Chip.LABEL\n",
        "def convert(x): return x * 2\nclass Chip:\n    convert = staticmethod(convert)\nfound = Chip.convert(4)\n",
        "class Chip:\n    float = float\nfound = Chip.float('2')\n",
        "ADDRESS = 64\nclass Chip:\n    ADDRESS = 65\n    def read(self):\n        return ADDRESS\nfound = Chip().read()\n",
        "class Chip:\n    channels = [1, 2]\n    pairs = [channel * 2 for channel in channels]\nfound = Chip.pairs\n",
        "def read(row): return [row + 1 for row in (row, row)]\nfound = read(4)\n",
        "def read(text): return [text.strip() for text in text.split(',')]\nfound = read('a, b')\n",
        "N = 2\ndef read(): return [N for N in range(N)]\nfound = read()\n",
        "class Chip:\n    _named = 1\nfound = f'{Chip._named}'\n",
        "def count(number):\n    def more():\n        nonlocal number\n        number += 1\n    more()\n    return number\n"
        "found = count(4)\n",
        "number = 2\ndef last(rows):\n    [number := row for row in rows]\n    return number\nfound = last((7, 8)), number\n",
    ],
)
def test_name_in_a_class_or_a_comprehension_keeps_its_meaning(module):
    before: dict = {}
    after: dict = {}
    exec(module, before)
    exec(shrunk({"m": module}, public={"found"}).texts["m"], after)
    assert after["found"] == before["found"]


USERS = {  # p.user is a user's; in the packed program p.one is part of p.host
    "p": "",
    "p.one": """
from time import ticks_ms
MOST = 3
_LEAST = 1
def twice(number): return number * 2
""",
    "p.base": """
class Base:
    def __init__(self, pin_number=0):
        self._pin_number = pin_number
        self._hidden_state = 5
    def wake(self): return self._hidden_state
""",
    "p.host": """
from .base import Base
from .one import twice, MOST
def run():
    from . import user
    return user.make({"pin_number": 4}), Base().wake(), twice(MOST)
""",
    "p.user": """
'Nothing is asked for by the word _hidden_state here.'
from p.base import Base
from p.one import _LEAST, ticks_ms
from p.one import *
import p.one
ADDRESS = 64
class Driver:  # as it may be installed with mip
    def wake(self): return "awake"
class Probe:
    ADDRESS = ADDRESS
    def __init__(self, **settings): self._chip = Driver()
    def do_wake(self): return self._chip.wake()
    def run(self, command): return getattr(self, "do_" + command)()
def make(settings):
    woken = Probe(**settings).run("wake")
    return Probe.ADDRESS, woken, Base(**settings)._pin_number, p.one.MOST, _LEAST, ticks_ms() > 0, twice(number=2)
""",
}


@pytest.mark.req("B2")
def test_module_of_a_user_stays_and_finds_every_name_that_it_uses(tmp_path):
    result = shrunk(USERS, public={"run"}, groups={"p.host": ("p.one",)}, unchanged=("p.user",)).texts
    assert result["p.user"] == USERS["p.user"]
    assert "_hidden_state" not in result["p.base"]
    (tmp_path / "p").mkdir()
    for name, text in result.items():
        (tmp_path / "p" / f"{name.partition('.')[2] or '__init__'}.py").write_text(text)
    ran = subprocess.run(
        [Path(sys.executable).parent / "micropython", "-c", "import p.host; print(p.host.run())"],
        env={"MICROPYPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.stdout == "((64, 'awake', 4, 3, 1, True, 4), 5, 6)\n", ran.stdout + ran.stderr


@pytest.mark.req("B2")
def test_files_that_are_not_of_the_release_are_compiled_as_they_stand(tmp_path):
    files = build.sources("pico_w")
    modules = {build.module_name(path): source.read_text() for path, source in files.items() if path.endswith(".mpy")}
    assert build.of_users(modules) == []
    own = {"/board.mpy": tmp_path / "my_board.py", "/app/sensors/soil.mpy": tmp_path / "soil.py"}
    own["/board.mpy"].write_text(files["/board.mpy"].read_text() + "\nclass Added:\n    subscribed = subscribed = 1\n")
    own["/app/sensors/soil.mpy"].write_text("def make(settings):\n    return [settings['unusual_setting']]\n")
    packed = build.packed({**files, **own}, "armv6m")
    for path, source in own.items():
        assert packed[path] == build.compiled(build.module_name(path), source.read_text(), "armv6m")
        assert packed[path] != build.compiled(build.module_name(path), source.read_text(), "armv6m", lines=False)
    own["/app/sensors/soil.mpy"].write_text("def make(settings):\n    return [\n")
    with pytest.raises(build.Failure, match=r"app\.sensors\.soil: line 2: "):
        build.packed({**files, **own}, "armv6m")


@pytest.mark.req("B3")
def test_file_of_a_user_may_have_a_byte_order_mark_and_its_mistakes_are_named(tmp_path):
    own = tmp_path / "my_board.py"
    text = (ROOT / "boards/rp2/board.py").read_text()
    own.write_text(text, encoding="utf-8-sig")
    assert build.packed({"/board.mpy": own}, "x64", plain=True) == {"/board.mpy": build.compiled("board", text, "x64")}
    own.write_text("\nUNIT = [\n")
    with pytest.raises(build.Failure, match=r"^mpy-cross: board: line [23]: SyntaxError: invalid syntax$"):
        build.packed({"/board.mpy": own}, "x64", plain=True)
    own.write_text("UNIT = 'C'\n", encoding="utf-16-le")
    with pytest.raises(build.Failure, match=rf"{re.escape(str(own))}: it has a NUL character: save the file as UTF-8"):
        build.packed({"/board.mpy": own}, "x64", plain=True)
    own.write_text("UNIT = '°C'\n", encoding="latin-1")
    with pytest.raises(build.Failure, match=rf"{re.escape(str(own))}: .*0xb0.*: save the file as UTF-8"):
        build.packed({"/board.mpy": own}, "x64")


@pytest.mark.req("B3")
def test_module_of_a_user_may_have_any_constant_and_one_nested_too_deeply_is_named():
    text = "from micropython import const\nBITS = const(1 << 100000)\nMASK = BITS - 1\n"
    assert shrunk({"board": text}, unchanged=("board",)).texts == {"board": text}
    for depth in (5000, 100_000)[sys.version_info >= (3, 12) :]:  # newer Pythons compile the first
        with pytest.raises(build.Failure, match="nested too deeply"):
            build.shrunk({"board": "UNIT = " + "-" * depth + "1\n"})


def test_list_of_the_sensors_of_the_release_is_complete():
    listed = subprocess.run(
        ["git", "ls-files", "firmware/app/sensors/*.py"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git work tree")
    assert {Path(line).stem for line in listed.stdout.split()} == {"__init__", *build.SENSORS}


@pytest.mark.req("B2")
def test_cpython_only_code_is_removed():
    text = (
        "try:\n    from micropython import x\nexcept ImportError:  # CPython\n    x = print\n"
        "try:\n    y = x()\nexcept ValueError:  # some boards\n    y = 1\n"
    )
    assert lines(shrink({"m": text})["m"])[:3] == ["from micropython import x", "try:", "    y = x()"]


@pytest.mark.req("B2")
def test_imports_for_type_checks_are_removed_also_from_the_small_modules_of_joined_ones():
    text = "from compat import TYPE_CHECKING\nif TYPE_CHECKING:\n    from typing import (\n        Any,\n    )\nOPEN = ''\n"
    sources = {"compat": "TYPE_CHECKING = 0\n", "m": text, "n": "from m import OPEN\nprint(OPEN)\n"}
    assert lines(shrink(sources)["m"]) == ["OPEN = ''"]
    result = shrunk(sources, kept=("m",), public={"OPEN", "Any"}, groups={"n": ("m",)})
    assert result.texts["m"] == "from n import OPEN\n"


@pytest.mark.req("B2")
def test_known_board_properties_become_constants():
    text = "HERE = hasattr(print, 'x')\nif HERE:\n    print(1)\n"
    assert lines(shrunk({"m": text}, known={"m": {"HERE": 0}}).texts["m"]) == ["if 0:", "    print(1)"]


@pytest.mark.req("B2")
def test_internal_names_are_shortened_and_shared_between_unrelated_classes():
    result = shrunk(
        {
            "a": "class First:\n    def of_first(self):\n        return self.of_first\n",
            "b": "class Second:\n    def of_second(self):\n        return self.of_second\n",
        }
    ).texts
    assert attributes(result["a"]) == attributes(result["b"]) != ["of_first"]
    assert "First" not in result["a"]


@pytest.mark.req("B2")
def test_attributes_stay_distinct_along_an_inheritance_chain():
    result = shrunk(
        {
            "a": "class A:\n    def __init__(self):\n        self.of_a = 1\n",
            "b": "from a import A as Other\nclass B(Other):\n    pass\n",
            "c": "import b\nclass C(b.B):\n    def f(self):\n        self.of_c = 2\n",
            "d": "def f(it):\n    it.of_d = 3\n",
            "e": "class E:\n    def f(self):\n        return self.of_e\n    def g(self):\n        self.of_e = 4\n",
        }
    ).texts
    of_a, of_c, of_d, of_e = (
        attributes(result["a"])[0],
        attributes(result["c"])[-1],
        *(attributes(result[n])[0] for n in "de"),
    )
    assert len({of_a, of_c, of_d}) == 3 and of_d != of_e and of_e in (of_a, of_c)


@pytest.mark.req("B2")
def test_short_names_on_a_public_class_avoid_user_names():
    text = "class Open:\n    def __init__(self):\n        self.internal = 1\n"
    short = attributes(shrunk({"m": text}, public={"Open"}).texts["m"])[0]
    assert short.startswith(("_", "is")) or short.endswith("Error")


@pytest.mark.req("B2")
def test_class_with_getattr_shares_no_short_name():
    result = shrunk(
        {
            "m": "class Inner:\n    def __init__(self):\n        self.wanted = 1\n"
            "class Outer:\n    def __init__(self):\n        self.hidden = Inner()\n"
            "    def __getattr__(self, name):\n        return getattr(self.hidden, name)\n"
            "print(Outer().wanted)\n"
        }
    ).texts["m"]
    names: dict = {}
    exec(compile(result, "m", "exec"), names)  # prints 1, and does not raise


@pytest.mark.req("B2")
def test_parameters_are_renamed_unless_passed_by_keyword():
    text = shrunk(
        {
            "m": "def outer(number, text):\n    return lambda letter: (number, text, letter)\n"
            "def other(item, named):\n    from x import item\n    return item, named\nother(1, named=2)\n"
        }
    ).texts["m"]
    outer, inner, other = (
        [arg.arg for arg in node.args.args]
        for node in ast.walk(ast.parse(text))
        if hasattr(node, "args") and isinstance(node.args, ast.arguments)
    )
    found = {tuple(one) for one in (outer, inner, other)}
    assert ("item", "named") in found and len({name for one in found for name in one} - {"item", "named"}) == 3


@pytest.mark.req("B2")
def test_class_without_a_body_needs_no_code_of_its_own():
    text = (
        "import a\nclass B(OSError):\n    '''Doc\n\n    b.'''\n\n\nclass C(B, a.D):\n    pass\nclass E(B):\n    f = 1\n"
        "class G(metaclass=type):\n    pass\n@a.h\nclass I(B):\n    pass\nclass J:\n    pass\n"
    )
    assert lines(shrink({"m": text})["m"]) == [
        *("import a", 'B = type("B", (OSError,), {})', 'C = type("C", (B, a.D,), {})', "class E(B):"),
        *(
            "    f = 1",
            "class G(metaclass=type):",
            "    pass",
            "@a.h",
            "class I(B):",
            "    pass",
            "class J:",
            "    pass",
        ),
    ]
    own = "def f(type):\n    class B(OSError):\n        pass\n    return type, B\n"
    assert shrink({"m": own}) == {"m": own}
    names: dict = {}
    exec(
        shrunk(
            {"m": "class Error(OSError):\n    'Doc.'\nclass Inner(Error):\n    pass\n"}, public={"Error", "Inner"}
        ).texts["m"],
        names,
    )
    with pytest.raises(names["Error"]) as raised:
        raise names["Inner"](1)
    assert raised.value.args == (1,)
    assert names["Inner"].__name__ == "Inner"


@pytest.mark.req("B1", "B2")
def test_packages_without_code_have_no_file():
    packed = program("pico_w").texts
    assert {"flashmqtt", "flashmqtt.codec.encode"} <= packed.keys() and "flashmqtt.codec" not in packed
    assert all(packed.values())


@pytest.mark.req("B2")
@pytest.mark.parametrize(
    "module",
    [
        "class A:\n    def _private(self):\n        return getattr(self, '_private')\n",
        "import asyncio\nprint(asyncio.core._io_queue)\n",
        "def f(it):\n    return it._not_ours\n",
        "print(__name__)\n",
        "def f(**given):\n    return given\n",
    ],
)
def test_externally_visible_names_stay(module):
    assert shrink({"m": module}) == {"m": module}


@pytest.mark.req("B2")
def test_function_of_a_module_passed_as_a_value_has_one_name():
    result = shrunk(
        {"m": "def asked(): pass\ndef internal(): pass\n", "n": "import m\nfor it in (m,):\n    it.asked()\n"}
    )
    asked, internal = re.findall(r"def (\w+)", result.texts["m"])
    assert attributes(result.texts["n"]) == [asked] and len({asked, internal, "asked", "internal"}) == 4


@pytest.mark.req("B2")
def test_short_name_does_not_collide_with_existing_names():
    result = shrunk({"m": "def long_name(abs, all): return abs, all, any\nlong_name(abs=1, all=2)\n"}).texts["m"]
    assert re.findall(r"def (\w+)", result)[0] not in ("abs", "all", "any", "long_name")


@pytest.mark.req("B2")
def test_names_that_micropython_also_has_are_not_shortened():
    changed: set[str] = {"wrap_socket"}
    for board in {folder: board for board, (folder, *_) in build.BOARDS.items()}.values():
        nodes = [node for path in build.sources(board).values() for node in ast.walk(ast.parse(path.read_text()))]
        used = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        used |= {
            one.name for node in nodes if isinstance(node, ast.ClassDef) for one in node.body if hasattr(one, "name")
        }
        changed |= used & program(board).names.keys()
    defined = re.compile(r"^\s*(?:(?:async\s+)?(?:def|class)\s+)?(\w+)", re.MULTILINE)
    theirs = set()
    for text in {path.read_text() for path in (ROOT / ".venv").glob("stubs-*/**/*.pyi")}:
        if changed.isdisjoint(defined.findall(text)):
            continue  # no line defines such a name; parsing all files takes seconds
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                theirs.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                theirs.add(node.id)
    assert "wrap_socket" in theirs
    assert {name for name in changed & theirs if not name.startswith("_")} == {"wrap_socket"}, (
        "add these to build.FOREIGN"
    )


def program(board: str) -> Shrunk:
    files = {path: source for path, source in build.sources(board).items() if path.endswith(".mpy")}
    return build.shrunk({build.module_name(path): source.read_text() for path, source in files.items()})


HOSTED = {
    "p": "",
    "p.one": "from struct import pack\nfrom p.deep import low\ndef same(): return pack, low.X\n",
    "p.two": "C = 3\nfrom .one import same as other\nfrom struct import pack\ndef second(): return other, pack, C\n"
    "least = None\n",
    "p.host": "from p.two import least\n\ndef run(): return least",
    "p.deep": "",
    "p.deep.low": "X = None\n",
    "q": "from p.two import second\nfrom p import two\ndef f():\n    from p.one import same as it\n    return it, two.second\n",
}


@pytest.mark.req("B2")
def test_joined_modules_have_the_text_of_their_members_in_the_order_of_imports():
    public = {word for word in words(HOSTED) if word != "least"}
    result = shrunk(HOSTED, public=public, kept=("p.two",), groups={"p.host": ("p.two", "p.one")})
    least = result.names["least"]
    assert result.members["p.host"] == ["p.one", "p.two", "p.host"]
    assert lines(result.texts["p.host"]) == [
        "from struct import pack",
        "from .deep import low",
        "def same(): return pack, low.X",
        "other = same",
        "def second(): return other, pack, 3",
        f"{least} = None",
        f"def run(): return {least}",
    ]
    assert result.texts["p.two"] == "from p.host import other, pack, second\nC = 3\n"
    assert "p.one" not in result.texts
    assert lines(result.texts["q"]) == [
        "from p.host import second",
        "from p import host as two",
        "def f():",
        "    from p.host import same as it",
        "    return it, two.second",
    ]


@pytest.mark.req("B2")
@pytest.mark.parametrize(
    ("sources", "why"),
    [
        ({"a": "from b import x\n", "b": "from a import y\n"}, "cycle"),
        ({"p": "", "p.a": "from . import b\nprint(b)\n", "p.b": ""}, "p.b is used as an object"),
        ({"a": "import b\nprint(b)\n", "b": ""}, "b is used as an object"),
        ({"a": "x = None\n", "b": "x = ''\n"}, "x is a global of b and of a"),
        ({"a": "def x(): pass\n", "b": "from time import x\n"}, "x is a global of time and of a"),
        ({"a": "from gc import x\n", "b": "from time import x\n"}, "x is imported from time and, in a, from gc"),
    ],
)
def test_modules_that_can_not_be_joined_are_refused_with_a_reason(sources, why):
    with pytest.raises(Unjoined, match=why):
        shrunk(sources, groups={"a": ("b",), "p.a": ("p.b",)})


@pytest.mark.req("B2")
def test_traceback_of_the_packed_library_is_shown_with_the_functions_of_the_repository(tmp_path):
    files = {f"{path[:-3]}.mpy": source for path, source in build.library().items()}
    build.write_files(tmp_path, build.packed(files, "x64"))
    program = (
        "from flashmqtt.session.ram import RamStore\n\ndef start():\n    RamStore().append(b'', None)\n\nstart()\n"
    )
    (tmp_path / "program.py").write_text(program)
    ran = subprocess.run(
        [Path(sys.executable).parent / "micropython", tmp_path / "program.py"],
        env={"MICROPYPATH": f".frozen:{tmp_path}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    places = [explained(line).strip() for line in (ran.stdout + ran.stderr).splitlines() if "File" in line]
    ends = [line.partition("program.py")[2] for line in places]
    assert ends[:2] == ['", line 6, in <module>', '", line 4, in start']  # a file of the user has line numbers
    assert 'File "flashmqtt.session.ram", in RamStore.append' in places[2]


@pytest.mark.req("B2")
def test_short_name_of_several_functions_is_shown_with_all_of_them():
    short = program("pico_w").names["interrupted"]
    said = explained(f'  File "flashmqtt.client", line 1, in {short}')
    assert said.startswith('  File "') and " or " in said
    assert (
        'File "flashmqtt.link", in Link.interrupted' in said
        and 'File "flashmqtt.output", in Output.interrupted' in said
    )


@pytest.mark.req("B2")
def test_traceback_of_a_board_with_its_own_board_file_has_the_functions_of_its_own_build(tmp_path):
    board_file = tmp_path / "my board.py"
    text = (ROOT / "boards" / "README.md").read_text()
    board_file.write_text(text.partition("```python\n")[2].partition("```")[0])
    modules, packed = trace.program(board_file)
    usual = trace.program(None)[1].names
    moved = [
        (host, name)
        for host, members in packed.members.items()
        for name in re.findall(r"    def (\w+)", "".join(modules[member] for member in members if member != "board"))
        if packed.names.get(name, name) != usual.get(name, name)
    ]
    assert len(moved) > 10
    for host, name in moved:
        said = explained(f'  File "{host}", line 1, in {packed.names.get(name, name)}', board_file)
        assert re.search(rf"\b{name}\b", said), (host, name)


@pytest.mark.req("B2")
@pytest.mark.parametrize("line", ['  File "main.py", line 3, in main', '  File "m", line 3, in publish', "readings: 3"])
def test_line_that_names_no_function_of_the_library_is_shown_as_it_is(line):
    assert explained(line) == line


@pytest.mark.req("B2")
def test_names_imported_in_the_documents_exist_in_the_packed_library():
    packed = program("pico_w").texts
    pages = [
        path.read_text() for pattern in build.PAGES for path in ROOT.glob(pattern) if path.name not in build.NO_PAGES
    ]
    wanted = set()
    for page in pages:
        for module, names in re.findall(r"^\s*from (flashmqtt[\w.]*) import ([\w, ]+)", page, re.MULTILINE):
            wanted |= {(module, name.partition(" as ")[0].strip()) for name in names.split(",")}
    assert ("flashmqtt.client", "Client") in wanted
    for module, name in wanted:
        if module.replace(".", "/") + ".py" not in build.HOST_ONLY and f"{module}.{name}" not in packed:
            assert name in words({"": packed[module]}), (module, name)


@pytest.mark.req("B1", "B2")
def test_every_documented_module_can_be_imported_from_the_packed_library(tmp_path):
    files = {f"{path[:-3]}.mpy": source for path, source in build.library().items()}
    build.write_files(tmp_path, build.packed(files, "x64"))
    hosts = {path.removesuffix(".py").replace("/", ".") for path in build.HOST_ONLY}
    modules = [name for name in build.OPEN if name.startswith("flashmqtt.") and name not in hosts]
    assert {"flashmqtt.backoff", "flashmqtt.codec.properties", "flashmqtt.client"} <= {*modules}
    for module in modules:  # one interpreter for each, as what one module loads may hide what another one lacks
        ran = subprocess.run(
            [Path(sys.executable).parent / "micropython", "-c", f"import {module}"],
            env={"MICROPYPATH": f".frozen:{tmp_path}"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ran.returncode == 0, f"{module}: {ran.stdout}{ran.stderr}"


@pytest.mark.req("B2")
def test_hot_names_are_shared_with_no_other_name():
    class_of = "class {}:\n    def __init__(self): self.{} = 1\n".format
    sources = {"p.a": class_of("One", "often") + class_of("Two", "seldom") + class_of("Three", "rarely")}
    names = shrunk(sources, (), ()).names
    assert names["often"] == names["seldom"] == names["rarely"]
    names = shrunk(sources, (), (), hot={"p.a": ["often"]}).names
    assert names["often"] != names["seldom"] == names["rarely"]


@pytest.mark.req("B2")
def test_board_numbers_the_hot_names_one_after_the_other(tmp_path):
    files = {f"{path[:-3]}.mpy": source for path, source in build.library().items()}
    texts = {build.module_name(path): source.read_text() for path, source in files.items()}
    hot = build.HOT_NAMES.split()
    assert {*hot} <= words(texts), "a hot name that no module has"
    names = build.shrunk(texts).names
    own = [names[name] for name in hot if name in names]
    assert len({*own}) == len(own) > 40
    build.write_files(tmp_path, build.packed(files, "x64"))
    ran = subprocess.run(  # what `id` returns for a name has the name's number above its last three bits
        [
            Path(sys.executable).parent / "micropython",
            "-c",
            f"import flashmqtt.client\nprint([id(n) >> 3 for n in {own}])",
        ],
        env={"MICROPYPATH": f".frozen:{tmp_path}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    numbers = ast.literal_eval(ran.stdout)
    assert numbers == sorted(numbers)
    assert numbers[-1] - numbers[0] < len(hot), ran.stdout  # those between them are hot, too: names for users stay


@pytest.mark.req("B1", "B2")
@pytest.mark.parametrize(("board", "march"), [("pico_w", "armv6m"), ("esp32", "xtensawin"), ("esp32", "")])
def test_shrunk_image_compiles_and_is_smaller(board, march):
    image, plain = build.image(board, march), build.image(board, march, plain=True)
    assert image.keys() < plain.keys()
    assert sum(map(len, image.values())) < sum(map(len, plain.values()))
    assert image["/main.py"] == plain["/main.py"]


def test_ctrl_c_during_compilation_is_not_a_compiler_error(monkeypatch):
    ended = subprocess.CompletedProcess([], -signal.SIGINT, "", "")
    monkeypatch.setattr(build.subprocess, "run", lambda *words, **options: ended)
    with pytest.raises(KeyboardInterrupt):
        build.compiled("m", "A = 1\n", "x64")


def test_locale_does_not_change_a_compiled_text():
    program = (
        "import sys\nfrom tools.deploy import build\nsys.stdout.buffer.write(build.compiled('m', 'A = \"\\xb0C\"', ''))"
    )
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    words = [sys.executable, "-c", program]
    ran = subprocess.run(words, cwd=build.ROOT, env=environment, capture_output=True, timeout=60, check=False)
    assert "\xb0C".encode() in ran.stdout, ran.stderr


@pytest.mark.req("B1")
def test_build_without_native_code_uses_the_plain_modules():
    assert b"viper" not in build.sources("pico_w", native=False)["/lib/flashmqtt/fast/__init__.mpy"].read_bytes()
    assert b"viper" in build.sources("pico_w")["/lib/flashmqtt/codec/quick.mpy"].read_bytes()


@pytest.fixture(scope="module")
def packed_tests(tmp_path_factory) -> Path:
    """The library and the application, packed as one program with the tests; the tests stay source, to keep their asserts."""
    firmware = ROOT / "firmware"
    library = {str(path.relative_to(firmware)): path for path in firmware.rglob("*.py") if path.parent != firmware}
    library |= build.library()
    tests = {path.name: path for path in BOTH.glob("*.py") if path.name not in (LEFT_OUT, "paths.py")}
    tests |= {
        str(path.relative_to(ROOT)): path
        for pattern in BESIDES
        for path in (ROOT / "tools").glob(pattern)
        if path.stem != "__main__"
    }
    tests |= {str(path.relative_to(ROOT)): path for path in (ROOT / "boards").glob("*/board.py")}
    texts = {build.module_name(name): path.read_text() for name, path in (library | tests).items()}
    folder = tmp_path_factory.mktemp("packed")
    paths = {build.module_name(path): path for path in library | tests}
    for name, text in build.shrunk(texts).texts.items():
        target = folder / paths[name]
        target.parent.mkdir(parents=True, exist_ok=True)
        if paths[name] in library:
            target.with_suffix(".mpy").write_bytes(build.compiled(name, text, "x64"))
        else:
            target.write_text(text)
    return folder


def run_packed(folder: Path, name: str) -> subprocess.CompletedProcess[str]:
    runner = ROOT / "host_tests" / "on_micropython"
    path = f".frozen:{folder}:{runner}:{BOTH}:{ROOT}"
    few = ["--few"] if name.startswith(FEW) else []
    return subprocess.run(
        micropython("2M", runner / "runner.py", name, *few),
        env={**os.environ, "MICROPYPATH": path},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.fixture(scope="module")
def running(packed_tests, request) -> Iterator[dict[str, Future]]:
    """Run the chosen test files, two at a time: some of them mostly wait."""
    chosen = [item for item in request.session.items if item.path == request.path and "running" in item.fixturenames]
    with ThreadPoolExecutor(2) as pool:
        names = [item.callspec.params["name"] for item in chosen]
        yield {name: pool.submit(run_packed, packed_tests, name) for name in names}


@pytest.mark.req("B1", "B2")
@pytest.mark.parametrize("name", TESTS)
def test_packed_library_passes_its_tests(running, name):
    ran = running[name].result()
    outcomes = [line.split()[-1] for line in ran.stdout.splitlines() if line.startswith("@case ")]
    started = sum(line.startswith("@start ") for line in ran.stdout.splitlines())
    assert ran.returncode == 0 and started == len(outcomes) > 0, ran.stdout[-2000:] + ran.stderr
    first = ran.stdout.find(" failed")
    assert set(outcomes) <= {"passed", "skipped"}, ran.stdout[max(0, first - 3000) : first + 500]
