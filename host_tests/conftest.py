"""One test file, two interpreters: every case in `host_tests/both` also runs on a real MicroPython.

On CPython the files in `both` are ordinary pytest files. For each case this plugin adds a second item, named
`...@micropython`. The first such item of a file runs all that were selected from it in one MicroPython process
(its start costs more than most cases), and each item reports its own outcome.

`make test` runs on several processes (pytest-xdist). A file is one unit of work there, its twins another one, so that module
fixtures are made once; where every case stands alone, each is a unit. Units that take long begin first. Two of eight processes
take what mostly waits, the others what computes: so the cores have work from the first minute to the last.
"""

from __future__ import annotations

import functools
import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tools import children

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
BOTH = HERE / "both"
# What the tests start (`python -m tools.deploy`) finds the code also where pytest was not started by make.
os.environ.setdefault("PYTHONPATH", f"{ROOT}:{ROOT / 'firmware'}")
if "PYTEST_XDIST_WORKER" in os.environ:
    # Compiled tests are kept: pytest rewrites the assertions of 190 files, six seconds in each process that collects them.
    # (`make mutation` runs one process, which must keep nothing: mutants may have the same size and the same second.)
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# A child that reports through a pipe must not keep its lines to itself.
os.environ.setdefault("PYTHONUNBUFFERED", "1")
# What was started in the background (`nohup make test &`) ignores Ctrl-C, and so would the programs to which tests send it.
signal.signal(signal.SIGINT, signal.default_int_handler)
HEAP = os.environ.get("FLASHMQTT_TEST_HEAP", "1M")
DEADLINE_S = 600
# Most tests wait for something, many for time only: more processes than cores.
WORKERS_A_CORE = 4
MOST_WORKERS = 8
TWIN = "@micropython"
# Each case alone takes seconds, and shares nothing with the others of its file.
CASE_BY_CASE = (
    "host_tests/both/test_journal_powercut.py",
    "host_tests/run/",
)
# What takes the fixture `spark`: each process that asks for it starts one, which takes ten seconds and a gigabyte.
WITH_SPARK = (
    "host_tests/pipeline/test_dating.py",
    "host_tests/pipeline/test_stream.py",
    "host_tests/pipeline/test_compact.py::test_remake_from_raw_data_",
    "host_tests/pipeline/test_delta.py::test_every_engine_",
    "host_tests/pipeline/test_delta.py::test_stream_publishes_after_a_kill_",
    "host_tests/pipeline/test_engines_page.py::test_program_on_the_page_",
    "host_tests/pipeline/test_plain.py::test_full_check_",
    "host_tests/pipeline/test_sink.py::test_dates_equal_the_pipelines_",
)
# What waits for most of its time; the longest first.
WAITING = (
    "host_tests/faults/test_hostile.py",
    "host_tests/both/test_client_refused.py",
    "host_tests/both/test_client_receive.py",
    "host_tests/both/test_aio_receive.py",
    "host_tests/boards/test_application.py",
    "host_tests/session/test_interrupts.py",
    "host_tests/both/test_client_recovery.py",
    "host_tests/both/test_app_worn.py",
    "host_tests/both/test_app_outcomes.py",
    "host_tests/client/test_mqtt_as.py",
    "host_tests/docs/test_bootstrap.py",
    "host_tests/both/test_client_log.py",
    "host_tests/docs/test_security_page.py",
    "host_tests/both/test_simple.py",
    "host_tests/both/test_session_adopted.py",
)
# What takes longest begins first, or the others wait for it at the end. A unit of work takes the first that it begins with.
LONG = (
    WITH_SPARK[0],
    "host_tests/deploy/test_deploy.py",
    "host_tests/soak/test_soak.py",
    "host_tests/pipeline/test_sink.py",
    "host_tests/collector/test_collector.py",
    "host_tests/pipeline/test_forget.py",
    "host_tests/pipeline/test_delta.py",
    "host_tests/deploy/test_shrink.py",
    "host_tests/pipeline/test_object_store.py",
    "host_tests/pipeline/test_page.py",
    "host_tests/brokers/",
    "host_tests/faults/",
    "host_tests/pipeline/test_dashboard.py",
    "host_tests/pipeline/test_session.py",
    "host_tests/docs/test_readme.py",
    "host_tests/deploy/test_release.py",
    "host_tests/run/test_run.py",
    "host_tests/run/test_ends.py",
    "host_tests/pipeline/test_lives.py",
    "host_tests/both/test_journal_powercut.py",
    "host_tests/client/test_tls.py",
    "host_tests/journal/test_lives.py",
    "host_tests/pipeline/",
    "host_tests/deploy/",
    "host_tests/collector/",
    "host_tests/client/",
    "host_tests/both/test_client",
    "host_tests/both/test_aio",
    "host_tests/both/test_journal",
    "host_tests/journal/",
    "host_tests/session/",
    "host_tests/flash/",
)


def micropython_environment() -> dict[str, str]:
    """Return the environment in which MicroPython finds the shim, the tests and the library."""
    path = [".frozen", str(HERE / "on_micropython"), str(BOTH), str(ROOT / "firmware"), str(ROOT)]
    return {**os.environ, "MICROPYPATH": ":".join(path)}


class MicroPythonItem(pytest.Item):
    """The twin of a CPython test item."""

    def __init__(self, *, twin: pytest.Function, key: str, **kwargs):
        super().__init__(**kwargs)
        self.key = key
        self.own_markers = list(twin.iter_markers())
        for mark in self.own_markers:
            self.keywords[mark.name] = mark

    def runtest(self) -> None:
        outcome, detail = _outcomes(self)[self.key]
        if outcome == "skipped":
            pytest.skip(detail.strip())
        if outcome != "passed":
            raise MicroPythonFailed(detail)

    def repr_failure(self, excinfo, style=None):
        if isinstance(excinfo.value, MicroPythonFailed):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self):
        return self.path, None, self.name


class MicroPythonFailed(Exception):
    """A case failed on MicroPython; the text is its traceback."""


def _key(item: pytest.Function) -> str:
    if not hasattr(item, "callspec"):
        return item.originalname
    (index,) = set(item.callspec.indices.values())
    return f"{item.originalname}/{index}"


def pytest_configure(config: pytest.Config) -> None:
    """Let each of several processes begin its collection in another folder, so that no two compile the same tests."""
    gc.disable()  # until all is collected
    if hasattr(config, "workerinput") and config.args == ["host_tests"]:
        folders = sorted({str(path.parent.relative_to(config.rootpath)) for path in HERE.glob("*/test_*.py")})
        number = int(config.workerinput["workerid"].removeprefix("gw"))
        begin = number * len(folders) // config.workerinput["workercount"]
        config.args = folders[begin:] + folders[:begin]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Exempt all that was collected from garbage collection: it stays to the end, and walking it costs 7% of the CPU time.

    The tests' own garbage is collected less often than by default, which took 7 CPU seconds in `deploy/test_shrink.py`.
    """
    gc.freeze()
    gc.enable()
    gc.set_threshold(50_000, 20, 20)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Undo it, or nanobind reports duckdb's classes as leaked."""
    gc.unfreeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return how many processes `-n auto` starts."""
    return min(MOST_WORKERS, max(2, round(WORKERS_A_CORE * len(os.sched_getaffinity(0)))))


def unit_of(nodeid: str) -> str:
    """Return the unit of work that a test belongs to: all of it runs in one process, in order."""
    path, _, name = nodeid.partition("::")
    if name.endswith(TWIN):
        return path + TWIN
    if nodeid.startswith(WITH_SPARK):
        return WITH_SPARK[0]
    return nodeid if path.startswith(CASE_BY_CASE) else path


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put a MicroPython twin behind every case from `both`; on several processes, what takes long first."""
    result: list[pytest.Item] = []
    for item in items:
        result.append(item)
        if isinstance(item, pytest.Function) and item.path.parent == BOTH and "@" not in item.name:
            result.append(
                MicroPythonItem.from_parent(item.parent, name=f"{item.name}{TWIN}", twin=item, key=_key(item))
            )
    if hasattr(config, "workerinput"):
        result.sort(key=lambda item: (_turn(unit_of(item.nodeid)), item.path))
    items[:] = result


@functools.cache
def _turn(unit: str) -> int:
    begins = WAITING + LONG
    return next((turn for turn, begin in enumerate(begins) if unit.startswith(begin)), len(begins))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log):
    """Return who hands out the units, of each kind in the order in which they were collected."""
    from xdist.scheduler import LoadScopeScheduling

    class Units(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return unit_of(nodeid)

        def _assign_work_unit(self, node) -> None:
            takes_waiting = self.nodes.index(node) < len(self.nodes) // 4
            for unit in self.workqueue:
                if unit.startswith(WAITING) == takes_waiting:
                    self.workqueue.move_to_end(unit, last=False)
                    break
            super()._assign_work_unit(node)

    config.option.loadscopereorder = False
    return Units(config, log)


def _outcomes(item: MicroPythonItem) -> dict[str, tuple[str, str]]:
    """Return key -> (outcome, detail) for all selected twins of this item's file, running them once."""
    done = item.session.stash.setdefault(_STASH, {})
    if item.path not in done:
        keys = [
            other.key for other in item.session.items if isinstance(other, MicroPythonItem) and other.path == item.path
        ]
        done[item.path] = run_on_micropython(item.path, keys)
    return done[item.path]


_STASH: pytest.StashKey[dict] = pytest.StashKey()


def run_on_micropython(path: Path, keys: list[str]) -> dict[str, tuple[str, str]]:
    """Run cases of a file in one MicroPython process; a case that never reported counts as failed."""
    runner = HERE / "on_micropython" / "runner.py"
    command = children.micropython(HEAP, runner, path.stem, *keys)
    try:
        ran = subprocess.run(
            command,
            check=False,
            env=micropython_environment(),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=DEADLINE_S,
        )
        printed, end = ran.stdout.decode("utf-8", "replace"), f"exit status {ran.returncode}"
    except subprocess.TimeoutExpired as expired:
        printed = (expired.stdout or b"").decode("utf-8", "replace")
        end = f"no end within {DEADLINE_S} s"
    outcomes: dict[str, tuple[str, str]] = {}
    key = ""
    for line in printed.splitlines():
        if line.startswith("@case "):
            _, key, outcome = line.split(" ", 2)
            outcomes[key] = (outcome, "")
        elif key and line.startswith("    "):
            outcome, detail = outcomes[key]
            outcomes[key] = (outcome, detail + line[4:] + "\n")
        elif line.startswith("@start "):
            key = ""
    missing = f"MicroPython ended before this case reported ({end}):\n{printed[-3000:]}"
    return {key: outcomes.get(key, ("failed", missing)) for key in keys}
