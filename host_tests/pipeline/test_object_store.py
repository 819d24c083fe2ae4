"""Landing and tables on an object store: an S3 server on this machine, with unmodified pyarrow and deltalake.

Not tested: Spark's part (checkpoint and discovery of segments), which needs Hadoop's S3A client; its jars are not on PyPI.
"""

import importlib.util
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from host_tests.pipeline import engines
from host_tests.pipeline.conftest import rows_in
from tools.children import bound_to_this_process
from tools.landing import parquet
from tools.pipeline import compact, forget, report, stream, verdict
from tools.pipeline.tables.commits import Commit, Output, OutputError
from tools.pipeline.tables.delta import Delta
from tools.pipeline.tables.storage import Storage

LACKING = [name for name in ("moto", "flask", "flask_cors") if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(
    bool(LACKING), reason=f"NOT TRIED: object storage, for want of {LACKING}: pip install -r requirements-s3.txt"
)
DAY_US = 86_400_000_000
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "a",
    "AWS_SECRET_ACCESS_KEY": "b",
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_ALLOW_HTTP": "true",
}
# As `python -m moto.server`, for S3 only and with connections that stay: it takes a request in a third of the time.
SERVER = """
from moto.moto_server.werkzeug_app import DomainDispatcherApplication
from moto.server import main
from werkzeug.serving import WSGIRequestHandler

DomainDispatcherApplication.get_backend_for_host = lambda *_: "s3"
WSGIRequestHandler.protocol_version = "HTTP/1.1"
WSGIRequestHandler.disable_nagle_algorithm = True
main()
"""
WITH_KEYS = {"Authorization": "AWS4-HMAC-SHA256 Credential=a/20260101/us-east-1/s3/aws4_request"}


@pytest.fixture(scope="module")
def server():
    """An S3 server with a bucket `fleet`."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, "-H", "127.0.0.1", "-p", str(port)],
        env={**os.environ, "MOTO_S3_CUSTOM_ENDPOINTS": ""},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=bound_to_this_process(),  # noqa: PLW1509
    )
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            assert process.poll() is None
            try:
                urllib.request.urlopen(
                    urllib.request.Request(f"{address}/fleet", method="PUT", headers=WITH_KEYS)
                ).close()
                break
            except urllib.error.URLError:
                time.sleep(0.1)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in {**ENVIRONMENT, "AWS_ENDPOINT_URL": address}.items():
                patch.setenv(name, value)
            yield address
    finally:
        process.kill()
        process.wait()


class Fleet:
    """A landing and an output on the store, as batches fill them."""

    def __init__(self, local, landing):
        here = f"s3a://fleet/{uuid.uuid4().hex}"
        self.local, self.landing = local, landing
        self.raw, self.output = Storage(f"{here}/landing"), Output(f"{here}/tables")
        self.output.prepare(2)
        self.delta = Delta(self.output)
        self.delta.follow()
        self.seq = 0

    def commit(self):
        self.seq += 1
        for device in ("greenhouse-1", "greenhouse-10", "cellar"):
            self.landing.message(device, 1, self.seq, value=self.seq, kind="boot" if self.seq == 1 else "readings")
        path = self.landing.seal()
        with self.raw.create(path.name) as stream_:
            stream_.write(path.read_bytes())
        return stream.run_batch(self.local, {"c": self.seq}, self.raw, self.output, 2, "one", self.seq)

    def take(self, count=1):
        for _ in range(count):
            self.delta.committed(self.commit())
            self.landing.arrival_us += DAY_US


@pytest.fixture
def fleet(server, local, landing):
    return Fleet(local, landing)


def same(output):
    for table in ("readings", "audit"):
        expected = engines.truth(output, table)
        for name in ("pandas", "Polars", "DuckDB over Arrow"):
            assert engines.ENGINES[name](output, table) == expected, (table, name)


@pytest.mark.req("P3", "P6")
def test_batches_verdict_and_report_work_on_the_store(fleet):
    fleet.take(2)
    assert [commit.batch for commit in fleet.output.commits()] == [1, 2]
    assert verdict.judge(fleet.output).line == verdict.WHOLE
    assert report.write(fleet.output, verdict.judge(fleet.output)).endswith("report.html")
    assert rows_in(fleet.output, "readings") == 3
    with pytest.raises(OutputError, match=r"batch 2 .* by another run"):
        fleet.output.write(Commit(2, "another", 0))


@pytest.mark.req("P3", "P7")
def test_engines_read_the_store_after_a_kill_before_publication(fleet):
    fleet.take(2)
    same(fleet.output)
    fleet.commit()  # and killed
    behind = engines.by_pandas(fleet.output, "readings")
    assert set(behind) < set(engines.truth(fleet.output, "readings"))
    Delta(Output(fleet.output.storage.uri)).follow()
    same(fleet.output)
    assert DeltaTable(engines.directory(fleet.output, "readings")).transaction_version("flashmqtt.batch") == 3


@pytest.mark.req("P3", "P7")
def test_compaction_and_retention_work_on_the_store(fleet):
    fleet.take(2)
    fleet.landing.arrival_us -= DAY_US
    fleet.take(2)
    uri = fleet.output.storage.uri
    before = engines.truth(fleet.output, "readings")
    compact.compact(fleet.local, uri)
    assert engines.truth(fleet.output, "readings") == before
    same(fleet.output)
    last = max(map(compact.day_of, fleet.output.files("readings")))
    compact.compact(None, uri, keep_from=last)
    assert 0 < len(engines.truth(fleet.output, "readings")) < len(before)
    same(fleet.output)
    assert compact.orphans(fleet.output) == []
    fleet.take(1)
    same(fleet.output)


@pytest.mark.req("P4", "P7")
def test_device_is_forgotten_on_the_store(fleet):
    fleet.take(2)
    done = forget.forget(fleet.raw.uri, fleet.output.storage.uri, ["greenhouse-1"])
    assert done.left == []
    assert {row[0] for row in engines.truth(fleet.output, "audit")} == {"greenhouse-10", "cellar"}
    same(fleet.output)
    with fleet.raw.fs.open_input_file(fleet.raw.path("c-000000001.parquet")) as file:
        topics = pq.read_table(file)["topic"].to_pylist()
    assert sorted(topics) == ["flashmqtt/cellar/boot", "flashmqtt/greenhouse-10/boot"]
    for storage in (fleet.raw, fleet.output.storage):
        for name in storage.list("", recursive=True):
            assert b"greenhouse-1" not in storage.read(name).replace(b"greenhouse-10", b""), name


@pytest.mark.req("P3")
@pytest.mark.parametrize("there", [False, True])
def test_failed_write_neither_creates_nor_replaces_a_file(fleet, there):
    storage = fleet.output.storage
    if there:
        storage.write_json("one.json", 1)
    with pytest.raises(ZeroDivisionError), storage.create("one.json") as file:
        file.write(b"half of it")
        raise ZeroDivisionError
    assert storage.exists("one.json") == there
    assert not there or storage.read_json("one.json") == 1


def test_large_segment_is_uploaded_in_parts(fleet):
    rows = 200_000
    columns = {"collector": ["c"] * rows, "segment": [1] * rows, "row": list(range(rows)), "arrival": list(range(rows))}
    columns |= {"topic": ["flashmqtt/a/x"] * rows, "qos": [1] * rows, "dup": [False] * rows, "retain": [False] * rows}
    columns |= {"properties": [None] * rows, "payload": [os.urandom(60) for _ in range(rows)]}
    arrays = [pa.array(columns[field.name]).cast(field.type) for field in parquet.SCHEMA]
    with fleet.raw.create("c-000000009.parquet") as file:  # 12 MB: more than a part
        parquet.write_rows(file, pa.table(arrays, schema=parquet.SCHEMA))
    with fleet.raw.fs.open_input_file(fleet.raw.path("c-000000009.parquet")) as file:
        assert pq.read_metadata(file).num_rows == rows
    assert fleet.raw.list() == ["c-000000009.parquet"]
