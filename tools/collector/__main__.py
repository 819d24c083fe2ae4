"""`python -m tools.collector`: store a broker's messages durably, in segments that Spark reads.

SIGTERM or Ctrl-C ends it cleanly: it seals what it received and exits with status 0. If it is killed in another way,
nothing is lost: the next start continues from the log.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import ssl
import sys
from pathlib import Path

from flashmqtt import errors
from tools.collector.collector import LEAST_BUFFER_BYTES, Collector, CollectorError, Settings
from tools.collector.health import Health, PortInUse
from tools.command import number
from tools.landing.log import LandingError
from tools.landing.segments import SegmentError

DEFAULT = "default: %(default)s"


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    made = argparse.ArgumentParser(prog="python -m tools.collector", description=__doc__.partition("\n")[0])
    made.add_argument("--host", default="127.0.0.1", help=DEFAULT)
    made.add_argument("--port", type=number(int, 1, 65535), help="default: 1883, or 8883 with --tls")
    made.add_argument("--topic", action="append", metavar="FILTER", help="may be repeated; default #: everything")
    made.add_argument(
        "--qos", type=int, choices=(0, 1, 2), default=2, help="maximum QoS of the subscriptions; default 2"
    )
    made.add_argument("--client-id", default="collector", help="name of the session at the broker, and of the segments")
    made.add_argument("--landing", type=Path, required=True, metavar="DIR", help="folder of the segments and logs")
    made.add_argument("--level", type=int, choices=(4, 5), default=4, help="protocol: 4 is MQTT 3.1.1, 5 is MQTT 5")
    made.add_argument("--user", help="the user name for the broker")
    made.add_argument("--password-file", type=Path, help="default: the environment's FLASHMQTT_PASSWORD")
    made.add_argument("--tls", action="store_true", help="encrypt, and verify the broker's certificate and name")
    made.add_argument("--ca-file", type=Path, help="trusted certificates for --tls; default: the system's")
    made.add_argument("--keep-alive", type=number(int, 1, 65_535), default=30, metavar="S", help=DEFAULT)
    made.add_argument(
        "--session-expiry",
        type=number(int, 1, 0xFFFFFFFF),
        default=Settings.session_expiry_s,
        metavar="S",
        help="level 5 only",
    )
    made.add_argument(
        "--longest-pause",
        type=number(float, 0.01, 86_400),
        default=Settings.longest_pause_s,
        metavar="S",
        help="between two attempts to connect",
    )
    group = made.add_argument_group("segments: closed at the first of these limits")
    group.add_argument(
        "--segment-rows", type=number(int, 1, 1 << 30), default=Settings.segment_rows, metavar="N", help=DEFAULT
    )
    # A log is sealed in memory, and an Arrow column holds at most 2 GB.
    group.add_argument(
        "--segment-mb",
        type=number(float, 0.001, 1024),
        default=Settings.segment_bytes / (1 << 20),
        metavar="N",
        help=DEFAULT,
    )
    group.add_argument(
        "--segment-seconds", type=number(float, 0.01), default=Settings.segment_seconds, metavar="S", help=DEFAULT
    )
    group = made.add_argument_group("group commit: one sync for all messages that have arrived, up to these limits")
    group.add_argument(
        "--commit-count", type=number(int, 1, 1 << 20), default=Settings.commit_count, metavar="N", help=DEFAULT
    )
    group.add_argument("--commit-ms", type=number(float, 0), default=Settings.commit_ms, metavar="MS", help=DEFAULT)
    group = made.add_argument_group("limits")
    group.add_argument(
        "--packet-bytes",
        type=number(int, LEAST_BUFFER_BYTES, 268_435_460),
        default=Settings.packet_bytes,
        metavar="N",
        help="longest message that is stored whole",
    )
    group.add_argument(
        "--oversize",
        choices=("describe", "drop"),
        default="describe",
        help="a longer message: `describe` stores its topic, and length and SHA-256 of its payload; `drop` only acknowledges it, "
        "and at level 5 asks the broker not to send it",
    )
    group.add_argument(
        "--in-flight",
        type=number(int, 1, 65_535),
        default=Settings.in_flight,
        metavar="N",
        help="most QoS 2 messages in flight",
    )
    group.add_argument(
        "--reserve-mb",
        type=number(float, 0),
        default=Settings.reserve_bytes / (1 << 20),
        metavar="N",
        help="disk kept free",
    )
    made.add_argument(
        "--metrics-port", type=number(int, 0, 65535), default=0, metavar="P", help="metrics for Prometheus; 0: none"
    )
    made.add_argument("--metrics-address", default="127.0.0.1", metavar="A")
    made.add_argument(
        "--drain",
        type=number(float, 0),
        metavar="S",
        help="seal everything and end with status 0 when nothing has arrived for S seconds (10 times S while QoS 2 "
        "messages wait for their PUBREL)",
    )
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
        except OSError as error:
            raise CollectorError(f"--ca-file {arguments.ca_file}: {error}")
    password = os.environ.get("FLASHMQTT_PASSWORD")
    if arguments.password_file:
        try:
            password = arguments.password_file.read_text().rstrip("\n")
        except OSError as error:
            raise CollectorError(f"--password-file {arguments.password_file}: {error.strerror}")
    return Settings(
        host=arguments.host,
        port=arguments.port or (8883 if tls else 1883),
        client_id=arguments.client_id,
        landing=arguments.landing,
        topics=tuple((topic, arguments.qos) for topic in arguments.topic or ["#"]),
        level=arguments.level,
        user=arguments.user,
        password=password if arguments.user else None,
        tls=tls,
        keep_alive_s=arguments.keep_alive,
        session_expiry_s=arguments.session_expiry,
        longest_pause_s=arguments.longest_pause,
        segment_rows=arguments.segment_rows,
        segment_bytes=int(arguments.segment_mb * (1 << 20)),
        segment_seconds=arguments.segment_seconds,
        commit_count=arguments.commit_count,
        commit_ms=arguments.commit_ms,
        packet_bytes=arguments.packet_bytes,
        drop_oversize=arguments.oversize == "drop",
        in_flight=arguments.in_flight,
        reserve_bytes=int(arguments.reserve_mb * (1 << 20)),
        drain_s=arguments.drain,
        salvage=arguments.salvage,
    )


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
            health.serve(arguments.metrics_port, arguments.metrics_address)
        asyncio.run(collect(settings, health))
    except (CollectorError, LandingError, SegmentError, PortInUse, errors.UsageError) as error:
        print(f"collector: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
