"""The board contract, `boards/board.pyi`, for the Pico W, the Pico 2 W and the W5500-EVB-Pico (RP2040, RP2350).

Special on these boards: a Pico W's LED is connected to the radio chip. `machine.reset_cause()` is the same after a watchdog
reset, `machine.reset()` and a sleep, so a mark in a scratch register distinguishes them. The watchdog counts while the chip
sleeps, and a reset in that state hangs the RP2040, so it sleeps in slices. A Pico W measures VSYS through a pin that the radio
uses. An image with a Wi-Fi driver has `network.WLAN`; one without has Ethernet. This module knows no MQTT.
"""

from time import gmtime, mktime, sleep_ms, ticks_add, ticks_diff, ticks_ms, time

import machine
import network
import rp2
from machine import ADC, WDT, Pin
from micropython import const

# Registers, from the data sheets' chapters about SYSINFO, WATCHDOG and VREG_AND_CHIP_RESET (RP2040) or POWMAN (RP2350). The
# watchdog's scratch registers 0 to 3 are free, keep their value across its reset, and are cleared at power-on.
_CHIP_ID = const(0x40000000)  # SYSINFO: the same address on both
_RP2350_PART = const(4)
_ENABLE = const(1 << 30)

_is_rp2350 = machine.mem32[_CHIP_ID] >> 12 & 0xFFFF == _RP2350_PART
if _is_rp2350:
    _watchdog_base = 0x400D8000
    _chip_reset = 0x4010002C  # POWMAN
    _had_run = 1 << 18
    _had_brown_out = 1 << 17
else:
    _watchdog_base = 0x40058000
    _chip_reset = 0x40064008  # VREG_AND_CHIP_RESET
    _had_run = 1 << 16
    _had_brown_out = 0  # one detector for brown-out and power-on (data sheet, 2.12.3)
_scratch0 = _watchdog_base + 0x0C
_watchdog_clear = _watchdog_base + 0x3000  # the alias of CTRL that clears bits

_WIFI = hasattr(network, "WLAN")
if not _WIFI:
    MODEL = "W5500-EVB-Pico"
elif _is_rp2350:
    MODEL = "Raspberry Pi Pico 2 W"
else:
    MODEL = "Raspberry Pi Pico W"

_MARK_RESET = const(0x666C0001)
_MARK_SLEEP = const(0x666C0002)
_MARK_RUNNING = const(0x666C0003)

_NO_ADDRESS = const(2)  # a status of the radio: joined, and no answer from DHCP yet
_PATIENCE_MS = const(10000)
_WATCHDOG_MOST_MS = const(8388)
_SLICE_MS = const(2000)
_RETRY_MS = const(20000)
_TEMPERATURE_CHANNEL = const(4)
_CLOCK_IS_SET = const(2025)
_VOLT_STEPS = const(65535)

_led = Pin("LED", Pin.OUT)
_nic = network.WLAN(network.STA_IF) if _WIFI else network.WIZNET5K()  # type: ignore[attr-defined]
_wanted: "str | None" = None
_asked = ticks_ms()
_logged = ""  # the state that was logged last
_millivolts = None
_watchdog = None


def _read_cause():
    mark = machine.mem32[_scratch0]
    machine.mem32[_scratch0] = _MARK_RUNNING
    if machine.reset_cause() == machine.WDT_RESET:
        if mark == _MARK_SLEEP:
            return "deep-sleep"
        return "reset" if mark == _MARK_RESET else "watchdog"
    flags = machine.mem32[_chip_reset]
    if flags & _had_run:
        return "reset"
    return "brown-out" if flags & _had_brown_out else "power-on"


_cause = _read_cause()


def unique_id():
    """Return the flash chip's serial number, which is the Pico's id."""
    return machine.unique_id().hex()


def reset_cause():
    """Return why the board started; after a soft reset (Ctrl-D), the mark is gone and the cause may be "watchdog"."""
    return _cause


def reset():
    """Reset the board."""
    machine.mem32[_scratch0] = _MARK_RESET
    machine.reset()


def network_up(ssid, password, country, log=None):
    """Join the Wi-Fi, or get an address by cable; try again every 20 s; return whether the network is up."""
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
        text = "joined %s, address %s" % (ssid or "it", _nic.ifconfig()[0])
    elif problem:
        text = problem
        if ssid or not _WIFI:
            text += "; again in %d s" % max(0, (_RETRY_MS + 500 - ticks_diff(ticks_ms(), _asked)) // 1000)
    else:
        what = (
            "joining " + ssid if ssid else "waiting until boot.py has joined it" if _WIFI else "waiting for an address"
        )
        text = "lost; " + what if _logged else what
    _logged = state
    log("network: " + text)


def _join(ssid, password, country):
    global _wanted, _asked
    if _nic.isconnected():
        return True
    now = ticks_ms()
    # (Below 0: more than 6 days ago.)
    if _wanted is not None and _wanted == ssid and 0 <= ticks_diff(now, _asked) < _RETRY_MS:
        return False
    if not _WIFI:
        _nic.active(True)
        _nic.ipconfig(dhcp4=True)  # unlike ifconfig("dhcp"), this does not wait for the answer
    elif ssid:
        if country:
            network.country(country)
        supply_millivolts()  # while the radio's pins are still free
        if _wanted:  # restart the radio: after a failed attempt it then joins more reliably
            _nic.disconnect()
            _nic.active(False)
        _nic.active(True)
        _nic.config(pm=_nic.PM_PERFORMANCE)
        _nic.connect(ssid, password or None)
    _wanted = ssid
    _asked = now
    return False


def network_problem():
    """Return the reason that the radio reports, as text."""
    status = _nic.status()
    if not _WIFI:
        return "" if status else "no cable"
    if status == network.STAT_WRONG_PASSWORD:
        return "wrong password"
    if status == network.STAT_NO_AP_FOUND:
        return "no such network in reach"
    if status == network.STAT_CONNECT_FAIL:
        return "the access point refuses"
    if status == _NO_ADDRESS and ticks_diff(ticks_ms(), _asked) > _PATIENCE_MS:
        return "joined, but no address came (DHCP)"
    return ""


def network_down():
    """Leave the network and switch the radio or Ethernet off."""
    global _wanted
    _wanted = None
    if _nic.active():
        if _WIFI:
            _nic.disconnect()
        _nic.active(False)


def network_strength():
    """Return the signal strength in dBm, while the network is up."""
    return _nic.status("rssi") if _WIFI and _nic.isconnected() else None


def journal_region(sectors, feed=None):
    """Return the journal's space in our own image, or pinned files of the stock file system."""
    try:
        from journal_space import device  # frozen into the image: boards/rp2/definition
    except ImportError:
        from flashmqtt.flash.pinned import open_or_pin

        return open_or_pin(rp2.Flash(), "/journal", sectors, page_bytes=256, feed=feed)
    from flashmqtt.flash.block import BlockRegion

    return BlockRegion(device(), page_bytes=256)


class ChipTemperature:
    """The sensor inside the chip: channel 4, 0.706 V at 27 degrees, -1.721 mV per degree (data sheets)."""

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
    """Switch the LED; on a Pico W this wakes the radio chip, to which it is connected."""
    _led.value(1 if on else 0)


def watchdog(timeout_ms):
    """Start the watchdog, with at most 8.388 s: its counter has 24 bits of half microseconds."""
    global _watchdog
    _watchdog = WDT(timeout=min(timeout_ms, _WATCHDOG_MOST_MS))
    return _watchdog.feed


def watchdog_off():
    """Stop the watchdog by ENABLE in CTRL, as MicroPython has no function for it."""
    global _watchdog
    if _watchdog is not None:
        machine.mem32[_watchdog_clear] = _ENABLE
        _watchdog = None


def sleep(duration_ms):
    """Sleep in slices, feed the watchdog between them, and reset.

    The watchdog counts during lightsleep; if it expires there, the RP2040 hangs until its power is cut (MicroPython issue 17228,
    fixed in 1.26). lightsleep may also return at once if the radio has an event pending.
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
    machine.mem32[_scratch0] = _MARK_SLEEP
    machine.reset()


def supply_millivolts():
    """Return VSYS in mV, measured when a Pico W's radio was last off: they share GPIO 25 and 29 (Pico W data sheet, 2.1).

    None on a Pico 2 W: its radio driver chooses a PIO when it starts, so the pin can't be returned to the radio afterwards.
    """
    global _millivolts
    if _WIFI and not _is_rp2350 and not _nic.active():
        Pin(25, Pin.OUT, value=1)
        Pin(29, Pin.IN)
        _millivolts = ADC(29).read_u16() * 9900 // _VOLT_STEPS
        Pin(29, Pin.ALT, pull=Pin.PULL_DOWN, alt=7)
    return _millivolts


def clock():
    """Return the seconds since 1970, or None until the clock is set: after each reset it starts in 2021."""
    return time() + _from_1970() if gmtime()[0] >= _CLOCK_IS_SET else None


def set_clock(unix_s):
    """Set the real-time clock."""
    now = gmtime(unix_s - _from_1970())
    machine.RTC().datetime((now[0], now[1], now[2], now[6], now[3], now[4], now[5], 0))


def _from_1970():
    # MicroPython's epoch is 2000 or 1970, depending on version and build.
    return 946684800 - mktime((2000, 1, 1, 0, 0, 0, 0, 0))
