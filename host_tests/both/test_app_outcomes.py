"""The health message lists undelivered messages by sequence number until it is acknowledged (R5, APPLICATION.md)."""

import gc
from json import loads

import pytest

from app.application import Application
from app.configuration import check
from app.health import records
from app.outcomes import Outcomes, has_topic
from failing import fail_once
from flashmqtt.flash.ram import RamRegion
from flashmqtt.journal.journal import Journal
from loopback import Loopback
from test_app_worn import Board, Facts
from wire import packet


def numbers(text):
    """Return the numbers in a label's ranges."""
    found = set()
    for piece in text.split(","):
        first, _, last = piece.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


@pytest.mark.req("R5")
def test_ranges_are_reported_until_their_health_message_is_acknowledged():
    outcomes = Outcomes()
    for seq in (7, 8, 9, 12):
        outcomes.add("refused", seq, seq)
    outcomes.add("dropped", 1, 5)
    assert outcomes.labels() == {"refused_seqs": "7-9,12", "dropped_seqs": "1-5"} and outcomes.news
    outcomes.reported(20)
    outcomes.add("refused", 13, 13)  # later than health message 20, and so not part of it
    assert outcomes.news and outcomes.labels()["refused_seqs"] == "7-9,12,13"
    outcomes.delivered(19)
    assert outcomes.labels()["dropped_seqs"] == "1-5"
    outcomes.delivered(20)
    assert outcomes.labels() == {"refused_seqs": "13"}
    outcomes.reported(0)  # the health message was not stored
    assert outcomes.news
    outcomes.reported(21)
    outcomes.delivered(21)
    assert outcomes.labels() == {} and not outcomes.news
    outcomes.add("refused", 14, 14)
    outcomes.reported(31)
    outcomes.reported(30)  # `publish` handed over an event before it returned: message 30 has fewer numbers than 31
    outcomes.delivered(30)
    assert outcomes.labels() == {"refused_seqs": "14"}
    outcomes.delivered(31)
    assert outcomes.labels() == {}
    assert outcomes.counts == {"refused": 6, "expired": 0, "dropped": 5, "damaged": 0, "doubt": 0}


@pytest.mark.req("R5", "S6")
def test_refused_message_that_flash_has_damaged_has_no_topic():
    region = RamRegion(4)
    journal = Journal(region)
    journal.append(b"\x32\x09\x00\x04name\x00\x01x", 11)
    assert journal.length(1) == 11 and has_topic(journal, 1, b"name")
    region.cells[region.cells.find(b"name")] ^= 1
    journal.append(b"another message, because damage is not a cut", 40)
    journal = Journal(region)
    assert not has_topic(journal, 1, b"name")
    journal = Journal(RamRegion(4))
    journal.append(b"\x32\x09\x00\x04name\x00\x01x", 11)
    assert journal.length(1) == 11
    journal.region.cells[journal.region.cells.find(b"name")] ^= 1
    journal.append(b"x", 1)  # the page is read again
    assert not has_topic(journal, 1, b"name")


@pytest.mark.req("R5")
def test_only_the_newest_32_ranges_are_kept():
    outcomes = Outcomes()
    for seq in range(1, 101, 2):
        outcomes.add("expired", seq, seq)
        if seq == 21:
            outcomes.reported(500)
    assert outcomes.labels()["expired_seqs"].split(",") == [str(seq) for seq in range(37, 101, 2)]
    outcomes.delivered(500)
    assert outcomes.labels()["expired_seqs"].split(",") == [str(seq) for seq in range(37, 101, 2)]
    assert outcomes.counts["expired"] == 50


@pytest.mark.req("S5", "R5")
def test_ranges_of_a_long_outage_are_joined_and_none_is_forgotten():
    outcomes = Outcomes()
    for n in range(100):
        outcomes.add("dropped", 30 * n + 1, 30 * n + 30)
        outcomes.reported(4000 + n)
        assert numbers(outcomes.labels()["dropped_seqs"]) == set(range(1, 30 * n + 31))
        assert len(outcomes.labels()["dropped_seqs"].split(",")) <= 32 and not outcomes.news
    outcomes.add("dropped", 3001, 3002)  # later than the last health message
    assert outcomes.news
    outcomes.delivered(4099)
    assert numbers(outcomes.labels()["dropped_seqs"]) >= {3001, 3002}
    outcomes.reported(5000)
    outcomes.delivered(5000)
    assert outcomes.labels() == {}


@pytest.mark.req("R5")
def test_range_joined_with_one_that_no_message_has_is_reported_again():
    outcomes = Outcomes()
    for seq in range(1, 64, 2):  # 32 ranges; the last is 63
        outcomes.add("expired", seq, seq)
    outcomes.reported(500)
    outcomes.add("expired", 64, 64)
    assert len(outcomes.labels()["expired_seqs"].split(",")) == 32
    outcomes.delivered(500)
    assert outcomes.labels() == {"expired_seqs": "63-64"}


class Asleep(Exception):
    """Raised instead of a deep sleep or a reset."""


def _raise_asleep(*_ms):
    raise Asleep


@pytest.mark.parametrize("sleeping", [False, True])
@pytest.mark.req("S5", "R5", "B5")
def test_dropped_messages_are_listed_after_an_outage_although_the_board_restarted_in_it(sleeping):
    gc.collect()
    broker = Loopback()
    board = Board(broker)
    board.sleep = _raise_asleep
    port = broker.port
    settings = {
        "broker": "127.0.0.1",
        "port": port,
        "health_s": 0,
        "status_ms": 50,
        "longest_pause_s": 1,
        "watchdog_s": 8,
    }
    state = Facts()

    def start(awake_s):
        sleep = {"sleep_s": 600, "awake_s": awake_s} if sleeping else {}
        settings.update(sleep)
        application = Application(board, check(settings), state)
        application.client.link.feed = broker if broker.listener else None
        return application

    def stay_on(application, condition):
        if sleeping:
            with pytest.raises(Asleep):
                application.run()
        else:
            application.announce()
            turns(application, condition)
        application.client.link.stop()

    application = start(10)
    application.publish("readings", 1, [])
    stay_on(application, lambda: application.client.connected and not application.client.pending)
    broker.close()
    for outage in range(3):
        settings["awake_s"] = 1
        application = start(1)
        while application.journal.dropped < 60 * (outage + 1):
            application.publish("readings", 1, [{"n": "load", "v": 1}])
            application.client.poll(0)
        stay_on(application, lambda: True)  # then the power fails
    dropped = application.journal.dropped
    assert dropped >= 180 and state["dropped_from"] <= 5

    broker.open(port)
    broker.present = 1
    application = start(10)
    stay_on(
        application, lambda: broker.connects == 2 and not application.client.pending and not state.get("dropped_from")
    )
    heads = [loads(one[one.find(b"[{") :])[0] for one in broker.of(3) if one[0] & 6]
    arrived = {head["seq"] for head in heads}
    (report,) = [head for head in heads if "dropped_seqs" in head]
    told = numbers(report["dropped_seqs"])
    stored = application.journal.stored
    assert set(range(1, stored + 1)) - arrived <= told and max(told) < application.journal.floor
    assert len(told) >= dropped
    application = start(10)
    stay_on(application, lambda: application.client.connected and not application.client.pending)
    again = [one for one in broker.of(3) if b"dropped_seqs" in one and b'"seq":%d,' % report["seq"] not in one]
    assert again == []
    broker.close()


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.req("S5", "R5")
def test_messages_dropped_before_an_outage_are_listed_after_it(restarts):
    gc.collect()
    broker = Loopback()
    broker.answers_publish = False
    board = Board(broker)
    state = Facts()
    settings = {"broker": "127.0.0.1", "port": broker.port, "health_s": 0, "status_ms": 50, "watchdog_s": 8}
    application = Application(board, check(settings), state)
    turns(application, lambda: application.client.connected and broker.of(8))
    while not application.outcomes:
        application.publish("readings", 1, [{"n": "load", "v": 1}])
    first = min(numbers(application.outcomes.labels()["dropped_seqs"]))
    broker.close()
    if restarts:
        application.client.link.stop()
        application = Application(board, check(settings), state)
    turns(application, lambda: not application.client.connected)
    for _ in range(120):  # also the health message is dropped
        application.publish("readings", 1, [{"n": "load", "v": 1}])
        application.client.poll(0)
    assert state["dropped_from"] == first
    application.client.link.stop()


@pytest.mark.req("S5", "R5")
def test_dropped_messages_are_listed_at_once_if_the_note_about_them_can_not_be_stored():
    gc.collect()
    board = Board(lambda: None)
    settings = {"broker": "127.0.0.1", "port": 1, "health_s": 0, "status_ms": 50, "watchdog_s": 8}
    application = Application(board, check(settings), Facts())

    def full(**changes):
        raise OSError(28)

    application.state.save = full
    while not application.journal.dropped:
        application.publish("readings", 1, [{"n": "load", "v": 1}])
        application.client.poll(0)
    assert application.outcomes.news
    turns(application, lambda: not application.outcomes.news)
    assert application.outcomes.handle == application.journal.stored


@pytest.mark.req("S5", "R5")
def test_dropped_messages_are_listed_although_the_power_failed_right_after_the_first_drop():
    board = Board(lambda: None)
    state = Facts()
    settings = check({"broker": "127.0.0.1"})
    application = Application(board, settings, state)
    while not application.journal.dropped:
        application.publish("readings", 1, [{"n": "load", "v": 1}])
    application = Application(board, settings, state)
    assert numbers(application.outcomes.labels()["dropped_seqs"]) == set(range(1, application.journal.floor))


@pytest.mark.req("S5", "R5")
def test_note_about_a_first_drop_that_the_power_cut_prevented_lists_nothing():
    board = Board(lambda: None)
    state = Facts()
    settings = check({"broker": "127.0.0.1"})
    Application(board, settings, state).publish("readings", 1, [])
    state["dropped_from"] = 1
    application = Application(board, settings, state)
    assert application.outcomes is None
    application.journal.finish(1)
    while not application.journal.dropped:
        application.publish("readings", 1, [{"n": "load", "v": 1}])
    application = Application(board, settings, state)
    assert min(numbers(application.outcomes.labels()["dropped_seqs"])) == 2  # 1 was delivered


@pytest.mark.parametrize("restarts", ["never", "before", "sleep", "after"])
@pytest.mark.req("Q8", "R5", "S5")
def test_messages_in_doubt_are_reported_again_if_the_full_store_drops_the_report(restarts):
    gc.collect()
    broker = Loopback()
    board = Board(broker)
    settings = {"broker": "127.0.0.1", "port": broker.port, "health_s": 0, "status_ms": 50, "watchdog_s": 8}
    state = Facts()
    application = Application(board, check(settings), state)
    application.publish("readings", 2, [])
    application.publish("readings", 2, [])
    turns(application, lambda: application.client.connected and not application.client.pending)
    steps = [0, 1]
    if restarts in ("before", "sleep"):  # the connection is lost before the report is acknowledged
        steps = [1, 0]
        broker.answers_publish = False
    for step in steps:
        if step:
            application.client.on_in_doubt(1)
            application.client.on_in_doubt(2)
            application.turn(0)
        else:
            board.network_up = lambda *_: False
            if restarts == "sleep":
                application._finish()
            else:
                turns(application, lambda: not application.client.connected)
    assert application.journal.stored == 3  # one report
    if restarts == "before":
        turns(application, lambda: state.get("dropped_from"))
    broker.answers_publish = True
    if restarts in ("before", "sleep"):
        application = Application(board, check(settings), state)
    while application.journal.floor <= 3:
        application.publish("readings", 1, [{"n": "load", "v": 1}])
        application.client.poll(0)
    if restarts == "after":
        application = Application(board, check(settings), state)
    del board.network_up
    turns(application, lambda: any(b"dropped_seqs" in one for one in broker.of(3)))
    (report,) = [one for one in broker.of(3) if b"dropped_seqs" in one]
    assert b'"dropped_seqs": "1-' in report or (b'"doubt_first": 1' in report and b'"doubt_last": 2' in report)
    application.client.link.stop()
    broker.close()


class Refusing(Loopback):
    """A level 5 broker that refuses the messages of some topics."""

    def __init__(self, refused):
        super().__init__()
        self.refused = refused
        self.healths = []
        self.seqs = []  # the sequence numbers of the refused messages

    def take(self, one):
        kind = one[0] >> 4
        if kind == 1:
            self.connects += 1
            self.give(b"\x20\x03\0\0\0")
        elif kind == 3 and one[0] & 6:
            at = 1
            while one[at] > 127:
                at += 1
            end = at + 3 + (one[at + 1] << 8 | one[at + 2])
            topic = one[at + 3 : end]
            payload = loads(one[end + 3 :])
            code = b""
            if any([topic.endswith(name) for name in self.refused]):  # noqa: C419
                code = b"\x87"
                self.seqs.append(payload[0]["seq"])
            elif topic.endswith(b"health"):
                self.healths.append(payload)
            self.give(packet(0x40, one[end : end + 2], code))
        elif kind == 8:
            self.give(packet(0x90, one[2:4], b"\0", b"\1"))
        elif kind == 12:
            self.give(b"\xd0\0")


def running(refused):
    gc.collect()  # the simulated flash needs one contiguous block
    broker = Refusing(refused)
    settings = {"broker": "127.0.0.1", "port": broker.port, "level": 5, "interval_ms": 100000, "health_s": 0}
    application = Application(Board(broker), check(settings), Facts())
    application.client.link.feed = broker
    return broker, application


def turns(application, condition):
    for _ in range(2000):
        if condition():
            return
        application.turn(20)
    raise AssertionError("the condition did not become true in time")


def reports_once_it_may(broker, application):
    """Let the broker accept health messages again: the next one lists the refused messages."""
    broker.refused = []
    application._tell(records(application))
    turns(application, lambda: broker.healths)
    assert broker.healths[-1][0]["refused_seqs"].startswith("1")
    application.client.disconnect()
    broker.close()


@pytest.mark.req("R5")
def test_refused_messages_are_reported_at_once():
    broker, application = running([b"readings"])
    for _ in range(5):
        application.publish("readings", 1, application.sample(application.groups[0]))
    turns(application, lambda: broker.seqs and not application.client.pending)
    assert broker.seqs == [1, 2, 3, 4, 5]
    told = set()
    for payload in broker.healths:
        if "refused_seqs" in payload[0]:
            told |= numbers(payload[0]["refused_seqs"])
    assert told == {1, 2, 3, 4, 5}
    assert {"n": "refused", "v": 5} in records(application) and {"n": "expired", "v": 0} in records(application)
    application.client.disconnect()
    broker.close()


class Reset(BaseException):
    """Raised instead of a reset: no handler catches it."""


@pytest.mark.req("R4", "R5")
def test_refused_message_is_reported_after_a_restart_if_there_was_no_memory_for_its_report():
    broker, application = running([b"readings"])
    board, state = application.board, application.state

    def reset():
        raise Reset

    board.reset = reset
    application.publish("readings", 1, [])
    fail_once(application, "_tell_undelivered")
    with pytest.raises(Reset):
        turns(application, lambda: broker.healths or not application.client.pending)
    application.client.link.stop()
    application = Application(board, application.config, state)
    application.client.link.feed = broker
    turns(application, lambda: broker.healths)
    assert broker.healths[0][0]["refused_seqs"] == "1"
    application.client.disconnect()
    broker.close()


@pytest.mark.req("R3", "R5")
def test_message_that_was_refused_just_before_a_restart_is_reported():
    gc.collect()
    board = Board(lambda: None)
    state = Facts()
    settings = check({"broker": "127.0.0.1", "health_s": 0})
    application = Application(board, settings, state)
    application.publish("readings", 1, [])
    note = bytearray(application.journal.note)
    note[2:4] = b"\5\1"  # five failed trials of message 1
    application.journal.write_note(note)
    application = Application(board, settings, state)
    application.turn(0)
    assert application.outcomes.labels() == {"refused_seqs": "1"} and application.outcomes.handle == 2


@pytest.mark.req("R5", "S5")
def test_refused_message_that_is_reported_in_an_outage_is_listed_after_a_restart():
    gc.collect()  # the full store may drop the report
    board = Board(lambda: None)
    state = Facts()
    settings = check({"broker": "127.0.0.1"})
    application = Application(board, settings, state)
    application.publish("readings", 1, [])
    application.client.on_refused(1, 0x87)
    application.journal.finish(1)
    application.journal.flush()
    application = Application(board, settings, state)
    assert application.outcomes.labels() == {"dropped_seqs": "1"}


@pytest.mark.req("R5", "S5")
def test_refused_message_is_listed_after_a_restart_although_the_full_store_had_no_room_for_the_report():
    gc.collect()
    board = Board(lambda: None)
    state = Facts()
    settings = check({"broker": "127.0.0.1", "when_full": "refuse"})
    application = Application(board, settings, state)
    while application.publish("readings", 1, []):
        pass
    for seq in (1, 2, 4):
        application.client.on_refused(seq, 0x87)
        application.journal.finish(seq)
    application.journal.flush()
    application = Application(board, settings, state)
    assert application.journal.low == 3 and application.outcomes.labels() == {"dropped_seqs": "1-2,4"}


@pytest.mark.req("R5")
def test_refused_health_message_is_not_repeated_endlessly():
    broker, application = running([b"readings", b"health"])
    application.publish("readings", 1, application.sample(application.groups[0]))
    turns(application, lambda: len(broker.seqs) >= 2 and not application.client.pending)
    for _ in range(20):
        application.turn(5)
    assert len(broker.seqs) <= 4
    reports_once_it_may(broker, application)


@pytest.mark.req("R4", "R5")
def test_several_refused_health_messages_are_not_repeated_endlessly():
    broker, application = running([b"readings", b"health"])
    for _ in range(5):
        application.publish("readings", 1, application.sample(application.groups[0]))
    for _ in range(100):
        application.turn(5)
    assert len(broker.seqs) <= 11, len(broker.seqs)  # each reading, its health message, and one of a status line
    assert broker.seqs[:5] == [1, 2, 3, 4, 5]
    reports_once_it_may(broker, application)


@pytest.mark.req("R5", "B5")
def test_sleeping_board_reports_refused_messages_although_the_report_was_refused():
    gc.collect()
    broker = Refusing([b"readings", b"health"])
    settings = {"broker": "127.0.0.1", "port": broker.port, "level": 5, "health_s": 0, "sleep_s": 600, "watchdog_s": 8}
    board = Board(broker)
    state = Facts()

    def sleep(ms):
        raise Asleep

    board.sleep = sleep
    for wake in range(2):
        application = Application(board, check(settings), state)
        with pytest.raises(Asleep):
            application.run()
        application.client.link.stop()
        if not wake:
            assert broker.seqs[0] == 1 and broker.healths == []
        broker.refused = []
    # The last health message of the first wake was refused after the board's DISCONNECT; sent again, it is the first to arrive.
    first = broker.healths[0][0]
    assert first["refused_seqs"].split(",") == [str(seq) for seq in broker.seqs if seq != first["seq"]]
    broker.close()


@pytest.mark.req("R5", "B4")
def test_refused_health_message_is_listed_before_a_reboot():
    gc.collect()
    broker = Refusing([b"readings", b"health"])
    board = Board(broker)
    settings = {
        "broker": "127.0.0.1",
        "port": broker.port,
        "level": 5,
        "interval_ms": 100000,
        "health_s": 0,
        "watchdog_s": 8,
    }
    state = Facts()

    def reset():
        raise Asleep

    board.reset = reset
    application = Application(board, check(settings), state)
    application.publish("readings", 1, application.sample(application.groups[0]))
    turns(application, lambda: len(broker.seqs) >= 2 and not application.client.pending)
    refused = set(broker.seqs)
    wear = application.journal.wear
    application._act("reboot", 0)
    with pytest.raises(Asleep):
        for _ in range(1000):
            application.turn(5)
    broker.refused = []
    application = Application(board, check(settings), state)
    turns(application, lambda: broker.healths)
    assert numbers(broker.healths[0][0]["refused_seqs"]) >= refused
    assert application.journal.wear == wear, "closed before the reset: the next start goes on in the same sector"
    application.client.disconnect()
    broker.close()
