"""The application's loop: schedule, network, LED, commands that act later, and what a restart keeps."""

import pytest

from app.application import Application
from app.configuration import check
from app.health import records
from loopback import Loopback
from test_app_worn import Board, Facts, Odd, Restarted, _with, end, fall_asleep, restarting, turns


def _offline(**settings):
    """Return an application without a network, whose reset raises `Restarted`, and its broker."""
    application, broker = _with([Odd("a", 3)], **settings)
    restarting(application.board)
    application.board.network_up = lambda *arguments: False
    return application, broker


def _order(application, payload):
    """Hand over a command."""
    application._command(type("Message", (), {"payload": payload}))


@pytest.mark.req("B4")
def test_samples_that_an_outage_delayed_are_not_made_up_for():
    application, broker = _with([Odd("a", 3)], interval_ms=1000)
    application.read_what_is_due()
    application.uptime._ms += 3600000
    for _ in range(3):
        application.read_what_is_due()
    assert application.journal.stored == 2
    broker.close()


@pytest.mark.parametrize("sleep_s", [0, 600])
@pytest.mark.req("B4", "B5")
def test_no_reading_is_stored_if_no_sensor_has_a_value(sleep_s):
    application, broker = _with([Odd("a", None), Odd("b", OSError(5))], sleep_s=sleep_s, awake_s=1, health_s=0)
    application.board.network_up = lambda *arguments: False
    if sleep_s:
        fall_asleep(application)
    else:
        application.announce()
        application.read_what_is_due()
    assert application.journal.stored == 1  # the boot message
    broker.close()


@pytest.mark.req("B4")
def test_client_stops_while_there_is_no_network_and_the_led_is_lit_while_there_is_no_connection():
    application, broker = _with([Odd("a", 3)], watchdog_s=8, health_s=0)
    led = []
    application.board.led = led.append
    application.turn(0)
    assert led == [True]
    turns(application, lambda: application.client.connected)
    application.turn(0)
    assert led == [True, False]
    application.board.network_up = lambda *arguments: False
    turns(application, lambda: not application.client.connected)
    application.turn(0)
    assert led == [True, False, True] and broker.connects == 1
    del application.board.network_up
    turns(application, lambda: broker.connects == 2)
    end(application, broker)


@pytest.mark.req("B4")
def test_reboot_does_not_wait_for_its_reply_longer_than_five_seconds():
    application, broker = _offline()
    _order(application, b'{"id": 1, "do": "reboot"}')
    application.uptime._ms += 4000
    application.turn(0)
    application.uptime._ms += 1500
    with pytest.raises(Restarted):
        application.turn(0)
    broker.close()


@pytest.mark.req("R5")
def test_messages_in_doubt_are_reported_before_a_reboot():
    application, broker = _offline()
    application.read_what_is_due()  # waits, so that the doubt is not over
    application.turn(0)
    application.client.on_in_doubt(1)
    application._status_ms = application.uptime.ms() + 60000
    _order(application, b'{"id": 1, "do": "reboot"}')
    stored = application.journal.stored
    application.uptime._ms += 5500
    with pytest.raises(Restarted):
        application.turn(0)
    assert application.journal.stored == stored + 1
    broker.close()


@pytest.mark.req("B4", "P4")
def test_restart_keeps_the_interval_of_a_command_and_a_lost_state_begins_a_new_life():
    broker = Loopback()
    board = Board(broker)
    config = check({"broker": "127.0.0.1", "port": broker.port})
    state = Facts()
    application = Application(board, config, state)
    _order(application, b'{"id": 1, "do": "interval", "ms": 777}')
    assert "since" not in application.beginning()
    assert Application(board, config, state).interval_ms == 777
    application = Application(board, config, Facts())
    assert application.interval_ms == config["interval_ms"]
    assert application.beginning()["since"] == application.beginning()["first"] == 2
    broker.close()


@pytest.mark.req("B4")
def test_health_has_signal_and_supply_of_a_board_that_measures_them():
    application, broker = _with([])
    application.board.network_strength = lambda: -61
    application.board.supply_millivolts = lambda: 4200
    found = records(application)
    assert {"n": "rssi", "u": "dBm", "v": -61} in found and {"n": "supply", "u": "V", "v": 4.2} in found
    broker.close()


@pytest.mark.req("B5")
def test_sleeping_board_publishes_its_health_about_every_health_s():
    broker = Loopback()
    board = Board(broker)
    board.sensors = lambda: [Odd("a", 3)]
    settings = {"broker": "127.0.0.1", "port": broker.port, "sleep_s": 600, "health_s": 1200, "watchdog_s": 8}
    state = Facts()
    for _ in range(4):
        fall_asleep(Application(board, check(settings), state))
    broker()
    assert len([one for one in broker.of(3) if b"/health" in one[:30]]) == 2
    broker.close()


@pytest.mark.req("B5", "S5")
def test_wake_without_a_network_stores_no_health_message_before_it_is_due():
    application, broker = _offline(sleep_s=600, awake_s=1, health_s=86400)
    fall_asleep(application)
    assert application.journal.stored == 1  # the readings
    broker.close()


@pytest.mark.req("B5", "R5", "S5")
def test_drop_by_the_last_message_of_a_wake_is_noted_before_the_board_sleeps():
    application, broker = _offline(sleep_s=600, awake_s=1)
    turn = application.turn

    def last(wait_ms):
        turn(wait_ms)
        while not application.journal.dropped:
            application.publish("readings", 1, [{"n": "load", "v": 1}])
        application.uptime._ms += 1000

    application.turn = last
    fall_asleep(application)
    assert application.state["dropped_from"] == 1
    broker.close()


@pytest.mark.parametrize("settings", [(1, 8), (8, 8), (30, 30)])
@pytest.mark.req("B4")
def test_watchdog_waits_at_least_8_seconds(settings):
    broker = Loopback()
    board = Board(broker)
    found = []
    board.watchdog = lambda ms: found.append(ms) or broker
    Application(board, check({"broker": "127.0.0.1", "port": broker.port, "watchdog_s": settings[0]}), Facts())
    assert found == [settings[1] * 1000]
    broker.close()


@pytest.mark.parametrize("sleep_s", [0, 600])
@pytest.mark.req("B4", "R4")
def test_board_whose_sensor_hangs_sends_its_messages_after_the_watchdogs_reset(sleep_s):
    broker = Loopback()
    board = Board(broker)
    board.reset_cause = lambda: "watchdog"
    settings = {"broker": "127.0.0.1", "port": broker.port, "health_s": 0, "watchdog_s": 8, "sleep_s": sleep_s}
    application = Application(board, check(settings), Facts())

    def hang(sensor):
        raise Restarted

    application._read = hang
    if sleep_s:
        fall_asleep(application)
    else:
        application.announce()
        while not any(b"/boot" in one for one in broker.of(3)):
            application.turn(application.read_what_is_due())
        application.uptime._ms += 30000
        with pytest.raises(Restarted):
            application.read_what_is_due()
    (boot,) = [one for one in broker.of(3) if b"/boot" in one]
    assert b'"vs": "watchdog"' in boot
    end(application, broker)
