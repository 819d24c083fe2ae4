"""The incremental audit, without Spark: compared with the planted truth, and with one large batch."""

import json
import random
from copy import copy, deepcopy
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from host_tests.pipeline.planted import TIME_S, fleet, write_pack
from host_tests.pipeline.test_lives import generated, joined
from tools.pipeline.batch import ledger, ties
from tools.pipeline.batch.messages import process
from tools.pipeline.batch.state import State
from tools.pipeline.tables import delays, intervals, schemas, summary

KEY = ("device", "life", "boot")
TEXTS = ("causes", "topics", "reasons")


class Books:
    """A bucket's state and audit, carried from batch to batch as a task does it, without files."""

    def __init__(self, landing):
        self.landing = landing
        self.state = State()
        self.newest, self.lives = schemas.AUDIT.empty_table(), schemas.LIVES.empty_table()
        self.settled = {}
        self.summary = summary.empty()
        self.loaded = []
        self.spilled = 0
        self.ties = []

    def copy(self):
        """Return independent books with the same contents. Tables are immutable, so both share them."""
        found = copy(self)
        found.state, found.summary = deepcopy(self.state), deepcopy(self.summary)
        found.settled, found.loaded, found.ties = dict(self.settled), list(self.loaded), list(self.ties)
        return found

    def take(self, rows):
        """Take some rows as one batch."""
        known, seen_before = self.state.keys, self.state.seen
        brought = ledger.Batch()
        written = {"readings": [], "events": []}
        self.landing.rows = rows
        self.landing.number += 1
        for table, found in process(self.state, self.landing.table()):
            brought.take(table, found)
            if table in written:
                written[table].append(found)
        self.landing.rows = []
        brought.checked = self.checked(written)
        if brought.ties:
            self.ties.append(ties.merge(self.state, known, seen_before, brought.ties))
        kept = ledger.Kept(self.newest, self.lives, sorted(self.settled), self.load)
        made = ledger.update(self.state, known, kept, brought)
        for name, table in made.settled.items():
            del self.settled[name]
            if table is not None:
                self.settled[name] = table
        if made.spilled is not None:
            self.spilled += 1
            self.settled[f"audit.{self.spilled:06d}"] = made.spilled
        self.newest, self.lives = made.newest, made.lives
        summary.add(self.summary, made.summary)
        return made

    def checked(self, written):
        """Return what a read-back would find: each message once."""
        found = {}
        seen = set()
        for part in written["readings"] + written["events"]:
            for key, seq in zip(self.state.keys_of(part).tolist(), part["seq"].to_pylist(), strict=True):
                if (key, seq) not in seen:
                    seen.add((key, seq))
                    found[key] = (found.get(key, (0, 0))[0] + 1, 0)
        return found

    def load(self, name, columns):
        self.loaded.append(name)
        return self.settled[name].select(columns)

    def rows(self):
        """Return the audit, by identity."""
        table = pa.concat_tables([self.newest, *self.settled.values()])
        return {tuple(row[name] for name in KEY): row for row in table.to_pylist()}


@pytest.fixture
def books(landing):
    return Books(landing)


def rows_of(landing, messages):
    for m in messages:
        landing.raw(f"flashmqtt/{m.device}/{m.kind}", m.payload, m.dup)
    rows, landing.rows = landing.rows, []
    return rows


def figures(books, *names):
    return {key[1:] if key[0] == "a" else key: tuple(row[name] for name in names) for key, row in books.rows().items()}


def ranges(books):
    return sorted((*key, one["lo"], one["hi"]) for key, row in books.rows().items() for one in row["missing_ranges"])


def messages(landing, *told):
    """Return the rows of some messages of board `a`: (boot, seq, labels)."""
    for boot, seq, labels in told:
        landing.message("a", boot, seq, kind="boot" if "first" in labels or "cause" in labels else "readings", **labels)
    rows, landing.rows = landing.rows, []
    return rows


@pytest.mark.req("P4")
def test_boot_ends_at_the_next_and_gaps_are_missing(landing, books):
    books.take(
        messages(landing, (1, 1, {"first": 1, "cause": "power"}), (1, 2, {}), (1, 3, {}), (1, 6, {}), (1, 8, {}))
    )
    assert ranges(books) == [("a", 1, 1, 4, 5), ("a", 1, 1, 7, 7)]
    assert figures(books, "open") == {(1, 1): (True,)}
    books.take(messages(landing, (3, 12, {"first": 11, "cause": "watchdog"})))
    assert ranges(books) == [("a", 1, 1, 4, 5), ("a", 1, 1, 7, 7), ("a", 1, 1, 9, 10), ("a", 1, 3, 11, 11)]
    names = ("cause", "first_seq", "last_seq", "published", "missing", "unexplained", "open")
    assert figures(books, *names) == {
        (1, 1): ("power", 1, 10, 10, 5, 5, False),
        (1, 3): ("watchdog", 11, 12, 2, 1, 1, True),
    }
    assert books.summary["totals"]["missing"] == 6


@pytest.mark.req("P4")
def test_losses_are_split_into_dropped_in_doubt_and_unexplained(landing, books):
    books.take(messages(landing, *[(1, seq, {}) for seq in range(2, 5)], *[(1, seq, {}) for seq in range(15, 20)]))
    books.take(messages(landing, (1, 1, {"first": 1, "dropped": 2}), (1, 20, {"dropped": 5})))
    windows = [(9, 11), (10, 11), (9, 9)]  # they may overlap: the same messages again
    told = [
        {"doubt_first": lo, "doubt_last": hi} | ({} if n else {"first": 21, "dropped": 5})
        for n, (lo, hi) in enumerate(windows)
    ]
    books.take(messages(landing, *[(2, 21 + n, labels) for n, labels in enumerate(told)]))
    assert figures(books, "missing", "dropped", "in_doubt", "unexplained") == {
        (1, 1): (10, 3, 3, 4),
        (1, 2): (0, 0, 0, 0),
    }


@pytest.mark.req("P4")
@pytest.mark.parametrize("lost", range(1, 6))
def test_lost_start_of_the_first_boot_counts_as_missing(landing, books, lost):
    books.take(messages(landing, *[(1, seq, {}) for seq in range(lost + 1, 9)]))
    assert ranges(books) == [("a", 1, 1, 1, lost)]
    assert figures(books, "first_seq", "published", "missing", "unexplained") == {(1, 1): (1, 8, lost, lost)}
    books.take(messages(landing, (1, 1, {"first": 1})))  # late
    assert books.summary["totals"]["missing"] == lost - 1


@pytest.mark.req("P4")
def test_late_message_of_a_lost_boot_moves_missing_numbers_to_it(landing, books):
    books.take(messages(landing, (3, 20, {"first": 20}), (3, 21, {}), (4, 22, {"first": 22})))
    assert ranges(books) == [("a", 1, 3, 1, 19)]
    books.take(messages(landing, (1, 5, {})))
    assert ranges(books) == [("a", 1, 1, 1, 4), ("a", 1, 1, 6, 19)]
    assert figures(books, "first_seq", "published", "missing") == {
        (1, 1): (1, 19, 18),
        (1, 3): (20, 2, 0),
        (1, 4): (22, 1, 0),
    }
    assert books.summary["totals"]["missing"] == books.lives["missing"].to_pylist()[0] == 18


@pytest.mark.req("P4")
def test_boot_message_with_since_excludes_earlier_numbers_from_missing(landing, books):
    landing.message("a", 5, 103, life=77)
    landing.message("a", 6, 104, life=77)
    landing.message("a", 7, 105, life=77)
    rows, landing.rows = landing.rows, []
    books.take(rows)
    assert ranges(books) == [("a", 1, 5, 1, 102)]
    landing.message("a", 8, 106, life=77, kind="boot", first=106, since=102)
    rows, landing.rows = landing.rows, []
    books.take(rows)
    assert ranges(books) == [("a", 1, 5, 102, 102)]
    assert books.summary["totals"]["published"] == 5


@pytest.mark.req("P4")
def test_jumped_counter_is_suspect_and_not_counted_as_losses(landing, books):
    far = 1_000_000_000
    books.take(messages(landing, *[(1, seq, {}) for seq in (1, 2, 4, far, far + 1)]))
    assert ranges(books) == [("a", 1, 1, 3, 3)]
    assert figures(books, "published", "delivered", "missing", "suspect", "absent") == {(1, 1): (6, 5, 1, 1, 0)}
    assert books.lives["suspect"].to_pylist() == [1]


@pytest.mark.req("P4")
def test_missing_numbers_get_the_boards_reason_or_stay_unexplained(landing, books):
    books.take(messages(landing, (1, 1, {"first": 1, "dropped": 0}), (1, 2, {}), (1, 30, {})))
    assert figures(books, "missing", "unexplained") == {(1, 1): (27, 27)}
    named = {
        "refused_seqs": "2-4,8",  # 2 arrived nevertheless
        "expired_seqs": "8-9",  # 8 has a reason already
        "dropped_seqs": "12-13",
        "damaged_seqs": "14",
        "doubt_first": 14,
        "doubt_last": 16,
    }
    names = ("missing", "refused", "expired", "dropped", "damaged", "in_doubt", "unexplained")
    books.take(messages(landing, (2, 31, {"first": 31, "dropped": 6, **named})))
    assert figures(books, *names)[1, 1] == (27, 3, 1, 2, 1, 2, 18)
    books.take(messages(landing, (2, 32, named), (2, 33, {"refused_seqs": "20-22,24"})))  # repeated, and more
    assert figures(books, *names)[1, 1] == (27, 7, 1, 2, 1, 2, 14)
    books.take(messages(landing, (3, 34, {"first": 34, "dropped": 12})))
    # Of the six that were dropped by count in boot 2 none is missing there.
    assert figures(books, *names) == {(1, 1): (27, 7, 1, 2, 1, 2, 14), (1, 2): (0,) * 7, (1, 3): (0,) * 7}
    assert books.lives["refused_ranges"].to_pylist() == [
        [{"lo": lo, "hi": hi} for lo, hi in ((2, 4), (8, 8), (20, 22), (24, 24))]
    ]
    totals = books.summary["totals"]
    assert [totals[name] for name in names] == [27, 7, 1, 2, 1, 2, 14]


@pytest.mark.req("P4")
@pytest.mark.parametrize("seed", range(3))
def test_audit_is_the_same_for_any_split_into_batches(landing, seed, monkeypatch):
    rounds = generated(seed, 60)
    one = Books(landing)
    one.take(joined(rounds))
    whole = one.rows()
    monkeypatch.setattr(ledger, "SETTLED_ROWS", 20)
    # Each seed has its own histories, and a third of the positions where they can be cut.
    for cuts in ([*range(1, len(rounds))], *([cut] for cut in range(1 + seed, len(rounds), 3))):
        books = Books(landing)
        for begin, end in pairwise([0, *cuts, len(rounds)]):
            books.take(joined(rounds[begin:end]))
        rows = books.rows()
        for name in schemas.AUDIT.names:
            if not name.startswith(
                ("delay_", "late", "base_us", "steps", "counts", "ties")
            ):  # these are approximate, to one step
                assert {key: row[name] for key, row in rows.items()} == {
                    key: row[name] for key, row in whole.items()
                }, name
        assert {**books.summary["totals"], "late": 0} == {**one.summary["totals"], "late": 0}
    suspected = {key[:2] for key, row in one.rows().items() if row["suspect"]}
    missing = {(row["device"], row["life"]): set() for row in one.lives.to_pylist()}
    for *key, _, lo, hi in ranges(one):
        if tuple(key) not in suspected:
            missing[tuple(key)] |= set(range(lo, hi + 1))
    assert len(suspected) < len(missing) / 2
    seen = {key: set() for key in missing}
    for row in one.state.intervals_table().to_pylist():
        if (row["device"], row["life"]) not in suspected:
            seen[row["device"], row["life"]] |= set(range(row["lo"], row["hi"] + 1))
    for key in missing.keys() - suspected:
        assert missing[key] == set(range(1, max(seen[key]) + 1)) - seen[key]


@pytest.mark.req("P4", "P7")
def test_late_message_moves_an_old_boot_out_of_its_settled_file(landing, books, monkeypatch):
    monkeypatch.setattr(ledger, "SETTLED_ROWS", 4)
    monkeypatch.setattr(ledger, "FULL_ROWS", 4)
    recomputed, rows = [], ledger._rows

    def counted(state, spans, wanted, *rest):
        recomputed.append(len(wanted))
        return rows(state, spans, wanted, *rest)

    monkeypatch.setattr(ledger, "_rows", counted)
    for boot in range(1, 20):
        books.take(messages(landing, (boot, 3 * boot, {}), (boot, 3 * boot + 2, {})))
        assert books.newest.num_rows <= 6
        assert recomputed[-1] == min(boot, 2)
    assert len(books.settled) >= 4
    assert books.loaded == []
    assert books.summary["totals"]["missing"] == 2 + 19  # 1 and 2, which never arrived
    books.take(messages(landing, (5, 16, {})))
    assert figures(books, "missing")[1, 5] == (0,)
    assert sum(value for (value,) in figures(books, "missing").values()) == books.summary["totals"]["missing"] == 20
    assert len(books.rows()) == books.newest.num_rows + sum(one.num_rows for one in books.settled.values()) == 19
    assert books.summary["totals"]["boots"] == 19
    assert books.lives["missing"].to_pylist() == [20]


@pytest.mark.req("P4", "P7")
def test_settled_files_are_merged_until_they_are_full(landing, books, monkeypatch):
    monkeypatch.setattr(ledger, "SETTLED_ROWS", 4)
    monkeypatch.setattr(ledger, "FULL_ROWS", 32)
    written = 0
    for boot in range(1, 100):
        before = dict(books.settled)
        books.take(messages(landing, (boot, 3 * boot, {}), (boot, 3 * boot + 2, {})))
        written += sum(one.num_rows for name, one in books.settled.items() if before.get(name) is not one)
        assert books.newest.num_rows <= 6
        sizes = [one.num_rows for _, one in sorted(books.settled.items())]
        assert all(one >= 32 for one in sizes[:-3])
        assert all(one < 64 for one in sizes)
    assert len(books.rows()) == books.newest.num_rows + sum(one.num_rows for one in books.settled.values()) == 99
    assert written <= 2.7 * 99  # a row is rewritten each time that its file's size doubles
    books.take(messages(landing, (50, 151, {})))
    assert figures(books, "missing")[1, 50] == (0,)
    assert books.summary["totals"]["missing"] == 2 + 99 - 1 == books.lives["missing"].to_pylist()[0]


@pytest.mark.req("P4")
def test_in_doubt_window_covers_settled_boots(landing, books, monkeypatch):
    monkeypatch.setattr(ledger, "SETTLED_ROWS", 4)
    monkeypatch.setattr(ledger, "FULL_ROWS", 4)
    for boot in range(1, 12):
        books.take(messages(landing, (boot, 3 * boot, {}), (boot, 3 * boot + 2, {})))
    books.take(messages(landing, (12, 36, {"first": 36, "doubt_first": 8, "doubt_last": 14})))
    doubted = {key[2]: row["in_doubt"] for key, row in books.rows().items() if row["in_doubt"]}
    assert doubted == {3: 1, 4: 1}  # their messages 10 and 13; 7 is outside
    assert books.summary["totals"]["in_doubt"] == 2


@pytest.mark.req("P4")
def test_delays_are_estimated_once_the_clock_is_known(landing, books):
    for seq in range(1, 101):
        late_us = 100_000 + (0 if seq <= 60 else 10_000 if seq <= 95 else 100_000_000)
        landing.message("a", 1, seq, up=float(seq), arrival_us=1_790_000_000_000_000 + seq * 1_000_000 + late_us)
    rows, landing.rows = landing.rows, []
    books.take(rows)
    assert figures(books, "delay_p50_ms", "late", "offset_us") == {(1, 1): (None, 0, None)}
    landing.message("a", 1, 101, up=101.0, bt=1_790_000_101, arrival_us=1_790_000_101_100_000)
    rows, landing.rows = landing.rows, []
    books.take(rows)
    ((p50, p90, p99, late, offset_us),) = figures(
        books, "delay_p50_ms", "delay_p90_ms", "delay_p99_ms", "late", "offset_us"
    ).values()
    assert p50 == pytest.approx(100.0, abs=1)
    assert p90 == pytest.approx(110, rel=0.01)
    assert p99 == pytest.approx(100_100, rel=0.03)
    assert (late, offset_us) == (5, 1_790_000_000_000_000)
    assert sum(books.summary["octaves"].values()) == 101


@pytest.mark.req("P4")
@pytest.mark.parametrize("clock", [{}, {"bt": 1_790_000_004}])
def test_message_without_uptime_does_not_change_its_boots_delays(landing, books, clock):
    for seq in range(1, 4):
        arrival_us = 1_790_000_000_000_000 + seq * 1_000_000 + 20_000
        landing.message("a", 1, seq, up=seq, bt=1_790_000_000 + seq, arrival_us=arrival_us)
    pack = [{"bn": "a/", "boot": 1, "seq": 4, "n": "load1", "v": 1, **clock}]
    landing.raw("flashmqtt/a/readings", write_pack(pack), arrival_us=1_790_000_004_000_000)
    rows, landing.rows = landing.rows, []
    books.take(rows)
    assert figures(books, "late", "delay_p99_ms") == {(1, 1): (0, 20.0)}


@pytest.mark.parametrize("seed", range(20))
def test_weighted_percentiles_equal_those_of_repeated_values(seed):
    rng = np.random.default_rng(seed)
    boots = 5
    boot = np.sort(rng.integers(0, boots, 12))
    value = rng.integers(0, 50, 12).astype(float)
    order = np.lexsort((value, boot))
    value, weight = value[order], rng.integers(1, 5, 12)
    for share in (0.01, 0.5, 0.6, 0.99, 1.0):
        found = delays.percentile(boot, value, weight, boots, share)
        for n in range(boots):
            written = np.repeat(value[boot == n], weight[boot == n])
            if len(written):
                assert found[n] == np.quantile(written, share, method="inverted_cdf")
            else:
                assert np.isnan(found[n])


COMPARED = ("first_seq", "last_seq", "published", "delivered", "resent", "reordered", "missing")


@pytest.mark.req("P4")
@pytest.mark.parametrize("seed", range(100, 112))
def test_audit_of_generated_fleets_equals_the_planted_truth(landing, seed, monkeypatch):
    monkeypatch.setattr(ledger, "SETTLED_ROWS", 2)
    planted, truth = fleet(seed, devices=10)
    rows = rows_of(landing, planted)
    rng = random.Random(seed)
    cuts = sorted({0, len(rows), *rng.sample(range(len(rows)), rng.choice((0, 3, 20)))})
    books = Books(landing)
    for begin, end in pairwise(cuts):
        books.take(rows[begin:end])
    expected = {}
    for key, first in truth.first.items():
        last, lost = truth.last[key], truth.missing[key]
        told = (last - first + 1, truth.delivered[key], truth.resent[key], truth.reordered[key], len(lost))
        expected[key] = (first, last, *told)
    found = books.rows()
    assert {key: tuple(row[name] for name in COMPARED) for key, row in found.items()} == expected
    for name in summary.TOTALS:
        assert books.summary["totals"][name] == sum(row[name] for row in found.values()), name
    assert books.summary["totals"]["boots"] == len(found)
    assert books.summary["totals"]["devices"] == len({key[0] for key in found})
    assert books.summary["totals"]["twice"] == books.summary["totals"]["absent"] == 0
    for row in books.lives.to_pylist():
        own = [one for key, one in found.items() if key[:2] == (row["device"], row["life"])]
        for name in ("published", "delivered", "missing", "late"):
            assert row[name] == sum(one[name] for one in own)
        assert row["boots"] == len(own)
        assert row["last_arrival"] == max(one["last_arrival"] for one in own)


CLOCKS = (0, 0, 0.4, 0.8, 1.6, 700, -90)
"""Offsets of clocks from the true time in seconds: exact, drifting, set again."""


def clock_history(rng, name):
    """Return (seq, payload, offset of the clock in seconds or None) in the order of arrival."""
    history = []
    for seq in range(1, 6):
        clock = None if rng.random() < 0.15 else rng.choice(CLOCKS)
        head = {"bn": f"{name}/", "boot": 1, "seq": seq, "up": float(seq), "n": "load1", "v": 1}
        if clock is not None:
            head["bt"] = round(TIME_S + clock + seq, 3)
        history.append((seq, write_pack([head]), clock))
    history = rng.sample(history, rng.randint(3, 5))  # in any order, and some are lost
    return [*history, rng.choice(history)]


def clock_of(history):
    """Return how often a clock jumped, and where it was set for the last time (None: never)."""
    told = sorted({(seq, clock) for seq, clock in history if clock is not None})
    set_at = [now for (_, one), (now, other) in pairwise(told) if abs(other - one) > 1.005]
    return len(set_at), set_at[-1] if set_at else None


def splits(books, rounds, begin=0, cuts=()):
    """Yield (cuts, books) of all splits of the rounds. Common beginnings are computed once."""
    for end in range(begin + 1, len(rounds) + 1):
        longer = books.copy()
        longer.take(joined(rounds[begin:end]))
        if end == len(rounds):
            yield cuts, longer
        else:
            yield from splits(longer, rounds, end, (*cuts, end))


@pytest.mark.req("P4")
def test_clock_jumps_are_the_same_for_any_split_into_batches(landing):
    rng = random.Random(120)
    histories = {f"d{n}": clock_history(rng, f"d{n}") for n in range(120)}
    expected = {name: clock_of([(seq, clock) for seq, _, clock in history]) for name, history in histories.items()}
    rounds = []
    for n in range(6):
        for name, history in histories.items():
            if n < len(history):
                landing.raw(f"flashmqtt/{name}/readings", history[n][1])
        rounds.append(landing.rows)
        landing.rows = []
    for cuts, books in splits(Books(landing), rounds):
        told = {name: [] for name in histories}
        for row in pa.concat_tables(books.ties).to_pylist():
            told[row["device"]].append((row["seq"], row["offset_us"] / 1e6 - TIME_S))
        assert {name: clock_of(one) for name, one in told.items()} == expected, cuts


@pytest.mark.req("P4")
def test_steady_clock_gives_few_ties_and_drifting_clock_no_jump(landing):
    for seq in range(1, 1001):
        landing.message("a", 1, seq, up=float(seq), bt=round(TIME_S + seq, 3))
        landing.message("b", 1, seq, up=float(seq), bt=round(TIME_S + seq * 1.01, 3))
    rows, landing.rows = landing.rows, []
    for cuts in ((0, 2000), (0, 500, 501, 1500, 2000)):
        books = Books(landing)
        for begin, end in pairwise(cuts):
            books.take(rows[begin:end])
        told = [row for part in books.ties for row in part.to_pylist()]
        assert {clock_of([(row["seq"], row["offset_us"] / 1e6) for row in told if row["device"] == "b"])} == {(0, None)}
        assert len([row for row in told if row["device"] == "a"]) <= 2 * len(cuts)
        assert len([row for row in told if row["device"] == "b"]) < 20 + 2 * len(cuts)


def test_health_counters_are_summed_over_boots(landing, books):
    def health(boot, seq, up, wear, connects):
        landing.raw(
            "flashmqtt/a/health",
            b'[{"bn":"a/","boot":%d,"seq":%d,"up":%d,"n":"wear","v":%r},{"n":"connects","v":%r}]'
            % (boot, seq, up, wear, connects),
        )
        rows, landing.rows = landing.rows, []
        books.take(rows)

    health(1, 1, 600, 1000, 2)
    health(1, 2, 86_400, 1010, 4)
    health(1, 3, 90_000, 1e300, -1)  # values that no board's counter can have
    health(2, 4, 86_400, 1100, 2)
    (row,) = books.lives.to_pylist()
    assert (row["erases_first"], row["erases"], row["told_uptime"], row["reconnects"]) == (1000, 1100, 172_800, 4)


def test_summary_does_not_grow_with_time_or_texts():
    found = summary.empty()
    for hour in range(0, 24 * 365 * 3, 23):
        arrival_us = pa.array([1_790_000_000_000_000 + hour * 3_600_000_000])
        summary.add_arrivals(found, pa.table({"seq": [1], "row": [1], "arrival": arrival_us}))
        more = summary.empty()
        more["causes"] = {f"cause {hour}": 1}
        summary.add(found, more)
    assert len(found["time"]["messages"]) <= summary.MOST_STEPS + 2
    assert sum(found["time"]["messages"].values()) == len(range(0, 24 * 365 * 3, 23)) == sum(found["causes"].values())
    assert len(found["causes"]) <= 4 * summary.MOST_TEXTS


def test_boots_with_an_empty_cause_and_without_one_are_counted_together():
    rows = [
        {field.name: None for field in schemas.AUDIT} | {"cause": cause, "delay_octaves": []}
        for cause in ("", None, "")
    ]
    schema = pa.schema([field.with_nullable(True) for field in schemas.AUDIT])
    assert summary.of(pa.Table.from_pylist(rows, schema))["causes"] == {"not told": 3}


def test_summary_does_not_grow_with_the_length_of_texts():
    """Causes of 250 KB made each later commit 25 MB long."""
    found = summary.empty()
    for number in range(150):
        more = summary.empty()
        more["causes"] = {f"{number}{'x' * 10_000}": 1, "x" * 10_000 + str(number): 1}
        summary.add(found, more)
        levels = "/t\n" * 5000
        topics = [f"{number}{'t' * 10_000}/d/x", f"{levels}/{number}", "a/b/c"]
        summary.add_topics(found, pa.array(topics).dictionary_encode())
        summary.add_reasons(found, {"r" * 10_000 + str(number): 1})
    assert (
        found["causes"]["x" * summary.LONGEST_TEXT + "…"] == found["reasons"]["r" * summary.LONGEST_TEXT + "…"] == 150
    )
    assert found["topics"]["a/+/c"] == 150
    assert all(sum(found[part].values()) == {"causes": 300, "topics": 450, "reasons": 150}[part] for part in TEXTS)
    assert len(json.dumps(found)) < 100_000
    less = summary.empty()
    summary.add(less, {**summary.empty(), "causes": {"x" * 10_000 + str(number): 1 for number in range(150)}})
    summary.add(found, less, -1)
    assert sum(found["causes"].values()) == 150


def test_gaps_are_the_numbers_outside_the_intervals():
    rng = random.Random(5)
    state = State()
    state.keys = np.arange(5) << 20
    seen = {n: sorted(rng.sample(range(10, 60), rng.randint(1, 30))) for n in range(5)}
    codes = np.concatenate([intervals.encode(np.full(len(s), n), np.array(s)) for n, s in seen.items()])
    state.seen = intervals.EMPTY.union(codes)
    places, first, last = np.array([0, 2, 3]), np.array([5, 10, 9]), np.array([70, 60, 59])
    first = np.minimum(first, [seen[n][0] for n in places])
    of, lo, hi = ledger._gaps(state, places, first, last)
    for n, place in enumerate(places.tolist()):
        found = {k for a, b in zip(lo[of == n], hi[of == n], strict=True) for k in range(a, b + 1)}
        assert found == set(range(first[n], last[n] + 1)) - set(seen[place])
    assert pc.sum(pa.array(hi - lo + 1)).as_py() > 0


def test_reported_ranges_are_the_union_of_all_reports_and_explain_what_is_missing(landing, books):
    rng = random.Random(8)
    told = {"refused": set(), "expired": set()}
    arrived = set()
    for batch in range(12):
        some = []
        for seq in sorted(rng.sample(range(1 + 40 * batch, 41 + 40 * batch), 8)):
            arrived.add(seq)
            labels = {}
            for reason, numbers in told.items():
                begins = [rng.randint(1, 500) for _ in range(rng.randint(0, 4))]
                spans = [(lo, lo + rng.choice((0, 0, 1, 9))) for lo in begins]
                numbers.update(n for lo, hi in spans for n in range(lo, hi + 1))
                if spans:
                    labels[f"{reason}_seqs"] = ",".join(f"{lo}-{hi}" for lo, hi in spans)
            some.append((1 + batch // 3, seq, {"life": 7, **labels}))
        books.take(messages(landing, *some))
    (life,) = books.lives.to_pylist()
    for reason, numbers in told.items():
        edges = (
            [n for n in sorted(numbers) if n - 1 not in numbers],
            [n for n in sorted(numbers) if n + 1 not in numbers],
        )
        assert [(one["lo"], one["hi"]) for one in life[f"{reason}_ranges"]] == list(zip(*edges, strict=True))
    missing = set(range(1, max(arrived))) - arrived
    by_reason = [missing & told["refused"], missing & told["expired"] - told["refused"]]
    assert (life["refused"], life["expired"]) == tuple(map(len, by_reason))
    assert life["unexplained"] == len(missing) - sum(map(len, by_reason))


@pytest.mark.req("P5")
@pytest.mark.parametrize("in_one_message", [True, False])
def test_reported_ranges_are_joined_all_at_once(landing, books, monkeypatch, in_one_message):
    """To sort all ranges again for each new one took 37 s for a message of 91 KB."""
    count = 4000
    elements = []
    joined = intervals.Intervals.joined

    def counted(self, other):
        elements.append(len(self.lo) + len(other.lo))
        return joined(self, other)

    monkeypatch.setattr(intervals.Intervals, "joined", counted)
    numbers = range(2, 3 * count, 3)
    if in_one_message:
        told = [(3 * count + boot, boot, {}) for boot in range(200)]  # (seq, boot, labels)
        told.append((3 * count + 200, 200, {"refused_seqs": ",".join(map(str, numbers))}))
    else:
        told = [(seq + 1, 1, {"refused_seqs": str(seq)}) for seq in numbers]
    books.take(messages(landing, *((boot, seq, labels | {"life": 7}) for seq, boot, labels in told)))
    (life,) = books.lives.to_pylist()
    assert len(life["refused_ranges"]) == life["refused"] == count
    assert count <= sum(elements) <= 12 * count
    elements.clear()
    books.take(messages(landing, (201, 3 * count + 201, {"life": 7, "refused_seqs": "2-5,11"})))
    (life,) = books.lives.to_pylist()
    more = 2 if in_one_message else 1  # 3 and 4; if each number was in a message of its own, 3 arrived
    assert (len(life["refused_ranges"]), life["refused"]) == (count - 1, count + more)
    assert count <= sum(elements) <= 12 * count
