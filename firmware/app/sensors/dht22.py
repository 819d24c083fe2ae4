"""A DHT22 (AM2302): temperature and humidity over one wire. {"kind": "dht22", "pin": 15}."""

from dht import DHT22  # type: ignore[import-not-found]
from machine import Pin


class Temperature:
    """Starts the measurement of both values: the chip needs two seconds between two measurements."""

    name = "temperature"
    unit = "Cel"

    def __init__(self, chip):
        self._chip = chip
        self.humidity = None

    def read(self):
        """Return degrees Celsius, or None if the chip does not answer.

        Raises:
            Exception: the driver's, for a wrong checksum.
        """
        self.humidity = None
        try:
            self._chip.measure()
        except OSError:
            return None
        self.humidity = self._chip.humidity()
        return self._chip.temperature()


class Humidity:
    """The humidity of the last temperature measurement."""

    name = "humidity"
    unit = "%RH"

    def __init__(self, temperature):
        self._temperature = temperature

    def read(self):
        """Return the relative humidity in per cent, or None if that measurement failed."""
        return self._temperature.humidity


def make(settings):
    """Return the two sensors on a pin."""
    temperature = Temperature(DHT22(Pin(settings["pin"])))
    return [temperature, Humidity(temperature)]
