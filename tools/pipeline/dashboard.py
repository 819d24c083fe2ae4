"""`python -m tools.pipeline.dashboard --out DIR`: serve the report's page during a run; the page refreshes itself.

It looks for commits, computes verdict and figures of the newest one, and keeps them in memory. It serves these, and the
values from series.py: three kinds of paths. No path is looked up in the file system.
"""

import base64
import hashlib
import re
import socket
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import SplitResult, parse_qs, urlsplit

import orjson

from tools import command

from . import options, report, series, verdict
from .tables.commits import Commit, Output

PORT = 9106
LOOPBACK = ("127.0.0.1", "localhost", "::1")
PAUSE_RATIO = 4
"""It pauses at least this many times as long as a refresh took."""
JUDGE_EVERY_S = 60.0
"""Without a new commit the verdict is computed this often: a board may be silent by then."""
EMPTY_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>flashmqtt</title>
<meta http-equiv="refresh" content="5">
<meta name="color-scheme" content="light dark"><p>No batch is in the tables yet. This page reloads every five seconds."""


class Dashboard:
    """What is served. It is updated after each new commit."""

    def __init__(self, output: Output, expectations: Callable[[], verdict.Expectations], every_s: float):
        self.output, self.expectations, self.every_s = output, expectations, every_s
        self.store = series.Store(output)
        self.problem = ""
        self.facts: dict[str, Any] | None = None
        self.page = EMPTY_PAGE.encode()
        self.policy = "default-src 'none'; style-src 'unsafe-inline'"
        self._commit: Commit | None = None
        self._line = ""
        self._judged_s = 0.0

    def refresh(self) -> None:
        """Update page and figures if there is a new commit. An error is printed once; the next call tries again."""
        try:
            newest = self.output.latest()
            due = time.monotonic() - self._judged_s > JUDGE_EVERY_S
            if newest and (
                due or newest != self._commit
            ):  # the same number with other contents: a compaction, or deleted rows
                found = verdict.judge(self.output, self.expectations())
                if newest != self._commit or found.line != self._line:
                    self._make(found)
                    self._commit, self._line = newest, found.line
                self._judged_s = time.monotonic()
            self.problem = ""
        except Exception as error:  # must not end the dashboard
            text = f"{type(error).__name__}: {error}"
            if text != self.problem:
                print(f"dashboard: {text}", file=sys.stderr, flush=True)
            self.problem = text

    def _make(self, found: verdict.Verdict) -> None:
        facts = report.collect(self.output, found, self.store)
        facts |= {"live": self.every_s, "version": f"{facts['version']}.{time.time_ns() // 1_000_000}"}
        facts["chunks"] = max(facts["chunks"], 2)  # not 1: the values are served, not in the page
        self.page = report.page(facts).encode()
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
            if self.problem or self.facts is None:
                return 503, "text/plain; charset=utf-8", (self.problem or "no batch yet").encode()
            if parse_qs(parts.query).get("v") == [self.facts["version"]]:
                return 204, "", b""
            return 200, "application/json", orjson.dumps(self.facts, default=str)
        match = re.fullmatch(rf"/{report.FOLDER}/([0-9]{{1,5}})/([0-9]{{5}})\.js", parts.path, re.ASCII)
        if match and self.facts is not None:
            of, number = int(match[1]), int(match[2])
            if 0 < of <= series.PARTS and not of & (of - 1) and number < of:
                text = report.chunk(self.store, number, of, report.points_each(self.facts))
                return 200, "text/javascript; charset=utf-8", text
        return 404, "text/plain; charset=utf-8", b"not found; the page is at /\n"


def _split(address: str) -> SplitResult:
    """Return the parts of a URL that a client sent; empty parts if it is invalid."""
    try:
        return urlsplit(address)
    except ValueError:
        return urlsplit("")


class Server(ThreadingHTTPServer):
    """An HTTP server for a dashboard."""

    def __init__(self, address: str, port: int, dashboard: Dashboard):
        self.dashboard = dashboard
        if ":" in address:
            self.address_family = socket.AF_INET6
        try:
            super().__init__((address, port), Handler)
        except (OSError, UnicodeError) as error:
            raise command.not_served(error, "", address, port, "PORT= (--port), or --address") from error


class Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD."""

    server: Server
    server_version = "flashmqtt"
    sys_version = ""
    timeout = 60

    def do_GET(self) -> None:
        """Answer."""
        # Against DNS rebinding: a page of another site, whose name resolves to this machine, must not read the values.
        named = _split("//" + self.headers.get("Host", "")).hostname
        if self.server.server_address[0] in LOOPBACK and named not in LOOPBACK:
            status, kind, content = 403, "text/plain; charset=utf-8", b"use the name localhost in the address\n"
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
        """Print nothing for a request."""

    def handle(self) -> None:
        """Serve a connection. It is no error if the client closes it."""
        try:
            super().handle()
        except (ConnectionError, TimeoutError):
            self.close_connection = True


@command.named("dashboard")
def main(argv: list[str] | None = None) -> int:
    """Serve until Ctrl-C."""
    parser = options.parser("dashboard", __doc__)
    port = command.number(int, 0, 65_535)
    parser.add_argument("--port", type=port, default=PORT, help="the port to listen on (default: %(default)s)")
    parser.add_argument(
        "--address", type=command.filled, default="127.0.0.1", help="to listen on (default: only this machine)"
    )
    options.seconds(parser, "--every", 0.1, "the time between two searches for commits", 5.0)
    verdict.add_options(parser)
    given = parser.parse_args(argv)
    verdict.expectations(given)
    output = Output.existing(given.out)
    shown = Dashboard(output, lambda: verdict.expectations(given, now=True), given.every)
    server = Server(given.address, given.port, shown)
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
    thread.start()
    host = f"[{given.address}]" if ":" in given.address else given.address
    try:
        shown.refresh()
        print(f"  http://{host}:{server.server_address[1]}/ shows {given.out}; Ctrl-C ends it", flush=True)
        while True:
            begun = time.monotonic()
            shown.refresh()
            time.sleep(max(given.every, PAUSE_RATIO * (time.monotonic() - begun)))
    except KeyboardInterrupt:
        print("\n  stopped", flush=True)
    finally:
        server.shutdown()
        server.server_close()
    return 0


if __name__ == "__main__":
    sys.exit(command.exit_status(main, stopped="stopped"))
