"""Lives: wiped boards, two boards under one id, jumps, old copies. How messages fell into batches makes no difference."""

import itertools
import random
from collections import Counter

import pytest

from host_tests.pipeline.conftest import Landing
from host_tests.pipeline.planted import write_pack
from host_tests.pipeline.test_task import counted, intervals, work_parts
from tools.pipeline import lives, placing

SUMS = ("delivered", "readings", "resent", "replayed", "reordered", "returns")


def payload(boot, seq, up=None, identity=0, first=None, value=1, device="a", **labels):
    """Return a message."""
    head = {"bn": f"{device}/", "boot": boot, "seq": seq, "up": seq / 10 if up is None else up}
    head |= {"n": "x", "v": value, **labels}
    if identity:
        head["life"] = identity
    if first is not None:
        head["first"] = first
    return write_pack([head])


def side_by_side(payloads):
    """Return the rows of a landing in rounds: the first message of each of many devices, then the second of each ..."""
    landing = Landing(None)
    rounds = []
    for messages in itertools.zip_longest(*payloads):
        for n, one in enumerate(messages):
            if one is not None:
                landing.raw(f"flashmqtt/d{n}/readings", one.replace(b"a/", b"d%d/" % n))
        rounds.append(landing.rows)
        landing.rows = []
    return rounds


def landed(payloads):
    """Return the rows of one device's messages, a round each."""
    landing = Landing(None)
    for one in payloads:
        landing.raw("flashmqtt/a/readings", one)
    return [[row] for row in landing.rows]


def joined(rounds):
    return list(itertools.chain.from_iterable(rounds))


def outcome(rounds, cuts=(), reload=True):
    """Return what batches cut behind these rounds come to, in an order of its own."""
    bounds = [0, *cuts, len(rounds)]
    rows = [joined(rounds[begin:end]) for begin, end in itertools.pairwise(bounds)]
    tables, state = work_parts(Landing(None), rows, range(1, len(rows) + 1), reload)
    found = {
        name: sorted(
            tuple((key, repr(value)) for key, value in row.items() if key != "segment") for row in tables[name]
        )
        for name in ("readings", "events", "duplicates", "quarantine", "prints", "undelivered")
    }
    found |= {f"n_{name}": counted(tables, name) for name in SUMS}
    found["intervals"] = intervals(state)
    found["lives"] = sorted(state.lives_table().to_pylist(), key=lambda row: (row["device"], row["life"]))
    held = [{name: value for name, value in row.items() if name != "segment"} for row in state.held_table().to_pylist()]
    found["held"] = sorted(held, key=lambda row: row["device"])
    return found


def splits(length, most=None):
    """Yield the places to cut, at most so many at a time."""
    for count in range(length if most is None else most + 1):
        yield from itertools.combinations(range(1, length), count)


def assert_batches_make_no_difference(rounds, most=None):
    whole = outcome(rounds, reload=False)
    for cuts in splits(len(rounds), most):
        assert outcome(rounds, cuts) == whole, cuts
    return whole


def in_tables(found):
    """Return (life, boot, seq) of the readings."""
    keys = []
    for row in found["readings"]:
        told = dict(row)
        keys.append(tuple(int(told[name]) for name in ("life", "boot", "seq")))
    return sorted(keys)


def reasons(found):
    return Counter(dict(row)["reason"].strip("'\"").split(":")[0] for row in found["quarantine"])


# A board's life before it was wiped, and the one after: boot messages tell where a boot began.
OLD = [payload(1, 1, first=1), payload(1, 2), payload(1, 3), payload(2, 4, first=4), payload(2, 5)]
NEW = [
    payload(1, 1, up=0.7, first=1),
    payload(1, 2, up=0.8),
    payload(1, 3, up=0.9),
    payload(2, 4, up=0.7, first=4),
]


def told(payloads, identity):
    """Return messages as a board says them that tells its life."""
    return [one.replace(b'"boot"', b'"life":%d,"boot"' % identity) for one in payloads]


@pytest.mark.req("P3", "P4")
def test_wiped_board_that_tells_its_life_loses_nothing_in_any_order():
    """Boot message lost or late, copies from the old life after the wipe: all the same."""
    old, new = told(OLD, 77), told(NEW, 88)
    histories, expected = [], []
    for copies in ([], [1], [4], [0, 3]):
        late = [old[n] for n in copies]
        for order in (
            [*old, *new, *late],
            [*old, *new[1:], *late, new[0]],
            [*new, *old, *late],
            [*old, *new[1:], *late],
        ):
            histories.append(order)
            expected.append((sorted(Counter(b'"life":88' in one for one in set(order)).values()), len(copies)))
    found = assert_batches_make_no_difference(side_by_side(histories), most=2)
    assert not found["quarantine"]
    for n, (stored, copies) in enumerate(expected):
        delivered = Counter()
        for (device, life, _), count in found["n_delivered"].items():
            delivered[life] += count * (device == f"d{n}")
        assert sorted((+delivered).values()) == stored
        assert sum(count for (device, *_), count in found["n_resent"].items() if device == f"d{n}") == copies


@pytest.mark.req("P3", "P4")
def test_wiped_board_that_tells_no_life_waits_for_its_boot_message():
    found = assert_batches_make_no_difference(landed([*OLD, *NEW[1:3], NEW[0], NEW[3], OLD[1]]), most=2)
    assert in_tables(found) == sorted(
        [(1, 1, 1), (1, 1, 2), (1, 1, 3), (1, 2, 4), (1, 2, 5), (2, 1, 1), (2, 1, 2), (2, 1, 3), (2, 2, 4)]
    )
    assert not found["quarantine"]
    assert sum(found["n_resent"].values()) == 1
    # The boot message is lost; the next boot's shows the life, and what waited finds its place.
    found = assert_batches_make_no_difference(landed([*OLD, *NEW[1:]]), most=2)
    assert Counter(life for life, _, _ in in_tables(found)) == {1: 5, 2: 3}
    # And none comes: kept, and said.
    found = assert_batches_make_no_difference(landed([*OLD, *NEW[1:3]]), most=2)
    assert reasons(found) == {"identity reused": 2}
    assert len(found["held"]) == 2


@pytest.mark.req("P3")
@pytest.mark.parametrize("identity", [0, 5])
def test_same_identity_with_another_payload_is_a_named_conflict_whenever_it_comes(identity):
    first, other = payload(1, 2, identity=identity, value=1), payload(1, 2, identity=identity, value=2)
    start = payload(1, 1, identity=identity, first=1)
    later = [payload(1, seq, identity=identity) for seq in range(3, 6)]
    found = assert_batches_make_no_difference(landed([start, first, *later, other, first]))
    assert reasons(found) == {"identity reused": 1}
    assert sum(found["n_resent"].values()) == 1
    assert len(in_tables(found)) == 5


@pytest.mark.req("P4")
def test_message_in_quarantine_is_no_sign_of_life_of_its_boot():
    first, other = payload(1, 1, identity=5), payload(1, 1, identity=5, value=2)
    late = payload(1, 1, identity=6, device="b")
    for cuts in ([], [1], [2], [1, 2]):
        landing = Landing(None)
        for device, one in (("a", first), ("a", other), ("b", late)):
            landing.raw(f"flashmqtt/{device}/readings", one)
        rows = landing.rows
        parts = [rows[begin:end] for begin, end in itertools.pairwise([0, *cuts, 3])]
        tables, _ = work_parts(landing, parts, range(1, len(parts) + 1), reload=True)
        heard = [row["last_arrival"] for row in tables["tally"] if row["device"] == "a"]
        assert [one.timestamp() for one in heard] == [rows[0][1] / 1e6]


@pytest.mark.req("P3", "P4")
@pytest.mark.parametrize("identity", [0, 5])
def test_every_order_of_a_small_history_gives_the_same_in_all_splits(identity):
    history = [
        payload(1, 1, identity=identity, first=1),
        payload(1, 2, identity=identity),
        payload(2, 3, identity=identity, first=3),
        payload(1, 2, identity=identity, value=2),
        payload(1, 1, up=9, identity=identity and 6, first=1),
    ]
    rounds = side_by_side(list(itertools.permutations(history)))
    found = assert_batches_make_no_difference(rounds)
    kept = len(found["readings"]) + len(found["quarantine"]) + sum(found["n_resent"].values())
    assert kept == sum(map(len, rounds))


@pytest.mark.req("P4")
@pytest.mark.parametrize("identity", [0, 5])
def test_counter_that_jumps_far_is_a_suspect_until_another_message_is_there(identity):
    far = 1_000_000_000
    rows = landed([payload(1, seq, identity=identity) for seq in (1, 2, far, 3, 4)])
    found = assert_batches_make_no_difference(rows)
    assert found["intervals"] == {("a", 1, 1): {1, 2, 3, 4}}
    assert reasons(found) == {"counter jumped": 1}
    rows = landed([payload(1, seq, identity=identity) for seq in (1, 2, far, 3, far + 1, far + 2)])
    found = assert_batches_make_no_difference(rows)
    assert found["intervals"] == {("a", 1, 1): {1, 2, 3, far, far + 1, far + 2}}
    assert not found["quarantine"]


@pytest.mark.req("P3", "P4")
@pytest.mark.parametrize("identity", [0, 5])
def test_two_payloads_under_one_number_far_ahead_are_a_conflict_once_it_is_confirmed(identity):
    far = 1_000_000_000
    rows = landed(
        [
            payload(1, 1, identity=identity),
            payload(1, far, identity=identity),
            payload(1, far, identity=identity, value=2),
            payload(1, far + 1, identity=identity),
        ]
    )
    found = assert_batches_make_no_difference(rows)
    assert found["intervals"] == {("a", 1, 1): {1, far, far + 1}}
    assert reasons(found) == {"identity reused": 1}
    assert not found["held"]


@pytest.mark.req("P4")
@pytest.mark.parametrize("kind", ["told", "lives", "boots", "numbers"])
def test_two_boards_under_one_id_return_again_and_again(kind):
    one = {
        "told": [payload(1, seq, identity=5) for seq in range(1, 7)],
        "lives": [payload(7, seq, first=seq if seq == 1 else None, value=2) for seq in range(1, 7)],
        "boots": [payload(3, seq) for seq in range(1, 7)],
        "numbers": [payload(3, seq) for seq in range(1, 7)],
    }[kind]
    other = {
        "told": [payload(1, seq, identity=6, value=2) for seq in range(1, 7)],
        "lives": [payload(3, seq) for seq in range(50, 56)],
        "boots": [payload(8, seq) for seq in range(50, 56)],
        "numbers": [payload(3, seq) for seq in range(5000, 5006)],
    }[kind]
    order = [message for pair in zip(other, one, strict=True) for message in pair]
    found = assert_batches_make_no_difference(landed(order), most=2)
    assert sum(found["n_returns"].values()) >= 5
    assert not found["quarantine"]
    assert len(in_tables(found)) == 12
    # One after the other they are a board that was wiped, or lost a lot.
    assert sum(outcome(landed([*other, *one]))["n_returns"].values()) <= 1


@pytest.mark.req("P4")
def test_boots_of_one_told_life_that_arrive_crosswise_are_no_returns():
    first = [payload(1, seq, identity=5) for seq in range(1, 7)]
    second = [payload(2, seq, identity=5) for seq in range(7, 13)]
    found = assert_batches_make_no_difference(
        landed([message for pair in zip(second, first, strict=True) for message in pair]), most=2
    )
    assert sum(found["n_returns"].values()) == 0
    assert len(in_tables(found)) == 12


def test_messages_of_several_collectors_are_no_returns():
    landing = Landing(None)
    for seq in range(1, 21):
        landing.raw("flashmqtt/a/readings", payload(1 + seq // 11, seq))
    odd, even = landing.rows[::2], landing.rows[1::2]
    found = outcome([odd, even])
    assert found["n_reordered"]
    assert not found["n_returns"]


def history(rng):
    """Return a device's messages from up to three lives: some lost, some twice, some under another's identity."""
    messages = []
    for life in range(rng.randint(1, 3)):
        identity = rng.choice([0, 0, 5 + life])
        seq, boot = 0, 0
        for _ in range(rng.randint(1, 3)):
            boot += rng.choice((1, 1, 2))
            first = seq + 1
            for _ in range(rng.randint(1, 3)):
                seq += 1 << 25 if rng.random() < 0.06 else rng.choice((1, 1, 1, 2))
                own = first if seq == first and rng.random() < 0.8 else None
                messages.append(payload(boot, seq, round(rng.random(), 3), identity, own))
    messages = [one for one in messages if rng.random() < 0.85]
    copies = rng.sample(messages, min(len(messages), rng.randint(0, 3)))
    for at in range(len(messages) - 1):
        if rng.random() < 0.2:
            messages[at], messages[at + 1] = messages[at + 1], messages[at]
    for one in copies:
        changed = one if rng.random() < 0.7 else one.replace(b'"v": 1', b'"v": 3').replace(b'"v":1', b'"v":3')
        messages.insert(rng.randint(0, len(messages)), changed)
    return messages


def generated(seed, devices):
    rng = random.Random(seed)
    return side_by_side([history(rng) for _ in range(devices)])


@pytest.mark.req("P3", "P4")
@pytest.mark.parametrize("seed", range(4))
def test_batches_against_one_batch(seed):
    rounds = generated(seed, 200)
    found = assert_batches_make_no_difference(rounds, most=1)
    assert outcome(rounds, range(1, len(rounds))) == found
    kept = len(found["readings"]) + len(found["quarantine"]) + sum(found["n_resent"].values())
    assert kept == sum(map(len, rounds))  # nothing is dropped that was not compared
    assert len(reasons(found)) >= 3
    assert max(row["life"] for row in found["lives"]) >= 3


@pytest.mark.req("P4")
@pytest.mark.parametrize("seed", range(4, 7))
def test_what_is_plain_comes_out_as_message_by_message(seed, monkeypatch):
    rounds = generated(seed, 200)
    obvious = placing._obvious
    monkeypatch.setattr(placing, "_obvious", lambda *asked: none_of(*obvious(*asked)))
    slow = outcome(rounds)
    monkeypatch.undo()
    assert outcome(rounds) == slow


def none_of(life, plain, new):
    """Return the answer of `placing._obvious` with all devices taken for doubtful."""
    return life, plain & False, new


@pytest.mark.req("P3", "P5")
@pytest.mark.parametrize("seed", range(7, 10))
def test_landing_that_is_read_again_repeats_nothing_not_even_in_quarantine(seed):
    rounds = generated(seed, 100)
    landing = Landing(None)
    landing.raw("flashmqtt/a/readings", b"{")
    landing.raw("flashmqtt/a/readings", payload(1, 1, device="b"))
    bad = landing.rows
    for parts in ([[*joined(rounds), *bad]], [joined(rounds[:4]), [*joined(rounds[4:]), *bad]]):
        first, state_once = work_parts(Landing(None), parts, range(1, len(parts) + 1), reload=True)
        numbers = [*range(1, len(parts) + 1)] * 2
        again, state = work_parts(Landing(None), [*parts, *parts], numbers, reload=True)
        for name in ("readings", "events", "quarantine", "prints", "undelivered"):
            assert Counter(map(repr, again[name])) == Counter(map(repr, first[name])), name
        assert intervals(state) == intervals(state_once)
        assert state.held_table().to_pylist() == state_once.held_table().to_pylist()
        for name in ("delivered", "resent", "reordered", "returns"):
            assert counted(again, name) == counted(first, name)


def test_held_messages_beyond_the_limit_go_to_quarantine_the_oldest_first(monkeypatch):
    monkeypatch.setattr(lives, "MOST_HELD", 2)
    rows = landed([payload(1, 1, first=1), *[payload(1, 1, value=value) for value in range(2, 6)]])
    found = assert_batches_make_no_difference(rows)
    assert reasons(found) == {"identity reused": 4}
    assert [row["payload"] for row in found["held"]] == [payload(1, 1, value=value) for value in (4, 5)]


def test_copy_whose_print_is_gone_is_kept_and_said(monkeypatch):
    rounds = landed([payload(1, 1, identity=5), payload(1, 1, identity=5)])
    monkeypatch.setattr("host_tests.pipeline.test_task.Written.prints", lambda self: [])
    found = outcome(rounds, [1])
    assert [dict(row)["reason"] for row in found["quarantine"]] == [repr(lives.NOT_COMPARED)]
