"""The board contract (`boards/board.pyi`) on the unix port of MicroPython, with simulated flash and this machine's sensors.

It runs in the board's process, in the board's folder. `flash.bin` is the content of the flash chip. `flash.intent` describes
the current flash operation, so that a kill can tear it (see `tools.flashsim`). The supervisor writes `reset_cause` before each
start. The environment sets the chip: FLASHMQTT_FLASH_BYTES, and FLASHMQTT_FLASH_TIME, where 1.0 is the data sheet's typical
time. With FLASHMQTT_CLOCK=unset, the board starts with its clock not set.
"""

from os import getenv
from time import time

from flashmqtt.flash.block import BlockRegion
from tools.flashsim.nor import FileNorFlash

MODEL = "virtual board"
_logged = False
_clock_offset = None if getenv("FLASHMQTT_CLOCK") == "unset" else 0


def _first_line(path):
    try:
        with open(path) as file:
            return file.readline()
    except OSError:
        return ""


class Load:
    """The machine's load average over one minute."""

    name = "load"
    unit = "/"

    def read(self):
        """Return the average number of runnable processes."""
        return float(_first_line("/proc/loadavg").split(" ")[0])


class Memory:
    """The machine's available memory."""

    name = "memory"
    unit = "B"
    qos = 2

    def read(self):
        """Return the available bytes."""
        with open("/proc/meminfo") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
        return None


def unique_id():
    """Return the id that the supervisor set."""
    return getenv("FLASHMQTT_BOARD_ID") or "virtual"


def reset_cause():
    """Return the cause that the supervisor wrote."""
    return _first_line("reset_cause").strip() or "power-on"


def reset():
    """End the process: the supervisor starts it again."""
    raise SystemExit(0)


def network_up(ssid, password, country, log=None):
    """Loopback is always up."""
    global _logged
    if log and not _logged:
        _logged = True
        log("network: this machine's")
    return True


def network_problem():
    """Return "": loopback has no problems."""
    return ""


def network_down():
    """Do nothing."""


def network_strength():
    """Return None: there is no radio."""
    return


def journal_region(sectors, feed=None):
    """Return the whole simulated chip."""
    size, time_scale = int(getenv("FLASHMQTT_FLASH_BYTES") or 65536), float(getenv("FLASHMQTT_FLASH_TIME") or 1.0)
    return BlockRegion(FileNorFlash("flash.bin", size, intent="flash.intent", time_scale=time_scale))


def sensors():
    """Return load and memory."""
    return [Load(), Memory()]


def led(on):
    """Do nothing: there is no LED."""


def watchdog(timeout_ms):
    """Return a function that feeds nothing: there is no watchdog."""
    return lambda: None


def watchdog_off():
    """Do nothing: there is no watchdog."""


def sleep(duration_ms):
    """End the process; the supervisor starts it again."""
    print("asleep")
    raise SystemExit(0)


def supply_millivolts():
    """Return None: there is no battery."""
    return


def clock():
    """Return the seconds since 1970, or None while the clock is not set (FLASHMQTT_CLOCK)."""
    return None if _clock_offset is None else time() + _clock_offset


def set_clock(unix_s):
    """Set the board's clock, not the host's."""
    global _clock_offset
    _clock_offset = unix_s - time()
