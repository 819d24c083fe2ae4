"""The whole chain, small: board, broker, collector and Spark, with every kind of fault, ended by the audit."""

import json
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tools.broker import find_mosquitto
from tools.wire import flows

ROOT = Path(__file__).resolve().parents[2]
# amqtt 0.12.1 forgets what is in flight at QoS 2 when a connection is lost (its log: "PUBREL for unknown pending
# message"), so it is given the chain without cuts.
FAULTS = {"mosquitto": (4, 3, 1), "amqtt": (0, 0, 0)}
BROKERS = ["amqtt"] + (["mosquitto"] if find_mosquitto() else [])


def start(output: Path, *arguments: str) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'firmware'}"}
    return subprocess.Popen(
        [sys.executable, "-m", "tools.run", "--output", str(output), *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.req("P1", "P3", "P4", "B4", "S1")
@pytest.mark.parametrize("broker", BROKERS)
def test_every_reading_arrives_once_whatever_is_cut(broker, tmp_path):
    output = tmp_path / "run"
    cuts, link_cuts, kills = FAULTS[broker]
    faults = (f"--cuts={cuts}", f"--link-cuts={link_cuts}", f"--collector-kills={kills}")
    process = start(output, "--readings=400", *faults, f"--broker={broker}")
    printed, complaints = process.communicate(timeout=280)
    assert process.returncode == 0, printed + complaints
    story = json.loads((output / "story.json").read_text())
    assert (story["power_cuts"], story["link_cuts"], story["collector_kills"]) == FAULTS[broker]
    assert story["messages"] >= 400
    expected = json.loads((output / "expected.json").read_text())["virtual-1"]["boots"]
    assert expected[0]["first"] == 1
    assert expected[-1]["last"] == story["messages"]
    assert all(later["first"] == earlier["last"] + 1 for earlier, later in pairwise(expected))
    assert re.search(r"\bmissing\b", printed)
    assert "report.html" in printed.splitlines()[-1]
    assert (output / "tables" / "report.html").exists()
    board = flows.audit_of_file(output / "captures" / "link.jsonl")["virtual-1"]
    assert [broken for broken in board.violations if broken["by"] == "client"] == []
    assert len([flow for flow in board.flows if flow["complete"] and flow["direction"] == "up"]) >= story["messages"]


def test_a_taken_port_is_named(tmp_path):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = start(tmp_path / "run", "--port", str(port))
        _, complaints = process.communicate(timeout=60)
    assert process.returncode == 2
    assert f"Port {port} is in use" in complaints
    assert "Traceback" not in complaints


@pytest.mark.parametrize("arguments", [["--readings", "0"], ["--cuts", "-1"], ["--flash-kib", "0"]])
def test_a_wrong_argument_is_named(arguments, tmp_path):
    process = start(tmp_path / "run", *arguments)
    _, complaints = process.communicate(timeout=60)
    assert process.returncode == 2
    assert arguments[0] in complaints
