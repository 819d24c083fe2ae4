"""The page in a browser: at three widths, light and dark, with few devices and with ten thousand."""

import itertools
import json
import re
from pathlib import Path

import pytest

from host_tests.pipeline import browser
from host_tests.pipeline.conftest import Landing, Local, once
from tools.pipeline import report, verdict
from tools.pipeline.tables.commits import Output
from tools.proof import fleet

pytestmark = pytest.mark.req("P9")
START_S = 1_790_000_000
HOSTILE = "evil\u202egnp.exe<script>alert(1)</script>"
LONG = "a-board-whose-name-goes-on-" * 30


def written(landing, out):
    once(Local(), str(landing), str(out), 2)
    output = Output(str(out))
    return report.write(output, verdict.judge(output))


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Return the page of a house: a sensor that missed an hour, a board with a wrong clock, and hostile names."""
    directory = tmp_path_factory.mktemp("small")
    landing = Landing(directory / "landing")
    landing.directory.mkdir()
    for device in ("kitchen", "cellar", HOSTILE, LONG):
        seq = itertools.count(1)
        for n in range(120):
            number = next(seq)
            if device == "kitchen" and 60 <= n < 90:
                continue
            at = START_S + 60 * n
            clock = 4_294_967_000 if device == "cellar" and n == 9 else at
            head = {"bn": f"{device}/", "boot": 1, "seq": number, "bt": clock, "n": "temperature", "u": "Cel"}
            head["v"] = 20 + 5 * (n % 17) / 17
            more = (
                [{"n": "door", "vb": n % 7 == 0}, {"n": "state", "vs": "watering\u0007"}] if device == "cellar" else []
            )
            told = json.dumps([head, *more]).encode()
            landing.raw(f"flashmqtt/{device}/readings", told, arrival_us=(at + 1) * 1_000_000)
    landing.raw("flashmqtt/kitchen/readings", b"<img src=x onerror=alert(2)>")
    landing.seal()
    return written(landing.directory, directory / "out")


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    directory = tmp_path_factory.mktemp("large")
    board = fleet.Fleet(devices=10_000, interval_ms=60_000, boot_every=1000)
    fleet.write(board, directory / "landing", 120_000)
    return written(directory / "landing", directory / "out")


def card(page, name):
    return page.locator("article.card", has_text=name).first


# The layout depends on the width only, and the colours on the scheme only.
@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light"), (1920, "dark")])
def test_page_fits_the_screen_and_draws_its_plots(chromium, small, width, scheme):
    with browser.opened(chromium, small, width, scheme) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        wide = page.evaluate(
            """() => [...document.querySelectorAll('.card, .tile, .panel, .plot, header')].filter(one => {
              const box = one.getBoundingClientRect(); return box.right > innerWidth + .5 || box.left < -.5}).length"""
        )
        assert wide == 0
        columns = page.evaluate("new Set([...document.querySelectorAll('.card')].map(one => one.offsetLeft)).size")
        assert columns == {390: 1, 1280: 3, 1920: 4}[width]
        plots = [*page.locator(".card .plot svg").all(), page.locator("#plot-time svg")]
        *cards, (time_share, _) = browser.all_painted(page, plots)
        for share, colours in cards:
            assert 0.004 < share < 0.4
            assert colours > 3
        assert time_share > 0.3
        assert contrast(page, "#verdict") > 4.5
        assert contrast(page, ".sensor small") > 4.5
        assert contrast(page, ".tile.bad b") > 4.5


def contrast(page, selector):
    """Return the contrast of an element's text with what is behind it, as WCAG defines it."""
    return page.evaluate(
        """selector => {
          const part = c => c <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4;
          const light = text => {
            const [r, g, b] = text.match(/[\\d.]+/g).map(n => part(n / 255));
            return .2126 * r + .7152 * g + .0722 * b};
          const one = document.querySelector(selector), colour = one => getComputedStyle(one).backgroundColor;
          let behind = one;
          while (/, 0\\)|transparent/.test(colour(behind))) behind = behind.parentElement;
          const [a, b] = [light(getComputedStyle(one).color), light(colour(behind))].sort((a, b) => b - a);
          return (a + .05) / (b + .05)}""",
        selector,
    )


def test_values_come_first_and_missing_readings_show_as_a_gap(chromium, small):
    with browser.opened(chromium, small) as page:
        order = page.evaluate(
            "['values', 'panels', 'audit'].map(name => document.getElementById(name).getBoundingClientRect().top)"
        )
        assert order == sorted(order)
        kitchen = card(page, "kitchen")
        assert re.search(r"[\d.]+ °C", kitchen.locator(".sensor b").inner_text())
        assert "90 of 120 delivered, 30 missing" in kitchen.inner_text()
        plot, gap = (kitchen.locator(one).bounding_box() for one in (".plot svg", ".plot .gap"))
        assert gap["x"] == pytest.approx(plot["x"] + plot["width"] * 59 / 119, abs=2)
        assert gap["width"] == pytest.approx(plot["width"] * 31 / 119, abs=2)
        line = page.evaluate(
            "[...document.querySelectorAll('.card')].map(one => one.querySelector('.line')?.getAttribute('d').match(/M/g).length)"
        )
        names = page.locator(".card h3").all_inner_texts()
        assert line[names.index("kitchen")] == 2
        assert card(page, "cellar").locator(".plot .gap").count() == 0  # the wrong time does not stretch the axis
        assert card(page, "cellar").locator(".x span").first.inner_text().count(":") == 1
        first = kitchen.locator(".plot svg")
        first.hover()
        assert re.fullmatch(r"2026-09-2\d \d\d:\d\d:\d\d: [\d.]+ °C", page.locator("#tip").inner_text())


def test_hostile_text_is_shown_and_not_executed(chromium, small):
    with browser.opened(chromium, small, 390) as page:
        names = page.locator(".card h3").all_inner_texts()
        assert HOSTILE.replace("\u202e", "\\u{202E}") in names
        assert "watering\\u{7}" in card(page, "cellar").inner_text()
        long = page.locator(f'.card h3[title="{LONG}"]')
        assert long.count() == 1
        assert (
            long.evaluate("one => one.offsetWidth < one.scrollWidth && getComputedStyle(one).textOverflow")
            == "ellipsis"
        )
        assert page.locator("script[src], img").count() == 0


def test_device_named_like_a_javascript_property_is_listed(chromium, tmp_path):
    landing = Landing(tmp_path / "landing")
    landing.directory.mkdir()
    names = ("__proto__", "constructor", "hasOwnProperty")
    for name in names:
        landing.message(name, 1, 1, kind="boot")  # it has no readings
        head = {"bn": f"{name}-2/", "boot": 1, "seq": 1, "up": 1, "n": name, "u": name, "v": 1.5}
        landing.raw(f"flashmqtt/{name}-2/readings", json.dumps([head]).encode())
    landing.seal()
    with browser.opened(chromium, written(landing.directory, tmp_path / "out")) as page:
        assert page.get_by_text("No readings.").count() == len(names)
        for name in names:
            assert f"{name}\n1.5 {name}" in card(page, f"{name}-2").inner_text()


def test_no_axes_are_drawn_without_values(chromium, small):
    with browser.opened(chromium, small) as page:
        cellar = card(page, "cellar")
        assert cellar.locator(".sensor").count() == 3
        assert cellar.locator(".plot").count() == 2  # a text has none
        assert page.locator("#plot-wear, #plot-reconnects").count() == 0
        assert page.evaluate(
            "[...document.querySelectorAll('.plot svg')].every(one => one.querySelector('.line, .bars'))"
        )


def test_page_of_ten_thousand_devices_is_small_and_searchable(chromium, large):
    assert Path(large).stat().st_size < 5_000_000
    with browser.opened(chromium, large, 390) as page:
        ready_ms = page.evaluate("performance.getEntriesByType('navigation')[0].domComplete")
        print(f"the page of 10,000 devices is there after {ready_ms:.0f} ms")
        assert page.locator(".card").count() == 12
        assert page.locator(".pager span").first.inner_text() == "1-12 of 10,000"
        page.fill("#q", "board-09999")
        page.wait_for_function(
            "document.querySelectorAll('.card').length === 1 && document.querySelector('.card .line')"
        )
        assert page.locator(".card h3").inner_text() == "board-09999"
        share, _ = browser.painted(page, page.locator(".card .plot svg"))
        assert share > 0.004
        page.fill("#q", "")
        page.click("button[aria-label='next page']")
        page.wait_for_selector(".card .line")
        assert page.locator(".pager span").first.inner_text() == "13-24 of 10,000"
        page.fill("#search", "device=board-04999")
        assert page.locator("#audit tbody tr").count() == 1
        assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_page_names_the_missing_report_folder(chromium, large, tmp_path):
    alone = tmp_path / "report.html"
    alone.write_text(Path(large).read_text())
    context = chromium.new_context()
    page = context.new_page()
    page.goto(f"file://{alone}")
    page.wait_for_function(
        "document.querySelector('.card').textContent.includes('keep the folder report beside the page')"
    )
    context.close()


def test_search_sort_order_and_page_survive_a_reload(chromium, large):
    with browser.opened(chromium, large) as page:
        page.fill("#q", "board-00")
        page.select_option("#sort", "name")
        page.click("button[aria-label='next page']")
        page.reload()
        page.wait_for_selector(".card .line")
        assert page.input_value("#q") == "board-00"
        assert page.locator(".pager span").first.inner_text() == "13-24 of 1,000"
        assert page.locator(".card h3").first.inner_text() == "board-00012"


def test_page_without_identities_hides_the_audit_and_shows_whole_reasons(chromium, tmp_path):
    landing = Landing(tmp_path / "landing")
    landing.directory.mkdir()
    for n in range(20):
        landing.raw(
            "server/memory", b"%d" % (24_000_000_000 + n * 10_000_000), arrival_us=(START_S + 60 * n) * 1_000_000
        )
        landing.raw("fast/load", b"%d" % n, arrival_us=START_S * 1_000_000 + n * 40_000)
    landing.raw("fast/state", b"1", arrival_us=START_S * 1_000_000 + 1_500_000)
    landing.raw("server/door", b"ajar")
    landing.seal()
    with browser.opened(chromium, written(landing.directory, tmp_path / "out")) as page:
        assert not page.locator("#audit").is_visible()
        assert card(page, "server").locator(".y span").first.inner_text().endswith("G")
        assert (
            card(page, "fast").locator(".plot .line").count() and not card(page, "fast").locator(".plot .gap").count()
        )
        reason = page.locator("#plot-quarantine .name")
        assert reason.inner_text().endswith("no mapping matches its topic")
        assert reason.evaluate("one => one.scrollHeight <= one.clientHeight")
