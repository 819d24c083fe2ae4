"""All DS18B20 thermometers on one 1-Wire bus. {"kind": "ds18b20", "pin": 22}."""

from ds18x20 import DS18X20  # type: ignore[import-not-found]
from machine import Pin
from onewire import OneWire, OneWireError  # type: ignore[import-not-found]


class Thermometer:
    """One thermometer. A conversion takes 750 ms: each read fetches the last one and starts the next."""

    unit = "Cel"

    def __init__(self, bus, rom, name):
        self.name = name
        self._bus = bus
        self._rom = rom
        self._converting = False

    def read(self):
        """Return degrees Celsius; None the first time, and if the thermometer does not answer."""
        value = None
        try:
            if self._converting:
                value = self._bus.read_temp(self._rom)
            self._bus.convert_temp()
            self._converting = True
        except (OSError, OneWireError):
            self._converting = False
        except Exception:  # the driver raises a plain Exception for a wrong checksum
            value = None
        return value


def make(settings):
    """Return a sensor for each thermometer found, named by its serial number."""
    bus = DS18X20(OneWire(Pin(settings["pin"])))
    return [Thermometer(bus, rom, "temperature_" + bytes(rom).hex()[2:14]) for rom in bus.scan()]
