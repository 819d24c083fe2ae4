"""A BME280: temperature, humidity and pressure over I2C. {"kind": "bme280", "sda": 4, "scl": 5, "bus": 0, "address": 118}.

The registers and the compensation are those of Bosch's data sheet (BST-BME280-DS002, 4.2.3 and 8.1), in floating point.
micropython-lib has no driver for this chip. It measures on demand ("forced mode"): each read fetches the measurement that the
last read started, and the first read returns None.
"""

from struct import unpack

from machine import I2C, Pin

ADDRESS = 0x76
CHIP_ID = 0x60


class Chip:
    """The chip on its bus."""

    def __init__(self, bus, address=ADDRESS):
        self._bus = bus
        self._address = address
        found = bus.readfrom_mem(address, 0xD0, 1)[0]
        if found != CHIP_ID:
            raise ValueError("no BME280 there: chip id %#x" % found)
        self._t = unpack("<Hhh", bus.readfrom_mem(address, 0x88, 6))
        self._p = unpack("<Hhhhhhhhh", bus.readfrom_mem(address, 0x8E, 18))
        h1 = bus.readfrom_mem(address, 0xA1, 1)[0]
        h2, h3, e4, e5, e6, h6 = unpack("<hBbBbb", bus.readfrom_mem(address, 0xE1, 7))
        self._h = (h1, h2, h3, e4 << 4 | e5 & 15, e6 << 4 | e5 >> 4, h6)
        self._asked = False
        self.temperature = self.humidity = self.pressure = None

    def measure(self):
        """Fetch the last measurement, and start the next one. If the chip does not answer, forget both."""
        asked = self._asked
        self._asked = False
        self.temperature = self.humidity = self.pressure = None
        if asked:
            self._fetch()
        self._bus.writeto_mem(self._address, 0xF2, b"\x01")
        self._bus.writeto_mem(self._address, 0xF4, b"\x25")
        self._asked = True

    def _fetch(self):
        raw = self._bus.readfrom_mem(self._address, 0xF7, 8)
        pressure = raw[0] << 12 | raw[1] << 4 | raw[2] >> 4
        temperature = raw[3] << 12 | raw[4] << 4 | raw[5] >> 4
        fine = self._compensate_temperature(temperature)
        self.temperature = round(fine / 5120, 2)
        self.pressure = self._compensate_pressure(pressure, fine)
        self.humidity = self._compensate_humidity(raw[6] << 8 | raw[7], fine)

    def _compensate_temperature(self, raw):
        t1, t2, t3 = self._t
        part = raw / 16384 - t1 / 1024
        other = raw / 131072 - t1 / 8192
        return part * t2 + other * other * t3

    def _compensate_pressure(self, raw, fine):
        p1, p2, p3, p4, p5, p6, p7, p8, p9 = self._p
        a = fine / 2 - 64000
        b = a * a * p6 / 32768 + a * p5 * 2
        b = b / 4 + p4 * 65536
        a = (p3 * a * a / 524288 + p2 * a) / 524288
        a = (1 + a / 32768) * p1
        if a == 0:
            return None
        p = (1048576 - raw - b / 4096) * 6250 / a
        return round(p + (p9 * p * p / 2147483648 + p * p8 / 32768 + p7) / 16)

    def _compensate_humidity(self, raw, fine):
        h1, h2, h3, h4, h5, h6 = self._h
        h = fine - 76800
        h = (raw - (h4 * 64 + h5 / 16384 * h)) * (h2 / 65536 * (1 + h6 / 67108864 * h * (1 + h3 / 67108864 * h)))
        h = h * (1 - h1 * h / 524288)
        return round(min(100, max(0, h)), 1)


class Reading:
    """One of the three quantities."""

    def __init__(self, chip, name, unit, measures=False):
        self.name = name
        self.unit = unit
        self._chip = chip
        self._measures = measures

    def read(self):
        """Return the quantity, or None if the chip does not answer or has not measured yet."""
        if self._measures:
            try:
                self._chip.measure()
            except OSError:
                return None
        return getattr(self._chip, self.name)


def make(settings):
    """Return the three sensors of the chip on a bus."""
    bus = I2C(settings.get("bus", 0), scl=Pin(settings["scl"]), sda=Pin(settings["sda"]), freq=100000)
    chip = Chip(bus, settings.get("address", ADDRESS))
    return [
        Reading(chip, "temperature", "Cel", True),
        Reading(chip, "humidity", "%RH"),
        Reading(chip, "pressure", "Pa"),
    ]
