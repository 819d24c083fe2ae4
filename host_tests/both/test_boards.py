"""The board modules, with fakes of the hardware: reset causes, the radio, sleep, clock, flash."""

import sys

import pytest

from fake_board import load_board
from tools.flashsim.nor import NorFlash

RP2040, ESP32 = "rp2", "esp32"
SCRATCH0 = 0x4005800C
CHIP_RESET = 0x40064008
RP2350 = {0x40000000: 0x20004927}  # register CHIP_ID of SYSINFO: part number 4
SCRATCH0_2350 = 0x400D800C
CHIP_RESET_2350 = 0x4010002C
BOTH = [RP2040, ESP32]


def with_chip(registers):
    found = dict(RP2350)
    found.update(registers)
    return found


def _end(call, *arguments):
    with pytest.raises(SystemExit) as end:
        call(*arguments)
    return str(end.value)


@pytest.mark.parametrize(
    "cause,registers,said",
    [
        (1, {}, "power-on"),
        (1, {CHIP_RESET: 1 << 16}, "reset"),
        (3, {}, "watchdog"),
        (3, {SCRATCH0: 0x666C0003}, "watchdog"),
        (3, {SCRATCH0: 0x666C0001}, "reset"),
        (3, {SCRATCH0: 0x666C0002}, "deep-sleep"),
    ],
)
@pytest.mark.req("B1", "B4")
def test_pico_distinguishes_reset_causes(cause, registers, said):
    board = load_board(RP2040, cause=cause, registers=dict(registers))
    assert board.reset_cause() == said
    # This mark tells the next start that a program was running, so that it reports a watchdog reset.
    assert board.machine.mem32[SCRATCH0] == 0x666C0003


@pytest.mark.parametrize(
    "cause,said", [(1, "power-on"), (2, "reset"), (3, "watchdog"), (4, "deep-sleep"), (5, "reset"), (0, "unknown")]
)
@pytest.mark.req("B1", "B4")
def test_esp32_names_its_reset_causes(cause, said):
    assert load_board(ESP32, "Generic ESP32 module with ESP32", cause=cause).reset_cause() == said


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.req("B4")
def test_requested_reset_is_reported_after_it(name):
    board = load_board(name)
    assert _end(board.reset) == "reset"
    registers = board.machine.simulated.registers
    again = load_board(name, cause=3 if name == RP2040 else 5, registers=registers)
    assert again.reset_cause() == "reset"


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.req("B4")
def test_radio_joins_without_blocking(name):
    board = load_board(name)
    ether = board.network.simulated
    ether.access_points["home"] = "secret-word"
    answers = [board.network_up("home", "secret-word", "AT") for _ in range(4)]
    assert answers == [False, False, True, True]
    assert ether.log == ["on", "connect home"] and ether.country == "AT"
    assert board.network_strength() == -61 and board.network_problem() == ""
    board.network_down()
    assert board.network_strength() is None and ether.log[-1] == "off"


@pytest.mark.req("B4")
def test_esp32_that_has_just_lost_its_network_has_no_signal_strength():
    board = load_board(ESP32)
    board.network.simulated.access_points["home"] = "secret-word"
    while not board.network_up("home", "secret-word", "AT"):
        pass
    board.network.simulated.access_points.clear()
    board._wlan.isconnected = lambda: True  # until the driver's event is handled
    assert board.network_strength() is None


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.req("B4")
def test_failed_join_reports_the_reason_and_restarts_the_radio_later(name):
    board = load_board(name)
    ether = board.network.simulated
    assert not board.network_up("home", "wrong", "")
    assert board.network_problem() == "no such network in reach"
    ether.access_points["home"] = "right"
    assert not board.network_up("home", "wrong", "")
    assert board.network_problem() == "wrong password"
    assert ether.log.count("connect home") == 1
    board.clock_module.sleep_ms(20001)
    for _ in range(3):
        assert not board.network_up("home", "wrong", "")
    assert ether.log.count("connect home") == 2 and "off" in ether.log
    assert not board.network_up("home2", "right", "")  # for another network the radio joins at once
    assert ether.log[-1] == "connect home2"


@pytest.mark.parametrize("days", [1, 7, 12, 13, 30])
@pytest.mark.req("B4")
def test_network_that_is_lost_after_days_is_joined_again(days):
    for name in BOTH:
        board = load_board(name)
        ether = board.network.simulated
        ether.access_points["home"] = "right"
        while not board.network_up("home", "right", ""):
            pass
        board.clock_module.sleep_ms(days * 86400 * 1000)
        ether.access_points.clear()
        assert not board.network_up("home", "right", "")
        ether.access_points["home"] = "right"
        board.clock_module.sleep_ms(20001)
        for _ in range(3):
            up = board.network_up("home", "right", "")
        assert up and ether.log.count("connect home") > 1


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.req("B4")
def test_log_gets_each_change_once_and_each_failed_attempt(name):
    board = load_board(name)
    ether = board.network.simulated
    said = []

    def ask(times, password="right"):
        del said[:]
        for _ in range(times):
            board.network_up("home", password, "", said.append)
        return said

    assert ask(3) == ["network: no such network in reach; again in 20 s"]
    board.clock_module.sleep_ms(20001)
    ether.access_points["home"] = "right"
    assert ask(5) == ["network: joined home, address 127.0.0.1"]  # and not a line for each attempt to join
    del ether.access_points["home"]
    assert ask(5) == ["network: no such network in reach; again in 20 s"]
    board.network_down()
    ether.access_points["home"] = "right"
    assert ask(5) == ["network: joined home, address 127.0.0.1"]
    board.network_down()
    ether.questions = 3
    assert ask(2) == ["network: lost; joining home"]
    ask(1, "wrong")
    board.network_down()
    assert ask(2, "wrong") == ["network: wrong password; again in 20 s"]
    board.clock_module.sleep_ms(15000)
    assert ask(2, "wrong") == []
    board.clock_module.sleep_ms(6000)
    assert ask(2, "wrong") == ["network: wrong password; again in 20 s"]


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.req("B4")
def test_missing_dhcp_address_is_logged(name):
    board = load_board(name)
    ether = board.network.simulated
    ether.access_points["home"] = "right"
    ether.without_address = 2 if name == RP2040 else board.network.STAT_CONNECTING
    said = []
    for _ in range(4):
        assert not board.network_up("home", "right", "", said.append)
    assert said == ["network: joining home"]
    board.clock_module.sleep_ms(11000)
    assert not board.network_up("home", "right", "", said.append)
    assert said[1:] == ["network: joined, but no address came (DHCP); again in 9 s"]


@pytest.mark.req("B4")
def test_log_reports_a_missing_cable_and_waiting_for_boot_py():
    board = load_board(RP2040, ethernet=True)
    cable = board.network.simulated
    said = []
    cable.cable = False
    for _ in range(2):
        board.network_up("", "", "", said.append)
    cable.cable = True
    board.clock_module.sleep_ms(20001)
    for _ in range(5):
        board.network_up("", "", "", said.append)
    assert said == ["network: no cable; again in 20 s", "network: joined it, address 127.0.0.1"]
    board = load_board(ESP32)
    del said[:]
    for _ in range(2):
        board.network_up("", "", "", said.append)
    assert said == ["network: waiting until boot.py has joined it"]


@pytest.mark.req("B4", "B5")
def test_pico_feeds_its_watchdog_during_a_long_sleep():
    board = load_board(RP2040)
    feed = board.watchdog(60000)
    assert board.machine.simulated.watchdog_ms == 8388
    feed()
    assert _end(board.sleep, 60000) == "reset"
    slept = board.machine.simulated.sleeps
    assert sum(slept) == 60000 and max(slept) <= 2000
    assert board.network.simulated.log == []
    woken = load_board(RP2040, cause=3, registers=board.machine.simulated.registers)
    assert woken.reset_cause() == "deep-sleep"


@pytest.mark.req("B5")
def test_pico_sleeps_the_full_time_when_lightsleep_returns_early():
    board = load_board(RP2040, lightsleep_returns_at_once=True)
    assert _end(board.sleep, 5000) == "reset"
    assert board.clock_module.ms >= 5000 and len(board.machine.simulated.sleeps) <= 60


@pytest.mark.req("B4")
def test_watchdog_off_stops_the_pico_watchdog():
    board = load_board(RP2040)
    board.watchdog_off()  # no watchdog was started: no register is written
    assert 0x4005B000 not in board.machine.simulated.registers
    board.watchdog(8000)
    for _ in range(2):
        board.watchdog_off()
        assert board.machine.simulated.watchdog_ms == 0


@pytest.mark.req("B4")
def test_watchdog_off_feeds_the_esp32_watchdog_from_a_timer():
    board = load_board(ESP32, "Generic ESP32 module with ESP32", registers={"chip": "esp32"})
    simulated = board.machine.simulated
    board.watchdog_off()
    assert simulated.timers == []
    board.watchdog(8000)
    board.watchdog_off()
    board.watchdog_off()
    before = simulated.fed
    simulated.tick()
    assert len(simulated.timers) == 1 and simulated.fed == before + 1


@pytest.mark.req("B5")
def test_esp32_deep_sleeps_in_one_call():
    board = load_board(ESP32, "Generic ESP32 module with ESP32", registers={"chip": "esp32"})
    board.watchdog(100)
    assert board.machine.simulated.watchdog_ms == 20000  # longer than a name lookup can block
    assert _end(board.sleep, 3600000) == "deep-sleep"
    assert board.machine.simulated.sleeps == [3600000]


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.req("B4")
def test_clock_is_unknown_until_it_is_set(name):
    board = load_board(name)
    assert board.clock() is None
    board.set_clock(1795000000)
    assert board.clock() == 1795000000
    board.clock_module.sleep_ms(90000)
    assert board.clock() == 1795000090


@pytest.mark.req("B1")
def test_pico_measures_supply_and_temperature():
    board = load_board(RP2040)
    (sensor,) = board.sensors()
    assert sensor.name == "chip_temperature" and sensor.unit == "Cel" and 20 < sensor.read() < 35
    assert board.supply_millivolts() == 5000
    board.network.simulated.access_points["home"] = ""
    board.network_up("home", "", "")
    board.machine.simulated.adc[29] = 0  # the pin is now the radio's clock
    assert board.supply_millivolts() == 5000


@pytest.mark.req("B1")
def test_esp32_measures_in_celsius():
    board = load_board(ESP32, "Generic ESP32 module with ESP32")
    assert board.sensors()[0].read() == 52.8
    assert board.supply_millivolts() is None


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.req("B1")
def test_id_is_the_chip_id_and_led_switches(name):
    board = load_board(name, "Generic ESP32 module with ESP32" if name == ESP32 else "")
    assert board.unique_id() == "e6616408432b1c2f"
    board.led(True)
    assert board.machine.simulated.pins["LED" if name == RP2040 else 2] == 1
    board.led(False)
    assert board.machine.simulated.pins["LED" if name == RP2040 else 2] == 0


@pytest.mark.req("B1", "S3")
def test_esp32_uses_the_partition_named_journal():
    board = load_board(ESP32, "Generic ESP32 module with ESP32")
    board.esp32.simulated.device = NorFlash(16 * 4096, "esp32")
    board.esp32.simulated.partitions = {"vfs": (0, 4), "journal": (4, 12)}
    region = board.journal_region(8)
    assert (region.sectors, region.sector_bytes, region.page_bytes) == (12, 4096, 1)
    region.program(5, bytearray(b"abc"))
    assert bytes(board.esp32.simulated.device.peek(4 * 4096 + 5, 3)) == b"abc"


@pytest.mark.parametrize(
    "cause,registers,said",
    [
        (1, {}, "power-on"),
        (1, {CHIP_RESET_2350: 1 << 16}, "power-on"),  # HAD_POR; on an RP2040 this bit is HAD_RUN
        (1, {CHIP_RESET_2350: 1 << 17}, "brown-out"),
        (1, {CHIP_RESET_2350: 1 << 18}, "reset"),
        (3, {SCRATCH0_2350: 0x666C0003}, "watchdog"),
        (3, {SCRATCH0_2350: 0x666C0001}, "reset"),
        (3, {SCRATCH0_2350: 0x666C0002}, "deep-sleep"),
    ],
)
@pytest.mark.req("B1", "B4")
def test_pico_2_distinguishes_reset_causes_by_its_own_registers(cause, registers, said):
    board = load_board(RP2040, cause=cause, registers=with_chip(registers))
    assert board.MODEL == "Raspberry Pi Pico 2 W" and board.reset_cause() == said
    assert board.machine.mem32[SCRATCH0_2350] == 0x666C0003
    assert SCRATCH0 not in board.machine.simulated.registers


@pytest.mark.req("B1", "B4")
def test_pico_2_stops_its_watchdog_and_reports_no_supply_voltage():
    board = load_board(RP2040, registers=with_chip({}))
    board.watchdog(8000)
    board.watchdog_off()
    assert board.machine.simulated.watchdog_ms == 0
    assert board.supply_millivolts() is None


@pytest.mark.req("B1", "B4")
def test_ethernet_board_uses_dhcp_and_reports_a_missing_cable():
    board = load_board(RP2040, ethernet=True)
    cable = board.network.simulated
    cable.cable = False
    assert board.MODEL == "W5500-EVB-Pico"
    assert not board.network_up("", "", "") and board.network_problem() == "no cable"
    cable.cable = True
    assert not board.network_up("", "", "")
    assert cable.log == ["on", "dhcp"] and board.network_problem() == ""
    assert [board.network_up("", "", "") for _ in range(2)] == [False, True]
    assert board.network_strength() is None and board.supply_millivolts() is None
    board.network_down()
    assert cable.log[-1] == "off" and not board.network_up("", "", "")


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.req("B4")
def test_radio_configured_by_boot_py_is_left_alone(name):
    board = load_board(name)
    ether = board.network.simulated
    assert not board.network_up("", "", "AT") and ether.log == []
    ether.access_points["open"] = ""
    wlan = board._nic if name == RP2040 else board._wlan
    wlan.active(True)
    wlan.connect("open")
    assert [board.network_up("", "", "AT") for _ in range(3)] == [False, True, True]
    assert ether.log == ["on", "connect open"]


@pytest.mark.parametrize("chip", ["ESP32S3", "ESP32C3"])
@pytest.mark.req("B1")
def test_rgb_led_of_newer_esp32_chips_switches(chip):
    board = load_board(ESP32, "Generic module with " + chip)
    board.led(True)
    board.led(False)
    assert sys.modules["tools.virtual_board.hardware.neopixel"].written == [(0, 8, 0), (0, 0, 0)]
    assert chip == board.MODEL and 2 not in board.machine.simulated.pins
