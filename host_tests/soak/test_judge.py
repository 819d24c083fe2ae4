"""The checks of the soak for memory, wear and landing: they find planted faults, and report no others."""

import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flashmqtt.flash.ram import RamRegion
from flashmqtt.journal.journal import Journal
from tools.landing import parquet, segments
from tools.pipeline.tables import schemas
from tools.pipeline.tables.commits import Commit, Output
from tools.proof.soak import judge
from tools.proof.soak.samples import HEAP_BYTES, Sample, Wear, heaps, write

SEVERAL = 120


def series(level, growth=0.0, noise=0.0, life=1, subject="collector", start=0):
    rng = random.Random(7)
    return [
        Sample(start + 3 * n, subject, life, level + growth * n / SEVERAL + rng.gauss(0, noise)) for n in range(SEVERAL)
    ]


def only(samples, boards=()):
    (found,) = judge.memory(samples, set(boards))
    return found


def test_noise_without_growth_is_flat():
    found = only(series(1_000_000, noise=20_000))
    assert found.is_conclusive
    assert found.flat
    assert found.noise == pytest.approx(20_000, rel=0.3)


def test_growth_beyond_the_bound_is_found():
    found = only(series(1_000_000, growth=160_000, noise=2_000))
    assert found.growth == pytest.approx(80_000, rel=0.15)  # in the second half
    assert not found.flat
    assert "NOT FLAT" in str(found)


def test_shrinking_memory_is_flat():
    assert only(series(1_000_000, growth=-100_000)).flat


def test_growth_in_the_first_half_is_allowed():
    begun = [Sample(n, "collector", 1, 1000.0 * min(n, SEVERAL // 2)) for n in range(SEVERAL)]
    assert only(begun).flat


def test_program_is_judged_by_its_longest_life():
    short = [Sample(n, "collector", 1, 500_000 + 9_000 * n) for n in range(20)]
    found = only(short + series(1_000_000, life=2, start=30))
    assert found.level == pytest.approx(1_000_000)
    assert found.flat


def test_board_is_judged_over_all_its_boots():
    boots = [Sample(n, "board-1", n // 10, 100_000 + 500 * (n // 10)) for n in range(SEVERAL)]
    assert not only(boots, ["board-1"]).flat


def boots_of_a_board(rng, extra=lambda boot, at_s: 0.0):
    """Return the samples of 40 boots as boards report them: the first of each before all modules are loaded."""
    samples, at_s = [], 0.0
    for boot in range(1, 41):
        for number in range(rng.choice((1, 2, 4, 8, 12, 20, 40))):
            at_s += 5.2
            held = 151_040 if number == 0 else 155_488 + rng.choice((0, 0, 0, 32, 64))
            samples.append(Sample(at_s, "board-1", boot, held + extra(boot, 5.2 * number)))
    return samples


@pytest.mark.parametrize("late", [(40,), (38, 39, 40), (33, 35, 36, 38, 40), tuple(range(30, 41))])
@pytest.mark.parametrize("from_s", [0, 20], ids=["at the start", "later"])
def test_module_that_only_late_boots_load_is_no_growth(late, from_s):
    for seed in range(20):
        found = only(
            boots_of_a_board(random.Random(seed), lambda boot, at_s: 1920.0 * (boot in late and at_s >= from_s)),
            ["board-1"],
        )
        assert found.is_conclusive and found.flat, str(found)


def test_leak_inside_the_boots_of_a_board_is_found():
    for seed in range(20):
        samples = boots_of_a_board(random.Random(seed), lambda _, at_s: 90.0 * (at_s // 7))
        assert not only(samples, ["board-1"]).flat


def test_heap_that_grows_with_each_boot_is_found():
    for seed in range(20):
        samples = boots_of_a_board(
            random.Random(seed), lambda boot, _: 40.0 * boot + 1920.0 * (boot in (5, 9, 21, 28, 37))
        )
        found = only(samples, ["board-1"])
        assert not found.flat
        assert "from the earlier to the later of 40 boots" in str(found)


def test_leak_of_90_bytes_per_reconnect_is_found():
    # A leak that the soak found in 2026: 90 bytes every seven seconds.
    heap = [Sample(5.0 * n, "board-1", 1, 160_000 + 90 * (5 * n // 7)) for n in range(SEVERAL)]
    assert not only(heap, ["board-1"]).flat


def test_fluctuating_heap_of_a_board_is_flat():
    rng = random.Random(3)
    heap = [Sample(5.0 * n, "board-1", 1, 160_000 + rng.choice((0, 96, 416, 704))) for n in range(SEVERAL)]
    assert only(heap, ["board-1"]).flat


@pytest.mark.parametrize(("steps", "flat"), [((70,), True), ((20, 70), True), ((60, 80), False), ((55, 65, 75), False)])
def test_single_late_heap_step_is_flat_and_repeated_steps_are_growth(steps, flat):
    rng = random.Random(3)
    heap = [
        Sample(5.0 * n, "board-1", 1, 160_000 + 3500 * sum(n >= at for at in steps) + rng.choice((0, 32, 64)))
        for n in range(88)
    ]
    assert only(heap, ["board-1"]).flat == flat


def test_memory_step_is_inconclusive_in_short_life_and_growth_in_long():
    steps = [131_000_000.0 if n < 66 else 148_000_000.0 for n in range(88)]
    short = only([Sample(1.5 * n, "collector", 1, steps[n]) for n in range(88)])
    assert not short.is_conclusive and short.flat
    long = only([Sample(15.0 * n, "collector", 1, steps[n]) for n in range(88)])
    assert long.is_conclusive and not long.flat


def test_too_few_samples_are_inconclusive():
    found = only(series(1_000_000, growth=900_000)[:10])
    assert not found.is_conclusive
    assert found.flat
    assert "too few" in str(found)


def test_wear_is_read_from_headers_and_kept_for_blank_sectors(tmp_path):
    region = RamRegion(4, page_bytes=256)
    journal = Journal(region)
    for _ in range(1500):
        journal.finish(journal.append(bytearray(100), 100))
    image = tmp_path / "flash.bin"
    image.write_bytes(region.cells)
    wear = Wear(image)
    wear.look()
    before = dict(wear.erases)
    assert sorted(before) == [0, 1, 2, 3]
    assert min(wear.erases.values()) > 3
    assert wear.spread <= 1 == judge.even_spread(wear)
    assert judge.uneven({"board-1": wear}) == []
    image.write_bytes(b"\xff" * 4096 + bytes(region.cells)[4096:])
    wear.look()
    assert wear.erases == before
    wear.erases[2] += 3
    assert judge.uneven({"board-1": wear}) == ["board-1"]
    wear.cuts = 4  # one cut per sector: each recovery may erase a sector once more
    assert judge.uneven({"board-1": wear}) == []


def test_wear_without_an_image_is_zero(tmp_path):
    wear = Wear(tmp_path / "flash.bin")
    wear.look()
    assert (wear.erases, wear.spread) == ({}, 0)


def segment(directory, number, rows, first, dup=True):
    count = len(rows)
    columns = {
        "collector": ["c"] * count,
        "segment": [number] * count,
        "row": list(range(first, first + count)),
        "arrival": [0] * count,
        "topic": ["flashmqtt/board-1/readings"] * count,
        "qos": [qos for qos, _ in rows],
        "dup": [dup and not qos for qos, _ in rows],
        "retain": [False] * count,
        "properties": [None] * count,
        "payload": [payload for _, payload in rows],
    }
    pq.write_table(pa.table(columns, schema=parquet.SCHEMA), directory / segments.file_name("c", number))


def totals(landed):
    return landed.messages, landed.distinct, landed.again


def test_duplicates_in_the_landing_are_counted_by_qos(tmp_path):
    segment(tmp_path, 1, [(1, b"one"), (2, b"two"), (2, b"three")], 1)
    assert totals(judge.landing(tmp_path)) == (3, 3, {0: 0, 1: 0, 2: 0})
    segment(tmp_path, 2, [(1, b"one"), (1, b"one"), (2, b"three"), (0, b"one")], 4)
    assert totals(judge.landing(tmp_path)) == (7, 3, {0: 0, 1: 2, 2: 1})


@pytest.mark.parametrize(("number", "first", "what"), [(3, 2, "segments"), (2, 3, "rows"), (2, 1, "rows")])
def test_gap_in_the_landing_is_found(tmp_path, number, first, what):
    segment(tmp_path, 1, [(1, b"one")], 1)
    segment(tmp_path, number, [(1, b"two")], first)
    with pytest.raises(AssertionError, match=f"numbers of its {what} have gaps"):
        judge.landing(tmp_path)


def test_copy_without_its_mark_is_found(tmp_path):
    segment(tmp_path, 1, [(1, b"one"), (0, b"one")], 1, dup=False)
    with pytest.raises(AssertionError, match="a copy is not marked"):
        judge.landing(tmp_path)


def test_empty_landing_has_no_messages(tmp_path):
    assert totals(judge.landing(tmp_path)) == (0, 0, {0: 0, 1: 0, 2: 0})


def test_heap_samples_come_from_the_readings_table(tmp_path):
    rows = [("board-1", 2, "heap_free", 60_000.0, 3_000_000), ("board-1", 2, "load", 0.5, 4_000_000)]
    own = {"device": 0, "boot": 1, "name": 2, "value": 3, "time": 4}
    kinds = {pa.string(): "", pa.bool_(): False}
    columns = {
        field.name: [row[own[field.name]] if field.name in own else kinds.get(field.type, 0) for row in rows]
        for field in schemas.READINGS
    }
    (tmp_path / "readings").mkdir()
    pq.write_table(pa.table(columns, schema=schemas.READINGS), tmp_path / "readings" / "a.parquet")
    Output(str(tmp_path)).write(Commit(0, "s", 0, files={"readings": ["readings/a.parquet"]}))
    assert heaps(tmp_path, 1_000_000) == [Sample(2.0, "board-1", 2, HEAP_BYTES - 60_000)]


@pytest.mark.parametrize("samples", [[], series(5.0)])
def test_samples_are_written_unchanged(samples, tmp_path):
    write(samples, tmp_path / "samples.parquet")
    assert [Sample(**row) for row in pq.read_table(tmp_path / "samples.parquet").to_pylist()] == samples
