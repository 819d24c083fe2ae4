"""The application under faults: its flash wears out, or it receives a command that is too long."""

import builtins
import gc
import sys
from json import loads

import pytest

from app.application import Application
from app.configuration import check
from app.health import records
from flashmqtt.compat import ticks_diff, ticks_ms
from flashmqtt.errors import StoreWorn
from flashmqtt.flash.block import BlockRegion
from flashmqtt.journal.journal import Journal
from loopback import Loopback
from tools.flashsim.nor import NorFlash
from wire import packet, puback, publish, pubrec

SECTORS = 8


class Facts(dict):
    """A state without a file."""

    def save(self, **changes):
        for name, value in changes.items():
            self.pop(name, None)
            if value is not None:
                self[name] = value


class Sensor:
    name = "load"
    unit = ""

    def read(self):
        return 1


class Board:
    """The board functions that the application needs. Feeding its watchdog runs the broker."""

    MODEL = "test"

    def __init__(self, broker):
        self.flash = NorFlash(SECTORS * 4096)
        self.watchdog = lambda ms: broker

    def journal_region(self, sectors, feed):
        return BlockRegion(self.flash)

    def sensors(self):
        return [Sensor()]

    def unique_id(self):
        return "dev"

    def reset_cause(self):
        return "power"

    def clock(self):
        return None

    def led(self, on):
        pass

    def network_up(self, ssid, password, country, log=None):
        return True

    def network_problem(self):
        return ""

    def network_strength(self):
        return None

    def supply_millivolts(self):
        return None


class Restarted(Exception):
    """Raised instead of a reset."""


def restarting(board):
    """Let a board's reset raise `Restarted`; return the board."""

    def reset():
        raise Restarted

    board.reset = reset
    return board


def end(application, broker):
    application.client.link.stop()
    broker.close()


def _spoil(flash, kind):
    for sector in range(SECTORS):
        flash.set_bad(sector, kind)


@pytest.mark.parametrize(("stored", "end"), [(0, StoreWorn), (99, StoreWorn), (100, Restarted)])
@pytest.mark.req("S6", "B4")
def test_board_with_worn_flash_delivers_what_is_stored_and_restarts_once_in_100_messages(stored, end):
    broker = Loopback()
    board = restarting(Board(broker))
    settings = {"broker": "127.0.0.1", "port": broker.port, "interval_ms": 10, "health_s": 0, "watchdog_s": 8}
    state = Facts(worn=5000)  # of an older journal, whose numbers were higher
    application = Application(board, check(settings), state)
    for _ in range(9):
        application.publish("readings", 1 + application.journal.stored % 2, application.sample(application.groups[0]))
    _spoil(board.flash, "both")
    with pytest.raises(Restarted):
        application.run()
    assert application.client.pending == 0 and len(broker.of(3)) == 9 + 1  # 9 readings and the QoS 0 status message
    assert application.journal.dropped > 0
    application.client.link.stop()
    _spoil(board.flash, "" if stored else "both")
    application = Application(board, check(settings), state)
    while application.journal.stored < 9 + stored:
        application.publish("readings", 1, application.sample(application.groups[0]))
        application.turn(0)
    _spoil(board.flash, "both")
    with pytest.raises(end):
        application.run()
    end(application, broker)


def test_board_with_worn_flash_that_can_not_note_the_restart_ends():
    broker = Loopback()
    board = restarting(Board(broker))
    state = Facts()
    application = Application(board, check({"broker": "127.0.0.1", "port": broker.port, "watchdog_s": 8}), state)

    def save(**changes):
        raise OSError(28)

    state.save = save
    _spoil(board.flash, "both")
    with pytest.raises(StoreWorn):
        application.run()
    end(application, broker)


class Odd:
    """A sensor that returns the given value, or raises it if it is an exception."""

    unit = ""

    def __init__(self, name, value):
        self.name = name
        self.value = value

    def read(self):
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


def _with(found, **settings):
    """Return an application with these sensors, and its broker."""
    broker = Loopback()
    board = Board(broker)
    board.sensors = lambda: found
    settings.update({"broker": "127.0.0.1", "port": broker.port})
    return Application(board, check(settings), Facts()), broker


@pytest.mark.req("B1", "P4")
def test_sensor_without_a_finite_number_is_left_out_of_the_message():
    values = [Exception("checksum error"), OSError(5), float("nan"), float("inf"), "21", True, [1], None, 1e300 * 1e300]
    values.append(KeyError("moist"))
    sensors = [Odd("odd%d" % n, value) for n, value in enumerate(values)]
    sensors += [Odd("a", 3), Odd("b", -2.5), Odd("c", 0)]
    application, broker = _with(sensors)
    records, lines = printed(lambda: application.sample(application.groups[0]))
    assert records == [{"n": "a", "v": 3}, {"n": "b", "v": -2.5}, {"n": "c", "v": 0}]
    assert [line for line in lines if line.startswith("sensor: odd9 KeyError ")]
    broker.close()


class Ending:
    """A sensor whose driver ends the program if it finds no chip."""

    name = "odd"
    unit = ""

    def read(self):
        sys.exit("no chip")


class Forgetful:
    """A sensor that loses its unit."""

    name = "odd"
    unit = ""

    def read(self):
        del Forgetful.unit
        return 1


class Unspeakable(Exception):
    def __str__(self):
        raise ValueError


class Nameless:
    """A sensor that loses its name."""

    name = "odd"
    unit = ""

    def read(self):
        del Nameless.name
        return 1


@pytest.mark.parametrize(
    ("sensor", "words"),
    [
        (Ending(), "odd SystemExit no chip"),
        (Forgetful(), "odd AttributeError "),
        (Odd("odd", [1] * 999), "odd ValueError "),
        (Odd("odd", Unspeakable()), "Unspeakable ValueError"),
        (Nameless(), "AttributeError AttributeError"),
    ],
)
@pytest.mark.req("B4")
def test_sensor_that_ends_the_program_or_breaks_itself_costs_one_line_and_does_not_stop_the_others(sensor, words):
    application, broker = _with([sensor, Odd("a", 3)])
    records, lines = printed(lambda: application.sample(application.groups[0]))
    assert records == [{"n": "a", "v": 3}]
    assert len(lines) == 1 and lines[0].startswith("sensor: " + words) and len(lines[0]) < 150
    broker.close()


class Timed:
    """A sensor whose driver needs exact times, and fails meanwhile."""

    name = "odd"
    unit = ""

    def read(self):
        gc.disable()
        raise OSError(110)


@pytest.mark.req("B4")
def test_memory_is_collected_again_after_a_sensor_that_failed_while_that_was_disabled():
    application, broker = _with([Timed()])
    printed(lambda: application.sample(application.groups[0]))
    assert gc.isenabled()
    broker.close()


@pytest.mark.parametrize(
    "error",
    [ValueError("pin"), OSError(5), TypeError("pin"), Exception("no chip"), RuntimeError("x"), SystemExit("no chip")],
)
@pytest.mark.req("B1", "B4")
def test_sensor_that_can_not_be_made_does_not_stop_the_others(error):
    import app.sensors

    def make(settings):
        raise error

    name = "app.sensors.broken"
    module = type("broken", (), {"make": staticmethod(make)})
    sys.modules[name] = app.sensors.broken = module
    try:
        (application, broker), lines = printed(lambda: _with([Odd("a", 3)], sensors=[{"kind": "broken"}]))
    finally:
        del sys.modules[name], app.sensors.broken
    assert lines == ["sensor: broken " + type(error).__name__ + " " + str(error)]  # which of several
    assert application.sample(application.groups[0]) == [{"n": "a", "v": 3}]
    broker.close()


@pytest.mark.req("B1")
def test_make_of_a_sensor_file_may_be_a_generator():
    import app.sensors

    def make(settings):
        yield Odd("a", 3)
        yield Odd("b", 4)

    name = "app.sensors.yielding"
    sys.modules[name] = app.sensors.yielding = type("yielding", (), {"make": staticmethod(make)})
    try:
        application, broker = _with([], sensors=[{"kind": "yielding", "name": "soil"}])
    finally:
        del sys.modules[name], app.sensors.yielding
    assert [sensor.name for sensor in application.groups[0].sensors] == ["soil_a", "soil_b"]
    broker.close()


class Soil:
    name = "soil"

    def read(self):
        return 4


class Air:
    unit = "Cel"

    def read(self):
        return 5


class Water:
    name = "water"
    unit = "Cel"


def printed(act):
    """Return what `act` returns, and the lines that the application prints meanwhile."""
    lines = []
    original = builtins.print
    builtins.print = lambda *words: lines.append(" ".join(map(str, words)))
    try:
        return act(), lines
    finally:
        builtins.print = original


@pytest.mark.req("B1", "B4")
def test_sensor_without_name_unit_or_read_is_named_and_does_not_stop_the_others():
    (application, broker), lines = printed(lambda: _with([Soil(), Air(), Odd("a", 3), Water()]))
    assert lines == [
        "sensor: left out: '%s' object has no attribute '%s'" % one
        for one in (("Soil", "unit"), ("Air", "name"), ("Water", "read"))
    ]
    assert application.sample(application.groups[0]) == [{"n": "a", "v": 3}]
    broker.close()


@pytest.mark.parametrize(
    "wrong", [("qos", 3), ("qos", None), ("qos", "1"), ("interval_ms", -1), ("interval_ms", 0.5), ("interval_ms", None)]
)
@pytest.mark.req("B1", "B4")
def test_sensor_with_a_wrong_qos_or_interval_is_named_and_does_not_stop_the_others(wrong):
    sensor = Odd("soil", 4)
    setattr(sensor, *wrong)
    (application, broker), lines = printed(lambda: _with([sensor, Odd("a", 3)]))
    assert len(lines) == 1 and lines[0].startswith("sensor: left out: 'soil': ") and repr(wrong[1]) in lines[0]
    application.publish("readings", application.groups[0].qos, application.sample(application.groups[0]))
    assert len(application.groups) == application.journal.stored == 1
    broker.close()


@pytest.mark.parametrize("name", ["", "a b", "a+b", "a#", "a\0b", "/a", "\xe9", "a'b"])
@pytest.mark.req("B1", "B4", "P5")
def test_sensor_with_a_name_that_senml_forbids_is_named_and_does_not_stop_the_others(name):
    (application, broker), lines = printed(lambda: _with([Odd(name, 4), Odd("a-b:c.d/e_F9", 3)]))
    assert len(lines) == 1 and lines[0].startswith("sensor: left out: %r" % name)
    assert application.sample(application.groups[0]) == [{"n": "a-b:c.d/e_F9", "v": 3}]
    broker.close()


def printed_until_announced(application, broker, name):
    """Return what the application prints until it has announced the sensor of this name."""

    def announced():
        return any(b"/%s/config" % name in one for one in broker.of(3))

    return printed(lambda: turns(application, announced))[1]


@pytest.mark.req("B4")
def test_sensor_that_loses_its_name_does_not_stop_discovery_of_the_others():
    sensor = Odd("odd", 4)
    (application, broker), _ = printed(
        lambda: _with([sensor, Odd("a", 3)], discovery="homeassistant", health_s=0, watchdog_s=8)
    )
    del sensor.name

    lines = printed_until_announced(application, broker, b"a")
    assert len([line for line in lines if line.startswith("sensor: not announced: None ")]) == 1
    end(application, broker)


@pytest.mark.parametrize("length", [64, 65, 200, 700])
@pytest.mark.req("B1", "B4")
def test_long_name_of_a_sensor_does_not_stop_discovery_of_the_others(length):
    name = "x" * length
    (application, broker), lines = printed(
        lambda: _with([Odd(name, 4), Odd("a", 3)], discovery="homeassistant", health_s=0, watchdog_s=8)
    )

    lines = printed_until_announced(application, broker, b"a")
    announced = any(b"/" + name.encode() + b"/config" in one for one in broker.of(3))
    failed = [line for line in lines if line.startswith("sensor: not announced: " + name)]
    assert len(failed) == (0 if announced else 1) and (announced or length > 64)
    assert {"n": name, "v": 4} in application.sample(application.groups[0])
    end(application, broker)


@pytest.mark.req("B1", "B4")
def test_error_of_the_board_sensors_function_is_printed_and_does_not_stop_the_application():
    def failing():
        raise OSError(5)

    broker = Loopback()
    board = Board(broker)
    board.sensors = failing
    settings = {"broker": "127.0.0.1", "port": broker.port}
    application, lines = printed(lambda: Application(board, check(settings), Facts()))
    assert len(lines) == 1 and lines[0].startswith("sensor:") and "5" in lines[0] and application.groups == []
    broker.close()


def _number(found, name):
    return next(record["v"] for record in found if record["n"] == name)


@pytest.mark.parametrize("policy", ["refuse", "drop-newest"])
@pytest.mark.req("S5", "P4")
def test_full_store_counts_refused_readings_and_stores_the_boot_message_later(policy):
    broker = Loopback()
    board = Board(broker)
    settings = {"broker": "127.0.0.1", "port": broker.port, "health_s": 0, "watchdog_s": 8, "when_full": policy}
    state = Facts()
    application = Application(board, check(settings), state)
    published = 0
    while application.journal.stored == published:
        published += 1
        application.publish("readings", 1, [{"n": "load", "v": published}])
    for _ in range(9):
        application.publish("readings", 1, [{"n": "load", "v": published}])
    found = records(application)
    assert printed(application.status)[1][0].endswith(" dropped=10")
    assert _number(found, "dropped") == 10 and _number(found, "refused") == 0
    application._tell_health()
    assert application.journal.stored == published - 1

    # The power fails.
    application = Application(board, check(settings), state)
    assert application.journal.boot == 2 and application.journal.dropped == 11
    stored = application.journal.stored
    application.announce()
    for _ in range(3):
        application.publish("readings", 1, [{"n": "load", "v": 0}])
    assert application.journal.stored == stored and _number(records(application), "dropped") == 11 + 3
    while not any(b"/boot" in one for one in broker.of(3)):
        application.turn(20)
        application.publish("readings", 1, [{"n": "load", "v": -1}])
    late = [one for one in broker.of(3) if b'"boot":2' in one]
    assert b"/boot" in late[0] and b'"seq":%d' % (stored + 1) in late[0] and b'"first": %d' % (stored + 1) in late[0]
    end(application, broker)


class Forgetful(Loopback):
    """Answers no PUBREL in its first connection."""

    def take(self, one):
        if one[0] >> 4 == 6 and self.connects == 1:
            self.packets.append(one)
        else:
            super().take(one)


@pytest.mark.parametrize("policy", ["refuse", "drop-newest"])
@pytest.mark.req("Q8", "R5")
def test_messages_in_doubt_are_reported_although_the_store_was_full(policy):
    broker = Forgetful()
    settings = {
        "broker": "127.0.0.1",
        "port": broker.port,
        "health_s": 0,
        "watchdog_s": 8,
        "when_full": policy,
        "status_ms": 50,
    }
    application = Application(Board(broker), check(settings), Facts())
    first = application.journal.stored + 1
    for _ in range(2):
        application.publish("readings", 2, [{"n": "load", "v": 1}])
    while len(broker.of(6)) < 2:
        application.turn(20)
    while application.publish("readings", 1, [{"n": "load", "v": 1}]):
        broker.silent = True
    broker.silent = False
    broker.drop()  # and with it the broker's session
    begin = ticks_ms()
    while not any(b'"doubt_last": %d' % (first + 1) in one for one in broker.of(3)):
        assert ticks_diff(ticks_ms(), begin) < 30000, "not reported"
        application.turn(20)
    (report,) = [one for one in broker.of(3) if b"doubt_last" in one]
    assert b'"doubt_first": %d' % first in report
    end(application, broker)


@pytest.mark.parametrize("policy", ["refuse", "drop-newest", "drop-oldest"])
@pytest.mark.req("S5", "R5")
def test_reading_longer_than_any_journal_is_named_and_counted(policy):
    application, broker = _with([], when_full=policy, log=False)
    handle, lines = printed(lambda: application.publish("readings", 1, [{"n": "a" * 20000, "v": 1}]))
    assert handle == 0 and len(lines) == 1 and lines[0].startswith("not stored: readings: 20")
    assert lines[0].endswith(" bytes; %d at most, 0 messages wait" % (4 * 15 * 232))
    assert _number(records(application), "dropped") == 1
    broker.close()


class Slow:
    """A sensor whose read returns the measurement that the previous read started; a measurement takes 750 ms."""

    name = "slow"
    unit = "Cel"
    qos = 0
    __hash__ = None  # as if it had an `__eq__`

    def __init__(self):
        self.reads = 0
        self.started_ms = None

    def read(self):
        self.reads += 1
        done = self.started_ms is not None and ticks_diff(ticks_ms(), self.started_ms) >= 750
        self.started_ms = ticks_ms()
        return 20.5 if done else None


class Asleep(Exception):
    """Raised instead of a deep sleep."""


def fall_asleep(application):
    """Run a board that sleeps until it does."""

    def sleep(ms):
        raise Asleep

    application.board.sleep = sleep
    with pytest.raises(Asleep):
        application.run()


@pytest.mark.req("B1", "B5")
def test_wake_waits_for_the_first_measurement_and_announces_its_topic():
    slow, quick = Slow(), Odd("quick", 7)
    application, broker = _with([slow, quick, Odd("gone", None)], sleep_s=600, watchdog_s=8, discovery="homeassistant")
    fall_asleep(application)
    broker()
    sent = broker.of(3)
    readings = b"".join([one for one in sent if b"flashmqtt/dev/readings" in one[:30]])
    assert b'"slow"' in readings and b"20.5" in readings and b'"quick"' in readings and b'"gone"' not in readings
    assert slow.reads == 2
    for name in (b"slow", b"quick", b"gone"):
        (told,) = [one for one in sent if b"homeassistant/sensor/dev/" + name + b"/config" in one]
        assert b'"exp_aft": 1800' in told
    assert b"flashmqtt-live" not in b"".join(sent)
    broker.close()


@pytest.mark.req("S6", "B4", "B5")
def test_board_whose_flash_fails_just_before_it_sleeps_sleeps():
    application, broker = _with([Odd("a", 3)], sleep_s=600, awake_s=1, watchdog_s=8)
    disconnect = application.client.disconnect

    def failing():
        disconnect()
        _spoil(application.board.flash, "both")

    application.client.disconnect = failing
    fall_asleep(application)
    broker.close()


def turns(application, condition):
    """Run the application's loop until a condition holds."""
    begin = ticks_ms()
    while not condition():
        assert ticks_diff(ticks_ms(), begin) < 30000, "the condition did not become true in time"
        application.turn(20)


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("x"), OSError(5)])
@pytest.mark.req("R4", "B4")
def test_command_whose_handler_failed_runs_later_and_does_not_stop_the_application(error):
    application, broker = _with([Odd("a", 3)], health_s=0, watchdog_s=8)
    handle = application.commands.take
    calls = []

    def take(payload):
        calls.append(payload)
        if len(calls) == 1:
            raise error
        handle(payload)

    application.commands.take = take
    _, lines = printed(lambda: turns(application, lambda: application.client.connected))
    broker.give(publish(b"flashmqtt-commands/dev", b'{"id": "1", "do": "identify"}', 1, 7))
    _, lines = printed(lambda: turns(application, lambda: broker.of(4)))
    assert len(calls) == 2 and broker.of(4) == [puback(7)]
    assert [line for line in lines if line.startswith("handler: ")] == ["handler: " + repr(error)]
    turns(application, lambda: any(b"/replies" in one for one in broker.of(3)))
    end(application, broker)


@pytest.mark.parametrize("error", [OSError("Wifi Invalid Password"), ValueError("country"), RuntimeError("radio")])
@pytest.mark.req("B4", "S5")
def test_error_of_the_network_is_printed_and_the_application_goes_on(error):
    application, broker = _with([Odd("a", 3)], health_s=0, watchdog_s=8, interval_ms=10)
    network_up = application.board.network_up
    calls = []

    def failing(*arguments):
        calls.append(arguments)
        raise error

    def sample():
        application.turn(application.read_what_is_due())

    application.board.network_up = failing

    def some_turns():
        while application.journal.stored < 20:
            sample()

    _, lines = printed(some_turns)
    assert len(calls) == 1 and [line for line in lines if line.startswith("network: ")] == [
        "network: error: " + str(error)
    ]
    application.uptime._ms += 10000
    printed(sample)
    assert len(calls) == 1
    application.board.network_up = network_up
    application.uptime._ms += 10000
    while not application.client.connected:
        sample()
    end(application, broker)


class AnyLevel(Loopback):
    """Answers SUBSCRIBE at level 5, too."""

    level = 4

    def take(self, one):
        if one[0] >> 4 == 1:
            self.level = one[8]
        if one[0] >> 4 == 8 and self.level == 5:
            self.packets.append(one)
            self.give(packet(0x90, one[2:4], b"\0", b"\1"))
        else:
            super().take(one)


@pytest.mark.parametrize("before,after", [(4, 5), (5, 4), (3, 5)])
@pytest.mark.req("S1", "B4", "W10")
def test_changed_protocol_level_is_used_after_the_stored_messages_are_delivered(before, after):
    broker = AnyLevel()
    board = restarting(Board(broker))
    settings = {"broker": "127.0.0.1", "port": broker.port, "interval_ms": 1000, "health_s": 0, "watchdog_s": 8}
    state = Facts()
    settings["level"] = before
    application = Application(board, check(settings), state)
    for n in range(3):
        application.publish("readings", 1 + n % 2, [{"n": "load", "v": n}])
    settings["level"] = after
    application, lines = printed(lambda: Application(board, check(settings), state))
    stored_at = max(before, 4)
    assert lines == ["configuration: level %d is used after the stored messages of level %d" % (after, stored_at)]
    with pytest.raises(Restarted):
        application.run()
    delivered = len([one for one in broker.of(3) if one[0] & 6])
    assert delivered == application.journal.stored > 3
    assert [one[8] for one in broker.of(1)] == [stored_at] * broker.connects
    application, lines = printed(lambda: Application(board, check(settings), state))
    assert lines == [] and application.journal.waiting == 0
    broker.packets = []
    application.publish("readings", 1, [{"n": "load", "v": 9}])
    turns(application, lambda: application.client.connected and not application.client.pending)
    assert broker.of(1)[-1][8] == after
    end(application, broker)


@pytest.mark.parametrize("level", [4, 5])
@pytest.mark.req("W10", "B3")
def test_longest_user_password_and_id_that_a_deployment_allows_fit_into_the_buffer(level):
    broker = Loopback()
    settings = {"broker": "127.0.0.1", "port": broker.port, "watchdog_s": 8, "level": level}
    settings.update(
        {"user": "u" * 255, "broker_password": "p" * 255, "device": "d" * 25}
    )  # 560 bytes with twice the id
    application = Application(Board(broker), check(settings), Facts())
    turns(application, lambda: broker.of(1))
    assert len(broker.of(1)[0]) > 600
    end(application, broker)


@pytest.mark.req("B4", "W10")
def test_application_at_level_5_starts_with_a_journal_that_names_no_level():
    broker = Loopback()
    board = Board(broker)
    Journal(board.journal_region(SECTORS, None)).append(publish(b"a", b"x", 1, 1), 8)
    settings = {"broker": "127.0.0.1", "port": broker.port, "level": 5, "watchdog_s": 8}
    application, lines = printed(lambda: Application(board, check(settings), Facts()))
    assert lines == [] and application.journal.waiting == 1
    broker.close()


class RefusingAtLevel5(AnyLevel):
    """Refuses every message at level 5, while `refuses`."""

    refuses = True

    def take(self, one):
        if one[0] >> 4 == 3 and one[0] & 6 and self.level == 5 and self.refuses:
            self.packets.append(one)
            at = 2 if one[1] < 128 else 3
            at += 2 + (one[at] << 8 | one[at + 1])
            self.give(packet(0x40 if one[0] & 2 else 0x50, one[at : at + 2], b"\x87"))
        else:
            super().take(one)


@pytest.mark.req("S1", "B4", "R5")
def test_board_that_leaves_level_5_does_not_restart_while_the_broker_refuses_its_reports():
    broker = RefusingAtLevel5()
    board = restarting(Board(broker))
    settings = {"broker": "127.0.0.1", "port": broker.port, "interval_ms": 1000, "health_s": 0, "watchdog_s": 8}
    settings["level"] = 5
    settings["status_ms"] = 50
    state = Facts()
    Application(board, check(settings), state).publish("readings", 1, [{"n": "load", "v": 1}])
    settings["level"] = 4
    application, _ = printed(lambda: Application(board, check(settings), state))
    printed(lambda: turns(application, lambda: application.outcomes and application.outcomes.counts["refused"] > 4))
    broker.refuses = False
    with pytest.raises(Restarted):
        printed(lambda: turns(application, lambda: False))
    application, lines = printed(lambda: Application(board, check(settings), state))
    assert lines == [] and application.journal.waiting == 0
    broker.close()


@pytest.mark.req("B4")
def test_flush_publishes_the_health_message_although_health_s_is_0():
    application, broker = _with([Odd("a", 3)], health_s=0, watchdog_s=8)
    turns(application, lambda: application.client.connected)
    broker.give(publish(b"flashmqtt-commands/dev", b'{"id": "1", "do": "flush"}', 1, 7))
    turns(application, lambda: any(b"/health" in one for one in broker.of(3)))
    for _ in range(20):
        application.turn(5)
    assert len([one for one in broker.of(3) if b"/health" in one]) == 1
    end(application, broker)


@pytest.mark.req("B4")
def test_time_that_the_board_can_not_set_dates_the_messages_and_does_not_end_the_application():
    application, broker = _with([Odd("a", 3)], health_s=0, watchdog_s=8)

    def set_clock(unix_s):
        raise OverflowError("overflow converting long int to machine word")  # MicroPython 1.25 on an RP2040, after 2038

    def learn():
        application.time.set((1 << 31) * 1000)
        return application._time_learnt()

    application.board.set_clock = set_clock
    application.publish("readings", 1, [{"n": "a", "v": 3}])
    _, lines = printed(learn)
    assert "clock: overflow converting long int to machine word" in lines
    turns(application, lambda: len(broker.of(3)) == 3)
    (clock,) = [one for one in broker.of(3) if b"/clock" in one]
    assert b'"bt":214748364' in clock
    end(application, broker)


def _with_tls(**settings):
    """Return an application that would use TLS, and its broker, which does not."""
    tls = type("tls", (), {"context": staticmethod(lambda *files: None)})
    known = sys.modules.get("flashmqtt.tls")
    sys.modules["flashmqtt.tls"] = tls
    try:
        return _with([Odd("a", 3)], tls="ca.pem", health_s=0, watchdog_s=8, **settings)
    finally:
        del sys.modules["flashmqtt.tls"]
        if known:
            sys.modules["flashmqtt.tls"] = known


@pytest.mark.parametrize("ntp", ["", "127.0.0.1:9"])
@pytest.mark.req("B4", "B5")
def test_sleeping_board_with_tls_connects_although_no_time_server_answers(ntp):
    application, broker = _with_tls(ntp=ntp, sleep_s=600, awake_s=4)
    uptime = application.uptime
    turn = application.turn
    begin = ticks_ms()

    def turn_without_time(wait_ms):
        turn(wait_ms)
        assert ticks_diff(ticks_ms(), begin) < 30000, "the board does not connect"
        if uptime._ms < 2000:
            uptime._ms = 2001  # half of its time
        elif application.client.connected and not application.client.pending:
            uptime._ms += 100

    uptime.ms = lambda: uptime._ms
    application.turn = turn_without_time
    fall_asleep(application)
    assert broker.connects == 1 and application.client.pending == 0
    broker.close()


class Time:
    """A time server that answers in the third turn with a connection; `early`: in the first turn, without one."""

    waiting = True
    known_ms = None

    def __init__(self, application, early):
        self.clock: list = []
        application.board.set_clock = self.clock.append
        self.application = application
        self.turns = 2 if early else 0
        self.early = early

    def unix_ms(self):
        return self.known_ms

    def turn(self):
        if self.waiting and (self.early or (self.application.client.connected and not self.application.client.pending)):
            self.turns += 1
            self.application.uptime._ms += 400  # longer than a wake listens for commands
            if self.turns == 3:
                self.waiting = False
                self.known_ms = 1795000000000
                return True
        return False


@pytest.mark.req("B4", "B5")
def test_wake_does_not_end_before_the_answer_of_the_time_server():
    application, broker = _with([Odd("a", 3)], sleep_s=600, awake_s=20, health_s=0, watchdog_s=8)
    application.time = time = Time(application, early=False)
    fall_asleep(application)
    assert time.clock == [1795000000]
    broker.close()


@pytest.mark.req("B4")
def test_board_with_tls_connects_as_soon_as_it_knows_the_time():
    application, broker = _with_tls(ntp="127.0.0.1:9")
    application.time = time = Time(application, early=True)
    turns(application, lambda: broker.connects)
    assert time.clock == [1795000000]
    end(application, broker)


@pytest.mark.req("B4")
def test_board_with_tls_waits_30_seconds_for_the_time():
    application, broker = _with_tls(ntp="127.0.0.1:9")
    for passed_ms, connects in ((0, False), (20000, False), (10001, True)):
        application.uptime._ms += passed_ms
        application.turn(0)
        assert application._online == connects
    end(application, broker)


@pytest.mark.parametrize("policy", ["refuse", "drop-newest"])
@pytest.mark.req("R4", "S5", "Q4")
def test_commands_that_arrive_while_the_store_is_full_are_answered(policy):
    application, broker = _with([Odd("a", 3)], health_s=0, watchdog_s=8, when_full=policy, status_ms=50)
    broker.answers_publish = False
    turns(application, lambda: application.client.connected and broker.of(8))
    while application.publish("readings", 1, [{"n": "load", "v": 1}]):
        pass
    stored = application.journal.stored
    for n, do in ((1, b'"interval", "ms": 5000'), (2, b'"identify"')):
        broker.give(publish(b"flashmqtt-commands/dev", b'{"id": "%d", "do": %s}' % (n, do), 1, n))
    turns(application, lambda: broker.of(4))
    assert application.interval_ms == 5000 and application.journal.stored == stored
    assert _number(records(application), "dropped") == 1  # the reading; the replies wait
    broker.answers_publish = True
    broker.present = 1
    broker.drop()
    broker.packets = []
    turns(application, lambda: broker.of(8) or broker.connects == 2)
    broker.give(publish(b"flashmqtt-commands/dev", b'{"id": "2", "do": "identify"}', 1, 2, dup=1))
    turns(application, lambda: application.journal.stored == stored + 2 and not application.client.pending)
    replies = [loads(one[one.find(b"[{") :]) for one in broker.of(3) if b"/replies" in one]
    assert [(one[0]["seq"], one[0]["vs"], one[1]["vs"]) for one in replies] == [
        (stored + 1, "1", "done"),
        (stored + 2, "2", "done"),
    ]
    assert application.commands.refused == 0
    end(application, broker)


@pytest.mark.req("R2", "R5")
def test_too_long_command_is_skipped_and_reported_in_the_health_message():
    broker = Loopback()
    settings = {"broker": "127.0.0.1", "port": broker.port, "health_s": 0, "watchdog_s": 8}
    application = Application(Board(broker), check(settings), Facts())
    while not application.client.connected:
        application.turn(20)
    topic = b"flashmqtt-commands/dev"
    for qos in (0, 1, 2):
        broker.give(publish(topic, bytes(5000), qos, 7))
        while application.client.oversize <= qos:
            application.turn(20)
    while not broker.of(5):
        application.turn(20)
    assert broker.of(4) == [puback(7)] and broker.of(5) == [pubrec(7)] and broker.connects == 1
    assert {"n": "oversize", "v": 3} in records(application)
    end(application, broker)
