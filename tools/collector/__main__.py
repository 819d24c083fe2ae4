"""`python -m tools.collector`: store a broker's messages durably, in segments that Spark reads.

SIGTERM or Ctrl-C ends it cleanly: it seals what it received and exits with status 0. If it is killed in another way,
nothing is lost: the next start continues from the log.
"""

import argparse
import asyncio
import os
import signal
import ssl
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from flashmqtt import errors
from tools.collector.collector import LEAST_BUFFER_BYTES, Collector, CollectorError, Settings
from tools.collector.health import Health
from tools.command import Failure, explained, filled, number, parser_of, serve_metrics

MB = 1 << 20


def parser() -> argparse.ArgumentParser:
    """Return the command line. The options of numbers have the names of `Settings`."""
    made = parser_of("tools.collector", __doc__)
    made.add_argument("--host", type=filled, default="127.0.0.1", help="the broker; default: %(default)s")
    made.add_argument("--port", type=number(int, 1, 65535), help="the broker's port; default: 1883, or 8883 with --tls")
    made.add_argument(
        "--topic",
        action="append",
        metavar="FILTER",
        help="a topic filter to subscribe to; may be repeated; default: #, everything",
    )
    made.add_argument(
        "--qos", type=int, choices=(0, 1, 2), default=2, help="maximum QoS of the subscriptions; default: 2"
    )
    text = "name of the session at the broker, and of the segments; each collector needs its own; default: %(default)s"
    made.add_argument("--client-id", default="collector", help=text)
    made.add_argument("--landing", type=filled, required=True, metavar="DIR", help="folder of the segments and logs")
    made.add_argument("--level", type=int, choices=(4, 5), default=4, help="4: MQTT 3.1.1, 5: MQTT 5; default: 4")
    made.add_argument("--user", help="the user name for the broker")
    made.add_argument(
        "--password-file",
        type=Path,
        help="file with the password for --user; default: FLASHMQTT_PASSWORD in the environment",
    )
    made.add_argument("--tls", action="store_true", help="encrypt, and verify the broker's certificate and name")
    made.add_argument("--ca-file", type=Path, help="trusted certificates for --tls; default: the system's")

    def option(flag: str, name: str, kind: Callable[[str], float], text: str, unit: int = 1) -> None:
        default = getattr(Settings, name)
        shown = None if default is None else default // unit
        more = "" if default is None else f"; default: {shown}"
        made.add_argument(flag, dest=name, type=kind, default=shown, metavar="N", help=text + more)

    option("--keep-alive", "keep_alive_s", number(int, 1, 65_535), "MQTT's keep alive, in seconds")
    text = "how long the broker keeps the session of a collector that is away, in seconds; level 5 only"
    option("--session-expiry", "session_expiry_s", number(int, 1, 0xFFFFFFFF), text)
    option(
        "--longest-pause",
        "longest_pause_s",
        number(float, 0.01, 86_400),
        "longest delay between two attempts to connect, in seconds",
    )
    option("--segment-rows", "segment_rows", number(int, 1, 1 << 30), "close a segment at this many messages")
    # A log is sealed in memory, and an Arrow column holds at most 2 GB.
    option("--segment-mb", "segment_bytes", number(float, 0.001, 1024), "close a segment at this many MB", MB)
    option("--segment-seconds", "segment_seconds", number(float, 0.01), "close a segment at this age, in seconds")
    text = "the longest message that is stored whole, in bytes"
    option("--packet-bytes", "packet_bytes", number(int, LEAST_BUFFER_BYTES, 268_435_460), text)
    option("--in-flight", "in_flight", number(int, 1, 65_535), "the most QoS 2 messages in flight")
    option("--reserve-mb", "reserve_bytes", number(float, 0), "disk space to keep free, in MB", MB)
    text = "seal everything and end when no message has arrived for N seconds (10 N while QoS 2 messages wait for their PUBREL)"
    option("--drain", "drain_s", number(float, 0), text + "; default: never")
    made.add_argument(
        "--oversize",
        choices=("describe", "drop"),
        default="describe",
        help="what to do with a message above --packet-bytes. describe: store its topic, and its payload's length and SHA-256; "
        "drop: acknowledge it only, and at level 5 ask the broker not to send such messages; default: describe",
    )
    made.add_argument(
        "--metrics-port",
        type=number(int, 0, 65535),
        default=0,
        metavar="P",
        help="metrics for Prometheus; default: none",
    )
    text = "the address for --metrics-port; default: %(default)s"
    made.add_argument("--metrics-address", type=filled, default="127.0.0.1", metavar="A", help=text)
    made.add_argument(
        "--salvage", action="store_true", help="seal the readable part of a damaged log, and keep the log"
    )
    made.add_argument("--quiet", action="store_true", help="print errors only")
    return made


def settings_of(arguments: argparse.Namespace) -> Settings:
    """Return the settings of a command line.

    Raises:
        CollectorError: a file can't be read.
    """
    tls = None
    if arguments.tls:
        try:
            tls = ssl.create_default_context(cafile=arguments.ca_file and str(arguments.ca_file))
            tls.verify_flags &= ~ssl.VERIFY_X509_STRICT  # Python 3.13's default; `openssl req -x509` makes no strict CA
        except OSError as error:
            text = (
                f"{arguments.ca_file}: {error}"
                if isinstance(error, ssl.SSLError)
                else explained(error, arguments.ca_file)
            )
            raise CollectorError(f"--ca-file {text}")
    password = os.environ.get("FLASHMQTT_PASSWORD")
    if arguments.password_file:
        try:
            password = arguments.password_file.read_text().rstrip("\n")
        except OSError as error:
            raise CollectorError(f"--password-file {explained(error)}")
        except UnicodeDecodeError as error:
            raise CollectorError(f"--password-file {arguments.password_file}: {error}")
        if not arguments.user:
            raise CollectorError("--password-file needs --user: without a user name, the broker gets no password")
    names = {field.name for field in fields(Settings)}
    chosen: dict[str, Any] = {name: value for name, value in vars(arguments).items() if name in names}
    chosen |= {name: int(chosen[name] * MB) for name in ("segment_bytes", "reserve_bytes")}
    chosen |= {"port": arguments.port or (8883 if tls else 1883), "tls": tls, "landing": Path(arguments.landing)}
    chosen["topics"] = tuple((topic, arguments.qos) for topic in arguments.topic or ["#"])
    chosen["password"] = password if arguments.user else None
    chosen["drop_oversize"] = arguments.oversize == "drop"
    return Settings(**chosen)


async def collect(settings: Settings, health: Health) -> None:
    """Run one collector until SIGTERM or Ctrl-C."""
    collector = Collector(settings, health)
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, collector.stop)
    await collector.run()


def main(argv: list[str] | None = None) -> int:
    """Run; return the exit status."""
    arguments = parser().parse_args(argv)
    try:
        settings = settings_of(arguments)
        health = Health(settings.client_id, arguments.quiet)
        if arguments.metrics_port:
            serve_metrics(health.registry, arguments.metrics_port, arguments.metrics_address)
        asyncio.run(collect(settings, health))
    except (Failure, errors.UsageError) as error:
        print(f"collector: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
