"""A run that follows its landing: worker failures, proofs during the run, Prometheus metrics. Without Spark."""

import json
import math
import re
import signal
import socket
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest

from host_tests.pipeline.conftest import once
from tools.command import serve_metrics
from tools.pipeline import compact, follow, metrics, run, session, verdict
from tools.pipeline.tables.commits import Output
from tools.pipeline.tables.storage import Storage


class Query:
    """A stream that runs for some seconds and calls a function in each of them."""

    def __init__(self, *seconds):
        self.seconds = list(seconds)
        self.stopped = False

    def awaitTermination(self, _):  # noqa: N802
        if not self.seconds:
            return True
        self.seconds.pop(0)()
        return False

    def stop(self):
        self.stopped = True


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def figures(out):
    return metrics.Metrics(str(out))


@pytest.fixture
def proofs(landing, out, figures):
    output = Output(str(out))
    output.prepare(2)
    return follow.Proofs(
        output, Storage(str(landing.directory)), lambda: verdict.Expectations(silent_after_s=0), 0, True, figures
    )


def taken(local, landing, out, figures):
    figures.committed_batch(once(local, str(landing.directory), str(out), 2))


def value(figures, name, out, **labels):
    return figures.registry.get_sample_value(metrics.PREFIX + name, {"out": str(out), **labels})


@pytest.mark.req("P8")
def test_proof_runs_on_sigusr1_and_on_schedule(local, landing, out, proofs, figures, capsys):
    for seq in (1, 2, 4):
        landing.message("a", 1, seq)
    landing.seal()

    def work():
        taken(local, landing, out, figures)

    def close_the_gap():
        landing.message("a", 1, 3)
        landing.seal()
        work()
        proofs.every_s = 1e-9  # from now on a proof is always due

    query = Query(work, lambda: signal.raise_signal(signal.SIGUSR1), close_the_gap)
    follow.until_ended(query, proofs)
    lines = [line.split(": ", 1)[1] for line in capsys.readouterr().out.splitlines()]
    assert lines == [f"{verdict.LOST} 1 missing.", verdict.WHOLE]
    assert not query.stopped
    assert (out / "report.html").exists()
    assert verdict.WHOLE in (out / "report.html").read_text()


def test_failed_proof_is_reported_and_the_stream_continues(local, landing, out, proofs, figures, capsys, monkeypatch):
    monkeypatch.setattr(verdict, "judge", lambda *_: 1 / 0)
    proofs.every_s = 1e-9
    follow.until_ended(Query(lambda: None, lambda: None), proofs)
    assert capsys.readouterr().err.splitlines() == ["  proof failed: ZeroDivisionError: division by zero"] * 2
    assert value(figures, "verdict", out) == -1


def test_sigterm_stops_the_stream(proofs):
    query = Query(lambda: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(KeyboardInterrupt):
        follow.until_ended(query, proofs)
    assert query.stopped


def test_signal_that_comes_after_the_jvm_has_ended_stops_the_stream(monkeypatch):
    """systemd sends SIGTERM to all processes of a service, and the JVM may be the first that ends."""
    monkeypatch.setattr(follow, "time", SimpleNamespace(sleep=lambda _: signal.raise_signal(signal.SIGTERM)))
    with pytest.raises(KeyboardInterrupt):
        follow.until_ended(Query(lambda: 1 / 0))


@pytest.mark.req("P8")
def test_metrics_report_rows_lag_quarantine_and_missing(local, landing, out, proofs, figures):
    for seq in (1, 2, 5):
        landing.message("a", 1, seq)
    landing.raw("flashmqtt/a/readings", b"{")
    landing.seal()
    proofs.measure_lag()
    assert value(figures, "waiting_segments", out) == 1
    assert value(figures, "lag_seconds", out) >= 0
    taken(local, landing, out, figures)
    proofs.measure_lag()
    assert value(figures, "waiting_segments", out) == value(figures, "lag_seconds", out) == 0
    assert value(figures, "rows_total", out, table="readings") == 3
    assert value(figures, "rows_total", out, table="quarantine") == value(figures, "quarantine_messages", out) == 1
    assert value(figures, "missing_messages", out) == 2
    assert value(figures, "batches_total", out) == 1
    assert value(figures, "last_arrival_timestamp_seconds", out) == pytest.approx(landing.arrival_us / 1e6)
    proofs.prove()
    assert value(figures, "verdict", out) == 1
    assert value(figures, "unexplained_messages", out) == 2
    assert value(figures, "proof_seconds_count", out) == 1
    assert value(figures, "last_proof_timestamp_seconds", out) > 0
    port = serve_metrics(figures.registry, 0, "127.0.0.1")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    assert f'flashmqtt_pipeline_missing_messages{{out="{out}"}} 2.0' in text


@pytest.mark.req("P8")
def test_restarted_run_reports_totals_and_no_verdict_before_a_proof(local, landing, out, proofs):
    for seq in (1, 2, 5):
        landing.message("a", 1, seq)
    landing.seal()
    once(local, str(landing.directory), str(out), 2)
    again = metrics.Metrics(str(out))
    follow.Proofs(proofs.output, proofs.landing, proofs.expectations, 0, True, again)
    assert value(again, "delivered_messages", out) == 3
    assert value(again, "missing_messages", out) == 2
    assert math.isnan(value(again, "verdict", out))


def test_busy_metrics_port_is_named_before_spark_starts(landing, out, capsys):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        arguments = ["--landing", str(landing.directory), "--out", str(out), "--metrics-port", str(port)]
        assert run.main(arguments) == 2
    assert f"can't serve metrics at 127.0.0.1:{port}: " in capsys.readouterr().err


WORKER = """Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times, most recent failure: Lost task 0.0 in stage 3.0
(TID 3) (localhost executor driver): org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/x/pyspark/worker.py", line 3500, in main
    process()
  File "/x/tools/pipeline/batch/task.py", line 12, in run
    raise {kind}({text!r})
{kind}: {text}

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:581)
Caused by: java.lang.RuntimeException: something of Spark's: about nothing
\tat java.base/java.lang.Thread.run(Thread.java:840)
"""


@pytest.mark.parametrize(
    ("kind", "text", "told"),
    [
        ("tools.landing.segments.SegmentError", "c-1.parquet: is damaged", "c-1.parquet: is damaged"),
        ("pyarrow.lib.ArrowInvalid", "not a Parquet file: x", "not a Parquet file: x"),
        (
            "OSError",
            "[Errno 28] No space left on device: '/t/x'",
            "OSError: [Errno 28] No space left on device: '/t/x'",
        ),
        ("MemoryError", "", "MemoryError"),
        ("KeyError", "'tally'", "KeyError: 'tally'"),
        ("ValueError", "the first line\nand the second", "ValueError: the first line and the second"),
    ],
)
def test_worker_failure_is_reported_with_its_own_message(kind, text, told):
    said = WORKER.format(kind=kind, text=text).replace(f"{kind}: \n", f"{kind}\n")
    assert session.cause(Exception(said)) == told


def test_failure_of_a_batch_is_reported_without_the_query_and_its_state():
    said = """[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred. Reason: Traceback (most recent call last):
  File "/x/tools/pipeline/tables/source.py", line 78, in between
    raise LandingError(
tools.pipeline.tables.source.LandingError: segment c-000000004.parquet is missing
 SQLSTATE: 39000 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: flashmqtt [id = 7784, runId = 4ca6]"""
    assert session.cause(Exception(said)) == "segment c-000000004.parquet is missing"
    said = said.replace("missing\n SQLSTATE", "missing SQLSTATE")
    assert session.cause(Exception(said)) == "segment c-000000004.parquet is missing"


def test_killed_worker_is_reported_as_killed():
    said = "Lost task: org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)\n\tat x"
    # In a batch: the error in the function that Spark calls for each batch.
    in_batch = f"Reason: Traceback (most recent call last):\n  File x, line 1\npy4j.protocol.Py4JJavaError: An error.\n: {said}"
    for text in (said, in_batch):
        assert session.cause(Exception(text)).startswith(
            "a Python worker was killed, probably because there was too little memory"
        )


def test_failure_inside_spark_keeps_its_first_line():
    assert (
        session.cause(Exception("[PATH_NOT_FOUND] Path does not exist: x.\nand more"))
        == "[PATH_NOT_FOUND] Path does not exist: x."
    )
    full = "[STREAM_FAILED] Query [id = 7784, runId = 4ca6] terminated with exception: java.io.IOException: No space"
    assert session.cause(Exception(f"{full} SQLSTATE: XXKST")) == "java.io.IOException: No space"


@pytest.mark.req("P8")
def test_commands_on_the_kubernetes_page_have_valid_options(monkeypatch):
    """The manifests are not deployed; the arguments of their commands are parsed."""
    text = (Path(follow.__file__).parent / "KUBERNETES.md").read_text()
    found = {
        json.loads(command)[-1]: json.loads(told)
        for command, told in re.findall(r"command: (\[.*\])\n\s*args: (\[.*\])", text)
    }
    assert set(found) == {"tools.pipeline.run", "tools.pipeline.compact", "tools.pipeline.verdict"}
    options = run.arguments(found["tools.pipeline.run"])
    assert (options.follow, options.prove_every, options.metrics_port) == (30, 600, 9105)
    reached = []
    monkeypatch.setattr(Output, "existing", lambda uri: reached.append(uri) or 1 / 0)
    for main, name in ((compact.main, "tools.pipeline.compact"), (verdict.main, "tools.pipeline.verdict")):
        with pytest.raises(ZeroDivisionError):
            main(found[name])
    assert reached == ["s3a://fleet/tables"] * 2
    for name in re.findall(r"flashmqtt_pipeline_(\w+)", text):
        assert name in {one.name.removeprefix(metrics.PREFIX) for one in metrics.Metrics("x").registry.collect()}
