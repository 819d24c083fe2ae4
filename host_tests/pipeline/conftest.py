"""One Spark session for all tests of the pipeline, and small landings made by hand."""

from __future__ import annotations

import os
import time
import uuid
from types import SimpleNamespace

import pyarrow as pa
import pytest

from host_tests.pipeline import browser
from host_tests.pipeline.planted import write_pack
from tools.landing import parquet, segments
from tools.pipeline import session, stream
from tools.pipeline.tables import source
from tools.pipeline.tables.commits import Output
from tools.pipeline.tables.delta import Delta
from tools.pipeline.tables.storage import Storage

SMALL_FRAMES = {
    "spark.default.parallelism": "2",
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "100000",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "1",
}
"""Settings for frames of a few rows: an interpreted query ends before a compiled one would start."""


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    found = session.make(
        "local[2]",
        tmp_path_factory.mktemp("spark") / "spark.log",
        SMALL_FRAMES,
    )
    yield found
    found.stop()


@pytest.fixture(scope="module")  # not longer: playwright's event loop runs meanwhile, and other modules need their own
def chromium():
    with browser.chromium() as found:
        yield found


class Local:
    """The part of a Spark session that a batch uses, in this process: most tests need no real one."""

    def range(self, first, end, step, parts):
        """Return the numbers of the buckets, as a frame that a task maps."""
        self.numbers = list(range(first, end, step))
        return self

    def createDataFrame(self, rows, schema):  # noqa: N802
        """Return rows as a frame that a task maps."""
        self.numbers = None
        columns = [list(column) for column in zip(*rows, strict=True)]
        self.batch = pa.record_batch([pa.array(column) for column in columns], [schema.split()[0]])
        return self

    def repartition(self, *_):
        """Return the frame unchanged: there is one task."""
        return self

    def mapInArrow(self, work, schema):  # noqa: N802
        """Run all tasks."""
        if self.numbers is None:
            batches = iter([self.batch])
        else:
            batches = iter([pa.record_batch([[number]], ["id"]) for number in self.numbers])
        rows = [row for batch in work(batches) for row in batch.to_pylist()]
        self.rows = [SimpleNamespace(**row) for row in rows]
        return self

    def collect(self):
        """Return the rows."""
        return self.rows


def once(spark, landing, out, buckets=segments.BUCKETS, **more):
    """Process a whole landing as one batch, without a checkpoint."""
    output, directory = Output(out), Storage(landing)
    output.prepare(buckets)
    end = {collector: max(numbers) for collector, numbers in source.latest(directory).items()}
    commit = stream.run_batch(spark, end, directory, output, buckets, uuid.uuid4().hex, 0, **more)
    Delta(output).follow()
    return commit


def taken(local, landing, out, **more):
    """Seal the landing's rows; process all as one batch; return the output."""
    if landing.rows:
        landing.seal()
    once(local, str(landing.directory), str(out), 2, **more)
    return Output(str(out))


def rows_in(output, table):
    """Return the number of rows of a table, by the commits."""
    held = sum(map(output.storage.rows, output.files("held"))) if table == "quarantine" else 0
    return held + sum(commit.rows.get(table, 0) for commit in output.commits())


@pytest.fixture
def local():
    return Local()


@pytest.fixture
def without_delta(monkeypatch):
    """Publish no Delta logs, for tests that do not read them: ten tables' logs take longer than a batch of some rows."""
    monkeypatch.setattr(stream, "Delta", lambda _: SimpleNamespace(follow=lambda: None))


class Landing:
    """A landing directory that a test fills message by message."""

    sealed_s = 0.0  # of the newest segment of all landings

    def __init__(self, directory, collector="c"):
        self.directory = directory
        self.collector = collector
        self.number = 0
        self.row = 0
        self.arrival_us = 1_790_000_000_000_000
        self.rows = []

    def raw(self, topic, payload, dup=False, arrival_us=None, qos=1, retain=False):
        self.row += 1
        self.arrival_us = arrival_us if arrival_us is not None else self.arrival_us + 1000
        self.rows.append((self.row, self.arrival_us, topic, dup, payload, qos, retain))

    def message(self, device, boot, seq, value=1.0, up=None, kind="readings", dup=False, arrival_us=None, **labels):
        head = {"bn": f"{device}/", "boot": boot, "seq": seq, "up": seq / 10 if up is None else up, **labels}
        if kind == "readings":
            head |= {"n": "load1", "v": value}
        elif "cause" not in labels:
            head |= {"n": "cause", "vs": "power"}
        self.raw(f"flashmqtt/{device}/{kind}", write_pack([head]), dup, arrival_us)

    def table(self):
        row, arrival, topic, dup, payload, qos, retain = zip(*self.rows, strict=True) if self.rows else ([],) * 7
        count = len(self.rows)
        return pa.table(
            [
                pa.array([self.collector] * count, pa.string()),
                pa.array([self.number] * count, pa.int64()),
                pa.array(row, pa.int64()),
                pa.array(arrival, pa.int64()).cast(pa.timestamp("us", tz="UTC")),
                pa.array(topic, pa.string()),
                pa.array(qos, pa.int8()),
                pa.array(dup, pa.bool_()),
                pa.array(retain, pa.bool_()),
                pa.nulls(count, pa.binary()),
                pa.array(payload, pa.binary()),
            ],
            schema=parquet.SCHEMA,
        )

    def seal(self):
        self.number += 1
        path = parquet.write_segment(self.directory, self.collector, self.number, self.table(), sync=False)
        # Spark's file source takes segments by their time in ms, and two of the same one in any order.
        Landing.sealed_s = max(time.time(), Landing.sealed_s + 0.01)
        os.utime(path, (Landing.sealed_s, Landing.sealed_s))
        self.rows = []
        return path


@pytest.fixture
def landing(tmp_path):
    directory = tmp_path / "landing"
    directory.mkdir()
    return Landing(directory)
