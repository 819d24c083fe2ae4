"""The report, opened in a browser: it draws, complains of nothing, and says what the tables say."""

import html
import json
import re
import shutil
import subprocess
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest

from app import health
from app.senml import pack
from tools.pipeline import report, stream, verdict
from tools.pipeline.commits import Output

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def dump(path, profile):
    """Return the page's DOM after its scripts ran, and what the browser logged."""
    command = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--virtual-time-budget=8000",
    ]
    command += ["--enable-logging=stderr", f"--user-data-dir={profile}", "--dump-dom", f"file://{path}"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    return ran.stdout, [line for line in ran.stderr.splitlines() if "CONSOLE" in line]


class Counters(SimpleNamespace):
    """What a health message reads from: counters that nobody set are 0."""

    def __getattr__(self, name):
        return 0


def health_message(device, boot, seq, minutes, wear):
    """Return what the application on the board publishes: its own records, its own encoder."""
    application = Counters(
        journal=Counters(stored=seq - 1, wear=wear),
        client=Counters(link=Counters(connects=4)),
        commands=Counters(),
        uptime=SimpleNamespace(ms=lambda: minutes * 60_000),
        board=SimpleNamespace(network_strength=lambda: None, supply_millivolts=lambda: None),
    )
    return pack(device, boot, seq, minutes * 60_000, health.records(application), None, None)


@pytest.fixture(scope="module")
def written(spark, tmp_path_factory):
    from host_tests.pipeline.conftest import Landing

    directory = tmp_path_factory.mktemp("report")
    landing = Landing(directory / "landing")
    landing.directory.mkdir()
    for device in ("a", "b<script>alert(1)</script>"):
        for boot, seqs in ((1, (1, 2, 3, 5)), (2, (8, 9, 10))):
            for seq in seqs:
                kind = "boot" if seq in {1, 8} else "readings"
                landing.message(device, boot, seq, kind=kind, bt=1_790_000_000 + seq)
        landing.message(device, 2, 10, bt=1_790_000_010, dup=True)
    for seq, minutes, wear in ((11, 10, 1_000), (12, 1450, 1_100)):
        landing.raw("flashmqtt/a/health", health_message("a", 2, seq, minutes, wear))
    for seq, value in ((13, 1e308), (14, -1e308)):  # a reading of that name which can't be what the report means
        landing.raw(
            "flashmqtt/a/readings",
            b'[{"bn":"a/","boot":2,"seq":%d,"up":9,"n":"connects","v":%r},{"n":"wear","v":%r}]' % (seq, value, value),
        )
    landing.raw("flashmqtt/a/readings", b"<img src=x onerror=alert(2)>")
    landing.seal()
    out = directory / "out"
    stream.start(spark, str(landing.directory), str(out), str(out / "checkpoint"), buckets=2).awaitTermination()
    output = Output(str(out))
    return report.write(output, verdict.judge(output)), out


def test_page_holds_what_the_tables_hold_and_reaches_for_nothing(spark, written):
    path, out = written
    text = Path(path).read_text()
    facts = json.loads(re.search(r'<script type="application/json" id="facts">(.*?)</script>', text)[1])
    audited = Output(str(out)).read(spark, "audit")
    for name in ("published", "delivered", "missing", "resent", "unexplained"):
        assert facts["totals"][name] == audited.agg({name: "sum"}).collect()[0][0]
    assert facts["totals"]["readings"] == Output(str(out)).read(spark, "readings").count()
    assert sum(facts["over_time"]["messages"]) == facts["totals"]["delivered"] - 4  # boot messages are no readings
    assert sum(facts["delays"]["messages"]) == facts["totals"]["delivered"]
    assert facts["causes"] == {"power": 4}
    assert [(one["device"], one["lo"], one["hi"]) for one in facts["missing"]][:1] == [("a", 6, 7)]
    told = {"device": "a", "erases": 1_100.0, "erases_seen": 100.0, "days": 1450 / 1440, "reconnects": 3}
    assert facts["own"] == [told]
    assert report.years_left(told) == pytest.approx(98_900 / 100 * 1450 / 1440 / 365.25)
    plot = report.figures(facts)["wear"].data[0]
    assert (plot.x, plot.y, plot.text) == (("a",), (1_100.0,), ("2.7 years left",))
    ours = re.sub(r"<script>/\*\*.*?plotly\.js.*?</script>", "", text, flags=re.S)
    assert not re.search(r'(src|href)="(?!data:)', ours)


def test_browser_draws_it_without_a_complaint(written, tmp_path):
    if CHROMIUM is None:
        warnings.warn("NO CHROMIUM HERE: nothing has opened the report. On Debian: apt install chromium", stacklevel=1)
        pytest.skip("no Chromium on this machine")
    path, _ = written
    dom, complaints = dump(path, tmp_path / "profile")
    assert complaints == []
    assert dom.count('class="main-svg"') >= 5
    assert 'id="plot-wear"' in dom
    tiles = {name: value.replace(",", "") for name, value in re.findall(r'<b id="total-([a-z-]+)">([0-9,]+)</b>', dom)}
    text = Path(path).read_text()
    facts = json.loads(re.search(r'<script type="application/json" id="facts">(.*?)</script>', text)[1])
    assert {name: int(tiles[name]) for name in ("published", "delivered", "missing")} == {
        name: facts["totals"][name] for name in ("published", "delivered", "missing")
    }
    table = re.search(r'<table id="audit">(.*?)</table>', dom, flags=re.S)[1]
    cells = [re.findall(r"<td>(.*?)</td>", line) for line in re.findall(r"<tr>(.*?)</tr>", table)]
    shown = {(html.unescape(line[0]), line[1]): line[10] for line in cells if line}
    assert shown == {(row["device"], str(row["boot"])): str(row["missing"]) for row in facts["audit"]}
    assert "4 of 4 boots" in dom
