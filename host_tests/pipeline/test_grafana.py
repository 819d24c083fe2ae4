"""The Grafana dashboard queries the metrics of collector and pipeline by their real names, types and labels."""

import json
import os
import re
import subprocess
import sys
import time
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tools.bootstrap import ROOT
from tools.proof.broker import free_port

pytestmark = pytest.mark.req("P8")
DASHBOARD = json.loads((ROOT / "tools/pipeline/grafana.json").read_text())
PATIENCE_S = 300


def metrics_of(module, *arguments):
    """Return the metrics that a command exports while it runs: metric -> (type, help, names of its samples -> labels)."""
    port = free_port()
    command = [sys.executable, "-m", module, *map(str, arguments), "--metrics-port", str(port)]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'firmware'}"}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
                    text = answer.read().decode()
                break
            except OSError:
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.1)
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE_S)
        finally:
            process.kill()
    return {
        one.name: (one.type, one.documentation, {sample.name: set(sample.labels) for sample in one.samples})
        for one in text_string_to_metric_families(text)
    }


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    directory = tmp_path_factory.mktemp("told")
    (directory / "landing").mkdir()
    broker = free_port()  # no broker listens there: the collector keeps trying
    collector = metrics_of("tools.collector", "--landing", directory / "collector", "--port", broker)
    arguments = ("--landing", directory / "landing", "--out", directory / "out", "--follow", 1)
    return collector | metrics_of("tools.pipeline.run", *arguments)


def queries():
    """Return all expressions of the dashboard, with those of its variables."""
    found = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]
    return found + [one["definition"] for one in DASHBOARD["templating"]["list"] if "definition" in one]


def test_dashboard_queries_every_metric_and_only_existing_ones(told):
    samples = {name: labels for _, _, found in told.values() for name, labels in found.items()}
    own = {name: "histogram" if kind == "histogram" else kind for name, (kind, _, _) in told.items()}
    asked = set()
    for query in queries():
        bare = re.sub(r"\{[^}]*\}", "", query)
        for name, labels in re.findall(r"\b((?:flashmqtt|process)_\w+)(\{[^}]*\})?", query):
            assert name in samples, f"{name} is told by nobody"
            asked.add(name)
            assert set(re.findall(r"(\w+)=", labels)) <= samples[name], query
        for name in re.findall(r"(?:rate|increase)\((\w+)", bare):
            family = re.sub(r"_(total|bucket|sum|count)$", "", name)
            assert own[family] in {"counter", "histogram"}, f"{name} does not only grow"
        for name in re.findall(r"histogram_quantile\(.*?(\w+_bucket)", query):
            assert own[name.removesuffix("_bucket")] == "histogram"
        for names in re.findall(r"\bby \(([^)]*)\)", query):
            name = re.search(r"flashmqtt_\w+", query)[0]
            assert set(names.split(", ")) <= samples[name], query
    families = {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in asked} | asked
    ours = {name for name in told if name.startswith("flashmqtt_") and not name.endswith("_created")}
    assert ours - families == set()


def test_metric_names_types_and_help_follow_prometheus_conventions(told):
    for name, (kind, text, samples) in told.items():
        if not name.startswith("flashmqtt_") or name.endswith("_created"):
            continue
        assert kind in {"counter", "gauge", "histogram"}
        assert re.fullmatch(r"flashmqtt_(collector|pipeline)(_[a-z]+)+", name)
        assert text.endswith(".")
        assert (f"{name}_total" in samples) == (kind == "counter")
        assert not re.search(r"_(ms|millis|minutes|kb|mb|count|total)$", name)
        assert ("Unix time" in text) == name.endswith("_timestamp_seconds")
        assert all("collector" in labels or "out" in labels for labels in samples.values())


def test_panels_are_complete_and_do_not_overlap():
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    covered = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & covered
        assert max(x for x, _ in cells) < 24
        covered |= cells
        if panel["type"] != "row":
            assert panel["title"]
            assert panel["description"].endswith((".", "?"))
            assert panel["targets"] and all(target["expr"] for target in panel["targets"])
