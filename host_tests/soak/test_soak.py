"""A short soak: three boards and all kinds of faults, from publishing through the pipeline to the audit."""

import json
import os
import re
import subprocess
import sys

import pyarrow.parquet as pq
import pytest

from tools.bootstrap import ROOT
from tools.proof.broker import find_mosquitto

PROGRAM = """
import sys
from contextlib import nullcontext
from pathlib import Path
from host_tests.pipeline.conftest import Local
from tools.pipeline import follow, session, stream
from tools.pipeline.tables import source
from tools.pipeline.tables.commits import Output
from tools.proof.soak.__main__ import soak
from tools.proof.soak.fleet import Settings

def one_batch(job, _):
    Output(job.out).prepare(job.buckets)
    found = source.latest(job.directory)
    job._run({collector: max(numbers) for collector, numbers in found.items()}, 0, found)


# One batch of all segments runs in this process: `run/test_run.py` starts Spark.
session.opened = lambda *_: nullcontext(Local())
stream.Job.start = one_batch
follow.until_ended = lambda *_: None

settings = Settings(
    seconds=6, boards=3, seed=5, interval_ms=50, health_s=1, power_s=3, link_s=4, silence_s=20, absence_s=10,
    broker_s=3, collector_s=3, collector_link_s=3, longest_absence_s=1.5, longest_pause_s=1,
)
sys.exit(soak(Path(sys.argv[1]), settings))
"""


def run(*command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'firmware'}"}
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False
    )


@pytest.mark.skipif(not find_mosquitto(), reason="mosquitto is not installed")
@pytest.mark.req("P1", "P3", "P4", "B4", "S1", "S2", "S4", "Q1", "Q2")
def test_fleet_under_every_fault_delivers_each_message_once(tmp_path):
    output = tmp_path / "soak"
    ran = run("-c", PROGRAM, str(output))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = json.loads((output / "soak.json").read_text())
    assert (found["missing"], found["repeated"], found["holds"]) == (0, 0, True)
    cuts = re.search(r"power cuts: (\d+)", ran.stdout)
    assert cuts and int(cuts[1]) >= 3  # each board is started again at the end, to send its stored messages
    told = json.loads((output / "expected.json").read_text())
    assert set(told) == {"board-1", "board-2", "board-3"}
    assert found["published"] == sum(its["boots"][-1]["last"] for its in told.values())
    samples = pq.read_table(output / "samples.parquet").to_pylist()
    assert {one["subject"] for one in samples} >= {*told, "broker", "collector"}
    assert set(found["erases"]) == set(told) and all(found["erases"].values())
    assert "every message once" in ran.stdout
    assert "report.html" in ran.stdout
