"""Lives: wiped boards, two boards under one id, jumps, old copies. The split into batches makes no difference."""

import functools
import itertools
import random
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from host_tests.pipeline.conftest import Landing
from host_tests.pipeline.planted import write_pack
from host_tests.pipeline.test_task import KEY, YIELDED, Written, counted, intervals, reloaded, work_parts
from tools.command import Failure
from tools.pipeline.batch import lives, placing, state
from tools.pipeline.batch.messages import process
from tools.pipeline.batch.state import State
from tools.pipeline.tables import schemas

SUMS = ("delivered", "readings", "resent", "replayed", "reordered", "returns")
ROWS = ("readings", "events", "duplicates", "quarantine", "prints", "undelivered")


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


class Taken:
    """The result of some batches; `then` returns a new result and leaves this one unchanged."""

    def __init__(self):
        self.past = Written()
        self.state = State(self.past)
        self.tables = {name: [] for name in (*ROWS, "tally")}
        self.batches = 0

    def then(self, rows, reload=True):
        """Return the result with one more batch, which starts from the state as a task loads it."""
        found = Taken()
        found.past.tables = {name: list(tables) for name, tables in self.past.tables.items()}
        found.state = reloaded(self.state, found.past) if reload else State(found.past)
        found.tables = {name: list(tables) for name, tables in self.tables.items()}
        found.batches = self.batches + 1
        landing, written = Landing(None), Written()
        landing.rows, landing.number = rows, found.batches
        for name, table in process(found.state, landing.table()):
            table = table.select(YIELDED[name].names).cast(YIELDED[name])
            if name in found.tables:
                found.tables[name].append(table)
            (written if reload else found.past).take(name, table)
        for name, tables in written.tables.items():
            found.past.tables[name] += tables
        return found

    def outcome(self, reload=True):
        """Return all results as sorted tables."""
        state = reloaded(self.state, self.past) if reload else self.state
        held = state.held_table()
        found = {name: pa.concat_tables([YIELDED[name].empty_table(), *self.tables[name]]) for name in self.tables}
        quarantine = held.select(schemas.QUARANTINE.names)  # as commits.Output reads it
        found["quarantine"] = pa.concat_tables([found["quarantine"], quarantine])
        found["tally"] = summed(found["tally"])
        found |= {"intervals": state.intervals_table(), "lives": state.lives_table()}
        found = {name: in_order(table) for name, table in found.items()}
        # The order of a device's held messages is significant.
        found["held"] = sorted(without_segment(held).to_pylist(), key=lambda row: row["device"])
        return found


def in_order(table):
    """Return a table's rows sorted, without the segment number."""
    table = without_segment(table)
    return table.sort_by([(name, "ascending") for name in table.column_names])


def without_segment(table):
    return table.select([name for name in table.column_names if name != "segment"])


def summed(tally):
    """Return the sums of each boot, without boots that have only zeros."""
    found = tally.group_by(list(KEY)).aggregate([(name, "sum") for name in SUMS])
    some = [pc.greater(found[f"{name}_sum"], 0) for name in SUMS]
    return found.filter(functools.reduce(pc.or_, some))


def outcome(rounds, cuts=(), reload=True):
    """Return the result of batches that end after these rounds."""
    taken = Taken()
    for begin, end in itertools.pairwise([0, *cuts, len(rounds)]):
        taken = taken.then(joined(rounds[begin:end]), reload)
    return taken.outcome(reload)


def splits(rounds, most=None, taken=None, cuts=()):
    """Yield (cuts, outcome) of all splits with at most `most` cuts. Common beginnings are computed once."""
    taken, begin = taken or Taken(), cuts[-1] if cuts else 0
    yield cuts, taken.then(joined(rounds[begin:])).outcome()
    if most is None or len(cuts) < most:
        for end in range(begin + 1, len(rounds)):
            yield from splits(rounds, most, taken.then(joined(rounds[begin:end])), (*cuts, end))


def assert_batches_make_no_difference(rounds, most=None):
    whole = outcome(rounds, reload=False)
    for cuts, found in splits(rounds, most):
        assert_equal(found, whole, cuts)
    return as_rows(whole)


def assert_equal(found, whole, what=None):
    for name, table in found.items():
        assert table == whole[name], (what, name)


def as_rows(found):
    """Return an outcome's tables as rows, sums by boot, and sets of numbers by boot."""
    rows = {name: table if name == "held" else table.to_pylist() for name, table in found.items()}
    tally = rows.pop("tally")
    for name in SUMS:
        rows[f"n_{name}"] = {tuple(row[key] for key in KEY): row[f"{name}_sum"] for row in tally if row[f"{name}_sum"]}
    numbers = {}
    for row in rows["intervals"]:
        numbers.setdefault(tuple(row[key] for key in KEY), set()).update(range(row["lo"], row["hi"] + 1))
    return rows | {"intervals": numbers}


def in_tables(found, device="a"):
    """Return (life, boot, seq) of a device's readings."""
    rows = [row for row in found["readings"] if row["device"] == device]
    return sorted(tuple(row[name] for name in ("life", "boot", "seq")) for row in rows)


def reasons(found):
    return Counter(row["reason"].split(":")[0] for row in found["quarantine"])


def by_device(counts):
    """Return how many of each device."""
    found = Counter()
    for (device, *_), count in counts.items():
        found[device] += count
    return found


# A board's life before it was wiped, and the one after: boot messages tell where a boot began.
OLD = [payload(1, 1, first=1), payload(1, 2), payload(1, 3), payload(2, 4, first=4), payload(2, 5)]
NEW = [
    payload(1, 1, up=0.7, first=1),
    payload(1, 2, up=0.8),
    payload(1, 3, up=0.9),
    payload(2, 4, up=0.7, first=4),
]


def told(payloads, identity):
    """Return the messages as sent by a board that includes its life."""
    return [one.replace(b'"boot"', b'"life":%d,"boot"' % identity) for one in payloads]


@pytest.mark.req("P3", "P4")
def test_more_devices_than_a_key_can_number_are_refused(monkeypatch, tmp_path):
    largest = (state.MOST_DEVICES - 1, lives.MOST_LIVES, schemas.LARGEST)
    assert [one.item() for one in state.unpack(state.pack(*np.array([largest]).T))] == list(largest)
    monkeypatch.setattr(state, "MOST_DEVICES", 3)
    landing, found = Landing(tmp_path), State()
    for device in "abcd":
        list(process(found, landing.table()))
        landing.message(device, 1, 1)
    with pytest.raises(Failure, match="more than 3 devices: make the tables with more buckets"):
        list(process(found, landing.table()))


@pytest.mark.req("P3", "P4")
def test_wiped_board_with_life_identity_loses_nothing_in_any_order():
    """The boot message may be lost or late, and duplicates from the old life may arrive after the wipe."""
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
def test_wiped_board_without_life_identity_waits_for_its_boot_message():
    comes = [*OLD, *NEW[1:3], NEW[0], NEW[3], OLD[1]]
    next_shows_it = [*OLD, *NEW[1:]]  # the next boot message shows the life, and held messages are placed
    never = [*OLD, *NEW[1:3]]
    found = assert_batches_make_no_difference(side_by_side([comes, next_shows_it, never]), most=2)
    assert in_tables(found, "d0") == sorted(
        [(1, 1, 1), (1, 1, 2), (1, 1, 3), (1, 2, 4), (1, 2, 5), (2, 1, 1), (2, 1, 2), (2, 1, 3), (2, 2, 4)]
    )
    assert by_device(found["n_resent"]) == {"d0": 1}
    assert Counter(life for life, _, _ in in_tables(found, "d1")) == {1: 5, 2: 3}
    # Messages held for a boot message that never comes are kept, and reported.
    assert reasons(found) == {"identity reused": 2}
    assert {row["topic"] for row in found["quarantine"]} == {"flashmqtt/d2/readings"}
    assert [row["device"] for row in found["held"]] == ["d2"] * 2


@pytest.mark.req("P3", "P4")
def test_boot_message_with_first_above_known_numbers_begins_a_life():
    other_life = payload(1, 9, first=9)
    above = [other_life, payload(2, 1, first=1), payload(2, 6), payload(2, 5, first=4)]
    same = [other_life, payload(2, 1, first=1), payload(2, 3, first=1)]
    below = [other_life, payload(2, 2, first=2), payload(2, 5, first=1)]
    found = assert_batches_make_no_difference(side_by_side([above, same, below]))
    assert [in_tables(found, device) for device in ("d0", "d1", "d2")] == [
        [(1, 1, 9), (2, 2, 1), (2, 2, 6), (3, 2, 5)],
        [(1, 1, 9), (2, 2, 1), (2, 2, 3)],
        [(1, 1, 9), (2, 2, 2), (2, 2, 5)],
    ]
    newest = {(row["device"], row["life"]): row["seq"] for row in found["lives"] if row["arrival"]}
    assert newest == {("d0", 3): 5, ("d1", 2): 3, ("d2", 2): 5}


@pytest.mark.req("P3", "P4")
def test_held_duplicates_join_the_life_of_their_boot_message():
    waiting = payload(1, 2, value=2)
    other = waiting.replace(b'"v":2', b'"v":3')
    found = assert_batches_make_no_difference(landed([*OLD[:3], waiting, waiting, other, NEW[0]]), most=2)
    assert Counter(life for life, _, _ in in_tables(found)) == {1: 3, 2: 2}
    assert found["n_resent"] == {("a", 2, 1): 1}
    assert [row["payload"] for row in found["held"]] == [other]


@pytest.mark.req("P3")
def test_same_identity_with_another_payload_goes_to_quarantine():
    histories = []
    for identity in (0, 5):
        first, other = payload(1, 2, identity=identity, value=1), payload(1, 2, identity=identity, value=2)
        start = payload(1, 1, identity=identity, first=1)
        later = [payload(1, seq, identity=identity) for seq in range(3, 6)]
        histories.append([start, first, *later, other, first])
    found = assert_batches_make_no_difference(side_by_side(histories))
    assert reasons(found) == {"identity reused": 2}
    assert {row["topic"] for row in found["quarantine"]} == {"flashmqtt/d0/readings", "flashmqtt/d1/readings"}
    assert by_device(found["n_resent"]) == {"d0": 1, "d1": 1}
    assert Counter(row["device"] for row in found["readings"]) == {"d0": 5, "d1": 5}


@pytest.mark.req("P4")
def test_quarantined_message_does_not_update_last_arrival():
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
def test_batch_splits_make_no_difference_for_any_message_order():
    histories = []
    for identity in (0, 5):
        history = [
            payload(1, 1, identity=identity, first=1),
            payload(1, 2, identity=identity),
            payload(2, 3, identity=identity, first=3),
            payload(1, 2, identity=identity, value=2),
            payload(1, 1, up=9, identity=identity and 6, first=1),
        ]
        histories += itertools.permutations(history)
    rounds = side_by_side(histories)
    found = assert_batches_make_no_difference(rounds)
    kept = len(found["readings"]) + len(found["quarantine"]) + sum(found["n_resent"].values())
    assert kept == sum(map(len, rounds))


@pytest.mark.req("P4")
def test_far_jump_is_quarantined_until_a_second_message_confirms_it():
    far, histories = 1_000_000_000, []
    for identity in (0, 5):
        histories.append([payload(1, seq, identity=identity) for seq in (1, 2, far, 3, 4)])
        histories.append([payload(1, seq, identity=identity) for seq in (1, 2, far, 3, far + 1, far + 2)])
    found = assert_batches_make_no_difference(side_by_side(histories))
    suspected, confirmed = {1, 2, 3, 4}, {1, 2, 3, far, far + 1, far + 2}
    assert found["intervals"] == {
        (f"d{n}", 1, 1): numbers for n, numbers in enumerate((suspected, confirmed, suspected, confirmed))
    }
    assert reasons(found) == {"counter jumped": 2}
    assert {row["topic"] for row in found["quarantine"]} == {"flashmqtt/d0/readings", "flashmqtt/d2/readings"}


@pytest.mark.req("P3", "P4")
def test_confirmed_jump_with_two_payloads_quarantines_one():
    far = 1_000_000_000
    histories = [
        [
            payload(1, 1, identity=identity),
            payload(1, far, identity=identity),
            payload(1, far, identity=identity, value=2),
            payload(1, far + 1, identity=identity),
        ]
        for identity in (0, 5)
    ]
    found = assert_batches_make_no_difference(side_by_side(histories))
    assert found["intervals"] == {("d0", 1, 1): {1, far, far + 1}, ("d1", 1, 1): {1, far, far + 1}}
    assert reasons(found) == {"identity reused": 2}
    assert {row["topic"] for row in found["quarantine"]} == {"flashmqtt/d0/readings", "flashmqtt/d1/readings"}
    assert not found["held"]


def crosswise(one, other):
    return [message for pair in zip(other, one, strict=True) for message in pair]


FAR = 2 * lives.MOST_GAP


def taken(*messages):
    """Return the lives of messages (identity, boot, seq, first) after a device took all; 0 for those still held."""
    device = lives.Device([], [], {})
    found = {
        place: device.take(lives.Message(*message, place, "c", 1, place, place=place)).life
        for place, message in enumerate(messages)
    }
    found |= {held.place: life for _, held, life in device.released}
    assert [held.place for held in device.held] == [place for place, life in found.items() if not life]
    return list(found.values())


@pytest.mark.req("P3", "P4")
@pytest.mark.parametrize(
    ("second", "expected"),
    [
        ((7, 2, FAR + 5, None), [1, 2, 1, 1]),
        ((7, 2, FAR, None), [1, 2, 0, 0]),  # the same number
        ((8, 2, FAR + 5, None), [1, 2, 0, 0]),  # another life
        ((7, 3, FAR + 5, None), [1, 2, 1, 1]),
        ((7, 3, FAR - 5, None), [1, 2, 0, 0]),  # a later boot with a lower number
        ((7, 1, FAR - 5, None), [1, 2, 1, 1]),
        ((7, 1, FAR + 5, None), [1, 2, 0, 0]),
        ((7, 2, FAR + lives.NEAR, None), [1, 2, 1, 1]),
        ((7, 2, FAR + lives.NEAR + 1, None), [1, 2, 0, 0]),
    ],
)
def test_jump_is_confirmed_by_a_near_number_of_the_same_life(second, expected):
    assert taken((7, 1, 1, None), (8, 1, 1, None), (7, 2, FAR, None), second) == expected


@pytest.mark.req("P3", "P4")
@pytest.mark.parametrize(("seq", "expected"), [(300, [1, 1, 2, 2]), (FAR, [1, 1, 0, 2])])
def test_new_life_takes_held_messages_unless_far_ahead(seq, expected):
    first_life = [(0, 1, 1, None), (0, 5, 20, None)]
    assert taken(*first_life, (0, 2, seq, None), (0, 1, 2, 2)) == expected


@pytest.mark.req("P3", "P4")
def test_life_without_identity_takes_no_held_message_with_identity():
    waiting = (7, 2, FAR, None)
    assert taken((0, 1, 1, None), (7, 1, 1, None), waiting, (0, 1, FAR - 2, FAR - 3)) == [1, 2, 0, 3]


@pytest.mark.req("P4")
def test_two_boards_sharing_an_id_cause_returns_and_reboots_do_not():
    boards = [
        (  # different identities
            [payload(1, seq, identity=5) for seq in range(1, 7)],
            [payload(1, seq, identity=6, value=2) for seq in range(1, 7)],
        ),
        (  # lives
            [payload(7, seq, first=seq if seq == 1 else None, value=2) for seq in range(1, 7)],
            [payload(3, seq) for seq in range(50, 56)],
        ),
        (  # boots
            [payload(3, seq) for seq in range(1, 7)],
            [payload(8, seq) for seq in range(50, 56)],
        ),
        (  # numbers
            [payload(3, seq) for seq in range(1, 7)],
            [payload(3, seq) for seq in range(5000, 5006)],
        ),
    ]
    boots_of_one_life = (
        [payload(1, seq, identity=5) for seq in range(1, 7)],
        [payload(2, seq, identity=5) for seq in range(7, 13)],
    )
    orders = [crosswise(one, other) for one, other in (*boards, boots_of_one_life)]
    found = assert_batches_make_no_difference(side_by_side(orders), most=2)
    returns = by_device(found["n_returns"])
    assert [min(returns[f"d{n}"], 5) for n in range(5)] == [5, 5, 5, 5, 0]
    assert not found["quarantine"]
    assert [len(in_tables(found, f"d{n}")) for n in range(5)] == [12] * 5
    # In sequence they look like one board that was wiped, or lost many messages.
    found = as_rows(outcome(side_by_side([[*other, *one] for one, other in boards])))
    assert max(by_device(found["n_returns"]).values()) <= 1


def test_interleaved_collectors_cause_reordering_and_no_returns():
    landing = Landing(None)
    for seq in range(1, 21):
        landing.raw("flashmqtt/a/readings", payload(1 + seq // 11, seq))
    odd, even = landing.rows[::2], landing.rows[1::2]
    found = as_rows(outcome([odd, even]))
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
def test_generated_histories_give_the_same_for_any_batch_split(seed):
    rounds = generated(seed, 200)
    found = assert_batches_make_no_difference(rounds, most=1)
    assert as_rows(outcome(rounds, range(1, len(rounds)))) == found
    kept = len(found["readings"]) + len(found["quarantine"]) + sum(found["n_resent"].values())
    assert kept == sum(map(len, rounds))  # no message is dropped without a comparison
    assert len(reasons(found)) >= 3
    assert max(row["life"] for row in found["lives"]) >= 3


@pytest.mark.req("P4")
@pytest.mark.parametrize("seed", range(4, 7))
def test_fast_path_gives_the_same_as_placing_each_message(seed, monkeypatch):
    rounds = generated(seed, 200)
    obvious = placing._obvious
    monkeypatch.setattr(placing, "_obvious", lambda *asked: none_of(*obvious(*asked)))
    slow = outcome(rounds)
    monkeypatch.undo()
    assert_equal(outcome(rounds), slow)


def none_of(life, new):
    """Return the result of `_obvious` where no device is obvious."""
    return life * 0, new


@pytest.mark.req("P3", "P5")
@pytest.mark.parametrize("seed", range(7, 10))
def test_replayed_landing_repeats_no_row_even_in_quarantine(seed):
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


@pytest.mark.req("P3", "P5")
def test_replay_holds_no_message_again_that_left_the_held_ones_for_quarantine(monkeypatch):
    """It would displace a held message, which would go to quarantine although its life may begin later."""
    monkeypatch.setattr(lives, "MOST_HELD", 3)
    parts = [
        joined(landed([payload(1, 1, first=1), *[payload(1, 1, value=value) for value in range(2, 9)]])),
        joined(landed([payload(1, 1, value=value) for value in range(9, 12)])),
    ]
    once, state_once = work_parts(Landing(None), parts, (1, 2), reload=True)
    for numbers in ((1, 2, 1, 2), (1, 2, 2, 1)):
        found, state = work_parts(Landing(None), [parts[n - 1] for n in numbers], numbers, reload=True)
        assert Counter(map(repr, found["quarantine"])) == Counter(map(repr, once["quarantine"]))
        assert state.held_table() == state_once.held_table()


def test_oldest_held_messages_beyond_the_limit_go_to_quarantine(monkeypatch):
    monkeypatch.setattr(lives, "MOST_HELD", 2)
    rows = landed([payload(1, 1, first=1), *[payload(1, 1, value=value) for value in range(2, 6)]])
    found = assert_batches_make_no_difference(rows)
    assert reasons(found) == {"identity reused": 4}
    assert [row["payload"] for row in found["held"]] == [payload(1, 1, value=value) for value in (4, 5)]


@pytest.mark.req("P5")
def test_held_messages_of_more_bytes_than_the_limit_go_to_quarantine_the_oldest_first(monkeypatch):
    """1,024 messages of 1 MB would be 1 GB, which each batch would read and write."""
    texts = {value: "x" * size for value, size in {2: 300, 3: 300, 4: 300, 5: 2000, 6: 900, 7: 10, 8: 10}.items()}
    held = {value: payload(1, 1, value=value, text=text) for value, text in texts.items()}
    monkeypatch.setattr(lives, "MOST_HELD_BYTES", len(held[6]) + len(held[7]) + len(held[8]))
    rows = landed([payload(1, 1, first=1), *held.values()])
    found = assert_batches_make_no_difference(rows)
    assert reasons(found) == {"identity reused": 7}
    assert [row["payload"] for row in found["held"]] == [held[value] for value in (6, 7, 8)]
    assert sorted(row["payload"] for row in found["quarantine"]) == sorted(held.values())


def test_bytes_of_released_messages_are_free_again(monkeypatch):
    one = payload(3, 150, text="x" * 500)
    monkeypatch.setattr(lives, "MOST_HELD_BYTES", len(one) + 10)
    rows = landed(
        [payload(5, 100, first=100), payload(6, 200), one, payload(1, 140, first=140), payload(6, 50, text="y" * 500)]
    )
    found = assert_batches_make_no_difference(rows)
    assert [row["seq"] for row in found["held"]] == [50]
    assert sorted(row["seq"] for row in found["readings"]) == [100, 140, 150, 200]


def test_duplicate_without_a_print_is_kept_in_quarantine(monkeypatch):
    rounds = landed([payload(1, 1, identity=5), payload(1, 1, identity=5)])
    monkeypatch.setattr("host_tests.pipeline.test_task.Written.files", lambda self, table, columns: [])
    found = as_rows(outcome(rounds, [1]))
    assert [row["reason"] for row in found["quarantine"]] == [lives.NOT_COMPARED]
