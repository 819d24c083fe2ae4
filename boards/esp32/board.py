"""The board contract, `boards/board.pyi`, for the ESP32 (and S2, S3, C3, C6).

Special on these boards: if the partition table has a journal partition, it is used; otherwise pinned files. MicroPython reports a
brown-out as power-on, and a crash of the IDF as reset. In deep sleep the clock keeps running. `connect` raises while the radio is
already connecting. This module knows no MQTT.
"""

from sys import implementation
from time import gmtime, mktime, ticks_diff, ticks_ms, time

import esp32
import machine
import network
from machine import WDT, Pin, Timer
from micropython import const
from neopixel import NeoPixel

# The LED of Espressif's DevKits: a plain LED on a pin, or a NeoPixel. For another board, change this in a copy of the file.
LED_PINS = {"ESP32": 2}
COLOURED_LED_PINS = {"ESP32S3": 48, "ESP32C3": 8, "ESP32C6": 8}
_RETRY_MS = const(20000)
_PATIENCE_MS = const(10000)
_WATCHDOG_LEAST_MS = const(20000)
_FEED_MS = const(1000)
_CLOCK_IS_SET = const(2025)

_chip = getattr(implementation, "_machine", "").rpartition(" with ")[2]
MODEL = _chip or "ESP32"
_led = Pin(LED_PINS[_chip], Pin.OUT) if _chip in LED_PINS else None
_coloured = NeoPixel(Pin(COLOURED_LED_PINS[_chip], Pin.OUT), 1) if _chip in COLOURED_LED_PINS else None
_wlan = network.WLAN(network.STA_IF)
_wanted = ""
_asked = ticks_ms()
_logged = ""  # the state that was logged last
_feed = None


def unique_id():
    """Return the factory MAC address."""
    return machine.unique_id().hex()


def reset_cause():
    """Return why the board started."""
    cause = machine.reset_cause()
    if cause == machine.DEEPSLEEP_RESET:
        return "deep-sleep"
    if cause == machine.WDT_RESET:
        return "watchdog"
    if cause in (machine.HARD_RESET, machine.SOFT_RESET):
        return "reset"
    return "power-on" if cause == machine.PWRON_RESET else "unknown"


def reset():
    """Reset the board."""
    machine.reset()


def network_up(ssid, password, country, log=None):
    """Join the Wi-Fi; try again every 20 s; return whether the network is up."""
    up = _join(ssid, password, country)
    if log:
        _log_state(log, ssid, up)
    return up


def _log_state(log, ssid, up):
    """Log a change of the network's state."""
    global _logged
    problem = "" if up else network_problem()
    state = "up" if up else "attempt " + str(_asked) if problem else "joining"
    if state == _logged or (state == "joining" and _logged[:1] == "a"):  # an attempt that follows a failed one
        return
    if up:
        text = "joined %s, address %s" % (ssid or "it", _wlan.ifconfig()[0])
    elif problem:
        text = problem
        if ssid:
            text += "; again in %d s" % max(0, (_RETRY_MS + 500 - ticks_diff(ticks_ms(), _asked)) // 1000)
    else:
        what = "joining " + ssid if ssid else "waiting until boot.py has joined it"
        text = "lost; " + what if _logged else what
    _logged = state
    log("network: " + text)


def _join(ssid, password, country):
    global _wanted, _asked
    if _wlan.isconnected():
        return True
    now = ticks_ms()
    # (Below 0: more than 6 days ago.)
    if _wanted and _wanted == ssid and 0 <= ticks_diff(now, _asked) < _RETRY_MS:
        return False
    if not ssid:  # boot.py joins, or a copy of this file for an Ethernet board
        return False
    if country:
        network.country(country)
    if _wanted:
        # connect() raises during an earlier attempt; switching off and on also helps if the radio hangs.
        _wlan.active(False)
    _wlan.active(True)
    _wlan.connect(ssid, password or None)
    _wanted = ssid
    _asked = now
    return False


def network_problem():
    """Return the reason that the radio reports, as text."""
    status = _wlan.status()
    if status in (network.STAT_WRONG_PASSWORD, network.STAT_HANDSHAKE_TIMEOUT):
        return "wrong password"
    if status == network.STAT_NO_AP_FOUND:
        return "no such network in reach"
    if status in (network.STAT_ASSOC_FAIL, network.STAT_BEACON_TIMEOUT):
        return "the access point refuses, or is too far away"
    if status == network.STAT_CONNECTING and ticks_diff(ticks_ms(), _asked) > _PATIENCE_MS:
        try:
            _wlan.status("rssi")  # raises if it has not joined
            return "joined, but no address came (DHCP)"
        except OSError:
            pass
    return ""


def network_down():
    """Leave the network and switch the radio off."""
    global _wanted
    _wanted = ""
    _wlan.active(False)


def network_strength():
    """Return the signal strength in dBm, while the network is up."""
    try:
        return _wlan.status("rssi")
    except OSError:  # not joined; for a moment after the loss, `isconnected` does not say so
        return None


def journal_region(sectors, feed=None):
    """Return the partition `journal` if there is one, or pinned files of the stock file system."""
    found = esp32.Partition.find(esp32.Partition.TYPE_DATA, label="journal")
    if found:
        from flashmqtt.flash.block import BlockRegion

        return BlockRegion(found[0])
    from flashmqtt.flash.pinned import open_or_pin

    device = esp32.Partition.find(esp32.Partition.TYPE_DATA, label="vfs")[0]
    return open_or_pin(device, "/journal", sectors, feed=feed)


class ChipTemperature:
    """The temperature sensor inside the chip."""

    name = "chip_temperature"
    unit = "Cel"

    def read(self):
        """Return degrees Celsius."""
        if hasattr(esp32, "mcu_temperature"):  # S2, S3, C3, C6
            return esp32.mcu_temperature()
        return round((esp32.raw_temperature() - 32) / 1.8, 1)  # the original ESP32 measures in Fahrenheit


def sensors():
    """Return the chip's temperature sensor, if it has one."""
    if hasattr(esp32, "mcu_temperature") or hasattr(esp32, "raw_temperature"):
        return [ChipTemperature()]
    return []


def led(on):
    """Switch the LED, if the board has a known one."""
    if _led is not None:
        _led.value(1 if on else 0)
    elif _coloured is not None:
        _coloured[0] = (0, 8, 0) if on else (0, 0, 0)
        _coloured.write()


def watchdog(timeout_ms):
    """Start the watchdog, with at least 20 s: a name lookup blocks for 7 s per name server that does not answer."""
    global _feed
    _feed = WDT(timeout=max(timeout_ms, _WATCHDOG_LEAST_MS)).feed
    return _feed


def watchdog_off():
    """Feed the watchdog from a timer, as it can't be stopped."""
    global _feed
    feed = _feed
    if feed is not None:
        Timer(0).init(period=_FEED_MS, callback=lambda timer: feed())
        _feed = None


def sleep(duration_ms):
    """Enter deep sleep: only the real-time clock and its memory stay powered, and waking is a reset."""
    network_down()
    led(False)
    machine.deepsleep(duration_ms)


def supply_millivolts():
    """Return None: the chip can't measure its supply."""
    return


def clock():
    """Return the seconds since 1970, or None until the clock is set. It starts in 2000 or 1970, and runs in deep sleep."""
    return time() + _from_1970() if gmtime()[0] >= _CLOCK_IS_SET else None


def set_clock(unix_s):
    """Set the real-time clock."""
    now = gmtime(unix_s - _from_1970())
    machine.RTC().datetime((now[0], now[1], now[2], now[6], now[3], now[4], now[5], 0))


def _from_1970():
    # MicroPython's epoch is 2000 or 1970, depending on version and build.
    return 946684800 - mktime((2000, 1, 1, 0, 0, 0, 0, 0))
