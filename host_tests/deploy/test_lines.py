"""Statements put on fewer lines: each rule alone, and every module of a board."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.deploy import build
from tools.deploy.lines import joined
from tools.deploy.trace import explained

ROOT = Path(__file__).resolve().parent.parent.parent
MICROPYTHON = Path(sys.executable).parent / "micropython"


def rows(text: str) -> list[tuple[int, str]]:
    """Return the lines that are not empty, with their numbers."""
    return [(number, line.strip()) for number, line in enumerate(joined(text).splitlines(), 1) if line]


@pytest.mark.req("B2")
def test_simple_statements_share_the_line_of_the_first():
    text = "from gc import (\n    collect,  # all\n    mem_free,\n)\nimport os\n\n# why\na = 1  # one\nb: int = 2\nb += a\n"
    text += "del a\nassert b\nprint(b,\n      '#')\n"
    one = "from gc import ( collect, mem_free, ); import os; a = 1; b: int = 2; b += a; del a; assert b; print(b, '#')"
    assert rows(text) == [(1, one)]


@pytest.mark.req("B2")
def test_statements_of_a_function_share_a_line_below_its_head():
    text = "def f(\n    x,\n):\n    global a\n    nonlocal_ = x\n\n    yield a\n    raise OSError from None\n"
    assert rows(text) == [(1, "def f( x, ):"), (4, "global a; nonlocal_ = x; yield a; raise OSError from None")]


@pytest.mark.req("B2")
@pytest.mark.parametrize("head", ["if a:", "while a:", "for a in b:", "with a as b:", "if (\n    a\n    and b\n):"])
def test_block_of_simple_statements_follows_its_head(head):
    last = 2 + head.count("\n")
    text = f"{head}\n    c()\n    d()\ne()\n"
    assert rows(text) == [(1, " ".join(head.split()) + " c(); d()"), (last + 2, "e()")]


@pytest.mark.req("B2")
def test_every_block_of_a_statement_follows_its_own_head():
    text = "if a:\n    b\nelif c:\n    d\nelse:\n    e\ntry:\n    f\nexcept OSError as g:\n    break\nelse:\n    continue\n"
    text += "finally:\n    return\nfor h in i:\n    j\nelse:\n    k\n"
    assert rows(text) == [
        *((1, "if a: b"), (3, "elif c: d"), (5, "else: e"), (7, "try: f"), (9, "except OSError as g: break")),
        *((11, "else: continue"), (13, "finally: return"), (15, "for h in i: j"), (17, "else: k")),
    ]


@pytest.mark.req("B2")
def test_block_with_a_compound_statement_keeps_its_lines():
    text = "if a:\n    b = 1\n    c = 2\n    if b:\n        d()\n    e = 3\n    f = 4\n"
    assert rows(text) == [(1, "if a:"), (2, "b = 1; c = 2"), (4, "if b: d()"), (6, "e = 3; f = 4")]


@pytest.mark.req("B2")
def test_nothing_joins_a_compound_statement_on_one_line():
    text = "a = 1\nif a: b()\nc()\nwhile 1: break\nd()\ne()\nclass F: pass\ng()\n"
    assert rows(text) == [
        *((1, "a = 1"), (2, "if a: b()"), (3, "c()"), (4, "while 1: break"), (5, "d(); e()"), (7, "class F: pass")),
        (8, "g()"),
    ]


@pytest.mark.req("B2")
def test_functions_and_classes_keep_their_lines_decorators_and_types():
    text = (
        "a = 1\n@micropython.viper\ndef f(buf: ptr8, n: int) -> int:\n    '''Doc.'''\n    # why\n    n += 1\n"
        "    return buf[n]\nclass C:\n    'Doc.'\n\n    b = 2\n    c = 3\n\n    @property\n    def d(self):\n        return 4\n"
        "async def g():\n    async with h:\n        i\n"
    )
    assert rows(text) == [
        *(
            (1, "a = 1"),
            (2, "@micropython.viper"),
            (3, "def f(buf: ptr8, n: int) -> int:"),
            (6, "n += 1; return buf[n]"),
        ),
        *((8, "class C:"), (11, "b = 2; c = 3"), (14, "@property"), (15, "def d(self):"), (16, "return 4")),
        *((17, "async def g():"), (18, "async with h:"), (19, "i")),
    ]


@pytest.mark.req("B2")
def test_docstrings_and_pass_are_removed_except_in_empty_blocks():
    text = '"""Module."""\n\na = 1\ndef f():\n    """Doc\n\n    b.\n    """\n    pass\n    return 1\nclass C:\n    """Doc."""\n'
    text += "def g():\n    pass\nif a:\n    'text'\n    pass\nb = 1\n"
    assert rows(text) == [
        *((3, "a = 1"), (4, "def f():"), (10, "return 1"), (11, "class C:"), (12, "pass"), (13, "def g():")),
        *((14, "pass"), (15, "if a: pass"), (18, "b = 1")),
    ]
    assert joined('"""Only a docstring."""\n') == ""


@pytest.mark.req("B2")
def test_text_with_line_breaks_ends_its_line():
    text = "a = 1\nb = '''x\n  # y'''\nc = 'x\\\ny'\nif d(\"\"\"\n\"\"\"):\n    e()\nf = 'a  #  b'; g = 1 + \\\n    2\n"
    assert joined(text) == (
        "a = 1; b = '''x\n  # y'''\n\nc = 'x\\\ny'\nif d(\"\"\"\n\"\"\"):\n e()\nf = 'a  #  b'; g = 1 + 2\n"
    )


@pytest.mark.req("B2")
def test_block_for_type_checks_takes_one_line():
    assert rows("if 0:\n    from typing import Any\n\n    B = Any\nc = 1\n") == [
        (1, "if 0: from typing import Any; B = Any"),
        (5, "c = 1"),
    ]


def statements(text: str) -> Iterator[ast.stmt]:
    """Yield the statements that have code."""
    for node in ast.walk(ast.parse(text)):
        idle = isinstance(node, ast.Pass) or (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        )
        if isinstance(node, ast.stmt) and not idle:
            yield node


def without_blocks(node: ast.stmt) -> str:
    return ast.dump(
        type(node)(**{name: [] if isinstance(value, list) else value for name, value in ast.iter_fields(node)})
    )


@pytest.mark.req("B2")
@pytest.mark.parametrize("source", sorted((ROOT / "firmware").rglob("*.py")), ids=lambda path: path.stem)
def test_every_module_keeps_its_statements_and_the_line_of_the_first_of_each_group(source):
    before, after = ([*statements(text)] for text in (source.read_text(), joined(source.read_text())))
    assert [*map(without_blocks, after)] == [*map(without_blocks, before)]
    ours, theirs = source.read_text().splitlines(), joined(source.read_text()).splitlines()
    groups = [
        number for number, line in enumerate(theirs, 1) if line and line.lstrip()[:2] == ours[number - 1].lstrip()[:2]
    ]
    for old, new in zip(before, after, strict=True):
        assert new.lineno == max(number for number in groups if number <= old.lineno)


@pytest.mark.req("B2")
def test_error_in_a_group_is_reported_at_the_first_statement_of_its_source(tmp_path):
    text = "def f(x):\n    a = x\n    # why\n    b = a\n    if b:\n        c = 1\n        c = 1 // x\n    c = 1\n"
    text += "    return a // 0\nf(%s)\n"
    for argument, line in (("0", 8), ("'x'", 5)):
        (tmp_path / "m.py").write_text(joined(text % argument))
        ran = subprocess.run([MICROPYTHON, tmp_path / "m.py"], capture_output=True, text=True, timeout=60, check=False)
        assert re.findall(r"line (\d+)", ran.stdout + ran.stderr) == ["10", str(line)]


@pytest.mark.req("B2")
def test_traceback_of_the_packed_library_names_the_first_statement_of_a_group():
    files = {path: source for path, source in build.sources("pico_w").items() if path.endswith(".mpy")}
    shrunk = build.shrunk({build.module_name(path): source.read_text() for path, source in files.items()})
    source = (ROOT / "firmware" / "flashmqtt" / "codec" / "encode.py").read_text()
    packed = shrunk.texts["flashmqtt.codec.encode"].splitlines()
    offset = next(at for at, name in shrunk.lines["flashmqtt.codec.encode"] if name == "flashmqtt.codec.encode") - 1
    function = next(
        node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name == "put_ack"
    )
    last, before = function.body[-1].lineno, function.body[-5].lineno
    assert packed[last + offset - 1] == "" and packed[before + offset - 1].count(";") == 4
    said = f'  File "flashmqtt.codec.encode", line {before + offset}, in any'
    assert explained(said) == f'  File "flashmqtt.codec.encode", line {before}, in put_ack'


@pytest.mark.req("B2")
def test_module_on_fewer_lines_is_smaller():
    text = (ROOT / "firmware" / "flashmqtt" / "journal" / "journal.py").read_text()
    sizes = [len(build.compiled("m", one, "armv6m")) for one in (text, joined(text))]
    assert sizes[1] < 0.97 * sizes[0]
