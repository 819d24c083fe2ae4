"""The report shows the tables and loads no external resource. The page in a browser is tested in test_page.py."""

import json
import re
import resource
from pathlib import Path
from types import SimpleNamespace

import pytest

from app import health
from app.senml import pack
from host_tests.pipeline.conftest import once, rows_in, taken
from tools.pipeline import report, verdict
from tools.pipeline.tables.commits import Output

pytestmark = pytest.mark.usefixtures("without_delta")


class Counters(SimpleNamespace):
    """The source of a health message: counters that are not set are 0."""

    def __getattr__(self, name):
        return 0


def health_message(device, boot, seq, minutes, wear):
    """Return a health message made by the board application's own code."""
    application = Counters(
        journal=Counters(stored=seq - 1, wear=wear),
        client=Counters(link=Counters(connects=4)),
        commands=Counters(),
        uptime=SimpleNamespace(ms=lambda: minutes * 60_000),
        board=SimpleNamespace(network_strength=lambda: None, supply_millivolts=lambda: None),
    )
    return pack(device, boot, seq, minutes * 60_000, health.records(application), None, None)


def facts_in(path, name="facts"):
    text = Path(path).read_text()
    found = re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', text)
    return json.loads(found[1]) if found else None


@pytest.fixture
def written(local, landing, tmp_path):
    for device in ("a", "b<script>alert(1)</script>"):
        for boot, seqs in ((1, (1, 2, 3, 5)), (2, (8, 9, 10))):
            for seq in seqs:
                kind = "boot" if seq in {1, 8} else "readings"
                landing.message(device, boot, seq, kind=kind, bt=1_790_000_000 + seq)
        landing.message(device, 2, 10, bt=1_790_000_010, dup=True)
    for seq, minutes, wear in ((11, 10, 1_000), (12, 1450, 1_100)):
        landing.raw("flashmqtt/a/health", health_message("a", 2, seq, minutes, wear))
    for seq, value in ((13, 1e308), (14, -1e308)):  # readings with the names of health counters but impossible values
        landing.raw(
            "flashmqtt/a/readings",
            b'[{"bn":"a/","boot":2,"seq":%d,"up":9,"n":"connects","v":%r},{"n":"wear","v":%r}]' % (seq, value, value),
        )
    landing.raw("flashmqtt/a/readings", b"<img src=x onerror=alert(2)>")
    landing.seal()
    out = tmp_path / "out"
    once(local, str(landing.directory), str(out), 2)
    output = Output(str(out))
    return report.write(output, verdict.judge(output)), output


@pytest.mark.req("P9")
def test_page_shows_the_tables_and_loads_no_external_resource(written):
    from tools.pipeline.tables.books import Books

    path, output = written
    facts = facts_in(path)
    sums = ("published", "delivered", "missing", "resent", "unexplained", "readings")
    audited = Books(output, output.latest()).all("audit", list(sums))
    assert {name: facts["totals"][name] for name in sums} == {name: sum(audited[name].to_pylist()) for name in sums}
    assert facts["totals"]["readings"] == rows_in(output, "readings")
    assert sum(facts["over_time"]["messages"]) == facts["totals"]["delivered"] - 4  # boot messages are no readings
    assert sum(facts["delays"]["messages"]) == facts["totals"]["delivered"]
    assert facts["causes"] == {"power": 4}
    assert [(one["device"], one["lo"], one["hi"]) for one in facts["missing"]][:1] == [("a", 6, 7)]
    told = {"device": "a", "erases": 1_100.0, "erases_seen": 100.0, "days": 1450 / 1440, "reconnects": 3}
    years = pytest.approx(98_900 / 100 * 1450 / 1440 / 365.25)
    assert facts["own"] == [told | {"years_left": years}]
    assert [row[0] for row in facts["fleet"]] == ["a", "b<script>alert(1)</script>"]
    assert facts["health"][report.MISSING] == 2
    plotted = {name: whole["v"] for name, _, _, _, _, whole, _ in facts_in(path, "series")["a"]["series"] if whole}
    assert plotted["load1"] == [1.0] * 5
    assert not re.search(r'(src|href)="(?!data:)', Path(path).read_text())
    assert sorted(one.name for one in (Path(path).parent / "report").iterdir()) == ["series.sqlite"]


@pytest.mark.req("P9")
def test_device_without_an_identity_has_values_and_no_proof(local, landing, tmp_path):
    for n in range(10):
        landing.raw("greenhouse-1/temperature", b"21.5", arrival_us=1_790_000_000_000_000 + n * 60_000_000)
    landing.message("a", 1, 1)
    output = taken(local, landing, tmp_path / "out")
    path = report.write(output, verdict.judge(output))
    facts = facts_in(path)
    assert {row[0]: row[2] for row in facts["fleet"]} == {"a": 0, "greenhouse-1": report.UNPROVED}
    assert (facts["totals"]["devices"], facts["totals"]["readings"]) == (2, 11)
    name, *_, whole, _ = facts_in(path, "series")["greenhouse-1"]["series"][0]
    assert (name, whole["v"]) == ("temperature", [21.5] * 10)


def test_implausible_arrival_times_are_counted_separately(local, landing, tmp_path):
    for seq, arrival_us in ((1, 1000), (2, None), (3, 4_294_967_295_000_000), (4, 1_790_000_010_000_000)):
        landing.message("a", 1, seq, arrival_us=arrival_us or 1_790_000_000_000_000)
    output = taken(local, landing, tmp_path / "out")
    facts = facts_in(report.write(output, verdict.judge(output)))
    assert facts["undated"] == 2
    assert facts["over_time"]["at"] == [1_790_000_000, 1_790_000_010]


def test_long_texts_leave_the_page_small(local, landing, tmp_path):
    for n in range(30):
        landing.message(f"{n:02d}" + "x" * 20_000, 1, 1)
        landing.raw("flashmqtt/a/readings", b"[" * 3000)
    output = taken(local, landing, tmp_path / "out")
    found = facts_in(report.write(output, verdict.judge(output)))
    assert len(json.dumps(found)) < 100_000
    assert len(found["fleet"]) == 30


def test_texts_that_need_html_escapes_leave_the_page_small(local, landing, tmp_path):
    for n in range(4_000):
        landing.message("<" * 94 + f"{n:05d}", 1, 1, kind="boot", cause="<" * 200)
    for n in range(8):
        landing.raw("<" * 60_000 + f"{n}/" + "<" * 2_000, b"1")
    output = taken(local, landing, tmp_path / "out")
    path = report.write(output, verdict.judge(output))
    assert Path(path).stat().st_size < 5_000_000
    found = facts_in(path)
    assert 0 < len(found["audit"]) < found["totals"]["boots"] == 4_000
    assert sum(found["health"]) == len(found["fleet"])


def test_values_with_long_names_go_into_files_beside_the_page(local, landing, tmp_path):
    for n in range(200):
        landing.raw("<" * 60_000 + f"{n}/" + "<" * 2_000, b"1")
    output = taken(local, landing, tmp_path / "out")
    path = Path(report.write(output, verdict.judge(output)))
    sizes = [one.stat().st_size for one in (path, *path.parent.glob("report/2/*.js"))]
    assert len(sizes) == 3
    assert max(sizes) < 5_000_000


def test_truncated_fleet_keeps_the_full_counts():
    told = {"published": 1, "delivered": 1, "missing": 0, "health": 0}
    fleet = [told | {"device": f"{n:06d}" + "x" * 90} for n in range(20_000)]
    empty = {"missing": [], "causes": {}, "quarantine": {}, "own": [], "audit": []}
    facts = {
        "totals": dict.fromkeys([*report.TILES, "resent", "replayed", "quarantine", "silent"], 0),
        "devices": fleet,
        **empty,
    }
    found = report.compact(facts)
    assert len(found["fleet"]) < 20_000
    assert sum(found["health"]) == 20_000


@pytest.mark.parametrize("most_bytes", [4096, 20_000])
def test_full_disk_ends_the_report_with_a_named_error_and_status_2(written, tmp_path, capsys, most_bytes):
    out = tmp_path / "out"
    verdict.judge(Output(str(out)))
    (out / "report" / "series.sqlite").unlink()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, hard))  # a write that makes a file longer fails
    try:
        status = report.main(["--out", str(out)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert status == 2
    assert re.match(rf"report: can't write {out}/report/series.sqlite: .+; free disk space", capsys.readouterr().err)
    assert report.main(["--out", str(out)]) == 0
