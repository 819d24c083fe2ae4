"""Find the board's serial port, and explain why a port can't be opened."""

import contextlib
import errno
import grp
import os
from pathlib import Path

from serial.tools import list_ports

from tools.command import Failure

RASPBERRY_PI = 0x2E8A
USB = Path("/sys/bus/usb/devices")
BOOTSEL = ("2e8a:0003", "2e8a:000f")  # RP2040, RP2350
# USB ids of MicroPython itself, and of the USB bridges on ESP32 boards.
KNOWN = {
    (RASPBERRY_PI, 0x0005): "MicroPython on an RP2040 or RP2350",
    (0x303A, 0x4001): "MicroPython on an ESP32",
    (0x303A, 0x1001): "Espressif's USB bridge",
    (0x10C4, 0xEA60): "CP210x bridge",
    (0x1A86, 0x7523): "CH340 bridge",
    (0x1A86, 0x55D3): "CH343 bridge",
    (0x1A86, 0x55D4): "CH9102 bridge",
    (0x0403, 0x6001): "FTDI bridge",
    (0x0403, 0x6010): "FTDI bridge",
    (0x0403, 0x6015): "FTDI bridge",
}


def find(wanted: str = "auto") -> str:
    """Return the path of the port to use.

    Raises:
        Failure: no port has a board, or several have.
    """
    if wanted != "auto":
        if not Path(wanted).exists():
            raise Failure(f"There is no port {wanted}. {_ports()}")
        return wanted
    ports = {port.device: (port.vid, port.pid) for port in list_ports.comports()}
    found = {path: KNOWN[usb] for path, usb in ports.items() if usb in KNOWN}
    if not found:
        hint = (
            " Does the cable carry data, and is MicroPython on the board (boards/*/README.md)? "
            "Without a board, start `make virtual-board` and give its port as PORT=."
        )
        if _in_bootsel():
            hint = " A Pico is connected in BOOTSEL mode: install MicroPython on it first (boards/rp2/README.md)."
        raise Failure(f"No board found on any serial port.{hint}")
    if len(found) > 1:
        listed = ", ".join(f"{path} ({what})" for path, what in found.items())
        raise Failure(f"Several boards: {listed}. Choose one: PORT={next(iter(found))}")
    return next(iter(found))


def _in_bootsel() -> bool:
    """Return whether a Pico is connected that waits for an image. It has no serial port then."""
    for vendor in USB.glob("*/idVendor"):
        with contextlib.suppress(OSError):  # it was unplugged
            if f"{vendor.read_text().strip()}:{(vendor.parent / 'idProduct').read_text().strip()}" in BOOTSEL:
                return True
    return False


def _ports() -> str:
    found = [port.device for port in list_ports.comports()]
    return f"There are: {', '.join(found)}." if found else "This machine has no serial port; is the board plugged in?"


def why_closed(path: str) -> Failure:
    """Return the error to raise for an existing port that can't be opened."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
        try:
            if not os.isatty(descriptor):
                return Failure(f"{path} is not a serial port. {_ports()}")
        finally:
            os.close(descriptor)
    except PermissionError:
        try:
            group = grp.getgrgid(os.stat(path).st_gid).gr_name
        except (KeyError, OSError):
            group = "dialout"
        remedy = (
            f"Allow it until the board is unplugged: sudo chmod a+rw {path}"
            if group == "root"  # membership in it allows far more
            else f"Join its group and log in again: sudo usermod -aG {group} $USER"
        )
        return Failure(f"No permission to use {path}. {remedy}")
    except FileNotFoundError:
        return Failure(f"{path} has disappeared: was the board unplugged?")
    except OSError as error:
        if error.errno != errno.EBUSY:
            return Failure(f"{path} can't be opened: {error.strerror}")
    return Failure(
        f"{path} is busy: another program has it open (make monitor, mpremote, Thonny?). Close that program and try again."
    )
