"""Modules made smaller for a board: each rule alone, and all of `host_tests/both` against the packed library."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tools.deploy import build
from tools.deploy.shrink import shrink

ROOT = Path(__file__).resolve().parent.parent.parent
BOTH = ROOT / "host_tests" / "both"
# Beside the library and the application: what the tests import of ours.
BESIDES = (
    *("__init__.py", "flashsim/*.py", "fuzz/__init__.py", "fuzz/cases.py", "powercut/*.py"),
    *("virtual_board/__init__.py", "virtual_board/hardware/*.py"),
)
# It takes the machine code away and looks for the other implementation, which a packed library has not.
LEFT_OUT = "test_codec_without_native.py"
TESTS = sorted(path.stem for path in BOTH.glob("test_*.py") if path.name != LEFT_OUT)


def lines(source: str) -> list[str]:
    return [line.rstrip() for line in source.splitlines()]


@pytest.mark.req("B2")
def test_constants_stand_where_their_names_stood():
    result = shrink(
        {
            "p": "",
            "p.names": "from micropython import const\nA = 3\n_B = const(A << 2)\nLOW = const(-1)\nTEXT = 'x'\n",
            "p.use": "from . import names\nfrom .names import A, LOW as L, TEXT\n"
            "def f(x, y=A):\n    return x == A and L ** 2 == names.A\n",
            "p.late": "def f():\n    from p.names import A\n    return A\n",
        }
    )
    assert result["p.names"].split() == ["TEXT", "=", "'x'"]
    assert lines(result["p.use"]) == [
        "",
        "from .names import TEXT",
        "def f(x, y=3):",
        "    return x == 3 and (-1) ** 2 == 3",
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
        "A = 'text'\nprint(A)\n",
        "A = True\nprint(A)\n",
    ],
)
def test_what_is_no_constant_is_left_alone(module):
    assert shrink({"m": module}) == {"m": module}


@pytest.mark.req("B2")
def test_name_of_a_constant_that_means_something_else_inside_is_left_alone():
    module = (
        "A = 1\ndef f(A):\n    return A\ndef g():\n    A = 5\n    return lambda: A\n"
        "h = [A for A in range(3)]\nk = [A for x in ()]\n"
    )
    assert lines(shrink({"m": module})["m"]) == lines(module.replace("A = 1", "").replace("[A for x", "[1 for x"))


@pytest.mark.req("B2")
def test_constant_that_another_module_sets_is_none():
    sources = {"a": "A = 1\nprint(A)\n", "b": "import a\na.A = 2\n"}
    assert shrink(sources) == sources


@pytest.mark.req("B2")
@pytest.mark.parametrize("use", ["def f(it):\n    return it.A\n", "import a.b\nprint(a.b.A)\n", "getattr(x, 'A')\n"])
def test_definition_stays_where_it_may_be_asked_for_by_its_name(use):
    sources = {"a": "", "a.b": "A = 1\nprint(A)\n", "c": use}
    assert shrink(sources) == {**sources, "a.b": "A = 1\nprint(1)\n"}


@pytest.mark.req("B2")
def test_kept_modules_keep_their_public_constants():
    assert shrink({"m": "A = 1 << 4\n_B = 2\nprint(A, _B)\n"}, kept=("m",))["m"] == "A = 16\n\nprint(16, 2)\n"


@pytest.mark.req("B2")
def test_import_over_several_lines_keeps_the_lines_behind_it_in_place():
    result = shrink({"a": "A = 1\ndef b(): pass\n", "m": "from a import (\n    A,\n    b,\n)\nb(A)\n"})
    assert lines(result["m"]) == ["from a import b", "", "", "", "b(1)"]


@pytest.mark.req("B2")
def test_private_names_become_short_and_those_that_never_meet_become_one():
    result = shrink(
        {
            "a": "class A:\n    def _first_of_a(self):\n        return self._first_of_a\n",
            "b": "class B:\n    def _first_of_b(self):\n        return self._first_of_b\n",
        }
    )
    assert result["a"].count("_a") == result["b"].count("_a") == 2


@pytest.mark.req("B2")
def test_names_of_one_object_stay_different_however_far_apart_its_classes_are():
    result = shrink(
        {
            "a": "class A:\n    def __init__(self):\n        self._of_a = 1\n",
            "b": "from a import A as Other\nclass B(Other):\n    pass\n",
            "c": "import b\nclass C(b.B):\n    def f(self):\n        self._of_c = 2\n",
            "d": "def f(it):\n    it._of_d = 3\n",
            "e": "class E:\n    def f(self):\n        return self._of_e\n    def g(self):\n        self._of_e = 4\n",
        }
    )
    short = [result[name][result[name].index("._") + 1 :].split()[0] for name in "acde"]
    assert len({*short[:3]}) == 3 and short[3] != short[2] and all(len(name) == 2 for name in short)


@pytest.mark.req("B2")
@pytest.mark.parametrize(
    "module",
    [
        "class A:\n    def _private(self):\n        return getattr(self, '_private')\n",
        "import asyncio\n_io_queue = asyncio.core._io_queue\n",
        "from x import y\n_part = y._part\n",
        "def f(it):\n    return it._not_ours\n",
        "class A:\n    _named = 1\nprint(f'{A._named}')\n",
        "print(__name__)\n",
    ],
)
def test_names_that_others_know_stay(module):
    assert shrink({"m": module}) == {"m": module}


@pytest.mark.req("B2")
def test_short_name_is_none_that_is_there_already():
    assert "_b" in shrink({"m": "def _long_name(_a): return _a\n"})["m"]


@pytest.mark.req("B1", "B2")
@pytest.mark.parametrize(("board", "march"), [("pico_w", "armv6m"), ("esp32", "xtensawin"), ("esp32", "")])
def test_image_compiles_for_its_processor_and_is_smaller(board, march):
    image, plain = build.image(board, march), build.image(board, march, plain=True)
    assert image.keys() == plain.keys()
    assert sum(map(len, image.values())) < sum(map(len, plain.values()))
    assert image["/main.py"] == plain["/main.py"]


def test_compiler_that_ctrl_c_ended_refused_nothing(monkeypatch):
    ended = subprocess.CompletedProcess([], -signal.SIGINT, "", "")
    monkeypatch.setattr(build.subprocess, "run", lambda *words, **options: ended)
    with pytest.raises(KeyboardInterrupt):
        build.compiled("m", "A = 1\n", "x64")


@pytest.mark.req("B1")
def test_modules_for_a_processor_without_machine_code_are_the_plain_ones():
    assert b"viper" not in build.sources("pico_w", native=False)["/lib/flashmqtt/fast/__init__.mpy"].read_bytes()
    assert b"viper" in build.sources("pico_w")["/lib/flashmqtt/codec/quick.mpy"].read_bytes()


@pytest.fixture(scope="module")
def packed_tests(tmp_path_factory) -> Path:
    """The library and the application, packed as one program with the tests; these stay source, or their asserts would go."""
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
    fakes = [name for name in texts if name.startswith("tools.virtual_board")]  # a board does not import them as ours
    for name, text in shrink(texts, (*build.KEPT, *fakes)).items():
        (path,) = (path for path in library | tests if build.module_name(path) == name)
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if path in library:
            target.with_suffix(".mpy").write_bytes(build.compiled(name, text, "x64"))
        else:
            target.write_text(text)
    return folder


def run_packed(folder: Path, name: str) -> subprocess.CompletedProcess[str]:
    runner = ROOT / "host_tests" / "on_micropython"
    path = f".frozen:{folder}:{runner}:{BOTH}:{ROOT}"
    return subprocess.run(
        [Path(sys.executable).parent / "micropython", "-X", "heapsize=512K", runner / "runner.py", name],
        env={**os.environ, "MICROPYPATH": path},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.fixture(scope="module")
def running(packed_tests, request) -> Iterator[dict[str, Future]]:
    """The chosen test files, two at a time: some do little but wait."""
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
    assert set(outcomes) <= {"passed", "skipped"}, ran.stdout[-4000:]
