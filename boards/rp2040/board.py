"""The Pico W (RP2040 and CYW43) behind the board contract, `boards/board.pyi`.

What is peculiar to it: the LED hangs on the radio chip; a watchdog reset, `machine.reset()` and the end of a sleep look the
same to `machine.reset_cause()`, so a mark in a scratch register tells them apart; the watchdog counts on while the chip
sleeps, and a reset in that state hangs the RP2040, so it sleeps in slices; VSYS is measured through a pin that the radio
uses. It knows no MQTT.
"""

from time import gmtime, mktime, sleep_ms, ticks_add, ticks_diff, ticks_ms, time

import machine
import network
import rp2
from machine import ADC, WDT, Pin
from micropython import const

MODEL = "Raspberry Pi Pico W"

# Registers of the RP2040 (data sheet, 4.7.6 and 2.13.8). The watchdog's scratch registers 0 to 3 are free, keep their value
# over its reset, and are cleared when the power comes or RUN is pulled down. machine.mem_backup() has the same, from 1.29 on.
_SCRATCH0 = const(0x4005800C)
_CHIP_RESET = const(0x40064008)
_HAD_RUN = const(1 << 16)

_MARK_RESET = const(0x666C0001)
_MARK_SLEEP = const(0x666C0002)
_MARK_RUNNING = const(0x666C0003)

_WATCHDOG_MOST_MS = const(8388)
_SLICE_MS = const(2000)
_RETRY_MS = const(20000)
_TEMPERATURE_CHANNEL = const(4)
_CLOCK_IS_SET = const(2025)
_VOLT_STEPS = const(65535)

_led = Pin("LED", Pin.OUT)
_wlan = network.WLAN(network.STA_IF)
_wanted = ""
_asked = ticks_ms()
_millivolts = None
_watchdog = None


def _read_cause():
    mark = machine.mem32[_SCRATCH0]
    machine.mem32[_SCRATCH0] = _MARK_RUNNING
    if machine.reset_cause() == machine.WDT_RESET:
        if mark == _MARK_SLEEP:
            return "deep-sleep"
        return "reset" if mark == _MARK_RESET else "watchdog"
    # The chip can't tell a brown-out from a first power-on: one detector does both (data sheet, 2.12.3).
    return "reset" if machine.mem32[_CHIP_RESET] & _HAD_RUN else "power-on"


_cause = _read_cause()


def unique_id():
    """Return the flash chip's serial number, which is the Pico's id."""
    return machine.unique_id().hex()


def reset_cause():
    """Return why the board started; a soft reset (Ctrl-D) shows the cause of the reset before it as "watchdog"."""
    return _cause


def reset():
    """Start again."""
    machine.mem32[_SCRATCH0] = _MARK_RESET
    machine.reset()


def network_up(ssid, password, country):
    """Ask the radio to join, again every 20 s while it has not; return whether it has."""
    global _wanted, _asked
    if _wlan.isconnected():
        return True
    now = ticks_ms()
    if _wanted and _wanted == ssid and ticks_diff(now, _asked) < _RETRY_MS:
        return False
    if country:
        network.country(country)
    supply_millivolts()  # while the radio's pins are still free
    if _wanted:  # a radio that has failed once joins more surely after a restart of its own
        _wlan.disconnect()
        _wlan.active(False)
    _wlan.active(True)
    _wlan.config(pm=_wlan.PM_PERFORMANCE)
    _wlan.connect(ssid, password or None)
    _wanted = ssid
    _asked = now
    return False


def network_problem():
    """Return the radio's complaint in words."""
    status = _wlan.status()
    if status == network.STAT_WRONG_PASSWORD:
        return "wrong password"
    if status == network.STAT_NO_AP_FOUND:
        return "no such network in reach"
    if status == network.STAT_CONNECT_FAIL:
        return "the access point refuses"
    return ""


def network_down():
    """Leave the network and take the radio's power away."""
    global _wanted
    _wanted = ""
    if _wlan.active():
        _wlan.disconnect()
        _wlan.active(False)


def network_strength():
    """Return the signal strength in dBm, while the network is up."""
    return _wlan.status("rssi") if _wlan.isconnected() else None


def journal_region(sectors):
    """Return the space that an image of ours leaves for the journal, else files of the stock file system, pinned."""
    try:
        from journal_space import device  # frozen into the image: boards/rp2040/definition
    except ImportError:
        from flashmqtt.flash.pinned import open_or_pin

        return open_or_pin(rp2.Flash(), "/journal", sectors, page_bytes=256)
    from flashmqtt.flash.block import BlockRegion

    return BlockRegion(device(), page_bytes=256)


class ChipTemperature:
    """The sensor inside the RP2040: on channel 4, 0.706 V at 27 degrees, -1.721 mV a degree (data sheet, 4.9.5)."""

    name = "chip_temperature"
    unit = "Cel"

    def __init__(self):
        self._adc = ADC(_TEMPERATURE_CHANNEL)

    def read(self):
        """Return degrees Celsius."""
        return round(27 - (self._adc.read_u16() * 3.3 / _VOLT_STEPS - 0.706) / 0.001721, 1)


def sensors():
    """Return the chip's temperature."""
    return [ChipTemperature()]


def led(on):
    """Switch the LED, which wakes the radio chip it is wired to."""
    _led.value(1 if on else 0)


def watchdog(timeout_ms):
    """Start the watchdog, for at most 8.388 s: its counter has 24 bits of half microseconds."""
    global _watchdog
    _watchdog = WDT(timeout=min(timeout_ms, _WATCHDOG_MOST_MS))
    return _watchdog.feed


def sleep(duration_ms):
    """Sleep in slices, feeding the watchdog between them, and start again.

    The watchdog counts through lightsleep, and one that expires there leaves the RP2040 hanging until its power is cut
    (MicroPython issue 17228, mended in 1.26); lightsleep may also return at once when the radio has something pending.
    """
    end = ticks_add(ticks_ms(), duration_ms)
    network_down()
    led(False)
    left = duration_ms
    while left > 0:
        if _watchdog is not None:
            _watchdog.feed()
        slice_ms = min(left, _SLICE_MS)
        before = ticks_ms()
        machine.lightsleep(slice_ms)
        if ticks_diff(ticks_ms(), before) < slice_ms // 2:
            sleep_ms(min(left, 100))
        left = ticks_diff(end, ticks_ms())
    machine.mem32[_SCRATCH0] = _MARK_SLEEP
    machine.reset()


def supply_millivolts():
    """Return VSYS in mV, measured while the radio was last off: they share GPIO 25 and GPIO 29 (Pico W data sheet, 2.1)."""
    global _millivolts
    if not _wlan.active():
        Pin(25, Pin.OUT, value=1)
        Pin(29, Pin.IN)
        _millivolts = ADC(29).read_u16() * 9900 // _VOLT_STEPS
        Pin(29, Pin.ALT, pull=Pin.PULL_DOWN, alt=7)
    return _millivolts


def clock():
    """Return the seconds since 1970, or None until the clock is set: it starts in 2021 at every reset."""
    return time() + _from_1970() if gmtime()[0] >= _CLOCK_IS_SET else None


def set_clock(unix_s):
    """Set the real-time clock."""
    now = gmtime(unix_s - _from_1970())
    machine.RTC().datetime((now[0], now[1], now[2], now[6], now[3], now[4], now[5], 0))


def _from_1970():
    return 946684800 - mktime((2000, 1, 1, 0, 0, 0, 0, 0))  # MicroPython's epoch is 2000 or 1970, by version and build
