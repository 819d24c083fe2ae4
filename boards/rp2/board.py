"""The Pico W, the Pico 2 W and the W5500-EVB-Pico (RP2040, RP2350) behind the board contract, `boards/board.pyi`.

What is peculiar to them: a Pico W's LED hangs on the radio chip; a watchdog reset, `machine.reset()` and the end of a sleep
look the same to `machine.reset_cause()`, so a mark in a scratch register tells them apart; the watchdog counts on while the
chip sleeps, and a reset in that state hangs the RP2040, so it sleeps in slices; a Pico W measures VSYS through a pin that the
radio uses. An image with a Wi-Fi driver has `network.WLAN`; one without has Ethernet. It knows no MQTT.
"""

from time import gmtime, mktime, sleep_ms, ticks_add, ticks_diff, ticks_ms, time

import machine
import network
import rp2
from machine import ADC, WDT, Pin
from micropython import const

# Registers, from the data sheets' chapters about SYSINFO, WATCHDOG and VREG_AND_CHIP_RESET (RP2040) or POWMAN (RP2350). The
# watchdog's scratch registers 0 to 3 are free, keep their value over its reset, and are cleared when the power comes.
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
    _had_brown_out = 0  # one detector does this and power-on (data sheet, 2.12.3)
_scratch0 = _watchdog_base + 0x0C
_watchdog_clear = _watchdog_base + 0x3000  # CTRL, by its alias that clears bits

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

_NO_ADDRESS = const(2)  # of the radio's status: joined, and DHCP has not answered
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
_told = ""  # the state that the log heard of last
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
    """Return why the board started; a soft reset (Ctrl-D) shows the cause of the reset before it as "watchdog"."""
    return _cause


def reset():
    """Start again."""
    machine.mem32[_scratch0] = _MARK_RESET
    machine.reset()


def network_up(ssid, password, country, log=None):
    """Ask the radio to join, again every 20 s while it has not, or the cable for an address; return whether it is there."""
    up = _join(ssid, password, country)
    if log:
        _tell(log, ssid, up)
    return up


def _tell(log, ssid, up):
    """Say what has changed."""
    global _told
    problem = "" if up else network_problem()
    told = "up" if up else "attempt " + str(_asked) if problem else "joining"
    if told == _told or (told == "joining" and _told[:1] == "a"):  # an attempt that follows a failed one
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
        text = "lost; " + what if _told else what
    _told = told
    log("network: " + text)


def _join(ssid, password, country):
    global _wanted, _asked
    if _nic.isconnected():
        return True
    now = ticks_ms()
    if _wanted is not None and _wanted == ssid and ticks_diff(now, _asked) < _RETRY_MS:
        return False
    if not _WIFI:
        _nic.active(True)
        _nic.ipconfig(dhcp4=True)  # unlike ifconfig("dhcp"), this does not wait for the answer
    elif ssid:
        if country:
            network.country(country)
        supply_millivolts()  # while the radio's pins are still free
        if _wanted:  # a radio that has failed once joins more surely after a restart of its own
            _nic.disconnect()
            _nic.active(False)
        _nic.active(True)
        _nic.config(pm=_nic.PM_PERFORMANCE)
        _nic.connect(ssid, password or None)
    _wanted = ssid
    _asked = now
    return False


def network_problem():
    """Return the radio's complaint in words."""
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
    """Leave the network and take the power from radio or Ethernet."""
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
    """Return the space that an image of ours leaves for the journal, else files of the stock file system, pinned."""
    try:
        from journal_space import device  # frozen into the image: boards/rp2/definition
    except ImportError:
        from flashmqtt.flash.pinned import open_or_pin

        return open_or_pin(rp2.Flash(), "/journal", sectors, page_bytes=256, feed=feed)
    from flashmqtt.flash.block import BlockRegion

    return BlockRegion(device(), page_bytes=256)


class ChipTemperature:
    """The sensor inside the chip: on channel 4, 0.706 V at 27 degrees, -1.721 mV a degree (data sheets)."""

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


def watchdog_off():
    """Stop the watchdog: MicroPython can't, the chip can (ENABLE in CTRL)."""
    global _watchdog
    if _watchdog is not None:
        machine.mem32[_watchdog_clear] = _ENABLE
        _watchdog = None


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
    machine.mem32[_scratch0] = _MARK_SLEEP
    machine.reset()


def supply_millivolts():
    """Return VSYS in mV, measured while a Pico W's radio was last off: they share GPIO 25 and 29 (Pico W data sheet, 2.1).

    On a Pico 2 W the radio's driver chooses its PIO when it starts, so the pin can't be given back: None.
    """
    global _millivolts
    if _WIFI and not _is_rp2350 and not _nic.active():
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
