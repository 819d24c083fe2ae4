"""`python -m tools.proof.wire --captures DIR --out DIR`: the QoS flows of captured traffic, and the rules that were broken.

It reads captured traffic (capture.py), finds packets and flows in it (flows.py), and writes the tables packets, flows and
violations as Parquet; a violation names the broken clause of MQTT 3.1.1. All packets are in memory at once, about 1 KB each.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tools.command import Failure, exit_status, folder, named, number, parser_of
from tools.proof.wire import capture, flows

PACKETS = pa.schema(
    [
        *(("client", pa.string()), ("connection", pa.string())),
        ("number", pa.int64()),  # of the packet in its connection, both directions together
        *(("time_us", pa.int64()), ("direction", pa.string()), ("kind", pa.string()), ("level", pa.int8())),
        *(("packet_id", pa.int32()), ("qos", pa.int8()), ("dup", pa.bool_()), ("retain", pa.bool_())),
        ("clean", pa.bool_()),  # CONNECT; for CONNACK: no session present
        *(("topic", pa.string()), ("bytes", pa.int64())),
        ("checksum", pa.int64()),  # of topic and payload: distinguishes a copy from another message
        ("fault", pa.string()),  # why the codec refused the bytes
    ]
)
FLOWS = pa.schema(
    [
        *(("client", pa.string()), ("direction", pa.string()), ("packet_id", pa.int32()), ("qos", pa.int8())),
        *(("topic", pa.string()), ("begun_us", pa.int64()), ("ended_us", pa.int64()), ("connections", pa.int32())),
        *(("publishes", pa.int32()), ("steps", pa.string()), ("complete", pa.bool_())),
    ]
)
VIOLATIONS = pa.schema(
    [
        *(("client", pa.string()), ("connection", pa.string()), ("time_us", pa.int64())),
        *(("by", pa.string()), ("clause", pa.string()), ("text", pa.string())),  # by: "client" or "server"
    ]
)


def pieces(captures: Path, ports: list[int]) -> Iterator[capture.Piece]:
    """Yield the pieces of all capture files below a directory.

    Raises:
        Failure: there are no files, or a file is no capture.
    """
    if captures.is_file():
        raise Failure(f"--captures {captures}: this is a file: give the folder with the captures")
    files = [path for path in sorted(captures.rglob("*")) if path.is_file() and not path.name.startswith(".")]
    if not files:
        raise Failure(f"{captures}: there are no captures. Make one: tcpdump -i any -w capture.pcap port 1883")
    for path in files:
        with path.open("rb") as file:
            yield from capture.read(file, str(path), ports)


def run(captures: Path, out: Path, ports: list[int]) -> dict[str, pa.Table]:
    """Audit the captures; write and return the tables."""
    packets, audits = flows.audits(pieces(captures, ports))
    tables = {
        "packets": pa.Table.from_pylist(packets, PACKETS),
        "flows": pa.Table.from_pylist([row for one in audits.values() for row in one.flows], FLOWS),
        "violations": pa.Table.from_pylist([row for one in audits.values() for row in one.violations], VIOLATIONS),
    }
    out.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        pq.write_table(table, out / f"{name}.parquet")
    return tables


@named("wire")
def main(argv: list[str] | None = None) -> int:
    """Run the audit; print its summary; return the exit status."""
    parser = parser_of("tools.proof.wire", __doc__)
    parser.add_argument("--captures", type=Path, required=True, help="a directory of pcap files or JSON captures")
    parser.add_argument("--out", type=folder, required=True, help="where the tables go")
    parser.add_argument(
        "--port", type=number(int, 1, 65535), action="append", help="a broker's port; may be repeated (default: 1883)"
    )
    options = parser.parse_args(argv)
    tables = run(options.captures, options.out, options.port or [1883])
    rows = tables["flows"].select(["client", "direction", "qos", "complete"]).to_pylist()
    for (client, direction, qos, complete), count in sorted(Counter(tuple(row.values()) for row in rows).items()):
        state = "complete" if complete else "open or given up"
        print(f"  {client}  {direction:4}  QoS {qos}  {count:>8,} {state}")
    broken = tables["violations"].sort_by("time_us").to_pylist()
    for row in broken[:100]:
        print(f"  violation by the {row['by']} of {row['client']}: {row['text']} [{row['clause']}]")
    print(f"  {len(tables['packets']):,} packets, {len(broken)} violations; tables in {options.out}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(exit_status(main, stopped="stopped"))
