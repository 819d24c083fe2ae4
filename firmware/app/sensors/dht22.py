"""A DHT22 (AM2302): temperature and humidity over one wire. {"kind": "dht22", "pin": 15}."""

from dht import DHT22  # type: ignore[import-not-found]
from machine import Pin


class Temperature:
    """Starts the measurement of both values: the chip needs two seconds between two measurements."""

    name = "temperature"
    unit = "Cel"

    def __init__(self, chip):
        self._chip = chip

    def read(self):
        """Return degrees Celsius, or None if the chip does not answer."""
        try:
            self._chip.measure()
        except OSError:
            return None
        return self._chip.temperature()


class Humidity:
    """The humidity of the last temperature measurement."""

    name = "humidity"
    unit = "%RH"

    def __init__(self, chip):
        self._chip = chip

    def read(self):
        """Return the relative humidity in per cent."""
        return self._chip.humidity()


def make(settings):
    """Return the two sensors on a pin."""
    chip = DHT22(Pin(settings["pin"]))
    return [Temperature(chip), Humidity(chip)]
