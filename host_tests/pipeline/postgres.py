"""A PostgreSQL server of the tests' own: in a temporary folder, on a socket there, ended by its own process id."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

PLACES = [Path("/usr/lib/postgresql"), Path("/usr/local/pgsql"), Path("/opt/homebrew/opt")]


def programs():
    """Return the folder with initdb and postgres, None where there is none."""
    on_path = shutil.which("initdb")
    if on_path and shutil.which("postgres"):
        return Path(on_path).parent
    found = [one.parent for place in PLACES for one in place.glob("*/bin/initdb")]
    return max(found, default=None)


def as_another_user():
    """Return (command prefix, uid) to run as a user that PostgreSQL accepts: it refuses root."""
    if os.geteuid():
        return [], os.geteuid()
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            user = pwd.getpwnam(name)
            return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"], user.pw_uid
    return None, None


class Server:
    """A server; `address` is what a client connects to."""

    def __init__(self):
        self.bin = programs()
        self.prefix, uid = as_another_user()
        self.directory = Path(
            tempfile.mkdtemp(prefix="flashmqtt-postgres-")
        )  # short: a socket's path may have 107 bytes
        if os.geteuid() == 0:
            os.chown(self.directory, uid, -1)
        self.data = self.directory / "data"
        self.process = None
        self.address = f"postgresql:///postgres?host={self.directory}&user=tester"
        self._command(
            "initdb", "-D", str(self.data), "-U", "tester", "--auth=trust", "--no-sync", "-E", "UTF8", "--locale=C"
        )
        self.start()

    def _command(self, name, *arguments):
        command = [*self.prefix, str(self.bin / name), *arguments]
        ran = subprocess.run(command, cwd=self.directory, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr

    def start(self):
        """Start it, and wait until it answers."""
        import psycopg

        settings = [
            "listen_addresses=",
            f"unix_socket_directories={self.directory}",
            "shared_buffers=16MB",
            "max_connections=20",
        ]
        command = [*self.prefix, str(self.bin / "postgres"), "-D", str(self.data)]
        with (self.directory / "log.txt").open("a") as log:
            self.process = subprocess.Popen(
                [*command, *(word for one in settings for word in ("-c", one))],
                cwd=self.directory,
                stdout=log,
                stderr=log,
            )
        for _ in range(1200):
            with contextlib.suppress(psycopg.OperationalError), psycopg.connect(self.address):
                return
            assert self.process.poll() is None, (self.directory / "log.txt").read_text()
            time.sleep(0.05)
        raise AssertionError((self.directory / "log.txt").read_text())

    def stop(self, how=signal.SIGINT):
        """End it; SIGQUIT acts like a power failure: the next start recovers."""
        self.process.send_signal(how)
        self.process.wait(60)

    def close(self):
        """End it and delete it."""
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)
