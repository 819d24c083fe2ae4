"""The board contract (`boards/board.pyi`) on the unix port of MicroPython: simulated flash, this machine's own
readings.

Runs inside the board's process, whose working directory is the board's: `flash.bin` is the chip's contents,
`flash.intent` names the operation under way, so that a kill tears it (see `tools.flashsim`), `reset_cause` is
written by the supervisor before each start. The environment sets the chip: FLASHMQTT_FLASH_BYTES,
FLASHMQTT_FLASH_TIME (1.0 is the data sheet's typical time). With FLASHMQTT_CLOCK=unset, the board starts without
knowing the time.
"""

from os import getenv, listdir
from time import time

from flashmqtt.flash.block import BlockRegion
from tools.flashsim.nor import FileNorFlash

MODEL = "virtual board"
THERMAL = "/sys/class/thermal"
_flash = None
_told = False
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
        """Return runnable processes, averaged."""
        return float(_first_line("/proc/loadavg").split(" ")[0])


class Memory:
    """The machine's available memory."""

    name = "memory"
    unit = "B"
    qos = 2

    def read(self):
        """Return bytes."""
        with open("/proc/meminfo") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
        return None


class Temperature:
    """A thermal zone of the machine."""

    name = "temperature"
    unit = "Cel"

    def __init__(self, path):
        self._path = path

    def read(self):
        """Return degrees Celsius."""
        line = _first_line(self._path)
        return int(line) / 1000 if line.strip() else None


def unique_id():
    """Return the id that the supervisor gave."""
    return getenv("FLASHMQTT_BOARD_ID") or "virtual"


def reset_cause():
    """Return what the supervisor left."""
    return _first_line("reset_cause").strip() or "power-on"


def reset():
    """End the process: the supervisor starts it again."""
    raise SystemExit(0)


def network_up(ssid, password, country, log=None):
    """Loopback is always up."""
    global _told
    if log and not _told:
        _told = True
        log("network: this machine's")
    return True


def network_problem():
    """Loopback has none."""
    return ""


def network_down():
    """Nothing to switch off."""


def network_strength():
    """There is no radio."""
    return


def journal_region(sectors, feed=None):
    """Return the whole simulated chip."""
    global _flash
    _flash = FileNorFlash(
        "flash.bin",
        int(getenv("FLASHMQTT_FLASH_BYTES") or 65536),
        intent="flash.intent",
        time_scale=float(getenv("FLASHMQTT_FLASH_TIME") or 1.0),
    )
    return BlockRegion(_flash)


def sensors():
    """Return load, memory, and temperature where the system offers one."""
    found = [Load(), Memory()]
    try:
        zones = sorted(name for name in listdir(THERMAL) if name.startswith("thermal_zone"))
    except OSError:
        zones = []
    if zones:
        found.append(Temperature(THERMAL + "/" + zones[0] + "/temp"))
    return found


def led(on):
    """There is no LED."""


def watchdog(timeout_ms):
    """There is no watchdog; feeding nothing is allowed."""
    return lambda: None


def watchdog_off():
    """There is none."""


def sleep(duration_ms):
    """End the process: the supervisor is who wakes it. Tell it what this wake did to the flash."""
    if _flash:
        print("flash", "programs=%d erases=%d read=%d" % (_flash.programs, _flash.erases, _flash.bytes_read))
    raise SystemExit(0)


def supply_millivolts():
    """There is no battery."""
    return


def clock():
    """Return the seconds since 1970, or None while the clock is not set: see FLASHMQTT_CLOCK."""
    return None if _clock_offset is None else time() + _clock_offset


def set_clock(unix_s):
    """Set the board's clock; the host's own stays as it is."""
    global _clock_offset
    _clock_offset = unix_s - time()
