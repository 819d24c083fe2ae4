"""A real MQTT broker on loopback: mosquitto if it is installed, else amqtt from PyPI.

All its files are in one directory, so that a killed broker can be started again with the messages that it had persisted.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from tools import children
from tools.bootstrap import find_mosquitto
from tools.command import Failure

START_DEADLINE_S = 60.0
STOP_DEADLINE_S = 5.0
SAVE_DEADLINE_S = 60.0
SAVE_RETRY_S = 0.3
_given: set[int] = set()


class BrokerFailed(Failure):
    """The broker could not be started; the text says what to do."""


def free_port() -> int:
    """Return a TCP port of loopback that was free a moment ago; each call of this process returns another one.

    Outgoing connections, which take ports from 32768 on, don't take it while its broker is down.
    """
    while True:
        port = random.randrange(10_000, 32_768)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            if port not in _given:
                _given.add(port)
                return port


def is_open(port: int) -> bool:
    """Return whether something on loopback accepts connections on this port."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _identity(file: Path) -> tuple[int, int]:
    """Return a value that changes when a file is replaced."""
    try:
        found = file.stat()
    except FileNotFoundError:
        return 0, 0
    return found.st_ino, found.st_mtime_ns


class Broker:
    """One broker process on 127.0.0.1:`port`, with its files in `directory`.

    Args:
        directory: the folder of configuration, log and persistence; made if missing.
        port: TCP port, or None for a free one.
        kind: "mosquitto", "amqtt", or None for the first that is installed.
        extra: more lines for mosquitto's configuration.
    """

    start_deadline_s = START_DEADLINE_S

    def __init__(self, directory: Path, port: int | None = None, kind: str | None = None, extra: str = ""):
        self.directory = directory
        self.port = port or free_port()
        self.ports = [self.port]  # all that it listens on
        self.kind = kind or ("mosquitto" if find_mosquitto() else "amqtt")
        self.log = directory / f"{self.kind}.log"
        self._extra = extra
        self._process: subprocess.Popen | None = None

    @property
    def pid(self) -> int:
        """The broker's process id."""
        assert self._process is not None, "the broker is not running"
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it was started and not stopped or killed."""
        return self._process is not None

    def start(self) -> Broker:
        """Start the process and wait until it accepts connections.

        Raises:
            BrokerFailed: the port is in use, the program is missing, or it ended or accepts no connection.
        """
        if is_open(self.port):
            raise BrokerFailed(
                f"Port {self.port} is in use by another program. Choose another port, or none for a free one."
            )
        self.directory.mkdir(parents=True, exist_ok=True)
        command, environment = self._command(), {**os.environ, **self._environment()}
        with self.log.open("ab") as log:
            self._process = children.popen(command, stdout=log, stderr=log, cwd=self.directory, env=environment)
        deadline = time.monotonic() + self.start_deadline_s
        while not all(map(is_open, self.ports)):
            if self._process.poll() is not None:
                raise BrokerFailed(
                    f"{self.kind} ended at once (status {self._process.returncode}). "
                    f"Its log, {self.log}:\n{children.tail(self.log)}"
                )
            if time.monotonic() > deadline:
                self.stop()
                raise BrokerFailed(
                    f"{self.kind} accepts no connection after {self.start_deadline_s:.0f} s. Its log: {self.log}"
                )
            time.sleep(0.02)
        return self

    def stop(self) -> None:
        """End the process with SIGTERM, and with SIGKILL if it does not end in time."""
        if self._process is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_DEADLINE_S)
            self.kill()

    def kill(self) -> None:
        """End the process and its children with SIGKILL, like a power cut."""
        if self._process is not None:
            children.kill(self._process)
            self._process.wait()
            self._process = None

    def save(self) -> None:
        """Make mosquitto write its database. mosquitto acknowledges messages before it writes them; a kill in between loses them.

        On return, everything that it received before this call is written. Nothing should arrive during the call.

        Raises:
            BrokerFailed: mosquitto did not write its database in time.
        """
        database = self.directory / "mosquitto.db"
        # Twice: mosquitto may handle the first signal before it has read its sockets, but not the second.
        for _ in range(2):
            before = _identity(database)
            deadline = time.monotonic() + SAVE_DEADLINE_S
            again = 0.0
            while _identity(database) == before:
                now = time.monotonic()
                if now > deadline:
                    raise BrokerFailed(
                        f"{self.kind} did not write {database}. Its log, {self.log}:\n{children.tail(self.log)}"
                    )
                if now > again:  # mosquitto loses a signal that arrives just after a write
                    os.kill(self.pid, signal.SIGUSR1)
                    again = now + SAVE_RETRY_S
                time.sleep(0.005)

    def __enter__(self) -> Broker:
        return self.start()

    def __exit__(self, *exception) -> None:
        self.stop()

    def _command(self) -> list[str]:
        """Write the configuration; return the command that runs the broker with it."""
        return self._mosquitto() if self.kind == "mosquitto" else self._amqtt()

    def _environment(self) -> dict[str, str]:
        """Return additional environment variables for the broker."""
        return {}

    def _mosquitto(self) -> list[str]:
        program = find_mosquitto()
        if program is None:
            raise BrokerFailed("mosquitto is not installed. Debian: apt install mosquitto.")
        configuration = self.directory / "mosquitto.conf"
        lines = [
            f"listener {self.port} 127.0.0.1",
            "allow_anonymous true",
            "persistence true",
            f"persistence_location {self.directory}/",
            "autosave_interval 1",
            "autosave_on_changes true",
            # No limit (default: 1,000), so that nothing queued for an absent collector is dropped.
            "max_queued_messages 0",
            "log_type error",
            "log_type warning",
            "log_type notice",
            "log_timestamp_format %Y-%m-%dT%H:%M:%S",
            "user root" if os.geteuid() == 0 else "",
            self._extra,
        ]
        configuration.write_text("\n".join(line for line in lines if line) + "\n")
        return [program, "-c", str(configuration)]

    def _amqtt(self) -> list[str]:
        configuration = self.directory / "amqtt.yaml"
        configuration.write_text(
            "listeners:\n"
            "  default:\n"
            "    type: tcp\n"
            f"    bind: 127.0.0.1:{self.port}\n"
            "plugins:\n"
            "  amqtt.plugins.authentication.AnonymousAuthPlugin:\n"
            "    allow_anonymous: true\n"
        )
        return [str(Path(sys.executable).parent / "amqtt"), "-c", str(configuration)]
