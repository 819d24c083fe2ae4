"""`python -m tools.proof.wire --captures DIR --out DIR`: the QoS flows as they happened on the wire, and who broke a rule.

A Spark job over captured traffic (capture.py), with the boards' own codec (flows.py): files to TCP segments (a task per
file), segments to packets (grouped by connection, so that a connection may go on in the next file), packets to flows
(grouped by client, so that a flow may go on in the next connection). Tables: packets, flows, violations, the last with
the clause of MQTT 3.1.1 that was broken.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tools.command import ended
from tools.pipeline import schemas
from tools.pipeline.storage import Storage, StorageError
from tools.proof.wire import capture
from tools.proof.wire.flows import audit, packets_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PIECES = pa.schema(
    [
        pa.field("connection", pa.string(), nullable=False),
        pa.field("direction", pa.string(), nullable=False),
        pa.field("time_us", pa.int64(), nullable=False),
        pa.field("position", pa.int64(), nullable=False),
        pa.field("syn", pa.bool_(), nullable=False),
        pa.field("content", pa.binary(), nullable=False),
    ]
)
PACKETS = pa.schema(
    [
        pa.field("client", pa.string(), nullable=False),
        pa.field("connection", pa.string(), nullable=False),
        pa.field("number", pa.int64(), nullable=False),  # of the packet in its connection, both directions together
        pa.field("time_us", pa.int64(), nullable=False),
        pa.field("direction", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("level", pa.int8(), nullable=False),
        pa.field("packet_id", pa.int32()),
        pa.field("qos", pa.int8()),
        pa.field("dup", pa.bool_()),
        pa.field("retain", pa.bool_()),
        pa.field("clean", pa.bool_()),  # CONNECT; for CONNACK: no session present
        pa.field("topic", pa.string()),
        pa.field("bytes", pa.int64()),
        pa.field("checksum", pa.int64()),  # of topic and payload: tells a copy from another message
        pa.field("fault", pa.string()),  # what the codec refused
    ]
)
FLOWS = pa.schema(
    [
        pa.field("client", pa.string(), nullable=False),
        pa.field("direction", pa.string(), nullable=False),
        pa.field("packet_id", pa.int32(), nullable=False),
        pa.field("qos", pa.int8(), nullable=False),
        pa.field("topic", pa.string()),
        pa.field("begun_us", pa.int64(), nullable=False),
        pa.field("ended_us", pa.int64()),
        pa.field("connections", pa.int32(), nullable=False),
        pa.field("publishes", pa.int32(), nullable=False),
        pa.field("story", pa.string(), nullable=False),
        pa.field("complete", pa.bool_(), nullable=False),
    ]
)
VIOLATIONS = pa.schema(
    [
        pa.field("client", pa.string(), nullable=False),
        pa.field("connection", pa.string(), nullable=False),
        pa.field("time_us", pa.int64(), nullable=False),
        pa.field("by", pa.string(), nullable=False),  # "client" or "server"
        pa.field("clause", pa.string(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
    ]
)


def table(schema: pa.Schema, rows: Iterable[dict[str, Any]]) -> pa.Table:
    """Return rows as a table."""
    return pa.Table.from_pylist(list(rows), schema=schema)


def pieces(spark: SparkSession, captures: Storage, ports: list[int]) -> DataFrame:
    """Return the TCP segments of all capture files: a task per file."""
    names = [name for name in captures.list(recursive=True) if not name.rsplit("/", 1)[-1].startswith(".")]
    files = spark.createDataFrame([(name,) for name in names], "name string").repartition(max(1, len(names)), "name")

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for name in batch["name"].to_pylist():
                with captures.fs.open_input_stream(captures.path(name)) as file:
                    rows: list[capture.Piece] = []
                    for piece in capture.read(file, name, ports):
                        rows.append(piece)
                        if len(rows) == 20_000:
                            yield _batch(rows)
                            rows = []
                    yield _batch(rows)

    return files.mapInArrow(read, schemas.spark_schema(PIECES))


def _batch(rows: list[capture.Piece]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) or [()] * len(PIECES)
    return pa.record_batch([pa.array(one, kind.type) for one, kind in zip(columns, PIECES, strict=True)], schema=PIECES)


def packets(found: DataFrame) -> DataFrame:
    """Return the packets in TCP segments."""

    def decode(group: pa.Table) -> pa.Table:
        return table(PACKETS, packets_of([capture.Piece(**row) for row in group.to_pylist()]))

    return found.groupBy("connection").applyInArrow(decode, schemas.spark_schema(PACKETS))


def flows(found: DataFrame) -> DataFrame:
    """Return the QoS 1 and 2 flows in packets."""
    return found.groupBy("client").applyInArrow(
        lambda group: table(FLOWS, audit(group.to_pylist()).flows), schemas.spark_schema(FLOWS)
    )


def violations(found: DataFrame) -> DataFrame:
    """Return the broken rules in packets."""
    return found.groupBy("client").applyInArrow(
        lambda group: table(VIOLATIONS, audit(group.to_pylist()).violations), schemas.spark_schema(VIOLATIONS)
    )


def run(spark: SparkSession, captures: str, out: str, ports: list[int]) -> dict[str, DataFrame]:
    """Do the job; return the tables as they were written."""
    target = Storage(out)
    packets(pieces(spark, Storage(captures), ports)).write.mode("overwrite").parquet(target.address("packets"))
    read = spark.read.schema(schemas.spark_schema(PACKETS)).parquet(target.address("packets"))
    tables = {"packets": read}
    for name, (make, schema) in {"flows": (flows, FLOWS), "violations": (violations, VIOLATIONS)}.items():
        make(read).write.mode("overwrite").parquet(target.address(name))
        tables[name] = spark.read.schema(schemas.spark_schema(schema)).parquet(target.address(name))
    return tables


def main(argv: list[str] | None = None) -> int:
    """Run the audit; print its summary."""
    from pyspark.errors import PySparkException

    from tools.pipeline import java, session
    from tools.pipeline.run import cause

    parser = argparse.ArgumentParser(prog="python -m tools.proof.wire", description=__doc__.split("\n")[0])
    parser.add_argument("--captures", required=True, help="a directory of pcap files or JSON captures")
    parser.add_argument("--out", required=True, help="where the tables go")
    parser.add_argument("--port", type=int, action="append", help="a broker's port; may be repeated (default: 1883)")
    parser.add_argument("--master", help="Spark master (default: spark-submit's, or this machine)")
    options = parser.parse_args(argv)
    try:
        if not Storage(options.captures).list(recursive=True):
            raise StorageError(
                f"{options.captures}: there are no captures. Make one: tcpdump -i any -w capture.pcap port 1883"
            )
        spark = session.make(options.master, session.log_file(Storage(options.out)))
    except (StorageError, java.JavaNotFound) as error:
        print(f"wire audit: {error}", file=sys.stderr)
        return 2
    try:
        tables = run(spark, options.captures, options.out, options.port or [1883])
        found = tables["flows"].groupBy("client", "direction", "qos", "complete").count()
        for row in found.orderBy("client", "direction", "qos", "complete").collect():
            state = "complete" if row.complete else "open or given up"
            print(f"  {row.client}  {row.direction:4}  QoS {row.qos}  {row['count']:>8,} {state}")
        broken = tables["violations"].orderBy("time_us").limit(100).collect()
        for row in broken:
            print(f"  violation by the {row.by} of {row.client}: {row.text} [{row.clause}]")
        print(f"  {tables['packets'].count():,} packets, {len(broken)} violations; tables in {options.out}")
    except PySparkException as error:
        print(f"wire audit: {cause(error)}", file=sys.stderr)
        return 2
    finally:
        spark.stop()
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(ended(main, stopped="stopped"))
