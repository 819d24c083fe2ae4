"""The application under faults: its flash wears out, or it receives a command that is too long."""

import pytest

from app.application import Application
from app.configuration import check
from app.health import records
from flashmqtt.errors import StoreWorn
from flashmqtt.flash.block import BlockRegion
from loopback import Loopback
from tools.flashsim.nor import NorFlash
from wire import puback, publish, pubrec

SECTORS = 8


class Facts(dict):
    """A state that no file keeps."""

    def save(self, **changes):
        self.update(changes)


class Sensor:
    name = "load"
    unit = ""

    def read(self):
        return 1


class Board:
    """The part of the board contract that a run needs; its watchdog feeds the broker."""

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


@pytest.mark.req("S6")
def test_stored_messages_are_delivered_before_a_worn_flash_ends_the_run():
    broker = Loopback()
    board = Board(broker)
    settings = {"broker": "127.0.0.1", "port": broker.port, "interval_ms": 10, "health_s": 0, "watchdog_s": 8}
    application = Application(board, check(settings), Facts())
    for _ in range(9):
        application.publish("readings", 1 + application.journal.stored % 2, application.sample(application.groups[0]))
    for sector in range(SECTORS):
        board.flash.set_bad(sector)
    with pytest.raises(StoreWorn):
        application.run()
    assert application.client.pending == 0 and len(broker.of(3)) == 9 + 1  # the status, at QoS 0
    assert application.refused > 0
    application.client.link.stop()


class Odd:
    """A sensor that returns what it is given; it raises a given exception."""

    unit = ""

    def __init__(self, name, value):
        self.name = name
        self.value = value

    def read(self):
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


def _with(sensors, **settings):
    """Return an application with these sensors, and its broker."""
    broker = Loopback()
    board = Board(broker)
    board.sensors = lambda: sensors
    settings.update({"broker": "127.0.0.1", "port": broker.port})
    return Application(board, check(settings), Facts()), broker


@pytest.mark.req("B1", "P4")
def test_sensor_that_fails_or_gives_no_finite_number_does_not_disturb_the_others():
    values = [Exception("checksum error"), OSError(5), float("nan"), float("inf"), "21", True, [1], None, 1e300 * 1e300]
    sensors = [Odd("odd%d" % n, value) for n, value in enumerate(values)]
    sensors += [Odd("a", 3), Odd("b", -2.5), Odd("c", 0)]
    application, broker = _with(sensors)
    assert application.sample(application.groups[0]) == [{"n": "a", "v": 3}, {"n": "b", "v": -2.5}, {"n": "c", "v": 0}]
    broker.close()


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
    application.client.link.stop()
    broker.close()
