"""The dashboard serves the report's page from growing tables, and no other file."""

import contextlib
import errno
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from host_tests.pipeline import browser
from host_tests.pipeline.conftest import Landing, Local, once
from tools.bootstrap import ROOT
from tools.command import Failure
from tools.pipeline import compact, dashboard, report, verdict
from tools.pipeline.tables.commits import Output

pytestmark = [pytest.mark.req("P9"), pytest.mark.usefixtures("without_delta")]


@pytest.fixture
def take(local, landing, tmp_path):
    """Return a function that lands and commits some messages of some devices."""
    out = tmp_path / "out"
    seq = iter(range(1, 10_000))
    Output(str(out)).prepare(2)

    def taken(*devices, count=3, value=1.0):
        for number in [next(seq) for _ in range(count)]:
            for device in devices:
                at = 1_790_000_000 + 60 * number
                landing.message(device, 1, number, value, bt=at, arrival_us=at * 1_000_000)
        landing.seal()
        once(local, str(landing.directory), str(out), 2)
        return out

    return taken


@contextlib.contextmanager
def serving(out, every_s=0.1):
    """Serve an output; yield (dashboard, port). It refreshes only when told to."""
    shown = dashboard.Dashboard(Output(str(out)), verdict.Expectations, every_s)
    server = dashboard.Server("127.0.0.1", 0, shown)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield shown, server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="module")
def served_once(tmp_path_factory):
    """Return the port of a dashboard with one device. Tests only ask it."""
    home = tmp_path_factory.mktemp("served")
    landing = Landing(home / "landing")
    landing.directory.mkdir()
    landing.message("a", 1, 1)
    landing.seal()
    once(Local(), str(landing.directory), str(home / "out"), 2)
    with serving(home / "out") as (shown, port):
        shown.refresh()
        yield port


def ask(port, path, method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer
    finally:
        connection.close()


def test_page_facts_and_values_are_served_and_updated_after_a_commit(take):
    out = take("a", "b")
    with serving(out) as (shown, port):
        assert ask(port, "/facts.json")[0] == 503
        assert "No batch" in ask(port, "/")[1]
        shown.refresh()
        status, page, answer = ask(port, "/")
        assert (status, answer.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        assert report.TITLE in page
        facts = json.loads(ask(port, "/facts.json")[1])
        assert f'"version":"{facts["version"]}"' in page
        assert ask(port, f"/facts.json?v={facts['version']}")[:2] == (204, "")
        shown.refresh()
        assert ask(port, f"/facts.json?v={facts['version']}")[0] == 204
        served = [ask(port, f"/report/{facts['chunks']}/{n:05d}.js") for n in range(facts["chunks"])]
        assert all(status == 200 for status, _, _ in served)
        told = [dict(json.loads(text[len(f"flashmqtt({n},") : -2])) for n, (_, text, _) in enumerate(served)]
        assert {key for one in told for key in one} == {"a", "b"}
        take("c", value=5.0)
        shown.refresh()
        later = json.loads(ask(port, f"/facts.json?v={facts['version']}")[1])
        assert later["totals"]["devices"] == 3
        assert ask(port, "/", "HEAD")[1] == ""


def test_dashboard_updates_after_a_compaction(take, local):
    out = take("a")
    take("b")
    with serving(out) as (shown, port):
        shown.refresh()
        version = shown.facts["version"]
        compact.compact(local, str(out))
        shown.store.delete()  # as forgetting a device does
        shown.refresh()
        assert shown.facts["version"] != version
        assert {row[0] for row in shown.facts["fleet"]} == {"a", "b"}
        assert "flashmqtt(0" in ask(port, "/report/2/00000.js")[1]


@pytest.mark.parametrize(
    "path",
    [
        *("/x", "/report.html", "/report/series.sqlite", "/verdict.json", "/commits/000000001.json", "/format.json"),
        *("/../format.json", "/report/../format.json", "/..%2fformat.json", "/%2e%2e/format.json", "/report/2/../../format.json"),
        *("/report/3/00000.js", "/report/0/00000.js", "/report/2/00002.js", "/report/131072/00000.js", "/report/%D9%A2/00000.js"),
        *("/report/2/00000.js/", "/report/2/00000.js%00", "/report/2/0000.js", "/facts.json/", "/../../../../etc/passwd"),
    ],
)  # fmt: skip
def test_unknown_path_gets_404(served_once, path):
    status, text, _ = ask(served_once, path)
    assert (status, text) == (404, "not found; the page is at /\n")


def test_foreign_host_header_is_refused_and_no_cors_is_granted(take):
    with serving(take("a")) as (shown, port):
        shown.refresh()
        assert ask(port, "/facts.json", Host="evil.example")[0] == 403
        assert ask(port, "/facts.json", Host=f"localhost:{port}")[0] == 200
        answer = ask(port, "/")[2]
        assert "Access-Control-Allow-Origin" not in answer.headers
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]


@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        ("/", "[::1", 403),
        ("/", "[x]", 403),
        ("http://[::1/", "localhost", 404),
        ("http://[x]/facts.json", "localhost", 404),
    ],
)
def test_malformed_host_or_target_is_refused_without_error_output(take, capsys, target, host, status):
    with serving(take("a")) as (_, port):
        assert ask(port, target, Host=host)[0] == status
    assert capsys.readouterr().err == ""


def test_server_binds_to_an_ipv6_address(take):
    shown = dashboard.Dashboard(Output(str(take("a"))), verdict.Expectations, 0.1)
    try:
        server = dashboard.Server("::1", 0, shown)
    except Failure as error:
        if "assign" in str(error):
            pytest.skip("this machine has no ::1")
        raise
    assert server.server_address[0] == "::1"
    server.server_close()


def test_failed_refresh_is_reported_once_and_the_next_one_works(take, capsys, monkeypatch):
    out = take("a")
    with serving(out) as (shown, port):
        shown.refresh()
        with monkeypatch.context() as broken:
            broken.setattr(Output, "latest", lambda _: 1 / 0)
            shown.refresh()
            shown.refresh()
            assert ask(port, "/facts.json")[:2] == (503, "ZeroDivisionError: division by zero")
        assert capsys.readouterr().err.count("division by zero") == 1
        shown.refresh()
        assert ask(port, "/facts.json")[0] == 200


def test_read_only_tables_are_reported_once(take, capsys, monkeypatch):
    out = take("a")
    real = Path.open

    def refuse(path, mode="r", *more, **named):
        if "w" in mode:
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return real(path, mode, *more, **named)

    with serving(out) as (shown, _):
        monkeypatch.setattr(Path, "open", refuse)
        shown.refresh()
        shown.refresh()
    assert capsys.readouterr().err.splitlines() == [
        f"dashboard: OSError: [Errno 30] Read-only file system: '{out}/missing/missing.parquet'"
    ]


def test_page_refresh_keeps_search_and_scroll_position(chromium, take):
    out = take(*(f"board-{n:02d}" for n in range(30)))
    with serving(out) as (shown, port):
        shown.refresh()
        with browser.opened(chromium, f"http://127.0.0.1:{port}/") as page:
            page.fill("#q", "board-1")
            page.fill("#search", "device=board-1")
            page.evaluate("scrollTo(0, 400)")
            before = page.evaluate("[...document.querySelectorAll('.card .line')].map(one => one.getAttribute('d'))")
            take(*(f"board-{n:02d}" for n in range(31)), value=77.5)
            shown.refresh()
            page.locator(".sensor b", has_text="77.5").nth(9).wait_for()
            assert page.locator("#when").inner_text().startswith("31 devices")
            assert page.evaluate("scrollY") == 400
            assert page.input_value("#q") == "board-1"
            assert page.locator(".pager span").first.inner_text() == "1-10 of 10"
            assert page.locator("#boots-listed").inner_text().startswith("10 of 31 boots")
            after = page.evaluate("[...document.querySelectorAll('.card .line')].map(one => one.getAttribute('d'))")
            assert len(after) == len(before) == 10
            assert not set(before) & set(after)


def test_page_shows_that_the_dashboard_does_not_answer(chromium, take):
    out = take("a")
    context = chromium.new_context()
    page = context.new_page()
    with serving(out) as (shown, port):
        shown.refresh()
        page.goto(f"http://127.0.0.1:{port}/")
        page.wait_for_selector(".card .sensor")
        assert page.locator("#stale").is_hidden()
    page.wait_for_selector("#stale", state="visible")
    assert "the dashboard does not answer" in page.locator("#stale").inner_text()
    context.close()


def test_ctrl_c_ends_the_dashboard_with_status_0(take):
    out = take("a")
    process = subprocess.Popen(
        [sys.executable, "-m", "tools.pipeline.dashboard", "--out", str(out), "--port", "0", "--every", "0.1"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'firmware'}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
    )
    try:
        told = process.stdout.readline()
        assert told.startswith("  http://127.0.0.1:")
        port = int(told.split(":")[2].split("/")[0])
        assert ask(port, "/")[0] == 200
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, rest, errors) == (0, "\n  stopped\n", "")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "--out is missing"),
        (["--out", "{tmp}/none"], "has no tables yet: run the pipeline first (make pipeline)"),
        (["--out", "{out}", "--port", "{port}"], "give another PORT= (--port)"),
    ],
)
def test_unusable_argument_is_named(take, tmp_path, capsys, arguments, told):
    out = take("a")
    with serving(out) as (_, port):
        assert dashboard.main([one.format(tmp=tmp_path, out=out, port=port) for one in arguments]) == 2
    assert told in capsys.readouterr().err
