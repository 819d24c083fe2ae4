"""`python -m tools.pipeline.dashboard --out DIR`: the report's page, served beside a run that follows; it refreshes itself.

It looks for commits, makes verdict and figures of the newest one, and keeps them. What is served is that, and the values
from series.py: three kinds of paths, none of which is looked up among files.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import re
import socket
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import SplitResult, parse_qs, urlsplit

from tools import command

from . import report, series, verdict
from .commits import Commit, Output, OutputError
from .storage import StorageError

PORT = 9106
LOOPBACK = ("127.0.0.1", "localhost", "::1")
REST = 4
"""It looks at most for one part of so many of its time."""
AGAIN_S = 60.0
"""Also without a new commit it judges so often: a board may have fallen silent."""
NOTHING = """<!doctype html><html lang="en"><meta charset="utf-8"><title>flashmqtt</title><meta http-equiv="refresh" content="5">
<meta name="color-scheme" content="light dark"><p>No batch is in the tables yet. This page looks again every five seconds."""


class PortInUse(Exception):
    """The port is taken, or not allowed."""


class Dashboard:
    """What is served: made anew when a commit has come."""

    def __init__(self, output: Output, expectations: Callable[[], verdict.Expectations], every_s: float, title: str):
        self.output, self.expectations, self.every_s, self.title = output, expectations, every_s, title
        self.store = series.Store(output)
        self.trouble = ""
        self.facts: dict[str, Any] | None = None
        self.page = NOTHING.encode()
        self.policy = "default-src 'none'; style-src 'unsafe-inline'"
        self._commit: Commit | None = None
        self._line = ""
        self._looked = 0.0

    def look(self) -> None:
        """Take in what is new. A failure is told once and tried again."""
        try:
            newest = self.output.latest()
            due = time.monotonic() - self._looked > AGAIN_S
            if newest and (
                due or newest != self._commit
            ):  # also another under the same number: compacted, or rows deleted
                found = verdict.judge(self.output, self.expectations())
                if newest != self._commit or found.line != self._line:
                    self._make(found)
                    self._commit, self._line = newest, found.line
                self._looked = time.monotonic()
            self.trouble = ""
        except Exception as error:  # must not end the dashboard
            told = f"{type(error).__name__}: {error}"
            if told != self.trouble:
                print(f"dashboard: {told}", file=sys.stderr, flush=True)
            self.trouble = told

    def _make(self, found: verdict.Verdict) -> None:
        facts = report.collect(self.output, found, self.store)
        facts |= {"live": self.every_s, "version": f"{facts['version']}.{time.time_ns() // 1_000_000}"}
        facts["chunks"] = max(facts["chunks"], 2)  # not 1: the values are served, not in the page
        self.page = report.page(facts, self.title).encode()
        script = self.page[self.page.rindex(b"<script>") + 8 : self.page.rindex(b"</script>")]
        digest = base64.b64encode(hashlib.sha256(script).digest()).decode()
        self.policy = (
            f"default-src 'none'; script-src 'self' 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:;"
            " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        self.facts = report.compact(facts)

    def answer(self, target: str) -> tuple[int, str, bytes]:
        """Return (status, content type, content) for a path."""
        parts = _split(target)
        if parts.path == "/":
            return 200, "text/html; charset=utf-8", self.page
        if parts.path == "/facts.json":
            if self.trouble or self.facts is None:
                return 503, "text/plain; charset=utf-8", (self.trouble or "no batch yet").encode()
            if parse_qs(parts.query).get("v") == [self.facts["version"]]:
                return 204, "", b""
            return 200, "application/json", json.dumps(self.facts, default=str).encode()
        match = re.fullmatch(rf"/{report.FOLDER}/([0-9]{{1,5}})/([0-9]{{5}})\.js", parts.path, re.ASCII)
        if match and self.facts is not None:
            of, number = int(match[1]), int(match[2])
            if 0 < of <= series.PARTS and not of & (of - 1) and number < of:
                text = report.chunk(self.store, number, of, report.points_each(self.facts))
                return 200, "text/javascript; charset=utf-8", text.encode()
        return 404, "text/plain; charset=utf-8", b"there is nothing here; the page is at /\n"


def _split(address: str) -> SplitResult:
    """Return the parts of what a client calls an address; of one that is none, nothing."""
    try:
        return urlsplit(address)
    except ValueError:
        return urlsplit("")


class Server(ThreadingHTTPServer):
    """Serves a dashboard."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: str, port: int, dashboard: Dashboard):
        self.dashboard = dashboard
        if ":" in address:
            self.address_family = socket.AF_INET6
        try:
            super().__init__((address, port), Handler)
        except OSError as error:
            raise PortInUse(f"can't serve at {address}:{port}: {error.strerror}; name another --port") from error


class Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD."""

    server: Server
    server_version = "flashmqtt"
    sys_version = ""
    timeout = 60

    def do_GET(self) -> None:
        """Answer."""
        # A page of another site whose name was made to lead here must not read the values.
        named = _split("//" + self.headers.get("Host", "")).hostname
        if self.server.server_address[0] in LOOPBACK and named not in LOOPBACK:
            status, kind, content = 403, "text/plain; charset=utf-8", b"ask for it by the name localhost\n"
        else:
            status, kind, content = self.server.dashboard.answer(self.path)
        self.send_response(status)
        if kind:
            self.send_header("Content-Type", kind)
        if status != 204:
            self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Content-Security-Policy", self.server.dashboard.policy)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *_: Any) -> None:
        """Say nothing of requests."""

    def handle(self) -> None:
        """Serve a connection; one that the other side cuts is no matter."""
        try:
            super().handle()
        except (ConnectionError, TimeoutError):
            self.close_connection = True


def main(argv: list[str] | None = None) -> int:
    """Serve until Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m tools.pipeline.dashboard", description=__doc__.split("\n")[0])
    parser.add_argument("--out", nargs="?", help="the output directory of the pipeline")
    parser.add_argument("--port", type=command.number(int, 0, 65_535), default=PORT, metavar="P")
    parser.add_argument(
        "--address", default="127.0.0.1", metavar="A", help="where to listen; default: this machine alone"
    )
    parser.add_argument(
        "--every",
        type=command.number(float, 0.1),
        default=5.0,
        metavar="SECONDS",
        help="how often it looks for commits",
    )
    parser.add_argument("--title", default="flashmqtt: values and delivery")
    verdict.add_options(parser)
    options = parser.parse_args(argv)
    if not options.out:
        print("dashboard: --out is missing: say which tables, `make dashboard OUT=tables`", file=sys.stderr)
        return 2
    try:
        verdict.expectations(options)
        output = Output(options.out)
        output.check_format()
        shown = Dashboard(output, lambda: verdict.expectations(options, now=True), options.every, options.title)
        server = Server(options.address, options.port, shown)
    except (OutputError, StorageError, PortInUse, OSError, ValueError) as error:
        print(f"dashboard: {error}", file=sys.stderr)
        return 2
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
    thread.start()
    host = f"[{options.address}]" if ":" in options.address else options.address
    try:
        shown.look()
        print(f"  http://{host}:{server.server_address[1]}/ shows {options.out}; Ctrl-C ends it", flush=True)
        while True:
            begun = time.monotonic()
            shown.look()
            time.sleep(max(options.every, REST * (time.monotonic() - begun)))
    except KeyboardInterrupt:
        print("\n  stopped", flush=True)
    finally:
        server.shutdown()
        server.server_close()
        shown.store.close()
    return 0


if __name__ == "__main__":
    sys.exit(command.ended(main, stopped="stopped"))
