"""A command has one effect and one reply, also after a power cut at any step."""

import os
import sys

import pytest

from app.commands import CommandRefused, Commands, parse
from app.state import State
from flashmqtt.errors import StoreFull

# Each process has its own file: the same tests may run at the same time on the other interpreter.
PATH = "/tmp/flashmqtt-state-%s-%d.json" % (sys.implementation.name, id(parse) & 0xFFFFFFFF)


def forget(path):
    """Remove a board's state file."""
    for suffix in ("", ".new"):
        try:
            os.remove(path + suffix)
        except OSError:
            pass


class Cut(Exception):
    """The power is cut here."""


class Board:
    """The things that survive a power cut: the state file, the stored messages, and the effects of commands."""

    def __init__(self, path):
        self.path = path
        self.replies = []
        self.acts = []
        self.interval = 0
        self.stored = 10
        self.steps = 0
        self.cut_at = 0
        self.now_ms = 0
        self.full = False
        forget(path)
        self.start()

    def step(self):
        self.steps += 1
        if self.steps == self.cut_at:
            raise Cut

    def start(self):
        state = State(self.path)
        save = state.save

        def saving(**changes):
            self.step()
            save(**changes)
            self.step()

        state.save = saving
        self.commands = Commands(state, lambda: self.stored, self.act, self.reply, lambda: self.now_ms)
        self.interval = state.get("interval_ms", 0)
        self.commands.resume()

    def act(self, name, ms):
        self.step()
        self.acts.append((name, ms))
        if name == "interval":
            self.interval = ms
        self.step()

    def reply(self, ident, result):
        self.step()
        if self.full:
            return 0
        self.stored += 1
        self.replies.append((self.stored, ident, result))
        self.step()
        return self.stored


@pytest.mark.req("Q4", "B4")
def test_command_sent_twice_is_executed_and_answered_once():
    board = Board(PATH)
    board.commands.take(b'{"id": "7", "do": "interval", "ms": 5000}')
    board.commands.take(b'{"id": "7", "do": "interval", "ms": 5000}')
    assert board.replies == [(11, "7", "done")] and board.acts == [("interval", 5000)]
    board.start()
    assert board.interval == 5000 and len(board.replies) == 1
    forget(PATH)


@pytest.mark.req("Q4", "B4")
def test_power_cut_at_every_step_leaves_one_effect_and_one_reply():
    cuts = 0
    for cut_at in range(1, 20):
        for again in range(20):  # a second cut, after the first one
            board = Board(PATH)
            board.cut_at = cut_at
            steps = 0
            command = b'{"id": "a", "do": "interval", "ms": 2000}'
            try:
                board.commands.take(command)
            except Cut:
                cuts += 1
                board.cut_at = board.steps + again if again else 0
                for _ in range(3):
                    try:
                        board.start()
                        board.commands.take(command)  # the broker resends the unacknowledged command
                        break
                    except Cut:
                        board.cut_at = 0
            assert board.interval == 2000
            assert [reply[1:] for reply in board.replies] == [("a", "done")]
            assert set(board.acts) == {("interval", 2000)}
            steps += board.steps
    assert cuts > 80
    forget(PATH)


@pytest.mark.req("Q4", "B4")
def test_finished_command_is_not_repeated_with_a_new_journal():
    board = Board(PATH)
    board.commands.take(b'{"id": "7", "do": "interval", "ms": 5000}')
    assert len(board.acts) == len(board.replies) == 1
    board.stored = 0  # the journal was wiped, or has another size: its numbers begin at 1 again
    for _ in range(3):
        board.start()
        board.stored += 1
    assert len(board.acts) == len(board.replies) == 1
    forget(PATH)


@pytest.mark.req("B4")
def test_reboot_command_is_not_repeated_after_the_reboot():
    board = Board(PATH)
    board.cut_at = 4  # after the effect, before the reply
    with pytest.raises(Cut):
        board.commands.take(b'{"id": "r", "do": "reboot"}')
    board.start()
    board.commands.take(b'{"id": "r", "do": "reboot"}')
    assert board.acts == [("reboot", 0)] and [reply[1:] for reply in board.replies] == [("r", "done")]
    forget(PATH)


@pytest.mark.parametrize(
    "payload,words",
    [
        (b"", "JSON"),
        (b"\xff\xfe", "JSON"),
        (b"[1]", "object"),
        (b'{"do": "flush"}', "id"),
        (b'{"id": "", "do": "flush"}', "id"),
        (b'{"id": "\\ud800", "do": "flush"}', "UTF-8"),
        (b'{"id": "a\\udfffb", "do": "flush"}', "UTF-8"),
        (b'{"id": "\xed\xa0\x80", "do": "flush"}', ""),  # for invalid bytes CPython reports invalid JSON
        (b'{"id": "\xc0\xaf", "do": "flush"}', ""),
        (b'{"id": "\xf5\x80\x80\x80", "do": "flush"}', ""),
        (b'{"id": "1", "do": "dance"}', "interval, flush"),
        (b'{"id": "1", "do": "interval"}', "ms"),
        (b'{"id": "1", "do": "interval", "ms": "5"}', "ms"),
        (b'{"id": "1", "do": "interval", "ms": 99}', "100 to"),
    ],
)
@pytest.mark.req("B4")
def test_invalid_command_is_refused_with_a_reason(payload, words):
    with pytest.raises(CommandRefused) as refused:
        parse(payload)
    assert words in refused.value.args[0]
    board = Board(PATH)
    board.commands.take(payload)
    assert len(board.replies) == 1 and words in board.replies[0][2] and not board.acts
    forget(PATH)


@pytest.mark.req("B4")
def test_last_64_command_ids_are_recognized_as_number_or_text():
    board = Board(PATH)
    for n in range(70):
        board.commands.take(b'{"id": %d, "do": "flush"}' % n)
        board.now_ms += 5000
    assert len(board.acts) == 70
    for n in range(6, 70):
        board.commands.take(b'{"id": "%d", "do": "flush"}' % n)
    assert len(board.acts) == 70 and board.commands.refused == 0
    assert len(State(PATH).get("done")) == 64  # each command writes them all
    forget(PATH)


@pytest.mark.req("B4")
def test_commands_above_the_rate_limit_are_counted_and_not_executed():
    board = Board(PATH)
    for n in range(100):
        board.commands.take(b'{"id": "a%d", "do": "flush"}' % n)
        board.commands.take(b"no command")
    assert len(board.acts) == 16 and len(board.replies) == 32  # refusals are stored as well: half of the replies
    assert board.commands.refused == 200 - 32
    board.now_ms += 4999
    board.commands.take(b'{"id": "b", "do": "flush"}')
    assert len(board.acts) == 16
    board.now_ms += 1
    board.commands.take(b'{"id": "b", "do": "flush"}')
    assert len(board.acts) == 17
    board.now_ms += 86400000  # even after a day only one burst is allowed
    for n in range(100):
        board.commands.take(b'{"id": "c%d", "do": "flush"}' % n)
    assert len(board.acts) == 17 + 32
    forget(PATH)


@pytest.mark.req("R4", "S5")
def test_reply_for_which_the_store_has_no_room_waits_and_the_next_command_is_not_executed():
    board = Board(PATH)
    board.full = True
    board.commands.take(b'{"id": "1", "do": "interval", "ms": 5000}')
    assert board.commands.due and not board.commands.settle()
    for payload in (b'{"id": "2", "do": "flush"}', b"no command", b'{"id": "1", "do": "interval", "ms": 5000}'):
        with pytest.raises(StoreFull):
            board.commands.take(payload)
    assert board.acts == [("interval", 5000)] and board.replies == [] and board.commands.refused == 0
    for cut in (False, True):
        if cut:
            board.start()  # after a power cut it is executed again, which is harmless, and its reply waits again
        assert board.commands.due and board.replies == []
    board.full = False
    assert board.commands.settle() and not board.commands.due
    assert board.replies == [(11, "1", "done")]
    board.commands.take(b'{"id": "2", "do": "flush"}')
    assert board.replies[1:] == [(12, "2", "done")]
    board.start()
    assert len(board.replies) == 2
    forget(PATH)


@pytest.mark.req("B4")
def test_command_that_can_not_be_stored_is_answered_and_not_executed():
    board = Board(PATH)
    state = board.commands._state
    state._path = "/nowhere/state.json"
    board.commands.take(b'{"id": "1", "do": "interval", "ms": 5000}')
    assert not board.acts and len(board.replies) == 1
    assert board.replies[0][1] == "1" and board.replies[0][2].startswith("not stored: ")
    state._path = PATH
    board.commands.take(b'{"id": "2", "do": "flush"}')
    board.start()
    assert board.interval == 0 and [reply[2] for reply in board.replies[1:]] == ["done"]
    board.commands.take(b'{"id": "1", "do": "interval", "ms": 5000}')  # it may be tried again
    assert board.interval == 5000 and board.replies[-1][1:] == ("1", "done")
    forget(PATH)


@pytest.mark.req("B4")
def test_damaged_state_file_counts_as_empty():
    with open(PATH, "w") as file:
        file.write('{"done": [1')
    assert State(PATH).facts == {}
    state = State(PATH)
    state.save(a=1, b=2)
    state.save(a=None)
    assert State(PATH).facts == {"b": 2}
    forget(PATH)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        '{"interval_ms": "abc"}',
        '{"interval_ms": true}',
        '{"interval_ms": null}',
        '{"interval_ms": 5000.5}',
        '{"interval_ms": -5}',
        '{"interval_ms": 99999999999}',
        '{"life": -7, "since": 1}',
        '{"life": 99999999999, "since": 1}',
        '{"life": 7, "since": "1"}',
        '{"done": "x"}',
        '{"done": {}}',
        '{"done": 3}',
        '{"intent": "x"}',
        '{"intent": [1]}',
        "[" * 3000,
        '{"intent": {"id": "1", "do": "flush", "ms": 0}}',
        '{"intent": {"interval_ms": 1, "since": 2, "life": 3, "boot": 4}}',
        '{"intent": {"id": "1", "do": "flush", "ms": 0, "seq": "5"}}',
        '{"intent": {"id": 1, "do": "flush", "ms": 0, "seq": 5}}',
        '{"intent": {"id": [], "do": [], "ms": 0, "seq": 5}}',
        '{"intent": {"id": "1", "do": "flush", "ms": 0.5, "seq": 5}}',
    ],
)
@pytest.mark.req("B4")
def test_state_file_with_wrong_types_counts_as_empty(text):
    with open(PATH, "w") as file:
        file.write(text)
    assert State(PATH).facts == {}
    board = Board(PATH)
    board.commands.take(b'{"id": "1", "do": "interval", "ms": 5000}')
    known = State(PATH).facts
    assert known["interval_ms"] == 5000 and known["intent"]["seq"] == 11
    forget(PATH)
